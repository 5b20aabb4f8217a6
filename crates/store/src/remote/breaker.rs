//! Circuit breaker: decides whether the server is called at all. A pure state machine.
//!
//! ```text
//!   closed ──┬─ the connection is lost, or a probe fails ───┬──► open ── a probe of the keeper succeeds ──► closed
//!            └─ 5 timeouts in a row, or 10 within a second ─┘
//! ```
//!
//! Only timeouts are counted as failures. Every reply counts as a success, even an error, unless it ends the connection.
//!
//! There is no half-open state: no caller's request is used to probe a server that may still be down. The
//! [keeper](super::keeper) of the connection probes it with calls of its own.

use tidegate_core::{Span, Timestamp};

#[derive(Clone, Debug)]
pub(crate) struct Breaker {
    state: BreakerState,
    /// Timeouts since the last reply.
    in_a_row: u32,
    /// Timeouts in the second that began at `since`.
    lately: u32,
    /// Set by the first timeout after that second, and when the breaker closes.
    since: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerState {
    Closed,
    Open,
}

/// Consecutive timeouts that open the breaker: enough to tell a stuck server from a lost packet.
const IN_A_ROW: u32 = 5;
/// Timeouts within [`RECENT`] that open the breaker although other calls get replies in between.
const LATELY: u32 = 10;
const RECENT: Span = Span::from_secs(1);

impl Breaker {
    /// A breaker for a server of which nothing is known yet: open.
    pub(crate) const fn open() -> Self {
        Self { state: BreakerState::Open, in_a_row: 0, lately: 0, since: Timestamp::EPOCH }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state == BreakerState::Open
    }

    /// A reply arrived, perhaps an error. This does not close an open breaker: the reply may have been under way when the breaker
    /// opened.
    pub(crate) const fn answered(&mut self) {
        self.in_a_row = 0;
    }

    /// A call timed out.
    pub(crate) fn failed(&mut self, now: Timestamp) {
        if now.since(self.since) >= RECENT {
            (self.lately, self.since) = (0, now);
        }
        self.lately = self.lately.saturating_add(1);
        self.in_a_row = self.in_a_row.saturating_add(1);
        if self.in_a_row >= IN_A_ROW || self.lately >= LATELY {
            self.state = BreakerState::Open;
        }
    }

    /// The connection is lost, or a probe of the keeper failed.
    pub(crate) const fn lost(&mut self) {
        self.state = BreakerState::Open;
    }

    /// The keeper has seen the server run the script.
    pub(crate) const fn close(&mut self, now: Timestamp) {
        *self = Self { state: BreakerState::Closed, in_a_row: 0, lately: 0, since: now };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    fn closed() -> Breaker {
        let mut breaker = Breaker::open();
        breaker.close(at(0));
        breaker
    }

    #[test]
    fn it_is_open_until_the_keeper_closes_it() {
        let mut breaker = Breaker::open();
        breaker.answered();
        assert!(breaker.is_open());
        breaker.close(at(0));
        assert!(!breaker.is_open());
        breaker.lost();
        assert!(breaker.is_open());
    }

    #[test]
    fn five_failures_in_a_row_open_it_however_far_apart_they_are() {
        let mut breaker = closed();
        for hour in 1..5 {
            breaker.failed(at(hour * 3_600_000));
            assert!(!breaker.is_open());
        }
        breaker.failed(at(5 * 3_600_000));
        assert!(breaker.is_open());
    }

    #[test]
    fn a_success_restarts_the_count_of_failures_in_a_row() {
        let mut breaker = closed();
        for second in 0..100 {
            for failure in 0..4 {
                breaker.failed(at(second * 1_000 + failure));
            }
            breaker.answered();
        }
        assert!(!breaker.is_open());
    }

    #[test]
    fn ten_failures_within_a_second_open_it_although_other_calls_succeed() {
        let mut breaker = closed();
        for failure in 0..10 {
            assert!(!breaker.is_open());
            breaker.failed(at(failure * 99));
            breaker.answered();
        }
        assert!(breaker.is_open());
    }

    #[test]
    fn failures_before_it_closed_are_forgotten() {
        let mut breaker = closed();
        (0..5).for_each(|_| breaker.failed(at(1)));
        breaker.close(at(2));
        (0..4).for_each(|_| breaker.failed(at(3)));
        assert!(!breaker.is_open());
    }
}
