//! Another client of the same server: how long its `GET`s take while the server has all the takes it can handle.

#![expect(clippy::disallowed_methods, reason = "a load generator measures time")]

use super::raw::{self, PlainBucket, RawBenchmark, RawCommand};
use super::server::{Engine, RedisServer};
use super::tasks::{KEYS, TASKS, TakeLoad};
use super::{connected, limit, settings};
use crate::rig::LoadOptions;
use crate::rig::tally::Tally;
use crate::rounds::{Comparison, median};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tidegate_core::Algorithm;

const CASE: &str = "redis-bystander";
const EVERY: Duration = Duration::from_millis(1);
const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$9\r\nbystander\r\n";
const NOTHING: &[u8] = b"$-1\r\n";
const PEER: RawBenchmark = RawBenchmark {
    name: "plain-64c",
    connections: 64,
    depth: 1,
    mark: 'e',
    command: RawCommand::Bucket,
};

pub(crate) async fn rows(options: &LoadOptions) -> Result<Vec<String>, String> {
    if !format!("{CASE}-p99").contains(&options.only) {
        return Ok(Vec::new());
    }
    let server = RedisServer::start(Engine::Redis).await?;
    let store = connected(settings(server.address())).await?;
    let limits = Arc::from([limit(100, Algorithm::TOKEN_BUCKET)?]);
    let length = Duration::from_secs(options.seconds);
    let load = TakeLoad { store, keys: KEYS, limits, tasks: TASKS, length };
    let (bucket, mut commands) = (PlainBucket::load(&server).await?, raw::FIRST);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..=u32::try_from(options.rounds).unwrap_or(u32::MAX) {
        let bystander = Bystander::start(server.address());
        load.run(round).await?;
        let our_micros = bystander.p99().await?;
        let bystander = Bystander::start(server.address());
        let rate = PEER.rate(&bucket, &server, commands).await?;
        let their_micros = bystander.p99().await?;
        commands = raw::commands(rate, length);
        if round > 0 {
            ours.push(our_micros);
            theirs.push(their_micros);
        }
    }
    let (ours, peer, case) = (median(ours), median(theirs), &format!("{CASE}-p99"));
    let row = Comparison { bench: "redis", case, ours, peer, peer_name: PEER.name, unit: "µs" };
    Ok(vec![row.print(options.json)])
}

/// A client on a thread of its own.
struct Bystander {
    /// Relaxed: it only ends a loop.
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Tally, String>>,
}

impl Bystander {
    fn start(server: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let stop = Arc::clone(&stop);
            move || gets(server, &stop).map_err(|error| format!("GET: {error}"))
        });
        Self { stop, thread }
    }

    /// Ends it, and returns the time within which 99 of 100 `GET`s were answered, in microseconds.
    async fn p99(self) -> Result<f64, String> {
        self.stop.store(true, Ordering::Relaxed);
        let tally = tokio::task::spawn_blocking(|| self.thread.join()).await;
        let tally = tally.map_err(|error| error.to_string())?;
        let tally = tally.map_err(|_| "the bystander panicked".to_owned())??;
        Ok(tally.micros(0.99))
    }
}

/// One `GET` every millisecond, whether or not the earlier ones are answered; each counts from when it was due.
fn gets(server: SocketAddr, stop: &AtomicBool) -> io::Result<Tally> {
    let mut socket = TcpStream::connect(server)?;
    socket.set_nodelay(true)?;
    let mut replies = socket.try_clone()?;
    let (sender, sent) = mpsc::channel::<Instant>();
    let reader = thread::spawn(move || {
        let mut tally = Tally::new().map_err(io::Error::other)?;
        let mut reply = [0; NOTHING.len()];
        for due in sent {
            replies.read_exact(&mut reply)?;
            tally.note(1, 0, due.elapsed());
        }
        Ok(tally)
    });
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        due = due.checked_add(EVERY).unwrap_or(due);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        socket.write_all(GET)?;
        // If the reader has ended, its error says why.
        let _ = sender.send(due);
    }
    drop(sender);
    reader.join().unwrap_or_else(|_| Err(io::Error::other("the reader panicked")))
}
