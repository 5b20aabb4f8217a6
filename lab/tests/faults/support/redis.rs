//! A real redis-server on a port of its own, which can be killed, stopped, started again and asked.

use super::load::Sample;
use super::process::Process;
use super::shim::Shim;
use super::{Folder, PATIENCE, free_address, within};
use redis::{Client, Connection, FromRedisValue, Value};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) struct Redis {
    pub(crate) address: SocketAddr,
    folder: Folder,
    arguments: Vec<String>,
    clock: Option<Shim>,
    process: Option<Process>,
}

/// An instant of ours, and what time it was then by the store, in microseconds.
#[derive(Clone, Copy)]
pub(crate) struct StoreTime {
    ours: Instant,
    theirs: u64,
}

impl StoreTime {
    pub(crate) fn micros(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.ours);
        self.theirs + u64::try_from(since.as_micros()).unwrap()
    }

    /// In which window of the store something was decided: the one that ends when the answer says. What it took to
    /// get here is little of a window, so the nearest edge is meant.
    pub(crate) fn window(&self, sample: &Sample, period: Duration) -> u64 {
        let period = u64::try_from(period.as_micros()).unwrap();
        let reset = sample.verdict.reset_ms.unwrap_or_else(|| panic!("{sample:?}")) * 1_000;
        (self.micros(sample.answered()) + reset + period / 2) / period - 1
    }
}

impl Redis {
    pub(crate) fn start() -> Self {
        Self::with(&[], None)
    }

    /// One whose clock can be set.
    pub(crate) fn with_clock(clock: Shim) -> Self {
        Self::with(&[], Some(clock))
    }

    /// One with arguments besides the usual ones.
    pub(crate) fn with(arguments: &[&str], clock: Option<Shim>) -> Self {
        let arguments = arguments.iter().map(|&word| word.to_owned()).collect();
        let folder = Folder::new("redis");
        let mut redis = Self { address: free_address(), folder, arguments, clock, process: None };
        redis.start_again();
        redis
    }

    /// Starts where it was, with nothing of what it knew unless its arguments tell it to keep its data, and returns when it
    /// answers.
    pub(crate) fn start_again(&mut self) {
        let mut command = Command::new("redis-server");
        command
            .args(["--port", &self.address.port().to_string()])
            .args(["--bind", &self.address.ip().to_string()])
            // In a cluster others would think that it lives where its connections come from.
            .args(["--cluster-announce-ip", &self.address.ip().to_string()])
            .args(["--save", "", "--appendonly", "no", "--loglevel", "warning", "--dir"])
            .arg(&self.folder.0)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if let Some(clock) = &self.clock {
            clock.preload(&mut command);
        }
        self.process = Some(Process::spawn(&mut command));
        within(PATIENCE, "redis-server answers", || self.try_to_connect().is_some());
    }

    /// Ends it without a word, and all that it knew.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    pub(crate) fn is_running(&self) -> bool {
        self.process.is_some()
    }

    pub(crate) fn process(&self) -> &Process {
        self.process.as_ref().unwrap()
    }

    pub(crate) fn clock(&self) -> &Shim {
        self.clock.as_ref().unwrap()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    fn try_to_connect(&self) -> Option<Connection> {
        let client = Client::open(self.url()).unwrap();
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(5)).ok()?;
        let pong: Option<String> = redis::cmd("PING").query(&mut connection).ok();
        pong.map(|_| connection)
    }

    pub(crate) fn connect(&self) -> Connection {
        self.try_to_connect().unwrap()
    }

    /// Says something to it, on a connection of its own.
    pub(crate) fn tell<T: FromRedisValue>(&self, words: &[&str]) -> T {
        ask(&mut self.connect(), words)
    }

    /// A way to tell its time later on, without asking.
    pub(crate) fn store_time(&self) -> StoreTime {
        let mut connection = self.connect();
        let asked = Instant::now();
        let (seconds, micros): (u64, u64) = ask(&mut connection, &["TIME"]);
        StoreTime { ours: asked + asked.elapsed() / 2, theirs: seconds * 1_000_000 + micros }
    }

    /// What fixed windows have counted, by key; what servers keep for themselves left out.
    pub(crate) fn counts(&self) -> BTreeMap<Vec<u8>, u64> {
        counts(&mut self.connect())
    }

    /// All that fixed windows have counted.
    pub(crate) fn counted(&self) -> u64 {
        self.counts().values().sum()
    }

    /// The keys that users are counted under; what servers keep for themselves left out.
    pub(crate) fn state_keys(&self) -> Vec<Vec<u8>> {
        state_keys(&mut self.connect())
    }

    /// How often a command was called since it was started.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let stats: String = self.tell(&["INFO", "commandstats"]);
        let name = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&name));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    }
}

pub(crate) fn ask<T: FromRedisValue>(connection: &mut Connection, words: &[&str]) -> T {
    let mut command = redis::cmd(words[0]);
    words[1..].iter().for_each(|word| {
        command.arg(*word);
    });
    command.query(connection).unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

/// A state's key has 14 bytes; those of settled receipts are longer.
fn state_keys(connection: &mut Connection) -> Vec<Vec<u8>> {
    let keys: Vec<Vec<u8>> = ask(connection, &["KEYS", "*"]);
    let is_state = |key: &Vec<u8>| {
        let text = String::from_utf8_lossy(key);
        key.len() == 14 && !text.contains("tidegate") && !text.contains("canary")
    };
    keys.into_iter().filter(is_state).collect()
}

/// A fixed window is written as its number and nine digits of its count.
pub(crate) fn counts(connection: &mut Connection) -> BTreeMap<Vec<u8>, u64> {
    let mut counts = BTreeMap::new();
    for key in state_keys(connection) {
        let value: Value = redis::cmd("GET").arg(&key).query(connection).unwrap();
        // Between the two commands its time may have come.
        let Value::BulkString(value) = value else { continue };
        // What is shorter is the mark of a receipt that was settled.
        let Some(digits) = value.len().checked_sub(9).filter(|number| *number > 0) else {
            continue;
        };
        let count = str::from_utf8(&value[digits..]).unwrap().parse().unwrap();
        counts.insert(key, count);
    }
    counts
}
