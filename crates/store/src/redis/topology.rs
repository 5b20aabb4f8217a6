//! The topology of the store: which servers it has, and which of them owns each slot.
//!
//! ```text
//!   one server          fixed
//!   cluster             CLUSTER SLOTS of any server; CLUSTER NODES confirms redirect targets without slots
//!   sentinels           the primary that they name
//! ```
//!
//! A background task refreshes the topology: every 2 s, every 200 ms while a server is down, and immediately after a redirect
//! or a sentinel's event.
//!
//! Trust MOVED about ownership, never its address: a redirect proves that the server does not own the slot, but the store
//! connects only to servers that the cluster itself lists.

use super::address::{Address, ConnectOptions};
use super::canary::canary;
use super::command_error::{CommandError, unusable_if_broken};
use super::connection::{Host, connect};
use super::context::StoreContext;
use super::link::Link;
use super::sentinels::Sentinels;
use super::slots::{Slots, slot_of_state};
use crate::error::StoreError;
use crate::remote::{supervised, timers};
use crate::sync::{Mutex, lock};
use ::redis::{Cmd, Value};
use futures_util::future::join_all;
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::StateId;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The current servers of a store, and how they are discovered.
pub(super) struct Topology {
    pub(super) context: Arc<StoreContext>,
    options: ConnectOptions,
    discovery: Discovery,
    /// Redirect targets that own no slot as far as we know, like a server that has just joined the cluster. Locked to look or
    /// to add; bounded, the oldest is forgotten.
    redirect_targets: Mutex<Vec<Address>>,
    /// Replaced whole; locked to look, never across an await.
    map: Mutex<Arc<ServerMap>>,
    /// How often the map was published.
    published: watch::Sender<u64>,
}

/// How the servers are discovered.
pub(super) enum Discovery {
    /// The servers are fixed.
    Fixed,
    /// CLUSTER SLOTS; these seeds are asked first.
    Cluster(Vec<Address>),
    Sentinels(Box<Sentinels>),
}

/// A snapshot of the topology.
pub(super) struct ServerMap {
    pub(super) links: Vec<Arc<Link>>,
    /// The owner of each slot; without it the first server owns all.
    pub(super) slots: Option<Slots>,
    /// Why there is no server, if there is none.
    pub(super) discovery_error: Option<StoreError>,
}

/// Redirect targets without slots that are remembered.
const MAX_REDIRECT_TARGETS: usize = 16;
/// How often the topology is refreshed while all is well, and while something is wrong.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);
const REFRESH_INTERVAL_IN_TROUBLE: Duration = Duration::from_millis(200);
/// Pause between two refreshes, however many callers report a stale topology.
const MIN_REFRESH_PAUSE: Duration = Duration::from_millis(20);

// === impl ServerMap ===

impl ServerMap {
    /// The link to the owner of a slot.
    pub(super) fn link(&self, slot: u16) -> Result<Arc<Link>, StoreError> {
        let index = self.slots.as_ref().map_or(Some(0), |slots| slots.owner(slot));
        let link = index.and_then(|index| self.links.get(index)).map(Arc::clone);
        link.ok_or_else(|| match self.no_server() {
            Some(why) => why,
            None => StoreError::Unavailable("no server owns this slot".into()),
        })
    }

    /// Why there is no server, if there is none.
    fn no_server(&self) -> Option<StoreError> {
        let why = || match &self.discovery_error {
            Some(why) => why.not_sent(),
            None => StoreError::Unavailable("not connected yet".into()),
        };
        self.links.is_empty().then(why)
    }

    pub(super) fn by_address(&self, address: &str) -> Option<Arc<Link>> {
        self.links.iter().find(|link| link.name() == address).map(Arc::clone)
    }

    /// The links whose breaker is closed.
    fn healthy_links(&self) -> Vec<&Arc<Link>> {
        self.links.iter().filter(|link| link.complaint().is_none()).collect()
    }
}

// === impl Topology ===

impl Topology {
    pub(super) fn new(
        context: StoreContext,
        options: ConnectOptions,
        discovery: Discovery,
    ) -> Arc<Self> {
        let empty = ServerMap { links: vec![], slots: None, discovery_error: None };
        Arc::new(Self {
            context: Arc::new(context),
            options,
            discovery,
            redirect_targets: Mutex::default(),
            map: Mutex::new(Arc::new(empty)),
            published: watch::channel(0).0,
        })
    }

    /// Starts the task that refreshes the topology, and one that listens to each sentinel.
    pub(super) fn start_tasks(self: &Arc<Self>) -> Vec<JoinHandle<()>> {
        let sentinels = match &self.discovery {
            Discovery::Sentinels(sentinels) => sentinels.addresses().len(),
            Discovery::Fixed | Discovery::Cluster(_) => 0,
        };
        let listeners = (0..sentinels).map(|index| self.spawn(move |it| listen(it, index)));
        listeners.chain([self.spawn(refresh_for_ever)]).collect()
    }

    /// Starts a task, which is started again whenever it panics.
    fn spawn<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        task: impl Fn(Arc<Self>) -> F + Send + 'static,
    ) -> JoinHandle<()> {
        let topology = Arc::clone(self);
        tokio::spawn(supervised(Arc::clone(&self.context.restarts), move || {
            task(Arc::clone(&topology))
        }))
    }

    pub(super) fn map(&self) -> Arc<ServerMap> {
        Arc::clone(&lock(&self.map))
    }

    pub(super) fn publish(&self, map: ServerMap) {
        if self.map().slots != map.slots {
            self.context.begin_epoch();
        }
        *lock(&self.map) = Arc::new(map);
        self.published.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Changes whenever a map is published.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.published.subscribe()
    }

    /// Why a part of the store is not called at the moment.
    pub(super) fn complaint(&self) -> Option<String> {
        let map = self.map();
        if let Some(why) = map.no_server() {
            return Some(why.to_string());
        }
        let missing = map.slots.as_ref().map_or(0, Slots::without_owner);
        if missing > 0 {
            return Some(format!("{missing} slots of the cluster have no owner"));
        }
        let (link, why) = map.links.iter().find_map(|link| Some((link, link.complaint()?)))?;
        let only_one = matches!(self.discovery, Discovery::Fixed);
        Some(if only_one { why } else { format!("{}: {why}", link.name()) })
    }

    // === discovery ===

    /// Discovers the servers, connects to new ones, and publishes the map.
    pub(super) async fn refresh(&self) -> Result<(), StoreError> {
        let (servers, canaries, slots) = match &self.discovery {
            Discovery::Fixed => return Ok(()),
            Discovery::Cluster(seeds) => {
                let slots = self.query_slots(seeds).await?;
                let mut canaries = canaries(&slots);
                let mut servers = slots.servers.clone();
                servers.extend(self.confirmed_redirect_targets(&slots).await);
                canaries.resize(servers.len(), None);
                (servers, canaries, Some(slots))
            }
            Discovery::Sentinels(sentinels) => {
                let map = self.map();
                let unreachable = map.links.iter().find(|link| link.complaint().is_some());
                let unreachable = unreachable.map(|link| link.name());
                let primary = sentinels.primary(&self.context, &self.options, unreachable).await?;
                (vec![primary], vec![Some(canary(0))], None)
            }
        };
        let (links, connected) = self.open_links(&servers, &canaries).await?;
        self.publish(ServerMap { links, slots, discovery_error: None });
        connected
    }

    /// A link to each of these servers; existing links are kept. The second value is the result of connecting to new servers.
    async fn open_links(
        &self,
        servers: &[Address],
        canaries: &[Option<StateId>],
    ) -> Result<(Vec<Arc<Link>>, Result<(), StoreError>), StoreError> {
        let map = self.map();
        let open = async |server: &Address, canary: Option<StateId>| {
            let name = server.to_string();
            if let Some(link) = map.by_address(&name) {
                link.set_canary(canary);
                return Ok((link, Ok(())));
            }
            let host = Host::Server(Box::new(self.options.client(server)?));
            Ok(Link::open(name, host, canary, &self.context).await)
        };
        let opening = servers.iter().zip(canaries).map(|(server, canary)| open(server, *canary));
        let opened = join_all(opening).await.into_iter().collect::<Result<Vec<_>, StoreError>>()?;
        let (links, results): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
        // An error that retrying cannot fix is reported before one that it may fix.
        let mut worst = Ok(());
        for result in results {
            let is_for_good = worst.as_ref().is_err_and(StoreError::is_for_good);
            if !is_for_good && result.is_err() {
                worst = result;
            }
        }
        Ok((links, worst))
    }

    /// Runs CLUSTER SLOTS on a healthy server, or else on one of the seeds.
    async fn query_slots(&self, seeds: &[Address]) -> Result<Slots, StoreError> {
        let mut command = ::redis::cmd("CLUSTER");
        command.arg("SLOTS");
        if let Some(slots) = self.slots_of_links(&command).await {
            return Ok(slots);
        }
        let timeout = self.context.settings.longest_timeout();
        let mut last_error = StoreError::Unavailable("no seed of the cluster answers".into());
        for seed in seeds {
            match tokio::time::timeout(timeout.into(), self.slots_of_seed(seed, &command)).await {
                Ok(Ok(slots)) => return Ok(slots),
                Ok(Err(error)) => last_error = error,
                Err(_late) => last_error = StoreError::TimedOut(timeout),
            }
        }
        Err(last_error)
    }

    async fn slots_of_links(&self, command: &Cmd) -> Option<Slots> {
        let map = self.map();
        let mut links = map.healthy_links();
        // Round robin: a single server may have an outdated view of the cluster.
        let turn = usize::try_from(*self.published.borrow()).unwrap_or(0);
        let first = turn.checked_rem(links.len()).unwrap_or(0);
        links.rotate_left(first);
        for link in links {
            let from = Address::parse(link.name());
            let until = self.context.background_deadline();
            if let (Some(from), Ok(reply)) = (from, link.query(until, command, false).await)
                && let Ok(slots) = Slots::parse(&reply, &from)
            {
                return Some(slots);
            }
        }
        None
    }

    async fn slots_of_seed(&self, seed: &Address, command: &Cmd) -> Result<Slots, StoreError> {
        let client = self.options.client(seed)?;
        let mut connection = connect(&client, &self.context.settings).await?;
        let reply = command.query_async(&mut connection).await.map_err(|error| {
            unusable_if_broken(CommandError::of(&error, self.context.settings.timeout).into_error())
        })?;
        Slots::parse(&reply, seed)
    }

    // === redirect targets ===

    /// Remembers a redirect target that is not in the map.
    pub(super) fn remember_redirect_target(&self, target: &Address) {
        let mut targets = lock(&self.redirect_targets);
        if targets.contains(target) {
            return;
        }
        if targets.len() >= MAX_REDIRECT_TARGETS {
            targets.remove(0);
        }
        targets.push(target.clone());
    }

    /// Redirect targets that own no slot yet and that `CLUSTER NODES` of a known server confirms.
    async fn confirmed_redirect_targets(&self, slots: &Slots) -> Vec<Address> {
        let mut targets = lock(&self.redirect_targets).clone();
        targets.retain(|target| !slots.servers.contains(target));
        lock(&self.redirect_targets).clone_from(&targets);
        if targets.is_empty() {
            return targets;
        }
        let mut command = ::redis::cmd("CLUSTER");
        command.arg("NODES");
        let map = self.map();
        for link in map.healthy_links() {
            let until = self.context.background_deadline();
            if let Ok(members) = link.query(until, &command, false).await.map(members) {
                targets.retain(|target| members.contains(target));
                return targets;
            }
        }
        vec![]
    }
}

/// Refreshes the topology, for ever.
async fn refresh_for_ever(topology: Arc<Topology>) {
    loop {
        let in_trouble = topology.complaint().is_some();
        let pause = if in_trouble { REFRESH_INTERVAL_IN_TROUBLE } else { REFRESH_INTERVAL };
        let _ = tokio::time::timeout(pause, topology.context.topology_stale.notified()).await;
        if let Err(error) = topology.refresh().await {
            let mut map = lock(&topology.map);
            if map.links.is_empty() {
                let discovery_error = Some(error);
                *map = Arc::new(ServerMap { links: vec![], slots: None, discovery_error });
            }
        }
        timers::sleep(MIN_REFRESH_PAUSE).await;
    }
}

/// Listens to one sentinel, for ever.
async fn listen(topology: Arc<Topology>, index: usize) {
    if let Discovery::Sentinels(sentinels) = &topology.discovery
        && let Some(sentinel) = sentinels.addresses().get(index)
    {
        sentinels.listen(sentinel, &topology.context, &topology.options).await;
    }
}

/// The members of a cluster in the reply to CLUSTER NODES: a line each, with `host:port@bus[,name]` as its second word.
fn members(reply: Value) -> Vec<Address> {
    let text: String = ::redis::from_redis_value(reply).unwrap_or_default();
    let mut members = Vec::new();
    for line in text.lines() {
        let endpoint = line.split(' ').nth(1).unwrap_or_default();
        let (address, rest) = endpoint.split_once('@').unwrap_or((endpoint, ""));
        let Some(address) = Address::parse(address) else { continue };
        let name = rest.split(',').nth(1).filter(|name| !name.is_empty());
        members.extend(name.map(|name| Address { host: name.to_owned(), port: address.port }));
        members.push(address);
    }
    members
}

/// For each server a canary state in a slot that it owns, if it owns a slot that our keys can have.
pub(super) fn canaries(slots: &Slots) -> Vec<Option<StateId>> {
    let mut canaries = vec![None; slots.servers.len()];
    for tag in (0..64_u16).flat_map(|high| (0..64).map(move |low| high << 8 | low)) {
        let state = canary(tag);
        if let Some(owner) = slots.owner(slot_of_state(state))
            && let Some(canary) = canaries.get_mut(owner)
            && canary.is_none()
        {
            *canary = Some(state);
        }
    }
    canaries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_listed_by_address_and_by_name() {
        let text = "07c3 127.0.0.1:30004@31004,hostname4 slave e7d1 0 1426238317239 4 connected\n\
                    67ed 127.0.0.1:30002@31002 master - 0 1426238316232 2 connected 5461-10922\n\
                    292f :0@0 master,noaddr - 1 1 1 disconnected\n\
                    nonsense\n";
        let members = members(Value::BulkString(text.as_bytes().to_vec()));
        let shown: Vec<String> = members.iter().map(Address::to_string).collect();
        assert_eq!(shown, ["hostname4:30004", "127.0.0.1:30004", "127.0.0.1:30002"]);
        assert!(super::members(Value::Nil).is_empty());
    }
}
