//! Client side: remember that a server denied a request, and do not ask it again too early.
//!
//! ```text
//!   request ──► pacer: may I ask? ──► server ──► 429, Retry-After: 7 ──► pacer remembers it for this server
//!   request ──► pacer: not for 7 s
//! ```

use super::parse::Heard;
use crate::timers;
use http::{HeaderMap, StatusCode};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tidegate_core::{Span, Timestamp};
use tidegate_store::Clock;

/// Remembers for each server until when it must not be asked again. A "server" is any name that you choose, for example a
/// host, or a host and an API key.
///
/// ```
/// use tidegate::http::Pacer;
/// use tidegate::{Clock, Span, Timestamp};
/// let clock = Clock::manual(Timestamp::EPOCH);
/// let pacer = Pacer::new(clock.clone());
/// assert_eq!(pacer.wait("api.example.com"), Span::ZERO);
/// let mut headers = http::HeaderMap::new();
/// headers.insert("retry-after", "7".parse().unwrap());
/// pacer.heard("api.example.com", http::StatusCode::TOO_MANY_REQUESTS, &headers);
/// assert_eq!(pacer.wait("api.example.com"), Span::from_secs(7));
/// assert_eq!(pacer.wait("api.example.org"), Span::ZERO);
/// clock.set(Timestamp::from_nanos(7_000_000_000));
/// assert_eq!(pacer.wait("api.example.com"), Span::ZERO);
/// ```
#[derive(Debug)]
pub struct Pacer {
    clock: Clock,
    /// Locked for a look-up only, never while waiting.
    waits: Mutex<Waits>,
}

#[derive(Debug, Default)]
struct Waits {
    /// For each server, the time before which it must not be asked.
    until: HashMap<Box<str>, Timestamp>,
    /// When those that are over were last dropped because there was no room.
    swept: Option<Timestamp>,
    #[cfg(test)]
    sweeps: u32,
}

/// The most servers to remember; more than any client talks to.
const MOST: usize = 10_000;
/// How often a full list is looked through for waits that are over, so that a response takes no longer when it is full.
const SWEPT_EVERY: Span = Span::from_secs(1);
/// The longest wait to believe: a server that says "in a year" may be asked again after one day.
const LONGEST: Span = Span::from_secs(86_400);
/// The wait after a denial without a retry time.
const DEFAULT_WAIT: Span = Span::from_secs(1);

impl Pacer {
    /// A pacer that does not know any server yet.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { clock, waits: Mutex::default() }
    }

    /// How long to wait before asking this server; zero if it may be asked now.
    #[must_use]
    pub fn wait(&self, server: &str) -> Span {
        let until = self.lock().until.get(server).copied();
        until.map_or(Span::ZERO, |until| until.since(self.clock.now().steady))
    }

    /// Waits until this server may be asked. Needs a tokio runtime with time enabled.
    pub async fn ready(&self, server: &str) {
        loop {
            let wait = self.wait(server);
            if wait == Span::ZERO {
                return;
            }
            timers::sleep(wait).await;
        }
    }

    /// Records the response of a server, and returns what it says about its limits.
    pub fn heard(&self, server: &str, status: StatusCode, headers: &HeaderMap) -> Heard {
        let now = self.clock.now();
        let heard = Heard::of(status, headers, now.calendar);
        let wait = match heard.wait() {
            Span::ZERO if heard.refused => DEFAULT_WAIT,
            wait => wait.min(LONGEST),
        };
        if let Some(until) = now.steady.after(wait).filter(|_| wait > Span::ZERO) {
            self.remember(server, until, now.steady);
        }
        heard
    }

    fn remember(&self, server: &str, until: Timestamp, now: Timestamp) {
        let mut waits = self.lock();
        if let Some(known) = waits.until.get_mut(server) {
            // The later of the two, so that a response that arrives out of order does not shorten a wait.
            *known = until.max(*known);
            return;
        }
        if waits.until.len() >= MOST {
            waits.sweep(now);
        }
        if waits.until.len() < MOST {
            waits.until.insert(server.into(), until);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waits {
    /// Drops waits that are over, unless that was done a moment ago.
    fn sweep(&mut self, now: Timestamp) {
        if self.swept.is_some_and(|swept| now.since(swept) < SWEPT_EVERY) {
            return;
        }
        self.until.retain(|_, until| *until > now);
        self.swept = Some(now);
        #[cfg(test)]
        {
            self.sweeps += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_is_remembered_until_its_time_and_within_bounds() {
        let clock = Clock::manual(Timestamp::EPOCH);
        let pacer = Pacer::new(clock.clone());
        let refusal = |after: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("retry-after", after.parse().unwrap());
            headers
        };
        pacer.heard("a", StatusCode::TOO_MANY_REQUESTS, &refusal("60"));
        pacer.heard("a", StatusCode::TOO_MANY_REQUESTS, &refusal("5"));
        assert_eq!(pacer.wait("a"), Span::from_secs(60));
        pacer.heard("b", StatusCode::TOO_MANY_REQUESTS, &refusal("999999999"));
        assert_eq!(pacer.wait("b"), LONGEST);
        pacer.heard("c", StatusCode::TOO_MANY_REQUESTS, &HeaderMap::new());
        assert_eq!(pacer.wait("c"), DEFAULT_WAIT);
        for n in 0..10 * MOST {
            pacer.heard(&n.to_string(), StatusCode::TOO_MANY_REQUESTS, &refusal("1"));
        }
        let counts = |waits: &Waits| (waits.until.len(), waits.sweeps);
        assert_eq!(counts(&pacer.lock()), (MOST, 1));
        clock.set(Timestamp::from_nanos(2_000_000_000));
        pacer.heard("late", StatusCode::TOO_MANY_REQUESTS, &refusal("1"));
        assert_eq!(pacer.wait("late"), Span::from_secs(1));
        assert_eq!(pacer.wait("a"), Span::from_secs(58));
        assert!(pacer.lock().until.len() < 10);
    }
}
