//! We stand still ourselves, for a moment, while a proxy asks: it gives up what is not answered within 20 ms, and all that it
//! gave up arrives at once when we go on. None of its connections may end for it: the next calls would pass unasked.

use crate::support::grpc::{Grpc, Heard};
use crate::support::pause_until;
use crate::support::tidegate::Deployment;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const RULE: &str =
    "{ name: all, key: [ip], limits: [{ rate: 100000000/day, algorithm: fixed_window }] }";
const CONNECTIONS: u32 = 2;
const PER_SECOND: u32 = 3_000;
const DEADLINE: Duration = Duration::from_millis(20);
const STALL: Duration = Duration::from_millis(300);

/// What became of the calls of a connection.
#[derive(Debug, Default)]
struct Told {
    asked: usize,
    answered: usize,
    given_up: usize,
    /// Asked when the stall was long over, and not answered in time.
    late_after: usize,
    goodbyes: usize,
    ended: bool,
}

#[test]
fn a_stall_of_ours_ends_no_connection() {
    let deployment = Deployment::new(RULE);
    let server = deployment.server("memory:", &[]);
    server.until_ready();
    let start = Instant::now() + Duration::from_millis(200);
    let stopped = start + Duration::from_secs(1);
    let settled = stopped + STALL + Duration::from_millis(500);
    let end = stopped + Duration::from_secs(3);
    let address = server.grpc;
    let callers: Vec<_> = (0..CONNECTIONS)
        .map(|_| thread::spawn(move || play(address, start, settled, end)))
        .collect();
    pause_until(stopped);
    server.process.stop();
    pause_until(stopped + STALL);
    server.process.go_on();
    for told in callers.into_iter().map(|caller| caller.join().unwrap()) {
        println!("{told:?}");
        assert!(!told.ended && told.goodbyes == 0, "{told:?}");
        assert!(told.given_up > 300, "{told:?}"); // half a stall's worth, each
        assert!(told.late_after <= told.asked / 100, "{told:?}");
    }
}

/// Asks at an even pace, and gives up what takes too long.
fn play(address: SocketAddr, start: Instant, settled: Instant, end: Instant) -> Told {
    let mut grpc = Grpc::connect(address);
    let open: Arc<Mutex<BTreeMap<u32, Instant>>> = Arc::default();
    let told: Arc<Mutex<Told>> = Arc::default();
    let reading = {
        let (mut reader, open, told) = (grpc.reader(), Arc::clone(&open), Arc::clone(&told));
        thread::spawn(move || {
            while Instant::now() < end {
                match reader.heard() {
                    Heard::Answered(stream) => {
                        let known = open.lock().unwrap().remove(&stream).is_some();
                        told.lock().unwrap().answered += usize::from(known);
                    }
                    Heard::Goodbye => told.lock().unwrap().goodbyes += 1,
                    Heard::End => {
                        told.lock().unwrap().ended = true;
                        return;
                    }
                }
            }
        })
    };
    let apart = Duration::from_secs(1) * CONNECTIONS / PER_SECOND;
    let dues = (0..).map(|turn| start + apart * turn).take_while(|due| *due < end);
    for due in dues {
        pause_until(due);
        let stream = {
            let mut open = open.lock().unwrap();
            let stream = grpc.ask("203.0.113.7", "20m");
            open.insert(stream, Instant::now());
            stream
        };
        told.lock().unwrap().asked += usize::from(stream > 0);
        let now = Instant::now();
        let late: Vec<(u32, Instant)> = {
            let mut open = open.lock().unwrap();
            let late = open.extract_if(.., |_, asked| now - *asked > DEADLINE);
            late.collect()
        };
        for (stream, asked) in late {
            grpc.give_up(stream);
            let mut told = told.lock().unwrap();
            told.given_up += 1;
            told.late_after += usize::from(asked > settled);
        }
    }
    // One more, so that whoever reads comes to an end.
    grpc.ask("203.0.113.7", "20m");
    reading.join().unwrap();
    Arc::into_inner(told).unwrap().into_inner().unwrap()
}
