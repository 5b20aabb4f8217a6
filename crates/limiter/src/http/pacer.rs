//! A client that remembers a refusal: it does not ask again before its time.
//!
//! ```text
//!   request ──► pacer: may I? ──► server ──► 429, Retry-After: 7 ──► pacer
//!   request ──► pacer: not for 7 s                                    └─ remembered for this server
//! ```

use super::parse::Heard;
use http::{HeaderMap, StatusCode};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_core::{Span, Timestamp};
use tidegate_store::Clock;

/// Remembers, for each server or whatever you limit by, until when not to ask it.
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
    /// By server: not before. Held for a look-up; never across a wait.
    until: Mutex<HashMap<Box<str>, Timestamp>>,
}

/// Servers that refuse at the same time; more than any client talks to.
const MOST: usize = 10_000;
/// A server that says "in a year" is asked again tomorrow.
const LONGEST: Span = Span::from_secs(86_400);
/// For a refusal that does not say until when.
const UNSAID: Span = Span::from_secs(1);

impl Pacer {
    /// A pacer that remembers nothing yet.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { clock, until: Mutex::default() }
    }

    /// How long not to ask this server.
    #[must_use]
    pub fn wait(&self, server: &str) -> Span {
        let until = self.lock().get(server).copied();
        until.map_or(Span::ZERO, |until| until.since(self.clock.now().steady))
    }

    /// Waits until this server may be asked.
    pub async fn ready(&self, server: &str) {
        loop {
            let wait = self.wait(server);
            if wait == Span::ZERO {
                return;
            }
            tokio::time::sleep(Duration::from_nanos(wait.as_nanos())).await;
        }
    }

    /// Remembers what a server answered; says what it was.
    pub fn heard(&self, server: &str, status: StatusCode, headers: &HeaderMap) -> Heard {
        let now = self.clock.now();
        let heard = Heard::of(status, headers, now.calendar);
        let wait = match heard.wait() {
            Span::ZERO if heard.refused => UNSAID,
            wait => wait.min(LONGEST),
        };
        if let Some(until) = now.steady.after(wait).filter(|_| wait > Span::ZERO) {
            self.remember(server, until, now.steady);
        }
        heard
    }

    fn remember(&self, server: &str, until: Timestamp, now: Timestamp) {
        let mut all = self.lock();
        if all.len() >= MOST {
            all.retain(|_, until| *until > now);
        }
        if let Some(known) = all.get_mut(server) {
            // The later of two words: an answer that was overtaken does not shorten a wait.
            *known = until.max(*known);
        } else if all.len() < MOST {
            all.insert(server.into(), until);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Timestamp>> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_remembered_until_its_time_and_within_bounds() {
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
        assert_eq!(pacer.wait("c"), UNSAID);
        for n in 0..2 * MOST {
            pacer.heard(&n.to_string(), StatusCode::TOO_MANY_REQUESTS, &refusal("1"));
        }
        assert_eq!(pacer.lock().len(), MOST);
        clock.set(Timestamp::from_nanos(2_000_000_000));
        pacer.heard("late", StatusCode::TOO_MANY_REQUESTS, &refusal("1"));
        assert_eq!(pacer.wait("late"), Span::from_secs(1));
        assert_eq!(pacer.wait("a"), Span::from_secs(58));
        assert!(pacer.lock().len() < 10);
    }
}
