//! The Redis server that tidegate and the peer share, and its command statistics.

#![expect(clippy::float_arithmetic, reason = "times, for people")]

use crate::rig::process::{self, Process};
use crate::root;
use crate::rounds::float;
use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, FromRedisValue};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A program that the store can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    Redis,
    Valkey,
}

/// A Redis server on a free port, and a connection for the lab's own commands.
pub(crate) struct RedisServer {
    process: Process,
    connection: MultiplexedConnection,
}

/// How often Redis ran the commands of the store and of the peer since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CommandCounts {
    /// Calls of `EVALSHA` and `FCALL`.
    pub(crate) calls: u64,
    /// Calls that returned an error.
    pub(crate) failed: u64,
    /// For how long Redis worked on them, in microseconds.
    pub(crate) micros: u64,
    /// Calls of `SET` and `HSET`, of which every take makes one.
    pub(crate) sets: u64,
}

impl RedisServer {
    pub(crate) async fn start(engine: Engine) -> Result<Self, String> {
        Self::start_with(engine, &[]).await
    }

    pub(crate) async fn start_with(engine: Engine, arguments: &[&str]) -> Result<Self, String> {
        let program = engine.program();
        let with_name = |error: String| format!("{}: {error}", program.display());
        // Several servers may run at a time. Relaxed: the numbers only have to differ.
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let name = format!("redis-store-{}", STARTED.fetch_add(1, Ordering::Relaxed));
        let process = Process::spawn(&name, |at, folder| {
            let mut command = process::redis_as(&program, at, folder);
            command.args(arguments);
            Ok(command)
        });
        let mut process = process.map_err(|error| with_name(error.to_string()))?;
        let mut connection = None;
        let connect = async |at| {
            connection = Some(connect(&url(at)).await.map_err(|error| error.to_string())?);
            Ok(())
        };
        process.wait_until_answering(connect).await.map_err(with_name)?;
        let connection =
            connection.ok_or_else(|| with_name("there is no connection".to_owned()))?;
        Ok(Self { process, connection })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.process.address
    }

    /// The processor time of the server.
    pub(crate) fn cpu(&self) -> Result<Duration, String> {
        Ok(self.process.group().map_err(|error| error.to_string())?.cpu())
    }

    pub(crate) fn port(&self) -> String {
        self.process.address.port().to_string()
    }

    /// The reply to one command.
    pub(crate) async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> Result<T, String> {
        let mut command = Cmd::new();
        for word in words {
            command.arg(word);
        }
        let reply = command.query_async(&mut self.connection.clone()).await;
        reply.map_err(|error| format!("{}: {error}", words.join(" ")))
    }

    pub(crate) async fn counts(&self) -> Result<CommandCounts, String> {
        let info: String = self.ask(&["INFO", "commandstats"]).await?;
        Ok(CommandCounts::read(&info))
    }
}

pub(crate) fn url(at: SocketAddr) -> String {
    format!("redis://{at}/")
}

async fn connect(url: &str) -> redis::RedisResult<MultiplexedConnection> {
    Client::open(url)?.get_multiplexed_async_connection().await
}

// === impl Engine ===

impl Engine {
    /// The first part of the names of its cases.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Valkey => "valkey",
        }
    }

    /// Its program. That of Valkey is where `make deps` puts it.
    pub(crate) fn program(self) -> PathBuf {
        match self {
            Self::Redis => PathBuf::from("redis-server"),
            Self::Valkey => root().join("target/valkey/valkey-server"),
        }
    }
}

// === impl CommandCounts ===

impl CommandCounts {
    /// Parses lines like `cmdstat_set:calls=3,usec=9,usec_per_call=3.00,rejected_calls=0,failed_calls=0`. A
    /// command that is missing was never called.
    fn read(info: &str) -> Self {
        let number = |command: &str, name: &str| {
            let of = |line: &str| {
                let values = line.strip_prefix("cmdstat_")?.strip_prefix(command)?;
                let mut values = values.strip_prefix(':')?.split(',');
                values.find_map(|value| value.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
            };
            info.lines().find_map(of).unwrap_or(0)
        };
        let both = |commands: [&str; 2], name: &str| {
            commands.into_iter().map(|command| number(command, name)).fold(0, u64::saturating_add)
        };
        let calls = ["evalsha", "fcall"];
        Self {
            calls: both(calls, "calls"),
            failed: both(calls, "failed_calls"),
            micros: both(calls, "usec"),
            sets: both(["set", "hset"], "calls"),
        }
    }

    /// The difference to an earlier count.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            calls: self.calls.saturating_sub(before.calls),
            failed: self.failed.saturating_sub(before.failed),
            micros: self.micros.saturating_sub(before.micros),
            sets: self.sets.saturating_sub(before.sets),
        }
    }

    /// How long each of `many` takes since an earlier count took Redis, in microseconds. Fails unless all of them took what they
    /// asked for. A take that passes writes its state; one that is refused, late or wrong does not. The store's health checks
    /// write too, hence "at least".
    pub(crate) fn micros_per_take(self, before: Self, many: u64) -> Result<f64, String> {
        let Self { calls, failed, micros, sets } = self.since(before);
        if failed == 0 && sets >= many {
            return Ok(float(micros) / float(many));
        }
        Err(format!(
            "for {many} takes Redis counted {calls} calls, {failed} errors and {sets} writes"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Commandstats\r\n\
        cmdstat_setex:calls=9,usec=9,usec_per_call=1.00,rejected_calls=9,failed_calls=9\r\n\
        cmdstat_evalsha:calls=12,usec=500,usec_per_call=41.67,rejected_calls=3,failed_calls=1\r\n\
        cmdstat_fcall:calls=3,usec=90,usec_per_call=30.0,rejected_calls=0,failed_calls=0\r\n\
        cmdstat_set:calls=11,usec=20,usec_per_call=1.82,rejected_calls=0,failed_calls=0\r\n";

    #[test]
    fn a_command_is_not_confused_with_one_whose_name_begins_alike() {
        assert_eq!(
            CommandCounts::read(INFO),
            CommandCounts { calls: 15, failed: 1, micros: 590, sets: 11 }
        );
        assert_eq!(
            CommandCounts::read(""),
            CommandCounts { calls: 0, failed: 0, micros: 0, sets: 0 }
        );
    }

    #[test]
    fn a_round_with_an_error_or_a_take_that_wrote_nothing_fails() {
        let before = CommandCounts { calls: 5, failed: 1, micros: 100, sets: 5 };
        let after = |failed, sets| {
            CommandCounts { calls: 6, failed, micros: 350, sets }.micros_per_take(before, 10)
        };
        assert_eq!(after(1, 15), Ok(25.0));
        assert_eq!(after(1, 17), Ok(25.0));
        assert!(after(2, 15).is_err() && after(1, 14).is_err());
    }
}
