//! A real cluster of three primaries for a test, on its own ports, killed at the end of the test.

use super::address::{look_again, own_ip, own_port};
use super::server::binary;
use super::settings;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tidegate_core::Timestamp;
use tidegate_store::testing::{Declared, Rig};
use tidegate_store::{Redis, Secret};

/// Slots of a cluster.
const SLOTS: usize = 16_384;
/// Timeout of every step on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The processes of a cluster.
pub(crate) struct Cluster {
    servers: Vec<(u16, Child)>,
    /// The ports of the cluster bus.
    buses: Vec<u16>,
    folder: PathBuf,
}

impl Cluster {
    /// Starts three primaries that share the slots evenly.
    pub(crate) async fn start(engine: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-cluster-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let mut cluster = Self { servers: vec![], buses: vec![], folder };
        for _ in 0..3 {
            cluster.add(engine);
        }
        let ports = cluster.ports();
        let (first, bus) = (ports[0].to_string(), cluster.buses[0].to_string());
        for port in &ports[1..] {
            let ip = own_ip().to_string();
            cluster.tell(*port, &["CLUSTER", "MEET", &ip, &first, &bus]).await;
        }
        for (third, port) in ports.iter().enumerate() {
            let slots = third * SLOTS / 3..(third + 1) * SLOTS / 3;
            let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
            let mut words = vec!["CLUSTER", "ADDSLOTS"];
            words.extend(slots.iter().map(String::as_str));
            cluster.tell(*port, &words).await;
        }
        cluster.until_ok().await;
        cluster
    }

    /// Adds a server that does not know the others yet. It has one port for clients and one for the cluster bus.
    fn add(&mut self, engine: &str) {
        let (ip, port, bus) = (own_ip().to_string(), own_port(), own_port());
        let folder = self.folder.join(port.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        let child = Command::new(binary(engine))
            .args(["--bind", &ip, "--port", &port.to_string(), "--save", ""])
            .args(["--cluster-announce-ip", &ip])
            .args(["--cluster-enabled", "yes", "--cluster-port", &bus.to_string()])
            .args(["--cluster-node-timeout", "60000", "--dir"])
            .arg(&folder)
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{engine}: {error}; `make deps` installs it"));
        self.servers.push((port, child));
        self.buses.push(bus);
    }

    pub(crate) fn ports(&self) -> Vec<u16> {
        self.servers.iter().map(|(port, _)| *port).collect()
    }

    /// One server: the others are found through it.
    pub(crate) fn url(&self) -> String {
        format!("redis+cluster://{}:{}", own_ip(), self.servers[0].0)
    }

    /// Adds a fourth server, which owns no slots.
    pub(crate) async fn grow(&mut self, engine: &str) {
        let (first, bus) = (self.servers[0].0.to_string(), self.buses[0].to_string());
        self.add(engine);
        let port = self.servers[self.servers.len() - 1].0;
        let ip = own_ip().to_string();
        self.tell(port, &["CLUSTER", "MEET", &ip, &first, &bus]).await;
        self.until_ok().await;
    }

    /// Waits until every server knows of all slots.
    pub(crate) async fn until_ok(&self) {
        let known = format!("cluster_known_nodes:{}\r", self.servers.len());
        let ok = async |port| {
            let info = self.tell(port, &["CLUSTER", "INFO"]).await;
            let info = redis::from_redis_value::<String>(info).unwrap();
            info.contains("cluster_state:ok") && info.contains(&known)
        };
        for port in self.ports() {
            let waiting = async {
                while !ok(port).await {
                    look_again().await;
                }
            };
            tokio::time::timeout(PATIENCE, waiting).await.unwrap();
        }
    }

    pub(crate) async fn connection(&self, port: u16) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(format!("redis://{}:{port}/", own_ip())).unwrap();
        let patient = redis::AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
        // The server may still be starting.
        let connecting = async {
            loop {
                match client.get_multiplexed_async_connection_with_config(&patient).await {
                    Ok(connection) => return connection,
                    Err(_) => look_again().await,
                }
            }
        };
        tokio::time::timeout(PATIENCE, connecting).await.unwrap()
    }

    pub(crate) async fn tell(&self, port: u16, words: &[&str]) -> redis::Value {
        let mut connection = self.connection(port).await;
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command
            .query_async(&mut connection)
            .await
            .unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Kills a server (SIGKILL).
    pub(crate) fn kill(&mut self, server: usize) {
        let (_, child) = &mut self.servers[server];
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Begins to migrate the slot of a key, and does not finish.
    pub(crate) async fn begin_to_move(&self, key: u128, from: usize, to: usize) {
        let (source, target) = (self.servers[from].0, self.servers[to].0);
        let id = async |port| {
            redis::from_redis_value::<String>(self.tell(port, &["CLUSTER", "MYID"]).await).unwrap()
        };
        let slot = self.slot_of(key).await.to_string();
        let importing = ["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(source).await];
        self.tell(target, &importing).await;
        let migrating = ["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(target).await];
        self.tell(source, &migrating).await;
    }

    /// The slot of a key's states, as the engine says it.
    async fn slot_of(&self, key: u128) -> usize {
        let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let letter = |byte: u128| char::from(letters[usize::try_from(byte & 63).unwrap()]);
        let tag = format!("{{{}{}}}", letter(key >> 8), letter(key));
        let slot = self.tell(self.servers[0].0, &["CLUSTER", "KEYSLOT", &tag]).await;
        redis::from_redis_value(slot).unwrap()
    }

    /// A key below 1,000 whose states are on this server.
    pub(crate) async fn key_on(&self, server: usize) -> u128 {
        for key in 1..1_000_u128 {
            let slot = self.slot_of(key).await;
            if (server * SLOTS / 3..(server + 1) * SLOTS / 3).contains(&slot) {
                return key;
            }
        }
        panic!("no key on server {server}");
    }

    /// Migrates one key of a key's slot. False if the source has none left.
    pub(crate) async fn move_one_key(&self, key: u128, from: usize, to: usize) -> bool {
        let mut source = self.connection(self.servers[from].0).await;
        migrate_one_key(&mut source, &self.slot_of(key).await.to_string(), self.servers[to].0).await
    }

    /// Ends the migration of a key's slot.
    pub(crate) async fn finish_move(&self, key: u128, from: usize, to: usize) {
        let (source, target) = (self.servers[from].0, self.servers[to].0);
        let id: String =
            redis::from_redis_value(self.tell(target, &["CLUSTER", "MYID"]).await).unwrap();
        let slot = self.slot_of(key).await.to_string();
        for port in [target, source] {
            self.tell(port, &["CLUSTER", "SETSLOT", &slot, "NODE", &id]).await;
        }
    }

    /// How many commands this server has answered with TRYAGAIN.
    pub(crate) async fn retries_told(&self, server: usize) -> u64 {
        let stats = self.tell(self.servers[server].0, &["INFO", "errorstats"]).await;
        let stats: String = redis::from_redis_value(stats).unwrap();
        let count = stats.lines().find_map(|line| line.strip_prefix("errorstat_TRYAGAIN:count="));
        count.map_or(0, |count| count.trim().parse().unwrap())
    }

    /// Migrates all slots that hold keys from one server to another, key by key, as redis-cli does. Returns how many.
    pub(crate) async fn move_slots(&self, from: usize, to: usize) -> usize {
        let (source, target) = (self.servers[from].0, self.servers[to].0);
        let id = async |port| {
            redis::from_redis_value::<String>(self.tell(port, &["CLUSTER", "MYID"]).await).unwrap()
        };
        let (source_id, target_id) = (id(source).await, id(target).await);
        let (mut at_source, mut at_target) =
            (self.connection(source).await, self.connection(target).await);
        let slots = from * SLOTS / 3..(from + 1) * SLOTS / 3;
        let mut moved = 0;
        for slot in slots {
            let mut count = redis::cmd("CLUSTER");
            count.arg("COUNTKEYSINSLOT").arg(slot);
            if count.query_async::<u64>(&mut at_source).await.unwrap() == 0 {
                continue;
            }
            let slot = slot.to_string();
            let set = |state: &str, id: &str| {
                let mut set = redis::cmd("CLUSTER");
                set.arg("SETSLOT").arg(&slot).arg(state).arg(id);
                set
            };
            let () = set("IMPORTING", &source_id).query_async(&mut at_target).await.unwrap();
            let () = set("MIGRATING", &target_id).query_async(&mut at_source).await.unwrap();
            while migrate_one_key(&mut at_source, &slot, target).await {}
            for connection in [&mut at_target, &mut at_source] {
                let () = set("NODE", &target_id).query_async(connection).await.unwrap();
            }
            moved += 1;
        }
        moved
    }

    /// A store on this cluster.
    pub(crate) async fn store(&self) -> Redis {
        Redis::connect(&settings::redis(&self.url()), &Secret::new([7; 32])).await.unwrap()
    }

    /// A store whose scripts use the test's time, on an emptied cluster.
    pub(crate) async fn rig(&self) -> Rig<Redis> {
        for port in self.ports() {
            self.tell(port, &["FLUSHALL"]).await;
        }
        let store = self.store().await;
        Rig {
            store,
            set_time: Box::new(|store: &Redis, now: Timestamp| store.set_test_time(now)),
            declared: Declared::default(),
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for (_, child) in &mut self.servers {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Migrates one key of a slot to a server. False if the slot has none.
async fn migrate_one_key(
    source: &mut redis::aio::MultiplexedConnection,
    slot: &str,
    target: u16,
) -> bool {
    let mut keys = redis::cmd("CLUSTER");
    keys.arg("GETKEYSINSLOT").arg(slot).arg(1);
    let keys: Vec<Vec<u8>> = keys.query_async(source).await.unwrap();
    if keys.is_empty() {
        return false;
    }
    let mut migrate = redis::cmd("MIGRATE");
    migrate.arg(own_ip().to_string()).arg(target).arg("").arg(0).arg(60_000);
    let () = migrate.arg("KEYS").arg(keys).query_async(source).await.unwrap();
    true
}
