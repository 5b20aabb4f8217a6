//! Bytes: keys, arguments and values, as the scripts write and read them.

use super::script::Verb;
use crate::error::StoreError;
use crate::store::{Part, ReceiptId};
use std::sync::Arc;
use tidegate_core::{
    Algorithm, Align, Bound, Headroom, Limit, Need, Period, Refill, RejectedCost, Span,
    StateContents, StateId, Take, Timestamp,
};

/// The largest number a script is given: doubles are exact up to 2⁵³.
pub(super) const MOST: u64 = 1 << 53;
/// Ticks in use, on top of the ticks since the epoch, which are below 2⁵² until the year 2041.
const MOST_TICKS: u64 = 1 << 51;
const MOST_COUNT: u64 = 1 << 45;
/// A script reads a log whole.
const MOST_IN_LOG: u64 = 1_000;
const NANOS_PER_MICRO: u64 = 1_000;
const NANOS_PER_SECOND: u64 = 1_000_000_000;
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

// === keys ===

/// `{` two letters `}` ten bytes: the letters come from the topmost bits of the name, which all states of one
/// key share, and choose the slot.
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

/// The mark of a settled receipt, on the slot of the lowest state it gives back to: the same in whatever order
/// its parts are presented.
pub(super) fn receipt_key(receipt: ReceiptId, beside: Option<StateId>) -> Vec<u8> {
    let state_key = key(beside.unwrap_or(StateId(receipt.0)));
    let mut marked = state_key.iter().copied().take(4).collect::<Vec<u8>>();
    marked.push(b'r');
    marked.extend(receipt.0.to_be_bytes());
    marked
}

// === what can be counted ===

/// Whether a script can count under a limit to the last integer; otherwise why not.
pub(super) fn supports(limit: &Limit) -> Result<(), &'static str> {
    if limit.is_unlimited() || limit.amount() == 0 {
        return Ok(());
    }
    let nanos = match limit.period() {
        Period::Every(period) => period.as_nanos(),
        Period::Calendar(_) => 0, // whole minutes
    };
    if nanos % NANOS_PER_MICRO != 0 {
        return Err("its clock has microseconds; use a period of whole microseconds");
    }
    if limit.deepest() > MOST_COUNT && limit.ticks().is_none() {
        return Err("the amount is too large for a script");
    }
    match limit.algorithm() {
        Algorithm::FixedWindow { align: Align::First } if nanos % 1_000_000 != 0 => {
            Err("align: first needs a period of whole milliseconds here")
        }
        Algorithm::SlidingLog if nanos % NANOS_PER_SECOND != 0 => {
            Err("a log needs a period of whole seconds here")
        }
        Algorithm::SlidingLog if limit.deepest() > MOST_IN_LOG * 2 => {
            Err("a log holds at most 1000 here")
        }
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => {
            supports_ticks(limit, nanos)
        }
        Algorithm::FixedWindow { .. }
        | Algorithm::SlidingLog
        | Algorithm::SlidingBuckets { .. }
        | Algorithm::SlidingWeighted => Ok(()),
    }
}

fn supports_ticks(limit: &Limit, period_nanos: u64) -> Result<(), &'static str> {
    let Some(ticks) = limit.ticks() else { return Ok(()) };
    if ticks.per_period > (period_nanos / NANOS_PER_MICRO).saturating_mul(2) {
        return Err("faster than two million a second is counted in memory only");
    }
    if ticks.believed > MOST_TICKS {
        return Err("a burst or queue that takes decades to fill is counted in memory only");
    }
    Ok(())
}

// === arguments ===

/// The numbers of a take; see `plan.lua`.
pub(super) fn take(verb: Verb, take: &Take<'_>, tag: Tag, now: Timestamp) -> String {
    let room = take.limit.room(take.bound);
    let weight = match (verb, take.limit.weight(take.cost, take.bound)) {
        _ if take.limit.is_unlimited() => "0".to_owned(),
        (Verb::Charge, weight) => weight.unwrap_or(u64::MAX).min(take.limit.deepest()).to_string(),
        (Verb::Take | Verb::GiveBack | Verb::Peek, Some(weight)) if weight <= room => {
            weight.to_string()
        }
        (Verb::Take | Verb::GiveBack | Verb::Peek, _) => "-1".to_owned(), // it never passes
    };
    let required = u8::from(take.need == Need::Required);
    let charged = u8::from(take.refused == RejectedCost::Charged);
    let asked =
        [weight, room.min(MOST).to_string(), take.limit.deepest().min(MOST).to_string()].join(" ");
    format!(
        "{} {asked} {required} {charged} 0 {}",
        letter_of(take.limit),
        numbers(take.limit, tag, now)
    )
}

/// The numbers of what is given back.
pub(super) fn part(part: &Part<'_>, tag: Tag, now: Timestamp) -> String {
    let (letter, numbers) = (letter_of(part.limit), numbers(part.limit, tag, now));
    format!("{letter} {} 0 0 0 0 {} {numbers}", part.receipt.weight, part.receipt.mark)
}

/// The numbers of a shape that a state has; see `drain.lua`.
pub(super) fn shape(limit: &Limit, tag: u16) -> String {
    numbers(limit, Tag::Registered(tag), Timestamp::EPOCH)
}

fn letter_of(limit: &Limit) -> char {
    if limit.is_unlimited() || limit.amount() == 0 {
        return 'N';
    }
    match limit.algorithm() {
        Algorithm::FixedWindow { .. } => 'F',
        Algorithm::SlidingLog => 'L',
        Algorithm::SlidingBuckets { .. } => 'B',
        Algorithm::SlidingWeighted => 'W',
        Algorithm::TokenBucket { .. } => 'T',
        Algorithm::LeakyBucket { .. } => 'Q',
    }
}

fn numbers(limit: &Limit, tag: Tag, now: Timestamp) -> String {
    if let Period::Calendar(calendar) = limit.period() {
        let (start, end) = calendar.window(now);
        let micros = |at: Timestamp| (at.as_nanos() / NANOS_PER_MICRO).min(MOST);
        return format!("2 0 0 {} {}", micros(start), end.map_or(MOST, micros));
    }
    let period = period_nanos(limit);
    let micros = period / NANOS_PER_MICRO;
    match limit.algorithm() {
        Algorithm::FixedWindow { align: Align::Epoch } => format!("0 {micros} {micros}"),
        Algorithm::FixedWindow { align: Align::First } => format!("1 {} {micros}", micros / 1_000),
        Algorithm::SlidingLog => format!("{} {micros}", period / 1_000_000 / NANOS_PER_MICRO),
        Algorithm::SlidingBuckets { buckets } => format!("{micros} {micros} {buckets}"),
        Algorithm::SlidingWeighted => format!("{micros} {micros} {}", limit.room(Bound::Headroom)),
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => {
            let Some(ticks) = limit.ticks() else { return String::new() };
            let interval = u8::from(refill(limit) == Refill::Interval);
            let (per_period, token) = (ticks.per_period, ticks.token);
            let full = limit.room(Bound::Headroom);
            let tag = match tag {
                Tag::Registered(tag) => tag.to_string(),
                Tag::Whole => shape_text(limit),
            };
            format!("{per_period} {micros} {token} {full} {} {interval} {tag}", ticks.believed)
        }
    }
}

fn refill(limit: &Limit) -> Refill {
    if let Algorithm::TokenBucket { refill, .. } = limit.algorithm() {
        refill
    } else {
        Refill::Continuous
    }
}

fn period_nanos(limit: &Limit) -> u64 {
    match limit.period() {
        Period::Every(span) => span.as_nanos(),
        Period::Calendar(_) => 0,
    }
}

// === values ===

/// What a value says under a limit, and the shape it was written under if it says so.
pub(super) fn parse(
    limit: &Limit,
    value: &[u8],
) -> Result<(StateContents, WrittenUnder), StoreError> {
    if value.is_empty() {
        return Ok((StateContents::Nothing, WrittenUnder::Asking));
    }
    let text = str::from_utf8(value).map_err(|_| garbled(value))?;
    let said = match letter_of(limit) {
        'T' | 'Q' => return parse_zero(text),
        'F' => {
            let split = text
                .split_once(':')
                .or_else(|| text.split_at_checked(text.len().saturating_sub(9)));
            let (number, count) = split.ok_or_else(|| garbled(value))?;
            let number = if number.is_empty() { 0 } else { parsed(number)? };
            StateContents::Window { number, count: parsed(count)? }
        }
        'W' => {
            let mut words = text.split(':').map(parsed::<u64>);
            let mut next = || words.next().unwrap_or_else(|| Err(garbled(value)));
            let said = StateContents::Windows { number: next()?, cur: next()?, prev: next()? };
            return Ok((said, WrittenUnder::Room(next()?)));
        }
        'B' => {
            let (newest, pairs) = text.split_once(':').ok_or_else(|| garbled(value))?;
            let newest: u64 = parsed(newest)?;
            let mut counts = Vec::new();
            for pair in pairs.split(';').rev() {
                let (age, count) = pair.split_once(',').ok_or_else(|| garbled(value))?;
                counts.push((newest.saturating_sub(parsed(age)?), parsed(count)?));
            }
            StateContents::Buckets { newest, counts }
        }
        'L' => {
            let mut step = 0u64;
            let mut entries = Vec::new();
            for entry in text.split(';') {
                let (distance, cost) = entry.split_once(',').unwrap_or((entry, "1"));
                step = step.saturating_add(parsed(distance)?);
                entries.push((step, parsed(cost)?));
            }
            StateContents::Log(entries)
        }
        _ => StateContents::Nothing,
    };
    Ok((said, WrittenUnder::Asking))
}

/// The value that says a state, as the scripts write it.
#[cfg(feature = "testing")]
pub(super) fn value(written: &tidegate_core::Written<'_>, now: Timestamp, tag: Tag) -> String {
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
            Tag::Registered(tag) => format!("{zero}{tag:03}"),
            Tag::Whole => {
                format!("{zero}:{}", numbers(written.shape, Tag::Whole, Timestamp::EPOCH))
            }
        },
    }
}

/// A bucket's zero with its tag, or with its shape written out.
fn parse_zero(text: &str) -> Result<(StateContents, WrittenUnder), StoreError> {
    if let Some((zero, numbers)) = text.split_once(':') {
        let shape = numbers.rsplit(' ').next().unwrap_or_default();
        return Ok((StateContents::Zero(parsed(zero)?), WrittenUnder::Whole(parse_shape(shape)?)));
    }
    let split = text.split_at_checked(text.len().saturating_sub(3));
    let (zero, tag) = split.ok_or_else(|| garbled(text.as_bytes()))?;
    Ok((StateContents::Zero(parsed(zero)?), WrittenUnder::Registered(parsed(tag)?)))
}

pub(super) fn number<N: std::str::FromStr>(bytes: &[u8]) -> Result<N, StoreError> {
    parsed(str::from_utf8(bytes).map_err(|_| garbled(bytes))?)
}

fn parsed<N: std::str::FromStr>(text: &str) -> Result<N, StoreError> {
    text.parse().map_err(|_| garbled(text.as_bytes()))
}

fn garbled(value: &[u8]) -> StoreError {
    let shown: String = String::from_utf8_lossy(value).chars().take(80).collect();
    StoreError::Broken(format!("`{shown}` is no state of ours"))
}

/// How a bucket's state names the shape it is written under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    /// By three digits that the registry translates; 0 for limits whose states need no shape.
    Registered(u16),
    /// In full, where the digits have run out.
    Whole,
}

/// What a value says of the shape it was written under.
pub(super) enum WrittenUnder {
    /// Nothing: any limit that asks can read it.
    Asking,
    Registered(u16),
    Whole(Limit),
    /// How much fitted under it: all that matters of it.
    Room(u64),
}

/// The shape by which a value is read.
pub(super) enum Shape<'l> {
    /// Of a limit that asks.
    Asking(&'l Limit),
    /// Of a limit that was registered, or made for reading.
    Kept(Arc<Limit>),
}

impl<'l> Shape<'l> {
    /// The limit that asks, if as much fits under it and it can hold what was counted; otherwise one like it
    /// under which so much does.
    pub(super) fn with_room(limit: &'l Limit, room: u64, said: &StateContents) -> Self {
        let counted =
            if let StateContents::Windows { cur, prev, .. } = said { *cur.max(prev) } else { 0 };
        if room == limit.room(Bound::Headroom) && counted <= limit.deepest() {
            return Self::Asking(limit);
        }
        let like = Limit::new(room, limit.period().clone(), limit.algorithm());
        like.map_or(Self::Asking(limit), |like| Self::Kept(Arc::new(like)))
    }

    /// The limit that asks; or, if it was lowered and what was counted does not fit it any more, one like it
    /// that is as large as it was.
    pub(super) fn wide_enough(limit: &'l Limit, said: &StateContents) -> Result<Self, StoreError> {
        let counted = match said {
            StateContents::Window { count, .. } => *count,
            StateContents::Buckets { counts, .. } => counts.iter().map(|(_, count)| *count).sum(),
            StateContents::Nothing
            | StateContents::Windows { .. }
            | StateContents::Log(_)
            | StateContents::Zero(_) => 0,
        };
        if counted <= limit.deepest() || limit.is_unlimited() || limit.amount() == 0 {
            return Ok(Self::Asking(limit));
        }
        // Twice the amount is the most that is ever counted.
        let wide = Limit::new(counted.div_ceil(2), limit.period().clone(), limit.algorithm());
        wide.map(|wide| Self::Kept(Arc::new(wide)))
            .map_err(|error| StoreError::Broken(error.to_string()))
    }

    pub(super) fn limit(&self) -> &Limit {
        match self {
            Self::Asking(limit) => limit,
            Self::Kept(limit) => limit,
        }
    }
}

// === shapes ===

/// A bucket as text, for the registry.
pub(super) fn shape_text(limit: &Limit) -> String {
    let (kind, size) = match limit.algorithm() {
        Algorithm::TokenBucket { burst, refill: Refill::Continuous } => ("token", burst),
        Algorithm::TokenBucket { burst, refill: Refill::Interval } => ("interval", burst),
        Algorithm::LeakyBucket { queue } => ("leaky", queue),
        Algorithm::FixedWindow { .. }
        | Algorithm::SlidingLog
        | Algorithm::SlidingBuckets { .. }
        | Algorithm::SlidingWeighted => ("window", None),
    };
    let (headroom, percent) = match limit.headroom() {
        Headroom::None => ("none", 0),
        Headroom::Soft(percent) => ("soft", percent),
        Headroom::Elastic(percent) => ("elastic", percent),
    };
    let size = size.unwrap_or(limit.amount());
    format!("{kind}/{}/{}/{size}/{headroom}/{percent}", limit.amount(), period_nanos(limit))
}

/// The bucket that a text of the registry means.
pub(super) fn parse_shape(text: &str) -> Result<Limit, StoreError> {
    let bad = || StoreError::Broken(format!("`{text}` is no shape of ours"));
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
    fn what_a_script_counts_exactly_is_supported_and_no_more() {
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
            (true, every(0, odd, Algorithm::SLIDING_LOG)), // blocks: nothing is counted
            (true, Limit::unlimited()),
        ] {
            assert_eq!(supports(&limit).is_ok(), supported, "{limit:?}");
        }
    }

    #[test]
    fn a_lowered_limit_reads_what_was_counted_before() {
        let first = Algorithm::FixedWindow { align: Align::First };
        let low = every(500_000, Span::from_secs(60), first);
        let said = StateContents::Window { number: 1, count: 2_000_000 };
        let shape = Shape::wide_enough(&low, &said).unwrap();
        assert_ne!(shape.limit().remember(&said), tidegate_core::State::Empty);
    }

    #[test]
    fn shapes_are_read_as_written() {
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
    fn values_that_are_not_ours_are_said_to_be() {
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
                // Either it can be read as some state, or it is refused; never a panic.
                let _ = parse(limit, value);
            }
            assert!(parse(limit, b"no state").is_err());
        }
    }
}
