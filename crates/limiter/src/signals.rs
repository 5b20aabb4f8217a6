//! What the world is like just now: load, errors, the mood of a database. Elastic limits listen to it.
//!
//! ```text
//!   load 0.9 │ 0.5 …                0.5 …             (silence)
//!   ─────────┼───────────┬──────────────────────────────┬─────────
//!            holds since │ for 2 s: the limit grows     │ 10 s old: as if never said
//! ```
//!
//! A condition counts when it has held for two seconds, so that a limit does not flutter with the load; and
//! a signal that nobody renews is forgotten, so that a dead reporter does not keep a limit open.

use std::collections::HashMap;
use tidegate_core::{Span, Timestamp};
use tidegate_policy::{Expression, Fact, Number};

/// How long a condition must have held.
const SETTLES: Span = Span::from_secs(2);
/// How long a signal is believed.
const BELIEVED: Span = Span::from_secs(10);

/// The last word of every signal, and since when conditions hold. A pure state machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Signals {
    values: HashMap<Box<str>, (Number, Timestamp)>,
    /// By the text of the condition, so that a reload does not forget.
    held: HashMap<Box<str>, Held>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    since: Timestamp,
    /// When the first of its signals will be too old.
    until: Timestamp,
}

impl Signals {
    /// A signal has a new value; these are the conditions that listen.
    pub(crate) fn set<'e>(
        &mut self,
        now: Timestamp,
        name: &str,
        value: Number,
        conditions: impl Iterator<Item = &'e Expression>,
    ) {
        self.values.retain(|_, (_, at)| now.since(*at) <= BELIEVED);
        self.values.insert(name.into(), (value, now));
        self.judge(now, conditions);
    }

    /// Looks again which conditions hold.
    pub(crate) fn judge<'e>(
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

    /// Whether a condition has held long enough.
    pub(crate) fn settled(&self, now: Timestamp, condition: &Expression) -> bool {
        self.held
            .get(condition.as_str())
            .is_some_and(|held| now.since(held.since) >= SETTLES && now <= held.until)
    }

    /// Until when a condition holds if nobody says anything more; `None` when it does not hold.
    fn holds_until(&self, now: Timestamp, condition: &Expression) -> Option<Timestamp> {
        let believed =
            |name: &str| self.values.get(name).filter(|(_, at)| now.since(*at) <= BELIEVED);
        if !condition.holds(&|name| believed(name).map(|(value, _)| Fact::Number(*value))) {
            return None;
        }
        let ages = condition.names().into_iter().filter_map(believed);
        let oldest = ages.map(|(_, at)| *at).min().unwrap_or(now);
        oldest.after(BELIEVED)
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
    fn a_condition_counts_after_two_seconds_and_while_somebody_says_so() {
        let calm = Expression::parse("load < 0.7").unwrap();
        let mut signals = Signals::default();
        let set = |signals: &mut Signals, millis, value| {
            signals.set(at(millis), "load", number(value), [&calm].into_iter());
        };
        assert!(!signals.settled(at(0), &calm));
        set(&mut signals, 1_000, "0.5");
        assert!(!signals.settled(at(2_999), &calm));
        assert!(signals.settled(at(3_000), &calm));
        set(&mut signals, 3_500, "0.6"); // still holds, since the first second
        assert!(signals.settled(at(3_500), &calm));
        set(&mut signals, 4_000, "0.7");
        assert!(!signals.settled(at(4_000), &calm));
        set(&mut signals, 4_100, "0.1");
        assert!(!signals.settled(at(6_000), &calm));
        assert!(signals.settled(at(6_100), &calm));
        // Nobody speaks any more.
        assert!(signals.settled(at(14_100), &calm));
        assert!(!signals.settled(at(14_101), &calm));
        // After a silence it has to hold anew.
        set(&mut signals, 20_000, "0.1");
        assert!(!signals.settled(at(21_999), &calm));
        assert!(signals.settled(at(22_000), &calm));
    }

    #[test]
    fn all_signals_of_a_condition_must_be_fresh() {
        let calm = Expression::parse("load < 0.7 and errors < 0.01").unwrap();
        let mut signals = Signals::default();
        signals.set(at(0), "errors", number("0"), [&calm].into_iter());
        signals.set(at(9_000), "load", number("0.1"), [&calm].into_iter());
        assert!(!signals.settled(at(11_000), &calm)); // `errors` was last heard of 11 s ago
        signals.set(at(9_500), "errors", number("0"), [&calm].into_iter());
        assert!(signals.settled(at(11_000), &calm));
    }
}
