//! The law of leases: whatever nodes spend of their slices, an exact limiter would have let it pass too.

use crate::history::{Case, Family, Step};
use crate::law::{Holds, Passed, timed, within_bounds};
use proptest::prelude::*;
use tidegate_core::{
    Ask, Cost, LeaseAsk, Limit, Slice, Span, TakeReceipt, TimeRange, Timestamp, Written,
};

/// A store, and two nodes that hold slices.
struct Deployment<'l> {
    limit: &'l Limit,
    store: Written<'l>,
    held: [Vec<Slice>; 2],
    passed: Vec<(Passed, TakeReceipt)>,
}

pub(crate) fn slices_keep_the_bounds(case: &Case) -> Holds {
    let limit = case.params.limit();
    let store = Written::empty(&limit);
    let mut all = Deployment { limit: &limit, store, held: [vec![], vec![]], passed: vec![] };
    if limit.can_lease().is_err() {
        return Ok(());
    }
    for (now, step) in timed(case) {
        // Many steps at one instant: most mistakes need a few of them together.
        for round in 0..4 {
            all.step(now, step, step.dice >> (round * 16));
        }
    }
    let history: Vec<Passed> = all.passed.iter().map(|(hit, _)| *hit).collect();
    within_bounds(&case.params, &history)?;
    if case.params.family == Family::FixedFirst {
        return Ok(()); // a window begins with its first hit, which may have been given back
    }
    let mut exact = Written::empty(&limit);
    for hit in &history {
        let ask = Ask::new(Timestamp::from_nanos(hit.at), Cost::new(hit.cost));
        let passes = limit.take(&mut exact, &ask).decision.passes();
        prop_assert!(passes, "an exact limiter refuses {:?} of {:?}", hit, history);
    }
    Ok(())
}

impl Deployment<'_> {
    fn step(&mut self, now: u64, step: &Step, dice: u64) {
        let (node, dice) = (usize::from(dice % 2 == 1), dice / 2);
        let (action, dice) = (dice % 8, dice / 8);
        let at = Timestamp::from_nanos(now);
        match action {
            0 => self.take(now, step.cost.max(1)),
            1 | 2 => {
                let ahead = Span::from_nanos((dice % 3) * 400_000_000);
                let ask =
                    LeaseAsk { most: dice % 9 + 1, least: dice % 4, parts: dice % 3 + 1, ahead };
                self.held[node].extend(self.limit.grant(&mut self.store, at, &ask));
            }
            3..=5 => self.spend(now, node, dice),
            6 => {
                if let Some(slice) = self.held[node].pop() {
                    self.store.give_back(at, self.limit, &slice.receipt());
                }
            }
            _ => self.refund(at, node, dice),
        }
    }

    /// A take that the store decides. Its receipt is that of a slot, as it is on leased limits.
    fn take(&mut self, now: u64, cost: u64) {
        let ask = Ask::new(Timestamp::from_nanos(now), Cost::new(cost));
        if let Some(receipt) = self.limit.take(&mut self.store, &ask).receipt {
            let slot = TakeReceipt { mark: self.zero(now), is_slot: true, ..receipt };
            let receipt = if self.limit.ticks().is_some() { slot } else { receipt };
            self.passed.push((Passed { at: now, turn: now, cost }, receipt));
        }
    }

    fn zero(&self, now: u64) -> u64 {
        match self.store.remembered(Timestamp::from_nanos(now)) {
            tidegate_core::StateContents::Zero(zero) => zero,
            _ => 0,
        }
    }

    /// A node spends what it holds. It is wrong about the time by up to some tokens.
    fn spend(&mut self, now: u64, node: usize, dice: u64) {
        let token =
            self.limit.slice_life().map_or(0, Span::as_nanos) / self.limit.capacity().max(1);
        let (doubt, cost) = (token * (dice % 4) / 2, dice / 4 % 3 + 1);
        let early = Timestamp::from_nanos(now.saturating_sub(doubt * (dice / 16 % 2)));
        let late = Timestamp::from_nanos(now + doubt * (dice / 32 % 2));
        let weight = self.limit.weight(Cost::new(cost), tidegate_core::Bound::Plain).unwrap();
        let mut spends = self.held[node].iter_mut();
        let spent =
            spends.find_map(|slice| slice.spend(self.limit, weight, TimeRange { early, late }));
        if let Some(receipt) = spent {
            self.passed.push((Passed { at: now, turn: now, cost }, receipt));
        }
    }

    /// A cost is given back: in the store, or as a slice of the node that gives it back.
    fn refund(&mut self, at: Timestamp, node: usize, dice: u64) {
        if self.passed.is_empty() {
            return;
        }
        let place = usize::try_from(dice).unwrap() % self.passed.len();
        let (_, receipt) = self.passed.remove(place);
        if receipt.is_slot && !self.store.ends_with(self.limit, &receipt) {
            self.held[node].extend(Slice::of_slot(&receipt));
        } else {
            self.store.give_back(at, self.limit, &receipt);
        }
    }
}
