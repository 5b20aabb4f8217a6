//! Workers: a thread and a runtime each, the connections that they serve, and the trait that a protocol implements.

use super::budget::Account;
use super::door::Slot;
use super::drain::Drain;
use super::line::LINGER;
use super::place::Place;
use super::stream::Stream;
use crate::metrics::Refused;
use std::cell::Cell;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::thread::JoinHandle;
use tidegate::Clock;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

/// The threads that serve connections, of whichever listener.
pub(crate) struct Workers {
    threads: Vec<JoinHandle<()>>,
    /// Unbounded, because doors bound how many connections there are.
    senders: Vec<UnboundedSender<Arrival>>,
    next: Cell<usize>,
}

/// A protocol that connections of a listener speak.
pub(crate) trait Protocol: 'static {
    /// Serves one connection to its end. An error means that the connection broke.
    fn serve(
        self: Rc<Self>,
        opened: Opened<'_>,
        place: Rc<Place>,
        drain: Drain,
    ) -> impl Future<Output = io::Result<()>>;
}

/// A connection that was accepted and, where the listener wants it, secured by TLS.
pub(crate) struct Opened<'s> {
    pub(crate) stream: Stream,
    pub(crate) peer: IpAddr,
    /// Its place at the listener.
    pub(crate) slot: &'s Slot,
    /// The bytes that are held for it.
    pub(crate) account: Rc<Account>,
}

/// The protocol of each listener, and what its connections share.
pub(crate) type Protocols<P> = Vec<(P, Place)>;

/// A connection on its way from the listener to a worker.
struct Arrival {
    stream: std::net::TcpStream,
    peer: IpAddr,
    slot: Slot,
    /// The number of the listener.
    listener: usize,
}

impl Workers {
    /// Starts `count` threads; `make` builds the protocols that each of them serves.
    pub(crate) fn start<P: Protocol>(
        name: &str,
        count: usize,
        clock: &Clock,
        drain: &Drain,
        make: impl Fn() -> Protocols<P> + Clone + Send + 'static,
    ) -> io::Result<Self> {
        let mut workers = Self { threads: Vec::new(), senders: Vec::new(), next: Cell::new(0) };
        for number in 0..count {
            let (sender, arrivals) = mpsc::unbounded_channel();
            let (make, clock, drain) = (make.clone(), clock.clone(), drain.clone());
            let runtime_failed = move || -> io::Result<()> {
                let runtime = Builder::new_current_thread()
                    .enable_all()
                    .build_local(LocalOptions::default())?;
                runtime.block_on(work(arrivals, make(), clock, drain));
                Ok(())
            };
            let thread = std::thread::Builder::new().name(format!("{name}-{number}"));
            let run = move || {
                if let Err(error) = runtime_failed() {
                    tracing::error!(%error, "a worker could not start");
                }
            };
            workers.threads.push(thread.spawn(run)?);
            workers.senders.push(sender);
        }
        Ok(workers)
    }

    /// Hands a connection to the worker whose turn it is.
    pub(crate) fn deliver(&self, listener: usize, stream: TcpStream, peer: IpAddr, slot: Slot) {
        let Ok(stream) = stream.into_std() else { return };
        let next = self.next.get().checked_rem(self.senders.len()).unwrap_or(0);
        self.next.set(next.saturating_add(1));
        if let Some(sender) = self.senders.get(next) {
            // A worker that is gone drops the connection, which closes it.
            let _ = sender.send(Arrival { stream, peer, slot, listener });
        }
    }

    /// Waits until all have served their last connection.
    pub(crate) async fn finish(self) {
        drop(self.senders);
        let threads = self.threads;
        let joined = tokio::task::spawn_blocking(move || {
            threads.into_iter().for_each(|thread| _ = thread.join());
        });
        let _ = joined.await;
    }
}

/// Serves connections until there are no more to come and the last has ended.
async fn work<P: Protocol>(
    mut arrivals: UnboundedReceiver<Arrival>,
    protocols: Protocols<P>,
    clock: Clock,
    drain: Drain,
) {
    let protocols: Vec<(Rc<P>, Rc<Place>)> = protocols
        .into_iter()
        .map(|(protocol, place)| (Rc::new(protocol), Rc::new(place)))
        .collect();
    for (_, place) in &protocols {
        let (dated, clock) = (Rc::clone(place), clock.clone());
        tokio::task::spawn_local(async move { dated.keep_date(&clock).await });
    }
    let connections = TaskTracker::new();
    while let Some(Arrival { stream, peer, slot, listener }) = arrivals.recv().await {
        let Some((protocol, place)) = protocols.get(listener).cloned() else { continue };
        let Ok(stream) = TcpStream::from_std(stream) else { continue };
        let drain = drain.clone();
        connections.spawn_local(async move {
            let served = pin!(serve(stream, peer, &slot, protocol, place, drain));
            slot.while_kept(served).await;
        });
    }
    connections.close();
    tokio::select! {
        () = connections.wait() => {}
        // Connections that are still open are dropped with the runtime, which closes them.
        () = drain.over.cancelled() => {
            if let Some((_, place)) = protocols.first() {
                (0..connections.len()).for_each(|_| place.metrics.refused(Refused::CutOff));
            }
        }
    }
}

/// Serves a connection to its end.
async fn serve<P: Protocol>(
    stream: TcpStream,
    peer: IpAddr,
    slot: &Slot,
    protocol: Rc<P>,
    place: Rc<Place>,
    drain: Drain,
) {
    let account = place.account(slot);
    let Some(stream) = opened(stream, &place, &drain).await else { return };
    let opened = Opened { stream, peer, slot, account };
    // An error is a broken connection: the client is gone, and nobody is left to tell.
    let _: io::Result<()> = protocol.serve(opened, place, drain).await;
}

/// The connection, after the TLS handshake if the listener wants one; `None` if the handshake failed.
async fn opened(stream: TcpStream, place: &Place, drain: &Drain) -> Option<Stream> {
    let Some(acceptor) = &place.tls else { return Some(Stream::Plain(stream)) };
    let stopped = async {
        drain.begun.cancelled().await;
        sleep(LINGER).await;
    };
    tokio::select! {
        opened = Stream::under_tls(stream, acceptor, place.timeouts.handshake) => match opened {
            Ok(stream) => Some(stream),
            Err(_) => {
                place.metrics.refused(Refused::Handshake);
                None
            }
        },
        () = stopped => None,
    }
}
