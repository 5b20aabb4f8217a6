//! A server that is a millisecond away: a relay on threads of its own delays all bytes by half of that in each direction.

#![expect(clippy::disallowed_methods, reason = "a relay that delays measures time")]

use super::server::{Engine, RedisServer};
use super::tasks::{KEYS, TakeLoad};
use super::{connected, limit, settings};
use crate::rig::LoadOptions;
use crate::rounds::{Comparison, median};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use tidegate_core::Algorithm;

const CASE: &str = "redis-1ms";
const TASKS: u32 = 1_024;
/// Half of the round trip.
const ONE_WAY: Duration = Duration::from_micros(500);

pub(crate) async fn rows(options: &LoadOptions) -> Result<Vec<String>, String> {
    if !CASE.contains(&options.only) {
        return Ok(Vec::new());
    }
    let server = RedisServer::start(Engine::Redis).await?;
    let length = Duration::from_secs(options.seconds);
    let mut loads = Vec::new();
    for one_way in [ONE_WAY, Duration::ZERO] {
        let relay = relay(server.address(), one_way).map_err(|error| error.to_string())?;
        let limits = Arc::from([limit(100, Algorithm::TOKEN_BUCKET)?]);
        let store = connected(settings(relay)).await?;
        loads.push((TakeLoad { store, keys: KEYS, limits, tasks: TASKS, length }, Vec::new()));
    }
    for round in 0..=u32::try_from(options.rounds).unwrap_or(u32::MAX) {
        for (load, rates) in &mut loads {
            let tally = load.run(round).await?;
            if round > 0 {
                rates.push(tally.rate);
            }
        }
    }
    let mut rates = loads.into_iter().map(|(_, rates)| median(rates));
    let (Some(ours), Some(peer)) = (rates.next(), rates.next()) else { return Ok(Vec::new()) };
    let row =
        Comparison { bench: "redis", case: CASE, ours, peer, peer_name: "no delay", unit: "1/s" };
    Ok(vec![row.print(options.json)])
}

/// Starts a relay to a server. It runs until the process ends.
fn relay(server: SocketAddr, one_way: Duration) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((server.ip(), 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // A connection that cannot be relayed is closed, which the store reports.
            let _ = join(client, server, one_way);
        }
    });
    Ok(address)
}

/// Relays one connection in both directions.
fn join(client: TcpStream, server: SocketAddr, one_way: Duration) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    for socket in [&client, &server] {
        socket.set_nodelay(true)?;
    }
    carry(client.try_clone()?, server.try_clone()?, one_way);
    carry(server, client, one_way);
    Ok(())
}

/// Carries bytes in one direction, each of them `one_way` later.
fn carry(mut from: TcpStream, mut to: TcpStream, one_way: Duration) {
    let (sender, pieces) = mpsc::sync_channel::<(Instant, Vec<u8>)>(1_024);
    thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let piece = buffer.get(..length).unwrap_or_default().to_vec();
            let now = Instant::now();
            if sender.send((now.checked_add(one_way).unwrap_or(now), piece)).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        for (due, piece) in pieces {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        // The other side has ended, so this one ends too.
        let _ = to.shutdown(Shutdown::Both);
    });
}
