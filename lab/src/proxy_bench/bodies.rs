//! One large body in each direction: how fast the proxy passes it on, and how much memory that needs.
//!
//! ```text
//!   download   GET /        client ◄── proxy ◄── upstream server, which sends zeros
//!   upload     POST /       client ──► proxy ──► upstream server, which reads and forgets
//! ```

#![expect(clippy::float_arithmetic, reason = "rates and sizes, for people")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

use super::ProxyOptions;
use super::body_server::{Transfer, number_after, read_head, send_zeros, serve_bodies, skip};
use super::figures::{Goal, GoalFigure, Rounds, compared};
use super::proxies::{ProxyPrograms, ProxyServer, RunningProxy};
use crate::rig::process::Process;
use crate::rig::usage::ProcessGroup;
use crate::rounds::float;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The proxies that are measured. nginx is the peer; direct shows what the machine can do.
const SERVERS: [ProxyServer; 3] = [ProxyServer::Tidegate, ProxyServer::Nginx, ProxyServer::Direct];
/// A body for warming up, which needs all code and only small buffers.
const SMALL: u64 = 64 << 10;
/// How long the connection may be silent.
const PATIENCE: Duration = Duration::from_secs(20);
const MIB: f64 = 1_048_576.0;

/// The rounds of one proxy in one direction.
struct BodyRounds {
    server: ProxyServer,
    /// MiB per second.
    rates: Vec<f64>,
    /// Growth of the resident memory during the transfer, in KiB.
    growths: Vec<f64>,
}

pub(crate) async fn bodies(
    case: &str,
    options: &ProxyOptions,
    programs: &ProxyPrograms,
) -> Result<Vec<String>, String> {
    let upstream = serve_bodies().map_err(|error| format!("upstream server: {error}"))?;
    let mut rows = Vec::new();
    for transfer in [Transfer::Download, Transfer::Upload] {
        let measured = measured(transfer, upstream, options, programs).await?;
        rows.extend(reported(&format!("{case}-{}", transfer.name()), measured, options.rig.json));
    }
    Ok(rows)
}

fn reported(case: &str, measured: Vec<BodyRounds>, json: bool) -> Vec<String> {
    let mut rows = Vec::new();
    for BodyRounds { server, growths, .. } in &measured {
        let goal = match server {
            ProxyServer::Tidegate => Goal::AtMost(1024.0),
            ProxyServer::Nginx => Goal::None,
            ProxyServer::Caddy | ProxyServer::Envoy | ProxyServer::Direct => continue,
        };
        let case = format!("{case}-memory-{}", server.name());
        let value = growths.iter().copied().fold(0.0, f64::max);
        rows.push(GoalFigure { case: &case, value, unit: "KiB", goal }.print(json));
    }
    let rates = measured
        .into_iter()
        .map(|measured| Rounds { name: measured.server.name(), values: measured.rates });
    let mut all = compared(case, "MiB/s", rates, json);
    all.append(&mut rows);
    all
}

async fn measured(
    transfer: Transfer,
    upstream: SocketAddr,
    options: &ProxyOptions,
    programs: &ProxyPrograms,
) -> Result<Vec<BodyRounds>, String> {
    let mut running = Vec::new();
    for server in SERVERS {
        running.push(RunningProxy::start(server, upstream, programs).await?);
    }
    let empty = |running: &RunningProxy| {
        let server = running.server;
        BodyRounds { server, rates: Vec::new(), growths: Vec::new() }
    };
    let mut measured: Vec<BodyRounds> = running.iter().map(empty).collect();
    for number in 0..=options.rig.rounds {
        for (running, rounds) in running.iter().zip(&mut measured) {
            let bytes = if number == 0 { SMALL } else { options.mib.saturating_mul(1 << 20) };
            let (rate, growth) = round(running, transfer, bytes).await.map_err(|error| {
                format!("{}, {}: {error}", running.server.name(), transfer.name())
            })?;
            if number > 0 {
                rounds.rates.push(rate);
                rounds.growths.push(growth);
            }
        }
    }
    Ok(measured)
}

/// Transfers one body. Returns MiB per second, and by how many KiB the memory of the proxy grew meanwhile.
async fn round(
    running: &RunningProxy,
    transfer: Transfer,
    bytes: u64,
) -> Result<(f64, f64), String> {
    let as_text = |error: io::Error| error.to_string();
    let _resumed = running.resume();
    let group = running.process.as_ref().map(Process::group).transpose();
    let group = group.map_err(as_text)?;
    let before = group.as_ref().map_or(0, ProcessGroup::resident);
    if let Some(group) = &group {
        group.forget_peak().map_err(as_text)?;
    }
    let address = running.address;
    let transferred = tokio::task::spawn_blocking(move || timed(address, transfer, bytes));
    let took = transferred.await.map_err(|error| error.to_string())?.map_err(as_text)?;
    let growth = group.as_ref().map_or(0, ProcessGroup::peak).saturating_sub(before);
    Ok((float(bytes) / MIB / took.as_secs_f64(), float(growth) / 1024.0))
}

/// The time from the first byte of the request to the last byte of the answer.
fn timed(address: SocketAddr, transfer: Transfer, bytes: u64) -> io::Result<Duration> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let start = Instant::now();
    match transfer {
        Transfer::Download => {
            write!(stream, "GET /{bytes} HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
            receive(&mut stream, bytes)?;
        }
        Transfer::Upload => {
            let length = format!("Content-Length: {bytes}");
            write!(stream, "POST / HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n")?;
            send_zeros(&mut stream, bytes)?;
            receive(&mut stream, 2)?;
        }
    }
    Ok(start.elapsed())
}

/// Reads an answer with a body of this length.
fn receive(stream: &mut TcpStream, bytes: u64) -> io::Result<()> {
    let (head, behind) = read_head(stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let length = number_after(&head, "content-length: ");
    if !head.starts_with("http/1.1 200 ") || length != Some(bytes) {
        let line = head.lines().next().unwrap_or_default();
        return Err(io::Error::other(format!("answered {line:?}, with {length:?} bytes of body")));
    }
    skip(stream, bytes.saturating_sub(behind))
}
