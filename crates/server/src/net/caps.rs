//! How many connections a listener serves at the same time.

use crate::bounds;

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caps {
    pub(crate) all: usize,
    /// From one address that is not trusted; of IPv6, from one network of 64 bits.
    pub(crate) per_source: usize,
}

impl Caps {
    /// From one trusted proxy: all but a part that is left for others.
    pub(super) fn per_proxy(&self) -> usize {
        let left = self.all.checked_div(bounds::LEFT_BY_PROXIES).unwrap_or(0);
        self.all.saturating_sub(left).max(self.per_source)
    }
}
