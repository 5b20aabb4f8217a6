//! Mistakes in identities, networks, keys, paths and conditions.

use super::run::{ANYTHING, IDENTITY, SETTING, Scratch, WHEN, accepted, check_row, check_table};

#[test]
fn invalid_identities_are_refused() {
    check_table(
        "identity",
        IDENTITY,
        "
trusted: [10.0.0.0/33]      => 23 `10.0.0.0/33` is not a valid network; write it like `10.0.0.0/8` or `2001:db8::/32`
trusted: ['2001:db8::/129'] => 23 `2001:db8::/129` is not a valid network
trusted: [localhost]        => 23 `localhost` is not a valid network
trusted: [10.0.0.1/8]       => 23 `10.0.0.1/8` has host bits set; did you mean `10.0.0.0/8`?
trusted: [0.0.0.0/0]        => 22 these networks contain every address, so every client could forge headers; if every peer is your proxy, write `trusted: everyone`
trusted: ['::/0']           => 22 these networks contain every address, so every client could forge headers
trusted: 10.0.0.0/8         => 22 `trusted` is a list of networks, or `everyone`, not `10.0.0.0/8`
trusted: [0.0.0.0/1, 128.0.0.0/1] => 22 these networks contain every address, so every client could forge headers
trusted: ['::/1', '8000::/1']     => 22 these networks contain every address, so every client could forge headers
trusted: ['::ffff:10.0.0.0/104']  => 23 `::ffff:10.0.0.0/104` is an IPv4 network written as IPv6; write `10.0.0.0/8`
trusted: [010.0.0.0/8]      => 23 `010.0.0.0/8` is not a valid network; write it like `10.0.0.0/8`
trusted: [10.0.0.0/08]      => 23 `10.0.0.0/08` is not a valid network; write it like `10.0.0.0/8`
trusted: [10.0.0.0/]        => 23 `10.0.0.0/` is not a valid network; write it like `10.0.0.0/8`
trusted: [10.0.0.0/+8]      => 23 `10.0.0.0/+8` is not a valid network; write it like `10.0.0.0/8`
trusted: evryone            => 22 `trusted` is a list of networks, or `everyone`, not `evryone`, did you mean `everyone`?
trsuted: 10.0.0.0/8         => 13 unknown key `trsuted`, did you mean `trusted`?
trsuted: everyone           => 13 unknown key `trsuted`, did you mean `trusted`?
trsuted: [10.0.0.0/8]       => 13 unknown key `trsuted`, did you mean `trusted`?
ipp: { ipv6_prefix: 64 }    => 13 unknown key `ipp`, did you mean `ip`?
trusted: {}                 => 22 `trusted` is a list, not a map
ip: 64                      => 17 `ip` is a map with keys such as `ipv6_prefix`, `header`, not a text
ip: { ipv6_prefix: 0 }      => 32 `ipv6_prefix` is a whole number from 1 to 128, not `0`
ip: { ipv6_prefix: 129 }    => 32 `ipv6_prefix` is a whole number from 1 to 128, not `129`
ip: { ipv6_prefix: '64' }   => 32 `ipv6_prefix` is a number; write 64 without quotes
ip: { header: x-forwarded-fro } => 27 `header` is ¤, not `x-forwarded-fro`, did you mean `x-forwarded-for`?
user: x-user-id             => 19 `x-user-id` is not a valid source of an attribute; write `header:NAME`
user: headr:x               => 19 `headr:x` is not a valid source of an attribute
'a b': header:x             => 13 `a b` cannot be read from a header, cookie or query; choose another name
path: header:x              => 13 `path` cannot be read from a header, cookie or query; choose another name
user: {}                    => 19 an attribute needs the key `from`
user: { from: x }           => 27 `x` is not a valid source of an attribute; write `header:NAME`
user: { from: 'cookie:x', duplicates: any } => 51 `duplicates` is ¤, not `any`
user: { from: 'cookie:x', decode: base64 } => 47 `decode` is ¤, not `base64`
user: 'jwt:a b'             => 19 `jwt:a b` is not a valid source of an attribute; write `header:NAME`, `cookie:NAME`, `query:NAME`, `digest:query`, `jwt:CLAIM` or `auth:NAME`
user: { from: 'jwt:sub', duplicates: first } => 50 a claim of a token or a field of an auth server has one value, which is not encoded; remove `duplicates` and `decode`
user: { from: 'jwt:sub', decode: form } => 46 a claim of a token or a field of an auth server has one value, which is not encoded; remove `duplicates` and `decode`
user: { from: 'cookie:x', duplicate: first } => 39 unknown key `duplicate`, did you mean `duplicates`?
",
    );
    check_table(
        "networks",
        SETTING,
        "
match: { ip: 10.0.0.0/33 }  => 55 `10.0.0.0/33` is not a valid network; write it like `10.0.0.0/8` or `2001:db8::/32`
match: { ip: 'fd00::/129' } => 55 `fd00::/129` is not a valid network
match: { ip: 10.9.8.7/8 }   => 55 `10.9.8.7/8` has host bits set; did you mean `10.0.0.0/8`?
match: { ip: 10.0.0.0/08 }  => 55 `10.0.0.0/08` is not a valid network
match: { ip: 010.0.0.0/8 }  => 55 `010.0.0.0/8` is not a valid network
match: { ip: '::ffff:10.0.0.0/104' } => 55 `::ffff:10.0.0.0/104` is an IPv4 network written as IPv6; write `10.0.0.0/8`
match: { ip: [10.0.0.0/8, here] } => 68 `here` is not a valid network
",
    );
}

#[test]
fn keys_and_paths_that_match_nothing_are_refused() {
    // The column is that of the key or of its part: both show the reader where to look.
    check_table(
        "key",
        "version: 1\nrules:\n  - { name: a, limits: [1/s], key: ¤ }\n",
        "
[user, user] => ¤ `user` is listed twice in the key
[user||ip]   => ¤ `` is not a valid attribute name; use 1 to 64 of `A-Z a-z 0-9 _ - .`
['user,ip']  => ¤ `user,ip` is not a valid attribute name
[cost]       => ¤ `cost` cannot be part of a key: it is the amount that a request takes
[ip/0]       => ¤ `ip/0` is not a valid prefix; write `ip/1` to `ip/128`
[ip/129]     => ¤ `ip/129` is not a valid prefix; write `ip/1` to `ip/128`
[ip/064]     => ¤ `ip/064` is not a valid prefix; write `ip/1` to `ip/128`
[ip/]        => ¤ `ip/` is not a valid prefix; write `ip/1` to `ip/128`
[ip/+64]     => ¤ `ip/+64` is not a valid prefix; write `ip/1` to `ip/128`
[user/64]    => ¤ `user/64` is not a valid prefix; write `ip/1` to `ip/128`
[a, b, c, d, e, f, g, h, i] => ¤ a key has at most 8 attributes
",
    );
    check_table(
        "paths",
        SETTING,
        "
match: { path: urls }     => 57 `urls`: a path begins with a slash
match: { path: [/a, b] }  => 62 `b`: a path begins with a slash
match: { path: /url* }    => 57 `/url*`: `url*`: a star stands for a whole segment
match: { path: /**/a/** } => 57 `/**/a/**`: a pattern may contain `**` only once
match: { path: '/a?x=1' } => 57 `/a?x=1`: a path is matched without its query; remove it
match: { path: **/x }     => 57 `*` begins a YAML alias; put the text in quotes
match: { method: GET POST } => 59 `GET POST` is not a valid method; write one word such as `POST`, or a list
match: { path: /a%zz }    => 57 `/a%zz`: a percent sign needs two hexadecimal digits
",
    );
}

#[test]
fn mistakes_in_conditions_are_reported_at_their_position() {
    check_table(
        "when",
        WHEN,
        r#"
                     => 12 in ``: a value is missing at the end
cost                 => 16 in `cost`: a comparison is missing, such as `==`
cost <               => 18 in `cost <`: a value is missing at the end
cost =< 5            => 17 in `cost =< 5`: write `<=` instead of `=<`
cost = 3             => 17 in `cost = 3`: write `==` instead of `=`
user == "x           => 20 ¤: this text does not end; close it with `"`
cost > 1 && cost < 5 => 21 ¤: write `and` instead of `&&`
cost > 1 || cost < 5 => 21 ¤: write `or` instead of `||`
!cost > 1            => 12 ¤: write `not` instead of `!`
(cost > 1            => 21 ¤: `)` is missing
cost > 1)            => 20 ¤: unexpected `)`; write `and` or `or`
cost > 1 cost < 5    => 21 ¤: unexpected `cost`; write `and` or `or`
cost > 1e3           => 19 ¤: `1e3` is not a valid number; write it like `0.7`
cost + 1 > 2         => 17 ¤: unexpected character `+`
cost == "5"          => 12 ¤: `cost` is a number; write it without quotes
user > "a"           => 17 ¤: `>` needs a number to compare with
1 == 1               => 12 ¤: a comparison needs a name, such as `cost` or `user`
user.startswith("a") => 17 ¤: `startswith` is not a test of a text; write `starts_with`
user.starts_with(a)  => 29 ¤: write a text in quotes here
user in [x]          => 21 ¤: write a number or a text here
ip == "here"         => 12 in ¤: `here` is not a valid network; write it like `10.0.0.0/8` or `2001:db8::/32`
ip == "10.0.0.0/08"  => 12 in ¤: `10.0.0.0/08` is not a valid network
ip in ["10.0.0.1/8"] => 19 ¤: `10.0.0.1/8` has host bits set; did you mean `10.0.0.0/8`?
user not in []       => 25 ¤: unexpected `]`; write a name, a number or a text
user not on ["x"]    => 21 ¤: `in` is missing
path == "/a?x"       => 12 in ¤: a path is compared without its query; remove it
path in ["/a#b"]     => 21 in ¤: a path is compared without its query; remove it
method == "GET POST" => 12 in ¤: `GET POST` is not a valid method
path == "x"          => ¤ in ¤: `x`: a path begins with a slash
user == "日本" and @ => 29 ¤: unexpected character `@`
"#,
    );
    check_row("when-arrow", WHEN, "cost => 5", "17 in `cost => 5`: write `>=` instead of `=>`");
    let brackets = |n: usize| format!("{}cost > 1{}", "(".repeat(n), ")".repeat(n));
    let chain = format!("cost > 1{}", " and cost > 1".repeat(999));
    for (condition, expected) in [
        (brackets(17), "28 ¤: nested deeper than 16"),
        (brackets(1_000), "28 ¤: nested deeper than 16"),
        (brackets(10_000), "12 ¤: an expression has at most 2048 bytes"),
        (chain, "12 ¤: an expression has at most 2048 bytes"),
    ] {
        check_row("when-long", WHEN, &condition, expected);
    }
    let elastic = "mode: { elastic: { up_to: 200%, while: 'load <' } }";
    check_row("while", SETTING, elastic, "88 in `load <`: a value is missing at the end");
}

/// An API key in a policy file would be published with the file, and it would never equal the digest that requests have.
#[test]
fn api_keys_are_written_as_digests() {
    let scratch = Scratch::new("digests");
    let digest = format!("#{}", "0aF9".repeat(8));
    let [long, other] = [format!("{digest}0"), format!("#{}", "g".repeat(32))];
    let why = "an API key is stored as a digest; write the digest (`#…`) that `policy explain --secret-file` shows";
    for key in ["s3cr3t", "#0", "#", &digest[1..], &long, &other] {
        for value in [format!("'{key}'"), format!("['{digest}', '{key}']")] {
            let setting = format!("match: {{ api_key: {value} }}");
            check_row("digests-match", SETTING, &setting, &format!("60 {why}"));
        }
        for condition in [
            format!("api_key == \"{key}\""),
            format!("api_key != \"{key}\""),
            format!("api_key in [\"{key}\"]"),
            format!("api_key not in [\"{digest}\", \"{key}\"]"),
        ] {
            check_row("digests-when", WHEN, &condition, &format!("¤ in ¤: {why}"));
        }
    }
    for content in [
        SETTING.replace(ANYTHING, &format!("match: {{ api_key: '{digest}' }}")),
        WHEN.replace(ANYTHING, &format!("api_key == \"{digest}\"")),
        WHEN.replace(ANYTHING, &format!("api_key not in [\"{digest}\"]")),
    ] {
        assert_eq!(accepted(&scratch, content), [""; 0]);
    }
}

/// An override with a session id in plain text was accepted, because only API keys were checked. It could never apply, and
/// the secret was in the file. Every attribute that the identity stores as a digest must be written as a digest.
#[test]
fn attributes_that_are_stored_as_digests_are_written_as_digests() {
    const RULES: &str = "version: 1\nidentity: { trusted: [10.0.0.0/8], sid: 'digest:cookie:sid', user: 'header:x-user' }\nrules:\n  - { name: a, key: [sid|user], limits: [1/s], ¤ }\n";
    let scratch = Scratch::new("digested");
    let digest = format!("#{}", "0aF9".repeat(8));
    let shows =
        "is stored as a digest; write the digest (`#…`) that `policy explain --secret-file` shows";
    let sid = format!("`sid` {shows}");
    let api_key = format!("an API key {shows}");
    let long = format!("a value of `user` above 1024 bytes {shows}");
    let name = "x".repeat(1_025);
    let other = RULES.replace("sid|user", "api_key");
    for (frame, setting, expected) in [
        (RULES, "overrides: [{ key: { sid: s3cr3t }, limits: [9/s] }]", format!("74 {sid}")),
        (
            &other,
            "overrides: [{ key: { api_key: s3cr3t }, limits: [9/s] }]",
            format!("77 {api_key}"),
        ),
        (
            RULES,
            &format!("overrides: [{{ key: {{ user: {name} }}, limits: [9/s] }}]"),
            format!("75 {long}"),
        ),
        (RULES, "match: { sid: s3cr3t }", format!("62 {sid}")),
        (RULES, &format!("match: {{ sid: ['{digest}', s3cr3t] }}"), format!("62 {sid}")),
        (RULES, &format!("match: {{ user: {name} }}"), format!("63 {long}")),
        (RULES, "when: 'sid == \"s3cr3t\"'", format!("55 in `…sid…`: {sid}")),
        (RULES, "when: 'sid not in [\"s3cr3t\"]'", format!("67 in `…sid…`: {sid}")),
        (
            RULES,
            "when: 'sid == 1234'",
            "55 in `…sid…`: `sid` is stored as a digest; compare it with `==` only".to_owned(),
        ),
        (
            RULES,
            "when: 'sid.starts_with(\"s3\")'",
            "59 in `…sid…`: `sid` is stored as a digest; compare it with `==` only".to_owned(),
        ),
        (RULES, "when: 'sid = \"s3cr3t\"'", "59 in `…sid…`: write `==` instead of `=`".to_owned()),
    ] {
        check_row("digested", frame, setting, &expected);
    }
    for setting in [
        format!("overrides: [{{ key: {{ sid: '{digest}' }}, limits: [9/s] }}]"),
        format!("match: {{ sid: '{digest}' }}"),
        format!("when: 'sid == \"{digest}\"'"),
        "overrides: [{ key: { user: alice }, limits: [9/s] }]".to_owned(),
    ] {
        let content = RULES.replace("sid|user", "sid|user|ip").replace(ANYTHING, &setting);
        assert_eq!(accepted(&scratch, content), [""; 0], "{setting}");
    }
}

#[test]
fn not_in_is_written_in_two_ways() {
    let scratch = Scratch::new("when-right");
    for condition in
        [r#"user not in ["x"]"#, r#"not user in ["x", "y"]"#, r#"ip in ["10.0.0.0/8"]"#]
    {
        let content = WHEN.replace(ANYTHING, condition);
        assert_eq!(accepted(&scratch, content), [""; 0], "{condition}");
    }
}
