//! Counts what a policy would have refused: for each rule the requests and keys, the first refusals, and how long a key was locked
//! out.
//!
//! A key is *locked out* from its first refusal until a request of it passes the rule again. Keys are found by a fingerprint with a
//! random seed; their text is kept only for keys that were refused.
//!
//! The replay starts with empty counters, so what a limit refuses in its first period would be too little. These refusals are
//! counted apart, and belong neither to the sums nor to the share.

use super::log_time::SECOND;
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::hash::BuildHasher;
use tidegate::{Limit, Period, Timestamp};
use tidegate_policy::KeyValue;

/// What one policy has refused so far.
#[derive(Debug, Default)]
pub(super) struct PolicyTally {
    pub(super) requests: u64,
    /// Of these, those after the shortest first period of a limit.
    pub(super) counted: u64,
    /// Requests that a limit refused after its first period.
    pub(super) refused: u64,
    pub(super) delayed: u64,
    /// Requests that the limiter could not decide, or whose attributes are not valid.
    pub(super) undecided: u64,
    /// Requests that were refused because their path is malformed.
    pub(super) unreadable: u64,
    pub(super) rules: Vec<RuleTally>,
    pub(super) series: Series,
    /// Keys that were refused, over all rules.
    keys: usize,
    /// Whether a refused key found no room.
    pub(super) keys_full: bool,
    seed: RandomState,
}

/// What one rule has refused.
#[derive(Debug, Default)]
pub(super) struct RuleTally {
    /// Requests that the rule applied to.
    pub(super) applied: u64,
    pub(super) refused: u64,
    /// Refused in the first period of the limit.
    pub(super) early: u64,
    pub(super) delayed: u64,
    /// Requests that the rule would have refused if it were enforced: it is in shadow mode, or only flags or deprioritizes.
    pub(super) marked: u64,
    pub(super) first: Vec<FirstRefusal>,
    pub(super) keys: HashMap<u64, RefusedKeyTally, RandomState>,
    /// Keys that are locked out now.
    locked: u64,
    pub(super) longest: Option<LockOut>,
    pub(super) series: Series,
}

/// One of the first refusals of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FirstRefusal {
    pub(super) at: u64,
    pub(super) limit: String,
    pub(super) key: String,
    pub(super) request: String,
}

/// A key that was refused.
#[derive(Clone, Debug)]
pub(super) struct RefusedKeyTally {
    pub(super) key: Box<str>,
    pub(super) refused: u64,
    /// The first and last refusal since a request of it passed.
    locked: Option<(u64, u64)>,
    /// Its longest time without a request that passed.
    pub(super) longest: u64,
}

/// The longest time in which a key was refused without interruption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LockOut {
    pub(super) key: String,
    pub(super) from: u64,
    pub(super) nanos: u64,
    /// Whether it still lasted at the end of the log.
    pub(super) open: bool,
}

/// Requests and refusals over time, in at most [`MOST_STEPS`] steps of equal length. When the log outgrows them, steps become
/// twice as long.
#[derive(Clone, Debug)]
pub(super) struct Series {
    begin: Option<u64>,
    pub(super) step: u64,
    /// Requests and refusals.
    pub(super) steps: Vec<(u64, u64)>,
}

/// Keys whose refusals are counted one by one. They take about 200 MiB.
const MOST_KEYS: usize = 1_000_000;
pub(super) const FIRST_REFUSALS: usize = 5;
const MOST_STEPS: usize = 240;

// === impl PolicyTally ===

impl PolicyTally {
    pub(super) fn new(rules: usize) -> Self {
        let rules = (0..rules).map(|_| RuleTally::default()).collect();
        Self { rules, ..Self::default() }
    }

    /// The fingerprint of a key.
    pub(super) fn fingerprint(&self, key: &[(&str, KeyValue<'_>)]) -> u64 {
        self.seed.hash_one(SmallKey(key))
    }

    /// A rule refused a request of this key. `text` returns the key as text.
    pub(super) fn refused_key(
        &mut self,
        rule: usize,
        (fingerprint, at): (u64, u64),
        text: impl FnOnce() -> String,
    ) {
        let Some(tally) = self.rules.get_mut(rule) else { return };
        if self.keys >= MOST_KEYS && !tally.keys.contains_key(&fingerprint) {
            self.keys_full = true;
            return;
        }
        let key = tally.keys.entry(fingerprint).or_insert_with(|| {
            self.keys = self.keys.saturating_add(1);
            RefusedKeyTally { key: text().into(), refused: 0, locked: None, longest: 0 }
        });
        key.refused = key.refused.saturating_add(1);
        match &mut key.locked {
            Some((_, last)) => *last = at,
            None => {
                key.locked = Some((at, at));
                tally.locked = tally.locked.saturating_add(1);
            }
        }
    }

    /// Ends the lock-outs that still last, at their last refusals.
    pub(super) fn finish(&mut self) {
        for rule in &mut self.rules {
            for key in rule.keys.values_mut() {
                if let Some((from, last)) = key.locked.take() {
                    let nanos = last.saturating_sub(from);
                    key.longest = key.longest.max(nanos);
                    note(&mut rule.longest, key, from, (nanos, true));
                }
            }
        }
    }
}

// === impl RuleTally ===

impl RuleTally {
    /// Whether a key is locked out, so that it matters whose requests pass.
    pub(super) const fn has_locked(&self) -> bool {
        self.locked > 0
    }

    /// A request of this key passed the rule.
    pub(super) fn passed_key(&mut self, fingerprint: u64, at: u64) {
        let Some(key) = self.keys.get_mut(&fingerprint) else { return };
        if let Some((from, _)) = key.locked.take() {
            self.locked = self.locked.saturating_sub(1);
            let nanos = at.saturating_sub(from);
            key.longest = key.longest.max(nanos);
            note(&mut self.longest, key, from, (nanos, false));
        }
    }

    /// The keys with the most refusals, the first of equals by name.
    pub(super) fn top(&self, count: usize) -> Vec<&RefusedKeyTally> {
        let mut keys: Vec<&RefusedKeyTally> = self.keys.values().collect();
        let order = |a: &&RefusedKeyTally, b: &&RefusedKeyTally| {
            b.refused.cmp(&a.refused).then_with(|| a.key.cmp(&b.key))
        };
        if keys.len() > count {
            keys.select_nth_unstable_by(count, order);
            keys.truncate(count);
        }
        keys.sort_unstable_by(order);
        keys
    }
}

/// Remembers a lock-out if it is the longest so far; of equals the first.
fn note(
    longest: &mut Option<LockOut>,
    key: &RefusedKeyTally,
    from: u64,
    (nanos, open): (u64, bool),
) {
    let order = |known: &LockOut| (known.nanos, u64::MAX.saturating_sub(known.from));
    if longest.as_ref().is_none_or(|known| order(known) < (nanos, u64::MAX.saturating_sub(from))) {
        *longest = Some(LockOut { key: key.key.to_string(), from, nanos, open });
    }
}

/// A key as its hash sees it.
struct SmallKey<'k>(&'k [(&'k str, KeyValue<'k>)]);

impl std::hash::Hash for SmallKey<'_> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        for (name, value) in self.0 {
            name.hash(state);
            (**value).hash(state);
        }
    }
}

// === the first period ===

/// When the first period of a limit has passed, in a replay that begins at `begin`. A bucket whose burst takes longer than a period
/// is waited for.
pub(super) fn counted_from(limit: &Limit, begin: u64) -> u64 {
    match limit.period() {
        _ if limit.lease().is_some() => begin,
        Period::Every(span) => {
            let [capacity, period, amount] =
                [limit.capacity(), span.as_nanos(), limit.amount().max(1)].map(u128::from);
            let to_fill = capacity.saturating_mul(period).checked_div(amount).unwrap_or(0);
            let to_fill = u64::try_from(to_fill).unwrap_or(u64::MAX);
            begin.saturating_add(to_fill.max(span.as_nanos()))
        }
        Period::Calendar(calendar) => {
            let (_, end) = calendar.window(Timestamp::from_nanos(begin));
            end.map_or(u64::MAX, Timestamp::as_nanos)
        }
    }
}

// === impl Series ===

impl Default for Series {
    fn default() -> Self {
        Self { begin: None, step: SECOND, steps: vec![] }
    }
}

impl Series {
    /// Adds a request.
    pub(super) fn add(&mut self, at: u64, refused: bool) {
        let begin = *self.begin.get_or_insert(at);
        let mut step = place(at, begin, self.step);
        while step >= MOST_STEPS {
            self.double();
            step = place(at, begin, self.step);
        }
        if step >= self.steps.len() {
            self.steps.resize(step.saturating_add(1), (0, 0));
        }
        if let Some((requests, refusals)) = self.steps.get_mut(step) {
            *requests = requests.saturating_add(1);
            *refusals = refusals.saturating_add(u64::from(refused));
        }
    }

    fn double(&mut self) {
        self.step = self.step.saturating_mul(2);
        let sum = |pair: &[(u64, u64)]| {
            let add = |(a, b): (u64, u64), (c, d): &(u64, u64)| {
                (a.saturating_add(*c), b.saturating_add(*d))
            };
            pair.iter().fold((0, 0), add)
        };
        self.steps = self.steps.chunks(2).map(sum).collect();
    }

    pub(super) const fn begin(&self) -> Option<u64> {
        self.begin
    }
}

fn place(at: u64, begin: u64, step: u64) -> usize {
    let number = at.saturating_sub(begin).checked_div(step).unwrap_or(0);
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::RuleLimit;

    fn refuse(tally: &mut PolicyTally, key: u64, at: u64) {
        tally.refused_key(0, (key, at), || format!("key {key}"));
    }

    #[test]
    fn a_lock_out_ends_with_the_first_request_that_passes() {
        let mut tally = PolicyTally::new(1);
        for at in [10, 20, 30] {
            refuse(&mut tally, 1, at);
        }
        tally.rules[0].passed_key(1, 50);
        assert!(!tally.rules[0].has_locked());
        refuse(&mut tally, 2, 60);
        refuse(&mut tally, 2, 90);
        tally.finish();
        let expected = LockOut { key: "key 1".to_owned(), from: 10, nanos: 40, open: false };
        assert_eq!(tally.rules[0].longest, Some(expected));
        let top: Vec<_> =
            tally.rules[0].top(5).iter().map(|key| (key.refused, key.longest)).collect();
        assert_eq!(top, [(3, 40), (2, 30)]);
    }

    #[test]
    fn the_top_keys_are_those_with_the_most_refusals() {
        let mut tally = PolicyTally::new(1);
        for key in 0..50 {
            (0..=key % 10).for_each(|at| refuse(&mut tally, key, at));
        }
        let top: Vec<_> = tally.rules[0].top(3).iter().map(|key| &*key.key).collect();
        assert_eq!(top, ["key 19", "key 29", "key 39"]);
    }

    #[test]
    fn the_first_period_is_as_long_as_counters_take_to_fill() {
        for (rate, seconds) in [("5/min", 60), ("2/s", 1), ("500/h", 3_600)] {
            let limit = RuleLimit::from_rate(rate).unwrap();
            assert_eq!(counted_from(limit.limit(), SECOND), SECOND * (seconds + 1), "{rate}");
        }
    }

    #[test]
    fn a_series_has_few_steps_however_long_the_log_is() {
        let mut series = Series::default();
        (0..100_000).for_each(|second| series.add(second * SECOND, second % 10 == 0));
        assert!(series.steps.len() <= MOST_STEPS && series.steps.len() > MOST_STEPS / 2 - 50);
        let sums = series.steps.iter().fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
        assert_eq!((sums, series.step), ((100_000, 10_000), 512 * SECOND));
    }
}
