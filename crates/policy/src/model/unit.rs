//! The periods of Envoy's rate limit protocol and rule files: `second` to `year`.

use crate::model::allowance::RuleLimit;
use tidegate_core::{Algorithm, Headroom, Span};

/// A period of Envoy's rule files, with its number in the protocol.
///
/// ```
/// use tidegate_core::Span;
/// use tidegate_policy::Unit;
/// assert_eq!(Unit::named("Minute"), Some(Unit::Minute));
/// assert_eq!(Unit::of(Span::from_secs(60)), Some(Unit::Minute));
/// assert_eq!(Unit::Month.span(), Span::from_secs(30 * 86_400));
/// assert_eq!(Unit::numbered(99), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Number 1.
    Second,
    /// Number 2.
    Minute,
    /// Number 3.
    Hour,
    /// Number 4.
    Day,
    /// Number 5: thirty days, counted from 1970.
    Month,
    /// Number 6: 365 days, counted from 1970.
    Year,
    /// Number 7: from Thursday to Thursday, because 1970 began on a Thursday.
    Week,
}

impl Unit {
    /// All units.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Month, Self::Year, Self::Week];

    /// The name in rule files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
            Self::Year => "year",
            Self::Week => "week",
        }
    }

    /// The unit with this name, in any case.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let name = name.to_uppercase();
        Self::ALL.into_iter().find(|unit| unit.name().to_uppercase() == name)
    }

    /// The number in the protocol.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Second => 1,
            Self::Minute => 2,
            Self::Hour => 3,
            Self::Day => 4,
            Self::Month => 5,
            Self::Year => 6,
            Self::Week => 7,
        }
    }

    /// The unit with this number.
    #[must_use]
    pub fn numbered(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| u64::from(unit.number()) == number)
    }

    /// The length of the period.
    #[must_use]
    pub const fn span(self) -> Span {
        Span::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
            Self::Week => 7 * 86_400,
        })
    }

    /// The unit with this length.
    #[must_use]
    pub fn of(span: Span) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.span() == span)
    }

    /// The period in the notation of policies.
    const fn period(self) -> &'static str {
        match self {
            Self::Second => "s",
            Self::Minute => "min",
            Self::Hour => "h",
            Self::Day => "day",
            Self::Month => "30day",
            Self::Year => "365day",
            Self::Week => "week",
        }
    }

    /// A limit of `amount` per unit, counted in a fixed window.
    ///
    /// ```
    /// assert_eq!(tidegate_policy::Unit::Hour.limit(7).unwrap().limit().amount(), 7);
    /// ```
    #[must_use]
    pub fn limit(self, amount: u32) -> Option<RuleLimit> {
        let rate = format!("{amount}/{}", self.period()).parse().ok()?;
        RuleLimit::new(Some(self.name()), rate, Algorithm::FIXED_WINDOW, Headroom::None).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_what_the_protocol_says() {
        for unit in Unit::ALL {
            assert_eq!(Unit::numbered(unit.number().into()), Some(unit));
            assert_eq!(Unit::of(unit.span()), Some(unit));
            let limit = unit.limit(3).unwrap();
            assert_eq!(limit.limit().period(), &tidegate_core::Period::Every(unit.span()));
        }
    }
}
