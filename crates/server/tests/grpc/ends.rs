//! How the server stops, for gRPC clients: calls that were received are answered, watchers are informed, and no
//! client keeps the server from ending.

use super::bytes::{ALICE, POLICY};
use super::others::{REFLECTION, WATCH, list_services, watch};
use crate::support::Server;
use crate::support::grpc::{End, Grpc, HEAD, UNAVAILABLE, call, message};
use crate::support::http2::{ACK, DATA, NONE, PING, Two, WINDOW_UPDATE, frame};
use crate::support::messages::Request;
use prost::Message;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tonic_health::pb::HealthCheckResponse;
use tonic_reflection::pb::v1::ServerReflectionResponse;

fn server(drain: &str) -> Server {
    Server::with_policy(POLICY, &["--drain-timeout", drain])
}

fn stopped_politely(mut server: Server) {
    assert_eq!(server.wait().code(), Some(0));
    let log = server.log();
    assert!(log.contains("stopped; every request was answered"), "{log}");
    assert!(!log.contains("panicked"), "{log}");
}

/// Eight clients have 25 calls in flight each. Then the server is told to stop. Calls that were written before are
/// answered, every answer is complete, and every client is told that the connection ends.
#[test]
fn whoever_had_asked_is_answered() {
    let server = server("10min");
    let (answered, signalled) = (AtomicUsize::new(0), AtomicBool::new(false));
    let client = || {
        let mut grpc = Grpc::to(server.grpc);
        loop {
            let streams = [(); 25].map(|()| grpc.ask(&Request::about(&[("path", "/")])));
            let in_time = !signalled.load(Ordering::SeqCst);
            for stream in streams {
                let told = grpc.told(stream);
                match told.end {
                    Some(End::Whole) => assert!(told.answer().passed()),
                    // Calls that came too late were not started.
                    _ => assert!(!in_time && told.http == 0, "{told:?}"),
                }
                answered.fetch_add(1, Ordering::Relaxed);
            }
            if !grpc.goodbyes.is_empty() {
                while grpc.read() {}
                let reasons: Vec<&[u8]> =
                    grpc.goodbyes.iter().map(|frame| &frame.payload[4..8]).collect();
                return (reasons.len(), reasons.iter().all(|reason| *reason == [0; 4]));
            }
        }
    };
    let ends = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8).map(|_| scope.spawn(client)).collect();
        server.until("they are busy", |_| answered.load(Ordering::Relaxed) > 4_000);
        signalled.store(true, Ordering::SeqCst);
        server.signal("TERM");
        clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    // First a warning that the end is near, then the number of the last call.
    assert!(ends.iter().all(|end| *end == (2, true)), "{ends:?}");
    stopped_politely(server);
}

/// A client answers our PING before it sends the calls that it had begun, as grpc-core does. Their streams were above
/// the last one of our second GOAWAY, so the `WINDOW_UPDATE` after them once ended the connection with
/// `PROTOCOL_ERROR`, and every call that waited for its answer was lost. All of them must be answered, without an
/// error.
#[test]
fn calls_behind_the_answer_to_our_ping_are_answered() {
    for calls in [1, 25] {
        let server = server("10min");
        let mut grpc = Grpc::to(server.grpc);
        assert!(grpc.asked(&Request::about(&ALICE)).passed());
        server.signal("TERM");
        let ping = grpc.two.until_ping();
        let mut bytes = frame(PING, ACK, 0, &ping);
        let body = message(&Request::about(&ALICE).encode_to_vec());
        let streams: Vec<u32> = (0..calls).map(|_| grpc.two.next()).collect();
        for stream in &streams {
            bytes.extend(call(*stream, &HEAD, &body));
            bytes.extend(frame(WINDOW_UPDATE, NONE, *stream, &5_u32.to_be_bytes()));
        }
        grpc.two.send(&bytes);
        for stream in &streams {
            let told = grpc.told(*stream);
            assert_eq!(told.end, Some(End::Whole), "{told:?}");
            assert!(told.answer().passed());
        }
        while grpc.read() {}
        let last = grpc.goodbyes.last().unwrap();
        assert_eq!(last.payload[4..8], [0; 4], "it ends without an error");
        let highest = streams.last().unwrap().to_be_bytes();
        assert_eq!(last.payload[..4], highest, "it says which call was the last");
        stopped_politely(server);
    }
}

/// The process is stopped for a moment. Meanwhile calls arrive, most of them on connections that are not accepted
/// yet, and then the signal arrives. All of these calls must be answered.
#[test]
fn what_waits_at_the_door_is_answered_too() {
    for _ in 0..10 {
        let server = server("10min");
        let mut known = Grpc::to(server.grpc);
        assert!(known.asked(&Request::about(&ALICE)).passed());
        server.signal("STOP");
        let mut clients: Vec<Grpc> = (0..10).map(|_| Grpc::to(server.grpc)).collect();
        clients.push(known);
        let streams: Vec<Vec<u32>> = clients
            .iter_mut()
            .map(|grpc| (0..20).map(|_| grpc.ask(&Request::about(&ALICE))).collect())
            .collect();
        server.signal("TERM");
        server.signal("CONT");
        for (number, (grpc, streams)) in clients.iter_mut().zip(streams).enumerate() {
            for stream in streams {
                let told = grpc.told(stream);
                assert_eq!(told.end, Some(End::Whole), "client {number}, {stream}");
                assert!(told.answer().passed());
            }
        }
        drop(clients);
        stopped_politely(server);
    }
}

/// Streams that last as long as the server end with it, with a status. They do not keep it from ending.
#[test]
fn streams_that_go_on_end_with_the_server() {
    let server = server("10min");
    let mut grpc = Grpc::to(server.grpc);
    let watching = watch(&mut grpc, "");
    let serving: HealthCheckResponse = grpc.next_message(watching);
    assert_eq!(serving.status, 1);
    // One stream has sent a question, one has not, and one still sends.
    let reflecting = grpc.open(&REFLECTION);
    grpc.two.send(&frame(DATA, NONE, reflecting, &message(&list_services().encode_to_vec())));
    let _: ServerReflectionResponse = grpc.next_message(reflecting);
    let silent = grpc.open(&REFLECTION);
    let mut other = Grpc::to(server.grpc);
    let halfway = other.open(&REFLECTION);
    other.two.send(&frame(DATA, NONE, halfway, &[0, 0, 0]));
    let late_watch = other.open(&WATCH);
    assert!(other.two.in_step());
    server.signal("TERM");
    let draining: HealthCheckResponse = grpc.next_message(watching);
    assert_eq!(draining.status, 2);
    for stream in [watching, reflecting, silent] {
        let told = grpc.told(stream);
        assert_eq!((told.code, told.end), (Some(UNAVAILABLE), Some(End::Whole)), "{told:?}");
    }
    let told = other.told(halfway);
    assert_eq!((told.code, told.end), (Some(UNAVAILABLE), Some(End::Whole)), "{told:?}");
    // A stream that has not sent its question yet can still do so.
    other.two.send(&frame(DATA, 1, late_watch, &message(b"")));
    let draining: HealthCheckResponse = other.next_message(late_watch);
    assert_eq!(draining.status, 2);
    assert_eq!(other.told(late_watch).code, Some(UNAVAILABLE));
    for grpc in [&mut grpc, &mut other] {
        while grpc.read() {}
        assert_eq!(grpc.goodbyes.len(), 2);
    }
    stopped_politely(server);
}

/// Idle connections are closed. A client that reads nothing, or never finishes its call, is disconnected at the
/// deadline.
#[test]
fn nobody_keeps_it_from_ending() {
    let mut polite = server("10min");
    let mut idle = Grpc::to(polite.grpc);
    assert!(idle.asked(&Request::about(&ALICE)).passed());
    let silent = crate::support::connect(polite.grpc);
    let quiet = Two::to(polite.grpc);
    polite.signal("TERM");
    while idle.read() {}
    assert_eq!(idle.goodbyes.len(), 2);
    drop(quiet);
    assert_eq!(polite.wait().code(), Some(0));
    assert!(polite.log().contains("every request was answered"), "{}", polite.log());
    drop(silent);

    let mut server = server("1s");
    let mut halfway = Grpc::to(server.grpc);
    halfway.open(&HEAD);
    assert!(halfway.two.in_step());
    // The client opens no window for answers.
    let mut deaf = Two::with_settings(server.grpc, &[0, 4, 0, 0, 0, 0]);
    let body = message(&Request::about(&ALICE).encode_to_vec());
    let stream = deaf.next();
    deaf.send(&call(stream, &HEAD, &body));
    assert!(deaf.in_step());
    let mut reflecting = Grpc::to(server.grpc);
    reflecting.open(&REFLECTION);
    assert!(reflecting.two.in_step());
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    let log = server.log();
    assert!(log.contains("some connections were closed before their answer"), "{log}");
    assert!(!log.contains("panicked"), "{log}");
}
