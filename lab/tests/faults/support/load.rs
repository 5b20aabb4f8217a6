//! An open-loop load: requests are sent at fixed instants, and latency counts from the instant at which a
//! request was *due*.
//!
//! ```text
//!   due      |    |    |    |    |    |        connections take the instants in turns, so there must be as many
//!   sent     |    |    |─ stall ─|||  |        as are due while one waits for its answer
//!   latency            ◄─────────► ◄─►         a request that was due in a stall has waited in it
//! ```

use super::tidegate::{DecidedBy, Verdict};
use super::{PATIENCE, pause_until};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Where requests are sent, at which rate, and for how long.
pub(crate) struct Load {
    pub(crate) servers: Vec<SocketAddr>,
    pub(crate) per_second: u32,
    pub(crate) length: Duration,
    /// The number of connections to all servers together.
    pub(crate) connections: u32,
}

/// One request and its result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) number: u32,
    pub(crate) due: Instant,
    pub(crate) latency: Duration,
    pub(crate) verdict: Verdict,
}

/// A running load. It ends early when it is dropped, for example by a test that has failed.
pub(crate) struct RunningLoad {
    pub(crate) start: Instant,
    threads: Vec<JoinHandle<Vec<Sample>>>,
    over: Arc<AtomicBool>,
}

/// A set of samples.
#[derive(Clone, Default)]
pub(crate) struct Samples(pub(crate) Vec<Sample>);

// === impl Load ===

impl Load {
    /// Starts the load. `attributes` makes the attributes of a request from its number when it is sent.
    pub(crate) fn start(
        &self,
        attributes: impl Fn(u32) -> String + Send + Sync + 'static,
    ) -> RunningLoad {
        let (attributes, over) = (Arc::new(attributes), Arc::new(AtomicBool::new(false)));
        let connected: Vec<Http> = (0..self.connections)
            .map(|number| {
                let server = usize::try_from(number).unwrap() % self.servers.len();
                Http::connect(self.servers[server])
            })
            .collect();
        // A moment in which all threads can start.
        let start = Instant::now() + Duration::from_millis(100);
        let apart = Duration::from_secs(1) / self.per_second;
        let (end, step) = (start + self.length, self.connections);
        let threads = (0..).zip(connected).map(|(first, mut http)| {
            let (attributes, over) = (Arc::clone(&attributes), Arc::clone(&over));
            thread::spawn(move || {
                let mut samples = Vec::new();
                let turns = (first..).step_by(usize::try_from(step).unwrap());
                for number in turns {
                    let due = start + apart * number;
                    if due >= end {
                        break;
                    }
                    pause_until(due);
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    let verdict = http.check(&attributes(number));
                    samples.push(Sample { number, due, latency: due.elapsed(), verdict });
                }
                samples
            })
        });
        RunningLoad { start, threads: threads.collect(), over }
    }
}

impl RunningLoad {
    /// Waits until this much of the load has passed, and returns the current instant.
    pub(crate) fn reaches(&self, time: Duration) -> Instant {
        pause_until(self.start + time);
        Instant::now()
    }

    pub(crate) fn finish(mut self) -> Samples {
        let mut samples: Vec<Sample> =
            self.threads.drain(..).flat_map(|thread| thread.join().unwrap()).collect();
        samples.sort_by_key(|sample| sample.due);
        Samples(samples)
    }
}

impl Drop for RunningLoad {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

// === impl Sample ===

impl Sample {
    pub(crate) fn answered(&self) -> Instant {
        self.due + self.latency
    }
}

// === impl Samples ===

impl Samples {
    /// The samples that were due between two instants.
    pub(crate) fn between(&self, from: Instant, to: Instant) -> Self {
        self.filter(|sample| (from..to).contains(&sample.due))
    }

    pub(crate) fn filter(&self, keep: impl Fn(&Sample) -> bool) -> Self {
        Self(self.0.iter().copied().filter(|sample| keep(sample)).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn by(&self, by: DecidedBy) -> usize {
        self.0.iter().filter(|sample| sample.verdict.by == by).count()
    }

    /// How many requests passed, no matter what decided them.
    pub(crate) fn admitted(&self) -> u64 {
        let admitted = self.0.iter().filter(|sample| sample.verdict.status == 200);
        u64::try_from(admitted.count()).unwrap()
    }

    /// How many requests the store admitted.
    pub(crate) fn admitted_by_store(&self) -> u64 {
        let admitted = self.0.iter().filter(|sample| sample.verdict.is_admitted_by_store());
        u64::try_from(admitted.count()).unwrap()
    }

    pub(crate) fn slowest(&self) -> Duration {
        self.0.iter().map(|sample| sample.latency).max().unwrap_or_default()
    }

    /// A quantile of the latencies, in thousandths.
    pub(crate) fn quantile(&self, of_thousand: usize) -> Duration {
        let mut latencies: Vec<Duration> = self.0.iter().map(|sample| sample.latency).collect();
        latencies.sort();
        let at = (latencies.len() * of_thousand).div_ceil(1_000).saturating_sub(1);
        latencies.get(at).copied().unwrap_or_default()
    }

    /// Panics unless every caller got a decision.
    pub(crate) fn assert_all_answered(&self) {
        let none = self.0.iter().filter(|sample| !sample.verdict.is_an_answer());
        let none: Vec<_> = none.take(5).collect();
        assert!(none.is_empty(), "{none:?}");
    }

    /// Panics unless all requests were decided by the store or by its denial cache.
    pub(crate) fn assert_all_by_store(&self) {
        let theirs = self.by(DecidedBy::Store) + self.by(DecidedBy::Cache);
        assert_eq!(theirs, self.len(), "{}", self.summary());
    }

    /// A line for the output of the tests.
    pub(crate) fn summary(&self) -> String {
        let [median, p99] = [500, 990].map(|share| self.quantile(share));
        let [store, cache, fallback] =
            [DecidedBy::Store, DecidedBy::Cache, DecidedBy::Fallback].map(|by| self.by(by));
        let (count, slowest) = (self.len(), self.slowest());
        format!(
            "{count} answers, {store} by the store, {cache} by the cache, {fallback} by the fallback; {median:?} median, {p99:?} p99, {slowest:?} at most"
        )
    }
}

// === HTTP ===

/// A keep-alive connection.
pub(crate) struct Http {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Http {
    pub(crate) fn connect(server: SocketAddr) -> Self {
        let stream = TcpStream::connect(server).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, read: Vec::new() }
    }

    /// Sends a check with attributes like `"ip":"203.0.113.7"`.
    pub(crate) fn check(&mut self, attributes: &str) -> Verdict {
        self.check_body(&format!("{{\"attributes\":{{{attributes}}}}}"))
    }

    /// Sends a check with a complete body.
    pub(crate) fn check_body(&mut self, body: &str) -> Verdict {
        let (status, body) = self.post("/v1/check", body);
        Verdict::parse(status, &body)
    }

    /// Sends JSON.
    pub(crate) fn post(&mut self, path: &str, body: &str) -> (u16, String) {
        let length = body.len();
        self.ask(&format!(
            "POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
    }

    pub(crate) fn get(&mut self, path: &str, fields: &str) -> (u16, String) {
        self.ask(&format!("GET {path} HTTP/1.1\r\nhost: {}\r\n{fields}\r\n", self.host()))
    }

    fn host(&self) -> SocketAddr {
        self.stream.peer_addr().unwrap()
    }

    /// The status and the body; the status is 0 when there is no answer.
    fn ask(&mut self, request: &str) -> (u16, String) {
        self.try_to_ask(request).unwrap_or_default()
    }

    fn try_to_ask(&mut self, request: &str) -> Option<(u16, String)> {
        self.stream.write_all(request.as_bytes()).ok()?;
        let mut buffer = [0; 4096];
        loop {
            if let Some(answer) = self.answer() {
                return Some(answer);
            }
            match self.stream.read(&mut buffer).ok()? {
                0 => return None,
                count => self.read.extend_from_slice(&buffer[..count]),
            }
        }
    }

    /// The answer; `None` while it is incomplete.
    fn answer(&mut self) -> Option<(u16, String)> {
        let end = self.read.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
        let head = String::from_utf8_lossy(&self.read[..end]).to_lowercase();
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let length = head.split("content-length: ").nth(1)?.split("\r\n").next()?;
        let whole = end + length.parse::<usize>().ok()?;
        let body = String::from_utf8_lossy(self.read.get(end..whole)?).into_owned();
        self.read.drain(..whole);
        Some((status, body))
    }
}
