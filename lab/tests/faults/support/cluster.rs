//! A Redis Cluster of six real servers: three primaries with one replica each.

use super::redis::{Redis, ask, counts};
use super::{PATIENCE, within};
use redis::Connection;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Redis>,
}

/// How long a node must be unreachable before its replica takes over.
pub(crate) const NODE_TIMEOUT_MS: u64 = 2_000;
const SLOTS: &str = "cluster_slots_ok:16384";

impl Cluster {
    /// Starts the cluster. Returns when every node knows all slots and every replica has caught up: a primary
    /// that is lost earlier is not replaced.
    pub(crate) fn start() -> Self {
        let timeout = NODE_TIMEOUT_MS.to_string();
        let arguments = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            &timeout,
            "--repl-diskless-sync-delay",
            "0",
            // Otherwise all primaries refuse commands from the loss of one until it is replaced.
            "--cluster-require-full-coverage",
            "no",
        ];
        let cluster = Self { nodes: (0..6).map(|_| Redis::with(&arguments, None)).collect() };
        let addresses = cluster.nodes.iter().map(|node| node.address.to_string());
        let mut create = vec!["--cluster".to_owned(), "create".to_owned()];
        create.extend(addresses);
        create.extend(["--cluster-replicas", "1", "--cluster-yes"].map(str::to_owned));
        run(&create);
        within(PATIENCE, "the cluster is whole", || cluster.is_whole());
        cluster
    }

    fn is_whole(&self) -> bool {
        self.nodes.iter().all(|node| {
            let mut connection = node.connect();
            let known: String = ask(&mut connection, &["CLUSTER", "INFO"]);
            let link: String = ask(&mut connection, &["INFO", "replication"]);
            let id: String = ask(&mut connection, &["CLUSTER", "MYID"]);
            let paired = if link.contains("role:master") {
                let replicas: Vec<String> = ask(&mut connection, &["CLUSTER", "REPLICAS", &id]);
                replicas.len() == 1 && link.contains("connected_slaves:1")
            } else {
                link.contains("master_link_status:up")
            };
            known.contains("cluster_state:ok") && known.contains(SLOTS) && paired
        })
    }

    /// The URL for tidegate. It names two nodes, from which the servers learn the others.
    pub(crate) fn url(&self) -> String {
        let [first, second, ..] = self.nodes.as_slice() else { panic!("no nodes") };
        format!("redis+cluster://{},{}", first.address, second.address)
    }

    /// The running nodes that are primaries.
    pub(crate) fn primaries(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|number| self.is_primary(*number)).collect()
    }

    pub(crate) fn is_primary(&self, number: usize) -> bool {
        self.reached(number).is_some_and(|mut connection| {
            let told: String = ask(&mut connection, &["INFO", "replication"]);
            told.contains("role:master")
        })
    }

    fn reached(&self, number: usize) -> Option<Connection> {
        self.nodes[number].is_running().then(|| self.nodes[number].connect())
    }

    /// The cluster id of a node.
    pub(crate) fn id(&self, number: usize) -> String {
        self.nodes[number].tell(&["CLUSTER", "MYID"])
    }

    /// The replica of a primary.
    pub(crate) fn replica_of(&self, primary: usize) -> usize {
        let id = self.id(primary);
        let list: Vec<String> = self.nodes[primary].tell(&["CLUSTER", "REPLICAS", &id]);
        let follows =
            |node: &Redis| list.iter().any(|line| line.contains(&node.address.to_string()));
        self.nodes.iter().position(follows).unwrap_or_else(|| panic!("{list:?}"))
    }

    /// The primary that holds a key.
    pub(crate) fn home_of(&self, key: &str) -> usize {
        let holds = |number: &usize| {
            // Other nodes reply with a redirect.
            let mut connection = self.nodes[*number].connect();
            redis::cmd("EXISTS")
                .arg(key)
                .query::<u64>(&mut connection)
                .is_ok_and(|found| found == 1)
        };
        self.primaries().into_iter().find(holds).unwrap_or_else(|| panic!("no primary has {key}"))
    }

    /// Moves this many slots from one primary to another under load. Before that it waits until all nodes
    /// agree about the slots.
    pub(crate) fn reshard(&self, from: usize, to: usize, slots: u32) {
        let check = ["--cluster", "check", &self.nodes[from].address.to_string()];
        within(PATIENCE, "all nodes agree", || succeeds(&check.map(str::to_owned)).is_ok());
        let (from_id, to_id) = (self.id(from), self.id(to));
        let words = ["--cluster", "reshard", &self.nodes[from].address.to_string()];
        let mut all: Vec<String> = words.map(str::to_owned).to_vec();
        let slots = slots.to_string();
        all.extend(["--cluster-from", &from_id, "--cluster-to", &to_id].map(str::to_owned));
        all.extend(["--cluster-slots", &slots, "--cluster-yes"].map(str::to_owned));
        run(&all);
    }

    /// The counts of all fixed windows, over all primaries.
    pub(crate) fn counts(&self) -> BTreeMap<Vec<u8>, u64> {
        let primaries = self.primaries();
        primaries.iter().flat_map(|number| counts(&mut self.nodes[*number].connect())).collect()
    }

    /// The number of primaries that hold counts.
    pub(crate) fn homes(&self) -> usize {
        let counts = |number: &usize| !counts(&mut self.nodes[*number].connect()).is_empty();
        self.primaries().iter().filter(|number| counts(number)).count()
    }

    /// How often the running nodes replied with this kind of error.
    pub(crate) fn errors(&self, word: &str) -> u64 {
        let of = |mut connection: Connection| {
            let stats: String = ask(&mut connection, &["INFO", "errorstats"]);
            let name = format!("errorstat_{word}:count=");
            let line = stats.lines().find_map(|line| line.strip_prefix(&name));
            line.map_or(0, |count| count.trim().parse::<u64>().unwrap())
        };
        (0..self.nodes.len()).filter_map(|number| self.reached(number)).map(of).sum()
    }
}

/// Runs redis-cli to its end.
fn run(arguments: &[String]) {
    succeeds(arguments).unwrap_or_else(|told| panic!("{arguments:?}\n{told}"));
}

/// Runs redis-cli to its end; the error is its output if it failed.
fn succeeds(arguments: &[String]) -> Result<(), String> {
    let output = Command::new("redis-cli").args(arguments).stdin(Stdio::null()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    // `--cluster check` exits with 0 even when it reports errors.
    if output.status.success() && !told.contains("[ERR]") { Ok(()) } else { Err(told) }
}
