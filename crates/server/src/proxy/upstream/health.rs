//! Whether an upstream server should get requests: passive and active health checks. Pure: time is an argument.
//!
//! ```text
//!   up ──a connection is refused, 5 failures in a row, 3 failed checks──► ejected for 1 s, 2 s, 4 s … 30 s
//!    ▲                                                                       │ the time is over, and no check fails
//!    └─────────────────── slow start: 10 s of a growing share ◄──────────────┘
//! ```
//!
//! A server is *down* for the same reasons, until it answers a request or two checks in a row. It may be down and yet get
//! requests, because at most half of a group is ejected.

use std::time::Duration;
use tokio::time::Instant;

/// What is known about the health of a server.
#[derive(Debug, Default)]
pub(crate) struct ServerHealth {
    /// Requests in a row that failed after they were sent.
    failures: u32,
    /// Whether no connection could be made, or too many requests failed, since the last success.
    requests_fail: bool,
    /// Checks that passed since the last check or request that failed.
    passed_since_failure: u32,
    /// Ejections since the last success.
    ejections: u32,
    ejected_until: Option<Instant>,
    /// When it came back, while it gets less than its share.
    slow_since: Option<Instant>,
    check: ActiveCheck,
}

/// The results of active health checks.
#[derive(Debug, Default)]
struct ActiveCheck {
    failed_in_a_row: u32,
    passed_in_a_row: u32,
    is_down: bool,
}

/// What a request or a check showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Observed {
    /// The server answered a request.
    Answered,
    /// No connection could be made.
    Refused,
    /// A request was sent, and the connection broke or the answer did not come in time.
    Failed,
    CheckPassed,
    CheckFailed,
}

/// Failures in a row after which a server is ejected.
const MOST_FAILURES: u32 = 5;
/// Failed checks after which a server is down, and passed checks after which it is up again.
pub(super) const CHECKS_DOWN: u32 = 3;
const CHECKS_UP: u32 = 2;
const FIRST_EJECTION: Duration = Duration::from_secs(1);
const LONGEST_EJECTION: Duration = Duration::from_secs(30);
/// How long a server that came back gets less than its share.
const SLOW_START: Duration = Duration::from_secs(10);

impl ServerHealth {
    /// Takes note of an observation. Returns whether the server should be ejected now.
    pub(crate) fn observe(&mut self, observed: Observed) -> bool {
        match observed {
            Observed::Answered => {
                (self.failures, self.ejections, self.requests_fail) = (0, 0, false);
                false
            }
            Observed::Refused => {
                (self.requests_fail, self.passed_since_failure) = (true, 0);
                true
            }
            Observed::Failed => {
                self.failures = self.failures.saturating_add(1);
                self.passed_since_failure = 0;
                self.requests_fail |= self.failures >= MOST_FAILURES;
                self.failures >= MOST_FAILURES
            }
            Observed::CheckPassed | Observed::CheckFailed => self.observe_check(observed),
        }
    }

    fn observe_check(&mut self, observed: Observed) -> bool {
        let passed = observed == Observed::CheckPassed;
        self.passed_since_failure =
            if passed { self.passed_since_failure.saturating_add(1) } else { 0 };
        self.requests_fail &= self.passed_since_failure < CHECKS_UP;
        self.check.observe(observed)
    }

    /// Whether the server fails: by its checks, or by the last requests that it got.
    pub(crate) const fn is_down(&self) -> bool {
        self.requests_fail || self.check.is_down
    }

    /// How long the server is still ejected.
    pub(crate) fn ejected_for(&self, now: Instant) -> Option<Duration> {
        let left = self.ejected_until?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    /// Ejects the server, for longer each time.
    pub(crate) fn eject(&mut self, now: Instant) {
        let longer = 1_u32.checked_shl(self.ejections).unwrap_or(u32::MAX);
        let time = FIRST_EJECTION.saturating_mul(longer).min(LONGEST_EJECTION);
        self.ejections = self.ejections.saturating_add(1);
        self.failures = 0;
        self.ejected_until = now.checked_add(time);
    }

    /// Whether an ejected server may get requests again.
    pub(crate) fn comes_back(&mut self, now: Instant) -> bool {
        let over = self.ejected_until.is_none_or(|until| until <= now);
        if over && !self.check.is_down {
            self.ejected_until = None;
            self.slow_since = Some(now);
            return true;
        }
        false
    }

    /// By how much the load of a server counts more than it is, in percent, because it came back a short time ago.
    pub(crate) fn handicap(&mut self, now: Instant) -> usize {
        let Some(since) = self.slow_since else { return 100 };
        let passed = now.saturating_duration_since(since);
        if passed >= SLOW_START {
            self.slow_since = None;
            return 100;
        }
        let passed = usize::try_from(passed.as_millis()).unwrap_or(usize::MAX).max(100);
        usize::try_from(SLOW_START.as_millis())
            .unwrap_or(usize::MAX)
            .saturating_mul(100)
            .checked_div(passed)
            .unwrap_or(100)
    }
}

impl Observed {
    /// What a server did that is down after this observation.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Refused => "no connection can be made",
            Self::Failed => "five requests in a row failed",
            Self::CheckFailed => "three health checks in a row failed",
            Self::Answered | Self::CheckPassed => "",
        }
    }
}

impl ActiveCheck {
    /// Returns whether the server has just become down.
    fn observe(&mut self, observed: Observed) -> bool {
        if observed == Observed::CheckPassed {
            self.failed_in_a_row = 0;
            self.passed_in_a_row = self.passed_in_a_row.saturating_add(1);
            if self.passed_in_a_row >= CHECKS_UP {
                self.is_down = false;
            }
            return false;
        }
        self.passed_in_a_row = 0;
        self.failed_in_a_row = self.failed_in_a_row.saturating_add(1);
        let goes_down = !self.is_down && self.failed_in_a_row >= CHECKS_DOWN;
        self.is_down |= goes_down;
        goes_down
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timers;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_refuses_connections_is_ejected_at_once_and_for_longer_each_time() {
        let mut health = ServerHealth::default();
        let mut now = timers::now();
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            assert!(health.observe(Observed::Refused));
            health.eject(now);
            assert!(!health.comes_back(now + Duration::from_millis(seconds * 1_000 - 1)));
            now += Duration::from_secs(seconds);
            assert!(health.comes_back(now));
        }
        health.observe(Observed::Answered);
        health.eject(now);
        assert!(health.comes_back(now + Duration::from_secs(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn only_failures_in_a_row_eject() {
        let mut health = ServerHealth::default();
        for _ in 0..3 {
            for _ in 0..4 {
                assert!(!health.observe(Observed::Failed));
            }
            health.observe(Observed::Answered);
        }
        let failures: Vec<bool> = (0..5).map(|_| health.observe(Observed::Failed)).collect();
        assert_eq!(failures, [false, false, false, false, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_whose_checks_fail_comes_back_after_two_that_pass() {
        let mut health = ServerHealth::default();
        let now = timers::now();
        let failed: Vec<bool> = (0..4).map(|_| health.observe(Observed::CheckFailed)).collect();
        assert_eq!(failed, [false, false, true, false]);
        health.eject(now);
        let later = now + Duration::from_secs(60);
        assert!(!health.comes_back(later));
        health.observe(Observed::CheckPassed);
        assert!(!health.comes_back(later));
        health.observe(Observed::CheckPassed);
        assert!(health.comes_back(later));
    }

    #[test]
    fn a_server_is_down_until_a_request_or_two_checks_succeed() {
        let after = |seen: &[(Observed, usize)]| {
            let mut health = ServerHealth::default();
            for (observed, times) in seen {
                (0..*times).for_each(|_| _ = health.observe(*observed));
            }
            health.is_down()
        };
        use Observed::{Answered, CheckFailed, CheckPassed, Failed, Refused};
        for (seen, down) in [
            (&[][..], false),
            (&[(Refused, 1)], true),
            (&[(Refused, 1), (Answered, 1)], false),
            (&[(Refused, 1), (CheckPassed, 1)], true),
            (&[(Refused, 1), (CheckPassed, 2)], false),
            (&[(CheckPassed, 9), (Refused, 1), (CheckPassed, 1)], true),
            (&[(Failed, 4)], false),
            (&[(Failed, 5)], true),
            (&[(Failed, 4), (Answered, 1), (Failed, 4)], false),
            (&[(Failed, 9), (Answered, 1)], false),
            (&[(CheckFailed, 2)], false),
            (&[(CheckFailed, 3)], true),
            // The checks decide about what only they have noticed.
            (&[(CheckFailed, 3), (Answered, 1)], true),
            (&[(CheckFailed, 3), (CheckPassed, 2)], false),
        ] {
            assert_eq!(after(seen), down, "{seen:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_an_ejection_that_is_left() {
        let mut health = ServerHealth::default();
        let now = timers::now();
        assert_eq!(health.ejected_for(now), None);
        health.eject(now);
        let half = Duration::from_millis(500);
        assert_eq!(health.ejected_for(now + half), Some(half));
        assert_eq!(health.ejected_for(now + half * 2), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_came_back_gets_a_growing_share() {
        let mut health = ServerHealth::default();
        let now = timers::now();
        assert_eq!(health.handicap(now), 100);
        health.eject(now);
        let back = now + Duration::from_secs(1);
        assert!(health.comes_back(back));
        let after = |millis| back + Duration::from_millis(millis);
        assert_eq!(health.handicap(back), 10_000);
        assert_eq!(health.handicap(after(1_000)), 1_000);
        assert_eq!(health.handicap(after(5_000)), 200);
        assert_eq!(health.handicap(after(10_000)), 100);
    }
}
