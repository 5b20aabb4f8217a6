//! Writes answers in the words of the scenarios, so that what was found can be compared with, and copied into, a scenario.

use super::Fact;
use crate::Expected;
use tidegate_core::{Retry, Span};

/// A span that parses as itself: the largest unit of which it is a whole number.
///
/// ```
/// # use tidegate_core::Span;
/// # use tidegate_timelines::policy::span_text;
/// assert_eq!(span_text(Span::from_secs(900)), "15min");
/// assert_eq!(span_text(Span::from_millis(1_500)), "1500ms");
/// ```
#[must_use]
pub fn span_text(span: Span) -> String {
    const SECOND: u64 = 1_000_000_000;
    let units = [
        (86_400 * SECOND, "day"),
        (3_600 * SECOND, "h"),
        (60 * SECOND, "min"),
        (SECOND, "s"),
        (1_000_000, "ms"),
        (1_000, "us"),
    ];
    let nanos = span.as_nanos();
    let whole = units.iter().find(|(unit, _)| nanos >= *unit && nanos.is_multiple_of(*unit));
    let text = whole.and_then(|(unit, name)| Some(format!("{}{name}", nanos.checked_div(*unit)?)));
    text.unwrap_or_else(|| if nanos == 0 { "0s".to_owned() } else { format!("{nanos}ns") })
}

/// An outcome, such as `delay 20ms`.
#[must_use]
pub fn outcome_text(outcome: Expected) -> String {
    match outcome {
        Expected::Allow => "allow".to_owned(),
        Expected::Delay(wait) => format!("delay {}", span_text(wait)),
        Expected::Deny => "deny".to_owned(),
    }
}

/// When a refused cost would pass, such as `retry 6s`.
#[must_use]
pub fn retry_text(retry: Retry) -> String {
    match retry {
        Retry::After(wait) => format!("retry {}", span_text(wait)),
        Retry::Never => "never".to_owned(),
    }
}

/// A fact about one limit, such as `remaining 3`.
#[must_use]
pub fn fact_text(fact: Fact) -> String {
    match fact {
        Fact::Outcome(outcome) => outcome_text(outcome),
        Fact::Over => "over".to_owned(),
        Fact::Retry(retry) => retry_text(retry),
        Fact::Remaining(remaining) => format!("remaining {remaining}"),
        Fact::Reset(reset) => format!("reset {}", span_text(reset)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::span;

    #[test]
    fn a_span_that_was_written_is_read_as_itself() {
        for nanos in [0, 1, 1_500, 2_000_000, 1_500_000_000, 60_000_000_000, 90_061_000_000_000] {
            let expected = Span::from_nanos(nanos);
            assert_eq!(span(Some(&span_text(expected))), Ok(expected), "{nanos}");
        }
    }
}
