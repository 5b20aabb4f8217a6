//! Workers: a thread and a runtime each, and their connections.

use super::door::Slot;
use super::{Drain, Place, serve};
use crate::backend::Backend;
use crate::front::Front;
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
use tokio_util::task::TaskTracker;

/// The threads that serve connections, of whichever listener.
pub(crate) struct Workers {
    threads: Vec<JoinHandle<()>>,
    /// Unbounded, because doors bound how many connections there are.
    senders: Vec<UnboundedSender<Arrival>>,
    next: Cell<usize>,
}

/// A front and the place of its connections, for each listener.
pub(crate) type Fronts<S> = Vec<(Front<S>, Place)>;

/// Somebody who was let in.
struct Arrival {
    stream: std::net::TcpStream,
    peer: IpAddr,
    slot: Slot,
    /// The number of the listener.
    listener: usize,
}

impl Workers {
    /// Starts so many threads of this name, each with fronts of its own.
    pub(crate) fn start<S: Backend>(
        name: &str,
        count: usize,
        clock: &Clock,
        drain: &Drain,
        make: impl Fn() -> Fronts<S> + Clone + Send + 'static,
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
async fn work<S: Backend>(
    mut arrivals: UnboundedReceiver<Arrival>,
    fronts: Fronts<S>,
    clock: Clock,
    drain: Drain,
) {
    let fronts: Vec<(Rc<Front<S>>, Rc<Place>)> =
        fronts.into_iter().map(|(front, place)| (Rc::new(front), Rc::new(place))).collect();
    for (_, place) in &fronts {
        let (dated, clock) = (Rc::clone(place), clock.clone());
        tokio::task::spawn_local(async move { dated.keep_date(&clock).await });
    }
    let connections = TaskTracker::new();
    while let Some(Arrival { stream, peer, slot, listener }) = arrivals.recv().await {
        let Some((front, place)) = fronts.get(listener).cloned() else { continue };
        let Ok(stream) = TcpStream::from_std(stream) else { continue };
        let drain = drain.clone();
        connections.spawn_local(async move {
            let served = pin!(serve(stream, peer, &slot, front, place, drain));
            slot.while_kept(served).await;
        });
    }
    connections.close();
    tokio::select! {
        () = connections.wait() => {}
        // Whoever is not done is dropped with the runtime, and so disconnected.
        () = drain.over.cancelled() => {
            if let Some((_, place)) = fronts.first() {
                (0..connections.len()).for_each(|_| place.metrics.refused(Refused::CutOff));
            }
        }
    }
}
