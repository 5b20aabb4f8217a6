//! What happened, by the true time.

use crate::model::Model;
use siphasher::sip::SipHasher13;
use std::collections::BTreeMap;
use std::hash::Hasher as _;
use tidegate_core::{StateId, Timestamp};
use tidegate_store::testing::SimulatedRedis;

/// Everything that the checks look at.
#[derive(Debug, Default)]
pub struct History {
    /// Every request that a caller made and was told an answer to.
    pub answered: Vec<Answered>,
    /// Processes that left a caller without an answer, and did not end.
    pub unanswered: Vec<usize>,
    /// What was found wrong on the way.
    pub wrong: Vec<String>,
    /// How long requests were on their way, in milliseconds, that the store counted when it was too late for that.
    pub counted_late: Vec<u64>,
    /// What happened, a line each.
    pub trace: Vec<String>,
    /// When each process of each node began and ended, in milliseconds.
    pub processes: Vec<(usize, u64, u64)>,
    /// Costs that the store counted and whose callers were never told, by state.
    pub untold: BTreeMap<StateId, u64>,
    /// What the store has counted in the end, by user and then by tenant.
    pub counted: Vec<u64>,
    /// What could not be given back, because it had come back by itself, by user and then by tenant.
    pub short: Vec<u64>,
    /// After everything was healed: of each node, whether it asks the store again, and its complaint.
    pub healed: Vec<(usize, Option<By>, Option<String>)>,
}

/// A request and its answer. Times are in nanoseconds of the true time since the beginning.
#[derive(Clone, Debug)]
pub struct Answered {
    /// Which process of which node.
    pub process: usize,
    /// Who asked.
    pub user: usize,
    /// For which tenant, by the number of the subject, if tenants have a rule.
    pub tenant: Option<usize>,
    /// What it cost.
    pub cost: u64,
    /// When it was asked.
    pub asked: u64,
    /// When it was answered.
    pub answered: u64,
    /// When the caller wanted the answer, at the latest.
    pub deadline: u64,
    /// When it was decided: where the store did, then. First of all for the user, then for the tenant.
    pub decided: [u64; 2],
    /// Whether it passed.
    pub allowed: bool,
    /// Who decided.
    pub by: By,
    /// Whether it said how long it waits.
    pub hurried: bool,
    /// What was given back of its cost in the end, at least and at most.
    pub given_back: (u64, u64),
    /// Whether the store would refuse it, too, or did so half a second ago. Of interest where a node remembered a refusal.
    pub refused_there: bool,
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The store.
    Store,
    /// A refusal of the store that the node remembered.
    Cache,
    /// The node by itself.
    Fallback,
}

impl Answered {
    /// Whether it is of a user or a tenant.
    #[must_use]
    pub fn is_of(&self, subject: usize) -> bool {
        self.user == subject || self.tenant == Some(subject)
    }

    /// When it was decided for a subject.
    #[must_use]
    pub fn decided_of(&self, subject: usize) -> u64 {
        self.decided[usize::from(self.user != subject)]
    }

    /// What surely counts of its cost.
    #[must_use]
    pub const fn kept(&self) -> u64 {
        self.cost - self.given_back.1
    }
}

impl History {
    /// A number that two histories share only if the same things happened.
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

/// What the store executed and a node has not been told of yet.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    /// Tells it from others.
    pub(crate) number: usize,
    pub(crate) state: StateId,
    pub(crate) passes: bool,
    pub(crate) cost: u64,
    /// What it says remains; and what it would say if the take had not been counted.
    pub(crate) remaining: u64,
    pub(crate) before: u64,
    /// The true time.
    pub(crate) at: u64,
}

/// The server and what is known of it.
#[derive(Debug, Default)]
pub(crate) struct Backend {
    pub(crate) server: SimulatedRedis,
    pub(crate) model: Model,
    /// As they were some time before a failover, by the number of its fault.
    pub(crate) replicas: BTreeMap<usize, (SimulatedRedis, Model)>,
    /// What each process will be told, or not.
    pub(crate) told: BTreeMap<usize, Vec<Told>>,
    /// How many plans were decided.
    pub(crate) decided: usize,
    /// How many requests each process has yet to answer.
    pub(crate) open: BTreeMap<usize, usize>,
    /// When a state was last given something back, in nanoseconds.
    given_back: BTreeMap<StateId, u64>,
    /// When data was last lost, in nanoseconds.
    lost: Option<u64>,
    pub(crate) history: History,
}

/// For so long a node may go by what it saw of a state, in nanoseconds: half a second after it heard of it.
const REMEMBERED: u64 = 560_000_000;

impl Backend {
    /// Something was given back.
    pub(crate) fn gave_back(&mut self, state: StateId, at: u64) {
        self.given_back.insert(state, at);
    }

    /// What was counted is lost, or a part of it.
    pub(crate) fn lost_data(&mut self, at: u64) {
        self.lost = Some(at);
    }

    /// Whether a state may have refused more a moment ago than it does now.
    pub(crate) fn refused_more_lately(&self, state: StateId, now: u64) -> bool {
        let eased = self.lost.max(self.given_back.get(&state).copied());
        eased.is_some_and(|eased| now - eased <= REMEMBERED)
    }
}

/// The true time at which simulations begin: no window of an hour or a week ends soon after it.
pub(crate) const EPOCH: Timestamp = Timestamp::from_nanos(1_800_000_700_000_000_000);
