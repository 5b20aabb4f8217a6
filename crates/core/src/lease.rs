//! Leases: a node takes a slice of a limit in advance, and spends it without asking the store again.
//!
//! ```text
//!   store   ──take──take──[ slice of node A )[ slice of node B )──take──►   one line: no two takes have the same place
//!   node A                  spend spend spend
//! ```
//!
//! Whatever nodes spend, the limit holds as if the store had decided everything. A slice counts in the store as if it were
//! spent. What remains is to spend it only where the store could have counted it too:
//!
//! - **Windows.** A slice is a count of one window (of one sub-window, with sub-windows), and is spent before that window ends.
//! - **Token bucket.** Every take owns a *slot* of the line of ticks: a take of `w` ticks at `t` owns `[from, from + w)` with
//!   `t ≤ from` and `from + w ≤ t + full`. Slots do not overlap. So between `s` and `t` no more is taken than fits between `s` and
//!   `t + full`, and that is the promise of a bucket. A slice is a stretch of this line. It may even reach a little further
//!   than `full` ([`LeaseAsk::ahead`]): that part becomes spendable as time goes on.
//!
//! A node does not know the store's time exactly, but it knows a range of times ([`TimeRange`](crate::TimeRange)). A cost is spent only if
//! it would be right at both ends of the range. So an inexact clock costs tokens, and the limit still holds.
//!
//! The argument for buckets holds as long as the end of the line (`zero`, see [`token_bucket`](crate::algorithm::token_bucket))
//! does not fall below a slice that is held. So on a leased limit a take is given back only if its slot is the last one, or
//! as a slice of the node that gives it back; see [`TakeReceipt::is_slot`].
//!
//! Slices never use the headroom of a soft or elastic limit. So they stay valid when an elastic limit closes.

use crate::algorithm::token_bucket::TokenBucket;
use crate::algorithm::{Shape, TOLERANCE};
use crate::decision::{Bound, TakeReceipt};
use crate::limit::Limit;
use crate::slice::Slice;
use crate::time::{Span, Timestamp};
use crate::written::Written;
use core::fmt;

/// How a rule leases: what its takes tell the store.
///
/// ```
/// use tidegate_core::{LeaseTerms, Span};
/// let terms = LeaseTerms { share: 10, interval: Span::from_millis(100), group: 0 };
/// assert_eq!(terms, LeaseTerms::default());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseTerms {
    /// The most of a limit that one slice can be, in percent.
    pub share: u8,
    /// How often a busy node asks, and how far ahead of a full bucket a slice may reach.
    pub interval: Span,
    /// Which rule this is: what is held is reported by group.
    pub group: u32,
}

/// What a node asks for.
///
/// ```
/// use tidegate_core::{Algorithm, LeaseAsk, Limit, Span, Timestamp, Written};
/// let limit = Limit::new(1_000, Span::from_secs(60), Algorithm::FIXED_WINDOW).unwrap();
/// let mut written = Written::empty(&limit);
/// let ask = LeaseAsk { most: 500, least: 1, parts: 4, ahead: Span::ZERO };
/// let slice = limit.grant(&mut written, Timestamp::EPOCH, &ask).unwrap();
/// assert_eq!(slice.weight(), 250); // a quarter of what is free
/// assert_eq!(limit.peek(&written, Timestamp::EPOCH).remaining, 750);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseAsk {
    /// The most that is of use, in costs of 1.
    pub most: u64,
    /// The least that is of use: less is not granted.
    pub least: u64,
    /// At most one of this many parts of what is free is granted, unless that is less than `least`.
    pub parts: u64,
    /// How far the slice of a bucket may reach beyond a full bucket.
    pub ahead: Span,
}

/// Why a limit cannot be leased.
///
/// ```
/// use tidegate_core::{Algorithm, Limit, NoLease, Span};
/// let limit = |algorithm| Limit::new(100, Span::from_secs(1), algorithm).unwrap();
/// assert_eq!(limit(Algorithm::LEAKY_BUCKET).can_lease(), Err(NoLease::Turns));
/// assert_eq!(limit(Algorithm::SLIDING_LOG).can_lease(), Err(NoLease::Log));
/// assert_eq!(limit(Algorithm::TOKEN_BUCKET).can_lease(), Ok(()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLease {
    /// A leaky bucket gives each request its turn, in the order in which they arrive at all nodes.
    Turns,
    /// A sliding log counts every take at its own instant.
    Log,
    /// A concurrency limit counts requests that are in flight.
    Permits,
}

// === impl LeaseTerms ===

impl Default for LeaseTerms {
    fn default() -> Self {
        Self { share: 10, interval: Span::from_millis(100), group: 0 }
    }
}

// === impl NoLease ===

impl fmt::Display for NoLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Turns => "a leaky_bucket promises turns in the order of all nodes",
            Self::Log => "a sliding_log counts every take at its own instant",
            Self::Permits => "a concurrency limit counts requests that are in flight",
        })
    }
}

impl core::error::Error for NoLease {}

// === impl Limit: granting ===

impl Limit {
    /// Whether slices of this limit can be leased.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, NoLease, Span};
    /// let permits = Limit::new(20, Span::from_secs(30), Algorithm::Concurrent).unwrap();
    /// assert_eq!(permits.can_lease(), Err(NoLease::Permits));
    /// ```
    pub const fn can_lease(&self) -> Result<(), NoLease> {
        match &self.shape {
            Shape::Unlimited
            | Shape::Blocked
            | Shape::FixedWindow(_)
            | Shape::SlidingBuckets(_)
            | Shape::SlidingWeighted(_)
            | Shape::TokenBucket(_) => Ok(()),
            Shape::LeakyBucket(_) => Err(NoLease::Turns),
            Shape::SlidingLog(_) if self.lease().is_some() => Err(NoLease::Permits),
            Shape::SlidingLog(_) => Err(NoLease::Log),
        }
    }

    /// Whether a limit is worth leasing when this many nodes share it: it can be leased, what a node gets is worth a call to the
    /// store, and windows (or sub-windows) are at least ten intervals long. What is held when a window ends is lost.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, LeaseTerms, Limit, Span};
    /// let is_worth_leasing = |amount, algorithm| {
    ///     let limit = Limit::new(amount, Span::from_secs(1), algorithm).unwrap();
    ///     limit.is_worth_leasing(&LeaseTerms::default(), 4)
    /// };
    /// assert!(is_worth_leasing(64, Algorithm::TOKEN_BUCKET));
    /// assert!(!is_worth_leasing(63, Algorithm::TOKEN_BUCKET));
    /// assert!(is_worth_leasing(64, Algorithm::FIXED_WINDOW));
    /// assert!(!is_worth_leasing(64, Algorithm::SLIDING_BUCKETS)); // 60 sub-windows in a second
    /// ```
    #[must_use]
    pub fn is_worth_leasing(&self, terms: &LeaseTerms, nodes: u32) -> bool {
        let parts = u64::from(nodes.max(1)).saturating_mul(2);
        let least = parts.saturating_mul(Self::LEAST_LEASED_PART);
        let is_long = self.ticks().is_some()
            || self
                .slice_life()
                .is_none_or(|life| life.as_nanos() / 10 >= terms.interval.as_nanos());
        self.can_lease().is_ok() && !self.is_unlimited() && self.capacity() >= least && is_long
    }

    /// A limit is worth leasing if each of `2N` parts, for `N` nodes, is at least this much.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Limit::LEAST_LEASED_PART, 8);
    /// ```
    pub const LEAST_LEASED_PART: u64 = 8;

    /// For how long a slice can be spent at most: until a bucket has refilled, or until a window or sub-window is over. `None` if
    /// there is nothing to lease, or if the windows are those of a calendar.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, Span};
    /// let limit = Limit::new(100, Span::from_secs(60), Algorithm::SLIDING_BUCKETS).unwrap();
    /// assert_eq!(limit.slice_life(), Some(Span::from_secs(1))); // one of 60 sub-windows
    /// ```
    #[must_use]
    pub fn slice_life(&self) -> Option<Span> {
        match &self.shape {
            Shape::TokenBucket(TokenBucket(drain)) => drain.span_of(self.room(Bound::Plain)),
            Shape::FixedWindow(shape) => shape.length(),
            Shape::SlidingWeighted(shape) => Some(shape.length()),
            Shape::SlidingBuckets(shape) => Some(shape.length()),
            Shape::Unlimited | Shape::Blocked | Shape::SlidingLog(_) | Shape::LeakyBucket(_) => {
                None
            }
        }
    }

    /// The time until everything that a slice holds is lost at once, because a window or sub-window ends, or because a bucket that
    /// refills at intervals refills. `None` if that does not happen, or if windows begin with their first hit.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, Span, Timestamp};
    /// let left = |algorithm| {
    ///     let limit = Limit::new(100, Span::from_secs(60), algorithm).unwrap();
    ///     limit.slice_left(Timestamp::from_nanos(59_500_000_000))
    /// };
    /// assert_eq!(left(Algorithm::FIXED_WINDOW), Some(Span::from_millis(500)));
    /// assert_eq!(left(Algorithm::TOKEN_BUCKET), None);
    /// ```
    #[must_use]
    pub fn slice_left(&self, now: Timestamp) -> Option<Span> {
        let ends = match &self.shape {
            Shape::TokenBucket(TokenBucket(drain)) => drain.next_refill(now),
            Shape::FixedWindow(shape) => shape.running_until(now),
            Shape::SlidingWeighted(shape) => shape.end(shape.running(now)),
            Shape::SlidingBuckets(shape) => shape.end(shape.current(now)),
            Shape::Unlimited | Shape::Blocked | Shape::SlidingLog(_) | Shape::LeakyBucket(_) => {
                None
            }
        };
        Some(ends?.since(now))
    }

    /// Grants a slice, and counts it as if it were spent. `None` if there is not enough left: then nothing is counted.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, LeaseAsk, Limit, Span, Timestamp, Written};
    /// let limit = Limit::new(100, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let ask = LeaseAsk { most: 100, least: 10, parts: 2, ahead: Span::from_millis(200) };
    /// let mut written = Written::empty(&limit);
    /// let mut grant = || limit.grant(&mut written, Timestamp::EPOCH, &ask).map(|slice| slice.weight());
    /// let token = limit.ticks().unwrap().token;
    /// // Of 120 tokens, the last 20 are ahead: half of 120, of 60, of 30, and the rest is too little to be halved.
    /// assert_eq!([grant(), grant(), grant(), grant()], [60, 30, 15, 10].map(|n| Some(n * token)));
    /// assert_eq!(grant(), None);
    /// ```
    pub fn grant<'l>(
        &'l self,
        written: &mut Written<'l>,
        now: Timestamp,
        ask: &LeaseAsk,
    ) -> Option<Slice> {
        self.mend(written, now);
        let room = self.room(Bound::Plain).saturating_add(self.reach(now, ask.ahead));
        let free = self.whole_units(room.saturating_sub(self.used(written, now)));
        let part = ask.most.min(free.checked_div(ask.parts).unwrap_or(0));
        let amount = if part >= ask.least { part } else { ask.least };
        if amount == 0 || amount > free || self.can_lease().is_err() {
            return None;
        }
        let weight = amount.checked_mul(self.unit())?;
        let before = written.clone();
        let receipt = self.write(written, now, weight);
        let slice = self.slice(written, now, receipt);
        if slice.is_none() {
            *written = before;
        }
        slice
    }

    /// How many ticks `ahead` is beyond the tick of now.
    fn reach(&self, now: Timestamp, ahead: Span) -> u64 {
        let Shape::TokenBucket(TokenBucket(drain)) = &self.shape else { return 0 };
        // The reach is bounded by the tolerance for clocks, so that a slice is never mistaken for the result of a clock step.
        let ahead = if ahead > TOLERANCE { TOLERANCE } else { ahead };
        let later = now.after(ahead).unwrap_or(Timestamp::END);
        drain.at(later).saturating_sub(drain.at(now))
    }

    /// The slice that was just written; `None` if the table of a calendar does not say when its window ends.
    fn slice(&self, written: &Written<'_>, now: Timestamp, receipt: TakeReceipt) -> Option<Slice> {
        let TakeReceipt { mark: window, weight: left, .. } = receipt;
        let hits = |ends| Slice::Hits { left, window, ends };
        match &self.shape {
            Shape::TokenBucket(_) => {
                let end = written.state.word();
                Some(Slice::Ticks { next: end.saturating_sub(left), end })
            }
            Shape::FixedWindow(shape) => shape.end(window).map(hits),
            Shape::SlidingWeighted(shape) => shape.end(window).map(hits),
            Shape::SlidingBuckets(shape) => shape.end(window).map(hits),
            Shape::Unlimited | Shape::Blocked | Shape::SlidingLog(_) | Shape::LeakyBucket(_) => {
                None
            }
        }
        .filter(|slice| slice.is_valid_at(now))
    }
}

// === impl Written: slots ===

impl Written<'_> {
    /// The receipt of the take that was just counted in this state, as it is on leased limits: with the end of its slot, if it is
    /// a token bucket.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, Timestamp, Written};
    /// let limit = Limit::new(10, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let mut written = Written::empty(&limit);
    /// let taken = limit.take(&mut written, &Ask::new(Timestamp::EPOCH, Cost::new(3)));
    /// let slot = written.slot_of(taken.receipt.unwrap());
    /// assert_eq!((slot.mark, slot.weight), (slot.weight, 3 * limit.ticks().unwrap().token));
    /// assert!(written.ends_with(&limit, &slot));
    /// ```
    #[must_use]
    pub const fn slot_of(&self, receipt: TakeReceipt) -> TakeReceipt {
        match &self.shape.shape {
            Shape::TokenBucket(_) => {
                TakeReceipt { mark: self.state.word(), weight: receipt.weight, is_slot: true }
            }
            Shape::Unlimited
            | Shape::Blocked
            | Shape::FixedWindow(_)
            | Shape::SlidingLog(_)
            | Shape::SlidingBuckets(_)
            | Shape::SlidingWeighted(_)
            | Shape::LeakyBucket(_) => receipt,
        }
    }
}
