//! A server process on a free port with a temporary folder. It is killed when it is dropped, also after an
//! error.

#![expect(clippy::disallowed_methods, reason = "a starting server is looked at again and again")]

use super::usage::ProcessGroup;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// How long a server may take to start, and to answer one request. Under valgrind it needs some seconds.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The interval between two attempts to get an answer.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A running server. It is killed when this is dropped.
pub(crate) struct Process {
    pub(crate) address: SocketAddr,
    child: Child,
    folder: TempFolder,
}

impl Process {
    /// Starts the command that `command` makes for an address and an empty folder.
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
            // A process group of its own, so that its workers are killed with it.
            .process_group(0)
            .spawn()?;
        Ok(Self { address, child, folder })
    }

    /// Repeats a request until it is answered.
    pub(crate) async fn wait_until_answering<T>(
        &mut self,
        mut ask: impl AsyncFnMut(SocketAddr) -> Result<T, String>,
    ) -> Result<(), String> {
        let start = Instant::now();
        while let Err(error) = within(ask(self.address)).await {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("ended while starting, {status}\n{}", self.log()));
            }
            if start.elapsed() > START_TIMEOUT {
                return Err(format!(
                    "is not ready after {START_TIMEOUT:?}: {error}\n{}",
                    self.log()
                ));
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Lets the server run while the guard lives. Otherwise it is stopped, so that it cannot disturb the
    /// measurement of others.
    pub(crate) fn resume(&self) -> Resumed<'_> {
        self.signal(Signal::CONT);
        Resumed(self)
    }

    /// Stops the server (SIGSTOP).
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// The server and its workers.
    pub(crate) fn group(&self) -> io::Result<ProcessGroup> {
        ProcessGroup::of(Pid::from_child(&self.child))
    }

    /// Whether the server has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // If the server has ended by itself, the next request to it fails and reports that.
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }

    /// Waits until the server has ended.
    pub(crate) fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }

    /// Kills the server, and waits until it has ended. Its folder stays.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.signal(Signal::KILL);
        self.child.wait().map(|_| ())
    }

    /// How the server ended, if it has ended by itself.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// A file that the server wrote into its folder.
    pub(crate) fn read(&self, file: &str) -> io::Result<String> {
        fs::read_to_string(self.folder.0.join(file))
    }

    /// The path of a file in its folder.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.folder.0.join(file)
    }

    /// The output of the server.
    pub(crate) fn log(&self) -> String {
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

/// Keeps a server running until this is dropped.
pub(crate) struct Resumed<'p>(&'p Process);

impl Drop for Resumed<'_> {
    fn drop(&mut self) {
        self.0.pause();
    }
}

/// The result of a request, or an error if it takes too long.
pub(crate) async fn within<T>(asked: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    timeout(START_TIMEOUT, asked)
        .await
        .map_err(|_late| format!("no answer within {START_TIMEOUT:?}"))?
}

/// The command that runs Redis in the foreground, without persistence.
pub(crate) fn redis(address: SocketAddr, folder: &Path) -> Command {
    redis_as(Path::new("redis-server"), address, folder)
}

/// Redis, or a program with the same arguments, such as Valkey.
pub(crate) fn redis_as(program: &Path, address: SocketAddr, folder: &Path) -> Command {
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let mut command = Command::new(program);
    command.args(["--bind", &host, "--port", &port, "--save", "", "--appendonly", "no", "--dir"]);
    command.arg(folder);
    command
}

/// A temporary folder, which is removed when this is dropped.
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
        // A folder that cannot be removed stays among the temporary files and does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A free address. Another program may take it before the server does; then the server reports that.
pub(crate) fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}
