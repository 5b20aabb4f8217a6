//! A cluster of three primaries against one server: takes per second, and how much processor time of the servers a take needs.
//! In a cluster only plans of the same slot can share a call, so most takes are calls of their own.

#![expect(clippy::float_arithmetic, reason = "times, for people")]
#![expect(clippy::disallowed_methods, reason = "it waits until the cluster is ready")]

use super::server::{Engine, RedisServer};
use super::tasks::{KEYS, TASKS, TakeLoad};
use super::{connected, limit, settings};
use crate::rig::LoadOptions;
use crate::rig::process::free_address;
use crate::rounds::{Comparison, float, median};
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::Algorithm;
use tidegate_store::RedisSettings;
use tokio::time::sleep;

const CASE: &str = "redis-3-primaries";
const PRIMARIES: usize = 3;
/// The slots of each primary.
const SLOTS: [(&str, &str); PRIMARIES] = [("0", "5460"), ("5461", "10922"), ("10923", "16383")];
const LOOK_EVERY: Duration = Duration::from_millis(50);
const MOST_LOOKS: u32 = 400;

/// Servers, and the rounds of a load on them.
struct Loaded {
    servers: Vec<RedisServer>,
    load: TakeLoad,
    rates: Vec<f64>,
    micros: Vec<f64>,
}

pub(crate) async fn rows(options: &LoadOptions) -> Result<Vec<String>, String> {
    if !format!("{CASE}-cpu").contains(&options.only) {
        return Ok(Vec::new());
    }
    let length = Duration::from_secs(options.seconds);
    let cluster = cluster().await?;
    let urls: Vec<String> = cluster.iter().map(|server| server.address().to_string()).collect();
    let url = format!("redis+cluster://{}", urls.join(","));
    let one = vec![RedisServer::start(Engine::Redis).await?];
    let alone = settings(one.first().ok_or("no server")?.address());
    let far = RedisSettings { timeout: alone.timeout, ..RedisSettings::new(&url) };
    let mut cluster = Loaded::new(cluster, far, length).await?;
    let mut one = Loaded::new(one, alone, length).await?;
    for round in 0..=u32::try_from(options.rounds).unwrap_or(u32::MAX) {
        cluster.run(round).await?;
        one.run(round).await?;
    }
    let peer_name = "one server";
    let rate = Comparison {
        bench: "redis",
        case: CASE,
        ours: median(cluster.rates),
        peer: median(one.rates),
        peer_name,
        unit: "1/s",
    };
    let micros = Comparison {
        bench: "redis",
        case: &format!("{CASE}-cpu"),
        ours: median(cluster.micros),
        peer: median(one.micros),
        peer_name,
        unit: "µs",
    };
    Ok(vec![rate.print(options.json), micros.print(options.json)])
}

impl Loaded {
    async fn new(
        servers: Vec<RedisServer>,
        settings: RedisSettings,
        length: Duration,
    ) -> Result<Self, String> {
        let store = connected(settings).await?;
        let limits = Arc::from([limit(100, Algorithm::TOKEN_BUCKET)?]);
        let load = TakeLoad { store, keys: KEYS, limits, tasks: TASKS, length };
        Ok(Self { servers, load, rates: Vec::new(), micros: Vec::new() })
    }

    /// One round. The first one is for warming up.
    async fn run(&mut self, round: u32) -> Result<(), String> {
        let before = self.cpu()?;
        let tally = self.load.run(round).await?;
        let cpu = self.cpu()?.saturating_sub(before);
        if round > 0 {
            self.rates.push(tally.rate);
            self.micros.push(cpu.as_secs_f64() * 1e6 / float(tally.passed));
        }
        Ok(())
    }

    /// The processor time of all servers.
    fn cpu(&self) -> Result<Duration, String> {
        self.servers.iter().map(RedisServer::cpu).sum()
    }
}

/// A cluster that is ready.
async fn cluster() -> Result<Vec<RedisServer>, String> {
    let mut servers = Vec::new();
    for _ in 0..PRIMARIES {
        let bus = free_address().map_err(|error| error.to_string())?.port().to_string();
        let arguments = ["--cluster-enabled", "yes", "--cluster-port", &bus];
        let server = RedisServer::start_with(Engine::Redis, &arguments).await?;
        servers.push((server, bus));
    }
    let (first, bus) = servers.first().ok_or("no server")?;
    let (ip, port) = (first.address().ip().to_string(), first.port());
    for ((server, _), (from, to)) in servers.iter().zip(SLOTS) {
        let () = server.ask(&["CLUSTER", "ADDSLOTSRANGE", from, to]).await?;
        let () = server.ask(&["CLUSTER", "MEET", &ip, &port, bus]).await?;
    }
    for (server, _) in &servers {
        until_ok(server).await?;
    }
    Ok(servers.into_iter().map(|(server, _)| server).collect())
}

async fn until_ok(server: &RedisServer) -> Result<(), String> {
    for _ in 0..MOST_LOOKS {
        let info: String = server.ask(&["CLUSTER", "INFO"]).await?;
        if info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3") {
            return Ok(());
        }
        sleep(LOOK_EVERY).await;
    }
    Err("the cluster does not become ready".to_owned())
}
