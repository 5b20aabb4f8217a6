//! The script: its text, how it is called, and what it answers.

use super::link::Link;
use super::wire::{self, Tag};
use crate::error::StoreError;
use crate::store::{Part, ReceiptId};
use ::redis::{ErrorKind, RedisError, Script, ScriptInvocation, ServerErrorKind, Value};
use std::sync::LazyLock;
use tidegate_core::{Limit, Span, Take, Timestamp};

/// All algorithms and the plan, one text: a plan may hold any of them.
static PLAN: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(
        include_str!("scripts/prelude.lua"),
        include_str!("scripts/drain.lua"),
        include_str!("scripts/fixed_window.lua"),
        include_str!("scripts/sliding_weighted.lua"),
        include_str!("scripts/sliding_buckets.lua"),
        include_str!("scripts/sliding_log.lua"),
        include_str!("scripts/plan.lua"),
    ))
});

/// Gives shapes their tags.
pub(super) static REGISTER: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/register.lua")));

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
}

/// What a script answered.
#[derive(Debug)]
pub(super) enum Reply {
    /// The states as they were, and whether the plan passes.
    Found { now: Timestamp, passes: bool, values: Vec<Vec<u8>> },
    /// Nothing was done: a state has a shape that the script was not told of; its tag, and which state.
    UnknownShape(u16, usize),
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

/// What a script is told of time.
#[derive(Clone, Copy)]
pub(super) struct Times {
    /// The time it goes by instead of its own, in microseconds.
    pub(super) test: Option<u64>,
    /// When its caller will have gone, in microseconds; 0 is never.
    pub(super) deadline: u64,
    /// About now, for finding the window of a calendar.
    pub(super) guess: Timestamp,
}

/// Calls the script. `tags` belong to the limits one by one, `told` are shapes that it met before.
pub(super) async fn run(
    link: &Link,
    call: &Call<'_>,
    tags: &[Tag],
    told: &[(u16, std::sync::Arc<Limit>)],
    clock: Times,
) -> Result<Reply, StoreError> {
    let invocation = &invocation(call, tags, told, clock);
    let ask = |mut connection| async move { invocation.invoke_async(&mut connection).await };
    parse(link.ask(ask).await?)
}

/// A call as the server takes it.
pub(super) fn invocation(
    call: &Call<'_>,
    tags: &[Tag],
    told: &[(u16, std::sync::Arc<Limit>)],
    clock: Times,
) -> ScriptInvocation<'static> {
    let mut invocation = PLAN.prepare_invoke();
    for state in
        call.takes.iter().map(|take| take.state).chain(call.parts.iter().map(|part| part.state))
    {
        invocation.key(wire::key(state).as_slice());
    }
    if let Some((receipt, _)) = call.receipt {
        invocation.key(
            wire::receipt_key(receipt, call.parts.iter().map(|part| part.state).min()).as_slice(),
        );
    }
    invocation.arg(match call.verb {
        Verb::Take => "take",
        Verb::Charge => "charge",
        Verb::GiveBack => "give_back",
        Verb::Peek => "peek",
    });
    invocation.arg(clock.test.map(|micros| micros.to_string()).unwrap_or_default());
    invocation.arg(clock.deadline);
    invocation.arg(call.max_wait.as_nanos() / 1_000);
    invocation
        .arg(call.receipt.map_or(0, |(_, until)| (until.as_nanos() / 1_000).clamp(1, wire::MOST)));
    invocation.arg(tags.len());
    for (take, tag) in call.takes.iter().zip(tags) {
        invocation.arg(wire::take(call.verb, take, *tag, clock.guess));
    }
    for (part, tag) in call.parts.iter().zip(tags) {
        invocation.arg(wire::part(part, *tag, clock.guess));
    }
    for (tag, shape) in told {
        invocation.arg(wire::shape(shape, *tag));
    }
    invocation
}

pub(super) fn parse(reply: Vec<Value>) -> Result<Reply, StoreError> {
    let mut words = reply.into_iter();
    let mut word = || words.next().map_or_else(|| Ok(Vec::new()), bytes);
    let kind = String::from_utf8_lossy(&word()?).into_owned();
    let now = Timestamp::from_nanos(wire::number::<u64>(&word()?)?.saturating_mul(1_000));
    match kind.as_str() {
        "late" => Ok(Reply::Late(now)),
        "over" => Ok(Reply::Over),
        "already" => Ok(Reply::Already),
        "moved" => Ok(Reply::Moved(now)),
        "shape" => Ok(Reply::UnknownShape(wire::number(&word()?)?, wire::number(&word()?)?)),
        "take" | "charge" | "give_back" | "peek" => {
            let passes = wire::number::<u8>(&word()?)? == 1;
            let values = words.map(bytes).collect::<Result<_, _>>()?;
            Ok(Reply::Found { now, passes, values })
        }
        other => Err(StoreError::Broken(format!("a script answered `{other}`"))),
    }
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

/// What a failed call means for its caller.
pub(super) fn store_error(error: RedisError, timeout: Span) -> StoreError {
    if error.is_timeout() {
        return StoreError::TimedOut(timeout);
    }
    let foreign = error.code() == Some("WRONGTYPE"); // another program's data under our key
    let broken = foreign
        || matches!(
            error.kind(),
            ErrorKind::Parse
                | ErrorKind::InvalidClientConfig
                | ErrorKind::UnexpectedReturnType
                | ErrorKind::Server(ServerErrorKind::ResponseError)
        );
    if broken {
        StoreError::Broken(error.to_string())
    } else {
        StoreError::Unavailable(Box::new(error))
    }
}
