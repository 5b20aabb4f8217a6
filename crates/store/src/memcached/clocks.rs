//! The clocks of the nodes: by which time limits are decided, and how far the clocks are apart.
//!
//! memcached cannot say what time it is more precisely than in seconds, so the nodes' clocks decide. All nodes have to follow the
//! wall clock: the steady time of a process that started while its machine's clock was wrong stays wrong until it ends.
//!
//! Each node writes its time to one key of memcached about seven times a second, and reads what was there:
//!
//! ```text
//!   node 1:  write 12:00:05.3 ──► tg:clock ──► node 2 reads it when its own clock says 12:00:04.1
//!            what was written before it was read, so the clock of node 1 is ahead by 1.2 s or more
//! ```
//!
//! Delays only make the difference seem smaller, so a report is never wrong. It is too low by the age of what was read, which is
//! [`STEP_MILLIS`] at most. The node that is behind notices it, and writes so beside its own time, for the node that is ahead.

use super::connection::MetaConnection;
use super::meta::{self, Reply, Ttl};
use crate::clock::Clock;
use crate::error::StoreError;
use crate::sync::{Mutex, lock};
use std::time::Duration;
use tidegate_core::{Now, Span, Timestamp};

/// The wall clock of this machine, for decisions that all nodes make by their own clocks.
#[derive(Debug)]
pub(super) struct WallTime(pub(super) Clock);

/// What a node writes about its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClockStamp {
    /// A random number of the process.
    node: u64,
    at: Timestamp,
    /// A node whose clock is ahead of that of the writer, and by how much; 0 if none is.
    ahead: u64,
    by: Span,
}

/// What this node knows about the clocks of others.
#[derive(Debug, Default)]
pub(super) struct ClockWatch(Mutex<Option<ClockDifference>>);

#[derive(Clone, Copy, Debug)]
struct ClockDifference {
    /// The other node.
    node: u64,
    which: AheadNode,
    by: Span,
    noticed: Timestamp,
}

/// Which of two clocks is ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AheadNode {
    This,
    Other,
}

const CLOCK_KEY: &[u8] = b"tg:clock";
/// A difference that is seen to be larger is reported: of one second and more, whatever the age of what is read.
const REPORTED_FROM: Span = Span::from_millis(800);
/// How long a difference is reported after it was last seen.
const REPORTED_FOR: Span = Span::from_secs(10);
/// Pauses between two comparisons are between half of this and this. They differ, so that no two nodes always write one after the
/// other.
const STEP_MILLIS: u64 = 200;
/// How long what a node wrote remains if no other node writes.
const KEPT_SECONDS: u64 = 60;

// === impl WallTime ===

impl WallTime {
    /// The time by which limits are decided: that of the wall clock, also after it was set.
    pub(super) fn now(&self) -> Now {
        Now::at(self.0.now().calendar)
    }
}

// === impl ClockWatch ===

impl ClockWatch {
    /// Reads the time of another node, and writes that of this one. `timer` is the time by which reports end.
    pub(super) async fn compare(
        &self,
        connection: &MetaConnection,
        node: u64,
        wall: &WallTime,
        timer: impl Fn() -> Timestamp,
    ) -> Result<(), StoreError> {
        let seen = *lock(&self.0);
        let seen = seen.filter(|seen| is_recent(seen, timer()) && seen.which == AheadNode::Other);
        let (ahead, by) = seen.map_or((0, Span::ZERO), |seen| (seen.node, seen.by));
        let stamp = ClockStamp { node, at: wall.now().steady, ahead, by };
        let ours = meta::set(CLOCK_KEY, &stamp.text(), Ttl::new(KEPT_SECONDS, 0));
        let [mut theirs, _] = connection.send_both([&meta::get(CLOCK_KEY), &ours])?;
        let Reply::Text(theirs) = connection.reply(&mut theirs).await? else { return Ok(()) };
        if let Some(theirs) = ClockStamp::read(&theirs) {
            self.note(node, theirs, wall.now().steady, timer());
        }
        Ok(())
    }

    /// Compares what another node wrote with the time of this node after it was read.
    fn note(&self, node: u64, theirs: ClockStamp, now: Timestamp, timer: Timestamp) {
        let behind = theirs.at.since(now);
        let (which, by) = match theirs {
            ClockStamp { node: other, .. } if other == node => return,
            ClockStamp { ahead, by, .. } if ahead == node => (AheadNode::This, by),
            ClockStamp { .. } => (AheadNode::Other, behind),
        };
        if by < REPORTED_FROM {
            return;
        }
        let mut seen = lock(&self.0);
        // The largest difference that was seen lately is the most precise one.
        if seen.is_none_or(|seen| seen.by <= by || !is_recent(&seen, timer)) {
            *seen = Some(ClockDifference { node: theirs.node, which, by, noticed: timer });
        }
    }

    /// What an operator should know.
    pub(super) fn complaint(&self, timer: Timestamp) -> Option<String> {
        let ClockDifference { which, by, .. } =
            lock(&self.0).filter(|seen| is_recent(seen, timer))?;
        let tenths = by.as_nanos() / 100_000_000;
        let (seconds, tenths) = (tenths / 10, tenths % 10);
        Some(match which {
            AheadNode::Other => format!(
                "the clock of another node is ahead of that of this node by {seconds}.{tenths} s or more"
            ),
            AheadNode::This => format!(
                "the clock of this node is ahead of that of another node by {seconds}.{tenths} s or more"
            ),
        })
    }
}

fn is_recent(seen: &ClockDifference, timer: Timestamp) -> bool {
    timer.since(seen.noticed) < REPORTED_FOR
}

/// The pause before the next comparison.
pub(super) fn pause() -> Duration {
    let half = STEP_MILLIS / 2;
    Duration::from_millis(half.saturating_add(getrandom::u64().unwrap_or(0) % half))
}

// === impl ClockStamp ===

impl ClockStamp {
    fn text(&self) -> String {
        let Self { node, at, ahead, by } = self;
        format!("{node:x} {} {ahead:x} {}", at.as_nanos(), by.as_nanos())
    }

    fn read(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let node = u64::from_str_radix(words.next()?, 16).ok()?;
        let at = Timestamp::from_nanos(words.next()?.parse().ok()?);
        let ahead = u64::from_str_radix(words.next()?, 16).ok()?;
        let by = Span::from_nanos(words.next()?.parse().ok()?);
        Some(Self { node, at, ahead, by })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_difference_of_a_second_is_reported_on_both_nodes_and_delays_are_none() {
        let (behind, ahead) = (ClockWatch::default(), ClockWatch::default());
        let stamp = |node, millis| ClockStamp { node, at: at(millis), ahead: 0, by: Span::ZERO };
        // What is read is old, however much: nothing is ahead.
        behind.note(1, stamp(2, 10_000), at(10_000), at(0));
        behind.note(1, stamp(2, 10_000), at(60_000), at(0));
        behind.note(1, stamp(2, 10_700), at(10_000), at(0));
        behind.note(1, stamp(1, 99_000), at(10_000), at(0));
        assert_eq!(behind.complaint(at(0)), None);
        behind.note(1, stamp(2, 11_000), at(10_100), at(0));
        behind.note(1, stamp(2, 11_100), at(10_100), at(1_000));
        behind.note(1, stamp(2, 11_000), at(10_200), at(2_000));
        let expected = "the clock of another node is ahead of that of this node by 1.0 s or more";
        assert_eq!(behind.complaint(at(10_999)).as_deref(), Some(expected));
        assert_eq!(behind.complaint(at(11_000)), None);
        let told = ClockStamp { ahead: 2, by: Span::from_millis(1_000), ..stamp(1, 10_000) };
        let told = ClockStamp::read(&told.text()).unwrap();
        ahead.note(2, told, at(11_300), at(0));
        let expected = "the clock of this node is ahead of that of another node by 1.0 s or more";
        assert_eq!(ahead.complaint(at(0)).as_deref(), Some(expected));
        assert_eq!(ClockStamp::read("1 2 3"), None);
    }

    /// A process that started while the clock of its machine was wrong stayed wrong until it ended: its steady time does not follow
    /// a clock that is set.
    #[test]
    fn a_clock_that_is_set_is_followed() {
        let set = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(3_600_000));
        let wall = std::sync::Arc::clone(&set);
        let clock = Clock::borrowed(move || Now {
            steady: at(3_600_000),
            calendar: at(wall.load(std::sync::atomic::Ordering::Relaxed)),
        });
        let time = WallTime(clock);
        assert_eq!(time.now(), Now::at(at(3_600_000)));
        set.store(2_000, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(time.now(), Now::at(at(2_000)));
    }
}
