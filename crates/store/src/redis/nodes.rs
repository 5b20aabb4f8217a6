//! The nodes that count in one store: each says every second that it is there, and learns how many are.
//!
//! When the store is gone, a node that counts by itself lets pass its share of a limit: the amount by their number. A number
//! that is too small would let too much pass, so it errs on the other side:
//!
//! - The largest number of the last minutes counts. A node that was cut off from the store is not called any more, but it
//!   goes on granting its share.
//! - A node that has not counted the others yet goes by what it knew when it last ran, or else assumes a number. So it does
//!   for its first two seconds with the store, which may have lost its data: then the others have not called yet.

use super::fleet::Fleet;
use super::slots::slot_of;
use super::{OURS, RedisSettings};
use crate::sync::{Mutex, lock};
use ::redis::Value;
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::{Span, Timestamp};
use tokio::task::JoinHandle;

/// How many there are.
pub(super) struct Nodes {
    roll: Arc<Mutex<Roll>>,
    caller: Option<JoinHandle<()>>,
}

/// What is known of their number. Locked to look or to write.
#[derive(Debug)]
struct Roll {
    /// The largest number since then, and before.
    since: Timestamp,
    most: u32,
    most_before: u32,
    trust: Trust,
    /// How often in a row they could not be counted, and why the last time.
    failures: u32,
    why: String,
}

/// Where the number comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// It is assumed.
    Assumed,
    /// It is assumed; nodes are counted since then.
    Counting(Timestamp),
    /// They were counted.
    Counted,
}

/// Writes down that a node is there, and answers how many are.
pub(super) const CALL: &str = include_str!("scripts/nodes.lua");
const NODES_KEY: &str = "{tidegate}nodes";
const CALLED_EVERY: Duration = Duration::from_secs(1);
/// A number counts for this long at least, and for twice as long at most.
const REMEMBERED: Span = Span::from_secs(600);
/// What a node assumes that knows nothing: most deployments are smaller, so their shares are too small and not too large.
const ASSUMED: u32 = 8;
/// By then every node that is there has called.
const COUNTED_WITHIN: Span = Span::from_secs(2);
/// So often in a row, and it is said that nodes cannot be counted: a single call may be lost.
const MOST_FAILURES: u32 = 3;

// === impl Nodes ===

impl Nodes {
    /// Says that `name` is there from now on; or nothing, where the settings say how many there are.
    pub(super) async fn join(fleet: &Arc<Fleet>, settings: &RedisSettings, name: u64) -> Self {
        if let Some(count) = settings.nodes {
            let roll = Roll::counted(count, fleet.now());
            return Self { roll: Arc::new(Mutex::new(roll)), caller: None };
        }
        let roll = Arc::new(Mutex::new(Roll::assumed(settings.known_nodes, fleet.now())));
        let (timeout, name) = (settings.timeout, format!("{name:016x}"));
        call(fleet, timeout, &name, &roll).await;
        let caller = tokio::spawn(fleet.supervised({
            let (fleet, roll) = (Arc::clone(fleet), Arc::clone(&roll));
            move || {
                let (fleet, roll, name) = (Arc::clone(&fleet), Arc::clone(&roll), name.clone());
                async move {
                    loop {
                        tokio::time::sleep(CALLED_EVERY).await;
                        call(&fleet, timeout, &name, &roll).await;
                    }
                }
            }
        }));
        Self { roll, caller: Some(caller) }
    }

    pub(super) fn count(&self) -> u32 {
        lock(&self.roll).count()
    }

    /// How many there are, if they were counted.
    pub(super) fn known(&self) -> Option<u32> {
        let roll = lock(&self.roll);
        (roll.trust == Trust::Counted).then(|| roll.count())
    }

    /// Why their number is not known.
    pub(super) fn complaint(&self) -> Option<String> {
        lock(&self.roll).complaint()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if let Some(caller) = &self.caller {
            caller.abort();
        }
    }
}

// === impl Roll ===

impl Roll {
    fn counted(count: u32, now: Timestamp) -> Self {
        let most = count.max(1);
        let (most_before, trust, failures, why) = (0, Trust::Counted, 0, String::new());
        Self { since: now, most, most_before, trust, failures, why }
    }

    /// What is assumed before they are counted: what was known before, or something.
    fn assumed(known: Option<u32>, now: Timestamp) -> Self {
        let known = known.filter(|known| *known > 0);
        let trust = if known.is_some() { Trust::Counted } else { Trust::Assumed };
        Self { trust, ..Self::counted(known.unwrap_or(1), now) }
    }

    fn count(&self) -> u32 {
        let counted = self.most.max(self.most_before);
        match self.trust {
            Trust::Assumed | Trust::Counting(_) => counted.max(ASSUMED),
            Trust::Counted => counted,
        }
    }

    fn answered(&mut self, count: u32, now: Timestamp) {
        self.trust = match self.trust {
            Trust::Assumed => Trust::Counting(now),
            Trust::Counting(since) if now.since(since) >= COUNTED_WITHIN => Trust::Counted,
            trust @ (Trust::Counting(_) | Trust::Counted) => trust,
        };
        if now.since(self.since) >= REMEMBERED {
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
        let (count, assumed) = (self.count(), self.trust == Trust::Assumed);
        // A number that was never counted is not vouched for by any earlier call.
        let most_failures = if assumed { 1 } else { MOST_FAILURES };
        if self.failures >= most_failures {
            let why = &self.why;
            return Some(format!("the nodes cannot be counted, {count} are assumed: {why}"));
        }
        assumed.then(|| format!("the nodes were not counted yet, {count} are assumed"))
    }
}

/// Says that we are there; without an answer the number stays what it was.
async fn call(fleet: &Fleet, timeout: Span, name: &str, roll: &Mutex<Roll>) {
    let until = fleet.now().after(timeout).unwrap_or(Timestamp::END);
    let mut command = ::redis::cmd("EVAL");
    let time = fleet.told_time(slot_of(OURS));
    command.arg(CALL).arg(1).arg(NODES_KEY).arg(name).arg(time);
    let answer = fleet.query(slot_of(OURS), until, &command).await;
    let mut roll = lock(roll);
    match answer {
        Ok(Value::Int(nodes)) => {
            roll.answered(u32::try_from(nodes).unwrap_or(u32::MAX), fleet.now());
        }
        Ok(_) => roll.failed("the answer is not a number".to_owned()),
        Err(error) => roll.failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_node_that_knows_nothing_assumes_many_and_says_so() {
        let mut roll = Roll::assumed(None, at(0));
        assert_eq!(roll.count(), 8);
        assert!(roll.complaint().unwrap().contains("8 are assumed"));
        roll.failed("WRONGTYPE".to_owned());
        assert!(roll.complaint().unwrap().contains("8 are assumed: WRONGTYPE"));
        // The store may have lost its data, and the others have not called yet.
        roll.answered(1, at(1));
        assert_eq!((roll.count(), roll.complaint()), (8, None));
        roll.answered(3, at(2));
        assert_eq!(roll.count(), 8);
        roll.answered(3, at(3));
        assert_eq!(roll.count(), 3);
        let mut restarted = Roll::assumed(Some(5), at(0));
        assert_eq!((restarted.count(), restarted.complaint()), (5, None));
        restarted.answered(2, at(1));
        assert_eq!(restarted.count(), 5, "the others may be cut off");
    }

    #[test]
    fn the_largest_number_of_the_last_minutes_counts() {
        let mut roll = Roll::counted(4, at(0));
        for second in 1..600 {
            roll.answered(3, at(second));
            assert_eq!(roll.count(), 4);
        }
        for second in 600..1_200 {
            roll.answered(3, at(second));
            assert_eq!(roll.count(), 4);
        }
        roll.answered(3, at(1_200));
        assert_eq!(roll.count(), 3);
    }

    #[test]
    fn what_fails_again_and_again_is_said() {
        let mut roll = Roll::counted(4, at(0));
        for _ in 0..2 {
            roll.failed("WRONGTYPE".to_owned());
            assert_eq!(roll.complaint(), None);
        }
        roll.failed("WRONGTYPE".to_owned());
        assert!(roll.complaint().unwrap().contains("4 are assumed: WRONGTYPE"));
        roll.answered(4, at(1));
        assert_eq!(roll.complaint(), None);
    }
}
