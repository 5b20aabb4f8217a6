//! Decimal numbers in rules, stored exactly: `100`, `0.7`, `-2.25`.
//!
//! ```text
//!   0.7  ──►  700000 millionths        nothing is rounded, so `load < 0.7` is exact
//! ```

use std::fmt;
use std::str::FromStr;

/// A decimal number with at most six digits after the point.
///
/// ```
/// use tidegate_policy::Number;
/// let [small, large]: [Number; 2] = ["0.69", "0.7"].map(|text| text.parse().unwrap());
/// assert!(small < large);
/// assert_eq!(large.to_string(), "0.7");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number {
    millionths: i64,
}

/// A text that is not a valid number.
///
/// ```
/// use tidegate_policy::Number;
/// assert!("1e3".parse::<Number>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a valid number; write digits, with at most six of them after a point")]
pub struct NumberError;

const PLACES: usize = 6;
const ONE: i64 = 1_000_000;

impl Number {
    /// A whole number. A number that is too large becomes the largest possible one.
    ///
    /// ```
    /// use tidegate_policy::Number;
    /// assert_eq!(Number::whole(3), "3.0".parse().unwrap());
    /// ```
    #[must_use]
    pub fn whole(n: u64) -> Self {
        Self { millionths: i64::try_from(n).unwrap_or(i64::MAX).saturating_mul(ONE) }
    }

    /// `⌊n · self⌋`, at least 0.
    ///
    /// ```
    /// use tidegate_policy::Number;
    /// let scale: Number = "1.5".parse().unwrap();
    /// assert_eq!(scale.times(3), 4);
    /// ```
    #[must_use]
    pub fn times(self, n: u64) -> u64 {
        let product = i128::from(n).saturating_mul(i128::from(self.millionths));
        u64::try_from(product.max(0) / 1_000_000).unwrap_or(u64::MAX)
    }

    pub(crate) const fn minus(self, other: Self) -> Self {
        Self { millionths: self.millionths.saturating_sub(other.millionths) }
    }

    /// How much this distance is of a tenth of `whole`, in per cent: from 1 to 100. 100 if `whole` is not above 0.
    pub(crate) fn percent_of_a_tenth(self, whole: Self) -> u8 {
        let percent = i128::from(self.millionths).saturating_mul(1_000);
        let percent = percent.checked_div(i128::from(whole.millionths.max(0))).unwrap_or(100);
        u8::try_from(percent.clamp(1, 100)).unwrap_or(100)
    }

    /// Whether the number is above 0.
    ///
    /// ```
    /// assert!(!tidegate_policy::Number::whole(0).is_positive());
    /// ```
    #[must_use]
    pub const fn is_positive(self) -> bool {
        self.millionths > 0
    }
}

impl From<u64> for Number {
    fn from(n: u64) -> Self {
        Self::whole(n)
    }
}

impl FromStr for Number {
    type Err = NumberError;

    fn from_str(text: &str) -> Result<Self, NumberError> {
        let (negative, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text),
        };
        let (whole, places) = digits.split_once('.').unwrap_or((digits, "0"));
        let plain = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if !plain(whole) || !plain(places) || places.len() > PLACES {
            return Err(NumberError);
        }
        let whole: i64 = whole.parse().map_err(|_| NumberError)?;
        let places: i64 = format!("{places:0<PLACES$}").parse().map_err(|_| NumberError)?;
        let millionths = whole.checked_mul(ONE).and_then(|whole| whole.checked_add(places));
        let millionths = millionths.ok_or(NumberError)?;
        Ok(Self { millionths: if negative { millionths.saturating_neg() } else { millionths } })
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.millionths < 0 { "-" } else { "" };
        let size = self.millionths.unsigned_abs();
        let (whole, places) = (size / 1_000_000, size % 1_000_000);
        let places = format!("{places:0>PLACES$}");
        match places.trim_end_matches('0') {
            "" => write!(f, "{sign}{whole}"),
            places => write!(f, "{sign}{whole}.{places}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_spelling() {
        for text in ["0", "1", "0.7", "-2.25", "9223372036854.775807", "0.000001"] {
            assert_eq!(text.parse::<Number>().unwrap().to_string(), text);
        }
        for text in ["", ".", "1.", ".5", "1.0000001", "1e3", "+1", "--1", "0x1", "9223372036855"] {
            assert_eq!(text.parse::<Number>(), Err(NumberError), "{text}");
        }
    }

    #[test]
    fn scaling_rounds_down() {
        let scaled = |text: &str, n| text.parse::<Number>().unwrap().times(n);
        assert_eq!(scaled("0.5", 3), 1);
        assert_eq!(scaled("10", 7), 70);
        assert_eq!(scaled("-1", 7), 0);
        assert_eq!(scaled("1000000", u64::MAX), u64::MAX);
    }
}
