//! Signals report the state of the system, such as its load or error rate, to elastic limits.
//!
//! ```text
//!   load 0.9 │ 0.5 …                0.5 …  0.66 …      0.8      0.5 …             (no report)
//!   ─────────┼───────────┬────────────────┬────────────┬─────────────┬──────────────┬─────────
//!     closed │ holds     │ open: the whole│ a part of  │ closed, for │ open         │ 10 s old: closed,
//!            │ for 2 s   │ headroom       │ it         │ at least 5 s│              │ the signal has expired
//! ```
//!
//! - **It opens slowly**: when the condition has held for two seconds, and not within five seconds after it closed. So a limit does
//!   not flap with the load that its own headroom causes.
//! - **It is scaled.** Near its threshold a condition grants only a part of the headroom ([`Expression::degree`]). The part shrinks
//!   fast (with a time constant of 0.5 s) and grows slowly (5 s).
//! - **It closes at once** when the condition does not hold. A signal that is not renewed expires, so that a crashed reporter does
//!   not keep a limit raised.

use std::collections::HashMap;
use std::fmt;
use tidegate_core::{Span, Timestamp};
use tidegate_policy::{Expression, Fact, Number};

/// How long a condition must have held before it takes effect.
const HOLD_TIME: Span = Span::from_secs(2);
/// For how long it stays closed.
const CLOSED_TIME: Span = Span::from_secs(5);
/// How long a signal is valid after its last report.
const SIGNAL_TTL: Span = Span::from_secs(10);
/// How fast the granted part follows a worse and a better signal.
const SHRINKS_WITHIN: Span = Span::from_millis(500);
const GROWS_WITHIN: Span = Span::from_secs(5);

/// The last value of every signal, and what each condition grants. A pure state machine: the caller passes the time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Signals {
    values: HashMap<Box<str>, (Number, Timestamp)>,
    /// The conditions, by their text, so that a reload of the same policy does not start them anew.
    conditions: HashMap<Box<str>, ConditionState>,
}

/// What is known about a condition.
#[derive(Clone, Copy, Debug)]
struct ConditionState {
    /// Since when it holds; `None` if it does not.
    holds: Option<Timestamp>,
    /// When the first of its signals expires.
    until: Timestamp,
    /// It stays closed until then.
    closed_until: Timestamp,
    /// The granted part of the headroom in thousandths, and when it was computed.
    part: (u64, Timestamp),
}

/// Whether an elastic limit may use its headroom at the moment, and why; see
/// [`Limiter::elasticities`](crate::Limiter::elasticities).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elasticity {
    /// This many per cent of the headroom, from 1 to 100.
    Open(u8),
    /// The condition does not hold.
    Closed,
    /// No recent report of a signal that the condition needs.
    NoSignal,
    /// The condition holds, but not for long enough. The limit opens after this time.
    Opens(Span),
}

impl Elasticity {
    /// The granted part of the headroom, in per cent.
    #[must_use]
    pub const fn percent(self) -> u8 {
        match self {
            Self::Open(percent) => percent,
            Self::Closed | Self::NoSignal | Self::Opens(_) => 0,
        }
    }
}

impl fmt::Display for Elasticity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(percent) => write!(f, "open: {percent} % of the headroom"),
            Self::Closed => f.write_str("closed: the condition does not hold"),
            Self::NoSignal => f.write_str("closed: a signal was not reported in the last 10 s"),
            Self::Opens(span) => write!(
                f,
                "closed: the condition holds, and must hold for another {} ms",
                span.as_millis_ceil()
            ),
        }
    }
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
        let mut states = HashMap::new();
        for condition in conditions {
            let before = self.conditions.get(condition.as_str());
            let state = match self.holds_until(now, condition) {
                Some((degree, until)) => ConditionState::holds(before, degree, until, now),
                None => ConditionState::closes(before, now),
            };
            states.insert(condition.as_str().into(), state);
        }
        self.conditions = states;
    }

    /// What a condition grants.
    pub(crate) fn elasticity(&self, now: Timestamp, condition: &Expression) -> Elasticity {
        let state = self.conditions.get(condition.as_str());
        let Some((state, since)) = state.and_then(|state| Some((state, state.holds?))) else {
            let missing = condition.names().into_iter().any(|name| self.valid(now, name).is_none());
            return if missing { Elasticity::NoSignal } else { Elasticity::Closed };
        };
        if now > state.until {
            return Elasticity::NoSignal;
        }
        match state.opens_in(since, now) {
            Span::ZERO => Elasticity::Open(state.percent()),
            wait => Elasticity::Opens(wait),
        }
    }

    /// How clearly a condition holds, and until when without further reports; `None` if it does not hold.
    fn holds_until(&self, now: Timestamp, condition: &Expression) -> Option<(u8, Timestamp)> {
        let degree =
            condition.degree(&|name| self.valid(now, name).map(|(value, _)| Fact::Number(*value)));
        let ages = condition.names().into_iter().filter_map(|name| self.valid(now, name));
        let oldest = ages.map(|(_, at)| *at).min().unwrap_or(now);
        oldest.after(SIGNAL_TTL).filter(|_| degree > 0).map(|until| (degree, until))
    }

    /// A signal that has not expired.
    fn valid(&self, now: Timestamp, name: &str) -> Option<&(Number, Timestamp)> {
        self.values.get(name).filter(|(_, at)| now.since(*at) <= SIGNAL_TTL)
    }
}

impl ConditionState {
    /// The condition holds, as clearly as this.
    fn holds(before: Option<&Self>, degree: u8, until: Timestamp, now: Timestamp) -> Self {
        let wanted = u64::from(degree).saturating_mul(10);
        let held = before.filter(|before| before.holds.is_some() && now <= before.until);
        let Some(held) = held else {
            let closed_until = before.map_or(Timestamp::EPOCH, |before| before.closed_until);
            return Self { holds: Some(now), until, closed_until, part: (wanted, now) };
        };
        let is_open = held.holds.is_some_and(|since| held.opens_in(since, now) == Span::ZERO);
        let part = if is_open { held.follow(wanted, now) } else { wanted };
        Self { until, part: (part, now), ..*held }
    }

    /// The condition does not hold.
    fn closes(before: Option<&Self>, now: Timestamp) -> Self {
        let was_open = before.is_some_and(|before| {
            let opened =
                before.holds.is_some_and(|since| before.opens_in(since, now) == Span::ZERO);
            opened && now <= before.until
        });
        let closed_until = match was_open {
            true => now.after(CLOSED_TIME).unwrap_or(Timestamp::END),
            false => before.map_or(Timestamp::EPOCH, |before| before.closed_until),
        };
        Self { holds: None, until: now, closed_until, part: (0, now) }
    }

    /// How long it must still hold before it takes effect.
    fn opens_in(&self, since: Timestamp, now: Timestamp) -> Span {
        let held = since.after(HOLD_TIME).unwrap_or(Timestamp::END);
        held.max(self.closed_until).since(now)
    }

    fn percent(&self) -> u8 {
        u8::try_from(self.part.0 / 10).unwrap_or(100).clamp(1, 100)
    }

    /// The part on its way to what is wanted: it moves by `dt / (dt + T)` of the distance, with a short T on the way down and a
    /// long one on the way up.
    fn follow(&self, wanted: u64, now: Timestamp) -> u64 {
        let (part, at) = self.part;
        let elapsed = u128::from(now.since(at).as_nanos());
        let within = if wanted < part { SHRINKS_WITHIN } else { GROWS_WITHIN };
        let all = elapsed.saturating_add(u128::from(within.as_nanos()));
        let distance = u128::from(wanted.abs_diff(part));
        let step = distance.saturating_mul(elapsed).checked_div(all).unwrap_or(distance);
        let step = u64::try_from(step).unwrap_or(u64::MAX);
        if wanted < part { part.saturating_sub(step) } else { part.saturating_add(step) }
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

    /// Signals for one condition.
    struct Stage {
        signals: Signals,
        condition: Expression,
    }

    impl Stage {
        fn new(condition: &str) -> Self {
            let condition = Expression::parse(condition).unwrap();
            Self { signals: Signals::default(), condition }
        }

        fn set(&mut self, millis: u64, name: &str, value: &str) {
            let condition = self.condition.clone();
            self.signals.set(at(millis), name, number(value), [&condition].into_iter());
        }

        fn percent(&self, millis: u64) -> u8 {
            self.signals.elasticity(at(millis), &self.condition).percent()
        }
    }

    #[test]
    fn a_condition_takes_effect_after_two_seconds_and_while_reports_arrive() {
        let mut calm = Stage::new("load < 0.7");
        assert_eq!(calm.percent(0), 0);
        calm.set(1_000, "load", "0.5");
        assert_eq!((calm.percent(2_999), calm.percent(3_000)), (0, 100));
        calm.set(3_500, "load", "0.6"); // still holds, since second 1
        assert_eq!(calm.percent(3_500), 100);
        calm.set(4_000, "load", "0.7");
        assert_eq!(calm.percent(4_000), 0);
        calm.set(4_100, "load", "0.1");
        assert_eq!((calm.percent(8_999), calm.percent(9_000)), (0, 100)); // it stays closed for 5 s
        // No more reports.
        assert_eq!((calm.percent(14_100), calm.percent(14_101)), (100, 0));
        // After a pause it must hold for two seconds again.
        calm.set(20_000, "load", "0.1");
        assert_eq!((calm.percent(21_999), calm.percent(22_000)), (0, 100));
    }

    #[test]
    fn all_signals_of_a_condition_must_be_fresh() {
        let mut calm = Stage::new("load < 0.7 and errors < 0.01");
        calm.set(0, "errors", "0");
        calm.set(9_000, "load", "0.1");
        assert_eq!(calm.percent(11_000), 0); // `errors` was last reported 11 s ago
        calm.set(9_500, "errors", "0");
        assert_eq!(calm.percent(11_000), 100);
    }

    #[test]
    fn near_the_threshold_only_a_part_is_granted_which_shrinks_fast_and_grows_slowly() {
        let mut calm = Stage::new("load < 0.7");
        calm.set(0, "load", "0.1");
        calm.set(2_000, "load", "0.665"); // wants a half
        assert_eq!(calm.percent(2_000), 60); // of 2 s and 0.5 s, 2 s have passed
        calm.set(4_000, "load", "0.665");
        assert_eq!(calm.percent(4_000), 52);
        calm.set(5_000, "load", "0.1"); // wants all
        assert_eq!(calm.percent(5_000), 60); // of 1 s and 5 s, 1 s has passed
    }

    #[test]
    fn it_says_why() {
        let mut calm = Stage::new("load < 0.7");
        let why = |stage: &Stage, millis| stage.signals.elasticity(at(millis), &stage.condition);
        assert_eq!(why(&calm, 0), Elasticity::NoSignal);
        calm.set(0, "load", "0.9");
        assert_eq!(why(&calm, 0), Elasticity::Closed);
        calm.set(1_000, "load", "0.1");
        assert_eq!(why(&calm, 1_500), Elasticity::Opens(Span::from_millis(1_500)));
        assert_eq!(why(&calm, 3_000), Elasticity::Open(100));
        assert_eq!(why(&calm, 11_001), Elasticity::NoSignal);
        let text = why(&calm, 1_500).to_string();
        assert_eq!(text, "closed: the condition holds, and must hold for another 1500 ms");
    }

    /// An upstream whose load follows from what is let through: without scaling, its own headroom would open and close the limit
    /// in turns.
    #[test]
    fn on_a_ramp_it_opens_and_closes_at_most_twice_a_minute() {
        for seed in 0..20_u64 {
            let mut calm = Stage::new("load < 0.7");
            let (mut changes, mut was_open, mut load) = (0, false, 0);
            for step in 0..600_u64 {
                let millis = step * 100;
                // What clients want, in per cent of the capacity: it rises from 0 to 120 within a minute.
                let wanted = step / 5 + (step * (seed + 7)) % 5;
                let granted = u64::from(calm.percent(millis));
                let passed = wanted.min(50 + granted / 2); // half of the capacity, up to all of it
                load = (load * 4 + passed) / 5; // the upstream is busy for a while
                calm.set(millis, "load", &format!("0.{:02}", load.min(99)));
                let open = calm.percent(millis) > 0;
                changes += u32::from(open != was_open);
                was_open = open;
            }
            assert!(changes <= 2, "{changes} changes with seed {seed}");
        }
    }
}
