//! Unknown keys, missing keys, and values of the wrong kind.

use super::run::{
    IDENTITY, LIMIT, OPTION, OVERRIDE, RULE, RULES, SETTING, Scratch, TIER, TOP, check, check_row,
    check_table, rules,
};

#[test]
fn misspelt_keys_are_reported_with_a_suggestion() {
    check_table(
        "keys-top",
        TOP,
        "
tires: {}        => 1 unknown key `tires`, did you mean `tiers`?
identiy: {}      => 1 unknown key `identiy`, did you mean `identity`?
limits: [1/s]    => 1 unknown key `limits`
tiers: { default: a, knwon: [a] }  => 22 unknown key `knwon`, did you mean `known`?
tiers: { defualt: a, known: [a] }  => 10 unknown key `defualt`, did you mean `default`?
",
    );
    check_table(
        "keys-rule",
        RULE,
        "
nmae: a, key: [ip], limits: [1/s]  => 7 unknown key `nmae`, did you mean `name`?
name: a, keey: [ip], limits: [1/s] => 16 unknown key `keey`, did you mean `key`?
name: a, key: [ip], limts: [1/s]   => 27 unknown key `limts`, did you mean `limits`?
",
    );
    check_table(
        "keys-setting",
        SETTING,
        "
descripton: x    => 42 unknown key `descripton`, did you mean `description`?
mach: {}         => 42 unknown key `mach`, did you mean `match`?
wehn: cost > 1   => 42 unknown key `wehn`, did you mean `when`?
teirs: {}        => 42 unknown key `teirs`, did you mean `tiers`?
overides: []     => 42 unknown key `overides`, did you mean `overrides`?
moed: hard       => 42 unknown key `moed`, did you mean `mode`?
on-limit: reject => 42 unknown key `on-limit`, did you mean `on_limit`?
onLimit: reject  => 42 unknown key `onLimit`, did you mean `on_limit`?
Count_rejected: false => 42 unknown key `Count_rejected`, did you mean `count_rejected`?
conut: all       => 42 unknown key `conut`, did you mean `count`?
consistancy: x   => 42 unknown key `consistancy`, did you mean `consistency`?
on_store_eror: x => 42 unknown key `on_store_eror`, did you mean `on_store_error`?
when_ful: shared => 42 unknown key `when_ful`, did you mean `when_full`?
shaddow: true    => 42 unknown key `shaddow`, did you mean `shadow`?
enable: true     => 42 unknown key `enable`, did you mean `enabled`?
stopp: true      => 42 unknown key `stopp`, did you mean `stop`?
",
    );
}

#[test]
fn misspelt_keys_of_nested_maps_are_reported_too() {
    check_table(
        "keys-limit",
        OPTION,
        "
algoritm: x => 49 unknown key `algoritm`, did you mean `algorithm`?
brust: 5    => 49 unknown key `brust`, did you mean `burst`?
refil: x    => 49 unknown key `refil`, did you mean `refill`?
qeue: 5     => 49 unknown key `qeue`, did you mean `queue`?
bukets: 5   => 49 unknown key `bukets`, did you mean `buckets`?
algin: x    => 49 unknown key `algin`, did you mean `align`?
blok: true  => 49 unknown key `blok`, did you mean `block`?
nmae: x     => 49 unknown key `nmae`, did you mean `name`?
",
    );
    check_table(
        "keys-forms",
        SETTING,
        "
limits: [1/s], mode: hard           => 42 duplicate key `limits`; it is already set at 3:27
mode: { sfot: 10% }                 => 50 unknown key `sfot`, did you mean `soft`?
mode: { elastic: { upto: 200%, while: load < 1 } }  => 61 unknown key `upto`, did you mean `up_to`?
mode: { elastic: { up_to: 200%, whle: load < 1 } }  => 74 unknown key `whle`, did you mean `while`?
on_limit: { deprioritise: low }     => 54 unknown key `deprioritise`, did you mean `deprioritize`?
on_limit: { flga: challenge }       => 54 unknown key `flga`, did you mean `flag`?
on_limit: { delya: {} }             => 54 unknown key `delya`, did you mean `delay`?
on_limit: { delay: { maxwait: 2s } } => 63 unknown key `maxwait`, did you mean `max_wait`?
denied: charged                     => 42 `denied` is now called `count_rejected: true` or `count_rejected: false`
overflow: deny                      => 42 `overflow` is now called `when_full`
",
    );
    check_row("keys-rate", LIMIT, "{ rat: 1/s }", "38 unknown key `rat`, did you mean `rate`?");
    check_row(
        "keys-tier",
        TIER,
        "pro: { scal: 10 }",
        "58 unknown key `scal`, did you mean `scale`?",
    );
    check_table(
        "keys-override",
        OVERRIDE,
        "
{ kye: { user: x }, limits: [1/s] }  => 62 unknown key `kye`, did you mean `key`?
{ key: { user: x }, limts: [1/s] }   => 80 unknown key `limts`, did you mean `limits`?
{ key: { user: x }, limits: [1/s], mode: hard } => 95 unknown key `mode`
",
    );
    let prefix = "19 unknown key `ipv6_prefx`, did you mean `ipv6_prefix`?";
    check_row("keys-ip", IDENTITY, "ip: { ipv6_prefx: 64 }", prefix);
}

#[test]
fn missing_keys_are_reported() {
    check_table(
        "missing-rule",
        RULE,
        "
key: [ip], limits: [1/s] => 5 a rule needs the key `name`
name: a, limits: [1/s]   => 5 a rule needs the key `key`
name: a, key: [ip]       => 5 a rule needs the key `limits`
",
    );
    check_table(
        "missing-setting",
        SETTING,
        "
on_limit: { delay: {} }            => 61 `delay` needs the key `max_wait`
mode: { elastic: { up_to: 200% } } => 59 `elastic` needs the key `while`
mode: soft                         => 48 `soft` needs a value here: `{ soft: … }`
on_limit: flag                     => 52 `flag` needs a value here: `{ flag: … }`
",
    );
    check_row("missing-rate", LIMIT, "{ name: x }", "36 a limit needs the key `rate`");
    let scratch = Scratch::new("missing-top");
    let [version, rule] =
        ["version", "rules"].map(|key| format!("1:1: error: a policy needs the key `{key}`"));
    check(&scratch, rules(0..1).replace("version: 1\n", ""), &[&version]);
    check(
        &scratch,
        rules(0..1).replace("version", "verison"),
        &["1:1: error: unknown key `verison`, did you mean `version`?"],
    );
    check(&scratch, "version: 1\n", &[&rule]);
    check(&scratch, "{}", &[&version, &rule]);
}

#[test]
fn values_of_the_wrong_kind_are_refused() {
    check_table(
        "kinds-top",
        RULES,
        "
none         => 8 `rules` is a list
{ a: 1 }     => 8 `rules` is a list, not a map
~            => 8 `rules` is a list, not nothing
[]           => 8 `rules` is empty; a policy has at least one rule
[per-client] => 9 a rule is a map with keys such as `name`¤not a text
[[a]]        => 9 a rule is a map¤not a list
[~]          => 9 a rule is a map¤not nothing
",
    );
    check_table(
        "kinds-rule",
        RULE,
        "
name: a, key: ip, limits: [1/s]     => 21 `key` is a list; write `[ip]`
name: a, key: ~, limits: [1/s]      => 21 `key` is a list, not nothing
name: a, key: {}, limits: [1/s]     => 21 `key` is a list, not a map
name: a, key: [[ip]], limits: [1/s] => 22 a part of a key is a text, not a list
name: a, key: [ip], limits: 1/s     => 35 `limits` is a list; write `[1/s]`
name: a, key: [ip], limits: {}      => 35 `limits` is a list, not a map
name: a, key: [ip], limits: []      => 35 `limits` is empty; write a rate such as `15/s`
name: [a], key: [ip], limits: [1/s] => 13 ¤ is a text, not a list
",
    );
    check_table(
        "kinds-match",
        SETTING,
        "
match: /a                 => 49 `match` is a map, not a text
match: [/a]               => 49 `match` is a map, not a list
match: { path: { a: b } } => 57 a path is a text, not a map
match: { path: [] }       => 57 `path` is an empty list, so the rule could never match
match: { method: [] }     => 59 `method` is an empty list, so the rule could never match
match: { user: [] }       => 57 `user` is an empty list, so the rule could never match
match: { user: '' }       => 57 `user` must not be empty; an empty value counts as absent
match: { user: null }     => 57 `user` is a text, not nothing
match: { cost: 5 }        => 51 `cost` does not belong in `match`
match: { 'a b': 5 }       => 51 `a b` is not a valid attribute name
match: { methods: [GET] } => 51 `methods` is not an attribute of `identity`, so the rule would never match; did you mean `method`?
match: { Method: GET }    => 51 `Method` is not an attribute of `identity`, so the rule would never match; did you mean `method`?
match: { metod: GET }     => 51 `metod` is not an attribute of `identity`, so the rule would never match; did you mean `method`?
match: { paths: [/a] }    => 51 `paths` is not an attribute of `identity`, so the rule would never match; did you mean `path`?
match: { IP: 192.0.2.1 }  => 51 `IP` is not an attribute of `identity`, so the rule would never match; did you mean `ip`?
match: { tiers: pro }     => 51 `tiers` is not an attribute of `identity`, so the rule would never match; did you mean `tier`?
when: [cost > 1]          => 48 a condition is a text, not a list
description: [x]          => 55 `description` is a text, not a list
tiers: [pro]              => 49 `tiers` is a map, not a list
overrides: {}             => 53 `overrides` is a list, not a map
",
    );
    let scratch = Scratch::new("kinds-whole");
    for (content, kind) in [("hello", "a text"), ("[]", "a list"), ("null", "nothing")] {
        let expected =
            format!("1:1: error: a policy is a map with keys such as `version`¤not {kind}");
        check(&scratch, content, &[expected.as_str()]);
    }
}
