//! Batches: a body that is a list of requests. The whole list is parsed before any entry is counted, and then decided entry by
//! entry, in order.
//!
//! A thousand entries take milliseconds, so every step waits for its turn (fair queueing, see [`LongWorkQueue`](crate::net::LongWorkQueue)).

use super::handler::{HttpHandler, undecided};
use super::json_list::JsonList;
use super::wire::{self, VerdictText, WireError};
use crate::backend::Backend;
use crate::bounds;
use crate::metrics::Metrics;
use crate::net::OpenBatch;
use crate::web::HeadError;
use crate::web::{Answer, Call, JSON};
use futures_util::stream::{self, StreamExt as _};
use http::StatusCode;
use serde::Deserialize;
use tidegate::{Attributes, Check, CheckError, RuleLimit, Span, Verdict};

/// Entries that wait for the store concurrently.
const CONCURRENT: usize = 64;
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
        let mut batch = self.turns.batch().await;
        let asked: Vec<wire::Check<'_>> = read(call, &mut batch, &self.metrics).await?;
        let attributes = attributes(&asked, &mut batch).await?;
        let checks: Vec<Check<'_>> = asked
            .iter()
            .zip(&attributes)
            .map(|(asked, attributes)| asked.check(attributes))
            .collect();
        // The entries ask the store in order, without waiting for the answers of those before them.
        let decisions = stream::iter(checks.iter().map(|check| self.decide(check)));
        let mut decisions = decisions.buffered(CONCURRENT);
        let mut answers = Answers::new(checks.len());
        for check in &checks {
            batch.step(DECIDE_US).await;
            let Some(decided) = decisions.next().await else { break };
            self.tally_if_decided(&decided);
            if let Ok(verdict) = &decided {
                self.decisions.of_request("http", verdict, check);
            }
            answers.decided(&decided, self);
        }
        Ok(answers.answer())
    }

    pub(super) async fn peek_list(&self, call: &Call<'_>) -> Result<Answer, WireError> {
        let mut batch = self.turns.batch().await;
        let asked: Vec<wire::Check<'_>> = read(call, &mut batch, &self.metrics).await?;
        let attributes = attributes(&asked, &mut batch).await?;
        let mut answers = Answers::new(asked.len());
        for (asked, attributes) in asked.iter().zip(&attributes) {
            batch.step(DECIDE_US).await;
            answers.decided(&self.limiter.peek(&asked.check(attributes)).await, self);
        }
        Ok(answers.answer())
    }

    pub(super) async fn take_list(&self, call: &Call<'_>) -> Result<Answer, WireError> {
        let mut batch = self.turns.batch().await;
        let asked: Vec<wire::Take<'_>> = read(call, &mut batch, &self.metrics).await?;
        let mut limits: Vec<RuleLimit> = Vec::with_capacity(asked.len());
        for (at, asked) in asked.iter().enumerate() {
            batch.step(VALIDATE_US).await;
            limits.push(self.admitted(asked).map_err(|error| error.within(at))?);
        }
        let mut answers = Answers::new(asked.len());
        for (asked, limit) in asked.iter().zip(&limits) {
            batch.step(DECIDE_US).await;
            let wait = Span::from_millis(asked.max_wait_ms);
            let decided = self.limiter.take(&asked.key, limit, asked.cost.into(), wait).await;
            self.tally_if_decided(&decided);
            if let Ok(verdict) = &decided {
                let decision = (verdict.outcome, verdict.decided_by);
                self.decisions.of_take("http", asked.key.as_bytes(), decision, asked.cost.into());
            }
            answers.decided(&decided, self);
        }
        Ok(answers.answer())
    }

    pub(super) async fn report_list(&self, call: &Call<'_>) -> Result<Answer, WireError> {
        let mut batch = self.turns.batch().await;
        let asked: Vec<wire::Report<'_>> = read(call, &mut batch, &self.metrics).await?;
        let mut answers = Answers::new(asked.len());
        for asked in &asked {
            batch.step(SETTLE_US).await;
            let entry = self.report_one(asked).await.entry();
            answers.entry().extend_from_slice(entry.to_string().as_bytes());
        }
        Ok(answers.answer())
    }

    fn tally_if_decided(&self, decided: &Result<Verdict, CheckError>) {
        if let Ok(verdict) = decided {
            self.tally.count(verdict);
        }
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
            Ok(verdict) => VerdictText::new(verdict, &handler.limiter).write(body),
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
