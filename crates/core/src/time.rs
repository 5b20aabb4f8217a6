//! Time as the core sees it: an instant and a length, both whole nanoseconds.
//!
//! ```text
//!  1970                 now
//!   |--------------------|---------->      Timestamp: nanoseconds since the Unix epoch
//!                        |--- wait ---|    Span: a length of time
//! ```
//!
//! Nothing here reads a clock. Whoever asks for a decision says what time it is, so that a test, a
//! simulation and a replay see what production sees. A `u64` of nanoseconds reaches the year 2554;
//! arithmetic that would pass the end says so (`None`) or stops at the end, never wraps.

use crate::limit::{Limit, Period};
use core::fmt;
use core::time::Duration;

/// An instant: whole nanoseconds since the Unix epoch.
///
/// ```
/// use tidegate_core::{Span, Timestamp};
/// let noon = Timestamp::from_nanos(43_200_000_000_000);
/// assert_eq!(noon, Timestamp::EPOCH.after(Span::from_secs(12 * 3600)).unwrap());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

/// What time it is, as two clocks have it.
///
/// On one machine a clock that somebody sets must not change decisions, so windows of equal length and
/// buckets go by a steady clock; calendar windows are about the time that people read off a wall.
///
/// ```
/// use tidegate_core::{Now, Timestamp};
/// let noon = Timestamp::from_nanos(43_200_000_000_000);
/// assert_eq!(Now::at(noon), Now { steady: noon, calendar: noon });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// For all limits but calendar ones: never steps.
    pub steady: Timestamp,
    /// For calendar limits: the wall clock.
    pub calendar: Timestamp,
}

/// A length of time: whole nanoseconds, from nothing to 584 years.
///
/// ```
/// use tidegate_core::Span;
/// assert_eq!(Span::from_millis(1500), Span::from_nanos(1_500_000_000));
/// assert_eq!(Span::from_millis(1500).to_string(), "1.5s");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

const NANOS_PER_MILLI: u64 = 1_000_000;
const NANOS_PER_SEC: u64 = 1_000_000_000;

// === impl Timestamp ===

impl Timestamp {
    /// The Unix epoch, on which windows are aligned.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Timestamp::EPOCH.as_nanos(), 0);
    /// ```
    pub const EPOCH: Self = Self(0);

    /// The last instant that can be named, in the year 2554.
    ///
    /// ```
    /// use tidegate_core::{Span, Timestamp};
    /// assert_eq!(Timestamp::END.after(Span::from_nanos(1)), None);
    /// ```
    pub const END: Self = Self(u64::MAX);

    /// The instant so many nanoseconds after the epoch.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Timestamp::from_nanos(7).as_nanos(), 7);
    /// ```
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the epoch.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Timestamp::END.as_nanos(), u64::MAX);
    /// ```
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The instant `span` later, unless it lies past [`Timestamp::END`].
    ///
    /// ```
    /// use tidegate_core::{Span, Timestamp};
    /// let later = Timestamp::EPOCH.after(Span::from_secs(1));
    /// assert_eq!(later, Some(Timestamp::from_nanos(1_000_000_000)));
    /// ```
    #[must_use]
    pub const fn after(self, span: Span) -> Option<Self> {
        match self.0.checked_add(span.0) {
            Some(nanos) => Some(Self(nanos)),
            None => None,
        }
    }

    /// How long after `earlier` this is: nothing when it is not after it.
    ///
    /// ```
    /// use tidegate_core::{Span, Timestamp};
    /// let (a, b) = (Timestamp::from_nanos(3), Timestamp::from_nanos(10));
    /// assert_eq!(b.since(a), Span::from_nanos(7));
    /// assert_eq!(a.since(b), Span::ZERO);
    /// ```
    #[must_use]
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

// === impl Now ===

impl Now {
    /// Both clocks agree.
    ///
    /// ```
    /// use tidegate_core::{Now, Timestamp};
    /// assert_eq!(Now::at(Timestamp::END).steady, Timestamp::END);
    /// ```
    #[must_use]
    pub const fn at(now: Timestamp) -> Self {
        Self { steady: now, calendar: now }
    }

    /// The clock that a limit goes by.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Calendar, Limit, Now, Timestamp};
    /// let daily = Limit::new(9, Calendar::new([Timestamp::EPOCH]).unwrap(), Algorithm::FIXED_WINDOW).unwrap();
    /// let now = Now { steady: Timestamp::from_nanos(1), calendar: Timestamp::from_nanos(2) };
    /// assert_eq!(now.of(&daily), now.calendar);
    /// ```
    #[must_use]
    pub const fn of(&self, limit: &Limit) -> Timestamp {
        match limit.period() {
            Period::Every(_) => self.steady,
            Period::Calendar(_) => self.calendar,
        }
    }
}

// === impl Span ===

impl Span {
    /// No time at all.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Span::ZERO, tidegate_core::Span::from_nanos(0));
    /// ```
    pub const ZERO: Self = Self(0);

    /// So many nanoseconds.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Span::from_nanos(5).as_nanos(), 5);
    /// ```
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// So many milliseconds; the longest span when that is too many.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Span::from_millis(2).as_nanos(), 2_000_000);
    /// ```
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(NANOS_PER_MILLI))
    }

    /// So many seconds; the longest span when that is too many.
    ///
    /// ```
    /// use tidegate_core::Span;
    /// assert_eq!(Span::from_secs(3), Span::from_millis(3_000));
    /// assert_eq!(Span::from_secs(u64::MAX), Span::from_nanos(u64::MAX));
    /// ```
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(NANOS_PER_SEC))
    }

    /// The length in nanoseconds.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Span::from_secs(1).as_nanos(), 1_000_000_000);
    /// ```
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The length in milliseconds, rounded up: a wait told in milliseconds must not end early.
    ///
    /// ```
    /// use tidegate_core::Span;
    /// assert_eq!(Span::from_nanos(1).as_millis_ceil(), 1);
    /// assert_eq!(Span::from_millis(34).as_millis_ceil(), 34);
    /// ```
    #[must_use]
    pub const fn as_millis_ceil(self) -> u64 {
        self.0.div_ceil(NANOS_PER_MILLI)
    }

    /// The length in seconds, rounded up: what a `Retry-After` header says.
    ///
    /// ```
    /// use tidegate_core::Span;
    /// assert_eq!(Span::from_millis(1_001).as_secs_ceil(), 2);
    /// ```
    #[must_use]
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(NANOS_PER_SEC)
    }
}

/// A [`Duration`] longer than 584 years becomes the longest span.
impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Self::from_nanos(span.0)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&Duration::from(*self), f)
    }
}
