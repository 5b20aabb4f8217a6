//! Signals report the state of the system, such as its load or error rate, to elastic limits.
//!
//! ```text
//!   load 0.9 │ 0.5 …                0.5 …             (no report)
//!   ─────────┼───────────┬──────────────────────────────┬─────────
//!            holds since │ for 2 s: the limit grows     │ 10 s old: the signal has expired
//! ```
//!
//! A condition takes effect only when it has held for two seconds, so that a limit does not flap with the load. A signal
//! that is not renewed expires, so that a crashed reporter does not keep a limit raised.

use std::collections::HashMap;
use tidegate_core::{Span, Timestamp};
use tidegate_policy::{Expression, Fact, Number};

/// How long a condition must have held before it takes effect.
const HOLD_TIME: Span = Span::from_secs(2);
/// How long a signal is valid after its last report.
const SIGNAL_TTL: Span = Span::from_secs(10);

/// The last value of every signal, and since when each condition holds. A pure state machine: the caller passes the time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Signals {
    values: HashMap<Box<str>, (Number, Timestamp)>,
    /// The conditions that hold, by their text, so that a reload of the same policy does not start them anew.
    held: HashMap<Box<str>, Held>,
}

/// A condition that holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    since: Timestamp,
    /// When the first of its signals expires.
    until: Timestamp,
}

impl Signals {
    /// Sets a signal, and evaluates the conditions again.
    pub(crate) fn set<'e>(
        &mut self,
        now: Timestamp,
        name: &str,
        value: Number,
        conditions: impl Iterator<Item = &'e Expression>,
    ) {
        self.values.retain(|_, (_, at)| now.since(*at) <= SIGNAL_TTL);
        self.values.insert(name.into(), (value, now));
        self.evaluate(now, conditions);
    }

    /// Evaluates which conditions hold.
    pub(crate) fn evaluate<'e>(
        &mut self,
        now: Timestamp,
        conditions: impl Iterator<Item = &'e Expression>,
    ) {
        let mut held = HashMap::new();
        for condition in conditions {
            if let Some(until) = self.holds_until(now, condition) {
                let before = self.held.get(condition.as_str()).filter(|held| now <= held.until);
                let since = before.map_or(now, |held| held.since);
                held.insert(condition.as_str().into(), Held { since, until });
            }
        }
        self.held = held;
    }

    /// Whether a condition has held long enough to take effect.
    pub(crate) fn in_effect(&self, now: Timestamp, condition: &Expression) -> bool {
        self.held
            .get(condition.as_str())
            .is_some_and(|held| now.since(held.since) >= HOLD_TIME && now <= held.until)
    }

    /// Until when a condition holds without further reports; `None` if it does not hold.
    fn holds_until(&self, now: Timestamp, condition: &Expression) -> Option<Timestamp> {
        let valid =
            |name: &str| self.values.get(name).filter(|(_, at)| now.since(*at) <= SIGNAL_TTL);
        if !condition.holds(&|name| valid(name).map(|(value, _)| Fact::Number(*value))) {
            return None;
        }
        let ages = condition.names().into_iter().filter_map(valid);
        let oldest = ages.map(|(_, at)| *at).min().unwrap_or(now);
        oldest.after(SIGNAL_TTL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    fn number(text: &str) -> Number {
        text.parse().unwrap()
    }

    #[test]
    fn a_condition_takes_effect_after_two_seconds_and_while_reports_arrive() {
        let calm = Expression::parse("load < 0.7").unwrap();
        let mut signals = Signals::default();
        let set = |signals: &mut Signals, millis, value| {
            signals.set(at(millis), "load", number(value), [&calm].into_iter());
        };
        assert!(!signals.in_effect(at(0), &calm));
        set(&mut signals, 1_000, "0.5");
        assert!(!signals.in_effect(at(2_999), &calm));
        assert!(signals.in_effect(at(3_000), &calm));
        set(&mut signals, 3_500, "0.6"); // still holds, since second 1
        assert!(signals.in_effect(at(3_500), &calm));
        set(&mut signals, 4_000, "0.7");
        assert!(!signals.in_effect(at(4_000), &calm));
        set(&mut signals, 4_100, "0.1");
        assert!(!signals.in_effect(at(6_000), &calm));
        assert!(signals.in_effect(at(6_100), &calm));
        // No more reports.
        assert!(signals.in_effect(at(14_100), &calm));
        assert!(!signals.in_effect(at(14_101), &calm));
        // After a pause it must hold for two seconds again.
        set(&mut signals, 20_000, "0.1");
        assert!(!signals.in_effect(at(21_999), &calm));
        assert!(signals.in_effect(at(22_000), &calm));
    }

    #[test]
    fn all_signals_of_a_condition_must_be_fresh() {
        let calm = Expression::parse("load < 0.7 and errors < 0.01").unwrap();
        let mut signals = Signals::default();
        signals.set(at(0), "errors", number("0"), [&calm].into_iter());
        signals.set(at(9_000), "load", number("0.1"), [&calm].into_iter());
        assert!(!signals.in_effect(at(11_000), &calm)); // `errors` was last reported 11 s ago
        signals.set(at(9_500), "errors", number("0"), [&calm].into_iter());
        assert!(signals.in_effect(at(11_000), &calm));
    }
}
