//! Times in logs: the forms that servers write, as nanoseconds of Unix time.
//!
//! ```text
//!   18/Nov/2026:22:41:35 +0000        $time_local of nginx, Apache
//!   2026-11-18T22:41:35.250Z          RFC 3339: $time_iso8601, Traefik, Envoy
//!   1795041695.250                    seconds: $msec of nginx, Caddy
//!   1795041695250                     milliseconds; 16 digits are microseconds, 19 are nanoseconds
//! ```

use jiff::Timestamp;
use jiff::fmt::strtime;

/// A time from a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogStamp {
    /// Unix time.
    pub(super) nanos: u64,
    /// Whether the log shows only the second, so that the request may have come at any instant of it.
    pub(super) whole_second: bool,
}

/// Reads times. It remembers the last one, because many lines in a row have the same second.
#[derive(Debug, Default)]
pub(super) struct StampReader {
    text: String,
    stamp: Option<LogStamp>,
}

pub(super) const SECOND: u64 = 1_000_000_000;

impl StampReader {
    /// The time that a text says, or `None` if it has none of the forms.
    pub(super) fn read(&mut self, text: &str) -> Option<LogStamp> {
        if self.text != text {
            self.stamp = parse(text);
            self.text.clear();
            self.text.push_str(text);
        }
        self.stamp
    }
}

fn parse(text: &str) -> Option<LogStamp> {
    let first_letter = text.bytes().find(|byte| !byte.is_ascii_digit());
    match first_letter {
        Some(b'/') => {
            let time = strtime::parse("%d/%b/%Y:%H:%M:%S %z", text).ok()?.to_timestamp().ok()?;
            of_instant(time, true)
        }
        None | Some(b'.') => of_number(text),
        Some(_) => of_instant(text.parse().ok()?, !text.contains(['.', ','])),
    }
}

fn of_instant(time: Timestamp, whole_second: bool) -> Option<LogStamp> {
    let nanos = u64::try_from(time.as_nanosecond()).ok()?;
    Some(LogStamp { nanos, whole_second })
}

/// Seconds with or without a fraction, or a whole number of a smaller unit, which its number of digits tells.
fn of_number(text: &str) -> Option<LogStamp> {
    let nanos = decimal_nanos(text)?;
    match text.find('.').unwrap_or(text.len()) {
        0..=11 => Some(LogStamp { nanos, whole_second: !text.contains('.') }),
        _ if text.contains('.') => None,
        digits => {
            let unit: u64 = match digits {
                13 => 1_000_000,
                16 => 1_000,
                19 => 1,
                _ => return None,
            };
            let nanos = text.parse::<u64>().ok()?.checked_mul(unit)?;
            Some(LogStamp { nanos, whole_second: false })
        }
    }
}

/// Seconds such as `0.250`, in nanoseconds. Digits after the ninth are dropped. Of a number that is too large for seconds, the
/// result is the largest.
pub(super) fn decimal_nanos(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let plain = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !plain(whole) || !plain(fraction) {
        return None;
    }
    let digits = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
    let below = digits.fold(0_u64, |sum, digit| {
        sum.saturating_mul(10).saturating_add(u64::from(digit.saturating_sub(b'0')))
    });
    let seconds: u64 = whole.parse().ok()?;
    Some(seconds.saturating_mul(SECOND).saturating_add(below))
}

/// A time as people read it: `2026-11-18T22:41:35.25Z`.
pub(super) fn shown(nanos: u64) -> String {
    Timestamp::from_nanosecond(i128::from(nanos.saturating_sub(nanos % 1_000_000)))
        .map_or_else(|_| "?".to_owned(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_of_common_servers_are_read() {
        let second = 1_795_041_695 * SECOND;
        for (text, nanos, whole_second) in [
            ("18/Nov/2026:22:41:35 +0000", second, true),
            ("19/Nov/2026:00:41:35 +0200", second, true),
            ("2026-11-18T22:41:35+00:00", second, true),
            ("2026-11-18T22:41:35Z", second, true),
            ("2026-11-18T22:41:35.25Z", second + SECOND / 4, false),
            ("1795041695", second, true),
            ("1795041695.250", second + SECOND / 4, false),
            ("1795041695250", second + SECOND / 4, false),
            ("1795041695250000", second + SECOND / 4, false),
            ("1795041695250000001", second + SECOND / 4 + 1, false),
        ] {
            let stamp = Some(LogStamp { nanos, whole_second });
            assert_eq!(StampReader::default().read(text), stamp, "{text}");
        }
        assert_eq!(shown(second + SECOND / 4), "2026-11-18T22:41:35.25Z");
    }

    #[test]
    fn other_texts_are_not_times() {
        for text in ["", "-", "soon", "18/Nov/2026", "123456789012", "1.2.3", "1795041695250.5"] {
            assert_eq!(StampReader::default().read(text), None, "{text}");
        }
    }

    #[test]
    fn durations_keep_nine_digits() {
        for (text, nanos) in [
            ("0.003", Some(3_000_000)),
            ("12", Some(12 * SECOND)),
            ("0.0000000019", Some(1)),
            ("-", None),
            ("1e3", None),
            (".5", None),
        ] {
            assert_eq!(decimal_nanos(text), nanos, "{text}");
        }
    }

    #[test]
    fn a_repeated_text_is_remembered_and_another_one_is_read() {
        let mut reader = StampReader::default();
        let [first, again, other] = ["10", "10", "11"].map(|text| reader.read(text).unwrap().nanos);
        assert_eq!([first, again, other], [10 * SECOND, 10 * SECOND, 11 * SECOND]);
    }
}
