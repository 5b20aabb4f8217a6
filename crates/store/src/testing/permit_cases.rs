//! The case of the conformance suite about permits: random histories of taking, giving back and renewing them, compared with a
//! list of those that are held.

use super::Rig;
use super::case_helpers::{NOW, SECOND, limit, one, remaining, state, take};
use crate::store::{Part, ReceiptId, Settled, Settlement, Store};
use tidegate_core::{Algorithm, Limit, TakeReceipt, Timestamp};

const MILLI: u64 = 1_000_000;
/// A log counts in millionths of the lease, so every millisecond is exact.
const LEASE_SECONDS: u64 = 10;
const AMOUNT: u64 = 3;
const STEPS: u32 = 400;

/// A permit of the model: what was taken, and when.
struct ModelPermit {
    receipt: TakeReceipt,
    taken: u64,
}

/// A store and the permits that should be held in it.
struct PermitRig<S> {
    rig: Rig<S>,
    limit: Limit,
    now: u64,
    held: Vec<ModelPermit>,
    receipts: u128,
}

/// At no time more than the limit are held. Giving back frees one, and so does the end of a lease. A renewed permit is held for
/// another lease, and one whose receipt was settled is not freed twice.
pub(super) async fn permits_are_held_until_they_are_given_back_or_their_lease_is_over<S: Store>(
    rig: Rig<S>,
) {
    let limit = limit(AMOUNT, LEASE_SECONDS, Algorithm::Concurrent);
    if rig.store.supports(&limit).is_err() {
        return;
    }
    let mut permits = PermitRig { rig, limit, now: NOW, held: vec![], receipts: 0 };
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let (mut refused, mut lapsed) = (0, 0);
    for _ in 0..STEPS {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        permits.pass_time((random >> 8) % (LEASE_SECONDS * 1_000 / 4), &mut lapsed);
        let chosen = usize::try_from(random >> 40).unwrap().checked_rem(permits.held.len());
        match (random % 8, chosen) {
            (0..4, _) | (_, None) => refused += u32::from(!permits.take().await),
            (4..6, Some(chosen)) => permits.give_back(chosen).await,
            (_, Some(chosen)) => permits.renew(chosen).await,
        }
        permits.check().await;
    }
    assert!(refused > 20 && lapsed > 20, "{refused} refused, {lapsed} lapsed");
}

impl<S: Store> PermitRig<S> {
    fn pass_time(&mut self, millis: u64, lapsed: &mut usize) {
        self.now += millis * MILLI;
        self.rig.at(self.now);
        let before = self.held.len();
        self.held.retain(|permit| permit.taken + LEASE_SECONDS * SECOND > self.now);
        *lapsed += before - self.held.len();
    }

    /// Takes a permit; whether there was one.
    async fn take(&mut self) -> bool {
        let answer = take(&self.rig, &[one(1, &self.limit)]).await;
        let free = u64::try_from(self.held.len()).unwrap() < AMOUNT;
        assert_eq!(answer.done.passes, free, "with {} held", self.held.len());
        if let Some(receipt) = answer.done.receipts[0] {
            self.held.push(ModelPermit { receipt, taken: self.now });
        }
        free
    }

    async fn give_back(&mut self, chosen: usize) {
        let permit = self.held.swap_remove(chosen);
        let id = self.next_receipt();
        assert_eq!(self.settle(id, permit.receipt).await, Settled::Done);
        self.check().await;
        assert_eq!(self.settle(id, permit.receipt).await, Settled::Already);
    }

    /// Charges a new permit and then gives back the old one. In between, fewer are free, never more.
    async fn renew(&mut self, chosen: usize) {
        let old = self.held.swap_remove(chosen);
        let charged = self.rig.store.charge(&[one(1, &self.limit)]).await.unwrap();
        let free = AMOUNT.saturating_sub(u64::try_from(self.held.len()).unwrap() + 2);
        assert_eq!(remaining(&self.rig, one(1, &self.limit)).await, free);
        let id = self.next_receipt();
        assert_eq!(self.settle(id, old.receipt).await, Settled::Done);
        self.held.push(ModelPermit { receipt: charged.receipts[0], taken: self.now });
    }

    async fn check(&self) {
        let free = AMOUNT - u64::try_from(self.held.len()).unwrap();
        assert_eq!(remaining(&self.rig, one(1, &self.limit)).await, free);
    }

    fn next_receipt(&mut self) -> ReceiptId {
        self.receipts += 1;
        ReceiptId(self.receipts)
    }

    async fn settle(&self, id: ReceiptId, receipt: TakeReceipt) -> Settled {
        let until = Timestamp::from_nanos(self.now + LEASE_SECONDS * SECOND);
        let parts = [Part { state: state(1), limit: &self.limit, receipt }];
        self.rig.store.give_back(&Settlement { id, until, parts: &parts }).await.unwrap()
    }
}
