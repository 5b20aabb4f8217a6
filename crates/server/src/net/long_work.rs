//! The queue for long work: fair queueing, so that short requests are answered between the pieces of long ones.
//!
//! ```text
//!   what a worker does      ██ · ·· ██ · ██ ···· ██ · ██ …
//!   ██  a piece of long work, about 100 µs, of one connection      ·  a short request, of any connection
//! ```
//!
//! There are two classes. A worker is one thread, so a long computation makes all its connections wait. Batches, long
//! pipelines, large bodies and large answers are long work. It is cut into pieces, and each piece passes a gate where all
//! connections of the worker with long work wait in one queue. They pass one at a time, in the order in which they came, and
//! queue up again for their next piece (round robin). When a piece's worth of work has passed, the gate stays closed until
//! every task that can run has run and the sockets have been polled. So a short request waits for other short requests and
//! for one or two pieces of long work, no matter how many connections have long work.
//!
//! Short requests do not pass the gate, so it costs them nothing.

use crate::bounds;
use std::cell::Cell;
use std::sync::Arc;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::yield_now;

/// The queue for the long work of one worker.
#[derive(Debug)]
pub(crate) struct LongWorkQueue {
    /// One permit, handed out in order.
    gate: Semaphore,
    /// A permit for each batch that may be open. Batches that wait have not been parsed and are only bytes.
    batches: Semaphore,
    /// Microseconds of long work that may pass before the gate closes.
    left: Cell<u32>,
    /// How many batches may be open at the same time.
    open: usize,
    /// Places for questions of lists and pipelines to a store elsewhere. All workers share them.
    places: Option<Arc<Semaphore>>,
}

/// A batch that is open: its entries are being read or decided.
#[derive(Debug)]
pub(crate) struct OpenBatch<'t> {
    long_work: &'t LongWorkQueue,
    /// Until it is dropped, the next batch waits. The semaphore is never closed, so this is never `None`.
    _place: Option<SemaphorePermit<'t>>,
    /// Microseconds that have passed the gate and have not been used.
    left: u32,
}

/// A piece of long work, in microseconds: much longer than polling the sockets takes (1 to 2), and shorter than a client
/// notices.
pub(crate) const PIECE: u32 = 100;
/// How much a batch passes the gate with, in microseconds, so that several small batches share a piece.
const PORTION: u32 = 25;

impl LongWorkQueue {
    /// The queue of a worker. With a store in this process one batch is open at a time. With a store elsewhere any number is, because
    /// batches spend their time waiting for the store.
    pub(crate) fn new(store_in_process: bool) -> Self {
        let open = if store_in_process { 1 } else { Semaphore::MAX_PERMITS };
        let (gate, batches) = (Semaphore::new(1), Semaphore::new(open));
        let places = (!store_in_process).then(Self::shared_places);
        Self { gate, batches, left: Cell::new(PIECE), open, places }
    }

    /// Places for the questions of all workers.
    pub(crate) fn shared_places() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(bounds::ASKED_TOGETHER))
    }

    /// Makes this queue share its places for questions with other queues.
    pub(crate) fn sharing(self, places: &Arc<Semaphore>) -> Self {
        Self { places: self.places.map(|_| Arc::clone(places)), ..self }
    }

    /// The places for questions to the store; `None` if it is in this process and answers at once.
    pub(super) fn places(&self) -> Option<&Semaphore> {
        self.places.as_deref()
    }

    /// How many batches may be open at the same time.
    pub(crate) const fn open_batches(&self) -> usize {
        self.open
    }

    /// Waits for the turn of a piece of work that takes about `micros` microseconds.
    pub(crate) async fn pass(&self, micros: u32) {
        let Ok(_first_in_line) = self.gate.acquire().await else { return };
        let left = match self.left.get().checked_sub(micros) {
            Some(left) => left,
            None => {
                // The runtime resumes this task after all tasks that can run and after those whose sockets became ready.
                yield_now().await;
                PIECE.saturating_sub(micros)
            }
        };
        self.left.set(left);
    }

    /// Waits for the turn of a batch.
    pub(crate) async fn batch(&self) -> OpenBatch<'_> {
        OpenBatch { long_work: self, _place: self.batches.acquire().await.ok(), left: 0 }
    }
}

impl OpenBatch<'_> {
    /// Waits for the turn of the next step of the batch, which takes about `micros` microseconds.
    pub(crate) async fn step(&mut self, micros: u32) {
        if self.left < micros {
            let portion = PORTION.max(micros);
            self.long_work.pass(portion).await;
            self.left = self.left.saturating_add(portion);
        }
        self.left = self.left.saturating_sub(micros);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use tokio::net::UnixStream;
    use tokio::runtime::{Builder, LocalOptions};
    use tokio::task::spawn_local;

    /// How many pieces of long work run before a short request that arrives while `tasks` tasks have long work.
    fn waited(
        tasks: u32,
        long: impl AsyncFn(Rc<LongWorkQueue>, Rc<dyn Fn()>) + Copy + 'static,
    ) -> u32 {
        let builder = &mut Builder::new_current_thread();
        let runtime = builder.enable_all().build_local(LocalOptions::default()).unwrap();
        runtime.block_on(async move {
            let (client, server) = UnixStream::pair().unwrap();
            let (long_work, pieces) =
                (Rc::new(LongWorkQueue::new(true)), Rc::new(Cell::new(0_u32)));
            let asked_at = tasks * 10;
            let counted = Rc::clone(&pieces);
            // A short request arrives in the middle.
            let piece: Rc<dyn Fn()> = Rc::new(move || {
                counted.set(counted.get() + 1);
                if counted.get() == asked_at {
                    assert_eq!(client.try_write(b"?").unwrap(), 1);
                }
            });
            for _ in 0..tasks {
                let (long_work, piece) = (Rc::clone(&long_work), Rc::clone(&piece));
                spawn_local(async move { long(long_work, piece).await });
            }
            server.readable().await.unwrap();
            pieces.get() - asked_at
        })
    }

    /// Five hundred batches of a thousand entries kept a short request waiting for seconds: each batch was decided from
    /// beginning to end, and all of them before the sockets were polled again.
    #[test]
    fn a_short_request_waits_for_two_pieces_of_long_work_at_most() {
        for tasks in [1, 2, 100] {
            let pipelines =
                waited(tasks, async |long_work: Rc<LongWorkQueue>, piece: Rc<dyn Fn()>| {
                    for _ in 0..100 {
                        long_work.pass(PIECE).await;
                        piece();
                    }
                });
            assert!(pipelines <= 2, "{pipelines} of {tasks}");
            let steps = waited(tasks, async |long_work: Rc<LongWorkQueue>, piece: Rc<dyn Fn()>| {
                let mut batch = long_work.batch().await;
                for _ in 0..100 {
                    batch.step(1).await;
                    piece();
                }
            });
            assert!(steps <= 2 * PIECE, "{steps} of {tasks}");
        }
    }

    /// Tasks with long work take turns. The first is two pieces ahead, because the others start while it waits for its second.
    #[test]
    fn long_work_is_served_round_robin() {
        let builder = &mut Builder::new_current_thread();
        let runtime = builder.enable_all().build_local(LocalOptions::default()).unwrap();
        runtime.block_on(async {
            let long_work = Rc::new(LongWorkQueue::new(true));
            let done: Rc<[Cell<u32>; 10]> = Rc::default();
            let tasks: Vec<_> = (0..done.len())
                .map(|number| {
                    let (long_work, done) = (Rc::clone(&long_work), Rc::clone(&done));
                    spawn_local(async move {
                        for _ in 0..50 {
                            long_work.pass(PIECE).await;
                            done[number].set(done[number].get() + 1);
                            let most = done.iter().map(Cell::get).max().unwrap();
                            let least = done.iter().map(Cell::get).min().unwrap();
                            assert!(most - least <= 2, "{done:?}");
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
    }
}
