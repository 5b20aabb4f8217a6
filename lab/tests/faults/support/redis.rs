//! A real redis-server on its own port, which can be killed, stopped, restarted and queried.

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

/// An instant of this process, and the store's time at that instant, in microseconds.
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

    /// The window of the store in which a request was decided: the one that ends at the reset time of the
    /// answer. The answer takes little time compared with a window, so the nearest window edge is right.
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

    /// A Redis whose clock can be set.
    pub(crate) fn with_clock(clock: Shim) -> Self {
        Self::with(&[], Some(clock))
    }

    /// A Redis with additional arguments.
    pub(crate) fn with(arguments: &[&str], clock: Option<Shim>) -> Self {
        let arguments = arguments.iter().map(|&word| word.to_owned()).collect();
        let folder = Folder::new("redis");
        let mut redis = Self { address: free_address(), folder, arguments, clock, process: None };
        redis.start_again();
        redis
    }

    /// Starts it at the same address, and returns when it answers. It has no data, unless its arguments make
    /// it persistent.
    pub(crate) fn start_again(&mut self) {
        let mut command = Command::new("redis-server");
        command
            .args(["--port", &self.address.port().to_string()])
            .args(["--bind", &self.address.ip().to_string()])
            // Otherwise the nodes of a cluster would take the source address of its connections for its
            // address.
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

    /// Kills it. Its data is lost unless it is persistent.
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

    /// Runs a command on a new connection.
    pub(crate) fn tell<T: FromRedisValue>(&self, words: &[&str]) -> T {
        ask(&mut self.connect(), words)
    }

    /// A conversion from this process's instants to the store's time.
    pub(crate) fn store_time(&self) -> StoreTime {
        let mut connection = self.connect();
        let asked = Instant::now();
        let (seconds, micros): (u64, u64) = ask(&mut connection, &["TIME"]);
        StoreTime { ours: asked + asked.elapsed() / 2, theirs: seconds * 1_000_000 + micros }
    }

    /// The counts of all fixed windows, by key, without tidegate's own keys.
    pub(crate) fn counts(&self) -> BTreeMap<Vec<u8>, u64> {
        counts(&mut self.connect())
    }

    /// The sum of the counts of all fixed windows.
    pub(crate) fn counted(&self) -> u64 {
        self.counts().values().sum()
    }

    /// The keys of states, without tidegate's own keys.
    pub(crate) fn state_keys(&self) -> Vec<Vec<u8>> {
        state_keys(&mut self.connect())
    }

    /// How often a command was called since the start.
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

/// The key of a state has 14 bytes; those of settled receipts are longer.
fn state_keys(connection: &mut Connection) -> Vec<Vec<u8>> {
    let keys: Vec<Vec<u8>> = ask(connection, &["KEYS", "*"]);
    let is_state = |key: &Vec<u8>| {
        let text = String::from_utf8_lossy(key);
        key.len() == 14 && !text.contains("tidegate") && !text.contains("canary")
    };
    keys.into_iter().filter(is_state).collect()
}

/// The counts of all fixed windows. A state consists of the window's number and nine digits of the count.
pub(crate) fn counts(connection: &mut Connection) -> BTreeMap<Vec<u8>, u64> {
    let mut counts = BTreeMap::new();
    for key in state_keys(connection) {
        let value: Value = redis::cmd("GET").arg(&key).query(connection).unwrap();
        // The key may have expired between the two commands.
        let Value::BulkString(value) = value else { continue };
        // A shorter value marks a settled receipt.
        let Some(digits) = value.len().checked_sub(9).filter(|number| *number > 0) else {
            continue;
        };
        let count = str::from_utf8(&value[digits..]).unwrap().parse().unwrap();
        counts.insert(key, count);
    }
    counts
}
