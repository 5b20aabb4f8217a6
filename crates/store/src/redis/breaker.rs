//! Whether the server is asked at all: a pure state machine.
//!
//! ```text
//!   closed ── 5 failures in a row, or 10 within a second ──► open ── it was seen to answer ──► closed
//! ```
//!
//! Nobody who asks for a decision tries out whether the server is back: that is the keeper's business.

use tidegate_core::{Span, Timestamp};

#[derive(Clone, Debug)]
pub(super) struct Breaker {
    state: State,
    /// Failures since the last answer.
    in_a_row: u32,
    /// Failures since then, which is at most a second ago.
    lately: u32,
    since: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    Open,
}

/// So many, and whoever comes next does not wait for the sixth: enough to tell a stuck server from a lost packet.
const IN_A_ROW: u32 = 5;
/// So many of those who ask at the same time, when others are still answered.
const LATELY: u32 = 10;
const A_WHILE: Span = Span::from_secs(1);

impl Breaker {
    /// Nothing is known of the server.
    pub(super) const fn open() -> Self {
        Self { state: State::Open, in_a_row: 0, lately: 0, since: Timestamp::EPOCH }
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// The server was asked and answered. Answers that were on their way when it was given up change nothing.
    pub(super) const fn answered(&mut self) {
        self.in_a_row = 0;
    }

    /// The server was asked and did not answer, or not in time.
    pub(super) fn failed(&mut self, now: Timestamp) {
        if now.since(self.since) >= A_WHILE {
            (self.lately, self.since) = (0, now);
        }
        self.lately = self.lately.saturating_add(1);
        self.in_a_row = self.in_a_row.saturating_add(1);
        if self.in_a_row >= IN_A_ROW || self.lately >= LATELY {
            self.state = State::Open;
        }
    }

    /// There is no connection.
    pub(super) const fn lost(&mut self) {
        self.state = State::Open;
    }

    /// The keeper has seen that the server does what it is there for.
    pub(super) const fn close(&mut self, now: Timestamp) {
        *self = Self { state: State::Closed, in_a_row: 0, lately: 0, since: now };
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
    fn it_is_open_until_somebody_has_looked() {
        let mut breaker = Breaker::open();
        breaker.answered();
        assert!(breaker.is_open());
        breaker.close(at(0));
        assert!(!breaker.is_open());
        breaker.lost();
        assert!(breaker.is_open());
    }

    #[test]
    fn five_failures_in_a_row_open_it_however_slowly_they_come() {
        let mut breaker = closed();
        for hour in 1..5 {
            breaker.failed(at(hour * 3_600_000));
            assert!(!breaker.is_open());
        }
        breaker.failed(at(5 * 3_600_000));
        assert!(breaker.is_open());
    }

    #[test]
    fn an_answer_between_them_starts_the_row_anew() {
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
    fn ten_within_a_second_open_it_although_others_are_answered() {
        let mut breaker = closed();
        for failure in 0..10 {
            assert!(!breaker.is_open());
            breaker.failed(at(failure * 99));
            breaker.answered();
        }
        assert!(breaker.is_open());
    }

    #[test]
    fn what_was_before_it_closed_is_forgotten() {
        let mut breaker = closed();
        (0..5).for_each(|_| breaker.failed(at(1)));
        breaker.close(at(2));
        (0..4).for_each(|_| breaker.failed(at(3)));
        assert!(!breaker.is_open());
    }
}
