//! Upstream servers that misbehave. The client gets 502, or an answer that ends without being complete; what it gets never looks
//! complete if it is not. After that, the connection to the server is not used again.

use super::script::{Answered, Ending, ScriptedServer};
use super::{OPEN, proxy};
use crate::support::http2::{Answer, Two};
use crate::support::{Server, connect};
use Ending::{Closes, Open, Resets};
use std::io::{Read, Write};
use std::sync::{Arc, Mutex, mpsc};

/// What a server does, and what the client must get.
struct Misbehaviour {
    name: &'static str,
    answer: Answered,
    expected: Expected,
    /// Whether the connection to the server may be used again.
    reusable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// A complete answer with this status.
    Status(u16),
    /// A complete answer with status 200 and this body.
    Body(&'static str),
    /// 502, or an answer that is not complete.
    Broken,
}

use Expected::{Body, Broken, Status};

/// What a client got until the end of its connection.
#[derive(Debug, PartialEq, Eq)]
enum Got {
    Whole(u16, String),
    Cut,
}

const OK: &str = "HTTP/1.1 200 OK\r\n";

fn does(
    name: &'static str,
    bytes: impl AsRef<[u8]>,
    ending: Ending,
    expected: Expected,
) -> Misbehaviour {
    let answer = Answered { bytes: bytes.as_ref().to_vec(), ending };
    Misbehaviour { name, answer, expected, reusable: false }
}

/// An answer with status 200, these header lines and these bytes behind its head, which is not valid.
fn invalid(name: &'static str, lines: &str, rest: &str) -> Misbehaviour {
    does(name, format!("{OK}{lines}\r\n{rest}"), Open, Status(502))
}

/// An answer with a valid head and a body that is not valid. When that shows, the head may have been passed on.
fn breaks(name: &'static str, lines: &str, rest: &str, ending: Ending) -> Misbehaviour {
    does(name, format!("{OK}{lines}\r\n{rest}"), ending, Broken)
}

/// An answer that is passed on.
fn passes(name: &'static str, lines: &str, rest: &str, body: &'static str) -> Misbehaviour {
    does(name, format!("{OK}{lines}\r\n{rest}"), Open, Body(body))
}

impl Misbehaviour {
    fn reusable(self) -> Self {
        Self { reusable: true, ..self }
    }
}

/// Where the body ends, said in several ways.
fn framing() -> Vec<Misbehaviour> {
    let chunked = "transfer-encoding: chunked\r\n";
    let one = "3\r\nabc\r\n0\r\n\r\n";
    let mut cases = vec![
        passes("a length", "content-length: 3\r\n", "abc", "abc").reusable(),
        passes("chunks", chunked, one, "abc").reusable(),
        passes(
            "two lengths that agree",
            "content-length: 3\r\ncontent-length: 3\r\n",
            "abc",
            "abc",
        )
        .reusable(),
        invalid("a length and chunks", "content-length: 3\r\ntransfer-encoding: chunked\r\n", one),
        invalid("chunks and a length", "transfer-encoding: chunked\r\ncontent-length: 3\r\n", one),
        invalid("two lengths", "content-length: 3\r\ncontent-length: 4\r\n", "abcd"),
        invalid("two codings", "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", one),
        invalid(
            "a coding and an empty one",
            "transfer-encoding: chunked\r\ntransfer-encoding:\r\n",
            one,
        ),
        invalid("a blank before the colon", "transfer-encoding : chunked\r\n", one),
        invalid("a coding on a second line", "transfer-encoding:\r\n chunked\r\n", one),
        does(
            "chunks in HTTP/1.0",
            format!("HTTP/1.0 200 OK\r\n{chunked}\r\n{one}"),
            Closes,
            Status(502),
        ),
        does("a body until the end", "HTTP/1.0 200 OK\r\n\r\nabc", Closes, Body("abc")),
        does("a body until the end, in HTTP/1.1", format!("{OK}\r\nabc"), Closes, Body("abc")),
    ];
    for length in ["three", "-1", "+3", "3, 3", "3,4", "0x3", "", "18446744073709551616", "3 3"] {
        cases.push(invalid("a bad length", &format!("content-length: {length}\r\n"), "abc"));
    }
    for coding in
        ["gzip", "identity", "gzip, chunked", "chunked, chunked", "xchunked", "chunked;a", ""]
    {
        cases.push(invalid("a bad coding", &format!("transfer-encoding: {coding}\r\n"), one));
    }
    cases
}

/// Bodies that are not valid, or end too early.
fn bodies() -> Vec<Misbehaviour> {
    let chunked = "transfer-encoding: chunked\r\n";
    let long = "e".repeat(1 << 20);
    let many = format!("0\r\n{}\r\n", "a: b\r\n".repeat(1_000));
    let mut cases = vec![
        breaks("a close before the end of a length", "content-length: 9\r\n", "abc", Closes),
        breaks("a reset before the end of a length", "content-length: 9\r\n", "abc", Resets),
        breaks("a close before the body", "content-length: 9\r\n", "", Closes),
        breaks("a close between chunks", chunked, "3\r\nabc\r\n", Closes),
        breaks("a reset between chunks", chunked, "3\r\nabc\r\n", Resets),
        breaks("a close within a chunk", chunked, "9\r\nabc", Closes),
        breaks("a close before chunks", chunked, "", Closes),
        breaks("half of the last chunk", chunked, "3\r\nabc\r\n0\r\n", Closes),
        breaks("a reset at the end of a body", "", "abc", Resets),
        breaks("an extension without an end", chunked, &format!("3;{long}"), Open),
        breaks("too many trailers", chunked, &format!("3\r\nabc\r\n{many}"), Open),
        breaks("a trailer without an end", chunked, &format!("3\r\nabc\r\n0\r\nx: {long}"), Open),
        breaks("a bad trailer", chunked, "3\r\nabc\r\n0\r\na b: c\r\n\r\n", Open),
    ];
    for chunk in [
        "g\r\nabc\r\n",
        "-3\r\nabc\r\n",
        "\r\nabc\r\n",
        "0x3\r\nabc\r\n",
        "FFFFFFFFFFFFFFFFF\r\nabc\r\n",
        "2\r\nabc\r\n",
        "3\nabc\r\n",
        "3;a\nabc\r\n",
        "3\r\nabc\n0\r\n\r\n",
        "3\r\nabc0\r\n\r\n",
    ] {
        cases.push(breaks("a bad chunk", chunked, chunk, Open));
    }
    cases
}

/// Heads that are not heads.
fn heads() -> Vec<Misbehaviour> {
    let length = "content-length: 3\r\n";
    let field = |field: &str| format!("{OK}{length}{field}\r\n\r\nabc");
    let large = format!("{OK}{length}x: {}\r\n\r\nabc", "v".repeat(1 << 20));
    let many = format!("{OK}{length}{}\r\nabc", "a: b\r\n".repeat(1_000));
    let mut cases = vec![
        does("nothing", "", Closes, Status(502)),
        does("a reset", "", Resets, Status(502)),
        does("half of a head", "HTTP/1.1 200 OK\r\ncontent-le", Closes, Status(502)),
        does("a reset in a head", "HTTP/1.1 200 OK\r\ncontent-le", Resets, Status(502)),
        does("a head of 1 MiB", large, Open, Status(502)),
        does("1,000 fields", many, Open, Status(502)),
        does(
            "a reason that is missing",
            "HTTP/1.1 200\r\ncontent-length: 3\r\n\r\nabc",
            Open,
            Body("abc"),
        )
        .reusable(),
        // Recipients may accept a line feed as a line end (RFC 9112, 2.2). What the client gets ends in `\r\n`.
        does("line feeds", "HTTP/1.1 200 OK\ncontent-length: 3\nx: y\n\nabc", Open, Body("abc"))
            .reusable(),
        does("noise", "SSH-2.0-OpenSSH_9.6\r\n", Open, Status(502)),
        does("a first line without an end", "H".repeat(1 << 20), Open, Status(502)),
    ];
    for line in [
        "HTTP/2.0 200 OK",
        "HTTP/1.2 200 OK",
        "HTTP/1.1 20 OK",
        "HTTP/1.1 2000 OK",
        "HTTP/1.1  200 OK",
        "HTTP/1.1 abc OK",
        "ICY 200 OK",
        "HTTP/1.1 099 Low",
        "HTTP/1.1 -20 OK",
    ] {
        cases.push(does("a bad line", format!("{line}\r\n{length}\r\nabc"), Open, Status(502)));
    }
    for bad in [
        "x: y\0z",
        "x\0: y",
        "x y: z",
        "x : y",
        "x: y\rz",
        "x: y\x07",
        "x: y\r\n z",
        ": y",
        "x",
        "grö\u{df}e: y",
    ] {
        cases.push(does("a bad field", field(bad), Open, Status(502)));
    }
    cases
}

/// Answers with other statuses, and bytes that do not belong to any answer.
fn others() -> Vec<Misbehaviour> {
    let good = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison";
    let switch =
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    let hints = |count: usize| "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n".repeat(count);
    vec![
        does("a switch that was not asked for", format!("{switch}{good}"), Open, Status(502)),
        does("a switch without a protocol", "HTTP/1.1 101 Switching Protocols\r\n\r\n", Open, Status(502)),
        does("hints for ever", hints(2_000), Open, Status(502)),
        does("hints and no answer", hints(2), Closes, Broken),
        does("a few hints", format!("{}{OK}content-length: 3\r\n\r\nabc", hints(5)), Open, Body("abc"))
            .reusable(),
        does("100 without a question", format!("HTTP/1.1 100 Continue\r\n\r\n{OK}content-length: 3\r\n\r\nabc"), Open, Body("abc"))
            .reusable(),
        does("a hint with a length", format!("HTTP/1.1 103 Early Hints\r\ncontent-length: 9\r\n\r\n{OK}content-length: 3\r\n\r\nabc"), Open, Body("abc"))
            .reusable(),
        does("204 with a length", "HTTP/1.1 204 No Content\r\ncontent-length: 3\r\n\r\nabc", Open, Status(502)),
        does("204 with chunks", "HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", Open, Status(502)),
        does("204 with a body", format!("HTTP/1.1 204 No Content\r\n\r\n{good}"), Open, Status(204)),
        does("304 with the length of another answer", "HTTP/1.1 304 Not Modified\r\ncontent-length: 3\r\n\r\n", Open, Status(304))
            .reusable(),
        does("304 with a body", format!("HTTP/1.1 304 Not Modified\r\ncontent-length: 3\r\n\r\n{good}"), Open, Status(304)),
        does("an answer behind the answer", format!("{OK}content-length: 3\r\n\r\nabc{good}"), Open, Body("abc")),
        does("bytes behind the answer", format!("{OK}content-length: 3\r\n\r\nabcdef"), Open, Body("abc")),
        does("an answer behind chunks", format!("{OK}transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n{good}"), Open, Body("abc")),
        does("a last answer", format!("{OK}connection: close\r\ncontent-length: 3\r\n\r\nabc"), Open, Body("abc")),
        does("an answer of HTTP/1.0", "HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\nabc", Open, Body("abc")),
        does("a framing trailer", format!("{OK}transfer-encoding: chunked\r\ntrailer: content-length\r\n\r\n3\r\nabc\r\n0\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\nsum: 3\r\n\r\n"), Open, Body("abc"))
            .reusable(),
    ]
}

/// A server that misbehaves at `/NUMBER`, and answers `fine` at every other path.
fn server_of(cases: &Arc<Vec<Misbehaviour>>) -> ScriptedServer {
    let cases = Arc::clone(cases);
    ScriptedServer::start(move |path| {
        let number = path.rsplit('/').next().and_then(|number| number.parse::<usize>().ok());
        let fine = Answered { bytes: fine(), ending: Open };
        number.map_or(fine, |number| cases[number].answer.clone())
    })
}

fn fine() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine".to_vec()
}

/// Everything that a client gets that asks for a path, until its connection ends.
fn asked(server: &Server, path: &str, version: &str) -> Got {
    let mut stream = connect(server.proxy);
    let request = format!("GET {path} HTTP/{version}\r\nhost: site\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut all = Vec::new();
    let ended = stream.read_to_end(&mut all).is_ok();
    got(&String::from_utf8_lossy(&all), ended)
}

/// Judges an answer as a client does: it is complete if its framing says so.
fn got(text: &str, ended: bool) -> Got {
    let mut text = text;
    loop {
        let Some((head, rest)) = text.split_once("\r\n\r\n") else { return Got::Cut };
        assert!(!head.replace("\r\n", "").contains('\n'), "{head:?}");
        let reply = crate::support::Reply::parse(head);
        if reply.status < 200 {
            assert_eq!(reply.field("content-length"), None, "an interim answer has no body");
            text = rest;
            continue;
        }
        if [204, 304].contains(&reply.status) {
            assert_eq!(rest, "");
            return Got::Whole(reply.status, String::new());
        }
        let (length, coding) = (reply.field("content-length"), reply.field("transfer-encoding"));
        let body = match (length, coding) {
            (Some(length), None) => rest.get(..length.parse().unwrap()).map(str::to_owned),
            (None, Some("chunked")) => unchunked(rest),
            // HTTP/1.0: the body ends with the connection, which must not be reset.
            (None, None) => ended.then(|| rest.to_owned()),
            _ => panic!("{head}"),
        };
        return body.map_or(Got::Cut, |body| Got::Whole(reply.status, body));
    }
}

/// The data of all chunks, if they are complete.
fn unchunked(text: &str) -> Option<String> {
    let (mut rest, mut body) = (text, String::new());
    loop {
        let (size, behind) = rest.split_once("\r\n")?;
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            let end = format!("\r\n{behind}");
            assert!(!end.contains("\r\ncontent-length") && !end.contains("\r\ntransfer-encoding"));
            return end.ends_with("\r\n\r\n").then_some(body);
        }
        body.push_str(behind.get(..size)?);
        rest = behind.get(size + 2..)?;
    }
}

/// Whether a client got what it must get.
fn is_right(expected: Expected, got: &Got) -> bool {
    match (expected, got) {
        (Status(status), Got::Whole(found, _)) => status == *found,
        (Body(body), Got::Whole(200, found)) => body == found,
        (Broken, Got::Whole(status, _)) => *status == 502,
        (Broken, Got::Cut) => true,
        (Status(_) | Body(_), Got::Whole(..) | Got::Cut) => false,
    }
}

/// Asks for every misbehaviour, in this way, each time between two other requests.
fn try_all(cases: Vec<Misbehaviour>, ask: impl Fn(&Server, &str) -> Got) {
    let cases = Arc::new(cases);
    let upstream = server_of(&cases);
    let server = proxy(OPEN, &upstream.url());
    let mut wrong = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let answer =
            String::from_utf8_lossy(&case.answer.bytes[..case.answer.bytes.len().min(200)]);
        let path = format!("/{number}");
        let fine = Body("fine");
        for (path, expected) in
            [("/before", fine), (path.as_str(), case.expected), ("/after", fine)]
        {
            let got = ask(&server, path);
            if !is_right(expected, &got) {
                wrong.push(format!("{path} {} {answer:?}: {expected:?}, not {got:?}\n", case.name));
            }
        }
        if upstream.count(&format!("/{number}")) != 1 {
            wrong.push(format!("{number} {}: it was not sent once\n", case.name));
        }
    }
    for paths in upstream.connections() {
        let others = paths.iter().rev().skip(1).filter_map(|path| path[1..].parse::<usize>().ok());
        let used = others.filter(|number| !cases[*number].reusable);
        wrong.extend(used.map(|number| {
            format!("{number} {}: its connection was used again: {paths:?}\n", cases[number].name)
        }));
    }
    server.is_sound();
    assert!(wrong.is_empty(), "{}", wrong.concat());
    // Otherwise the test would not notice that a connection is used again.
    assert!(upstream.connections().iter().any(|paths| paths.len() > 2), "none was kept");
}

fn by_http1(server: &Server, path: &str) -> Got {
    asked(server, path, "1.1")
}

fn by_http2(server: &Server, path: &str) -> Got {
    match Two::to(server.proxy).asked("GET", path, b"") {
        Answer::Whole { status, body } => Got::Whole(status, String::from_utf8(body).unwrap()),
        Answer::Reset(_) => Got::Cut,
        Answer::Gone => panic!("{path}: the connection was closed"),
    }
}

#[test]
fn the_end_of_an_answer_is_said_in_one_way() {
    try_all(framing(), by_http1);
    try_all(framing(), by_http2);
}

#[test]
fn a_body_that_breaks_off_does_not_look_complete() {
    try_all(bodies(), by_http1);
    try_all(bodies(), by_http2);
}

#[test]
fn heads_are_well_formed() {
    try_all(heads(), by_http1);
    try_all(heads(), by_http2);
}

#[test]
fn bytes_that_belong_to_no_answer_are_not_taken_for_one() {
    try_all(others(), by_http1);
    try_all(others(), by_http2);
}

/// For an HTTP/1.0 client the end of the connection is the end of the body, so a body that breaks off must reset it.
#[test]
fn a_body_that_breaks_off_does_not_look_complete_in_http_1_0() {
    try_all(bodies(), |server, path| asked(server, path, "1.0"));
}

/// An answer to `HEAD` has no body. One that a server sends all the same is not taken for the next answer.
#[test]
fn a_body_of_an_answer_to_head_is_not_the_next_answer() {
    let upstream = ScriptedServer::start(|path| {
        match path {
        "/bad" => Answered {
            bytes: b"HTTP/1.1 200 OK\r\ncontent-length: 45\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison".to_vec(),
            ending: Open,
        },
        "/good" => Answered {
            bytes: b"HTTP/1.1 200 OK\r\ncontent-length: 45\r\n\r\n".to_vec(),
            ending: Open,
        },
        _ => Answered { bytes: fine(), ending: Open },
    }
    });
    let server = proxy(OPEN, &upstream.url());
    for path in ["/good", "/bad"] {
        let mut stream = connect(server.proxy);
        let request = format!("HEAD {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).unwrap();
        assert!(all.starts_with("HTTP/1.1 200 ") && all.ends_with("\r\n\r\n"), "{all}");
        assert!(all.contains("content-length: 45\r\n"), "{all}");
        assert_eq!(by_http1(&server, "/next"), Got::Whole(200, "fine".to_owned()));
    }
    let paths: Vec<_> = upstream.connections().into_iter().map(|paths| paths.join(" ")).collect();
    assert_eq!(paths, ["/good /next /bad", "/next"]);
}

/// An upstream server sends an answer on an idle connection, although the proxy has sent no request. The connection is closed, and the next client gets its own answer.
#[test]
fn an_answer_without_a_request_reaches_no_client() {
    let (go_on, waits) = mpsc::channel::<()>();
    let (told, sent) = mpsc::channel::<()>();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let (mut first, _) = listener.accept().unwrap();
        let mut bytes = Vec::new();
        super::script::read_head(&mut first, &mut bytes).unwrap();
        first.write_all(&fine()).unwrap();
        waits.recv().unwrap();
        first.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison").unwrap();
        told.send(()).unwrap();
        let (mut second, _) = listener.accept().unwrap();
        super::script::read_head(&mut second, &mut Vec::new()).unwrap();
        second.write_all(&fine()).unwrap();
        assert!(super::script::read_head(&mut first, &mut bytes).is_none());
    });
    let server = proxy(OPEN, &url);
    assert_eq!(by_http1(&server, "/one"), Got::Whole(200, "fine".to_owned()));
    go_on.send(()).unwrap();
    sent.recv().unwrap();
    assert_eq!(by_http1(&server, "/two"), Got::Whole(200, "fine".to_owned()));
    serving.join().unwrap();
}

/// A server that ends the connection after it has read a request may have acted on it. Nothing is sent a second time, neither
/// over a new connection nor over one that was used before.
#[test]
fn nothing_is_sent_twice() {
    let upstream = ScriptedServer::start(|path| {
        let ending = if path.starts_with("/closes") {
            Closes
        } else if path.starts_with("/resets") {
            Resets
        } else {
            return Answered { bytes: fine(), ending: Open };
        };
        Answered { bytes: Vec::new(), ending }
    });
    let server = proxy(OPEN, &upstream.url());
    for method in ["POST", "GET", "PUT", "DELETE"] {
        for ending in ["closes", "resets"] {
            for before in [false, true] {
                if before {
                    assert_eq!(by_http1(&server, "/before"), Got::Whole(200, "fine".to_owned()));
                }
                let path = format!("/{ending}-{method}-{before}");
                let reply = crate::support::request(server.proxy, method, &path, &[], "abc");
                assert_eq!((reply.status, upstream.count(&path)), (502, 1), "{path}");
            }
        }
    }
}

/// A server that never ends its answer is left when its client has gone.
#[test]
fn an_answer_without_an_end_ends_with_its_client() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let ended = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&ended);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map(Result::unwrap) {
            super::script::read_head(&mut stream, &mut Vec::new());
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
            while stream.write_all(b"4\r\nmore\r\n").is_ok() {}
            *counted.lock().unwrap() += 1;
        }
    });
    let server = proxy(OPEN, &url);
    for count in 1..=3 {
        let mut stream = connect(server.proxy);
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        stream.read_exact(&mut [0; 100_000]).unwrap();
        drop(stream);
        server.until("the server is left", |_| *ended.lock().unwrap() == count);
    }
}
