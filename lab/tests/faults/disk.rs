//! The disk of a durable store is full, fails, hangs or is away while callers ask. Every caller gets an answer,
//! and no later than before; `/ready` says what is wrong; and when the disk works again, everything is on it.

use crate::QUIET;
use crate::support::disk_fault::{DiskFault, DiskThread};
use crate::support::load::{Http, Load, Samples};
use crate::support::tidegate::{DecidedBy, Deployment, Tidegate};
use crate::support::{PATIENCE, pause_until, within};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A window of 400 days.
const RULE: &str = "{ name: all, key: [ip], limits: [1000000/9600h] }";
const SECOND: Duration = Duration::from_secs(1);
/// How long the disk works, and then does not, again and again.
const TURN: Duration = Duration::from_secs(3);
const TURNS: u32 = 3;

fn client(number: u32) -> String {
    format!(r#""ip":"198.51.{}.{}""#, number / 250 % 100, number % 250)
}

/// Lets the disk fail several times under load. `fails` begins a fault, which ends when its result is dropped; `words` are in
/// the reason for which `/ready` is degraded.
fn disk_fails<F>(name: &str, words: &str, mut fails: impl FnMut(&Tidegate) -> F) {
    let deployment = Deployment::new(RULE);
    let mut server = deployment.server("file:", &[]);
    let load = Load {
        servers: vec![server.http],
        per_second: 2_000,
        connections: 32,
        length: TURN * (2 * TURNS + 1),
    };
    let load = load.start(client);
    let start = load.start;
    let (mut good, mut bad) = (vec![], vec![]);
    for turn in 0..TURNS {
        let from = start + 2 * turn * TURN + SECOND;
        pause_until(from + TURN - SECOND);
        server.until_ready();
        good.push((from, Instant::now()));
        let fault = fails(&server);
        let began = Instant::now();
        server.until_degraded(words);
        pause_until(began + TURN - SECOND / 2);
        bad.push((began, Instant::now()));
        drop(fault);
    }
    let samples = load.finish();
    let of = |spans: &[(Instant, Instant)]| {
        let all = spans.iter().flat_map(|(from, to)| samples.between(*from, *to).0);
        Samples(all.collect())
    };
    let (good, bad) = (of(&good), of(&bad));
    println!("{name}: {}; before: {}", bad.summary(), good.summary());
    samples.assert_all_answered();
    assert_eq!(samples.by(DecidedBy::Fallback), 0);
    if QUIET {
        assert!(bad.quantile(990) * 2 <= good.quantile(990) * 3, "{:?}", bad.quantile(990));
    }
    server.until_ready();
    server.assert_healthy();
    assert_remembers(&deployment, server);
}

/// Whether what is counted now is there after `kill -9`.
fn assert_remembers(deployment: &Deployment, server: Tidegate) {
    let remaining = |server: &Tidegate| -> u64 {
        let body = r#"{"attributes":{"ip":"203.0.113.7"}}"#;
        let (_, text) = Http::connect(server.http).post("/v1/check", body);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        json["limits"][0]["remaining"].as_u64().unwrap()
    };
    let before = remaining(&server);
    let writes = || server.metric("tidegate_file_writes_total");
    let counted = writes();
    within(PATIENCE, "two more writes", || writes() >= counted + 2);
    let again = deployment.restart(server, "file:", &[]);
    assert_eq!(remaining(&again), before - 1);
}

#[test]
fn a_full_disk() {
    disk_fails("disk full", "No space left on device", |server| {
        DiskFault::begin(server, DiskThread::Writes, "write,openat", "error=ENOSPC")
    });
}

#[test]
fn a_read_only_disk() {
    disk_fails("disk read-only", "Read-only file system", |server| {
        DiskFault::begin(server, DiskThread::Writes, "write,openat,unlink", "error=EROFS")
    });
}

#[test]
fn a_quota_is_used_up() {
    disk_fails("quota used up", "Disk quota exceeded", |server| {
        DiskFault::begin(server, DiskThread::Writes, "write", "error=EDQUOT")
    });
}

#[test]
fn writes_fail() {
    disk_fails("writes fail", "Input/output error", |server| {
        DiskFault::begin(server, DiskThread::Writes, "write", "error=EIO")
    });
}

#[test]
fn syncs_fail() {
    disk_fails("syncs fail", "Input/output error", |server| {
        DiskFault::begin(server, DiskThread::Syncs, "fdatasync,fsync", "error=EIO")
    });
}

#[test]
fn writes_take_seconds() {
    disk_fails("writes take seconds", "the disk", |server| {
        DiskFault::begin(server, DiskThread::Writes, "write", "delay_enter=2s")
    });
}

#[test]
fn syncs_take_seconds() {
    disk_fails("syncs take seconds", "the disk", |server| {
        DiskFault::begin(server, DiskThread::Syncs, "fdatasync,fsync", "delay_enter=2s")
    });
}

#[test]
fn the_directory_is_away() {
    disk_fails("directory away", "No such file or directory", |server| {
        let folder = server.data();
        let (states, away) = (folder.join("states"), folder.join("away"));
        std::fs::rename(&states, &away).unwrap();
        Away { states, away }
    });
}

/// A directory that was moved, until this is dropped.
struct Away {
    states: PathBuf,
    away: PathBuf,
}

impl Drop for Away {
    fn drop(&mut self) {
        std::fs::rename(&self.away, &self.states).unwrap();
    }
}
