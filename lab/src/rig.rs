//! The parts of the load experiments, for all protocols: when to send (`schedule`, `timer`), what to send
//! (`template`), sending it (`drive`), counting the answers (`tally`), and the servers (`install`, `launch`,
//! `process`, `usage`).

pub(crate) mod drive;
pub(crate) mod install;
pub(crate) mod launch;
pub(crate) mod process;
pub(crate) mod schedule;
pub(crate) mod tally;
pub(crate) mod template;
pub(crate) mod timer;
pub(crate) mod usage;

use clap::Args;
use drive::{LoadClient, drive};
use schedule::Schedule;
use std::net::SocketAddr;
use std::path::PathBuf;
use tally::Tally;
use tokio::signal::unix::{SignalKind, signal};

/// The command-line options of the experiments with servers.
#[derive(Args)]
pub(crate) struct LoadOptions {
    /// Print one line of JSON per case
    #[arg(long)]
    pub(crate) json: bool,
    /// Run only the cases whose name contains this text
    #[arg(long, default_value = "")]
    pub(crate) only: String,
    /// Write the section of BENCHMARKS.md
    #[arg(long)]
    pub(crate) write: bool,
    /// The tidegate binary; by default the one in the directory of this program
    #[arg(long)]
    pub(crate) tidegate: Option<PathBuf>,
    /// Number of rounds, of which the median counts
    #[arg(long, default_value_t = 9)]
    pub(crate) rounds: usize,
    /// How long one server is measured per round, in seconds
    #[arg(long, default_value_t = 2)]
    pub(crate) seconds: u64,
}

/// Runs an experiment on this thread until it ends or the process gets SIGINT or SIGTERM.
pub(crate) fn run<T>(experiment: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        // The future that ends first drops the other one. If that is the experiment, its servers are killed.
        tokio::select! {
            outcome = experiment => outcome,
            reason = interrupted() => Err(reason),
        }
    })
}

/// Puts a load on a server. The generator runs on a thread of its own, so that this thread can react to
/// signals.
pub(crate) async fn load<T: LoadClient>(
    address: SocketAddr,
    schedule: Schedule,
    client: impl FnMut(u32) -> T + Send + 'static,
) -> Result<Tally, String> {
    let driven = tokio::task::spawn_blocking(move || drive(address, &schedule, client));
    driven.await.map_err(|error| error.to_string())?
}

/// Waits for SIGINT or SIGTERM.
pub(crate) async fn interrupted() -> String {
    let ended = async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        Ok::<_, std::io::Error>("interrupted".to_owned())
    };
    ended.await.unwrap_or_else(|error| error.to_string())
}
