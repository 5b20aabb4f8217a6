//! Batches: a body that is a list of requests. The whole list is parsed before any entry is counted. Then the entries are decided in order,
//! without waiting for the answers of those before them.
//!
//! ```text
//!   list ──► entries ask the store together ──┬─► answers, in order
//!                                             └─► one deadline for all: an entry without an answer is decided as its rules'
//!                                                 `on_store_error` says
//! ```
//!
//! A thousand entries take milliseconds, so every step waits for its turn (fair queueing, see [`LongWorkQueue`](crate::net::LongWorkQueue)).

use super::handler::{HttpHandler, undecided};
use super::json_list::JsonList;
use super::report::Reported;
use super::wire::{self, VerdictText, WireError};
use crate::backend::Backend;
use crate::bounds;
use crate::metrics::Metrics;
use crate::net::{OpenBatch, Together};
use crate::timers;
use crate::web::HeadError;
use crate::web::{Answer, Call, JSON};
use http::StatusCode;
use serde::Deserialize;
use tidegate::{Attributes, Check, CheckError, RuleLimit, Span, Verdict};
use tokio::time::Instant;

// Estimated time for the steps of an entry, in microseconds, rounded up. An entry that one rule applies to takes 1.5 in all;
// several rules, long paths and receipts take more.
/// Parsing, in addition to the time for its bytes.
const PARSE_US: u32 = 1;
/// Validation, which normalizes paths.
const VALIDATE_US: u32 = 1;
/// Deciding and writing the answer.
const DECIDE_US: u32 = 2;
/// Settling a receipt, which verifies a signature.
const SETTLE_US: u32 = 4;
/// Bytes that are parsed in a microsecond.
const BYTES_PER_US: usize = 256;

impl<S: Backend> HttpHandler<S> {
    pub(super) async fn check_list(&self, call: &Call<'_>) -> Result<Answer, WireError> {
        let deadline = &self.deadline();
        let mut batch = self.turns.batch().await;
        let asked: Vec<wire::Check<'_>> = read(call, &mut batch, self.desk.metrics()).await?;
        let attributes = attributes(&asked, &mut batch).await?;
        let checks: Vec<Check<'_>> = asked
            .iter()
            .zip(&attributes)
            .map(|(asked, attributes)| asked.check(attributes))
            .collect();
        let mut answers = Answers::new(checks.len());
        let mut done = |decided| answers.decided(&decided, self);
        let mut together = Together::new(&self.turns);
        for check in &checks {
            batch.step(DECIDE_US).await;
            together.ask(self.decide_by(check, deadline), &mut done).await;
        }
        together.finish(&mut done).await;
        Ok(answers.answer())
    }

    /// Decides an entry by the deadline of its list.
    async fn decide_by(
        &self,
        check: &Check<'_>,
        deadline: &ListDeadline,
    ) -> Result<Verdict, CheckError> {
        match deadline.left(check.timeout) {
            Some(left) => self.desk.check(&check.within(left)).await,
            None => self.desk.check_late(check).await,
        }
    }

    pub(super) async fn peek_list(&self, call: &Call<'_>) -> Result<Answer, WireError> {
        let deadline = &self.deadline();
        let mut batch = self.turns.batch().await;
        let asked: Vec<wire::Check<'_>> = read(call, &mut batch, self.desk.metrics()).await?;
        let attributes = attributes(&asked, &mut batch).await?;
        let mut answers = Answers::new(asked.len());
        let mut done = |decided| answers.decided(&decided, self);
        let mut together = Together::new(&self.turns);
        for (asked, attributes) in asked.iter().zip(&attributes) {
            batch.step(DECIDE_US).await;
            let peek = async move {
                let check = asked.check(attributes);
                let left = deadline.left(check.timeout).unwrap_or(Span::ZERO);
                self.desk.limiter.peek(&check.within(left)).await
            };
            together.ask(peek, &mut done).await;
        }
        together.finish(&mut done).await;
        Ok(answers.answer())
    }

    pub(super) async fn take_list(&self, call: &Call<'_>) -> Result<Answer, WireError> {
        let mut batch = self.turns.batch().await;
        let asked: Vec<wire::Take<'_>> = read(call, &mut batch, self.desk.metrics()).await?;
        let mut limits: Vec<RuleLimit> = Vec::with_capacity(asked.len());
        for (at, asked) in asked.iter().enumerate() {
            batch.step(VALIDATE_US).await;
            limits.push(self.admitted(asked).map_err(|error| error.within(at))?);
        }
        let mut answers = Answers::new(asked.len());
        let mut done = |decided| answers.decided(&decided, self);
        let mut together = Together::new(&self.turns);
        for (asked, limit) in asked.iter().zip(&limits) {
            batch.step(DECIDE_US).await;
            let take = async move { self.desk.take(&asked.take(limit)).await };
            together.ask(take, &mut done).await;
        }
        together.finish(&mut done).await;
        Ok(answers.answer())
    }

    pub(super) async fn report_list(&self, call: &Call<'_>) -> Result<Answer, WireError> {
        let deadline = &self.deadline();
        let mut batch = self.turns.batch().await;
        let asked: Vec<wire::Report<'_>> = read(call, &mut batch, self.desk.metrics()).await?;
        let mut answers = Answers::new(asked.len());
        let mut done = |reported: Reported| {
            answers.entry().extend_from_slice(reported.entry().to_string().as_bytes());
        };
        let mut together = Together::new(&self.turns);
        for asked in &asked {
            batch.step(SETTLE_US).await;
            // A report that was sent is waited for: to give up on it would leave open whether it was counted.
            let report = async move {
                match deadline.left(None) {
                    Some(_) => self.report_one(asked).await,
                    None => Reported::NOT_SENT,
                }
            };
            together.ask(report, &mut done).await;
        }
        together.finish(&mut done).await;
        Ok(answers.answer())
    }

    /// The deadline of a list that has just arrived.
    fn deadline(&self) -> ListDeadline {
        ListDeadline { began: timers::now(), store: self.desk.limiter.store().timeout() }
    }
}

/// Until when all entries of a list are answered. A store that is late must not be waited for again and again.
struct ListDeadline {
    began: Instant,
    /// How long a call waits for the store; `None` if it answers at once.
    store: Option<Span>,
}

impl ListDeadline {
    /// What is left of the time of an entry whose caller has this timeout; `None` if nothing is left.
    fn left(&self, timeout: Option<Span>) -> Option<Span> {
        let timeout = timeout.unwrap_or(Span::from_nanos(u64::MAX));
        let Some(store) = self.store else { return Some(timeout) };
        // The limiter passes four fifths of a caller's timeout on to the store.
        let quarter = store.as_nanos().checked_div(4).unwrap_or(0);
        let all = timeout.as_nanos().min(store.as_nanos().saturating_add(quarter));
        let passed = Span::from(timers::since(self.began)).as_nanos();
        Some(Span::from_nanos(all.saturating_sub(passed))).filter(|left| *left > Span::ZERO)
    }
}

/// Parses all entries of a list, and reserves memory for their answers.
async fn read<'b, T: Deserialize<'b>>(
    call: &Call<'b>,
    batch: &mut OpenBatch<'_>,
    metrics: &Metrics,
) -> Result<Vec<T>, WireError> {
    let mut list = JsonList::new(call.body);
    let mut all = Vec::new();
    batch.step(PARSE_US).await;
    while let Some((entry, bytes)) = list.next()? {
        if all.len() >= bounds::BATCH {
            let detail = format!("more than {} requests in a batch", bounds::BATCH);
            return Err(WireError::new(StatusCode::PAYLOAD_TOO_LARGE, "", detail));
        }
        all.push(entry);
        let micros = bytes.checked_div(BYTES_PER_US).and_then(|micros| u32::try_from(micros).ok());
        batch.step(micros.unwrap_or(u32::MAX).saturating_add(PARSE_US)).await;
    }
    // A decision that is counted must be answered, so memory for the answers is reserved before the first one. Other batches
    // wait for this one, so it does not wait for memory.
    if !call.room.grow(all.len().saturating_mul(bounds::ENTRY)) {
        let error = HeadError::NoRoom;
        metrics.refused(error.kind());
        return Err(WireError::new(StatusCode::SERVICE_UNAVAILABLE, "", error.to_string()));
    }
    Ok(all)
}

/// The attributes of every entry, or the first error.
async fn attributes<'a>(
    asked: &'a [wire::Check<'_>],
    batch: &mut OpenBatch<'_>,
) -> Result<Vec<Attributes<'a>>, WireError> {
    let mut all = Vec::with_capacity(asked.len());
    for (at, asked) in asked.iter().enumerate() {
        batch.step(VALIDATE_US).await;
        all.push(asked.attributes.attributes().map_err(|error| error.within(at))?);
    }
    Ok(all)
}

/// The answer to a list, while it is written.
struct Answers(Vec<u8>);

impl Answers {
    fn new(count: usize) -> Self {
        Self(Vec::with_capacity(count.saturating_mul(512)))
    }

    /// Writes an answer. An entry that could not be decided gets an error in its place, because the others were decided and
    /// counted.
    fn decided<S: Backend>(
        &mut self,
        decided: &Result<Verdict, CheckError>,
        handler: &HttpHandler<S>,
    ) {
        let body = self.entry();
        match decided {
            Ok(verdict) => VerdictText::new(verdict, &handler.desk.limiter).write(body),
            Err(error) => body.extend_from_slice(undecided(error).entry().as_bytes()),
        }
    }

    /// The buffer, ready for the next entry.
    fn entry(&mut self) -> &mut Vec<u8> {
        let Self(body) = self;
        body.push(if body.is_empty() { b'[' } else { b',' });
        body
    }

    fn answer(self) -> Answer {
        let Self(mut body) = self;
        if body.is_empty() {
            body.push(b'[');
        }
        body.extend_from_slice(b"]\n");
        Answer::new(StatusCode::OK, JSON, body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision_logs::DecisionLogs;
    use crate::desk::Desk;
    use crate::front::testing::Slow;
    use crate::health::Health;
    use crate::net::Reservation;
    use crate::web::{Headers, WebHandler as _, answer};
    use serde_json::{Value, json};
    use std::sync::Arc;
    use std::time::Duration;
    use tidegate::{Clock, Limiter, Policy, Secret};
    use tidegate_core::Timestamp;

    const ENTRIES: usize = bounds::BATCH;
    /// The store replies 15 ms late.
    const ROUND_TRIP: Duration = Duration::from_millis(15);

    fn front() -> HttpHandler<Slow> {
        let policy = "{ version: 1, rules: [{ name: a, key: [ip], limits: [{ rate: 100/h, algorithm: fixed_window }], on_store_error: deny }] }";
        let clock = Clock::manual(Timestamp::from_nanos(1));
        let store = Slow::new(&clock, ROUND_TRIP);
        let policy = Policy::parse(policy).unwrap();
        let limiter = Limiter::new(policy, store, Secret::new([1; 32]), clock).unwrap();
        let desk = Desk::new(limiter, "http", Arc::default(), DecisionLogs::default());
        HttpHandler::new(desk, Default::default(), Arc::new(Health::default()))
    }

    /// Sends a list, and returns the answer and how long it took, by a clock that stands still while anything can be done.
    async fn ask(front: &HttpHandler<Slow>, path: &str, list: &[Value]) -> (Vec<Value>, Duration) {
        let began = timers::now();
        let json = httparse::Header { name: "content-type", value: b"application/json" };
        let body = json!(list).to_string();
        let call = Call {
            peer: [127, 0, 0, 1].into(),
            method: "POST",
            path,
            query: None,
            headers: Headers::Lines(&[json]),
            body: body.as_bytes(),
            room: &Reservation::default(),
        };
        let (route, _) = front.begin(&call).ok().unwrap();
        let answer = answer(front, route, &call).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}");
        (serde_json::from_slice(&answer.body).unwrap(), timers::since(began))
    }

    fn count(answers: &[Value], field: &str, value: &str) -> usize {
        answers.iter().filter(|answer| answer[field] == value).count()
    }

    /// A list was decided 64 entries at a time, and each entry had a timeout of its own: 16 round trips for a caller that waits for one.
    #[tokio::test(start_paused = true)]
    async fn a_list_of_checks_has_one_deadline() {
        let check = json!({ "attributes": { "ip": "203.0.113.7" }, "timeout_ms": 20 });
        let (answers, took) = ask(&front(), "/v1/check", &vec![check; ENTRIES]).await;
        assert!(took <= Duration::from_millis(20), "{took:?}");
        // In order: the limit is used up by the first hundred.
        assert!(answers.iter().take(100).all(|answer| answer["allowed"] == true));
        assert!(answers.iter().skip(100).all(|answer| answer["allowed"] == false));
        // What was not answered by then is decided as the rule says.
        assert_eq!(count(&answers, "decided_by", "store"), bounds::ASKED_TOGETHER);
        assert_eq!(count(&answers, "decided_by", "fallback"), ENTRIES - bounds::ASKED_TOGETHER);
    }

    #[tokio::test(start_paused = true)]
    async fn the_entries_of_a_list_share_round_trips() {
        let front = front();
        let of = |ip: usize| json!({ "ip": format!("192.0.2.{}", ip % 250) });
        let entry = |number| json!({ "attributes": of(number), "receipt": true });
        let list: Vec<Value> = (0..ENTRIES).map(entry).collect();
        let (checked, took) = ask(&front, "/v1/check", &list).await;
        assert_eq!((count(&checked, "decided_by", "store"), took), (ENTRIES, 2 * ROUND_TRIP));
        let (peeked, took) = ask(&front, "/v1/peek", &list).await;
        assert_eq!((count(&peeked, "decided_by", "store"), took), (ENTRIES, 2 * ROUND_TRIP));
        let take = |number| json!({ "key": format!("k{number}"), "limit": 1, "per": "1h" });
        let list: Vec<Value> = (0..ENTRIES).map(take).collect();
        let (taken, took) = ask(&front, "/v1/take", &list).await;
        assert_eq!((count(&taken, "decided_by", "store"), took), (ENTRIES, 2 * ROUND_TRIP));
        let report = |answer: &Value| json!({ "receipt": answer["receipt"], "outcome": "success" });
        let list: Vec<Value> = checked.iter().map(report).collect();
        let (reported, took) = ask(&front, "/v1/report", &list).await;
        assert_eq!((count(&reported, "detail", "done"), took), (ENTRIES, 2 * ROUND_TRIP));
    }

    /// Several lists at the same time leave places for single requests, and none of them is refused because of the others.
    #[tokio::test(start_paused = true)]
    async fn lists_share_the_places_at_the_store() {
        let front = front();
        let check = json!({ "attributes": { "ip": "203.0.113.7" } });
        let list = vec![check; bounds::ASKED_TOGETHER / 2];
        let asked = futures_util::future::join_all((0..4).map(|_| ask(&front, "/v1/check", &list)));
        for (answers, took) in asked.await {
            assert_eq!(count(&answers, "decided_by", "store"), list.len());
            assert!(took <= 2 * ROUND_TRIP, "{took:?}");
        }
    }
}
