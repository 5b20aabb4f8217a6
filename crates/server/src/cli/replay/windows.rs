//! The worst sliding windows: how much each key has asked for in any period, exactly.
//!
//! ```text
//!   requests of a key      · ···    ·     ·    ··
//!   windows of a minute    └──4──┘                        each ends with a request; the fullest counts
//! ```
//!
//! For each rule, each period of its limits and each key, the requests of the last period are kept with their times, so no window is
//! estimated. That takes memory, so there is a bound; a period that passes it gets no suggestion.
//!
//! A suggestion is the need of most keys, with a reserve, as a round number: the p99, p99.9 and largest of all keys, times 1.25,
//! rounded up to 1, 2 or 5 times a power of ten.

use foldhash::fast::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use tidegate::{Attributes, Period, Policy, Span};

/// The windows of all rules.
pub(super) struct WindowTally {
    policy: Policy,
    /// By rule.
    rules: Vec<Vec<PeriodWindows>>,
    seed: RandomState,
    /// Times that are kept.
    times: usize,
}

/// The windows of one period of a rule.
struct PeriodWindows {
    limit: String,
    amount: u64,
    period: Span,
    keys: HashMap<u64, KeyWindow, RandomState>,
    overflowed: bool,
}

/// The last period of a key.
#[derive(Default)]
struct KeyWindow {
    /// Times and costs.
    requests: VecDeque<(u64, u64)>,
    sum: u64,
    worst: u64,
}

/// What a rule would need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Suggestion {
    pub(super) rule: usize,
    /// The limit as the policy has it, its amount and its period.
    pub(super) limit: String,
    pub(super) amount: u64,
    pub(super) period: Span,
    pub(super) keys: usize,
    /// Keys whose worst window is above the amount of the limit.
    pub(super) above: usize,
    /// What the worst windows of keys reach; `None` if there were too many requests or keys.
    pub(super) needs: Option<[WindowNeed; 3]>,
}

/// A part of the keys, what its worst windows reach, and the limit that is proposed for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WindowNeed {
    pub(super) share: &'static str,
    pub(super) worst: u64,
    pub(super) proposed: u64,
}

/// Times that are kept for all keys; they take 512 MiB.
const MOST_TIMES: usize = 32 << 20;
/// Keys of one period; with their map they take about 100 MiB.
const MOST_KEYS: usize = 1_000_000;
/// Of a thousand keys, as many have at most the suggested need.
const SHARES: [(&str, usize); 3] = [("p99", 990), ("p99.9", 999), ("max", 1_000)];

// === impl WindowTally ===

impl WindowTally {
    pub(super) fn new(policy: &Policy) -> Self {
        let windows = |rule: &tidegate_policy::Rule| {
            let limits = rule.allowance().limits().iter().filter(|l| l.limit().lease().is_none());
            limits.filter_map(PeriodWindows::new).collect()
        };
        let rules = policy.rules().iter().map(windows).collect();
        Self { policy: policy.clone(), rules, seed: RandomState::default(), times: 0 }
    }

    /// Adds a request to the windows of every rule that applies to it.
    pub(super) fn add(&mut self, attributes: &Attributes<'_>, cost: u64, at: u64) {
        let Self { policy, rules, seed, times } = self;
        for (rule, values) in policy.applying(attributes, cost) {
            let Some((number, _)) = policy.rule(rule.name()) else { continue };
            let mut hasher = seed.build_hasher();
            for (name, value) in values.pairs() {
                std::hash::Hash::hash(name, &mut hasher);
                std::hash::Hash::hash(&**value, &mut hasher);
            }
            let key = std::hash::Hasher::finish(&hasher);
            for windows in rules.get_mut(number).into_iter().flatten() {
                windows.add(key, (at, cost), times);
            }
        }
    }

    /// What each limit would need, in the order of the policy.
    pub(super) fn suggestions(&self) -> Vec<Suggestion> {
        let rules = self.rules.iter().enumerate();
        rules
            .flat_map(|(rule, windows)| windows.iter().map(move |one| one.suggestion(rule)))
            .collect()
    }
}

// === impl PeriodWindows ===

impl PeriodWindows {
    /// `None` for periods of a calendar, which have no fixed length.
    fn new(limit: &tidegate::RuleLimit) -> Option<Self> {
        let Period::Every(period) = limit.limit().period() else { return None };
        Some(Self {
            limit: limit.summary(),
            amount: limit.limit().amount(),
            period: *period,
            keys: HashMap::default(),
            overflowed: false,
        })
    }

    fn add(&mut self, key: u64, (at, cost): (u64, u64), times: &mut usize) {
        if self.overflowed {
            return;
        }
        if *times >= MOST_TIMES || self.keys.len() >= MOST_KEYS {
            let held = self.keys.values().map(|key| key.requests.len()).sum();
            *times = times.saturating_sub(held);
            (self.overflowed, self.keys) = (true, HashMap::default());
            return;
        }
        let from = at.checked_sub(self.period.as_nanos());
        let freed = self.keys.entry(key).or_default().add((at, cost), from);
        *times = times.saturating_add(1).saturating_sub(freed);
    }

    fn suggestion(&self, rule: usize) -> Suggestion {
        let mut worst: Vec<u64> = self.keys.values().map(|key| key.worst).collect();
        worst.sort_unstable();
        let need = |(share, thousandths): (&'static str, usize)| {
            // The smallest number that so many keys do not exceed.
            let rank = worst.len().saturating_mul(thousandths).div_ceil(1_000).max(1);
            let worst = worst.get(rank.saturating_sub(1)).copied().unwrap_or(0);
            WindowNeed { share, worst, proposed: proposed(worst) }
        };
        Suggestion {
            rule,
            limit: self.limit.clone(),
            amount: self.amount,
            period: self.period,
            keys: worst.len(),
            above: worst.iter().filter(|worst| **worst > self.amount).count(),
            needs: (!self.overflowed && !worst.is_empty()).then(|| SHARES.map(need)),
        }
    }
}

impl KeyWindow {
    /// Adds a request, forgets those at `from` or earlier, and returns how many that are.
    fn add(&mut self, (at, cost): (u64, u64), from: Option<u64>) -> usize {
        let mut freed = 0_usize;
        while let Some((time, old)) = self.requests.front() {
            if from.is_none_or(|from| *time > from) {
                break;
            }
            self.sum = self.sum.saturating_sub(*old);
            self.requests.pop_front();
            freed = freed.saturating_add(1);
        }
        self.requests.push_back((at, cost));
        self.sum = self.sum.saturating_add(cost);
        self.worst = self.worst.max(self.sum);
        freed
    }
}

/// A quarter more than this, rounded up to 1, 2 or 5 times a power of ten.
fn proposed(worst: u64) -> u64 {
    let wanted = u128::from(worst).saturating_mul(5).div_ceil(4).max(1);
    let mut power = 1_u128;
    loop {
        for factor in [1, 2, 5] {
            let round = power.saturating_mul(factor);
            if round >= wanted {
                return u64::try_from(round).unwrap_or(u64::MAX);
            }
        }
        power = power.saturating_mul(10);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    fn policy(limits: &str) -> Policy {
        let text = format!("version: 1\nrules: [{{ name: a, key: [user], limits: [{limits}] }}]");
        Policy::parse(text).unwrap()
    }

    #[test]
    fn a_proposal_is_a_quarter_more_as_a_round_number() {
        for (worst, limit) in
            [(0, 1), (1, 2), (4, 5), (5, 10), (8, 10), (37, 50), (40, 50), (41, 100), (800, 1_000)]
        {
            assert_eq!(proposed(worst), limit, "{worst}");
        }
        assert_eq!(proposed(u64::MAX), u64::MAX);
    }

    #[test]
    fn shares_are_of_keys() {
        let mut windows = WindowTally::new(&policy("5/min"));
        // Key n asks n times within a second.
        for user in 1..=200_u64 {
            let name = user.to_string();
            let request = Attributes::new().with("user", &*name).unwrap();
            (0..user).for_each(|_| windows.add(&request, 1, user * 100 * SECOND));
        }
        let [suggestion] = <[_; 1]>::try_from(windows.suggestions()).unwrap();
        let needs = suggestion.needs.unwrap().map(|need| (need.share, need.worst, need.proposed));
        assert_eq!(needs, [("p99", 198, 500), ("p99.9", 200, 500), ("max", 200, 500)]);
        assert_eq!((suggestion.keys, suggestion.above), (200, 195));
    }

    proptest! {
        /// The worst window is the one that trying all of them finds.
        #[test]
        fn the_worst_window_is_exact(
            mut times in prop::collection::vec((0..300_u64, 1..4_u64), 1..60),
        ) {
            times.sort_unstable();
            let mut windows = WindowTally::new(&policy("5/min"));
            let alice = Attributes::new().with("user", "alice").unwrap();
            times.iter().for_each(|(at, cost)| windows.add(&alice, *cost, at * SECOND));
            let sum = |end: u64| {
                let inside = times.iter().filter(|(at, _)| *at <= end && at + 60 > end);
                inside.map(|(_, cost)| cost).sum::<u64>()
            };
            let naive = times.iter().map(|(at, _)| sum(*at)).max().unwrap();
            let needs = windows.suggestions()[0].needs.unwrap();
            prop_assert_eq!(needs.map(|need| need.worst), [naive; 3]);
        }
    }
}
