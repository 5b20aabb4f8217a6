//! Sentinels promote a replica in a planned failover under load. For some seconds the old primary still
//! accepts writes, and what is counted there is lost. So the servers switch to the new primary as soon as it
//! is promoted, and not only when the sentinels name it.

use crate::support::load::Load;
use crate::support::process::Process;
use crate::support::redis::{Redis, ask};
use crate::support::tidegate::{Deployment, Tidegate};
use crate::support::{Folder, PATIENCE, free_address, within};
use redis::{Client, Connection, Value};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const LIMIT: u64 = 1_000;
const RULE: &str = "{ name: all, key: [], limits: [{ rate: 1000/day, algorithm: fixed_window }] }";
const PER_SECOND: u32 = 250;
const SECOND: Duration = Duration::from_secs(1);
/// The traffic of this time may pass twice.
const MOST: Duration = Duration::from_millis(300);

/// A primary, its replica, and three sentinels.
struct SentinelStage {
    _primary: Redis,
    replica: Redis,
    sentinels: Vec<(SocketAddr, Process)>,
    _folder: Folder,
}

impl SentinelStage {
    fn new() -> Self {
        let primary = Redis::start();
        let (ip, port) = (primary.address.ip().to_string(), primary.address.port().to_string());
        let replica = Redis::with(
            &[
                "--replicaof",
                &ip,
                &port,
                "--replica-announce-ip",
                &ip,
                "--repl-diskless-sync-delay",
                "0",
            ],
            None,
        );
        within(PATIENCE, "the replica has caught up", || {
            let told: String = replica.tell(&["INFO", "replication"]);
            told.contains("master_link_status:up")
        });
        let folder = Folder::new("sentinels");
        let sentinel = |number: u32| {
            let (address, config) = (free_address(), folder.join(&format!("{number}.conf")));
            let told = format!(
                "bind {}\nport {}\nsentinel announce-ip {}\nsentinel monitor ours {ip} {port} 2\nsentinel down-after-milliseconds ours 5000\n",
                address.ip(),
                address.port(),
                address.ip()
            );
            std::fs::write(&config, told).unwrap();
            let mut command = Command::new("redis-server");
            command.arg(&config).arg("--sentinel").stdin(Stdio::null()).stdout(Stdio::null());
            (address, Process::spawn(&mut command))
        };
        let sentinels: Vec<_> = (0..3).map(sentinel).collect();
        let stage = Self { _primary: primary, replica, sentinels, _folder: folder };
        within(PATIENCE, "the sentinels know all servers", || stage.is_whole());
        stage
    }

    fn is_whole(&self) -> bool {
        self.sentinels.iter().all(|(address, _)| {
            let Some(mut sentinel) = connect(*address) else { return false };
            let known: Value = ask(&mut sentinel, &["SENTINEL", "MASTER", "ours"]);
            let known: std::collections::HashMap<String, String> =
                redis::from_redis_value(known).unwrap();
            known["num-slaves"] == "1" && known["num-other-sentinels"] == "2"
        })
    }

    fn url(&self) -> String {
        let places: Vec<_> = self.sentinels.iter().map(|(at, _)| at.to_string()).collect();
        format!("redis+sentinel://{}/ours", places.join(","))
    }

    /// When the replica reports itself as the primary, and when a sentinel first names it. Both are polled
    /// continuously.
    fn watch(&self) -> impl FnOnce() -> (Instant, Instant) + use<> {
        let replica = self.replica.address;
        let promoted = thread::spawn(move || {
            // A new connection each time, because a Redis that is promoted closes those of its clients.
            let leads = || {
                let role: Value = redis::cmd("ROLE").query(&mut connect(replica)?).ok()?;
                Some(!format!("{role:?}").contains("slave"))
            };
            until(|| leads() == Some(true))
        });
        let port = self.replica.address.port();
        let mut sentinels: Vec<Connection> =
            self.sentinels.iter().map(|(address, _)| connect(*address).unwrap()).collect();
        let named = thread::spawn(move || {
            let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "ours"];
            until(|| {
                sentinels.iter_mut().any(|sentinel| {
                    let (_, named): (String, u16) = ask(sentinel, &words);
                    named == port
                })
            })
        });
        move || (promoted.join().unwrap(), named.join().unwrap())
    }
}

fn connect(address: SocketAddr) -> Option<Connection> {
    Client::open(format!("redis://{address}/")).unwrap().get_connection().ok()
}

/// The instant at which a condition first held.
fn until(condition: impl FnMut() -> bool) -> Instant {
    within(PATIENCE, "the replica is the primary", condition);
    Instant::now()
}

#[test]
fn a_planned_failover_admits_little_traffic_twice() {
    for run in 1..=3 {
        play(run);
    }
}

fn play(run: u32) {
    let stage = SentinelStage::new();
    let deployment = Deployment::new(RULE);
    let mut servers: Vec<_> = (0..3).map(|_| deployment.server(&stage.url(), &[])).collect();
    servers.iter().for_each(Tidegate::until_ready);
    let load = Load {
        servers: servers.iter().map(|server| server.http).collect(),
        per_second: PER_SECOND,
        connections: 24,
        length: 12 * SECOND,
    };
    let load = load.start(|_| "\"ip\":\"203.0.113.7\"".to_owned());
    load.reaches(SECOND);
    let watched = stage.watch();
    let mut sentinel = connect(stage.sentinels[0].0).unwrap();
    let () = ask(&mut sentinel, &["SENTINEL", "FAILOVER", "ours"]);
    let samples = load.finish();
    let (promoted, named) = watched();

    let admitted = samples.filter(|sample| sample.verdict.status == 200).len();
    let excess = u64::try_from(admitted).unwrap().saturating_sub(LIMIT);
    let of_sentinels = u64::try_from(samples.between(promoted, named).len()).unwrap();
    println!(
        "failover {run}: {}\n  the sentinels named it {:?} after its promotion; {excess} more than {LIMIT} passed, {of_sentinels} were due in that time",
        samples.summary(),
        named.saturating_duration_since(promoted)
    );
    samples.assert_all_answered();
    assert!(
        samples.len() > usize::try_from(2 * LIMIT).unwrap(),
        "the load was too small to show anything"
    );
    let most = u64::from(PER_SECOND) * u64::try_from(MOST.as_millis()).unwrap() / 1_000;
    assert!(excess <= most, "{excess} > {most}");
    servers.iter_mut().for_each(Tidegate::assert_healthy);
}
