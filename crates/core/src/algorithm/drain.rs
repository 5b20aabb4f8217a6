//! A level that falls by itself, kept as the one instant at which it will be zero.
//!
//! Both buckets are this: a token bucket's *used* tokens come back at the rate, a leaky bucket's
//! *promised* turns pass at the rate. Instead of a level and the time it was read, one word keeps the
//! tick at which the level is zero; the level is then the distance to it.
//!
//! ```text
//!   level
//!    3 ┤╲
//!    2 ┤ ╲           take 1: the zero moves one unit to the right
//!    1 ┤  ╲ ┌╲
//!    0 ┼───╲┘─╲──────────► time          level(now) = zero − now, or 0 when that has passed
//!      now     zero
//! ```
//!
//! **Ticks.** 7 a minute is one every 8,571,428,571.43 ns, and whatever is rounded there is lost
//! again with every token. So time is measured in ticks of which a token is a whole number: a tick is
//! `W / (L · 2ᵏ)`, a token is `2ᵏ` ticks, and only *reading the clock* rounds (down), which does not
//! add up. `k` makes a tick 0.5 to 1 µs long, or 0 where a token is shorter than that. Then ticks since
//! the epoch stay below 2⁵³ for limits up to a million a second, and a script can count them too.
//!
//! Near the end of 64 bits ticks stand still early enough that no sum can overflow: nothing drains
//! any more, so nothing is granted that should not be.

use crate::limit::{Refill, Ticks};
use crate::ratio::Ratio;
use crate::state::State;
use crate::time::{Span, Timestamp};

use super::TOLERANCE;

/// A tick is at most this long, where a token is not shorter.
const LONGEST_TICK: Span = Span::from_nanos(1_000);

const NANOS_PER_MICRO: u128 = 1_000;

/// The rate at which levels fall, and how far up they can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Drain {
    /// `L · 2ᵏ` ticks in `W` nanoseconds.
    ticks: Ratio,
    /// `k`.
    unit_bits: u32,
    refill: Refill,
    /// The highest level that takes can reach, in ticks.
    full: u64,
    /// The highest that charges can reach, and the disorder of clocks that we tolerate on top.
    highest: u64,
}

impl Drain {
    /// `amount` per `window` nanoseconds; `None` when that is faster than one a nanosecond.
    pub(crate) fn new(amount: u64, window: u64, refill: Refill) -> Option<Self> {
        let mut unit_bits = 0;
        while u128::from(amount) << unit_bits < u128::from(window.div_ceil(LONGEST_TICK.as_nanos()))
        {
            unit_bits = u32::saturating_add(unit_bits, 1);
        }
        let ticks = Ratio::new(amount.checked_mul(1 << unit_bits)?, window)?;
        Some(Self { ticks, unit_bits, refill, full: 0, highest: 0 })
    }

    /// The same drain with levels that takes raise up to `full`, and charges up to `most` ticks.
    pub(crate) fn bounded(self, full: u64, most: u64) -> Self {
        let disorder = self.ticks.floor(TOLERANCE.as_nanos()).saturating_add(1);
        let tolerance = match self.refill {
            Refill::Continuous => disorder,
            // A clock just behind an edge is a whole period behind.
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

    /// Whether so many ticks pass within `span`.
    pub(crate) fn lasts_at_most(&self, ticks: u64, span: Span) -> bool {
        self.ticks.first(ticks).is_some_and(|nanos| nanos <= span.as_nanos())
    }

    /// The tick of an instant, rounded down; with `Refill::Interval`, of its period's start.
    pub(crate) fn at(&self, now: Timestamp) -> u64 {
        let tick = match self.refill {
            Refill::Continuous => self.ticks.floor(now.as_nanos()),
            Refill::Interval => self.periods(now).saturating_mul(self.ticks.num()),
        };
        tick.min(self.last())
    }

    /// The tick of an instant, and what is left of the instant then; `None` with `Refill::Interval`.
    #[inline]
    pub(crate) fn tick_and_rest(&self, now: Timestamp) -> Option<(u64, u64)> {
        match self.refill {
            Refill::Continuous => Some(self.ticks.floor_and_rest(now.as_nanos())),
            Refill::Interval => None,
        }
    }

    /// How long from an instant that left this rest until so many ticks later: `⌈(ticks · den − rest) / num⌉`.
    #[inline]
    pub(crate) fn span_until(&self, ticks: u64, rest: u64) -> Span {
        if ticks == 0 {
            return Span::ZERO;
        }
        let (num, den) = (self.ticks.num(), self.ticks.den());
        let nanos = match ticks.checked_mul(den) {
            Some(scaled) => scaled.saturating_sub(rest).div_ceil(num),
            None => {
                let scaled = u128::from(ticks).saturating_mul(u128::from(den));
                let nanos = scaled.saturating_sub(u128::from(rest)).div_ceil(u128::from(num));
                u64::try_from(nanos).unwrap_or(u64::MAX)
            }
        };
        Span::from_nanos(nanos)
    }

    /// The ticks of so many tokens.
    #[inline]
    pub(crate) const fn ticks_of(&self, tokens: u64) -> Option<u64> {
        tokens.checked_mul(self.unit())
    }

    /// How many tokens so many ticks are, rounded down.
    #[inline]
    pub(crate) const fn whole_units(&self, ticks: u64) -> u64 {
        ticks >> self.unit_bits
    }

    #[inline]
    pub(crate) const fn highest(&self) -> u64 {
        self.highest
    }

    /// The first instant of a tick; `None` when it never comes.
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

    /// The tick at which an instant has certainly come, rounded up.
    pub(crate) fn at_or_after(&self, instant: Timestamp) -> u64 {
        self.ticks.ceil(instant.as_nanos())
    }

    /// When a tick begins, in whole microseconds, rounded down and up. Whatever two shapes say to each other
    /// about instants they say in microseconds, since that is what the clock of a script can tell.
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

    /// Ticks stand still here, so that `at + highest` fits 64 bits.
    const fn last(&self) -> u64 {
        u64::MAX.saturating_sub(self.highest)
    }

    fn periods(&self, now: Timestamp) -> u64 {
        now.as_nanos().checked_div(self.ticks.den()).unwrap_or(0)
    }

    /// A level of another drain as a level of this one: as many tokens, rounded up.
    pub(crate) fn convert_up(&self, from: &Self, level: u64) -> u64 {
        let scaled = u128::from(level) << self.unit_bits;
        let part = u128::from(from.unit().saturating_sub(1));
        u64::try_from(scaled.saturating_add(part) >> from.unit_bits).unwrap_or(u64::MAX)
    }

    /// A level of another drain as a level of this one: as many tokens, rounded down.
    pub(crate) fn convert_down(&self, from: &Self, level: u64) -> u64 {
        let scaled = u128::from(level) << self.unit_bits;
        u64::try_from(scaled >> from.unit_bits).unwrap_or(u64::MAX)
    }

    // --- the step, shared by both buckets ---

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

    /// Lowers the level by `ticks`, to zero at most.
    pub(crate) fn lower(&self, state: &mut State, now: Timestamp, ticks: u64) {
        *state = State::of_word(state.word().saturating_sub(ticks));
        self.settle(state, now);
    }

    /// Makes a zero that has passed the empty state.
    pub(crate) fn settle(&self, state: &mut State, now: Timestamp) {
        if self.used(state, now) == 0 {
            *state = State::Empty;
        }
    }

    /// Whether the zero lies further ahead than takes, charges and disorder can put it.
    pub(crate) fn is_ahead(&self, state: &State, now: Timestamp) -> bool {
        self.used(state, now) > self.highest
    }

    /// Counts as much as can be taken as taken now; what was owed beyond that is forgotten, so that nobody waits longer than
    /// it takes to fill.
    pub(crate) fn mend(&self, state: &mut State, now: Timestamp) {
        *state = State::of_word(self.at(now).saturating_add(self.full));
    }
}
