//! The commands that ask the policy: `TG.CHECK`, `TG.PEEK`, `TG.REPORT`, `TG.RENEW` and `TG.RESET`; and `DEL`, which deletes what
//! `CL.THROTTLE` has counted.

use super::handler::RespHandler;
use super::reply::{self, Dialect};
use super::session::Session;
use crate::audit::{Actor, AuditEvent};
use crate::backend::Backend;
use crate::rulebook::Rulebook;
use serde_json::json;
use smallvec::SmallVec;
use std::sync::Arc;
use tidegate::{
    Attributes, Check, CheckError, Outcome, Receipt, Renewal, Report, ReportError, Settled, Span,
    Verdict,
};

impl<S: Backend> RespHandler<S> {
    pub(super) async fn check(&self, words: &[&[u8]], dialect: Dialect, out: &mut Vec<u8>) {
        let command = match CheckCommand::read(words) {
            Ok(command) => command,
            Err(error) => return reply::error(out, &error),
        };
        match self.desk.check(&command.check()).await {
            Ok(verdict) => self.write(&verdict, dialect, out),
            Err(error) => reply::error(out, &format!("ERR {error}")),
        }
    }

    /// Answers `TG.PEEK`: what `TG.CHECK` would answer, without counting the request.
    pub(super) async fn peek(&self, words: &[&[u8]], dialect: Dialect, out: &mut Vec<u8>) {
        let command = match CheckCommand::read(words) {
            Ok(command) => command,
            Err(error) => return reply::error(out, &error),
        };
        match self.desk.limiter.peek(&command.check()).await {
            Ok(verdict) => self.write(&verdict, dialect, out),
            Err(error) => reply::error(out, &format!("ERR {error}")),
        }
    }

    /// `[allowed, outcome, delay_ms, retry_after_ms (-1: never), remaining, reset_ms, rule, receipt|nil, priority, flags]`, and
    /// `lease_ms` if the request holds a permit.
    fn write(&self, verdict: &Verdict, dialect: Dialect, out: &mut Vec<u8>) {
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        // The reply has room for one limit: one that denies, or else the one with the least remaining.
        let tightest = verdict
            .limits()
            .min_by_key(|limit| (limit.decision.passes(), limit.decision.remaining));
        let resets = verdict.limits().filter_map(|limit| limit.decision.reset);
        let lease = verdict.receipt().and_then(Receipt::lease);
        reply::list(out, if lease.is_some() { 11 } else { 10 });
        reply::integer(out, i64::from(verdict.allowed()));
        reply::bulk(out, outcome(verdict.outcome));
        reply::integer(out, millis(verdict.delay()));
        reply::integer(out, verdict.retry_after().map_or(-1, millis));
        reply::integer(out, tightest.map_or(-1, |limit| whole(limit.decision.remaining)));
        reply::integer(out, resets.max().map_or(0, millis));
        match tightest {
            Some(limit) => reply::bulk(out, limit.rule.as_bytes()),
            None => reply::null(out, dialect),
        }
        match verdict.receipt() {
            Some(receipt) => reply::bulk(out, self.desk.limiter.sealed(receipt).as_bytes()),
            None => reply::null(out, dialect),
        }
        reply::bulk(out, verdict.class().name().as_bytes());
        let over = verdict.over.then_some("over");
        reply::list(out, verdict.flags().chain(over).count());
        verdict.flags().chain(over).for_each(|flag| reply::bulk(out, flag.as_bytes()));
        if let Some(lease) = lease {
            reply::integer(out, millis(lease));
        }
    }

    /// `TG.REPORT receipt success|failure|cancelled|cost`
    pub(super) async fn report(&self, words: &[&[u8]], out: &mut Vec<u8>) {
        let [receipt, outcome] = words else { return reply::arity(out, "tg.report") };
        let Some(report) = read_report(outcome) else {
            let usage = "ERR the outcome must be success, failure, cancelled or a cost";
            return reply::error(out, usage);
        };
        let settled = match self.desk.limiter.opened(&String::from_utf8_lossy(receipt)) {
            Ok(receipt) => self.desk.limiter.report(&receipt, report).await,
            Err(error) => Err(error),
        };
        match settled {
            Ok(Settled::Done) => reply::simple(out, "OK"),
            Ok(Settled::Already) => {
                reply::error(out, "CONFLICT this receipt has already been settled");
            }
            Ok(Settled::Late) => reply::error(out, "CONFLICT this receipt has expired"),
            Ok(Settled::Full) => reply::error(
                out,
                "BUSY the receipt was not settled: there is no memory to record that; try again later",
            ),
            Err(ReportError::Forged) => {
                reply::error(out, "ERR this is not a receipt of this deployment");
            }
            Err(ReportError::Store(error)) => reply::error(out, &format!("ERR {error}")),
        }
    }

    /// `TG.RENEW receipt`, answered with `[receipt, lease_ms]`
    pub(super) async fn renew(&self, words: &[&[u8]], out: &mut Vec<u8>) {
        let [receipt] = words else { return reply::arity(out, "tg.renew") };
        let renewal = match self.desk.limiter.opened(&String::from_utf8_lossy(receipt)) {
            Ok(receipt) => self.desk.limiter.renew(&receipt).await,
            Err(error) => Err(error),
        };
        match renewal {
            Ok(Renewal::Renewed(renewed)) => {
                reply::list(out, 2);
                reply::bulk(out, self.desk.limiter.sealed(&renewed).as_bytes());
                reply::integer(out, renewed.lease().map_or(0, millis));
            }
            Ok(Renewal::Already) => {
                reply::error(out, "CONFLICT this receipt has already been settled");
            }
            Ok(Renewal::Expired) => {
                reply::error(out, "CONFLICT the lease is over; the permit is not held any more");
            }
            Ok(Renewal::NoPermit) => {
                let text = "ERR this receipt has no permit; no concurrency limit applied";
                reply::error(out, text);
            }
            Ok(Renewal::Full) => reply::error(
                out,
                "BUSY the permit was not renewed: there is no memory for it; try again soon",
            ),
            Err(ReportError::Forged) => {
                reply::error(out, "ERR this is not a receipt of this deployment");
            }
            Err(ReportError::Store(error)) => reply::error(out, &format!("ERR {error}")),
        }
    }

    /// `TG.RESET rule attribute value …`
    pub(super) async fn reset(&self, words: &[&[u8]], session: &Session, out: &mut Vec<u8>) {
        let Some((rule, pairs)) = words.split_first() else {
            return reply::arity(out, "tg.reset");
        };
        let attributes = match attributes(pairs) {
            Ok(attributes) => attributes,
            Err(error) => return reply::error(out, &error),
        };
        let rule = String::from_utf8_lossy(rule);
        let found = self.desk.limiter.in_use(&rule, &attributes).await;
        // The audit log keeps the names of attributes and not their values, which may be secrets.
        let names: Vec<String> = attributes.iter().map(|(name, _)| name.to_owned()).collect();
        let details = |states| json!({ "rule": rule, "by": names, "states": states });
        let reset = self.desk.limiter.reset(&rule, &attributes);
        let done = self.reset_noted(session, found, details, reset).await;
        write_count(out, done);
    }

    /// `DEL key …` forgets what `CL.THROTTLE` has counted for the keys, and is answered with how many of them had a counter.
    pub(super) async fn delete(&self, words: &[&[u8]], session: &Session, out: &mut Vec<u8>) {
        if words.is_empty() {
            return reply::arity(out, "del");
        }
        let limit = self.limits.borrow_mut().any();
        let limit = match limit {
            Ok(limit) => limit,
            Err(error) => return reply::error(out, &error),
        };
        let found = self.desk.limiter.named_in_use(words, &limit.named).await;
        // The audit log keeps how many keys there were and not the keys, which may be secrets.
        let details = |states| json!({ "command": "DEL", "keys": words.len(), "states": states });
        let reset = self.desk.limiter.reset_named(words, &limit.named);
        let done = self.reset_noted(session, found, details, reset).await;
        write_count(out, done);
    }

    /// Resets the counters that were `found`, after a line in the audit log. Without the line nothing is reset. If there is nothing to
    /// reset, nothing is written: otherwise a client could fill the disk.
    async fn reset_noted(
        &self,
        session: &Session,
        found: Result<usize, CheckError>,
        details: impl FnOnce(usize) -> serde_json::Value,
        reset: impl Future<Output = Result<usize, CheckError>>,
    ) -> Result<usize, String> {
        let states = found.map_err(|error| error.to_string())?;
        if states == 0 {
            return Ok(0);
        }
        let details = details(states);
        let line = move |rulebook: &Rulebook<S>, actor: Actor<'_>| {
            let event = AuditEvent { actor, what: "reset", details: &details, reason: None };
            rulebook.note(event).map_err(|error| error.to_string())
        };
        self.on_disk(session, line).await?;
        match reset.await.map_err(|error| error.to_string()) {
            Ok(states) => Ok(states),
            Err(error) => {
                let why = error.clone();
                let line = move |rulebook: &Rulebook<S>, actor: Actor<'_>| {
                    rulebook.note_abandoned(actor, "reset", &why);
                    Ok(())
                };
                self.on_disk(session, line).await?;
                Err(error)
            }
        }
    }

    /// Writes to the audit log, on a thread that may wait for the disk.
    async fn on_disk(
        &self,
        session: &Session,
        write: impl FnOnce(&Rulebook<S>, Actor<'_>) -> Result<(), String> + Send + 'static,
    ) -> Result<(), String> {
        let (rulebook, peer) = (Arc::clone(&self.rulebook), session.peer);
        let who = session.user.clone().unwrap_or_else(|| "resp".to_owned());
        let written =
            tokio::task::spawn_blocking(move || write(&rulebook, Actor { who: &who, peer })).await;
        written.unwrap_or_else(|_| {
            tracing::error!("writing the audit log met a bug in tidegate");
            Err("internal error: the audit log was not written; nothing was reset".to_owned())
        })
    }
}

/// The reply to a reset: how many counters were forgotten.
fn write_count(out: &mut Vec<u8>, done: Result<usize, String>) {
    match done {
        Ok(states) => reply::integer(out, i64::try_from(states).unwrap_or(i64::MAX)),
        Err(error) => reply::error(out, &format!("ERR {error}")),
    }
}

/// Whole milliseconds, rounded up.
fn millis(span: Span) -> i64 {
    i64::try_from(span.as_millis_ceil()).unwrap_or(i64::MAX)
}

const fn outcome(outcome: Outcome) -> &'static [u8] {
    match outcome {
        Outcome::Allow => b"allow",
        Outcome::Delay(_) => b"delay",
        Outcome::Deny(_) => b"deny",
    }
}

fn read_report(outcome: &[u8]) -> Option<Report> {
    match outcome.to_ascii_lowercase().as_slice() {
        b"success" => Some(Report::Success),
        b"failure" => Some(Report::Failure),
        b"cancelled" => Some(Report::Cancelled),
        _ => number(outcome).map(|cost| Report::Cost(cost.into())),
    }
}

/// `cost [MAXWAIT ms] [RECEIPT] attribute value …`
struct CheckCommand<'b> {
    cost: u64,
    max_wait: Span,
    receipt: bool,
    attributes: Attributes<'b>,
}

impl<'b> CheckCommand<'b> {
    fn read(words: &[&'b [u8]]) -> Result<Self, String> {
        let usage =
            || "ERR usage: TG.CHECK cost [MAXWAIT ms] [RECEIPT] attribute value …".to_owned();
        let (cost, mut rest) = words.split_first().ok_or_else(usage)?;
        let cost = number(cost).ok_or_else(|| "ERR the cost must be a whole number".to_owned())?;
        let (mut max_wait, mut receipt) = (Span::ZERO, false);
        // Options in upper or lower case, as in Redis. An attribute with the name of an option must come after another
        // attribute.
        while let Some((option, others)) = rest.split_first() {
            rest = match (option.to_ascii_uppercase().as_slice(), others) {
                (b"MAXWAIT", [wait, others @ ..]) => {
                    let wait = number(wait)
                        .ok_or_else(|| "ERR MAXWAIT must be in whole milliseconds".to_owned())?;
                    max_wait = Span::from_millis(wait);
                    others
                }
                (b"RECEIPT", others) => {
                    receipt = true;
                    others
                }
                _ => break,
            };
        }
        Ok(Self { cost, max_wait, receipt, attributes: attributes(rest)? })
    }

    fn check(&self) -> Check<'_> {
        let check = Check::new(&self.attributes).cost(self.cost).waiting(self.max_wait);
        if self.receipt { check.with_receipt() } else { check }
    }
}

fn number(word: &[u8]) -> Option<u64> {
    str::from_utf8(word).ok()?.parse().ok()
}

/// Reads names and values in turn.
fn attributes<'b>(words: &[&'b [u8]]) -> Result<Attributes<'b>, String> {
    let mut attributes = Attributes::new();
    let mut names: SmallVec<[&[u8]; 8]> = SmallVec::new();
    for pair in words.chunks(2) {
        let [name, value] = pair else {
            return Err("ERR the last attribute has no value".to_owned());
        };
        if names.contains(name) {
            return Err(format!("ERR attribute `{}` is given twice", reply::quoted(name)));
        }
        names.push(name);
        let Ok(name) = str::from_utf8(name) else {
            return Err("ERR the name of an attribute is not valid UTF-8".to_owned());
        };
        // The value comes from the end client, which must not be able to turn a decision into an error: bytes that are not
        // valid UTF-8 become U+FFFD.
        let value = String::from_utf8_lossy(value);
        attributes.set_from_client(name, value).map_err(|error| format!("ERR {error}"))?;
    }
    Ok(attributes)
}
