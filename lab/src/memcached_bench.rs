//! The store on memcached against the bare command that it uses, and against the store on Redis.
//!
//! ```text
//! ours  64 tasks ─► Memcached::take ─► one connection ─► `ma`: add, read ─► complete answers, computed by the core
//! bare  64 tasks ────────────────────► one connection ─► `ma`: add, read ─► the line of the reply, discarded
//! ```
//!
//! All clients run on one thread. The servers share the machine with them, and run all the time.

use crate::redis_bench::server::{Engine, RedisServer};
use crate::redis_bench::tasks::{self, KEYS, TASKS, TakeLoad};
use crate::redis_bench::{connected, limit, settings};
use crate::rig::process::Process;
use crate::rig::template::Keys;
use crate::rig::{self, LoadOptions, install};
use crate::rounds::{Comparison, median, write_section};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::{Algorithm, Limit, Span};
use tidegate_store::{Clock, Memcached, MemcachedSettings, Redis, Secret};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

/// One row: a kind of limit of so many a day, and how many keys there are.
struct MemcachedCase {
    name: &'static str,
    algorithm: Algorithm,
    amount: u64,
    keys: NonZeroU32,
}

const ONE: NonZeroU32 = NonZeroU32::MIN;
const WIDE: u64 = 1_000_000_000;

const fn case(
    name: &'static str,
    algorithm: Algorithm,
    amount: u64,
    keys: NonZeroU32,
) -> MemcachedCase {
    MemcachedCase { name, algorithm, amount, keys }
}

const CASES: [MemcachedCase; 7] = [
    case("memcached-cold-fixed", Algorithm::FIXED_WINDOW, 100, KEYS),
    case("memcached-cold-bucket", Algorithm::TOKEN_BUCKET, 100, KEYS),
    case("memcached-cold-weighted", Algorithm::SLIDING_WEIGHTED, 100, KEYS),
    case("memcached-drained-bucket", Algorithm::TOKEN_BUCKET, WIDE, KEYS),
    case("memcached-hot-fixed", Algorithm::FIXED_WINDOW, WIDE, ONE),
    case("memcached-hot-bucket", Algorithm::TOKEN_BUCKET, WIDE, ONE),
    case("memcached-hot-weighted", Algorithm::SLIDING_WEIGHTED, WIDE, ONE),
];
const BARE: &str = "bare ma";
const REDIS: &str = "tidegate on Redis";
/// Commands that are sent in one write.
const BATCH: usize = 128;

const TITLE: &str = "The store on memcached";
const TEXT: &str = "\
64 concurrent tasks take 1 each, again and again, on one thread; nothing is refused, and any error ends the run. `cold` is a million keys
in random order, `hot` a single one. `drained` is a million buckets in which nothing is in use when they are used again, so that most
decisions need a second command. The first peer sends the bare command that adds (`ma key N… J… D1 T… v`) for the same keys from 64
tasks over one connection, and discards the replies; so it needs one command where `weighted` needs two. The second peer is the store on
Redis with the same limit.";

pub(crate) fn run(options: &LoadOptions) -> Result<(), String> {
    install::provide("memcached", "memcached")?;
    install::provide("redis-server", "redis-server")?;
    let rows = rig::run(async {
        let mut rows = Vec::new();
        for case in CASES.iter().filter(|case| case.name.contains(&options.only)) {
            rows.extend(measured(case, options).await?);
        }
        Ok(rows)
    })?;
    if options.write { write_section(TITLE, TEXT, &rows) } else { Ok(()) }
}

/// Rounds of the three take turns, after one for warming up.
async fn measured(case: &MemcachedCase, options: &LoadOptions) -> Result<Vec<String>, String> {
    let (memcached, redis) = (start().await?, RedisServer::start(Engine::Redis).await?);
    let url = format!("memcached://{}", memcached.address);
    let patient = MemcachedSettings { timeout: Span::from_secs(1), ..MemcachedSettings::new(&url) };
    let store = Memcached::connect(&patient, &Secret::new([7; 32]), Clock::system()).await;
    let store = Arc::new(store.map_err(|error| error.to_string())?);
    let limits: Arc<[Limit]> = Arc::from([limit(case.amount, case.algorithm)?]);
    let length = Duration::from_secs(options.seconds);
    let (tasks, keys) = (TASKS, case.keys);
    let ours = TakeLoad { store, keys, limits: Arc::clone(&limits), tasks, length };
    let store: Arc<Redis> = connected(settings(redis.address())).await?;
    let theirs = TakeLoad { store, keys, limits, tasks, length };
    let bare = BareLoad { client: BareClient::connect(memcached.address).await?, keys, length };
    let mut rates = [const { Vec::new() }; 3];
    for round in 0..=u32::try_from(options.rounds).unwrap_or(u32::MAX) {
        let rate =
            [ours.run(round).await?.rate, bare.run(round).await?, theirs.run(round).await?.rate];
        if round > 0 {
            rates.iter_mut().zip(rate).for_each(|(rates, rate)| rates.push(rate));
        }
    }
    let [ours, bare, redis] = rates.map(median);
    let row = |peer_name, peer| {
        let row =
            Comparison { bench: "memcached", case: case.name, ours, peer, peer_name, unit: "1/s" };
        row.print(options.json)
    };
    Ok(vec![row(BARE, bare), row(REDIS, redis)])
}

async fn start() -> Result<Process, String> {
    let process = Process::spawn("memcached", |address, _| {
        let mut command = Command::new("memcached");
        command.args(["-U", "0", "-u", "nobody", "-m", "512", "-t", "1", "-l"]);
        command.arg(address.ip().to_string()).args(["-p", &address.port().to_string()]);
        Ok(command)
    });
    let mut process = process.map_err(|error| format!("memcached: {error}"))?;
    let connect = async |address| {
        TcpStream::connect(address).await.map(drop).map_err(|error| error.to_string())
    };
    process.wait_until_answering(connect).await?;
    Ok(process)
}

// === the bare command ===

/// A connection that many tasks share.
#[derive(Clone)]
struct BareClient(mpsc::UnboundedSender<(String, oneshot::Sender<()>)>);

impl BareClient {
    async fn connect(server: SocketAddr) -> Result<Self, String> {
        let stream = TcpStream::connect(server).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let (input, mut output) = stream.into_split();
        let (sender, mut requests) = mpsc::unbounded_channel::<(String, oneshot::Sender<()>)>();
        let (waiting, mut callers) = mpsc::unbounded_channel::<oneshot::Sender<()>>();
        tokio::spawn(async move {
            let (mut batch, mut bytes) = (Vec::new(), Vec::new());
            while requests.recv_many(&mut batch, BATCH).await > 0 {
                for (command, caller) in batch.drain(..) {
                    bytes.extend_from_slice(command.as_bytes());
                    let _ = waiting.send(caller);
                }
                if output.write_all(&bytes).await.is_err() {
                    return;
                }
                bytes.clear();
            }
        });
        tokio::spawn(async move {
            let (mut input, mut line) = (BufReader::new(input), String::new());
            // Each reply has two lines: `VA`, and the value.
            while input.read_line(&mut line).await.is_ok_and(|length| length > 0) {
                if !line.starts_with("VA ") {
                    return;
                }
                line.clear();
                if input.read_line(&mut line).await.is_err() {
                    return;
                }
                line.clear();
                if let Some(caller) = callers.recv().await {
                    let _ = caller.send(());
                }
            }
        });
        Ok(Self(sender))
    }

    async fn add(&self, key: &str) -> Result<(), String> {
        let (caller, replied) = oneshot::channel();
        let command = format!("ma {key} N86400 J1 D1 T86400 v\r\n");
        self.0.send((command, caller)).map_err(|_| "the bare client has ended".to_owned())?;
        replied.await.map_err(|_| "memcached did not add".to_owned())
    }
}

/// The load of [`TakeLoad`] as bare commands of memcached.
#[derive(Clone)]
struct BareLoad {
    client: BareClient,
    keys: NonZeroU32,
    length: Duration,
}

impl BareLoad {
    /// Commands per second.
    #[expect(clippy::disallowed_methods, reason = "a load generator measures time")]
    async fn run(&self, round: u32) -> Result<f64, String> {
        let start = tokio::time::Instant::now();
        let task = |number: u32| {
            let (load, seed) = (self.clone(), round.wrapping_mul(TASKS).wrapping_add(number));
            async move {
                let (mut keys, mut added) = (Keys::new(load.keys, seed), 0_u64);
                while start.elapsed() < load.length {
                    let state = tasks::random_state(&mut keys);
                    load.client.add(&format!("bare{:022x}", state.0 >> 40)).await?;
                    added = added.saturating_add(1);
                }
                Ok(added)
            }
        };
        let added = tasks::sum((0..TASKS).map(task)).await?;
        Ok(tasks::per_second(added, start.elapsed()))
    }
}
