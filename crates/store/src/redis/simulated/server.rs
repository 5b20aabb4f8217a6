//! The simulated server: its data and its commands.

use super::request::{Executed, RequestBody, SimulatedReply, SimulatedRequest};
use crate::redis::{script, wire};
use ::redis::Value;
use std::collections::BTreeMap;
use tidegate_core::{StateId, Timestamp};

/// A simulated Redis server.
///
/// ```
/// use tidegate_core::StateId;
/// use tidegate_store::testing::SimulatedRedis;
/// let mut server = SimulatedRedis::default();
/// server.overwrite_state(StateId(7)); // another program writes to the key of a state
/// assert_eq!(server.len(), 1);
/// server.lose_data();
/// assert!(server.is_empty());
/// ```
#[derive(Clone, Debug, Default)]
pub struct SimulatedRedis {
    pub(super) data: BTreeMap<Vec<u8>, Datum>,
    knows_script: bool,
    forbidden: Vec<&'static str>,
}

/// The value of a key.
#[derive(Clone, Debug)]
pub(super) enum Datum {
    /// A string. The marks of receipts have the time in microseconds at which they expire.
    Text(Vec<u8>, Option<u64>),
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
    /// The nodes, by their names.
    Nodes(BTreeMap<Vec<u8>, SimulatedNode>),
    /// Data of another program.
    Foreign,
}

/// A node that was announced.
#[derive(Clone, Debug)]
pub(super) struct SimulatedNode {
    /// When, in milliseconds.
    at: u64,
    process: Vec<u8>,
    state: Vec<u8>,
    policy: Vec<u8>,
}

pub(super) const NANOS_PER_MICRO: u64 = 1_000;
const MICROS_PER_MILLI: u64 = 1_000;
/// A node that was not announced for this long is gone; see `nodes.lua`.
const NODE_KEPT_MILLIS: u64 = 5_000;

impl SimulatedRedis {
    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// FLUSHALL.
    pub fn lose_data(&mut self) {
        self.data.clear();
    }

    /// SCRIPT FLUSH: a restart forgets the scripts even if it keeps the data.
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

    /// Executes a request at a time of the server's clock. The second value is what a script did to states, if anything.
    pub fn execute(
        &mut self,
        now: Timestamp,
        request: &SimulatedRequest,
    ) -> (SimulatedReply, Option<Executed>) {
        match &request.0 {
            RequestBody::Command(words) => (self.command(now, words), None),
            RequestBody::Script(_) if !self.knows_script => {
                (SimulatedReply::error("NOSCRIPT No matching script. Please use EVAL."), None)
            }
            RequestBody::Script(call) => {
                self.run(now, call).unwrap_or_else(|refused| (refused, None))
            }
        }
    }

    fn command(&mut self, now: Timestamp, words: &[Vec<u8>]) -> SimulatedReply {
        let word = |at: usize| words.get(at).map_or(&b""[..], Vec::as_slice);
        let name = String::from_utf8_lossy(word(0)).into_owned();
        if self.forbidden.iter().any(|forbidden| *forbidden == name) {
            return SimulatedReply::error(&format!("ERR unknown command '{name}'"));
        }
        let reply = match name.as_str() {
            "PING" => Value::SimpleString("PONG".to_owned()),
            "SCRIPT" | "FUNCTION" => {
                self.knows_script = true;
                Value::Okay
            }
            "TIME" => time(now),
            "SET" => {
                let text = || Datum::Text(word(2).to_vec(), None);
                self.data.entry(word(1).to_vec()).or_insert_with(text);
                Value::Okay
            }
            "GET" => match self.data.get(word(1)) {
                None => Value::Nil,
                Some(Datum::Text(value, _)) => Value::BulkString(value.clone()),
                Some(Datum::Hash(_) | Datum::Nodes(_) | Datum::Foreign) => {
                    return SimulatedReply::wrong_type();
                }
            },
            "EXPIRE" => Value::Int(i64::from(self.data.contains_key(word(1)))),
            "DEL" => {
                let keys = words.iter().skip(1);
                let gone = keys.filter(|key| self.data.remove(*key).is_some()).count();
                Value::Int(i64::try_from(gone).unwrap_or(0))
            }
            "HGET" => {
                return self.hash(word(1), |hash| {
                    let found = hash.get(word(2)).cloned();
                    found.map_or(Value::Nil, Value::BulkString)
                });
            }
            "EVAL" => return self.eval(now, words),
            _ => return SimulatedReply::error(&format!("ERR unknown command '{name}'")),
        };
        SimulatedReply(Ok(reply))
    }

    fn eval(&mut self, now: Timestamp, words: &[Vec<u8>]) -> SimulatedReply {
        let word = |at: usize| words.get(at).map_or(&b""[..], Vec::as_slice);
        let text = word(1);
        if text == script::REGISTER_SHAPE.as_bytes() {
            return self.hash(word(3), |shapes| {
                let epoch = shapes.entry(word(7).to_vec()).or_insert_with(|| word(8).to_vec());
                let epoch = Value::BulkString(epoch.clone());
                let known = shapes.entry(word(4).to_vec()).or_insert_with(|| word(5).to_vec());
                Value::Array(vec![Value::Int(i64::from(known == word(5))), epoch])
            });
        }
        if text == script::ANNOUNCE_NODE.as_bytes() {
            return self.announce_node(word(3), [4, 5, 6, 7, 8].map(word), now);
        }
        if text == script::READ_DOCUMENT.as_bytes() {
            return self.hash(word(3), |_| Value::Nil);
        }
        SimulatedReply::error("ERR the simulation does not know this script")
    }

    fn hash(
        &mut self,
        key: &[u8],
        work: impl FnOnce(&mut BTreeMap<Vec<u8>, Vec<u8>>) -> Value,
    ) -> SimulatedReply {
        let datum = self.data.entry(key.to_vec()).or_insert_with(|| Datum::Hash(BTreeMap::new()));
        let Datum::Hash(hash) = datum else { return SimulatedReply::wrong_type() };
        let reply = work(hash);
        if hash.is_empty() {
            self.data.remove(key);
        }
        SimulatedReply(Ok(reply))
    }

    /// What `nodes.lua` does.
    fn announce_node(
        &mut self,
        key: &[u8],
        [name, process, before, state, policy]: [&[u8]; 5],
        now: Timestamp,
    ) -> SimulatedReply {
        let now = now.as_nanos() / NANOS_PER_MICRO / MICROS_PER_MILLI;
        let datum = self.data.entry(key.to_vec()).or_insert_with(|| Datum::Nodes(BTreeMap::new()));
        let Datum::Nodes(nodes) = datum else { return SimulatedReply::wrong_type() };
        let before = str::from_utf8(before).ok().and_then(|at| at.parse().ok()).unwrap_or(0_u64);
        let taken = |node: &SimulatedNode| node.process != process && node.at > before;
        if before > 0 && nodes.get(name).is_some_and(taken) {
            return SimulatedReply(Ok(Value::Array(vec![Value::Int(1)])));
        }
        let [process, state, policy] = [process, state, policy].map(<[u8]>::to_vec);
        nodes.insert(name.to_vec(), SimulatedNode { at: now, process, state, policy });
        nodes.retain(|_, node| node.at <= now && now.saturating_sub(node.at) < NODE_KEPT_MILLIS);
        let mut reply = vec![Value::Int(0), Value::Int(i64::try_from(now).unwrap_or(i64::MAX))];
        for (name, node) in nodes {
            let fields = [name.clone(), node.state.clone(), node.policy.clone()];
            reply.extend(fields.map(Value::BulkString));
        }
        SimulatedReply(Ok(Value::Array(reply)))
    }
}

/// The reply to TIME: seconds and microseconds.
fn time(now: Timestamp) -> Value {
    let micros = now.as_nanos() / NANOS_PER_MICRO;
    let text = |n: u64| Value::BulkString(n.to_string().into_bytes());
    Value::Array(vec![text(micros / 1_000_000), text(micros % 1_000_000)])
}
