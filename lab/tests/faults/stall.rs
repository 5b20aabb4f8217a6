//! tidegate itself is stopped for a moment while Envoy calls it. Envoy cancels calls that take longer than 20
//! ms, and all these cancellations arrive together when tidegate continues. They must not close any of its
//! connections, because then Envoy's next calls would fail and their requests would pass unchecked.

use crate::support::grpc::{Event, Grpc};
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

/// The results of the calls on one connection.
#[derive(Debug, Default)]
struct CallCounts {
    asked: usize,
    answered: usize,
    given_up: usize,
    /// Calls that were made long after the stall and not answered in time.
    late_after: usize,
    goaways: usize,
    ended: bool,
}

#[test]
fn a_stall_of_tidegate_closes_no_connection() {
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
    server.process.resume();
    for counts in callers.into_iter().map(|caller| caller.join().unwrap()) {
        println!("{counts:?}");
        assert!(!counts.ended && counts.goaways == 0, "{counts:?}");
        assert!(counts.given_up > 300, "{counts:?}"); // half of the calls during the stall, per connection
        assert!(counts.late_after <= counts.asked / 100, "{counts:?}");
    }
}

/// Makes calls at a constant rate, and cancels those that take too long.
fn play(address: SocketAddr, start: Instant, settled: Instant, end: Instant) -> CallCounts {
    let mut grpc = Grpc::connect(address);
    let open: Arc<Mutex<BTreeMap<u32, Instant>>> = Arc::default();
    let counts: Arc<Mutex<CallCounts>> = Arc::default();
    let reading = {
        let (mut reader, open, counts) = (grpc.reader(), Arc::clone(&open), Arc::clone(&counts));
        thread::spawn(move || {
            while Instant::now() < end {
                match reader.next_event() {
                    Event::Answered(stream) => {
                        let known = open.lock().unwrap().remove(&stream).is_some();
                        counts.lock().unwrap().answered += usize::from(known);
                    }
                    Event::GoAway => counts.lock().unwrap().goaways += 1,
                    Event::Closed => {
                        counts.lock().unwrap().ended = true;
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
        counts.lock().unwrap().asked += usize::from(stream > 0);
        let now = Instant::now();
        let late: Vec<(u32, Instant)> = {
            let mut open = open.lock().unwrap();
            let late = open.extract_if(.., |_, asked| now - *asked > DEADLINE);
            late.collect()
        };
        for (stream, asked) in late {
            grpc.cancel(stream);
            let mut counts = counts.lock().unwrap();
            counts.given_up += 1;
            counts.late_after += usize::from(asked > settled);
        }
    }
    // One more call, so that the reading thread wakes up and ends.
    grpc.ask("203.0.113.7", "20m");
    reading.join().unwrap();
    Arc::into_inner(counts).unwrap().into_inner().unwrap()
}
