//! Frames: more than allowed, in an order that makes no sense, and far too many.

use super::bytes::{ALICE, Make, POLICY};
use crate::support::grpc::{End, Grpc, HEAD, begin, call, cancel, message};
use crate::support::http1::while_others_ask;
use crate::support::http2::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, NONE, PING, PRIORITY,
    RST_STREAM, SETTINGS, Two, WINDOW_UPDATE, fields, frame,
};
use crate::support::messages::Request;
use crate::support::{Server, connect};
use prost::Message;
use std::io::{Read, Write};

fn alice() -> Vec<u8> {
    message(&Request::about(&ALICE).encode_to_vec())
}

const STREAM_CLOSED: u32 = 5;
const REFUSED_STREAM: u32 = 7;

/// A thousand calls at a time are allowed. Further calls are not started, and the client is told so. The others go
/// on, and as soon as one ends, there is room for the next.
#[test]
fn a_thousand_calls_at_once_and_no_more() {
    let server = Server::with_policy(POLICY, &[]);
    let mut grpc = Grpc::to(server.grpc);
    let offered = grpc.two.frame().unwrap();
    assert_eq!((offered.kind, offered.flags), (SETTINGS, NONE));
    assert!(offered.payload.chunks(6).any(|one| one == [0, 3, 0, 0, 0x03, 0xe8]), "{offered:?}");
    assert!(grpc.two.in_step());
    let streams: Vec<u32> = (0..1_000).map(|_| grpc.open(&HEAD)).collect();
    for _ in 0..5 {
        let beyond = grpc.send(&HEAD, &alice());
        let told = grpc.told(beyond);
        assert_eq!(told.end, Some(End::Reset(REFUSED_STREAM)), "{told:?}");
    }
    let (first, others) = streams.split_first().unwrap();
    grpc.two.send(&frame(DATA, END_STREAM, *first, &alice()));
    assert!(grpc.told(*first).answer().passed());
    assert!(grpc.asked(&Request::about(&ALICE)).passed());
    for stream in others {
        grpc.two.send(&frame(DATA, END_STREAM, *stream, &alice()));
    }
    for stream in others {
        assert!(grpc.told(*stream).answer().passed());
    }
    // Calls that were not started were not charged.
    assert_eq!(grpc.remaining(&ALICE), 100_000 - 1_001);
    assert!(grpc.goodbyes.is_empty());
    server.is_sound();
}

/// A call that is cancelled halfway is not charged, and the connection goes on.
#[test]
fn a_call_that_is_given_up_halfway() {
    let server = Server::with_policy(POLICY, &[]);
    let mut grpc = Grpc::to(server.grpc);
    let body = alice();
    for at in 0..body.len() {
        let stream = grpc.open(&HEAD);
        grpc.two.send(&frame(DATA, NONE, stream, &body[..at]));
        assert!(grpc.two.in_step());
        grpc.two.send(&cancel(stream));
        assert!(grpc.two.in_step());
    }
    assert_eq!(grpc.remaining(&ALICE), 100_000);
    assert!(grpc.goodbyes.is_empty());
    server.is_sound();
}

/// A thousand calls are cancelled at once, as by a proxy whose timers all expire together, or which is told to stop.
#[test]
fn all_calls_of_a_connection_may_be_given_up_at_once() {
    let server = Server::with_policy(POLICY, &[]);
    let mut grpc = Grpc::to(server.grpc);
    assert!(grpc.two.in_step());
    for _ in 0..3 {
        let streams: Vec<u32> = (0..1_000).map(|_| grpc.open(&HEAD)).collect();
        assert!(grpc.two.in_step());
        let given_up: Vec<u8> = streams.iter().flat_map(|stream| cancel(*stream)).collect();
        grpc.two.send(&given_up);
        // A client that sends a PING is not an attacker.
        assert!(grpc.two.in_step());
        assert!(grpc.asked(&Request::about(&ALICE)).passed());
    }
    assert!(grpc.goodbyes.is_empty());
    assert_eq!(grpc.remaining(&ALICE), 100_000 - 3);
    server.is_sound();
}

/// A violation of the protocol ends its stream or the connection, and charges nothing.
#[test]
fn frames_that_break_the_protocol() {
    enum Ends {
        Stream,
        Connection,
    }
    use Ends::{Connection, Stream};
    let update = |stream, by: u32| frame(WINDOW_UPDATE, NONE, stream, &by.to_be_bytes());
    let cases: [(&str, Vec<u8>, Ends); 14] = [
        ("a window of nothing", [begin(1, &HEAD), update(1, 0)].concat(), Connection),
        ("a window of too much", [begin(1, &HEAD), update(1, 0x7fff_ffff)].concat(), Stream),
        ("a window of nothing for all", update(0, 0), Connection),
        ("a window of too much for all", update(0, 0x7fff_ffff), Connection),
        ("data before a head", frame(DATA, END_STREAM, 1, &alice()), Connection),
        ("data on no stream", frame(DATA, END_STREAM, 0, &alice()), Connection),
        ("an even stream", call(2, &HEAD, &alice()), Connection),
        ("a head on no stream", begin(0, &HEAD), Connection),
        ("giving up what never began", cancel(1), Connection),
        (
            "a head in a head",
            [frame(HEADERS, NONE, 1, &fields(&HEAD)), begin(3, &HEAD)].concat(),
            Connection,
        ),
        ("a rest without a head", frame(CONTINUATION, END_HEADERS, 1, &fields(&HEAD)), Connection),
        ("a setting of five bytes", frame(SETTINGS, NONE, 0, &[0; 5]), Connection),
        (
            "a frame of 32 KiB",
            [begin(1, &HEAD), frame(DATA, END_STREAM, 1, &[0; 32 * 1024])].concat(),
            Connection,
        ),
        ("no HPACK", frame(HEADERS, END_HEADERS, 1, &[0xff; 40]), Connection),
    ];
    let server = Server::with_policy(POLICY, &[]);
    for (name, bytes, ends) in cases {
        println!("{name}");
        let mut two = Two::to(server.grpc);
        assert!(two.in_step());
        two.send(&bytes);
        match ends {
            Stream => {
                let answer = two.answer(1);
                assert!(
                    matches!(answer, crate::support::http2::Answer::Reset(1..)),
                    "{name}: {answer:?}"
                );
                assert!(two.in_step(), "{name}");
            }
            Connection => {
                let frames = two.until_end();
                let told = frames.iter().filter(|frame| frame.kind == GOAWAY);
                let reasons: Vec<&[u8]> = told.map(|frame| &frame.payload[4..8]).collect();
                assert!(
                    !reasons.is_empty() && reasons.iter().all(|reason| *reason != [0; 4]),
                    "{name}: {frames:?}"
                );
            }
        }
        let mut next = Grpc::to(server.grpc);
        assert_eq!(next.remaining(&ALICE), 100_000, "{name}");
    }
    // A frame after the end of a stream affects only that stream, and the stream does not start again.
    let mut grpc = Grpc::to(server.grpc);
    let stream = grpc.ask(&Request::about(&ALICE));
    assert!(grpc.told(stream).answer().passed());
    grpc.two.send(&frame(DATA, END_STREAM, stream, &alice()));
    assert_eq!(grpc.told(stream).end, Some(End::Reset(STREAM_CLOSED)));
    grpc.two.send(&call(stream, &HEAD, &alice()));
    assert!(grpc.asked(&Request::about(&ALICE)).passed());
    assert!(!grpc.has_answered(stream) && grpc.goodbyes.is_empty());
    assert_eq!(grpc.remaining(&ALICE), 100_000 - 2);
    server.is_sound();
}

/// Sends this many frames while other clients make calls, and returns how many of them were accepted.
fn flood(times: usize, make: impl FnMut(u32) -> Vec<u8>) -> usize {
    let server = Server::with_policy(POLICY, &[]);
    let before = server.resident_kib();
    let taken = while_others_ask(&server, || Two::to(server.grpc).flood(times, make));
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown <= 32 * 1024, "{grown} KiB more");
    assert_eq!(Grpc::to(server.grpc).remaining(&ALICE), 100_000);
    server.is_sound();
    taken
}

/// A proxy that cancels all its calls is not an attacker: they cost little, are not charged, and the connection goes
/// on.
#[test]
fn calls_that_are_given_up_at_once_cost_little() {
    let taken = flood(50_000, |stream| [begin(stream, &HEAD), cancel(stream)].concat());
    assert_eq!(taken, 50_000);
}

#[test]
fn floods_are_cut_off() {
    let update = |stream, by: u32| frame(WINDOW_UPDATE, NONE, stream, &by.to_be_bytes());
    let no_window = |stream| [begin(stream, &HEAD), update(stream, 0)].concat();
    let too_much_window = |stream| [begin(stream, &HEAD), update(stream, 0x7fff_ffff)].concat();
    let after_the_end = |stream| {
        let whole = frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields(&HEAD));
        [whole, frame(DATA, END_STREAM, stream, b"x")].concat()
    };
    let no_call = |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields(&[("X", "y")]));
    let makes: [(&str, Make<'_>); 9] = [
        ("a window of nothing", &no_window),
        ("a window of too much", &too_much_window),
        ("data after the end", &after_the_end),
        ("no call", &no_call),
        ("pings", &|_| frame(PING, NONE, 0, b"sent all")),
        ("answers to pings", &|_| frame(PING, ACK, 0, b"sent all")),
        ("settings", &|_| frame(SETTINGS, NONE, 0, &[0, 3, 0, 0, 0, 100])),
        ("windows", &|_| update(0, 1)),
        ("priorities", &|_| frame(PRIORITY, NONE, 1, &[0, 0, 0, 0, 7])),
    ];
    for (name, make) in makes {
        let taken = flood(100_000, make);
        assert!(taken <= 2_000, "{name}: {taken}");
    }
    let mut first = true;
    let taken = flood(100_000, |_| {
        let begin = if first { begin(1, &HEAD) } else { vec![] };
        first = false;
        [begin, frame(DATA, NONE, 1, b"")].concat()
    });
    assert!(taken <= 2_000, "empty data: {taken}");
}

#[test]
fn a_head_without_an_end_is_cut_off() {
    let server = Server::with_policy(POLICY, &[]);
    let before = server.resident_kib();
    while_others_ask(&server, || {
        let mut two = Two::to(server.grpc);
        two.send(&frame(HEADERS, NONE, 1, &fields(&HEAD)));
        let piece = frame(CONTINUATION, NONE, 1, &fields(&[("x", &"y".repeat(16_000))]));
        let pieces = 64 * 1024 * 1024 / piece.len();
        let mut writer = two.writer();
        let taken = std::thread::spawn(move || {
            (0..pieces).take_while(|_| writer.write_all(&piece).is_ok()).count()
        });
        let ended = two.until_end();
        assert!(!ended.iter().any(|frame| matches!(frame.kind, HEADERS | RST_STREAM)), "{ended:?}");
        let taken = taken.join().unwrap();
        assert!(taken < pieces / 2, "{taken} of {pieces}");
    });
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown <= 32 * 1024, "{grown} KiB more");
    server.is_sound();
}

/// A client that begins the HTTP/2 preface and stops is disconnected; a client that sends it slowly is served.
#[test]
fn a_beginning_has_its_time() {
    let server = Server::with_policy(POLICY, &["--grpc-header-timeout", "3s"]);
    let mut half = connect(server.grpc);
    half.write_all(b"PRI * HTTP/2.0\r\n").unwrap();
    let mut rest = Vec::new();
    half.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "{rest:?}");
    let mut slow = connect(server.grpc);
    for piece in b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".chunks(5) {
        slow.write_all(piece).unwrap();
    }
    let mut settings = [0; 9];
    slow.read_exact(&mut settings).unwrap();
    assert_eq!(settings[3], SETTINGS);
    server.until_refused("late", 1);
    server.is_sound();
}
