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
    /// What was found wrong on the way.
    pub wrong: Vec<String>,
    /// What happened, a line each.
    pub trace: Vec<String>,
    /// When each process of each node began and ended, in milliseconds.
    pub processes: Vec<(usize, u64, u64)>,
    /// Costs that the store counted and whose callers were never told, by state.
    pub untold: BTreeMap<StateId, u64>,
    /// What the store has counted in the end, by user.
    pub counted: Vec<u64>,
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
    /// What it cost.
    pub cost: u64,
    /// When it was asked, and answered.
    pub asked: u64,
    /// When it was answered.
    pub answered: u64,
    /// When the caller wanted the answer, at the latest.
    pub deadline: u64,
    /// When it was decided: where the store did, then.
    pub decided: u64,
    /// Whether it passed.
    pub allowed: bool,
    /// Who decided.
    pub by: By,
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
    pub(crate) remaining: u64,
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
    pub(crate) history: History,
}

/// The true time at which simulations begin: no window of an hour or a week ends soon after it.
pub(crate) const EPOCH: Timestamp = Timestamp::from_nanos(1_800_000_700_000_000_000);
