//! The seats of a group: how many requests may be in flight, and which of those that wait comes next.
//!
//! ```text
//!   verdict: class, key ──► Scheduler ──► Seat ──► HeldSeat: freed at the end of the answer, or before that if the
//!                              │ 503              client does not take what has arrived, or the protocol is switched
//! ```
//!
//! A seat means that the upstream works for a request. A client that stops reading keeps its answer waiting, and with it, in time,
//! all seats of its group: Kubernetes was starved that way (kubernetes#115409). So its seat is freed.

use crate::net::source;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tidegate::{
    ClassIndex, Classes, Scheduler, SchedulerReading, SchedulerSettings, Seat, Shed, ShedReason,
    Span, Verdict,
};

/// The seats of a group, shared by all workers.
pub(crate) struct GroupSeats {
    scheduler: Scheduler,
    limit: usize,
    /// How many preflight requests have a seat or wait for one.
    preflights: Arc<AtomicUsize>,
    /// The version of the policy whose classes are in force.
    policy_version: AtomicU64,
}

/// A seat of a group.
pub(crate) struct GroupSeat {
    _seat: Seat,
    _preflight: Option<PreflightPlace>,
}

/// The place of a preflight request among those that may be in flight. They are exempt from limits, and any client can send them, so
/// they have at most a tenth of the seats.
struct PreflightPlace(Arc<AtomicUsize>);

impl GroupSeats {
    /// Classes that fit the number of seats (see `fitting`) are always accepted, so this is `None` only for a bug in the scheduler.
    pub(super) fn new(limit: usize) -> Option<Self> {
        let classes = fitting(&Classes::default(), limit);
        let settings = SchedulerSettings { classes, limit: Some(limit), ..Default::default() };
        let scheduler = Scheduler::new(settings).ok()?;
        let (preflights, policy_version) = (Arc::default(), AtomicU64::new(0));
        Some(Self { scheduler, limit, preflights, policy_version })
    }

    /// These seats under another limit. Requests that are in flight still count.
    pub(super) fn with_limit(&self, limit: usize) -> Option<Self> {
        let classes = fitting(&Classes::default(), limit);
        let scheduler = self.scheduler.clone();
        // With one class any number is valid, so this succeeds in any order of old and new numbers.
        scheduler.set_classes(Classes::only_normal()).ok()?;
        scheduler.set_limit(Some(limit)).ok()?;
        scheduler.set_classes(classes).ok()?;
        let (preflights, policy_version) = (Arc::clone(&self.preflights), AtomicU64::new(0));
        Some(Self { scheduler, limit, preflights, policy_version })
    }

    /// Takes a seat if one is free for the request.
    pub(crate) fn try_enter(&self, request: &SeatRequest<'_>) -> Option<GroupSeat> {
        self.follow(request.verdict);
        let preflight = self.preflight_place(request).ok()?;
        let seat = self.scheduler.try_enter(self.class(request), request.key())?;
        Some(GroupSeat { _seat: seat, _preflight: preflight })
    }

    /// Waits for a seat, for as long as requests of the class wait.
    pub(crate) async fn enter(&self, request: &SeatRequest<'_>) -> Result<GroupSeat, Shed> {
        let preflight = self.preflight_place(request)?;
        let patience = request.verdict.map_or(USUAL_PATIENCE, |verdict| verdict.class().patience());
        let seat = self.scheduler.enter(self.class(request), request.key(), patience).await?;
        Ok(GroupSeat { _seat: seat, _preflight: preflight })
    }

    /// A place for a preflight request; `None` for other requests.
    fn preflight_place(&self, request: &SeatRequest<'_>) -> Result<Option<PreflightPlace>, Shed> {
        if request.verdict.is_some() {
            return Ok(None);
        }
        let most = self.limit.checked_div(10).unwrap_or(0).max(1);
        let more = |count: usize| count.checked_add(1).filter(|count| *count <= most);
        // Relaxed: only a counter.
        match self.preflights.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Some(PreflightPlace(Arc::clone(&self.preflights)))),
            Err(_) => Err(TOO_MANY_PREFLIGHTS),
        }
    }

    fn class(&self, request: &SeatRequest<'_>) -> ClassIndex {
        let class = request.verdict.map(|verdict| verdict.priority);
        class.unwrap_or_else(|| self.scheduler.classes().usual())
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

/// A request that needs a seat.
#[derive(Clone, Copy)]
pub(crate) struct SeatRequest<'v> {
    /// `None` for preflight requests.
    pub(crate) verdict: Option<&'v Verdict>,
    /// The address of the client.
    pub(crate) address: IpAddr,
}

impl SeatRequest<'_> {
    /// Whose request it is: by the key of its rules, or else by its address. One key has at most a quarter of the seats while
    /// others need them, so clients without a key must not share one.
    fn key(&self) -> u64 {
        let key = self.verdict.map_or(0, Verdict::turn_key);
        if key != 0 {
            return key;
        }
        let mut hasher = DefaultHasher::new();
        source(self.address).hash(&mut hasher);
        hasher.finish()
    }
}

const TOO_MANY_PREFLIGHTS: Shed =
    Shed { reason: ShedReason::QueueFull, retry_after: Span::from_secs(1) };

impl Drop for PreflightPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
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
    seat: Option<GroupSeat>,
    client: Cell<ClientProgress>,
}

/// Whether the client takes what has arrived.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClientProgress {
    /// It asks for more, and the upstream has not sent it yet.
    Waits,
    /// It has not yet asked for more since the last piece.
    Reads,
    /// It had not asked for more when [`HeldSeats::free_blocked`] last looked, and has not since.
    Blocked,
}

/// A seat, until it is dropped.
pub(crate) struct HeldSeat {
    seats: Rc<HeldSeats>,
    at: usize,
}

impl HeldSeats {
    pub(crate) fn hold(self: &Rc<Self>, seat: GroupSeat) -> HeldSeat {
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
    use tidegate::{Attributes, Check, Limiter, Policy};

    fn verdict() -> Verdict {
        let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [9/h] }] }");
        let limiter = Limiter::in_memory(policy.unwrap()).unwrap();
        limiter.check_now(&Check::new(&Attributes::new())).unwrap()
    }

    /// A request of a client of its own.
    fn by(verdict: &Verdict, client: u8) -> SeatRequest<'_> {
        SeatRequest { verdict: Some(verdict), address: [192, 0, 2, client].into() }
    }

    fn in_flight(seats: &GroupSeats) -> usize {
        seats.reading().classes.iter().map(|class| class.in_flight).sum()
    }

    #[test]
    fn a_client_that_takes_nothing_loses_its_seat_and_nobody_elses() {
        let (group, held) = (GroupSeats::new(8).unwrap(), Rc::<HeldSeats>::default());
        let verdict = verdict();
        let hold = || held.hold(group.try_enter(&by(&verdict, 1)).unwrap());
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
        let seat = held.hold(group.try_enter(&by(&verdict(), 1)).unwrap());
        for _ in 0..10 {
            seat.given();
            held.free_blocked();
            seat.asked();
            held.free_blocked();
        }
        assert_eq!(in_flight(&group), 1);
    }

    /// Clients without a key are told apart by their addresses, so that one of them cannot take all seats from the others.
    #[test]
    fn an_address_without_a_key_leaves_seats_for_others() {
        let (group, verdict) = (GroupSeats::new(8).unwrap(), verdict());
        let one = group.try_enter(&by(&verdict, 2)).unwrap();
        drop(one);
        let greedy: Vec<_> =
            std::iter::from_fn(|| group.try_enter(&by(&verdict, 1))).take(9).collect();
        assert_eq!(greedy.len(), 7);
        assert!(group.try_enter(&by(&verdict, 2)).is_some());
    }

    #[test]
    fn preflights_have_a_tenth_of_the_seats_in_all_versions_of_the_group() {
        let group = GroupSeats::new(20).unwrap();
        let preflight = SeatRequest { verdict: None, address: [192, 0, 2, 1].into() };
        let seats: Vec<_> = std::iter::from_fn(|| group.try_enter(&preflight)).take(9).collect();
        assert_eq!(seats.len(), 2);
        let more = group.with_limit(39).unwrap();
        let third = more.with_limit(30).unwrap().try_enter(&preflight);
        assert!(more.try_enter(&preflight).is_none() && third.is_some());
        drop((seats, third));
        assert!(group.try_enter(&preflight).is_some());
    }

    #[test]
    fn a_group_may_have_fewer_seats_than_there_are_classes() {
        let group = GroupSeats::new(1).unwrap();
        let verdict = verdict();
        let seat = group.try_enter(&by(&verdict, 1));
        assert!(seat.is_some() && group.try_enter(&by(&verdict, 1)).is_none());
        let more = group.with_limit(5).unwrap();
        assert_eq!((in_flight(&more), more.reading().classes.len()), (1, 4));
        let fewer = more.with_limit(2).unwrap();
        assert!(fewer.try_enter(&by(&verdict, 2)).is_some());
    }
}
