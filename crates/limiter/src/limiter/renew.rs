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
//! A permit whose lease is over cannot be renewed, because another request may hold it by now. The store's clock decides that:
//! if the old permit still counted at the instant of the charge, the new one took its place without a gap.

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
        Ok(match self.counted_by(receipt) {
            CountedBy::Fallback => now(self.renew_in(self.inner.local.memory(), receipt))?,
            CountedBy::Store => self.renew_in(&self.inner.store, receipt).await?,
            CountedBy::Others => Renewal::Expired,
        })
    }

    async fn renew_in(&self, store: &impl Store, receipt: &Receipt) -> Result<Renewal, StoreError> {
        let takes: Vec<Take<'_>> = receipt.permits().map(|(part, _)| charge_of(part)).collect();
        let charged = store.charge(&takes).await?;
        let renewed = receipt.renewed(self.next_receipt_id(), &charged, self.receipt_ttl);
        let was_held = receipt.lease_ends().all(|end| charged.at < end);
        let settled = match (was_held, renewed.is_whole()) {
            (false, _) => Settled::Late,
            (true, false) => Settled::Full,
            (true, true) => {
                let parts: Vec<Part<'_>> =
                    receipt.permits().map(|(part, _)| part.whole()).collect();
                let old = Settlement { id: receipt.id, until: receipt.until, parts: &parts };
                // After an error the new permit stays. If the old one was not given back, it counts until its lease is over.
                store.give_back(&old).await.unwrap_or(Settled::Done)
            }
        };
        let lost = match settled {
            Settled::Done => return Ok(Renewal::Renewed(renewed)),
            Settled::Already => Renewal::Already,
            Settled::Late => Renewal::Expired,
            Settled::Full => Renewal::Full,
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
