//! How many nodes use the store: each node announces itself every second (a heartbeat) and learns how many there are.
//!
//! While the store is unreachable, each node grants its share of a limit by itself: the amount divided by the number of nodes.
//! A number that is too small would let too much pass, so the number errs on the high side:
//!
//! - The largest number of the last minutes is used. A node that is cut off from the store is not announced any more, but it
//!   still grants its share.
//! - A node that has not counted the others yet uses the number that it knew when it last ran, or else assumes 8. It does so
//!   for its first two seconds with the store as well: the store may have lost its data, and the other nodes may not have
//!   been announced again yet.

use super::router::Router;
use super::script;
use super::settings::RedisSettings;
use super::slots::slot_of;
use super::timers;
use super::wire::{CONTROL_TAG, NODES_KEY};
use crate::sync::{Mutex, lock};
use ::redis::Value;
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::{Span, Timestamp};
use tokio::task::JoinHandle;

/// Announces this node, and counts the nodes of the store.
pub(super) struct NodeRegistry {
    /// Locked to look or to write.
    tally: Arc<Mutex<NodeTally>>,
    announcer: Option<JoinHandle<()>>,
}

/// The number of nodes, as far as it is known.
#[derive(Debug)]
struct NodeTally {
    /// When the current interval of [`KEPT_FOR`] began.
    since: Timestamp,
    /// The largest number in the current interval.
    most: u32,
    /// The largest number in the interval before.
    most_before: u32,
    source: TallySource,
    /// Failed announcements in a row, and why the last one failed.
    failures: u32,
    why: String,
}

/// Where the number comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TallySource {
    /// It is assumed.
    Assumed,
    /// It is still assumed; nodes have been counted since this time.
    Counting(Timestamp),
    /// The nodes were counted.
    Counted,
}

const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(1);
/// A number is used for this long at least, and for twice as long at most.
const KEPT_FOR: Span = Span::from_secs(600);
/// Assumed by a node that knows nothing. Most deployments are smaller, so their shares are then too small, not too large.
const ASSUMED_NODES: u32 = 8;
/// Within this time every running node has been announced.
const ANNOUNCED_WITHIN: Span = Span::from_secs(2);
/// Failures in a row after which the store complains: a single announcement may be lost.
const MAX_FAILURES: u32 = 3;

// === impl NodeRegistry ===

impl NodeRegistry {
    /// Announces this node from now on. Does nothing if the settings say how many nodes there are.
    pub(super) async fn join(router: &Arc<Router>, settings: &RedisSettings, name: u64) -> Self {
        if let Some(count) = settings.nodes {
            let tally = NodeTally::counted(count, router.now());
            return Self { tally: Arc::new(Mutex::new(tally)), announcer: None };
        }
        let tally = Arc::new(Mutex::new(NodeTally::assumed(settings.known_nodes, router.now())));
        let (timeout, name) = (settings.timeout, format!("{name:016x}"));
        announce(router, timeout, &name, &tally).await;
        let announcer = tokio::spawn(router.supervised({
            let (router, tally) = (Arc::clone(router), Arc::clone(&tally));
            move || {
                let (router, tally, name) = (Arc::clone(&router), Arc::clone(&tally), name.clone());
                async move {
                    loop {
                        timers::sleep(ANNOUNCE_INTERVAL).await;
                        announce(&router, timeout, &name, &tally).await;
                    }
                }
            }
        }));
        Self { tally, announcer: Some(announcer) }
    }

    pub(super) fn count(&self) -> u32 {
        lock(&self.tally).count()
    }

    /// How many nodes there are, if they were counted.
    pub(super) fn known(&self) -> Option<u32> {
        let tally = lock(&self.tally);
        (tally.source == TallySource::Counted).then(|| tally.count())
    }

    /// Why the number of nodes is not known.
    pub(super) fn complaint(&self) -> Option<String> {
        lock(&self.tally).complaint()
    }
}

impl Drop for NodeRegistry {
    fn drop(&mut self) {
        if let Some(announcer) = &self.announcer {
            announcer.abort();
        }
    }
}

// === impl NodeTally ===

impl NodeTally {
    fn counted(count: u32, now: Timestamp) -> Self {
        let most = count.max(1);
        let (most_before, source, failures, why) = (0, TallySource::Counted, 0, String::new());
        Self { since: now, most, most_before, source, failures, why }
    }

    /// The tally before any node is counted: the number that was known before, or an assumption.
    fn assumed(known: Option<u32>, now: Timestamp) -> Self {
        let known = known.filter(|known| *known > 0);
        let source = if known.is_some() { TallySource::Counted } else { TallySource::Assumed };
        Self { source, ..Self::counted(known.unwrap_or(1), now) }
    }

    fn count(&self) -> u32 {
        let counted = self.most.max(self.most_before);
        match self.source {
            TallySource::Assumed | TallySource::Counting(_) => counted.max(ASSUMED_NODES),
            TallySource::Counted => counted,
        }
    }

    fn answered(&mut self, count: u32, now: Timestamp) {
        self.source = match self.source {
            TallySource::Assumed => TallySource::Counting(now),
            TallySource::Counting(since) if now.since(since) >= ANNOUNCED_WITHIN => {
                TallySource::Counted
            }
            source @ (TallySource::Counting(_) | TallySource::Counted) => source,
        };
        if now.since(self.since) >= KEPT_FOR {
            (self.since, self.most_before, self.most) = (now, self.most, 1);
        }
        self.most = self.most.max(count);
        self.failures = 0;
    }

    fn failed(&mut self, why: String) {
        self.failures = self.failures.saturating_add(1);
        self.why = why;
    }

    fn complaint(&self) -> Option<String> {
        let (count, assumed) = (self.count(), self.source == TallySource::Assumed);
        // While the number is assumed, even the first failure is reported: no earlier count backs the number.
        let max_failures = if assumed { 1 } else { MAX_FAILURES };
        if self.failures >= max_failures {
            let why = &self.why;
            return Some(format!("the nodes cannot be counted, {count} are assumed: {why}"));
        }
        assumed.then(|| format!("the nodes were not counted yet, {count} are assumed"))
    }
}

/// Announces this node once. If that fails, the number stays as it was.
async fn announce(router: &Router, timeout: Span, name: &str, tally: &Mutex<NodeTally>) {
    let until = router.now().after(timeout).unwrap_or(Timestamp::END);
    let mut command = ::redis::cmd("EVAL");
    let time = router.time_argument(slot_of(CONTROL_TAG));
    command.arg(script::COUNT_NODES).arg(1).arg(NODES_KEY).arg(name).arg(time);
    let reply = router.query(slot_of(CONTROL_TAG), until, &command).await;
    let mut tally = lock(tally);
    match reply {
        Ok(Value::Int(nodes)) => {
            tally.answered(u32::try_from(nodes).unwrap_or(u32::MAX), router.now());
        }
        Ok(_) => tally.failed("the reply is not a number".to_owned()),
        Err(error) => tally.failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_node_that_knows_nothing_assumes_eight_nodes_and_complains() {
        let mut tally = NodeTally::assumed(None, at(0));
        assert_eq!(tally.count(), 8);
        assert!(tally.complaint().unwrap().contains("8 are assumed"));
        tally.failed("WRONGTYPE".to_owned());
        assert!(tally.complaint().unwrap().contains("8 are assumed: WRONGTYPE"));
        // The store may have lost its data, and the other nodes have not been announced again yet.
        tally.answered(1, at(1));
        assert_eq!((tally.count(), tally.complaint()), (8, None));
        tally.answered(3, at(2));
        assert_eq!(tally.count(), 8);
        tally.answered(3, at(3));
        assert_eq!(tally.count(), 3);
        let mut restarted = NodeTally::assumed(Some(5), at(0));
        assert_eq!((restarted.count(), restarted.complaint()), (5, None));
        restarted.answered(2, at(1));
        assert_eq!(restarted.count(), 5, "the others may be cut off");
    }

    #[test]
    fn the_largest_number_of_the_last_minutes_is_used() {
        let mut tally = NodeTally::counted(4, at(0));
        for second in 1..600 {
            tally.answered(3, at(second));
            assert_eq!(tally.count(), 4);
        }
        for second in 600..1_200 {
            tally.answered(3, at(second));
            assert_eq!(tally.count(), 4);
        }
        tally.answered(3, at(1_200));
        assert_eq!(tally.count(), 3);
    }

    #[test]
    fn three_failures_in_a_row_are_reported() {
        let mut tally = NodeTally::counted(4, at(0));
        for _ in 0..2 {
            tally.failed("WRONGTYPE".to_owned());
            assert_eq!(tally.complaint(), None);
        }
        tally.failed("WRONGTYPE".to_owned());
        assert!(tally.complaint().unwrap().contains("4 are assumed: WRONGTYPE"));
        tally.answered(4, at(1));
        assert_eq!(tally.complaint(), None);
    }
}
