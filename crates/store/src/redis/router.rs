//! Routing: sends each call to the server that owns its slot, and follows MOVED and ASK redirects.
//!
//! ```text
//!   slot ──► server map ──► link ──► reply
//!                ▲            └── MOVED, ASK ──► the link to the target, if the map has it ──► reply
//!                └── refreshed in the background, and immediately after a redirect
//! ```

use super::address::{self, Address, ConnectOptions, Deployment};
use super::canary::canary;
use super::command_error::CommandError;
use super::connection::Host;
use super::context::StoreContext;
use super::link::Link;
use super::script::{ScriptCall, ScriptHints, ScriptReply};
use super::sentinels::Sentinels;
use super::settings::{RedisClock, RedisSettings};
use super::slots::slot_of_state;
use super::topology::{Discovery, ServerMap, Topology};
use crate::clock::Clock;
use crate::error::StoreError;
use crate::key::Secret;
use crate::remote::{ErrorClass, supervised, timers};
use crate::reports::{LinkReport, StoreReport};
use ::redis::{Cmd, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidegate_core::{Span, StateId, Timestamp};
use tokio::task::JoinHandle;

/// Sends calls to the servers of a store.
pub(super) struct Router {
    topology: Arc<Topology>,
    /// Background tasks of the topology; aborted when the router is dropped.
    tasks: Vec<JoinHandle<()>>,
}

/// How many redirects one call follows.
const MAX_REDIRECTS: u32 = 8;

impl Router {
    /// Connects, or leaves it to background tasks to go on trying. An error that retrying cannot fix is returned. The second
    /// value is the result of the first attempt to connect.
    pub(super) async fn open(
        settings: &RedisSettings,
        secret: &Secret,
    ) -> Result<(Self, Result<(), StoreError>), StoreError> {
        let (deployment, options) = address::parse(&settings.url, &settings.tls)?;
        let is_cluster = matches!(deployment, Deployment::Cluster(_));
        let context = StoreContext::new(settings, secret, Clock::system(), is_cluster);
        let (discovery, only_host) = match deployment {
            Deployment::One(client) => (Discovery::Fixed, Some(Host::Server(Box::new(client)))),
            Deployment::Cluster(seeds) => (Discovery::Cluster(seeds), None),
            Deployment::Sentinels(sentinels, name) => {
                (Discovery::Sentinels(Box::new(Sentinels::new(sentinels, name))), None)
            }
        };
        Self::start(context, options, discovery, only_host).await
    }

    /// Simulated servers, each behind a network of a test. A single server owns everything; several divide the slots evenly.
    #[cfg(feature = "testing")]
    pub(super) async fn simulated(
        settings: &RedisSettings,
        secret: &Secret,
        clock: Clock,
        networks: Vec<Arc<dyn super::simulated::Network>>,
    ) -> Result<(Self, Result<(), StoreError>), StoreError> {
        let (_, options) = address::parse(&settings.url, &settings.tls)?;
        let is_cluster = networks.len() > 1;
        let context = StoreContext::new(settings, secret, clock, is_cluster);
        let mut hosts = networks.into_iter().map(Host::Simulated);
        if !is_cluster {
            return Self::start(context, options, Discovery::Fixed, hosts.next()).await;
        }
        let slots = super::slots::Slots::even(u16::try_from(hosts.len()).unwrap_or(u16::MAX));
        let canaries = super::topology::canaries(&slots);
        let topology = Topology::new(context, options, Discovery::Fixed);
        let (mut links, mut worst) = (Vec::new(), Ok(()));
        for ((host, canary), server) in hosts.zip(canaries).zip(&slots.servers) {
            let (link, first) =
                Link::open(server.to_string(), host, canary, &topology.context).await;
            links.push(link);
            worst = worst.and(first);
        }
        topology.publish(ServerMap { links, slots: Some(slots), discovery_error: None });
        Ok((Self { topology, tasks: vec![] }, worst))
    }

    async fn start(
        context: StoreContext,
        options: ConnectOptions,
        discovery: Discovery,
        only_host: Option<Host>,
    ) -> Result<(Self, Result<(), StoreError>), StoreError> {
        let topology = Topology::new(context, options, discovery);
        let (first, tasks) = match only_host {
            Some(host) => {
                let context = &topology.context;
                let (link, first) =
                    Link::open("store".to_owned(), host, Some(canary(0)), context).await;
                let links = vec![link];
                topology.publish(ServerMap { links, slots: None, discovery_error: None });
                (first, vec![])
            }
            None => (topology.refresh().await, topology.start_tasks()),
        };
        let router = Self { topology, tasks };
        match first {
            Err(error) if error.is_for_good() => Err(error),
            first => Ok((router, first)),
        }
    }

    fn context(&self) -> &StoreContext {
        &self.topology.context
    }

    /// How often a background task panicked and was started again.
    pub(super) fn restarts(&self) -> &Arc<AtomicU64> {
        &self.context().restarts
    }

    /// A background task that is started again whenever it panics.
    pub(super) fn supervised<F: Future<Output = ()>, T: Fn() -> F>(
        &self,
        task: T,
    ) -> impl Future<Output = ()> + use<F, T> {
        supervised(Arc::clone(&self.context().restarts), task)
    }

    /// The time by this node's monotonic clock.
    pub(super) fn now(&self) -> Timestamp {
        self.context().now()
    }

    /// The time since boot, and the number of the present epoch.
    pub(super) fn since_boot_and_epoch(&self) -> (Timestamp, u64) {
        let context = self.context();
        (context.clock.since_boot(), context.epoch.load(Ordering::Acquire))
    }

    /// Whose clock decides.
    pub(super) fn clock_kind(&self) -> RedisClock {
        self.context().settings.clock
    }

    /// The slot by which a state is routed: 0 for all states unless the store is a cluster. States of one slot can be decided
    /// by one call.
    pub(super) fn slot(&self, state: StateId) -> u16 {
        if self.context().is_cluster { slot_of_state(state) } else { 0 }
    }

    /// The time of the server that owns a slot, at an instant of the node's clock: the estimate, and the latest that it can be.
    pub(super) fn server_time(
        &self,
        slot: u16,
        local: Timestamp,
    ) -> Option<(Timestamp, Timestamp)> {
        self.topology.map().link(slot).ok().map(|link| link.server_time(local))
    }

    /// The time in milliseconds that a small script is given as an argument; empty if it reads the server's clock itself.
    pub(super) fn time_argument(&self, slot: u16) -> String {
        let time = (self.context().settings.clock == RedisClock::Node)
            .then(|| self.server_time(slot, self.now()))
            .flatten();
        time.map(|(now, _)| (now.as_nanos() / 1_000_000).to_string()).unwrap_or_default()
    }

    /// The store has started.
    pub(super) fn started(&self) {
        self.context().is_running.store(true, Ordering::Relaxed);
    }

    /// For how long the owner of a slot is back, if it was away before.
    pub(super) fn back_for(&self, slot: u16) -> Option<Span> {
        self.topology.map().link(slot).ok()?.back_for()
    }

    /// Whether the owner of a slot can be called: it is known, and its breaker is closed.
    pub(super) fn is_reachable(&self, slot: u16) -> bool {
        self.topology.map().link(slot).is_ok_and(|link| link.complaint().is_none())
    }

    /// Calls the script on the owner of a slot.
    pub(super) async fn call(
        &self,
        slot: u16,
        until: Timestamp,
        call: &ScriptCall<'_>,
        hints: &ScriptHints<'_>,
    ) -> Result<ScriptReply, StoreError> {
        self.route(slot, until, &ScriptRequest { until, call, hints }).await
    }

    /// Sends a command to the owner of a slot.
    pub(super) async fn query(
        &self,
        slot: u16,
        until: Timestamp,
        command: &Cmd,
    ) -> Result<Value, StoreError> {
        self.route(slot, until, &CommandRequest { until, command }).await
    }

    /// Sends a request to the owner of a slot and follows redirects. A server that redirects has done nothing, so this counts
    /// nothing twice.
    async fn route<R: RoutedRequest>(
        &self,
        slot: u16,
        until: Timestamp,
        request: &R,
    ) -> Result<R::Reply, StoreError> {
        let failed = |class, error| {
            self.context().error_counts.count(class);
            Err(error)
        };
        let mut link = match self.topology.map().link(slot) {
            Ok(link) => link,
            Err(error) => return failed(ErrorClass::Down, error),
        };
        let (mut asking, mut redirects, mut retries) = (false, 0, 0_u32);
        while redirects <= MAX_REDIRECTS {
            match request.send(&link, asking).await {
                Ok(reply) => return Ok(reply),
                Err(CommandError::Failed(class, error)) => return failed(class, error),
                Err(CommandError::TryAgain) => {
                    // The slot's keys are migrated one by one, which takes as long as the slot has keys: exponential backoff, 1
                    // ms to 16 ms, until the call's time is over.
                    let pause = Duration::from_millis(1_u64 << retries.min(4));
                    retries = retries.saturating_add(1);
                    timers::sleep(pause.min(self.left(until).into())).await;
                }
                Err(error @ (CommandError::NotLoaded | CommandError::NoFunctions(_))) => {
                    return failed(ErrorClass::Other, error.into_error());
                }
                Err(error @ CommandError::Redirect { .. }) if !self.context().is_cluster => {
                    return failed(ErrorClass::Redirected, error.into_error());
                }
                Err(CommandError::Redirect { to, asking: ask }) => {
                    asking = ask;
                    redirects = redirects.saturating_add(1);
                    link = match self.redirect(slot, to, asking, until).await {
                        Ok(link) => link,
                        Err(error) => return failed(ErrorClass::Redirected, error),
                    };
                }
            }
            if self.left(until) == Span::ZERO {
                let timeout = self.context().settings.timeout;
                return failed(ErrorClass::TimedOut, StoreError::TimedOut(timeout));
            }
        }
        let why = "too many redirects between the servers of the cluster";
        failed(ErrorClass::Redirected, StoreError::Unavailable(why.into()))
    }

    /// The link to a redirect target, if the map has it, also after a refresh; otherwise to the slot's owner by the new map.
    async fn redirect(
        &self,
        slot: u16,
        to: Option<Address>,
        asking: bool,
        until: Timestamp,
    ) -> Result<Arc<Link>, StoreError> {
        let topology = &self.topology;
        let known = |to: &Address| topology.map().by_address(&to.to_string());
        let mut changes = topology.changes();
        if !asking {
            self.context().topology_stale.notify_one();
        }
        if let Some(link) = to.as_ref().and_then(known) {
            return Ok(link);
        }
        if let Some(to) = &to {
            topology.remember_redirect_target(to);
        }
        self.context().topology_stale.notify_one();
        let _ = tokio::time::timeout(self.left(until).into(), changes.changed()).await;
        to.as_ref().and_then(known).map_or_else(|| topology.map().link(slot), Ok)
    }

    fn left(&self, until: Timestamp) -> Span {
        until.since(self.now())
    }

    /// Counts a reply that is not valid.
    pub(super) fn count_wrong(&self) {
        self.context().error_counts.count(ErrorClass::Wrong);
    }

    /// Why a part of the store is not called at the moment.
    pub(super) fn complaint(&self) -> Option<String> {
        self.topology.complaint()
    }

    /// The state of the servers, and the errors so far.
    pub(super) fn report(&self) -> StoreReport {
        let (map, context) = (self.topology.map(), self.context());
        let link = |link: &Arc<Link>| LinkReport {
            name: link.name().to_owned(),
            asked: link.complaint().is_none(),
        };
        StoreReport {
            links: map.links.iter().map(link).collect(),
            errors: context.error_counts.all(),
            losses: vec![],
            restarts: context.restarts.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// A request that can be sent to one server after another.
trait RoutedRequest: Sync {
    type Reply: Send;

    /// Sends it over this link; `asking` after an ASK redirect.
    fn send(
        &self,
        link: &Link,
        asking: bool,
    ) -> impl Future<Output = Result<Self::Reply, CommandError>> + Send;
}

/// A script call.
struct ScriptRequest<'q> {
    until: Timestamp,
    call: &'q ScriptCall<'q>,
    hints: &'q ScriptHints<'q>,
}

/// A command.
struct CommandRequest<'q> {
    until: Timestamp,
    command: &'q Cmd,
}

impl RoutedRequest for ScriptRequest<'_> {
    type Reply = ScriptReply;

    async fn send(&self, link: &Link, asking: bool) -> Result<ScriptReply, CommandError> {
        link.call(self.until, self.call, self.hints, asking).await
    }
}

impl RoutedRequest for CommandRequest<'_> {
    type Reply = Value;

    async fn send(&self, link: &Link, asking: bool) -> Result<Value, CommandError> {
        link.query(self.until, self.command, asking).await
    }
}
