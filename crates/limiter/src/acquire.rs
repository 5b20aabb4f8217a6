//! Waiting until a request may pass: first come, first served, for each key.
//!
//! ```text
//!   ask ──► allow ─────────────────────────────────► pass
//!    ▲  ──► delay d (leaky bucket) ── sleep d ─────► pass
//!    │  ──► deny, retry in r ── enter the queue, sleep r ──┐
//!    └─────────────────────────────────────────────────────┘
//! ```
//!
//! A request that gives up, because its time is over or its future was dropped, leaves the queue. If a leaky bucket had
//! promised it a turn, that turn is given back. Requests behind it keep the times that they were given, so the rate holds.
//!
//! A request that waits for a permit of a concurrency limit is woken when one is returned on this node. It also asks every
//! second, because another node may have returned one.

use crate::check::Check;
use crate::error::CheckError;
use crate::expected_wait::shortest_wait;
use crate::limiter::{DecideFor, Limiter, now};
use crate::queue::{WaitTargets, Waiter};
use crate::receipt::{Receipt, Report};
use crate::timers;
use crate::verdict::Verdict;
use std::sync::OnceLock;
use std::time::Duration;
use tidegate_core::{Algorithm, Need, Outcome, Retry, Span, StateId, Timestamp};
use tidegate_policy::OnLimit;
use tidegate_store::Store;
use tokio::runtime::Runtime;

/// How long [`Limiter::given_back`] waits.
const LONGEST_GIVE_BACK: Duration = Duration::from_secs(1);
/// How often a waiting request asks for a permit. Permits that are returned on this node wake it; this is for those of other
/// nodes.
const ASK_FOR_PERMIT_EVERY: Span = Span::from_secs(1);
/// How many requests may wait for one state, unless a rule sets `max_queue`.
const DEFAULT_QUEUE: usize = 10_000;

impl<S: Store + 'static> Limiter<S> {
    /// Waits until the request may pass, at most for the check's [`max_wait`](Check::waiting).
    ///
    /// The verdict is `Allow`, or `Deny` if the wait would be too long, if the queue is full, or if the cost exceeds what a
    /// limit can ever allow. Requests of the same key are served in the order of arrival. Dropping the future cancels the
    /// request: it leaves the queue, and nothing stays counted.
    ///
    /// Needs a tokio runtime with time enabled; threads without one use [`Limiter::acquire_blocking`].
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Limiter, Policy, Span};
    /// # use tidegate::{Clock, Now, Timestamp};
    /// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?.block_on(async {
    /// let start = tokio::time::Instant::now();
    /// # // A clock that follows the paused clock of tokio, so that the example does not really wait.
    /// # let clock = Clock::borrowed(move || {
    /// #     let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap();
    /// #     Now::at(Timestamp::from_nanos(nanos))
    /// # });
    /// let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [200/s] }] }")?;
    /// let limiter = Limiter::in_memory_with(policy, clock)?;
    /// let job = Attributes::new();
    /// for _ in 0..210 {
    ///     let verdict = limiter.acquire(&Check::new(&job).waiting(Span::from_secs(5))).await?;
    ///     assert!(verdict.allowed());
    /// }
    /// // The bucket held 200 tokens; each of the other 10 waited 5 ms for a new one.
    /// assert_eq!(start.elapsed().as_millis(), 50);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn acquire(&self, check: &Check<'_>) -> Result<Verdict, CheckError> {
        let verdict = self.wait(check, WaitMode::Always).await?;
        self.count(&verdict);
        Ok(verdict)
    }

    /// Decides a request like [`Limiter::check`], but waits where the rules ask for it: for a turn in a leaky bucket, and
    /// under rules with `on_limit: delay`. All other denials are returned immediately.
    ///
    /// Servers use this to hold the requests of their clients.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Limiter, Policy, Span};
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let policy = Policy::parse("
    /// version: 1
    /// rules: [{ name: a, key: [], limits: [1/h] }]")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// let request = Attributes::new();
    /// let check = Check::new(&request).waiting(Span::from_secs(7200));
    /// assert!(limiter.admit(&check).await?.allowed());
    /// // The rule has no `on_limit: delay`, so the second request is denied without waiting for an hour.
    /// assert!(!limiter.admit(&check).await?.allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn admit(&self, check: &Check<'_>) -> Result<Verdict, CheckError> {
        let verdict = self.wait(check, WaitMode::ByRule).await?;
        self.count(&verdict);
        Ok(verdict)
    }

    /// Fast path: while no request waits, ask once. Slow path: take part in the queues.
    async fn wait(&self, check: &Check<'_>, mode: WaitMode) -> Result<Verdict, CheckError> {
        if self.inner.queues.is_empty() {
            let mut verdict = self.decide(self.live(), check, DecideFor::Waiting).await?;
            if !mode.waits_after(&verdict, check) {
                self.await_turn(&mut verdict, check).await;
                return Ok(verdict);
            }
        }
        self.wait_in_queue(check, mode).await
    }

    /// [`Limiter::admit`] without `await`, for a store in this process and a request that no rule can make wait.
    ///
    /// Returns `None` for every other store or request; then nothing was counted, and the caller should use
    /// [`Limiter::admit`].
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
        Some(now(self.decide(live, check, DecideFor::Check)))
    }

    async fn wait_in_queue(
        &self,
        check: &Check<'_>,
        mode: WaitMode,
    ) -> Result<Verdict, CheckError> {
        let mut waiter = self.inner.queues.draw_ticket();
        let arrival = self.now();
        loop {
            // Looked up in every round, because the policy may have changed meanwhile.
            let WaitTargets { states, max_wait } = self.wait_targets(check);
            let left = less(max_wait, self.now().since(arrival));
            let behind = waiter.behind_at(&states);
            if !behind.is_empty() {
                let queues = (&states[..], &behind[..]);
                if let Some(denied) = self.wait_behind(check, &mut waiter, queues, left).await? {
                    return Ok(denied);
                }
                continue;
            }
            let (returns, was_queued) = (self.inner.queues.returns(), waiter.is_queued());
            let mut verdict =
                self.decide(self.live(), &check.waiting(left), DecideFor::Waiting).await?;
            let Some(retry) = mode.retry_within(&verdict, left) else {
                drop(waiter); // it passes, is promised a turn, or gives up: the next in the queue may ask
                self.await_turn(&mut verdict, check).await;
                return Ok(verdict);
            };
            if waiter.enqueue(&longest_wait(&verdict, &states), queue_capacity(&verdict)).is_err() {
                return Ok(verdict);
            }
            drop(verdict); // its memory is not needed while the request waits
            // A permit that was returned before this request was in the queue did not wake it.
            if was_queued || self.inner.queues.returns() == returns {
                sleep_or_woken(&waiter, retry).await;
            }
        }
    }

    /// Waits behind older requests until it may be this one's turn. Returns a denial if the queue is full, no time is left, or
    /// those ahead need all of it.
    async fn wait_behind(
        &self,
        check: &Check<'_>,
        waiter: &mut Waiter<'_>,
        (states, behind): (&[StateId], &[StateId]),
        left: Span,
    ) -> Result<Option<Verdict>, CheckError> {
        let peek = self.peek(check).await?;
        let denied = enqueue_behind(peek, waiter, (states, behind), left);
        if denied.is_none() {
            sleep_or_woken(waiter, left).await;
        }
        Ok(denied)
    }

    /// Sleeps until the promised turn, if the verdict is a delay. If the future is dropped meanwhile, the turn is given back.
    async fn await_turn(&self, verdict: &mut Verdict, check: &Check<'_>) {
        if let Outcome::Delay(delay) = verdict.outcome {
            let mut promise = PromisedTurn { limiter: self, receipt: verdict.receipt.clone() };
            let at = timers::after(delay);
            match verdict.receipt().and_then(|taken| self.inner.turns.promised(taken, at)) {
                Some(turn) => turn.come().await,
                None => timers::sleep_until(at).await,
            }
            promise.receipt = None;
            verdict.outcome = Outcome::Allow; // the delay is over; the caller must not wait again
        }
        drop_unwanted_receipt(verdict, check);
    }

    /// Waits until the turns of requests that stopped waiting are given back, for at most one second.
    ///
    /// Dropping the future of [`Limiter::admit`] or [`Limiter::acquire`] gives a promised turn back in the background. A
    /// process that ends should wait for that.
    ///
    /// ```
    /// use tidegate::{Limiter, Policy};
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/h] }] }")?;
    /// Limiter::in_memory(policy)?.given_back().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn given_back(&self) {
        self.inner.give_backs.none_within(LONGEST_GIVE_BACK).await;
    }

    /// [`Limiter::acquire`] for threads: blocks the calling thread until the request may pass.
    ///
    /// It may be called anywhere, also from a thread that runs a tokio runtime.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Limiter, Policy, Span};
    /// let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/ms] }] }")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// let job = Attributes::new();
    /// for _ in 0..5 {
    ///     let check = Check::new(&job).waiting(Span::from_secs(3600));
    ///     assert!(limiter.acquire_blocking(&check)?.allowed());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn acquire_blocking(&self, check: &Check<'_>) -> Result<Verdict, CheckError> {
        // A new thread may block on the runtime. The calling thread may not, if it is a worker of another runtime.
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

/// Which denied requests wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WaitMode {
    /// Every denied request waits.
    Always,
    /// A denied request waits if only rules with `on_limit: delay` deny it.
    ByRule,
}

impl WaitMode {
    /// Whether the request waits after this verdict.
    fn waits_after(self, verdict: &Verdict, check: &Check<'_>) -> bool {
        matches!(verdict.outcome, Outcome::Deny(Retry::After(_)))
            && check.max_wait > Span::ZERO
            && self.waits_for_all_denials(verdict)
    }

    /// When to ask again, if waiting can help within the time that is left.
    fn retry_within(self, verdict: &Verdict, left: Span) -> Option<Span> {
        let Outcome::Deny(Retry::After(retry)) = verdict.outcome else { return None };
        let retry = permit_retry(verdict, left).unwrap_or(retry);
        let helps = retry <= left
            && retry > Span::ZERO
            && self.waits_for_all_denials(verdict)
            && !drains_too_slowly(verdict, left);
        helps.then_some(retry)
    }

    fn waits_for_all_denials(self, verdict: &Verdict) -> bool {
        let refusing =
            verdict.entries.iter().filter(|e| e.need == Need::Required && !e.decision.passes());
        let mut rules = refusing.filter_map(|entry| verdict.live.policy.rules().get(entry.rule));
        self == Self::Always || rules.all(|rule| matches!(rule.on_limit(), OnLimit::Delay { .. }))
    }
}

/// The runtime whose timers wake blocked threads; `None` if the system cannot start its thread.
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

/// A turn that a leaky bucket promised. Dropping it gives the turn back, unless the receipt was removed before.
struct PromisedTurn<'l, S: Store + 'static> {
    limiter: &'l Limiter<S>,
    receipt: Option<Box<Receipt>>,
}

impl<S: Store + 'static> Drop for PromisedTurn<'_, S> {
    fn drop(&mut self) {
        let Some(receipt) = self.receipt.take() else { return };
        let limiter = self.limiter.clone();
        let underway = limiter.inner.give_backs.start();
        // The request was sleeping on tokio's timer, so there is a runtime.
        if let Ok(handle) = tokio::runtime::Handle::try_current() {
            handle.spawn(async move {
                // If the store does not answer, the turn stays taken: the error is on the strict side.
                let _ = limiter.report(&receipt, Report::Cancelled).await;
                drop(underway);
            });
        }
    }
}

/// Whether a leaky bucket with a full queue denies the request, and will not have drained before the time is over: then
/// waiting does not help.
fn drains_too_slowly(verdict: &Verdict, left: Span) -> bool {
    verdict.refusing().any(|limit| {
        matches!(limit.limit.algorithm(), Algorithm::LeakyBucket { .. })
            && limit.decision.reset.is_none_or(|reset| reset > left)
    })
}

/// When to ask again for a permit: within a second, because another node may return one at any moment, and not before the
/// limits that deny for another reason let the request pass. `None` if no concurrency limit denies.
fn permit_retry(verdict: &Verdict, left: Span) -> Option<Span> {
    verdict.refusing().find(|limit| limit.limit.lease().is_some())?;
    let others = verdict.refusing().filter(|limit| limit.limit.lease().is_none());
    let others = others.map(|limit| match limit.decision.outcome {
        Outcome::Deny(Retry::After(retry)) => retry,
        Outcome::Deny(Retry::Never) | Outcome::Allow | Outcome::Delay(_) => Span::ZERO,
    });
    Some(others.max().unwrap_or(Span::ZERO).max(ASK_FOR_PERMIT_EVERY.min(left)))
}

/// The rest of a span.
const fn less(span: Span, passed: Span) -> Span {
    Span::from_nanos(span.as_nanos().saturating_sub(passed.as_nanos()))
}

/// Sleeps until the time is over, or until the queue wakes the waiter.
async fn sleep_or_woken(waiter: &Waiter<'_>, span: Span) {
    let time = timers::sleep(span);
    tokio::select! {
        () = time => {}
        () = waiter.woken() => {}
    }
}

/// Enters the queues of the states where older requests wait. Returns the denial if one of them is full, no time is left, or
/// those ahead need all of it.
fn enqueue_behind(
    peek: Verdict,
    waiter: &mut Waiter<'_>,
    (states, behind): (&[StateId], &[StateId]),
    left: Span,
) -> Option<Verdict> {
    let ahead = waiter.ahead_at(states);
    let wait = shortest_wait(&peek, |index| ahead.get(index).copied().unwrap_or(0));
    let may_help = wait <= left && left > Span::ZERO;
    if may_help && waiter.enqueue(behind, queue_capacity(&peek)).is_ok() {
        return None;
    }
    Some(peek.refused_behind_others(wait))
}

/// Drops the receipt unless it has permits, the caller asked for one, or a rule counts outcomes.
fn drop_unwanted_receipt(verdict: &mut Verdict, check: &Check<'_>) {
    let is_wanted = verdict.counts_outcomes() || check.receipt;
    let has_permits = |receipt: &Receipt| receipt.permits().next().is_some();
    verdict.receipt = verdict.receipt.take().filter(|receipt| is_wanted || has_permits(receipt));
}

/// The states that make the request wait longest. It enters only their queues: at the other states it would pass sooner, and
/// requests that wait there need not wait for this one.
fn longest_wait(verdict: &Verdict, states: &[StateId]) -> Vec<StateId> {
    let required = verdict.entries.iter().filter(|entry| entry.need == Need::Required);
    let longest =
        required.zip(states).filter(|(entry, _)| entry.decision.outcome == verdict.outcome);
    longest.map(|(_, state)| *state).collect()
}

/// How many requests may wait in one queue: the smallest `max_queue` of the rules that set it.
fn queue_capacity(verdict: &Verdict) -> usize {
    let rules =
        verdict.entries.iter().filter_map(|entry| verdict.live.policy.rules().get(entry.rule));
    let queues = rules.filter_map(|rule| match rule.on_limit() {
        OnLimit::Delay { max_queue, .. } => Some(*max_queue),
        OnLimit::Reject | OnLimit::Deprioritize(_) | OnLimit::Flag(_) => None,
    });
    queues.min().unwrap_or(DEFAULT_QUEUE)
}
