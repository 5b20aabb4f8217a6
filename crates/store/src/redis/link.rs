//! The connection to the server: kept by a task of its own, and lent only while the server answers.
//!
//! ```text
//!   calls ──► breaker closed, room? ──► connection ──► answered, late or broken: the breaker counts
//!             └ no: an error at once                        │ opens
//!   keeper ◄────────────────────────────────────────────────┘
//!     connects, compares secrets, runs the real script on a canary, and closes the breaker when all of it went well
//! ```
//!
//! Nothing is ever sent twice: a command that failed may have been counted, and its caller is told so.

use super::breaker::Breaker;
use super::script::{self, Call, Reply, Times, Verb};
use super::wire::Tag;
use super::{KEPT_SECONDS, RedisSettings, VERIFIER_KEY};
use crate::clock::Clock;
use crate::error::StoreError;
use crate::key::Secret;
use crate::sync::{Mutex, lock};
use ::redis::aio::MultiplexedConnection;
use ::redis::io::tcp::TcpSettings;
use ::redis::{AsyncConnectionConfig, Client, ErrorKind, IntoConnectionInfo};
use ::redis::{RedisError, RedisResult};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tidegate_core::{Algorithm, Cost, Limit, Span, StateId, Take, Timestamp};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;

/// A connection that many calls share.
pub(super) struct Link {
    shared: Arc<Shared>,
    keeper: JoinHandle<()>,
}

struct Shared {
    settings: RedisSettings,
    /// What the server must hold, or hold nothing.
    verifier: String,
    clock: Clock,
    /// The server's time less ours, in nanoseconds, as of the last reply. Relaxed: any recent value will do.
    offset: AtomicI64,
    /// Locked to look or to replace, never across an await.
    state: Mutex<State>,
    /// Room for questions that wait for their answer.
    room: Semaphore,
    /// There is something for the keeper to do.
    trouble: Notify,
}

struct State {
    connection: Option<MultiplexedConnection>,
    /// How many connections there have been, so that what befell an old one does not count for a new one.
    number: u64,
    breaker: Breaker,
    /// What went wrong last.
    why: String,
}

/// How often the keeper looks while all is well.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(1);
/// How soon it tries again, at first and at most; a server that comes back is not stormed.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);
/// Where the keeper counts its own questions: `tidegate canary`. States are named by hashes, so nobody else counts there.
const CANARY: StateId = StateId(0x7469_6465_6761_7465_2063_616e_6172_7900);

impl Link {
    /// Connects, or leaves it to the keeper to go on trying; what no patience would mend is an error.
    pub(super) async fn open(
        settings: &RedisSettings,
        secret: &Secret,
    ) -> Result<(Self, Result<(), StoreError>), StoreError> {
        let shared = Arc::new(Shared {
            settings: settings.clone(),
            verifier: format!("{:032x}", secret.verifier()),
            clock: Clock::system(),
            offset: AtomicI64::new(0),
            state: Mutex::new(State {
                connection: None,
                number: 0,
                breaker: Breaker::open(),
                why: "it was not asked yet".to_owned(),
            }),
            room: Semaphore::new(settings.in_flight),
            trouble: Notify::new(),
        });
        let first = shared.mend().await;
        if let Err(error @ StoreError::Broken(_)) = first {
            return Err(error);
        }
        let keeper = tokio::spawn(keep(Arc::clone(&shared)));
        Ok((Self { shared, keeper }, first))
    }

    /// Asks the server something, if it can be asked.
    pub(super) async fn ask<T, F: Future<Output = RedisResult<T>>>(
        &self,
        ask: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, StoreError> {
        let (connection, number) = self.shared.connection()?;
        ask(connection).await.map_err(|error| self.shared.failed(error, number))
    }

    /// A place among those who wait for the server.
    pub(super) fn enter(&self) -> Result<SemaphorePermit<'_>, StoreError> {
        self.shared.room.try_acquire().map_err(|_full| StoreError::Overloaded)
    }

    /// Notes how a question ended.
    pub(super) fn heard<T>(&self, answer: &Result<T, StoreError>) {
        self.shared.heard(answer);
    }

    /// Why the server is not asked at the moment.
    pub(super) fn complaint(&self) -> Option<String> {
        let state = lock(&self.shared.state);
        state.breaker.is_open().then(|| state.why.clone())
    }

    /// Our time.
    pub(super) fn now(&self) -> Timestamp {
        self.shared.clock.now().steady
    }

    /// The server's time at an instant of ours, as far as it is known.
    pub(super) fn theirs(&self, ours: Timestamp) -> Timestamp {
        self.shared.theirs(ours)
    }

    /// Learns the server's time from the reply to something that was sent at this instant.
    pub(super) fn learn_time(&self, sent: Timestamp, reply: &Reply) {
        self.shared.learn_time(sent, reply);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

/// Looks after the connection, for ever.
async fn keep(shared: Arc<Shared>) {
    let mut pause = FIRST_PAUSE;
    loop {
        if lock(&shared.state).breaker.is_open() {
            tokio::time::sleep(pause).await;
        } else {
            // Whichever comes first: somebody was not answered, or it is time to look.
            let _ = tokio::time::timeout(LOOKED_AT_EVERY, shared.trouble.notified()).await;
        }
        pause = match shared.mend().await {
            Ok(()) => FIRST_PAUSE,
            Err(_) => pause.saturating_mul(2).min(LONGEST_PAUSE),
        };
    }
}

impl Shared {
    fn connection(&self) -> Result<(MultiplexedConnection, u64), StoreError> {
        let state = lock(&self.state);
        match &state.connection {
            Some(connection) if !state.breaker.is_open() => Ok((connection.clone(), state.number)),
            _ => Err(StoreError::Unavailable(state.why.clone().into())),
        }
    }

    /// What a failed call means for its caller, and for the connection.
    fn failed(&self, error: RedisError, number: u64) -> StoreError {
        // Who does not understand one answer does not know which answer the next one is.
        let garbled = error.kind() == ErrorKind::Parse;
        let error = script::store_error(error, self.settings.timeout);
        // Whoever refuses us may do so because of how the connection began: by another password, as a replica. One key
        // with another program's data under it is no reason to give up all others.
        if garbled || matches!(error, StoreError::Unavailable(_)) {
            let mut state = lock(&self.state);
            if state.number == number {
                state.connection = None;
                state.breaker.lost();
                state.why = error.to_string();
                self.trouble.notify_one();
            }
        }
        error
    }

    fn heard<T>(&self, answer: &Result<T, StoreError>) {
        let mut state = lock(&self.state);
        match answer {
            Ok(_) => state.breaker.answered(),
            Err(error @ StoreError::TimedOut(_)) => {
                state.breaker.failed(self.clock.now().steady);
                if state.breaker.is_open() {
                    state.why = error.to_string();
                    self.trouble.notify_one();
                }
            }
            Err(_) => {}
        }
    }

    // === the keeper's work ===

    /// Makes sure that the server does what it is there for, and says so; connects first if need be.
    async fn mend(&self) -> Result<(), StoreError> {
        let patience = self.settings.patience();
        let mended = tokio::time::timeout(patience.into(), self.try_to_mend()).await;
        let mended = mended.unwrap_or(Err(StoreError::TimedOut(patience)));
        let mut state = lock(&self.state);
        match &mended {
            Ok(connection) => {
                if state.connection.is_none() {
                    state.connection = Some(connection.clone());
                    state.number = state.number.saturating_add(1);
                }
                if state.breaker.is_open() {
                    state.breaker.close(self.clock.now().steady);
                }
            }
            Err(error) => {
                state.connection = None;
                state.breaker.lost();
                state.why = error.to_string();
            }
        }
        mended.map(drop)
    }

    async fn try_to_mend(&self) -> Result<MultiplexedConnection, StoreError> {
        let told = |error| script::store_error(error, self.settings.timeout);
        let here = lock(&self.state).connection.clone();
        let mut connection = match here {
            Some(connection) => connection,
            None => {
                let mut connection = connect(&self.settings).await.map_err(told)?;
                self.compare_secrets(&mut connection).await?;
                connection
            }
        };
        self.try_canary(&mut connection).await?;
        Ok(connection)
    }

    /// Leaves the verifier of the secret with the server, or compares it with the one that is there.
    async fn compare_secrets(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<(), StoreError> {
        let told = |error| script::store_error(error, self.settings.timeout);
        let mut set = ::redis::cmd("SET");
        set.arg(VERIFIER_KEY).arg(&self.verifier).arg("NX").arg("EX").arg(KEPT_SECONDS);
        let () = set.query_async(connection).await.map_err(told)?;
        let (theirs, _): (String, i64) = ::redis::pipe()
            .cmd("GET")
            .arg(VERIFIER_KEY)
            .cmd("EXPIRE")
            .arg(VERIFIER_KEY)
            .arg(KEPT_SECONDS)
            .query_async(connection)
            .await
            .map_err(told)?;
        if theirs == self.verifier {
            return Ok(());
        }
        Err(StoreError::Broken(
            "the server holds the states of another secret; use that secret, or another database"
                .to_owned(),
        ))
    }

    /// Runs the real script, which reads, decides and writes: a server that only answers pings is of no use.
    async fn try_canary(&self, connection: &mut MultiplexedConnection) -> Result<(), StoreError> {
        let limit = Limit::new(1_000_000, Span::from_secs(1), Algorithm::FIXED_WINDOW)
            .map_err(|error| StoreError::Broken(error.to_string()))?;
        let call = Call {
            verb: Verb::Take,
            takes: &[Take::new(CANARY, &limit, Cost::new(1))],
            parts: &[],
            max_wait: Span::ZERO,
            receipt: None,
        };
        let sent = self.clock.now().steady;
        let times = Times { test: None, deadline: 0, guess: self.theirs(sent) };
        let invocation = script::invocation(&call, &[Tag::Registered(0)], &[], times);
        let reply = invocation.invoke_async(connection).await;
        let reply = reply.map_err(|error| script::store_error(error, self.settings.timeout))?;
        self.learn_time(sent, &script::parse(reply)?);
        Ok(())
    }

    // === time ===

    fn theirs(&self, ours: Timestamp) -> Timestamp {
        let offset = self.offset.load(Ordering::Relaxed);
        Timestamp::from_nanos(ours.as_nanos().saturating_add_signed(offset))
    }

    /// The server's time was read somewhere between sending and now. A slow reply says little, unless nothing is
    /// known yet, or it says that we are wrong.
    fn learn_time(&self, sent: Timestamp, reply: &Reply) {
        let (Reply::Found { now: theirs, .. } | Reply::Moved(theirs) | Reply::Late(theirs)) = reply
        else {
            return;
        };
        let took = self.clock.now().steady.since(sent).as_nanos();
        let quick = took < self.settings.timeout.as_nanos() / 2 || matches!(reply, Reply::Late(_));
        if quick || self.offset.load(Ordering::Relaxed) == 0 {
            let ours = i128::from(sent.as_nanos()).saturating_add(i128::from(took / 2));
            let offset = i128::from(theirs.as_nanos()).saturating_sub(ours);
            self.offset.store(i64::try_from(offset).unwrap_or(0), Ordering::Relaxed);
        }
    }
}

async fn connect(settings: &RedisSettings) -> Result<MultiplexedConnection, RedisError> {
    let info = settings.url.as_str().into_connection_info()?;
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let config = AsyncConnectionConfig::new()
        // Calls have their own time, which is not longer.
        .set_response_timeout(Some(settings.patience().into()))
        .set_connection_timeout(Some(settings.connect_timeout.into()));
    Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await
}
