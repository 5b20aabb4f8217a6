//! The door: accepts connections, as many as there is room for.

use super::Drain;
use crate::bounds;
use crate::metrics::{Metrics, Refused};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caps {
    pub(crate) all: usize,
    /// From one address; of IPv6, from one network of 64 bits.
    pub(crate) per_source: usize,
}

/// A listener with a bound.
pub(crate) struct Door {
    listener: TcpListener,
    room: Arc<Room>,
    metrics: Arc<Metrics>,
}

/// Who is inside.
struct Room {
    caps: Caps,
    /// Locked when somebody comes or goes, never while a request is served.
    sources: Mutex<Sources>,
}

#[derive(Default)]
struct Sources {
    all: usize,
    by_source: HashMap<IpAddr, usize>,
}

/// A place inside, given back when it is dropped.
pub(crate) struct Slot {
    room: Arc<Room>,
    source: IpAddr,
}

/// What a full table of open files looks like: waiting is all that helps.
const OUT_OF_FILES: Duration = Duration::from_millis(50);

impl Door {
    /// Listens; from here on clients can connect, and wait.
    pub(crate) async fn open(
        address: SocketAddr,
        caps: Caps,
        metrics: Arc<Metrics>,
    ) -> io::Result<Self> {
        let listener = listen(address)?;
        let room = Arc::new(Room { caps, sources: Mutex::default() });
        Ok(Self { listener, room, metrics })
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
            Err(error) => {
                // The client went away before it was let in, or there are no more files for us.
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(OUT_OF_FILES).await;
                return;
            }
        };
        match Room::enter(&self.room, peer) {
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
    fn enter(room: &Arc<Self>, peer: IpAddr) -> Option<Slot> {
        let source = source(peer);
        let mut sources = room.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let here = sources.by_source.get(&source).copied().unwrap_or(0);
        if sources.all >= room.caps.all || here >= room.caps.per_source {
            return None;
        }
        sources.all = sources.all.saturating_add(1);
        sources.by_source.insert(source, here.saturating_add(1));
        Some(Slot { room: Arc::clone(room), source })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut sources = self.room.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.all = sources.all.saturating_sub(1);
        let left = sources.by_source.get(&self.source).map_or(0, |here| here.saturating_sub(1));
        if left == 0 {
            sources.by_source.remove(&self.source);
        } else {
            sources.by_source.insert(self.source, left);
        }
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

    #[test]
    fn a_full_room_lets_in_who_follows_somebody_out() {
        let caps = Caps { all: 3, per_source: 2 };
        let room = Arc::new(Room { caps, sources: Mutex::default() });
        let enter = |peer: &str| Room::enter(&room, peer.parse().unwrap());
        let first = enter("2001:db8::1").unwrap();
        let second = enter("2001:db8::ffff:2").unwrap();
        assert!(enter("2001:db8::3").is_none()); // the same network
        let third = enter("2001:db8:0:1::1").unwrap();
        assert!(enter("203.0.113.7").is_none()); // three are here
        drop(first);
        assert!(enter("2001:db8::3").is_some());
        drop((second, third));
        assert!(room.sources.lock().unwrap().by_source.is_empty());
    }
}
