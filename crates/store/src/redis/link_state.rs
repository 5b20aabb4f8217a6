//! The state of a link: its gate, and what else the callers of a Redis server and the keeper of its connection share.

use super::command_error::CommandError;
use super::connection::{Connection, Host};
use super::context::StoreContext;
use super::dataset::DatasetWatch;
use super::lanes::Lanes;
use super::library::{self, ProgramKind};
use super::script::{self, ScriptReply, ScriptTimes};
use super::server_clock::ServerClock;
use super::settings::RedisSettings;
use crate::error::StoreError;
use crate::remote::{ErrorClass, Gate};
use crate::sync::Mutex;
use ::redis::{Cmd, ErrorKind, RedisError, RedisResult, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tidegate_core::{Span, StateId, Timestamp};

/// What the callers of a server and the keeper of its connection share.
pub(super) struct LinkCore {
    pub(super) gate: Gate<Connection>,
    pub(super) host: Host,
    pub(super) context: Arc<StoreContext>,
    pub(super) server_clock: ServerClock,
    /// Whether a new connection leads to the data of the one before.
    pub(super) datasets: DatasetWatch,
    /// The state on which the keeper runs its canary calls, which probe the server with the real script; `None` on a server that
    /// owns no slot of our keys. Such a server is probed with PING. Locked to look or to replace, never across an await.
    pub(super) canary: Mutex<Option<StateId>>,
    /// When libraries of older versions were last looked for.
    pub(super) looked_for_libraries: Mutex<Option<Timestamp>>,
    /// Locked while the programs are loaded, so that one of many callers that miss them loads them.
    pub(super) loading: tokio::sync::Mutex<()>,
    /// How often they were loaded. Relaxed: a caller that misses a change loads them once more.
    pub(super) loads: AtomicU64,
    /// The server has no functions, or this user may not use them. Relaxed: a caller that misses a change finds out by itself.
    scripts_only: AtomicBool,
    /// Plans that wait to be sent together.
    pub(super) lanes: Lanes,
    /// Locked while the replies of a call are handed to its callers: one call after the other.
    pub(super) handing_out: tokio::sync::Mutex<()>,
    /// The number (*echo*) of the next script call. The reply repeats it, so that a caller notices the reply to another call.
    /// Relaxed: the numbers only have to differ.
    pub(super) next_echo: AtomicU64,
}

impl LinkCore {
    pub(super) fn new(
        name: String,
        host: Host,
        canary: Option<StateId>,
        context: &Arc<StoreContext>,
    ) -> Self {
        let RedisSettings { timeout, in_flight, .. } = context.settings;
        let gate = Gate::new(name, timeout, in_flight, context.clock.clone());
        if context.is_running.load(Ordering::Relaxed) {
            gate.succeeds_another();
        }
        Self {
            gate,
            host,
            context: Arc::clone(context),
            server_clock: ServerClock::default(),
            datasets: DatasetWatch::default(),
            canary: Mutex::new(canary),
            looked_for_libraries: Mutex::new(None),
            loading: tokio::sync::Mutex::new(()),
            loads: AtomicU64::new(0),
            scripts_only: AtomicBool::new(false),
            lanes: Lanes::default(),
            handing_out: tokio::sync::Mutex::new(()),
            next_echo: AtomicU64::new(0),
        }
    }

    /// How this server runs our programs.
    pub(super) fn program_kind(&self) -> ProgramKind {
        match self.scripts_only.load(Ordering::Relaxed) {
            true => ProgramKind::Scripts,
            false => ProgramKind::Functions,
        }
    }

    /// Scripts from now on, until there is a new connection: the server has no functions, or this user may not use them.
    pub(super) fn use_scripts(&self) {
        self.scripts_only.store(true, Ordering::Relaxed);
    }

    /// Functions again, until the server refuses them: perhaps it was replaced by a newer one.
    pub(super) fn try_functions(&self) {
        self.scripts_only.store(false, Ordering::Relaxed);
    }

    /// Loads all programs with these queries: as functions, or else as scripts.
    pub(super) async fn load_programs<Q: Future<Output = Result<Value, CommandError>>>(
        &self,
        query: impl Fn(Cmd) -> Q,
    ) -> Result<(), CommandError> {
        if self.program_kind() == ProgramKind::Functions {
            match query(library::load_functions()).await {
                // Another node was faster.
                Err(error) if error.is_loaded_already() => return Ok(()),
                Err(error) if error.forbids_functions() => self.use_scripts(),
                result => return result.map(drop),
            }
        }
        for load in library::load_scripts() {
            query(load).await?;
        }
        Ok(())
    }

    /// Time left until a deadline.
    pub(super) fn left(&self, until: Timestamp) -> Span {
        self.gate.left(until)
    }

    /// The connection and its generation, if the breaker is closed.
    pub(super) fn connection(&self) -> Result<(Connection, u64), CommandError> {
        let failed = |error| CommandError::Failed(ErrorClass::Disconnected, error);
        self.gate.connection().map_err(failed)
    }

    /// Judges a reply or an error: its meaning for the caller, and whether the connection can be used further. If not, the breaker
    /// opens. If it can, the reply counts as a success for the breaker, even if it is an error.
    pub(super) fn judge(
        &self,
        reply: RedisResult<Value>,
        generation: u64,
    ) -> Result<Value, CommandError> {
        let error = match reply {
            Ok(value) => {
                self.gate.answered();
                return Ok(value);
            }
            Err(error) => error,
        };
        let classified = CommandError::of(&error, self.context.settings.timeout);
        if let CommandError::Failed(_, why) = &classified
            && ends_connection(&error, why)
        {
            if self.gate.lost(generation, why) {
                self.context.topology_stale.notify_one();
            }
        } else {
            self.gate.answered();
        }
        Err(classified)
    }

    /// A caller has waited for its whole patience, and no reply arrived.
    pub(super) fn timed_out_after(&self, patience: Span) -> CommandError {
        if self.gate.timed_out_after(patience) {
            self.context.topology_stale.notify_one();
        }
        self.timed_out()
    }

    pub(super) fn timed_out(&self) -> CommandError {
        CommandError::timed_out(self.context.settings.timeout)
    }

    /// Parses the reply of the script, and learns the server's time from it.
    pub(super) fn script_reply(
        &self,
        reply: Value,
        echo: u64,
        sent: Timestamp,
        times: ScriptTimes,
    ) -> Result<ScriptReply, CommandError> {
        let reply = script::parse(reply, echo).map_err(CommandError::wrong)?;
        let reply = reply.ok_or_else(|| self.mixed_up())?;
        if times.test.is_none() {
            let timeout = self.context.settings.timeout;
            self.server_clock.learn(sent, self.context.now(), &reply, timeout);
        }
        Ok(reply)
    }

    /// A caller got the reply to another call: from now on no reply on this connection can be trusted. Unlike in
    /// [`judge`](Self::judge), the topology is not refreshed, because the server does reply.
    fn mixed_up(&self) -> CommandError {
        let why = StoreError::Broken("it sent the reply to another call".to_owned());
        self.gate.distrust(&why);
        CommandError::wrong(why)
    }
}

/// Whether an error makes the connection useless.
///
/// - After an I/O error, or an error reply of an unknown kind, it is ([`StoreError::Unavailable`]). Only an I/O error of the kind
///   timeout counts as a reply.
/// - After bytes that are not a valid reply, it is unknown where the next reply begins.
/// - A server that refuses ([`StoreError::Refuses`]) may do so because of how the connection began: with an old password, or
///   while the server was a replica. A new connection may be accepted.
/// - But another program's data under one key, or a user that lacks the permission for one command (NOPERM), says nothing
///   about the other keys and commands.
fn ends_connection(error: &RedisError, why: &StoreError) -> bool {
    let refused = matches!(why, StoreError::Unavailable(_) | StoreError::Refuses(_));
    error.kind() == ErrorKind::Parse || (refused && error.code() != Some("NOPERM"))
}
