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
use crate::limiter::{Limiter, Want};
use crate::queue::Place;
use crate::receipt::{Receipt, Report};
use crate::verdict::Verdict;
use std::sync::OnceLock;
use std::time::Duration;
use tidegate_core::{Need, Outcome, Retry, Span, StateId, Timestamp};
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
        let verdict = self.wait(check).await?;
        self.count(&verdict);
        Ok(verdict)
    }

    async fn wait(&self, check: &Check<'_>) -> Result<Verdict, CheckError> {
        let deadline = self.now().after(check.max_wait);
        let mut place = self.inner.queues.draw();
        loop {
            let left = deadline.map_or(check.max_wait, |deadline| deadline.since(self.now()));
            let states = self.states(check);
            let behind = place.behind(&states);
            if !behind.is_empty() {
                if let Some(given_up) = self.wait_behind(check, &mut place, &behind, left).await? {
                    return Ok(given_up);
                }
                continue;
            }
            let verdict = self.decide(&check.waiting(left), Want::Undo).await?;
            match verdict.outcome {
                Outcome::Allow => return Ok(self.kept(verdict, check)),
                Outcome::Delay(delay) => {
                    drop(place); // its turn is promised; others may be promised theirs
                    return Ok(self.take_turn(verdict, check, delay).await);
                }
                Outcome::Deny(Retry::Never) => return Ok(verdict),
                Outcome::Deny(Retry::After(retry)) if retry > left => return Ok(verdict),
                Outcome::Deny(Retry::After(retry)) => {
                    if place.stand(&longest(&verdict, &states), most(&verdict)).is_err() {
                        return Ok(verdict);
                    }
                    sleep_or_called(&place, retry).await;
                }
            }
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
        Ok(Some(peek.refused(Span::from_millis(1))))
    }

    /// Waits for a turn that was promised; if the waiter leaves, the turn is given back.
    async fn take_turn(&self, verdict: Verdict, check: &Check<'_>, delay: Span) -> Verdict {
        let mut promise = Promise { limiter: self, receipt: verdict.receipt.clone() };
        tokio::time::sleep(Duration::from_nanos(delay.as_nanos())).await;
        promise.receipt = None;
        drop(promise);
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
                None => crate::limiter::now(self.check(check)),
            });
            waiter.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn now(&self) -> Timestamp {
        self.inner.clock.now().steady
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
