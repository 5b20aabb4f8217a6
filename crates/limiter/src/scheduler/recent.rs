//! What happened in the last seconds: the peak demand of a class, and how many of its requests were started.
//!
//! Two windows of 10 s take turns. The current one counts, and the previous one is remembered, so a reading covers the last 10
//! to 20 s.
//!
//! ```text
//!        previous       current
//!     ├────────────┼───────────▶ now
//! ```

use tidegate_core::{Span, Timestamp};

/// The length of a window. A class keeps its reserved seats for at least this long after it last used them. Kubernetes
/// (KEP-1040) lends seats by the demand of the last 10 s, too.
pub(super) const WINDOW: Span = Span::from_secs(10);

/// No answer asks a client to wait longer: load changes faster than that.
const LONGEST_RETRY: Span = Span::from_secs(60);

/// When the current window began.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowClock {
    began: Timestamp,
    /// How long the previous window was: zero at first.
    previous: Span,
}

/// How many windows ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    None,
    Current,
    /// The current one, and a whole window after it in which nothing happened.
    Both,
}

/// The two windows of one class.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recent {
    current: WindowCounts,
    previous: WindowCounts,
}

#[derive(Clone, Copy, Debug, Default)]
struct WindowCounts {
    /// The highest number of requests in flight and waiting.
    peak: usize,
    started: u64,
}

/// A number of waiting requests, and how many were started recently.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    pub(super) waiting: usize,
    pub(super) started: u64,
}

impl WindowClock {
    pub(super) const fn starting_at(now: Timestamp) -> Self {
        Self { began: now, previous: Span::ZERO }
    }

    /// Moves to the window of `now`.
    pub(super) fn roll(&mut self, now: Timestamp) -> Ended {
        let next = self.ends();
        if now < next {
            return Ended::None;
        }
        let (began, ended) =
            if now.since(next) < WINDOW { (next, Ended::Current) } else { (now, Ended::Both) };
        *self = Self { began, previous: WINDOW };
        ended
    }

    /// When the current window ends.
    pub(super) fn ends(self) -> Timestamp {
        self.began.after(WINDOW).unwrap_or(Timestamp::END)
    }

    /// How long both windows are.
    pub(super) fn covered(self, now: Timestamp) -> Span {
        let current = now.since(self.began).as_nanos();
        Span::from_nanos(self.previous.as_nanos().saturating_add(current))
    }
}

impl Recent {
    /// Goes on to the next window. `demand` is the number of requests in flight and waiting, which has not changed since it was
    /// last counted.
    pub(super) fn roll(&mut self, ended: Ended, demand: usize) {
        let quiet = WindowCounts { peak: demand, started: 0 };
        match ended {
            Ended::None => {}
            Ended::Current => *self = Self { current: quiet, previous: self.current },
            Ended::Both => *self = Self { current: quiet, previous: quiet },
        }
    }

    pub(super) fn count_demand(&mut self, demand: usize) {
        self.current.peak = self.current.peak.max(demand);
    }

    pub(super) fn count_start(&mut self) {
        self.current.started = self.current.started.saturating_add(1);
    }

    pub(super) fn peak(&self) -> usize {
        self.current.peak.max(self.previous.peak)
    }

    pub(super) fn started(&self) -> u64 {
        self.current.started.saturating_add(self.previous.started)
    }
}

impl Progress {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            waiting: self.waiting.saturating_add(other.waiting),
            started: self.started.saturating_add(other.started),
        }
    }

    /// How long it takes to start those that wait and one more, at the recent rate; rounded up. `None` if none was started
    /// recently.
    fn time_to_start(self, covered: Span) -> Option<Span> {
        let requests = u128::try_from(self.waiting).ok()?.saturating_add(1);
        let nanos = requests.saturating_mul(u128::from(covered.as_nanos()));
        let each = u128::from(self.started);
        let exact = (each > 0).then(|| nanos.div_ceil(each))?;
        Some(Span::from_nanos(u64::try_from(exact).unwrap_or(u64::MAX)))
    }
}

/// When a request that was shed should try again.
///
/// It is the longer of two times: in which its class, and in which all classes together, would start the requests that wait
/// now and one more, at the rate of the last 10 to 20 s. If nothing was started in that time, it is that time. It is at most
/// one minute.
pub(super) fn retry_after(class: Progress, all: Progress, covered: Span) -> Span {
    let longer = class.time_to_start(covered).max(all.time_to_start(covered));
    longer.unwrap_or(covered).clamp(Span::from_millis(1), LONGEST_RETRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Timestamp {
        Timestamp::EPOCH.after(Span::from_secs(secs)).unwrap()
    }

    #[test]
    fn a_peak_counts_for_at_least_one_window_and_at_most_two() {
        let (mut clock, mut recent) = (WindowClock::starting_at(at(0)), Recent::default());
        let mut demand = 0;
        let mut peak_at = |secs, next| {
            recent.roll(clock.roll(at(secs)), demand);
            let peak = recent.peak();
            recent.count_demand(next);
            demand = next;
            peak
        };
        assert_eq!(peak_at(9, 5), 0);
        assert_eq!(peak_at(9, 2), 5);
        assert_eq!(peak_at(12, 1), 5);
        assert_eq!(peak_at(19, 1), 5);
        assert_eq!(peak_at(20, 1), 2); // until 12 s
        assert_eq!(peak_at(29, 7), 2);
        assert_eq!(peak_at(29, 3), 7);
        assert_eq!(peak_at(100, 0), 3); // until now
        assert_eq!(peak_at(119, 0), 3);
        assert_eq!(peak_at(120, 0), 0);
    }

    #[test]
    fn the_retry_time_is_the_longer_of_the_class_and_of_all() {
        let covered = Span::from_secs(10);
        let progress = |waiting, started| Progress { waiting, started };
        // 49 wait and one more, at 10 a second; all together are faster.
        let low = progress(49, 100);
        assert_eq!(retry_after(low, progress(49, 1_000), covered), Span::from_secs(5));
        // The class has none waiting, but the whole queue is long.
        assert_eq!(retry_after(progress(0, 100), progress(999, 1_000), covered).as_secs_ceil(), 10);
        // Nothing was started for 10 s.
        assert_eq!(retry_after(progress(9, 0), progress(9, 0), covered), covered);
        assert_eq!(retry_after(progress(9, 0), progress(99_999, 1), covered).as_secs_ceil(), 60);
        let none = retry_after(progress(0, 0), progress(0, 0), Span::ZERO);
        assert_eq!(none, Span::from_millis(1));
    }
}
