//! The values in which a limit counts, and their keys.
//!
//! | algorithm | value | key |
//! |---|---|---|
//! | `fixed_window` | the count of a window | `tg` state `f` period `.` window |
//! | `fixed_window` of a calendar | the same | `tg` state `c.` window |
//! | `sliding_weighted` | the same; a decision reads two | `tg` state `w` period `.` window |
//! | `token_bucket` | the tick at which nothing is in use any more | `tg` state `t` period `.` amount `.` length of a tick |
//!
//! States have the lower 96 bits of their name as 16 digits of base 64, numbers as many as they need. A window that is named in its key is
//! never counted in another one, however late a command arrives. The ticks of a bucket depend on its rate, and their length on its
//! burst; so a bucket that is edited begins full, under another key.

use super::meta::KeyText;
use tidegate_core::{
    Algorithm, Align, Ask, Bound, Cost, Limit, Period, Refill, Span, StateContents, StateId,
    TakeReceipt, Timestamp, Written,
};

/// What of a limit is part of its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CounterShape {
    Window { period: u64 },
    Calendar,
    Weighted { period: u64 },
    Bucket { period: u64, amount: u64, token: u64, refill: u8 },
}

/// A state under a limit, now.
pub(super) struct Counter {
    pub(super) shape: CounterShape,
    pub(super) key: KeyText,
    /// The key of the window before, which is read too.
    pub(super) before: Option<KeyText>,
    /// The window of now, or now in ticks.
    pub(super) number: u64,
    /// How long the value is kept.
    pub(super) seconds: u64,
}

/// What was found in a counter, without what was added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) value: u64,
    /// The value of the window before.
    pub(super) before: u64,
}

/// Which part of a receipt it is, in whatever order they are presented.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartName {
    pub(super) state: StateId,
    /// How many parts of the same state are before it.
    pub(super) before: usize,
}

/// Clocks of nodes may differ by this much, and no node forgets what another one still counts.
const TOLERATED_SECONDS: u64 = 10;
/// Values are kept for longer than they count by the clock of the node that added last: a time to live counts in whole seconds, and
/// another node may still be in the window when that one has left it.
const KEPT_LONGER: u64 = 2 + TOLERATED_SECONDS;
/// The letter of buckets whose tokens come back together.
const INTERVAL: u8 = b'i';
const NANOS: u64 = 1_000_000_000;
/// Ticks in a microsecond at most: those of all instants, and of much more than any node adds, fit 64 bits.
const MOST_TICKS: u64 = 2;
/// The most ticks in use: decades.
const MOST_IN_USE: u64 = 1 << 52;

// === impl CounterShape ===

impl CounterShape {
    /// The shape of a limit; `None` if it keeps no state. Or why memcached cannot count it.
    pub(super) fn of(limit: &Limit) -> Result<Option<Self>, &'static str> {
        if limit.is_unlimited() || limit.room(Bound::Headroom) == 0 {
            return Ok(None);
        }
        let period = match limit.period() {
            Period::Every(period) => Some(period.as_nanos()),
            Period::Calendar(_) => None,
        };
        match (limit.algorithm(), period) {
            (Algorithm::FixedWindow { .. }, None) => Ok(Some(Self::Calendar)),
            (Algorithm::FixedWindow { align: Align::Epoch }, Some(period)) => {
                Ok(Some(Self::Window { period }))
            }
            (Algorithm::SlidingWeighted, Some(period)) => Ok(Some(Self::Weighted { period })),
            (Algorithm::TokenBucket { refill, .. }, Some(period)) => {
                let ticks = limit.ticks().ok_or("memcached counts buckets in ticks")?;
                if ticks.per_period > (period / 1_000).saturating_mul(MOST_TICKS) {
                    return Err("faster than two million a second is counted in memory only");
                }
                if ticks.believed > MOST_IN_USE {
                    return Err("a burst that takes decades to fill is counted in memory only");
                }
                let refill = match refill {
                    Refill::Continuous => b't',
                    Refill::Interval => INTERVAL,
                };
                let (amount, token) = (limit.amount(), ticks.token);
                Ok(Some(Self::Bucket { period, amount, token, refill }))
            }
            (Algorithm::FixedWindow { align: Align::First }, Some(_)) => Err(
                "memcached cannot count windows that begin with the first hit; use `align: epoch`",
            ),
            (Algorithm::SlidingLog | Algorithm::SlidingBuckets { .. }, _) => Err(
                "memcached cannot count it without gaps; use `sliding_weighted`, `fixed_window` or `token_bucket`",
            ),
            (Algorithm::LeakyBucket { .. }, _) => Err(
                "memcached could give one turn to two callers; use `token_bucket`, or a store on Redis",
            ),
            (Algorithm::Concurrent, _) => {
                Err("memcached cannot count requests in flight; use a store on Redis")
            }
            (Algorithm::SlidingWeighted | Algorithm::TokenBucket { .. }, None) => {
                Err("only fixed windows have a calendar")
            }
        }
    }

    /// The key of a window, or of a bucket.
    pub(super) fn key(self, state: StateId, window: u64) -> KeyText {
        let mut key = KeyText::from_slice(b"tg");
        push_state(&mut key, state);
        match self {
            Self::Window { period } => push(&mut key, b'f', period, window),
            Self::Calendar => {
                key.extend_from_slice(b"c.");
                push_number(&mut key, window);
            }
            Self::Weighted { period } => push(&mut key, b'w', period, window),
            Self::Bucket { period, amount, token, refill } => {
                push(&mut key, refill, period, amount);
                key.push(b'.');
                push_number(&mut key, u64::from(token.trailing_zeros()));
            }
        }
        key
    }

    /// The keys under which a state may have values now.
    pub(super) fn all_keys(
        self,
        state: StateId,
        now: Timestamp,
        calendars: &[u64],
    ) -> Vec<KeyText> {
        let windows = match self {
            Self::Window { period } | Self::Weighted { period } => {
                let window = now.as_nanos().checked_div(period).unwrap_or(0);
                vec![window.saturating_sub(1), window, window.saturating_add(1)]
            }
            Self::Calendar => calendars.to_vec(),
            Self::Bucket { .. } => vec![0],
        };
        windows.into_iter().map(|window| self.key(state, window)).collect()
    }
}

fn push_state(key: &mut KeyText, StateId(id): StateId) {
    for place in (0..16_u32).rev() {
        key.push(digit(id >> (place.saturating_mul(6))));
    }
}

fn push(key: &mut KeyText, kind: u8, period: u64, number: u64) {
    key.push(kind);
    push_number(key, period);
    key.push(b'.');
    push_number(key, number);
}

fn push_number(key: &mut KeyText, number: u64) {
    let digits = 64_u32.saturating_sub(number.leading_zeros()).div_ceil(6).max(1);
    for place in (0..digits).rev() {
        key.push(digit(u128::from(number >> (place.saturating_mul(6)))));
    }
}

/// The lowest six bits as a digit.
fn digit(number: u128) -> u8 {
    const DIGITS: &[u8; 64] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-";
    let index = usize::try_from(number & 63).unwrap_or(0);
    DIGITS.get(index).copied().unwrap_or(b'0')
}

// === impl Counter ===

impl Counter {
    pub(super) fn new(shape: CounterShape, state: StateId, limit: &Limit, now: Timestamp) -> Self {
        let (number, lasts) = match shape {
            CounterShape::Window { period } => window(now, period),
            CounterShape::Weighted { period } => {
                let (window, left) = window(now, period);
                (window, left.saturating_add(period))
            }
            CounterShape::Calendar => calendar(limit, now),
            CounterShape::Bucket { period, refill, .. } => {
                (tick(limit, now, period, refill), drained_after(limit, period))
            }
        };
        let before = match shape {
            CounterShape::Weighted { .. } => {
                number.checked_sub(1).map(|before| shape.key(state, before))
            }
            CounterShape::Window { .. } | CounterShape::Calendar | CounterShape::Bucket { .. } => {
                None
            }
        };
        let seconds = lasts.div_ceil(NANOS).saturating_add(KEPT_LONGER);
        Self { shape, key: shape.key(state, number), before, number, seconds }
    }

    /// What a value that does not exist yet becomes when this weight is added.
    pub(super) fn first(&self, weight: u64) -> u64 {
        self.empty().saturating_add(weight)
    }

    /// The value that means that nothing is in use.
    pub(super) fn empty(&self) -> u64 {
        match self.shape {
            CounterShape::Bucket { .. } => self.number,
            CounterShape::Window { .. }
            | CounterShape::Calendar
            | CounterShape::Weighted { .. } => 0,
        }
    }

    /// Whether something was in use, so that what was added is really counted. A bucket in which nothing is in use shows an instant
    /// of the past, and what is added to it may still be in the past.
    pub(super) fn is_current(&self, found: Reading) -> bool {
        found.value >= self.empty()
    }

    /// Whether a bucket is filled further into the future than by all that it can have in use and the difference between clocks that
    /// agree: a node with a wrong clock added to it, or many callers add at this moment and will take it back.
    pub(super) fn is_far_ahead(&self, limit: &Limit, found: Reading) -> bool {
        let CounterShape::Bucket { period, .. } = self.shape else { return false };
        let per_period = limit.ticks().map_or(1, |ticks| ticks.per_period);
        let tolerated = u128::from(TOLERATED_SECONDS.saturating_mul(NANOS));
        let tolerated = tolerated.saturating_mul(u128::from(per_period));
        let tolerated = tolerated.checked_div(u128::from(period)).unwrap_or(0);
        let most = u128::from(self.empty()).saturating_add(u128::from(limit.deepest()));
        u128::from(found.value) > most.saturating_add(tolerated)
    }

    /// The limit as which the count of a window is read, if it is more than this limit can have in use: it was counted under a
    /// larger limit, or other callers are adding at this moment and will take it back. (A bucket with more in use is read as a
    /// full one: a larger one could have other ticks.)
    pub(super) fn wide(&self, limit: &Limit, found: Reading) -> Option<Box<Limit>> {
        if matches!(self.shape, CounterShape::Bucket { .. }) {
            return None;
        }
        let in_use = found.value.max(found.before);
        let wide = || Limit::new(in_use, limit.period().clone(), limit.algorithm()).ok();
        if in_use > limit.deepest() { wide().map(Box::new) } else { None }
    }

    /// What was found as the state of a limit.
    pub(super) fn contents(&self, limit: &Limit, found: Reading) -> StateContents {
        let Reading { value, before } = self.believed(limit, found);
        match self.shape {
            CounterShape::Window { .. } | CounterShape::Calendar => {
                StateContents::Window { number: self.number, count: value }
            }
            CounterShape::Weighted { .. } => {
                StateContents::Windows { number: self.number, cur: value, prev: before }
            }
            CounterShape::Bucket { .. } => StateContents::Zero(value),
        }
    }

    fn believed(&self, limit: &Limit, found: Reading) -> Reading {
        let (empty, deepest) = (self.empty(), limit.deepest());
        Reading {
            value: found.value.clamp(empty, empty.saturating_add(deepest)),
            before: found.before.min(deepest),
        }
    }

    /// How much a decision counted: the state that it left, compared with what was found and read as a state of this limit.
    pub(super) fn effect(&self, read_as: &Limit, found: Reading, left: &StateContents) -> i128 {
        let left = match left {
            StateContents::Window { number, count: value }
            | StateContents::Windows { number, cur: value, .. }
                if *number == self.number =>
            {
                *value
            }
            StateContents::Zero(tick) => *tick.max(&self.number),
            StateContents::Nothing
            | StateContents::Window { .. }
            | StateContents::Windows { .. }
            | StateContents::Buckets { .. }
            | StateContents::Log(_) => self.empty(),
        };
        i128::from(left).saturating_sub(i128::from(self.believed(read_as, found).value))
    }
}

/// What is given back of a part: the key, and by how much its value is lowered. `None` if it has stopped counting.
pub(super) fn given_back(
    state: StateId,
    limit: &Limit,
    receipt: &TakeReceipt,
    now: Timestamp,
) -> Option<(KeyText, u64)> {
    let shape = CounterShape::of(limit).ok()??;
    let counter = Counter::new(shape, state, limit, now);
    match shape {
        CounterShape::Bucket { .. } => {
            // A bucket with exactly this much in use says how much of it has come back by itself.
            let full = counter.number.saturating_add(receipt.weight);
            let state = limit.remember(&StateContents::Zero(full));
            let mut written = Written { shape: limit, state };
            written.give_back(now, limit, receipt);
            let mut left = counter.number;
            if let StateContents::Zero(tick) = written.remembered(now) {
                left = left.max(tick);
            }
            Some((counter.key, full.saturating_sub(left))).filter(|(_, weight)| *weight > 0)
        }
        CounterShape::Window { .. } | CounterShape::Calendar => {
            (receipt.mark == counter.number).then_some((counter.key, receipt.weight))
        }
        CounterShape::Weighted { .. } => {
            let counts = receipt.mark.saturating_add(1) >= counter.number;
            counts.then(|| (shape.key(state, receipt.mark), receipt.weight))
        }
    }
}

/// The window of an instant, and how long it lasts from then on, in nanoseconds.
fn window(now: Timestamp, period: u64) -> (u64, u64) {
    let passed = now.as_nanos().checked_rem(period).unwrap_or(0);
    (now.as_nanos().checked_div(period).unwrap_or(0), period.saturating_sub(passed))
}

/// The calendar window of an instant, and how long it lasts from then on, in nanoseconds. The core names the window as the mark of a
/// take.
fn calendar(limit: &Limit, now: Timestamp) -> (u64, u64) {
    let mut written = Written::empty(limit);
    let number = limit.charge(&mut written, &Ask::new(now, Cost::ONE)).mark;
    let left = limit.peek(&written, now).reset.unwrap_or(Span::ZERO);
    (number, left.as_nanos())
}

/// The tick of an instant, as the core counts them.
fn tick(limit: &Limit, now: Timestamp, period: u64, refill: u8) -> u64 {
    let per_period = limit.ticks().map_or(1, |ticks| ticks.per_period);
    let (now, period, per_period) =
        (u128::from(now.as_nanos()), u128::from(period), u128::from(per_period));
    let tick = match refill {
        INTERVAL => now.checked_div(period).map(|periods| periods.saturating_mul(per_period)),
        _ => now.saturating_mul(per_period).checked_div(period),
    };
    u64::try_from(tick.unwrap_or(0)).unwrap_or(u64::MAX)
}

/// When nothing of a bucket is in use any more, whatever was, in nanoseconds.
fn drained_after(limit: &Limit, period: u64) -> u64 {
    let per_period = limit.ticks().map_or(1, |ticks| ticks.per_period);
    let nanos = u128::from(limit.deepest()).saturating_mul(u128::from(period));
    let nanos = nanos.div_ceil(u128::from(per_period.max(1)));
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

/// How long a receipt is remembered.
pub(super) fn receipt_seconds(left: Span) -> u64 {
    left.as_nanos().div_ceil(NANOS).saturating_add(KEPT_LONGER)
}

/// The key of a receipt, and of its part for this state.
pub(super) fn receipt_key(id: u128, part: Option<PartName>) -> KeyText {
    let mut key = KeyText::from_slice(b"tgr");
    for place in (0..22_u32).rev() {
        key.push(digit(id >> (place.saturating_mul(6))));
    }
    if let Some(PartName { state, before }) = part {
        push_state(&mut key, state);
        if before > 0 {
            key.push(b'.');
            push_number(&mut key, u64::try_from(before).unwrap_or(u64::MAX));
        }
    }
    key
}
