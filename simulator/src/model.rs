//! The reference model of the store: it applies the same calls in the same order, through the core.
//!
//! The model keeps every state with the limit that it was written under. The store on Redis keeps bytes, and tags instead of
//! limits. If the two disagree, a state was misread.

use std::collections::BTreeMap;
use tidegate_core::{
    Ask, Cost, Decision, Limit, Now, Plan, Span, State, StateContents, StateId, Take, TakeReceipt,
    Timestamp, Written,
};
use tidegate_store::testing::{Effect, Executed, OwnedPart, OwnedTake};

/// States, and the limits that they were written under.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    states: BTreeMap<StateId, (Limit, State)>,
    /// What could not be given back to a bucket, because it had refilled by itself: in ticks, with the ticks of a token.
    short: BTreeMap<StateId, (u64, u64)>,
}

/// What the core decides about a plan.
#[derive(Debug)]
pub(crate) struct ReplayedPlan {
    pub(crate) passes: bool,
    /// For each take, the decision in the answer, and the one if the take had not been counted.
    pub(crate) decisions: Vec<[Decision; 2]>,
    /// What was taken: under an exact limit, and under a leased one.
    pub(crate) receipts: Vec<(StateId, [TakeReceipt; 2])>,
}

impl Model {
    pub(crate) fn forget_all(&mut self) {
        self.states.clear();
    }

    pub(crate) fn forget(&mut self, state: StateId) {
        self.states.remove(&state);
    }

    /// Does what the store did. For a plan, returns what the core decides.
    pub(crate) fn replay(&mut self, executed: &Executed) -> Option<ReplayedPlan> {
        let now = executed.at;
        for state in &executed.lost {
            self.fill(*state, executed, now);
        }
        match &executed.effect {
            Effect::Took { takes, max_wait, .. } => {
                let takes: Vec<Take<'_>> = takes.iter().map(OwnedTake::take).collect();
                let plan = Plan::new(takes.clone(), *max_wait).ok()?;
                let found = self.found(takes.iter().map(|take| (take.state, take.limit)));
                let mut written = written(&found);
                let judge = |(take, written): (&Take<'_>, &Written<'_>)| {
                    take.limit.decide(written, &plan.ask(take, Now::at(now)))
                };
                let before: Vec<Decision> = takes.iter().zip(&written).map(judge).collect();
                let done = plan.take(Now::at(now), &mut written);
                let receipts = done.receipts.iter().zip(&takes).zip(&written);
                let receipts = receipts.filter_map(|((receipt, take), written)| {
                    let receipt = (*receipt)?;
                    Some((take.state, [receipt, written.slot_of(receipt)]))
                });
                let receipts = receipts.collect();
                self.keep(&found, &written);
                let both = done.decisions.into_iter().zip(before);
                let decisions = both.map(|(after, before)| [after, before]).collect();
                Some(ReplayedPlan { passes: done.passes, decisions, receipts })
            }
            Effect::Charged(takes) => {
                for take in takes {
                    let ask = Ask::new(now, take.cost).bounded(take.bound);
                    let found = self.found([(take.state, &take.limit)].into_iter());
                    let mut written = written(&found);
                    take.limit.charge(&mut written[0], &ask);
                    self.keep(&found, &written);
                }
                None
            }
            Effect::Granted { take, ask, .. } => {
                let found = self.found([(take.state, &take.limit)].into_iter());
                let mut written = written(&found);
                take.limit.grant(&mut written[0], now, ask);
                self.keep(&found, &written);
                None
            }
            Effect::GaveBack(parts) => {
                for part in parts {
                    let found = self.found([(part.state, &part.limit)].into_iter());
                    let mut written = written(&found);
                    let before = written[0].remembered(now);
                    written[0].give_back(now, &part.limit, &part.receipt);
                    self.note_short(part, &before, &written[0].remembered(now));
                    self.keep(&found, &written);
                }
                None
            }
        }
    }

    /// The states that an execution writes under another limit than before, or as full because their shape was lost.
    pub(crate) fn reshaped(&self, executed: &Executed) -> Vec<StateId> {
        let takes = match &executed.effect {
            Effect::Took { takes, .. } | Effect::Charged(takes) => takes.as_slice(),
            Effect::Granted { take, .. } => std::slice::from_ref(take),
            Effect::GaveBack(_) => &[],
        };
        let other = |take: &&OwnedTake| {
            self.states.get(&take.state).is_some_and(|(limit, _)| *limit != take.limit)
        };
        let reshaped = takes.iter().filter(other).map(|take| take.state);
        reshaped.chain(executed.lost.iter().copied()).collect()
    }

    fn note_short(&mut self, part: &OwnedPart, before: &StateContents, after: &StateContents) {
        let (StateContents::Zero(before), StateContents::Zero(after)) = (before, after) else {
            return;
        };
        let token = part.limit.ticks().map_or(1, |ticks| ticks.token);
        let given_back = before.saturating_sub(*after);
        let short = self.short.entry(part.state).or_insert((0, token));
        short.0 += part.receipt.weight.saturating_sub(given_back);
    }

    /// What could not be given back to a state, in whole costs, rounded up.
    pub(crate) fn short(&self, state: StateId) -> u64 {
        self.short.get(&state).map_or(0, |(ticks, token)| ticks.div_ceil(*token))
    }

    /// A state whose shape the store has lost counts as full in a second.
    fn fill(&mut self, state: StateId, executed: &Executed, now: Timestamp) {
        let limits: Vec<(StateId, &Limit)> = match &executed.effect {
            Effect::Took { takes, .. } | Effect::Charged(takes) => {
                takes.iter().map(|take| (take.state, &take.limit)).collect()
            }
            Effect::Granted { take, .. } => vec![(take.state, &take.limit)],
            Effect::GaveBack(parts) => parts.iter().map(|part| (part.state, &part.limit)).collect(),
        };
        for (_, limit) in limits.into_iter().filter(|(id, _)| *id == state) {
            let mut full = Written::empty(limit);
            let now = now.after(Span::from_secs(1)).unwrap_or(now);
            limit.charge(&mut full, &Ask::new(now, Cost::new(limit.capacity())));
            let state_of_it = full.state.clone();
            self.states.insert(state, (limit.clone(), state_of_it));
        }
    }

    /// How much a state has in use, in whole costs, rounded up.
    pub(crate) fn used(&self, state: StateId, now: Timestamp) -> u64 {
        let Some((shape, state)) = self.states.get(&state) else { return 0 };
        Written { shape, state: state.clone() }.units_in_use(now)
    }

    /// Whether a cost would be refused at this time.
    pub(crate) fn refuses(&self, state: StateId, limit: &Limit, cost: u64, now: Timestamp) -> bool {
        let found = self.found([(state, limit)].into_iter());
        let ask = Ask::new(now, Cost::new(cost));
        written(&found).iter().any(|written| !limit.decide(written, &ask).passes())
    }

    fn found<'l>(
        &self,
        states: impl Iterator<Item = (StateId, &'l Limit)>,
    ) -> Vec<(StateId, Limit, State)> {
        let found = |(id, limit): (StateId, &Limit)| match self.states.get(&id) {
            Some((shape, state)) => (id, shape.clone(), state.clone()),
            None => (id, limit.clone(), State::Empty),
        };
        states.map(found).collect()
    }

    fn keep(&mut self, found: &[(StateId, Limit, State)], written: &[Written<'_>]) {
        for ((id, ..), written) in found.iter().zip(written) {
            self.states.insert(*id, (written.shape.clone(), written.state.clone()));
        }
    }
}

fn written(found: &[(StateId, Limit, State)]) -> Vec<Written<'_>> {
    found.iter().map(|(_, shape, state)| Written { shape, state: state.clone() }).collect()
}
