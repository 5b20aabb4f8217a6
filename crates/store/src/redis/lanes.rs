//! Plans that wait to be sent together: a queue for each slot. See [`batches`](super::batches).

use super::packed_plan::PackedPlan;
use crate::sync::{Mutex, lock};
use ::redis::{RedisResult, Value};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tidegate_core::Timestamp;
use tokio::sync::oneshot;

/// Calls that are under way at a time before plans wait for each other.
const CALLS: usize = 4;
/// The most plans of a call.
const MAX_PLANS: usize = 32;
/// The most time that a call may take the server, in microseconds.
const MAX_MICROS: u32 = 250;

/// The plans that wait for a server, by slot. Locked for a look, never across an await.
#[derive(Default)]
pub(super) struct Lanes(Mutex<HashMap<u16, Lane>>);

/// The plans of one slot.
#[derive(Default)]
struct Lane {
    /// How many calls are under way.
    calls: usize,
    waiting: VecDeque<WaitingPlan>,
}

/// A plan that waits to be sent.
pub(super) struct WaitingPlan {
    pub(super) plan: Arc<PackedPlan>,
    /// When its caller gives up.
    until: Timestamp,
    pub(super) reply: oneshot::Sender<RedisResult<Value>>,
}

impl Lanes {
    /// Enters a lane. `None` if the plan is to be sent now; then [`finished`](Self::finished) must be called when its call is
    /// over. Otherwise the plan waits, and its reply arrives later, or an error if it is not sent.
    pub(super) fn enter(
        &self,
        slot: u16,
        plan: &Arc<PackedPlan>,
        until: Timestamp,
    ) -> Option<oneshot::Receiver<RedisResult<Value>>> {
        let mut lanes = lock(&self.0);
        let lane = lanes.entry(slot).or_default();
        if lane.calls < CALLS {
            lane.calls = lane.calls.saturating_add(1);
            return None;
        }
        let (reply, replied) = oneshot::channel();
        lane.waiting.push_back(WaitingPlan { plan: Arc::clone(plan), until, reply });
        Some(replied)
    }

    /// A call is over. Returns the plans of the call that takes its place, or none.
    pub(super) fn finished(&self, slot: u16, now: Timestamp) -> Vec<WaitingPlan> {
        let mut lanes = lock(&self.0);
        let Some(lane) = lanes.get_mut(&slot) else { return Vec::new() };
        let plans = lane.next_call(now);
        if plans.is_empty() {
            lane.calls = lane.calls.saturating_sub(1);
            if lane.calls == 0 {
                lanes.remove(&slot);
            }
        }
        plans
    }
}

impl Lane {
    /// The plans of the next call. Those whose callers have left are dropped.
    fn next_call(&mut self, now: Timestamp) -> Vec<WaitingPlan> {
        let (mut plans, mut micros) = (Vec::<WaitingPlan>::new(), 0_u32);
        while let Some(next) = self.waiting.pop_front() {
            if next.reply.is_closed() || next.until <= now {
                continue;
            }
            let sum = micros.saturating_add(next.plan.micros);
            let is_full = plans.len() >= MAX_PLANS || sum > MAX_MICROS;
            let has_other_time = |first: &WaitingPlan| first.plan.test != next.plan.test;
            if plans.first().is_some_and(|first| is_full || has_other_time(first)) {
                self.waiting.push_front(next);
                break;
            }
            micros = sum;
            plans.push(next);
        }
        plans
    }
}

#[cfg(test)]
mod tests {
    use super::super::library::ProgramKind;
    use super::*;

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_nanos(micros * 1_000)
    }

    /// A plan that takes a server this long, told apart by its time.
    fn plan(micros: u32) -> Arc<PackedPlan> {
        let (kind, keys, numbers) = (ProgramKind::Functions, vec![], vec![]);
        Arc::new(PackedPlan { kind, slot: 0, keys, numbers, micros, test: None })
    }

    #[test]
    fn four_calls_are_under_way_and_the_others_wait_for_the_next_one() {
        let lanes = Lanes::default();
        let entered: Vec<_> = (0..44).map(|_| lanes.enter(0, &plan(1), at(100))).collect();
        assert_eq!(entered.iter().filter(|entry| entry.is_none()).count(), 4);
        assert_eq!(lanes.finished(0, at(1)).len(), 32);
        assert_eq!(lanes.finished(0, at(1)).len(), 8);
        // Another slot does not wait for this one.
        assert!(lanes.enter(1, &plan(1), at(100)).is_none());
        for _ in 0..4 {
            assert!(lanes.finished(0, at(1)).is_empty());
        }
        assert!(lanes.finished(1, at(1)).is_empty() && lock(&lanes.0).is_empty());
    }

    #[test]
    fn a_call_takes_the_server_a_quarter_of_a_millisecond_at_most_but_has_at_least_one_plan() {
        let lanes = Lanes::default();
        let _sent: Vec<_> = (0..4).map(|_| lanes.enter(0, &plan(1), at(100))).collect();
        let _wait = [100, 100, 60, 300].map(|micros| lanes.enter(0, &plan(micros), at(100)));
        let calls = [(); 4].map(|()| lanes.finished(0, at(1)).len());
        assert_eq!(calls, [2, 1, 1, 0]);
    }

    #[test]
    fn plans_whose_callers_have_left_are_not_sent() {
        let lanes = Lanes::default();
        let _sent: Vec<_> = (0..4).map(|_| lanes.enter(0, &plan(1), at(100))).collect();
        let stays = lanes.enter(0, &plan(1), at(100));
        drop(lanes.enter(0, &plan(1), at(100)));
        let impatient = lanes.enter(0, &plan(1), at(50));
        assert_eq!(lanes.finished(0, at(60)).len(), 1);
        drop((stays, impatient));
    }
}
