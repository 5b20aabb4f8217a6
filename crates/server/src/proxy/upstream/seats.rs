//! The seats of a group: how many requests may be in flight, and which of those that wait comes next.
//!
//! ```text
//!   verdict: class, key ──► Scheduler ──► Seat ──► HeldSeat: freed at the end of the answer, or before that if the
//!                              │ 503              client does not take what has arrived, or the protocol is switched
//! ```
//!
//! A seat means that the upstream works for a request. A client that stops reading keeps its answer waiting, and with it, in time,
//! all seats of its group: Kubernetes was starved that way (kubernetes#115409). So its seat is freed.

use slab::Slab;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate::{
    Classes, Scheduler, SchedulerReading, SchedulerSettings, Seat, Shed, Span, Verdict,
};

/// The seats of a group, shared by all workers.
pub(crate) struct GroupSeats {
    scheduler: Scheduler,
    limit: usize,
    /// The version of the policy whose classes are in force.
    policy_version: AtomicU64,
}

impl GroupSeats {
    /// Classes that fit the number of seats (see `fitting`) are always accepted, so this is `None` only for a bug in the scheduler.
    pub(super) fn new(limit: usize) -> Option<Self> {
        let classes = fitting(&Classes::default(), limit);
        let settings = SchedulerSettings { classes, limit: Some(limit), ..Default::default() };
        let scheduler = Scheduler::new(settings).ok()?;
        Some(Self { scheduler, limit, policy_version: AtomicU64::new(0) })
    }

    /// The same seats under another limit: requests that are in flight still count.
    pub(super) fn with_limit(&self, limit: usize) -> Option<Self> {
        let classes = fitting(&Classes::default(), limit);
        let scheduler = self.scheduler.clone();
        // With one class any number is valid, so this succeeds in any order of old and new numbers.
        scheduler.set_classes(Classes::only_normal()).ok()?;
        scheduler.set_limit(Some(limit)).ok()?;
        scheduler.set_classes(classes).ok()?;
        Some(Self { scheduler, limit, policy_version: AtomicU64::new(0) })
    }

    /// Takes a seat if one is free for the request.
    pub(crate) fn try_enter(&self, verdict: Option<&Verdict>) -> Option<Seat> {
        self.follow(verdict);
        let class = verdict.map(|verdict| verdict.priority);
        self.scheduler.try_enter(class.unwrap_or_else(|| self.scheduler.classes().usual()))
    }

    /// Waits for a seat, for as long as requests of the class wait.
    pub(crate) async fn enter(&self, verdict: Option<&Verdict>) -> Result<Seat, Shed> {
        let patience = verdict.map_or(USUAL_PATIENCE, |verdict| verdict.class().patience());
        let class = verdict.map(|verdict| verdict.priority);
        let class = class.unwrap_or_else(|| self.scheduler.classes().usual());
        self.scheduler.enter(class, verdict.map_or(0, Verdict::turn_key), patience).await
    }

    /// Puts the classes of a newer policy in force.
    fn follow(&self, verdict: Option<&Verdict>) {
        let Some(verdict) = verdict else { return };
        let version = verdict.policy_version();
        // Relaxed: if two workers do this at the same time, both set the same classes.
        if self.policy_version.fetch_max(version, Ordering::Relaxed) < version {
            let classes = fitting(verdict.policy().classes(), self.limit);
            if classes.count() < verdict.policy().classes().count()
                && verdict.policy().uses_priorities()
            {
                let (seats, named) = (self.limit, verdict.policy().classes().count());
                tracing::warn!(
                    "a group has {seats} seats, fewer than the {named} priority classes of the policy, so all its requests are of one class; raise `concurrency`"
                );
            }
            // Classes that fit have a seat each, so there is no error.
            let _ = self.scheduler.set_classes(classes);
        }
    }

    pub(crate) fn reading(&self) -> SchedulerReading {
        self.scheduler.reading()
    }
}

/// How long a request without a verdict waits, such as a preflight request.
const USUAL_PATIENCE: Span = Span::from_millis(500);

/// The classes, if there is a seat for each; otherwise all requests are of one class. The files are checked for this when they are
/// read at the start, so later only a warning is needed.
fn fitting(classes: &Classes, limit: usize) -> Classes {
    if limit < classes.count() { Classes::only_normal() } else { classes.clone() }
}

// === seats of requests in flight ===

/// The seats of all requests that are in flight on one worker.
#[derive(Default)]
pub(crate) struct HeldSeats(RefCell<Slab<SeatEntry>>);

struct SeatEntry {
    /// `None`: it was freed, because the client is blocked.
    seat: Option<Seat>,
    client: Cell<ClientProgress>,
}

/// Whether the client takes what has arrived.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClientProgress {
    /// It asks for more, and the upstream has not sent it yet.
    Waits,
    /// It has not yet asked for more since the last piece.
    Reads,
    /// The same, when [`HeldSeats::free_blocked`] last looked.
    Blocked,
}

/// A seat, until it is dropped.
pub(crate) struct HeldSeat {
    seats: Rc<HeldSeats>,
    at: usize,
}

impl HeldSeats {
    pub(crate) fn hold(self: &Rc<Self>, seat: Seat) -> HeldSeat {
        let entry = SeatEntry { seat: Some(seat), client: Cell::new(ClientProgress::Waits) };
        let at = self.0.borrow_mut().insert(entry);
        HeldSeat { seats: Rc::clone(self), at }
    }

    /// Frees the seats of clients that took nothing since the last call. Called about once a second.
    pub(crate) fn free_blocked(&self) {
        let mut freed = Vec::new();
        for (_, entry) in &mut *self.0.borrow_mut() {
            match entry.client.get() {
                ClientProgress::Waits => {}
                ClientProgress::Reads => entry.client.set(ClientProgress::Blocked),
                ClientProgress::Blocked => freed.extend(entry.seat.take()),
            }
        }
        // Now, without the borrow: a seat that becomes free may wake others.
        drop(freed);
    }
}

impl HeldSeat {
    /// The client asks for the next piece of the answer.
    pub(crate) fn asked(&self) {
        self.note(ClientProgress::Waits);
    }

    /// A piece of the answer is on its way to the client.
    pub(crate) fn given(&self) {
        self.note(ClientProgress::Reads);
    }

    fn note(&self, progress: ClientProgress) {
        if let Some(entry) = self.seats.0.borrow().get(self.at) {
            entry.client.set(progress);
        }
    }
}

impl Drop for HeldSeat {
    fn drop(&mut self) {
        let entry = self.seats.0.borrow_mut().try_remove(self.at);
        drop(entry); // without the borrow, as above
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_flight(seats: &GroupSeats) -> usize {
        seats.reading().classes.iter().map(|class| class.in_flight).sum()
    }

    #[test]
    fn a_client_that_takes_nothing_loses_its_seat_and_nobody_elses() {
        let (group, held) = (GroupSeats::new(8).unwrap(), Rc::<HeldSeats>::default());
        let hold = || held.hold(group.try_enter(None).unwrap());
        let (blocked, waiting) = (hold(), hold());
        blocked.given();
        waiting.given();
        waiting.asked();
        held.free_blocked();
        assert_eq!(in_flight(&group), 2); // it may just be reading
        held.free_blocked();
        assert_eq!(in_flight(&group), 1);
        let next = hold();
        drop(blocked);
        assert_eq!(in_flight(&group), 2);
        drop((waiting, next));
        assert_eq!(in_flight(&group), 0);
    }

    #[test]
    fn a_client_that_goes_on_keeps_its_seat() {
        let (group, held) = (GroupSeats::new(8).unwrap(), Rc::<HeldSeats>::default());
        let seat = held.hold(group.try_enter(None).unwrap());
        for _ in 0..10 {
            seat.given();
            held.free_blocked();
            seat.asked();
            held.free_blocked();
        }
        assert_eq!(in_flight(&group), 1);
    }

    #[test]
    fn a_group_may_have_fewer_seats_than_there_are_classes() {
        let group = GroupSeats::new(1).unwrap();
        let seat = group.try_enter(None);
        assert!(seat.is_some() && group.try_enter(None).is_none());
        let more = group.with_limit(5).unwrap();
        assert_eq!((in_flight(&more), more.reading().classes.len()), (1, 4));
        let fewer = more.with_limit(2).unwrap();
        assert!(fewer.try_enter(None).is_some());
    }
}
