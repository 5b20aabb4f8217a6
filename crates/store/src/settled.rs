//! Which receipts are settled, until they can be settled no more.

use crate::store::{ReceiptId, Settled, Settlement};
use std::collections::{BTreeSet, HashMap};
use tidegate_core::Timestamp;

/// The receipts that were settled and could be presented again.
#[derive(Debug, Default)]
pub(crate) struct SettledReceipts {
    until: HashMap<ReceiptId, Timestamp>,
    /// The same, the first to be forgotten first.
    order: BTreeSet<(Timestamp, ReceiptId)>,
}

impl SettledReceipts {
    /// Marks a receipt as settled, unless it was before or its time is over.
    pub(crate) fn settle(&mut self, settlement: &Settlement<'_>, now: Timestamp) -> Settled {
        self.forget(now);
        if settlement.until <= now {
            return Settled::Late;
        }
        if self.until.contains_key(&settlement.id) {
            return Settled::Already;
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
