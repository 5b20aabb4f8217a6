//! Whether an upstream server should get requests: passive and active health checks. Pure: time is an argument.
//!
//! ```text
//!   up ──a connection is refused, 5 failures in a row, 3 failed checks──► ejected for 1 s, 2 s, 4 s … 30 s
//!    ▲                                                                       │ the time is over, and no check fails
//!    └─────────────────── slow start: 10 s of a growing share ◄──────────────┘
//! ```

use std::time::Duration;
use tokio::time::Instant;

/// What is known about the health of a server.
#[derive(Debug, Default)]
pub(crate) struct ServerHealth {
    /// Requests in a row that failed after they were sent.
    failures: u32,
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
const CHECKS_DOWN: u32 = 3;
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
                (self.failures, self.ejections) = (0, 0);
                false
            }
            Observed::Refused => true,
            Observed::Failed => {
                self.failures = self.failures.saturating_add(1);
                self.failures >= MOST_FAILURES
            }
            Observed::CheckPassed | Observed::CheckFailed => self.check.observe(observed),
        }
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
