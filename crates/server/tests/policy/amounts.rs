//! Mistakes in words, percentages, rates and their options, tiers and overrides.

use super::run::{
    ANYTHING, LIMIT, OPTION, OVERRIDE, RULE, SETTING, Scratch, TIER, TOP, accepted, check_row,
    check_table,
};

#[test]
fn flags_words_and_percentages_have_one_spelling() {
    check_table(
        "words",
        SETTING,
        "
shadow: yes        => 50 `shadow` is `true` or `false`, not `yes`
shadow: on         => 50 `shadow` is `true` or `false`, not `on`
enabled: no        => 51 `enabled` is `true` or `false`, not `no`
enabled: off       => 51 `enabled` is `true` or `false`, not `off`
stop: 1            => 48 `stop` is `true` or `false`, not `1`
stop: True         => 48 `stop` is `true` or `false`, not `True`
stop: \"true\"       => 48 `stop`: write true without quotes
shadow: 'yes'      => 50 `shadow` is `true` or `false`, not `yes`
shadow: 'true'     => 50 `shadow`: write true without quotes
enabled: 'false'   => 51 `enabled`: write false without quotes
stop: ~            => 48 `stop` is `true` or `false`, not nothing
stop: [true]       => 48 `stop` is `true` or `false`, not a list
mode: sotf         => 48 `mode` is `hard` or ¤, not `sotf`, did you mean `soft`?
mode: Hard         => 48 `mode` is `hard` or ¤, not `Hard`, did you mean `hard`?
mode: {}           => 48 `mode` is `hard` or ¤: one of them, not 0
mode: [hard]       => 48 `mode` is `hard` or ¤, not a list
mode: { soft: 10 } => 56 `soft` is `1%` to `900%`, not `10`; write `10%`
mode: { soft: 10 % } => 56 `soft` is `1%` to `900%`, not `10 %`; write `10%`
mode: { soft: 1000 } => 56 `soft` is `1%` to `900%`, not `1000`
mode: { soft: 0% } => 56 `soft` is `1%` to `900%`, not `0%`
mode: { elastic: 200% } => 59 `elastic` is a map with keys such as `up_to`, `while`, not a text
mode: { elastic: { up_to: 99%, while: load < 1 } } => 68 `up_to` is `101%` to `1000%`, not `99%`
mode: { elastic: { up_to: 100%, while: load < 1 } } => 68 `up_to` is `101%` to `1000%`, not `100%`
on_limit: rejct    => 52 `on_limit` is `reject` or ¤, not `rejct`, did you mean `reject`?
on_limit: [reject] => 52 `on_limit` is `reject` or ¤, not a list
on_limit: { delay: 2s } => 61 `delay` is a map with keys such as `max_wait`, `max_queue`, not a text
on_limit: { delay: { max_wait: 2m } } => 73 `max_wait`: unknown period `m`; did you mean `min`?
on_limit: { delay: { max_wait: 2h } } => 73 `max_wait` is at most 1h, not `2h`
on_limit: { delay: { max_wait: 2s, max_queue: '9' } } => 88 `max_queue` is a number; write 9 without quotes
on_limit: { deprioritize: hihg } => 68 there is no priority class `hihg`, did you mean `high`?; the classes are `critical`, `high`, `normal`, `low`
on_limit: { flag: 'a b' } => 60 `a b` is not a valid name for a flag
on_limit: { flag: .. }    => 60 `..` is not a valid name for a flag; use ¤, not starting with a dot
count_rejected: yes => 58 `count_rejected` is `true` or `false`, not `yes`
count: failure     => 49 `count` is ¤, not `failure`, did you mean `failures`?
consistency: exactly => 55 `consistency` is ¤, not `exactly`, did you mean `exact`?
consistency: { write_back: { lease: 5%, interval: 1s } } => 55 `write_back` is now called `lease`; write `consistency: lease`, or `{ lease: { share: 10%, interval: 100ms } }`
consistency: {} => 55 `consistency` is ¤: one of them, not 0
consistency: { lease: 5% } => 64 `lease` is a map with keys such as `share`, `interval`, not a text
consistency: { lease: { share: 51% } } => 73 `share` is `1%` to `50%`, not `51%`
consistency: { lease: { interval: 5ms } } => 76 `interval` of a lease is `10ms` to `1s`
consistency: { lease: { interval: 2s } } => 76 `interval` of a lease is `10ms` to `1s`
on_store_error: open => 58 `on_store_error` is `local` or `allow` or `deny`, not `open`
when_full: sahred   => 53 `when_full` is ¤, not `sahred`, did you mean `shared`?
",
    );
}

#[test]
fn invalid_concurrency_limits_are_refused() {
    check_table(
        "concurrency",
        LIMIT,
        "
{ concurrent: 0 } => 50 `concurrent` is a whole number from 1 to 10000, not `0`
{ concurrent: 10001 } => 50 `concurrent` is a whole number from 1 to 10000, not `10001`
{ concurrent: '20' } => 50 `concurrent` is a number; write 20 without quotes
{ concurrent: [20] } => 50 `concurrent` is a whole number from 1 to 10000, not a list
{ concurrent: 20, rate: 15/s } => 54 `rate` does not belong to a concurrency limit; write the rate as another limit
{ concurrent: 20, algorithm: sliding_log } => 54 `algorithm` does not belong to a concurrency limit; write the rate as another limit
{ concurrent: 20, burst: 5 } => 54 `burst` does not belong to a concurrency limit; write the rate as another limit
{ concurrent: 20, refill: interval } => 54 `refill` does not belong to a concurrency limit; write the rate as another limit
{ concurrent: 20, queue: 5 } => 54 `queue` does not belong to a concurrency limit; write the rate as another limit
{ concurrent: 20, buckets: 60 } => 54 `buckets` does not belong to a concurrency limit; write the rate as another limit
{ concurrent: 20, align: first } => 54 `align` does not belong to a concurrency limit; write the rate as another limit
{ concurrent: 20, block: true } => 54 `block` does not belong to a concurrency limit; write the rate as another limit
{ concurrent: 20, lease: 500ms } => 61 `lease` is from 1s to 1h, not `500ms`
{ concurrent: 20, lease: 2h } => 61 `lease` is from 1s to 1h, not `2h`
{ concurrent: 20, lease: 30 } => 61 `lease`: unknown period ``; did you mean `s`?
{ concurrent: 20, lease: s } => 61 `lease`: `s` is not a valid length of time; write a whole number of units, such as `30s`
{ concurrent: 20, name: 'a b' } => 60 `a b` is not a valid name for a limit
{ concurrent: 20, leas: 5s } => 54 unknown key `leas`, did you mean `lease`?
{ concurent: 20 } => 38 unknown key `concurent`, did you mean `concurrent`?
{ lease: 30s } => 36 a concurrency limit needs the key `concurrent`
",
    );
}

#[test]
fn invalid_rates_are_refused_with_a_suggestion() {
    check_table(
        "rates",
        LIMIT,
        "
0/s           => 36 `0/s`: an amount of 0 denies every request; add `block: true` if that is intended
{ rate: 0/s, block: false } => 44 `0/s`: an amount of 0 denies every request
{ rate: 0/s, block: yes }   => 56 `block` is `true` or `false`, not `yes`
{ rate: 5/s, block: true }  => 44 `block: true` needs an amount of 0
-1/s          => 36 `-1` is not a valid amount; write a whole number
+5/s          => 36 `+5` is not a valid amount
1.5/s         => 36 `1.5` is not a valid amount
1e3/s         => 36 `1e3` is not a valid amount
1_000/s       => 36 `1_000` is not a valid amount
99999999999999999999/s => 36 `99999999999999999999` is not a valid amount
18446744073709551615/s => 36 `18446744073709551615/s`: the rate is above 1000000000 a second
15            => 36 `15` is not a valid rate; write an amount and a period, such as `15/s`
15 per s      => 36 `15 per s` is not a valid rate; write an amount and a period, such as `15/s`
true          => 36 `true` is not a valid rate
15/           => 36 unknown period ``
15 / s        => 36 `15 ` is not a valid amount
15/m          => 36 unknown period `m`; write `min` for minutes, or `calendar-month` for months
15/5m         => 36 unknown period `m`; write `min` for minutes, or `calendar-month` for months
100/d         => 36 unknown period `d`; did you mean `day`?
15/M          => 36 unknown period `M`; did you mean `calendar-month`?
15/sec        => 36 unknown period `sec`; did you mean `s`?
15/hour       => 36 unknown period `hour`; did you mean `h`?
15/month      => 36 unknown period `month`; did you mean `calendar-month`?
10/MIN        => 36 unknown period `MIN`; did you mean `min`?
10/HOUR       => 36 unknown period `HOUR`; did you mean `h`?
10/calendar-year    => 36 unknown period `calendar-year`; did you mean `365day`?
10/2calendar-day    => 36 a calendar period has no factor; write `calendar-day`
10/2calendar-day@Europe/Berlin => 36 a calendar period has no factor; write `calendar-day`
15/fortnight  => 36 unknown period `fortnight`
15/0s         => 36 `0s` is not a valid length of time; write a whole number of units, such as `30s`
15/99999999999999999999s => 36 `99999999999999999999s` is not a valid length of time
15/60week     => 36 `15/60week`: the period is longer than 400 days
15/calendar-day@Europe/Berln     => 36 ¤unknown time zone `Europe/Berln`; write it like `Europe/Berlin`
15/calendar-day@../../etc/passwd => 36 `../../etc/passwd` is not a valid time zone
15/calendar-day@ => 36 `` is not a valid time zone; write it like `Europe/Berlin`
{ rate: 15 }     => 44 `15` is not a valid rate
{ rate: [1/s] }  => 44 `rate` is a text, not a list
[1/s]            => 36 a limit is ¤not a list
1/s, 2/s         => 41 two limits of this rule have the id `s`; give one of them another name: `{ rate: 2/s, name: … }`
1/s, { rate: 9/min, name: s } => 41 two limits of this rule have the id `s`
1/1s,1/2s,1/3s,1/4s,1/5s,1/6s,1/7s,1/8s,1/9s,1/10s,1/11s,1/12s,1/13s,1/14s,1/15s,1/16s,1/17s => 35 17 limits; a rule has at most 16
",
    );
}

#[test]
fn options_belong_to_their_algorithm() {
    check_table(
        "options",
        OPTION,
        "
queue: 5     => 49 `queue` belongs to leaky_bucket; this limit is a token_bucket
buckets: 5   => 49 `buckets` belongs to sliding_buckets; this limit is a token_bucket
align: first => 49 `align` belongs to fixed_window; this limit is a token_bucket
algorithm: sliding_log, burst: 5          => 73 `burst` belongs to token_bucket; this limit is a sliding_log
algorithm: leaky_bucket, refill: interval => 74 `refill` belongs to token_bucket; this limit is a leaky_bucket
algorithm: token-bucket   => 60 `algorithm` is ¤, not `token-bucket`, did you mean `token_bucket`?
algorithm: sliding_window => 60 several algorithms are called a sliding window; write `sliding_log` (exact; for large amounts `sliding_buckets`) or `sliding_weighted` (an estimate, in less memory)
algorithm: sliding-window => 60 several algorithms are called a sliding window
algorithm: gcra           => 60 `algorithm` is `fixed_window` or ¤, not `gcra`
algorithm: [token_bucket] => 60 `algorithm` is `fixed_window` or ¤, not a list
refill: intervall         => 57 `refill` is ¤, not `intervall`, did you mean `interval`?
algorithm: fixed_window, align: frist => 81 `align` is ¤, not `frist`, did you mean `first`?
burst: 0   => 56 `burst` is a whole number from 1, not `0`
burst: -1  => 56 `burst` is a whole number from 1, not `-1`
burst: 1.5 => 56 `burst` is a whole number from 1, not `1.5`
burst: '5' => 56 `burst` is a number; write 5 without quotes
burst: ~   => 56 `burst` is a whole number from 1, not nothing
burst: 18446744073709551615 => 36 `1/s`: burst or queue¤takes over 100 years to fill
algorithm: leaky_bucket, queue: -1         => 81 `queue` is a whole number from 0, not `-1`
algorithm: sliding_buckets, buckets: 1     => 86 `buckets` is a whole number from 2 to 1000, not `1`
algorithm: sliding_buckets, buckets: 1001  => 86 `buckets` is a whole number from 2 to 1000, not `1001`
name: 'a b' => 55 `a b` is not a valid name for a limit
name: .     => 55 `.` is not a valid name for a limit; use ¤, not starting with a dot
name: ..    => 55 `..` is not a valid name for a limit; use ¤, not starting with a dot
",
    );
    check_table(
        "options-rate",
        LIMIT,
        "
{ rate: 1/calendar-day, burst: 5 }                => 60 `burst` belongs to token_bucket; this limit is a fixed_window
{ rate: 1/calendar-day, algorithm: token_bucket } => 36 `1/calendar-day`: calendar periods need fixed_window
{ rate: 10001/s, algorithm: sliding_log }         => 36 `10001/s`: this algorithm counts at most 10000 per period
",
    );
}

#[test]
fn invalid_tiers_are_refused() {
    check_table(
        "tiers",
        TIER,
        "
pr: unlimited       => 51 unknown tier `pr`, did you mean `pro`?; the tiers are `free`, `pro`
gold: unlimited     => 51 unknown tier `gold`; the tiers are `free`, `pro`
pro: unlimted       => 56 a tier is `unlimited` or ¤, not `unlimted`, did you mean `unlimited`?
pro: 10             => 56 a tier is `unlimited` or `{ scale: … }` or `{ limits: … }`, not `10`
pro: [1/s]          => 56 a tier is ¤, not a list
pro: {}             => 56 a tier is ¤: one of them, not 0
pro: { scale: 10, limits: [1/s] } => 56 a tier is ¤: one of them, not 2
pro: { scale: 0 }   => 65 `scale` is a number above 0, such as 10 or 1.5, not `0`
pro: { scale: -1 }  => 65 `scale` is a number above 0¤, not `-1`
pro: { scale: 1e3 } => 65 `scale` is a number above 0¤, not `1e3`
pro: { scale: '10' } => 65 `scale` is a number above 0, such as 10 or 1.5, without quotes
pro: { scale: ten } => 65 `scale` is a number above 0¤, not `ten`
pro: { scale: 1000000000000 } => 65 scaled by 1000000000000: the rate is above 1000000000 a second
pro: { limits: [] }    => 66 `limits` is empty
pro: { limits: [0/s] } => 67 `0/s`: an amount of 0 denies every request
",
    );
    check_table(
        "tiers-top",
        TOP,
        "
tiers: { default: fre, known: [free, pro] } => 19 `fre` is not listed in `known`, did you mean `free`?
tiers: { default: free, known: [] }         => 19 `free` is not listed in `known`
tiers: { default: [free], known: [free] }   => 19 a tier is a text, not a list
tiers: { default: ~, known: [free] }        => 19 a tier is a text, not nothing
tiers: { default: {}, known: [free] }       => 19 a tier is a text, not a map
tiers: { default: free, known: [free, ~] }  => 39 a tier is a text, not nothing
tiers: { known: [free] }                    => 8 `tiers` needs the key `default`
tiers: { default: free, known: [free, free] } => 39 `free` is listed twice in `known`
tiers: { default: free, known: [free, ..] } => 39 `..` is not a valid name for a tier; use ¤, not starting with a dot
tiers: { default: ., known: [free] }        => 19 `.` is not a valid name for ¤; use ¤, not starting with a dot
tiers: { default: free, known: free }       => 32 `known` is a list; write `[free]`
tiers: { default: free, known: [free, a b] } => 39 `a b` is not a valid name for a tier
tiers: [free]                               => 8 `tiers` is a map with keys such as `default`, `known`, not a list
",
    );
    let unknown = "51 unknown tier `pro`; list the tiers above the rules";
    check_row("tiers-none", SETTING, "tiers: { pro: unlimited }", unknown);
}

/// `limits: unlimited` was answered with "write `[unlimited]`", which was refused as well.
#[test]
fn what_an_unlimited_rule_cannot_have_is_refused() {
    check_table(
        "unlimited",
        RULE,
        "
name: a, key: [ip], limits: unlimted               => 35 unknown word `unlimted`, did you mean `unlimited`?
name: a, key: [ip], limits: [unlimited]            => 36 `unlimited` stands in place of the list; write `limits: unlimited`
name: a, key: [ip], limits: none                   => 35 `limits` is a list of rates, such as `[15/s]`, or `unlimited`, not `none`
name: a, limits: unlimited, mode: { soft: 10% }    => 35 `mode` has no effect with `limits: unlimited`; remove it
name: a, limits: unlimited, on_limit: reject       => 35 `on_limit` has no effect with `limits: unlimited`; remove it
name: a, limits: unlimited, shadow: true           => 35 `shadow` has no effect with `limits: unlimited`; remove it
name: a, limits: unlimited, consistency: lease     => 35 `consistency` has no effect with `limits: unlimited`; remove it
name: a, limits: unlimited, overrides: [{ key: { user: x }, limits: [1/s] }] => 5 a rule with `limits` needs the key `key`
",
    );
    let frame = "version: 1\ntiers: { default: free, known: [free] }\nrules:\n  - { name: a, limits: unlimited, tiers: { free: ¤ } }\n";
    check_table(
        "unlimited-tier",
        frame,
        "
{ limits: [1/s] } => 5 a rule with `limits` needs the key `key`
{ scale: 2 }      => 42 `scale` has no effect with `limits: unlimited`
",
    );
    let scratch = Scratch::new("unlimited-right");
    for key in ["", "key: [user], "] {
        let rule = format!("name: a, match: {{ path: /a }}, {key}limits: unlimited, stop: true");
        let other = "  - { name: b, key: [ip], limits: [1/s] }\n";
        let content = format!("{}{other}", RULE.replace(ANYTHING, &rule));
        assert_eq!(accepted(&scratch, content), [""; 0], "{rule}");
    }
}

#[test]
fn overrides_that_never_apply_are_refused() {
    check_table(
        "overrides",
        OVERRIDE,
        "
alice                                 => 60 an override is a map with keys such as `key`, `limits`, not a text
{ key: { user: x } }                  => 60 an override needs the key `limits`
{ limits: [1/s] }                     => 60 an override needs the key `key`
{ key: alice, limits: [1/s] }         => 67 an override's `key` is a map, not a text
{ key: {}, limits: [1/s] }            => 60 an override needs at least one attribute in `key`
{ key: { user: '' }, limits: [1/s] }  => 75 `user` must not be empty; an empty value counts as absent
{ key: { user: x }, limits: [] }      => 88 `limits` is empty
{ key: { user: x }, limits: 5/s }     => 88 `limits` is a list; write `[5/s]`
{ key: { user: x }, limits: 5 }       => 88 `limits` is a list of rates, such as `[15/s]`, or `unlimited`, not `5`
{ key: { user: x }, limits: [unlimited] } => 89 `unlimited` stands in place of the list; write `limits: unlimited`
{ key: { tenant: x }, limits: [1/s] } => ¤ `tenant` is not part of the rule's key [user, ip], so this override would never apply
{ key: { ip: 10.0.0.0/64 }, limits: [1/s] } => 60 `10.0.0.0/64` is not a valid value of `ip`: write an address, or an IPv6 network of 64 bits
{ key: { user: x }, limits: unlimted } => 88 unknown word `unlimted`, did you mean `unlimited`?
{ key: { ip: here }, limits: [1/s] }  => ¤ `here` is not a valid value of `ip`: write an address
{ key: { user: x }, limits: [1/s] }, { key: { user: x }, limits: [2/s] }     => 97 a second override for user=x
{ key: { user: x }, limits: [1/s] }, { key: { ip: 1.2.3.4 }, limits: [2/s] } => 97 another override names [user]; both could apply to one request
",
    );
}

/// A request has only one of several alternatives, so overrides for each of them never both apply.
#[test]
fn overrides_for_alternatives_are_accepted() {
    let content = "version: 1
rules:
  - name: a
    key: [user|ip]
    limits: [1/s]
    overrides:
      - { key: { user: x }, limits: [2/s] }
      - { key: { ip: 192.0.2.1 }, limits: unlimited }
";
    assert_eq!(accepted(&Scratch::new("alternatives"), content), [""; 0]);
}
