//! Plans that wait for one server share a call.
//!
//! ```text
//!   no call under way ──► sent at once, alone
//!   otherwise         ──► waits ──┬─► 32 wait, or fewer than 4 calls are under way ──► up to 32 are sent in one call
//!                                 └─► one has waited for a millisecond ──────────────►
//! ```
//!
//! One call with many plans costs a server about half of the time per plan that a call for each costs, and it costs a node fewer
//! system calls. So a further call must not be much smaller than those under way. With a long round trip, plans that
//! waited for the calls under way would take twice as long. So no plan waits for more than about two milliseconds.
//!
//! - **Turns.** A server often writes the replies of several calls together. They are handed out one call after the other, and
//!   the callers of the first one run in between. So the server works on their next plans while the others are woken.
//!
//! - **Slots.** A call may touch one slot of a cluster, so each slot has a lane of its own. Elsewhere there is one lane.
//! - **Bounds.** A call takes the server at most a quarter of a millisecond, by the estimates in [`PackedPlan`]. Other clients
//!   of the server may have to wait for several of them in a row.
//! - **Failures.** A plan keeps its own deadline and its own error. A call that is not answered counts once for the circuit
//!   breaker, however many plans it carries.

use super::connection::Message;
use super::lanes::{EnteredLane, MAX_WAIT, NextStep, PlanWait, WaitingPlan};
use super::link_state::LinkCore;
use super::packed_plan::PackedPlan;
use super::script::LATE_REPLY_TIMEOUT;
use crate::remote::timers;
use ::redis::{RedisResult, Value};
use std::sync::Arc;
use tidegate_core::Timestamp;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// The result of entering a lane.
pub(super) enum LaneEntry {
    /// The plan is to be sent now, alone. The call is over when the guard is dropped.
    Now(LaneCall),
    /// The plan waits. Its reply arrives here; an error if it is not sent.
    Waits(oneshot::Receiver<RedisResult<Value>>),
}

/// A call that is under way. When it is dropped, plans that wait are sent.
pub(super) struct LaneCall {
    link: Arc<LinkCore>,
    slot: u16,
    /// How many plans it has.
    plans: usize,
}

impl LaneEntry {
    /// Enters the lane of a plan.
    pub(super) fn new(link: &Arc<LinkCore>, plan: &Arc<PackedPlan>, until: Timestamp) -> Self {
        let slot = if link.context.is_cluster { plan.slot } else { 0 };
        match link.lanes.enter(slot, plan, (link.context.now(), until)) {
            EnteredLane::SendNow => Self::Now(LaneCall { link: Arc::clone(link), slot, plans: 1 }),
            EnteredLane::Waits(PlanWait { reply, step, begins_watch }) => {
                follow(link, slot, step);
                if let (true, Ok(runtime)) = (begins_watch, Handle::try_current()) {
                    runtime.spawn(watch(Arc::clone(link), slot));
                }
                Self::Waits(reply)
            }
        }
    }
}

impl Drop for LaneCall {
    fn drop(&mut self) {
        let step = self.link.lanes.finished(self.slot, self.plans);
        follow(&self.link, self.slot, step);
    }
}

/// Does what a lane asks for. When the process ends, tokio may drop calls after its runtime has stopped. Then no task can be
/// spawned, and no caller is left that waits for a reply.
fn follow(link: &Arc<LinkCore>, slot: u16, step: NextStep) {
    match (step, Handle::try_current()) {
        (NextStep::SendNow, Ok(runtime)) => send_waiting(link, slot, &runtime),
        (NextStep::SendSoon, Ok(runtime)) => {
            let link = Arc::clone(link);
            runtime.clone().spawn(async move {
                // Tasks that are ready to run may add plans to the call.
                tokio::task::yield_now().await;
                send_waiting(&link, slot, &runtime);
            });
        }
        (NextStep::Nothing, _) | (_, Err(_)) => {}
    }
}

/// Sends plans that wait for too long, until none waits.
async fn watch(link: Arc<LinkCore>, slot: u16) {
    let Ok(runtime) = Handle::try_current() else { return };
    while !link.lanes.is_watch_over(slot) {
        timers::sleep(MAX_WAIT.into()).await;
        send_waiting(&link, slot, &runtime);
    }
}

/// Sends the plans of a lane that can be sent now.
fn send_waiting(link: &Arc<LinkCore>, slot: u16, runtime: &Handle) {
    loop {
        let plans = link.lanes.next_call(slot, link.context.now());
        if plans.is_empty() {
            return;
        }
        let call = LaneCall { link: Arc::clone(link), slot, plans: plans.len() };
        runtime.spawn(call.send(plans));
    }
}

impl LaneCall {
    /// Sends plans in one call, and gives each caller its reply.
    async fn send(self, plans: Vec<WaitingPlan>) {
        let link = Arc::clone(&self.link);
        let Ok((connection, generation)) = link.connection() else {
            // The channels to the callers are closed, which tells them that nothing was sent.
            return;
        };
        let (plans, callers): (Vec<_>, Vec<_>) =
            plans.into_iter().map(|waiting| (waiting.plan, waiting.reply)).unzip();
        let takes = plans.iter().map(|plan| plan.keys.len()).collect();
        let mut reply = Box::pin(connection.send(Arc::new(Message::Plans(plans)), false));
        let timeout = link.context.settings.timeout;
        let replied = match tokio::time::timeout(timeout.into(), &mut reply).await {
            Ok(replied) => replied,
            Err(_late) => {
                let _ = link.timed_out_after(timeout);
                drop(self);
                match tokio::time::timeout(LATE_REPLY_TIMEOUT, reply).await {
                    Ok(replied) => replied,
                    Err(_never) => return,
                }
            }
        };
        if let Err(error) = &replied {
            // The connection is judged here. Each caller judges what the error means for itself.
            let _ = link.judge(Err(error.clone()), generation);
        }
        let _turn = link.handing_out.lock().await;
        for (caller, reply) in callers.into_iter().zip(divided(replied, takes)) {
            // A caller that left gets nothing.
            let _ = caller.send(reply);
        }
        // The callers run before the next call's callers are woken, so that the server has work from them meanwhile.
        tokio::task::yield_now().await;
    }
}

/// The reply of a call with several plans, divided into one for each plan, like that of a call with this plan alone. `takes` are
/// the numbers of takes of the plans.
fn divided(
    reply: RedisResult<Value>,
    takes: Vec<usize>,
) -> Box<dyn Iterator<Item = RedisResult<Value>> + Send> {
    match reply {
        Ok(Value::Array(words)) => {
            let mut words = words.into_iter();
            let now = words.next().unwrap_or(Value::Nil);
            Box::new(takes.into_iter().map(move |takes| {
                let mut plan = Vec::with_capacity(takes.saturating_add(3));
                plan.push(now.clone());
                plan.extend(words.by_ref().take(takes.saturating_add(2)));
                Ok(Value::Array(plan))
            }))
        }
        Ok(other) => Box::new(std::iter::repeat_with(move || Ok(other.clone()))),
        Err(error) => Box::new(std::iter::repeat_with(move || Err(error.clone()))),
    }
}
