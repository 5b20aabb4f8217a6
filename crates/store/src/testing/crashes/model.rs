//! The keys of a history, and all values that their states had.

use super::super::random::Random;
use super::{SECOND, START};
use std::sync::Arc;
use tidegate_core::{
    Algorithm, Align, Ask, Calendar, Cost, Limit, Refill, Span, State, StateId, Timestamp, Written,
};

/// What kind of history it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Roomy,
    Full,
}

/// A key, its limits (an edit chooses another one), and its values.
pub(super) struct Key {
    pub(super) id: StateId,
    pub(super) limits: Vec<Limit>,
    /// With room: the value in the table after each step that changed it. Without room: what the model counts.
    pub(super) values: Vec<(u64, Value)>,
}

/// A state, and the limit under which it was written. The model of a history without room does not know which of several states
/// a crash has left; then it has all of them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Value {
    pub(super) limit: Option<Arc<Limit>>,
    pub(super) states: Vec<State>,
}

impl Kind {
    pub(super) fn keys(self) -> Vec<Key> {
        let minute = |n: u64| Timestamp::from_nanos(n * 60 * SECOND);
        let days = (0..4).map(|day| minute(START / SECOND / 60 + day * 1_440 - 700));
        let calendar = Calendar::new(days).unwrap();
        let algorithms = [
            Algorithm::FixedWindow { align: Align::Epoch },
            Algorithm::TokenBucket { burst: None, refill: Refill::Continuous },
            Algorithm::FixedWindow { align: Align::First },
            Algorithm::SlidingLog,
            Algorithm::SlidingBuckets { buckets: 10 },
            Algorithm::SlidingWeighted,
            Algorithm::TokenBucket { burst: Some(7), refill: Refill::Interval },
            Algorithm::LeakyBucket { queue: Some(9) },
            Algorithm::Concurrent,
        ];
        let limits = |number: usize| -> Vec<Limit> {
            let algorithm = match (self, algorithms[number % algorithms.len()]) {
                // A key that shares cells of the sketch with others inherits the beginning of their window. The model does not
                // know that.
                (Self::Full, Algorithm::FixedWindow { align: Align::First }) => {
                    Algorithm::FIXED_WINDOW
                }
                (_, algorithm) => algorithm,
            };
            let limit =
                |amount, seconds| Limit::new(amount, Span::from_secs(seconds), algorithm).unwrap();
            match (self, number % 10) {
                (_, 9) => vec![Limit::new(10, calendar.clone(), Algorithm::FIXED_WINDOW).unwrap()],
                (Self::Roomy, _) => vec![limit(10, 60), limit(12, 60), limit(10, 90)],
                (Self::Full, _) => vec![limit(10, 600)],
            }
        };
        let count = match self {
            Self::Roomy => 60,
            Self::Full => 600,
        };
        let id =
            |number: usize| StateId(u128::from(Random::new(u64::try_from(number).unwrap()).next()));
        (0..count)
            .map(|number| Key { id: id(number), limits: limits(number), values: vec![] })
            .collect()
    }
}

impl Value {
    pub(super) fn one(limit: Option<Arc<Limit>>, state: State) -> Self {
        Self { limit, states: vec![state] }
    }

    /// The most that may be left, under a limit.
    pub(super) fn remaining(&self, limit: &Limit, now: Timestamp) -> u64 {
        let shape = self.limit.as_deref().unwrap_or(limit);
        let left = self.states.iter().map(|state| {
            let written = Written { shape, state: state.clone() };
            limit.decide(&written, &Ask::new(now, Cost::default())).remaining
        });
        left.max().unwrap_or(u64::MAX)
    }

    /// Everything that is answered, under a limit.
    pub(super) fn answer(&self, limit: &Limit, now: Timestamp) -> String {
        let shape = self.limit.as_deref().unwrap_or(limit);
        let written = Written { shape, state: self.states.first().cloned().unwrap_or_default() };
        let answers = [0, 1, 3].map(|cost| limit.decide(&written, &Ask::new(now, Cost::new(cost))));
        format!("{answers:?}")
    }
}

impl Key {
    pub(super) fn value_at(&self, step: u64) -> Value {
        let before = self.values.iter().rev().find(|(at, _)| *at <= step);
        before.map_or(Value::one(None, State::Empty), |(_, value)| value.clone())
    }

    /// The values from a step on, with the steps at which they began.
    pub(super) fn values_since(&self, step: u64) -> impl Iterator<Item = (u64, Value)> {
        let later = self.values.iter().filter(move |(at, _)| *at > step);
        std::iter::once((step, self.value_at(step))).chain(later.cloned())
    }
}
