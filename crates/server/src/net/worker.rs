//! Workers: threads with a runtime each, which serve the connections; and the trait that a protocol implements.

use super::budget::Account;
use super::buffered::LINGER;
use super::context::ListenerContext;
use super::drain::Drain;
use super::listener::{Listener, Slot};
use super::proxy_protocol::{self, ProxiedClient, ProxyHeaderError};
use super::stream::Stream;
use crate::metrics::Refused;
use crate::timers;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::thread::JoinHandle;
use tidegate::Clock;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio_util::task::TaskTracker;

/// The threads that serve the connections of several listeners.
pub(crate) struct Workers {
    threads: Vec<JoinHandle<()>>,
    /// Unbounded, because the listeners bound how many connections there are.
    senders: Vec<UnboundedSender<Arrival>>,
    next: Cell<usize>,
}

/// A protocol that connections of a listener speak.
pub(crate) trait Protocol: 'static {
    /// Serves one connection to its end. An error means that the connection broke.
    fn serve(
        self: Rc<Self>,
        opened: AcceptedConnection<'_>,
        listener: Rc<ListenerContext>,
        drain: Drain,
    ) -> impl Future<Output = io::Result<()>>;

    /// Completes, after the last connection has ended, when what it left to be done is done. The runtime ends after that.
    fn settled(&self) -> impl Future<Output = ()> {
        std::future::ready(())
    }
}

/// A connection that was accepted and, if the listener uses TLS, has completed the handshake.
pub(crate) struct AcceptedConnection<'s> {
    pub(crate) stream: Stream,
    pub(crate) peer: IpAddr,
    /// Its slot at the listener.
    pub(crate) slot: &'s Slot,
    /// The memory that it uses.
    pub(crate) account: Rc<Account>,
}

/// The protocol of each listener, and the context that its connections share.
pub(crate) type Protocols<P> = BTreeMap<Listener, (P, ListenerContext)>;

/// A connection on its way from the listener to a worker.
struct Arrival {
    stream: std::net::TcpStream,
    peer: IpAddr,
    slot: Slot,
    listener: Listener,
}

impl Workers {
    /// Starts `count` threads. Each calls `make` to build the protocols that it serves.
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
            let run = move || {
                let builder = &mut Builder::new_current_thread();
                match builder.enable_all().build_local(LocalOptions::default()) {
                    Ok(runtime) => runtime.block_on(work(arrivals, make(), clock, drain)),
                    Err(error) => tracing::error!(%error, "a worker could not start"),
                }
            };
            let thread = std::thread::Builder::new().name(format!("{name}-{number}"));
            workers.threads.push(thread.spawn(run)?);
            workers.senders.push(sender);
        }
        Ok(workers)
    }

    /// Hands a connection to the next worker (round robin).
    pub(crate) fn deliver(&self, listener: Listener, stream: TcpStream, peer: IpAddr, slot: Slot) {
        let Ok(stream) = stream.into_std() else { return };
        let next = self.next.get().checked_rem(self.senders.len()).unwrap_or(0);
        self.next.set(next.saturating_add(1));
        if let Some(sender) = self.senders.get(next) {
            // If the worker has ended, the connection is dropped here, which closes it.
            let _ = sender.send(Arrival { stream, peer, slot, listener });
        }
    }

    /// Waits until all workers have served their last connection.
    pub(crate) async fn finish(self) {
        drop(self.senders);
        let threads = self.threads;
        let joined = tokio::task::spawn_blocking(move || {
            threads.into_iter().for_each(|thread| _ = thread.join());
        });
        let _ = joined.await;
    }
}

/// Serves connections until the channel is closed and the last connection has ended.
async fn work<P: Protocol>(
    mut arrivals: UnboundedReceiver<Arrival>,
    protocols: Protocols<P>,
    clock: Clock,
    drain: Drain,
) {
    let protocols = shared(protocols, &clock);
    let connections = TaskTracker::new();
    while let Some(Arrival { stream, peer, slot, listener }) = arrivals.recv().await {
        let Some((protocol, listener)) = protocols.get(&listener).cloned() else { continue };
        let Ok(stream) = TcpStream::from_std(stream) else { continue };
        let drain = drain.clone();
        connections.spawn_local(async move {
            let accepted = (stream, peer, slot);
            let Some((stream, peer, slot)) = identified(accepted, &listener, &drain).await else {
                return;
            };
            let served = pin!(serve(stream, peer, &slot, protocol, listener, drain));
            slot.while_kept(served).await;
        });
    }
    let still_open = finish(connections, &drain).await;
    for (protocol, _) in protocols.values() {
        protocol.settled().await;
    }
    if let Some((_, listener)) = protocols.values().next() {
        (0..still_open).for_each(|_| listener.metrics.refused(Refused::CutOff));
    }
}

/// Waits for the connections to end, until the drain is over. Returns how many are still open: these are dropped with the
/// runtime, which closes them.
async fn finish(connections: TaskTracker, drain: &Drain) -> usize {
    connections.close();
    tokio::select! {
        () = connections.wait() => 0,
        () = drain.over.cancelled() => connections.len(),
    }
}

/// The protocols and contexts, to be shared by connections. Keeps the date of each context current.
fn shared<P: Protocol>(
    protocols: Protocols<P>,
    clock: &Clock,
) -> BTreeMap<Listener, (Rc<P>, Rc<ListenerContext>)> {
    let shared = |(listener, (protocol, context)): (Listener, (P, ListenerContext))| {
        let (context, clock) = (Rc::new(context), clock.clone());
        let dated = Rc::clone(&context);
        tokio::task::spawn_local(async move { dated.keep_date(&clock).await });
        (listener, (Rc::new(protocol), context))
    };
    protocols.into_iter().map(shared).collect()
}

/// Learns from the PROXY header for which client a load balancer has connected, if the listener is behind one.
async fn identified(
    (mut stream, peer, mut slot): (TcpStream, IpAddr, Slot),
    listener: &ListenerContext,
    drain: &Drain,
) -> Option<(TcpStream, IpAddr, Slot)> {
    let Some(trusts) = &listener.load_balancers else { return Some((stream, peer, slot)) };
    // Boxed, because it has a buffer, which other connections do not need.
    let reading = Box::pin(async {
        if !trusts(peer) {
            return Err(ProxyHeaderError::Untrusted);
        }
        proxy_protocol::read(&mut stream, listener.timeouts.handshake).await
    });
    let client = tokio::select! {
        read = reading => match read {
            Ok(ProxiedClient::Address(client)) => client,
            Ok(ProxiedClient::Unknown) => peer,
            Err(error) => {
                listener.metrics.refused(Refused::ProxyHeader);
                tracing::warn!(%peer, "a connection to the proxy was closed: {error}");
                return None;
            }
        },
        () = stopped(drain) => return None,
    };
    if !slot.count_for(client, trusts) {
        listener.metrics.refused(Refused::Full);
        tracing::warn!(peer = %client, "too many connections; one was closed");
        return None;
    }
    Some((stream, client, slot))
}

/// Waits until the server has been stopping for a moment.
async fn stopped(drain: &Drain) {
    drain.begun.cancelled().await;
    timers::sleep(LINGER).await;
}

/// Serves a connection to its end.
async fn serve<P: Protocol>(
    stream: TcpStream,
    peer: IpAddr,
    slot: &Slot,
    protocol: Rc<P>,
    listener: Rc<ListenerContext>,
    drain: Drain,
) {
    let account = listener.account(slot);
    let Some(stream) = opened(stream, &listener, &drain).await else { return };
    let opened = AcceptedConnection { stream, peer, slot, account };
    // An error means that the connection broke: the client is gone, so there is nothing to answer.
    let _: io::Result<()> = protocol.serve(opened, listener, drain).await;
}

/// The stream of the connection, after the TLS handshake if the listener uses TLS; `None` if the handshake failed.
async fn opened(stream: TcpStream, listener: &ListenerContext, drain: &Drain) -> Option<Stream> {
    let Some(acceptor) = &listener.tls else { return Some(Stream::Plain(stream)) };
    tokio::select! {
        opened = Stream::under_tls(stream, acceptor, listener.timeouts.handshake) => match opened {
            Ok(stream) => Some(stream),
            Err(_) => {
                listener.metrics.refused(Refused::Handshake);
                None
            }
        },
        () = stopped(drain) => None,
    }
}
