//! Which receipts were settled, for [`Plain`](crate::Plain). A receipt is remembered until it expires.

use crate::store::{ReceiptId, Settled, Settlement};
use std::collections::{BTreeSet, HashMap};
use tidegate_core::Timestamp;

/// How many receipts are remembered at a time.
const MOST: usize = 1 << 20;

/// The receipts that were settled and could be presented again.
#[derive(Debug, Default)]
pub(crate) struct SettledReceipts {
    until: HashMap<ReceiptId, Timestamp>,
    /// All receipts of `until`, in the order in which they expire.
    order: BTreeSet<(Timestamp, ReceiptId)>,
}

impl SettledReceipts {
    /// Marks a receipt as settled, unless it was settled before, its time is over, or there is no room to remember it.
    pub(crate) fn settle(&mut self, settlement: &Settlement<'_>, now: Timestamp) -> Settled {
        self.forget(now);
        if settlement.until <= now {
            return Settled::Late;
        }
        if self.until.contains_key(&settlement.id) {
            return Settled::Already;
        }
        if self.until.len() >= MOST {
            return Settled::Full;
        }
        self.until.insert(settlement.id, settlement.until);
        self.order.insert((settlement.until, settlement.id));
        Settled::Done
    }

    fn forget(&mut self, now: Timestamp) {
        while let Some((until, id)) = self.order.first().copied().filter(|(until, _)| *until <= now)
        {
            self.order.remove(&(until, id));
            self.until.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_that_cannot_be_remembered_is_not_settled() {
        let mut receipts = SettledReceipts::default();
        let one = |id: usize, until| {
            let id = ReceiptId(u128::try_from(id).unwrap());
            Settlement { id, until: Timestamp::from_nanos(until), parts: &[] }
        };
        let now = Timestamp::from_nanos;
        assert!((0..MOST).all(|id| receipts.settle(&one(id, 10), now(1)) == Settled::Done));
        assert_eq!(receipts.settle(&one(MOST, 10), now(9)), Settled::Full);
        assert_eq!(receipts.settle(&one(MOST, 20), now(10)), Settled::Done);
        assert_eq!(receipts.settle(&one(MOST, 20), now(10)), Settled::Already);
    }
}
