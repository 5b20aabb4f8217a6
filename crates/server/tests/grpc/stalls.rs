//! The process stands still for a moment, as may happen on a busy machine, while a proxy goes on asking. The proxy
//! cancels each call after 20 ms, so hundreds of calls are made and cancelled before the server reads the first.

use super::bytes::{ALICE, POLICY};
use crate::support::Server;
use crate::support::grpc::{Grpc, HEAD, call, cancel, message};
use crate::support::http2::{GOAWAY, NONE, RST_STREAM, Two, frame, request};
use crate::support::messages::Request;
use prost::Message;
use std::collections::VecDeque;

/// 3,000 calls a second on two connections: this many on each in 300 ms, and this many waiting for their answers at a
/// time.
const IN_300_MS: usize = 450;
const IN_20_MS: usize = 30;

/// Stops a server, and lets it continue at the end, whatever happens.
struct Still<'s>(&'s Server);

impl<'s> Still<'s> {
    fn new(server: &'s Server) -> Self {
        server.stall();
        Self(server)
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        self.0.signal("CONT");
    }
}

/// What a proxy sends while it gets no answers: calls, each of which it cancels when this many others were made after
/// it. Returns how many it has cancelled, and the streams of the last calls, which it has not.
fn asked_in_vain(two: &mut Two, calls: usize, ask: impl Fn(u32) -> Vec<u8>) -> (usize, Vec<u32>) {
    let (mut waiting, mut bytes, mut given_up) = (VecDeque::new(), vec![], 0);
    for _ in 0..calls {
        let stream = two.next();
        bytes.extend(ask(stream));
        waiting.push_back(stream);
        if waiting.len() > IN_20_MS {
            let oldest = waiting.pop_front().unwrap();
            bytes.extend(frame(RST_STREAM, NONE, oldest, &8_u32.to_be_bytes()));
            given_up += 1;
        }
    }
    assert!(two.send(&bytes));
    (given_up, waiting.into())
}

#[test]
fn a_stall_cuts_no_connection_of_a_proxy() {
    // A usual stall, and one of two and a half seconds, the longest that we promise to survive.
    for calls in [IN_300_MS, 8 * IN_300_MS] {
        let server = Server::with_policy(POLICY, &[]);
        let mut all = [Grpc::to(server.grpc), Grpc::to(server.grpc)];
        for grpc in &mut all {
            assert!(grpc.asked(&Request::about(&ALICE)).passed());
        }
        let still = Still::new(&server);
        let body = message(&Request::about(&ALICE).encode_to_vec());
        let asked = |grpc: &mut Grpc| {
            asked_in_vain(&mut grpc.two, calls, |stream| call(stream, &HEAD, &body))
        };
        let given_up: Vec<(usize, Vec<u32>)> = all.iter_mut().map(asked).collect();
        drop(still);
        let resets: usize = given_up.iter().map(|(resets, _)| resets).sum();
        println!(
            "{} calls on two connections, {resets} given up before they were looked at",
            2 * calls
        );
        for (grpc, (_, waiting)) in all.iter_mut().zip(given_up) {
            // Calls that still wait are answered, and so are later ones.
            for stream in waiting {
                assert!(grpc.told(stream).answer().passed());
            }
            assert!(grpc.asked(&Request::about(&ALICE)).passed());
            assert!(grpc.two.in_step());
            assert!(grpc.goodbyes.is_empty(), "{:?}", grpc.goodbyes);
        }
        server.is_sound();
    }
}

/// When an ordinary client on the HTTP listener resets as many streams after a stall, the connection ends, and the server says why.
#[test]
fn a_stall_is_no_excuse_for_strangers() {
    let server = Server::with_policy(POLICY, &[]);
    let mut all = [Two::to(server.http), Two::to(server.http)];
    assert!(all.iter_mut().all(Two::in_step));
    let still = Still::new(&server);
    let ask = |stream| request(stream, "GET", "/live", true);
    for two in &mut all {
        asked_in_vain(two, IN_300_MS, ask);
    }
    drop(still);
    for two in &mut all {
        let frames = two.until_end();
        let calm = 11_u32.to_be_bytes();
        let told = frames.iter().any(|frame| frame.kind == GOAWAY && frame.payload[4..8] == calm);
        assert!(told, "{frames:?}");
    }
    server.is_sound();
}

/// A call that was cancelled during the stall is charged at most once, and no other call is charged twice.
#[test]
fn calls_that_were_given_up_in_a_stall_are_charged_once_at_most() {
    let server = Server::with_policy(POLICY, &[]);
    let mut grpc = Grpc::to(server.grpc);
    assert_eq!(grpc.remaining(&ALICE), 100_000);
    let still = Still::new(&server);
    let body = message(&Request::about(&ALICE).encode_to_vec());
    let mut bytes = vec![];
    for number in 0..400 {
        let stream = grpc.two.next();
        bytes.extend(call(stream, &HEAD, &body));
        if number % 2 == 0 {
            bytes.extend(cancel(stream));
        }
    }
    grpc.two.send(&bytes);
    drop(still);
    // After all of them.
    let charged = u64::from(100_000 - grpc.remaining(&ALICE));
    let decided = server.metric("tidegate_decision_seconds_count{protocol=\"grpc\"}") - 2;
    println!("400 calls, 200 of them given up: {charged} charged");
    assert_eq!(charged, decided);
    assert!((200..=400).contains(&charged), "{charged}");
    server.is_sound();
}
