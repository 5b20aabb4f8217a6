//! The naive model: it keeps everything that ever passed and adds it up again for each request.
//!
//! It is simple on purpose. It divides where the core multiplies by reciprocals, and keeps the whole history where the core
//! keeps one word.

use crate::history::{Family, Params};
use tidegate_core::Timestamp;

/// Everything that passed.
pub(crate) struct Model<'p> {
    params: &'p Params,
    hits: Vec<(u64, u64)>,
}

impl<'p> Model<'p> {
    pub(crate) fn new(params: &'p Params) -> Self {
        Self { params, hits: Vec::new() }
    }

    pub(crate) fn remember(&mut self, at: u64, cost: u64) {
        self.hits.push((at, cost));
    }

    /// Whether a cost passes at an instant, for a caller that can wait `wait` nanoseconds.
    pub(crate) fn passes(&self, now: u64, cost: u64, wait: u64) -> bool {
        let used = self.used(now);
        let fits = used + u128::from(cost) * self.unit() <= self.room();
        fits && (cost == 0 || self.turn(now) <= u128::from(wait))
    }

    /// The largest cost that passes.
    pub(crate) fn remaining(&self, now: u64, wait: u64) -> u64 {
        let used = self.used(now);
        if self.turn(now) > u128::from(wait) {
            return 0;
        }
        u64::try_from(self.room().saturating_sub(used) / self.unit()).unwrap()
    }

    /// The time until the next free turn, in nanoseconds: until the tick at which all promised turns are over.
    fn turn(&self, now: u64) -> u128 {
        if self.params.family != Family::Leaky {
            return 0;
        }
        let free = self.ticks(now) + self.used(now);
        let per_window = u128::from(self.params.amount) * self.ticks_per_token();
        (free * u128::from(self.params.window)).div_ceil(per_window).saturating_sub(u128::from(now))
    }

    fn room(&self) -> u128 {
        let Params { amount, size, .. } = *self.params;
        match self.params.family {
            Family::Token | Family::TokenInterval => u128::from(size) * self.unit(),
            Family::Leaky => u128::from(size + 1) * self.unit(),
            _ => u128::from(amount),
        }
    }

    /// The weight of a cost of 1: one hit, or the ticks of a token.
    pub(crate) fn unit(&self) -> u128 {
        match self.params.family {
            Family::Token | Family::TokenInterval | Family::Leaky => self.ticks_per_token(),
            _ => 1,
        }
    }

    fn used(&self, now: u64) -> u128 {
        match self.params.family {
            Family::FixedEpoch => {
                self.sum(|at| at / self.params.window == now / self.params.window)
            }
            Family::FixedCalendar => {
                let calendar = self.params.calendar();
                let window = |at| calendar.window(Timestamp::from_nanos(at));
                self.sum(|at| window(at) == window(now))
            }
            Family::FixedFirst => self.since_first(now),
            Family::Log => {
                let step = self.params.window.div_ceil(1_000_000);
                self.sum(|at| now < at.div_ceil(step) * step + self.params.window)
            }
            Family::Buckets => {
                let n = u128::from(self.params.buckets);
                let index = |at: u64| u128::from(at) * n / u128::from(self.params.window);
                self.sum(|at| index(at) + n >= index(now))
            }
            Family::Weighted => {
                let window = self.params.window;
                let cur = self.sum(|at| at / window == now / window);
                let prev = self.sum(|at| at / window + 1 == now / window);
                cur + prev * u128::from(window - now % window) / u128::from(window)
            }
            Family::Token | Family::TokenInterval | Family::Leaky => self.drained(now),
        }
    }

    fn sum(&self, counts: impl Fn(u64) -> bool) -> u128 {
        self.hits.iter().filter(|(at, _)| counts(*at)).map(|(_, cost)| u128::from(*cost)).sum()
    }

    /// Windows with `align: first`, replayed from the beginning of the history.
    fn since_first(&self, now: u64) -> u128 {
        let step = self.params.window.div_ceil(1_000);
        let (mut end, mut count) = (0, 0);
        for (at, cost) in self.hits.iter().filter(|(_, cost)| *cost > 0) {
            if *at >= end {
                (end, count) = (at.div_ceil(step) * step + self.params.window, 0);
            }
            count += u128::from(*cost);
        }
        if now < end { count } else { 0 }
    }

    /// A level that falls by one per tick, replayed from the beginning of the history.
    fn drained(&self, now: u64) -> u128 {
        let (mut level, mut last) = (0u128, 0u128);
        for (at, cost) in &self.hits {
            level = level.saturating_sub(self.ticks(*at) - last) + u128::from(*cost) * self.unit();
            last = self.ticks(*at);
        }
        level.saturating_sub(self.ticks(now) - last)
    }

    /// The ticks of an instant or a span, rounded down.
    pub(crate) fn ticks(&self, nanos: u64) -> u128 {
        let Params { amount, window, family, .. } = *self.params;
        let per_window = u128::from(amount) * self.ticks_per_token();
        match family {
            Family::TokenInterval => u128::from(nanos / window) * per_window,
            _ => u128::from(nanos) * per_window / u128::from(window),
        }
    }

    fn ticks_per_token(&self) -> u128 {
        let mut ticks = 1;
        while u128::from(self.params.amount) * ticks * 1_000 < u128::from(self.params.window) {
            ticks *= 2;
        }
        ticks
    }
}
