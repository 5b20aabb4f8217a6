//! Calls and their answers, with a policy: costs, limits, and the status of each descriptor.

use super::bytes::{ALICE, POLICY};
use crate::support::Server;
use crate::support::grpc::{Grpc, HEAD, message};
use crate::support::messages::{
    DAY, Descriptor, HOUR, Limit, MINUTE, MONTH, OK, OVER_LIMIT, Request, SECOND, Status, WEEK,
    YEAR,
};

fn alice() -> Descriptor {
    Descriptor::of(&ALICE)
}

fn few(amount: u32) -> Server {
    let limit = format!("{{ rate: {amount}/h, algorithm: fixed_window, align: first }}");
    let rules = format!("[{{ name: per-user, key: [user], limits: [{limit}] }}]");
    Server::with_policy(&format!("{{ version: 1, rules: {rules} }}"), &[])
}

fn seconds(status: &Status) -> i64 {
    let reset = status.duration_until_reset.unwrap();
    assert_eq!(reset.nanos, 0);
    reset.seconds
}

// === what a call costs ===

#[test]
fn what_a_call_costs() {
    let server = Server::with_policy(POLICY, &[]);
    let mut grpc = Grpc::to(server.grpc);
    for (request, cost) in [
        (Request::about(&ALICE), 1),
        // By the protocol, a cost of 0 of a call means 1, and a cost of 0 of a descriptor means 0.
        (Request::about(&ALICE).hits(0), 1),
        (Request::about(&ALICE).hits(1), 1),
        (Request::about(&ALICE).hits(7), 7),
        (Request::of([alice().hits(0)]), 0),
        (Request::of([alice().hits(3)]), 3),
        (Request::of([alice().hits(3)]).hits(7), 3),
        (Request::of([alice().hits(0)]).hits(7), 0),
        // Two descriptors of the same counter are charged together.
        (Request::of([alice(), alice()]), 2),
        (Request::of([alice().hits(5), alice()]).hits(7), 12),
        (Request::of([alice().hits(5), Descriptor::of(&[("user", "bob")])]), 5),
        // Entries that no rule uses change nothing.
        (Request::about(&[ALICE[0], ("path", "/x")]), 1),
        (Request::about(&[("path", "/x"), ALICE[0]]), 1),
    ] {
        let before = grpc.remaining(&ALICE);
        assert!(grpc.asked(&request).passed(), "{request:?}");
        assert_eq!(before - grpc.remaining(&ALICE), cost, "{request:?}");
    }
    server.is_sound();
}

/// A cost above the whole limit is refused. Nothing is charged, and no number overflows.
#[test]
fn a_cost_beyond_everything_is_refused_and_charges_nothing() {
    let server = few(1_000);
    let mut grpc = Grpc::to(server.grpc);
    assert!(grpc.asked(&Request::about(&ALICE)).passed());
    for request in [
        Request::about(&ALICE).hits(u32::MAX),
        Request::about(&ALICE).hits(1_001),
        Request::of([alice().hits(u64::MAX)]),
        Request::of([alice().hits(u64::MAX), alice().hits(u64::MAX)]),
        Request::of([alice().hits(1 << 63), alice().hits(1 << 63)]),
        Request::of([alice().hits(600), alice().hits(600)]),
        // The cost of one descriptor is above its limit, so the other one is not charged either.
        Request::of([alice(), Descriptor::of(&[("user", "bob")]).hits(u64::MAX)]),
    ] {
        let answer = grpc.asked(&request);
        assert!(!answer.passed(), "{request:?}");
        assert!(answer.statuses.iter().any(|status| status.code == OVER_LIMIT), "{answer:?}");
        for user in ["alice", "bob"] {
            let left = if user == "alice" { 999 } else { 1_000 };
            assert_eq!(grpc.remaining(&[("user", user)]), left, "{user} after {request:?}");
        }
    }
    server.is_sound();
}

/// Hits that are given back can be taken again, but never more than were taken.
#[test]
fn hits_that_are_given_back() {
    let server = few(10);
    let mut grpc = Grpc::to(server.grpc);
    for (descriptor, left) in [
        (alice().hits(6), 4),
        (alice().hits(2).back(), 6),
        (alice().back(), 7),
        (alice().hits(0).back(), 7),
        (alice().hits(100).back(), 10),
        (alice().hits(u64::MAX).back(), 10),
        (alice().hits(10), 0),
        (alice().hits(1).back(), 1),
        (alice(), 0),
    ] {
        let answer = grpc.asked(&Request::of([descriptor.clone()]));
        assert!(answer.passed(), "{descriptor:?}");
        assert_eq!(answer.statuses[0].limit_remaining, left, "{descriptor:?}");
        assert_eq!(grpc.remaining(&ALICE), left, "{descriptor:?}");
    }
    assert!(!grpc.asked(&Request::about(&ALICE)).passed());
    server.is_sound();
}

// === limits in a call ===

#[test]
fn a_descriptor_may_bring_its_limit() {
    let server = few(1);
    let mut grpc = Grpc::to(server.grpc);
    let length = |unit| match unit {
        SECOND => 1,
        MINUTE => 60,
        HOUR => 3_600,
        DAY => 86_400,
        WEEK => 7 * 86_400,
        MONTH => 30 * 86_400,
        _ => 365 * 86_400,
    };
    for unit in [SECOND, MINUTE, HOUR, DAY, MONTH, YEAR, WEEK] {
        let answer = grpc.asked(&Request::of([alice().limited(7, unit)]));
        let status = &answer.statuses[0];
        assert_eq!((answer.overall_code, status.code, status.limit_remaining), (OK, OK, 6));
        let limit = status.current_limit.as_ref().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit), (7, unit));
        assert!((1..=length(unit)).contains(&seconds(status)), "{status:?}");
    }
    // This does not change the counters of the rules.
    assert_eq!(grpc.remaining(&ALICE), 1);
    let weekly = Request::of([alice().limited(3, WEEK)]);
    // The counter of the week has one hit, whatever the amount of its limit was.
    assert_eq!([(); 3].map(|()| grpc.asked(&weekly).passed()), [true, true, false]);
    server.is_sound();
}

/// Nothing passes a limit of 0, not even a small cost, and nothing is divided by it.
#[test]
fn a_limit_of_nothing_lets_nothing_pass() {
    let server = few(1);
    let mut grpc = Grpc::to(server.grpc);
    for unit in [SECOND, MINUTE, HOUR, DAY, MONTH, YEAR, WEEK] {
        for (number, hits) in [None, Some(1), Some(u64::MAX)].into_iter().enumerate() {
            let descriptor = Descriptor { hits_addend: hits, ..alice().limited(0, unit) };
            let answer =
                grpc.asked(&Request::of([descriptor, Descriptor::of(&[("user", "bob")]).hits(0)]));
            let case = format!("unit {unit}, case {number}: {answer:?}");
            assert!(!answer.passed(), "{case}");
            assert_eq!(answer.statuses[0].code, OVER_LIMIT, "{case}");
            let limit = answer.statuses[0].current_limit.as_ref().unwrap();
            assert_eq!((limit.requests_per_unit, limit.unit), (0, unit), "{case}");
            assert_eq!(answer.statuses[0].limit_remaining, 0, "{case}");
            assert_eq!(answer.statuses[1].code, OK, "{case}");
        }
    }
    assert_eq!(grpc.remaining(&ALICE), 1);
    server.is_sound();
}

/// A limit may come from metadata that a client can influence, so an unknown unit is a refusal and not an error.
#[test]
fn a_unit_that_is_none_is_refused() {
    let server = few(10);
    let mut grpc = Grpc::to(server.grpc);
    for unit in [0, 8, 99, -1, i32::MAX, i32::MIN] {
        let request = Request::of([alice(), alice().limited(5, unit)]);
        assert!(!grpc.asked(&request).passed(), "{unit}");
        assert_eq!(grpc.remaining(&ALICE), 10);
    }
    assert_eq!(server.metric("tidegate_refused_total{reason=\"undecided\"}"), 6);
    server.until_logged("which does not exist");
    server.is_sound();
}

// === the status of each descriptor ===

#[test]
fn a_status_for_each_descriptor_in_order() {
    let window = |name: &str, rate: &str| {
        format!(
            "{{ name: {name}, key: [{name}], limits: [{{ rate: {rate}, algorithm: fixed_window, align: first }}] }}"
        )
    };
    let rules = [
        window("per-s", "2/s"),
        window("per-min", "3/min"),
        window("per-h", "4/h"),
        window("per-day", "5/day"),
        window("per-week", "6/week"),
        window("per-30day", "7/30day"),
        window("per-30s", "8/30s"),
        "{ name: huge, key: [huge], limits: [604800000000000/week] }".to_owned(),
    ];
    let rules: Vec<String> =
        rules.iter().map(|rule| rule.replace("key: [per-", "key: [in-")).collect();
    let policy = format!("version: 1\nrules:\n  - {}\n", rules.join("\n  - "));
    let server = Server::with_policy(&policy, &[]);
    let mut grpc = Grpc::to(server.grpc);
    let names =
        ["in-week", "in-min", "elsewhere", "in-h", "in-30day", "in-s", "in-day", "in-30s", "huge"];
    let request = Request::of(names.map(|name| Descriptor::of(&[(name, "v")])));
    let answer = grpc.asked(&request);
    assert_eq!(answer.overall_code, OK);
    let of = |requests_per_unit, unit, name: &str, limit_remaining, length| {
        let name = name.to_owned();
        let current_limit = Some(Limit { requests_per_unit, unit, name });
        (Status { code: OK, current_limit, limit_remaining, duration_until_reset: None }, length)
    };
    let expected = [
        of(6, WEEK, "per-week", 5, 604_800),
        of(3, MINUTE, "per-min", 2, 60),
        (Status { code: OK, ..Status::default() }, 0),
        of(4, HOUR, "per-h", 3, 3_600),
        of(7, MONTH, "per-30day", 6, 2_592_000),
        of(2, SECOND, "per-s", 1, 1),
        of(5, DAY, "per-day", 4, 86_400),
        // A period that has no name in the protocol.
        of(8, 0, "per-30s", 7, 30),
        // A number that does not fit its field becomes the largest that fits. All of it is free again immediately.
        of(u32::MAX, WEEK, "huge", u32::MAX, 1),
    ];
    assert_eq!(answer.statuses.len(), expected.len());
    for (status, (expected, length)) in answer.statuses.into_iter().zip(expected) {
        if length > 0 {
            // Such a window is up to a thousandth longer than its limit says, and the machine may be busy.
            let told = seconds(&status);
            assert!((length - 20..=length + length / 1_000 + 1).contains(&told), "{status:?}");
        }
        let duration_until_reset = if length > 0 { None } else { status.duration_until_reset };
        assert_eq!(Status { duration_until_reset, ..status }, expected);
    }
    // One of them refuses, and the others are not charged.
    assert!(grpc.asked(&Request::about(&[("in-min", "v")]).hits(2)).passed());
    let answer = grpc.asked(&request);
    let codes: Vec<i32> = answer.statuses.iter().map(|status| status.code).collect();
    assert_eq!(codes, [OK, OVER_LIMIT, OK, OK, OK, OK, OK, OK, OK]);
    assert_eq!(answer.overall_code, OVER_LIMIT);
    assert!((1..=61).contains(&seconds(&answer.statuses[1])), "{answer:?}");
    assert_eq!(answer.statuses[0].limit_remaining, 5);
    assert!(answer.response_headers_to_add.is_empty() && answer.dynamic_metadata.is_none());
    server.is_sound();
}

// === counters ===

/// Names and values that look the same when they are concatenated are still different.
#[test]
fn no_two_descriptors_are_mistaken_for_one() {
    let policy = "
version: 1
rules: [{ name: pair, key: [a, b], limits: [{ rate: 1/h, algorithm: fixed_window, align: first }] }]
";
    let server = Server::with_policy(policy, &[]);
    let mut grpc = Grpc::to(server.grpc);
    let values = [
        "", "a", "b", "_", "a_b", "b_c", ":", "|", "/", "{", "}", "%", "\0", "\r\n", "a\0b", "ab",
        "\u{e4}",
    ];
    for a in values {
        for b in values {
            let pair = [("a", a), ("b", b)];
            let answer = grpc.asked(&Request::about(&pair));
            // In a policy, an empty value counts as absent, so the request is not counted.
            let counted = !a.is_empty() && !b.is_empty();
            assert_eq!(answer.statuses[0].current_limit.is_some(), counted, "{pair:?}");
            assert!(answer.passed(), "{pair:?} was taken for another");
            let again = grpc.asked(&Request::about(&[pair[1], pair[0]]));
            assert_eq!(again.passed(), !counted, "{pair:?} is the same however it is ordered");
        }
    }
    server.is_sound();
}

/// Bytes that are not UTF-8 are values like all others: each value has its own counter, and a condition sees the part
/// that it can read.
#[test]
fn values_are_bytes() {
    let policy = "
version: 1
rules:
  - { name: ban, match: { agent: bad-bot }, key: [], limits: [{ rate: 0/h, block: true }] }
  - { name: per-agent, key: [agent], limits: [{ rate: 1/h, algorithm: fixed_window, align: first }] }
";
    let server = Server::with_policy(policy, &[]);
    let mut grpc = Grpc::to(server.grpc);
    let mut passes = |value: &[u8]| {
        let entry =
            |bytes: &[u8]| raw_field(1, &[raw_field(1, b"agent"), raw_field(2, bytes)].concat());
        let call = [raw_field(1, b"web"), raw_field(2, &entry(value))].concat();
        grpc.sent(&HEAD, &message(&call)).answer().passed()
    };
    let values: [&[u8]; 8] = [
        b"\xff",
        b"\xfe",
        b"\xff\xff",
        b"bot\xff",
        b"bot",
        "\u{fffd}".as_bytes(),
        "\u{10ffff}".as_bytes(),
        b"\xf4\x8f\xbf",
    ];
    for value in values {
        assert!(passes(value), "{value:x?} was taken for another");
    }
    for value in values {
        assert!(!passes(value), "{value:x?} is another the second time");
    }
    assert!(!passes(b"bad-bot"));
    server.is_sound();
}

/// A protobuf field that holds bytes.
fn raw_field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    prost::encode_length_delimiter(bytes.len(), &mut out).unwrap();
    out.extend_from_slice(bytes);
    out
}
