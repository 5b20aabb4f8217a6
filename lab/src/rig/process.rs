//! A server that runs on a free port, in a folder of its own, and ends whatever happens.

use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// How long a server may take until it answers, at first and ever.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(10);
/// How long between two looks whether it does.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A server, until this is dropped.
pub(crate) struct Process {
    pub(crate) address: SocketAddr,
    child: Child,
    folder: TempFolder,
}

impl Process {
    /// Starts what `command` makes of an address and an empty folder.
    pub(crate) fn spawn(
        name: &str,
        command: impl FnOnce(SocketAddr, &Path) -> io::Result<Command>,
    ) -> io::Result<Self> {
        let folder = TempFolder::new(&format!("tidegate-lab-{}-{name}", std::process::id()))?;
        let address = free_address()?;
        let log = File::create(folder.0.join("log"))?;
        let child = command(address, &folder.0)?
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Its own group, so that its workers end with it.
            .process_group(0)
            .spawn()?;
        Ok(Self { address, child, folder })
    }

    /// Asks until there is an answer.
    pub(crate) async fn wait_until_answering<T>(
        &mut self,
        mut ask: impl AsyncFnMut(SocketAddr) -> Result<T, String>,
    ) -> Result<(), String> {
        let start = Instant::now();
        while let Err(error) = within(ask(self.address)).await {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("ended at once, {status}\n{}", self.log()));
            }
            if start.elapsed() > START_TIMEOUT {
                return Err(format!("still not ready: {error}\n{}", self.log()));
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Lets it run while the guard lives; otherwise it stands still, and whatever it does by itself disturbs nobody.
    pub(crate) fn resume(&self) -> Resumed<'_> {
        self.signal(Signal::CONT);
        Resumed(self)
    }

    /// Lets it stand still.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    fn signal(&self, signal: Signal) {
        // One that has ended by itself is noticed by whoever asks it.
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }

    /// What it said.
    fn log(&self) -> String {
        let log = fs::read_to_string(self.folder.0.join("log")).unwrap_or_default();
        log.trim_end().to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}

/// A server that runs, until this is dropped.
pub(crate) struct Resumed<'p>(&'p Process);

impl Drop for Resumed<'_> {
    fn drop(&mut self) {
        self.0.pause();
    }
}

/// What is answered in time.
pub(crate) async fn within<T>(asked: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    timeout(START_TIMEOUT, asked)
        .await
        .map_err(|_late| format!("no answer for {START_TIMEOUT:?}"))?
}

/// The command that runs Redis in the foreground, without any file, as a cache.
pub(crate) fn redis(address: SocketAddr, folder: &Path) -> Command {
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let mut command = Command::new("redis-server");
    command.args(["--bind", &host, "--port", &port, "--save", "", "--appendonly", "no", "--dir"]);
    command.arg(folder);
    command
}

/// A folder for temporary files, until this is dropped.
struct TempFolder(PathBuf);

impl TempFolder {
    fn new(name: &str) -> io::Result<Self> {
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        // What cannot be removed lies among other temporary files and harms nobody.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An address that nobody listens on. Somebody else may take it before the server does; then the server says so.
fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}
