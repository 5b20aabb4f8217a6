//! What an answer has besides the decision: header fields for the client and for the service; and answers that wait.

use crate::support::Server;
use crate::support::grpc::{Grpc, HEAD, message};
use crate::support::messages::{Descriptor, Header, OK, OVER_LIMIT, Request};
use prost::Message;

const POLICY: &str = "
version: 1
rules:
  - { name: per-user, key: [user], limits: [{ rate: 2/h, algorithm: fixed_window, align: first }] }
  - { name: per-tenant, key: [tenant], limits: [{ rate: 10/min, algorithm: fixed_window, align: first }] }
";

type Fields<'f> = &'f [(&'f str, &'f str)];

fn list(headers: &[Header]) -> Vec<(&str, &str)> {
    assert!(headers.iter().all(|header| header.raw_value.is_empty()));
    headers.iter().map(|header| (&*header.key, &*header.value)).collect()
}

/// The header fields for the client, in all their forms, for calls that pass and calls that do not.
#[test]
fn response_headers_in_their_forms() {
    let both = Request::of([
        Descriptor::of(&[("user", "alice")]),
        Descriptor::of(&[("nobody", "knows")]),
        Descriptor::of(&[("tenant", "acme")]),
    ]);
    let policy = ("ratelimit-policy", r#""per-user";q=2;w=3600, "per-tenant";q=10;w=60"#);
    let cases: [(&str, Fields<'_>, Fields<'_>); 4] = [
        ("off", &[], &[]),
        (
            "ratelimit",
            &[policy, ("ratelimit", r#""per-user";r=1;t=3600, "per-tenant";r=9;t=60"#)],
            &[
                policy,
                ("ratelimit", r#""per-user";r=0;t=3600, "per-tenant";r=8;t=60"#),
                ("retry-after", "3600"),
            ],
        ),
        (
            "legacy",
            &[
                ("x-ratelimit-limit", "2"),
                ("x-ratelimit-remaining", "1"),
                ("x-ratelimit-reset", "3600"),
            ],
            &[
                ("x-ratelimit-limit", "2"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "3600"),
                ("retry-after", "3600"),
            ],
        ),
        (
            "reference",
            &[("RateLimit-Limit", "2"), ("RateLimit-Remaining", "1"), ("RateLimit-Reset", "3600")],
            &[("RateLimit-Limit", "2"), ("RateLimit-Remaining", "0"), ("RateLimit-Reset", "3600")],
        ),
    ];
    for (form, passed, refused) in cases {
        let server = Server::with_policy(POLICY, &["--grpc-response-headers", form]);
        let mut grpc = Grpc::to(server.grpc);
        let first = grpc.asked(&both);
        assert_eq!(rounded(&first.response_headers_to_add), sorted(passed), "{form}");
        assert!(grpc.asked(&both).passed());
        let third = grpc.asked(&both);
        assert_eq!((first.overall_code, third.overall_code), (OK, OVER_LIMIT));
        assert_eq!(rounded(&third.response_headers_to_add), sorted(refused), "{form}");
        assert!(third.request_headers_to_add.is_empty());
        server.is_sound();
    }
}

fn sorted(list: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut list: Vec<_> =
        list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    list.sort();
    list
}

/// On a busy machine some seconds may pass, and a window may be a thousandth longer than its limit says. The result
/// is rounded to the whole length.
fn rounded(headers: &[Header]) -> Vec<(String, String)> {
    let whole = |digits: &str| match digits.parse() {
        Ok(3_570..=3_604) => "3600".to_owned(),
        Ok(30..=61) => "60".to_owned(),
        _ => digits.to_owned(),
    };
    let value = |value: &str| {
        let pieces = value.split_inclusive(|sign: char| !sign.is_ascii_digit());
        let rounded = pieces.map(|piece| {
            let digits = piece.trim_end_matches(|sign: char| !sign.is_ascii_digit());
            [whole(digits), piece[digits.len()..].to_owned()].concat()
        });
        rounded.collect::<String>()
    };
    let list: Vec<_> = list(headers).iter().map(|(name, text)| (*name, value(text))).collect();
    sorted(&list.iter().map(|(name, text)| (*name, &**text)).collect::<Vec<_>>())
}

/// A call above a limit that only marks passes, with a header field for the service that handles it.
#[test]
fn request_headers_for_what_is_marked() {
    let policy = "
version: 1
rules:
  - { name: signup, key: [user], limits: [{ rate: 1/h, algorithm: fixed_window, align: first }], on_limit: { flag: challenge } }
  - { name: odd, key: [tenant], limits: [{ rate: 1/h, algorithm: fixed_window, align: first }], on_limit: { flag: watch } }
  - { name: bulk, key: [queue], limits: [{ rate: 1/h, algorithm: fixed_window, align: first }], on_limit: { deprioritize: low } }
";
    let server = Server::with_policy(policy, &[]);
    let mut grpc = Grpc::to(server.grpc);
    for (entries, expected) in [
        (&[("user", "alice")][..], &[("tidegate-flags", "challenge")][..]),
        (&[("queue", "mail")], &[("tidegate-priority", "low")]),
        (&[("user", "bob"), ("tenant", "acme")], &[("tidegate-flags", "challenge, watch")]),
        (
            &[("user", "carol"), ("queue", "feed")],
            &[("tidegate-flags", "challenge"), ("tidegate-priority", "low")],
        ),
    ] {
        let first = grpc.asked(&Request::about(entries));
        assert!(first.passed() && first.request_headers_to_add.is_empty(), "{first:?}");
        let second = grpc.asked(&Request::about(entries));
        assert!(second.passed(), "{second:?}");
        assert_eq!(list(&second.request_headers_to_add), expected);
    }
    server.is_sound();
}

/// With a leaky bucket, calls wait for their turn, and the answer is delayed: for at most half of the call's
/// deadline, the rest being for the way back, and for no longer than the rule says. A call without a deadline cannot
/// wait.
#[test]
fn answers_that_wait_for_their_turn() {
    let policy = "
version: 1
rules:
  - { name: mail, key: [user], limits: [{ rate: 1/4s, algorithm: leaky_bucket, queue: 5 }] }
  - { name: page, key: [tenant], limits: [{ rate: 1/4s, algorithm: leaky_bucket, queue: 5 }], on_limit: { delay: { max_wait: 9s } } }
  - { name: soon, key: [queue], limits: [{ rate: 1/4s, algorithm: leaky_bucket, queue: 5 }], on_limit: { delay: { max_wait: 100ms } } }
";
    let server = Server::with_policy(policy, &[]);
    let mut grpc = Grpc::to(server.grpc);
    let within = |grpc: &mut Grpc, timeout, entry| {
        let head = [&HEAD[..], &[("grpc-timeout", timeout)]].concat();
        grpc.send(&head, &message(&Request::about(&[entry]).encode_to_vec()))
    };
    // The turn of a second call comes after four seconds. That is longer than anything here takes, even on a busy
    // machine.
    for name in ["user", "tenant", "queue"] {
        let hasty = Request::about(&[(name, "hasty")]);
        assert!(grpc.asked(&hasty).passed());
        assert!(!grpc.asked(&hasty).passed(), "{name}");
        let stream = within(&mut grpc, "20m", (name, "hasty"));
        assert!(!grpc.told(stream).answer().passed(), "{name}");
    }
    let first = ["user", "tenant", "queue"].map(|name| within(&mut grpc, "20S", (name, "patient")));
    assert!(first.into_iter().all(|stream| grpc.told(stream).answer().passed()));
    let second = ["user", "tenant"].map(|name| within(&mut grpc, "20S", (name, "patient")));
    let refused = within(&mut grpc, "20S", ("queue", "patient"));
    assert!(!grpc.told(refused).answer().passed());
    // Calls that need not wait are answered meanwhile, and earlier.
    assert!(grpc.asked(&Request::about(&[("user", "other")])).passed());
    assert!(second.iter().all(|stream| !grpc.has_answered(*stream)));
    assert!(second.into_iter().all(|stream| grpc.told(stream).answer().passed()));
    server.is_sound();
}
