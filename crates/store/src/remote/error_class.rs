//! Kinds of failures of a store on another machine, as operators see them in metrics, and how often each occurred.

use std::sync::atomic::{AtomicU64, Ordering};

/// Kinds of failures, as operators see them in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorClass {
    /// No reply in time.
    TimedOut,
    /// No connection, or one that ended.
    Disconnected,
    /// Too many calls wait already.
    Overloaded,
    /// The cluster or the primary is down, or the slot has no owner.
    Down,
    /// The server is loading its data.
    Loading,
    /// The server is a replica.
    ReadOnly,
    /// The server is out of memory, or cannot write to its disk.
    Full,
    /// The server is busy with another script.
    Busy,
    /// Authentication failed, or the user may not run a command that the store needs.
    Refused,
    /// Too many redirects, or a redirect to an unknown server.
    Redirected,
    /// Another program's data, or a reply that is not valid.
    Wrong,
    /// Anything else.
    Other,
}

/// How often each class occurred.
#[derive(Debug, Default)]
pub(crate) struct ErrorCounts {
    // Relaxed: read for metrics only.
    classes: [AtomicU64; ErrorClass::ALL.len()],
}

impl ErrorClass {
    pub(crate) const ALL: [Self; 12] = [
        Self::TimedOut,
        Self::Disconnected,
        Self::Overloaded,
        Self::Down,
        Self::Loading,
        Self::ReadOnly,
        Self::Full,
        Self::Busy,
        Self::Refused,
        Self::Redirected,
        Self::Wrong,
        Self::Other,
    ];

    /// The value of the metric label.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::TimedOut => "timed_out",
            Self::Disconnected => "disconnected",
            Self::Overloaded => "overloaded",
            Self::Down => "down",
            Self::Loading => "loading",
            Self::ReadOnly => "read_only",
            Self::Full => "full",
            Self::Busy => "busy",
            Self::Refused => "refused",
            Self::Redirected => "redirected",
            Self::Wrong => "wrong",
            Self::Other => "other",
        }
    }

    /// Whether the server is reachable and refuses the command.
    pub(crate) const fn is_refusal(self) -> bool {
        match self {
            Self::Down
            | Self::Loading
            | Self::ReadOnly
            | Self::Full
            | Self::Busy
            | Self::Refused => true,
            Self::TimedOut
            | Self::Disconnected
            | Self::Overloaded
            | Self::Redirected
            | Self::Wrong
            | Self::Other => false,
        }
    }
}

impl ErrorCounts {
    pub(crate) fn count(&self, class: ErrorClass) {
        let index = ErrorClass::ALL.iter().position(|one| *one == class);
        if let Some(count) = index.and_then(|index| self.classes.get(index)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn all(&self) -> Vec<(&'static str, u64)> {
        let counts = self.classes.iter().map(|count| count.load(Ordering::Relaxed));
        ErrorClass::ALL.iter().map(|class| class.name()).zip(counts).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_is_counted_under_its_own_name() {
        let counts = ErrorCounts::default();
        for class in ErrorClass::ALL {
            counts.count(class);
        }
        let all = counts.all();
        assert!(all.iter().all(|(_, count)| *count == 1));
        let mut names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ErrorClass::ALL.len());
    }
}
