//! `OPTIONS`. The story: 300 of 300 requests passed after the limit was used up, their bodies were delivered, and 40 slow ones held
//! all seats.

use super::{OK, next, proxy, send, status, until_seats_taken, upstream};
use crate::support::client::Client;
use crate::support::http2::{
    Answer, DATA, END_HEADERS, END_STREAM, HEADERS, NONE, Two, fields, frame,
};

const ONE: &str = "{ version: 1, rules: [{ name: all, key: [ip], limits: [1/h] }] }";
const PREFLIGHT: [(&str, &str); 2] =
    [("origin", "https://example.com"), ("access-control-request-method", "PUT")];
const CHUNKED: (&str, &str) = ("transfer-encoding", "chunked");

#[test]
fn only_preflights_are_exempt_from_the_rules() {
    let (url, held) = upstream();
    let server = proxy(ONE, &url, "concurrency: 8");
    let mut first = send(&server, "OPTIONS", "/", &[]);
    next(&held).answer(OK);
    assert_eq!(status(&mut first), 200);
    for fields in [&[][..], &PREFLIGHT[..1], &PREFLIGHT[1..]] {
        assert_eq!(status(&mut send(&server, "OPTIONS", "/", fields)), 429, "{fields:?}");
    }
    // With a body it is no preflight.
    let mut client = Client::of(server.proxy);
    let request = client.request("OPTIONS", "/", &PREFLIGHT, "body");
    client.send(&request).unwrap();
    assert_eq!(status(&mut client), 429);
    let fields = [PREFLIGHT[0], PREFLIGHT[1], CHUNKED];
    assert_eq!(status(&mut send(&server, "OPTIONS", "/", &fields)), 429);
    // A server may take these for a DELETE.
    let fields = [PREFLIGHT[0], PREFLIGHT[1], ("x-http-method-override", "DELETE")];
    assert_eq!(status(&mut send(&server, "OPTIONS", "/", &fields)), 429);
    let fields = [PREFLIGHT[0], PREFLIGHT[1]];
    assert_eq!(status(&mut send(&server, "OPTIONS", "/?%5fmethod=DELETE", &fields)), 429);
    let mut preflight = send(&server, "OPTIONS", "/", &PREFLIGHT);
    next(&held).answer(OK);
    assert_eq!(status(&mut preflight), 200);
}

/// Over HTTP/2 a body need not be announced.
#[test]
fn only_preflights_are_exempt_from_the_rules_over_http2() {
    let (url, held) = upstream();
    let server = proxy(ONE, &url, "concurrency: 8");
    let mut client = Two::to(server.proxy);
    let options = |client: &mut Two, more: &[(&str, &str)], body: &[u8]| {
        let stream = client.next();
        let pseudo =
            [(":method", "OPTIONS"), (":scheme", "http"), (":path", "/"), (":authority", "x")];
        let list = fields(&[&pseudo, more].concat());
        let ends = if body.is_empty() { END_STREAM } else { NONE };
        client.send(&frame(HEADERS, END_HEADERS | ends, stream, &list));
        if !body.is_empty() {
            client.send(&frame(DATA, END_STREAM, stream, body));
        }
        stream
    };
    let first = options(&mut client, &PREFLIGHT[..1], b"");
    next(&held).answer(OK);
    let of = |answer: Answer| {
        let Answer::Whole { status, .. } = answer else { panic!("{answer:?}") };
        status
    };
    assert_eq!(of(client.answer(first)), 200);
    let with_body = options(&mut client, &PREFLIGHT, b"body");
    assert_eq!(of(client.answer(with_body)), 429);
    let preflight = options(&mut client, &PREFLIGHT, b"");
    next(&held).answer(OK);
    assert_eq!(of(client.answer(preflight)), 200);
}

#[test]
fn preflights_have_a_limit_of_their_own_for_each_address() {
    let (url, held) = upstream();
    let server = proxy(ONE, &url, "preflight_limit: 2/h");
    for _ in 0..2 {
        let mut passes = send(&server, "OPTIONS", "/", &PREFLIGHT);
        next(&held).answer(OK);
        assert_eq!(status(&mut passes), 200);
    }
    assert_eq!(status(&mut send(&server, "OPTIONS", "/", &PREFLIGHT)), 429);
    // The rules have counted none of them.
    let mut get = send(&server, "GET", "/", &[]);
    next(&held).answer(OK);
    assert_eq!(status(&mut get), 200);
}

#[test]
fn preflights_have_at_most_a_tenth_of_the_seats() {
    let (url, held) = upstream();
    let server = proxy(ONE, &url, "concurrency: 20, preflight_limit: off");
    let mut slow: Vec<_> = (0..2).map(|_| send(&server, "OPTIONS", "/", &PREFLIGHT)).collect();
    let work: Vec<_> = (0..2).map(|_| next(&held)).collect();
    until_seats_taken(&server, 2);
    for _ in 0..3 {
        assert_eq!(status(&mut send(&server, "OPTIONS", "/", &PREFLIGHT)), 503);
    }
    let mut get = send(&server, "GET", "/", &[]);
    next(&held).answer(OK);
    assert_eq!(status(&mut get), 200);
    work.into_iter().for_each(|work| work.answer(OK));
    assert!(slow.iter_mut().all(|client| status(client) == 200));
    until_seats_taken(&server, 0);
    let mut again = send(&server, "OPTIONS", "/", &PREFLIGHT);
    next(&held).answer(OK);
    assert_eq!(status(&mut again), 200);
}
