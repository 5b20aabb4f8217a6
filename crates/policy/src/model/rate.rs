//! Rates: `15/s`, `500/30s`, `3/2day`, `1000/calendar-month@Europe/Berlin`.
//!
//! ```text
//!   AMOUNT / [FACTOR] UNIT                 units: ms s min h day week
//!   AMOUNT / calendar-(day|week|month) [@Zone/City]
//! ```
//!
//! Nothing is guessed. `m` could mean minutes or months, `1.5` is not a number of requests, and `10 / s` is probably a typing
//! error. Each is refused, with a suggestion what to write.

use crate::document::shown;
use std::fmt;
use std::str::FromStr;
use tidegate_core::Span;

/// An amount per period, as written.
///
/// ```
/// use tidegate_core::Span;
/// use tidegate_policy::{Per, Rate};
/// let rate: Rate = "500/30s".parse().unwrap();
/// assert_eq!(rate.amount, 500);
/// assert_eq!(rate.per, Per::Every(Span::from_secs(30)));
/// assert_eq!(rate.period_text(), "30s"); // the id of a limit without a name
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The amount.
    pub amount: u64,
    /// The period.
    pub per: Per,
    text: String,
}

/// The period of a rate.
///
/// ```
/// use tidegate_policy::{CalendarUnit, Per, Rate};
/// let rate: Rate = "9/calendar-day@Europe/Berlin".parse().unwrap();
/// let zone = Some("Europe/Berlin".to_owned());
/// assert_eq!(rate.per, Per::Calendar { unit: CalendarUnit::Day, zone });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Per {
    /// A period of constant length.
    Every(Span),
    /// A calendar period in a time zone, by default UTC.
    Calendar {
        /// Days, weeks from Monday, or months.
        unit: CalendarUnit,
        /// The name of the zone, as written.
        zone: Option<String>,
    },
}

/// The unit of a calendar period.
///
/// ```
/// use tidegate_policy::{CalendarUnit, Per, Rate};
/// let rate: Rate = "1000/calendar-month".parse().unwrap();
/// assert_eq!(rate.per, Per::Calendar { unit: CalendarUnit::Month, zone: None });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalendarUnit {
    /// From midnight to midnight.
    Day,
    /// From Monday to Monday.
    Week,
    /// From the first day of a month to the first day of the next.
    Month,
}

/// Why a rate was refused, and what to write instead.
///
/// ```
/// use tidegate_policy::{Rate, RateError};
/// let error = "10/m".parse::<Rate>().unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "unknown period `m`; write `min` for minutes, or `calendar-month` for months"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// No slash between an amount and a period.
    #[error("`{0}` is not a valid rate; write an amount and a period, such as `15/s`")]
    NoSlash(String),
    /// The amount is not a whole number of 64 bits.
    #[error("`{0}` is not a valid amount; write a whole number of at most {max}", max = u64::MAX)]
    Amount(String),
    /// The factor of a period is not a whole number above 0.
    #[error("`{0}` is not a valid length of time; write a whole number of units, such as `30s`")]
    Factor(String),
    /// The unit of the period is unknown.
    #[error("unknown period `{found}`; did you mean `{meant}`?")]
    Unit {
        /// What was written.
        found: String,
        /// The most similar unit.
        meant: &'static str,
    },
    /// `m`, which people write for minutes and for months.
    #[error("unknown period `m`; write `min` for minutes, or `calendar-month` for months")]
    MinuteOrMonth,
    /// A calendar period with a factor.
    #[error("a calendar period has no factor; write `{0}`")]
    CalendarFactor(&'static str),
    /// A time zone that is not valid.
    #[error("`{0}` is not a valid time zone; write it like `Europe/Berlin`")]
    Zone(String),
}

const UNITS: [(&str, u64); 6] = [
    ("ms", 1),
    ("s", 1_000),
    ("min", 60_000),
    ("h", 3_600_000),
    ("day", 86_400_000),
    ("week", 604_800_000),
];
const CALENDARS: [(&str, CalendarUnit); 3] = [
    ("calendar-day", CalendarUnit::Day),
    ("calendar-week", CalendarUnit::Week),
    ("calendar-month", CalendarUnit::Month),
];
/// Other spellings that people use for a unit, and the unit to suggest.
const OTHER_NAMES: [(&str, &str); 32] = [
    ("m", "min"),
    ("M", "calendar-month"),
    ("mo", "calendar-month"),
    ("minute", "min"),
    ("minutes", "min"),
    ("mins", "min"),
    ("Min", "min"),
    ("sec", "s"),
    ("secs", "s"),
    ("second", "s"),
    ("seconds", "s"),
    ("S", "s"),
    ("hour", "h"),
    ("hours", "h"),
    ("hr", "h"),
    ("H", "h"),
    ("d", "day"),
    ("D", "day"),
    ("days", "day"),
    ("w", "week"),
    ("weeks", "week"),
    ("msec", "ms"),
    ("millis", "ms"),
    ("month", "calendar-month"),
    ("year", "365day"),
    ("years", "365day"),
    ("y", "365day"),
    ("calendar-year", "365day"),
    ("calendar-hour", "h"),
    ("us", "ms"),
    ("ns", "ms"),
    ("microsecond", "ms"),
];
/// The longest name of a zone has 32 letters; this leaves room for new ones.
const LONGEST_ZONE: usize = 48;

impl Rate {
    /// The period as written. It is the id of a limit that has no name.
    ///
    /// ```
    /// let rate: tidegate_policy::Rate = "2/s".parse().unwrap();
    /// assert_eq!(rate.period_text(), "s");
    /// ```
    #[must_use]
    pub fn period_text(&self) -> &str {
        self.text.split_once('/').map_or("", |(_, period)| period)
    }

    /// A rate of another amount in the period of this one.
    pub(crate) fn with_amount(&self, amount: u64) -> Self {
        let text = format!("{amount}/{}", self.period_text());
        Self { amount, per: self.per.clone(), text }
    }
}

/// Parses a length of time, written as in a rate: `2s`, `100ms`.
pub(crate) fn length(text: &str) -> Result<Span, RateError> {
    let no_month = |error| match error == RateError::MinuteOrMonth {
        true => RateError::Unit { found: "m".to_owned(), meant: "min" },
        false => error,
    };
    match per(text).map_err(no_month)? {
        Per::Every(span) if text.starts_with(|c: char| c.is_ascii_digit()) => Ok(span),
        Per::Every(_) | Per::Calendar { .. } => Err(RateError::Factor(shown(text))),
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let (amount, period) =
            text.split_once('/').ok_or_else(|| RateError::NoSlash(shown(text)))?;
        let amount = whole(amount).ok_or_else(|| RateError::Amount(shown(amount)))?;
        Ok(Self { amount, per: per(period)?, text: text.to_owned() })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn per(period: &str) -> Result<Per, RateError> {
    let (name, zone) = match period.split_once('@') {
        Some((name, zone)) => (name, Some(zone)),
        None => (period, None),
    };
    if let Some((_, unit)) = CALENDARS.iter().find(|(calendar, _)| *calendar == name) {
        let zone = zone.map(checked_zone).transpose()?;
        return Ok(Per::Calendar { unit: *unit, zone });
    }
    if let Some(calendar) = calendar_with_factor(name) {
        return Err(RateError::CalendarFactor(calendar));
    }
    let unit_at = period.find(|c: char| !c.is_ascii_digit()).unwrap_or(period.len());
    let (factor, unit) = period.split_at(unit_at);
    if unit == "m" {
        return Err(RateError::MinuteOrMonth);
    }
    let Some((_, millis)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(RateError::Unit { found: shown(unit), meant: nearest(unit) });
    };
    let factor = if factor.is_empty() { Some(1) } else { whole(factor) };
    let length = factor.filter(|factor| *factor > 0).and_then(|factor| factor.checked_mul(*millis));
    length
        .map(|millis| Per::Every(Span::from_millis(millis)))
        .ok_or_else(|| RateError::Factor(shown(period)))
}

/// The calendar without the factor, for a text such as `2calendar-day`.
fn calendar_with_factor(name: &str) -> Option<&'static str> {
    let without = name.trim_start_matches(|c: char| c.is_ascii_digit());
    let (calendar, _) = CALENDARS.iter().find(|(calendar, _)| *calendar == without)?;
    (without.len() < name.len()).then_some(*calendar)
}

/// Parses a whole number in plain digits: no sign, point or exponent.
fn whole(digits: &str) -> Option<u64> {
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

fn checked_zone(zone: &str) -> Result<String, RateError> {
    let plain = zone.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/_+-".contains(&byte));
    if zone.is_empty() || zone.len() > LONGEST_ZONE || !plain {
        return Err(RateError::Zone(shown(zone)));
    }
    Ok(zone.to_owned())
}

/// The unit that was probably meant by an unknown one.
fn nearest(unit: &str) -> &'static str {
    let small = unit.to_ascii_lowercase();
    let known = |wanted: &str| OTHER_NAMES.iter().find(|(name, _)| *name == wanted);
    let same = || UNITS.iter().find(|(name, _)| *name == small).map(|(name, _)| *name);
    let other = known(unit).or_else(|| known(&small)).map(|(_, meant)| *meant).or_else(same);
    let begins = || UNITS.iter().find(|(name, _)| !unit.is_empty() && unit.starts_with(name));
    other.or_else(|| begins().map(|(name, _)| *name)).unwrap_or("s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_written() {
        for (text, amount, millis) in [
            ("15/s", 15, 1_000),
            ("500/30s", 500, 30_000),
            ("3/2day", 3, 172_800_000),
            ("1/500ms", 1, 500),
            ("10/min", 10, 60_000),
            ("0/h", 0, 3_600_000),
            ("18446744073709551615/week", u64::MAX, 604_800_000),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(
                (rate.amount, rate.per.clone()),
                (amount, Per::Every(Span::from_millis(millis)))
            );
            assert_eq!(rate.to_string(), text);
        }
    }

    #[test]
    fn invalid_rates_are_refused_with_a_hint() {
        for (text, hint) in [
            ("", "such as `15/s`"),
            ("15", "such as `15/s`"),
            ("/s", "`` is not a valid amount"),
            ("-1/s", "`-1` is not a valid amount"),
            ("1.5/s", "`1.5` is not a valid amount"),
            ("1e3/s", "`1e3` is not a valid amount"),
            ("+5/s", "`+5` is not a valid amount"),
            ("18446744073709551616/s", "at most 18446744073709551615"),
            ("10 /s", "`10 ` is not a valid amount"),
            ("10/ s", "did you mean `s`?"),
            ("10/m", "write `min` for minutes, or `calendar-month` for months"),
            ("10/5m", "write `min` for minutes, or `calendar-month` for months"),
            ("100/d", "did you mean `day`?"),
            ("100/mo", "did you mean `calendar-month`?"),
            ("10/M", "did you mean `calendar-month`?"),
            ("10/minute", "did you mean `min`?"),
            ("10/sec", "did you mean `s`?"),
            ("10/0s", "`0s` is not a valid length of time"),
            ("10/1.5s", "unknown period"),
            ("10/PT1H", "unknown period"),
            ("10/99999999999999999999s", "is not a valid length of time"),
            ("10/18446744073709551615week", "is not a valid length of time"),
            ("10/", "did you mean `s`?"),
            ("10/2calendar-day", "write `calendar-day`"),
            ("10/MIN", "did you mean `min`?"),
            ("10/calendar-year", "did you mean `365day`?"),
            ("10/us", "did you mean `ms`?"),
            ("10/calendar-day@", "is not a valid time zone"),
            ("10/calendar-day@Europe/Ber lin", "is not a valid time zone"),
            ("10/calendar-day@../../etc/passwd", "is not a valid time zone"),
            ("10/s@Europe/Berlin", "unknown period"),
            ("10/\u{7}", "�"),
        ] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}
