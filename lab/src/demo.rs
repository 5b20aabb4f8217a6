//! `make demo`: tidegate as a reverse proxy before a small URL shortener, and users who send more than their limits allow.
//!
//! ```text
//!   users and visitors ──► tidegate :8000 ──┬► shard :9001
//!   (this program)         (a process)      ├► shard :9002
//!                                           ├► shard :9003   (this program)
//!                                           └► office :9004  payments and analytics
//! ```
//!
//! The limits and the shards are those of `docs/demo`. Everything listens on the loopback address. tidegate ends with this
//! program, also if this program is killed: the kernel sees to it (`setpriv --pdeathsig`).

mod board;
mod client;
mod load;
mod picture;
mod screen;
mod shortener;

use crate::rig::install;
use crate::rig::interrupted;
use crate::rig::process::Process;
use crate::root;
use board::{Board, Window};
use clap::Args;
use picture::View;
use screen::Screen;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// The command-line options of `lab demo`.
#[derive(Args)]
pub(crate) struct DemoOptions {
    /// How long the demo runs, in seconds
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Address of tidegate's reverse proxy, on this machine
    #[arg(long, default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
    /// The tidegate binary; by default the one in the directory of this program
    #[arg(long)]
    tidegate: Option<PathBuf>,
}

/// The time between two pictures.
const FRAME: Duration = Duration::from_millis(250);

/// Plays the demo until its time is over or the process gets SIGINT or SIGTERM.
pub(crate) fn run(options: &DemoOptions) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        // Ctrl-C drops the demo: tidegate is killed, and the terminal is set right.
        tokio::select! {
            outcome = play(options) => outcome,
            _ = interrupted() => Ok(()),
        }
    })
}

async fn play(options: &DemoOptions) -> Result<(), String> {
    let folder = root().join("docs/demo");
    let routes = folder.join("routes.yaml");
    let text = fs::read_to_string(&routes).map_err(|e| format!("{}: {e}", routes.display()))?;
    check_listen(options.listen)?;
    for (number, address) in (1..).zip(shards(&text)?) {
        shortener::start(number, address).await?;
    }
    let mut tidegate = start(options, &folder).map_err(|error| format!("tidegate: {error}"))?;
    let ready = tidegate.wait_until_answering(async |address| {
        let request = "GET /ready HTTP/1.1\r\nhost: demo\r\nconnection: close\r\n\r\n";
        let heard = client::send(address, request).await?;
        if heard.status == 200 { Ok(()) } else { Err(format!("/ready: status {}", heard.status)) }
    });
    ready.await.map_err(|error| format!("tidegate {error}"))?;
    let board = Arc::new(Board::default());
    load::start(options.listen, &board);
    show(options, &board, &mut tidegate).await
}

/// Draws a picture four times a second.
async fn show(options: &DemoOptions, board: &Board, tidegate: &mut Process) -> Result<(), String> {
    let (mut screen, mut window) = (Screen::open(), Window::default());
    let end = Duration::from_secs(options.seconds);
    let mut frames = tokio::time::interval(FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let begun = frames.tick().await;
    loop {
        let passed = frames.tick().await.duration_since(begun).min(end);
        if let Some(status) = tidegate.ended() {
            return Err(format!("tidegate has ended, {status}\n{}", tidegate.log()));
        }
        let sums = board.sums();
        let recent = window.push(passed, &sums);
        let view = View { proxy: options.listen, passed, end, sums, recent };
        // A reader that has gone away, as in `… | head`, ends the demo.
        let drawn = screen.draw(&view);
        if drawn.is_err() || passed >= end {
            return Ok(());
        }
    }
}

// === the start ===

/// The demo is for one machine, so its ports must not be open to others.
fn check_listen(address: SocketAddr) -> Result<(), String> {
    if !address.ip().is_loopback() {
        return Err(format!("--listen {address}: use an address of this machine, 127.0.0.1:PORT"));
    }
    TcpListener::bind(address).map(drop).map_err(|error| {
        unusable(address, &error, "choose another one with `--listen 127.0.0.1:PORT`")
    })
}

/// An error about an address on which the demo cannot listen.
fn unusable(address: SocketAddr, error: &io::Error, remedy: &str) -> String {
    if error.kind() == io::ErrorKind::AddrInUse {
        let port = address.port();
        return format!("port {port} is in use; stop the program that uses it, or {remedy}");
    }
    format!("cannot listen on {address} ({error}); {remedy}")
}

/// The addresses of the servers in the routes file.
fn shards(routes: &str) -> Result<Vec<SocketAddr>, String> {
    let wrong = "docs/demo/routes.yaml: the demo needs `servers` such as http://127.0.0.1:9001";
    let lines = routes.lines().filter(|line| !line.trim_start().starts_with('#'));
    let urls = lines.flat_map(|line| line.split("http://").skip(1));
    let address = |url: &str| -> Option<SocketAddr> {
        let end = url.find(|c: char| !c.is_ascii_digit() && !".:".contains(c));
        let address: SocketAddr = url.get(..end.unwrap_or(url.len()))?.parse().ok()?;
        address.ip().is_loopback().then_some(address)
    };
    let found: Option<Vec<SocketAddr>> = urls.map(address).collect();
    found.filter(|found| !found.is_empty()).ok_or_else(|| wrong.to_owned())
}

/// Starts tidegate. Only the proxy is reachable at a known address; the HTTP listener is there to ask whether it is ready.
fn start(options: &DemoOptions, folder: &Path) -> Result<Process, String> {
    let program = install::tidegate(options.tidegate.as_deref())?;
    let process = Process::spawn("demo", |http, files| {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program).arg("serve");
        command.arg("--policy").arg(folder.join("policy.yaml"));
        command.arg("--proxy-routes").arg(folder.join("routes.yaml"));
        command.arg("--data-dir").arg(files.join("data"));
        command.args(["--proxy-listen", &options.listen.to_string()]);
        command.args(["--http-listen", &http.to_string(), "--admin-listen", "off"]);
        command.args(["--resp-listen", "off", "--grpc-listen", "off"]);
        Ok(command)
    });
    process.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_routes_file_names_three_shards_and_an_office() {
        let text = fs::read_to_string(root().join("docs/demo/routes.yaml")).unwrap();
        let ports: Vec<u16> = shards(&text).unwrap().iter().map(SocketAddr::port).collect();
        assert_eq!(ports, [9001, 9002, 9003, 9004]);
    }

    #[test]
    fn servers_on_other_machines_are_refused() {
        for text in ["", "servers: [http://10.0.0.1:80]", "servers: [http://localhost:80]"] {
            assert!(shards(text).unwrap_err().contains("routes.yaml"), "{text}");
        }
    }

    #[test]
    fn a_port_that_is_taken_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let error = check_listen(address).unwrap_err();
        assert!(error.contains(&format!("port {} is in use", address.port())), "{error}");
        assert!(error.contains("--listen"), "{error}");
        let everywhere = SocketAddr::from(([0, 0, 0, 0], 0));
        assert!(check_listen(everywhere).unwrap_err().contains("of this machine"));
    }
}
