//! The servers of a store: one, the primary that sentinels name, or all primaries of a cluster.
//!
//! ```text
//!   slot ──► map ──► link ──► answered
//!              ▲       └── MOVED, ASK ──► the link it names, if the map knows it ──► answered
//!   keeper ────┘ asks any server for the map: now and then, after a redirect (MOVED), while a server is away,
//!                when a sentinel says that there is another primary
//! ```
//!
//! A server is believed that it does not have a slot, not where another server is: only what the map says is ever
//! connected to.

use super::address::{self, Address, Deployment, Manners};
use super::connection::{Host, connect};
use super::link::{Common, Link, canary, supervised};
use super::script::{Call, Reply, Told};
use super::sentinels::Sentinels;
use super::slots::{Slots, slot_of_state};
use super::trouble::{Class, Trouble};
use super::{LinkReport, RedisClock, RedisSettings, StoreReport};
use crate::clock::Clock;
use crate::error::StoreError;
use crate::key::Secret;
use crate::sync::{Mutex, lock};
use ::redis::{Cmd, Value};
use futures_util::future::join_all;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidegate_core::{Span, StateId, Timestamp};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// All servers of a store, and the way to each.
pub(super) struct Fleet {
    atlas: Arc<Atlas>,
    /// They end with it.
    tasks: Vec<JoinHandle<()>>,
}

/// The map, and what it is drawn from.
struct Atlas {
    common: Arc<Common>,
    manners: Manners,
    source: Source,
    /// Servers that others sent us to and that have no slot yet, as a server has that was just added. Locked to look or to
    /// add; a few, the oldest is forgotten.
    strangers: Mutex<Vec<Address>>,
    /// Replaced whole; locked to look, never across an await.
    map: Mutex<Arc<Map>>,
    /// How often it was drawn.
    drawn: watch::Sender<u64>,
}

/// Who knows where the servers are.
enum Source {
    /// Nobody need be asked.
    Known,
    /// The servers themselves; these at first.
    Cluster(Vec<Address>),
    Sentinels(Box<Sentinels>),
}

struct Map {
    links: Vec<Arc<Link>>,
    /// Who has which slot; without it the first has all.
    slots: Option<Slots>,
    /// Why there is no server, if there is none.
    why: Option<StoreError>,
}

/// A question is sent on at most so often.
const MOST_HOPS: u32 = 8;
/// Servers without slots that are remembered.
const MOST_STRANGERS: usize = 16;
/// How often the map is drawn when nothing is wrong, and when something is.
const DRAWN_EVERY: Duration = Duration::from_secs(2);
const DRAWN_IN_TROUBLE: Duration = Duration::from_millis(200);
/// However many notice at once that it is wrong.
const DRAWN_AT_MOST_EVERY: Duration = Duration::from_millis(20);

impl Fleet {
    /// Connects, or leaves it to the keepers to go on trying; what no patience would mend is an error. The second answer is
    /// how connecting went.
    pub(super) async fn open(
        settings: &RedisSettings,
        secret: &Secret,
    ) -> Result<(Self, Result<(), StoreError>), StoreError> {
        let (deployment, manners) = address::parse(&settings.url, &settings.tls)?;
        let many = matches!(deployment, Deployment::Cluster(_));
        let (source, alone) = match deployment {
            Deployment::One(client) => (Source::Known, Some(Host::Server(Box::new(client)))),
            Deployment::Cluster(places) => (Source::Cluster(places), None),
            Deployment::Sentinels(places, name) => {
                (Source::Sentinels(Box::new(Sentinels::new(places, name))), None)
            }
        };
        let common = Common::new(settings, secret, Clock::system(), many);
        Self::start(common, manners, source, alone).await
    }

    /// Simulated servers, each reached through a network of a test. One has everything, several have equal parts of the slots.
    #[cfg(feature = "testing")]
    pub(super) async fn simulated(
        settings: &RedisSettings,
        secret: &Secret,
        clock: Clock,
        networks: Vec<Arc<dyn super::simulated::Network>>,
    ) -> Result<(Self, Result<(), StoreError>), StoreError> {
        let (_, manners) = address::parse(&settings.url, &settings.tls)?;
        let many = networks.len() > 1;
        let common = Common::new(settings, secret, clock, many);
        let mut hosts = networks.into_iter().map(Host::Simulated);
        if !many {
            return Self::start(common, manners, Source::Known, hosts.next()).await;
        }
        let slots = Slots::even(u16::try_from(hosts.len()).unwrap_or(u16::MAX));
        let fleet = Self { atlas: Atlas::new(common, manners, Source::Known), tasks: vec![] };
        let (mut links, mut worst) = (Vec::new(), Ok(()));
        for ((host, canary), server) in hosts.zip(canaries(&slots)).zip(&slots.servers) {
            let (link, first) =
                Link::open(server.to_string(), host, canary, &fleet.atlas.common).await;
            links.push(link);
            worst = worst.and(first);
        }
        fleet.atlas.publish(Map { links, slots: Some(slots), why: None });
        Ok((fleet, worst))
    }

    async fn start(
        common: Common,
        manners: Manners,
        source: Source,
        alone: Option<Host>,
    ) -> Result<(Self, Result<(), StoreError>), StoreError> {
        let atlas = Atlas::new(common, manners, source);
        let (first, tasks) = match alone {
            Some(host) => {
                let common = &atlas.common;
                let (link, first) =
                    Link::open("store".to_owned(), host, Some(canary(0)), common).await;
                atlas.publish(Map { links: vec![link], slots: None, why: None });
                (first, vec![])
            }
            None => {
                let first = atlas.draw().await;
                let keeper = atlas.spawn(keep);
                let listeners = (0..atlas.sentinels().len())
                    .map(|place| atlas.spawn(move |atlas| listen(atlas, place)));
                (first, listeners.chain([keeper]).collect())
            }
        };
        let fleet = Self { atlas, tasks };
        match first {
            Err(error @ StoreError::Unusable(_)) => Err(error),
            first => Ok((fleet, first)),
        }
    }

    /// A task that is started again when it panics.
    pub(super) fn supervised<F: Future<Output = ()>, T: Fn() -> F>(
        &self,
        task: T,
    ) -> impl Future<Output = ()> + use<F, T> {
        supervised(Arc::clone(&self.atlas.common), task)
    }

    /// Our time.
    pub(super) fn now(&self) -> Timestamp {
        self.atlas.common.clock.now().steady
    }

    /// States of one place are decided by one call.
    pub(super) fn place(&self, state: StateId) -> u16 {
        if self.atlas.common.many { slot_of_state(state) } else { 0 }
    }

    /// The time where a slot is, at an instant of ours: as far as it is known, and at the latest.
    pub(super) fn time_at(&self, slot: u16, ours: Timestamp) -> Option<(Timestamp, Timestamp)> {
        self.atlas.map().link(slot).ok().map(|link| link.time_at(ours))
    }

    /// The time that a script at a slot is told, in milliseconds; nothing where it reads the time itself.
    pub(super) fn told_time(&self, slot: u16) -> String {
        let told = (self.atlas.common.settings.clock == RedisClock::Node)
            .then(|| self.time_at(slot, self.now()))
            .flatten();
        told.map(|(now, _)| (now.as_nanos() / 1_000_000).to_string()).unwrap_or_default()
    }

    /// Whether whoever has a slot can be asked just now.
    pub(super) fn answers(&self, slot: u16) -> bool {
        self.atlas.map().link(slot).is_ok_and(|link| link.complaint().is_none())
    }

    /// Calls the script where a slot is.
    pub(super) async fn call(
        &self,
        slot: u16,
        until: Timestamp,
        call: &Call<'_>,
        told: &Told<'_>,
    ) -> Result<Reply, StoreError> {
        self.sent_on(slot, until, &Scripted { until, call, told }).await
    }

    /// Asks whoever has a slot.
    pub(super) async fn query(
        &self,
        slot: u16,
        until: Timestamp,
        command: &Cmd,
    ) -> Result<Value, StoreError> {
        self.sent_on(slot, until, &Plain { until, command }).await
    }

    /// Asks, and goes where it is sent: whoever sends us on has done nothing.
    async fn sent_on<Q: Question>(
        &self,
        slot: u16,
        until: Timestamp,
        question: &Q,
    ) -> Result<Q::Answer, StoreError> {
        let failed = |class, error| {
            self.atlas.common.counts.count(class);
            Err(error)
        };
        let mut link = match self.atlas.map().link(slot) {
            Ok(link) => link,
            Err(error) => return failed(Class::Down, error),
        };
        let mut asking = false;
        for hop in 0..MOST_HOPS {
            match question.ask(&link, asking).await {
                Ok(answer) => return Ok(answer),
                Err(Trouble::Failed(class, error)) => return failed(class, error),
                Err(Trouble::TryAgain) => {
                    // Its keys are on their way, one after another: a moment each.
                    let pause = Duration::from_millis(1_u64 << hop.min(4));
                    tokio::time::sleep(pause.min(self.left(until).into())).await;
                }
                Err(trouble @ Trouble::NoScript) => {
                    return failed(Class::Other, trouble.into_error());
                }
                Err(trouble @ Trouble::Elsewhere { .. }) if !self.atlas.common.many => {
                    return failed(Class::Redirected, trouble.into_error());
                }
                Err(Trouble::Elsewhere { to, asking: only_now }) => {
                    asking = only_now;
                    link = match self.go(slot, to, asking, until).await {
                        Ok(link) => link,
                        Err(error) => return failed(Class::Redirected, error),
                    };
                }
            }
            if self.left(until) == Span::ZERO {
                let timeout = self.atlas.common.settings.timeout;
                return failed(Class::TimedOut, StoreError::TimedOut(timeout));
            }
        }
        let why = "its servers send us from one to another";
        failed(Class::Redirected, StoreError::Unavailable(why.into()))
    }

    /// The server that we were sent to, or who has the slot by a map that is newer.
    async fn go(
        &self,
        slot: u16,
        to: Option<Address>,
        asking: bool,
        until: Timestamp,
    ) -> Result<Arc<Link>, StoreError> {
        let atlas = &self.atlas;
        let known = |to: &Address| atlas.map().named(&to.to_string());
        let mut drawn = atlas.drawn.subscribe();
        if !asking {
            atlas.common.stale.notify_one();
        }
        if let Some(link) = to.as_ref().and_then(known) {
            return Ok(link);
        }
        if let Some(to) = &to {
            atlas.meet(to);
        }
        atlas.common.stale.notify_one();
        let _ = tokio::time::timeout(self.left(until).into(), drawn.changed()).await;
        to.as_ref().and_then(known).map_or_else(|| atlas.map().link(slot), Ok)
    }

    fn left(&self, until: Timestamp) -> Span {
        until.since(self.now())
    }

    /// Counts an answer that made no sense.
    pub(super) fn count_wrong(&self) {
        self.atlas.common.counts.count(Class::Wrong);
    }

    /// Why a part of the store is not asked at the moment.
    pub(super) fn complaint(&self) -> Option<String> {
        self.atlas.complaint()
    }

    /// How the servers are, and what went wrong so far.
    pub(super) fn report(&self) -> StoreReport {
        let (map, common) = (self.atlas.map(), &self.atlas.common);
        let link = |link: &Arc<Link>| LinkReport {
            name: link.name().to_owned(),
            asked: link.complaint().is_none(),
        };
        StoreReport {
            links: map.links.iter().map(link).collect(),
            errors: common.counts.all(),
            restarts: common.restarts.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Something to ask one server or another.
trait Question: Sync {
    type Answer: Send;

    /// Asks this one; `asking` when it has the slot for this question only.
    fn ask(
        &self,
        link: &Link,
        asking: bool,
    ) -> impl Future<Output = Result<Self::Answer, Trouble>> + Send;
}

/// A call of the script.
struct Scripted<'q> {
    until: Timestamp,
    call: &'q Call<'q>,
    told: &'q Told<'q>,
}

/// A command.
struct Plain<'q> {
    until: Timestamp,
    command: &'q Cmd,
}

impl Question for Scripted<'_> {
    type Answer = Reply;

    async fn ask(&self, link: &Link, asking: bool) -> Result<Reply, Trouble> {
        link.call(self.until, self.call, self.told, asking).await
    }
}

impl Question for Plain<'_> {
    type Answer = Value;

    async fn ask(&self, link: &Link, asking: bool) -> Result<Value, Trouble> {
        link.query(self.until, self.command, asking).await
    }
}

/// Draws the map again and again.
async fn keep(atlas: Arc<Atlas>) {
    loop {
        let pause = if atlas.complaint().is_some() { DRAWN_IN_TROUBLE } else { DRAWN_EVERY };
        let _ = tokio::time::timeout(pause, atlas.common.stale.notified()).await;
        if let Err(error) = atlas.draw().await {
            let mut map = lock(&atlas.map);
            if map.links.is_empty() {
                *map = Arc::new(Map { links: vec![], slots: None, why: Some(error) });
            }
        }
        tokio::time::sleep(DRAWN_AT_MOST_EVERY).await;
    }
}

/// Listens to a sentinel, which tells at once who is the primary now.
async fn listen(atlas: Arc<Atlas>, place: usize) {
    if let (Source::Sentinels(sentinels), Some(place)) =
        (&atlas.source, atlas.sentinels().get(place))
    {
        sentinels.listen(place, &atlas.common, &atlas.manners).await;
    }
}

impl Map {
    fn link(&self, slot: u16) -> Result<Arc<Link>, StoreError> {
        let number = self.slots.as_ref().map_or(Some(0), |slots| slots.owner(slot));
        let link = number.and_then(|number| self.links.get(number)).map(Arc::clone);
        link.ok_or_else(|| match self.no_server() {
            Some(why) => why,
            None => StoreError::Unavailable("no server owns this slot".into()),
        })
    }

    /// Why there is no server to ask, if there is none.
    fn no_server(&self) -> Option<StoreError> {
        let why = || match &self.why {
            Some(why) => Trouble::away(why).into_error(),
            None => StoreError::Unavailable("it was not asked yet".into()),
        };
        self.links.is_empty().then(why)
    }

    fn named(&self, name: &str) -> Option<Arc<Link>> {
        self.links.iter().find(|link| link.name() == name).map(Arc::clone)
    }
}

impl Atlas {
    fn new(common: Common, manners: Manners, source: Source) -> Arc<Self> {
        let nobody = Map { links: vec![], slots: None, why: None };
        Arc::new(Self {
            common: Arc::new(common),
            manners,
            source,
            strangers: Mutex::default(),
            map: Mutex::new(Arc::new(nobody)),
            drawn: watch::channel(0).0,
        })
    }

    /// Starts a task that is started again when it panics.
    fn spawn<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        task: impl Fn(Arc<Self>) -> F + Send + 'static,
    ) -> JoinHandle<()> {
        let atlas = Arc::clone(self);
        tokio::spawn(supervised(Arc::clone(&self.common), move || task(Arc::clone(&atlas))))
    }

    /// Where sentinels are, if there are any.
    fn sentinels(&self) -> &[Address] {
        match &self.source {
            Source::Sentinels(sentinels) => sentinels.places(),
            Source::Known | Source::Cluster(_) => &[],
        }
    }

    fn map(&self) -> Arc<Map> {
        Arc::clone(&lock(&self.map))
    }

    fn publish(&self, map: Map) {
        *lock(&self.map) = Arc::new(map);
        self.drawn.send_modify(|drawn| *drawn = drawn.wrapping_add(1));
    }

    fn complaint(&self) -> Option<String> {
        let map = self.map();
        if let Some(why) = map.no_server() {
            return Some(why.to_string());
        }
        let missing = map.slots.as_ref().map_or(0, Slots::without_owner);
        if missing > 0 {
            return Some(format!("nobody has {missing} slots of the cluster"));
        }
        let away = map.links.iter().find_map(|link| Some((link, link.complaint()?)));
        away.map(|(link, why)| if self.alone() { why } else { format!("{}: {why}", link.name()) })
    }

    const fn alone(&self) -> bool {
        matches!(self.source, Source::Known)
    }

    /// Finds out which servers there are, and connects to those that are new.
    async fn draw(&self) -> Result<(), StoreError> {
        match &self.source {
            Source::Known => Ok(()),
            Source::Cluster(seeds) => {
                let slots = self.survey(seeds).await?;
                let mut canaries = canaries(&slots);
                let mut servers = slots.servers.clone();
                servers.extend(self.newcomers(&slots).await);
                canaries.resize(servers.len(), None);
                let (links, opened) = self.links(&servers, &canaries).await?;
                self.publish(Map { links, slots: Some(slots), why: None });
                opened
            }
            Source::Sentinels(sentinels) => {
                let map = self.map();
                let silent = map.links.iter().find(|link| link.complaint().is_some());
                let silent = silent.map(|link| link.name());
                let primary = sentinels.primary(&self.common, &self.manners, silent).await?;
                let (links, opened) = self.links(&[primary], &[Some(canary(0))]).await?;
                self.publish(Map { links, slots: None, why: None });
                opened
            }
        }
    }

    /// A link to each of these servers; those that were there before stay. The second answer is how connecting to new ones
    /// went.
    async fn links(
        &self,
        servers: &[Address],
        canaries: &[Option<StateId>],
    ) -> Result<(Vec<Arc<Link>>, Result<(), StoreError>), StoreError> {
        let map = self.map();
        let open = async |server: &Address, canary: Option<StateId>| {
            let name = server.to_string();
            if let Some(link) = map.named(&name) {
                link.watch(canary);
                return Ok((link, Ok(())));
            }
            let host = Host::Server(Box::new(self.manners.client(server)?));
            Ok(Link::open(name, host, canary, &self.common).await)
        };
        let opening = servers.iter().zip(canaries).map(|(server, canary)| open(server, *canary));
        let opened = join_all(opening).await.into_iter().collect::<Result<Vec<_>, StoreError>>()?;
        let (links, firsts): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
        // What no patience would mend is told before what it would.
        let mut worst = Ok(());
        for first in firsts {
            if !matches!(worst, Err(StoreError::Unusable(_))) && first.is_err() {
                worst = first;
            }
        }
        Ok((links, worst))
    }

    /// Asks a server for the map: one that is known to answer, or else one that we were told of at first.
    async fn survey(&self, seeds: &[Address]) -> Result<Slots, StoreError> {
        let mut slots = ::redis::cmd("CLUSTER");
        slots.arg("SLOTS");
        let patience = self.common.settings.patience();
        let map = self.map();
        let mut links: Vec<_> =
            map.links.iter().filter(|link| link.complaint().is_none()).collect();
        if !links.is_empty() {
            // Somebody else each time: one of them may know less than the others.
            let turn = usize::try_from(*self.drawn.borrow()).unwrap_or(0);
            let middle = turn.checked_rem(links.len()).unwrap_or(0);
            links.rotate_left(middle);
        }
        for link in links {
            let from = Address::parse(link.name());
            let until = self.common.clock.now().steady.after(patience).unwrap_or(Timestamp::END);
            if let (Some(from), Ok(answer)) = (from, link.query(until, &slots, false).await)
                && let Ok(slots) = Slots::parse(&answer, &from)
            {
                return Ok(slots);
            }
        }
        let mut last = StoreError::Unavailable("nobody knows the cluster".into());
        for seed in seeds {
            let asked = async {
                let client = self.manners.client(seed)?;
                let mut connection = connect(&client, &self.common.settings).await?;
                let answer = slots.query_async(&mut connection).await;
                let told = |error| {
                    not_one_of_them(Trouble::of(&error, self.common.settings.timeout).into_error())
                };
                Slots::parse(&answer.map_err(told)?, seed)
            };
            match tokio::time::timeout(patience.into(), asked).await {
                Ok(Ok(slots)) => return Ok(slots),
                Ok(Err(error)) => last = error,
                Err(_late) => last = StoreError::TimedOut(patience),
            }
        }
        Err(last)
    }

    /// Remembers a server that we were sent to and do not know.
    fn meet(&self, stranger: &Address) {
        let mut strangers = lock(&self.strangers);
        if strangers.contains(stranger) {
            return;
        }
        if strangers.len() >= MOST_STRANGERS {
            strangers.remove(0);
        }
        strangers.push(stranger.clone());
    }

    /// Of the servers that we were sent to those that belong to the cluster, by the word of a server that we know, and have no
    /// slot yet.
    async fn newcomers(&self, slots: &Slots) -> Vec<Address> {
        let mut strangers = lock(&self.strangers).clone();
        strangers.retain(|stranger| !slots.servers.contains(stranger));
        lock(&self.strangers).clone_from(&strangers);
        if strangers.is_empty() {
            return strangers;
        }
        let mut nodes = ::redis::cmd("CLUSTER");
        nodes.arg("NODES");
        let map = self.map();
        for link in map.links.iter().filter(|link| link.complaint().is_none()) {
            let until = self.common.clock.now().steady.after(self.common.settings.patience());
            let answer = link.query(until.unwrap_or(Timestamp::END), &nodes, false).await;
            if let Ok(members) = answer.map(members) {
                strangers.retain(|stranger| members.contains(stranger));
                return strangers;
            }
        }
        vec![]
    }
}

/// Who belongs to a cluster, as CLUSTER NODES tells it: a line each, with `host:port@bus[,name]` as its second word.
fn members(answer: Value) -> Vec<Address> {
    let text: String = ::redis::from_redis_value(answer).unwrap_or_default();
    let mut members = Vec::new();
    for line in text.lines() {
        let place = line.split(' ').nth(1).unwrap_or_default();
        let (address, rest) = place.split_once('@').unwrap_or((place, ""));
        let Some(address) = Address::parse(address) else { continue };
        let name = rest.split(',').nth(1).filter(|name| !name.is_empty());
        members.extend(name.map(|name| Address { host: name.to_owned(), port: address.port }));
        members.push(address);
    }
    members
}

/// A server that does not know such a question is no server of a cluster, or no sentinel.
pub(super) fn not_one_of_them(error: StoreError) -> StoreError {
    match error {
        StoreError::Broken(why) => StoreError::Unusable(why),
        other @ (StoreError::Unavailable(_)
        | StoreError::Refuses(_)
        | StoreError::TimedOut(_)
        | StoreError::Partly(_)
        | StoreError::Overloaded
        | StoreError::TooManyLimits
        | StoreError::Unsupported { .. }
        | StoreError::Unusable(_)) => other,
    }
}

/// For each server a canary on a slot that it has, if it has one of ours.
fn canaries(slots: &Slots) -> Vec<Option<StateId>> {
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
    fn members_are_known_by_address_and_by_name() {
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
