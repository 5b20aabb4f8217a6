//! A permit: the right of one request to be in flight under concurrency limits. It is returned when it is dropped.
//!
//! ```text
//!   hold ──► Held(receipt) ── every third of the lease: Renewing ──► Held(new receipt) ── drop ──► Over: given back
//! ```
//!
//! One task for each permit renews it. The receipt is used by the side that takes it out of `Held`: the task that renews it, or
//! the drop that gives it back. If it is dropped while it is being renewed, the task gives back what the renewal returned.

use crate::give_backs::GiveBack;
use crate::limiter::{Limiter, Renewal, now};
use crate::receipt::{Receipt, Report};
use crate::timers;
use crate::verdict::Verdict;
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_core::Span;
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
    Held(Receipt),
    /// The task that renews it has the receipt.
    Renewing,
    /// It was returned, or its lease was over before it could be renewed.
    Over,
}

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
        let receipt = verdict.receipt.take()?;
        let (permits, rest) = receipt.split(self.next_receipt_id());
        let wanted = verdict.receipt_asked || rest.counts_outcomes() || permits.is_none();
        verdict.receipt = wanted.then_some(rest);
        Some(Permit::new(self.clone(), permits?))
    }
}

impl<S: Store + 'static> Permit<S> {
    fn new(limiter: Limiter<S>, receipt: Receipt) -> Self {
        let lease = receipt.lease().unwrap_or(Span::ZERO);
        let held = HeldPermit { limiter, state: Mutex::new(PermitState::Held(receipt)) };
        let held = Arc::new(held);
        let runtime = Handle::try_current().ok().map(|runtime| {
            let renewing = runtime.spawn(renew(Arc::clone(&held), lease));
            (runtime, renewing.abort_handle())
        });
        Self { held, runtime }
    }
}

impl<S: Store + 'static> Drop for Permit<S> {
    fn drop(&mut self) {
        let state = mem::replace(&mut *self.held.lock(), PermitState::Over);
        let receipt = match state {
            PermitState::Held(receipt) => receipt,
            // The task gives back what the renewal returns.
            PermitState::Renewing | PermitState::Over => return,
        };
        if let Some((_, renewing)) = &self.runtime {
            renewing.abort(); // it sleeps, or finds that the permit is over
        }
        let limiter = &self.held.limiter;
        if is_local(limiter, &receipt) {
            return give_back_now(limiter, receipt);
        }
        // Without a runtime the store cannot be asked: the permit is free when its lease is over.
        if let Some((runtime, _)) = &self.runtime {
            let underway = limiter.inner.give_backs.start();
            runtime.spawn(give_back(limiter.clone(), receipt, underway));
        }
    }
}

impl<S: Store + 'static> fmt::Debug for Permit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").finish_non_exhaustive()
    }
}

// === impl HeldPermit ===

impl<S> HeldPermit<S> {
    /// Takes the receipt to renew it; `None` if the permit is over.
    fn begin_renewal(&self) -> Option<Receipt> {
        let mut state = self.lock();
        match mem::replace(&mut *state, PermitState::Renewing) {
            PermitState::Held(receipt) => Some(receipt),
            over @ (PermitState::Renewing | PermitState::Over) => {
                *state = over;
                None
            }
        }
    }

    /// Puts the receipt back; `Err` if the permit was dropped meanwhile, so that it must be given back.
    fn end_renewal(&self, receipt: Receipt) -> Result<(), Receipt> {
        let mut state = self.lock();
        match *state {
            PermitState::Renewing => {
                *state = PermitState::Held(receipt);
                Ok(())
            }
            PermitState::Held(_) | PermitState::Over => Err(receipt),
        }
    }

    fn lock(&self) -> MutexGuard<'_, PermitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Renews a permit every third of its lease: if one renewal fails, there is time for another.
async fn renew<S: Store + 'static>(held: Arc<HeldPermit<S>>, lease: Span) {
    let third = Span::from_nanos(lease.as_nanos().checked_div(3).unwrap_or(0)).max(PAUSE);
    loop {
        timers::sleep(third).await;
        let Some(receipt) = held.begin_renewal() else { return };
        let underway = held.limiter.inner.give_backs.start();
        let receipt = match held.limiter.renew(&receipt).await {
            Ok(Renewal::Renewed(renewed)) => {
                let id = renewed.id;
                renewed.split(id).0.unwrap_or(receipt)
            }
            Ok(Renewal::Full) | Err(_) => receipt,
            // The lease is over: the process was paused, or the store was unreachable for too long.
            Ok(Renewal::Already | Renewal::Expired | Renewal::NoPermit) => {
                *held.lock() = PermitState::Over;
                return;
            }
        };
        if let Err(receipt) = held.end_renewal(receipt) {
            return give_back(held.limiter.clone(), receipt, underway).await;
        }
    }
}

/// Whether the permits are counted in this process.
fn is_local<S: Store>(limiter: &Limiter<S>, receipt: &Receipt) -> bool {
    S::IN_PROCESS || receipt.node == limiter.inner.node
}

fn give_back_now<S: Store>(limiter: &Limiter<S>, receipt: Receipt) {
    let soon = limiter.inner.clock.now().steady.after(REMEMBERED).unwrap_or(receipt.until);
    let receipt = Receipt { until: receipt.until.min(soon), ..receipt };
    // A store in this process does not fail. If it has no memory to settle the receipt, the lease frees the permit.
    let _ = now(limiter.report(&receipt, Report::Cancelled));
}

async fn give_back<S: Store>(limiter: Limiter<S>, receipt: Receipt, underway: GiveBack) {
    if is_local(&limiter, &receipt) {
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
