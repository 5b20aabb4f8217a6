//! Waiting for a turn: first come, first served, for each key.
//!
//! ```text
//!   ask ──► allow ─────────────────────────────► go
//!    ▲  ──► delay d (a leaky bucket) ── sleep ──► go
//!    │  ──► deny, retry in r ── stand in line, sleep r ──┐
//!    └───────────────────────────────────────────────────┘
//! ```
//!
//! Whoever gives up, by its deadline or because its task was dropped, leaves the line and gives back a turn
//! that it had been promised. Those behind it do not move up in time, so the rate holds.

use crate::check::Check;
use crate::error::CheckError;
use crate::limiter::{Limiter, Want, now};
use crate::queue::Place;
use crate::receipt::{Receipt, Report};
use crate::verdict::Verdict;
use std::sync::OnceLock;
use std::time::Duration;
use tidegate_core::{Algorithm, Need, Outcome, Retry, Span, StateId, Timestamp};
use tidegate_policy::OnLimit;
use tidegate_store::Store;
use tokio::runtime::Runtime;

/// How many may wait for one state when no rule says otherwise.
const USUAL_QUEUE: usize = 10_000;

impl<S: Store + 'static> Limiter<S> {
    /// Waits until the request may pass, for at most the check's `max_wait`, and answers then: `allow`, or
    /// `deny` when it would take too long, when too many wait already, or when it can never pass.
    ///
    /// Served in the order of arrival, for each key. Dropping the future gives everything back.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Limiter, Policy, Span};
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [200/s] }] }")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// let nobody = Attributes::new();
    /// for _ in 0..210 { // the bucket of 200, and ten that wait 5 ms each
    ///     let verdict = limiter.acquire(&Check::new(&nobody).waiting(Span::from_secs(5))).await?;
    ///     assert!(verdict.allowed());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn acquire(&self, check: &Check<'_>) -> Result<Verdict, CheckError> {
        let verdict = self.wait(check, Waits::Always).await?;
        self.count(&verdict);
        Ok(verdict)
    }

    /// Asks, and waits where the rules want requests to wait: for the turn that a leaky bucket gives, and
    /// under rules with `on_limit: delay`. All others are refused at once. This is what a server does that
    /// holds its clients' requests.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Limiter, Policy, Span};
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let policy = Policy::parse("
    /// version: 1
    /// rules: [{ name: a, key: [], limits: [1/h] }]")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// let nobody = Attributes::new();
    /// let check = Check::new(&nobody).waiting(Span::from_secs(7200));
    /// assert!(limiter.admit(&check).await?.allowed());
    /// assert!(!limiter.admit(&check).await?.allowed()); // the rule rejects, so nobody waits an hour
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn admit(&self, check: &Check<'_>) -> Result<Verdict, CheckError> {
        let verdict = self.wait(check, Waits::AsRulesSay).await?;
        self.count(&verdict);
        Ok(verdict)
    }

    /// Most requests wait for nobody, and nobody for them: they are asked once. The others line up.
    async fn wait(&self, check: &Check<'_>, waits: Waits) -> Result<Verdict, CheckError> {
        if self.inner.queues.is_empty() {
            let verdict = self.decide(self.live(), check, Want::Undo).await?;
            if !waits.out(&verdict, check) {
                return Ok(self.go(verdict, check).await);
            }
        }
        self.line_up(check, waits).await
    }

    /// [`Limiter::admit`] without `await`, for a store in this process and a request that no rule can make wait. Answers
    /// `None` for every other store and request, and then nothing was taken.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Limiter, Policy};
    /// let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/h] }] }")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// let request = Attributes::new();
    /// let verdict = limiter.try_admit(&Check::new(&request));
    /// assert!(verdict.unwrap()?.allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_admit(&self, check: &Check<'_>) -> Option<Result<Verdict, CheckError>> {
        if !S::IN_PROCESS || !self.inner.queues.is_empty() {
            return None;
        }
        let live = self.live();
        if live.delays && check.max_wait > Span::ZERO {
            return None;
        }
        Some(now(self.decide(live, check, Want::Answer)))
    }

    async fn line_up(&self, check: &Check<'_>, waits: Waits) -> Result<Verdict, CheckError> {
        let mut place = self.inner.queues.draw();
        let arrival = self.now();
        loop {
            // Looked up in every round: the policy may have changed meanwhile.
            let Turns { states, max_wait } = self.turns(check);
            let left = less(check.max_wait.min(max_wait), self.now().since(arrival));
            let behind = place.behind(&states);
            if !behind.is_empty() {
                if let Some(given_up) = self.wait_behind(check, &mut place, &behind, left).await? {
                    return Ok(given_up);
                }
                continue;
            }
            let verdict = self.decide(self.live(), &check.waiting(left), Want::Undo).await?;
            let retry = match verdict.outcome {
                Outcome::Deny(Retry::After(retry))
                    if retry <= left
                        && waits.for_all_that_refuse(&verdict)
                        && !leaks_too_slowly(&verdict, left) =>
                {
                    retry
                }
                Outcome::Allow | Outcome::Delay(_) | Outcome::Deny(_) => {
                    drop(place); // its turn is here or promised; others may have theirs
                    return Ok(self.go(verdict, check).await);
                }
            };
            if place.stand(&longest(&verdict, &states), most(&verdict)).is_err() {
                return Ok(verdict);
            }
            sleep_or_called(&place, retry).await;
        }
    }

    /// Stands behind others until it may be its turn; answers a refusal when it cannot.
    async fn wait_behind(
        &self,
        check: &Check<'_>,
        place: &mut Place<'_>,
        states: &[StateId],
        left: Span,
    ) -> Result<Option<Verdict>, CheckError> {
        let peek = self.peek(check).await?;
        if place.stand(states, most(&peek)).is_ok() && left > Span::ZERO {
            sleep_or_called(place, left).await;
            return Ok(None);
        }
        Ok(Some(peek.refused_behind_others()))
    }

    /// Waits for a turn if one was promised; if the waiter leaves meanwhile, the turn is given back.
    async fn go(&self, mut verdict: Verdict, check: &Check<'_>) -> Verdict {
        if let Outcome::Delay(delay) = verdict.outcome {
            let mut promise = Promise { limiter: self, receipt: verdict.receipt.clone() };
            tokio::time::sleep(Duration::from_nanos(delay.as_nanos())).await;
            promise.receipt = None;
            verdict.outcome = Outcome::Allow; // it has waited; nobody should wait again
        }
        self.kept(verdict, check)
    }

    /// A verdict with its receipt only if somebody asked for it.
    fn kept(&self, mut verdict: Verdict, check: &Check<'_>) -> Verdict {
        let counts = verdict.entries.iter().any(|entry| {
            let rule = verdict.live.policy.rules().get(entry.rule);
            rule.is_some_and(|rule| rule.count() != tidegate_policy::Count::All)
        });
        verdict.receipt = verdict.receipt.filter(|_| counts || check.receipt);
        verdict
    }

    /// [`Limiter::acquire`] for threads: blocks this one until the request may pass.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Limiter, Policy, Span};
    /// let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/ms] }] }")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// let nobody = Attributes::new();
    /// for _ in 0..5 {
    ///     let check = Check::new(&nobody).waiting(Span::from_secs(5));
    ///     assert!(limiter.acquire_blocking(&check)?.allowed());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn acquire_blocking(&self, check: &Check<'_>) -> Result<Verdict, CheckError> {
        // Scoped threads may block on a runtime wherever they are; this one may be a worker of another.
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| match runtime() {
                Some(runtime) => runtime.block_on(self.acquire(check)),
                None => Err(CheckError::NoTimer),
            });
            waiter.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn now(&self) -> Timestamp {
        self.inner.clock.now().steady
    }
}

/// When a refused request waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    Always,
    AsRulesSay,
}

/// What a request may have to wait for.
pub(crate) struct Turns {
    /// The states that can refuse it.
    pub(crate) states: Vec<StateId>,
    /// The longest wait that its rules allow.
    pub(crate) max_wait: Span,
}

impl Waits {
    /// Whether a refusal is to be waited out.
    fn out(self, verdict: &Verdict, check: &Check<'_>) -> bool {
        matches!(verdict.outcome, Outcome::Deny(Retry::After(_)))
            && check.max_wait > Span::ZERO
            && self.for_all_that_refuse(verdict)
    }

    /// Whether a refusal is waited out: always, or if every rule that refuses says so.
    fn for_all_that_refuse(self, verdict: &Verdict) -> bool {
        let refusing =
            verdict.entries.iter().filter(|e| e.need == Need::Required && !e.decision.passes());
        let mut rules = refusing.filter_map(|entry| verdict.live.policy.rules().get(entry.rule));
        self == Self::Always || rules.all(|rule| matches!(rule.on_limit(), OnLimit::Delay { .. }))
    }
}

/// The timers of threads that wait; `None` on a machine that has no room for one.
fn runtime() -> Option<&'static Runtime> {
    static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();
    let build = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tidegate-timer")
            .enable_time()
            .build()
            .ok()
    };
    RUNTIME.get_or_init(build).as_ref()
}

/// A promised turn, given back unless it was taken.
struct Promise<'l, S: Store + 'static> {
    limiter: &'l Limiter<S>,
    receipt: Option<Receipt>,
}

impl<S: Store + 'static> Drop for Promise<'_, S> {
    fn drop(&mut self) {
        let Some(receipt) = self.receipt.take() else { return };
        let limiter = self.limiter.clone();
        // Outside of a runtime nobody could have been waiting.
        if let Ok(handle) = tokio::runtime::Handle::try_current() {
            handle.spawn(async move {
                // A store that is gone keeps the turn: too little is given back, never too much.
                let _ = limiter.report(&receipt, Report::Cancelled).await;
            });
        }
    }
}

/// Whether a leaky bucket refuses what no waiting helps: its queue drains as slowly as patience runs out.
fn leaks_too_slowly(verdict: &Verdict, left: Span) -> bool {
    verdict.refusing().any(|limit| {
        matches!(limit.limit.algorithm(), Algorithm::LeakyBucket { .. })
            && limit.decision.reset.is_none_or(|reset| reset > left)
    })
}

/// What is left of a span.
const fn less(span: Span, passed: Span) -> Span {
    Span::from_nanos(span.as_nanos().saturating_sub(passed.as_nanos()))
}

/// Until its time has come, or somebody before it left.
async fn sleep_or_called(place: &Place<'_>, span: Span) {
    let time = tokio::time::sleep(Duration::from_nanos(span.as_nanos()));
    tokio::select! {
        () = time => {}
        () = place.called().notified() => {}
    }
}

/// The states that keep it waiting longest. It does not stand where it would be let pass sooner: those who
/// wait there need not wait for what it waits for.
fn longest(verdict: &Verdict, states: &[StateId]) -> Vec<StateId> {
    let required = verdict.entries.iter().filter(|entry| entry.need == Need::Required);
    let longest =
        required.zip(states).filter(|(entry, _)| entry.decision.outcome == verdict.outcome);
    longest.map(|(_, state)| *state).collect()
}

/// How many may wait in one line, by the strictest rule that has an opinion.
fn most(verdict: &Verdict) -> usize {
    let rules =
        verdict.entries.iter().filter_map(|entry| verdict.live.policy.rules().get(entry.rule));
    let queues = rules.filter_map(|rule| match rule.on_limit() {
        OnLimit::Delay { max_queue, .. } => Some(*max_queue),
        OnLimit::Reject | OnLimit::Deprioritize | OnLimit::Flag(_) => None,
    });
    queues.min().unwrap_or(USUAL_QUEUE)
}
