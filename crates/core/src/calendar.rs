//! Windows with calendar boundaries: a day in Berlin, a month in UTC.
//!
//! Days have 23 to 25 hours and months 28 to 31 days. No formula yields them, so the core does not compute them. The
//! policy crate knows time zones and passes a table of boundaries. The core only looks up the two boundaries around an
//! instant:
//!
//! ```text
//!   boundaries    b0          b1         b2
//!   ──────────────┼───────────┼──────────┼──────────────
//!    [EPOCH, b0)  │ [b0, b1)  │ [b1, b2) │ [b2, …) end unknown
//! ```
//!
//! A window is identified by its start, not by its index in the table. So a table that is renewed every day (an old
//! boundary dropped, a new one added) does not disturb running windows.

use crate::time::{Span, Timestamp};
use core::fmt;
use std::sync::Arc;

/// Calendar boundaries are whole minutes. All time zones in use have whole-minute offsets, and a start in minutes
/// leaves enough bits for the count in one word.
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

/// The time over which an amount is granted.
///
/// ```
/// use tidegate_core::{Algorithm, Calendar, Limit, Period, Span, Timestamp};
/// let hourly = Limit::new(20, Span::from_secs(3600), Algorithm::FIXED_WINDOW).unwrap();
/// assert_eq!(hourly.period(), &Period::Every(Span::from_secs(3600)));
/// let calendar = Calendar::new([Timestamp::EPOCH]).unwrap();
/// let daily = Limit::new(20, calendar.clone(), Algorithm::FIXED_WINDOW).unwrap();
/// assert_eq!(daily.period(), &Period::Calendar(calendar));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Period {
    /// A fixed length.
    Every(Span),
    /// From one calendar boundary to the next. Only fixed windows support it.
    Calendar(Calendar),
}

/// Why a table of boundaries is not valid.
///
/// ```
/// use tidegate_core::{Calendar, CalendarError};
/// assert_eq!(Calendar::new([]), Err(CalendarError::Empty));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalendarError {
    /// The table has no boundary.
    Empty,
    /// The boundary at this index is not later than the one before it.
    NotAscending(usize),
    /// The boundary at this index is not a whole minute.
    NotWholeMinute(usize),
}

// === impl Calendar ===

impl Calendar {
    /// A table of these boundaries, which must be whole minutes in ascending order.
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

    /// The window `[start, end)` that contains `now`. The end is `None` if `now` is after the last boundary.
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

    /// The boundaries, in ascending order.
    ///
    /// ```
    /// use tidegate_core::{Calendar, Timestamp};
    /// let table = Calendar::new([Timestamp::EPOCH]).unwrap();
    /// assert_eq!(table.boundaries(), [Timestamp::EPOCH]);
    /// ```
    #[must_use]
    pub fn boundaries(&self) -> &[Timestamp] {
        &self.boundaries
    }

    /// Whether `now` is at or after the first boundary.
    pub(crate) fn begins_by(&self, now: Timestamp) -> bool {
        self.boundaries.first().is_some_and(|first| *first <= now)
    }

    /// The number of the window that contains `now`: its start in minutes since the epoch.
    pub(crate) fn id(&self, now: Timestamp) -> u64 {
        self.window(now).0.as_nanos() / NANOS_PER_MINUTE
    }

    /// The start of the window with this number.
    pub(crate) fn start(id: u64) -> Timestamp {
        Timestamp::from_nanos(id.saturating_mul(NANOS_PER_MINUTE))
    }

    /// The end of the window with this number, if the table has it.
    pub(crate) fn end(&self, id: u64) -> Option<Timestamp> {
        self.window(Self::start(id)).1
    }
}

// === impl Period ===

impl From<Span> for Period {
    fn from(span: Span) -> Self {
        Self::Every(span)
    }
}

impl From<Calendar> for Period {
    fn from(calendar: Calendar) -> Self {
        Self::Calendar(calendar)
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
