//! Calls that are not valid, and the answers to them. After each of them, the same connection gets correct answers,
//! and what was refused is not charged.

use crate::support::Server;
use crate::support::grpc::{
    End, Grpc, HEAD, INVALID_ARGUMENT, Told, UNIMPLEMENTED, begin, message, prefixed, to_method,
};
use crate::support::http1::Wire;
use crate::support::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, NONE, PADDED, fields, frame,
};
use crate::support::messages::{Descriptor, Request};
use prost::Message;

pub(crate) const POLICY: &str = "
version: 1
rules: [{ name: per-user, key: [user], limits: [{ rate: 100000/h, algorithm: fixed_window, align: first }] }]
";
pub(crate) const ALICE: [(&str, &str); 1] = [("user", "alice")];

type Head = Vec<(&'static str, &'static str)>;
/// Builds what is sent on a stream.
pub(crate) type Make<'m> = &'m dyn Fn(u32) -> Vec<u8>;

/// The expected result of a case.
#[derive(Clone, Copy, Debug)]
enum Expected {
    /// It is a valid call, and is charged once.
    Passes,
    /// It is a call that cannot be decided. A client could cause it through its proxy, so it is refused, and not
    /// answered with an error.
    Refused,
    /// This status, with these words in its text.
    Status(u32, &'static str),
    /// An HTTP status, without a gRPC answer.
    Http(u16),
}

use Expected::{Http, Passes, Refused, Status};

/// Sends the cases on one connection, one after another.
fn play(cases: impl IntoIterator<Item = (String, Head, Vec<u8>, Expected)>) {
    let server = Server::with_policy(POLICY, &[]);
    let mut grpc = Grpc::to(server.grpc);
    for (name, head, body, expected) in cases {
        let before = grpc.remaining(&ALICE);
        let told = grpc.sent(&head, &body);
        expected.is_met(&name, &told);
        let charged = u32::from(matches!(expected, Passes));
        assert_eq!(before - grpc.remaining(&ALICE), charged, "charged by {name}");
        assert!(grpc.asked(&Request::about(&ALICE)).passed(), "after {name}");
    }
    assert!(grpc.goodbyes.is_empty());
    server.is_sound();
}

impl Expected {
    fn is_met(self, name: &str, told: &Told) {
        assert_eq!(told.end, Some(End::Whole), "{name}: {told:?}");
        match self {
            Passes => assert!(told.answer().passed(), "{name}"),
            Refused => assert!(!told.answer().passed(), "{name}"),
            Status(code, words) => {
                assert_eq!((told.http, told.code), (200, Some(code)), "{name}: {told:?}");
                assert!(told.text.contains(words), "{name}: {}", told.text);
                assert!(told.body.is_empty(), "{name}: {told:?}");
                assert_eq!(told.field("content-type"), Some("application/grpc"), "{name}");
            }
            Http(status) => assert_eq!((told.http, told.code), (status, None), "{name}: {told:?}"),
        }
    }
}

/// These bytes as the message of a call.
fn of_message(name: &str, bytes: &[u8], expected: Expected) -> (String, Head, Vec<u8>, Expected) {
    (name.to_owned(), HEAD.to_vec(), message(bytes), expected)
}

/// A call about Alice with other header fields.
fn of_head(name: &str, head: Head, expected: Expected) -> (String, Head, Vec<u8>, Expected) {
    (name.to_owned(), head, message(&alice()), expected)
}

fn alice() -> Vec<u8> {
    Request::about(&ALICE).encode_to_vec()
}

fn but(name: &'static str, value: &'static str) -> Head {
    HEAD.map(|(known, old)| (known, if known == name { value } else { old })).to_vec()
}

fn without(name: &str) -> Head {
    HEAD.into_iter().filter(|(known, _)| *known != name).collect()
}

fn with(more: &[(&'static str, &'static str)]) -> Head {
    [&HEAD[..], more].concat()
}

/// A protobuf field that holds bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    prost::encode_length_delimiter(bytes.len(), &mut out).unwrap();
    out.extend_from_slice(bytes);
    out
}

// === messages ===

#[test]
fn messages_that_say_too_little_or_too_much() {
    let domain = |length| Request { domain: "d".repeat(length), ..Request::about(&ALICE) };
    let entries: Vec<(String, String)> =
        (0..128).map(|number| (format!("name{number}"), "v".to_owned())).collect();
    let entries: Vec<(&str, &str)> =
        ALICE.into_iter().chain(entries.iter().map(|(name, v)| (&**name, &**v))).collect();
    let many = |count| Request::of(vec![Descriptor::of(&[("x", "y")]).hits(0); count]);
    let also_alice = |count| {
        let mut request = many(count);
        request.descriptors.push(Descriptor::of(&ALICE));
        request.encode_to_vec()
    };
    play([
        of_message("nothing", b"", Status(INVALID_ARGUMENT, "`domain` is empty")),
        of_message("no domain", &domain(0).encode_to_vec(), Status(INVALID_ARGUMENT, "`domain`")),
        of_message("a domain of 10 KiB", &domain(10 * 1024).encode_to_vec(), Passes),
        of_message("33 descriptors", &also_alice(32), Passes),
        of_message("512 descriptors", &also_alice(511), Passes),
        of_message("513 descriptors", &also_alice(512), Refused),
        of_message("17 entries", &Request::about(&entries[..17]).encode_to_vec(), Passes),
        of_message("128 entries", &Request::about(&entries[..128]).encode_to_vec(), Passes),
        of_message("129 entries", &Request::about(&entries).encode_to_vec(), Refused),
        of_message(
            "an entry without a key",
            &Request::about(&[ALICE[0], ("", "x")]).encode_to_vec(),
            Status(INVALID_ARGUMENT, "empty key"),
        ),
        of_message(
            "an entry twice",
            &Request::about(&[ALICE[0], ("user", "bob")]).encode_to_vec(),
            Refused,
        ),
        of_message(
            "the same entry twice",
            &Request::about(&[ALICE[0], ALICE[0]]).encode_to_vec(),
            Passes,
        ),
        of_message(
            "an address twice, by two of its names",
            &Request::about(&[ALICE[0], ("remote_address", "::1"), ("ip", "::1")]).encode_to_vec(),
            Passes,
        ),
        of_message(
            "an entry called `domain`",
            &Request::about(&[ALICE[0], ("domain", "x")]).encode_to_vec(),
            Refused,
        ),
    ]);
}

#[test]
fn a_call_about_nothing_passes() {
    let server = Server::with_policy(POLICY, &[]);
    let mut grpc = Grpc::to(server.grpc);
    let answer = grpc.asked(&Request::of([]));
    assert!(answer.passed() && answer.statuses.is_empty(), "{answer:?}");
    let answer = grpc.asked(&Request::of([Descriptor::default()]));
    assert!(answer.passed() && answer.statuses[0].current_limit.is_none(), "{answer:?}");
}

#[test]
fn bytes_that_are_no_message() {
    let whole = alice();
    let refused = |words| Status(INVALID_ARGUMENT, words);
    let unknown = [0x98, 0x06, 1].repeat(10_000); // field 99, a number
    let deep = (0..200).fold(b"x".to_vec(), |inner, _| field(1, &inner));
    let mut cases = vec![
        of_message("as it should be", &whole, Passes),
        of_message("a number of 11 bytes", &[0xff; 11], refused("more than ten bytes")),
        of_message("a field of 0", &[[0, 1].to_vec(), whole.clone()].concat(), refused("number 0")),
        of_message("a group", &[vec![0x9b, 0x06], whole.clone()].concat(), refused("a group")),
        of_message(
            "the end of a group",
            &[vec![0x9c, 0x06], whole.clone()].concat(),
            refused("group"),
        ),
        of_message(
            "a field of the kind 6",
            &[vec![0x9e, 0x06], whole.clone()].concat(),
            refused(""),
        ),
        of_message(
            "a field of the kind 7",
            &[vec![0x9f, 0x06], whole.clone()].concat(),
            refused(""),
        ),
        of_message("groups in groups", &[0x9b, 0x06].repeat(200), refused("group")),
        of_message("10,000 fields that nobody knows", &[unknown, whole.clone()].concat(), Passes),
        of_message("a field that is 200 deep", &[field(9, &deep), whole.clone()].concat(), Passes),
        of_message(
            "a domain as a number",
            &[vec![8, 1], whole.clone()].concat(),
            refused("wrong wire type"),
        ),
        of_message(
            "hits as text",
            &[whole.clone(), field(3, b"1")].concat(),
            refused("wrong wire type"),
        ),
        of_message(
            "hits as four bytes",
            &[&whole[..], &[0x1d, 1, 0, 0, 0]].concat(),
            refused("wrong wire type"),
        ),
        of_message(
            "a domain that is no UTF-8",
            &[&whole[..], &field(1, b"\xff")].concat(),
            refused("UTF-8"),
        ),
        of_message(
            "a key that is no UTF-8",
            &[&whole[..], &field(2, &field(1, &field(1, b"us\xc0\xaf")))].concat(),
            refused("UTF-8"),
        ),
        of_message(
            "a value that is half of a pair",
            &[
                &whole[..],
                &field(2, &field(1, &[field(1, b"k"), field(2, b"\xed\xa0\x80")].concat())),
            ]
            .concat(),
            Passes,
        ),
        of_message(
            "a length beyond the end",
            &[&whole[..], &[0x12, 0xff, 0xff, 0x03]].concat(),
            refused("cut short"),
        ),
        of_message(
            "a length of 2^64 - 1",
            &[&whole[..], &[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]]
                .concat(),
            refused("cut short"),
        ),
    ];
    // A domain alone is a call without descriptors. Every other truncation is not a valid call.
    let domain = field(1, b"web").len();
    let cut = (0..whole.len()).filter(|length| *length != domain);
    cases.extend(cut.map(|length| {
        of_message(&format!("cut off after {length}"), &whole[..length], refused(""))
    }));
    play(cases);
}

// === the bytes before a message ===

#[test]
fn messages_that_are_not_as_long_as_they_say() {
    let whole = alice();
    let length = u32::try_from(whole.len()).unwrap();
    let long = |bytes: usize| {
        let room = bytes - whole.len() - 1;
        [whole.clone(), field(9, &b"x".repeat(room - prost::length_delimiter_len(room)))].concat()
    };
    let packed = Status(UNIMPLEMENTED, "send them uncompressed");
    let missing = Status(INVALID_ARGUMENT, "missing or cut short");
    let zipped = [("grpc-encoding", "gzip")];
    let case =
        |name: &str, head: Head, body: Vec<u8>, expected| (name.to_owned(), head, body, expected);
    let plain = || HEAD.to_vec();
    let most = 4 * 1024 * 1024;
    play([
        case("64 KiB and a byte", plain(), message(&long(65_537)), Passes),
        case("4 MiB", plain(), message(&long(most)), Passes),
        case("4 MiB and a byte", plain(), message(&long(most + 1)), Refused),
        case("4 GiB, it says", plain(), prefixed(0, u32::MAX, &whole), Refused),
        case("4 GiB, it says, and no more", plain(), prefixed(0, u32::MAX, b""), Refused),
        case("packed, it does not say how", plain(), prefixed(1, length, &whole), packed),
        case("packed", with(&zipped), prefixed(1, length, &bomb()), packed),
        case("packed more than once", plain(), prefixed(2, length, &whole), packed),
        case("255", plain(), prefixed(255, length, &whole), packed),
        case("it may be packed, and is not", with(&zipped), message(&whole), Passes),
        case("no body at all", plain(), vec![], missing),
        case("three bytes", plain(), vec![0; 3], missing),
        case("five bytes that promise more", plain(), prefixed(0, length, b""), missing),
        case("a byte less", plain(), prefixed(0, length, &whole[1..]), missing),
        case(
            "a byte more",
            plain(),
            [message(&whole), vec![0]].concat(),
            Status(INVALID_ARGUMENT, "one message"),
        ),
        case(
            "two messages",
            plain(),
            message(&whole).repeat(2),
            Status(INVALID_ARGUMENT, "one message"),
        ),
    ]);
}

/// The beginning of 10 MiB of zeros, compressed by gzip.
fn bomb() -> Vec<u8> {
    let head = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 0xff, 0xec, 0xc1, 1, 1, 0, 0, 0, 0x80, 0x90, 0xfe];
    [&head[..], &[0; 10_000]].concat()
}

/// No memory is reserved for a length that a message only announces.
#[test]
fn a_promise_of_megabytes_takes_no_memory() {
    let server = Server::with_policy(POLICY, &[]);
    let mut grpc = Grpc::to(server.grpc);
    assert!(grpc.asked(&Request::about(&ALICE)).passed());
    let before = server.resident_kib();
    let health = to_method("/grpc.health.v1.Health/Check");
    let streams: Vec<u32> = [HEAD.to_vec(), health]
        .iter()
        .flat_map(|head| std::iter::repeat_n(head, 250))
        .map(|head| {
            let stream = grpc.open(head);
            grpc.send_piece(NONE, stream, &prefixed(0, 3 * 1024 * 1024, &[7; 1_000]));
            stream
        })
        .collect();
    assert!(grpc.asked(&Request::about(&ALICE)).passed());
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown <= 16 * 1024, "{grown} KiB more");
    for stream in streams {
        grpc.two.send(&frame(DATA, END_STREAM, stream, b""));
        let told = grpc.told(stream);
        assert!(matches!(told.code, Some(1..)), "{told:?}");
    }
    assert!(grpc.asked(&Request::about(&ALICE)).passed());
    server.is_sound();
}

/// Sixty calls of 1 MiB each begin on one connection, and none of them ends: more than the connection has room for.
/// Those that find no room are refused, the others are decided, and none gets an error. Short calls pass meanwhile.
#[test]
fn long_messages_beyond_the_room_of_a_connection_are_refused() {
    let server = Server::with_policy(POLICY, &[]);
    let mut grpc = Grpc::to(server.grpc);
    let value = "v".repeat(1024 * 1024);
    let body = message(&Request::about(&[ALICE[0], ("agent", &value)]).encode_to_vec());
    let (first, last) = body.split_at(body.len() - 1);
    let streams: Vec<u32> = (0..60)
        .map(|_| {
            let stream = grpc.open(&HEAD);
            for piece in first.chunks(16 * 1024) {
                grpc.send_piece(NONE, stream, piece);
            }
            stream
        })
        .collect();
    assert!(grpc.asked(&Request::about(&ALICE)).passed());
    let mut passed = 0;
    for stream in streams {
        grpc.send_piece(END_STREAM, stream, last);
        passed += u32::from(grpc.told(stream).answer().passed());
    }
    // One connection may use a fifth of 64 MiB. Each of the calls is a little longer than 1 MiB, and takes a little
    // more.
    assert!((10..=12).contains(&passed), "{passed}");
    assert!(grpc.asked(&Request::about(&[ALICE[0], ("agent", &value)])).passed());
    server.is_sound();
}

/// However the bytes of a call are split into frames, and with padding and other frames around them, it is the same
/// call.
#[test]
fn a_call_may_come_in_pieces() {
    let server = Server::with_policy(POLICY, &[]);
    let mut grpc = Grpc::to(server.grpc);
    let body = message(&alice());
    for at in 0..=body.len() {
        let (stream, (first, second)) = (grpc.two.next(), body.split_at(at));
        for piece in [begin(stream, &HEAD), frame(DATA, NONE, stream, first)] {
            grpc.two.send(&piece);
            assert!(grpc.two.in_step());
        }
        grpc.two.send(&frame(DATA, END_STREAM, stream, second));
        assert!(grpc.told(stream).answer().passed(), "cut after {at}");
    }
    let bytewise =
        |stream| body.chunks(1).flat_map(|byte| frame(DATA, NONE, stream, byte)).collect();
    let padded = |stream| {
        let payload = [&[3], &body[..], &[0; 3]].concat();
        frame(DATA, PADDED | END_STREAM, stream, &payload)
    };
    let trailers = |stream| {
        let fields = frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields(&[("x", "y")]));
        [frame(DATA, NONE, stream, &body), fields].concat()
    };
    let late = |stream| {
        let bytewise: Vec<u8> = bytewise(stream);
        [bytewise, frame(DATA, NONE, stream, b""), frame(DATA, END_STREAM, stream, b"")].concat()
    };
    let rests: [Make<'_>; 3] = [&padded, &trailers, &late];
    for rest in rests {
        let stream = grpc.open(&HEAD);
        grpc.two.send(&rest(stream));
        assert!(grpc.told(stream).answer().passed());
    }
    let charged = u32::try_from(body.len()).unwrap() + 4;
    assert_eq!(grpc.remaining(&ALICE), 100_000 - charged);
    server.is_sound();
}

// === header fields ===

#[test]
fn heads_of_calls_and_of_others() {
    let none = Status(UNIMPLEMENTED, "there is no method");
    let timeout = Status(INVALID_ARGUMENT, "grpc-timeout");
    let mut cases = vec![
        of_head("as it should be", HEAD.to_vec(), Passes),
        // Some clients omit it, and it makes no difference to tidegate.
        of_head("without `te`", without("te"), Passes),
        of_head(
            "the service of an older version",
            but(":path", "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit"),
            none,
        ),
        of_head(
            "the service before that",
            but(":path", "/pb.lyft.ratelimit.RateLimitService/ShouldRateLimit"),
            none,
        ),
        of_head("no method", but(":path", "/envoy.service.ratelimit.v3.RateLimitService/"), none),
        of_head(
            "small letters",
            but(":path", "/envoy.service.ratelimit.v3.ratelimitservice/shouldratelimit"),
            none,
        ),
        of_head("a way of HTTP", but(":path", "/v1/check"), none),
        of_head("the root", but(":path", "/"), none),
        of_head(
            "a method of health that is none",
            but(":path", "/grpc.health.v1.Health/Nope"),
            Status(UNIMPLEMENTED, ""),
        ),
        of_head(
            "a method of reflection that is none",
            but(":path", "/grpc.reflection.v1.ServerReflection/Nope"),
            Status(UNIMPLEMENTED, ""),
        ),
        of_head("JSON", but("content-type", "application/json"), Http(415)),
        of_head("no kind", without("content-type"), Http(415)),
        of_head("an empty kind", but("content-type", ""), Http(415)),
        of_head("for browsers", but("content-type", "application/grpc-web"), Http(415)),
        of_head("gRPC of JSON", but("content-type", "application/grpc+json"), Http(415)),
        of_head("gRPC of protobuf", but("content-type", "application/grpc+proto"), Passes),
        of_head("gRPC and more", but("content-type", "application/grpc; charset=utf-8"), Passes),
        of_head("GET", but(":method", "GET"), Http(405)),
        of_head("PUT", but(":method", "PUT"), Http(405)),
        of_head("OPTIONS", but(":method", "OPTIONS"), Http(405)),
        of_head("100 fields", with(&[("x", "y"); 96]), Passes),
        // Envoy adds header fields of its client, so a large number of them must not be an error.
        of_head("1,000 fields", with(&[("x", "y"); 994]), Passes),
        // The field is not used, so it is not decoded.
        of_head(
            "bytes that are no base64",
            with(&[("trace-bin", "!!!"), ("b-bin", "====")]),
            Passes,
        ),
        of_head("bytes above ASCII", with(&[("x", "\u{e4}")]), Passes),
        of_head("two timeouts", with(&[("grpc-timeout", "1S"), ("grpc-timeout", "1S")]), timeout),
    ];
    for text in ["1n", "0n", "20m", "5m", "1S", "99999999H", "00000001M", "1u"] {
        cases.push(of_head(
            &format!("a timeout of {text}"),
            with(&[("grpc-timeout", text)]),
            Passes,
        ));
    }
    for text in
        ["abc", "-1m", "", "m", "10", "1.5S", "100000000H", "1 S", "1d", "\u{661}S", "1S,1S"]
    {
        cases.push(of_head(
            &format!("a timeout of {text:?}"),
            with(&[("grpc-timeout", text)]),
            timeout,
        ));
    }
    play(cases);
}

/// The header fields of a call may be as large as Envoy accepts them from a client, and have a bound. If they exceed
/// it, the connection still goes on.
#[test]
fn a_head_has_a_bound() {
    let server = Server::with_policy(POLICY, &[]);
    let mut grpc = Grpc::to(server.grpc);
    for (length, status) in [(60 * 1024, 200), (240 * 1024, 200), (300 * 1024, 431)] {
        let before = grpc.remaining(&ALICE);
        let value = "v".repeat(length);
        let block = fields(&[&HEAD[..], &[("x", &value)]].concat());
        let stream = grpc.two.next();
        let mut pieces = block.chunks(16 * 1024);
        grpc.two.send(&frame(HEADERS, NONE, stream, pieces.next().unwrap()));
        pieces.for_each(|piece| _ = grpc.two.send(&frame(CONTINUATION, NONE, stream, piece)));
        grpc.two.send(&frame(CONTINUATION, END_HEADERS, stream, b""));
        grpc.two.send(&frame(DATA, END_STREAM, stream, &message(&alice())));
        assert_eq!(grpc.told(stream).http, status, "{length}");
        assert_eq!(before - grpc.remaining(&ALICE), u32::from(status == 200), "{length}");
    }
    server.is_sound();
}

/// A client that is answered because of the header may still be sending the rest of its call. That is not abuse,
/// however often it happens.
#[test]
fn who_is_answered_early_may_finish_and_go_on() {
    let early: [(&str, Head); 7] = [
        ("no method of ours", but(":path", "/nowhere")),
        ("JSON", but("content-type", "application/json")),
        ("GET", but(":method", "GET")),
        ("no timeout", with(&[("grpc-timeout", "abc")])),
        ("packed", HEAD.to_vec()),
        ("no method of health", but(":path", "/grpc.health.v1.Health/Nope")),
        ("no method of reflection", but(":path", "/grpc.reflection.v1.ServerReflection/Nope")),
    ];
    let server = Server::with_policy(POLICY, &[]);
    for (name, head) in early {
        let mut grpc = Grpc::to(server.grpc);
        for n in 0..100 {
            let stream = grpc.open(&head);
            if name == "packed" {
                grpc.two.send(&frame(DATA, NONE, stream, &[1, 0, 0, 0, 9]));
            }
            let told = grpc.told(stream);
            assert_eq!(told.end, Some(End::Whole), "{name}, the {n}th: {told:?}");
            grpc.two.send(&frame(DATA, NONE, stream, b"a"));
            grpc.two.send(&frame(DATA, END_STREAM, stream, b"b"));
        }
        assert!(grpc.asked(&Request::about(&ALICE)).passed(), "{name}");
        assert!(grpc.goodbyes.is_empty(), "{name}");
    }
    server.is_sound();
}

/// A client that speaks HTTP/1 gets an HTTP/1 answer that says what to do.
#[test]
fn who_speaks_http_1_is_told_where_to_go() {
    let server = Server::with_policy(POLICY, &[]);
    for request in [
        "GET / HTTP/1.1\r\nhost: t\r\n\r\n",
        "POST /v1/check HTTP/1.1\r\nhost: t\r\ncontent-length: 2\r\n\r\n{}",
        "GET / HTTP/1.0\r\n\r\n",
        "*1\r\n$4\r\nPING\r\n",
    ] {
        let mut wire = Wire::to(server.grpc);
        wire.send(request.as_bytes());
        let told = String::from_utf8(wire.rest()).unwrap();
        let (head, body) = told.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 505 "), "{told}");
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{told}");
        assert!(body.contains("speaks gRPC"), "{told}");
    }
    assert!(Grpc::to(server.grpc).asked(&Request::about(&ALICE)).passed());
    server.is_sound();
}
