//! The server under test, started as an operator starts it, and queries to it.
//!
//! The tests build the binary in their own profile; `TIDEGATE=path` selects another one.

use super::load::Http;
use super::process::Process;
use super::shim::Shim;
use super::{Folder, PATIENCE, within};
use serde_json::Value;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The secret and the policy that several servers share.
pub(crate) struct Deployment {
    /// The folder with the secret; shared by all versions of the policy.
    folder: Arc<Folder>,
    policy: PathBuf,
}

/// A running server. It is killed when it is dropped.
pub(crate) struct Tidegate {
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    /// `None` unless it listens for Redis clients.
    pub(crate) resp: Option<SocketAddr>,
    /// `None` unless it is a reverse proxy.
    pub(crate) proxy: Option<SocketAddr>,
    admin: SocketAddr,
    folder: Folder,
    /// Kept until the server ends, because the server reloads the policy when its file disappears.
    _deployment: Arc<Folder>,
    /// Its standard output stays open: otherwise writing to it would fail.
    pub(crate) process: Process,
}

/// What made a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecidedBy {
    Store,
    /// The denial cache, with a recent refusal of the store.
    Cache,
    /// What the node holds of the limit.
    Lease,
    Fallback,
    /// No rule applied, or there was no answer.
    None,
}

/// The answer to one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verdict {
    /// 0 when there was no answer.
    pub(crate) status: u16,
    pub(crate) by: DecidedBy,
    pub(crate) reset_ms: Option<u64>,
    pub(crate) retry_after_ms: Option<u64>,
}

// === impl Deployment ===

impl Deployment {
    /// A deployment with these rules, written as in the brackets of a policy file.
    pub(crate) fn new(rules: &str) -> Self {
        Self::in_folder(Arc::new(Folder::new("deployment")), "policy.yaml", rules)
    }

    /// This deployment with another version of the policy. Servers of the first version keep theirs.
    pub(crate) fn revised(&self, rules: &str) -> Self {
        Self::in_folder(Arc::clone(&self.folder), "revised.yaml", rules)
    }

    fn in_folder(folder: Arc<Folder>, name: &str, rules: &str) -> Self {
        let policy = folder.join(name);
        std::fs::write(&policy, format!("version: 1\nrules: [{rules}]\n")).unwrap();
        Self { folder, policy }
    }

    pub(crate) fn server(&self, store: &str, flags: &[&str]) -> Tidegate {
        self.start(binary(), Folder::new("server"), store, flags, None)
    }

    /// Several servers that are ready and know the number of nodes.
    pub(crate) fn servers(&self, count: u64, store: &str, flags: &[&str]) -> Vec<Tidegate> {
        let servers: Vec<_> = (0..count).map(|_| self.server(store, flags)).collect();
        for server in &servers {
            server.until_ready();
            server.until_nodes(count);
        }
        servers
    }

    /// Kills a server, and restarts it with its data directory.
    pub(crate) fn restart(&self, server: Tidegate, store: &str, flags: &[&str]) -> Tidegate {
        let Tidegate { folder, process, .. } = server;
        drop(process);
        self.start(binary(), folder, store, flags, None)
    }

    /// A server that uses this wall clock.
    pub(crate) fn server_by(&self, clock: &Shim, store: &str, flags: &[&str]) -> Tidegate {
        let folder = Folder::new("server");
        self.start(binary_with_libc_clock(), folder, store, flags, Some(clock))
    }

    fn start(
        &self,
        binary: &Path,
        folder: Folder,
        store: &str,
        flags: &[&str],
        clock: Option<&Shim>,
    ) -> Tidegate {
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let with_resp = flags.contains(&"--resp-listen");
        let mut command = Command::new(binary);
        command
            .args(["serve", "--store", store])
            .args(["--secret-file", &self.folder.text("secret")])
            .args([OsStr::new("--policy"), self.policy.as_os_str()])
            .args(["--data-dir", &folder.text("data")])
            .args(["--http-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
            .args(["--grpc-listen", "127.0.0.1:0"])
            .args(if with_resp { &[][..] } else { &["--resp-listen", "off"] })
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log);
        if let Some(clock) = clock {
            clock.preload(&mut command);
        }
        let mut process = Process::spawn(&mut command);
        let greeting = greeting(&folder, &mut process);
        let address = |name: &str| greeting[name].as_str().map(|text| text.parse().unwrap());
        let [http, grpc, admin] = ["http", "grpc", "admin"].map(|name| address(name).unwrap());
        let [resp, proxy] = ["resp", "proxy"].map(address);
        let deployment = Arc::clone(&self.folder);
        Tidegate { http, grpc, resp, proxy, admin, folder, _deployment: deployment, process }
    }
}

/// The line of the log in which a server says where it listens.
fn greeting(folder: &Folder, process: &mut Process) -> Value {
    let mut found = None;
    within(PATIENCE, "the server says where it listens", || {
        // In this order: what it has logged before it ended is there.
        let ended = process.child().try_wait().unwrap();
        let log = std::fs::read_to_string(folder.join("log")).unwrap();
        let mut lines = log.lines().filter_map(|line| serde_json::from_str(line).ok());
        found = lines.find(|line: &Value| line["message"] == "serving");
        assert!(found.is_some() || ended.is_none(), "the server did not start: {log}");
        found.is_some()
    });
    found.unwrap()
}

// === impl Tidegate ===

impl Tidegate {
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap()
    }

    /// The data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Sends a check on a new connection.
    pub(crate) fn check(&self, attributes: &str) -> Verdict {
        Http::connect(self.http).check(attributes)
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        Http::connect(self.http).get(path, "")
    }

    /// The status of `/ready`: `ready` or `degraded`.
    pub(crate) fn readiness(&self) -> String {
        let body = self.get("/ready").1;
        let body: Value = serde_json::from_str(&body).unwrap();
        body["status"].as_str().unwrap().to_owned()
    }

    /// Waits until `/ready` says `ready`.
    pub(crate) fn until_ready(&self) {
        within(PATIENCE, "the server is ready", || self.readiness() == "ready");
    }

    /// Waits until `/ready` says `degraded` with these words in the reason.
    pub(crate) fn until_degraded(&self, words: &str) {
        let words = in_json(words);
        let is_told = |text: &str| text.contains("degraded") && text.contains(&words);
        within(PATIENCE, &format!("degraded: {words}"), || is_told(&self.get("/ready").1));
    }

    /// Waits until `/ready` says `degraded` with these words in the reason, and the log contains them.
    pub(crate) fn until_degraded_and_logged(&self, words: &str) {
        self.until_degraded(words);
        let words = in_json(words);
        within(PATIENCE, &format!("logged: {words}"), || self.log().contains(&words));
    }

    /// Waits until the server knows this number of nodes.
    pub(crate) fn until_nodes(&self, count: u64) {
        within(PATIENCE, "the number of nodes is known", || {
            self.metric("tidegate_cluster_nodes") == count
        });
    }

    /// The number of nodes that it saved for a start without the store.
    pub(crate) fn nodes_on_disk(&self) -> Option<String> {
        std::fs::read_to_string(self.folder.join("data/nodes")).ok()
    }

    /// Waits until the store decides again, and returns how long that took since an instant.
    pub(crate) fn until_the_store_decides(&self, since: Instant, attributes: &str) -> Duration {
        within(PATIENCE, "the store decides", || self.check(attributes).by == DecidedBy::Store);
        since.elapsed()
    }

    /// The sum of a metric over all its labels.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        self.metric_with(name, "")
    }

    /// The sum of a metric over the labels that contain these words.
    pub(crate) fn metric_with(&self, name: &str, words: &str) -> u64 {
        let token = std::fs::read_to_string(self.folder.join("data/operator-token")).unwrap();
        let bearer = format!("authorization: Bearer {}\r\n", token.trim());
        let text = Http::connect(self.admin).get("/metrics", &bearer).1;
        let lines = text.lines().filter(|line| line.starts_with(name) && line.contains(words));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }

    /// Panics unless the server is running and has not panicked.
    pub(crate) fn assert_healthy(&mut self) {
        assert!(self.process.is_alive(), "{}", self.log());
        assert_eq!(self.metric("tidegate_panics_total"), 0);
        assert!(!self.log().contains("panicked"), "{}", self.log());
        assert_eq!(self.get("/live").0, 200);
    }
}

/// Text as it is escaped in JSON.
fn in_json(words: &str) -> String {
    let quoted = serde_json::to_string(words).unwrap();
    quoted[1..quoted.len() - 1].to_owned()
}

// === impl Verdict ===

impl Verdict {
    pub(crate) fn parse(status: u16, body: &str) -> Self {
        let body: Value = serde_json::from_str(body).unwrap_or_default();
        let by = match body["decided_by"].as_str() {
            Some("store") => DecidedBy::Store,
            Some("cache") => DecidedBy::Cache,
            Some("lease") => DecidedBy::Lease,
            Some("fallback") => DecidedBy::Fallback,
            _ => DecidedBy::None,
        };
        let limit = &body["limits"][0];
        Self {
            status,
            by,
            reset_ms: limit["reset_ms"].as_u64(),
            retry_after_ms: body["retry_after_ms"].as_u64(),
        }
    }

    /// Whether the store admitted the request.
    pub(crate) fn is_admitted_by_store(&self) -> bool {
        self.status == 200 && self.by == DecidedBy::Store
    }

    pub(crate) fn is_an_answer(&self) -> bool {
        matches!(self.status, 200 | 429)
    }
}

// === the binary ===

fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("TIDEGATE") {
        Some(path) => path.into(),
        None => built("tidegate-under-fault", &[]),
    })
}

/// The server, built so that its clock can be set: it reads the time through libc, which `shim.c` can replace. The
/// usual binary reads it from the kernel directly.
fn binary_with_libc_clock() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| built("tidegate-by-libc", &["--features", "rustix/use-libc"]))
}

/// Builds the binary and copies it to its own name, because the next build may have other features.
fn built(name: &str, flags: &[&str]) -> PathBuf {
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap();
    // This program is target/PROFILE/deps/NAME.
    let this = std::env::current_exe().unwrap();
    let profile = this.parent().unwrap().parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "tidegate-server"]).args(flags);
    cargo.arg("--target-dir").arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    let status = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap();
    assert!(status.success(), "{cargo:?}");
    let copy = profile.join(name);
    let made = profile.join(format!("{name}-{}", std::process::id()));
    std::fs::copy(profile.join("tidegate"), &made).unwrap();
    std::fs::rename(&made, &copy).unwrap();
    copy
}
