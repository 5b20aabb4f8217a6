//! What a node knows about the clock of the store.
//!
//! ```text
//!   sent ──────── the server reads its clock ──────── received          (this node's clock, since boot)
//!        the server's clock minus this one's is at least (reading − received), and at most (reading − sent)
//! ```
//!
//! Both clocks run at slightly different speeds, so the range grows with the age of the sample. A step of either clock is
//! noticed at the next sample: the ranges contradict each other.

use tidegate_core::{Span, TimeRange, Timestamp};

/// How much the speeds of two clocks differ at most: one in this many. NTP slews a clock by up to one in 2,000, and the
/// oscillators of both machines are off by a few in 100,000.
const DRIFT: i128 = 1_000;
/// A server reads its clock in whole microseconds, rounded down.
const READING: i128 = 1_000;

/// A range for the difference between the store's clock and this node's clock, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockSample {
    /// When it was taken, by this node's clock.
    at: Timestamp,
    least: i128,
    most: i128,
}

impl ClockSample {
    /// A call was sent and its reply received at these times of this node. In between, the server read its clock.
    pub(crate) fn new(sent: Timestamp, received: Timestamp, server: Timestamp) -> Self {
        let reading = i128::from(server.as_nanos());
        let least = reading.saturating_sub(i128::from(received.as_nanos()));
        let most = reading.saturating_add(READING).saturating_sub(i128::from(sent.as_nanos()));
        Self { at: sent, least, most }
    }

    /// The range of the store's time at an instant of this node.
    pub(crate) fn at(&self, local: Timestamp) -> TimeRange {
        let Self { least, most, .. } = self.aged(local);
        let with = |offset: i128| {
            let nanos = i128::from(local.as_nanos()).saturating_add(offset).max(0);
            u64::try_from(nanos).map_or(Timestamp::END, Timestamp::from_nanos)
        };
        TimeRange { early: with(least), late: with(most) }
    }

    /// What both samples together say, at the time of the newer one; `None` if they contradict each other: a clock was
    /// stepped.
    pub(crate) fn narrowed_by(&self, newer: &Self) -> Option<Self> {
        let older = self.aged(newer.at);
        let (least, most) = (older.least.max(newer.least), older.most.min(newer.most));
        (least <= most).then_some(Self { at: newer.at, least, most })
    }

    /// This sample as of another instant: its range is wider, because the clocks may have drifted apart.
    fn aged(&self, local: Timestamp) -> Self {
        let age = local.since(self.at).as_nanos().max(self.at.since(local).as_nanos());
        let drift = i128::from(age).checked_div(DRIFT).unwrap_or(0);
        let (least, most) = (self.least.saturating_sub(drift), self.most.saturating_add(drift));
        Self { at: local, least, most }
    }

    /// This sample, if its reply had been received at this time.
    #[cfg(test)]
    pub(super) fn received_at(&self, received: Timestamp) -> Self {
        let reading =
            self.most.saturating_sub(READING).saturating_add(i128::from(self.at.as_nanos()));
        Self { least: reading.saturating_sub(i128::from(received.as_nanos())), ..*self }
    }

    /// How long the range is when it is fresh.
    pub(crate) fn doubt(&self) -> Span {
        self.at(self.at).doubt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(micros: u64) -> Timestamp {
        Timestamp::from_nanos(micros * 1_000)
    }

    #[test]
    fn the_range_holds_the_time_of_the_store_wherever_in_between_it_was_read() {
        for read in [10, 15, 20] {
            // The store's clock is 1 ms ahead.
            let sample = ClockSample::new(at(10), at(20), at(1_000 + read));
            let range = sample.at(at(30));
            assert!(range.early <= at(1_030) && at(1_030) <= range.late, "{range:?}");
            assert!(sample.doubt() <= Span::from_nanos(11_000), "{range:?}");
        }
    }

    #[test]
    fn the_range_grows_with_age_and_is_narrowed_by_a_better_sample() {
        let slow = ClockSample::new(at(0), at(500), at(1_250));
        assert_eq!(slow.at(at(1_000_000)).doubt(), Span::from_nanos(2_501_000));
        let fast = ClockSample::new(at(1_000), at(1_010), at(2_005));
        let both = slow.narrowed_by(&fast).unwrap();
        assert!(both.doubt() <= fast.doubt());
        let range = both.at(at(2_000));
        assert!(range.early <= at(3_000) && at(3_000) <= range.late, "{range:?}");
    }

    #[test]
    fn samples_before_and_after_a_step_contradict_each_other() {
        let before = ClockSample::new(at(0), at(10), at(5));
        for stepped in [at(100_005 + 1_000), at(0)] {
            assert_eq!(before.narrowed_by(&ClockSample::new(at(1_000), at(1_010), stepped)), None);
        }
    }
}
