//! Failover with sentinels: when another server becomes the primary, the store goes on with it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test fails loudly"
)]

use crate::support::{address, sentinel as fake, settings};

use address::{look_again, own_ip, own_port};
use fake::FakeSentinel;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, StateId, Take};
use tidegate_store::{Redis, Secret, Store, StoreError};

/// Timeout of every step on a busy machine. A sentinel that finds itself too slow (TILT mode) does nothing for half a minute.
const PATIENCE: Duration = Duration::from_secs(180);

/// Server processes, which are killed at the end of the test.
struct Processes {
    folder: PathBuf,
    running: Vec<Child>,
}

impl Processes {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-sentinel-{}-{number}", std::process::id());
        Self { folder: std::env::temp_dir().join(name), running: vec![] }
    }

    fn start(&mut self, port: u16, arguments: &[&str]) {
        let folder = self.folder.join(port.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        let mut command = Command::new("redis-server");
        let child = command
            .args(arguments)
            .args(["--bind", &own_ip().to_string(), "--port", &port.to_string(), "--dir"])
            .arg(&folder)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        self.running.push(child);
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Waits until a server's reply to a command contains a text.
async fn until_reply(port: u16, command: &[&str], wanted: &str) {
    let client = redis::Client::open(format!("redis://{}:{port}/", own_ip())).unwrap();
    let asking = async {
        loop {
            if let Ok(mut connection) = client.get_multiplexed_async_connection().await {
                let answer: redis::RedisResult<redis::Value> =
                    redis::cmd(command[0]).arg(&command[1..]).query_async(&mut connection).await;
                if format!("{answer:?}").contains(wanted) {
                    return;
                }
            }
            look_again().await;
        }
    };
    tokio::time::timeout(PATIENCE, asking)
        .await
        .unwrap_or_else(|_| panic!("{command:?}: {wanted}"));
}

#[tokio::test]
async fn the_store_goes_on_with_the_primary_that_sentinels_promote() {
    let mut processes = Processes::new();
    let [primary, replica, sentinel] = [(); 3].map(|()| own_port());
    processes.start(primary, &["--save", ""]);
    let ip = own_ip().to_string();
    let of = ["--replicaof", &ip, &primary.to_string(), "--replica-announce-ip", &ip, "--save", ""];
    processes.start(replica, &[&of[..], &["--repl-diskless-sync-delay", "0"]].concat());
    until_reply(replica, &["INFO", "replication"], "master_link_status:up").await;
    let config = processes.folder.join("sentinel.conf");
    let text = format!(
        "sentinel monitor ours {ip} {primary} 1\nsentinel down-after-milliseconds ours 3000\nsentinel failover-timeout ours 2000\n"
    );
    std::fs::write(&config, text).unwrap();
    processes.start(sentinel, &[config.to_str().unwrap(), "--sentinel"]);
    until_reply(sentinel, &["SENTINEL", "replicas", "ours"], &replica.to_string()).await;

    let secret = Secret::new([7; 32]);
    let settings =
        |name: &str| settings::redis(&format!("redis+sentinel://{ip}:1,{ip}:{sentinel}/{name}"));
    let unknown = Redis::open(&settings("theirs"), &secret).await.unwrap_err();
    assert!(unknown.to_string().contains("no primary called `theirs`"), "{unknown}");
    let store = Redis::connect(&settings("ours"), &secret).await.unwrap();
    let limit = Limit::new(1_000, settings::LONG, Algorithm::FIXED_WINDOW).unwrap();
    let plan = || [Plan::new(Take::new(StateId(1), &limit, Cost::ONE), Span::ZERO).unwrap()];
    let left = |answers: Vec<Result<tidegate_store::Answer, StoreError>>| {
        answers[0].as_ref().map(|answer| answer.done.decisions[0].remaining).ok()
    };
    assert_eq!(left(store.take(&plan()).await), Some(999));
    // The count has reached the replica.
    until_reply(replica, &["DBSIZE"], "int(5)").await;
    processes.running[0].kill().unwrap();
    processes.running[0].wait().unwrap();
    let goes_on = async {
        loop {
            if let Some(left) = left(store.take(&plan()).await) {
                return left;
            }
            look_again().await;
        }
    };
    let left = tokio::time::timeout(PATIENCE, goes_on).await.unwrap();
    assert_eq!(left, 998, "the new primary has the count");
}

/// Two independent servers, and two fake sentinels that name the first server as the primary.
struct Stage {
    _processes: Processes,
    ports: [u16; 2],
    sentinels: [FakeSentinel; 2],
    store: Redis,
    /// The id of the next state.
    next: AtomicU64,
}

impl Stage {
    async fn start() -> Self {
        let mut processes = Processes::new();
        let ports = [(); 2].map(|()| own_port());
        for port in ports {
            processes.start(port, &["--save", ""]);
            until_reply(port, &["PING"], "PONG").await;
        }
        let sentinels = [(); 2].map(|()| FakeSentinel::start(at(ports[0])));
        let [one, other] = sentinels.each_ref().map(|sentinel| sentinel.address);
        let settings = settings::redis(&format!("redis+sentinel://{one},{other}/ours"));
        let store = Redis::connect(&settings, &Secret::new([7; 32])).await.unwrap();
        Self { _processes: processes, ports, sentinels, store, next: AtomicU64::new(1) }
    }

    /// Takes once from a new state, and returns whether this server has counted it.
    async fn takes_at(&self, number: usize) -> bool {
        let limit = Limit::new(1_000, settings::LONG, Algorithm::FIXED_WINDOW).unwrap();
        let state = StateId(self.next.fetch_add(1, Ordering::Relaxed).into());
        let plan = [Plan::new(vec![Take::new(state, &limit, Cost::ONE)], Span::ZERO).unwrap()];
        let client = redis::Client::open(format!("redis://{}/", at(self.ports[number]))).unwrap();
        let mut there = client.get_multiplexed_async_connection().await.unwrap();
        let keys = async |there: &mut _| -> HashSet<Vec<u8>> {
            let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query_async(there).await.unwrap();
            let ours = |key: &Vec<u8>| {
                let text = String::from_utf8_lossy(key);
                !text.contains("tidegate") && !text.contains("canary")
            };
            keys.into_iter().filter(ours).collect()
        };
        let before = keys(&mut there).await;
        let _ = self.store.take(&plan).await;
        keys(&mut there).await.difference(&before).count() > 0
    }

    /// Takes until this server counts it.
    async fn goes_to(&self, number: usize, meanwhile: impl Fn()) {
        let going = async {
            while !self.takes_at(number).await {
                meanwhile();
                look_again().await;
            }
        };
        let went = tokio::time::timeout(PATIENCE, going).await;
        assert!(went.is_ok(), "the store never counts on server {number}");
    }
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::new(own_ip().into(), port)
}

/// Sentinels name a new primary some time after they have promoted it. The store polls the server itself as soon as it is
/// selected.
#[tokio::test]
async fn a_selected_server_that_is_primary_is_used_before_sentinels_name_it() {
    let stage = Stage::start().await;
    assert!(stage.takes_at(0).await);
    let [ip, port] = [own_ip().to_string(), stage.ports[1].to_string()];
    let text = format!("slave {ip}:{port} {ip} {port} @ ours {ip} {}", stage.ports[0]);
    stage.goes_to(1, || stage.sentinels[1].publish("+selected-slave", &text)).await;
}

/// The story: a sentinel that promotes a server also closes the connections of its clients (`CLIENT KILL`). The store polled the
/// role over one connection, lost it at that moment, and went on with the old primary until a sentinel named the new one.
#[tokio::test]
async fn a_promotion_that_closes_connections_is_noticed() {
    let stage = Stage::start().await;
    let ([ip, old], new) = ([own_ip().to_string(), stage.ports[0].to_string()], stage.ports[1]);
    until_reply(new, &["REPLICAOF", &ip, &old], "Ok(").await;
    until_reply(new, &["INFO", "replication"], "master_link_status:up").await;
    let text = format!("slave {ip}:{new} {ip} {new} @ ours {ip} {old}");
    // The store queries this sentinel after it has subscribed to it. The event is published once.
    while stage.sentinels[1].queries() == 0 {
        look_again().await;
    }
    stage.sentinels[1].publish("+selected-slave", &text);
    until_reply(new, &["INFO", "commandstats"], "cmdstat_role").await;
    let client = redis::Client::open(format!("redis://{}/", at(new))).unwrap();
    let mut there = client.get_multiplexed_async_connection().await.unwrap();
    let mut promote = redis::pipe();
    promote.atomic().cmd("REPLICAOF").arg("NO").arg("ONE");
    promote.cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal");
    let _: redis::Value = promote.query_async(&mut there).await.unwrap();
    stage.goes_to(1, || ()).await;
}

/// A sentinel that has not heard of a failover yet still names the old primary.
#[tokio::test]
async fn of_two_sentinels_the_one_with_the_higher_epoch_wins() {
    let stage = Stage::start().await;
    assert!(stage.takes_at(0).await);
    let [behind, ahead] = &stage.sentinels;
    ahead.name(2, at(stage.ports[1]));
    stage.goes_to(1, || ahead.publish("+switch-master", "ours")).await;
    // The other sentinel is queried, and its lower epoch is ignored.
    let queries = behind.queries();
    while behind.queries() < queries + 3 {
        behind.publish("+switch-master", "ours");
        assert!(stage.takes_at(1).await);
    }
    behind.name(3, at(stage.ports[0]));
    stage.goes_to(0, || behind.publish("+switch-master", "ours")).await;
}
