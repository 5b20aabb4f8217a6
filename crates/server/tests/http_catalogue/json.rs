//! Request bodies, and mistakes in them.

use super::case::{Closes, GoesOn, POLICY, case, check, post, try_all};
use crate::support::Server;

const JSON: &str = "content-type: application/json\r\n";

fn user(value: &str) -> String {
    format!("{{\"attributes\":{{\"user\":\"{value}\"}}}}")
}

fn costing(cost: &str) -> Vec<u8> {
    check(format!("{{\"attributes\":{{\"user\":\"alice\"}},\"cost\":{cost}}}"))
}

#[test]
fn what_is_no_json_of_ours_is_said_to_be_none() {
    let take = |body: &str| post("/v1/take", JSON, body);
    let mut cases = vec![
        case("nothing", check(""), 400, GoesOn),
        case("half of it", check("{\"attributes\":{"), 400, GoesOn),
        case("something behind it", check(format!("{}x", user("a"))), 400, GoesOn),
        case("10,000 lists in lists", check("[".repeat(10_000)), 400, GoesOn),
        case("10,000 maps in maps", check("{\"a\":".repeat(10_000)), 400, GoesOn),
        case(
            "10,000 lists in an attribute",
            check(format!("{{\"attributes\":{{\"user\":{}", "[".repeat(10_000))),
            400,
            GoesOn,
        ),
        case("attributes twice", check("{\"attributes\":{},\"attributes\":{}}"), 400, GoesOn)
            .saying("attributes"),
        case(
            "an attribute twice",
            check("{\"attributes\":{\"user\":\"a\",\"user\":\"b\"}}"),
            400,
            GoesOn,
        )
        .saying("twice"),
        case("a cost twice", check("{\"attributes\":{},\"cost\":1,\"cost\":2}"), 400, GoesOn)
            .saying("cost"),
        case("no attributes", check("{}"), 400, GoesOn).saying("attributes"),
        case("attributes that are null", check("{\"attributes\":null}"), 400, GoesOn)
            .saying("/attributes"),
        case("an attribute that is null", check("{\"attributes\":{\"user\":null}}"), 400, GoesOn)
            .saying("/attributes/user"),
        case("an attribute that is a number", check("{\"attributes\":{\"user\":7}}"), 400, GoesOn)
            .saying("/attributes/user"),
        case(
            "a field of another program",
            check("{\"attributes\":{},\"idempotency_key\":\"7\"}"),
            400,
            GoesOn,
        )
        .saying("idempotency_key"),
        case("no key", take("{\"limit\":1,\"per\":\"1s\"}"), 400, GoesOn).saying("key"),
        case("a key that is null", take("{\"key\":null,\"limit\":1,\"per\":\"1s\"}"), 400, GoesOn)
            .saying("/key"),
        case("an empty key", take("{\"key\":\"\",\"limit\":1,\"per\":\"1s\"}"), 400, GoesOn)
            .saying("/key"),
        case("a limit of nothing", take("{\"key\":\"a\",\"limit\":0,\"per\":\"1s\"}"), 400, GoesOn)
            .saying("/limit"),
        case(
            "a period that is none",
            take("{\"key\":\"a\",\"limit\":1,\"per\":\"1/s\\r\\n\"}"),
            400,
            GoesOn,
        )
        .saying("/per"),
        case("half a surrogate", check(user("\\ud800")), 400, GoesOn),
        case("a user of 2 KiB", check(user(&"u".repeat(2_048))), 200, GoesOn),
        case("a user of 9 KiB", check(user(&"u".repeat(9 * 1024))), 400, GoesOn)
            .saying("/attributes/user"),
        case("a user of 1 MiB", check(user(&"u".repeat(1 << 20))), 413, Closes),
        case(
            "a batch of 1,000",
            check(format!("[{}]", vec![user("a"); 1_000].join(","))),
            200,
            GoesOn,
        ),
        case(
            "a batch of 1,001",
            check(format!("[{}]", vec![user("a"); 1_001].join(","))),
            413,
            GoesOn,
        )
        .saying("1000"),
        case("a batch of none", check("[]"), 200, GoesOn),
        case("a mistake in a batch", check(format!("[{},{{}}]", user("a"))), 400, GoesOn)
            .saying("/1"),
        case(
            "a receipt of nobody",
            post("/v1/report", JSON, "{\"receipt\":\"x\",\"outcome\":\"success\"}"),
            400,
            GoesOn,
        ),
    ];
    for bytes in [&b"\xff"[..], b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\x80"] {
        let body = [b"{\"attributes\":{\"user\":\"", bytes, b"\"}}"].concat();
        cases.push(case(&format!("the bytes {bytes:?}"), check(body), 400, GoesOn));
    }
    try_all(&cases);
}

#[test]
fn a_cost_is_a_whole_number() {
    let mut cases = vec![case("one", costing("1"), 200, GoesOn)];
    for cost in
        ["1e400", "1.5", "-1", "\"5\"", "18446744073709551616", "1e1", "null", "[1]", "true"]
    {
        cases.push(case(&format!("a cost of {cost}"), costing(cost), 400, GoesOn).saying("/cost"));
    }
    for cost in ["01", "+1", "NaN", "0x1"] {
        cases.push(case(&format!("a cost of {cost}"), costing(cost), 400, GoesOn));
    }
    try_all(&cases);
}

#[test]
fn only_plain_json_is_read() {
    let asked = |lines: &str| post("/v1/check", lines, user("alice"));
    let gzip = "content-type: application/json\r\ncontent-encoding: gzip\r\n";
    try_all(&[
        case(
            "JSON in UTF-8",
            asked("Content-Type: application/json; charset=utf-8\r\n"),
            200,
            GoesOn,
        ),
        case("XML", asked("content-type: text/xml\r\n"), 415, Closes),
        case("a form", asked("content-type: application/x-www-form-urlencoded\r\n"), 415, Closes),
        case("text", asked("content-type: text/plain\r\n"), 415, Closes),
        case("no kind", asked(""), 415, Closes),
        case(
            "two kinds",
            asked("content-type: application/json\r\ncontent-type: text/xml\r\n"),
            415,
            Closes,
        ),
        case("UTF-16", asked("content-type: application/json; charset=utf-16\r\n"), 415, Closes),
        case("a bomb of gzip", post("/v1/check", gzip, vec![7; 10 * 1024]), 415, Closes),
    ]);
}

// === valid requests, and what they cost ===

fn left(server: &Server, user: &str) -> u64 {
    let verdict =
        server.post("/v1/peek", &format!("{{\"attributes\":{{\"user\":{user}}}}}")).json();
    verdict["limits"][0]["remaining"].as_u64().unwrap()
}

#[test]
fn a_cost_of_nothing_takes_nothing_and_one_beyond_all_never_passes() {
    let server = Server::with_policy(POLICY, &[]);
    let all = left(&server, "\"alice\"");
    let check = |cost: u64| {
        server.post(
            "/v1/check",
            &format!("{{\"attributes\":{{\"user\":\"alice\"}},\"cost\":{cost}}}"),
        )
    };
    assert_eq!(check(0).status, 200);
    let never = check(u64::MAX);
    assert_eq!((never.status, never.field("retry-after")), (429, None));
    assert!(never.json()["retry_after_ms"].is_null(), "{never:?}");
    assert_eq!(left(&server, "\"alice\""), all);
    assert_eq!(check(1).status, 200);
    assert_eq!(left(&server, "\"alice\""), all - 1);
}

#[test]
fn texts_that_look_alike_are_different_users() {
    let server = Server::with_policy(POLICY, &[]);
    let long = format!("\"{}\"", "u".repeat(2_048));
    let longer = format!("\"{}\"", "u".repeat(2_049));
    let users = [
        "\"a\"",
        "\"a\\u0000\"",
        "\"a\\u0000b\"",
        "\"A\"",
        "\"a \"",
        "\"\u{e9}\"",
        "\"e\u{301}\"",
        &long,
        &longer,
    ];
    for (at, user) in users.iter().enumerate() {
        for _ in 0..=at {
            let reply =
                server.post("/v1/check", &format!("{{\"attributes\":{{\"user\":{user}}}}}"));
            assert_eq!(reply.status, 200, "{reply:?}");
        }
    }
    for (at, user) in users.iter().enumerate() {
        let taken = u64::try_from(at).unwrap() + 1;
        assert_eq!(left(&server, user), 1_000_000 - taken, "{user}");
    }
    assert_eq!(left(&server, "\"\\u0061\""), 1_000_000 - 1); // the same text, written differently
}

#[test]
fn what_no_rule_is_about_passes_and_leaves_nothing_behind() {
    let server = Server::with_policy(POLICY, &[]);
    for n in 0..100 {
        let body = format!("{{\"attributes\":{{\"stranger-{n}\":\"{n}\",\"user\":\"\"}}}}");
        let reply = server.post("/v1/check", &body);
        assert_eq!((reply.status, reply.json()["limits"].as_array().unwrap().len()), (200, 0));
    }
    assert_eq!(server.metric("tidegate_states"), 0);
}

/// Labels that clients could create would be memory that clients could use up.
#[test]
fn nothing_that_is_asked_makes_a_new_metric() {
    let server = Server::with_policy(POLICY, &[]);
    let series = || server.admin("GET", "/metrics", "", "").body.lines().count();
    let ask = |n: usize| {
        let path = format!("/v1/check?{n}=x&rule=per-user-{n}");
        let status = server.post(&path, &user(&format!("user-{n}"))).status;
        assert_eq!(status, 200);
        assert_eq!(server.get(&format!("/path-{n}")).status, 404);
    };
    ask(0);
    let before = series();
    (1..500).for_each(ask);
    assert_eq!(series(), before);
}
