//! Routes of the HTTP API, and the answers to single requests; lists are in `batch`, reports in `report`.

use super::routes::{HttpRoute, not_found};
use super::wire::{self, VerdictText, WireError};
use crate::backend::Backend;
use crate::bounds;
use crate::desk::Desk;
use crate::front;
use crate::health::Health;
use crate::metrics::{Metrics, Refused};
use crate::net::LongWorkQueue;
use crate::web::{Answer, BodyBound, Call, Hosts, JSON, WebHandler};
use http::{HeaderValue, StatusCode, header};
use std::rc::Rc;
use std::sync::Arc;
use tidegate::http::{HeaderStyle, status};
use tidegate::{CheckError, Limiter, Outcome, Retry, RuleLimit, StoreError, Verdict};

/// Answers requests to the HTTP API.
pub(crate) struct HttpHandler<S> {
    pub(super) desk: Desk<S>,
    /// The desk of forward auth.
    pub(super) auth: Desk<S>,
    /// The desk of `/json`: it decides by the policy, or by rule files of Envoy's reference service.
    pub(super) json: Desk<S>,
    pub(super) style: HeaderStyle,
    pub(super) health: Arc<Health>,
    /// The queue in which long work waits for its turn.
    pub(super) turns: Rc<LongWorkQueue>,
    /// The names of the listener.
    hosts: Hosts,
}

pub(crate) const OPENAPI: &str = include_str!("openapi.json");

impl<S: Backend> WebHandler for HttpHandler<S> {
    type Route = HttpRoute;

    /// This API has no tokens; only the admin API does.
    fn knows(&self, _: &Call<'_>) -> bool {
        false
    }

    /// Finds the endpoint, and how large the body may be.
    fn begin(&self, call: &Call<'_>) -> Result<(HttpRoute, BodyBound), Answer> {
        let found = HttpRoute::of(call.path);
        // The fields of forward auth are those of the client whose request is to be decided. It believes only proxies.
        if !matches!(found, Some(HttpRoute::Auth(_))) {
            self.hosts.check(call).map_err(|foreign| {
                self.metrics().refused(Refused::Foreign);
                self.hosts.refusal(foreign)
            })?;
        }
        let route = found.ok_or_else(|| not_found(call.path))?;
        if !route.allowed().split(", ").any(|method| method == call.method) {
            return Err(route.wrong_method());
        }
        if call.method == "POST" {
            check_json(call)?;
            if route == HttpRoute::Json {
                return Ok((route, BodyBound::bytes(bounds::BATCH_BODY)));
            }
            return Ok((route, BodyBound { one: bounds::BODY, batch: bounds::BATCH_BODY }));
        }
        Ok((route, BodyBound::bytes(bounds::BODY)))
    }

    async fn answer(&self, route: HttpRoute, call: &Call<'_>) -> Answer {
        match route {
            HttpRoute::Check => answered(self.check(call).await),
            HttpRoute::Peek => answered(self.peek(call).await),
            HttpRoute::Report => answered(self.report(call).await),
            HttpRoute::Take => answered(self.take(call).await),
            HttpRoute::Auth(profile) => self.forward_auth(call, profile).await,
            HttpRoute::Live => Answer::fixed(JSON, "{\"status\":\"live\"}\n"),
            HttpRoute::Ready => self.ready(),
            HttpRoute::OpenApi => Answer::fixed(JSON, OPENAPI),
            HttpRoute::Json => self.reference_json(call.body).await,
            HttpRoute::HealthCheck => self.reference_healthcheck(),
        }
    }

    fn metrics(&self) -> &Metrics {
        self.desk.metrics()
    }
}

impl<S: Backend> HttpHandler<S> {
    pub(crate) fn new(desk: Desk<S>, style: HeaderStyle, health: Arc<Health>) -> Self {
        Self {
            auth: desk.for_protocol("auth"),
            json: desk.for_protocol("json"),
            desk,
            style,
            health,
            turns: Rc::new(LongWorkQueue::new(S::IN_PROCESS)),
            hosts: Hosts::of_programs(&[]),
        }
    }

    /// The same handler under these names, besides private ones.
    pub(crate) fn called(self, names: &[String]) -> Self {
        Self { hosts: Hosts::of_programs(names), ..self }
    }

    /// The same handler, with its worker's queue for long work.
    pub(crate) fn taking(self, turns: &Rc<LongWorkQueue>) -> Self {
        Self { turns: Rc::clone(turns), ..self }
    }

    /// The same handler, with descriptors decided by this limiter.
    pub(crate) fn deciding_descriptors_by(self, descriptors: Limiter<S>) -> Self {
        Self { json: self.json.with_limiter(descriptors), ..self }
    }

    /// Whether clients should send requests here; also asks the store whether it runs out of memory.
    fn ready(&self) -> Answer {
        front::look_for_room(&self.desk.limiter, &self.health);
        front::ready(&self.health)
    }

    // === check and peek ===

    async fn check(&self, call: &Call<'_>) -> Result<Answer, WireError> {
        let Some(asked) = wire::read_one::<wire::Check<'_>>(call.body) else {
            // Boxed because it is large and rare: otherwise every connection would reserve memory for it.
            return Box::pin(self.check_list(call)).await;
        };
        let asked = asked?;
        let attributes = asked.attributes.attributes()?;
        let verdict = self.desk.check(&asked.check(&attributes)).await;
        Ok(self.answer_with(&verdict.map_err(|error| undecided(&error))?))
    }

    async fn peek(&self, call: &Call<'_>) -> Result<Answer, WireError> {
        let Some(asked) = wire::read_one::<wire::Check<'_>>(call.body) else {
            return Box::pin(self.peek_list(call)).await;
        };
        let asked = asked?;
        let attributes = asked.attributes.attributes()?;
        let peeked = self.desk.limiter.peek(&asked.check(&attributes)).await;
        Ok(self.answer_with(&peeked.map_err(|error| undecided(&error))?))
    }

    // === take ===

    async fn take(&self, call: &Call<'_>) -> Result<Answer, WireError> {
        let Some(asked) = wire::read_one::<wire::Take<'_>>(call.body) else {
            return Box::pin(self.take_list(call)).await;
        };
        let asked = asked?;
        let verdict = self.desk.take(&asked.take(&self.admitted(&asked)?)).await;
        Ok(self.answer_with(&verdict.map_err(|error| undecided(&error))?))
    }

    /// The limit that the caller defines, if the store has memory for another one.
    pub(super) fn admitted(&self, asked: &wire::Take<'_>) -> Result<RuleLimit, WireError> {
        let limit = asked.limit()?;
        self.desk.limiter.admit_limit(limit.limit()).map_err(|error| undecided(&error))?;
        Ok(limit)
    }

    // === answers ===

    fn answer_with(&self, verdict: &Verdict) -> Answer {
        let mut body = Vec::with_capacity(512);
        VerdictText::new(verdict, &self.desk.limiter).write(&mut body);
        body.push(b'\n');
        let answer = Answer::new(status(verdict), JSON, body);
        match verdict.outcome {
            Outcome::Deny(Retry::After(wait)) => {
                let seconds = wait.as_secs_ceil().max(1);
                answer.with(header::RETRY_AFTER, HeaderValue::from(seconds))
            }
            Outcome::Deny(Retry::Never) | Outcome::Allow | Outcome::Delay(_) => answer,
        }
    }
}

pub(super) fn undecided(error: &CheckError) -> WireError {
    let status = match error {
        CheckError::Store(StoreError::TooManyLimits) => StatusCode::SERVICE_UNAVAILABLE,
        CheckError::Store(_)
        | CheckError::TooManyLimits(_)
        | CheckError::NoRule(_)
        | CheckError::NoKey { .. }
        | CheckError::NoTimer => StatusCode::UNPROCESSABLE_ENTITY,
    };
    WireError::new(status, "", error.to_string())
}

fn answered(answer: Result<Answer, WireError>) -> Answer {
    answer.unwrap_or_else(|error| error.answer())
}

/// Refuses a body that is compressed or is not JSON.
fn check_json(call: &Call<'_>) -> Result<(), Answer> {
    let refuse = |detail| Err(Answer::problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    if call.headers.all("content-encoding").any(|coding| !coding.eq_ignore_ascii_case(b"identity"))
    {
        return refuse("compressed bodies are not supported; send it uncompressed");
    }
    if !call.is_json() {
        return refuse("send JSON with `content-type: application/json`");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision_logs::DecisionLogs;
    use crate::front::testing::Panicking;
    use crate::net::Reservation;
    use crate::web::{Headers, answer};
    use std::sync::atomic::{AtomicU64, Ordering};
    use tidegate::{Clock, Policy, Secret};
    use tidegate_core::Timestamp;

    /// A front whose rule allows this many requests an hour. One request in `every` causes a panic.
    fn front(
        on_store_error: &str,
        limit: u32,
        every: u64,
    ) -> (HttpHandler<Panicking>, Arc<Metrics>) {
        let policy = Policy::parse(format!(
            "{{ version: 1, rules: [{{ name: a, key: [ip], limits: [{limit}/h], on_store_error: {on_store_error} }}] }}"
        ));
        let clock = Clock::manual(Timestamp::from_nanos(1));
        let takes = AtomicU64::new(1);
        let store = Panicking::new(&clock, move |_| {
            takes.fetch_add(1, Ordering::Relaxed).is_multiple_of(every)
        });
        let limiter = Limiter::new(policy.unwrap(), store, Secret::new([1; 32]), clock).unwrap();
        let (metrics, health) = (Arc::new(Metrics::default()), Arc::new(Health::default()));
        let desk = Desk::new(limiter, "http", Arc::clone(&metrics), DecisionLogs::default());
        (HttpHandler::new(desk, HeaderStyle::default(), health), metrics)
    }

    async fn ask(front: &HttpHandler<Panicking>) -> (u16, String) {
        let json = httparse::Header { name: "content-type", value: b"application/json" };
        let call = Call {
            peer: [127, 0, 0, 1].into(),
            method: "POST",
            path: "/v1/check",
            query: None,
            headers: Headers::Lines(&[json]),
            body: b"{\"attributes\":{\"ip\":\"203.0.113.7\"}}",
            room: &Reservation::default(),
        };
        let (route, _) = front.begin(&call).ok().unwrap();
        let answer = answer(front, route, &call).await;
        (answer.status.as_u16(), String::from_utf8(answer.body.into_owned()).unwrap())
    }

    /// A bug that makes one request in a hundred panic must not affect the others: that request is decided as its rule's
    /// `on_store_error` says, the panic is counted, and the other requests are answered as always.
    #[tokio::test]
    async fn a_panic_affects_only_its_own_request() {
        for (on_store_error, status) in [("allow", 200), ("deny", 429), ("local", 200)] {
            let (front, metrics) = front(on_store_error, 1_000, 100);
            let mut answers: Vec<(u16, String)> = Vec::new();
            for _ in 1..=1_000 {
                answers.push(ask(&front).await);
            }
            for (number, (found, body)) in (1..).zip(&answers) {
                let met = number % 100 == 0;
                let by =
                    if met { "\"decided_by\":\"fallback\"" } else { "\"decided_by\":\"store\"" };
                assert_eq!(
                    *found,
                    if met { status } else { 200 },
                    "{on_store_error} {number}: {body}"
                );
                assert!(body.contains(by), "{on_store_error} {number}: {body}");
            }
            assert!(metrics.families().text().contains("tidegate_panics_total{} 10\n"));
        }
    }

    /// A client that knows how to cause a panic would be free of every limit whose rule says `on_store_error: allow`.
    #[tokio::test]
    async fn no_rule_lets_requests_that_cause_a_panic_pass_for_free() {
        for (on_store_error, passes) in [("allow", 3), ("local", 3), ("deny", 0)] {
            let (front, _) = front(on_store_error, 3, 1);
            let mut passed = 0;
            for _ in 0..10 {
                passed += usize::from(ask(&front).await.0 == 200);
            }
            assert_eq!(passed, passes, "{on_store_error}");
        }
    }
}
