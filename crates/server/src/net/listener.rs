//! A listener that accepts a bounded number of connections.
//!
//! Three bounds apply: the cap of the listener, the cap for one source address, and the number of files that may be open. A
//! source that the policy trusts is a proxy, which forwards the requests of many clients. Its cap is seven eighths of the
//! listener's cap, so that one client behind the proxy cannot make the proxy be refused.
//!
//! On the admin listener, a connection that has not sent a token gives way to a newer one: see [`super::unauthenticated`].

use super::budget::SourceBytes;
use super::caps::Caps;
use super::drain::Drain;
use super::open_files::FileQuota;
use super::unauthenticated::{Unauthenticated, UnauthenticatedList};
use crate::bounds;
use crate::health::Health;
use crate::metrics::{ConnectionCount, Metrics, Refused};
use crate::timers;
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// The listeners of the server. Each has a group of settings with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Listener {
    Http,
    Grpc,
    Resp,
    Proxy,
    Admin,
    /// Serves the metrics without a token.
    Metrics,
}

/// What a listener is opened with.
pub(crate) struct ListenerPlan {
    pub(crate) listener: Listener,
    pub(crate) address: SocketAddr,
    pub(crate) caps: Caps,
    pub(crate) files: FileQuota,
    pub(crate) trusts: IsTrustedProxy,
}

/// Whether a peer is a trusted proxy, by the policy that is in force when it connects.
pub(crate) type IsTrustedProxy = Box<dyn Fn(IpAddr) -> bool>;

/// A TCP listener with caps on its connections.
pub(crate) struct BoundedListener {
    listener: TcpListener,
    admission: Arc<Admission>,
    trusts: IsTrustedProxy,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    /// Whether the last `accept` failed because no more files may be open.
    out_of_files: Cell<bool>,
}

/// Counts the connections of a listener and decides whether another one fits.
struct Admission {
    caps: Caps,
    files: FileQuota,
    /// Locked when a connection opens or closes, never while a request is served.
    sources: Mutex<Sources>,
    /// Connections that have not sent a token; only on the admin listener.
    unauthenticated: Option<UnauthenticatedList>,
    /// The number of open connections, for the metrics.
    count: Arc<ConnectionCount>,
}

/// Which cap a new connection would exceed.
#[derive(Clone, Copy)]
enum Full {
    /// The cap of the listener, or the number of open files.
    All,
    /// The cap of this source.
    Source(IpAddr),
}

/// Open connections, in total and by source.
#[derive(Default)]
struct Sources {
    all: usize,
    by_source: HashMap<IpAddr, SourceUse>,
}

/// What one source has open: connections, and bytes that the server holds for them.
#[derive(Clone, Default)]
struct SourceUse {
    connections: usize,
    bytes: SourceBytes,
}

/// The right of one connection to be open, given back when it is dropped.
pub(crate) struct Slot {
    admission: Arc<Admission>,
    source: IpAddr,
    /// Its entry among the unauthenticated connections; only on the admin listener.
    entry: Option<Arc<Unauthenticated>>,
    bytes: SourceBytes,
}

/// The pause before the next `accept` after one that failed.
const NOT_ACCEPTED: Duration = Duration::from_millis(50);

impl Listener {
    /// In the order in which they are opened.
    pub(crate) const ALL: [Self; 6] =
        [Self::Http, Self::Grpc, Self::Resp, Self::Proxy, Self::Admin, Self::Metrics];

    /// Its name in settings and metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
            Self::Resp => "resp",
            Self::Proxy => "proxy",
            Self::Admin => "admin",
            Self::Metrics => "metrics",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|listener| listener.name() == name)
    }
}

impl BoundedListener {
    /// Binds and listens. From here on clients can connect; the kernel queues them until they are accepted.
    pub(crate) fn open(
        plan: ListenerPlan,
        (metrics, health): (Arc<Metrics>, Arc<Health>),
    ) -> io::Result<Self> {
        let ListenerPlan { listener, address, caps, files, trusts } = plan;
        let socket = listen(address)?;
        let count = metrics.connections(listener.name(), caps.all);
        // The clients of the admin listener send tokens. When it is full, the oldest connection without one is evicted.
        let unauthenticated = (listener == Listener::Admin).then(UnauthenticatedList::default);
        let admission = Admission::new(caps, files, unauthenticated, count);
        Ok(Self {
            listener: socket,
            admission,
            trusts,
            metrics,
            health,
            out_of_files: Cell::new(false),
        })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Accepts connections until the server drains, including those that the kernel had queued by then.
    pub(crate) async fn accept_until_drained(
        self,
        drain: &Drain,
        mut deliver: impl FnMut(TcpStream, IpAddr, Slot),
    ) {
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = drain.begun.cancelled() => break,
            };
            self.arrived(accepted, &mut deliver).await;
        }
        // The runtime may learn of the drain before it learns of queued connections. The kernel's queue is complete.
        let Ok(listener) = self.listener.as_fd().try_clone_to_owned() else { return };
        let listener = std::net::TcpListener::from(listener);
        while let Some(accepted) = accept_queued(&listener) {
            self.arrived(accepted, &mut deliver).await;
        }
    }

    /// Delivers an accepted connection if it fits, and closes it otherwise.
    async fn arrived(
        &self,
        accepted: io::Result<(TcpStream, SocketAddr)>,
        deliver: &mut impl FnMut(TcpStream, IpAddr, Slot),
    ) {
        let (stream, peer) = match accepted {
            Ok((stream, peer)) => (stream, peer.ip().to_canonical()),
            Err(error) => return self.not_accepted(&error).await,
        };
        if self.out_of_files.replace(false) {
            self.health.set_problem("accept", None);
        }
        let slot = match Admission::enter(&self.admission, peer, &self.trusts) {
            Ok(slot) => Some(slot),
            Err(full) => self.make_room(peer, full).await,
        };
        let Some(slot) = slot else {
            self.metrics.refused(Refused::Full);
            return tracing::warn!(%peer, "too many connections; one was closed");
        };
        // Answers are written whole, so Nagle's algorithm would only delay them.
        let _ = stream.set_nodelay(true);
        deliver(stream, peer, slot);
    }

    /// Evicts the oldest connection that has not sent a token, until the new one fits. `None` if all have sent one.
    async fn make_room(&self, peer: IpAddr, mut full: Full) -> Option<Slot> {
        let unauthenticated = self.admission.unauthenticated.as_ref()?;
        loop {
            let connection = unauthenticated.evict_oldest(|connection| match full {
                Full::All => true,
                Full::Source(source) => connection.source == source,
            })?;
            // Only this task accepts connections, so the slot is still free after this.
            connection.closed().await;
            self.metrics.refused(Refused::Full);
            let source = connection.source;
            tracing::warn!(%source, "too many connections; the oldest one without a token was closed");
            match Admission::enter(&self.admission, peer, &self.trusts) {
                Ok(slot) => return Some(slot),
                Err(still) => full = still,
            }
        }
    }

    async fn not_accepted(&self, error: &io::Error) {
        tracing::warn!(%error, "a connection was not accepted");
        // The client closed the connection before it was accepted. The next one may be waiting.
        if error.kind() == io::ErrorKind::ConnectionAborted {
            return;
        }
        let lacking = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
        if Errno::from_io_error(error).is_some_and(|error| lacking.contains(&error)) {
            self.out_of_files.set(true);
            let why = format!("connections are not accepted: {error} (raise `ulimit -n`)");
            self.health.set_problem("accept", Some(why));
        }
        // This lasts until other connections close. Trying again immediately would only keep this thread busy.
        timers::sleep(NOT_ACCEPTED).await;
    }
}

/// Accepts a connection from the kernel's queue without waiting; `None` when the queue is empty.
fn accept_queued(listener: &std::net::TcpListener) -> Option<io::Result<(TcpStream, SocketAddr)>> {
    let (stream, peer) = match listener.accept() {
        Ok(accepted) => accepted,
        // A client that has closed its connection again may be ahead of others in the queue.
        Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => return Some(Err(error)),
        Err(_) => return None,
    };
    let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
    Some(stream.map(|stream| (stream, peer)))
}

impl Admission {
    fn new(
        caps: Caps,
        files: FileQuota,
        unauthenticated: Option<UnauthenticatedList>,
        count: Arc<ConnectionCount>,
    ) -> Arc<Self> {
        Arc::new(Self { caps, files, sources: Mutex::default(), unauthenticated, count })
    }

    /// Counts a new connection, or says which cap it would exceed.
    fn enter(
        admission: &Arc<Self>,
        peer: IpAddr,
        trusts: impl Fn(IpAddr) -> bool,
    ) -> Result<Slot, Full> {
        let source = source(peer);
        let mut sources = admission.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let known = sources.by_source.get(&source).cloned().unwrap_or_default();
        let SourceUse { connections: open, bytes } = known;
        let most =
            || if trusts(peer) { admission.caps.per_proxy() } else { admission.caps.per_source };
        // The policy is asked only for a source at its usual cap.
        if open >= admission.caps.per_source && open >= most() {
            return Err(Full::Source(source));
        }
        if sources.all >= admission.caps.all {
            return Err(Full::All);
        }
        if sources.all >= admission.files.guaranteed && !admission.files.take() {
            return Err(Full::All);
        }
        sources.all = sources.all.saturating_add(1);
        admission.count.set(sources.all);
        let connections = open.saturating_add(1);
        sources.by_source.insert(source, SourceUse { connections, bytes: Arc::clone(&bytes) });
        let entry = admission.unauthenticated.as_ref().map(|list| list.add(source));
        Ok(Slot { admission: Arc::clone(admission), source, entry, bytes })
    }
}

impl Sources {
    /// One connection of a source less.
    fn leave(&mut self, source: IpAddr) {
        if let Some(known) = self.by_source.get_mut(&source) {
            known.connections = known.connections.saturating_sub(1);
            if known.connections == 0 {
                self.by_source.remove(&source);
            }
        }
    }
}

impl Slot {
    /// Counts the connection for another peer: the client on whose behalf a load balancer has connected. False if that client
    /// has too many connections.
    pub(super) fn count_for(&mut self, peer: IpAddr, trusts: impl Fn(IpAddr) -> bool) -> bool {
        let (admission, source) = (Arc::clone(&self.admission), source(peer));
        let mut sources = admission.sources.lock().unwrap_or_else(PoisonError::into_inner);
        if source == self.source {
            return true;
        }
        let caps = admission.caps;
        let entry = sources.by_source.get(&source).cloned().unwrap_or_default();
        let is_full = |most: usize| entry.connections >= most;
        if is_full(caps.per_source) && (!trusts(peer) || is_full(caps.per_proxy())) {
            return false;
        }
        sources.leave(self.source);
        self.bytes = Arc::clone(&entry.bytes);
        self.source = source;
        let connections = entry.connections.saturating_add(1);
        sources.by_source.insert(source, SourceUse { connections, ..entry });
        true
    }

    /// The bytes that the server holds for all connections of its source.
    pub(super) fn bytes_of_source(&self) -> SourceBytes {
        Arc::clone(&self.bytes)
    }

    /// Protects the connection from eviction, because it has sent a valid token. False if it was evicted just before.
    pub(crate) fn keep(&self) -> bool {
        match (&self.admission.unauthenticated, &self.entry) {
            (Some(list), Some(entry)) => list.remove(entry),
            (None, _) | (_, None) => true,
        }
    }

    /// Serves a connection until it ends or is evicted. The future is large, so it is pinned where it is.
    pub(crate) async fn while_kept(&self, served: Pin<&mut impl Future<Output = ()>>) {
        match &self.entry {
            None => served.await,
            Some(entry) => {
                tokio::select! { () = served => {}, () = entry.evicted() => {} }
            }
        }
    }

    fn mark_closed(&self) {
        if let (Some(list), Some(entry)) = (&self.admission.unauthenticated, &self.entry) {
            list.remove(entry);
            entry.mark_closed();
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut sources = self.admission.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.all = sources.all.saturating_sub(1);
        self.admission.count.set(sources.all);
        // Every connection beyond the guaranteed number has one of the shared files, in whatever order they close.
        if sources.all >= self.admission.files.guaranteed {
            self.admission.files.give_back();
        }
        sources.leave(self.source);
        drop(sources);
        self.mark_closed();
    }
}

/// Listens as `TcpListener::bind` does, but with a longer accept queue than its 128.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // A server that was just stopped leaves connections in TIME_WAIT that keep the address busy for a minute.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(bounds::WAITING)
}

/// The source that a peer counts for: an IPv4 address, or the /64 network of an IPv6 address, since a client usually has all
/// addresses of its network.
pub(crate) fn source(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V4(_) => peer,
        IpAddr::V6(address) => {
            let network = address.to_bits() & !u128::from(u64::MAX);
            Ipv6Addr::from_bits(network).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::FileQuotas;

    fn caps(all: usize, per_source: usize) -> Caps {
        Caps { all, per_source, files_each: 1 }
    }

    fn admission(caps: Caps, open_files: usize) -> Arc<Admission> {
        let quotas = FileQuotas::new(open_files, 0, &[caps, caps]);
        let files = quotas.files(&Arc::default()).swap_remove(0);
        Admission::new(caps, files, None, Metrics::default().connections("http", caps.all))
    }

    fn enter(admission: &Arc<Admission>, peer: &str) -> Option<Slot> {
        let proxy: IpAddr = "192.0.2.1".parse().unwrap();
        Admission::enter(admission, peer.parse().unwrap(), |peer| peer == proxy).ok()
    }

    #[test]
    fn a_full_listener_accepts_again_when_a_connection_closes() {
        let admission = admission(caps(3, 2), 100);
        let first = enter(&admission, "2001:db8::1").unwrap();
        let second = enter(&admission, "2001:db8::ffff:2").unwrap();
        assert!(enter(&admission, "2001:db8::3").is_none()); // the same network
        let third = enter(&admission, "2001:db8:0:1::1").unwrap();
        assert!(enter(&admission, "203.0.113.7").is_none()); // three are open
        drop(first);
        assert!(enter(&admission, "2001:db8::3").is_some());
        drop((second, third));
        assert!(admission.sources.lock().unwrap().by_source.is_empty());
    }

    #[test]
    fn a_proxy_may_have_seven_eighths_of_the_connections() {
        let admission = admission(caps(80, 5), 1_000);
        let proxy: Vec<Slot> = (0..80).map_while(|_| enter(&admission, "192.0.2.1")).collect();
        assert_eq!(proxy.len(), 70);
        let others: Vec<Slot> = (0..80).map_while(|_| enter(&admission, "203.0.113.7")).collect();
        assert_eq!(others.len(), 5);
    }

    /// Behind a load balancer, the cap for one source is that of each client.
    #[test]
    fn a_connection_can_be_counted_for_the_client_behind_a_load_balancer() {
        let admission = admission(caps(80, 2), 1_000);
        let trusts = |peer: IpAddr| peer == IpAddr::from([192, 0, 2, 1]);
        let client = IpAddr::from([203, 0, 113, 7]);
        let mut slots: Vec<Slot> = (0..4).map_while(|_| enter(&admission, "192.0.2.1")).collect();
        let counted = |slot: &mut Slot| slot.count_for(client, trusts);
        assert!(counted(&mut slots[0]) && counted(&mut slots[1]) && counted(&mut slots[1]));
        assert!(!counted(&mut slots[2]));
        assert!(Arc::ptr_eq(&slots[0].bytes, &slots[1].bytes));
        assert!(!Arc::ptr_eq(&slots[0].bytes, &slots[2].bytes));
        // The client has no room for a direct connection either, until one of its own ends.
        assert!(enter(&admission, "203.0.113.7").is_none());
        drop(slots.remove(0));
        assert!(counted(&mut slots[1]));
        drop(slots);
        assert!(admission.sources.lock().unwrap().by_source.is_empty());
    }

    /// Guaranteed and shared files are free again when all connections have closed, in whatever order.
    #[test]
    fn files_are_given_back() {
        let admission = admission(caps(90, 90), 40); // ten guaranteed for each of two, twenty shared
        for _ in 0..3 {
            let mut slots: Vec<Slot> =
                (0..90).map_while(|_| enter(&admission, "203.0.113.7")).collect();
            assert_eq!(slots.len(), 30);
            slots.rotate_left(7);
            while let Some(slot) = slots.pop() {
                drop(slot);
            }
        }
    }
}
