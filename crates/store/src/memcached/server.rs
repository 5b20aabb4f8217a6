//! One memcached server: its connection behind a gate, and the probes of its keeper.
//!
//! ```text
//!   connect:  version ──► mn ──► verifier of the secret: ours, or none?
//!   probe:    `ma` on a value of the store's own: is it numbered for compare and swap? ──► canary ──► stats ──► verifier, if it is lost
//! ```

use super::address::HostPort;
use super::clocks::WallTime;
use super::connection::MetaConnection;
use super::losses::{LossCounts, LossWatch, Vitals};
use super::meta::{self, Command, Reply, Ttl};
use super::settings::MemcachedSettings;
use crate::clock::Clock;
use crate::error::StoreError;
use crate::remote::{ErrorClass, ErrorCounts, Gate, Server, tcp};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tidegate_core::{Span, Timestamp};

/// What all servers of one store share.
pub(super) struct MemcachedContext {
    pub(super) settings: MemcachedSettings,
    /// Hash of the secret. A server must hold this value or none: the states of two secrets never mix.
    pub(super) verifier: String,
    /// The clock by which limits are decided.
    pub(super) wall: WallTime,
    /// The clock by which callers wait.
    pub(super) timer: Clock,
    pub(super) errors: ErrorCounts,
    pub(super) losses: LossCounts,
    /// How often a background task panicked and was restarted. Relaxed: for metrics.
    pub(super) restarts: Arc<AtomicU64>,
}

/// A server. Its callers and the keeper of its connection share it.
pub(super) struct MemcachedServer {
    address: HostPort,
    gate: Gate<MetaConnection>,
    context: Arc<MemcachedContext>,
    watch: LossWatch,
}

/// A call that failed.
#[derive(Debug)]
pub(super) struct Failed(pub(super) ErrorClass, pub(super) StoreError);

/// Values that belong to the store and to no key.
pub(super) const VERIFIER_KEY: &[u8] = b"tg:verifier";
const CANARY_KEY: &[u8] = b"tg:canary";
const PROBE_KEY: &[u8] = b"tg:probe";
pub(super) const WITHOUT_SWAP: &str =
    "it was started with -C, which switches off compare and swap; start it without";
/// Longer error texts of a server are cut.
const MAX_TEXT: usize = 200;
/// The meta protocol with all that this store needs.
const OLDEST_VERSION: (u32, u32) = (1, 6);

impl MemcachedServer {
    pub(super) fn new(address: HostPort, context: &Arc<MemcachedContext>) -> Self {
        let MemcachedSettings { timeout, in_flight, .. } = context.settings;
        let gate = Gate::new(address.to_string(), timeout, in_flight, context.timer.clone());
        Self { address, gate, context: Arc::clone(context), watch: LossWatch::default() }
    }

    pub(super) fn name(&self) -> &str {
        &self.gate.name
    }

    /// Why the server is not called at the moment; `None` while the breaker is closed.
    pub(super) fn down(&self) -> Option<String> {
        self.gate.complaint()
    }

    /// What an operator should know of the server: it is down, or has lost counters.
    pub(super) fn complaint(&self) -> Option<String> {
        let lost = || self.watch.complaint(self.gate.now()).map(str::to_owned);
        self.down().or_else(lost)
    }

    /// How long a value is kept.
    pub(super) fn ttl(&self, seconds: u64) -> Ttl {
        Ttl::new(seconds, self.watch.server_time().unwrap_or(0))
    }

    /// The connection, if the breaker is closed. A call that holds it talks to one process only.
    pub(super) fn connection(&self) -> Result<(MetaConnection, u64), Failed> {
        self.gate.connection().map_err(|error| Failed(ErrorClass::Disconnected, error))
    }

    pub(super) fn left(&self, until: Timestamp) -> Span {
        self.gate.left(until)
    }

    pub(super) fn gate(&self) -> &Gate<MetaConnection> {
        &self.gate
    }

    pub(super) fn answered(&self) {
        self.gate.answered();
    }

    pub(super) fn lost(&self, generation: u64, why: &StoreError) {
        self.gate.lost(generation, why);
    }

    pub(super) fn timed_out(&self) -> Failed {
        Failed(ErrorClass::TimedOut, StoreError::TimedOut(self.context.settings.timeout))
    }

    // === probes ===

    async fn connect(&self) -> Result<MetaConnection, StoreError> {
        let HostPort { host, port } = &self.address;
        let within = self.context.settings.connect_timeout;
        let stream = tokio::time::timeout(within.into(), tcp(host, *port)).await;
        let stream = stream.map_err(|_late| StoreError::TimedOut(within))?;
        let stream = stream.map_err(|error| StoreError::Unavailable(Box::new(error)))?;
        let connection =
            MetaConnection::new(stream, self.context.settings.in_flight.saturating_mul(2));
        let checking = async {
            checked_version(&connection).await?;
            self.compare_verifier(&connection).await
        };
        let checked = tokio::time::timeout(within.into(), checking).await;
        checked.map_err(|_late| StoreError::TimedOut(within))??;
        Ok(connection)
    }

    /// Writes the verifier of the secret to the server, or compares it with the one that is there.
    async fn compare_verifier(&self, connection: &MetaConnection) -> Result<(), StoreError> {
        let verifier = &self.context.verifier;
        let set = meta::set_if_absent(VERIFIER_KEY, verifier, self.ttl(0));
        ask(connection, set).await?;
        let stored = ask(connection, meta::get(VERIFIER_KEY)).await?;
        compared(&stored, verifier).map(drop)
    }

    /// Adds to a value, as decisions do: a server that answers `mn` may be unable to. The reply must have the number that compare and
    /// swap needs.
    async fn run_probe(&self, connection: &MetaConnection) -> Result<(), StoreError> {
        let reply = ask(connection, meta::add(PROBE_KEY, 1, 1, self.ttl(60))).await?;
        let Reply::Number { cas, .. } = reply else { return Err(unexpected(&reply)) };
        if cas == 0 {
            return Err(StoreError::Unusable(WITHOUT_SWAP.to_owned()));
        }
        Ok(())
    }

    /// Looks for losses, and learns the server's time.
    async fn look(&self, connection: &MetaConnection) -> Result<(), StoreError> {
        let canary = ask(connection, meta::set_if_absent(CANARY_KEY, "1", self.ttl(0))).await?;
        let reply = ask(connection, meta::plain(b"stats")).await?;
        let Reply::Stats(stats) = reply else { return Err(unexpected(&reply)) };
        let stat = |name: &str| {
            let stat = stats.iter().find(|(known, _)| known == name);
            stat.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
        };
        let vitals = Vitals {
            pid: stat("pid"),
            uptime: stat("uptime"),
            flushes: stat("cmd_flush"),
            evictions: stat("evictions"),
            time: stat("time"),
            has_canary: canary == Reply::NotStored,
        };
        self.watch.look(self.gate.now(), vitals, &self.context.losses);
        // Nobody with another secret shall use what was emptied.
        let set = meta::set_if_absent(VERIFIER_KEY, &self.context.verifier, self.ttl(0));
        ask(connection, set).await.map(drop)
    }
}

impl Server for MemcachedServer {
    type Connection = MetaConnection;

    const PROBE_INTERVAL: Duration = Duration::from_millis(500);

    fn gate(&self) -> &Gate<MetaConnection> {
        &self.gate
    }

    async fn connect_and_probe(
        &self,
        current: Option<MetaConnection>,
    ) -> Result<MetaConnection, StoreError> {
        let connection = match current {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let timeout = self.context.settings.timeout.max(self.context.settings.connect_timeout);
        let probing = async {
            self.run_probe(&connection).await?;
            self.look(&connection).await
        };
        let probed = tokio::time::timeout(timeout.into(), probing).await;
        probed.map_err(|_late| StoreError::TimedOut(timeout))??;
        Ok(connection)
    }
}

/// Whether a server holds the verifier of our secret. It is an error if it holds that of another one.
pub(super) fn compared(stored: &Reply, verifier: &str) -> Result<bool, StoreError> {
    match stored {
        Reply::Text(stored) if stored == verifier => Ok(true),
        Reply::Text(_) | Reply::Number { .. } => Err(StoreError::OtherSecret),
        Reply::Done | Reply::Missing | Reply::NotStored => Ok(false),
        Reply::Version(_) | Reply::Stats(_) | Reply::Error(_) => Err(unexpected(stored)),
    }
}

/// Asks outside of the gate.
pub(super) async fn ask(
    connection: &MetaConnection,
    command: Command,
) -> Result<Reply, StoreError> {
    let mut reply = connection.send(&command)?;
    let reply = connection.reply(&mut reply).await?;
    if let Reply::Error(text) = &reply { Err(error_of(text).1) } else { Ok(reply) }
}

/// The version of a server, if that is new enough.
pub(super) async fn checked_version(connection: &MetaConnection) -> Result<String, StoreError> {
    let reply = ask(connection, meta::plain(b"version")).await?;
    let Reply::Version(version) = reply else { return Err(unexpected(&reply)) };
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    let is_new = (parts.next().flatten(), parts.next().flatten())
        >= (Some(OLDEST_VERSION.0), Some(OLDEST_VERSION.1));
    if is_new && ask(connection, meta::plain(b"mn")).await? == Reply::Done {
        return Ok(version);
    }
    Err(StoreError::Unusable(format!(
        "memcached {version} lacks the meta protocol; tidegate needs memcached 1.6 or newer"
    )))
}

/// Puts the name of the server in front of an error.
pub(super) fn named(name: &str, error: StoreError) -> StoreError {
    match error {
        StoreError::Unavailable(why) => StoreError::Unavailable(format!("{name}: {why}").into()),
        StoreError::Refuses(why) => StoreError::Refuses(format!("{name}: {why}")),
        StoreError::Unusable(why) => StoreError::Unusable(format!("{name}: {why}")),
        StoreError::Broken(why) => StoreError::Broken(format!("{name}: {why}")),
        StoreError::TimedOut(after) => {
            StoreError::Unavailable(format!("{name}: it did not answer within {after}").into())
        }
        error @ (StoreError::Partly(_)
        | StoreError::Overloaded
        | StoreError::TooManyLimits
        | StoreError::Unsupported { .. }
        | StoreError::OtherSecret) => error,
    }
}

/// The class of an error that a server replied.
pub(super) fn error_of(text: &str) -> Failed {
    let text: String = text.chars().take(MAX_TEXT).collect();
    if text.contains("out of memory") || text.contains("Out of memory") {
        return Failed(ErrorClass::Full, StoreError::Refuses(text));
    }
    if text.starts_with("SERVER_ERROR") {
        return Failed(ErrorClass::Other, StoreError::Refuses(text));
    }
    Failed(ErrorClass::Wrong, StoreError::Broken(text))
}

/// A reply to another command: a bug, or a server of another kind.
pub(super) fn unexpected(reply: &Reply) -> StoreError {
    let text: String = format!("{reply:?}").chars().take(MAX_TEXT).collect();
    StoreError::Broken(format!("unexpected: {text}"))
}
