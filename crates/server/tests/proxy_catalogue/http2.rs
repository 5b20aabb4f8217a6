//! Requests that HTTP/2 can express and HTTP/1 cannot. A field of HTTP/2 may contain line ends, so a proxy that copies it into an
//! HTTP/1 request would send two requests.

use super::recorder::{Recorded, Recorder};
use super::{OPEN, proxy};
use crate::support::http2::{
    Answer, DATA, END_HEADERS, END_STREAM, HEADERS, NONE, PING, RST_STREAM, SETTINGS, Two,
    WINDOW_UPDATE, fields, frame, request,
};

type FieldList<'l> = Vec<(&'l str, &'l str)>;

/// Builds what is sent for the next stream.
type Make<'m> = &'m dyn Fn(u32) -> Vec<u8>;

/// A request whose fields are these, after the usual ones were changed: a field replaces the usual one of its name.
struct StreamCase {
    name: String,
    list: Vec<(String, String)>,
    data: Option<&'static [u8]>,
}

const USUAL: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "http"), (":authority", "site"), (":path", "/x")];

/// A request with the usual fields, of which the first one of each of these names is replaced, and others are added.
fn with(changes: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut list: FieldList<'_> = USUAL.to_vec();
    for (name, value) in changes {
        match list.iter_mut().find(|(usual, _)| usual == name && USUAL.iter().any(|u| u.0 == *name))
        {
            Some(usual) => usual.1 = *value,
            None => list.push((*name, *value)),
        }
    }
    list.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn bad(changes: &[(&str, &str)]) -> StreamCase {
    StreamCase { name: format!("{changes:?}"), list: with(changes), data: None }
}

/// A request whose fields are exactly these.
fn exactly(list: &[(&str, &str)]) -> StreamCase {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let list: Vec<(String, String)> = list.iter().map(owned).collect();
    StreamCase { name: format!("{list:?}"), list, data: None }
}

fn with_data(changes: &[(&str, &str)], data: &'static [u8]) -> StreamCase {
    let list = with(&[&[(":method", "POST")][..], changes].concat());
    StreamCase { name: format!("{changes:?} and {} bytes", data.len()), list, data: Some(data) }
}

impl StreamCase {
    /// Sends the request on a new connection.
    fn ask(&self, two: &mut Two) -> Answer {
        let stream = two.next();
        let list: FieldList<'_> =
            self.list.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let flags = if self.data.is_some() { END_HEADERS } else { END_HEADERS | END_STREAM };
        let mut bytes = frame(HEADERS, flags, stream, &fields(&list));
        if let Some(data) = self.data {
            bytes.extend(frame(DATA, END_STREAM, stream, data));
        }
        two.send(&bytes);
        two.answer(stream)
    }
}

/// Sends cases, each over its own connection. `is_right` judges the answers.
fn try_all(cases: &[StreamCase], is_right: impl Fn(&Answer) -> bool) -> Recorded {
    let recorder = Recorder::start();
    let server = proxy(OPEN, &recorder.url());
    let mut wrong = Vec::new();
    for case in cases {
        let answer = case.ask(&mut Two::to(server.proxy));
        if !is_right(&answer) {
            wrong.push(format!("{}: {answer:?}\n", case.name));
        }
    }
    server.is_sound();
    drop(server);
    let seen = recorder.finish();
    wrong.extend(seen.malformed.iter().map(|error| format!("not well formed: {error}\n")));
    assert!(wrong.is_empty(), "{}", wrong.concat());
    seen
}

/// A stream error, or 400. Some errors concern the whole connection.
fn is_refused(answer: &Answer) -> bool {
    matches!(answer, Answer::Reset(_) | Answer::Gone | Answer::Whole { status: 400, .. })
}

const INJECTED: &str = "y\r\nhost: evil\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: site";

#[test]
fn what_http1_cannot_express_is_refused() {
    let long = format!("/{}", "p".repeat(100));
    let mut cases = vec![
        bad(&[(":path", "/x HTTP/1.1\r\nhost: evil\r\n\r\nGET /smuggled")]),
        bad(&[(":path", "/x y")]),
        bad(&[(":path", "/x\ty")]),
        bad(&[(":path", "/x\0")]),
        bad(&[(":path", "/x\n")]),
        bad(&[(":path", "")]),
        bad(&[(":path", "x")]),
        bad(&[(":path", "*")]),
        bad(&[(":path", "http://evil/x")]),
        bad(&[(":method", "GET / HTTP/1.1\r\nx: y\r\n\r\nGET")]),
        bad(&[(":method", "GET ")]),
        bad(&[(":method", "G\0T")]),
        bad(&[(":method", "")]),
        bad(&[(":method", "CONNECT")]),
        bad(&[(":authority", "site\r\nx: y")]),
        bad(&[(":authority", "site/x")]),
        bad(&[(":authority", "evil@site")]),
        bad(&[(":authority", "si te")]),
        bad(&[(":authority", "")]),
        bad(&[("x", INJECTED)]),
        bad(&[("x", "y\rz")]),
        bad(&[("x", "y\nz")]),
        bad(&[("x", "y\0z")]),
        bad(&[("X", "y")]),
        bad(&[("x y", "z")]),
        bad(&[("x:", "z")]),
        bad(&[("x\r\ny", "z")]),
        bad(&[("x\r\ntransfer-encoding: chunked\r\nx", "z")]),
        bad(&[("", "z")]),
        bad(&[("host", "evil")]),
        bad(&[("host", "site"), ("host", "site")]),
        bad(&[("host", "site\r\nx: y")]),
        bad(&[("connection", "close")]),
        bad(&[("connection", "upgrade"), ("upgrade", "websocket")]),
        bad(&[("upgrade", "websocket")]),
        bad(&[("keep-alive", "5")]),
        bad(&[("proxy-connection", "close")]),
        bad(&[("te", "gzip")]),
        bad(&[(":status", "200")]),
        bad(&[(":unknown", "x")]),
        bad(&[(":protocol", "websocket"), (":method", "CONNECT")]),
        bad(&[("x", "y"), (":late", "x")]),
        exactly(&[(":method", "GET"), (":scheme", "http"), (":path", "/x")]),
        exactly(&[(":method", "GET"), (":path", long.as_str()), (":authority", "site")]),
        exactly(&[(":scheme", "http"), (":path", "/x"), (":authority", "site")]),
        exactly(&[(":method", "GET"), (":scheme", "http"), (":authority", "site")]),
        exactly(&[
            ("x", "y"),
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/x"),
            (":authority", "site"),
        ]),
        with_data(&[("transfer-encoding", "chunked")], b"0\r\n\r\n"),
        with_data(&[("content-length", "-1")], b"abc"),
        with_data(&[("content-length", "+3")], b"abc"),
        with_data(&[("content-length", "3, 3")], b"abc"),
        with_data(&[("content-length", "3"), ("content-length", "4")], b"abcd"),
        with_data(&[("content-length", "3"), ("content-length", "3")], b"abc"),
    ];
    for pseudo in USUAL {
        let mut list = USUAL.to_vec();
        list.push(pseudo);
        cases.push(exactly(&list));
    }
    let seen = try_all(&cases, is_refused);
    assert!(seen.requests.is_empty() && seen.parts.is_empty(), "{:?}", seen.requests);
}

/// The proxy once counted refusals of HTTP/1 requests only, so an attack over HTTP/2 was not seen.
#[test]
fn what_is_refused_is_counted_as_over_http1() {
    let server = proxy(OPEN, "http://127.0.0.1:9");
    for count in 1..=3 {
        let answer = bad(&[("host", "evil")]).ask(&mut Two::to(server.proxy));
        assert!(matches!(answer, Answer::Whole { status: 400, .. }), "{answer:?}");
        server.until_refused("malformed", count);
    }
    server.is_sound();
}

/// A length that does not fit the data. The server may have got the head, but never a whole request.
#[test]
fn data_must_be_as_long_as_announced() {
    let cases = [
        with_data(&[("content-length", "2")], b"abc"),
        with_data(&[("content-length", "4")], b"abc"),
        with_data(&[("content-length", "0")], b"abc"),
        with_data(&[("content-length", "4")], b""),
    ];
    let seen = try_all(&cases, |answer| {
        is_refused(answer) || matches!(answer, Answer::Whole { status: 502, .. })
    });
    assert!(seen.requests.is_empty(), "{:?}", seen.requests);
}

/// What is valid arrives as one well-formed HTTP/1 request.
#[test]
fn what_is_valid_becomes_one_request() {
    let two_cookies = [("cookie", "a=1"), ("cookie", "b=2")];
    let cases = [
        bad(&[]),
        bad(&[("host", "site")]),
        bad(&two_cookies),
        bad(&[("te", "trailers")]),
        bad(&[("x", "größe")]),
        bad(&[("x", "")]),
        bad(&[("content_length", "5"), ("transfer_encoding", "chunked")]),
        bad(&[(":scheme", "https")]),
        with_data(&[], b"abc"),
        with_data(&[("content-length", "3")], b"abc"),
        with_data(&[("content-length", "0003")], b"abc"),
    ];
    let seen = try_all(&cases, |answer| matches!(answer, Answer::Whole { status: 200, .. }));
    assert_eq!(seen.requests.len(), cases.len());
    assert_eq!(seen.requests[2].all("cookie"), ["a=1; b=2"], "RFC 9113, 8.2.3");
    let bodies = seen.requests.iter().filter(|request| request.body == b"abc").count();
    assert!(bodies == 3 && seen.parts.is_empty(), "{:?}", seen.requests);
}

/// A body that the client breaks off is not complete for the server either.
#[test]
fn a_body_that_is_broken_off_is_not_a_request() {
    let recorder = Recorder::start();
    let server = proxy(OPEN, &recorder.url());
    let mut two = Two::to(server.proxy);
    for data in [&b"abc"[..], b""] {
        for length in [None, Some("5")] {
            let stream = two.next();
            let mut list = USUAL.to_vec();
            list[0].1 = "POST";
            list.extend(length.map(|length| ("content-length", length)));
            let head = frame(HEADERS, END_HEADERS, stream, &fields(&list));
            two.send(&[head, frame(DATA, NONE, stream, data)].concat());
            assert!(two.in_step());
            two.send(&frame(RST_STREAM, NONE, stream, &8_u32.to_be_bytes()));
            assert!(two.in_step());
        }
    }
    // A connection that ends within a body.
    let stream = two.next();
    let mut list = USUAL.to_vec();
    list[0].1 = "POST";
    two.send(&frame(HEADERS, END_HEADERS, stream, &fields(&list)));
    assert!(two.in_step());
    drop(two);
    assert_eq!(Two::to(server.proxy).asked("GET", "/next", b""), whole("GET /next"));
    drop(server);
    let seen = recorder.finish();
    assert_eq!(seen.malformed, [""; 0]);
    assert_eq!(seen.lines_with(""), ["GET /next"]);
}

fn whole(body: &str) -> Answer {
    Answer::Whole { status: 200, body: body.as_bytes().to_vec() }
}

/// Trailers may contain anything that fields can, but they do not frame a request.
#[test]
fn trailers_do_not_frame_a_request() {
    let recorder = Recorder::start();
    let server = proxy(OPEN, &recorder.url());
    for (name, value) in [
        ("content-length", "9"),
        ("transfer-encoding", "chunked"),
        ("host", "evil"),
        ("connection", "close"),
        ("x", "y\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: site"),
        (":path", "/smuggled"),
        ("sum", "3"),
    ] {
        let mut two = Two::to(server.proxy);
        let stream = two.next();
        let mut list = USUAL.to_vec();
        list[0].1 = "POST";
        list.push(("trailer", "sum, x, content-length, transfer-encoding, host"));
        let frames = [
            frame(HEADERS, END_HEADERS, stream, &fields(&list)),
            frame(DATA, NONE, stream, b"abc"),
            frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields(&[(name, value)])),
        ];
        two.send(&frames.concat());
        let answer = two.answer(stream);
        let passed = answer == whole("POST /x");
        assert!(
            passed || is_refused(&answer) || matches!(answer, Answer::Whole { status: 502, .. }),
            "{name}: {answer:?}"
        );
        assert!(passed || name != "sum");
    }
    drop(server);
    let seen = recorder.finish();
    assert_eq!(seen.malformed, [""; 0]);
    assert!(seen.requests.iter().all(|request| request.body == b"abc"), "{:?}", seen.requests);
    assert_eq!(seen.lines_with("/smuggled"), [""; 0]);
}

/// Floods end their connection, like those at the HTTP listener, and other clients are served. What a client takes back at once
/// costs the upstream server little: it gets no more requests than were accepted before the end.
#[test]
fn floods_are_cut_off() {
    const FLOOD: usize = 50_000;
    let recorder = Recorder::start();
    let server = proxy(OPEN, &recorder.url());
    assert_eq!(Two::to(server.proxy).asked("GET", "/honest", b""), whole("GET /honest"));
    let before = server.resident_kib();
    let taken_back = |stream: u32| {
        let reset = frame(RST_STREAM, NONE, stream, &8_u32.to_be_bytes());
        [request(stream, "GET", "/flood", true), reset].concat()
    };
    let must_end = |stream: u32| {
        let update = frame(WINDOW_UPDATE, NONE, stream, &[0; 4]);
        [request(stream, "POST", "/flood", false), update].concat()
    };
    let makes: [(&str, Make<'_>); 4] = [
        ("requests that are taken back", &taken_back),
        ("streams that the server must end", &must_end),
        ("pings", &|_| frame(PING, NONE, 0, b"sent all")),
        ("settings", &|_| frame(SETTINGS, NONE, 0, &[0, 3, 0, 0, 0, 100])),
    ];
    for (name, make) in makes {
        let taken = Two::to(server.proxy).flood(FLOOD, make);
        assert!(taken <= 2_000, "{name}: {taken}");
        assert_eq!(Two::to(server.proxy).asked("GET", "/honest", b""), whole("GET /honest"));
    }
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown <= 32 * 1024, "{grown} KiB more");
    server.is_sound();
    drop(server);
    let seen = recorder.finish();
    assert_eq!(seen.malformed, [""; 0]);
    let count = seen.lines_with("/flood").len();
    assert!(count <= 2_000, "{count}");
}
