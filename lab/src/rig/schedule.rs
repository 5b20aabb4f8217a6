//! When the next request is sent. This choice determines which question a measurement answers:
//!
//! ```text
//! closed loop   when the answer has arrived        how many requests per second can the server answer?
//! open loop     at fixed instants, in any case       how long does a caller wait at this rate?
//! ```
//!
//! In an open loop latency counts from the instant at which a request was *due*. Say one is due every
//! millisecond, and the server stalls for 100 ms: then a hundred callers have waited, for 100, 99, 98 … ms. A
//! generator that waits with the server and counts from the actual sending would see one slow answer among
//! many fast ones. That error is known as *coordinated omission*.

use std::time::{Duration, Instant};

/// When the next request is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// When the answer to the last one has arrived.
    Closed,
    /// At instants this far apart. The connections take turns.
    Open { apart: Duration },
}

/// How many connections send requests, at which pace, and for how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    pub(crate) connections: u32,
    pub(crate) pace: Pace,
    pub(crate) length: Duration,
}

impl Schedule {
    /// The turns of one connection.
    pub(crate) fn turns(&self, start: Instant, connection: u32) -> Turns {
        let end = after(start, self.length);
        match self.pace {
            Pace::Closed => Turns { due: start, apart: None, end },
            Pace::Open { apart } => {
                let due = after(start, apart.saturating_mul(connection));
                Turns { due, apart: Some(apart.saturating_mul(self.connections)), end }
            }
        }
    }
}

/// The instants at which one connection sends.
pub(crate) struct Turns {
    /// The current turn: its request is outstanding, or not yet due.
    pub(crate) due: Instant,
    /// The time from one turn to the next; `None` in a closed loop, where the answer determines it.
    apart: Option<Duration>,
    /// From this instant on nothing is sent.
    end: Instant,
}

impl Turns {
    /// Whether the current turn is due.
    pub(crate) fn has_come(&self, now: Instant) -> bool {
        self.due <= now && !self.are_over()
    }

    pub(crate) fn are_over(&self) -> bool {
        self.due >= self.end
    }

    /// Ends the current turn, and returns its latency.
    pub(crate) fn answered(&mut self, now: Instant) -> Duration {
        let latency = now.saturating_duration_since(self.due);
        self.due = self.apart.map_or(now, |apart| after(self.due, apart));
        latency
    }
}

fn after(instant: Instant, span: Duration) -> Instant {
    instant.checked_add(span).unwrap_or(instant)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the tests need some instant to count from")]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    /// The turns of one connection for ten milliseconds.
    fn turns(pace: Pace, start: Instant) -> Turns {
        Schedule { connections: 1, pace, length: Duration::from_millis(10) }.turns(start, 0)
    }

    #[test]
    fn the_connections_of_an_open_loop_take_turns() {
        let pace = Pace::Open { apart: Duration::from_micros(1) };
        let schedule = Schedule { connections: 3, pace, length: Duration::from_micros(9) };
        let start = Instant::now();
        let mut due: Vec<Duration> = Vec::new();
        for connection in 0..3 {
            let mut turns = schedule.turns(start, connection);
            while !turns.are_over() {
                due.push(turns.due - start);
                turns.answered(start);
            }
        }
        due.sort();
        assert_eq!(due, (0..9).map(Duration::from_micros).collect::<Vec<_>>());
    }

    #[test]
    fn in_an_open_loop_a_stall_counts_for_every_request_that_was_due_in_it() {
        let start = Instant::now();
        let mut turns = turns(Pace::Open { apart: MILLI }, start);
        let mut felt = Vec::new();
        while turns.has_come(start + 100 * MILLI) {
            felt.push(turns.answered(start + 100 * MILLI));
        }
        assert_eq!(felt, (91..=100).rev().map(|millis| millis * MILLI).collect::<Vec<_>>());
    }

    #[test]
    fn in_an_open_loop_no_request_is_sent_before_it_is_due() {
        let start = Instant::now();
        let mut turns = turns(Pace::Open { apart: MILLI }, start);
        assert!(turns.has_come(start));
        turns.answered(start);
        assert!(!turns.has_come(start + MILLI - Duration::from_nanos(1)));
        assert!(turns.has_come(start + MILLI));
    }

    #[test]
    fn in_a_closed_loop_a_request_is_due_when_the_previous_answer_has_arrived() {
        let start = Instant::now();
        let mut turns = turns(Pace::Closed, start);
        for answered in [4, 8, 12] {
            assert!(turns.has_come(start + (answered - 4) * MILLI));
            assert_eq!(turns.answered(start + answered * MILLI), 4 * MILLI);
        }
        assert!(turns.are_over());
    }
}
