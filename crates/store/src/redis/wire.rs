//! The wire format: keys, script arguments and values, as the Lua scripts read and write them.
//!
//! ```text
//!   key        {AB}0123456789                 hash tag, 80 bits of the state's id
//!   argument   F 1 1000 2000 1 0 0 0 60000000 60000000     letter of the algorithm, then numbers; see plan.lua
//!   value      fixed window      28333333000000007         window 28333333, a count of 7 in nine digits
//!              token bucket      1699999980000000042       tick at which it is empty, tag 042 of its shape
//!              sliding weighted  28333333:5:7:1000         window, its count, the last count, capacity
//!              sliding buckets   1700000:0,5;3,2           newest sub-window, then age and count of each
//!              sliding log       28333333000;5,2;7         steps since the take before, and cost unless it is 1
//! ```

use crate::error::StoreError;
use crate::store::{Part, ReceiptId};
use std::sync::Arc;
use tidegate_core::{
    Algorithm, Align, Bound, Headroom, LeaseAsk, Limit, Need, Period, Refill, RejectedCost, Span,
    StateContents, StateId, Take, TakeReceipt, Timestamp,
};

/// What a script call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Take,
    Charge,
    GiveBack,
    Peek,
    Grant,
}

/// The largest number that a script is given: Lua counts in doubles, which are exact up to 2⁵³.
pub(super) const MAX_EXACT: u64 = 1 << 53;
/// Ticks in use. They are added to the ticks since the epoch, which are below 2⁵² until the year 2041.
const MAX_TICKS: u64 = 1 << 51;
const MAX_COUNT: u64 = 1 << 45;
/// Entries of a log: a script reads all of them on every call.
const MAX_IN_LOG: u64 = 1_000;
pub(super) const NANOS_PER_MICRO: u64 = 1_000;
const NANOS_PER_SECOND: u64 = 1_000_000_000;
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

// === keys ===

/// Hash tag of the keys that hold no state. All of them are in one slot.
pub(super) const CONTROL_TAG: &[u8] = b"tidegate";
pub(super) const SHAPES_KEY: &str = "{tidegate}shapes";
pub(super) const VERIFIER_KEY: &str = "{tidegate}secret";
pub(super) const NODES_KEY: &str = "{tidegate}nodes";
/// The names of the nodes that published a text; each text is under this key, a colon and the name.
pub(super) const PUBLISHED_KEY: &str = "{tidegate}top";
pub(super) const DOCUMENT_KEY: &str = "{tidegate}control";
/// Time to live of the shape registry and of the verifier, renewed on use: three years, longer than nearly every state matters.
pub(super) const CONTROL_TTL_SECONDS: u64 = 3 * 366 * 86_400;

/// The key of a state: `{`, two letters, `}`, ten bytes. The two letters encode the topmost bits of the state's id, which all
/// states of one key share. They are the hash tag, so these states are in one slot.
pub(super) fn key(state: StateId) -> [u8; 14] {
    let [slot_high, slot_low, _, _, _, _, rest @ ..] = state.0.to_be_bytes();
    let mut key = [0; 14];
    let tag = [b'{', letter(slot_high), letter(slot_low), b'}'];
    for (to, byte) in key.iter_mut().zip(tag.into_iter().chain(rest)) {
        *to = byte;
    }
    key
}

fn letter(bits: u8) -> u8 {
    LETTERS.get(usize::from(bits & 63)).copied().unwrap_or(b'A')
}

/// The key that marks a receipt as settled. It is in the slot of the receipt's lowest state, so that it does not depend on the
/// order of the parts.
pub(super) fn receipt_key(receipt: ReceiptId, beside: Option<StateId>) -> Vec<u8> {
    let state_key = key(beside.unwrap_or(StateId(receipt.0)));
    let mut marked = state_key.iter().copied().take(4).collect::<Vec<u8>>();
    marked.push(b'r');
    marked.extend(receipt.0.to_be_bytes());
    marked
}

/// The key of the mark that a library is used, in the slot of a state.
pub(super) fn library_key(library: &str, beside: StateId) -> Vec<u8> {
    key(beside).iter().copied().take(4).chain(library.bytes()).collect()
}

// === supported limits ===

/// Whether a script can count under a limit without any rounding error; otherwise the reason.
pub(super) fn supports(limit: &Limit) -> Result<(), &'static str> {
    if limit.is_unlimited() || limit.amount() == 0 {
        return Ok(());
    }
    let nanos = match limit.period() {
        Period::Every(period) => period.as_nanos(),
        Period::Calendar(_) => 0, // whole minutes
    };
    if nanos % NANOS_PER_MICRO != 0 {
        return Err("the store counts in microseconds; use a period of whole microseconds");
    }
    if limit.deepest() > MAX_COUNT && limit.ticks().is_none() {
        return Err("the amount is too large for a script; use a smaller amount");
    }
    match limit.algorithm() {
        Algorithm::FixedWindow { align: Align::First } if nanos % 1_000_000 != 0 => {
            Err("in this store, align: first needs a period of whole milliseconds")
        }
        Algorithm::SlidingLog if nanos % NANOS_PER_SECOND != 0 => {
            Err("in this store, a log needs a period of whole seconds")
        }
        Algorithm::SlidingLog if limit.deepest() > MAX_IN_LOG * 2 => {
            Err("in this store, a log holds at most 1000")
        }
        Algorithm::Concurrent if nanos % NANOS_PER_SECOND != 0 => {
            Err("in this store, the lease of a concurrency limit must be whole seconds")
        }
        Algorithm::Concurrent if limit.room(Bound::Headroom) > MAX_IN_LOG => {
            Err("in this store, a concurrency limit with its headroom is at most 1000")
        }
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => {
            supports_ticks(limit, nanos)
        }
        Algorithm::FixedWindow { .. }
        | Algorithm::SlidingLog
        | Algorithm::SlidingBuckets { .. }
        | Algorithm::SlidingWeighted
        | Algorithm::Concurrent => Ok(()),
    }
}

fn supports_ticks(limit: &Limit, period_nanos: u64) -> Result<(), &'static str> {
    let Some(ticks) = limit.ticks() else { return Ok(()) };
    if ticks.per_period > (period_nanos / NANOS_PER_MICRO).saturating_mul(2) {
        return Err("faster than two million a second is counted in memory only");
    }
    if ticks.believed > MAX_TICKS {
        return Err("a burst or queue that takes decades to fill is counted in memory only");
    }
    Ok(())
}

/// Rounds down to whole microseconds, the resolution of the script's clock.
pub(super) fn whole_micros(span: Span) -> Span {
    Span::from_nanos((span.as_nanos() / NANOS_PER_MICRO).saturating_mul(NANOS_PER_MICRO))
}

// === arguments ===

/// The argument of a take; see `plan.lua`.
pub(super) fn take(verb: Verb, take: &Take<'_>, tag: ShapeTag, now: Timestamp) -> String {
    let room = take.limit.room(take.bound);
    let weight = match (verb, take.limit.weight(take.cost, take.bound)) {
        _ if take.limit.is_unlimited() => "0".to_owned(),
        (Verb::Charge, weight) => weight.unwrap_or(u64::MAX).min(take.limit.deepest()).to_string(),
        (Verb::Take | Verb::GiveBack | Verb::Peek | Verb::Grant, Some(weight))
            if weight <= room =>
        {
            weight.to_string()
        }
        (Verb::Take | Verb::GiveBack | Verb::Peek | Verb::Grant, _) => "-1".to_owned(), // it never passes
    };
    let required = u8::from(take.need == Need::Required);
    let charged = u8::from(take.refused == RejectedCost::Charged);
    let asked =
        [weight, room.min(MAX_EXACT).to_string(), take.limit.deepest().min(MAX_EXACT).to_string()]
            .join(" ");
    format!(
        "{} {asked} {required} {charged} 0 {}",
        letter_of(take.limit),
        numbers(take.limit, tag, now)
    )
}

/// The argument of a part that is given back.
pub(super) fn part(part: &Part<'_>, tag: ShapeTag, now: Timestamp) -> String {
    let (letter, numbers) = (letter_of(part.limit), numbers(part.limit, tag, now));
    let TakeReceipt { mark, weight, is_slot } = part.receipt;
    format!("{letter} {weight} 0 0 0 {} {mark} {numbers}", u8::from(is_slot))
}

/// The argument that tells a script the shape of a tag; see `drain.lua`.
pub(super) fn shape(limit: &Limit, tag: u16) -> String {
    numbers(limit, ShapeTag::Registered(tag), Timestamp::EPOCH)
}

/// The argument that says what a node asks for; see `plan.lua`.
pub(super) fn ask(ask: &LeaseAsk) -> String {
    let LeaseAsk { most, least, parts, ahead } = ask;
    format!("grant {most} {least} {parts} {}", ahead.as_nanos() / NANOS_PER_MICRO)
}

fn letter_of(limit: &Limit) -> char {
    if limit.is_unlimited() || limit.amount() == 0 {
        return 'N';
    }
    match limit.algorithm() {
        Algorithm::FixedWindow { .. } => 'F',
        Algorithm::SlidingLog | Algorithm::Concurrent => 'L',
        Algorithm::SlidingBuckets { .. } => 'B',
        Algorithm::SlidingWeighted => 'W',
        Algorithm::TokenBucket { .. } => 'T',
        Algorithm::LeakyBucket { .. } => 'Q',
    }
}

fn numbers(limit: &Limit, tag: ShapeTag, now: Timestamp) -> String {
    if let Period::Calendar(calendar) = limit.period() {
        let (start, end) = calendar.window(now);
        let micros = |at: Timestamp| (at.as_nanos() / NANOS_PER_MICRO).min(MAX_EXACT);
        return format!("2 0 0 {} {}", micros(start), end.map_or(MAX_EXACT, micros));
    }
    let period = period_nanos(limit);
    let micros = period / NANOS_PER_MICRO;
    match limit.algorithm() {
        Algorithm::FixedWindow { align: Align::Epoch } => format!("0 {micros} {micros}"),
        Algorithm::FixedWindow { align: Align::First } => format!("1 {} {micros}", micros / 1_000),
        Algorithm::SlidingLog | Algorithm::Concurrent => {
            format!("{} {micros}", period / 1_000_000 / NANOS_PER_MICRO)
        }
        Algorithm::SlidingBuckets { buckets } => format!("{micros} {micros} {buckets}"),
        Algorithm::SlidingWeighted => format!("{micros} {micros} {}", limit.room(Bound::Headroom)),
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => {
            let Some(ticks) = limit.ticks() else { return String::new() };
            let interval = u8::from(refill(limit) == Refill::Interval);
            let (per_period, token) = (ticks.per_period, ticks.token);
            let full = limit.room(Bound::Headroom);
            let tag = match tag {
                ShapeTag::Registered(tag) => tag.to_string(),
                ShapeTag::Inline => shape_text(limit),
            };
            format!("{per_period} {micros} {token} {full} {} {interval} {tag}", ticks.believed)
        }
    }
}

pub(super) fn refill(limit: &Limit) -> Refill {
    if let Algorithm::TokenBucket { refill, .. } = limit.algorithm() {
        refill
    } else {
        Refill::Continuous
    }
}

pub(super) fn period_nanos(limit: &Limit) -> u64 {
    match limit.period() {
        Period::Every(span) => span.as_nanos(),
        Period::Calendar(_) => 0,
    }
}

// === values ===

/// The contents of a value under the current limit, and what it says of the shape that it was written under.
pub(super) fn parse(
    limit: &Limit,
    value: &[u8],
) -> Result<(StateContents, WrittenUnder), StoreError> {
    if value.is_empty() {
        return Ok((StateContents::Nothing, WrittenUnder::CurrentLimit));
    }
    let text = str::from_utf8(value).map_err(|_| not_a_state(value))?;
    let contents = match letter_of(limit) {
        'T' | 'Q' => return parse_zero(text),
        'W' => return parse_weighted(text),
        'F' => parse_window(text)?,
        'B' => parse_buckets(text)?,
        'L' => parse_log(text)?,
        _ => StateContents::Nothing,
    };
    Ok((contents, WrittenUnder::CurrentLimit))
}

/// `number:count`, or the number followed by nine digits of count.
fn parse_window(text: &str) -> Result<StateContents, StoreError> {
    let nine_digits = || text.split_at_checked(text.len().saturating_sub(9));
    let split = text.split_once(':').or_else(nine_digits);
    let (number, count) = split.ok_or_else(|| not_a_state(text.as_bytes()))?;
    let number = if number.is_empty() { 0 } else { parsed(number)? };
    Ok(StateContents::Window { number, count: parsed(count)? })
}

/// `number:cur:prev:room`.
fn parse_weighted(text: &str) -> Result<(StateContents, WrittenUnder), StoreError> {
    let mut words = text.split(':').map(parsed::<u64>);
    let mut next = || words.next().unwrap_or_else(|| Err(not_a_state(text.as_bytes())));
    let contents = StateContents::Windows { number: next()?, cur: next()?, prev: next()? };
    Ok((contents, WrittenUnder::Room(next()?)))
}

/// `newest:age,count;age,count…`, newest first.
fn parse_buckets(text: &str) -> Result<StateContents, StoreError> {
    let missing = || not_a_state(text.as_bytes());
    let (newest, pairs) = text.split_once(':').ok_or_else(missing)?;
    let newest: u64 = parsed(newest)?;
    let mut counts = Vec::new();
    for pair in pairs.split(';').rev() {
        let (age, count) = pair.split_once(',').ok_or_else(missing)?;
        counts.push((newest.saturating_sub(parsed(age)?), parsed(count)?));
    }
    Ok(StateContents::Buckets { newest, counts })
}

/// `distance,cost;distance,cost…`, oldest first; a cost of 1 is left out.
fn parse_log(text: &str) -> Result<StateContents, StoreError> {
    let mut step = 0u64;
    let mut entries = Vec::new();
    for entry in text.split(';') {
        let (distance, cost) = entry.split_once(',').unwrap_or((entry, "1"));
        step = step.saturating_add(parsed(distance)?);
        entries.push((step, parsed(cost)?));
    }
    Ok(StateContents::Log(entries))
}

/// The value of a state, as the scripts write it.
#[cfg(feature = "testing")]
pub(super) fn value(written: &tidegate_core::Written<'_>, now: Timestamp, tag: ShapeTag) -> String {
    let listed = |entries: Vec<String>| entries.join(";");
    match written.remembered(now) {
        StateContents::Nothing => String::new(),
        StateContents::Window { number, count } if count < 1_000_000_000 => {
            format!("{number}{count:09}")
        }
        StateContents::Window { number, count } => format!("{number}:{count}"),
        StateContents::Windows { number, cur, prev } => {
            format!("{number}:{cur}:{prev}:{}", written.shape.room(Bound::Headroom))
        }
        StateContents::Buckets { newest, counts } => {
            let pair = |(number, count): &(u64, u64)| {
                format!("{},{count}", newest.saturating_sub(*number))
            };
            format!("{newest}:{}", listed(counts.iter().rev().map(pair).collect()))
        }
        StateContents::Log(entries) => {
            let mut last = 0;
            let entry = |(step, cost): &(u64, u64)| {
                let distance = step.saturating_sub(last);
                last = *step;
                if *cost == 1 { distance.to_string() } else { format!("{distance},{cost}") }
            };
            listed(entries.iter().map(entry).collect())
        }
        StateContents::Zero(zero) => match tag {
            ShapeTag::Registered(tag) => format!("{zero}{tag:03}"),
            ShapeTag::Inline => {
                format!("{zero}:{}", numbers(written.shape, ShapeTag::Inline, Timestamp::EPOCH))
            }
        },
    }
}

/// The value of a bucket: the tick of its zero, followed by the tag of its shape or by the whole shape.
fn parse_zero(text: &str) -> Result<(StateContents, WrittenUnder), StoreError> {
    if let Some((zero, numbers)) = text.split_once(':') {
        let shape = numbers.rsplit(' ').next().unwrap_or_default();
        return Ok((StateContents::Zero(parsed(zero)?), WrittenUnder::Inline(parse_shape(shape)?)));
    }
    let split = text.split_at_checked(text.len().saturating_sub(3));
    let (zero, tag) = split.ok_or_else(|| not_a_state(text.as_bytes()))?;
    Ok((StateContents::Zero(parsed(zero)?), WrittenUnder::Registered(parsed(tag)?)))
}

pub(super) fn number<N: std::str::FromStr>(bytes: &[u8]) -> Result<N, StoreError> {
    parsed(str::from_utf8(bytes).map_err(|_| not_a_state(bytes))?)
}

fn parsed<N: std::str::FromStr>(text: &str) -> Result<N, StoreError> {
    text.parse().map_err(|_| not_a_state(text.as_bytes()))
}

fn not_a_state(value: &[u8]) -> StoreError {
    let shown: String = String::from_utf8_lossy(value).chars().take(80).collect();
    StoreError::Broken(format!("`{shown}` is not a state that tidegate writes"))
}

/// How the value of a bucket names the shape that it is written under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShapeTag {
    /// Three digits that the shape registry translates; 0 for limits whose states need no shape.
    Registered(u16),
    /// The whole shape, inside the value: for shapes that could not be registered.
    Inline,
}

/// What a value says of the shape that it was written under.
pub(super) enum WrittenUnder {
    /// Nothing: the current limit can read it.
    CurrentLimit,
    Registered(u16),
    Inline(Limit),
    /// The capacity of the shape: the only part of it that matters.
    Room(u64),
}

/// The limit by which a value is read.
pub(super) enum Shape<'l> {
    /// The limit of the current call.
    Current(&'l Limit),
    /// A registered limit, or one that was built to read this value.
    Kept(Arc<Limit>),
}

impl<'l> Shape<'l> {
    /// The current limit, if it has this capacity and can hold what was counted. Otherwise a limit like it that has this
    /// capacity.
    pub(super) fn with_room(limit: &'l Limit, room: u64, contents: &StateContents) -> Self {
        let counted = if let StateContents::Windows { cur, prev, .. } = contents {
            *cur.max(prev)
        } else {
            0
        };
        if room == limit.room(Bound::Headroom) && counted <= limit.deepest() {
            return Self::Current(limit);
        }
        let like = Limit::new(room, limit.period().clone(), limit.algorithm());
        like.map_or(Self::Current(limit), |like| Self::Kept(Arc::new(like)))
    }

    /// The current limit. If it was lowered, and what was counted does not fit any more: a limit like it that is large enough.
    pub(super) fn wide_enough(
        limit: &'l Limit,
        contents: &StateContents,
    ) -> Result<Self, StoreError> {
        let counted = match contents {
            StateContents::Window { count, .. } => *count,
            StateContents::Buckets { counts, .. } => counts.iter().map(|(_, count)| *count).sum(),
            StateContents::Nothing
            | StateContents::Windows { .. }
            | StateContents::Log(_)
            | StateContents::Zero(_) => 0,
        };
        if counted <= limit.deepest() || limit.is_unlimited() || limit.amount() == 0 {
            return Ok(Self::Current(limit));
        }
        // No state ever counts more than twice the amount.
        let wide = Limit::new(counted.div_ceil(2), limit.period().clone(), limit.algorithm());
        wide.map(|wide| Self::Kept(Arc::new(wide)))
            .map_err(|error| StoreError::Broken(error.to_string()))
    }

    pub(super) fn limit(&self) -> &Limit {
        match self {
            Self::Current(limit) => limit,
            Self::Kept(limit) => limit,
        }
    }
}

// === shapes ===

/// The text of a bucket's shape, for the shape registry.
pub(super) fn shape_text(limit: &Limit) -> String {
    let (kind, size) = match limit.algorithm() {
        Algorithm::TokenBucket { burst, refill: Refill::Continuous } => ("token", burst),
        Algorithm::TokenBucket { burst, refill: Refill::Interval } => ("interval", burst),
        Algorithm::LeakyBucket { queue } => ("leaky", queue),
        Algorithm::FixedWindow { .. }
        | Algorithm::SlidingLog
        | Algorithm::SlidingBuckets { .. }
        | Algorithm::SlidingWeighted
        | Algorithm::Concurrent => ("window", None),
    };
    let (headroom, percent) = match limit.headroom() {
        Headroom::None => ("none", 0),
        Headroom::Soft(percent) => ("soft", percent),
        Headroom::Elastic(percent) => ("elastic", percent),
    };
    let size = size.unwrap_or(limit.amount());
    format!("{kind}/{}/{}/{size}/{headroom}/{percent}", limit.amount(), period_nanos(limit))
}

/// The bucket whose shape the registry holds as this text.
pub(super) fn parse_shape(text: &str) -> Result<Limit, StoreError> {
    let bad = || StoreError::Broken(format!("`{text}` is not a shape that tidegate writes"));
    let words: Vec<&str> = text.split('/').collect();
    let [kind, amount, period, size, headroom, percent] = words.as_slice() else {
        return Err(bad());
    };
    let size = Some(parsed(size)?);
    let algorithm = match *kind {
        "token" => Algorithm::TokenBucket { burst: size, refill: Refill::Continuous },
        "interval" => Algorithm::TokenBucket { burst: size, refill: Refill::Interval },
        "leaky" => Algorithm::LeakyBucket { queue: size },
        _ => return Err(bad()),
    };
    let headroom = match *headroom {
        "none" => Headroom::None,
        "soft" => Headroom::Soft(parsed(percent)?),
        "elastic" => Headroom::Elastic(parsed(percent)?),
        _ => return Err(bad()),
    };
    let limit = Limit::new(parsed(amount)?, Span::from_nanos(parsed(period)?), algorithm);
    limit.and_then(|limit| limit.with_headroom(headroom)).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every(amount: u64, period: Span, algorithm: Algorithm) -> Limit {
        Limit::new(amount, period, algorithm).unwrap()
    }

    #[test]
    fn exactly_the_limits_that_a_script_counts_without_rounding_are_supported() {
        let (second, day) = (Span::from_secs(1), Span::from_secs(86_400));
        let (odd, fraction) = (Span::from_nanos(1_000_000_001), Span::from_millis(1_500));
        let token =
            |burst| Algorithm::TokenBucket { burst: Some(burst), refill: Refill::Continuous };
        let first = Algorithm::FixedWindow { align: Align::First };
        for (supported, limit) in [
            (true, every(2_000_000, second, token(10))),
            (false, every(2_000_001, second, token(10))),
            (true, every(1, Span::from_secs(400 * 86_400), Algorithm::TOKEN_BUCKET)),
            (false, every(1, Span::from_secs(400 * 86_400), token(80))), // it takes 88 years to fill
            (true, every(1_000, second, Algorithm::SLIDING_LOG)),
            (false, every(1_001, second, Algorithm::SLIDING_LOG)),
            (false, every(10, fraction, Algorithm::SLIDING_LOG)),
            (true, every(10, fraction, first)),
            (false, every(10, Span::from_nanos(1_000_001_000), first)),
            (false, every(10, odd, Algorithm::FIXED_WINDOW)),
            (false, every(10, odd, Algorithm::SLIDING_BUCKETS)),
            (true, every(1 << 30, day, Algorithm::SLIDING_BUCKETS)),
            (true, every(0, odd, Algorithm::SLIDING_LOG)), // blocks everything, so nothing is counted
            (true, Limit::unlimited()),
        ] {
            assert_eq!(supports(&limit).is_ok(), supported, "{limit:?}");
        }
    }

    #[test]
    fn a_lowered_limit_can_read_a_larger_count() {
        let first = Algorithm::FixedWindow { align: Align::First };
        let low = every(500_000, Span::from_secs(60), first);
        let contents = StateContents::Window { number: 1, count: 2_000_000 };
        let shape = Shape::wide_enough(&low, &contents).unwrap();
        assert_ne!(shape.limit().remember(&contents), tidegate_core::State::Empty);
    }

    #[test]
    fn a_shape_is_parsed_as_it_was_written() {
        let soft = every(7, Span::from_secs(60), Algorithm::LeakyBucket { queue: Some(3) });
        let soft = soft.with_headroom(Headroom::Soft(20)).unwrap();
        assert_eq!(parse_shape(&shape_text(&soft)).unwrap(), soft);
        for text in [
            "",
            "token",
            "token/1/2/3/none",
            "token/x/1000000000/3/none/0",
            "bucket/1/1000000000/3/none/0",
        ] {
            assert!(parse_shape(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_value_of_another_program_is_an_error_and_never_a_panic() {
        let limits = Algorithm::ALL.map(|algorithm| every(5, Span::from_secs(60), algorithm));
        for limit in &limits {
            for value in [
                &b"x"[..],
                b"1",
                b"\xff\xfe",
                b"1:",
                ":::".as_bytes(),
                b"-5",
                b"1;2;;",
                b"99999999999999999999999",
            ] {
                // Some of these happen to be valid states.
                let _ = parse(limit, value);
            }
            assert!(parse(limit, b"no state").is_err());
        }
    }
}
