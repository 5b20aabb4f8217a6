//! The number of nodes: a machine without I/O that is told what announcements return.
//!
//! ```text
//!   node 1  ─── here ─── here ─── here ───────────────────────────────── counts until it was silent for 30 s
//!   node 2  ─── here ─── left                                            does not count any more
//!   time    ────┼────────┼────────┼───── the store is away ─────┼──────  stands still while the store is away
//! ```
//!
//! While the store is unreachable, each node grants its share of a limit by itself: the amount divided by this number. A number
//! that is too small would let too much pass, so the number errs on the high side:
//!
//! - A node that is silent may be dead, or cut off from the store; then it still grants its share. So it counts for 30 seconds more.
//!   Only time in which the store answers this node counts: after an outage the others need a moment to be announced again.
//! - A node that leaves says so, and is not counted from then on. A node that restarts has the same name, and is counted once.
//! - A node that has not counted the others yet uses the number that it knew when it last ran, for 30 seconds; or else it assumes 8
//!   for two seconds. The store may have lost its data, and the other nodes may not have been announced again yet.

use crate::reports::NodeReport;
use std::collections::BTreeMap;
use tidegate_core::{Span, Timestamp};

/// The nodes, as far as they are known.
#[derive(Debug)]
pub(super) struct NodeTally {
    /// By their names.
    nodes: BTreeMap<String, SeenNode>,
    least: LeastNodes,
    /// A clock that runs only while the store answers: by the gaps between its answers, each up to [`LONGEST_GAP`].
    answering: Timestamp,
    last_answer: Option<Timestamp>,
    /// Failed announcements in a row, and why the last one failed.
    failures: u32,
    why: String,
}

#[derive(Debug)]
struct SeenNode {
    /// The value of `answering` when it was last announced.
    at: Timestamp,
    policy: String,
}

/// A number that the count does not fall below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeastNodes {
    /// The settings say how many nodes there are; no node is announced.
    Set(u32),
    /// The number when this node last ran.
    Known(u32),
    Assumed,
    /// The nodes were counted.
    Counted,
}

/// A node in the reply to an announcement.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AnnouncedNode {
    pub(super) name: String,
    /// It shuts down.
    pub(super) has_left: bool,
    pub(super) policy: String,
}

/// A silent node counts for this long. An outage reaches all nodes within seconds; so a node that was cut off first still counts
/// when the others are cut off too.
const SILENT_FOR: Span = Span::from_secs(30);
/// Within this time every running node has been announced.
const ANNOUNCED_WITHIN: Span = Span::from_secs(2);
/// Twice the interval of announcements.
const LONGEST_GAP: Span = Span::from_secs(2);
/// Assumed by a node that knows nothing. Most deployments are smaller, so their shares are then too small, not too large.
const ASSUMED_NODES: u32 = 8;
/// Failures in a row after which the store complains: a single announcement may be lost.
const MAX_FAILURES: u32 = 3;
/// The most nodes that are remembered, as many as the settings allow.
const MAX_NODES: usize = 10_000;

impl NodeTally {
    /// The settings say how many nodes there are.
    pub(super) fn set(count: u32) -> Self {
        Self::starting(LeastNodes::Set(count.max(1)))
    }

    /// The tally before any node is counted: the number that was known before, or an assumption.
    pub(super) fn assumed(known: Option<u32>) -> Self {
        let known = known.filter(|known| *known > 0);
        Self::starting(known.map_or(LeastNodes::Assumed, LeastNodes::Known))
    }

    fn starting(least: LeastNodes) -> Self {
        let (nodes, why) = (BTreeMap::new(), String::new());
        Self { nodes, least, answering: Timestamp::EPOCH, last_answer: None, failures: 0, why }
    }

    /// How many nodes there are, at least 1.
    pub(super) fn count(&self) -> u32 {
        let seen = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX).max(1);
        match self.least {
            LeastNodes::Set(count) => count,
            LeastNodes::Known(known) => seen.max(known),
            LeastNodes::Assumed => seen.max(ASSUMED_NODES),
            LeastNodes::Counted => seen,
        }
    }

    /// How many nodes there are, if they were counted and not assumed.
    pub(super) fn known(&self) -> Option<u32> {
        (self.least != LeastNodes::Assumed).then(|| self.count())
    }

    /// The store has answered an announcement with the nodes that it knows.
    pub(super) fn answered(&mut self, announced: Vec<AnnouncedNode>, now: Timestamp) {
        let gap = self.last_answer.map_or(Span::ZERO, |last| now.since(last).min(LONGEST_GAP));
        self.answering = self.answering.after(gap).unwrap_or(Timestamp::END);
        (self.last_answer, self.failures) = (Some(now), 0);
        for AnnouncedNode { name, has_left, policy } in announced {
            if has_left {
                self.nodes.remove(&name);
            } else if self.nodes.len() < MAX_NODES || self.nodes.contains_key(&name) {
                self.nodes.insert(name, SeenNode { at: self.answering, policy });
            }
        }
        let answering = self.answering;
        self.nodes.retain(|_, node| answering.since(node.at) < SILENT_FOR);
        let enough = match self.least {
            LeastNodes::Known(_) => answering.since(Timestamp::EPOCH) >= SILENT_FOR,
            LeastNodes::Assumed => answering.since(Timestamp::EPOCH) >= ANNOUNCED_WITHIN,
            LeastNodes::Set(_) | LeastNodes::Counted => false,
        };
        if enough {
            self.least = LeastNodes::Counted;
        }
    }

    pub(super) fn failed(&mut self, why: String) {
        self.failures = self.failures.saturating_add(1);
        self.why = why;
    }

    /// Why the number of nodes is not known. The cause is left out if the store complains about it itself.
    pub(super) fn complaint(&self, cause_is_known: bool) -> Option<String> {
        let count = self.count();
        let assumed = self.least == LeastNodes::Assumed && self.last_answer.is_none();
        // While the number is assumed, even the first failure is reported: no earlier count backs the number.
        let max_failures = if assumed { 1 } else { MAX_FAILURES };
        if self.failures >= max_failures {
            let cause = if cause_is_known { String::new() } else { format!(": {}", self.why) };
            return Some(format!("the nodes cannot be counted, {count} are assumed{cause}"));
        }
        assumed.then(|| format!("the nodes were not counted yet, {count} are assumed"))
    }

    /// Every node, for operators. `own` is the name of this one.
    pub(super) fn report(&self, own: &str) -> Vec<NodeReport> {
        let report = |(name, node): (&String, &SeenNode)| NodeReport {
            name: name.clone(),
            is_this: name == own,
            policy: node.policy.clone(),
            silent: self.answering.since(node.at),
        };
        self.nodes.iter().map(report).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }

    /// The reply with these nodes, of which those with a minus have left.
    fn reply(names: &str) -> Vec<AnnouncedNode> {
        let node = |name: &str| AnnouncedNode {
            name: name.trim_start_matches('-').to_owned(),
            has_left: name.starts_with('-'),
            policy: String::new(),
        };
        names.split_whitespace().map(node).collect()
    }

    #[test]
    fn a_node_that_knows_nothing_assumes_eight_nodes_and_complains() {
        let mut tally = NodeTally::assumed(None);
        assert_eq!(tally.count(), 8);
        assert!(tally.complaint(false).unwrap().contains("8 are assumed"));
        tally.failed("WRONGTYPE".to_owned());
        assert!(tally.complaint(false).unwrap().contains("8 are assumed: WRONGTYPE"));
        assert!(tally.complaint(true).unwrap().ends_with("8 are assumed"));
        // The store may have lost its data, and the other nodes have not been announced again yet.
        tally.answered(reply("a"), at(1));
        assert_eq!((tally.count(), tally.complaint(false), tally.known()), (8, None, None));
        tally.answered(reply("a b c"), at(2));
        assert_eq!(tally.count(), 8);
        tally.answered(reply("a b c"), at(3));
        assert_eq!((tally.count(), tally.known()), (3, Some(3)));
    }

    #[test]
    fn a_restarted_node_relies_on_what_it_knew_for_half_a_minute() {
        let mut restarted = NodeTally::assumed(Some(5));
        assert_eq!((restarted.count(), restarted.complaint(false)), (5, None));
        for second in 1..31 {
            restarted.answered(reply("a b"), at(second));
            assert_eq!(restarted.count(), 5, "the others may be cut off");
        }
        restarted.answered(reply("a b"), at(31));
        assert_eq!(restarted.count(), 2);
    }

    /// Two servers were counted as three for ten minutes after one of them was restarted, so each granted a third.
    #[test]
    fn a_node_that_restarts_is_counted_once_and_one_that_leaves_is_not_counted() {
        let mut tally = NodeTally::assumed(Some(2));
        tally.answered(reply("a b"), at(0));
        tally.answered(reply("a -b"), at(1));
        tally.answered(reply("a b"), at(2));
        assert_eq!(tally.count(), 2);
        for second in 3..40 {
            tally.answered(reply("a -b"), at(second));
        }
        assert_eq!(tally.count(), 1);
        tally.answered(reply("a b c"), at(40));
        tally.answered(reply("a -b -c"), at(41));
        assert_eq!(tally.count(), 1);
    }

    #[test]
    fn a_silent_node_counts_for_half_a_minute() {
        let mut tally = NodeTally::assumed(Some(1));
        tally.answered(reply("a b"), at(0));
        for second in 1..30 {
            tally.answered(reply("a"), at(second));
            assert_eq!(tally.count(), 2, "it may be cut off");
        }
        let silent: Vec<_> =
            tally.report("a").iter().map(|node| node.silent.as_secs_ceil()).collect();
        assert_eq!(silent, [0, 29]);
        tally.answered(reply("a"), at(30));
        assert_eq!(tally.count(), 1);
    }

    /// After an outage of an hour, the first node that reaches the store again sees no other node. The others are still there.
    #[test]
    fn time_without_the_store_makes_no_node_silent() {
        let mut tally = NodeTally::assumed(Some(3));
        for second in 0..40 {
            tally.answered(reply("a b c"), at(second));
        }
        for _ in 0..1_000 {
            tally.failed("no answer".to_owned());
            assert_eq!(tally.count(), 3);
        }
        tally.answered(reply("a"), at(3_640));
        assert_eq!(tally.count(), 3);
        tally.answered(reply("a b c"), at(3_641));
        assert_eq!(tally.count(), 3);
    }

    #[test]
    fn three_failures_in_a_row_are_reported() {
        let mut tally = NodeTally::assumed(Some(4));
        for _ in 0..2 {
            tally.failed("WRONGTYPE".to_owned());
            assert_eq!(tally.complaint(false), None);
        }
        tally.failed("WRONGTYPE".to_owned());
        assert!(tally.complaint(false).unwrap().contains("4 are assumed: WRONGTYPE"));
        tally.answered(reply("a b"), at(1));
        assert_eq!(tally.complaint(false), None);
    }
}
