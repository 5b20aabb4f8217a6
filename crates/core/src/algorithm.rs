//! The six algorithms, and concurrency limits.
//!
//! Every algorithm measures how much of a limit is *in use*, in hits or in ticks, and answers the same few questions. Its
//! chapter says how. Everything that a caller sees is computed from that in the same way for all six:
//!
//! ```text
//!   passes     iff used + weight(cost) ≤ room
//!   remaining  =  ⌊(plain room − used) / unit⌋           rounded down
//!   retry      =  time until used ≤ room − weight(cost)   exact to the nanosecond
//!   reset      =  time until used is 0
//!   charge     :  used grows unconditionally, up to twice the plain room
//! ```
//!
//! | chapter | measures | memory |
//! |---|---|---|
//! | [`fixed_window`] | hits of this window | 8 bytes |
//! | [`sliding_log`] | hits of the last period | about 2 bytes per hit |
//! | [`sliding_buckets`] | hits of the last sub-windows | 2 bytes per sub-window |
//! | [`sliding_weighted`] | hits of this window, and a share of the previous one's | 8 or 16 bytes |
//! | [`token_bucket`] | ticks until all tokens are back | 8 bytes |
//! | [`leaky_bucket`] | ticks until all promised turns are over | 8 bytes |
//!
//! **Concurrency.** [`Algorithm::Concurrent`] limits how many requests are in flight. It has no chapter, because it counts as
//! the sliding log does: an entry is a *permit*, the period is its *lease*, and the entry is given back when the request ends.
//! A permit that is never given back, for example because its node crashed, frees itself when the lease is over.
//!
//! **Clock steps.** Takes of different threads and hosts arrive slightly out of order. So a state may be ahead of now by up
//! to the *tolerance* of 1 s. A state further ahead was written by a clock that has since been set back. It would refuse
//! everything until its time comes again, so it is *mended*: windows and logs count their hits as of now, and buckets count
//! everything that can be in use as used now. Mending never increases what remains. A cost of 1 passes again within a period
//! and the tolerance; with a bucket, within the time to fill it plus one token. Mending is the only change that a refused
//! take may make to a state.
//!
//! **Edited limits.** A state is read under the limit that wrote it, and written under the limit of the take. So use is never
//! forgotten, and nodes with different versions of a policy may take turns on one key. Another algorithm has another state.

pub(crate) mod drain;
pub mod fixed_window;
pub mod leaky_bucket;
pub(crate) mod packed;
pub mod sliding_buckets;
pub mod sliding_log;
pub mod sliding_weighted;
pub mod token_bucket;

use crate::state::State;
use crate::time::{Span, Timestamp};
use fixed_window::FixedWindow;
use leaky_bucket::LeakyBucket;
use sliding_buckets::SlidingBuckets;
use sliding_log::SlidingLog;
use sliding_weighted::SlidingWeighted;
use token_bucket::TokenBucket;

/// How far a state may be ahead of now without being mended.
///
/// It is long enough for hosts whose clocks are synchronised by NTP. It is short enough that a key which a clock step has
/// locked is not locked for much longer than its period. It does not shrink with periods below a second: if a slow host
/// moved a state back by a period, the state would have expired for a fast host.
pub(crate) const TOLERANCE: Span = Span::from_secs(1);

/// The algorithm of a limit, with its options. Each has a chapter in the module `algorithm` of `tidegate_core`.
///
/// ```
/// use tidegate_core::{Algorithm, Refill};
/// let bucket = Algorithm::TokenBucket { burst: Some(30), refill: Refill::Continuous };
/// assert_eq!(bucket.name(), "token_bucket");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// A count that starts again with every window.
    FixedWindow {
        /// Where windows of equal length begin. Windows of a calendar begin at its boundaries.
        align: Align,
    },
    /// A log of every take of the last period.
    SlidingLog,
    /// One counter per sub-window: the running one and those that make up a period.
    SlidingBuckets {
        /// The number of sub-windows in a period.
        buckets: u16,
    },
    /// The count of this window, plus the previous window's count in proportion to its overlap with the period.
    SlidingWeighted,
    /// Tokens that come back at the rate, up to a capacity.
    TokenBucket {
        /// The capacity; by default the amount.
        burst: Option<u64>,
        /// How tokens come back.
        refill: Refill,
    },
    /// A queue that lets one request pass at a time, at the rate.
    LeakyBucket {
        /// How many requests may wait; by default the amount.
        queue: Option<u64>,
    },
    /// A log of permits, each of which is given back when its request ends. The amount is how many requests may be in flight,
    /// and the period is the lease: how long a permit is held that is never given back.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, Timestamp, Written};
    /// let limit = Limit::new(1, Span::from_secs(30), Algorithm::Concurrent).unwrap();
    /// let mut written = Written::empty(&limit);
    /// let ask = |seconds: u64| Ask::new(Timestamp::from_nanos(seconds * 1_000_000_000), Cost::ONE);
    /// let permit = limit.take(&mut written, &ask(100)).receipt.unwrap();
    /// assert!(!limit.take(&mut written, &ask(101)).decision.passes()); // one request is in flight
    /// written.give_back(ask(102).now, &limit, &permit);
    /// assert!(limit.take(&mut written, &ask(102)).decision.passes()); // it has ended
    /// assert!(limit.take(&mut written, &ask(133)).decision.passes()); // the second one's lease is over
    /// ```
    Concurrent,
}

/// Where fixed windows begin.
///
/// ```
/// use tidegate_core::{Algorithm, Align, Ask, Cost, Limit, Span, Timestamp, Written};
/// let reset = |align| {
///     let limit = Limit::new(9, Span::from_secs(60), Algorithm::FixedWindow { align }).unwrap();
///     let now = Timestamp::from_nanos(90_000_000_000); // 1 min 30 s
///     limit.take(&mut Written::empty(&limit), &Ask::new(now, Cost::ONE)).decision.reset
/// };
/// assert_eq!(reset(Align::Epoch), Some(Span::from_secs(30))); // the window began at 1 min
/// assert_eq!(reset(Align::First), Some(Span::from_secs(60))); // the window begins now
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Align {
    /// At whole multiples of the period since the epoch, the same for every key.
    #[default]
    Epoch,
    /// At the key's first take after its previous window ended.
    First,
}

/// How the tokens of a token bucket come back.
///
/// ```
/// use tidegate_core::{Algorithm, Ask, Cost, Limit, Refill, Span, Timestamp, Written};
/// let remaining_at = |refill, millis: u64| {
///     let limit = Limit::new(4, Span::from_secs(1), Algorithm::TokenBucket { burst: None, refill }).unwrap();
///     let mut written = Written::empty(&limit);
///     limit.take(&mut written, &Ask::new(Timestamp::EPOCH, Cost::new(4)));
///     limit.peek(&written, Timestamp::from_nanos(millis * 1_000_000)).remaining
/// };
/// assert_eq!([500, 1_000].map(|millis| remaining_at(Refill::Continuous, millis)), [2, 4]);
/// assert_eq!([500, 1_000].map(|millis| remaining_at(Refill::Interval, millis)), [0, 4]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Refill {
    /// One by one, evenly.
    #[default]
    Continuous,
    /// The whole amount together, at whole multiples of the period since the epoch.
    Interval,
}

/// The unit of time of a bucket: a fraction of its period, chosen so that a token is a whole number of ticks.
///
/// ```
/// use tidegate_core::Ticks;
/// let ticks = Ticks { per_period: 8, token: 4, believed: 20 };
/// assert_eq!(ticks.per_period / ticks.token, 2); // two tokens per period
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    /// Ticks in a period.
    pub per_period: u64,
    /// Ticks of one token or turn: a power of two.
    pub token: u64,
    /// The most ticks in use that a correct clock can have written. A state with more was written by a clock that has since
    /// been set back.
    pub believed: u64,
}

/// A limit, compiled for its algorithm. Unlike [`Algorithm`] it has all numbers that a decision needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Shape {
    Unlimited,
    Blocked,
    FixedWindow(FixedWindow),
    SlidingLog(SlidingLog),
    SlidingBuckets(SlidingBuckets),
    SlidingWeighted(SlidingWeighted),
    TokenBucket(TokenBucket),
    LeakyBucket(LeakyBucket),
}

/// The shape of the current limit and the shape under which a state was written, if both have the same algorithm.
enum ShapePair<'a> {
    FixedWindow(&'a FixedWindow, &'a FixedWindow),
    SlidingLog(&'a SlidingLog, &'a SlidingLog),
    SlidingBuckets(&'a SlidingBuckets, &'a SlidingBuckets),
    SlidingWeighted(&'a SlidingWeighted, &'a SlidingWeighted),
    TokenBucket(&'a TokenBucket, &'a TokenBucket),
    LeakyBucket(&'a LeakyBucket, &'a LeakyBucket),
}

// === impl Algorithm ===

impl Algorithm {
    /// `fixed_window` on epoch boundaries.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Align};
    /// assert_eq!(Algorithm::FIXED_WINDOW, Algorithm::FixedWindow { align: Align::Epoch });
    /// ```
    pub const FIXED_WINDOW: Self = Self::FixedWindow { align: Align::Epoch };

    /// `sliding_log`.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Algorithm::SLIDING_LOG.name(), "sliding_log");
    /// ```
    pub const SLIDING_LOG: Self = Self::SlidingLog;

    /// `sliding_buckets` with 60 sub-windows: one per minute for a period of an hour.
    ///
    /// ```
    /// use tidegate_core::Algorithm;
    /// assert_eq!(Algorithm::SLIDING_BUCKETS, Algorithm::SlidingBuckets { buckets: 60 });
    /// ```
    pub const SLIDING_BUCKETS: Self = Self::SlidingBuckets { buckets: 60 };

    /// `sliding_weighted`.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Algorithm::SLIDING_WEIGHTED.name(), "sliding_weighted");
    /// ```
    pub const SLIDING_WEIGHTED: Self = Self::SlidingWeighted;

    /// `token_bucket` that holds the amount and refills continuously.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Refill};
    /// let spelled_out = Algorithm::TokenBucket { burst: None, refill: Refill::Continuous };
    /// assert_eq!(Algorithm::TOKEN_BUCKET, spelled_out);
    /// ```
    pub const TOKEN_BUCKET: Self = Self::TokenBucket { burst: None, refill: Refill::Continuous };

    /// `leaky_bucket` with a queue as long as the amount.
    ///
    /// ```
    /// use tidegate_core::Algorithm;
    /// assert_eq!(Algorithm::LEAKY_BUCKET, Algorithm::LeakyBucket { queue: None });
    /// ```
    pub const LEAKY_BUCKET: Self = Self::LeakyBucket { queue: None };

    /// All six algorithms with their default options, in the order of the chapters.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Algorithm::ALL.len(), 6);
    /// ```
    pub const ALL: [Self; 6] = [
        Self::FIXED_WINDOW,
        Self::SLIDING_LOG,
        Self::SLIDING_BUCKETS,
        Self::SLIDING_WEIGHTED,
        Self::TOKEN_BUCKET,
        Self::LEAKY_BUCKET,
    ];

    /// The name in configuration, metrics and answers.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Algorithm::FIXED_WINDOW.name(), "fixed_window");
    /// ```
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::FixedWindow { .. } => "fixed_window",
            Self::SlidingLog => "sliding_log",
            Self::SlidingBuckets { .. } => "sliding_buckets",
            Self::SlidingWeighted => "sliding_weighted",
            Self::TokenBucket { .. } => "token_bucket",
            Self::LeakyBucket { .. } => "leaky_bucket",
            Self::Concurrent => "concurrent",
        }
    }
}

// === impl Shape: one match for each question ===

impl Shape {
    /// Whether limits of this algorithm make callers wait for their turn.
    pub(crate) const fn has_turns(&self) -> bool {
        match self {
            Self::Unlimited
            | Self::Blocked
            | Self::FixedWindow(_)
            | Self::SlidingLog(_)
            | Self::SlidingBuckets(_)
            | Self::SlidingWeighted(_)
            | Self::TokenBucket(_) => false,
            Self::LeakyBucket(_) => true,
        }
    }

    /// How much is in use, of a state that `old` wrote.
    pub(crate) fn used(&self, old: &Self, state: &State, now: Timestamp) -> u64 {
        match self.pair_with(old) {
            None => 0, // nothing was ever written under this algorithm
            Some(ShapePair::FixedWindow(new, old)) => new.used(old, state, now),
            Some(ShapePair::SlidingLog(_, old)) => old.used(state, now),
            Some(ShapePair::SlidingBuckets(_, old)) => old.used(state, now),
            Some(ShapePair::SlidingWeighted(_, old)) => old.used(state, now),
            Some(ShapePair::TokenBucket(new, old)) => new.used(old, state, now),
            Some(ShapePair::LeakyBucket(new, old)) => new.used(&new.adopt(old, state), now),
        }
    }

    /// The time until at most `at_most` is in use, of a state that `old` wrote.
    pub(crate) fn wait(
        &self,
        old: &Self,
        state: &State,
        now: Timestamp,
        at_most: u64,
    ) -> Option<Span> {
        match self.pair_with(old) {
            None => Some(Span::ZERO),
            Some(ShapePair::FixedWindow(new, old)) => new.wait(old, state, now, at_most),
            Some(ShapePair::SlidingLog(_, old)) => old.wait(state, now, at_most),
            Some(ShapePair::SlidingBuckets(_, old)) => old.wait(state, now, at_most),
            Some(ShapePair::SlidingWeighted(_, old)) => old.wait(state, now, at_most),
            Some(ShapePair::TokenBucket(new, old)) => new.wait(old, state, now, at_most),
            Some(ShapePair::LeakyBucket(new, old)) => {
                new.wait(&new.adopt(old, state), now, at_most)
            }
        }
    }

    /// The state that `old` wrote, converted to this shape.
    pub(crate) fn adopt(&self, old: &Self, state: &State, now: Timestamp) -> State {
        match self.pair_with(old) {
            None => State::Empty,
            Some(ShapePair::FixedWindow(new, old)) => new.adopt(old, state, now),
            Some(ShapePair::SlidingLog(new, old)) => new.adopt(old, state, now),
            Some(ShapePair::SlidingBuckets(new, old)) => new.adopt(old, state, now),
            Some(ShapePair::SlidingWeighted(new, old)) => new.adopt(old, state, now),
            Some(ShapePair::TokenBucket(new, old)) => new.adopt(old, state, now),
            Some(ShapePair::LeakyBucket(new, old)) => new.adopt(old, state),
        }
    }

    /// Adds a weight and returns its mark: where it was counted.
    pub(crate) fn add(&self, state: &mut State, now: Timestamp, weight: u64) -> u64 {
        match self {
            Self::Unlimited | Self::Blocked => 0,
            Self::FixedWindow(shape) => shape.add(state, now, weight),
            Self::SlidingLog(shape) => shape.add(state, now, weight),
            Self::SlidingBuckets(shape) => shape.add(state, now, weight),
            Self::SlidingWeighted(shape) => shape.add(state, now, weight),
            Self::TokenBucket(shape) => shape.add(state, now, weight),
            Self::LeakyBucket(shape) => shape.add(state, now, weight),
        }
    }

    /// Gives back a weight that was taken under the shape `taken`. The receipt of another algorithm has no effect.
    pub(crate) fn remove(
        &self,
        taken: &Self,
        state: &mut State,
        now: Timestamp,
        mark: u64,
        weight: u64,
    ) {
        match self.pair_with(taken) {
            None => {}
            Some(ShapePair::FixedWindow(shape, _)) => shape.remove(state, now, mark, weight),
            Some(ShapePair::SlidingLog(shape, _)) => shape.remove(state, now, mark, weight),
            Some(ShapePair::SlidingBuckets(shape, _)) => shape.remove(state, now, mark, weight),
            Some(ShapePair::SlidingWeighted(shape, _)) => shape.remove(state, now, mark, weight),
            Some(ShapePair::TokenBucket(shape, taken)) => {
                shape.remove(state, now, taken, mark, weight);
            }
            Some(ShapePair::LeakyBucket(shape, taken)) => {
                shape.remove(state, now, taken, mark, weight);
            }
        }
    }

    /// Drops what has expired.
    pub(crate) fn settle(&self, state: &mut State, now: Timestamp) {
        match self {
            Self::Unlimited | Self::Blocked => *state = State::Empty,
            Self::FixedWindow(shape) => shape.settle(state, now),
            Self::SlidingLog(shape) => shape.settle(state, now),
            Self::SlidingBuckets(shape) => shape.settle(state, now),
            Self::SlidingWeighted(shape) => shape.settle(state, now),
            Self::TokenBucket(shape) => shape.settle(state, now),
            Self::LeakyBucket(shape) => shape.settle(state, now),
        }
    }

    /// Whether a state that this shape wrote is further ahead of now than a correct clock can have put it.
    pub(crate) fn is_ahead(&self, state: &State, now: Timestamp) -> bool {
        match self {
            Self::Unlimited | Self::Blocked => false,
            Self::FixedWindow(shape) => shape.is_ahead(shape, state, now),
            Self::SlidingLog(shape) => shape.is_ahead(state, now),
            Self::SlidingBuckets(shape) => shape.is_ahead(state, now),
            Self::SlidingWeighted(shape) => shape.is_ahead(state, now),
            Self::TokenBucket(shape) => shape.is_ahead(state, now),
            Self::LeakyBucket(shape) => shape.is_ahead(state, now),
        }
    }

    /// Counts as of now what a state that [is ahead](Self::is_ahead) holds.
    pub(crate) fn mend(&self, state: &mut State, now: Timestamp) {
        match self {
            Self::Unlimited | Self::Blocked => {}
            Self::FixedWindow(shape) => shape.mend(shape, u64::MAX, state, now),
            Self::SlidingLog(shape) => shape.mend(state, now),
            Self::SlidingBuckets(shape) => shape.mend(state, now),
            Self::SlidingWeighted(shape) => shape.mend(state, now),
            Self::TokenBucket(shape) => shape.mend(state, now),
            Self::LeakyBucket(shape) => shape.mend(state, now),
        }
    }

    /// `None` if the algorithms differ: then nothing of the state counts under this shape.
    #[inline]
    const fn pair_with<'a>(&'a self, old: &'a Self) -> Option<ShapePair<'a>> {
        Some(match self {
            Self::Unlimited | Self::Blocked => return None,
            Self::FixedWindow(new) => {
                let Self::FixedWindow(old) = old else { return None };
                ShapePair::FixedWindow(new, old)
            }
            Self::SlidingLog(new) => {
                let Self::SlidingLog(old) = old else { return None };
                ShapePair::SlidingLog(new, old)
            }
            Self::SlidingBuckets(new) => {
                let Self::SlidingBuckets(old) = old else { return None };
                ShapePair::SlidingBuckets(new, old)
            }
            Self::SlidingWeighted(new) => {
                let Self::SlidingWeighted(old) = old else { return None };
                ShapePair::SlidingWeighted(new, old)
            }
            Self::TokenBucket(new) => {
                let Self::TokenBucket(old) = old else { return None };
                ShapePair::TokenBucket(new, old)
            }
            Self::LeakyBucket(new) => {
                let Self::LeakyBucket(old) = old else { return None };
                ShapePair::LeakyBucket(new, old)
            }
        })
    }
}
