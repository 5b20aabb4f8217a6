//! The parts of the fault tests: real servers, and proxies between them.
//!
//! ```text
//!   load ──► tidegate, one or several ──► proxy or fake ──► redis-server, alone or six of them
//!            (their clock: shim)                             (their clock: shim)
//! ```
//!
//! Everything listens on a loopback address that only this process uses, and is stopped when it is dropped.

#![allow(dead_code, reason = "each of the two test programs uses a part of this module")]

pub(crate) mod cluster;
pub(crate) mod crowd;
pub(crate) mod disk_fault;
pub(crate) mod fake;
pub(crate) mod grpc;
pub(crate) mod load;
pub(crate) mod memcached;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod redis;
pub(crate) mod resp;
pub(crate) mod shim;
pub(crate) mod tidegate;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time limit for everything that no promise is about; a test that waits this long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The interval between two checks of a condition.
const LOOK: Duration = Duration::from_millis(5);

/// A temporary folder, which is removed when this is dropped.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-faults-{}-{number}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The path of a file in the folder, as text.
    pub(crate) fn text(&self, name: &str) -> String {
        self.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A free address. Its IP address is used by this process only, so that a port stays free while its server is
/// down: outgoing connections come from 127.0.0.1, so they can neither take the port nor connect to
/// themselves there.
pub(crate) fn free_address() -> SocketAddr {
    free_listener().1
}

/// A listener on a free address. It must not be closed and opened again: if another thread starts a process at that
/// moment, the process holds the old one until it executes its program.
pub(crate) fn free_listener() -> (TcpListener, SocketAddr) {
    static PORT: AtomicU16 = AtomicU16::new(20_000);
    let [_, a, b, c] = std::process::id().to_be_bytes();
    loop {
        let port = PORT.fetch_add(1, Ordering::Relaxed);
        let address = SocketAddr::from(([127, a | 128, b, c], port));
        if let Ok(listener) = TcpListener::bind(address) {
            return (listener, address);
        }
    }
}

/// Waits until a condition holds, and returns how long that took. After `limit` the test has failed.
pub(crate) fn within(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        pause(LOOK);
    }
    start.elapsed()
}

/// Waits for a time that is part of a schedule.
pub(crate) fn pause(time: Duration) {
    let (_keep, receiver) = std::sync::mpsc::channel::<()>();
    let _ = receiver.recv_timeout(time);
}

pub(crate) fn pause_until(instant: Instant) {
    pause(instant.saturating_duration_since(Instant::now()));
}

/// Pseudo-random numbers, the same in every run, by Marsaglia's xorshift.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// A number below `end`, or 0.
    pub(crate) const fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        if end == 0 { 0 } else { (self.0 >> 11) % end }
    }
}
