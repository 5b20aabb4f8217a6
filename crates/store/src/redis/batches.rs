//! Plans that wait for one server share a call.
//!
//! ```text
//!   fewer than 4 calls under way ──► sent at once, alone
//!   otherwise                    ──► waits ──► a call ends: up to 32 that wait are sent in one call
//! ```
//!
//! One call with many plans costs a server about two thirds of the time per plan that a call for each costs, and it costs a node fewer system
//! calls. A plan that finds the server idle never waits. A server with a long round trip still gets four calls at a time.
//!
//! - **Slots.** A call may touch one slot of a cluster, so each slot has a lane of its own. Elsewhere there is one lane.
//! - **Bounds.** A call takes the server at most a quarter of a millisecond, by the estimates in [`PackedPlan`]. Other clients
//!   of the server may have to wait for four of them in a row.
//! - **Failures.** A plan keeps its own deadline and its own error. A call that is not answered counts once for the circuit
//!   breaker, however many plans it carries.

use super::connection::Message;
use super::lanes::WaitingPlan;
use super::link_state::LinkCore;
use super::packed_plan::PackedPlan;
use super::script::LATE_REPLY_TIMEOUT;
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
}

impl LaneEntry {
    /// Enters the lane of a plan.
    pub(super) fn new(link: &Arc<LinkCore>, plan: &Arc<PackedPlan>, until: Timestamp) -> Self {
        let slot = if link.context.is_cluster { plan.slot } else { 0 };
        match link.lanes.enter(slot, plan, until) {
            Some(reply) => Self::Waits(reply),
            None => Self::Now(LaneCall { link: Arc::clone(link), slot }),
        }
    }
}

impl Drop for LaneCall {
    fn drop(&mut self) {
        let plans = self.link.lanes.finished(self.slot, self.link.context.now());
        if plans.is_empty() {
            return;
        }
        let call = Self { link: Arc::clone(&self.link), slot: self.slot };
        // When the process ends, tokio may drop this call after its runtime has stopped. Then no task can be spawned, and no
        // caller is left that waits for these plans.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(call.send(plans));
        }
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
        for (caller, reply) in callers.into_iter().zip(divided(replied)) {
            // A caller that left gets nothing.
            let _ = caller.send(reply);
        }
    }
}

/// The reply of a call with several plans, divided into one for each plan, like that of a call with this plan alone.
fn divided(reply: RedisResult<Value>) -> Box<dyn Iterator<Item = RedisResult<Value>> + Send> {
    match reply {
        Ok(Value::Array(replies)) => {
            let mut replies = replies.into_iter();
            let now = replies.next().unwrap_or(Value::Nil);
            Box::new(replies.map(move |reply| Ok(Value::Array(vec![now.clone(), reply]))))
        }
        Ok(other) => Box::new(std::iter::repeat_with(move || Ok(other.clone()))),
        Err(error) => Box::new(std::iter::repeat_with(move || Err(error.clone()))),
    }
}
