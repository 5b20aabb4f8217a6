//! The lease of one state on one node, as a pure machine: events in, calls to the store out.
//!
//! ```text
//!                 Missed, or little is left            Granted: a slice
//!   ┌─ waiting ──────────────────────────────► asking ──────────────────┐
//!   │      ▲                                     │ Granted: nothing, or Unanswered: a pause
//!   │      └─────────────────────────────────────┴──────────────────────┘
//!   └─ idle, or Ended ──► what is left is given back, once
//! ```
//!
//! **How much.** A node asks for what it will need during half of the time for which a slice can be spent, and for at most its
//! rule's share of the limit. The store grants at most one of `2N` parts of what is free (`N` nodes), so that the others find
//! something too. When a bucket is contended, little is free at a time. So a node asks for at least a `2N`th of what the bucket
//! refills in an interval, or for what it needs in a quarter of an interval. If there is less, it gets nothing and asks again
//! a quarter to half of an interval later.
//!
//! **Conservation.** Everything that was granted is held, was spent, was given back, drained away unspent (its time has passed),
//! or was lost (with a connection, or because it did not fit the bounds). [`LeaseTotals`] counts each, and the sums agree.

use super::clock_sample::ClockSample;
use super::demand::Demand;
use super::hot_keys::HOT;
use std::sync::Arc;
use tidegate_core::{
    Bound, Cost, LeaseAsk, LeaseTerms, Limit, Slice, Span, TakeReceipt, TimeRange, Timestamp,
};

/// The most slices that a lease holds.
const MAX_SLICES: usize = 8;
/// A slice that can be spent for longer than this is asked for as if it were this long.
const LONGEST_LIFE: Span = Span::from_secs(1);
/// From a limit with this period on, a slice is at most a hundredth: what a node strands when it crashes is back only when
/// the window ends.
const LONG_WINDOW: Span = Span::from_secs(3_600);
/// More is asked for when this much time is left at the present demand.
const ASK_BEFORE: Span = Span::from_millis(20);
/// Numbers of an ask are at most this large, so that a script can compute with them.
const MOST_ASKED: u64 = 1 << 45;

/// The lease of one state.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    limit: Arc<Limit>,
    terms: LeaseTerms,
    slices: Vec<Slice>,
    /// What is known about the store's clock.
    sample: Option<ClockSample>,
    /// The connections by which the slices were granted; see [`LeaseMoment::epoch`].
    epoch: u64,
    demand: Demand,
    /// When everything that is counted in the store will be free, as of the last grant.
    reset: Timestamp,
    /// An ask is under way.
    asking: bool,
    /// No ask before this time.
    not_before: Timestamp,
    last_granted: u64,
    /// How long it took until the last slice could be spent, because it reached ahead of a full bucket.
    lead: Span,
    /// When a take last needed this lease.
    used_at: Timestamp,
    asks: u64,
    totals: LeaseTotals,
}

/// When something happens to a lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseMoment {
    /// This node's time since boot, which is never set and never slewed.
    pub(crate) local: Timestamp,
    /// How many nodes share the store.
    pub(crate) nodes: u32,
    /// Changes with every new connection to other data and every slot that changes its owner. What was granted before may not be counted in the
    /// store any more, and what is known about its clock may be wrong.
    pub(crate) epoch: u64,
}

/// What happens to a lease, besides spending.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeaseEvent {
    /// A take of this weight was not spent here: the store or a cached refusal decided it.
    Missed(u64),
    /// The store answered an ask.
    Granted(Granted),
    /// The store did not answer. If it granted a slice, that is lost.
    Unanswered,
    /// A cost that was spent here in this epoch, for a plan that was then refused, is put back.
    Undone(TakeReceipt, u64),
    /// A cost was given back by a client, as a slice of this node.
    Refunded(Slice),
    /// Time has passed.
    Looked,
    /// The limit was edited, the lease is evicted, or the node shuts down.
    Ended,
}

/// The answer to an ask.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    /// `None` if too little is free.
    pub(crate) slice: Option<Slice>,
    /// When everything that is counted will be free.
    pub(crate) reset: Timestamp,
    pub(crate) sample: ClockSample,
    /// The epoch in which the ask was sent.
    pub(crate) epoch: u64,
}

/// A call that the driver makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeaseAction {
    /// Asks the store for a slice; exactly one `Granted` or `Unanswered` follows.
    Ask(Arc<Limit>, LeaseAsk),
    /// Gives slices back, once. Nothing follows: what does not arrive is lost.
    GiveBack(Arc<Limit>, Vec<Slice>),
}

/// What became of everything that was granted, in the unit of the algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseTotals {
    pub(crate) granted: u64,
    pub(crate) refunded: u64,
    pub(crate) spent: u64,
    pub(crate) returned: u64,
    pub(crate) drained: u64,
    pub(crate) lost: u64,
}

impl LeaseTotals {
    /// Whether nothing was made or lost without being counted.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) const fn agree(&self, held: u64) -> bool {
        let Self { granted, refunded, spent, returned, drained, lost } = *self;
        granted.wrapping_add(refunded)
            == spent
                .wrapping_add(returned)
                .wrapping_add(drained)
                .wrapping_add(lost)
                .wrapping_add(held)
    }
}

impl Lease {
    /// The lease of a state that is hot now. It holds nothing yet.
    pub(crate) fn new(limit: Arc<Limit>, terms: LeaseTerms, now: &LeaseMoment) -> Self {
        let unit = limit.weight(Cost::ONE, Bound::Plain).unwrap_or(1);
        let demand = Demand::new(now.local, HOT.saturating_mul(unit), terms.interval);
        Self {
            limit,
            terms,
            slices: Vec::new(),
            sample: None,
            epoch: now.epoch,
            demand,
            reset: Timestamp::EPOCH,
            asking: false,
            not_before: Timestamp::EPOCH,
            last_granted: 0,
            lead: Span::ZERO,
            used_at: now.local,
            asks: 0,
            totals: LeaseTotals::default(),
        }
    }

    // === events ===

    /// Spends a weight, if a slice covers it now.
    pub(crate) fn spend(&mut self, now: &LeaseMoment, weight: u64) -> Option<TakeReceipt> {
        self.demand.note(now.local, weight, self.interval());
        self.used_at = now.local;
        self.check_epoch(now);
        let range = self.sample?.at(now.local);
        for slice in &mut self.slices {
            let before = slice.weight();
            if let Some(receipt) = slice.spend(&self.limit, weight, range) {
                let after = slice.weight().saturating_add(weight);
                self.totals.spent = self.totals.spent.saturating_add(weight);
                self.totals.drained =
                    self.totals.drained.saturating_add(before.saturating_sub(after));
                return Some(receipt);
            }
        }
        None
    }

    /// More is needed: little is left, and no ask is under way.
    pub(crate) fn renewal(&mut self, now: &LeaseMoment) -> Option<LeaseAction> {
        let before = (self.life().as_nanos() / 8).min(ASK_BEFORE.as_nanos());
        let until = before.saturating_add(self.lead.as_nanos());
        let needed = self.demand.during(Span::from_nanos(until));
        let enough = needed.max(self.last_granted / 4);
        (self.held() <= enough).then(|| self.ask(now)).flatten()
    }

    /// Everything else that can happen.
    pub(crate) fn on_event(&mut self, now: &LeaseMoment, event: LeaseEvent) -> Option<LeaseAction> {
        self.check_epoch(now);
        match event {
            LeaseEvent::Missed(weight) => {
                self.used_at = now.local;
                let too_small = self.slices.iter().all(|slice| slice.weight() < weight);
                if too_small { self.ask(now) } else { self.renewal(now) }
            }
            LeaseEvent::Granted(granted) => self.granted(now, &granted),
            LeaseEvent::Unanswered => {
                self.asking = false;
                self.not_before = later(now.local, self.interval());
                None
            }
            LeaseEvent::Undone(receipt, epoch) => {
                self.undo(&receipt, epoch);
                None
            }
            LeaseEvent::Refunded(slice) => {
                if self.held().saturating_add(slice.weight()) <= self.most_held() {
                    self.totals.refunded = self.totals.refunded.saturating_add(slice.weight());
                    self.add(slice);
                }
                None
            }
            LeaseEvent::Looked => {
                self.drain(now);
                (self.idle(now) >= self.patience()).then(|| self.give_back(now)).flatten()
            }
            LeaseEvent::Ended => self.give_back(now),
        }
    }

    fn granted(&mut self, now: &LeaseMoment, granted: &Granted) -> Option<LeaseAction> {
        self.asking = false;
        let Some(slice) = granted.slice else {
            // Different nodes do not ask again at the same time.
            let pause = self.interval().as_nanos() / 4;
            let jitter = now.local.as_nanos().checked_rem(pause.saturating_add(1)).unwrap_or(0);
            self.not_before = later(now.local, Span::from_nanos(pause.saturating_add(jitter)));
            return None;
        };
        self.totals.granted = self.totals.granted.saturating_add(slice.weight());
        if granted.epoch != now.epoch {
            self.totals.lost = self.totals.lost.saturating_add(slice.weight());
            return None;
        }
        let narrowed = self.sample.map(|sample| sample.narrowed_by(&granted.sample));
        if narrowed == Some(None) {
            // A clock was stepped. The slices before it are placed by the old time.
            self.lose();
        }
        self.sample = Some(narrowed.flatten().unwrap_or(granted.sample));
        self.reset = granted.reset;
        self.last_granted = slice.weight();
        self.lead = self.range(now).map_or(Span::ZERO, |range| slice.lag(&self.limit, range));
        self.add(slice);
        if self.doubt_is_too_large() {
            self.not_before = later(now.local, LONGEST_LIFE);
            return self.give_back(now);
        }
        None
    }

    /// The range of the store's time is so long that a node would spend little of what it holds.
    fn doubt_is_too_large(&self) -> bool {
        let doubt = self.sample.map_or(Span::ZERO, |sample| sample.doubt());
        self.limit.slice_life().is_some_and(|life| life.as_nanos() / 4 < doubt.as_nanos())
    }

    fn undo(&mut self, receipt: &TakeReceipt, epoch: u64) {
        if self.totals.spent < receipt.weight {
            return; // an earlier lease spent it
        }
        self.totals.spent = self.totals.spent.saturating_sub(receipt.weight);
        if epoch != self.epoch {
            self.totals.lost = self.totals.lost.saturating_add(receipt.weight);
            return;
        }
        if let Some(slice) = Slice::of_slot(receipt) {
            return self.add(slice);
        }
        for slice in &mut self.slices {
            if let Slice::Hits { left, window, .. } = slice
                && *window == receipt.mark
            {
                *left = left.saturating_add(receipt.weight);
                return;
            }
        }
        self.totals.drained = self.totals.drained.saturating_add(receipt.weight);
    }

    // === asking ===

    fn ask(&mut self, now: &LeaseMoment) -> Option<LeaseAction> {
        let is_due = !self.asking && now.local >= self.not_before;
        if !is_due || !self.limit.is_worth_leasing(&self.terms, now.nodes) {
            return None;
        }
        self.drain(now);
        let room = part(self.most_held().saturating_sub(self.held()), 1, self.unit());
        let mut ask = self.sized(now);
        ask.most = ask.most.min(room);
        if ask.most < ask.least.max(1) || self.slices.len() >= MAX_SLICES {
            return None;
        }
        self.asking = true;
        self.asks = self.asks.saturating_add(1);
        Some(LeaseAction::Ask(Arc::clone(&self.limit), ask))
    }

    /// The most that is held at a time: two shares of the limit.
    fn most_held(&self) -> u64 {
        self.share().saturating_mul(2).saturating_mul(self.unit())
    }

    /// The weight of a cost of 1.
    fn unit(&self) -> u64 {
        self.limit.weight(Cost::ONE, Bound::Plain).unwrap_or(1).max(1)
    }

    /// How much is asked for.
    fn sized(&self, now: &LeaseMoment) -> LeaseAsk {
        let units = |span: Span| self.demand.during(span).div_ceil(self.unit());
        let share = self.share();
        let nodes = u64::from(now.nodes.max(1));
        let parts = nodes.saturating_mul(2);
        if self.limit.ticks().is_none() {
            let most = units(self.spendable_for(now)).clamp(1, share);
            return LeaseAsk { most, least: 0, parts, ahead: Span::ZERO };
        }
        let (interval, life) = (self.interval(), self.life());
        let refill = part(self.limit.capacity(), interval.as_nanos(), life.as_nanos());
        let quarter = units(Span::from_nanos(interval.as_nanos() / 4));
        let least = part(refill, 1, parts).min(quarter).clamp(1, share);
        let needed = units(self.spendable_for(now));
        // Slices of a bucket that refills continuously pass by, whether they are spent or not. Small ones would have to be asked
        // for all the time.
        let most = if self.left(now).is_some() { needed } else { needed.max(refill) };
        LeaseAsk { most: most.clamp(least, share), least, parts, ahead: interval }
    }

    /// For how long a slice that is granted now will be spent: half of its life, and not beyond the end of its window.
    fn spendable_for(&self, now: &LeaseMoment) -> Span {
        let half = Span::from_nanos(self.life().min(LONGEST_LIFE).as_nanos() / 2);
        self.left(now).map_or(half, |left| left.min(half))
    }

    /// The time until everything that is held is lost at once.
    fn left(&self, now: &LeaseMoment) -> Option<Span> {
        let range = self.range(now);
        let first = self.slices.iter().find_map(|slice| match slice {
            Slice::Hits { ends, .. } => Some(ends.since(range?.late)),
            Slice::Ticks { .. } => None,
        });
        first.or_else(|| self.limit.slice_left(range?.late))
    }

    /// For how long a slice can be spent.
    fn life(&self) -> Span {
        self.limit.slice_life().unwrap_or(LONG_WINDOW)
    }

    fn interval(&self) -> Span {
        let micros = self.terms.interval.min(self.life()).min(LONGEST_LIFE).as_nanos() / 1_000;
        Span::from_nanos(micros.max(1).saturating_mul(1_000))
    }

    /// The most that is asked for at a time, in costs of 1.
    fn share(&self) -> u64 {
        let is_long = self.limit.ticks().is_none() && self.life() >= LONG_WINDOW;
        let percent = if is_long { 1 } else { u64::from(self.terms.share).clamp(1, 100) };
        part(self.limit.capacity(), percent, 100).clamp(1, MOST_ASKED)
    }

    // === what is held ===

    /// How much is held, in the unit of the algorithm.
    pub(crate) fn held(&self) -> u64 {
        self.slices.iter().map(Slice::weight).fold(0, u64::saturating_add)
    }

    /// What is held, and was not spent in time, is gone.
    fn drain(&mut self, now: &LeaseMoment) {
        let Some(sample) = self.sample else { return };
        let range = sample.at(now.local);
        for slice in &mut self.slices {
            let drained = slice.drain(&self.limit, range);
            self.totals.drained = self.totals.drained.saturating_add(drained);
        }
        self.slices.retain(|slice| slice.weight() > 0 || is_open(slice, range));
    }

    /// Adds a slice. If there are too many, the smallest one is lost.
    fn add(&mut self, slice: Slice) {
        if self.slices.iter_mut().any(|held| held.join(&slice)) {
            return;
        }
        self.slices.push(slice);
        if self.slices.len() <= MAX_SLICES {
            return;
        }
        let smallest = self.slices.iter().enumerate().min_by_key(|(_, slice)| slice.weight());
        if let Some((at, _)) = smallest {
            let lost = self.slices.remove(at).weight();
            self.totals.lost = self.totals.lost.saturating_add(lost);
        }
    }

    fn give_back(&mut self, now: &LeaseMoment) -> Option<LeaseAction> {
        self.drain(now);
        let mut slices = std::mem::take(&mut self.slices);
        slices.retain(|slice| slice.weight() > 0);
        let weight = slices.iter().map(Slice::weight).fold(0, u64::saturating_add);
        self.totals.returned = self.totals.returned.saturating_add(weight);
        (weight > 0).then(|| LeaseAction::GiveBack(Arc::clone(&self.limit), slices))
    }

    /// Loses what was granted in an earlier epoch: perhaps the store does not count it any more.
    fn check_epoch(&mut self, now: &LeaseMoment) {
        if self.epoch != now.epoch {
            self.lose();
            (self.epoch, self.sample) = (now.epoch, None);
        }
    }

    /// Loses what is held.
    pub(crate) fn lose(&mut self) {
        self.totals.lost = self.totals.lost.saturating_add(self.held());
        self.slices.clear();
    }

    /// Whether the table may remove this lease: it holds nothing, no ask is under way, and no take has asked for its state for some
    /// time.
    pub(crate) fn is_over(&self, now: &LeaseMoment) -> bool {
        let idle = Span::from_nanos(self.idle(now).as_nanos() / 2);
        self.held() == 0 && !self.asking && idle >= self.patience()
    }

    fn idle(&self, now: &LeaseMoment) -> Span {
        now.local.since(self.used_at)
    }

    /// If no take asks for the state for this long, the lease gives back what it holds. For a bucket this is longer: its slices
    /// lose their value as time passes, and the store accepts only the last slice of all nodes.
    fn patience(&self) -> Span {
        let intervals = Span::from_nanos(self.interval().as_nanos().saturating_mul(2));
        match self.limit.ticks() {
            Some(_) => self.life().min(LONGEST_LIFE).max(intervals),
            None => intervals,
        }
    }

    // === views ===

    pub(crate) fn limit(&self) -> &Arc<Limit> {
        &self.limit
    }

    pub(crate) const fn terms(&self) -> &LeaseTerms {
        &self.terms
    }

    pub(crate) const fn used_at(&self) -> Timestamp {
        self.used_at
    }

    /// How often it asked.
    pub(crate) const fn asks(&self) -> u64 {
        self.asks
    }

    pub(crate) const fn totals(&self) -> &LeaseTotals {
        &self.totals
    }

    /// When everything that is counted in the store will be free.
    pub(crate) const fn reset(&self) -> Timestamp {
        self.reset
    }

    /// The range of the store's time.
    pub(crate) fn range(&self, now: &LeaseMoment) -> Option<TimeRange> {
        Some(self.sample?.at(now.local))
    }
}

/// Whether costs can still be put back into an empty slice.
fn is_open(slice: &Slice, range: TimeRange) -> bool {
    matches!(slice, Slice::Hits { ends, .. } if range.late < *ends)
}

/// `⌊n · a / b⌋`.
fn part(n: u64, a: u64, b: u64) -> u64 {
    let scaled = u128::from(n).saturating_mul(u128::from(a));
    u64::try_from(scaled.checked_div(u128::from(b)).unwrap_or(0)).unwrap_or(u64::MAX)
}

fn later(now: Timestamp, span: Span) -> Timestamp {
    now.after(span).unwrap_or(Timestamp::END)
}
