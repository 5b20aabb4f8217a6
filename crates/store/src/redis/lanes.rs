//! Plans that wait to be sent together: a queue for each slot. See [`batches`](super::batches).

use super::packed_plan::PackedPlan;
use crate::sync::{Mutex, lock};
use ::redis::{RedisResult, Value};
use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::Arc;
use tidegate_core::{Span, Timestamp};
use tokio::sync::oneshot;

/// Calls that are under way at a time before plans wait for a full call.
const CALLS: usize = 4;
/// The most plans of a call.
const MAX_PLANS: usize = 32;
/// The most time that a call may take the server, in microseconds.
const MAX_MICROS: u32 = 250;
/// How long a plan waits for others. A task looks every millisecond, so it may be up to two.
pub(super) const MAX_WAIT: Span = Span::from_millis(1);

/// The plans that wait for a server, by slot. Locked for a look, never across an await.
#[derive(Default)]
pub(super) struct Lanes(Mutex<HashMap<u16, Lane>>);

/// The plans of one slot.
#[derive(Default)]
struct Lane {
    /// How many calls are under way, and how many plans are in them.
    calls: usize,
    plans: usize,
    waiting: VecDeque<WaitingPlan>,
    /// How long the plans that wait take the server, in microseconds.
    micros: u32,
    /// A task will look soon what can be sent.
    is_scheduled: bool,
    /// A task looks from time to time whether plans wait for too long.
    is_watched: bool,
}

/// A plan that waits to be sent.
pub(super) struct WaitingPlan {
    pub(super) plan: Arc<PackedPlan>,
    since: Timestamp,
    /// When its caller gives up.
    until: Timestamp,
    pub(super) reply: oneshot::Sender<RedisResult<Value>>,
}

/// What becomes of a plan that enters a lane.
pub(super) enum EnteredLane {
    /// It is sent now, alone. [`Lanes::finished`] must be called when its call is over.
    SendNow,
    /// It waits.
    Waits(PlanWait),
}

/// A plan that waits.
pub(super) struct PlanWait {
    /// Its reply arrives here, or an error if it is not sent.
    pub(super) reply: oneshot::Receiver<RedisResult<Value>>,
    pub(super) step: NextStep,
    /// [`Lanes::is_watch_over`] must be called every [`MAX_WAIT`] from now on, until it says so.
    pub(super) begins_watch: bool,
}

/// What the caller of a lane must do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    Nothing,
    /// Call [`Lanes::next_call`] until nothing is left, when other tasks had time to add their plans.
    SendSoon,
    /// Call it now.
    SendNow,
}

impl Lanes {
    /// Enters a lane, now, with a plan whose caller gives up at `until`.
    pub(super) fn enter(
        &self,
        slot: u16,
        plan: &Arc<PackedPlan>,
        (since, until): (Timestamp, Timestamp),
    ) -> EnteredLane {
        let mut lanes = lock(&self.0);
        let lane = lanes.entry(slot).or_default();
        if lane.calls == 0 && lane.waiting.is_empty() {
            (lane.calls, lane.plans) = (1, 1);
            return EnteredLane::SendNow;
        }
        let (reply, replied) = oneshot::channel();
        lane.micros = lane.micros.saturating_add(plan.micros);
        lane.waiting.push_back(WaitingPlan { plan: Arc::clone(plan), since, until, reply });
        let begins_watch = !mem::replace(&mut lane.is_watched, true);
        EnteredLane::Waits(PlanWait { reply: replied, step: lane.next_step(), begins_watch })
    }

    /// Whether nothing waits in this lane, so that its watch is over.
    pub(super) fn is_watch_over(&self, slot: u16) -> bool {
        let mut lanes = lock(&self.0);
        let Some(lane) = lanes.get_mut(&slot) else { return true };
        lane.is_watched = !lane.waiting.is_empty();
        let is_over = !lane.is_watched;
        if lane.is_unused() {
            lanes.remove(&slot);
        }
        is_over
    }

    /// The plans of the next call, if one can be sent now. [`finished`](Self::finished) must be called when it is over.
    pub(super) fn next_call(&self, slot: u16, now: Timestamp) -> Vec<WaitingPlan> {
        let mut lanes = lock(&self.0);
        let Some(lane) = lanes.get_mut(&slot) else { return Vec::new() };
        let can_send = lane.can_send() || lane.is_overdue(now);
        let plans = if can_send { lane.take_plans(now) } else { Vec::new() };
        if plans.is_empty() {
            lane.is_scheduled = false;
            if lane.is_unused() {
                lanes.remove(&slot);
            }
        } else {
            lane.calls = lane.calls.saturating_add(1);
            lane.plans = lane.plans.saturating_add(plans.len());
        }
        plans
    }

    /// A call with this number of plans is over.
    pub(super) fn finished(&self, slot: u16, plans: usize) -> NextStep {
        let mut lanes = lock(&self.0);
        let Some(lane) = lanes.get_mut(&slot) else { return NextStep::Nothing };
        lane.calls = lane.calls.saturating_sub(1);
        lane.plans = lane.plans.saturating_sub(plans);
        let step = lane.next_step();
        if lane.is_unused() {
            lanes.remove(&slot);
        }
        step
    }
}

impl Lane {
    /// Whether the plans that wait fill a call.
    fn is_full(&self) -> bool {
        self.waiting.len() >= MAX_PLANS || self.micros >= MAX_MICROS
    }

    /// Whether plans that wait can be sent now: they fill a call; or only a few calls are under way, and a further one would not be
    /// much smaller than those.
    fn can_send(&self) -> bool {
        let is_worth_a_call = self.waiting.len().saturating_mul(CALLS) >= self.plans;
        self.is_full() || (self.calls < CALLS && is_worth_a_call && !self.waiting.is_empty())
    }

    /// Whether a plan waits for too long.
    fn is_overdue(&self, now: Timestamp) -> bool {
        self.waiting.front().is_some_and(|first| now.since(first.since) >= MAX_WAIT)
    }

    /// Whether the lane can be removed: it has no plans, and no task will look at it again.
    fn is_unused(&self) -> bool {
        self.calls == 0 && self.waiting.is_empty() && !self.is_scheduled && !self.is_watched
    }

    fn next_step(&mut self) -> NextStep {
        if self.is_full() {
            return NextStep::SendNow;
        }
        if self.is_scheduled || !self.can_send() {
            return NextStep::Nothing;
        }
        self.is_scheduled = true;
        NextStep::SendSoon
    }

    /// The plans of a call. Those whose callers have left are dropped.
    fn take_plans(&mut self, now: Timestamp) -> Vec<WaitingPlan> {
        let (mut plans, mut micros) = (Vec::<WaitingPlan>::new(), 0_u32);
        while let Some(next) = self.waiting.pop_front() {
            self.micros = self.micros.saturating_sub(next.plan.micros);
            if next.reply.is_closed() || next.until <= now {
                continue;
            }
            let sum = micros.saturating_add(next.plan.micros);
            let is_full = plans.len() >= MAX_PLANS || sum > MAX_MICROS;
            let has_other_time = |first: &WaitingPlan| first.plan.test != next.plan.test;
            if plans.first().is_some_and(|first| is_full || has_other_time(first)) {
                self.micros = self.micros.saturating_add(next.plan.micros);
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

    /// A plan that takes a server this long.
    fn plan(micros: u32) -> Arc<PackedPlan> {
        let (kind, keys, numbers) = (ProgramKind::Functions, vec![], vec![]);
        Arc::new(PackedPlan { kind, slot: 0, keys, numbers, micros, test: None })
    }

    /// Enters a lane, and returns the steps that follow and the replies that are waited for.
    fn enter(
        lanes: &Lanes,
        plans: impl IntoIterator<Item = u32>,
    ) -> (Vec<NextStep>, Vec<oneshot::Receiver<RedisResult<Value>>>) {
        let wait = |micros| match lanes.enter(0, &plan(micros), (at(0), at(100))) {
            EnteredLane::SendNow => None,
            EnteredLane::Waits(PlanWait { reply, step, .. }) => Some((step, reply)),
        };
        plans.into_iter().filter_map(wait).unzip()
    }

    /// The sizes of the calls that can be sent now.
    fn calls(lanes: &Lanes) -> Vec<usize> {
        let next = || Some(lanes.next_call(0, at(1)).len()).filter(|plans| *plans > 0);
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_plan_that_finds_the_server_idle_is_sent_at_once_and_leaves_nothing_behind() {
        let lanes = Lanes::default();
        for slot in [0, 1] {
            let entered = lanes.enter(slot, &plan(1), (at(0), at(100)));
            assert!(matches!(entered, EnteredLane::SendNow));
        }
        for slot in [0, 1] {
            assert_eq!(lanes.finished(slot, 1), NextStep::Nothing);
        }
        assert!(lock(&lanes.0).is_empty());
    }

    #[test]
    fn few_calls_are_under_way_and_each_is_worth_it() {
        let lanes = Lanes::default();
        let (steps, _replies) = enter(&lanes, [1; 4]);
        // One is under way. The first that waits schedules a call, the others join it.
        assert_eq!(steps, [NextStep::SendSoon, NextStep::Nothing, NextStep::Nothing]);
        assert_eq!(calls(&lanes), [3]);
        // Four plans are under way in two calls: one plan is worth a third call. For a fourth, there must be two.
        let (steps, _replies) = enter(&lanes, [1]);
        assert_eq!((steps, calls(&lanes)), (vec![NextStep::SendSoon], vec![1]));
        let (steps, _replies) = enter(&lanes, [1]);
        assert_eq!((steps, calls(&lanes)), (vec![NextStep::Nothing], vec![]));
        let (steps, _replies) = enter(&lanes, [1]);
        assert_eq!((steps, calls(&lanes)), (vec![NextStep::SendSoon], vec![2]));
        // Four calls are under way. Only a full one follows.
        let (steps, _replies) = enter(&lanes, [1; 31]);
        assert!(steps.iter().all(|step| *step == NextStep::Nothing) && calls(&lanes).is_empty());
        let (steps, _replies) = enter(&lanes, [1]);
        assert_eq!((steps, calls(&lanes)), (vec![NextStep::SendNow], vec![32]));
    }

    #[test]
    fn what_waits_is_sent_when_a_call_ends() {
        let lanes = Lanes::default();
        let (_, _replies) = enter(&lanes, [1; 32]);
        assert_eq!(calls(&lanes), [31]);
        let (steps, _replies) = enter(&lanes, [1]);
        assert_eq!((steps, calls(&lanes)), (vec![NextStep::Nothing], vec![]));
        assert_eq!(lanes.finished(0, 1), NextStep::Nothing);
        assert_eq!(lanes.finished(0, 31), NextStep::SendSoon);
        assert_eq!(calls(&lanes), [1]);
        assert_eq!(lanes.finished(0, 1), NextStep::Nothing);
        assert!(lanes.is_watch_over(0) && lock(&lanes.0).is_empty());
    }

    #[test]
    fn no_plan_waits_long_for_calls_under_way() {
        let lanes = Lanes::default();
        let (_, _replies) = enter(&lanes, [1; 32]);
        assert_eq!(calls(&lanes), [31]);
        let enter = |since| lanes.enter(0, &plan(1), (at(since), at(60_000)));
        let waits = [enter(10), enter(20)].map(|entered| match entered {
            EnteredLane::Waits(wait) => wait,
            EnteredLane::SendNow => panic!("it does not wait for the others"),
        });
        // One task watches them all.
        assert_eq!(waits.each_ref().map(|wait| wait.begins_watch), [false, false]);
        assert!(lanes.next_call(0, at(1_009)).is_empty() && !lanes.is_watch_over(0));
        assert_eq!(lanes.next_call(0, at(1_010)).len(), 2);
        assert!(lanes.is_watch_over(0));
    }

    #[test]
    fn a_call_takes_the_server_a_quarter_of_a_millisecond_at_most_but_has_at_least_one_plan() {
        let lanes = Lanes::default();
        let (steps, _replies) = enter(&lanes, [1, 100, 100, 60, 300]);
        let full = [NextStep::SendNow; 2];
        assert_eq!(steps, [&[NextStep::SendSoon, NextStep::Nothing][..], &full].concat());
        assert_eq!(calls(&lanes), [2, 1, 1]);
    }

    #[test]
    fn plans_whose_callers_have_left_are_not_sent() {
        let lanes = Lanes::default();
        let (_, mut replies) = enter(&lanes, [1; 3]);
        let impatient = lanes.enter(0, &plan(1), (at(0), at(1)));
        replies.pop();
        assert_eq!(calls(&lanes), [1]);
        drop((replies, impatient));
    }
}
