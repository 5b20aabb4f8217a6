//! Losses of counters that memcached does not announce: it was restarted or flushed, or it evicted values because it is
//! full. After each, every limit may pass once more.
//!
//! ```text
//!   every half second:  stats (uptime, cmd_flush, evictions)  and the canary, a value that is never deleted
//!                          └── compared with the last look ──► loss ──► counted, and reported for ten seconds
//! ```

use crate::sync::{Mutex, lock};
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_core::{Span, Timestamp};

/// Why counters were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    Restarted,
    Flushed,
    Evicted,
    /// The canary is gone, and nothing says why.
    Vanished,
}

/// How often each happened, on all servers.
#[derive(Debug, Default)]
pub(super) struct LossCounts([AtomicU64; Loss::ALL.len()]);

/// What a server says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Vitals {
    pub(super) pid: u64,
    pub(super) uptime: u64,
    pub(super) flushes: u64,
    pub(super) evictions: u64,
    /// Seconds since 1970.
    pub(super) time: u64,
    /// Whether the canary was there.
    pub(super) has_canary: bool,
}

/// What is known of one server.
#[derive(Debug, Default)]
pub(super) struct LossWatch(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    vitals: Option<Vitals>,
    /// The last loss, and when it was noticed.
    last: Option<(Loss, Timestamp)>,
}

/// How long a loss is reported.
const REPORTED_FOR: Span = Span::from_secs(10);

impl Loss {
    pub(super) const ALL: [Self; 4] =
        [Self::Restarted, Self::Flushed, Self::Evicted, Self::Vanished];

    /// The value of the metric label.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Restarted => "restarted",
            Self::Flushed => "flushed",
            Self::Evicted => "evicted",
            Self::Vanished => "vanished",
        }
    }

    const fn sentence(self) -> &'static str {
        match self {
            Self::Restarted => "it was restarted and lost its counters",
            Self::Flushed => "it was flushed and lost its counters",
            Self::Evicted => {
                "it is full and evicts counters; give it more memory, or run it with -M"
            }
            Self::Vanished => "counters vanished from it",
        }
    }

    /// What happened between two looks.
    fn between(before: &Vitals, now: &Vitals) -> Option<Self> {
        if now.pid != before.pid || now.uptime < before.uptime {
            Some(Self::Restarted)
        } else if now.flushes > before.flushes {
            Some(Self::Flushed)
        } else if now.evictions > before.evictions {
            Some(Self::Evicted)
        } else {
            (before.has_canary && !now.has_canary).then_some(Self::Vanished)
        }
    }
}

impl LossCounts {
    // Relaxed: read for metrics only.
    fn count(&self, loss: Loss) {
        let index = Loss::ALL.iter().position(|one| *one == loss);
        if let Some(count) = index.and_then(|index| self.0.get(index)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn all(&self) -> Vec<(&'static str, u64)> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        Loss::ALL.iter().map(|loss| loss.name()).zip(counts).collect()
    }
}

impl LossWatch {
    /// Compares with the last look.
    pub(super) fn look(&self, now: Timestamp, vitals: Vitals, counts: &LossCounts) {
        let mut seen = lock(&self.0);
        let before = seen.vitals.replace(Vitals { has_canary: true, ..vitals });
        if let Some(loss) = before.and_then(|before| Loss::between(&before, &vitals)) {
            counts.count(loss);
            seen.last = Some((loss, now));
        }
    }

    /// What was lost lately.
    pub(super) fn complaint(&self, now: Timestamp) -> Option<&'static str> {
        let (loss, noticed) = lock(&self.0).last?;
        (now.since(noticed) < REPORTED_FOR).then(|| loss.sentence())
    }

    /// The time of the server in seconds at the last look.
    pub(super) fn server_time(&self) -> Option<u64> {
        Some(lock(&self.0).vitals?.time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_loss_is_noticed_counted_once_and_reported_for_a_while() {
        let at = |secs: u64| Timestamp::EPOCH.after(Span::from_secs(secs)).unwrap();
        let before =
            Vitals { pid: 7, uptime: 50, flushes: 1, evictions: 5, time: 9, has_canary: true };
        let after = Vitals { uptime: 51, time: 10, ..before };
        for (now, loss) in [
            (after, None),
            (Vitals { pid: 8, ..after }, Some("restarted")),
            (Vitals { uptime: 0, evictions: 0, has_canary: false, ..after }, Some("restarted")),
            (Vitals { flushes: 2, has_canary: false, ..after }, Some("flushed")),
            (Vitals { evictions: 6, ..after }, Some("evicted")),
            (Vitals { has_canary: false, ..after }, Some("vanished")),
        ] {
            let (watch, counts) = (LossWatch::default(), LossCounts::default());
            // A canary that was never there is not missed.
            watch.look(at(0), Vitals { has_canary: false, ..before }, &counts);
            assert_eq!(watch.complaint(at(0)), None);
            watch.look(at(1), now, &counts);
            watch.look(at(2), Vitals { has_canary: true, ..now }, &counts);
            let counted: Vec<_> = counts.all().into_iter().filter(|(_, n)| *n > 0).collect();
            assert_eq!(counted, loss.map(|loss| (loss, 1)).into_iter().collect::<Vec<_>>());
            assert_eq!(watch.complaint(at(10)).is_some(), loss.is_some());
            assert_eq!(watch.complaint(at(11)), None);
        }
    }
}
