//! How to reach memcached: its servers, timeouts and bounds.

use tidegate_core::Span;

/// How to reach the servers of a memcached store.
///
/// ```
/// use tidegate_core::Span;
/// use tidegate_store::MemcachedSettings;
/// let settings = MemcachedSettings { nodes: Some(3), ..MemcachedSettings::new("memcached://10.0.0.1:11211,10.0.0.2:11211") };
/// assert_eq!(settings.timeout, Span::from_millis(50));
/// ```
#[derive(Clone, Debug)]
pub struct MemcachedSettings {
    /// `memcached://host:port,host:port`, the same list on all nodes. The order does not matter.
    pub url: String,
    /// How long a decision may take.
    pub timeout: Span,
    /// How long connecting may take.
    pub connect_timeout: Span,
    /// How many calls may wait for a reply of one server. The next call fails immediately with
    /// [`StoreError::Overloaded`](crate::StoreError::Overloaded).
    pub in_flight: usize,
    /// How many nodes count in the store. While it is unreachable, each counts under its share of a limit. `None`: 8 are assumed,
    /// because memcached cannot count them.
    pub nodes: Option<u32>,
}

impl MemcachedSettings {
    /// Settings for these servers with the default timeouts: 50 ms for a decision, 1 s to connect.
    ///
    /// ```
    /// assert_eq!(tidegate_store::MemcachedSettings::new("memcached://localhost").nodes, None);
    /// ```
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            timeout: Span::from_millis(50),
            connect_timeout: Span::from_secs(1),
            in_flight: 1_024,
            nodes: None,
        }
    }
}
