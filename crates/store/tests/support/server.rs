//! A real Redis or Valkey server for a test, on its own Unix socket, killed at the end of the test.

use super::{frozen, settings};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tidegate_core::Timestamp;
use tidegate_store::testing::{Declared, Rig};
use tidegate_store::{Redis, Secret};

/// A server process.
pub(crate) struct Server {
    child: Child,
    folder: PathBuf,
}

/// The engines that every test of scripts runs on.
pub(crate) const ENGINES: [&str; 2] = ["redis", "valkey"];

impl Server {
    /// Starts an engine and waits until it accepts connections. The socket file alone proves nothing: it appears with `bind`, and
    /// connections are refused until `listen`.
    pub(crate) fn start(engine: &str) -> Self {
        Self::start_by(Command::new(binary(engine)), engine, folder())
    }

    /// Starts an engine whose wall clock stands still, for tests that tell scripts the time: no key expires while the machine
    /// stalls.
    pub(crate) fn start_frozen(engine: &str) -> Self {
        let folder = folder();
        let library = frozen::library(&folder, &[]);
        let mut program = Command::new(binary(engine));
        program.env("LD_PRELOAD", library);
        Self::start_by(program, engine, folder)
    }

    fn start_by(mut program: Command, engine: &str, folder: PathBuf) -> Self {
        let mut child = program
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(folder.join("socket"))
            .arg("--dir")
            .arg(&folder)
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{engine}: {error}; `make deps` installs it"));
        while UnixStream::connect(folder.join("socket")).is_err() {
            assert!(child.try_wait().unwrap().is_none(), "{engine} ended immediately");
            std::thread::yield_now();
        }
        Self { child, folder }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis+unix://{}", self.folder.join("socket").display())
    }

    /// Sends the process a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let status =
            Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(status.unwrap().success());
    }

    /// Stops the process (SIGSTOP), and returns when the kernel reports that it is stopped.
    pub(crate) fn stop(&self) {
        self.signal("STOP");
        let stat = format!("/proc/{}/stat", self.child.id());
        let is_stopped = || std::fs::read_to_string(&stat).unwrap().contains(") T ");
        while !is_stopped() {
            std::thread::yield_now();
        }
    }

    /// Kills the process with all its data, and starts another one in its place.
    pub(crate) fn restart(&mut self, engine: &str) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(self.folder.join("socket"));
        let mut next = Self::start_by(Command::new(binary(engine)), engine, self.folder.clone());
        std::mem::swap(&mut self.child, &mut next.child);
        // The folder stays, and the old process has ended.
        std::mem::forget(next);
    }

    /// A store on this server.
    pub(crate) async fn store(&self) -> Redis {
        Redis::connect(&settings::redis(&self.url()), &Secret::new([7; 32])).await.unwrap()
    }

    /// A store whose scripts use the test's time, on an emptied server.
    pub(crate) async fn rig(&self) -> Rig<Redis> {
        let mut connection = self.connection().await;
        let () = redis::cmd("FLUSHALL").query_async(&mut connection).await.unwrap();
        self.rig_beside_others().await
    }

    /// A store whose scripts use the test's time.
    pub(crate) async fn rig_beside_others(&self) -> Rig<Redis> {
        let store = self.store().await;
        Rig {
            store,
            set_time: Box::new(|store: &Redis, now: Timestamp| store.set_test_time(now)),
            declared: Declared::default(),
        }
    }

    pub(crate) async fn connection(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(self.url()).unwrap();
        // The client's default of half a second is too short on a machine that is busy with other tests.
        let patient =
            redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(60)));
        client.get_multiplexed_async_connection_with_config(&patient).await.unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A new folder.
fn folder() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("tidegate-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Debian's redis-server, or the valkey-server that `make deps` unpacks.
pub(crate) fn binary(engine: &str) -> PathBuf {
    if engine == "redis" {
        return "redis-server".into();
    }
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/valkey/valkey-server")
}
