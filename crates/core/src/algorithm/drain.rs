//! A level that falls at a constant rate, stored as the one instant at which it will be zero.
//!
//! Both buckets are built on it: the *used* tokens of a token bucket come back at the rate, and the *promised* turns of a
//! leaky bucket pass at the rate. Instead of a level and the time at which it was measured, one word stores the tick at
//! which the level is zero. The level is the distance to that tick.
//!
//! ```text
//!   level
//!    3 ┤╲
//!    2 ┤ ╲           take 1: the zero moves one unit to the right
//!    1 ┤  ╲ ┌╲
//!    0 ┼───╲┘─╲──────────► time          level(now) = zero − now, or 0 if zero has passed
//!      now     zero
//! ```
//!
//! **Ticks.** 7 per minute is one token every 8,571,428,571.43 ns. Rounding that to nanoseconds would lose a little with
//! every token. So time is measured in ticks, and a token is a whole number of ticks: a tick is `W / (L · 2ᵏ)` and a token
//! is `2ᵏ` ticks. Only *reading the clock* rounds (down), and that error does not add up. `k` is chosen so that a tick is
//! 0.5 to 1 µs long, or 0 if a token is shorter than that. Then ticks since the epoch stay below 2⁵³ for limits up to a
//! million per second, and a script that computes with doubles can count them too.
//!
//! Near the end of 64 bits ticks stop early enough that no sum can overflow. Nothing drains from there on, so nothing is
//! granted that should not be.

use super::{Refill, TOLERANCE, Ticks};
use crate::ratio::Ratio;
use crate::state::State;
use crate::time::{Span, Timestamp};

/// The longest tick.
const LONGEST_TICK: Span = Span::from_nanos(1_000);

const NANOS_PER_MICRO: u128 = 1_000;

/// The rate at which a level falls, and how high it can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Drain {
    /// `L · 2ᵏ` ticks in `W` nanoseconds.
    ticks: Ratio,
    /// `k`.
    unit_bits: u32,
    refill: Refill,
    /// The highest level that takes can reach, in ticks.
    full: u64,
    /// The highest level that charges can reach, plus the tolerated difference between clocks.
    highest: u64,
}

impl Drain {
    /// `amount` per `window` nanoseconds; `None` if that is faster than one per nanosecond.
    pub(crate) fn new(amount: u64, window: u64, refill: Refill) -> Option<Self> {
        let mut unit_bits = 0;
        while u128::from(amount) << unit_bits < u128::from(window.div_ceil(LONGEST_TICK.as_nanos()))
        {
            unit_bits = u32::saturating_add(unit_bits, 1);
        }
        let ticks = Ratio::new(amount.checked_mul(1 << unit_bits)?, window)?;
        Some(Self { ticks, unit_bits, refill, full: 0, highest: 0 })
    }

    /// Bounds the level: takes may fill it up to `full` ticks, charges up to `most` ticks.
    pub(crate) fn bounded(self, full: u64, most: u64) -> Self {
        let disorder = self.ticks.floor(TOLERANCE.as_nanos()).saturating_add(1);
        let tolerance = match self.refill {
            Refill::Continuous => disorder,
            // A clock that is only just behind a refill is a whole period of ticks behind.
            Refill::Interval => disorder.next_multiple_of(self.ticks.num()),
        };
        Self { full, highest: most.saturating_add(tolerance), ..self }
    }

    /// The ticks of one token or turn.
    #[inline]
    pub(crate) const fn unit(&self) -> u64 {
        1 << self.unit_bits
    }

    pub(crate) const fn public(&self) -> Ticks {
        Ticks { per_period: self.ticks.num(), token: self.unit(), believed: self.highest }
    }

    /// Whether this many ticks pass within `span`.
    pub(crate) fn lasts_at_most(&self, ticks: u64, span: Span) -> bool {
        self.ticks.first(ticks).is_some_and(|nanos| nanos <= span.as_nanos())
    }

    /// The tick of an instant, rounded down; with `Refill::Interval`, the tick at which its period began.
    pub(crate) fn at(&self, now: Timestamp) -> u64 {
        let tick = match self.refill {
            Refill::Continuous => self.ticks.floor(now.as_nanos()),
            Refill::Interval => self.periods(now).saturating_mul(self.ticks.num()),
        };
        tick.min(self.last())
    }

    /// The tick of an instant and the remainder of that division; `None` with `Refill::Interval`.
    #[inline]
    pub(crate) fn tick_and_rest(&self, now: Timestamp) -> Option<(u64, u64)> {
        match self.refill {
            Refill::Continuous => Some(self.ticks.floor_and_rest(now.as_nanos())),
            Refill::Interval => None,
        }
    }

    /// The time until this many ticks later, from an instant with this remainder: `⌈(ticks · den − rest) / num⌉`.
    #[inline]
    pub(crate) fn span_until(&self, ticks: u64, rest: u64) -> Span {
        if ticks == 0 {
            return Span::ZERO;
        }
        let (num, den) = (self.ticks.num(), self.ticks.den());
        let nanos = match ticks.checked_mul(den) {
            // `rest` is less than `den`, and `scaled` is not.
            Some(scaled) => self.ticks.div_ceil_num(scaled.wrapping_sub(rest)),
            None => {
                let scaled = u128::from(ticks).saturating_mul(u128::from(den));
                let nanos = scaled.saturating_sub(u128::from(rest)).div_ceil(u128::from(num));
                u64::try_from(nanos).unwrap_or(u64::MAX)
            }
        };
        Span::from_nanos(nanos)
    }

    /// The ticks of this many tokens.
    #[inline]
    pub(crate) const fn ticks_of(&self, tokens: u64) -> Option<u64> {
        tokens.checked_mul(self.unit())
    }

    /// How many whole tokens this many ticks are, rounded down.
    #[inline]
    pub(crate) const fn whole_units(&self, ticks: u64) -> u64 {
        ticks.wrapping_shr(self.unit_bits) // less than 64: a token fits 64 bits
    }

    #[inline]
    pub(crate) const fn highest(&self) -> u64 {
        self.highest
    }

    /// The first instant of a tick; `None` if that tick never comes.
    pub(crate) fn instant(&self, tick: u64) -> Option<Timestamp> {
        if tick > self.last() {
            return None;
        }
        let nanos = match self.refill {
            Refill::Continuous => self.ticks.first(tick),
            Refill::Interval => tick.div_ceil(self.ticks.num()).checked_mul(self.ticks.den()),
        };
        nanos.map(Timestamp::from_nanos)
    }

    /// When the next refill is; `None` if tokens come back one by one.
    pub(crate) fn next_refill(&self, now: Timestamp) -> Option<Timestamp> {
        match self.refill {
            Refill::Continuous => None,
            Refill::Interval => self.instant(self.at(now).checked_add(1)?),
        }
    }

    /// How long it takes until this many ticks have passed; `None` if that is forever.
    pub(crate) fn span_of(&self, ticks: u64) -> Option<Span> {
        Some(self.instant(ticks)?.since(Timestamp::EPOCH))
    }

    /// The tick of an instant, rounded up.
    pub(crate) fn at_or_after(&self, instant: Timestamp) -> u64 {
        self.ticks.ceil(instant.as_nanos())
    }

    /// The instant at which a tick begins, rounded down and up to whole microseconds. Instants are converted between limits in
    /// microseconds, because a script in a remote store cannot read its clock more precisely.
    pub(crate) fn micros_around(&self, tick: u64) -> [Timestamp; 2] {
        let tick = match self.refill {
            Refill::Continuous => tick,
            Refill::Interval => tick.next_multiple_of(self.ticks.num()),
        };
        let scaled = u128::from(tick).saturating_mul(u128::from(self.ticks.den()));
        let unit = u128::from(self.ticks.num()).saturating_mul(NANOS_PER_MICRO);
        let micros = [scaled.checked_div(unit).unwrap_or(0), scaled.div_ceil(unit)];
        micros.map(|micros| {
            let nanos = u64::try_from(micros.saturating_mul(NANOS_PER_MICRO));
            nanos.map_or(Timestamp::END, Timestamp::from_nanos)
        })
    }

    /// The last tick. Ticks stop here, so that `at + highest` fits 64 bits.
    const fn last(&self) -> u64 {
        u64::MAX.saturating_sub(self.highest)
    }

    fn periods(&self, now: Timestamp) -> u64 {
        now.as_nanos().checked_div(self.ticks.den()).unwrap_or(0)
    }

    /// Converts a level of another drain to this one: as many tokens, rounded up.
    pub(crate) fn convert_up(&self, from: &Self, level: u64) -> u64 {
        let scaled = u128::from(level) << self.unit_bits;
        let part = u128::from(from.unit().saturating_sub(1));
        u64::try_from(scaled.saturating_add(part) >> from.unit_bits).unwrap_or(u64::MAX)
    }

    /// Converts a level of another drain to this one: as many tokens, rounded down.
    pub(crate) fn convert_down(&self, from: &Self, level: u64) -> u64 {
        let scaled = u128::from(level) << self.unit_bits;
        u64::try_from(scaled >> from.unit_bits).unwrap_or(u64::MAX)
    }

    // --- the operations that both buckets share ---

    pub(crate) fn used(&self, state: &State, now: Timestamp) -> u64 {
        state.word().saturating_sub(self.at(now))
    }

    pub(crate) fn wait(&self, state: &State, now: Timestamp, at_most: u64) -> Option<Span> {
        let tick = state.word().saturating_sub(at_most);
        if tick <= self.at(now) { Some(Span::ZERO) } else { Some(self.instant(tick)?.since(now)) }
    }

    /// Raises the level by `ticks` and returns the new zero.
    pub(crate) fn add(&self, state: &mut State, now: Timestamp, ticks: u64) -> u64 {
        let zero = state.word().max(self.at(now)).saturating_add(ticks);
        *state = State::of_word(zero);
        zero
    }

    /// Lowers the level by `ticks`, but not below zero.
    pub(crate) fn lower(&self, state: &mut State, now: Timestamp, ticks: u64) {
        *state = State::of_word(state.word().saturating_sub(ticks));
        self.settle(state, now);
    }

    /// Replaces a zero that has passed by the empty state.
    pub(crate) fn settle(&self, state: &mut State, now: Timestamp) {
        if self.used(state, now) == 0 {
            *state = State::Empty;
        }
    }

    /// Whether the zero is further ahead than takes, charges and the tolerance can put it.
    pub(crate) fn is_ahead(&self, state: &State, now: Timestamp) -> bool {
        self.used(state, now) > self.highest
    }

    /// Counts everything that takes can use as used now. Debt beyond that is forgiven, so that no caller waits longer than
    /// the bucket takes to fill.
    pub(crate) fn mend(&self, state: &mut State, now: Timestamp) {
        *state = State::of_word(self.at(now).saturating_add(self.full));
    }
}
