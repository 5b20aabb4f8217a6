//! When the next request is sent, which is the whole difference between two questions:
//!
//! ```text
//! closed loop   when the answer has arrived       how many a second can it do?
//! open loop     at fixed instants, come what may  how long does a caller wait at this rate?
//! ```
//!
//! In an open loop latency counts from the instant at which a request was *meant* to be sent. Say one is due every
//! millisecond and the server stalls for a hundred: then a hundred callers have waited, 100, 99, 98 … ms. A generator that
//! waits with the server, and counts from when it sent at last, would see one slow answer among many quick ones.

use std::time::Duration;
use tokio::time::Instant;

/// When the next request is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// When the answer to the last one has arrived.
    Closed,
    /// At instants this far apart, which the connections take in turns.
    Open { apart: Duration },
}

/// Over how many connections, how, and for how long requests are sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    pub(crate) connections: u32,
    pub(crate) pace: Pace,
    pub(crate) length: Duration,
}

impl Schedule {
    /// When one of the connections sends.
    pub(crate) fn turns(&self, start: Instant, connection: u32) -> Turns {
        let end = after(start, self.length);
        match self.pace {
            Pace::Closed => Turns { first: start, apart: None, end },
            Pace::Open { apart } => {
                let first = after(start, apart.saturating_mul(connection));
                Turns { first, apart: Some(apart.saturating_mul(self.connections)), end }
            }
        }
    }
}

/// When one connection sends.
pub(crate) struct Turns {
    pub(crate) first: Instant,
    /// From one turn to the next; `None` when the answer says when.
    pub(crate) apart: Option<Duration>,
    /// From here on nothing is sent.
    pub(crate) end: Instant,
}

impl Turns {
    /// The turn after one that was due and answered.
    pub(crate) fn next(&self, due: Instant, answered: Instant) -> Instant {
        self.apart.map_or(answered, |apart| after(due, apart))
    }
}

pub(crate) fn after(instant: Instant, span: Duration) -> Instant {
    instant.checked_add(span).unwrap_or(instant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_take_the_instants_of_an_open_loop_in_turns() {
        let pace = Pace::Open { apart: Duration::from_micros(1) };
        let schedule = Schedule { connections: 3, pace, length: Duration::from_micros(9) };
        let start = Instant::now();
        let mut due: Vec<Duration> = Vec::new();
        for connection in 0..3 {
            let turns = schedule.turns(start, connection);
            let mut next = turns.first;
            while next < turns.end {
                due.push(next - start);
                next = turns.next(next, start);
            }
        }
        due.sort();
        assert_eq!(due, (0..9).map(Duration::from_micros).collect::<Vec<_>>());
    }
}
