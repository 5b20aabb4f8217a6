//! How many connections a listener serves at the same time.

use crate::bounds;

/// Caps on open connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caps {
    /// Of the listener.
    pub(crate) all: usize,
    /// From one IPv4 address or one IPv6 /64 network that is not a trusted proxy.
    pub(crate) per_source: usize,
    /// What a connection costs in open files: 1, or 2 where each needs another one to an upstream server.
    pub(crate) files_each: usize,
}

impl Caps {
    /// From one trusted proxy: all but a part that is left for other clients.
    pub(super) fn per_proxy(&self) -> usize {
        let left = self.all.checked_div(bounds::LEFT_BY_PROXIES).unwrap_or(0);
        self.all.saturating_sub(left).max(self.per_source)
    }
}
