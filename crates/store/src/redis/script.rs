//! Calls of the programs that decide plans, and their replies; and the texts of small scripts.
//!
//! ```text
//!   ScriptCall + ScriptHints + ScriptTimes ──┬─► short path: keys… packed plan ──┬─► ScriptReply
//!                                            │                 └ needs the long one
//!                                            └─► long path: keys… arguments… ────┘
//! ```

use super::library::{Program, ProgramKind};
use super::wire::{self, ShapeTag, Verb};
use crate::error::StoreError;
use crate::store::{Part, ReceiptId};
use crate::sync::Mutex;
use ::redis::{Cmd, RedisResult, Value};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::{LeaseAsk, Limit, Span, Take, Timestamp};

/// Registers the shape of a tag.
pub(super) const REGISTER_SHAPE: &str = include_str!("scripts/register.lua");

/// Announces a node, and returns all nodes.
pub(super) const ANNOUNCE_NODE: &str = include_str!("scripts/nodes.lua");

/// Reads a piece of the shared document: its version, its length, the bytes from `ARGV[2]` on, of which there are at most
/// `ARGV[3]`, and its lineage. Returns nothing if it still is the document with this version and id (`ARGV[1]`, `ARGV[4]`).
pub(super) const READ_DOCUMENT: &str = "
local version = redis.call('HGET', KEYS[1], 'version') or '0'
local lineage = redis.call('HGET', KEYS[1], 'lineage') or ''
if version == ARGV[1] and string.match(lineage, '^[^ ]*') == ARGV[4] then return false end
local text = redis.call('HGET', KEYS[1], 'text') or ''
return { version, #text, string.sub(text, ARGV[2] + 1, ARGV[2] + ARGV[3]), lineage }";

/// Compare-and-set: replaces the shared document if it still is the one with this version and id (`ARGV[1]`, `ARGV[2]`).
pub(super) const REPLACE_DOCUMENT: &str = "
local lineage = redis.call('HGET', KEYS[1], 'lineage') or ''
if (redis.call('HGET', KEYS[1], 'version') or '0') ~= ARGV[1] then return 0 end
if string.match(lineage, '^[^ ]*') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[3], 'text', ARGV[4], 'lineage', ARGV[5])
return 1";

/// Publishes a text (`ARGV[2]`) of a node (`ARGV[1]`) for `ARGV[3]` milliseconds.
pub(super) const PUBLISH: &str = "
redis.call('HSET', KEYS[1], ARGV[1], '')
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
return 1";

/// One call of the plan script.
#[derive(Clone, Copy)]
pub(super) struct ScriptCall<'c> {
    pub(super) verb: Verb,
    /// The takes; empty for [`Verb::GiveBack`].
    pub(super) takes: &'c [Take<'c>],
    /// The parts to give back; empty for the other verbs.
    pub(super) parts: &'c [Part<'c>],
    /// How long the caller can wait for its turn.
    pub(super) max_wait: Span,
    /// The receipt that the script marks as settled, and until when it can be settled.
    pub(super) receipt: Option<(ReceiptId, Timestamp)>,
    /// Where the pending reply is left if the caller gives up before it arrives; `None` if nothing has to be settled then.
    pub(super) late: Option<&'c LateSlot>,
    /// For [`Verb::Grant`]: what is asked for.
    pub(super) ask: Option<LeaseAsk>,
}

/// The reply of the plan script.
#[derive(Debug)]
pub(super) enum ScriptReply {
    /// The values of the states before the call, and whether the plan passes.
    Found { now: Timestamp, passes: bool, values: Vec<Vec<u8>> },
    /// The value of the state before the call, and how much of the limit was granted.
    Granted { now: Timestamp, amount: u64, values: Vec<Vec<u8>> },
    /// Nothing was done: the short path cannot decide this plan.
    NeedsLong(Timestamp),
    /// Nothing was done: a state has a shape that the script was not told. This is its tag.
    UnknownShape(u16),
    /// Nothing was done: at this time another calendar window runs than the one that the caller looked up.
    Moved(Timestamp),
    /// Nothing was done: at this time the deadline had passed.
    Late(Timestamp),
    /// Nothing was done: the receipt has expired.
    Over,
    /// Nothing was done: the receipt was settled before.
    Already,
}

impl<'c> ScriptCall<'c> {
    /// The limits of the call, in the order of its states.
    pub(super) fn limits(&self) -> impl Iterator<Item = &'c Limit> + use<'c> {
        self.takes.iter().map(|take| take.limit).chain(self.parts.iter().map(|part| part.limit))
    }

    /// A call that gives back parts.
    pub(super) const fn give_back(
        parts: &'c [Part<'c>],
        receipt: Option<(ReceiptId, Timestamp)>,
    ) -> Self {
        let (verb, max_wait) = (Verb::GiveBack, Span::ZERO);
        Self { verb, takes: &[], parts, max_wait, receipt, late: None, ask: None }
    }

    /// A call about takes, without a receipt, whose late reply needs no settling.
    pub(super) const fn of_takes(verb: Verb, takes: &'c [Take<'c>], max_wait: Span) -> Self {
        Self { verb, takes, parts: &[], max_wait, receipt: None, late: None, ask: None }
    }

    /// A call that asks for a slice of a limit. The take has a cost of 1.
    pub(super) const fn grant(take: &'c [Take<'c>], ask: LeaseAsk) -> Self {
        Self { ask: Some(ask), ..Self::of_takes(Verb::Grant, take, Span::ZERO) }
    }
}

/// What the script is told besides the call itself.
#[derive(Clone, Copy, Default)]
pub(super) struct ScriptHints<'t> {
    /// The tag of each limit of the call.
    pub(super) tags: &'t [ShapeTag],
    /// Shapes that an earlier try of this call asked for.
    pub(super) shapes: &'t [(u16, Arc<Limit>)],
    /// Tags that an earlier try asked for and that are not in the registry: their states count as full.
    pub(super) lost: &'t [u16],
    /// An earlier try showed that the call needs the long path.
    pub(super) long: bool,
    /// Time in microseconds that replaces the server's clock, for tests.
    pub(super) test: Option<u64>,
    /// The server's time according to an earlier try.
    pub(super) guess: Option<Timestamp>,
}

/// The times that the script is told.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScriptTimes {
    /// Time in microseconds that replaces the server's clock.
    pub(super) test: Option<u64>,
    /// When the caller gives up, in microseconds of the server's clock; 0 for never.
    pub(super) deadline: u64,
    /// Estimate of the server's time, for finding the window of a calendar.
    pub(super) guess: Timestamp,
}

/// The command of a call for the long path. Its reply must carry `echo`.
pub(super) fn command(
    call: &ScriptCall<'_>,
    hints: &ScriptHints<'_>,
    times: ScriptTimes,
    echo: u64,
    kind: ProgramKind,
) -> Cmd {
    let program = if call.verb == Verb::Peek { Program::Peek } else { Program::Plan };
    let mut command = program.command(kind);
    add_keys(&mut command, call, hints.tags.len());
    command.arg(match call.verb {
        Verb::Take => "take",
        Verb::Charge => "charge",
        Verb::GiveBack => "give_back",
        Verb::Peek => "peek",
        Verb::Grant => "grant",
    });
    command.arg(times.test.map(|micros| micros.to_string()).unwrap_or_default());
    command.arg(times.deadline);
    command.arg(call.max_wait.as_nanos() / 1_000);
    let expiry = |until: Timestamp| (until.as_nanos() / 1_000).clamp(1, wire::MAX_EXACT);
    command.arg(call.receipt.map_or(0, |(_, until)| expiry(until)));
    command.arg(hints.tags.len()).arg(echo);
    for (take, tag) in call.takes.iter().zip(hints.tags) {
        command.arg(wire::take(call.verb, take, *tag, times.guess));
    }
    for (part, tag) in call.parts.iter().zip(hints.tags) {
        command.arg(wire::part(part, *tag, times.guess));
    }
    for (tag, shape) in hints.shapes {
        command.arg(wire::shape(shape, *tag));
    }
    for tag in hints.lost {
        command.arg(format!("lost {tag}"));
    }
    if let Some(ask) = &call.ask {
        command.arg(wire::ask(ask));
    }
    command
}

/// Adds the number of keys and the keys: one for each state, then the mark of the receipt.
fn add_keys(command: &mut Cmd, call: &ScriptCall<'_>, states: usize) {
    let ids =
        call.takes.iter().map(|take| take.state).chain(call.parts.iter().map(|part| part.state));
    let lowest = ids.clone().min();
    let mark = call.receipt.map(|(receipt, _)| wire::receipt_key(receipt, lowest));
    command.arg(states.saturating_add(usize::from(mark.is_some())));
    for id in ids {
        command.arg(wire::key(id).as_slice());
    }
    if let Some(mark) = mark {
        command.arg(mark);
    }
}

/// Parses the reply to the call with this echo; `None` if it is the reply to another call.
pub(super) fn parse(reply: Value, echo: u64) -> Result<Option<ScriptReply>, StoreError> {
    let Value::Array(words) = reply else {
        return Err(StoreError::Broken("the reply of a script is not a list".to_owned()));
    };
    let mut words = words.into_iter();
    if let Some(Value::Int(now)) = words.as_slice().first() {
        let now = micros(*now)?;
        words.next();
        return parse_short(now, words, echo);
    }
    let mut word = || words.next().map_or_else(|| Ok(Vec::new()), bytes);
    let kind = String::from_utf8_lossy(&word()?).into_owned();
    let (kind, shown) = kind.split_once('#').unwrap_or((&kind, ""));
    if shown.parse() != Ok(echo) {
        return Ok(None);
    }
    let now = Timestamp::from_nanos(wire::number::<u64>(&word()?)?.saturating_mul(1_000));
    let reply = match kind {
        "late" => Ok(ScriptReply::Late(now)),
        "over" => Ok(ScriptReply::Over),
        "already" => Ok(ScriptReply::Already),
        "moved" => Ok(ScriptReply::Moved(now)),
        "shape" => Ok(ScriptReply::UnknownShape(wire::number(&word()?)?)),
        "take" | "charge" | "give_back" | "peek" => {
            let passes = wire::number::<u8>(&word()?)? == 1;
            let values = words.map(bytes).collect::<Result<_, _>>()?;
            Ok(ScriptReply::Found { now, passes, values })
        }
        "grant" => {
            let amount = wire::number(&word()?)?;
            let values = words.map(bytes).collect::<Result<_, _>>()?;
            Ok(ScriptReply::Granted { now, amount, values })
        }
        other => Err(StoreError::Broken(format!("the reply of a script begins with `{other}`"))),
    };
    reply.map(Some)
}

/// Parses what the short path replies about one plan.
fn parse_short(
    now: Timestamp,
    mut words: impl Iterator<Item = Value>,
    echo: u64,
) -> Result<Option<ScriptReply>, StoreError> {
    if words.next() != i64::try_from(echo).ok().map(Value::Int) {
        return Ok(None);
    }
    let reply = match words.next() {
        Some(Value::Int(passes @ (0 | 1))) => {
            let values = words.map(bytes).collect::<Result<_, _>>()?;
            ScriptReply::Found { now, passes: passes == 1, values }
        }
        Some(Value::BulkString(word)) if word == b"late" => ScriptReply::Late(now),
        Some(Value::BulkString(word)) if word == b"long" => ScriptReply::NeedsLong(now),
        Some(Value::BulkString(word)) if word == b"error" => {
            let text = words.next().map_or_else(|| Ok(Vec::new()), bytes)?;
            let text = String::from_utf8_lossy(&text).chars().take(MAX_ERROR_TEXT).collect();
            return Err(StoreError::Broken(text));
        }
        _ => return Err(unexpected_reply()),
    };
    Ok(Some(reply))
}

/// Longer error texts of a server are cut.
const MAX_ERROR_TEXT: usize = 200;

fn micros(number: i64) -> Result<Timestamp, StoreError> {
    let micros = u64::try_from(number).map_err(|_| unexpected_reply())?;
    Ok(Timestamp::from_nanos(micros.saturating_mul(1_000)))
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the client's replies are an open set")]
fn bytes(value: Value) -> Result<Vec<u8>, StoreError> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.into_bytes()),
        Value::Int(number) => Ok(number.to_string().into_bytes()),
        other => Err(StoreError::Broken(format!("the reply of a script contains {other:?}"))),
    }
}

/// The error for a valid reply of a kind that cannot follow this call.
pub(super) fn unexpected_reply() -> StoreError {
    StoreError::Broken("the reply of a script does not fit its call".to_owned())
}

// === late replies ===

/// How long the store waits for a reply whose caller has given up, so that what it took can be given back.
pub(super) const LATE_REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// A reply that has not arrived yet; `None` if the call was not sent.
pub(super) type PendingReply = Pin<Box<dyn Future<Output = Option<RedisResult<Value>>> + Send>>;

/// The pending reply to a call whose caller has given up.
pub(super) struct LateReply {
    pub(super) reply: PendingReply,
    /// The echo of the call.
    pub(super) echo: u64,
}

/// Where a call that is given up leaves its pending reply. Locked to put or to take.
pub(super) type LateSlot = Mutex<Option<LateReply>>;

impl LateReply {
    /// The reply of the script, if it arrives within this time.
    pub(super) async fn within(self, timeout: Duration) -> Option<ScriptReply> {
        let reply = tokio::time::timeout(timeout, self.reply).await.ok()??.ok()?;
        parse(reply, self.echo).ok()?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(words: &[&str]) -> Value {
        Value::Array(words.iter().map(|word| Value::BulkString(word.as_bytes().to_vec())).collect())
    }

    #[test]
    fn a_reply_with_another_echo_belongs_to_another_call() {
        let found = parse(reply(&["take#7", "1000", "1", "5"]), 7).unwrap();
        assert!(matches!(found, Some(ScriptReply::Found { passes: true, .. })));
        for words in [&["take#8", "1000", "1", "5"][..], &["take", "1000", "1", "5"], &[""], &[]] {
            assert!(parse(reply(words), 7).unwrap().is_none(), "{words:?}");
        }
    }

    #[test]
    fn a_reply_that_is_not_valid_is_an_error() {
        for wrong in [
            Value::Nil,
            Value::Int(3),
            Value::Array(vec![Value::Array(vec![])]),
            reply(&["take#7", "x", "1"]),
            reply(&["take#7", "1000", "300"]),
            reply(&["whatever#7", "1000"]),
        ] {
            assert!(parse(wrong.clone(), 7).is_err(), "{wrong:?}");
        }
    }
}
