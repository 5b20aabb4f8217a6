//! Who waits for what, and who is first.
//!
//! ```text
//!   state "2/s of alice"    ticket 4 (first) ─ 7 ─ 9
//!   state "15/s of 10.0.0.1"   7 (first)
//! ```
//!
//! Everybody who asks draws a ticket. Who is refused stands in line at the state that keeps it waiting longest,
//! by its ticket, and asks again when the time has come. A ticket may ask only if nobody with an older one waits at
//! any of its states: so a newcomer never overtakes, and a ticket waits only for older ones, never in a circle.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_core::StateId;
use tokio::sync::Notify;

/// The lines of a limiter.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    /// Changed through [`Queues::change`] only.
    lines: Mutex<Lines>,
    /// Whether there are lines; read without the lock, because most of the time there are none. A reader that misses
    /// a request that is just lining up came at the same moment, and either may be first.
    occupied: AtomicBool,
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct Lines {
    by_state: HashMap<StateId, BTreeMap<u64, Arc<Notify>>>,
}

/// A place among those who wait. Whoever drops it leaves all lines.
#[derive(Debug)]
pub(crate) struct Place<'q> {
    queues: &'q Queues,
    ticket: u64,
    standing: Vec<StateId>,
    called: Arc<Notify>,
}

/// A line is full.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Queues {
    /// A ticket for somebody who is about to ask.
    pub(crate) fn draw(&self) -> Place<'_> {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        Place { queues: self, ticket, standing: vec![], called: Arc::default() }
    }

    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        !self.occupied.load(Ordering::Acquire)
    }

    /// Lets everybody who is first ask again: somebody was reset, or the policy changed.
    pub(crate) fn wake_all(&self) {
        if !self.is_empty() {
            self.lock().by_state.values().for_each(call_first);
        }
    }

    /// Changes the lines and says afterwards whether there are any, so that the two cannot come apart.
    fn change<T>(&self, change: impl FnOnce(&mut Lines) -> T) -> T {
        let mut lines = self.lock();
        let done = change(&mut lines);
        // Stored while the lines are locked, so the last change has the last word.
        self.occupied.store(!lines.by_state.is_empty(), Ordering::Release);
        done
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place<'_> {
    /// Those of these states at which somebody older waits.
    pub(crate) fn behind(&self, states: &[StateId]) -> Vec<StateId> {
        if self.queues.is_empty() {
            return vec![];
        }
        let lines = self.queues.lock();
        let older = |state: &&StateId| {
            let first = lines.by_state.get(*state).and_then(BTreeMap::first_key_value);
            first.is_some_and(|(first, _)| *first < self.ticket)
        };
        states.iter().filter(older).copied().collect()
    }

    /// Stands in line at these states, and no longer at others; refused if one of the lines is full.
    pub(crate) fn stand(&mut self, states: &[StateId], most: usize) -> Result<(), Full> {
        self.queues.change(|lines| {
            let full =
                |state: &StateId| lines.by_state.get(state).is_some_and(|line| line.len() >= most);
            if states.iter().any(|state| !self.standing.contains(state) && full(state)) {
                return Err(Full);
            }
            self.leave(lines);
            for state in states {
                let line = lines.by_state.entry(*state).or_default();
                line.insert(self.ticket, Arc::clone(&self.called));
            }
            self.standing = states.to_vec();
            Ok(())
        })
    }

    /// Called when it may be its turn.
    pub(crate) fn called(&self) -> &Notify {
        &self.called
    }

    fn leave(&mut self, lines: &mut Lines) {
        for state in self.standing.drain(..) {
            let Some(line) = lines.by_state.get_mut(&state) else { continue };
            let was_first = line.first_key_value().is_some_and(|(first, _)| *first == self.ticket);
            line.remove(&self.ticket);
            if was_first {
                call_first(line);
            }
            if line.is_empty() {
                lines.by_state.remove(&state);
            }
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.standing.is_empty() {
            self.queues.change(|lines| self.leave(lines));
        }
    }
}

fn call_first(line: &BTreeMap<u64, Arc<Notify>>) {
    if let Some((_, first)) = line.first_key_value() {
        // It keeps the call if it is not listening yet.
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
        let (mut first, mut second) = (queues.draw(), queues.draw());
        assert!(first.behind(&[A]).is_empty() && second.behind(&[A]).is_empty());
        second.stand(&[A], 10).unwrap();
        assert_eq!(queues.draw().behind(&[A, B]), [A]);
        assert_eq!(queues.draw().behind(&[B]), []);
        assert_eq!(first.behind(&[A]), []); // it is older than who waits
        first.stand(&[A], 10).unwrap();
        assert_eq!(second.behind(&[A]), [A]);
        drop(first);
        assert_eq!(second.behind(&[A]), []);
        drop(second);
        assert!(queues.lock().by_state.is_empty() && queues.is_empty());
    }

    /// A place that was told to stand nowhere counted as waiting, and was never counted out again: from then on every
    /// request of the limiter took the slow way past the queues.
    #[test]
    fn standing_nowhere_is_not_waiting() {
        let queues = Queues::default();
        let mut place = queues.draw();
        for states in [&[][..], &[A], &[], &[A, B], &[B]] {
            place.stand(states, 10).unwrap();
            assert_eq!(queues.is_empty(), states.is_empty(), "{states:?}");
        }
        drop(place);
        assert!(queues.is_empty());
        queues.draw().stand(&[], 10).unwrap();
        assert!(queues.is_empty());
    }

    #[test]
    fn lines_are_bounded() {
        let queues = Queues::default();
        let (mut first, mut second) = (queues.draw(), queues.draw());
        first.stand(&[A], 1).unwrap();
        assert_eq!(second.stand(&[A, B], 1), Err(Full));
        assert_eq!(first.stand(&[A], 1), Ok(())); // it stands there already
        drop(first);
        assert_eq!(second.stand(&[A, B], 1), Ok(()));
    }
}
