//! Plans for the short path, packed as integers of eight bytes; see `short.lua`.
//!
//! ```text
//!   echo, deadline, max_wait, number of takes
//!   algorithm, weight, room, required, seven numbers of the limit      for each take
//! ```

use super::library::{Program, ProgramKind};
use super::script::{ScriptCall, ScriptHints, ScriptTimes};
use super::slots::slot_of_state;
use super::wire::{self, MAX_EXACT, NANOS_PER_MICRO, ShapeTag, Verb};
use ::redis::Cmd;
use std::sync::Arc;
use tidegate_core::{
    Algorithm, Align, Bound, Limit, Need, Period, Refill, RejectedCost, Take, Timestamp,
};

/// A plan for the short path.
pub(super) struct PackedPlan {
    pub(super) kind: ProgramKind,
    /// The slot of its keys.
    pub(super) slot: u16,
    pub(super) keys: Vec<[u8; 14]>,
    pub(super) numbers: Vec<u8>,
    /// How long it takes a server in a call with others, in microseconds.
    pub(super) micros: u32,
    /// Time in microseconds that replaces the server's clock.
    pub(super) test: Option<u64>,
}

/// Packs a call; `None` if it needs the long path: it is no take, an earlier try needed the long path, or the short path does not
/// know one of its algorithms.
pub(super) fn pack(
    call: &ScriptCall<'_>,
    hints: &ScriptHints<'_>,
    times: ScriptTimes,
    echo: u64,
    kind: ProgramKind,
) -> Option<PackedPlan> {
    if call.verb != Verb::Take || hints.long {
        return None;
    }
    let max_wait = call.max_wait.as_nanos() / NANOS_PER_MICRO;
    let head = [echo, times.deadline, max_wait.min(MAX_EXACT)];
    let takes = u64::try_from(call.takes.len()).ok()?;
    let many = call.takes.len().saturating_mul(PACKED_NUMBERS).saturating_add(4);
    let mut numbers = Vec::with_capacity(many.saturating_mul(8));
    for number in head.into_iter().chain([takes]) {
        numbers.extend_from_slice(&number.to_le_bytes());
    }
    for (take, tag) in call.takes.iter().zip(hints.tags) {
        for number in packed_take(take, *tag, times.guess)? {
            numbers.extend_from_slice(&number.to_le_bytes());
        }
    }
    let keys: Vec<[u8; 14]> = call.takes.iter().map(|take| wire::key(take.state)).collect();
    let slot = call.takes.first().map_or(0, |take| slot_of_state(take.state));
    let micros = call.limits().map(micros).fold(0, u32::saturating_add);
    Some(PackedPlan { kind, slot, keys, numbers, micros, test: times.test })
}

/// The command that decides plans. All of them have the same test time, or there is only one.
pub(super) fn command(plans: &[Arc<PackedPlan>]) -> Cmd {
    let first = plans.first();
    let kind = first.map_or(ProgramKind::Functions, |plan| plan.kind);
    let mut command = Program::Take.command(kind);
    command.arg(plans.iter().map(|plan| plan.keys.len()).sum::<usize>());
    for key in plans.iter().flat_map(|plan| &plan.keys) {
        command.arg(key.as_slice());
    }
    let test = first.and_then(|plan| plan.test);
    command.arg(test.map(|micros| micros.to_string()).unwrap_or_default());
    for plan in plans {
        command.arg(plan.numbers.as_slice());
    }
    command
}

/// An estimate of how long a take of a limit takes a server in a call with others, in microseconds, on a slow machine.
fn micros(limit: &Limit) -> u32 {
    match limit.algorithm() {
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => 12,
        Algorithm::FixedWindow { .. } => 10,
        Algorithm::SlidingWeighted => 14,
        Algorithm::SlidingBuckets { buckets } => u32::from(buckets).saturating_add(14),
        Algorithm::SlidingLog | Algorithm::Concurrent => 250,
    }
}

/// How many numbers a packed take has; see `short.lua`.
const PACKED_NUMBERS: usize = 11;

/// A take for the short path, see `short.lua`; `None` if it needs the long path.
fn packed_take(take: &Take<'_>, tag: ShapeTag, now: Timestamp) -> Option<[i64; PACKED_NUMBERS]> {
    let room = take.limit.room(take.bound);
    let weight = match take.limit.weight(take.cost, take.bound) {
        _ if take.limit.is_unlimited() => Some(0),
        Some(weight) if weight <= room => Some(weight),
        Some(_) | None => None, // it never passes
    };
    let weight = weight.map_or(Some(-1), |weight| i64::try_from(weight).ok())?;
    let room = i64::try_from(room.min(MAX_EXACT)).ok()?;
    let required = i64::from(take.need == Need::Required);
    let (algorithm, numbers) = packed_limit(take.limit, tag, now)?;
    let [a, b, c, d, e, f, g] = numbers;
    (take.refused == RejectedCost::Free)
        .then_some([algorithm, weight, room, required, a, b, c, d, e, f, g])
}

/// The number of an algorithm, and the numbers of a limit, as `short.lua` needs them.
fn packed_limit(limit: &Limit, tag: ShapeTag, now: Timestamp) -> Option<(i64, [i64; 7])> {
    if limit.is_unlimited() || limit.amount() == 0 {
        return Some((0, [0; 7]));
    }
    let whole = |number: u64| i64::try_from(number).ok();
    let micros = whole(wire::period_nanos(limit) / NANOS_PER_MICRO)?;
    match limit.algorithm() {
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => {
            let ShapeTag::Registered(tag) = tag else { return None };
            let ticks = limit.ticks()?;
            let leaky = matches!(limit.algorithm(), Algorithm::LeakyBucket { .. });
            let interval = i64::from(wire::refill(limit) == Refill::Interval);
            let (per_period, highest) = (whole(ticks.per_period)?, whole(ticks.believed)?);
            let numbers = [per_period, micros, 0, 0, highest, interval, i64::from(tag)];
            Some((if leaky { 2 } else { 1 }, numbers))
        }
        Algorithm::FixedWindow { align } => {
            if let Period::Calendar(calendar) = limit.period() {
                let (start, end) = calendar.window(now);
                let micros = |at: Timestamp| (at.as_nanos() / NANOS_PER_MICRO).min(MAX_EXACT);
                let (start, end) = (whole(micros(start))?, whole(end.map_or(MAX_EXACT, micros))?);
                return Some((3, [2, 0, 0, start, end, 0, 0]));
            }
            match align {
                Align::Epoch => Some((3, [0, micros, micros, 0, 0, 0, 0])),
                Align::First => Some((3, [1, micros / 1_000, micros, 0, 0, 0, 0])),
            }
        }
        Algorithm::SlidingWeighted => {
            let room = whole(limit.room(Bound::Headroom).min(MAX_EXACT))?;
            Some((4, [0, micros, room, 0, 0, 0, 0]))
        }
        Algorithm::SlidingBuckets { buckets } => {
            Some((5, [0, micros, i64::from(buckets), 0, 0, 0, 0]))
        }
        Algorithm::SlidingLog | Algorithm::Concurrent => None,
    }
}
