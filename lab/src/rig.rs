//! What the load experiments are built of, whatever protocol they speak: when to send, what to send, to whom, and what came of it.

pub(crate) mod drive;
pub(crate) mod install;
pub(crate) mod launch;
pub(crate) mod process;
pub(crate) mod schedule;
pub(crate) mod tally;
pub(crate) mod template;
pub(crate) mod timer;

use clap::Args;
use drive::{LoadClient, drive};
use schedule::Schedule;
use std::net::SocketAddr;
use std::path::PathBuf;
use tally::Tally;
use tokio::signal::unix::{SignalKind, signal};

/// What an experiment with servers takes from the command line.
#[derive(Args)]
pub(crate) struct LoadOptions {
    /// Prints a line of JSON for each case.
    #[arg(long)]
    pub(crate) json: bool,
    /// Only cases whose name holds this.
    #[arg(long, default_value = "")]
    pub(crate) only: String,
    /// Writes its section of BENCHMARKS.md.
    #[arg(long)]
    pub(crate) write: bool,
    /// The binary of tidegate; unless told, the one beside this one.
    #[arg(long)]
    pub(crate) tidegate: Option<PathBuf>,
    /// Rounds whose median counts.
    #[arg(long, default_value_t = 9)]
    pub(crate) rounds: usize,
    /// How long one server is measured in a round.
    #[arg(long, default_value_t = 2)]
    pub(crate) seconds: u64,
}

/// Runs an experiment on this thread, until it is done or somebody wants this process to end.
pub(crate) fn run<T>(experiment: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        // Whichever ends first drops the other, and with it the servers that run.
        tokio::select! {
            outcome = experiment => outcome,
            reason = interrupted() => Err(reason),
        }
    })
}

/// Puts a load on a server. The generator has a thread of its own, so that whoever interrupts it is heard.
pub(crate) async fn load<T: LoadClient>(
    address: SocketAddr,
    schedule: Schedule,
    client: impl FnMut(u32) -> T + Send + 'static,
) -> Result<Tally, String> {
    let driven = tokio::task::spawn_blocking(move || drive(address, &schedule, client));
    driven.await.map_err(|error| error.to_string())?
}

/// Waits until somebody wants this process to end.
async fn interrupted() -> String {
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
