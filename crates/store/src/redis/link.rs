//! The link to one server: one connection that many calls share (pipelining), behind a circuit breaker.
//!
//! ```text
//!   call ──► breaker closed, permit free? ──► connection ──┬─► reply: restarts the count of timeouts, even if it is an error
//!            └ no: an error immediately                    ├─► timeout: the breaker counts it, and opens after several
//!                                                          └─► the connection ends: the breaker opens at once
//!   keeper (background task): reconnects, probes, closes the breaker
//! ```
//!
//! A command that may have been counted is never sent again: the caller decides what a failure means. Only if the server says
//! that it does not have the program, which proves that nothing was done, is it loaded and called again.

use super::batches::{LaneCall, LaneEntry};
use super::command_error::CommandError;
use super::connection::{Connection, Host, Message};
use super::context::StoreContext;
use super::library::ProgramKind;
use super::link_state::LinkCore;
use super::script::{LateReply, LateSlot, PendingReply, ScriptCall, ScriptHints, ScriptReply};
use super::settings::RedisClock;
use crate::error::StoreError;
use crate::remote::{ErrorClass, keep, supervised, update_breaker};
use crate::sync::lock;
use ::redis::{Cmd, RedisResult, Value};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidegate_core::{Span, StateId, Timestamp};
use tokio::task::JoinHandle;

/// A connection to one server that many calls share, and the task that keeps it.
pub(super) struct Link {
    core: Arc<LinkCore>,
    keeper: JoinHandle<()>,
}

/// How often one call loads the programs: another client may run SCRIPT FLUSH or FUNCTION FLUSH again and again.
const MAX_LOADS: usize = 3;

impl Link {
    /// Connects, or leaves it to the keeper to go on trying. The second value is the result of the first attempt.
    pub(super) async fn open(
        name: String,
        host: Host,
        canary: Option<StateId>,
        context: &Arc<StoreContext>,
    ) -> (Arc<Self>, Result<(), StoreError>) {
        let core = Arc::new(LinkCore::new(name, host, canary, context));
        let first = update_breaker(&*core).await;
        let keeper = tokio::spawn(supervised(Arc::clone(&context.restarts), {
            let core = Arc::clone(&core);
            move || keep(Arc::clone(&core))
        }));
        (Arc::new(Self { core, keeper }), first)
    }

    /// The address of the server.
    pub(super) fn name(&self) -> &str {
        &self.core.gate.name
    }

    /// Sets the state on which the keeper runs its canary calls from now on.
    pub(super) fn set_canary(&self, canary: Option<StateId>) {
        *lock(&self.core.canary) = canary;
    }

    /// For how long the server is back, if it was away before.
    pub(super) fn back_for(&self) -> Option<Span> {
        self.core.gate.back_for()
    }

    /// Why the server is not called at the moment; `None` while the breaker is closed.
    pub(super) fn complaint(&self) -> Option<String> {
        self.core.gate.complaint()
    }

    /// The estimated server time at an instant of the node's clock, and the latest that it can be.
    pub(super) fn server_time(&self, local: Timestamp) -> (Timestamp, Timestamp) {
        self.core.server_clock.estimate_and_latest(local)
    }

    /// Calls the script. With `asking`, ASKING goes first: the server accepts the call for a slot that it is importing.
    pub(super) async fn call(
        &self,
        until: Timestamp,
        call: &ScriptCall<'_>,
        hints: &ScriptHints<'_>,
        asking: bool,
    ) -> Result<ScriptReply, CommandError> {
        let core = &self.core;
        let (clock, sent) = (core.context.settings.clock, core.context.now());
        let times = core.server_clock.script_times(clock, sent, until, hints);
        let echo = core.next_echo.fetch_add(1, Ordering::Relaxed);
        let message = |kind| Arc::new(core.host.script_message(call, hints, times, echo, kind));
        let late = call.late.map(|slot| (slot, echo));
        let reply = self.call_loaded(until, message, asking, late).await?;
        core.script_reply(reply, echo, sent, times)
    }

    /// Calls a program, and loads all programs first if the server does not have it. One caller loads them for all that wait.
    async fn call_loaded(
        &self,
        until: Timestamp,
        message: impl Fn(ProgramKind) -> Arc<Message>,
        asking: bool,
        late: Option<(&LateSlot, u64)>,
    ) -> Result<Value, CommandError> {
        let core = &self.core;
        for _ in 0..MAX_LOADS {
            let (loads, kind) = (core.loads.load(Ordering::Relaxed), core.program_kind());
            match self.exchange(until, &message(kind), asking, late).await {
                Err(CommandError::NotLoaded) => {}
                Err(CommandError::NoFunctions(_)) if kind == ProgramKind::Functions => {
                    core.use_scripts();
                    continue;
                }
                result => return result,
            }
            let locking = tokio::time::timeout(core.left(until).into(), core.loading.lock());
            let _loading = locking.await.map_err(|_late| core.timed_out())?;
            if core.loads.load(Ordering::Relaxed) == loads {
                let query = |load| async move { self.query(until, &load, false).await };
                core.load_programs(query).await?;
                core.loads.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.exchange(until, &message(core.program_kind()), asking, late).await
    }

    /// Sends a command.
    pub(super) async fn query(
        &self,
        until: Timestamp,
        command: &Cmd,
        asking: bool,
    ) -> Result<Value, CommandError> {
        let message = Arc::new(Message::Command(command.clone()));
        self.exchange(until, &message, asking, None).await
    }

    /// Sends a message and waits for the reply. If the caller gives up first, the pending reply is left in `late`.
    async fn exchange(
        &self,
        until: Timestamp,
        message: &Arc<Message>,
        asking: bool,
        late: Option<(&LateSlot, u64)>,
    ) -> Result<Value, CommandError> {
        let core = &self.core;
        let full = |error| CommandError::Failed(ErrorClass::Overloaded, error);
        let _permit = core.gate.enter().map_err(full)?;
        let (connection, generation) = core.connection()?;
        let left = core.left(until);
        if left == Span::ZERO {
            // The caller would not wait for the reply, so nothing is sent and nothing is counted.
            return Err(core.timed_out());
        }
        let (reply, lane) = self.send(connection, message, asking, until);
        let mut pending = PendingCall { reply, arrived: false, late };
        match tokio::time::timeout(left.into(), pending.reply()).await {
            Ok(Some(reply)) => core.judge(reply, generation),
            // The connection was lost while the message waited.
            Ok(None) => Err(core.connection().err().unwrap_or_else(|| core.timed_out())),
            // The call that a waiting plan was part of, if any, is counted by itself.
            Err(_late) if matches!(lane, SentIn::LaterCall) => Err(core.timed_out()),
            Err(_late) => Err(core.timed_out_after(left)),
        }
    }

    /// Sends a message, now or together with others.
    fn send(
        &self,
        connection: Connection,
        message: &Arc<Message>,
        asking: bool,
        until: Timestamp,
    ) -> (PendingReply, SentIn) {
        let mut sent_in = SentIn::OwnCall(None);
        if let Message::Plans(plans) = &**message
            && let [plan] = plans.as_slice()
            && !asking
            && self.core.context.settings.clock == RedisClock::Server
        {
            sent_in = match LaneEntry::new(&self.core, plan, until) {
                LaneEntry::Now(call) => SentIn::OwnCall(Some(call)),
                LaneEntry::Waits(reply) => {
                    return (Box::pin(async move { reply.await.ok() }), SentIn::LaterCall);
                }
            };
        }
        let reply = connection.send(Arc::clone(message), asking);
        (Box::pin(async move { Some(reply.await) }), sent_in)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

/// Which call a message is sent in.
enum SentIn {
    /// A call of its own, which perhaps occupies a lane until it is over.
    OwnCall(
        #[expect(dead_code, reason = "it leaves the lane when it is dropped")] Option<LaneCall>,
    ),
    /// A later call, together with others.
    LaterCall,
}

/// A message that was sent. If its caller gives up, because of its deadline or because its future is dropped, the pending reply
/// is left in a [`LateSlot`], where it is settled later.
struct PendingCall<'s> {
    reply: PendingReply,
    arrived: bool,
    late: Option<(&'s LateSlot, u64)>,
}

impl PendingCall<'_> {
    async fn reply(&mut self) -> Option<RedisResult<Value>> {
        let reply = (&mut self.reply).await;
        self.arrived = true;
        reply
    }
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        if let Some((slot, echo)) = self.late.filter(|_| !self.arrived) {
            let reply = std::mem::replace(&mut self.reply, Box::pin(std::future::pending()));
            *lock(slot) = Some(LateReply { reply, echo });
        }
    }
}
