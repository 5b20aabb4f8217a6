//! Renewing permits: a request that takes longer than its lease says that it is still running.
//!
//! ```text
//!   charge a new permit ──► give back the old one ─┬─► done: the new receipt takes the place of the old one
//!                                                  └─► it was settled before: give back the new permit, too
//! ```
//!
//! In between, the request counts twice. So other requests may be refused too early, but never too late: no more than the limit
//! are in flight. In the other order, another request could take the permit in between.
//!
//! **Who says that it runs.** A caller may be late: a permit whose lease is over cannot be renewed by a caller, because another
//! request may hold it by now. The store's clock decides that: if the old permit still counted at the instant of the charge, the
//! new one took its place without a gap. A [`Permit`](crate::Permit) is held by a request of this process, which certainly runs.
//! It is charged whatever became of the old one, also beyond the limit (into debt). So the store grants nothing while as many
//! requests run as the limit says, also after an outage or after it has lost its data.
//!
//! **Where it is counted.** A permit that this node granted without the store is counted on this node. When the store answers, a
//! caller's permit moves there. That of a request of this process is counted in both places from then on (`permit.rs`).

use super::issue::CountedBy;
use super::{Limiter, now};
use crate::error::ReportError;
use crate::receipt::{PermitRecord, Receipt, ReceiptPart};
use tidegate_core::{Cost, Span, Take, Timestamp};
use tidegate_store::{Charged, Memory, Part, ReceiptId, Settled, Settlement, Store, StoreError};

/// What became of the permits that were to be renewed; see [`Limiter::renew`].
///
/// ```
/// use tidegate::{Attributes, Check, Limiter, Policy, Renewal, Report};
/// let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [{ concurrent: 1 }] }] }")?;
/// let limiter = Limiter::in_memory(policy)?;
/// let job = Attributes::new();
/// let verdict = limiter.check_now(&Check::new(&job))?;
/// let receipt = verdict.receipt().unwrap();
/// limiter.report_now(receipt, Report::Success)?;
/// assert_eq!(limiter.renew_now(receipt)?, Renewal::Already); // the job has ended
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The request holds its permits for another lease. This receipt takes the place of the old one, which is settled.
    Renewed(Receipt),
    /// The receipt was settled before: the permits were returned, or renewed under another receipt.
    Already,
    /// The lease is over, or the receipt is: other requests may hold the permits by now.
    Expired,
    /// The store has no room to count the renewal. The permits are held until the lease is over. Try again before that.
    Full,
    /// The receipt has no permits: no concurrency limit applied to the request.
    NoPermit,
}

/// Who says that a request still runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HeldBy {
    /// A caller, who may be late: only permits that still count are renewed.
    Caller,
    /// This process runs it.
    RunningRequest,
}

impl Limiter<Memory> {
    /// [`Limiter::renew`] without `await`, because a store in this process answers immediately.
    pub fn renew_now(&self, receipt: &Receipt) -> Result<Renewal, ReportError> {
        now(self.renew(receipt))
    }
}

impl<S: Store> Limiter<S> {
    /// Renews the permits of a receipt: the request holds them for another lease, from now on.
    ///
    /// A [`Permit`](crate::Permit) does this by itself. Call it for permits that are held elsewhere, at least twice in a lease.
    /// After an error the old receipt is still valid, and the renewal can be tried again until the lease is over.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Limiter, Policy, Renewal};
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [{ concurrent: 1 }] }] }")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// let job = Attributes::new();
    /// let verdict = limiter.check(&Check::new(&job)).await?;
    /// let renewal = limiter.renew(verdict.receipt().unwrap()).await?;
    /// assert!(matches!(renewal, Renewal::Renewed(_)));
    /// assert!(!limiter.check(&Check::new(&job)).await?.allowed()); // the permit is still held
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn renew(&self, receipt: &Receipt) -> Result<Renewal, ReportError> {
        if receipt.permits().next().is_none() {
            return Ok(Renewal::NoPermit);
        }
        let was_local = match self.counted_by(receipt) {
            CountedBy::Fallback => true,
            CountedBy::Store => false,
            CountedBy::Others => return Ok(Renewal::Expired),
        };
        let in_store = self.renew_in(&self.inner.store, CountedBy::Store, receipt, HeldBy::Caller);
        let renewal = match in_store.await {
            Err(_) if was_local => self.renew_here(receipt, HeldBy::Caller).await?,
            renewal => renewal?,
        };
        if let (Renewal::Renewed(renewed), true) = (&renewal, was_local) {
            self.owe_permits_less(receipt);
            if self.counted_by(renewed) == CountedBy::Fallback {
                self.inner.store.owe(&charges_of(renewed));
            }
        }
        Ok(renewal)
    }

    /// Charges the store the permits of a request that runs in this process, whatever became of the old ones. If those are counted
    /// on this node, they stay.
    pub(crate) async fn charge_running(&self, old: &Receipt) -> Result<Renewal, ReportError> {
        let (store, held_by) = (&self.inner.store, HeldBy::RunningRequest);
        Ok(self.renew_in(store, CountedBy::Store, old, held_by).await?)
    }

    /// Counts the permits of a request that runs in this process on this node, in place of the old ones.
    pub(crate) fn count_running_here(&self, old: &Receipt) -> Result<Renewal, ReportError> {
        Ok(now(self.renew_here(old, HeldBy::RunningRequest))?)
    }

    async fn renew_here(&self, receipt: &Receipt, held_by: HeldBy) -> Result<Renewal, StoreError> {
        self.renew_in(self.inner.local.memory(), CountedBy::Fallback, receipt, held_by).await
    }

    /// This node does not owe the store these permits any more.
    pub(crate) fn owe_permits_less(&self, receipt: &Receipt) {
        self.inner.store.owe_less(&parts_of(receipt));
    }

    /// Charges new permits in a store, and gives back the old ones where they were counted.
    async fn renew_in(
        &self,
        store: &impl Store,
        counted_by: CountedBy,
        receipt: &Receipt,
        held_by: HeldBy,
    ) -> Result<Renewal, StoreError> {
        let charged = store.charge(&charges_of(receipt)).await?;
        let renewed = receipt.renewed(self.next_receipt_id(), &charged, self.receipt_ttl);
        let renewed = Receipt { node: self.number_of(counted_by), ..renewed };
        let was_local = self.counted_by(receipt) == CountedBy::Fallback;
        let stays =
            held_by == HeldBy::RunningRequest && was_local && counted_by == CountedBy::Store;
        // By the clock of where the old permits were counted.
        let at = if was_local { self.inner.clock.now().steady } else { charged.at };
        let was_held = receipt.lease_ends().all(|end| at < end);
        let old = Settlement { id: receipt.id, until: receipt.until, parts: &parts_of(receipt) };
        // After an error the new permit stays. If the old one was not given back, it counts until its lease is over.
        let settled = match (renewed.is_whole(), was_held) {
            (false, _) => Settled::Full,
            (true, _) if stays => Settled::Done,
            (true, false) => Settled::Late,
            (true, true) if was_local => {
                now(self.inner.local.memory().give_back(&old)).unwrap_or(Settled::Done)
            }
            (true, true) => self.inner.store.give_back(&old).await.unwrap_or(Settled::Done),
        };
        let lost = match (settled, held_by) {
            (Settled::Full, _) => Renewal::Full,
            (Settled::Done, _) | (_, HeldBy::RunningRequest) => {
                return Ok(Renewal::Renewed(renewed));
            }
            (Settled::Already, HeldBy::Caller) => Renewal::Already,
            (Settled::Late, HeldBy::Caller) => Renewal::Expired,
        };
        self.undo_renewal(store, renewed).await?;
        Ok(lost)
    }

    /// Gives back the permits that a renewal charged in vain.
    async fn undo_renewal(&self, store: &impl Store, renewed: Receipt) -> Result<(), StoreError> {
        let (permits, _) = renewed.split(self.next_receipt_id());
        let Some(Receipt { id, until, parts, .. }) = permits else { return Ok(()) };
        let parts: Vec<Part<'_>> = parts.iter().map(ReceiptPart::whole).collect();
        store.give_back(&Settlement { id, until, parts: &parts }).await.map(|_| ())
    }
}

/// The takes of the permits that take the place of those of a receipt.
fn charges_of(receipt: &Receipt) -> Vec<Take<'_>> {
    receipt.permits().map(|(part, _)| charge_of(part)).collect()
}

fn parts_of(receipt: &Receipt) -> Vec<Part<'_>> {
    receipt.permits().map(|(part, _)| part.whole()).collect()
}

/// The take of a permit that takes the place of this one.
fn charge_of(part: &ReceiptPart) -> Take<'_> {
    Take { bound: part.bound, ..Take::new(part.state, &part.limit, Cost::ONE) }
}

impl Receipt {
    /// The receipt with the permits that were charged in place of the old ones.
    fn renewed(&self, id: ReceiptId, charged: &Charged, ttl: Span) -> Self {
        let mut receipts = charged.receipts.iter();
        let renew = |part: &ReceiptPart| {
            let (Some(permit), Some(receipt)) =
                (part.permit, part.permit.and_then(|_| receipts.next()))
            else {
                return part.clone();
            };
            let permit = Some(PermitRecord { taken: charged.at, ..permit });
            ReceiptPart { receipt: *receipt, permit, ..part.clone() }
        };
        let parts: Vec<ReceiptPart> = self.parts.iter().map(renew).collect();
        let lifetime = parts.iter().filter_map(|part| part.limit.lease()).fold(ttl, Ord::max);
        let until = charged.at.after(lifetime).unwrap_or(Timestamp::END);
        Self { id, until, node: self.node, cost: self.cost, parts }
    }

    /// Whether every permit was counted. A charge counts less if the state is in debt already.
    fn is_whole(&self) -> bool {
        self.permits().all(|(part, _)| part.receipt.weight > 0)
    }
}
