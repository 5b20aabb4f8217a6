//! The server under test, as a user starts it, and what it says of itself.
//!
//! The binary is built by the tests, in the profile that they run in; `TIDEGATE=path` takes another one instead.

use super::load::Http;
use super::process::Process;
use super::shim::Shim;
use super::{Folder, PATIENCE, within};
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Servers with one secret and one policy.
pub(crate) struct Deployment {
    /// With the secret; shared by all versions of the policy.
    folder: Arc<Folder>,
    policy: PathBuf,
}

/// A running server. It is killed when it is dropped.
pub(crate) struct Tidegate {
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    admin: SocketAddr,
    folder: Folder,
    /// The policy, which the server reads again when its file goes.
    _deployment: Arc<Folder>,
    pub(crate) process: Process,
    /// Kept open: a server whose greeting nobody reads must not break.
    _greeting: BufReader<ChildStdout>,
}

/// What was decided, by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecidedBy {
    Store,
    /// What the store had said a moment ago.
    Cache,
    Fallback,
    /// No rule, or no answer at all.
    None,
}

/// An answer to one request.
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
    /// With these rules, as they stand in a policy file between brackets.
    pub(crate) fn new(rules: &str) -> Self {
        Self::in_folder(Arc::new(Folder::new("deployment")), "policy.yaml", rules)
    }

    /// The same deployment with another version of its policy. Servers of the first version keep theirs.
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

    /// Several servers that are ready and have counted each other.
    pub(crate) fn servers(&self, count: u64, store: &str, flags: &[&str]) -> Vec<Tidegate> {
        let servers: Vec<_> = (0..count).map(|_| self.server(store, flags)).collect();
        for server in &servers {
            server.until_ready();
            server.until_nodes(count);
        }
        servers
    }

    /// Kills a server, and starts it again with its data directory.
    pub(crate) fn restart(&self, server: Tidegate, store: &str, flags: &[&str]) -> Tidegate {
        let Tidegate { folder, process, .. } = server;
        drop(process);
        self.start(binary(), folder, store, flags, None)
    }

    /// A server whose wall clock is this one.
    pub(crate) fn server_by(&self, clock: &Shim, store: &str, flags: &[&str]) -> Tidegate {
        let folder = Folder::new("server");
        self.start(binary_that_asks_libc(), folder, store, flags, Some(clock))
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
        let mut command = Command::new(binary);
        command
            .args(["serve", "--store", store])
            .args(["--secret-file", &self.folder.text("secret")])
            .args([OsStr::new("--policy"), self.policy.as_os_str()])
            .args(["--data-dir", &folder.text("data")])
            .args(["--http-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
            .args(["--grpc-listen", "127.0.0.1:0", "--resp-listen", "off"])
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log);
        if let Some(clock) = clock {
            clock.preload(&mut command);
        }
        let mut process = Process::spawn(&mut command);
        let mut greeting = BufReader::new(process.child().stdout.take().unwrap());
        let (mut http, mut grpc, mut admin) = (None, None, None);
        let mut line = String::new();
        while http.is_none() && greeting.read_line(&mut line).unwrap() > 0 {
            let address = line.split("://").nth(1).and_then(|rest| rest.split('/').next());
            let address = address.and_then(|address| address.trim().parse().ok());
            match line.split_whitespace().next() {
                Some("http") => http = address,
                // It has no scheme of its own.
                Some("grpc") => {
                    grpc = line.split_whitespace().nth(1).and_then(|at| at.parse().ok());
                }
                Some("admin") => admin = address,
                _ => {}
            }
            line.clear();
        }
        let log = || std::fs::read_to_string(folder.join("log")).unwrap();
        let (Some(http), Some(grpc), Some(admin)) = (http, grpc, admin) else {
            panic!("no server: {}", log())
        };
        let deployment = Arc::clone(&self.folder);
        Tidegate {
            http,
            grpc,
            admin,
            folder,
            _deployment: deployment,
            process,
            _greeting: greeting,
        }
    }
}

// === impl Tidegate ===

impl Tidegate {
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap()
    }

    /// Asks on a connection of its own.
    pub(crate) fn check(&self, attributes: &str) -> Verdict {
        Http::connect(self.http).check(attributes)
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        Http::connect(self.http).get(path, "")
    }

    /// What `/ready` says: `ready` or `degraded`.
    pub(crate) fn readiness(&self) -> String {
        let body = self.get("/ready").1;
        let body: Value = serde_json::from_str(&body).unwrap();
        body["status"].as_str().unwrap().to_owned()
    }

    /// Waits until the store decides.
    pub(crate) fn until_ready(&self) {
        within(PATIENCE, "the store is asked", || self.readiness() == "ready");
    }

    /// Waits until it says that it is degraded, with these words in the reason.
    pub(crate) fn until_degraded(&self, words: &str) {
        let words = in_json(words);
        let is_told = |text: &str| text.contains("degraded") && text.contains(&words);
        within(PATIENCE, &format!("degraded: {words}"), || is_told(&self.get("/ready").1));
    }

    /// The same, and its log has a line with these words.
    pub(crate) fn until_degraded_and_logged(&self, words: &str) {
        self.until_degraded(words);
        let words = in_json(words);
        within(PATIENCE, &format!("logged: {words}"), || self.log().contains(&words));
    }

    /// Waits until it believes that there are so many servers.
    pub(crate) fn until_nodes(&self, count: u64) {
        within(PATIENCE, "the servers are counted", || {
            self.metric("tidegate_cluster_nodes") == count
        });
    }

    /// The number of servers that it keeps for a start without the store.
    pub(crate) fn nodes_on_disk(&self) -> Option<String> {
        std::fs::read_to_string(self.folder.join("data/nodes")).ok()
    }

    /// How long it takes, from an instant on, until the store decides again.
    pub(crate) fn until_the_store_decides(&self, since: Instant, attributes: &str) -> Duration {
        within(PATIENCE, "the store decides", || self.check(attributes).by == DecidedBy::Store);
        since.elapsed()
    }

    /// The sum of a metric over its labels.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        self.metric_with(name, "")
    }

    /// The sum of a metric over those of its labels that have these words.
    pub(crate) fn metric_with(&self, name: &str, words: &str) -> u64 {
        let token = std::fs::read_to_string(self.folder.join("data/operator-token")).unwrap();
        let bearer = format!("authorization: Bearer {}\r\n", token.trim());
        let text = Http::connect(self.admin).get("/metrics", &bearer).1;
        let lines = text.lines().filter(|line| line.starts_with(name) && line.contains(words));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }

    /// It lives, and met no mistake of its own.
    pub(crate) fn assert_healthy(&mut self) {
        assert!(self.process.is_alive(), "{}", self.log());
        assert_eq!(self.metric("tidegate_panics_total"), 0);
        assert!(!self.log().contains("panicked"), "{}", self.log());
        assert_eq!(self.get("/live").0, 200);
    }
}

/// Words as they stand in a JSON text.
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

    /// Passed, and the store said so.
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

/// The same, but its clock can be set: usually it asks the kernel for the time, and nobody can come in between.
fn binary_that_asks_libc() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| built("tidegate-by-libc", &["--features", "rustix/use-libc"]))
}

/// Builds it, and puts it under a name of its own, for the next build may have other features.
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
