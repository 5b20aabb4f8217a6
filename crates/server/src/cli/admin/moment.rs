//! Times as operators read them: `2026-12-24T18:00:00Z`, `in 52 min`, `12 min ago`; and spans as they write them: `1h`.

use crate::cli::duration;
use tidegate::Clock;

/// Now, in milliseconds of Unix time.
pub(super) fn now_ms() -> u64 {
    Clock::system().now().calendar.as_nanos() / 1_000_000
}

/// A time in UTC, in whole seconds.
pub(super) fn at(millis: u64) -> String {
    let seconds = i64::try_from(millis / 1_000).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| "?".to_owned(), |time| time.to_string())
}

/// How long ago a time was, rounded down.
pub(super) fn ago(millis: u64, now_ms: u64) -> String {
    let past = now_ms.saturating_sub(millis);
    let steps = past.checked_div(step(past)).unwrap_or(0).max(1);
    format!("{} ago", duration::of_millis(steps.saturating_mul(step(past))))
}

/// In how long a time will be, rounded up.
pub(super) fn ahead(millis: u64, now_ms: u64) -> String {
    let left = millis.saturating_sub(now_ms);
    let steps = left.div_ceil(step(left)).max(1);
    format!("in {}", duration::of_millis(steps.saturating_mul(step(left))))
}

/// To what a span is rounded, so that it has at most two units.
const fn step(millis: u64) -> u64 {
    match millis {
        0..60_000 => 1_000,
        60_000..86_400_000 => 60_000,
        86_400_000.. => 3_600_000,
    }
}

/// A span such as `90s`, `15min`, `1h` or `7days`, in seconds.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    let form =
        || format!("`{text}` is not a span of time; write it like `90s`, `15min`, `1h` or `7days`");
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (count, unit) = text.split_at(digits);
    let seconds: u64 = match unit.trim() {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3_600,
        "d" | "day" | "days" => 86_400,
        "w" | "week" | "weeks" => 7 * 86_400,
        _ => return Err(form()),
    };
    let count: u64 = count.parse().map_err(|_| form())?;
    count.checked_mul(seconds).filter(|seconds| *seconds > 0).ok_or_else(form)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_and_times_are_shown() {
        for (text, expected) in [
            ("90s", 90),
            ("15min", 900),
            ("15m", 900),
            ("1h", 3_600),
            ("7days", 604_800),
            ("2w", 1_209_600),
        ] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for wrong in ["", "h", "1", "0s", "1.5h", "-1h", "1 fortnight", "99999999999999999999s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        assert_eq!(at(1_800_000_000_999), "2027-01-15T08:00:00Z");
        assert_eq!(ago(0, 59_999), "59 s ago");
        assert_eq!(ago(0, 3_725_000), "1 h 2 min ago");
        assert_eq!(ahead(90_000_000, 0), "in 1 day 1 h");
        assert_eq!(ahead(3_599_001, 0), "in 1 h");
    }
}
