//! The connection to one server: kept by a task of its own, and lent only while the server answers.
//!
//! ```text
//!   calls ──► breaker closed, room? ──► connection ──► answered, late or broken: the breaker counts
//!             └ no: an error at once                        │ opens
//!   keeper ◄────────────────────────────────────────────────┘
//!     connects, compares secrets, runs the real script on a canary, and closes the breaker when all of it went well
//! ```
//!
//! Nothing is ever sent twice that may have been counted: a command that failed is its caller's to judge.

use super::breaker::Breaker;
use super::connection::{Connection, Host, Message, is_replica};
use super::script::{self, Call, Reply, Times, Told, Verb};
use super::trouble::{Class, Counts, Trouble};
use super::wire::Tag;
use super::{KEPT_SECONDS, RedisClock, RedisSettings, VERIFIER_KEY};
use crate::clock::Clock;
use crate::error::StoreError;
use crate::key::Secret;
use crate::sync::{Mutex, lock};
use ::redis::{Cmd, ErrorKind, FromRedisValue, RedisResult, Value};
use futures_util::FutureExt as _;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;
use tidegate_core::{Algorithm, Cost, Limit, Span, StateId, Take, Timestamp};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;

/// What all links of a store share.
pub(super) struct Common {
    pub(super) settings: RedisSettings,
    /// What the store must hold, or hold nothing.
    pub(super) verifier: String,
    pub(super) clock: Clock,
    /// Whether a server may send us to another.
    pub(super) many: bool,
    pub(super) counts: Counts,
    /// Somebody met a server that is not what we took it for.
    pub(super) stale: Notify,
    /// How often a task had to be started again. Relaxed: for metrics.
    pub(super) restarts: AtomicU64,
}

/// A connection that many calls share.
pub(super) struct Link {
    shared: Arc<Shared>,
    keeper: JoinHandle<()>,
}

struct Shared {
    /// Where it is, for people.
    name: String,
    host: Host,
    common: Arc<Common>,
    /// The server's time less ours, in nanoseconds, as of the last reply. Relaxed: any recent value will do.
    offset: AtomicI64,
    /// How far that may be wrong: half of the time that the reply took. Relaxed as well.
    doubt: AtomicU64,
    /// Locked to look or to replace, never across an await.
    state: Mutex<State>,
    /// Room for questions that wait for their answer.
    room: Semaphore,
    /// There is something for the keeper to do.
    trouble: Notify,
    /// Held while the script is sent, so that of many who miss it one sends it.
    sending: tokio::sync::Mutex<()>,
    /// How often it was sent. Relaxed: who misses a change sends it once more.
    sent: AtomicU64,
    /// Tells one call from another. Relaxed: only different numbers are wanted.
    echo: AtomicU64,
}

struct State {
    connection: Option<Connection>,
    /// How many connections there have been, so that what befell an old one does not count for a new one.
    number: u64,
    breaker: Breaker,
    /// What went wrong last.
    why: StoreError,
    /// Where the keeper counts its own questions; nowhere on a server that has no slot of ours.
    canary: Option<StateId>,
}

/// How often the keeper looks while all is well.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(1);
/// How soon it tries again, at first and at most; a server that comes back is not stormed.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);
/// So many canaries that are late, one after another, and the server is given up.
const MOST_CANARIES: usize = 3;
/// How often a script is sent for one call that misses it: somebody may be throwing scripts away.
const MOST_SENDINGS: usize = 3;
/// `tidegate canary`. States are named by hashes, so nobody else counts there.
const CANARY: u128 = 0x7469_6465_6761_7465_2063_616e_6172_7900;

/// The canary on the slot of a tag, which is the upper 16 bits of a name.
pub(super) fn canary(tag: u16) -> StateId {
    StateId(CANARY & (u128::MAX >> 16) | u128::from(tag) << 112)
}

/// A reply that is on its way.
type Answering = Pin<Box<dyn Future<Output = RedisResult<Value>> + Send>>;

/// A reply that its caller did not wait for.
pub(super) struct LateReply {
    answer: Answering,
    echo: u64,
}

/// A question that was sent. If its caller leaves, because its time is over or because it was dropped, the reply is left where
/// somebody settles it.
struct Sent<'s> {
    answer: Answering,
    answered: bool,
    late: Option<(&'s LateSlot, u64)>,
}

/// Where a late reply is left. Locked to put or to take.
pub(super) type LateSlot = Mutex<Option<LateReply>>;

impl Sent<'_> {
    async fn answer(&mut self) -> RedisResult<Value> {
        let answer = (&mut self.answer).await;
        self.answered = true;
        answer
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if let Some((slot, echo)) = self.late.filter(|_| !self.answered) {
            let answer = std::mem::replace(&mut self.answer, Box::pin(std::future::pending()));
            *lock(slot) = Some(LateReply { answer, echo });
        }
    }
}

impl LateReply {
    /// What the script answered, if it comes within this time.
    pub(super) async fn within(self, patience: Duration) -> Option<Reply> {
        let answer = tokio::time::timeout(patience, self.answer).await.ok()?.ok()?;
        script::parse(answer, self.echo).ok()?
    }
}

impl Common {
    pub(super) fn new(settings: &RedisSettings, secret: &Secret, clock: Clock, many: bool) -> Self {
        Self {
            settings: settings.clone(),
            verifier: format!("{:032x}", secret.verifier()),
            clock,
            many,
            counts: Counts::default(),
            stale: Notify::new(),
            restarts: AtomicU64::new(0),
        }
    }
}

impl Link {
    /// Connects, or leaves it to the keeper to go on trying; the second answer is how that went.
    pub(super) async fn open(
        name: String,
        host: Host,
        canary: Option<StateId>,
        common: &Arc<Common>,
    ) -> (Arc<Self>, Result<(), StoreError>) {
        let shared = Arc::new(Shared {
            name,
            host,
            common: Arc::clone(common),
            offset: AtomicI64::new(0),
            doubt: AtomicU64::new(0),
            state: Mutex::new(State {
                connection: None,
                number: 0,
                breaker: Breaker::open(),
                why: StoreError::Unavailable("it was not asked yet".into()),
                canary,
            }),
            room: Semaphore::new(common.settings.in_flight),
            trouble: Notify::new(),
            sending: tokio::sync::Mutex::new(()),
            sent: AtomicU64::new(0),
            echo: AtomicU64::new(0),
        });
        let first = shared.mend().await;
        let keeper = tokio::spawn(supervised(Arc::clone(common), {
            let shared = Arc::clone(&shared);
            move || keep(Arc::clone(&shared))
        }));
        (Arc::new(Self { shared, keeper }), first)
    }

    /// Where it is.
    pub(super) fn name(&self) -> &str {
        &self.shared.name
    }

    /// Tells the keeper where to count from now on.
    pub(super) fn watch(&self, canary: Option<StateId>) {
        lock(&self.shared.state).canary = canary;
    }

    /// Why the server is not asked at the moment.
    pub(super) fn complaint(&self) -> Option<String> {
        let state = lock(&self.shared.state);
        state.breaker.is_open().then(|| state.why.to_string())
    }

    /// The server's time at an instant of ours: as far as it is known, and at the latest.
    pub(super) fn time_at(&self, ours: Timestamp) -> (Timestamp, Timestamp) {
        let theirs = self.shared.theirs(ours);
        let doubt = Span::from_nanos(self.shared.doubt.load(Ordering::Relaxed));
        (theirs, theirs.after(doubt).unwrap_or(theirs))
    }

    /// Calls the script. `asking` tells a server that it is asked for a slot which it does not have yet.
    pub(super) async fn call(
        &self,
        until: Timestamp,
        call: &Call<'_>,
        told: &Told<'_>,
        asking: bool,
    ) -> Result<Reply, Trouble> {
        let sent = self.shared.now();
        let times = self.shared.times(sent, until, told);
        let echo = self.shared.echo.fetch_add(1, Ordering::Relaxed);
        let message = Arc::new(self.shared.host.script(call, told, times, echo));
        let late = call.late.map(|slot| (slot, echo));
        let reply = self.call_known(until, &message, asking, late).await?;
        let reply = script::parse(reply, echo).map_err(Trouble::wrong)?;
        let reply = reply.ok_or_else(|| self.shared.mixed_up())?;
        if times.test.is_none() {
            self.shared.learn_time(sent, &reply);
        }
        Ok(reply)
    }

    /// Sends the script first if the server does not know it; one sends it for all who miss it.
    async fn call_known(
        &self,
        until: Timestamp,
        message: &Arc<Message>,
        asking: bool,
        late: Option<(&LateSlot, u64)>,
    ) -> Result<Value, Trouble> {
        let shared = &self.shared;
        for _ in 0..MOST_SENDINGS {
            let sent = shared.sent.load(Ordering::Relaxed);
            match self.exchange(until, message, asking, late).await {
                Err(Trouble::NoScript) => {}
                answered => return answered,
            }
            let first = tokio::time::timeout(shared.left(until).into(), shared.sending.lock());
            let _first = first.await.map_err(|_late| shared.timed_out())?;
            if shared.sent.load(Ordering::Relaxed) == sent {
                self.query(until, &script::load(), false).await?;
                shared.sent.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.exchange(until, message, asking, late).await
    }

    /// Asks the server something, if it can be asked.
    pub(super) async fn query(
        &self,
        until: Timestamp,
        command: &Cmd,
        asking: bool,
    ) -> Result<Value, Trouble> {
        let message = Arc::new(Message::Bytes(command.clone()));
        self.exchange(until, &message, asking, None).await
    }

    /// Sends a message. A reply that comes too late is left in `late`, for its caller to settle.
    async fn exchange(
        &self,
        until: Timestamp,
        message: &Arc<Message>,
        asking: bool,
        late: Option<(&LateSlot, u64)>,
    ) -> Result<Value, Trouble> {
        let shared = &self.shared;
        let full = |_| Trouble::Failed(Class::Overloaded, StoreError::Overloaded);
        let _room = shared.room.try_acquire().map_err(full)?;
        let (connection, number) = shared.connection()?;
        let left = shared.left(until);
        if left == Span::ZERO {
            // Nobody would wait for the answer, so the question is not asked.
            return Err(shared.timed_out());
        }
        let answer = Box::pin(connection.send(Arc::clone(message), asking));
        let mut sent = Sent { answer, answered: false, late };
        match tokio::time::timeout(left.into(), sent.answer()).await {
            Ok(answer) => shared.judge(answer, number),
            Err(_late) => Err(shared.late(left)),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

/// Runs a task again when it panics, after a pause, and counts that it had to.
pub(super) async fn supervised<F: Future<Output = ()>>(common: Arc<Common>, task: impl Fn() -> F) {
    while AssertUnwindSafe(task()).catch_unwind().await.is_err() {
        common.restarts.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(LONGEST_PAUSE).await;
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
    fn connection(&self) -> Result<(Connection, u64), Trouble> {
        let state = lock(&self.state);
        match &state.connection {
            Some(connection) if !state.breaker.is_open() => Ok((connection.clone(), state.number)),
            _ => Err(Trouble::away(&state.why)),
        }
    }

    /// What an answer means for its caller, and for the connection.
    fn judge(&self, answer: RedisResult<Value>, number: u64) -> Result<Value, Trouble> {
        let error = match answer {
            Ok(value) => {
                lock(&self.state).breaker.answered();
                return Ok(value);
            }
            Err(error) => error,
        };
        let trouble = Trouble::of(&error, self.common.settings.timeout);
        // Who does not understand one answer does not know which answer the next one is. Whoever refuses us may do so
        // because of how the connection began: by another password, as a replica. One key with another program's data
        // under it is no reason to give up all others.
        // So is a user who may do everything but one thing.
        let refused = |why: &StoreError| {
            matches!(why, StoreError::Unavailable(_) | StoreError::Refuses(_))
                && error.code() != Some("NOPERM")
        };
        let lost = error.kind() == ErrorKind::Parse
            || matches!(&trouble, Trouble::Failed(_, why) if refused(why));
        let mut state = lock(&self.state);
        if let Trouble::Failed(_, why) = &trouble
            && lost
        {
            if state.number == number {
                state.lose(why);
                self.trouble.notify_one();
                self.common.stale.notify_one();
            }
        } else {
            state.breaker.answered();
        }
        drop(state);
        Err(trouble)
    }

    /// Nobody answered within this time. Who was in a hurry proves nothing by it.
    fn late(&self, waited: Span) -> Trouble {
        let mut state = lock(&self.state);
        if waited.as_nanos() >= self.common.settings.timeout.as_nanos() / 2 {
            state.breaker.failed(self.now());
        }
        if state.breaker.is_open() {
            state.why = StoreError::TimedOut(self.common.settings.timeout);
            self.trouble.notify_one();
            self.common.stale.notify_one();
        }
        drop(state);
        self.timed_out()
    }

    /// Somebody was given the reply to another question: from here on nobody knows whose reply is whose.
    fn mixed_up(&self) -> Trouble {
        let why = StoreError::Broken("it answered another question".to_owned());
        lock(&self.state).lose(&why);
        self.trouble.notify_one();
        Trouble::wrong(why)
    }

    fn timed_out(&self) -> Trouble {
        Trouble::timed_out(self.common.settings.timeout)
    }

    // === the keeper's work ===

    /// Makes sure that the server does what it is there for, and says so; connects first if need be.
    async fn mend(&self) -> Result<(), StoreError> {
        let mended = self.try_to_mend().await;
        let mut state = lock(&self.state);
        match &mended {
            Ok(connection) => {
                if state.connection.is_none() {
                    state.connection = Some(connection.clone());
                    state.number = state.number.saturating_add(1);
                }
                if state.breaker.is_open() {
                    state.breaker.close(self.now());
                }
            }
            Err(error) => {
                state.lose(error);
                self.common.stale.notify_one();
            }
        }
        mended.map(drop)
    }

    async fn try_to_mend(&self) -> Result<Connection, StoreError> {
        let (here, canary) = {
            let state = lock(&self.state);
            (state.connection.clone(), state.canary)
        };
        let connection = match here {
            Some(connection) => {
                self.leave_verifier(&connection).await;
                connection
            }
            None => {
                let connection = self.host.connect(&self.common.settings).await?;
                let patience = self.common.settings.patience();
                let compared = self.compare_secrets(&connection);
                let compared = tokio::time::timeout(patience.into(), compared).await;
                self.elsewhere_is_fine(compared.unwrap_or(Err(Trouble::timed_out(patience))))?;
                connection
            }
        };
        let timeout = self.common.settings.timeout;
        let checked = tokio::time::timeout(timeout.into(), self.check_role(&connection)).await;
        checked.unwrap_or(Ok(())).map_err(Trouble::into_error)?;
        // It must be as quick as it has to be for decisions; once it may be late, or twice.
        for _ in 0..MOST_CANARIES {
            let tried = self.try_canary(&connection, canary);
            if let Ok(tried) = tokio::time::timeout(timeout.into(), tried).await {
                return self.elsewhere_is_fine(tried).map(|()| connection);
            }
        }
        Err(StoreError::TimedOut(timeout))
    }

    /// A server of a cluster that sends us elsewhere does its work; only we do not know the cluster as it is.
    fn elsewhere_is_fine(&self, tried: Result<(), Trouble>) -> Result<(), StoreError> {
        match tried {
            Err(Trouble::Elsewhere { .. } | Trouble::TryAgain) if self.common.many => {
                self.common.stale.notify_one();
                Ok(())
            }
            tried => tried.map_err(Trouble::into_error),
        }
    }

    async fn tell<T: FromRedisValue>(
        &self,
        connection: &Connection,
        command: &Cmd,
    ) -> Result<T, Trouble> {
        let message = Arc::new(Message::Bytes(command.clone()));
        self.tell_message(connection, &message).await
    }

    async fn tell_message<T: FromRedisValue>(
        &self,
        connection: &Connection,
        message: &Arc<Message>,
    ) -> Result<T, Trouble> {
        let reply = connection.clone().send(Arc::clone(message), false).await;
        let told = reply.and_then(|reply| Ok(T::from_redis_value(reply)?));
        told.map_err(|error| Trouble::of(&error, self.common.settings.timeout))
    }

    /// Leaves the verifier of the secret with the server, or compares it with the one that is there.
    async fn compare_secrets(&self, connection: &Connection) -> Result<(), Trouble> {
        let ours = &self.common.verifier;
        let mut set = ::redis::cmd("SET");
        set.arg(VERIFIER_KEY).arg(ours).arg("NX").arg("EX").arg(KEPT_SECONDS);
        let _: Value = self.tell(connection, &set).await?;
        let theirs: Option<String> =
            self.tell(connection, ::redis::cmd("GET").arg(VERIFIER_KEY)).await?;
        let mut keep = ::redis::cmd("EXPIRE");
        let _: Value = self.tell(connection, keep.arg(VERIFIER_KEY).arg(KEPT_SECONDS)).await?;
        // A server that lost its data between the two commands holds nobody's states; the verifier is left there again later.
        if theirs.is_none_or(|theirs| theirs == *ours) {
            return Ok(());
        }
        Err(Trouble::wrong(StoreError::Unusable(
            "the server holds the states of another secret; use that secret, or another database"
                .to_owned(),
        )))
    }

    /// Leaves the verifier again where it was lost with the data, so that no other deployment moves in.
    async fn leave_verifier(&self, connection: &Connection) {
        let mut set = ::redis::cmd("SET");
        set.arg(VERIFIER_KEY).arg(&self.common.verifier).arg("NX").arg("EX").arg(KEPT_SECONDS);
        let told = self.tell::<Value>(connection, &set);
        // Whether it worked shows when somebody connects next.
        let _ = tokio::time::timeout(self.common.settings.timeout.into(), told).await;
    }

    /// A replica is no place to count: some can be written to, and nobody else is told. In a cluster a replica sends us to its
    /// primary by itself.
    async fn check_role(&self, connection: &Connection) -> Result<(), Trouble> {
        if self.common.many {
            return Ok(());
        }
        match self.tell::<Value>(connection, &::redis::cmd("ROLE")).await {
            Ok(role) if is_replica(&role) => {
                let why = StoreError::Refuses("it is a replica".to_owned());
                Err(Trouble::Failed(Class::ReadOnly, why))
            }
            // Whoever does not tell is judged by what it does.
            _ => Ok(()),
        }
    }

    /// Runs the real script, which reads, decides and writes: a server that only answers pings is of no use.
    async fn try_canary(
        &self,
        connection: &Connection,
        state: Option<StateId>,
    ) -> Result<(), Trouble> {
        let Some(state) = state else {
            return self.tell(connection, &::redis::cmd("PING")).await.map(|_: Value| ());
        };
        let limit = |algorithm| {
            Limit::new(1_000_000, Span::from_secs(1), algorithm)
                .map_err(|error| Trouble::wrong(StoreError::Broken(error.to_string())))
        };
        let window = limit(Algorithm::FIXED_WINDOW)?;
        let bucket = limit(Algorithm::TOKEN_BUCKET)?;
        let call = Call {
            verb: Verb::Take,
            takes: &[
                Take::new(state, &window, Cost::ONE),
                Take::new(StateId(state.0 ^ 1), &bucket, Cost::ONE),
            ],
            parts: &[],
            max_wait: Span::ZERO,
            receipt: None,
            late: None,
        };
        if self.common.settings.clock == RedisClock::Node {
            self.ask_time(connection).await?;
        }
        let sent = self.now();
        let told = Told { tags: &[Tag::Registered(0), Tag::Whole], ..Told::default() };
        let times = Times { deadline: 0, ..self.times(sent, sent, &told) };
        let echo = self.echo.fetch_add(1, Ordering::Relaxed);
        let message = Arc::new(self.host.script(&call, &told, times, echo));
        let mut reply = self.tell_message(connection, &message).await;
        if matches!(reply, Err(Trouble::NoScript)) {
            let _: Value = self.tell(connection, &script::load()).await?;
            reply = self.tell_message(connection, &message).await;
        }
        let reply = script::parse(reply?, echo).map_err(Trouble::wrong)?;
        let reply = reply.ok_or_else(|| self.mixed_up())?;
        if times.test.is_none() {
            self.learn_time(sent, &reply);
        }
        Ok(())
    }

    /// Asks for the time outside of a script; who may not do that either goes by our own clock.
    async fn ask_time(&self, connection: &Connection) -> Result<(), Trouble> {
        let sent = self.now();
        match self.tell::<(u64, u64)>(connection, &::redis::cmd("TIME")).await {
            Ok((seconds, micros)) => {
                let micros = seconds.saturating_mul(1_000_000).saturating_add(micros);
                let theirs = Timestamp::from_nanos(micros.saturating_mul(1_000));
                self.learn_time(sent, &Reply::Moved(theirs));
                Ok(())
            }
            Err(Trouble::Failed(Class::Refused | Class::Wrong, _)) => Ok(()),
            Err(other) => Err(other),
        }
    }

    // === time ===

    fn now(&self) -> Timestamp {
        self.common.clock.now().steady
    }

    fn left(&self, until: Timestamp) -> Span {
        until.since(self.now())
    }

    /// The server's time at an instant of ours, as far as it is known.
    fn theirs(&self, ours: Timestamp) -> Timestamp {
        let offset = self.offset.load(Ordering::Relaxed);
        Timestamp::from_nanos(ours.as_nanos().saturating_add_signed(offset))
    }

    /// What a script is told of time: when the caller of now will have gone, by the server's clock.
    fn times(&self, sent: Timestamp, until: Timestamp, told: &Told<'_>) -> Times {
        if let Some(micros) = told.test {
            let guess = Timestamp::from_nanos(micros.saturating_mul(1_000));
            return Times { test: told.test, deadline: 0, guess: told.guess.unwrap_or(guess) };
        }
        let theirs = self.theirs(sent);
        let guess = told.guess.unwrap_or(theirs);
        if self.common.settings.clock == RedisClock::Node {
            return Times { test: Some(theirs.as_nanos() / 1_000), deadline: 0, guess };
        }
        let deadline = self.theirs(until).as_nanos() / 1_000;
        Times { test: None, deadline, guess }
    }

    /// The server's time was read somewhere between sending and now. A slow reply says little, unless nothing is
    /// known yet, or it says that we are wrong.
    fn learn_time(&self, sent: Timestamp, reply: &Reply) {
        let (Reply::Found { now: theirs, .. } | Reply::Moved(theirs) | Reply::Late(theirs)) = reply
        else {
            return;
        };
        let took = self.now().since(sent).as_nanos();
        let quick =
            took < self.common.settings.timeout.as_nanos() / 2 || matches!(reply, Reply::Late(_));
        if quick || self.offset.load(Ordering::Relaxed) == 0 {
            let ours = i128::from(sent.as_nanos()).saturating_add(i128::from(took / 2));
            let offset = i128::from(theirs.as_nanos()).saturating_sub(ours);
            self.offset.store(i64::try_from(offset).unwrap_or(0), Ordering::Relaxed);
            self.doubt.store(took / 2, Ordering::Relaxed);
        }
    }
}

impl State {
    fn lose(&mut self, why: &StoreError) {
        self.connection = None;
        self.breaker.lost();
        self.why = Trouble::away(why).into_error();
    }
}
