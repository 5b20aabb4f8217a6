//! Headroom: how far a limit may be exceeded.
//!
//! ```text
//!   100 per minute    soft 10 %     up to 110 per window, or a bucket of 110: the rate stays
//!                     elastic 150 % up to 150 per window, or the same bucket at 1.5 times the rate
//! ```

/// How far a limit may be exceeded, in percent. [`Bound`](crate::Bound) says for each request whether headroom applies.
///
/// ```
/// use tidegate_core::{Algorithm, Headroom, Limit, LimitError, Span};
/// let limit = Limit::new(100, Span::from_secs(60), Algorithm::FIXED_WINDOW).unwrap();
/// assert!(limit.clone().with_headroom(Headroom::Soft(10)).is_ok());
/// assert_eq!(limit.with_headroom(Headroom::Elastic(99)), Err(LimitError::Headroom));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Headroom {
    /// No headroom.
    #[default]
    None,
    /// This many percent more: windows count further and buckets are larger, but the rate stays.
    Soft(u16),
    /// Up to this many percent of the amount, 100 or more: the rate grows too.
    Elastic(u16),
}

impl Headroom {
    /// The count that a window may reach. Both kinds of headroom raise it.
    pub(crate) fn of_window(self, amount: u64) -> u64 {
        match self {
            Self::None => amount,
            Self::Soft(percent) => amount.saturating_add(percent_of(amount, percent)),
            Self::Elastic(percent) => percent_of(amount, percent),
        }
    }

    /// How much more a bucket may hold. Elastic headroom raises the rate of a bucket, not its size.
    pub(crate) fn of_bucket(self, size: u64) -> u64 {
        match self {
            Self::None | Self::Elastic(_) => 0,
            Self::Soft(percent) => percent_of(size, percent),
        }
    }
}

/// The rate in percent when only a part of an elastic headroom applies, rounded down: of 200 %, half is 150 %.
pub(crate) fn partly(elastic: u16, part: u8) -> u16 {
    let more = elastic.saturating_sub(100);
    let part = u32::from(more).saturating_mul(u32::from(part.min(100))) / 100;
    100_u16.saturating_add(u16::try_from(part).unwrap_or(more))
}

/// `⌊n · percent / 100⌋`.
fn percent_of(n: u64, percent: u16) -> u64 {
    let share = u128::from(n).saturating_mul(u128::from(percent)) / 100;
    u64::try_from(share).unwrap_or(u64::MAX)
}
