//! A crowd (a closed loop): many callers, each of which sends its next request when it has its answer. It is
//! for tests that count what passed and do not measure latency; `load.rs` is for those that do.

use super::load::{Http, Load, RunningLoad, Sample, Samples};
use super::tidegate::Tidegate;
use std::thread;
use std::time::{Duration, Instant};

/// Callers per server.
const CALLERS: usize = 4;

/// The body of a `/v1/check` for an address.
pub(crate) fn about(ip: &str) -> String {
    format!("{{\"attributes\":{{\"ip\":\"{ip}\"}}}}")
}

/// The body of a `/v1/check` for an address, with a deadline.
pub(crate) fn hurried(ip: &str, timeout_ms: u32) -> String {
    format!("{{\"attributes\":{{\"ip\":\"{ip}\"}},\"timeout_ms\":{timeout_ms}}}")
}

/// Sends this many requests, the same number to each server. `body` makes a request from its number. The
/// numbers of one server have the same remainder modulo the number of servers.
pub(crate) fn ask(
    servers: &[Tidegate],
    requests: u32,
    body: impl Fn(u32) -> String + Sync,
) -> Samples {
    let callers = servers.len() * CALLERS;
    let samples = thread::scope(|scope| {
        let addresses = servers.iter().map(|server| server.http).cycle();
        let asking: Vec<_> = (0..requests)
            .zip(addresses)
            .take(callers)
            .map(|(first, address)| {
                let body = &body;
                scope.spawn(move || {
                    let mut http = Http::connect(address);
                    let numbers = (first..requests).step_by(callers);
                    numbers.map(|number| sample(&mut http, number, &body(number))).collect()
                })
            })
            .collect();
        asking.into_iter().flat_map(|caller| -> Vec<Sample> { caller.join().unwrap() }).collect()
    });
    let samples = Samples(samples);
    samples.assert_all_answered();
    samples
}

fn sample(http: &mut Http, number: u32, body: &str) -> Sample {
    let due = Instant::now();
    let verdict = http.check_body(body);
    Sample { number, due, latency: due.elapsed(), verdict }
}

/// Traffic of other users to all servers, until this is dropped.
pub(crate) fn others(servers: &[Tidegate]) -> RunningLoad {
    let load = Load {
        servers: servers.iter().map(|server| server.http).collect(),
        per_second: 100,
        connections: 6,
        length: Duration::from_secs(600),
    };
    load.start(|number| format!("\"ip\":\"198.51.100.{}\"", number % 250))
}
