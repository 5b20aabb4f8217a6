//! FIFO queues of waiting requests, one for each state that makes requests wait. (A state is one counter in the store: one
//! limit of one key.)
//!
//! ```text
//!   state "2/s of alice"       ticket 4 (first) ─ 7 ─ 9
//!   state "15/s of 10.0.0.1"   ticket 7 (first)
//! ```
//!
//! Every request that may wait draws a ticket, in order of arrival. A denied request enters the queue of the state that makes
//! it wait longest, in ticket order, and asks again when the retry time is over. A ticket may ask only if no older ticket
//! waits at any of its states. So a newcomer never overtakes. And since a ticket waits only for older tickets, there is no
//! circular wait, hence no deadlock.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_core::{Span, StateId};
use tokio::sync::Notify;

/// What a request may have to wait for.
pub(crate) struct WaitTargets {
    /// The states that can deny it.
    pub(crate) states: Vec<StateId>,
    /// The longest wait that its rules allow.
    pub(crate) max_wait: Span,
}

/// All queues of a limiter.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    /// Modified only through [`Queues::change`].
    waiting: Mutex<WaitingByState>,
    /// Whether any request waits. Read without the lock, because usually none does. A reader that misses a request that is
    /// just being queued arrived at the same moment, and then either of the two may be first.
    occupied: AtomicBool,
    next_ticket: AtomicU64,
    /// How often permits were returned. A request that is about to enter a queue reads it before it asks and after it has
    /// entered. So it notices a permit that was returned in between, when it could not be woken yet.
    returns: AtomicU64,
}

/// For each state, the waiting tickets and how to wake them.
#[derive(Debug, Default)]
struct WaitingByState(HashMap<StateId, BTreeMap<u64, Arc<Notify>>>);

/// A request with its ticket. Dropping it removes it from all queues.
#[derive(Debug)]
pub(crate) struct Waiter<'q> {
    queues: &'q Queues,
    ticket: u64,
    queued_at: Vec<StateId>,
    wake: Arc<Notify>,
}

/// A queue already has as many waiters as the rules allow.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct QueueFull;

impl Queues {
    /// Draws a ticket for a request. It is not in any queue yet.
    pub(crate) fn draw_ticket(&self) -> Waiter<'_> {
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        Waiter { queues: self, ticket, queued_at: vec![], wake: Arc::default() }
    }

    /// Whether no request waits.
    pub(crate) fn is_empty(&self) -> bool {
        !self.occupied.load(Ordering::Acquire)
    }

    /// Wakes the first of every queue, because counters were reset or the policy changed.
    pub(crate) fn wake_all(&self) {
        if !self.is_empty() {
            self.lock().0.values().for_each(wake_first);
        }
    }

    /// Wakes the first of these queues, because a permit was returned.
    pub(crate) fn wake(&self, states: impl Iterator<Item = StateId>) {
        // Before the queues are read. A request that is not in them yet reads this after it has entered them.
        self.returns.fetch_add(1, Ordering::SeqCst);
        if !self.is_empty() {
            let waiting = self.lock();
            states.filter_map(|state| waiting.0.get(&state)).for_each(wake_first);
        }
    }

    /// How often permits were returned.
    pub(crate) fn returns(&self) -> u64 {
        self.returns.load(Ordering::SeqCst)
    }

    /// Modifies the queues and then updates `occupied`, so that the two always agree.
    fn change<T>(&self, change: impl FnOnce(&mut WaitingByState) -> T) -> T {
        let mut waiting = self.lock();
        let done = change(&mut waiting);
        // Stored under the lock, so the value of the last change is the one that stays.
        self.occupied.store(!waiting.0.is_empty(), Ordering::Release);
        done
    }

    fn lock(&self) -> MutexGuard<'_, WaitingByState> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter<'_> {
    /// Of these states, the ones at which an older ticket waits.
    pub(crate) fn behind_at(&self, states: &[StateId]) -> Vec<StateId> {
        if self.queues.is_empty() {
            return vec![];
        }
        let waiting = self.queues.lock();
        let older = |state: &&StateId| {
            let first = waiting.0.get(*state).and_then(BTreeMap::first_key_value);
            first.is_some_and(|(first, _)| *first < self.ticket)
        };
        states.iter().filter(older).copied().collect()
    }

    /// How many older requests wait at each of `states`. 0 for the queues that this request is in: it was told when it entered.
    pub(crate) fn ahead_at(&self, states: &[StateId]) -> Vec<usize> {
        let waiting = self.queues.lock();
        let ahead = |state: &StateId| {
            let queue = waiting.0.get(state).filter(|_| !self.queued_at.contains(state));
            queue.map_or(0, |queue| match queue.last_key_value() {
                // Nearly always this is the newest request, and need not count the others one by one.
                Some((newest, _)) if *newest < self.ticket => queue.len(),
                _ => queue.range(..self.ticket).count(),
            })
        };
        states.iter().map(ahead).collect()
    }

    /// Moves to the queues of `states`, out of all others. Fails, without moving, if one of the queues already has
    /// `capacity` waiters.
    pub(crate) fn enqueue(&mut self, states: &[StateId], capacity: usize) -> Result<(), QueueFull> {
        self.queues.change(|waiting| {
            let full =
                |state: &StateId| waiting.0.get(state).is_some_and(|queue| queue.len() >= capacity);
            if states.iter().any(|state| !self.queued_at.contains(state) && full(state)) {
                return Err(QueueFull);
            }
            self.leave(waiting);
            for state in states {
                let queue = waiting.0.entry(*state).or_default();
                queue.insert(self.ticket, Arc::clone(&self.wake));
            }
            self.queued_at = states.to_vec();
            Ok(())
        })
    }

    /// Whether it is in a queue.
    pub(crate) fn is_queued(&self) -> bool {
        !self.queued_at.is_empty()
    }

    /// Completes when the request should ask again, because it became the first of a queue, a permit was returned, or
    /// [`Queues::wake_all`] ran.
    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }

    fn leave(&mut self, waiting: &mut WaitingByState) {
        for state in self.queued_at.drain(..) {
            let Some(queue) = waiting.0.get_mut(&state) else { continue };
            let was_first = queue.first_key_value().is_some_and(|(first, _)| *first == self.ticket);
            queue.remove(&self.ticket);
            if was_first {
                wake_first(queue);
            }
            if queue.is_empty() {
                waiting.0.remove(&state);
            }
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if !self.queued_at.is_empty() {
            self.queues.change(|waiting| self.leave(waiting));
        }
    }
}

fn wake_first(queue: &BTreeMap<u64, Arc<Notify>>) {
    if let Some((_, first)) = queue.first_key_value() {
        // `notify_one` stores the wake-up if the waiter is not listening yet, so none is lost.
        first.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: StateId = StateId(1);
    const B: StateId = StateId(2);

    #[test]
    fn the_older_ticket_goes_first_and_newcomers_do_not_overtake() {
        let queues = Queues::default();
        let (mut first, mut second) = (queues.draw_ticket(), queues.draw_ticket());
        assert!(first.behind_at(&[A]).is_empty() && second.behind_at(&[A]).is_empty());
        second.enqueue(&[A], 10).unwrap();
        assert_eq!(queues.draw_ticket().behind_at(&[A, B]), [A]);
        assert_eq!(queues.draw_ticket().ahead_at(&[A, B]), [1, 0]);
        assert_eq!((first.ahead_at(&[A]), second.ahead_at(&[A])), (vec![0], vec![0]));
        assert_eq!(queues.draw_ticket().behind_at(&[B]), []);
        assert_eq!(first.behind_at(&[A]), []); // its ticket is older than the waiting one
        first.enqueue(&[A], 10).unwrap();
        assert_eq!(second.behind_at(&[A]), [A]);
        drop(first);
        assert_eq!(second.behind_at(&[A]), []);
        drop(second);
        assert!(queues.lock().0.is_empty() && queues.is_empty());
    }

    /// A waiter that was enqueued at no state counted as waiting, and was never removed from that count. From then on every
    /// request of the limiter took the slow path past the queues.
    #[test]
    fn a_waiter_in_no_queue_does_not_count_as_waiting() {
        let queues = Queues::default();
        let mut waiter = queues.draw_ticket();
        for states in [&[][..], &[A], &[], &[A, B], &[B]] {
            waiter.enqueue(states, 10).unwrap();
            assert_eq!(queues.is_empty(), states.is_empty(), "{states:?}");
        }
        drop(waiter);
        assert!(queues.is_empty());
        queues.draw_ticket().enqueue(&[], 10).unwrap();
        assert!(queues.is_empty());
    }

    #[test]
    fn queues_are_bounded() {
        let queues = Queues::default();
        let (mut first, mut second) = (queues.draw_ticket(), queues.draw_ticket());
        first.enqueue(&[A], 1).unwrap();
        assert_eq!(second.enqueue(&[A, B], 1), Err(QueueFull));
        assert_eq!(first.enqueue(&[A], 1), Ok(())); // it is in this queue already
        drop(first);
        assert_eq!(second.enqueue(&[A, B], 1), Ok(()));
    }
}
