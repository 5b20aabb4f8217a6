//! The peer: `redis-benchmark`, and the call that it repeats.
//!
//! The call is not written down here, because the copy would differ from the store's call some day. Instead
//! the store makes one call, the server's slow log reports it, and two of its arguments are replaced by
//! others of the same length:
//!
//! ```text
//! EVALSHA sha 1 {xy}0123456789 take "" 1763230000050000 0 0 1 "T 864000000 …"
//! EVALSHA sha 1 a:000000123456 take "" 1763233600050000 0 0 1 "T 864000000 …"
//!               └ a random key         └ an hour later: a call after its deadline does nothing, and would be too fast
//! ```

#![expect(clippy::float_arithmetic, reason = "rates, for people")]

use super::server::RedisServer;
use super::tasks;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::Limit;
use tidegate_store::Redis;

/// One configuration of `redis-benchmark`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawBenchmark {
    pub(crate) name: &'static str,
    pub(crate) connections: u32,
    /// How many commands a connection sends together (pipelining).
    pub(crate) depth: u32,
    /// The first letter of its keys.
    pub(crate) mark: char,
}

/// A script call of the store, as the slow log reported it.
pub(crate) struct RecordedCall {
    words: Vec<Vec<u8>>,
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

/// The positions of the key and the deadline in a call.
const KEY: usize = 3;
const DEADLINE: usize = 6;
const HOUR_MICROS: u64 = 3_600_000_000;

/// An entry of the slow log: number, time, duration, command, client address, client name.
type Logged = (u64, u64, u64, Vec<Vec<u8>>, String, String);

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

// === impl RecordedCall ===

impl RecordedCall {
    /// Lets the store take once, and reads from the slow log what it sent.
    pub(crate) async fn of(
        server: &RedisServer,
        store: &Arc<Redis>,
        limit: &Arc<Limit>,
    ) -> Result<Self, String> {
        let () = server.ask(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]).await?;
        tasks::used_up(store, limit).await?;
        let () = server.ask(&["CONFIG", "SET", "slowlog-log-slower-than", "-1"]).await?;
        let log: Vec<Logged> = server.ask(&["SLOWLOG", "GET", "-1"]).await?;
        let mut calls = log.into_iter().map(|(_, _, _, words, ..)| Self { words });
        // The health checks of the store have no deadline.
        let call = calls.find(|call| call.word(0) == "EVALSHA" && call.deadline() > Some(0));
        call.ok_or_else(|| "the slow log shows no script call of the store".to_owned())
    }

    fn word(&self, place: usize) -> String {
        let word = self.words.get(place).map(Vec::as_slice).unwrap_or_default();
        String::from_utf8_lossy(word).into_owned()
    }

    fn deadline(&self) -> Option<u64> {
        self.word(DEADLINE).parse().ok()
    }

    /// The same call with another key of the same length, and with a deadline that is not reached.
    fn with_key(&self, key: &str) -> Result<Vec<String>, String> {
        let deadline = self.deadline().unwrap_or(0).saturating_add(HOUR_MICROS).to_string();
        let word = |(place, word): (usize, &Vec<u8>)| {
            let replaced = match place {
                KEY => key.to_owned(),
                DEADLINE => deadline.clone(),
                _ => String::from_utf8(word.clone()).map_err(|error| error.to_string())?,
            };
            let alike = replaced.len() == word.len();
            if alike {
                Ok(replaced)
            } else {
                Err(format!("the replacement {replaced} has another length"))
            }
        };
        self.words.iter().enumerate().map(word).collect()
    }
}

// === impl RawBenchmark ===

impl RawBenchmark {
    /// Sends this many commands, and returns the commands per second.
    pub(crate) async fn rate(
        self,
        recorded: &RecordedCall,
        server: &RedisServer,
        commands: u64,
    ) -> Result<f64, String> {
        self.prove_it_takes(recorded, server).await?;
        let mut command = Command::new("redis-benchmark");
        let [connections, depth] = [self.connections, self.depth].map(|number| number.to_string());
        command.args(["-p", &server.port(), "-c", &connections, "-P", &depth, "-r", KEYS]);
        command.args(["-n", &commands.to_string(), "--csv"]);
        command.args(recorded.with_key(&self.key(NUMBER))?);
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

    /// Sends one call by hand, and checks that it takes: that the reply is neither an error nor "too late".
    async fn prove_it_takes(
        self,
        recorded: &RecordedCall,
        server: &RedisServer,
    ) -> Result<(), String> {
        let words = recorded.with_key(&self.key("000001000000"))?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (verb, _now, passes, _state): (String, u64, u64, Vec<u8>) = server.ask(&words).await?;
        let right = verb.starts_with("take#") && passes == 1;
        if right {
            Ok(())
        } else {
            Err(format!("the recorded call did not take: the reply is {verb} {passes}"))
        }
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

    #[test]
    fn a_call_is_repeated_with_words_of_the_same_length() {
        let words = ["EVALSHA", "sha", "1", "\u{7f}xy}0123456789", "take", "", "1763230000050000"];
        let recorded = RecordedCall { words: words.map(|word| word.as_bytes().to_vec()).into() };
        let again = recorded.with_key("a:__rand_int__").unwrap();
        let expected = ["EVALSHA", "sha", "1", "a:__rand_int__", "take", "", "1763233600050000"];
        assert_eq!(again, expected);
        assert!(recorded.with_key("a:1").is_err());
    }
}
