//! Estimate of a server's clock, by Cristian's algorithm.
//!
//! ```text
//!   sent ────────────── server reads its clock ────────────── received        (this node's clock)
//!                       └ assumed to be in the middle: wrong by at most half of the round trip
//! ```
//!
//! A script needs to know when its caller gives up, in the server's time. The denial cache needs to know the server's time
//! without a call.

use super::script::{ScriptHints, ScriptReply, ScriptTimes};
use super::settings::RedisClock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use tidegate_core::{Span, Timestamp};

#[derive(Default)]
pub(super) struct ServerClock {
    /// The server's time minus the node's time, in nanoseconds, as of the last reply. Relaxed: any recent value will do.
    offset: AtomicI64,
    /// The largest possible error of `offset`: half of that round trip. Relaxed as well.
    max_error: AtomicU64,
}

impl ServerClock {
    /// The estimated server time at an instant of the node's clock.
    fn at(&self, local: Timestamp) -> Timestamp {
        let offset = self.offset.load(Ordering::Relaxed);
        Timestamp::from_nanos(local.as_nanos().saturating_add_signed(offset))
    }

    /// The estimated server time at an instant of the node's clock, and the latest that it can be.
    pub(super) fn estimate_and_latest(&self, local: Timestamp) -> (Timestamp, Timestamp) {
        let estimate = self.at(local);
        let max_error = Span::from_nanos(self.max_error.load(Ordering::Relaxed));
        (estimate, estimate.after(max_error).unwrap_or(estimate))
    }

    /// The times for a script call that is sent now and whose caller gives up at `until`.
    pub(super) fn script_times(
        &self,
        clock: RedisClock,
        sent: Timestamp,
        until: Timestamp,
        hints: &ScriptHints<'_>,
    ) -> ScriptTimes {
        if let Some(micros) = hints.test {
            let guess = Timestamp::from_nanos(micros.saturating_mul(1_000));
            return ScriptTimes {
                test: hints.test,
                deadline: 0,
                guess: hints.guess.unwrap_or(guess),
            };
        }
        let estimate = self.at(sent);
        let guess = hints.guess.unwrap_or(estimate);
        if clock == RedisClock::Node {
            return ScriptTimes { test: Some(estimate.as_nanos() / 1_000), deadline: 0, guess };
        }
        let deadline = self.at(until).as_nanos() / 1_000;
        ScriptTimes { test: None, deadline, guess }
    }

    /// Learns the server's time from a reply. A slow reply says little and is ignored, unless nothing is known yet, or the
    /// server says that the call was late and so that the estimate may be wrong.
    pub(super) fn learn(
        &self,
        sent: Timestamp,
        received: Timestamp,
        reply: &ScriptReply,
        timeout: Span,
    ) {
        let (ScriptReply::Found { now: server, .. }
        | ScriptReply::Granted { now: server, .. }
        | ScriptReply::NeedsLong(server)
        | ScriptReply::Moved(server)
        | ScriptReply::Late(server)) = reply
        else {
            return;
        };
        let round_trip = received.since(sent).as_nanos();
        let fast = round_trip < timeout.as_nanos() / 2 || matches!(reply, ScriptReply::Late(_));
        if fast || self.offset.load(Ordering::Relaxed) == 0 {
            let middle = i128::from(sent.as_nanos()).saturating_add(i128::from(round_trip / 2));
            let offset = i128::from(server.as_nanos()).saturating_sub(middle);
            self.offset.store(i64::try_from(offset).unwrap_or(0), Ordering::Relaxed);
            self.max_error.store(round_trip / 2, Ordering::Relaxed);
        }
    }
}
