//! The history of a run: what happened, by the true time.

use crate::model::{Model, ReplayedPlan};
use siphasher::sip::SipHasher13;
use std::collections::BTreeMap;
use std::hash::Hasher as _;
use tidegate_core::{Decision, StateId, TakeReceipt, Timestamp};
use tidegate_store::testing::{Effect, Executed, OwnedPart, OwnedTake, SimulatedRedis};

/// Everything that the checks look at.
#[derive(Debug, Default)]
pub struct History {
    /// Every request that was answered.
    pub answered: Vec<Answered>,
    /// Processes that left a request without an answer although they did not end.
    pub unanswered: Vec<usize>,
    /// Contradictions that were found during the run.
    pub wrong: Vec<String>,
    /// For each request that the store counted after its deadline: how long it was under way, in milliseconds.
    pub counted_late: Vec<u64>,
    /// One line for each event.
    pub trace: Vec<String>,
    /// The node of each process, and when it began and ended, in milliseconds.
    pub processes: Vec<(usize, u64, u64)>,
    /// Costs that the store counted although the reply was lost, or what gave them back, by state.
    pub untold: BTreeMap<StateId, u64>,
    /// Takes that were undone after the store had lost its counts: when it lost them, in nanoseconds, the state and the cost.
    pub undone_after_loss: Vec<(u64, StateId, u64)>,
    /// What the store has counted in the end, by user and then by tenant.
    pub counted: Vec<u64>,
    /// What could not be given back, because a bucket had refilled by itself, by user and then by tenant.
    pub short: Vec<u64>,
    /// After all faults are over: for each node, what decides its requests, and its complaint.
    pub healed: Vec<(usize, Option<Decider>, Option<String>)>,
}

/// A request and its answer. Times are in nanoseconds of the true time since the beginning.
#[derive(Clone, Debug)]
pub struct Answered {
    /// The process that answered.
    pub process: usize,
    /// The user of the request.
    pub user: usize,
    /// The tenant of the request as a subject number, if tenants have a rule.
    pub tenant: Option<usize>,
    /// The cost of the request.
    pub cost: u64,
    /// When the request was made.
    pub asked: u64,
    /// When it was answered.
    pub answered: u64,
    /// The latest time at which the caller accepts the answer.
    pub deadline: u64,
    /// When it was decided, for the user and for the tenant. If the store decided: the time of its script.
    pub decided: [u64; 2],
    /// Whether it passed.
    pub allowed: bool,
    /// What decided it.
    pub by: Decider,
    /// Whether the request had its own timeout.
    pub hurried: bool,
    /// How much of its cost was given back in the end, at least and at most.
    pub given_back: (u64, u64),
    /// When the reply to its report came; `u64::MAX` if there was none.
    pub settled: u64,
    /// Whether the store would refuse it too, or did so half a second ago. Checked for answers of the denial cache.
    pub refused_there: bool,
}

/// What decided a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decider {
    /// The store.
    Store,
    /// The denial cache of the node.
    Cache,
    /// What the node holds of the limit.
    Lease,
    /// The fallback of the node.
    Fallback,
}

impl Answered {
    /// Whether it belongs to this user or tenant.
    #[must_use]
    pub fn is_of(&self, subject: usize) -> bool {
        self.user == subject || self.tenant == Some(subject)
    }

    /// When it was decided for a subject.
    #[must_use]
    pub fn decided_of(&self, subject: usize) -> u64 {
        self.decided[usize::from(self.user != subject)]
    }

    /// The part of its cost that certainly counts.
    #[must_use]
    pub const fn kept(&self) -> u64 {
        self.cost - self.given_back.1
    }
}

impl History {
    /// Hash of the trace: equal for two runs only if the same things happened.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let mut hasher = SipHasher13::new();
        for line in &self.trace {
            hasher.write(line.as_bytes());
            hasher.write_u8(b'\n');
        }
        hasher.finish()
    }
}

/// A decision of the store that has not reached its node yet.
#[derive(Clone, Debug)]
pub(crate) struct PendingAnswer {
    /// Tells it from other decisions.
    pub(crate) number: usize,
    pub(crate) state: StateId,
    pub(crate) passes: bool,
    pub(crate) cost: u64,
    /// The remaining amount in the answer.
    pub(crate) remaining: u64,
    /// The remaining amount if the take had not been counted.
    pub(crate) before: u64,
    /// The true time.
    pub(crate) at: u64,
}

/// The server, the model that it is compared with, and the history so far.
#[derive(Debug, Default)]
pub(crate) struct Backend {
    pub(crate) server: SimulatedRedis,
    pub(crate) model: Model,
    /// Server and model as they were some time before a failover, by the index of its fault.
    pub(crate) replicas: BTreeMap<usize, (SimulatedRedis, Model)>,
    /// Decisions that are on their way to each process.
    pub(crate) pending: BTreeMap<usize, Vec<PendingAnswer>>,
    /// How many takes were decided.
    pub(crate) decided: usize,
    /// How many requests each process has yet to answer.
    pub(crate) open: BTreeMap<usize, usize>,
    /// When something was last given back to a state, in nanoseconds.
    given_back: BTreeMap<StateId, u64>,
    /// When data was last lost, in nanoseconds.
    lost: Option<u64>,
    /// What was taken since then.
    taken: Vec<Taken>,
    /// What was taken before, each with the time of the first loss after it.
    forgotten: Vec<(u64, Taken)>,
    pub(crate) history: History,
}

/// A take of a process.
#[derive(Debug)]
struct Taken {
    process: usize,
    state: StateId,
    /// What its receipt says if the limit is exact, and if it is leased.
    receipts: [TakeReceipt; 2],
}

/// How long a denial cache may use a state, in nanoseconds: half a second after the reply has reached the node.
const CACHED_FOR: u64 = 560_000_000;

impl Backend {
    /// Something was given back to a state.
    pub(crate) fn gave_back(&mut self, state: StateId, at: u64) {
        self.given_back.insert(state, at);
    }

    /// Counts were lost.
    pub(crate) fn lost_data(&mut self, at: u64) {
        self.lost = Some(at);
        self.forgotten.extend(self.taken.drain(..).map(|taken| (at, taken)));
    }

    /// A process took something.
    fn took(&mut self, process: usize, state: StateId, receipts: [TakeReceipt; 2]) {
        self.taken.push(Taken { process, state, receipts });
    }

    /// A process undid a take.
    pub(crate) fn undid(&mut self, process: usize, part: &OwnedPart) {
        let is_it = |(_, taken): &(u64, Taken)| {
            (taken.process, taken.state) == (process, part.state)
                && taken.receipts.contains(&part.receipt)
        };
        let found = self.forgotten.iter().position(is_it);
        if let Some((lost, _)) = found.map(|found| self.forgotten.swap_remove(found)) {
            self.history.undone_after_loss.push((lost, part.state, part.cost()));
        }
    }

    /// Whether a denial cache may still hold a state that refuses more than the store's state does now.
    pub(crate) fn refused_more_lately(&self, state: StateId, now: u64) -> bool {
        let eased = self.lost.max(self.given_back.get(&state).copied());
        eased.is_some_and(|eased| now - eased <= CACHED_FOR)
    }

    /// Replays in the model what the server did, and compares the two.
    pub(crate) fn replay(
        &mut self,
        process: usize,
        executed: &Executed,
        at: u64,
    ) -> Option<Vec<PendingAnswer>> {
        // Under another policy a state may refill sooner than a denial cache computes.
        for state in self.model.reshaped(executed) {
            self.gave_back(state, at);
        }
        if let Effect::GaveBack(parts) = &executed.effect {
            parts.iter().for_each(|part| self.gave_back(part.state, at));
        }
        let ReplayedPlan { passes, decisions, receipts } = self.model.replay(executed)?;
        for (state, receipts) in receipts {
            self.took(process, state, receipts);
        }
        let Effect::Took { takes, passes: said, .. } = &executed.effect else { return None };
        if passes != *said {
            let (cost, amount) = (takes[0].cost.get(), takes[0].limit.amount());
            self.history.wrong.push(format!(
                "the store decided passes = {said} for a take of {cost} under a limit of {amount}, the core {passes}"
            ));
        }
        let first = self.decided;
        self.decided += takes.len();
        let told = |((number, take), [told, before]): ((usize, &OwnedTake), [Decision; 2])| {
            let (remaining, before) = (told.remaining, before.remaining);
            PendingAnswer {
                number,
                state: take.state,
                passes,
                cost: take.cost.get(),
                remaining,
                before,
                at,
            }
        };
        let told: Vec<PendingAnswer> = (first..).zip(takes).zip(decisions).map(told).collect();
        self.pending.entry(process).or_default().extend_from_slice(&told);
        Some(told)
    }
}

/// The true time at which simulations begin. No window of an hour or a week ends soon after it.
pub(crate) const EPOCH: Timestamp = Timestamp::from_nanos(1_800_000_700_000_000_000);
