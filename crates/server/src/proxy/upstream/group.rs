//! A group of upstream servers: which of them gets the next request. Shared by all workers.
//!
//! | `balance` | choice |
//! |---|---|
//! | `least_in_flight` | of two random servers, the one with fewer requests in flight (power of two choices) |
//! | `hash: ATTRIBUTE` | the server with the highest hash of value and server (rendezvous hashing), or the next one that is up |
//!
//! At most half of a group is ejected: if nearly all servers fail, the reason is rarely the servers.
//!
//! A server that an operator drains gets no new requests, whatever its health. Its share of the values that are hashed stays its
//! own ([`UpstreamGroup::home`]), so draining grants no fresh allowance.

use super::health::{Observed, ServerHealth};
use super::seats::GroupSeats;
use crate::proxy::routes::{GroupSpec, ServerUrl};
use crate::timers;
use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate::SchedulerReading;
use tokio::time::Instant;

/// A group of upstream servers.
pub(crate) struct UpstreamGroup {
    pub(crate) spec: GroupSpec,
    servers: Vec<UpstreamServer>,
    in_flight: AtomicUsize,
    /// The seats, if their number is bounded. The group of an auth server has none: it refuses what is too much.
    pub(crate) seats: Option<GroupSeats>,
    /// The auth server, as a group of its own.
    pub(crate) auth: Option<Arc<Self>>,
}

/// A server of a group.
#[derive(Default)]
struct UpstreamServer {
    in_flight: AtomicUsize,
    /// All requests so far.
    requests: AtomicU64,
    ejections: AtomicU64,
    /// Set by operators. Read for every request.
    is_draining: AtomicBool,
    /// The last value that was logged. It follows what `health` says.
    is_down: AtomicBool,
    /// Read without the lock, for every request. It follows what `health` says.
    is_ejected: AtomicBool,
    is_slow: AtomicBool,
    health: Mutex<ServerHealth>,
}

/// A group of upstream servers when it is read.
#[derive(Clone, Debug)]
pub(crate) struct GroupReading {
    pub(crate) group: String,
    pub(crate) in_flight: u64,
    /// The seats, if their number is bounded.
    pub(crate) seats: Option<SchedulerReading>,
    pub(crate) servers: Vec<ServerReading>,
}

/// An upstream server when it is read.
#[derive(Clone, Debug)]
pub(crate) struct ServerReading {
    /// Its URL.
    pub(crate) server: String,
    /// Whether it answers requests and health checks.
    pub(crate) is_up: bool,
    pub(crate) is_draining: bool,
    /// How long it still gets no requests, if it was ejected.
    pub(crate) ejected_for: Option<Duration>,
    pub(crate) in_flight: u64,
    pub(crate) requests: u64,
    pub(crate) ejections: u64,
}

/// A request in flight to one server of a group, until it is dropped.
pub(crate) struct ServerSeat {
    group: Arc<UpstreamGroup>,
    server: usize,
}

/// Why a request gets no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoSeat {
    /// The group has reached its limit of requests in flight.
    Full,
    /// Operators drain all servers of the group.
    Drained,
}

/// Whether the servers of a group that get requests answer them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupHealth {
    Up,
    /// All of them are down.
    Down,
    /// Operators drain all servers.
    Drained,
}

impl UpstreamGroup {
    /// A group. When its settings change, `before` is the group with the old ones: its requests in flight keep their seats, and the
    /// servers that it drained stay drained.
    pub(crate) fn new(spec: GroupSpec, before: Option<&Self>) -> Arc<Self> {
        let seats_before = before.and_then(|before| before.seats.as_ref());
        let seats = spec.concurrency.and_then(|limit| match seats_before {
            Some(seats) => seats.with_limit(limit),
            None => GroupSeats::new(limit),
        });
        let auth = spec.auth.as_ref().map(|auth| Arc::new(Self::of(auth.group(&spec.name))));
        let group = Self { seats, auth, ..Self::of(spec) };
        before.iter().for_each(|before| group.adopt_drains(before));
        Arc::new(group)
    }

    fn of(spec: GroupSpec) -> Self {
        let servers = spec.servers.iter().map(|_| UpstreamServer::default()).collect();
        Self { spec, servers, in_flight: AtomicUsize::new(0), seats: None, auth: None }
    }

    pub(crate) fn url(&self, server: usize) -> Option<&ServerUrl> {
        self.spec.servers.get(server)
    }

    pub(crate) const fn len(&self) -> usize {
        self.servers.len()
    }

    // === choosing ===

    /// Takes a seat at the server that gets the next request. Servers that were `tried` are avoided.
    pub(crate) fn seat(
        self: &Arc<Self>,
        random: u64,
        home: Option<&str>,
        tried: &[usize],
    ) -> Result<ServerSeat, NoSeat> {
        let chosen = match home {
            Some(value) => self.by_hash(value, tried),
            None => self.least_loaded(random, tried),
        };
        let server = chosen.ok_or(NoSeat::Drained)?;
        // Relaxed: only a counter.
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        if self.seats.is_none() && self.spec.concurrency.is_some_and(|most| before >= most) {
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
            return Err(NoSeat::Full);
        }
        if let Some(server) = self.servers.get(server) {
            server.in_flight.fetch_add(1, Ordering::Relaxed);
            server.requests.fetch_add(1, Ordering::Relaxed);
        }
        Ok(ServerSeat { group: Arc::clone(self), server })
    }

    /// The name of the server that a value belongs to, whether or not it is up.
    pub(crate) fn home(&self, value: &str) -> Option<&ServerUrl> {
        let ranked = self.spec.servers.iter().max_by_key(|url| rank(value, url));
        ranked.filter(|_| self.len() > 0)
    }

    /// `None`: all servers are drained.
    fn by_hash(&self, value: &str, tried: &[usize]) -> Option<usize> {
        let mut order: Vec<usize> =
            (0..self.len()).filter(|index| !self.is_draining(*index)).collect();
        order.sort_by_key(|index| Reverse(self.url(*index).map(|url| rank(value, url))));
        let first = order.first().copied();
        let up = order.into_iter().find(|index| !tried.contains(index) && self.is_up(*index));
        up.or(first)
    }

    /// `None`: all servers are drained.
    fn least_loaded(&self, random: u64, tried: &[usize]) -> Option<usize> {
        let count = self.len();
        let pick = |bits: u64| {
            let bits = usize::try_from(bits & 0xffff_ffff).unwrap_or(0);
            bits.checked_rem(count).unwrap_or(0)
        };
        let (one, other) = (pick(random), pick(random >> 32));
        let usable = |index: &usize| {
            !tried.contains(index) && !self.is_draining(*index) && self.is_up(*index)
        };
        match (usable(&one), usable(&other)) {
            (true, true) if self.load(other) < self.load(one) => Some(other),
            (true, _) => Some(one),
            (false, true) => Some(other),
            // Both are down: any that is up; else any that was not tried; else the first choice again.
            (false, false) => {
                let after =
                    (0..count).map(|step| one.saturating_add(step).checked_rem(count).unwrap_or(0));
                let mut after = after.filter(|index| !self.is_draining(*index));
                let first = after.clone().next();
                let up = after.clone().find(usable);
                up.or_else(|| after.find(|index| !tried.contains(index))).or(first)
            }
        }
    }

    /// Requests in flight, counted more for a server that came back a short time ago.
    fn load(&self, server: usize) -> usize {
        let Some(server) = self.servers.get(server) else { return usize::MAX };
        let in_flight = server.in_flight.load(Ordering::Relaxed).saturating_add(1);
        if !server.is_slow.load(Ordering::Relaxed) {
            return in_flight.saturating_mul(100);
        }
        let handicap = server.health().handicap(timers::now());
        server.is_slow.store(handicap > 100, Ordering::Relaxed);
        in_flight.saturating_mul(handicap)
    }

    // === health ===

    fn is_up(&self, server: usize) -> bool {
        let Some(server) = self.servers.get(server) else { return false };
        if !server.is_ejected.load(Ordering::Relaxed) {
            return true;
        }
        let comes_back = server.health().comes_back(timers::now());
        if comes_back {
            server.is_slow.store(true, Ordering::Relaxed);
            server.is_ejected.store(false, Ordering::Relaxed);
        }
        comes_back
    }

    /// Takes note of what a request or a check showed about a server.
    pub(crate) fn observe(&self, server: usize, observed: Observed) {
        let Some(found) = self.servers.get(server) else { return };
        let mut health = found.health();
        let ejects = health.observe(observed);
        if health.is_down() != found.is_down.load(Ordering::Relaxed) {
            found.is_down.store(health.is_down(), Ordering::Relaxed);
            self.log_turn(server, observed, health.is_down());
        }
        if !ejects || found.is_ejected.load(Ordering::Relaxed) {
            return;
        }
        if self.ejected().saturating_add(1) > self.len().checked_div(2).unwrap_or(0) {
            return;
        }
        health.eject(timers::now());
        found.is_ejected.store(true, Ordering::Relaxed);
        found.ejections.fetch_add(1, Ordering::Relaxed);
        if let Some(url) = self.url(server) {
            tracing::warn!(
                group = self.spec.name,
                "upstream server {url} gets no requests for now"
            );
        }
    }

    /// Logs that a server has gone down or is back.
    fn log_turn(&self, server: usize, observed: Observed, is_down: bool) {
        let (Some(url), group) = (self.url(server), &self.spec.name) else { return };
        if is_down {
            tracing::warn!(group, "upstream server {url} is down: {}", observed.text());
        } else {
            tracing::info!(group, "upstream server {url} is up again");
        }
    }

    /// Whether the servers that get requests answer them.
    pub(crate) fn health(&self) -> GroupHealth {
        let mut used =
            self.servers.iter().filter(|one| !one.is_draining.load(Ordering::Relaxed)).peekable();
        if used.peek().is_none() {
            return GroupHealth::Drained;
        }
        let all_down = used.all(|server| server.is_down.load(Ordering::Relaxed));
        if all_down { GroupHealth::Down } else { GroupHealth::Up }
    }

    /// How many servers get no requests.
    pub(crate) fn ejected(&self) -> usize {
        self.servers.iter().filter(|server| server.is_ejected.load(Ordering::Relaxed)).count()
    }

    // === operators ===

    fn is_draining(&self, server: usize) -> bool {
        let server = self.servers.get(server);
        server.is_some_and(|server| server.is_draining.load(Ordering::Relaxed))
    }

    /// Drains a server, or brings it back. `false`: the group has no such server.
    pub(crate) fn drain(&self, url: &ServerUrl, drains: bool) -> bool {
        let mut servers = self.spec.servers.iter().zip(&self.servers);
        let Some((_, server)) = servers.find(|(known, _)| *known == url) else { return false };
        server.is_draining.store(drains, Ordering::Relaxed);
        true
    }

    /// Goes on draining the servers that were drained in this group before its settings changed.
    fn adopt_drains(&self, before: &Self) {
        for (index, url) in before.spec.servers.iter().enumerate() {
            if before.is_draining(index) {
                self.drain(url, true);
            }
        }
    }

    /// The group and its servers as they are now.
    pub(crate) fn reading(&self) -> GroupReading {
        let now = timers::now();
        let servers = self.spec.servers.iter().zip(&self.servers);
        GroupReading {
            group: self.spec.name.clone(),
            in_flight: count(&self.in_flight),
            seats: self.seats.as_ref().map(GroupSeats::reading),
            servers: servers.map(|(url, server)| server.reading(url, now)).collect(),
        }
    }
}

fn count(counter: &AtomicUsize) -> u64 {
    u64::try_from(counter.load(Ordering::Relaxed)).unwrap_or(u64::MAX)
}

impl UpstreamServer {
    fn health(&self) -> MutexGuard<'_, ServerHealth> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reading(&self, url: &ServerUrl, now: Instant) -> ServerReading {
        let health = self.health();
        ServerReading {
            server: url.to_string(),
            is_up: !health.is_down(),
            is_draining: self.is_draining.load(Ordering::Relaxed),
            ejected_for: health.ejected_for(now),
            in_flight: count(&self.in_flight),
            requests: self.requests.load(Ordering::Relaxed),
            ejections: self.ejections.load(Ordering::Relaxed),
        }
    }
}

/// The rank of a server for a value. It depends on nothing else, so all nodes agree on it.
fn rank(value: &str, url: &ServerUrl) -> u64 {
    let text = url.to_string();
    let bytes = value.bytes().chain([0]).chain(text.bytes());
    // FNV-1a, then the finalizer of SplitMix64, because the last bytes of FNV-1a barely change its high bits.
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

// === impl ServerSeat ===

impl ServerSeat {
    pub(crate) const fn server(&self) -> usize {
        self.server
    }

    pub(crate) fn observe(&self, observed: Observed) {
        self.group.observe(self.server, observed);
    }
}

impl Drop for ServerSeat {
    fn drop(&mut self) {
        self.group.in_flight.fetch_sub(1, Ordering::Relaxed);
        if let Some(server) = self.group.servers.get(self.server) {
            server.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::routes::Routes;

    fn group(settings: &str) -> Arc<UpstreamGroup> {
        let servers = "http://10.0.0.1, http://10.0.0.2, http://10.0.0.3";
        let text = format!("groups: {{ api: {{ servers: [{servers}]{settings} }} }}");
        UpstreamGroup::new(Routes::parse(text.as_bytes()).unwrap().groups.remove(0), None)
    }

    fn drain(group: &UpstreamGroup, servers: &[usize], drains: bool) {
        for server in servers {
            assert!(group.drain(&group.spec.servers[*server], drains));
        }
    }

    /// The servers that a thousand requests go to.
    fn chosen(group: &Arc<UpstreamGroup>, by_hash: bool) -> Vec<usize> {
        let seat = |number: u64| {
            let value = number.to_string();
            let random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            group.seat(random, by_hash.then_some(&*value), &[]).unwrap().server()
        };
        let mut all: Vec<usize> = (1..=1_000).map(seat).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    #[test]
    fn a_server_that_is_drained_gets_no_new_requests() {
        for by_hash in [false, true] {
            let group = group("");
            assert_eq!(chosen(&group, by_hash), [0, 1, 2]);
            drain(&group, &[1], true);
            assert_eq!(chosen(&group, by_hash), [0, 2]);
            // A server that is down gets requests again before a server that is drained does.
            for server in [0, 2] {
                group.observe(server, Observed::Refused);
            }
            assert_eq!(group.ejected(), 1);
            assert!(!chosen(&group, by_hash).contains(&1));
            assert!(group.seat(7, by_hash.then_some("x"), &[0, 2]).unwrap().server() != 1);
            drain(&group, &[0, 2], true);
            assert_eq!(group.seat(7, by_hash.then_some("x"), &[]).err(), Some(NoSeat::Drained));
            drain(&group, &[1], false);
            assert_eq!(chosen(&group, by_hash), [1]);
        }
    }

    #[test]
    fn the_home_of_a_value_does_not_depend_on_draining() {
        let group = group(", balance: { hash: user }");
        let homes = || {
            let home = |value: u32| group.home(&value.to_string()).unwrap().to_string();
            (0..100).map(home).collect::<Vec<_>>()
        };
        let before = homes();
        drain(&group, &[0, 1], true);
        assert_eq!(homes(), before);
    }

    #[test]
    fn a_group_is_down_when_all_servers_that_get_requests_are() {
        let group = group("");
        assert_eq!(group.health(), GroupHealth::Up);
        (0..2).for_each(|server| group.observe(server, Observed::Refused));
        assert_eq!(group.health(), GroupHealth::Up);
        drain(&group, &[2], true);
        assert_eq!(group.health(), GroupHealth::Down);
        // At most half of the group is ejected, and yet all are down.
        assert_eq!(group.ejected(), 1);
        group.observe(1, Observed::Answered);
        assert_eq!(group.health(), GroupHealth::Up);
        drain(&group, &[0, 1], true);
        assert_eq!(group.health(), GroupHealth::Drained);
    }

    #[test]
    fn draining_goes_on_when_the_settings_of_the_group_change() {
        let (before, other) = (group(""), group(", concurrency: 5"));
        drain(&before, &[2], true);
        let after = UpstreamGroup::new(other.spec.clone(), Some(&before));
        let draining = |one: &ServerReading| one.is_draining;
        let draining: Vec<bool> = after.reading().servers.iter().map(draining).collect();
        assert_eq!(draining, [false, false, true]);
    }

    #[test]
    fn a_reading_tells_what_a_server_does() {
        let group = group("");
        let seat = group.seat(0, None, &[1, 2]).unwrap();
        group.observe(1, Observed::Refused);
        let reading = group.reading();
        assert_eq!((&*reading.group, reading.in_flight), ("api", 1));
        let [zero, one, two] = &reading.servers[..] else { panic!("{reading:?}") };
        assert_eq!((&*zero.server, zero.in_flight, zero.requests), ("http://10.0.0.1", 1, 1));
        assert!(!one.is_up && one.ejections == 1 && one.ejected_for.is_some(), "{one:?}");
        assert!(two.is_up && two.ejections == 0 && two.ejected_for.is_none(), "{two:?}");
        drop(seat);
        assert_eq!(group.reading().in_flight, 0);
    }
}
