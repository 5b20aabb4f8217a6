//! How to reach the store: its address, credentials and TLS, timeouts and bounds.

use tidegate_core::Span;

/// How to reach a store.
///
/// ```
/// use tidegate_core::Span;
/// use tidegate_store::RedisSettings;
/// let settings = RedisSettings { timeout: Span::from_millis(20), ..RedisSettings::new("redis://127.0.0.1/") };
/// assert_eq!(settings.connect_timeout, Span::from_secs(1));
/// let secret = RedisSettings::new("redis://user:password@127.0.0.1/");
/// assert!(!format!("{secret:?}").contains("password"));
/// ```
#[derive(Clone)]
pub struct RedisSettings {
    /// `redis://[user:password@]host[:port][/db]`, `redis+unix:///path`, `redis+cluster://host:port,host:port` or
    /// `redis+sentinel://host:port,host:port/name`; with `rediss` instead of `redis`, over TLS.
    pub url: String,
    /// Certificates for TLS.
    pub tls: RedisTls,
    /// How long a decision may take, including look-ups and redirects.
    pub timeout: Span,
    /// How long connecting may take.
    pub connect_timeout: Span,
    /// How many calls may wait for a reply of one server. The next call fails immediately with
    /// [`StoreError::Overloaded`](crate::StoreError::Overloaded).
    pub in_flight: usize,
    /// Which clock decides.
    pub clock: RedisClock,
    /// How many nodes count in the store. `None`: the nodes count each other through the store.
    ///
    /// Set it if you know it. While the store is unreachable, each node counts under its share of a limit, and a node that could
    /// neither count the others nor knows their number from [`RedisSettings::known_nodes`] assumes 8.
    pub nodes: Option<u32>,
    /// The identity of this node, the same after a restart, so that a restarted node is not counted twice. No two nodes of a store may
    /// have the same. `None`: a random one.
    pub node_id: Option<u64>,
    /// The number of nodes when this node last ran, for a start while the store is unreachable. Only programs that keep it in a
    /// file know it; see `StoreHealth::known_nodes`.
    pub known_nodes: Option<u32>,
    /// Whether the node keeps a denial cache: it answers repeated refusals itself for half a second.
    pub remember_refusals: bool,
}

/// Which clock decides.
///
/// ```
/// use tidegate_store::{RedisClock, RedisSettings};
/// // For an engine whose scripts may not call TIME.
/// let settings = RedisSettings { clock: RedisClock::Node, ..RedisSettings::new("redis://127.0.0.1/") };
/// assert_ne!(settings.clock, RedisClock::default()); // the server's clock
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RedisClock {
    /// The server's clock, read in the script. It is the same for all nodes, and a command that arrives after its deadline
    /// does nothing.
    #[default]
    Server,
    /// Each node's estimate of the server's clock, for engines whose scripts cannot read the time. The node sends TIME once
    /// a second, outside of scripts; if the server refuses TIME, the node uses its own clock. Two nodes then disagree by as
    /// much as their estimates do, and each rewrite of a state may gain that much time. Without a deadline in the script, a
    /// call that timed out may still have been counted.
    Node,
}

/// Certificates for TLS, in PEM.
#[derive(Clone, Default)]
pub struct RedisTls {
    /// CA bundle that verifies the servers' certificates. `None`: the CAs that this machine trusts.
    pub authority: Option<Vec<u8>>,
    /// Client certificate and its private key, for servers that require one.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

impl RedisSettings {
    /// Settings for this address with the default timeouts: 50 ms for a decision, 1 s to connect.
    ///
    /// ```
    /// use tidegate_core::Span;
    /// use tidegate_store::RedisSettings;
    /// assert_eq!(RedisSettings::new("redis://127.0.0.1/").timeout, Span::from_millis(50));
    /// ```
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            tls: RedisTls::default(),
            timeout: Span::from_millis(50),
            connect_timeout: Span::from_secs(1),
            in_flight: 1_024,
            clock: RedisClock::Server,
            nodes: None,
            node_id: None,
            known_nodes: None,
            remember_refusals: true,
        }
    }

    /// The longer of both timeouts: for background work, which may connect first.
    pub(super) fn longest_timeout(&self) -> Span {
        self.timeout.max(self.connect_timeout)
    }
}

/// The address may contain a password, so it is left out of the debug output.
impl std::fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisSettings").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// The private key is left out of the debug output.
impl std::fmt::Debug for RedisTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisTls").finish_non_exhaustive()
    }
}
