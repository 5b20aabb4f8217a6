//! A shop behind Envoy, and a tidegate. All of them end when the mesh is dropped.

use crate::support::upstream::{Upstream, free_address};
use crate::support::{self, PATIENCE, Reply, Server, pause, project, request};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub(crate) struct Mesh {
    pub(crate) shop: Upstream,
    pub(crate) tidegate: Server,
    pub(crate) envoy: Envoy,
    _pools: [Upstream; 2],
}

/// The parts of a mesh.
pub(crate) struct Setup {
    /// Envoy's configuration.
    pub(crate) envoy: Config,
    /// The flags of tidegate, besides its address.
    pub(crate) flags: Vec<String>,
    /// The files in tidegate's folder before it starts: names and texts.
    pub(crate) files: Vec<(&'static str, String)>,
}

/// Envoy's configuration as text.
#[derive(Clone)]
pub(crate) struct Config(pub(crate) String);

/// A running Envoy.
pub(crate) struct Envoy {
    http: SocketAddr,
    admin: SocketAddr,
    folder: PathBuf,
    child: Child,
}

pub(crate) const RULES: &str = include_str!("rules.yaml");
const ENVOY: &str = include_str!("envoy.yaml");

// === impl Setup ===

impl Setup {
    /// With the rule file of this folder, `rules.yaml`.
    pub(crate) fn by_rules() -> Self {
        let files = vec![("rules/shop.yaml", RULES.to_owned())];
        Self { envoy: Config(ENVOY.to_owned()), flags: vec![], files }
            .flags(&["--envoy-config", "rules"])
    }

    /// With a policy of these rules.
    pub(crate) fn by_policy(rules: &str) -> Self {
        let files = vec![("policy.yaml", format!("version: 1\nrules:\n{rules}\n"))];
        Self { envoy: Config(ENVOY.to_owned()), flags: vec![], files }
            .flags(&["--policy", "policy.yaml"])
    }

    pub(crate) fn flags(mut self, flags: &[&str]) -> Self {
        self.flags.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self
    }

    /// With a replacement in Envoy's configuration.
    pub(crate) fn with(self, from: &str, to: &str) -> Self {
        Self { envoy: self.envoy.with(from, to), ..self }
    }

    pub(crate) fn start(self) -> Mesh {
        Mesh::of(self.tidegate(free_address()), self.envoy)
    }

    /// A tidegate with a folder of its own.
    pub(crate) fn tidegate(&self, address: SocketAddr) -> Server {
        let folder = support::folder("mesh");
        for (name, text) in &self.files {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let listen = address.to_string();
        let inside = |flag: &String| {
            let path = folder.join(flag);
            if path.exists() { path.display().to_string() } else { flag.clone() }
        };
        let flags: Vec<String> = self.flags.iter().map(inside).collect();
        let mut all = vec!["--grpc-listen", &listen];
        all.extend(flags.iter().map(String::as_str));
        Server::start_in(folder.clone(), &all)
    }
}

// === impl Config ===

impl Config {
    pub(crate) fn with(self, from: &str, to: &str) -> Self {
        assert!(self.0.contains(from), "`{from}` is not in the configuration");
        Self(self.0.replace(from, to))
    }

    /// With an address in place of a port that the configuration names.
    pub(crate) fn at(self, port: u16, address: SocketAddr) -> Self {
        let (ip, real) = (address.ip(), address.port());
        let written = |ip: &str, port| format!("address: {ip}, port_value: {port} }}");
        self.with(&written("127.0.0.1", port), &written(&ip.to_string(), real))
    }
}

// === impl Mesh ===

impl Mesh {
    /// An Envoy that asks this tidegate.
    pub(crate) fn of(tidegate: Server, config: Config) -> Self {
        let shop = Upstream::start("the shop");
        let pools = [Upstream::start("north"), Upstream::start("south")];
        let [north, south] = &pools;
        let config = config
            .at(3000, shop.address)
            .at(3001, north.address)
            .at(3002, south.address)
            .at(8081, tidegate.grpc);
        Self { shop, tidegate, envoy: Envoy::start(&config), _pools: pools }
    }

    /// Requests a path with these header fields.
    pub(crate) fn get(&self, path: &str, fields: &[(&str, &str)]) -> Reply {
        self.envoy.get(path, fields)
    }

    /// The statuses of this many requests, one after another.
    pub(crate) fn statuses(&self, count: usize, path: &str, fields: &[(&str, &str)]) -> Vec<u16> {
        (0..count).map(|_| self.get(path, fields).status).collect()
    }

    /// Sends requests until an answer meets the condition.
    pub(crate) fn until(&self, path: &str, fields: &[(&str, &str)], is: impl Fn(&Reply) -> bool) {
        self.tidegate.until(path, |_| is(&self.get(path, fields)));
    }

    /// How often a rule had this outcome.
    pub(crate) fn decisions(&self, rule: &str, outcome: &str) -> u64 {
        self.counted(&[&format!("rule=\"{rule}\""), &format!("outcome=\"{outcome}\"")])
    }

    /// How many decisions were made by the store, or by the fallback.
    pub(crate) fn decided_by(&self, by: &str) -> u64 {
        self.counted(&[&format!("decided_by=\"{by}\"")])
    }

    /// The number of decisions with these labels.
    fn counted(&self, labels: &[&str]) -> u64 {
        let metrics = self.tidegate.admin("GET", "/metrics", "", "").body;
        let lines = metrics.lines().filter(|line| {
            line.starts_with("tidegate_decisions_total{protocol=\"grpc\"")
                && labels.iter().all(|label| line.contains(label))
        });
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }
}

// === impl Envoy ===

impl Envoy {
    pub(crate) fn start(config: &Config) -> Self {
        let binary = project("target/envoy/envoy");
        assert!(binary.exists(), "there is no {}: run make deps", binary.display());
        let folder = support::folder("envoy");
        std::fs::write(folder.join("envoy.yaml"), &config.0).unwrap();
        let log = std::fs::File::create(folder.join("log")).unwrap();
        // Envoy ends with the test, however the test ends.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(binary)
            .args(["--config-path", "envoy.yaml", "--admin-address-path", "admin"])
            .args(["--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warn"])
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut envoy = Self { http: nowhere, admin: nowhere, folder, child };
        envoy.admin = envoy.until("it has no admin address", Self::admin_address);
        envoy.http = envoy.until("it is not ready", Self::listener);
        envoy
    }

    pub(crate) fn get(&self, path: &str, fields: &[(&str, &str)]) -> Reply {
        request(self.http, "GET", path, fields, "")
    }

    /// Sends these bytes on a new connection, and reads one answer.
    pub(crate) fn send(&self, bytes: &[u8]) -> Reply {
        let mut stream = support::connect(self.http);
        stream.write_all(bytes).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        Reply::parse(&String::from_utf8_lossy(&all))
    }

    /// One of Envoy's own statistics.
    pub(crate) fn stat(&self, name: &str) -> u64 {
        let stats = request(self.admin, "GET", &format!("/stats?filter=^{name}$"), &[], "").body;
        let line = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("no {name} in\n{stats}")).parse().unwrap()
    }

    fn admin_address(&self) -> Option<SocketAddr> {
        std::fs::read_to_string(self.folder.join("admin")).ok()?.trim().parse().ok()
    }

    /// The address of its listener, once it is ready.
    fn listener(&self) -> Option<SocketAddr> {
        if request(self.admin, "GET", "/ready", &[], "").status != 200 {
            return None;
        }
        let listeners = request(self.admin, "GET", "/listeners?format=text", &[], "").body;
        listeners.lines().find_map(|line| line.split_once("::"))?.1.parse().ok()
    }

    /// Tries until there is a result, or Envoy has ended.
    fn until<T>(&mut self, complaint: &str, look: impl Fn(&Self) -> Option<T>) -> T {
        let tries = PATIENCE.as_millis() / 10;
        for _ in 0..tries {
            if let Some(found) = look(self) {
                return found;
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("Envoy has ended: {status}\n{}", self.log());
            }
            pause(Duration::from_millis(10));
        }
        panic!("{complaint}\n{}", self.log());
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("Envoy's log:\n{}", self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
