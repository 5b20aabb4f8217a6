//! Keeps requests apart that leave a leaky bucket, also when timers are late.
//!
//! A leaky bucket promises turns that are `T` apart. On a busy machine a timer can be late, and the request would leave just
//! before the next one. So while requests wait, each leaves at least a [`gap`] after the one before: a delay is made up for
//! over the following turns, not at once.
//!
//! ```text
//!   T = 10 ms, so the gap is 9 ms
//!   turn      10       20       30       40       50
//!   timer     10             26 30       40       50     one is 6 ms late
//!   leaves    10             26       35       44     53
//! ```

use crate::receipt::Receipt;
use crate::timers;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tidegate_core::{Algorithm, Limit, Period, StateId};
use tokio::time::Instant;

/// By how much tokio's timer may be late on an idle machine: it counts in milliseconds and rounds up.
const TIMER_ERROR: Duration = Duration::from_millis(1);

/// The requests of a limiter that were promised turns in leaky buckets.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    lines: Mutex<HashMap<StateId, Line>>,
}

/// The requests that wait for turns in one leaky bucket. It exists while there are any.
#[derive(Debug, Default)]
struct Line {
    /// How many wait.
    waiting: usize,
    /// How many have waited here so far.
    promised: usize,
    /// The requests whose turn has come.
    due: BTreeSet<TurnKey>,
    /// When the last request left.
    left: Option<Instant>,
}

/// Turns are ordered by time, and simultaneous ones by the order of their promises.
type TurnKey = (Instant, usize);

/// A promised turn. Dropping it frees its place.
#[derive(Debug)]
pub(crate) struct Turn<'t> {
    turns: &'t Turns,
    state: StateId,
    gap: Duration,
    key: TurnKey,
}

impl Turns {
    /// The turn that a leaky bucket promised to a request, at this instant; `None` if its receipt names no leaky bucket that
    /// is slow enough to be kept apart.
    pub(crate) fn promised(&self, receipt: &Receipt, at: Instant) -> Option<Turn<'_>> {
        let gaps = receipt.parts.iter().map(|part| (gap(&part.limit), part.state));
        let (gap, state) = gaps.max().filter(|(gap, _)| !gap.is_zero())?;
        let number = self.line(state, |line| {
            line.waiting = line.waiting.saturating_add(1);
            line.promised = line.promised.wrapping_add(1);
            line.promised
        });
        Some(Turn { turns: self, state, gap, key: (at, number) })
    }

    fn line<T>(&self, state: StateId, change: impl FnOnce(&mut Line) -> T) -> T {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let line = lines.entry(state).or_default();
        let done = change(line);
        if line.waiting == 0 {
            lines.remove(&state);
        }
        done
    }
}

impl Turn<'_> {
    /// Waits until the request may leave.
    pub(crate) async fn come(&self) {
        timers::sleep_until(self.key.0).await;
        while let Err(then) = self.leave(timers::now()) {
            timers::sleep_until(then).await;
        }
    }

    /// Leaves, if that keeps the gap; otherwise returns when to try again.
    fn leave(&self, now: Instant) -> Result<(), Instant> {
        self.turns.line(self.state, |line| {
            line.due.insert(self.key);
            let after = |gap| line.left.and_then(|left: Instant| left.checked_add(gap));
            let earliest = after(self.gap).unwrap_or(now);
            // One that is first and does not leave, because its task is not polled, must not stop the others.
            let overdue = after(self.gap.saturating_mul(2)).unwrap_or(now);
            let may_leave = earliest <= now;
            if may_leave && (line.due.first() == Some(&self.key) || overdue <= now) {
                line.left = Some(now);
                line.due.remove(&self.key);
                return Ok(());
            }
            Err(if may_leave { overdue } else { earliest })
        })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.line(self.state, |line| {
            line.waiting = line.waiting.saturating_sub(1);
            line.due.remove(&self.key);
        });
    }
}

/// How far apart requests leave this limit at least: `T` less a tenth, and less the error of the timer. Zero for limits that
/// promise no turns.
fn gap(limit: &Limit) -> Duration {
    match (limit.algorithm(), limit.period()) {
        (Algorithm::LeakyBucket { .. }, Period::Every(period)) => {
            let nanos = period.as_nanos().checked_div(limit.amount()).unwrap_or(0);
            let tenth = Duration::from_nanos(nanos.checked_div(10).unwrap_or(0));
            Duration::from_nanos(nanos).saturating_sub(TIMER_ERROR.max(tenth))
        }
        (
            Algorithm::LeakyBucket { .. }
            | Algorithm::TokenBucket { .. }
            | Algorithm::FixedWindow { .. }
            | Algorithm::SlidingLog
            | Algorithm::SlidingBuckets { .. }
            | Algorithm::SlidingWeighted
            | Algorithm::Concurrent,
            Period::Every(_) | Period::Calendar(_),
        ) => Duration::ZERO,
    }
}

#[cfg(test)]
#[expect(clippy::arithmetic_side_effects, reason = "a test fails loudly")]
mod tests {
    use super::*;
    use tidegate_core::Span;

    const A: StateId = StateId(1);

    fn turn(turns: &Turns, at: Instant) -> Turn<'_> {
        let number = turns.line(A, |line| {
            line.waiting += 1;
            line.promised += 1;
            line.promised
        });
        Turn { turns, state: A, gap: Duration::from_millis(9), key: (at, number) }
    }

    /// The picture above: the third and fourth leave 9 ms after the one before, then all is as promised.
    #[tokio::test(start_paused = true)]
    async fn a_late_timer_does_not_bring_two_requests_together() {
        let (turns, start) = (Turns::default(), timers::now());
        let ms = |ms| start + Duration::from_millis(ms);
        let line: Vec<_> = (1..=8).map(|number| turn(&turns, ms(10 * number))).collect();
        assert_eq!(line[0].leave(ms(10)), Ok(()));
        assert_eq!(line[1].leave(ms(26)), Ok(()));
        assert_eq!(line[2].leave(ms(30)), Err(ms(35)));
        assert_eq!(line[2].leave(ms(35)), Ok(()));
        assert_eq!(line[3].leave(ms(40)), Err(ms(44)));
        assert_eq!(line[3].leave(ms(44)), Ok(()));
        assert_eq!(line[4].leave(ms(70)), Ok(()));
        drop(line);
        assert!(turns.lines.lock().unwrap().is_empty());
    }

    /// Two timers fire at once after a stall, the later one first: they leave in order. If the first is never polled again,
    /// the second leaves without it.
    #[test]
    fn the_order_is_kept_and_nobody_stops_the_others() {
        let (turns, start) = (Turns::default(), timers::now());
        let ms = |ms| start + Duration::from_millis(ms);
        let line: Vec<_> = (1..=4).map(|number| turn(&turns, ms(10 * number))).collect();
        assert_eq!(line[0].leave(ms(35)), Ok(()));
        assert_eq!(line[2].leave(ms(36)), Err(ms(44)));
        assert_eq!(line[1].leave(ms(37)), Err(ms(44)));
        assert_eq!(line[2].leave(ms(44)), Err(ms(53)));
        assert_eq!(line[1].leave(ms(44)), Ok(()));
        assert_eq!(line[3].leave(ms(50)), Err(ms(53)));
        assert_eq!(line[3].leave(ms(53)), Err(ms(62))); // the third does not come
        assert_eq!(line[3].leave(ms(62)), Ok(()));
    }

    #[test]
    fn only_slow_leaky_buckets_are_kept_apart() {
        let leaky = |amount| {
            let queue = Algorithm::LeakyBucket { queue: None };
            gap(&Limit::new(amount, Span::from_secs(1), queue).unwrap())
        };
        let ms = Duration::from_millis;
        assert_eq!([1, 100, 500, 1_000, 9_000].map(leaky), [ms(900), ms(9), ms(1), ms(0), ms(0)]);
        let bucket = Limit::new(1, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
        assert_eq!(gap(&bucket), ms(0));
    }
}
