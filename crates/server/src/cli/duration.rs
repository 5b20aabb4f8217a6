//! Lengths of time as people write them: `250 ms`, `1.5 s`, `15 min`, `1 h 30 min`.

use tidegate_core::Span;

/// Milliseconds as people write them. From a minute on, seconds are rounded up.
pub(crate) fn of_millis(millis: u64) -> String {
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..60_000 => {
            let text = format!("{}.{:03}", millis / 1_000, millis % 1_000);
            format!("{} s", text.trim_end_matches('0').trim_end_matches('.'))
        }
        60_000.. => of_seconds(millis.div_ceil(1_000)),
    }
}

/// A span as text, rounded up to milliseconds.
pub(crate) fn of_span(span: Span) -> String {
    of_millis(span.as_nanos().div_ceil(1_000_000))
}

fn of_seconds(seconds: u64) -> String {
    let days = if seconds < 2 * 86_400 { "day" } else { "days" };
    let parts = [
        (seconds / 86_400, days),
        (seconds / 3_600 % 24, "h"),
        (seconds / 60 % 60, "min"),
        (seconds % 60, "s"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    parts.map(|(count, unit)| format!("{count} {unit}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_printed_as_people_write_them() {
        for (millis, text) in [
            (0, "0 ms"),
            (250, "250 ms"),
            (1_000, "1 s"),
            (1_500, "1.5 s"),
            (59_001, "59.001 s"),
            (60_000, "1 min"),
            (60_001, "1 min 1 s"),
            (900_000, "15 min"),
            (3_600_000, "1 h"),
            (5_400_000, "1 h 30 min"),
            (86_400_000, "1 day"),
            (2_678_400_000, "31 days"),
        ] {
            assert_eq!(of_millis(millis), text);
        }
        assert_eq!(of_span(Span::from_nanos(1)), "1 ms");
    }
}
