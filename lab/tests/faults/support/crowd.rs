//! A crowd: many callers, each of whom asks again as soon as it was answered. For tests that count what passed and do not care
//! how long it took; `load.rs` is for those that do.

use super::load::{Http, Load, RunningLoad, Sample, Samples};
use super::tidegate::Tidegate;
use std::thread;
use std::time::{Duration, Instant};

/// Callers at each server.
const CALLERS: usize = 4;

/// `/v1/check` about an address.
pub(crate) fn about(ip: &str) -> String {
    format!("{{\"attributes\":{{\"ip\":\"{ip}\"}}}}")
}

/// The same, from a caller who must have an answer within this time.
pub(crate) fn hurried(ip: &str, timeout_ms: u32) -> String {
    format!("{{\"attributes\":{{\"ip\":\"{ip}\"}},\"timeout_ms\":{timeout_ms}}}")
}

/// Asks so often, as many times at each server; the body of a request is made of its number. The numbers of one server are
/// those with the same remainder by the number of servers.
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

/// Traffic of other users at all servers, until it is dropped.
pub(crate) fn others(servers: &[Tidegate]) -> RunningLoad {
    let load = Load {
        servers: servers.iter().map(|server| server.http).collect(),
        per_second: 100,
        connections: 6,
        length: Duration::from_secs(600),
    };
    load.start(|number| format!("\"ip\":\"198.51.100.{}\"", number % 250))
}
