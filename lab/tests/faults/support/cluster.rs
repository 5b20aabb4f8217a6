//! A Redis Cluster of three primaries with a replica each: six real servers.

use super::redis::{Redis, ask, counts};
use super::{PATIENCE, within};
use redis::Connection;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Redis>,
}

/// How long a node is missed before it is replaced.
pub(crate) const NODE_TIMEOUT_MS: u64 = 2_000;
const SLOTS: &str = "cluster_slots_ok:16384";

impl Cluster {
    /// Starts it, and returns when every node knows all slots and every replica has caught up: a primary that is lost
    /// before is not replaced.
    pub(crate) fn start() -> Self {
        let timeout = NODE_TIMEOUT_MS.to_string();
        let arguments = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            &timeout,
            "--repl-diskless-sync-delay",
            "0",
            // Otherwise the others refuse everything, too, from when one is missed until it is replaced.
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

    /// Where servers find it: two of its nodes tell them of the others.
    pub(crate) fn url(&self) -> String {
        let [first, second, ..] = self.nodes.as_slice() else { panic!("no nodes") };
        format!("redis+cluster://{},{}", first.address, second.address)
    }

    /// Which node leads, of those that are there.
    pub(crate) fn primaries(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|number| self.leads(*number)).collect()
    }

    pub(crate) fn leads(&self, number: usize) -> bool {
        self.reached(number).is_some_and(|mut connection| {
            let told: String = ask(&mut connection, &["INFO", "replication"]);
            told.contains("role:master")
        })
    }

    fn reached(&self, number: usize) -> Option<Connection> {
        self.nodes[number].is_running().then(|| self.nodes[number].connect())
    }

    /// The identity of a node.
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

    /// The primary that has the slot of a key.
    pub(crate) fn home_of(&self, key: &str) -> usize {
        let holds = |number: &usize| {
            // Others say where it is instead.
            let mut connection = self.nodes[*number].connect();
            redis::cmd("EXISTS")
                .arg(key)
                .query::<u64>(&mut connection)
                .is_ok_and(|found| found == 1)
        };
        self.primaries().into_iter().find(holds).unwrap_or_else(|| panic!("nobody has {key}"))
    }

    /// Moves so many slots from one primary to another, while it is used; first all have to agree where they are.
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

    /// What fixed windows have counted, over all primaries.
    pub(crate) fn counts(&self) -> BTreeMap<Vec<u8>, u64> {
        let primaries = self.primaries();
        primaries.iter().flat_map(|number| counts(&mut self.nodes[*number].connect())).collect()
    }

    /// On how many primaries something is counted.
    pub(crate) fn homes(&self) -> usize {
        let counts = |number: &usize| !counts(&mut self.nodes[*number].connect()).is_empty();
        self.primaries().iter().filter(|number| counts(number)).count()
    }

    /// How often errors that begin with a word were answered by any node that is there.
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

/// The same; what it said when it failed.
fn succeeds(arguments: &[String]) -> Result<(), String> {
    let output = Command::new("redis-cli").args(arguments).stdin(Stdio::null()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    // A check that finds fault says so, and ends as if it had found none.
    if output.status.success() && !told.contains("[ERR]") { Ok(()) } else { Err(told) }
}
