//! The door: accepts connections, as many as there is room for.
//!
//! Three things say whether there is: the cap of the listener, the cap for one source, and the files that may be open. A
//! source that the policy trusts is a proxy, whose connections are those of all its clients: its cap is that of the listener,
//! less an eighth, so that one client behind it cannot make it be refused.
//!
//! On the admin listener a connection without a token does not keep a place from another one: see [`super::strangers`].

use super::budget::OfSource;
use super::caps::Caps;
use super::drain::Drain;
use super::files::Files;
use super::strangers::{Stranger, Strangers};
use crate::bounds;
use crate::health::Health;
use crate::metrics::{Metrics, Refused};
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

/// Whether a peer is a trusted proxy, as the policy says at the moment it connects.
pub(crate) type Trusts = Box<dyn Fn(IpAddr) -> bool>;

/// A listener with a bound.
pub(crate) struct Door {
    listener: TcpListener,
    room: Arc<Room>,
    trusts: Trusts,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    /// Whether the last connection was not accepted for want of files.
    out_of_files: Cell<bool>,
}

/// Who is inside.
struct Room {
    caps: Caps,
    files: Files,
    /// Locked when somebody comes or goes, never while a request is served.
    sources: Mutex<Sources>,
    /// Connections that have not shown a token; only on the admin listener.
    strangers: Option<Strangers>,
}

/// Why there is no room for another connection.
#[derive(Clone, Copy)]
enum Full {
    /// The listener has as many as it may have.
    All,
    /// This source has.
    Source(IpAddr),
}

#[derive(Default)]
struct Sources {
    all: usize,
    by_source: HashMap<IpAddr, SourceUse>,
}

/// One source.
#[derive(Clone, Default)]
struct SourceUse {
    connections: usize,
    bytes: OfSource,
}

/// A place inside, given back when it is dropped.
pub(crate) struct Slot {
    room: Arc<Room>,
    source: IpAddr,
    stranger: Option<Arc<Stranger>>,
    bytes: OfSource,
}

/// How long to wait before the next try, when connections cannot be accepted at all.
const NOT_ACCEPTED: Duration = Duration::from_millis(50);

impl Door {
    /// Listens; from here on clients can connect, and wait.
    pub(crate) async fn open(
        address: SocketAddr,
        (caps, files): (Caps, Files),
        trusts: Trusts,
        (metrics, health): (Arc<Metrics>, Arc<Health>),
    ) -> io::Result<Self> {
        let listener = listen(address)?;
        let room = Arc::new(Room { caps, files, sources: Mutex::default(), strangers: None });
        Ok(Self { listener, room, trusts, metrics, health, out_of_files: Cell::new(false) })
    }

    /// The same for a listener whose clients show tokens: when it is full, a connection that has not shown one is closed.
    pub(crate) fn preferring_tokens(mut self) -> Self {
        if let Some(room) = Arc::get_mut(&mut self.room) {
            room.strangers = Some(Strangers::default());
        }
        self
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Lets people in until the server drains; whoever had connected by then is let in too.
    pub(crate) async fn admit(
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
        // The runtime may have heard of the end before it hears of who has come; the kernel knows them.
        let Ok(listener) = self.listener.as_fd().try_clone_to_owned() else { return };
        let listener = std::net::TcpListener::from(listener);
        while let Some(accepted) = waiting(&listener) {
            self.arrived(accepted, &mut deliver).await;
        }
    }

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
            self.health.complain("accept", None);
        }
        let slot = match Room::enter(&self.room, peer, &self.trusts) {
            Ok(slot) => Some(slot),
            Err(full) => self.make_room(peer, full).await,
        };
        match slot {
            Some(slot) => {
                // An answer is written at once and whole; nothing would be gained by holding it back.
                let _ = stream.set_nodelay(true);
                deliver(stream, peer, slot);
            }
            None => {
                self.metrics.refused(Refused::Full);
                tracing::warn!(%peer, "too many connections; one was closed");
            }
        }
    }
}

impl Door {
    /// Closes the oldest connection that has not shown a token; `None` when all have.
    async fn make_room(&self, peer: IpAddr, mut full: Full) -> Option<Slot> {
        let strangers = self.room.strangers.as_ref()?;
        loop {
            let stranger = strangers.dismiss(|stranger| match full {
                Full::All => true,
                Full::Source(source) => stranger.source == source,
            })?;
            // Only this task lets connections in, so the place is still free after this.
            stranger.gone().await;
            self.metrics.refused(Refused::Full);
            let source = stranger.source;
            tracing::warn!(%source, "too many connections; the oldest one without a token was closed");
            match Room::enter(&self.room, peer, &self.trusts) {
                Ok(slot) => return Some(slot),
                Err(still) => full = still,
            }
        }
    }

    async fn not_accepted(&self, error: &io::Error) {
        tracing::warn!(%error, "a connection was not accepted");
        // The client went away before it was let in; the next one may be there.
        if error.kind() == io::ErrorKind::ConnectionAborted {
            return;
        }
        let lacking = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
        if Errno::from_io_error(error).is_some_and(|error| lacking.contains(&error)) {
            self.out_of_files.set(true);
            let why = format!("connections are not accepted: {error} (raise `ulimit -n`)");
            self.health.complain("accept", Some(why));
        }
        // It lasts until others close theirs; trying again at once would only keep this thread busy.
        tokio::time::sleep(NOT_ACCEPTED).await;
    }
}

/// Somebody who is at the door already.
fn waiting(listener: &std::net::TcpListener) -> Option<io::Result<(TcpStream, SocketAddr)>> {
    let (stream, peer) = match listener.accept() {
        Ok(accepted) => accepted,
        // One who has left again stands before others.
        Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => return Some(Err(error)),
        Err(_) => return None,
    };
    let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
    Some(stream.map(|stream| (stream, peer)))
}

impl Room {
    fn enter(
        room: &Arc<Self>,
        peer: IpAddr,
        trusts: impl Fn(IpAddr) -> bool,
    ) -> Result<Slot, Full> {
        let source = source(peer);
        let mut sources = room.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let known = sources.by_source.get(&source).cloned().unwrap_or_default();
        let SourceUse { connections: here, bytes } = known;
        let most = || if trusts(peer) { room.caps.per_proxy() } else { room.caps.per_source };
        if here >= room.caps.per_source && here >= most() {
            return Err(Full::Source(source));
        }
        if sources.all >= room.caps.all {
            return Err(Full::All);
        }
        if sources.all >= room.files.guaranteed && !room.files.take() {
            return Err(Full::All);
        }
        sources.all = sources.all.saturating_add(1);
        let connections = here.saturating_add(1);
        sources.by_source.insert(source, SourceUse { connections, bytes: Arc::clone(&bytes) });
        let stranger = room.strangers.as_ref().map(|strangers| strangers.add(source));
        Ok(Slot { room: Arc::clone(room), source, stranger, bytes })
    }
}

impl Slot {
    /// What all connections of its source hold.
    pub(super) fn bytes_of_source(&self) -> OfSource {
        Arc::clone(&self.bytes)
    }

    /// Keeps the place to the end, because a valid token was shown. False: it was given away a moment before.
    pub(crate) fn keep(&self) -> bool {
        match (&self.room.strangers, &self.stranger) {
            (Some(strangers), Some(stranger)) => strangers.remove(stranger),
            (None, _) | (_, None) => true,
        }
    }

    /// Serves a connection, and closes it when its place is needed. The future is large, so it stays where it is.
    pub(crate) async fn while_kept(&self, served: Pin<&mut impl Future<Output = ()>>) {
        match &self.stranger {
            None => served.await,
            Some(stranger) => {
                tokio::select! { () = served => {}, () = stranger.dismissed() => {} }
            }
        }
    }

    fn leave(&self) {
        if let (Some(strangers), Some(stranger)) = (&self.room.strangers, &self.stranger) {
            strangers.remove(stranger);
            stranger.leave();
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut sources = self.room.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.all = sources.all.saturating_sub(1);
        // Those beyond what is guaranteed have one of the shared files each, whichever came first.
        if sources.all >= self.room.files.guaranteed {
            self.room.files.give_back();
        }
        if let Some(source) = sources.by_source.get_mut(&self.source) {
            source.connections = source.connections.saturating_sub(1);
            if source.connections == 0 {
                sources.by_source.remove(&self.source);
            }
        }
        drop(sources);
        self.leave();
    }
}

/// Listens as `TcpListener::bind` does, but with room for more than 128 who have not been let in yet.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // A server that was just stopped leaves connections behind that hold the address for a minute.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(bounds::WAITING)
}

/// Whoever holds a network of IPv6 has all its addresses.
fn source(peer: IpAddr) -> IpAddr {
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
    use crate::net::Division;

    fn room(caps: Caps, open_files: usize) -> Arc<Room> {
        let division = Division::new(open_files, 0, &[caps, caps]);
        let files = division.files(&Arc::default()).swap_remove(0);
        Arc::new(Room { caps, files, sources: Mutex::default(), strangers: None })
    }

    fn enter(room: &Arc<Room>, peer: &str) -> Option<Slot> {
        let proxy: IpAddr = "192.0.2.1".parse().unwrap();
        Room::enter(room, peer.parse().unwrap(), |peer| peer == proxy).ok()
    }

    #[test]
    fn a_full_room_lets_in_who_follows_somebody_out() {
        let room = room(Caps { all: 3, per_source: 2 }, 100);
        let first = enter(&room, "2001:db8::1").unwrap();
        let second = enter(&room, "2001:db8::ffff:2").unwrap();
        assert!(enter(&room, "2001:db8::3").is_none()); // the same network
        let third = enter(&room, "2001:db8:0:1::1").unwrap();
        assert!(enter(&room, "203.0.113.7").is_none()); // three are here
        drop(first);
        assert!(enter(&room, "2001:db8::3").is_some());
        drop((second, third));
        assert!(room.sources.lock().unwrap().by_source.is_empty());
    }

    #[test]
    fn a_proxy_may_have_all_but_an_eighth() {
        let room = room(Caps { all: 80, per_source: 5 }, 1_000);
        let proxy: Vec<Slot> = (0..80).map_while(|_| enter(&room, "192.0.2.1")).collect();
        assert_eq!(proxy.len(), 70);
        let others: Vec<Slot> = (0..80).map_while(|_| enter(&room, "203.0.113.7")).collect();
        assert_eq!(others.len(), 5);
    }

    /// What one listener has guaranteed, and what both share, is there again when all have left, in whatever order.
    #[test]
    fn files_come_back() {
        let room = room(Caps { all: 90, per_source: 90 }, 40); // ten guaranteed for each of two, twenty shared
        for _ in 0..3 {
            let mut slots: Vec<Slot> = (0..90).map_while(|_| enter(&room, "203.0.113.7")).collect();
            assert_eq!(slots.len(), 30);
            slots.rotate_left(7);
            while let Some(slot) = slots.pop() {
                drop(slot);
            }
        }
    }
}
