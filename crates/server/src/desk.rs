//! The desk: where every front has its requests decided.
//!
//! ```text
//!   front reads its protocol ──► desk asks the limiter ──► counts, logs, records and times the decision ──► front writes its protocol
//!                                      │ panic
//!                                      └─► the rules decide without the store; `allow` counts on this node, as `local` does
//! ```
//!
//! **A panic never lets a request pass for free.** It is a bug in tidegate, and a client may have found out how to cause it. So each rule
//! decides by its `on_store_error`, and a rule that says `allow` counts on this node. A take under a limit that the client named has no
//! rule. It fails with an error of its protocol. A call with descriptors is denied, because a proxy would let it pass after an error.

use crate::backend::Backend;
use crate::decision_logs::DecisionLogs;
use crate::metrics::{Metrics, Refused, Tally};
use crate::supervise::{Panicked, contained};
use crate::timers;
use http::{HeaderMap, HeaderValue};
use std::borrow::Cow;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use tidegate::{
    Check, CheckError, Cost, DecidedBy, Decision, DescriptorCall, DescriptorError,
    DescriptorVerdict, Limiter, NamedTake, Outcome, Retry, RuleLimit, Span, Verdict,
};
use tidegate_policy::printable;

/// Decides the requests of one protocol on one worker.
pub(crate) struct Desk<S> {
    pub(crate) limiter: Limiter<S>,
    protocol: &'static str,
    tally: Arc<Tally>,
    metrics: Arc<Metrics>,
    logs: DecisionLogs,
}

/// A take under a limit that the client named.
pub(crate) struct ClientTake<'t> {
    pub(crate) key: &'t str,
    pub(crate) limit: &'t RuleLimit,
    pub(crate) cost: Cost,
    /// How long the client waits for its turn.
    pub(crate) max_wait: Span,
}

/// Why a call with descriptors has no verdict.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoVerdict {
    #[error(transparent)]
    Descriptor(#[from] DescriptorError),
    #[error("an internal error")]
    Bug,
}

impl<S: Backend> Desk<S> {
    pub(crate) fn new(
        limiter: Limiter<S>,
        protocol: &'static str,
        metrics: Arc<Metrics>,
        logs: DecisionLogs,
    ) -> Self {
        let tally = metrics.tally(protocol);
        Self { limiter, protocol, tally, metrics, logs }
    }

    /// A desk for another protocol, with the same limiter and logs.
    pub(crate) fn for_protocol(&self, protocol: &'static str) -> Self {
        Self::new(self.limiter.clone(), protocol, Arc::clone(&self.metrics), self.logs.clone())
    }

    pub(crate) fn with_limiter(self, limiter: Limiter<S>) -> Self {
        Self { limiter, ..self }
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    // === requests ===

    /// Decides a request by the rules that apply to it.
    pub(crate) async fn check(&self, check: &Check<'_>) -> Result<Verdict, CheckError> {
        self.decided(check, self.limiter.check(check)).await
    }

    /// Decides a request without the store, because the time for its answer is over.
    pub(crate) async fn check_late(&self, check: &Check<'_>) -> Result<Verdict, CheckError> {
        self.decided(check, async { self.limiter.check_without_store(check) }).await
    }

    /// Takes `verdict` as the decision about a request, once it is there.
    pub(crate) async fn decided<E: From<CheckError>>(
        &self,
        check: &Check<'_>,
        verdict: impl Future<Output = Result<Verdict, E>>,
    ) -> Result<Verdict, E> {
        let began = timers::now();
        let verdict = match contained(pin!(verdict)).await {
            Ok(verdict) => verdict?,
            Err(Panicked) => self.check_after_panic(check)?,
        };
        self.tally.count(&verdict);
        self.logs.of_request(self.protocol, &verdict, check);
        self.tally.took(timers::since(began));
        Ok(verdict)
    }

    #[cold]
    fn check_after_panic(&self, check: &Check<'_>) -> Result<Verdict, CheckError> {
        self.metrics.panicked();
        tracing::error!("a decision met a bug in tidegate; the rules decided without the store");
        self.limiter.check_after_panic(check)
    }

    // === limits that clients name ===

    /// Decides a take under a limit that the client named.
    pub(crate) async fn take(&self, take: &ClientTake<'_>) -> Result<Verdict, CheckError> {
        let began = timers::now();
        let ClientTake { key, limit, cost, max_wait } = *take;
        let verdict = self.limiter.take(key, limit, cost, max_wait).await?;
        self.tally.count(&verdict);
        let decision = (verdict.outcome, verdict.decided_by);
        self.logs.of_take(self.protocol, key.as_bytes(), decision, cost);
        self.tally.took(timers::since(began));
        Ok(verdict)
    }

    /// Decides several takes, each by itself. Without a decision the list is empty.
    pub(crate) async fn take_named(&self, takes: &[NamedTake<'_>]) -> Vec<(Decision, DecidedBy)> {
        let began = timers::now();
        let decisions = self.limiter.take_named(takes).await.unwrap_or_default();
        for (take, (decision, by)) in takes.iter().zip(&decisions) {
            self.tally.count_bare(decision.outcome, *by);
            self.logs.of_take(self.protocol, take.key, (decision.outcome, *by), take.cost);
        }
        self.tally.took_each(timers::since(began), decisions.len());
        decisions
    }

    // === calls with descriptors ===

    /// Decides a call of Envoy.
    pub(crate) async fn check_descriptors(
        &self,
        call: &DescriptorCall<'_, '_>,
    ) -> Result<DescriptorVerdict, NoVerdict> {
        let began = timers::now();
        let answer = match contained(pin!(self.limiter.check_descriptors(call))).await {
            Ok(answer) => answer?,
            Err(Panicked) => {
                self.metrics.panicked();
                tracing::error!("a call met a bug in tidegate and was denied");
                return Err(NoVerdict::Bug);
            }
        };
        self.tally.count_descriptors(&answer.verdict);
        self.logs.of_call(self.protocol, &answer, call);
        self.tally.took(timers::since(began));
        Ok(answer)
    }

    /// Counts a call that cannot be decided, which its front denies.
    pub(crate) fn undecided(&self, why: &dyn fmt::Display) {
        tracing::warn!("a call cannot be decided and is denied: {}", printable(&why.to_string()));
        self.metrics.refused(Refused::Undecided);
        self.tally.count_bare(Outcome::Deny(Retry::Never), DecidedBy::Policy);
    }
}

/// The header fields that tell the upstream service what the rules say about a request that passes: the flags that rules set, the rules
/// whose limits it exceeds, and its priority class unless that is the usual one.
pub(crate) fn upstream_fields(
    verdict: &Verdict,
) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
    let mut over: Vec<&str> = verdict.exceeded().map(|limit| limit.rule).collect();
    over.dedup();
    let flags: Vec<&str> = verdict.flags().collect();
    let list = |values: Vec<&str>| (!values.is_empty()).then(|| Cow::Owned(values.join(", ")));
    let fields = [
        ("tidegate-flags", list(flags)),
        ("tidegate-over", list(over)),
        ("tidegate-priority", verdict.unusual_class().map(Cow::Borrowed)),
    ];
    fields.into_iter().filter_map(|(name, value)| Some((name, value?)))
}

/// Adds the fields of [`upstream_fields`].
pub(crate) fn tell_upstream(verdict: &Verdict, headers: &mut HeaderMap) {
    for (name, value) in upstream_fields(verdict) {
        // Names of rules, classes and flags are valid values.
        if let Ok(value) = HeaderValue::try_from(&*value) {
            headers.insert(name, value);
        }
    }
}
