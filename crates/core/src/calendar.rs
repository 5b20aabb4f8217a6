//! Windows that people name: a day in Berlin, a month in UTC.
//!
//! Days of 23 and 25 hours, months of 28 to 31 days: no formula yields them, so the core does not
//! try. Whoever knows time zones writes the boundaries down, and the core looks up between which two
//! of them an instant lies:
//!
//! ```text
//!   boundaries    b0          b1         b2
//!   ──────────────┼───────────┼──────────┼──────────────
//!    [EPOCH, b0)  │ [b0, b1)  │ [b1, b2) │ [b2, …) no end is known
//! ```
//!
//! A window is known by its start, not by its place in the table, so that a table renewed every day
//! (an old boundary dropped, a new one added) leaves running windows alone.

use crate::time::Timestamp;
use core::fmt;
use std::sync::Arc;

/// Calendar boundaries are whole minutes: every zone in use has such an offset, and a start in
/// minutes leaves room for the count in one word.
const NANOS_PER_MINUTE: u64 = 60_000_000_000;

/// A table of window boundaries in ascending order.
///
/// ```
/// use tidegate_core::{Calendar, Timestamp};
/// let minutes = |n: u64| Timestamp::from_nanos(n * 60_000_000_000);
/// // Two days, the second an hour short: clocks went forward.
/// let days = Calendar::new([minutes(0), minutes(24 * 60), minutes(47 * 60)]).unwrap();
/// assert_eq!(days.window(minutes(25 * 60)), (minutes(24 * 60), Some(minutes(47 * 60))));
/// assert_eq!(days.window(minutes(47 * 60)), (minutes(47 * 60), None));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Calendar {
    boundaries: Arc<[Timestamp]>,
}

/// Why a table of boundaries was refused.
///
/// ```
/// use tidegate_core::{Calendar, CalendarError};
/// assert_eq!(Calendar::new([]), Err(CalendarError::Empty));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalendarError {
    /// A table needs at least one boundary.
    Empty,
    /// The boundary at this place is not later than the one before it.
    NotAscending(usize),
    /// The boundary at this place is not a whole minute.
    NotWholeMinute(usize),
}

// === impl Calendar ===

impl Calendar {
    /// A table of these boundaries; they must ascend and be whole minutes.
    ///
    /// ```
    /// use tidegate_core::{Calendar, CalendarError, Timestamp};
    /// let second = Timestamp::from_nanos(1_000_000_000);
    /// assert_eq!(Calendar::new([second]), Err(CalendarError::NotWholeMinute(0)));
    /// let twice = [Timestamp::EPOCH, Timestamp::EPOCH];
    /// assert_eq!(Calendar::new(twice), Err(CalendarError::NotAscending(1)));
    /// ```
    pub fn new(boundaries: impl IntoIterator<Item = Timestamp>) -> Result<Self, CalendarError> {
        let boundaries: Arc<[Timestamp]> = boundaries.into_iter().collect();
        if boundaries.is_empty() {
            return Err(CalendarError::Empty);
        }
        if let Some(at) = boundaries.iter().position(|b| b.as_nanos() % NANOS_PER_MINUTE != 0) {
            return Err(CalendarError::NotWholeMinute(at));
        }
        if let Some(before) =
            boundaries.windows(2).position(|pair| matches!(pair, [a, b] if a >= b))
        {
            return Err(CalendarError::NotAscending(before.saturating_add(1)));
        }
        Ok(Self { boundaries })
    }

    /// The window `[start, end)` that holds `now`; no end when it lies behind the last boundary.
    ///
    /// ```
    /// use tidegate_core::{Calendar, Timestamp};
    /// let minute = Timestamp::from_nanos(60_000_000_000);
    /// let table = Calendar::new([minute]).unwrap();
    /// assert_eq!(table.window(Timestamp::EPOCH), (Timestamp::EPOCH, Some(minute)));
    /// ```
    #[must_use]
    pub fn window(&self, now: Timestamp) -> (Timestamp, Option<Timestamp>) {
        let next = self.boundaries.partition_point(|boundary| *boundary <= now);
        let start = next.checked_sub(1).and_then(|at| self.boundaries.get(at));
        (start.copied().unwrap_or(Timestamp::EPOCH), self.boundaries.get(next).copied())
    }

    /// Whether `now` does not lie before the whole table.
    pub(crate) fn begins_by(&self, now: Timestamp) -> bool {
        self.boundaries.first().is_some_and(|first| *first <= now)
    }

    /// The number by which the window that holds `now` is known: its start in minutes.
    pub(crate) fn id(&self, now: Timestamp) -> u64 {
        self.window(now).0.as_nanos() / NANOS_PER_MINUTE
    }

    /// Where the window with this number starts.
    pub(crate) fn start(id: u64) -> Timestamp {
        Timestamp::from_nanos(id.saturating_mul(NANOS_PER_MINUTE))
    }

    /// Where the window with this number ends, as far as the table knows.
    pub(crate) fn end(&self, id: u64) -> Option<Timestamp> {
        self.window(Self::start(id)).1
    }
}

// === impl CalendarError ===

impl fmt::Display for CalendarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "a calendar needs at least one boundary"),
            Self::NotAscending(at) => {
                write!(f, "boundary {at} is not later than the one before it")
            }
            Self::NotWholeMinute(at) => write!(f, "boundary {at} is not a whole minute"),
        }
    }
}

impl core::error::Error for CalendarError {}
