//! The type of an unquoted YAML word, by the rules of Go's `yaml.v2`, which the reference service uses.
//!
//! ```text
//!   yes ── true      0x10 ── 16      1_000 ── 1000      010 ── 8      1.5, 1e3, .inf ── a fraction
//! ```
//!
//! This is for files of that service only. In a policy, words stay text.

/// The type of an unquoted word.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scalar {
    Bool(bool),
    Whole(i128),
    /// A number with a decimal point, or one that is too large. Rules cannot hold it.
    Fraction(f64),
    Text,
}

impl Scalar {
    pub(super) fn of(text: &str) -> Self {
        match text {
            "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
                return Self::Bool(true);
            }
            "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off"
            | "OFF" => return Self::Bool(false),
            ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
                return Self::Fraction(f64::INFINITY);
            }
            "-.inf" | "-.Inf" | "-.INF" => return Self::Fraction(f64::NEG_INFINITY),
            ".nan" | ".NaN" | ".NAN" => return Self::Fraction(f64::NAN),
            _ => {}
        }
        let begins = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
        if !begins {
            return Self::Text;
        }
        let plain = text.replace('_', "");
        if let Some(number) = whole(&plain) {
            return Self::Whole(number);
        }
        match plain.parse() {
            Ok(number) if is_decimal(&plain) => Self::Fraction(number),
            Ok(_) | Err(_) => Self::Text,
        }
    }
}

fn whole(text: &str) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let digits = digits.to_ascii_lowercase();
    let radix = |prefix: &str, radix| {
        digits.strip_prefix(prefix).and_then(|digits| unsigned(digits, radix))
    };
    let number = radix("0x", 16)
        .or_else(|| radix("0o", 8))
        .or_else(|| radix("0b", 2))
        .or_else(|| if digits.len() > 1 { radix("0", 8) } else { None })
        .or_else(|| if digits.starts_with('0') { None } else { unsigned(&digits, 10) })
        .or_else(|| (digits == "0").then_some(0))?;
    // A larger number has another type in Go, which rules cannot hold.
    number.checked_mul(sign).filter(|number| i64::try_from(*number).is_ok())
}

fn unsigned(digits: &str, radix: u32) -> Option<i128> {
    let number = u64::from_str_radix(digits, radix).ok()?;
    (!digits.starts_with('+')).then(|| number.into())
}

/// `1.5`, `.5`, `1.` and `1e3`, but not the other numbers that Rust parses, such as `inf`.
fn is_decimal(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_digit() || ".eE+-".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_the_types_of_yaml_v2() {
        for (text, is) in [
            ("yes", Scalar::Bool(true)),
            ("OFF", Scalar::Bool(false)),
            ("yEs", Scalar::Text),
            ("0", Scalar::Whole(0)),
            ("10", Scalar::Whole(10)),
            ("-3", Scalar::Whole(-3)),
            ("1_000", Scalar::Whole(1_000)),
            ("0x10", Scalar::Whole(16)),
            ("0b11", Scalar::Whole(3)),
            ("010", Scalar::Whole(8)),
            ("08", Scalar::Fraction(8.0)),
            ("1.5", Scalar::Fraction(1.5)),
            ("1e3", Scalar::Fraction(1_000.0)),
            ("2020-01-02", Scalar::Text),
            ("9223372036854775807", Scalar::Whole(i64::MAX.into())),
            ("9223372036854775808", Scalar::Fraction(9_223_372_036_854_775_808.0)),
            ("10.0.0.1", Scalar::Text),
            ("-", Scalar::Text),
            ("/api", Scalar::Text),
            ("inf", Scalar::Text),
            ("+inf", Scalar::Text),
        ] {
            assert_eq!(Scalar::of(text), is, "{text}");
        }
    }
}
