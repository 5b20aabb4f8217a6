//! What the [keeper](crate::remote) of a connection does on Redis.
//!
//! ```text
//!   no connection ──► connect ──► compare the secret's verifier ──► the same data as before? ──┐
//!   connection ─────► restore the verifier if it is lost ──────────────────────────────────────┴──► ROLE ──► canary ──► breaker closed
//! ```

use super::command_error::CommandError;
use super::connection::{Connection, Message, is_replica};
use super::dataset::Dataset;
use super::link_state::LinkCore;
use super::old_libraries::LOOK_INTERVAL;
use super::script::{ScriptCall, ScriptHints, ScriptReply, ScriptTimes};
use super::settings::RedisClock;
use super::wire::{CONTROL_TTL_SECONDS, ShapeTag, VERIFIER_KEY, Verb};
use crate::error::StoreError;
use crate::remote::{ErrorClass, Gate, Server};
use crate::sync::lock;
use ::redis::{Cmd, FromRedisValue, Value};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidegate_core::{Algorithm, Cost, Limit, Span, StateId, Take, Timestamp};

/// Canary calls that may time out, one after another, before the server counts as down.
const MAX_CANARIES: usize = 3;

impl Server for LinkCore {
    type Connection = Connection;

    const PROBE_INTERVAL: Duration = Duration::from_secs(1);

    fn gate(&self) -> &Gate<Connection> {
        &self.gate
    }

    async fn connect_and_probe(
        &self,
        current: Option<Connection>,
    ) -> Result<Connection, StoreError> {
        let canary = *lock(&self.canary);
        let connection = match current {
            Some(connection) => {
                self.restore_verifier(&connection).await;
                connection
            }
            None => self.connect().await?,
        };
        let timeout = self.context.settings.timeout;
        let checked = tokio::time::timeout(timeout.into(), self.check_role(&connection)).await;
        checked.unwrap_or(Ok(())).map_err(CommandError::into_error)?;
        // The canary has the timeout of a decision. A single slow reply does not condemn the server.
        for _ in 0..MAX_CANARIES {
            let probe = self.run_canary(&connection, canary);
            if let Ok(probed) = tokio::time::timeout(timeout.into(), probe).await {
                return self.accept_redirect(probed).map(|()| connection);
            }
        }
        Err(StoreError::TimedOut(timeout))
    }

    fn connected(&self) {
        if !self.datasets.is_the_same() {
            self.context.begin_epoch();
        }
    }

    fn failed(&self) {
        self.context.topology_stale.notify_one();
    }

    /// Deletes libraries of older versions now and then.
    async fn tidy(&self) {
        let now = self.context.now();
        let looked = *lock(&self.looked_for_libraries);
        if looked.is_none_or(|looked| now.since(looked) >= LOOK_INTERVAL) {
            self.delete_old_libraries().await;
            *lock(&self.looked_for_libraries) = Some(now);
        }
    }
}

impl LinkCore {
    async fn connect(&self) -> Result<Connection, StoreError> {
        let connection = self.host.connect(&self.context.settings).await?;
        self.try_functions();
        let timeout = self.context.settings.longest_timeout();
        let compared = self.compare_verifier(&connection);
        let compared = tokio::time::timeout(timeout.into(), compared).await;
        self.accept_redirect(compared.unwrap_or(Err(CommandError::timed_out(timeout))))?;
        let info = ::redis::cmd("INFO");
        let info = self.query::<String>(&connection, &info);
        let info = tokio::time::timeout(timeout.into(), info).await;
        self.datasets.opened(info.ok().and_then(Result::ok).and_then(|info| Dataset::read(&info)));
        Ok(connection)
    }

    /// A server of a cluster that redirects us works; it is our topology that is stale.
    fn accept_redirect(&self, result: Result<(), CommandError>) -> Result<(), StoreError> {
        match result {
            Err(CommandError::Redirect { .. } | CommandError::TryAgain)
                if self.context.is_cluster =>
            {
                self.context.topology_stale.notify_one();
                Ok(())
            }
            result => result.map_err(CommandError::into_error),
        }
    }

    pub(super) async fn query<T: FromRedisValue>(
        &self,
        connection: &Connection,
        command: &Cmd,
    ) -> Result<T, CommandError> {
        self.send(connection, &Arc::new(Message::Command(command.clone()))).await
    }

    async fn send<T: FromRedisValue>(
        &self,
        connection: &Connection,
        message: &Arc<Message>,
    ) -> Result<T, CommandError> {
        let reply = connection.clone().send(Arc::clone(message), false).await;
        let value = reply.and_then(|reply| Ok(T::from_redis_value(reply)?));
        value.map_err(|error| CommandError::of(&error, self.context.settings.timeout))
    }

    // === the verifier of the secret ===

    /// SET … NX: writes the verifier where there is none.
    fn set_verifier(&self) -> Cmd {
        let mut set = ::redis::cmd("SET");
        set.arg(VERIFIER_KEY).arg(&self.context.verifier);
        set.arg("NX").arg("EX").arg(CONTROL_TTL_SECONDS);
        set
    }

    /// Writes the verifier of the secret to the server, or compares it with the one that is there.
    async fn compare_verifier(&self, connection: &Connection) -> Result<(), CommandError> {
        let _: Value = self.query(connection, &self.set_verifier()).await?;
        let stored: Option<String> =
            self.query(connection, ::redis::cmd("GET").arg(VERIFIER_KEY)).await?;
        let mut expire = ::redis::cmd("EXPIRE");
        expire.arg(VERIFIER_KEY).arg(CONTROL_TTL_SECONDS);
        let _: Value = self.query(connection, &expire).await?;
        // A server that lost its data between the two commands holds no states; the verifier is restored later.
        if stored.is_none_or(|stored| stored == self.context.verifier) {
            return Ok(());
        }
        Err(CommandError::wrong(StoreError::OtherSecret))
    }

    /// Writes the verifier again if it was lost with the data, so that no deployment with another secret uses this server.
    async fn restore_verifier(&self, connection: &Connection) {
        let set = self.set_verifier();
        let restoring = self.query::<Value>(connection, &set);
        // A failure is ignored: the next new connection compares the verifier again.
        let _ = tokio::time::timeout(self.context.settings.timeout.into(), restoring).await;
    }

    // === probes ===

    /// Refuses to count on a replica. Some replicas are writable, and what is written there reaches no other server. In a
    /// cluster a replica redirects us to its primary by itself.
    async fn check_role(&self, connection: &Connection) -> Result<(), CommandError> {
        if self.context.is_cluster {
            return Ok(());
        }
        match self.query::<Value>(connection, &::redis::cmd("ROLE")).await {
            Ok(role) if is_replica(&role) => {
                let why = StoreError::Refuses("it is a replica".to_owned());
                Err(CommandError::Failed(ErrorClass::ReadOnly, why))
            }
            // A server that does not know ROLE is judged by the canary alone.
            _ => Ok(()),
        }
    }

    /// Runs the real script, which reads, decides and writes: PING would not notice a server that cannot do this.
    async fn run_canary(
        &self,
        connection: &Connection,
        state: Option<StateId>,
    ) -> Result<(), CommandError> {
        let Some(state) = state else {
            return self.query(connection, &::redis::cmd("PING")).await.map(|_: Value| ());
        };
        if self.context.settings.clock == RedisClock::Node {
            self.read_time(connection).await?;
        }
        let window = canary_limit(Algorithm::FIXED_WINDOW)?;
        let bucket = canary_limit(Algorithm::TOKEN_BUCKET)?;
        let takes = [
            Take::new(state, &window, Cost::ONE),
            Take::new(StateId(state.0 ^ 1), &bucket, Cost::ONE),
        ];
        let call = ScriptCall::of_takes(Verb::Take, &takes, Span::ZERO);
        let hints = ScriptHints {
            tags: &[ShapeTag::Registered(0), ShapeTag::Inline],
            ..ScriptHints::default()
        };
        let (clock, sent) = (self.context.settings.clock, self.context.now());
        let times = self.server_clock.script_times(clock, sent, sent, &hints);
        let times = ScriptTimes { deadline: 0, ..times };
        let echo = self.next_echo.fetch_add(1, Ordering::Relaxed);
        let message = |kind| Arc::new(self.host.script_message(&call, &hints, times, echo, kind));
        let mut reply = self.send(connection, &message(self.program_kind())).await;
        if matches!(reply, Err(CommandError::NoFunctions(_))) {
            self.use_scripts();
            reply = self.send(connection, &message(self.program_kind())).await;
        }
        if matches!(reply, Err(CommandError::NotLoaded)) {
            let query = |load| async move { self.query(connection, &load).await };
            self.load_programs(query).await?;
            reply = self.send(connection, &message(self.program_kind())).await;
        }
        self.script_reply(reply?, echo, sent, times).map(drop)
    }

    /// Learns the server's time from TIME, outside of a script. If the server refuses, the node's own clock is used.
    async fn read_time(&self, connection: &Connection) -> Result<(), CommandError> {
        let sent = self.context.now();
        match self.query::<(u64, u64)>(connection, &::redis::cmd("TIME")).await {
            Ok((seconds, micros)) => {
                let micros = seconds.saturating_mul(1_000_000).saturating_add(micros);
                let server = Timestamp::from_nanos(micros.saturating_mul(1_000));
                let (received, timeout) = (self.context.now(), self.context.settings.timeout);
                self.server_clock.learn(sent, received, &ScriptReply::Moved(server), timeout);
                Ok(())
            }
            Err(CommandError::Failed(ErrorClass::Refused | ErrorClass::Wrong, _)) => Ok(()),
            Err(other) => Err(other),
        }
    }
}

fn canary_limit(algorithm: Algorithm) -> Result<Limit, CommandError> {
    Limit::new(1_000_000, Span::from_secs(1), algorithm)
        .map_err(|error| CommandError::wrong(StoreError::Broken(error.to_string())))
}
