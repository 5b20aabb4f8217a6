//! A simulated Redis: the data and the few commands that the store uses, decided by the core.
//!
//! ```text
//!   store on Redis (the real one) ──► Network: the test delays, loses, cuts ──► SimulatedRedis::execute
//! ```
//!
//! The server keeps the same bytes under the same keys as a real one: a bucket's value carries the tag of its shape, a
//! script that meets a tag it was not told of answers with it, a deadline that has passed does nothing. Only the
//! decision itself is the core's instead of Lua's, which other tests compare with each other.
//!
//! Several servers may share one simulated server's data, each asked for its own slots. Not simulated: slots that move,
//! calendars, and the time to live of states (they say for themselves when they are over).

use super::script::{Call, REGISTER, Times, Told, Verb};
use super::wire::{self, Tag, WrittenUnder};
use super::{Redis, RedisSettings, board, nodes};
use crate::clock::Clock;
use crate::error::StoreError;
use crate::key::Secret;
use crate::store::{Part, ReceiptId};
use ::redis::{Arg, Cmd, RedisResult, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use tidegate_core::{
    Ask, Bound, Cost, Limit, Need, Now, Plan, RejectedCost, Span, State, StateContents, StateId,
    Take, TakeReceipt, Timestamp, Written,
};

/// A future of the network.
pub type Carried<T> = Pin<Box<dyn Future<Output = std::io::Result<T>> + Send>>;

/// What lies between a store and its simulated server: a test delays, loses and cuts here.
pub trait Network: Send + Sync + fmt::Debug {
    /// Opens a connection, and answers its number.
    fn connect(&self) -> Carried<u64>;

    /// Carries a request to the server and its reply back. A reply that is lost never comes.
    fn carry(&self, connection: u64, request: Arc<Request>) -> Carried<Reply>;
}

/// Something that a node asks of a server.
#[derive(Debug)]
pub struct Request(Asked);

#[derive(Debug)]
enum Asked {
    Command(Vec<Vec<u8>>),
    Script(Box<Script>),
}

/// A script call that owns what it says.
#[derive(Debug)]
struct Script {
    verb: Verb,
    takes: Vec<OwnedTake>,
    parts: Vec<OwnedPart>,
    max_wait: Span,
    receipt: Option<(ReceiptId, Timestamp)>,
    tags: Vec<Tag>,
    shapes: Vec<(u16, Arc<Limit>)>,
    lost: Vec<u16>,
    times: Times,
    echo: u64,
}

/// A take that owns its limit.
#[derive(Clone, Debug)]
pub struct OwnedTake {
    /// Whose state.
    pub state: StateId,
    /// Which limit.
    pub limit: Limit,
    /// How much.
    pub cost: Cost,
    /// Whether its refusal refuses the plan.
    pub need: Need,
    /// Which bound of the limit decides.
    pub bound: Bound,
    /// What a refusal does to its state.
    pub refused: RejectedCost,
}

/// What was taken of one state, and is given back.
#[derive(Clone, Debug)]
pub struct OwnedPart {
    /// Whose state.
    pub state: StateId,
    /// The limit it was taken under.
    pub limit: Limit,
    /// Where and what was counted.
    pub receipt: TakeReceipt,
}

/// What a server answers.
#[derive(Debug)]
pub struct Reply(RedisResult<Value>);

/// What a script did to states, in the order in which the server did it.
#[derive(Clone, Debug)]
pub struct Executed {
    /// The server's time.
    pub at: Timestamp,
    /// What it did.
    pub did: Did,
    /// States of which nothing was known, because their shape was lost: they counted as full.
    pub lost: Vec<StateId>,
}

/// What a script did to states.
#[derive(Clone, Debug)]
pub enum Did {
    /// It decided a plan.
    Took {
        /// The takes of the plan.
        takes: Vec<OwnedTake>,
        /// How long the caller can wait.
        max_wait: Span,
        /// Whether the plan passed.
        passes: bool,
    },
    /// It counted takes whether or not they pass.
    Charged(Vec<OwnedTake>),
    /// It gave back.
    GaveBack(Vec<OwnedPart>),
}

/// A server: its data, and what it does with what it is asked.
///
/// ```
/// use tidegate_store::testing::SimulatedRedis;
/// assert_eq!(SimulatedRedis::default().len(), 0);
/// ```
#[derive(Clone, Debug, Default)]
pub struct SimulatedRedis {
    data: BTreeMap<Vec<u8>, Datum>,
    knows_script: bool,
    forbidden: Vec<&'static str>,
}

#[derive(Clone, Debug)]
enum Datum {
    /// With the time in microseconds at which it is over, for marks of receipts.
    Text(Vec<u8>, Option<u64>),
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
    Scores(BTreeMap<Vec<u8>, u64>),
    /// Another program's.
    Foreign,
}

const NANOS_PER_MICRO: u64 = 1_000;
const MICROS_PER_MILLI: u64 = 1_000;
/// Nodes that have not called for this long are gone; see `nodes.lua`.
const NODE_KEPT_MILLIS: u64 = 5_000;

// === impl Redis ===

impl Redis {
    /// The store over simulated servers, each behind a network: one, or several that have equal parts of the slots. Like
    /// [`Redis::open`], it begins without its servers if it must.
    pub async fn simulated(
        settings: &RedisSettings,
        secret: &Secret,
        clock: Clock,
        networks: Vec<Arc<dyn Network>>,
    ) -> Result<Self, StoreError> {
        let (fleet, first) =
            super::fleet::Fleet::simulated(settings, secret, clock, networks).await?;
        Ok(Self::on(fleet, first, settings).await?.0)
    }
}

// === impl Request ===

impl Request {
    pub(super) fn of_call(call: &Call<'_>, told: &Told<'_>, times: Times, echo: u64) -> Self {
        Self(Asked::Script(Box::new(Script {
            verb: call.verb,
            takes: call.takes.iter().map(OwnedTake::of).collect(),
            parts: call.parts.iter().map(OwnedPart::of).collect(),
            max_wait: call.max_wait,
            receipt: call.receipt,
            tags: told.tags.to_vec(),
            shapes: told.shapes.to_vec(),
            lost: told.lost.to_vec(),
            times,
            echo,
        })))
    }

    pub(super) fn of_command(command: &Cmd) -> Self {
        let word = |arg: Arg<&[u8]>| match arg {
            Arg::Simple(bytes) => bytes.to_vec(),
            Arg::Cursor => vec![],
            _ => vec![],
        };
        Self(Asked::Command(command.args_iter().map(word).collect()))
    }

    /// The request in a few words, for a trace.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match &self.0 {
            Asked::Script(script) => match script.verb {
                Verb::Take => "take",
                Verb::Charge => "charge",
                Verb::GiveBack => "give_back",
                Verb::Peek => "peek",
            },
            Asked::Command(words) => match words.first().map(Vec::as_slice) {
                Some(b"EVAL") if words.get(1).is_some_and(|text| text == REGISTER.as_bytes()) => {
                    "register"
                }
                Some(b"EVAL")
                    if words.get(1).is_some_and(|text| text == nodes::CALL.as_bytes()) =>
                {
                    "nodes"
                }
                Some(b"HGET") => "look up shape",
                Some(b"DEL") => "reset",
                Some(_) | None => "command",
            },
        }
    }

    /// Whether this is a plan to decide.
    #[must_use]
    pub fn is_take(&self) -> bool {
        matches!(&self.0, Asked::Script(script) if script.verb == Verb::Take)
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
}

impl Reply {
    pub(super) fn into_value(self) -> RedisResult<Value> {
        self.0
    }

    fn error(text: &str) -> Self {
        let said = ::redis::parse_redis_value(format!("-{text}\r\n").as_bytes());
        Self(said.and_then(Value::extract_error))
    }

    fn wrong_type() -> Self {
        Self::error("WRONGTYPE Operation against a key holding the wrong kind of value")
    }
}

// === impl SimulatedRedis ===

impl SimulatedRedis {
    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// FLUSHALL.
    pub fn lose_data(&mut self) {
        self.data.clear();
    }

    /// What a restart forgets besides data: scripts.
    pub fn forget_scripts(&mut self) {
        self.knows_script = false;
    }

    /// Another program writes a list to the key of a state.
    pub fn overwrite_state(&mut self, state: StateId) {
        self.data.insert(wire::key(state).to_vec(), Datum::Foreign);
    }

    /// Another program writes a list to a key.
    pub fn overwrite(&mut self, key: &str) {
        self.data.insert(key.as_bytes().to_vec(), Datum::Foreign);
    }

    /// Refuses a command from now on, as `rename-command` and access lists do.
    pub fn forbid(&mut self, command: &'static str) {
        self.forbidden.push(command);
    }

    /// Executes a request at a time of the server's clock. The second answer is what it did to states, if anything.
    pub fn execute(&mut self, now: Timestamp, request: &Request) -> (Reply, Option<Executed>) {
        match &request.0 {
            Asked::Command(words) => (self.command(now, words), None),
            Asked::Script(_) if !self.knows_script => {
                (Reply::error("NOSCRIPT No matching script. Please use EVAL."), None)
            }
            Asked::Script(script) => {
                self.run(now, script).unwrap_or_else(|refused| (refused, None))
            }
        }
    }

    fn command(&mut self, now: Timestamp, words: &[Vec<u8>]) -> Reply {
        let word = |at: usize| words.get(at).map_or(&b""[..], Vec::as_slice);
        let name = String::from_utf8_lossy(word(0)).into_owned();
        if self.forbidden.iter().any(|forbidden| *forbidden == name) {
            return Reply::error(&format!("ERR unknown command '{name}'"));
        }
        match name.as_str() {
            "PING" => Reply(Ok(Value::SimpleString("PONG".to_owned()))),
            "SCRIPT" => {
                self.knows_script = true;
                Reply(Ok(Value::Okay))
            }
            "TIME" => {
                let micros = now.as_nanos() / NANOS_PER_MICRO;
                let text = |n: u64| Value::BulkString(n.to_string().into_bytes());
                Reply(Ok(Value::Array(vec![text(micros / 1_000_000), text(micros % 1_000_000)])))
            }
            "SET" => {
                if !self.data.contains_key(word(1)) {
                    self.data.insert(word(1).to_vec(), Datum::Text(word(2).to_vec(), None));
                }
                Reply(Ok(Value::Okay))
            }
            "GET" => match self.data.get(word(1)) {
                None => Reply(Ok(Value::Nil)),
                Some(Datum::Text(value, _)) => Reply(Ok(Value::BulkString(value.clone()))),
                Some(Datum::Hash(_) | Datum::Scores(_) | Datum::Foreign) => Reply::wrong_type(),
            },
            "EXPIRE" => Reply(Ok(Value::Int(i64::from(self.data.contains_key(word(1)))))),
            "DEL" => {
                let keys = words.iter().skip(1);
                let gone = keys.filter(|key| self.data.remove(*key).is_some()).count();
                Reply(Ok(Value::Int(i64::try_from(gone).unwrap_or(0))))
            }
            "HGET" => self.hash(word(1), |hash| {
                let found = hash.get(word(2)).cloned();
                found.map_or(Value::Nil, Value::BulkString)
            }),
            "EVAL" => self.eval(now, words),
            _ => Reply::error(&format!("ERR unknown command '{name}'")),
        }
    }

    fn eval(&mut self, now: Timestamp, words: &[Vec<u8>]) -> Reply {
        let word = |at: usize| words.get(at).map_or(&b""[..], Vec::as_slice);
        let script = word(1);
        if script == REGISTER.as_bytes() {
            return self.hash(word(3), |shapes| {
                let epoch = shapes.entry(word(7).to_vec()).or_insert_with(|| word(8).to_vec());
                let epoch = Value::BulkString(epoch.clone());
                let known = shapes.entry(word(4).to_vec()).or_insert_with(|| word(5).to_vec());
                Value::Array(vec![Value::Int(i64::from(known == word(5))), epoch])
            });
        }
        if script == nodes::CALL.as_bytes() {
            return self.count_nodes(word(3), word(4), now);
        }
        if script == board::READ.as_bytes() {
            return self.hash(word(3), |_| Value::Nil);
        }
        Reply::error("ERR the simulation does not know this script")
    }

    fn hash(
        &mut self,
        key: &[u8],
        work: impl FnOnce(&mut BTreeMap<Vec<u8>, Vec<u8>>) -> Value,
    ) -> Reply {
        let there = self.data.entry(key.to_vec()).or_insert_with(|| Datum::Hash(BTreeMap::new()));
        let Datum::Hash(hash) = there else { return Reply::wrong_type() };
        let answer = work(hash);
        if hash.is_empty() {
            self.data.remove(key);
        }
        Reply(Ok(answer))
    }

    fn count_nodes(&mut self, key: &[u8], name: &[u8], now: Timestamp) -> Reply {
        let now = now.as_nanos() / NANOS_PER_MICRO / MICROS_PER_MILLI;
        let there = self.data.entry(key.to_vec()).or_insert_with(|| Datum::Scores(BTreeMap::new()));
        let Datum::Scores(nodes) = there else { return Reply::wrong_type() };
        nodes.insert(name.to_vec(), now);
        nodes.retain(|_, called| *called <= now && *called > now.saturating_sub(NODE_KEPT_MILLIS));
        Reply(Ok(Value::Int(i64::try_from(nodes.len()).unwrap_or(0))))
    }

    // === the script ===

    fn run(&mut self, now: Timestamp, script: &Script) -> Result<(Reply, Option<Executed>), Reply> {
        let micros = script.times.test.unwrap_or(now.as_nanos() / NANOS_PER_MICRO);
        let now = Timestamp::from_nanos(micros.saturating_mul(NANOS_PER_MICRO));
        let says = |word: &str, more: Vec<Vec<u8>>| {
            let mut words = vec![format!("{word}#{}", script.echo).into_bytes()];
            words.push(micros.to_string().into_bytes());
            words.extend(more);
            Reply(Ok(Value::Array(words.into_iter().map(Value::BulkString).collect())))
        };
        if script.times.deadline > 0 && micros > script.times.deadline {
            return Ok((says("late", vec![]), None));
        }
        let mut found = Vec::new();
        for ((state, limit), own) in script.states().zip(&script.tags) {
            match self.read(script, state, limit)? {
                Found::Unknown(tag) if script.lost.contains(&tag) => {
                    found.push(Here::full(limit, *own, now));
                }
                Found::Unknown(tag) => {
                    return Ok((says("shape", vec![tag.to_string().into_bytes()]), None));
                }
                Found::Here(here) => found.push(*here),
            }
        }
        if script.verb == Verb::GiveBack || script.verb == Verb::Charge {
            match self.mark(script, micros) {
                Marked::Over => return Ok((says("over", vec![]), None)),
                Marked::Already => return Ok((says("already", vec![]), None)),
                Marked::First => {}
            }
        }
        let before: Vec<Written<'_>> = found.iter().map(Here::written).collect();
        let mut after = before.clone();
        let (passes, executed) = script.decide(now, &mut after);
        if script.verb != Verb::Peek {
            let names = script.states().zip(&script.tags).zip(&found);
            for (((((state, limit), tag), here), before), after) in names.zip(&before).zip(&after) {
                if before != after || here.lost {
                    let tag = if after.shape == limit { *tag } else { here.tag };
                    self.write(state, after, now, tag);
                }
            }
        }
        let mut words = vec![u8::from(passes).to_string().into_bytes()];
        words.extend(found.iter().map(|here| here.value.clone()));
        let verb = match script.verb {
            Verb::Take => "take",
            Verb::Charge => "charge",
            Verb::GiveBack => "give_back",
            Verb::Peek => "peek",
        };
        let names = script.states().zip(&found);
        let lost = names.filter(|(_, here)| here.lost).map(|((state, _), _)| state).collect();
        Ok((says(verb, words), executed.map(|did| Executed { at: now, did, lost })))
    }

    /// What a key says, by the shape that it was written under.
    fn read(&self, script: &Script, state: StateId, limit: &Limit) -> Result<Found, Reply> {
        let nothing = || {
            let said = StateContents::Nothing;
            let (value, shape, tag, lost) = (vec![], limit.clone(), Tag::Whole, false);
            Found::Here(Box::new(Here { value, shape, tag, said, lost }))
        };
        if limit.is_unlimited() || limit.amount() == 0 {
            return Ok(nothing());
        }
        let value = match self.data.get(wire::key(state).as_slice()) {
            None => return Ok(nothing()),
            Some(Datum::Text(value, _)) => value,
            Some(Datum::Hash(_) | Datum::Scores(_) | Datum::Foreign) => {
                return Err(Reply::wrong_type());
            }
        };
        let garbled = |_| Reply::error("ERR user_script: attempt to compare nil with number");
        let (said, under) = wire::parse(limit, value).map_err(garbled)?;
        let mut tag = Tag::Whole;
        let shape = match under {
            WrittenUnder::Registered(told) => {
                tag = Tag::Registered(told);
                match script.shape(told) {
                    Some(shape) => shape.clone(),
                    None => return Ok(Found::Unknown(told)),
                }
            }
            WrittenUnder::Whole(shape) => shape,
            WrittenUnder::Room(room) => wire::Shape::with_room(limit, room, &said).limit().clone(),
            WrittenUnder::Asking => {
                wire::Shape::wide_enough(limit, &said).map_err(garbled)?.limit().clone()
            }
        };
        let (value, lost) = (value.clone(), false);
        Ok(Found::Here(Box::new(Here { value, shape, tag, said, lost })))
    }

    fn write(&mut self, state: StateId, written: &Written<'_>, now: Timestamp, tag: Tag) {
        let key = wire::key(state).to_vec();
        if written.state == State::Empty {
            self.data.remove(&key);
            return;
        }
        let value = wire::value(written, now, tag);
        self.data.insert(key, Datum::Text(value.into_bytes(), None));
    }

    /// Marks a receipt as settled, if the script presents one.
    fn mark(&mut self, script: &Script, micros: u64) -> Marked {
        let Some((receipt, until)) = script.receipt else { return Marked::First };
        let over = (until.as_nanos() / NANOS_PER_MICRO).clamp(1, wire::MOST);
        if over <= micros {
            return Marked::Over;
        }
        let key = wire::receipt_key(receipt, script.states().map(|(state, _)| state).min());
        match self.data.get(&key) {
            Some(Datum::Text(_, Some(until))) if *until > micros => Marked::Already,
            _ => {
                self.data.insert(key, Datum::Text(b"1".to_vec(), Some(over)));
                Marked::First
            }
        }
    }
}

enum Found {
    Here(Box<Here>),
    Unknown(u16),
}

/// A value, the shape it is read by and how it names that, and what it says.
struct Here {
    value: Vec<u8>,
    shape: Limit,
    tag: Tag,
    said: StateContents,
    /// Nothing is known of it, and it counts as full.
    lost: bool,
}

impl Here {
    fn full(limit: &Limit, tag: Tag, now: Timestamp) -> Self {
        let mut written = Written::empty(limit);
        limit.charge(&mut written, &Ask::new(now, Cost::new(limit.capacity())));
        let (value, said) = (wire::value(&written, now, tag), written.remembered(now));
        Self { value: value.into_bytes(), shape: limit.clone(), tag, said, lost: true }
    }

    fn written(&self) -> Written<'_> {
        Written { shape: &self.shape, state: self.shape.remember(&self.said) }
    }
}

enum Marked {
    First,
    Already,
    Over,
}

impl Script {
    /// The states of the call, and the limits that they are asked under.
    fn states(&self) -> impl Iterator<Item = (StateId, &Limit)> {
        let takes = self.takes.iter().map(|take| (take.state, &take.limit));
        takes.chain(self.parts.iter().map(|part| (part.state, &part.limit)))
    }

    /// The shape of a tag, as far as the script was told.
    fn shape(&self, tag: u16) -> Option<&Limit> {
        let mut own = self.states().map(|(_, limit)| limit).zip(&self.tags);
        let own = own.find(|(limit, own)| limit.ticks().is_some() && **own == Tag::Registered(tag));
        let told = || self.shapes.iter().find(|(told, _)| *told == tag).map(|(_, shape)| &**shape);
        own.map(|(limit, _)| limit).or_else(told)
    }

    /// Does to states what the script is there for.
    fn decide<'s>(&'s self, now: Timestamp, states: &mut [Written<'s>]) -> (bool, Option<Did>) {
        match self.verb {
            Verb::Take => {
                let takes: Vec<Take<'_>> = self.takes.iter().map(OwnedTake::take).collect();
                let Ok(plan) = Plan::new(takes, self.max_wait) else { return (false, None) };
                let passes = plan.take(Now::at(now), states).passes;
                let (takes, max_wait) = (self.takes.clone(), self.max_wait);
                (passes, Some(Did::Took { takes, max_wait, passes }))
            }
            Verb::Charge => {
                for (take, written) in self.takes.iter().zip(states) {
                    take.limit.charge(written, &Ask::new(now, take.cost).bounded(take.bound));
                }
                (true, Some(Did::Charged(self.takes.clone())))
            }
            Verb::GiveBack => {
                for (part, written) in self.parts.iter().zip(states) {
                    written.give_back(now, &part.limit, &part.receipt);
                }
                (true, Some(Did::GaveBack(self.parts.clone())))
            }
            Verb::Peek => (true, None),
        }
    }
}
