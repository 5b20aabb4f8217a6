//! What travels between a store and a simulated server: requests, replies, and the network that carries them.

use crate::redis::script::{self, ScriptCall, ScriptHints, ScriptTimes};
use crate::redis::wire::{ShapeTag, Verb};
use crate::remote::cost_of;
use crate::store::{Part, ReceiptId};
use ::redis::{Arg, Cmd, RedisResult, Value};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use tidegate_core::{
    Bound, Cost, LeaseAsk, Limit, Need, RejectedCost, Span, StateId, Take, TakeReceipt, Timestamp,
};

/// A future of the network.
pub type NetworkFuture<T> = Pin<Box<dyn Future<Output = std::io::Result<T>> + Send>>;

/// The network between a store and its simulated server. A test delays, loses and cuts here.
pub trait Network: Send + Sync + fmt::Debug {
    /// Opens a connection, and returns its number.
    fn connect(&self) -> NetworkFuture<u64>;

    /// Carries a request to the server and the reply back. The future of a lost reply never completes.
    fn carry(
        &self,
        connection: u64,
        request: Arc<SimulatedRequest>,
    ) -> NetworkFuture<SimulatedReply>;
}

/// A request of a node.
#[derive(Debug)]
pub struct SimulatedRequest(pub(super) RequestBody);

#[derive(Debug)]
pub(super) enum RequestBody {
    /// A command, word by word.
    Command(Vec<Vec<u8>>),
    Script(Box<OwnedCall>),
}

/// A script call that owns its data.
#[derive(Debug)]
pub(super) struct OwnedCall {
    pub(super) verb: Verb,
    pub(super) takes: Vec<OwnedTake>,
    pub(super) parts: Vec<OwnedPart>,
    pub(super) max_wait: Span,
    pub(super) receipt: Option<(ReceiptId, Timestamp)>,
    pub(super) ask: Option<LeaseAsk>,
    pub(super) tags: Vec<ShapeTag>,
    pub(super) shapes: Vec<(u16, Arc<Limit>)>,
    pub(super) lost: Vec<u16>,
    pub(super) times: ScriptTimes,
    pub(super) echo: u64,
}

/// A take that owns its limit.
#[derive(Clone, Debug)]
pub struct OwnedTake {
    /// The state.
    pub state: StateId,
    /// The limit.
    pub limit: Limit,
    /// How much is taken.
    pub cost: Cost,
    /// Whether the plan is refused when this take is.
    pub need: Need,
    /// Which bound of the limit decides.
    pub bound: Bound,
    /// Whether the cost is charged when the plan is refused.
    pub refused: RejectedCost,
}

/// A part of a settlement that owns its limit.
#[derive(Clone, Debug)]
pub struct OwnedPart {
    /// The state.
    pub state: StateId,
    /// The limit that it was taken under.
    pub limit: Limit,
    /// Where and how much was counted.
    pub receipt: TakeReceipt,
}

/// The reply of a simulated server.
#[derive(Debug)]
pub struct SimulatedReply(pub(super) RedisResult<Value>);

/// What a script did to states. The server reports these in the order in which it did them.
#[derive(Clone, Debug)]
pub struct Executed {
    /// The server's time.
    pub at: Timestamp,
    /// What it did.
    pub effect: Effect,
    /// States whose shape was lost: they counted as full.
    pub lost: Vec<StateId>,
}

/// What a script did to states.
#[derive(Clone, Debug)]
pub enum Effect {
    /// It decided a plan.
    Took {
        /// The takes of the plan.
        takes: Vec<OwnedTake>,
        /// How long the caller can wait.
        max_wait: Span,
        /// Whether the plan passed.
        passes: bool,
    },
    /// It charged takes whether or not they fit.
    Charged(Vec<OwnedTake>),
    /// It gave back.
    GaveBack(Vec<OwnedPart>),
    /// It granted a slice of a limit, or nothing.
    Granted {
        /// The state and its limit, with a cost of 1.
        take: OwnedTake,
        /// What was asked for.
        ask: LeaseAsk,
        /// What was granted, in costs of 1.
        amount: u64,
    },
}

// === impl SimulatedRequest ===

impl SimulatedRequest {
    pub(in crate::redis) fn of_call(
        call: &ScriptCall<'_>,
        hints: &ScriptHints<'_>,
        times: ScriptTimes,
        echo: u64,
    ) -> Self {
        Self(RequestBody::Script(Box::new(OwnedCall {
            verb: call.verb,
            takes: call.takes.iter().map(OwnedTake::of).collect(),
            parts: call.parts.iter().map(OwnedPart::of).collect(),
            max_wait: call.max_wait,
            receipt: call.receipt,
            ask: call.ask,
            tags: hints.tags.to_vec(),
            shapes: hints.shapes.to_vec(),
            lost: hints.lost.to_vec(),
            times,
            echo,
        })))
    }

    pub(in crate::redis) fn of_command(command: &Cmd) -> Self {
        let word = |arg: Arg<&[u8]>| match arg {
            Arg::Simple(bytes) => bytes.to_vec(),
            Arg::Cursor => vec![],
            _ => vec![],
        };
        Self(RequestBody::Command(command.args_iter().map(word).collect()))
    }

    /// A short name of the request, for a trace.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match &self.0 {
            RequestBody::Script(call) => call.verb_name(),
            RequestBody::Command(words) => command_name(words),
        }
    }

    /// Whether this is a plan to decide.
    #[must_use]
    pub fn is_take(&self) -> bool {
        matches!(&self.0, RequestBody::Script(call) if call.verb == Verb::Take)
    }

    /// Whether this is a canary call of a keeper, which takes from a state of its own.
    #[must_use]
    pub fn is_canary(&self) -> bool {
        let RequestBody::Script(call) = &self.0 else { return false };
        call.takes.first().is_some_and(|take| crate::redis::canary::is_canary(take.state))
    }

    /// The states and costs that this gives back, if it gives back anything.
    pub fn gives_back(&self) -> impl Iterator<Item = (StateId, u64)> {
        let parts = match &self.0 {
            RequestBody::Script(call) => call.parts.as_slice(),
            RequestBody::Command(_) => &[],
        };
        parts.iter().map(|part| (part.state, part.cost()))
    }

    /// The takes that this undoes, because their request was not granted. A settlement of a receipt undoes none.
    pub fn refunds(&self) -> &[OwnedPart] {
        match &self.0 {
            RequestBody::Script(call) if call.receipt.is_none() => &call.parts,
            RequestBody::Script(_) | RequestBody::Command(_) => &[],
        }
    }
}

fn command_name(words: &[Vec<u8>]) -> &'static str {
    let runs = |script: &str| words.get(1).is_some_and(|text| text == script.as_bytes());
    match words.first().map(Vec::as_slice) {
        Some(b"EVAL") if runs(script::REGISTER_SHAPE) => "register",
        Some(b"EVAL") if runs(script::ANNOUNCE_NODE) => "nodes",
        Some(b"HGET") => "look up shape",
        Some(b"DEL") => "reset",
        Some(_) | None => "command",
    }
}

impl OwnedCall {
    pub(super) const fn verb_name(&self) -> &'static str {
        match self.verb {
            Verb::Take => "take",
            Verb::Charge => "charge",
            Verb::GiveBack => "give_back",
            Verb::Peek => "peek",
            Verb::Grant => "grant",
        }
    }
}

impl OwnedTake {
    fn of(take: &Take<'_>) -> Self {
        let (limit, cost) = (take.limit.clone(), take.cost);
        let Take { state, need, bound, refused, .. } = *take;
        Self { state, limit, cost, need, bound, refused }
    }

    /// The take.
    #[must_use]
    pub fn take(&self) -> Take<'_> {
        let (need, bound, refused) = (self.need, self.bound, self.refused);
        Take { need, bound, refused, ..Take::new(self.state, &self.limit, self.cost) }
    }
}

impl OwnedPart {
    fn of(part: &Part<'_>) -> Self {
        Self { state: part.state, limit: part.limit.clone(), receipt: part.receipt }
    }

    /// What it stands for, in whole costs, rounded down.
    #[must_use]
    pub fn cost(&self) -> u64 {
        cost_of(&self.limit, &self.receipt).get()
    }
}

impl SimulatedReply {
    pub(in crate::redis) fn into_value(self) -> RedisResult<Value> {
        self.0
    }

    pub(super) fn error(text: &str) -> Self {
        let parsed = ::redis::parse_redis_value(format!("-{text}\r\n").as_bytes());
        Self(parsed.and_then(Value::extract_error))
    }

    pub(super) fn wrong_type() -> Self {
        Self::error("WRONGTYPE Operation against a key holding the wrong kind of value")
    }
}
