//! The scheduler as a pure machine: it decides which request starts next, and neither waits nor reads a clock.
//!
//! At most `L` requests are in flight. Each class `c` has `g_c` of these seats reserved ([`Classes::seats`]). A request that is
//! in flight cannot be stopped, so a seat must be kept free *before* a class needs it: no order of the queue alone helps against
//! slow requests that already hold all seats.
//!
//! ```text
//!   class c may start a request  iff  in flight < L
//!                                and (in flight_c < g_c                                              a reserved seat
//!                                  or L - in flight > Σ max(0, min(g_d, peak_d) - in flight_d))      an unreserved seat
//!                                                    d≠c
//! ```
//!
//! `peak_d` is the highest demand (in flight and waiting) of class `d` in the last 10 to 20 s. So a class that is not used lends
//! its seats to the others. A class that comes back gets the next seats that become free, up to `g_d`.
//!
//! **Example.** `L = 8`, and `g = 3, 2, 2, 1` for critical, high, normal, low. Only high and low are used. Low may have 6
//! requests in flight: its own seat, and five of the others. Two seats stay free for high.
//!
//! Reserved seats go to the highest class that may use one, and are not charged. Unreserved seats are ordered by start-time
//! fair queueing over the classes: `S = max(V, F)`, `F = S + ROUND / weight`, `V = S`. The classes are few and do not change, so
//! this cannot starve a class, unlike the keys within a class ([`FairQueue`](super::fair_queue::FairQueue)). A start is
//! charged, not the time that it holds the seat, because that is not known yet.
//!
//! One key uses at most a quarter of the seats while others need the rest ([`KeyShares`](super::key_shares::KeyShares)), in all
//! classes together. A request whose key may start none is passed over, as if it did not wait.
//!
//! Between two calls no class with waiting requests, of keys that may start one, may start one. This has two consequences. A request
//! that may start when it arrives overtakes no such request of its class. And if requests of another class wait then, it starts in a reserved seat: for
//! classes with all their reserved seats in use, the condition for unreserved ones is the same.

use super::fair_queue::{Dequeued, FairQueue, QueuedRequest};
use super::key_shares::KeyShares;
use super::recent::{Ended, Progress, Recent, WindowClock, retry_after};
use super::shed::{Shed, ShedReason};
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use tidegate_core::{Span, Timestamp};
use tidegate_policy::{ClassIndex, Classes, ClassesError, PriorityClass};

/// What a start in an unreserved seat costs a class of weight 1.
const ROUND: u64 = 1 << 20;

/// Seats, and the requests that wait for them. `W` is whatever the caller needs to wake a waiting request.
#[derive(Debug)]
pub(super) struct Machine<W> {
    /// `None`: every request starts immediately.
    limit: Option<usize>,
    /// The highest class first. When a configuration has fewer classes than the one before, the rest stay here, without
    /// reserved seats, until their requests are over.
    classes: Vec<ClassQueue<W>>,
    /// How many classes the configuration has.
    configured: usize,
    max_waiting: usize,
    in_flight: usize,
    waiting: usize,
    shares: KeyShares,
    deadlines: BTreeSet<(Timestamp, Ticket)>,
    /// The number of the last ticket.
    tickets: u64,
    /// The largest start tag of a request that started in an unreserved seat.
    virtual_time: u64,
    windows: WindowClock,
    now: Timestamp,
    /// Requests whose wait ended, until the caller fetches them.
    ended: Vec<EndedWait<W>>,
}

/// One class.
#[derive(Debug)]
struct ClassQueue<W> {
    /// By how much a start in an unreserved seat moves the finish tag.
    charge: u64,
    finish_tag: u64,
    reserved: usize,
    in_flight: usize,
    queue: FairQueue<W>,
    recent: Recent,
    counts: ClassCounts,
}

/// How many requests of a class were started and shed since the scheduler was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ClassCounts {
    pub(super) started: u64,
    pub(super) refused: u64,
    pub(super) evicted: u64,
    pub(super) expired: u64,
    pub(super) cancelled: u64,
}

/// What a class does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClassState {
    pub(super) reserved: usize,
    pub(super) in_flight: usize,
    pub(super) waiting: usize,
    pub(super) counts: ClassCounts,
}

/// A waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Ticket {
    number: u64,
    key: u64,
    class: ClassIndex,
}

/// A request whose wait ended.
#[derive(Debug)]
pub(super) struct EndedWait<W> {
    pub(super) class: ClassIndex,
    pub(super) key: u64,
    pub(super) waiter: W,
    pub(super) end: WaitEnd,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitEnd {
    /// The request has a seat. The caller must return it with [`Machine::finish`].
    Started,
    Shed(Shed),
}

/// A request that has to wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArrivingRequest {
    pub(super) class: ClassIndex,
    pub(super) key: u64,
    pub(super) patience: Span,
}

/// Which kind of seat a class may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeatKind {
    Reserved,
    Unreserved,
}

impl<W> Machine<W> {
    /// A machine in which no request is in flight.
    pub(super) fn new(
        classes: &Classes,
        limit: Option<usize>,
        max_waiting: usize,
        now: Timestamp,
    ) -> Result<Self, ClassesError> {
        let mut machine = Self {
            limit: None,
            classes: vec![],
            configured: 0,
            max_waiting,
            in_flight: 0,
            waiting: 0,
            shares: KeyShares::new(),
            deadlines: BTreeSet::new(),
            tickets: 0,
            virtual_time: 0,
            windows: WindowClock::starting_at(now),
            now,
            ended: vec![],
        };
        machine.configure(classes, limit)?;
        Ok(machine)
    }

    /// Changes the classes and the number of seats. Requests that are in flight stay so, also if they are more than the new
    /// limit. A class is the same as before if it is in the same place.
    pub(super) fn configure(
        &mut self,
        classes: &Classes,
        limit: Option<usize>,
    ) -> Result<(), ClassesError> {
        let seats = limit.map(|limit| classes.seats(limit)).transpose()?.unwrap_or_default();
        let seats = seats.into_iter().chain(std::iter::repeat(0));
        self.configured = classes.count();
        let missing = self.configured.saturating_sub(self.classes.len());
        self.classes.extend(std::iter::repeat_with(ClassQueue::new).take(missing));
        let lowest = classes.iter().map(PriorityClass::weight).last();
        let weights = classes.iter().map(PriorityClass::weight).chain(lowest.into_iter().cycle());
        for (class, (weight, seats)) in self.classes.iter_mut().zip(weights.zip(seats)) {
            class.reserved = seats;
            class.charge = charge(weight);
        }
        self.limit = limit;
        self.shares.set_limit(limit);
        self.start_waiting();
        Ok(())
    }

    /// Moves time on: requests that waited too long are shed, and old peaks are forgotten. Every other call assumes that this
    /// was called with its time just before. A time before the last one counts as the last one.
    pub(super) fn advance(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        let ended = self.windows.roll(self.now);
        if ended != Ended::None {
            self.classes.iter_mut().for_each(|class| class.recent.roll(ended, class.demand()));
            self.shares.roll(ended);
        }
        self.expire(); // after the windows: until now, these requests were part of the demand
        if ended != Ended::None {
            self.start_waiting();
        }
    }

    /// Starts a request of this key if it need not wait, and returns the class whose seat it has. If others of its class wait that
    /// may start, no seat is free for it, as the head of this file says.
    pub(super) fn start(&mut self, class: ClassIndex, key: u64) -> Option<ClassIndex> {
        let at = self.position(class)?;
        self.free_seat_for(at).filter(|_| self.shares.may_start(key, self.free()))?;
        self.take_seat(at, key);
        Some(ClassIndex::at(at))
    }

    /// Lets a request wait that could not start, until its patience is over.
    pub(super) fn wait(&mut self, request: ArrivingRequest, waiter: W) -> Result<Ticket, Shed> {
        let at = self.position(request.class).unwrap_or(0);
        // A request that was shed counts as demand as well: with more seats it would have started.
        self.with_class(at, |class| class.recent.count_demand(class.demand().saturating_add(1)));
        self.shares.enter_queue(request.key);
        let entered = self.enter_queue(at, request, waiter);
        if entered.is_err() {
            self.shares.leave_queue(request.key);
        }
        entered
    }

    fn enter_queue(
        &mut self,
        at: usize,
        request: ArrivingRequest,
        waiter: W,
    ) -> Result<Ticket, Shed> {
        let deadline = self.now.after(request.patience).unwrap_or(Timestamp::END);
        if deadline <= self.now {
            return Err(self.shed(at, ShedReason::WaitedTooLong));
        }
        if self.waiting >= self.max_waiting && !self.evict_below(at) {
            return Err(self.shed(at, ShedReason::QueueFull));
        }
        self.tickets = self.tickets.saturating_add(1);
        let ticket = Ticket { number: self.tickets, key: request.key, class: ClassIndex::at(at) };
        let queued = QueuedRequest { deadline, waiter };
        self.with_class(at, |class| class.queue.push(ticket.key, ticket.number, queued));
        self.deadlines.insert((deadline, ticket));
        self.waiting = self.waiting.saturating_add(1);
        Ok(ticket)
    }

    /// Ends the wait of a request whose caller gave up. Does nothing if its wait has ended already.
    pub(super) fn cancel(&mut self, ticket: Ticket) -> Option<W> {
        let class = self.classes.get_mut(ticket.class.position())?;
        let request = class.queue.remove(ticket.key, ticket.number)?;
        class.counts.cancelled = class.counts.cancelled.saturating_add(1);
        self.left(request.deadline, ticket);
        Some(request.waiter)
    }

    /// Takes back the seat of a request of this key that was started in this class.
    pub(super) fn finish(&mut self, class: ClassIndex, key: u64) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.shares.finish(key);
        self.with_class(class.position(), |class| {
            class.in_flight = class.in_flight.saturating_sub(1);
        });
        self.start_waiting();
    }

    /// The requests whose wait ended since the last call.
    pub(super) fn take_ended(&mut self) -> Vec<EndedWait<W>> {
        std::mem::take(&mut self.ended)
    }

    /// When [`Machine::advance`] may next have an effect for this deadline: at the deadline, or when a peak may be forgotten.
    pub(super) fn next_change(&self, deadline: Timestamp) -> Timestamp {
        deadline.min(self.windows.ends())
    }

    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    pub(super) fn limit(&self) -> Option<usize> {
        self.limit
    }

    pub(super) fn states(&self) -> impl Iterator<Item = ClassState> {
        self.classes.iter().take(self.configured).map(ClassQueue::state)
    }
}

// === seats ===

impl<W> Machine<W> {
    /// Starts waiting requests until none may start.
    fn start_waiting(&mut self) {
        while let Some((at, kind)) = self.next_class() {
            let (shares, free) = (&self.shares, self.free());
            let Some(class) = self.classes.get_mut(at) else { return };
            if kind == SeatKind::Unreserved {
                self.virtual_time = class.charge(self.virtual_time);
            }
            let popped = class.queue.pop(|key| shares.may_start(key, free));
            let Some(Dequeued { key, number, request }) = popped else { return };
            let class = ClassIndex::at(at);
            self.left(request.deadline, Ticket { number, key, class });
            self.take_seat(at, key);
            let (waiter, end) = (request.waiter, WaitEnd::Started);
            self.ended.push(EndedWait { class, key, waiter, end });
        }
    }

    /// The class whose waiting request starts next: the highest with a reserved seat; else the one with the smallest start tag.
    fn next_class(&self) -> Option<(usize, SeatKind)> {
        if self.waiting == 0 {
            return None;
        }
        let free = self.free();
        let has_turn =
            |class: &ClassQueue<W>| class.queue.has_turn(|key| self.shares.may_start(key, free));
        let waiting = || self.classes.iter().enumerate().filter(|(_, class)| has_turn(class));
        let may_take = |kind| move |at: &usize| self.free_seat_for(*at) == Some(kind);
        if let Some(at) = waiting().map(|(at, _)| at).find(may_take(SeatKind::Reserved)) {
            return Some((at, SeatKind::Reserved));
        }
        let by_tag = |(_, class): &(usize, &ClassQueue<W>)| class.start_tag(self.virtual_time);
        let (at, _) = waiting().min_by_key(by_tag)?; // of equal tags, the higher class
        may_take(SeatKind::Unreserved)(&at).then_some((at, SeatKind::Unreserved))
    }

    /// Which seat the class may take now; the formula at the head of this file.
    fn free_seat_for(&self, at: usize) -> Option<SeatKind> {
        if self.limit.is_none() {
            return Some(SeatKind::Reserved);
        }
        let free = self.free();
        let class = self.classes.get(at).filter(|_| free > 0)?;
        if class.in_flight < class.reserved {
            return Some(SeatKind::Reserved);
        }
        // This class itself keeps no seat free, since all its reserved seats are in use.
        let kept = self.classes.iter().map(ClassQueue::kept_free).fold(0, usize::saturating_add);
        (free > kept).then_some(SeatKind::Unreserved)
    }

    /// How many seats no request has.
    fn free(&self) -> usize {
        self.limit.map_or(usize::MAX, |limit| limit.saturating_sub(self.in_flight))
    }

    fn take_seat(&mut self, at: usize, key: u64) {
        self.in_flight = self.in_flight.saturating_add(1);
        self.shares.start(key);
        self.with_class(at, |class| {
            class.in_flight = class.in_flight.saturating_add(1);
            class.counts.started = class.counts.started.saturating_add(1);
            class.recent.count_start();
            class.recent.count_demand(class.demand());
        });
    }
}

// === the ends of waits ===

impl<W> Machine<W> {
    /// Sheds the requests whose patience is over.
    fn expire(&mut self) {
        while let Some(&(deadline, ticket)) = self.deadlines.first() {
            if deadline > self.now {
                return;
            }
            let at = ticket.class.position();
            let queue = self.classes.get_mut(at).map(|class| &mut class.queue);
            let request = queue.and_then(|queue| queue.remove(ticket.key, ticket.number));
            self.left(deadline, ticket);
            if let Some(request) = request {
                self.shed_waiting(ticket, request.waiter, ShedReason::WaitedTooLong);
            }
        }
    }

    /// Sheds a request of the lowest class below this one in which any waits: the youngest of the key with the most requests,
    /// because that key loses least. Returns whether there was one.
    fn evict_below(&mut self, at: usize) -> bool {
        let lower = self.classes.iter_mut().enumerate().rev().take_while(|(low, _)| *low > at);
        let mut evicted =
            lower.filter_map(|(at, c)| Some((at, c.queue.remove_youngest_of_longest()?)));
        let Some((low, Dequeued { key, number, request })) = evicted.next() else { return false };
        let ticket = Ticket { number, key, class: ClassIndex::at(low) };
        self.left(request.deadline, ticket);
        self.shed_waiting(ticket, request.waiter, ShedReason::Evicted);
        true
    }

    fn shed_waiting(&mut self, ticket: Ticket, waiter: W, reason: ShedReason) {
        let Ticket { class, key, .. } = ticket;
        let end = WaitEnd::Shed(self.shed(class.position(), reason));
        self.ended.push(EndedWait { class, key, waiter, end });
    }

    /// Counts a request that is shed, and says when it should try again.
    fn shed(&mut self, at: usize, reason: ShedReason) -> Shed {
        self.with_class(at, |class| class.counts.count_shed(reason));
        let all =
            self.classes.iter().map(ClassQueue::progress).fold(Progress::default(), Progress::plus);
        let own = self.classes.get(at).map(ClassQueue::progress).unwrap_or_default();
        let covered = self.windows.covered(self.now);
        Shed { reason, retry_after: retry_after(own, all, covered) }
    }

    /// Counts a request that has left its queue. When no request waits any more, the tags of all classes begin at zero again, so
    /// that no class is ahead of another when requests wait the next time.
    fn left(&mut self, deadline: Timestamp, ticket: Ticket) {
        self.deadlines.remove(&(deadline, ticket));
        self.shares.leave_queue(ticket.key);
        self.waiting = self.waiting.saturating_sub(1);
        if self.waiting == 0 {
            self.virtual_time = 0;
            self.classes.iter_mut().for_each(|class| class.finish_tag = 0);
        }
    }

    /// Where a class is. An index that is too large means the lowest class.
    fn position(&self, class: ClassIndex) -> Option<usize> {
        let last = self.configured.checked_sub(1)?;
        Some(class.position().min(last))
    }

    fn with_class(&mut self, at: usize, change: impl FnOnce(&mut ClassQueue<W>)) {
        if let Some(class) = self.classes.get_mut(at) {
            change(class);
        }
    }
}

/// By how much a start in an unreserved seat moves the finish tag of a class with this weight.
fn charge(weight: NonZeroU32) -> u64 {
    ROUND.checked_div(u64::from(weight.get())).unwrap_or(ROUND).max(1)
}

impl<W> ClassQueue<W> {
    fn new() -> Self {
        Self {
            charge: ROUND,
            finish_tag: 0,
            reserved: 0,
            in_flight: 0,
            queue: FairQueue::new(),
            recent: Recent::default(),
            counts: ClassCounts::default(),
        }
    }

    fn demand(&self) -> usize {
        self.in_flight.saturating_add(self.queue.len())
    }

    /// How many seats must stay free for this class.
    fn kept_free(&self) -> usize {
        self.reserved.min(self.recent.peak()).saturating_sub(self.in_flight)
    }

    fn start_tag(&self, virtual_time: u64) -> u64 {
        virtual_time.max(self.finish_tag)
    }

    /// Charges a start in an unreserved seat, and returns the new virtual time.
    fn charge(&mut self, virtual_time: u64) -> u64 {
        let start = self.start_tag(virtual_time);
        self.finish_tag = start.saturating_add(self.charge);
        start
    }

    fn progress(&self) -> Progress {
        Progress { waiting: self.queue.len(), started: self.recent.started() }
    }

    fn state(&self) -> ClassState {
        let (reserved, in_flight, waiting) = (self.reserved, self.in_flight, self.queue.len());
        ClassState { reserved, in_flight, waiting, counts: self.counts }
    }
}

impl ClassCounts {
    fn count_shed(&mut self, reason: ShedReason) {
        let count = match reason {
            ShedReason::QueueFull => &mut self.refused,
            ShedReason::Evicted => &mut self.evicted,
            ShedReason::WaitedTooLong => &mut self.expired,
        };
        *count = count.saturating_add(1);
    }
}

#[cfg(test)]
impl<W> Machine<W> {
    pub(super) fn assert_consistent(&self) {
        let sum =
            |count: fn(&ClassQueue<W>) -> usize| self.classes.iter().map(count).sum::<usize>();
        assert_eq!(self.waiting, sum(|class| class.queue.len()));
        assert_eq!(self.waiting, self.deadlines.len());
        assert_eq!(self.in_flight, sum(|class| class.in_flight));
        self.classes.iter().for_each(|class| class.queue.assert_consistent());
        self.shares.assert_consistent(self.in_flight, self.waiting);
    }
}
