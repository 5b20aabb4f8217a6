//! A permit: the right of one request to be in flight under concurrency limits. It is returned when it is dropped.
//!
//! ```text
//!   hold ──► Held(receipts) ── every third of the lease: Renewing ──► Held(new receipts) ── drop ──► Over: given back
//! ```
//!
//! One task for each permit renews it. The receipts are used by the side that takes them out of `Held`: the task that renews them,
//! or the drop that gives them back. If it is dropped while it is being renewed, the task gives back what the renewal returned.
//!
//! **A running request is always counted.** If the lease ends while the store is away, or the store loses its data, the permit is
//! charged again, beyond the limit if need be. Twice a second the task looks whether the server was away since the last renewal.
//!
//! **A permit that this node granted without the store is counted twice:** on this node for as long as the request runs, so that this
//! node never has granted more than its share by itself, however often the store goes away; and in the store as soon as that is back,
//! so that the store grants nothing in its place.

use crate::give_backs::GiveBack;
use crate::limiter::{CountedBy, Limiter, Renewal, now};
use crate::receipt::{Receipt, Report};
use crate::timers;
use crate::verdict::Verdict;
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_core::{Span, Timestamp};
use tidegate_store::{Memory, Settled, Store};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

/// The permits of one request, of all concurrency limits that apply to it. Dropping it returns them.
///
/// While it is held, it renews itself every third of the lease, so a request may take longer than the lease. That needs a tokio
/// runtime with time enabled, in which [`Limiter::hold`] was called; without one, the permits free themselves when the lease is
/// over. Dropping it never blocks: a store in this process takes the permits back at once, and for another store a task is
/// spawned. If the process crashes, the permits are free when the lease is over.
///
/// ```
/// use tidegate::{Attributes, Check, Limiter, Policy};
/// let policy = Policy::parse("
/// version: 1
/// rules: [{ name: exports, key: [user], limits: [{ concurrent: 1 }] }]")?;
/// let limiter = Limiter::in_memory(policy)?;
/// let alice = Attributes::new().with("user", "alice")?;
/// let mut verdict = limiter.check_now(&Check::new(&alice))?;
/// let permit = limiter.hold(&mut verdict);
/// assert!(!limiter.check_now(&Check::new(&alice))?.allowed()); // one export at a time
/// drop(permit);
/// assert!(limiter.check_now(&Check::new(&alice))?.allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping a permit returns it"]
pub struct Permit<S: Store + 'static = Memory> {
    held: Arc<HeldPermit<S>>,
    /// The runtime in which it is renewed and given back, and the task that renews it.
    runtime: Option<(Handle, AbortHandle)>,
}

/// What a permit shares with the task that renews it.
struct HeldPermit<S> {
    limiter: Limiter<S>,
    /// Locked to change it, never while a store is asked.
    state: Mutex<PermitState>,
}

enum PermitState {
    Held(HeldReceipts),
    /// The task that renews it has the receipts.
    Renewing,
    /// It was returned.
    Over,
}

/// Where a permit is counted.
struct HeldReceipts {
    /// `None` if the store did not answer since this node granted the permit.
    in_store: Option<Receipt>,
    /// `None` if the store granted the permit.
    here: Option<Receipt>,
}

/// How often a permit looks whether it must be charged again before a third of its lease is over.
const LOOK: Span = Span::from_millis(500);
/// How often a permit is given back if the store does not answer. A receipt is settled once, so repeating it is safe.
const TRIES: u32 = 3;
const PAUSE: Span = Span::from_millis(200);
/// How long a store in this process remembers that a permit was given back. No copy of its receipt exists, so it need not.
const REMEMBERED: Span = Span::from_secs(1);

impl<S: Store + 'static> Limiter<S> {
    /// Takes the permits of a request out of its verdict; `None` if no concurrency limit applies, or the request is denied. A
    /// receipt that the verdict has for another reason stays, without the permits.
    ///
    /// Call it right after the decision. A permit that is not taken out is held until it is
    /// [reported](Limiter::report), or until its lease is over.
    pub fn hold(&self, verdict: &mut Verdict) -> Option<Permit<S>> {
        let receipt = *verdict.receipt.take()?;
        let (permits, rest) = receipt.split(self.next_receipt_id());
        let wanted = verdict.receipt_asked || rest.counts_outcomes() || permits.is_none();
        verdict.receipt = wanted.then(|| Box::new(rest));
        Some(Permit::new(self.clone(), permits?))
    }
}

impl<S: Store + 'static> Permit<S> {
    fn new(limiter: Limiter<S>, receipt: Receipt) -> Self {
        let lease = receipt.lease().unwrap_or(Span::ZERO);
        let runtime = Handle::try_current().ok();
        let receipts = match limiter.counted_by(&receipt) {
            CountedBy::Store | CountedBy::Others => {
                HeldReceipts { in_store: Some(receipt), here: None }
            }
            CountedBy::Fallback => {
                if runtime.is_some() {
                    // The task that renews the permit charges the store.
                    limiter.owe_permits_less(&receipt);
                }
                HeldReceipts { in_store: None, here: Some(receipt) }
            }
        };
        let held = HeldPermit { limiter, state: Mutex::new(PermitState::Held(receipts)) };
        let held = Arc::new(held);
        let runtime = runtime.map(|runtime| {
            let renewing = runtime.spawn(renew(Arc::clone(&held), lease));
            (runtime, renewing.abort_handle())
        });
        Self { held, runtime }
    }
}

impl<S: Store + 'static> Drop for Permit<S> {
    fn drop(&mut self) {
        let state = mem::replace(&mut *self.held.lock(), PermitState::Over);
        let HeldReceipts { in_store, here } = match state {
            PermitState::Held(receipts) => receipts,
            // The task gives back what the renewal returns.
            PermitState::Renewing | PermitState::Over => return,
        };
        if let Some((_, renewing)) = &self.runtime {
            renewing.abort(); // it sleeps, or finds that the permit is over
        }
        let limiter = &self.held.limiter;
        here.into_iter().for_each(|receipt| give_back_now(limiter, receipt));
        match (in_store, &self.runtime) {
            (Some(receipt), _) if S::IN_PROCESS => give_back_now(limiter, receipt),
            (Some(receipt), Some((runtime, _))) => {
                let underway = limiter.inner.give_backs.start();
                runtime.spawn(give_back(limiter.clone(), receipt, underway));
            }
            // Without a runtime the store cannot be asked: the permit is free when its lease is over.
            (Some(_), None) | (None, _) => {}
        }
    }
}

impl<S: Store + 'static> fmt::Debug for Permit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").finish_non_exhaustive()
    }
}

// === impl HeldPermit ===

impl<S: Store> HeldPermit<S> {
    /// Takes the receipts to renew them; `None` if the permit is over.
    fn begin_renewal(&self) -> Option<HeldReceipts> {
        let mut state = self.lock();
        match mem::replace(&mut *state, PermitState::Renewing) {
            PermitState::Held(receipts) => Some(receipts),
            over @ (PermitState::Renewing | PermitState::Over) => {
                *state = over;
                None
            }
        }
    }

    /// Whether the store must be charged now, although it was charged this time ago: the server was away since, or the store has
    /// not been charged at all.
    fn must_be_charged(&self, ago: Span) -> bool {
        let PermitState::Held(receipts) = &*self.lock() else { return true };
        let store = &self.limiter.inner.store;
        let was_away = |state| store.back_for(state).is_some_and(|back| back < ago);
        let counts = |receipt: &Receipt| !receipt.permits().any(|(part, _)| was_away(part.state));
        !receipts.in_store.as_ref().is_some_and(counts)
    }

    /// Puts the receipts back. Returns them if the permit was dropped meanwhile, so that they must be given back.
    fn end_renewal(&self, receipts: HeldReceipts) -> Option<HeldReceipts> {
        let mut state = self.lock();
        match *state {
            PermitState::Renewing => {
                *state = PermitState::Held(receipts);
                None
            }
            PermitState::Held(_) | PermitState::Over => Some(receipts),
        }
    }

    fn lock(&self) -> MutexGuard<'_, PermitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Renews a permit every third of its lease: if one renewal fails, there is time for another.
async fn renew<S: Store + 'static>(held: Arc<HeldPermit<S>>, lease: Span) {
    let third = Span::from_nanos(lease.as_nanos().checked_div(3).unwrap_or(0)).max(PAUSE);
    let look = if S::IN_PROCESS { third } else { third.min(LOOK) };
    let limiter = &held.limiter;
    let clock = &limiter.inner.clock;
    let (mut charged_at, mut counted_at) = (clock.now().steady, clock.now().steady);
    loop {
        timers::sleep(look).await;
        let now = clock.now().steady;
        let is_due = |since: Timestamp| S::IN_PROCESS || now.since(since) >= third;
        let charges = is_due(charged_at) || held.must_be_charged(now.since(charged_at));
        if !charges && !is_due(counted_at) {
            continue;
        }
        let Some(mut receipts) = held.begin_renewal() else { return };
        let underway = limiter.inner.give_backs.start();
        let old = receipts.in_store.as_ref().or(receipts.here.as_ref());
        if let Some(old) = old.filter(|_| charges)
            && let Ok(Renewal::Renewed(renewed)) = limiter.charge_running(old).await
        {
            (receipts.in_store, charged_at) = (renewed.into_permits(), now);
        }
        if is_due(counted_at) {
            let renewed = receipts.here.as_ref().map(|old| limiter.count_running_here(old));
            if let Some(Ok(Renewal::Renewed(renewed))) = renewed {
                receipts.here = renewed.into_permits();
            }
            counted_at = now;
        }
        // What could not be renewed is tried again at the next look.
        if let Some(HeldReceipts { in_store, here }) = held.end_renewal(receipts) {
            here.into_iter().for_each(|receipt| give_back_now(limiter, receipt));
            if let Some(receipt) = in_store {
                give_back(limiter.clone(), receipt, underway).await;
            }
            return;
        }
    }
}

fn give_back_now<S: Store>(limiter: &Limiter<S>, receipt: Receipt) {
    let soon = limiter.inner.clock.now().steady.after(REMEMBERED).unwrap_or(receipt.until);
    let receipt = Receipt { until: receipt.until.min(soon), ..receipt };
    // A store in this process does not fail. If it has no memory to settle the receipt, the lease frees the permit.
    let _ = match limiter.counted_by(&receipt) {
        CountedBy::Store | CountedBy::Others => now(limiter.report(&receipt, Report::Cancelled)),
        CountedBy::Fallback => limiter.settle_here(&receipt, Report::Cancelled),
    };
}

async fn give_back<S: Store>(limiter: Limiter<S>, receipt: Receipt, underway: GiveBack) {
    if S::IN_PROCESS {
        return give_back_now(&limiter, receipt);
    }
    for _ in 0..TRIES {
        match limiter.report(&receipt, Report::Cancelled).await {
            Ok(Settled::Done | Settled::Already | Settled::Late) => break,
            Ok(Settled::Full) | Err(_) => timers::sleep(PAUSE).await,
        }
    }
    drop(underway);
}
