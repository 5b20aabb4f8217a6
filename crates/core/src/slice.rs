//! A part of a limit that a node took in advance, and when it may be spent. See [`lease`](crate::LeaseAsk).

use crate::algorithm::Shape;
use crate::algorithm::token_bucket::TokenBucket;
use crate::decision::{Bound, TakeReceipt};
use crate::limit::Limit;
use crate::time::{Span, Timestamp};

/// A part of a limit that a node may spend by itself. Its unit is that of the algorithm: hits or ticks.
///
/// ```
/// use tidegate_core::{Algorithm, LeaseAsk, Limit, Span, TimeRange, Timestamp, Written};
/// let limit = Limit::new(10, Span::from_secs(1), Algorithm::FIXED_WINDOW).unwrap();
/// let ask = LeaseAsk { most: 2, least: 1, parts: 1, ahead: Span::ZERO };
/// let mut slice = limit.grant(&mut Written::empty(&limit), Timestamp::EPOCH, &ask).unwrap();
/// let at = |millis: u64| TimeRange::exactly(Timestamp::from_nanos(millis * 1_000_000));
/// assert!(slice.spend(&limit, 1, at(10)).is_some());
/// assert!(slice.spend(&limit, 1, at(1_000)).is_none()); // its window is over
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slice {
    /// The ticks from `next` up to but not including `end`, of a bucket.
    Ticks {
        /// The first tick that is not spent.
        next: u64,
        /// The tick after the last one.
        end: u64,
    },
    /// Hits of one window.
    Hits {
        /// How many are not spent.
        left: u64,
        /// The number of the window, or of the sub-window.
        window: u64,
        /// When it ends.
        ends: Timestamp,
    },
}

/// The range in which the time of the store is, as far as a node knows.
///
/// ```
/// use tidegate_core::{Span, TimeRange, Timestamp};
/// let range = TimeRange { early: Timestamp::from_nanos(5), late: Timestamp::from_nanos(9) };
/// assert_eq!(range.doubt(), Span::from_nanos(4));
/// assert_eq!(TimeRange::exactly(Timestamp::EPOCH).doubt(), Span::ZERO);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRange {
    /// The earliest that it can be.
    pub early: Timestamp,
    /// The latest that it can be.
    pub late: Timestamp,
}

// === impl TimeRange ===

impl TimeRange {
    /// A time that is known exactly.
    ///
    /// ```
    /// use tidegate_core::{TimeRange, Timestamp};
    /// let now = Timestamp::from_nanos(7);
    /// assert_eq!(TimeRange::exactly(now), TimeRange { early: now, late: now });
    /// ```
    #[must_use]
    pub const fn exactly(now: Timestamp) -> Self {
        Self { early: now, late: now }
    }

    /// How long the range is.
    ///
    /// ```
    /// use tidegate_core::{Span, TimeRange, Timestamp};
    /// assert_eq!(TimeRange::exactly(Timestamp::EPOCH).doubt(), Span::ZERO);
    /// ```
    #[must_use]
    pub fn doubt(&self) -> Span {
        self.late.since(self.early)
    }
}

// === impl Slice ===

impl Slice {
    /// How much is not spent, in the unit of the algorithm.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Slice::Ticks { next: 40, end: 100 }.weight(), 60);
    /// ```
    #[must_use]
    pub const fn weight(&self) -> u64 {
        match self {
            Self::Ticks { next, end } => end.saturating_sub(*next),
            Self::Hits { left, .. } => *left,
        }
    }

    /// Spends a weight under the limit that granted this slice; `None` if it does not fit, or not now. The receipt gives it
    /// back.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, Slice, Span, TimeRange, Timestamp};
    /// let limit = Limit::new(10, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let token = limit.ticks().unwrap().token;
    /// let mut slice = Slice::Ticks { next: 10 * token, end: 12 * token }; // the second after the first one
    /// let at = |millis: u64| TimeRange::exactly(Timestamp::from_nanos(millis * 1_000_000));
    /// assert!(slice.spend(&limit, token, at(0)).is_none()); // a full bucket ends at 10 tokens
    /// assert!(slice.spend(&limit, token, at(100)).is_some());
    /// assert!(slice.spend(&limit, token, at(1_150)).is_none()); // half of the last token has passed
    /// ```
    pub fn spend(&mut self, limit: &Limit, weight: u64, time: TimeRange) -> Option<TakeReceipt> {
        match self {
            Self::Ticks { next, end } => {
                let Shape::TokenBucket(TokenBucket(drain)) = &limit.shape else { return None };
                let from = drain.at(time.late).max(*next);
                let to = from.checked_add(weight)?;
                let front = drain.at(time.early).saturating_add(limit.room(Bound::Plain));
                if to > *end || to > front {
                    return None;
                }
                *next = to;
                Some(TakeReceipt { mark: to, weight, is_slot: true })
            }
            Self::Hits { left, window, ends } => {
                if time.late >= *ends {
                    return None;
                }
                *left = left.checked_sub(weight)?;
                Some(TakeReceipt { mark: *window, weight, is_slot: false })
            }
        }
    }

    /// How long it takes until a part of the slice can be spent: one that reaches ahead of a full bucket must wait.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, Slice, Span, TimeRange, Timestamp};
    /// let limit = Limit::new(10, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let token = limit.ticks().unwrap().token;
    /// let slice = Slice::Ticks { next: 12 * token, end: 13 * token };
    /// let now = TimeRange::exactly(Timestamp::EPOCH);
    /// assert_eq!(slice.lag(&limit, now), Span::from_millis(200));
    /// ```
    #[must_use]
    pub fn lag(&self, limit: &Limit, time: TimeRange) -> Span {
        let (Self::Ticks { next, .. }, Shape::TokenBucket(TokenBucket(drain))) =
            (self, &limit.shape)
        else {
            return Span::ZERO;
        };
        let front = next.saturating_sub(limit.room(Bound::Plain));
        drain.instant(front).map_or(Span::ZERO, |at| at.since(time.early))
    }

    /// Drops what can no longer be spent, and returns how much that was.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, Slice, Span, TimeRange, Timestamp};
    /// let limit = Limit::new(10, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let token = limit.ticks().unwrap().token;
    /// let mut slice = Slice::Ticks { next: 0, end: 4 * token };
    /// let later = TimeRange::exactly(Timestamp::from_nanos(300_000_000));
    /// assert_eq!((slice.drain(&limit, later), slice.weight()), (3 * token, token));
    /// ```
    pub fn drain(&mut self, limit: &Limit, time: TimeRange) -> u64 {
        let before = self.weight();
        match (&mut *self, &limit.shape) {
            (Self::Ticks { next, end }, Shape::TokenBucket(TokenBucket(drain))) => {
                *next = drain.at(time.late).max(*next).min(*end);
            }
            (Self::Ticks { next, end }, _) => *next = *end,
            (Self::Hits { left, ends, .. }, _) if time.late >= *ends => *left = 0,
            (Self::Hits { .. }, _) => {}
        }
        before.saturating_sub(self.weight())
    }

    /// Joins a slice that continues this one, or hits of the same window. Returns whether it did.
    ///
    /// ```
    /// use tidegate_core::Slice;
    /// let mut slice = Slice::Ticks { next: 0, end: 10 };
    /// assert!(slice.join(&Slice::Ticks { next: 10, end: 15 }));
    /// assert!(!slice.join(&Slice::Ticks { next: 16, end: 20 }));
    /// assert_eq!(slice.weight(), 15);
    /// ```
    pub fn join(&mut self, other: &Self) -> bool {
        match (self, *other) {
            (Self::Ticks { next, end }, Self::Ticks { next: from, end: to }) => {
                if *end == from {
                    *end = to;
                } else if *next == to {
                    *next = from;
                } else {
                    return false;
                }
                true
            }
            (Self::Hits { left, window, .. }, Self::Hits { left: more, window: same, .. }) => {
                let joins = *window == same;
                if joins {
                    *left = left.saturating_add(more);
                }
                joins
            }
            (Self::Ticks { .. } | Self::Hits { .. }, _) => false,
        }
    }

    /// The receipt with which what is left is given back to the store.
    ///
    /// ```
    /// let receipt = tidegate_core::Slice::Ticks { next: 40, end: 100 }.receipt();
    /// assert_eq!((receipt.mark, receipt.weight, receipt.is_slot), (100, 60, true));
    /// ```
    #[must_use]
    pub const fn receipt(&self) -> TakeReceipt {
        match *self {
            Self::Ticks { next, end } => {
                TakeReceipt { mark: end, weight: end.saturating_sub(next), is_slot: true }
            }
            Self::Hits { left, window, .. } => {
                TakeReceipt { mark: window, weight: left, is_slot: false }
            }
        }
    }

    /// The slice that a receipt of a slot is; `None` if it is the receipt of a window, which is given back to the store.
    ///
    /// ```
    /// use tidegate_core::{Slice, TakeReceipt};
    /// let slot = TakeReceipt { mark: 100, weight: 60, is_slot: true };
    /// assert_eq!(Slice::of_slot(&slot), Some(Slice::Ticks { next: 40, end: 100 }));
    /// ```
    #[must_use]
    pub const fn of_slot(receipt: &TakeReceipt) -> Option<Self> {
        let TakeReceipt { mark, weight, is_slot } = *receipt;
        if !is_slot {
            return None;
        }
        Some(Self::Ticks { next: mark.saturating_sub(weight), end: mark })
    }

    /// Whether a window has not ended.
    pub(crate) fn is_valid_at(&self, now: Timestamp) -> bool {
        match self {
            Self::Ticks { .. } => true,
            Self::Hits { ends, .. } => now < *ends,
        }
    }
}
