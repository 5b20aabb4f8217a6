//! The peer: `redis-benchmark` with a token bucket as people write it for Redis (`bucket.lua` of the benchmark of RESP), called by
//! EVALSHA.

#![expect(clippy::float_arithmetic, reason = "rates, for people")]

use super::server::RedisServer;
use std::process::Command;
use std::time::Duration;

/// One configuration of `redis-benchmark`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawBenchmark {
    pub(crate) name: &'static str,
    pub(crate) connections: u32,
    /// How many commands a connection sends together (pipelining).
    pub(crate) depth: u32,
    /// The first letter of its keys.
    pub(crate) mark: char,
    pub(crate) command: RawCommand,
}

/// What it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RawCommand {
    Bucket,
    Incr,
}

/// The bucket of the peer, loaded into a server.
pub(crate) struct PlainBucket {
    sha: String,
}

/// Commands in flight. The commands of a round are a multiple of it. Otherwise `redis-benchmark` gets more
/// replies than it ordered commands, and if it checks its connections at that moment, it reports that it lost
/// them and gives up.
const IN_FLIGHT: u64 = 64;
/// Commands of the first round: about the smallest number that still yields a rate.
pub(crate) const FIRST: u64 = 300 * IN_FLIGHT;
/// The placeholder that `redis-benchmark` replaces by a random number of the same length.
const NUMBER: &str = "__rand_int__";
const KEYS: &str = "1000000";

/// How many commands last at least `length` at this rate, and also at a rate that is 25 % higher.
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate from a positive rate"
)]
pub(crate) fn commands(rate: f64, length: Duration) -> u64 {
    ((rate * 1.25 * length.as_secs_f64()) as u64).next_multiple_of(IN_FLIGHT)
}

// === impl PlainBucket ===

impl PlainBucket {
    pub(crate) async fn load(server: &RedisServer) -> Result<Self, String> {
        let text = include_str!("../resp_bench/bucket.lua");
        Ok(Self { sha: server.ask(&["SCRIPT", "LOAD", text]).await? })
    }

    /// Takes once, and returns whether it passed.
    pub(crate) async fn take(&self, server: &RedisServer, key: &str) -> Result<bool, String> {
        let (allowed, _left): (u64, u64) = server.ask(&self.call(key)).await?;
        Ok(allowed == 1)
    }

    /// A call that takes 1 of 100 a day.
    fn call<'c>(&'c self, key: &'c str) -> [&'c str; 7] {
        ["EVALSHA", &self.sha, "1", key, "100", "0.0011574074", "1"]
    }
}

// === impl RawBenchmark ===

impl RawBenchmark {
    /// Sends this many commands, and returns the commands per second.
    pub(crate) async fn rate(
        self,
        bucket: &PlainBucket,
        server: &RedisServer,
        commands: u64,
    ) -> Result<f64, String> {
        if !bucket.take(server, &self.key("000001000000")).await? {
            return Err("the bucket of the peer refused".to_owned());
        }
        let mut command = Command::new("redis-benchmark");
        let [connections, depth] = [self.connections, self.depth].map(|number| number.to_string());
        command.args(["-p", &server.port(), "-c", &connections, "-P", &depth, "-r", KEYS]);
        command.args(["-n", &commands.to_string(), "--csv"]);
        match self.command {
            RawCommand::Bucket => command.args(bucket.call(&self.key(NUMBER))),
            RawCommand::Incr => command.args(["INCR", &self.key(NUMBER)]),
        };
        // On a thread of its own, so that this thread can react to Ctrl-C.
        let output = tokio::task::spawn_blocking(move || command.output()).await;
        let output = output.map_err(|error| error.to_string())?;
        let output = output.map_err(|error| format!("redis-benchmark: {error}"))?;
        let said = String::from_utf8_lossy(&output.stdout);
        rate_in(&said).ok_or_else(|| {
            format!("redis-benchmark: {said}{}", String::from_utf8_lossy(&output.stderr))
        })
    }

    fn key(self, number: &str) -> String {
        format!("{}:{number}", self.mark)
    }
}

/// The rate in the last line of the CSV output, whose columns are the test, the rate, and six latencies, all
/// in quotes.
fn rate_in(table: &str) -> Option<f64> {
    let row = table.lines().last()?;
    let rate = row.rsplit(',').nth(6)?.trim_matches('"').parse().ok()?;
    (rate > 0.0).then_some(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_found_behind_a_command_with_commas() {
        let head = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"";
        let row = "\"EVALSHA 1,2 \",\"41666.67\",\"1.5\",\"0.2\",\"1.4\",\"2.0\",\"3.0\",\"9.0\"";
        assert_eq!(rate_in(&format!("{head}\n{row}\n")), Some(41_666.67));
        assert_eq!(rate_in(head), None);
        assert_eq!(rate_in("Error from server: ERR no"), None);
        assert_eq!(rate_in(""), None);
    }
}
