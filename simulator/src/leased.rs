//! Scenarios with leases.

use crate::random::Random;
use crate::scenario::{Arrival, BEGINS, LONGEST, LeaseSpec, Reported, RuleSpec, Scenario};
use tidegate_store::testing::share_a_shape_tag;

/// Seeds the random numbers of leases.
const LEASED: u64 = 0x6c65_6173_6564_0001;
impl Scenario {
    /// The scenario of a seed with leases: the same faults, limits that can be leased, and users that are hot for a while.
    #[must_use]
    pub fn leased(seed: u64) -> Self {
        let mut scenario = Self::of(seed);
        let random = &mut Random::new(seed ^ LEASED);
        scenario.lease = Some(LeaseSpec {
            share: random.one_of(&[1, 5, 10, 30, 50]),
            interval: random.one_of(&[10, 30, 100]),
        });
        let algorithm = random.one_of(&[
            "token_bucket",
            "token_bucket",
            "token_bucket",
            "fixed_window",
            "sliding_weighted",
            "sliding_buckets",
        ]);
        let amount = random.within(20, 900);
        let seconds = random.one_of(&[1, 1, 2, 10, 10, 3_600]);
        let burst = (algorithm == "token_bucket" && random.happens(500))
            .then(|| random.within(20, 2 * amount));
        let first = RuleSpec { algorithm, amount, seconds, burst };
        let more = if random.happens(500) { random.within(1, amount) } else { 0 };
        scenario.rules = [first.clone(), RuleSpec { amount: amount + more, ..first }];
        scenario.separate_tags();
        for _ in 0..random.within(2, 8) {
            scenario.add_hot_user(random);
        }
        scenario.arrivals.sort_by_key(|arrival| arrival.at);
        scenario
    }

    /// Changes limits that have the same tag in the registry of shapes, which one pair in 999 has. After a loss of the registry,
    /// states of such limits may be misread, and the histories would show nothing else.
    pub(crate) fn separate_tags(&mut self) {
        let [first, second] = &mut self.rules;
        while share_a_shape_tag(&first.limit(), &second.limit()) {
            second.amount += 1;
        }
        if let Some(tenants) = &mut self.tenants {
            let users = [first.limit(), second.limit()];
            while users.iter().any(|limit| share_a_shape_tag(limit, &tenants.limit())) {
                tenants.amount += 1;
            }
        }
    }

    /// Adds many requests of one user within a short time.
    fn add_hot_user(&mut self, random: &mut Random) {
        let last = u64::try_from(self.clocks.len() - 1).unwrap();
        let only = random.happens(500).then(|| random.within(0, last));
        let user = usize::from(random.happens(200));
        let mut at = BEGINS + random.within(0, LONGEST - BEGINS);
        let gap = random.within(0, 3);
        let reported = random.happens(200);
        for _ in 0..random.within(20, 250) {
            at += random.within(0, gap);
            let node = only.unwrap_or_else(|| random.within(0, last));
            let cost = if random.happens(100) { random.within(2, 9) } else { 1 };
            let report = (reported && random.happens(300)).then(|| Reported {
                after: random.within(0, 300),
                node: usize::try_from(random.within(0, last)).unwrap(),
                cost: random.within(0, cost - 1),
                again: random.happens(300),
            });
            let (node, timeout) = (usize::try_from(node).unwrap(), None);
            self.arrivals.push(Arrival { at, node, user, tenant: 0, cost, timeout, report });
        }
    }

    /// How much all nodes together hold of the limit of a user at most: two shares each.
    pub(crate) fn most_held(&self) -> u64 {
        let Some(LeaseSpec { share, .. }) = self.lease else { return 0 };
        let capacity = self.rules.iter().map(|rule| rule.limit().capacity()).max().unwrap();
        let nodes = u64::try_from(self.clocks.len()).unwrap();
        nodes * 2 * (capacity * share / 100).max(1)
    }
}
