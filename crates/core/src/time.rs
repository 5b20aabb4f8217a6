//! Time as the core sees it: an instant and a length, both whole nanoseconds.
//!
//! ```text
//!  1970                 now
//!   |--------------------|---------->      Timestamp: nanoseconds since the Unix epoch
//!                        |--- wait ---|    Span: a length of time
//! ```
//!
//! Nothing here reads a clock. The caller passes the time with every request, so a test, a simulation and a
//! replay see exactly what production sees. A `u64` of nanoseconds reaches the year 2554. Arithmetic that would
//! go past that end returns `None` or saturates; it never wraps.

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

/// The current time, as read from two clocks.
///
/// Setting the wall clock of a machine must not change decisions. So buckets, and windows of equal length, use a
/// steady clock, which never steps. Calendar windows ("per day in Berlin") are defined by the wall clock.
///
/// ```
/// use tidegate_core::{Now, Timestamp};
/// let noon = Timestamp::from_nanos(43_200_000_000_000);
/// assert_eq!(Now::at(noon), Now { steady: noon, calendar: noon });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The steady clock, used by all limits except those with a calendar period.
    pub steady: Timestamp,
    /// The wall clock, used by limits with a calendar period.
    pub calendar: Timestamp,
}

/// A length of time: whole nanoseconds, from zero to 584 years.
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
    /// The Unix epoch. Windows are aligned to it.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Timestamp::EPOCH.as_nanos(), 0);
    /// ```
    pub const EPOCH: Self = Self(0);

    /// The last instant that can be represented, in the year 2554.
    ///
    /// ```
    /// use tidegate_core::{Span, Timestamp};
    /// assert_eq!(Timestamp::END.after(Span::from_nanos(1)), None);
    /// ```
    pub const END: Self = Self(u64::MAX);

    /// The instant this many nanoseconds after the epoch.
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

    /// The instant `span` later, or `None` if that is past [`Timestamp::END`].
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

    /// The time since `earlier`; zero if `earlier` is not in the past.
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
    /// Both clocks show the same instant.
    ///
    /// ```
    /// use tidegate_core::{Now, Timestamp};
    /// assert_eq!(Now::at(Timestamp::END).steady, Timestamp::END);
    /// ```
    #[must_use]
    pub const fn at(now: Timestamp) -> Self {
        Self { steady: now, calendar: now }
    }
}

// === impl Span ===

impl Span {
    /// A span of zero length.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Span::ZERO, tidegate_core::Span::from_nanos(0));
    /// ```
    pub const ZERO: Self = Self(0);

    /// A span of this many nanoseconds.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Span::from_nanos(5).as_nanos(), 5);
    /// ```
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A span of this many milliseconds; saturates at the longest span.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Span::from_millis(2).as_nanos(), 2_000_000);
    /// ```
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(NANOS_PER_MILLI))
    }

    /// A span of this many seconds; saturates at the longest span.
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

    /// The length in milliseconds, rounded up, so that a wait given in milliseconds never ends early.
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

    /// The length in seconds, rounded up, as in a `Retry-After` header.
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

/// A [`Duration`] longer than 584 years saturates at the longest span.
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
