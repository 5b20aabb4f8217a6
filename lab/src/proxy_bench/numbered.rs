//! A load client whose requests have numbers, and which remembers when each was sent and how it was answered.

#![expect(clippy::disallowed_methods, reason = "a load generator measures time")]

use crate::http_bench::load::AnswerReader;
use crate::rig::drive::LoadClient;
use crate::rig::template::Template;
use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// A request and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exchange {
    /// Requests are numbered in the order in which they are sent.
    pub(crate) number: u32,
    pub(crate) sent: Instant,
    pub(crate) status: u16,
}

/// The exchanges of all connections, in the order of the answers.
#[derive(Clone, Default)]
pub(crate) struct ExchangeLog {
    next: Arc<AtomicU32>,
    exchanges: Arc<Mutex<Vec<Exchange>>>,
}

impl ExchangeLog {
    /// A client for one connection. Each `#` in the request becomes a digit of its number.
    pub(crate) fn client(&self, request: &Template) -> NumberedClient {
        let (request, log) = (request.clone(), self.clone());
        NumberedClient { request, outstanding: None, answers: AnswerReader::default(), log }
    }

    /// How many requests were sent.
    pub(crate) fn sent(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    /// What was remembered, which is then forgotten here.
    pub(crate) fn take(&self) -> Vec<Exchange> {
        mem::take(&mut *self.exchanges.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Sends numbered requests on one connection. It accepts every status: other statuses than 2xx count as refused.
pub(crate) struct NumberedClient {
    request: Template,
    outstanding: Option<(u32, Instant)>,
    answers: AnswerReader,
    log: ExchangeLog,
}

impl LoadClient for NumberedClient {
    fn request(&mut self) -> &[u8] {
        // Relaxed: the generator has one thread.
        let number = self.log.next.fetch_add(1, Ordering::Relaxed);
        self.outstanding = Some((number, Instant::now()));
        self.request.of(|| number)
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<Option<(u64, u64)>, String> {
        let Some(status) = self.answers.receive(bytes)? else { return Ok(None) };
        let (number, sent) = self.outstanding.take().ok_or("an answer without a request")?;
        let mut exchanges = self.log.exchanges.lock().unwrap_or_else(PoisonError::into_inner);
        exchanges.push(Exchange { number, sent, status });
        let passed = (200..300).contains(&status);
        Ok(Some((u64::from(passed), u64::from(!passed))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http_bench::wire::get;

    #[test]
    fn requests_are_numbered_over_all_connections_and_every_status_is_remembered() {
        let log = ExchangeLog::default();
        let [mut one, mut other] = [(); 2].map(|()| log.client(&get("/##")));
        assert!(one.request().starts_with(b"GET /00 "));
        assert!(other.request().starts_with(b"GET /01 "));
        let answer = |status| format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(other.receive(answer(504).as_bytes()), Ok(Some((0, 1))));
        assert_eq!(one.receive(answer(200).as_bytes()), Ok(Some((1, 0))));
        assert!(one.receive(answer(200).as_bytes()).is_err());
        let seen: Vec<(u32, u16)> = log.take().iter().map(|e| (e.number, e.status)).collect();
        assert_eq!((seen, log.sent()), (vec![(1, 504), (0, 200)], 2));
    }
}
