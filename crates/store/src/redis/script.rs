//! The script: its text, how it is called, and what it answers.

use super::link::LateSlot;
use super::wire::{self, Tag};
use crate::error::StoreError;
use crate::store::{Part, ReceiptId};
use ::redis::{Cmd, Script, Value};
use std::sync::{Arc, LazyLock};
use tidegate_core::{Limit, Span, Take, Timestamp};

/// All algorithms and the plan, one text: a plan may hold any of them.
const PLAN: &str = concat!(
    include_str!("scripts/prelude.lua"),
    include_str!("scripts/drain.lua"),
    include_str!("scripts/fixed_window.lua"),
    include_str!("scripts/sliding_weighted.lua"),
    include_str!("scripts/sliding_buckets.lua"),
    include_str!("scripts/sliding_log.lua"),
    include_str!("scripts/plan.lua"),
);

/// What servers call it.
static HASH: LazyLock<String> = LazyLock::new(|| Script::new(PLAN).get_hash().to_owned());

/// Gives shapes their tags.
pub(super) const REGISTER: &str = include_str!("scripts/register.lua");

/// What a script is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Take,
    Charge,
    GiveBack,
    Peek,
}

/// One call of the script.
#[derive(Clone, Copy)]
pub(super) struct Call<'c> {
    pub(super) verb: Verb,
    /// What is asked for; empty when something is given back.
    pub(super) takes: &'c [Take<'c>],
    /// What is given back.
    pub(super) parts: &'c [Part<'c>],
    pub(super) max_wait: Span,
    /// The receipt that is settled, and until when it can be.
    pub(super) receipt: Option<(ReceiptId, Timestamp)>,
    /// Where a reply is left that comes too late for its caller, if that matters.
    pub(super) late: Option<&'c LateSlot>,
}

/// What a script answered.
#[derive(Debug)]
pub(super) enum Reply {
    /// The states as they were, and whether the plan passes.
    Found { now: Timestamp, passes: bool, values: Vec<Vec<u8>> },
    /// Nothing was done: a state has a shape that the script was not told of; its tag.
    UnknownShape(u16),
    /// Nothing was done: it is this time, and the window of a calendar is another.
    Moved(Timestamp),
    /// Nothing was done: it is this time, and the deadline had passed.
    Late(Timestamp),
    /// Nothing was done: the receipt's time is over.
    Over,
    /// Nothing was done: the receipt was settled before.
    Already,
}

impl<'c> Call<'c> {
    /// The limits of the call, in the order of its states.
    pub(super) fn limits(&self) -> impl Iterator<Item = &'c Limit> + use<'c> {
        self.takes.iter().map(|take| take.limit).chain(self.parts.iter().map(|part| part.limit))
    }
}

/// What a script is told besides what it is asked to do.
#[derive(Clone, Copy, Default)]
pub(super) struct Told<'t> {
    /// Of the limits, one by one.
    pub(super) tags: &'t [Tag],
    /// Shapes that it met before.
    pub(super) shapes: &'t [(u16, Arc<Limit>)],
    /// Tags that it met before and that nobody knows: states that count as full.
    pub(super) lost: &'t [u16],
    /// The time it goes by instead of its own, in microseconds.
    pub(super) test: Option<u64>,
    /// About now, if it told us so.
    pub(super) guess: Option<Timestamp>,
}

/// What a script is told of time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// The time it goes by instead of its own, in microseconds.
    pub(super) test: Option<u64>,
    /// When its caller will have gone, in microseconds; 0 is never.
    pub(super) deadline: u64,
    /// About now, for finding the window of a calendar.
    pub(super) guess: Timestamp,
}

/// A call as the server takes it; its reply must show `echo`.
pub(super) fn command(call: &Call<'_>, told: &Told<'_>, clock: Times, echo: u64) -> Cmd {
    let states =
        call.takes.iter().map(|take| take.state).chain(call.parts.iter().map(|part| part.state));
    let lowest = states.clone().min();
    let mark = call.receipt.map(|(receipt, _)| wire::receipt_key(receipt, lowest));
    let keys = told.tags.len().saturating_add(usize::from(mark.is_some()));
    let mut command = ::redis::cmd("EVALSHA");
    command.arg(HASH.as_str()).arg(keys);
    for state in states {
        command.arg(wire::key(state).as_slice());
    }
    if let Some(mark) = mark {
        command.arg(mark);
    }
    command.arg(match call.verb {
        Verb::Take => "take",
        Verb::Charge => "charge",
        Verb::GiveBack => "give_back",
        Verb::Peek => "peek",
    });
    command.arg(clock.test.map(|micros| micros.to_string()).unwrap_or_default());
    command.arg(clock.deadline);
    command.arg(call.max_wait.as_nanos() / 1_000);
    command
        .arg(call.receipt.map_or(0, |(_, until)| (until.as_nanos() / 1_000).clamp(1, wire::MOST)));
    command.arg(told.tags.len()).arg(echo);
    for (take, tag) in call.takes.iter().zip(told.tags) {
        command.arg(wire::take(call.verb, take, *tag, clock.guess));
    }
    for (part, tag) in call.parts.iter().zip(told.tags) {
        command.arg(wire::part(part, *tag, clock.guess));
    }
    for (tag, shape) in told.shapes {
        command.arg(wire::shape(shape, *tag));
    }
    for tag in told.lost {
        command.arg(format!("lost {tag}"));
    }
    command
}

/// Sends the script itself.
pub(super) fn load() -> Cmd {
    let mut command = ::redis::cmd("SCRIPT");
    command.arg("LOAD").arg(PLAN);
    command
}

/// The reply to a call that had this echo; `None` if it is the reply to another.
pub(super) fn parse(reply: Value, echo: u64) -> Result<Option<Reply>, StoreError> {
    let Value::Array(words) = reply else {
        return Err(StoreError::Broken("a script answered no list".to_owned()));
    };
    let mut words = words.into_iter();
    let mut word = || words.next().map_or_else(|| Ok(Vec::new()), bytes);
    let kind = String::from_utf8_lossy(&word()?).into_owned();
    let (kind, shown) = kind.split_once('#').unwrap_or((&kind, ""));
    if shown.parse() != Ok(echo) {
        return Ok(None);
    }
    let now = Timestamp::from_nanos(wire::number::<u64>(&word()?)?.saturating_mul(1_000));
    let reply = match kind {
        "late" => Ok(Reply::Late(now)),
        "over" => Ok(Reply::Over),
        "already" => Ok(Reply::Already),
        "moved" => Ok(Reply::Moved(now)),
        "shape" => Ok(Reply::UnknownShape(wire::number(&word()?)?)),
        "take" | "charge" | "give_back" | "peek" => {
            let passes = wire::number::<u8>(&word()?)? == 1;
            let values = words.map(bytes).collect::<Result<_, _>>()?;
            Ok(Reply::Found { now, passes, values })
        }
        other => Err(StoreError::Broken(format!("a script answered `{other}`"))),
    };
    reply.map(Some)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the client's replies are an open set")]
fn bytes(value: Value) -> Result<Vec<u8>, StoreError> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.into_bytes()),
        Value::Int(number) => Ok(number.to_string().into_bytes()),
        other => Err(StoreError::Broken(format!("a script answered {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(words: &[&str]) -> Value {
        Value::Array(words.iter().map(|word| Value::BulkString(word.as_bytes().to_vec())).collect())
    }

    #[test]
    fn a_reply_that_shows_another_number_is_another_callers() {
        let found = parse(reply(&["take#7", "1000", "1", "5"]), 7).unwrap();
        assert!(matches!(found, Some(Reply::Found { passes: true, .. })));
        for words in [&["take#8", "1000", "1", "5"][..], &["take", "1000", "1", "5"], &[""], &[]] {
            assert!(parse(reply(words), 7).unwrap().is_none(), "{words:?}");
        }
    }

    #[test]
    fn what_is_no_reply_is_said_to_be_none() {
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
