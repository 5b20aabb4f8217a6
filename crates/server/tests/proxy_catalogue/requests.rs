//! The requests of the catalogue.
//!
//! `/smuggled` is a request that no client has sent: it is in a body, or behind a message that is not valid. If the proxy and the
//! upstream server disagreed about the end of a message, the upstream server would see it.

#![allow(dead_code, reason = "the tests with real proxies use another part of this")]

use super::case::Case;

/// A message that must never become a request of its own.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nhost: site\r\n\r\n";
const CHUNKED: &str = "transfer-encoding: chunked\r\n";

/// A `GET` with these additional header lines, each with its line end.
fn get(lines: &str) -> String {
    format!("GET /@@@@@@ HTTP/1.1\r\nhost: site\r\n{lines}\r\n")
}

/// A `POST` with these header lines and these bytes behind its head.
fn post(lines: &str, rest: &str) -> String {
    format!("POST /@@@@@@ HTTP/1.1\r\nhost: site\r\n{lines}\r\n{rest}")
}

fn chunked(rest: &str) -> String {
    post(CHUNKED, rest)
}

/// A request line, as it is written.
fn line(line: &str) -> String {
    format!("{line}\r\nhost: site\r\n\r\n")
}

/// All of them.
pub(crate) fn all() -> Vec<Case> {
    [lengths(), codings(), chunks(), trailers(), lines(), fields(), targets(), hosts(), pipelines()]
        .into_iter()
        .flatten()
        .collect()
}

/// `Content-Length`, alone and beside `Transfer-Encoding`.
pub(crate) fn lengths() -> Vec<Case> {
    let body = |lines: &str| post(lines, "abcde");
    let long = SMUGGLED.len();
    let mut cases = vec![
        Case::passes("a length", body("content-length: 5\r\n"), 1),
        Case::passes("a length of nothing", post("content-length: 0\r\n", ""), 1),
        Case::passes("blanks around a length", body("content-length: \t 5 \r\n"), 1),
        Case::passes("zeros before a length", body("content-length: 00005\r\n"), 1),
        Case::passes("a length in capitals", body("CONTENT-LENGTH: 5\r\n"), 1),
        Case::passes(
            "a body that looks like a request",
            post(&format!("content-length: {long}\r\n"), SMUGGLED),
            1,
        ),
        Case::passes(
            "a GET with a body that looks like a request",
            format!("{}{SMUGGLED}", get(&format!("content-length: {long}\r\n"))),
            1,
        ),
        Case::passes(
            "a length with an underscore beside one without",
            body("content-length: 5\r\ncontent_length: 500\r\n"),
            1,
        ),
        Case::passes("a length with an underscore", get("content_length: 500\r\n"), 1),
        Case::refused(
            "a body that is too large",
            body("content-length: 9999999999999\r\n"),
            &[413],
        ),
        Case::cut("a body that ends too early", post("content-length: 9\r\n", "abc"), &[])
            .client_ends(),
    ];
    for (name, lines) in [
        ("a length and chunks", "content-length: 5\r\ntransfer-encoding: chunked\r\n"),
        ("chunks and a length", "transfer-encoding: chunked\r\ncontent-length: 5\r\n"),
        ("a length of zero and chunks", "content-length: 0\r\ntransfer-encoding: chunked\r\n"),
        ("two lengths that agree", "content-length: 5\r\ncontent-length: 5\r\n"),
        ("two lengths that do not", "content-length: 5\r\ncontent-length: 0\r\n"),
        ("a blank before the colon of a length", "content-length : 5\r\n"),
        ("a tab before the colon of a length", "content-length\t: 5\r\n"),
        ("NUL in the name of a length", "content-length\0: 5\r\n"),
        ("a length on a second line", "content-length:\r\n 5\r\n"),
        ("a length behind a line feed", "x: y\ncontent-length: 5\r\n"),
        ("a length behind a carriage return", "x: y\rcontent-length: 5\r\n"),
        (
            "a length and a coding that is not known",
            "content-length: 5\r\ntransfer-encoding: x\r\n",
        ),
    ] {
        cases.push(Case::refused(name, post(lines, &format!("0\r\n\r\n{SMUGGLED}")), &[400]));
    }
    for length in [
        "-1",
        "+5",
        "5, 5",
        "5,0",
        "0x5",
        "18446744073709551616",
        "",
        "5 5",
        "5.0",
        "5e0",
        "٥",
        "5;x",
    ] {
        let bytes = body(&format!("content-length: {length}\r\n"));
        cases.push(Case::refused(&format!("a length of {length:?}"), bytes, &[400]));
    }
    cases
}

/// `Transfer-Encoding` in all spellings.
pub(crate) fn codings() -> Vec<Case> {
    let one = format!("5\r\nabcde\r\n0\r\n\r\n{SMUGGLED}");
    let whole = "5\r\nabcde\r\n0\r\n\r\n";
    let mut cases = vec![
        Case::passes("chunks", chunked(whole), 1),
        Case::passes("a GET with chunks", format!("{}{whole}", get(CHUNKED)), 1),
        Case::passes("a coding in capitals", post("Transfer-Encoding: CHUNKED\r\n", whole), 1),
        Case::passes("a tab behind the coding", post("transfer-encoding: chunked\t\r\n", whole), 1),
        Case::passes("no blank before the coding", post("transfer-encoding:chunked\r\n", whole), 1),
        Case::passes(
            "a coding with an underscore",
            post("transfer_encoding: chunked\r\ncontent-length: 5\r\n", "abcde"),
            1,
        ),
    ];
    for (name, lines) in [
        ("two codings", "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n"),
        ("the same coding twice", "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n"),
        ("a coding and an empty one", "transfer-encoding: chunked\r\ntransfer-encoding:\r\n"),
        ("a blank before the colon of a coding", "transfer-encoding : chunked\r\n"),
        ("a vertical tab before the colon of a coding", "transfer-encoding\x0b: chunked\r\n"),
        ("a coding on a second line", "transfer-encoding:\r\n chunked\r\n"),
        ("a coding on a second line, by a tab", "transfer-encoding:\r\n\tchunked\r\n"),
        ("a coding that goes on", "transfer-encoding: chunked\r\n , identity\r\n"),
        ("a coding behind a line feed", "x: y\ntransfer-encoding: chunked\r\n"),
        ("a coding behind a carriage return", "x: y\rtransfer-encoding: chunked\r\n"),
        ("a carriage return before a coding", "\rtransfer-encoding: chunked\r\n"),
        ("a blank before a coding", " transfer-encoding: chunked\r\n"),
    ] {
        cases.push(Case::refused(name, post(lines, &one), &[400]));
    }
    for coding in [
        "chunked, chunked",
        "xchunked",
        "chunkedx",
        "chunked, identity",
        "gzip, chunked",
        "chunked;q=1",
        "\"chunked\"",
        "chunked,",
        ", chunked",
        "\x0bchunked",
        "chunked\0",
        "chun\u{212a}ed, chunked",
    ] {
        let bytes = post(&format!("transfer-encoding: {coding}\r\n"), &one);
        cases.push(Case::refused(&format!("the coding {coding:?}"), bytes, &[400]));
    }
    for coding in ["gzip", "identity", "deflate", ""] {
        let bytes = post(&format!("transfer-encoding: {coding}\r\n"), &one);
        cases.push(Case::refused(&format!("the coding {coding:?}"), bytes, &[501]));
    }
    for (name, lines) in [
        ("a coding in HTTP/1.0", CHUNKED),
        (
            "a coding and a length in HTTP/1.0",
            "content-length: 5\r\ntransfer-encoding: chunked\r\n",
        ),
    ] {
        let bytes = post(lines, &one).replacen("HTTP/1.1", "HTTP/1.0", 1);
        cases.push(Case::refused(name, bytes, &[400]));
    }
    cases
}

/// Sizes and ends of chunks, and their extensions.
pub(crate) fn chunks() -> Vec<Case> {
    let one = |line: &str| chunked(&format!("{line}\r\nabcde\r\n0\r\n\r\n"));
    let long = "e".repeat(1 << 20);
    let mut cases = vec![
        Case::passes("an extension", one("5;a=b"), 1),
        Case::passes("an extension that looks like a size", one("5;0"), 1),
        Case::passes("a quoted extension", one("5;a=\"b;c\""), 1),
        Case::passes("zeros before a size", one("0000005"), 1),
        Case::passes("a blank behind a size", one("5 "), 1),
        Case::passes("a last chunk of three zeros", chunked("5\r\nabcde\r\n000\r\n\r\n"), 1),
        Case::passes("no chunk but the last", chunked("0\r\n\r\n"), 1),
        Case::passes(
            "a chunk that looks like a request",
            chunked(&format!("{:X}\r\n{SMUGGLED}\r\n0\r\n\r\n", SMUGGLED.len())),
            1,
        ),
        Case::passes(
            "a chunk that looks like the last one",
            chunked(&format!("5\r\n0\r\n\r\n\r\n{:x}\r\n{SMUGGLED}\r\n0\r\n\r\n", SMUGGLED.len())),
            1,
        ),
        Case::cut("a chunk that is too long", chunked("4\r\nabcde\r\n0\r\n\r\n"), &[400]),
        Case::cut("a chunk that is too short", chunked("6\r\nabcde\r\n0\r\n\r\n"), &[400]),
        Case::cut("a chunk without its line end", chunked("5\r\nabcde0\r\n\r\n"), &[400]),
        Case::cut("a chunk that ends in a line feed", chunked("5\r\nabcde\n0\r\n\r\n"), &[400]),
        Case::cut("an extension without an end", chunked(&format!("5;{long}")), &[400]),
        Case::cut("a megabyte of extension", one(&format!("5;{long}")), &[400]),
        Case::cut(
            "an extension with a line feed",
            chunked(&format!("5;a\nabcde\r\n0\r\n\r\n{SMUGGLED}")),
            &[400],
        ),
        Case::cut(
            "a line feed in an extension, and a line end",
            chunked(&format!("5;a\nabcde\r\nabcde\r\n0\r\n\r\n{SMUGGLED}")),
            &[400],
        ),
        Case::cut(
            "a line feed in a quoted extension",
            chunked(&format!("5;a=\"\n0\n\n\"\r\nabcde\r\n0\r\n\r\n{SMUGGLED}")),
            &[400],
        ),
        Case::cut(
            "a line feed in the last extension",
            chunked(&format!("5\r\nabcde\r\n0;a\n\r\n\r\n{SMUGGLED}")),
            &[400],
        ),
        Case::cut(
            "an extension with a carriage return",
            chunked(&format!("5;a\rb\r\nabcde\r\n0\r\n\r\n{SMUGGLED}")),
            &[400],
        ),
        Case::cut("a chunk of all numbers", chunked("FFFFFFFFFFFFFFFF\r\nabcde"), &[413]),
        Case::cut("a chunk of a terabyte", chunked("10000000000\r\nabcde"), &[413]),
        Case::cut("chunks without an end", chunked("5\r\nabcde\r\n"), &[]).client_ends(),
        Case::cut("half of the last chunk", chunked("5\r\nabcde\r\n0\r\n"), &[]).client_ends(),
    ];
    for size in [
        "FFFFFFFFFFFFFFFFF",
        "10000000000000005",
        "-5",
        "+5",
        "0x5",
        " 5",
        "",
        ";a",
        "g",
        "5 5",
        "5\0",
        "5\u{e9}",
    ] {
        cases.push(Case::cut(&format!("a chunk of {size:?}"), one(size), &[400]));
    }
    for end in ["\n", "\r", "\n\r", "\r\r\n", "\u{85}"] {
        let bytes = chunked(&format!("5{end}abcde\r\n0\r\n\r\n{SMUGGLED}"));
        cases.push(Case::cut(&format!("a size that ends in {end:?}"), bytes, &[400]));
    }
    for end in ["0\n\n", "0\r\n\n", "0\n\r\n"] {
        let bytes = chunked(&format!("5\r\nabcde\r\n{end}{SMUGGLED}"));
        cases.push(Case::cut(&format!("a last chunk of {end:?}"), bytes, &[400]));
    }
    cases
}

/// What follows the last chunk.
pub(crate) fn trailers() -> Vec<Case> {
    let ended = |lines: &str| chunked(&format!("5\r\nabcde\r\n0\r\n{lines}\r\n"));
    let mut cases = vec![
        Case::passes("a trailer", ended("sum: 5\r\n"), 1),
        Case::passes(
            "a trailer that was announced",
            ended("sum: 5\r\n").replace(CHUNKED, &format!("{CHUNKED}trailer: sum\r\n")),
            1,
        ),
        Case::passes(
            "a trailer that was announced with a forbidden one",
            ended("sum: 5\r\n").replace(CHUNKED, &format!("{CHUNKED}trailer: sum, host\r\n")),
            1,
        ),
        Case::cut("trailers of 6 KB", ended(&"a: b\r\n".repeat(1_000)), &[400]),
        Case::cut("a hundred trailers", ended(&"a: b\r\n".repeat(100)), &[400]),
    ];
    for name in ["content-length: 0", "transfer-encoding: chunked", "host: other", "trailer: x"] {
        let announced = format!("{CHUNKED}trailer: {}\r\n", name.split(':').next().unwrap());
        let bytes = ended(&format!("{name}\r\n")).replace(CHUNKED, &announced);
        cases.push(Case::cut(&format!("the trailer {name:?}"), bytes, &[400]));
    }
    for lines in
        ["a b: c\r\n", "a : c\r\n", "a: b\n", "a: b\0\r\n", "a: b\r\n c\r\n", "a\r\n", ": b\r\n"]
    {
        cases.push(Case::cut(&format!("the trailer {lines:?}"), ended(lines), &[400]));
    }
    cases
}

/// The request line, and the ends of lines.
pub(crate) fn lines() -> Vec<Case> {
    let mut cases = vec![
        Case::passes("a method in small letters", line("get /@@@@@@ HTTP/1.1"), 1),
        Case::passes("a method of signs", line("!#$%&'*+-.^_`|~ /@@@@@@ HTTP/1.1"), 1),
        Case::passes("HEAD", line("HEAD /@@@@@@ HTTP/1.1"), 1).head_only(),
        Case::passes("HTTP/1.0", line("GET /@@@@@@ HTTP/1.0"), 1).last(),
        Case::passes(
            "HTTP/1.0 that would like to go on",
            get("connection: keep-alive\r\n").replace("HTTP/1.1", "HTTP/1.0"),
            1,
        )
        .last(),
        Case::refused("no version", "GET /@@@@@@\r\n", &[400]),
        Case::refused("no version and an empty line", "GET /@@@@@@\r\n\r\n", &[400]),
        Case::refused("only line feeds", get("").replace("\r\n", "\n"), &[400]),
        Case::refused(
            "an empty line with a line feed",
            get("").replace("\r\n\r\n", "\r\n\n"),
            &[400],
        ),
        Case::refused("a first line with a line feed", get("").replacen("\r\n", "\n", 1), &[400]),
        Case::refused("only carriage returns", get("").replace("\r\n", "\r"), &[]).client_ends(),
        Case::refused("no end of the head", &get("")[..30], &[]).client_ends(),
        Case::passes("two empty lines before a request", format!("\r\n\r\n{}", get("")), 1),
        Case::refused(
            "three empty lines before a request",
            format!("\r\n\r\n\r\n{}", get("")),
            &[400],
        ),
        Case::refused("a blank before the method", format!(" {}", get("")), &[400]),
        Case::refused(
            "a long method",
            line(&format!("{} /@@@@@@ HTTP/1.1", "G".repeat(40))),
            &[400],
        ),
        Case::refused(
            "a line of 9,000 bytes",
            line(&format!("GET /@@@@@@{} HTTP/1.1", "p".repeat(9_000))),
            &[414],
        ),
    ];
    for version in ["HTTP/1.2", "HTTP/2.0", "HTTP/3.0", "HTTP/0.9", "HTTP/11"] {
        cases.push(Case::refused(version, line(&format!("GET /@@@@@@ {version}")), &[505]));
    }
    for bytes in [
        "GET  /@@@@@@ HTTP/1.1",
        "GET /@@@@@@  HTTP/1.1",
        "GET /@@@@@@ HTTP/1.1 ",
        "GET\t/@@@@@@ HTTP/1.1",
        "GET /@@@@@@\tHTTP/1.1",
        "G\0ET /@@@@@@ HTTP/1.1",
        "G(T /@@@@@@ HTTP/1.1",
        "GET /@@@@@@ x HTTP/1.1",
        "GET /@@@@@@ HTTP/1.1\r",
        "GET /@@@@@@ http/1.1",
        "GET /@@@@@@ HTTP/1.1x",
        "GET /@@@@@@ ICAP/1.0",
    ] {
        cases.push(Case::refused(&format!("the line {bytes:?}"), line(bytes), &[400]));
    }
    cases
}

/// Header fields that are not well formed, and their bounds.
pub(crate) fn fields() -> Vec<Case> {
    let count = |count: usize| "a: b\r\n".repeat(count - 1);
    let mut cases = vec![
        Case::passes("an empty value", get("x:\r\n"), 1),
        Case::passes("bytes that are not ASCII", get("x: größe\r\n"), 1),
        Case::passes("a tab in a value", get("x: a\tb\r\n"), 1),
        Case::passes("90 fields", get(&count(90)), 1),
        Case::refused("101 fields", get(&count(101)), &[431]),
        Case::refused("1,000 fields", get(&count(1_000)), &[431]),
        Case::refused("a value of 20 KB", get(&format!("x: {}\r\n", "v".repeat(20_000))), &[431]),
        Case::refused(
            "a first field that goes on",
            "GET /@@@@@@ HTTP/1.1\r\n x: y\r\nhost: site\r\n\r\n",
            &[400],
        ),
    ];
    for lines in [
        "x y: z\r\n",
        "x : z\r\n",
        "x\t: z\r\n",
        "x(y: z\r\n",
        ": z\r\n",
        "x\r\n",
        "x\0y: z\r\n",
        "x: y\0z\r\n",
        "x: y\rz\r\n",
        "x: y\r\r\n",
        "x: y\x07z\r\n",
        "x: y\x7fz\r\n",
        "x: y\r\n z\r\n",
        "x: y\r\n\tz\r\n",
        "x: y\nz: a\r\n",
        "größe: x\r\n",
    ] {
        cases.push(Case::refused(&format!("the field {lines:?}"), get(lines), &[400]));
    }
    cases
}

/// What a request asks for.
pub(crate) fn targets() -> Vec<Case> {
    let mut cases = vec![
        Case::passes("a query", line("GET /@@@@@@?a=b&c=%20%2f HTTP/1.1"), 1),
        Case::passes("a query with question marks", line("GET /@@@@@@?a?b? HTTP/1.1"), 1),
        Case::passes("the same host in the target", line("GET http://site/@@@@@@ HTTP/1.1"), 1),
        Case::passes("the same host in capitals", line("GET http://SITE/@@@@@@ HTTP/1.1"), 1),
        Case::passes("two slashes", line("GET //site/@@@@@@ HTTP/1.1"), 1),
        Case::passes(
            "a target that names another host",
            line("GET /http://evil/@@@@@@ HTTP/1.1"),
            1,
        ),
        Case::refused("CONNECT", line("CONNECT site:80 HTTP/1.1"), &[400]),
        Case::refused("CONNECT with a path", line("CONNECT /@@@@@@ HTTP/1.1"), &[400]),
        Case::refused("OPTIONS for all", line("OPTIONS * HTTP/1.1"), &[400]),
        Case::refused("a target of a star", line("GET * HTTP/1.1"), &[400]),
    ];
    for target in [
        "http://evil/@@@@@@",
        "https://evil/@@@@@@",
        "http://site@evil/@@@@@@",
        "http://evil@site/@@@@@@",
        "http:///@@@@@@",
        "http://site?@@@@@@",
        "http:/@@@@@@",
        "HTTP://evil/@@@@@@",
        "ftp://site/@@@@@@",
        "@@@@@@",
        "?@@@@@@",
        "site:80",
        "/@@@@@@\0",
        "/@@@@@@\x01",
        "/@@@@@@\x7f",
        "/@@@@@@#fragment",
        "/@@@@@@?a#b",
    ] {
        let bytes = line(&format!("GET {target} HTTP/1.1"));
        cases.push(Case::refused(&format!("the target {target:?}"), bytes, &[400]));
    }
    for target in ["/@@@@@@/%00", "/@@@@@@/%", "/@@@@@@/%zz", "/../../@@@@@@/%2"] {
        let bytes = line(&format!("GET {target} HTTP/1.1"));
        cases.push(Case::refused_alone(&format!("the target {target:?}"), bytes, 400));
    }
    cases
}

/// Whom a request is for.
pub(crate) fn hosts() -> Vec<Case> {
    let named = |lines: &str| format!("GET /@@@@@@ HTTP/1.1\r\n{lines}\r\n");
    let mut cases = vec![
        Case::passes("a host with a port", named("host: site:80\r\n"), 1),
        Case::passes("a host in brackets", named("host: [::1]:80\r\n"), 1),
        Case::refused("no host", named(""), &[400]),
        Case::refused("two hosts", get("host: site\r\n"), &[400]),
        Case::refused("two hosts in capitals", get("Host: evil\r\n"), &[400]),
        Case::refused("a blank before the colon of a host", named("host : site\r\n"), &[400]),
        Case::passes("a host with an underscore", get("h_ost: x\r\nHOST_: evil\r\n"), 1),
    ];
    for host in ["a b", "a\tb", "größe", "site\0", "site, evil"] {
        let bytes = named(&format!("host: {host}\r\n"));
        cases.push(Case::refused(&format!("the host {host:?}"), bytes, &[400]));
    }
    cases
}

/// Several requests in one write, and requests that ask for something else than an answer.
pub(crate) fn pipelines() -> Vec<Case> {
    let (one, last) = (get(""), get("connection: close\r\n"));
    let body = post("content-length: 5\r\n", "abcde");
    let chunks = chunked("5\r\nabcde\r\n0\r\n\r\n");
    let bad = get("x : y\r\n");
    let websocket = "connection: upgrade\r\nupgrade: websocket\r\n";
    let expects = "expect: 100-continue\r\ncontent-length: 5\r\n";
    vec![
        Case::passes("two requests", one.repeat(2), 2),
        Case::passes("twenty requests", one.repeat(20), 20),
        Case::passes("a body and a request", format!("{body}{one}"), 2),
        Case::passes("chunks and a request", format!("{chunks}{one}"), 2),
        Case::passes("bodies of both kinds", format!("{body}{chunks}{body}{one}{chunks}"), 5),
        Case::passes("an empty line between requests", format!("{body}\r\n{one}"), 2),
        Case::passes("a request behind the last", format!("{last}{SMUGGLED}"), 1).last(),
        Case::passes(
            "a request behind HTTP/1.0",
            format!("{}{SMUGGLED}", one.replace("1.1", "1.0")),
            1,
        )
        .last(),
        Case::refused("a request and a bad one", format!("{one}{bad}{SMUGGLED}"), &[200, 400]),
        Case::refused("a bad request and another", format!("{bad}{SMUGGLED}"), &[400]),
        Case::refused(
            "a request and a length beside chunks",
            format!(
                "{one}{}{SMUGGLED}",
                post("content-length: 5\r\ntransfer-encoding: chunked\r\n", "0\r\n\r\n")
            ),
            &[200, 400],
        ),
        Case::cut(
            "a request and a bad chunk",
            format!("{one}{}{SMUGGLED}", chunked("x\r\n")),
            &[200, 400],
        ),
        Case::passes("a body longer than its length", format!("{body}\r\n\r\n{one}"), 2),
        Case::refused(
            "a body longer than its length, with noise",
            format!("{body}f{{\r\n\r\n"),
            &[200, 400],
        ),
        Case::passes("an expectation and its body", post(expects, "abcde"), 1),
        Case::passes("an expectation without a body", get("expect: 100-continue\r\n"), 1),
        Case::passes(
            "an expectation in HTTP/1.0",
            post(expects, "abcde").replacen("1.1", "1.0", 1),
            1,
        )
        .last(),
        Case::passes("an expectation that no server knows", get("expect: tea\r\n"), 1),
        Case::passes("a websocket that gets an answer", get(websocket), 1),
        Case::passes("a websocket and a request", format!("{}{one}", get(websocket)), 2),
        Case::passes(
            "a websocket with a body",
            format!("{}abcde", get(&format!("{websocket}content-length: 5\r\n"))),
            1,
        ),
        Case::passes("an upgrade in HTTP/1.0", get(websocket).replace("1.1", "1.0"), 1).last(),
        Case::passes(
            "an upgrade to HTTP/2",
            get(
                "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n",
            ),
            1,
        ),
        Case::passes(
            "an upgrade to a list",
            get("connection: upgrade\r\nupgrade: websocket, h2c\r\n"),
            1,
        ),
        Case::passes("an upgrade that is not meant", get("upgrade: websocket\r\n"), 1),
        Case::passes(
            "fields of the connection",
            get(
                "connection: keep-alive, x, te\r\nkeep-alive: 5\r\nx: y\r\nte: gzip, trailers\r\nproxy-connection: x\r\nproxy-authorization: y\r\n",
            ),
            1,
        ),
        Case::passes(
            "a connection that names what frames a request",
            post(
                "connection: content-length, host, transfer-encoding\r\ncontent-length: 5\r\n",
                "abcde",
            ),
            1,
        ),
        Case::refused(
            "the preface of HTTP/2, misspelled",
            "PRI * HTTP/2.0\r\n\r\nSN\r\n\r\n",
            &[505],
        ),
        Case::refused(
            "the greeting of TLS",
            b"\x16\x03\x01\x00\xc4\x01\x00\x00\xc0\x03\x03",
            &[400],
        ),
    ]
}
