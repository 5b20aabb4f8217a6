//! Limits and times as people write them: `5 per 15 min`, `20 min`. Machine-readable fields keep seconds and milliseconds.

use tidegate_core::Span;

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Units from large to small: nanoseconds, the abbreviation, and the name after `per`.
const UNITS: [(u64, &str, &str); 7] = [
    (DAY, "d", "day"),
    (HOUR, "h", "hour"),
    (MINUTE, "min", "minute"),
    (SECOND, "s", "second"),
    (1_000_000, "ms", "millisecond"),
    (1_000, "µs", "microsecond"),
    (1, "ns", "nanosecond"),
];

/// `second` for 1 s, `15 min` for 900 s: the period of a limit, exactly, after the word `per`.
pub(super) fn period(span: Span) -> String {
    let nanos = span.as_nanos();
    let whole =
        |unit: u64| nanos.checked_div(unit).filter(|count| count.checked_mul(unit) == Some(nanos));
    let found = UNITS.iter().find_map(|(unit, short, long)| Some((whole(*unit)?, short, long)));
    match found {
        Some((1, _, long)) => (*long).to_owned(),
        Some((count, short, _)) if count > 0 => format!("{count} {short}"),
        Some(_) | None => span.to_string(),
    }
}

/// `15 s`, `2 min 5 s`, `3 h 20 min`, `2 d 1 h`: how long to wait, at least 1 s. The two largest units are enough for a
/// person; the rest is rounded up, so that a client that waits this long is not too early.
pub(super) fn wait(span: Span) -> String {
    let seconds = span.as_secs_ceil().max(1);
    let (minutes, hours) = (seconds.div_ceil(60), seconds.div_ceil(3_600));
    match seconds {
        0..120 => format!("{seconds} s"),
        120..3_600 => two_units((seconds / 60, "min"), (seconds % 60, "s")),
        3_600..172_800 => two_units((minutes / 60, "h"), (minutes % 60, "min")),
        _ => two_units((hours / 24, "d"), (hours % 24, "h")),
    }
}

fn two_units((whole, large): (u64, &str), (rest, small): (u64, &str)) -> String {
    if rest == 0 { format!("{whole} {large}") } else { format!("{whole} {large} {rest} {small}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_exact_and_in_the_largest_unit() {
        for (nanos, text) in [
            (SECOND, "second"),
            (MINUTE, "minute"),
            (HOUR, "hour"),
            (DAY, "day"),
            (15 * MINUTE, "15 min"),
            (90 * SECOND, "90 s"),
            (7 * DAY, "7 d"),
            (1_500_000_000, "1500 ms"),
            (1_000, "microsecond"),
        ] {
            assert_eq!(period(Span::from_nanos(nanos)), text);
        }
    }

    #[test]
    fn waits_are_rounded_up() {
        for (nanos, text) in [
            (0, "1 s"),
            (1, "1 s"),
            (15 * SECOND, "15 s"),
            (119 * SECOND, "119 s"),
            (119 * SECOND + 1, "2 min"),
            (125 * SECOND, "2 min 5 s"),
            (20 * MINUTE, "20 min"),
            (HOUR, "1 h"),
            (HOUR + 1, "1 h 1 min"),
            (47 * HOUR, "47 h"),
            (2 * DAY, "2 d"),
            (2 * DAY + SECOND, "2 d 1 h"),
        ] {
            assert_eq!(wait(Span::from_nanos(nanos)), text, "{nanos}");
        }
    }
}
