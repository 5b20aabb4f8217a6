//! Where a request begins and ends, and bytes that are not a request.

use super::case::{Closes, GoesOn, case, check, get, try_all};
use crate::support::Server;
use crate::support::http1::Wire;

const ALICE: &str = "{\"attributes\":{\"user\":\"alice\"}}";
const JSON: &str = "content-type: application/json\r\n";

/// A check whose body length is given by these lines.
fn framed(lines: &str, body: &str) -> Vec<u8> {
    format!("POST /v1/check HTTP/1.1\r\nhost: tidegate\r\n{JSON}{lines}\r\n{body}").into_bytes()
}

/// A `GET` with a body, which is useless but allowed.
fn with_body(body: &str) -> Vec<u8> {
    let length = format!("content-length: {}\r\n", body.len());
    [&get("/live", &length), body.as_bytes()].concat()
}

fn chunked(body: &str) -> Vec<u8> {
    framed("transfer-encoding: chunked\r\n", body)
}

/// A body of one chunk, with this text after its size.
fn one_chunk(extension: &str) -> String {
    format!("{:x}{extension}\r\n{ALICE}\r\n0\r\n\r\n", ALICE.len())
}

#[test]
fn every_request_names_one_host() {
    try_all(&[
        case("no host", "GET /live HTTP/1.1\r\n\r\n", 400, Closes),
        case("two hosts", get("/live", "host: tidegate\r\n"), 400, Closes),
        case("two different hosts", get("/live", "Host: evil\r\n"), 400, Closes),
        case("a host of two words", "GET /live HTTP/1.1\r\nhost: a b\r\n\r\n", 400, Closes),
        case("a host in HTTP/1.0 is optional", "GET /live HTTP/1.0\r\n\r\n", 200, Closes),
        case("another host in the target", get("http://evil/live", ""), 400, Closes),
        case("the same host in the target", get("http://tidegate/live", ""), 200, GoesOn),
        case("a target of neither kind", get("live", ""), 400, Closes),
        case("a target in another scheme", get("ftp://tidegate/live", ""), 400, Closes),
    ]);
}

#[test]
fn lines_and_fields_have_bounds() {
    let fields = |count: usize| "a: b\r\n".repeat(count - 1);
    let path = |line: usize| format!("/{}", "p".repeat(line - "GET / HTTP/1.1\r".len()));
    let block = |bytes: usize| {
        let others = "\nhost: tidegate\r\nx: \r\n\r\n".len();
        format!("x: {}\r\n", "v".repeat(bytes - others))
    };
    try_all(&[
        case("a line of 8 KiB", get(&path(8 * 1024), ""), 404, GoesOn),
        case("a line of 8 KiB and a byte", get(&path(8 * 1024 + 1), ""), 414, Closes),
        case("a line of 9,000 bytes", get(&path(9_000), ""), 414, Closes),
        case("a line without an end", path(100_000), 400, Closes),
        case("a method without an end", "G".repeat(100_000), 400, Closes),
        case("a target without an end", format!("GET {}", path(100_000)), 414, Closes),
        case("100 fields", get("/live", &fields(100)), 200, GoesOn),
        case("101 fields", get("/live", &fields(101)), 431, Closes),
        case("fields of 16 KiB", get("/live", &block(16 * 1024)), 200, GoesOn),
        case("fields of 16 KiB and a byte", get("/live", &block(16 * 1024 + 1)), 431, Closes),
        case("fields of 17 KiB", get("/live", &block(17 * 1024)), 431, Closes),
        case("fields without an end", &get("/live", &block(100_000))[..90_000], 431, Closes),
    ]);
}

#[test]
fn fields_are_written_as_fields_are_written() {
    try_all(&[
        case("a blank in a name", get("/live", "x y: z\r\n"), 400, Closes),
        case("a blank behind a name", get("/live", "x : z\r\n"), 400, Closes),
        case("a bracket in a name", get("/live", "x(y: z\r\n"), 400, Closes),
        case("no name", get("/live", ": z\r\n"), 400, Closes),
        case("no colon", get("/live", "x\r\n"), 400, Closes),
        case("NUL in a name", get("/live", "x\0y: z\r\n"), 400, Closes),
        case("NUL in a value", get("/live", "x: y\0z\r\n"), 400, Closes),
        case("a bare carriage return in a value", get("/live", "x: y\rz\r\n"), 400, Closes),
        case("a bell in a value", get("/live", "x: y\x07z\r\n"), 400, Closes),
        case("a value on two lines", get("/live", "x: y\r\n z\r\n"), 400, Closes),
        case("a value on two lines, by a tab", get("/live", "x: y\r\n\tz\r\n"), 400, Closes),
        case(
            "a first field that goes on",
            "GET /live HTTP/1.1\r\n x: y\r\nhost: t\r\n\r\n",
            400,
            Closes,
        ),
        case("bytes that are no ASCII in a value", get("/live", "x: größe\r\n"), 200, GoesOn),
        case(
            "lines that end in a line feed",
            "GET /live HTTP/1.1\nhost: tidegate\n\n",
            400,
            Closes,
        ),
        case("one of them", "GET /live HTTP/1.1\r\nhost: tidegate\nx: y\r\n\r\n", 400, Closes),
        case("the last of them", "GET /live HTTP/1.1\r\nhost: tidegate\r\n\n", 400, Closes),
        case("the first of them", "GET /live HTTP/1.1\nhost: tidegate\r\n\r\n", 400, Closes),
    ]);
}

/// Two parsers that disagree on where a request ends see different next requests (request smuggling), and a proxy in
/// front of us may be the other parser. So everything that can be read in two ways is refused, and nothing after it
/// is read.
#[test]
fn a_body_has_one_length() {
    let smuggled = "GET /live HTTP/1.1\r\nhost: tidegate\r\n\r\n";
    let mut cases = vec![
        case("a length", check(ALICE), 200, GoesOn),
        case("chunks", chunked(&one_chunk("")), 200, GoesOn),
        case(
            "a length and chunks",
            framed(
                "content-length: 4\r\ntransfer-encoding: chunked\r\n",
                &format!("{}{smuggled}", one_chunk("")),
            ),
            400,
            Closes,
        ),
        case(
            "chunks and a length",
            framed(
                "transfer-encoding: chunked\r\ncontent-length: 4\r\n",
                &format!("{}{smuggled}", one_chunk("")),
            ),
            400,
            Closes,
        ),
        case(
            "two lengths that agree",
            framed("content-length: 31\r\ncontent-length: 31\r\n", ALICE),
            400,
            Closes,
        ),
        case(
            "two lengths that do not",
            framed(
                &format!("content-length: 31\r\ncontent-length: {}\r\n", 31 + smuggled.len()),
                &format!("{ALICE}{smuggled}"),
            ),
            400,
            Closes,
        ),
        case(
            "chunks and chunks",
            framed("transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n", &one_chunk("")),
            400,
            Closes,
        ),
        case(
            "a blank before the colon",
            framed("transfer-encoding : chunked\r\n", &one_chunk("")),
            400,
            Closes,
        ),
        case(
            "a blank before the colon of a length",
            framed("content-length : 31\r\n", ALICE),
            400,
            Closes,
        ),
        case(
            "a coding behind a line feed",
            framed("x: y\ntransfer-encoding: chunked\r\n", &one_chunk("")),
            400,
            Closes,
        ),
        case(
            "a coding on a second line",
            framed("transfer-encoding:\r\n chunked\r\n", &one_chunk("")),
            400,
            Closes,
        ),
        case(
            "chunks in HTTP/1.0",
            String::from_utf8(chunked(&one_chunk(""))).unwrap().replace("1.1", "1.0"),
            400,
            Closes,
        ),
        // Blanks around a value are not part of it, for any parser.
        case(
            "a tab behind the coding",
            framed("transfer-encoding: chunked\t\r\n", &one_chunk("")),
            200,
            GoesOn,
        ),
        case("blanks around a length", framed("content-length: \t 31 \r\n", ALICE), 200, GoesOn),
        case(
            "a coding in capitals",
            framed("Transfer-Encoding: CHUNKED\r\n", &one_chunk("")),
            200,
            GoesOn,
        ),
        case("a body that looks like a request", with_body(smuggled), 200, GoesOn),
    ];
    for coding in [
        "chunked, chunked",
        "xchunked",
        "chunkedx",
        "chunked, identity",
        "gzip, chunked",
        "chunked;q=1",
        "\"chunked\"",
        "chunked,",
        "\x0bchunked",
        "chunked\0",
    ] {
        let lines = format!("transfer-encoding: {coding}\r\n");
        cases.push(case(&lines, framed(&lines, &one_chunk("")), 400, Closes));
    }
    for coding in ["gzip", "identity", "deflate", ""] {
        let lines = format!("transfer-encoding: {coding}\r\n");
        cases.push(case(&lines, framed(&lines, &one_chunk("")), 501, Closes));
    }
    for length in [
        "-1",
        "+31",
        "31, 31",
        "0x1f",
        "18446744073709551616",
        "",
        "3 1",
        "31.0",
        "1e1",
        "٣١",
        "31;x",
    ] {
        let lines = format!("content-length: {length}\r\n");
        cases.push(case(&lines, framed(&lines, ALICE), 400, Closes));
    }
    try_all(&cases);
}

#[test]
fn chunks_are_chunks_and_not_more_than_announced() {
    let long = "e".repeat(1 << 20);
    let trailers = "a: b\r\n".repeat(1_000);
    let ended = |trailer: &str| one_chunk("").replace("0\r\n\r\n", &format!("0\r\n{trailer}\r\n"));
    let mut cases = vec![
        case("an extension", chunked(&one_chunk(";a=b")), 200, GoesOn),
        case("a megabyte of extension", chunked(&one_chunk(&format!(";{long}"))), 400, Closes),
        case("an extension without an end", chunked(&format!("1f;{long}")), 400, Closes),
        case("a line feed in an extension", chunked(&one_chunk(";a\nb")), 400, Closes),
        case("a quoted line feed in an extension", chunked(&one_chunk(";a=\"\n\"")), 400, Closes),
        case("NUL in an extension", chunked(&one_chunk(";\0")), 400, Closes),
        case("a tab in an extension", chunked(&one_chunk(" ;\ta=b")), 200, GoesOn),
        case("a trailer with a bare carriage return", chunked(&ended("a: b\rc\r\n")), 400, Closes),
        case("a trailer", chunked(&ended("a: b\r\n")), 200, GoesOn),
        case(
            "a trailer that speaks of framing",
            chunked(&ended("content-length: 5\r\n")),
            200,
            GoesOn,
        ),
        case("trailers of 6 KB", chunked(&ended(&trailers)), 400, Closes),
        case("a trailer that ends in a line feed", chunked(&ended("a: b\n")), 400, Closes),
        case(
            "a chunk that is too long for its size",
            chunked("4\r\nabcde\r\n0\r\n\r\n"),
            400,
            Closes,
        ),
        case("a chunk of two megabytes", chunked("200000\r\n{"), 413, Closes),
    ];
    for size in [
        "FFFFFFFFFFFFFFFFF",
        "10000000000000000",
        "-1",
        "+1",
        "0x1f",
        " 1f",
        "",
        ";a",
        "g",
        "1 f",
        "1\0",
    ] {
        cases.push(case(
            &format!("a chunk of `{size}`"),
            chunked(&format!("{size}\r\nx\r\n0\r\n\r\n")),
            400,
            Closes,
        ));
    }
    for end in ["\n", "\r", "\n\r"] {
        cases.push(case(
            &format!("a size that ends in {end:?}"),
            chunked(&format!("1{end}x\r\n0\r\n\r\n")),
            400,
            Closes,
        ));
    }
    try_all(&cases);
}

#[test]
fn a_body_has_a_bound() {
    let blanks = |bytes: usize| format!("{ALICE}{}", " ".repeat(bytes - ALICE.len()));
    let list = |bytes: usize| format!("[{ALICE}]{}", " ".repeat(bytes - ALICE.len() - 2));
    let kib = 1024;
    try_all(&[
        case("64 KiB", check(blanks(64 * kib)), 200, GoesOn),
        case("64 KiB and a byte", check(blanks(64 * kib + 1)), 413, Closes),
        case("65 KiB", check(blanks(65 * kib)), 413, Closes),
        case("a list of 1 MiB", check(list(1024 * kib)), 200, GoesOn),
        case("a list of 1 MiB and a byte", check(list(1024 * kib + 1)), 413, Closes),
        case(
            "10 EiB announced",
            framed("content-length: 999999999999999999\r\n", ALICE),
            413,
            Closes,
        ),
        case("a body where none is wanted", with_body(&blanks(65 * kib)), 413, Closes),
    ]);
}

#[test]
fn other_protocols_and_versions_are_told_apart() {
    let mut hello = b"\x16\x03\x01\x00\xc4\x01\x00\x00\xc0\x03\x03".to_vec();
    hello.extend(std::iter::repeat_n(7, 32));
    let behind_proxy = |line: &str| [line.as_bytes(), &get("/live", "")].concat();
    let proxy_two = |length: u16, rest: usize| {
        let mut bytes = b"\r\n\r\n\0\r\nQUIT\n\x21\x11".to_vec();
        bytes.extend(length.to_be_bytes());
        bytes.extend(std::iter::repeat_n(0, rest));
        bytes.extend(get("/live", ""));
        bytes
    };
    try_all(&[
        case("HTTP/0.9", "GET /\r\n", 400, Closes),
        case("HTTP/0.9 with an empty line", "GET /live\r\n\r\n", 400, Closes),
        case("HTTP/2 in words", "GET /live HTTP/2.0\r\nhost: t\r\n\r\n", 505, Closes),
        case("HTTP/3", "GET /live HTTP/3.0\r\nhost: t\r\n\r\n", 505, Closes),
        case("HTTP/1.2", "GET /live HTTP/1.2\r\nhost: t\r\n\r\n", 505, Closes),
        case("http in small letters", "GET /live http/1.1\r\nhost: t\r\n\r\n", 400, Closes),
        case("a method of three letters", "G E T /live HTTP/1.1\r\nhost: t\r\n\r\n", 400, Closes),
        case("a target of two words", "GET /live me HTTP/1.1\r\nhost: t\r\n\r\n", 400, Closes),
        case("two blanks", "GET  /live HTTP/1.1\r\nhost: t\r\n\r\n", 400, Closes),
        case("a tab for a blank", "GET\t/live HTTP/1.1\r\nhost: t\r\n\r\n", 400, Closes),
        case("NUL in a target", "GET /li\0ve HTTP/1.1\r\nhost: t\r\n\r\n", 400, Closes),
        case("the greeting of TLS", hello, 400, Closes),
        case("RESP", "*1\r\n$4\r\nPING\r\n", 400, Closes),
        case("RESP in a line", "PING\r\n", 400, Closes),
        case("memcached", "get user:alice\r\n", 400, Closes),
        case("SSH", "SSH-2.0-OpenSSH_9.6\r\n", 400, Closes),
        case("the PROXY protocol", behind_proxy("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n"), 400, Closes),
        case("the PROXY protocol, version 2", proxy_two(12, 12), 400, Closes),
        case("the PROXY protocol, too long", proxy_two(65_535, 12), 400, Closes),
        case("nothing but noise", (0..=255).rev().collect::<Vec<u8>>(), 400, Closes),
        case(
            "a websocket",
            get("/v1/check", "connection: upgrade\r\nupgrade: websocket\r\n"),
            400,
            Closes,
        ),
        case(
            "an upgrade to HTTP/2",
            get(
                "/live",
                "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n",
            ),
            200,
            GoesOn,
        ),
        case(
            "three empty lines before a request",
            ["\r\n\r\n\r\n".as_bytes(), &get("/live", "")].concat(),
            400,
            Closes,
        ),
        case(
            "two empty lines before a request",
            ["\r\n\r\n".as_bytes(), &get("/live", "")].concat(),
            200,
            GoesOn,
        ),
        case(
            "an empty line before a request",
            ["\r\n".as_bytes(), &get("/live", "")].concat(),
            200,
            GoesOn,
        ),
    ]);
}

#[test]
fn methods_and_conditions_that_mean_nothing_here() {
    let asked = |method: &str, path: &str| format!("{method} {path} HTTP/1.1\r\nhost: t\r\n\r\n");
    try_all(&[
        case("TRACE", asked("TRACE", "/v1/check"), 405, GoesOn),
        case("TRACE at forward auth", asked("TRACE", "/v1/auth"), 405, GoesOn),
        case("PROPFIND", asked("PROPFIND", "/v1/check"), 405, GoesOn),
        case("get in small letters", asked("get", "/live"), 405, GoesOn),
        case("GET where POST belongs", asked("GET", "/v1/check"), 405, GoesOn),
        case("CONNECT", asked("CONNECT", "tidegate:80"), 400, Closes),
        case("OPTIONS for all", asked("OPTIONS", "*"), 404, GoesOn),
        case("a path that is none", asked("GET", "/v1/chekc"), 404, GoesOn).saying("/v1/check"),
        case("conditions", get("/live", "if-none-match: *\r\nrange: bytes=0-1\r\n"), 200, GoesOn)
            .saying("live"),
        case("a last request", get("/live", "connection: close\r\n"), 200, Closes),
        case(
            "a request behind the last",
            [get("/live", "connection: close\r\n"), get("/ready", "")].concat(),
            200,
            Closes,
        ),
        // A client that asks like this waits for permission to go on, and otherwise for the end.
        case(
            "HTTP/1.0 that would like to go on",
            "GET /live HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
            200,
            Closes,
        ),
        case("a last request among words", get("/live", "connection: x, Close\r\n"), 200, Closes),
    ]);
}

#[test]
fn what_the_listener_for_operators_does_not_speak() {
    let server = Server::start(&[]);
    let mut wire = Wire::to(server.admin);
    wire.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    assert!(wire.rest().is_empty());
    server.is_sound();
}

#[test]
fn who_sends_no_more_is_still_answered() {
    let server = Server::start(&[]);
    let mut wire = Wire::to(server.http);
    wire.send(&[get("/live", ""), get("/ready", "")].concat());
    wire.end();
    let statuses = [wire.answer(), wire.answer()].map(|reply| reply.map(|reply| reply.status));
    assert_eq!(statuses, [Some(200), Some(200)]);
    assert!(wire.rest().is_empty());
}

#[test]
fn who_leaves_within_a_request_is_not_answered() {
    let whole = check(ALICE);
    let server = Server::start(&[]);
    for length in 1..whole.len() {
        let mut wire = Wire::to(server.http);
        wire.send(&whole[..length]);
        wire.end();
        assert!(wire.rest().is_empty(), "after {length} bytes");
    }
    server.is_sound();
}
