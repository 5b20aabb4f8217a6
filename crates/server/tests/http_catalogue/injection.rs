//! Whatever is sent, the header of an answer contains only lines that the server wrote.

use super::case::{check, get, post};
use crate::support::http1::Wire;
use crate::support::{Reply, Server};

const POLICY: &str = "
version: 1
identity:
  trusted: [127.0.0.0/8]
  user: header:x-user
  session: cookie:sid
rules:
  - name: flagged
    key: [user]
    limits: [{ rate: 1/h, algorithm: fixed_window, align: first }]
    on_limit: { flag: challenge }
  - { name: per-session, key: [session], limits: [{ rate: 1/h, algorithm: fixed_window, align: first }] }
";

/// Every header field that the server ever sends here.
const OURS: [&str; 13] = [
    "allow",
    "cache-control",
    "connection",
    "content-length",
    "content-type",
    "date",
    "ratelimit",
    "ratelimit-policy",
    "retry-after",
    "tidegate-flags",
    "tidegate-receipt",
    "x-ratelimit-denied",
    "tidegate-priority",
];

/// Texts that try to become header lines: as they are in JSON, and as they are in a URL.
const HOSTILE: [(&str, &str); 9] = [
    ("a\\r\\nx-evil: 1", "a%0d%0ax-evil:%201"),
    ("a\\nx-evil: 1", "a%0ax-evil:%201"),
    ("a\\rx-evil: 1", "a%0dx-evil:%201"),
    ("a\\u0000x-evil: 1", "a%00x-evil"),
    ("a\\u0085\\u2028x-evil: 1", "a%c2%85x-evil"),
    ("\\u010d\\u010ax-evil: 1", "%c4%8d%c4%8ax-evil"), // end in the bytes 0d and 0a, as code units
    ("a\\\", \\\"x-evil\\\";q=1", "%22,%20%22x-evil"),
    ("\u{fc}\u{ff}", "%fc%ff"),
    ("a\\r\\n\\r\\n<script>", "a%0d%0a%0d%0a%3Cscript%3E"),
];

fn answered(server: &Server, bytes: &[u8]) -> Reply {
    let mut wire = Wire::to(server.http);
    wire.send(bytes);
    let reply = wire.answer().unwrap();
    let mut lines = reply.head.split("\r\n");
    assert!(lines.next().unwrap().starts_with("HTTP/1.1 "), "{reply:?}");
    for line in lines {
        let (name, value) = line.split_once(": ").unwrap();
        assert!(
            OURS.contains(&name),
            "{line:?} in the answer to {}",
            String::from_utf8_lossy(bytes)
        );
        let plain = value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        assert!(plain, "{line:?} in the answer to {}", String::from_utf8_lossy(bytes));
        assert!(!value.contains("evil"), "{line:?}");
    }
    reply
}

#[test]
fn what_stands_in_a_body_makes_no_line() {
    let server = Server::with_policy(POLICY, &[]);
    let json = "content-type: application/json\r\n";
    for (text, _) in HOSTILE {
        // Repeated until it is refused, because a refusal says the most.
        for name in ["user", "session", "ip", "path", "method"] {
            let body = format!("{{\"attributes\":{{\"{name}\":\"{text}\"}},\"receipt\":true}}");
            for _ in 0..3 {
                answered(&server, &check(&body));
            }
        }
        answered(&server, &check(format!("{{\"attributes\":{{\"{text}\":\"x\"}}}}")));
        answered(&server, &check(format!("{{\"{text}\":\"x\"}}")));
        for _ in 0..3 {
            let take = format!("{{\"key\":\"{text}\",\"limit\":1,\"per\":\"1h\"}}");
            answered(&server, &post("/v1/take", json, take));
        }
        let take = format!("{{\"key\":\"a\",\"limit\":1,\"per\":\"{text}\"}}");
        assert_eq!(answered(&server, &post("/v1/take", json, take)).status, 400);
        let report = format!("{{\"receipt\":\"{text}\",\"outcome\":\"success\"}}");
        assert_eq!(answered(&server, &post("/v1/report", json, report)).status, 400);
    }
    server.is_sound();
}

#[test]
fn what_stands_in_a_target_makes_no_line() {
    let server = Server::with_policy(POLICY, &[]);
    for (_, text) in HOSTILE {
        assert_eq!(answered(&server, &get(&format!("/{text}"), "")).status, 404);
        answered(&server, &get(&format!("/v1/auth?{text}={text}"), ""));
        let lines = format!("x-forwarded-method: {text}\r\nx-forwarded-uri: /{text}?{text}\r\n");
        answered(&server, &get("/v1/auth", &lines));
    }
    server.is_sound();
}

/// Every byte that a field value may contain, in every field that is read.
#[test]
fn what_stands_in_a_field_makes_no_line() {
    let server = Server::with_policy(POLICY, &[]);
    let mut wire_bytes: Vec<u8> = (0x20..=0xff).filter(|byte| *byte != 0x7f).collect();
    wire_bytes.insert(0, b'\t');
    for byte in wire_bytes {
        for name in [
            "x-user",
            "cookie",
            "x-forwarded-for",
            "x-forwarded-method",
            "x-forwarded-uri",
            "content-type",
            "connection",
            "expect",
            "host",
        ] {
            let mut bytes = b"GET /v1/auth HTTP/1.1\r\n".to_vec();
            for (field, value) in [
                ("host", "t"),
                ("x-forwarded-method", "GET"),
                ("x-forwarded-uri", "/"),
                ("x-user", "u"),
                ("cookie", "sid=s"),
            ] {
                if field != name {
                    bytes.extend_from_slice(format!("{field}: {value}\r\n").as_bytes());
                }
            }
            let start = if name == "cookie" { "sid=a" } else { "a" };
            bytes.extend_from_slice(format!("{name}: {start}").as_bytes());
            bytes.push(byte);
            bytes.extend_from_slice(b"b\r\n\r\n");
            answered(&server, &bytes);
        }
    }
    server.is_sound();
}
