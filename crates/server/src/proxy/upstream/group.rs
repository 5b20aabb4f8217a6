//! A group of upstream servers: which of them gets the next request. Shared by all workers.
//!
//! | `balance` | choice |
//! |---|---|
//! | `least_in_flight` | of two random servers, the one with fewer requests in flight (power of two choices) |
//! | `hash: ATTRIBUTE` | the server with the highest hash of value and server (rendezvous hashing), or the next one that is up |
//!
//! At most half of a group is ejected: if nearly all servers fail, the reason is rarely the servers.

use super::health::{Observed, ServerHealth};
use crate::proxy::routes::{GroupSpec, ServerUrl};
use crate::timers;
use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A group of upstream servers.
pub(crate) struct UpstreamGroup {
    pub(crate) spec: GroupSpec,
    servers: Vec<UpstreamServer>,
    in_flight: AtomicUsize,
}

/// A server of a group.
struct UpstreamServer {
    in_flight: AtomicUsize,
    /// Read without the lock, for every request. It follows what `health` says.
    is_ejected: AtomicBool,
    is_slow: AtomicBool,
    health: Mutex<ServerHealth>,
}

/// A request in flight to one server of a group, until it is dropped.
pub(crate) struct Seat {
    group: Arc<UpstreamGroup>,
    server: usize,
}

/// All seats of the group are taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GroupFull;

impl UpstreamGroup {
    pub(crate) fn new(spec: GroupSpec) -> Arc<Self> {
        let server = || UpstreamServer {
            in_flight: AtomicUsize::new(0),
            is_ejected: AtomicBool::new(false),
            is_slow: AtomicBool::new(false),
            health: Mutex::default(),
        };
        let servers = spec.servers.iter().map(|_| server()).collect();
        Arc::new(Self { spec, servers, in_flight: AtomicUsize::new(0) })
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
    ) -> Result<Seat, GroupFull> {
        // Relaxed: only a counter.
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        if self.spec.concurrency.is_some_and(|most| before >= most) {
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
            return Err(GroupFull);
        }
        let server = match home {
            Some(value) => self.by_hash(value, tried),
            None => self.least_loaded(random, tried),
        };
        if let Some(server) = self.servers.get(server) {
            server.in_flight.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Seat { group: Arc::clone(self), server })
    }

    /// The name of the server that a value belongs to, whether or not it is up.
    pub(crate) fn home(&self, value: &str) -> Option<&ServerUrl> {
        let ranked = self.spec.servers.iter().max_by_key(|url| rank(value, url));
        ranked.filter(|_| self.len() > 0)
    }

    fn by_hash(&self, value: &str, tried: &[usize]) -> usize {
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_by_key(|index| Reverse(self.url(*index).map(|url| rank(value, url))));
        let first = order.first().copied().unwrap_or(0);
        let up = order.into_iter().find(|index| !tried.contains(index) && self.is_up(*index));
        up.unwrap_or(first)
    }

    fn least_loaded(&self, random: u64, tried: &[usize]) -> usize {
        let count = self.len();
        let pick = |bits: u64| {
            let bits = usize::try_from(bits & 0xffff_ffff).unwrap_or(0);
            bits.checked_rem(count).unwrap_or(0)
        };
        let (one, other) = (pick(random), pick(random >> 32));
        let usable = |index: &usize| !tried.contains(index) && self.is_up(*index);
        match (usable(&one), usable(&other)) {
            (true, true) if self.load(other) < self.load(one) => other,
            (true, _) => one,
            (false, true) => other,
            // Both are down: any that is up; else any that was not tried; else the first choice again.
            (false, false) => {
                let after =
                    (0..count).map(|step| one.saturating_add(step).checked_rem(count).unwrap_or(0));
                let up = after.clone().find(usable);
                up.or_else(|| after.clone().find(|index| !tried.contains(index))).unwrap_or(one)
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
        if !health.observe(observed) || found.is_ejected.load(Ordering::Relaxed) {
            return;
        }
        if self.ejected().saturating_add(1) > self.len().checked_div(2).unwrap_or(0) {
            return;
        }
        health.eject(timers::now());
        found.is_ejected.store(true, Ordering::Relaxed);
        if let Some(url) = self.url(server) {
            tracing::warn!(
                group = self.spec.name,
                "upstream server {url} gets no requests for now"
            );
        }
    }

    /// How many servers get no requests.
    pub(crate) fn ejected(&self) -> usize {
        self.servers.iter().filter(|server| server.is_ejected.load(Ordering::Relaxed)).count()
    }
}

impl UpstreamServer {
    fn health(&self) -> MutexGuard<'_, ServerHealth> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
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

// === impl Seat ===

impl Seat {
    pub(crate) const fn server(&self) -> usize {
        self.server
    }

    pub(crate) fn observe(&self, observed: Observed) {
        self.group.observe(self.server, observed);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.group.in_flight.fetch_sub(1, Ordering::Relaxed);
        if let Some(server) = self.group.servers.get(self.server) {
            server.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
