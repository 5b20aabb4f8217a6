//! Giving back: settlements that callers ask for, and refunds of takes that turned out to be in vain.
//!
//! ```text
//!   a plan over several slots: one refuses ──► refund what the others took ──► failed: again in the background,
//!   a late reply: nothing was granted      ──┘                                 exponential backoff, 100 ms to 2 s
//! ```
//!
//! Every settlement has a receipt that each server marks before it gives anything back. So a retry gives nothing back twice.

use super::Redis;
use super::script::{ScriptCall, ScriptReply, unexpected_reply};
use crate::error::StoreError;
use crate::store::{Part, ReceiptId, Settled, Settlement};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidegate_core::{Limit, Span, StateId, TakeReceipt, Timestamp};

/// What was taken of a state, and under which limit.
pub(super) type OwnedReceipt = (StateId, Limit, TakeReceipt);

/// Takes that must be given back even if the caller has gone.
struct Refund {
    id: ReceiptId,
    until: Timestamp,
    parts: Vec<OwnedReceipt>,
}

/// How long the store remembers the receipt of a refund.
const RECEIPT_KEPT: Span = Span::from_secs(60);
/// How often a refund is tried again, within the time that its receipt is remembered: exponential backoff.
const MAX_RETRIES: u32 = 32;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

impl Redis {
    /// A receipt id that no other charge or refund has: the random id of this node, and a counter.
    pub(super) fn next_receipt_id(&self) -> ReceiptId {
        let number = self.next_receipt.fetch_add(1, Ordering::Relaxed);
        ReceiptId(u128::from(self.node_id) << 64 | u128::from(number))
    }

    // === settlements ===

    /// Settles a receipt, once, before a deadline.
    pub(super) async fn give_back_until(
        &self,
        settlement: &Settlement<'_>,
        until: Timestamp,
    ) -> Result<Settled, StoreError> {
        self.denials.forget(settlement.parts.iter().map(|part| part.state));
        let mut slots = self.by_slot(settlement.parts.iter().copied(), |part| part.state);
        if slots.is_empty() {
            slots.push((self.router.slot(StateId(settlement.id.0)), vec![]));
        }
        // Each slot has its own mark of the receipt, so that a second try settles what the first one could not.
        let lowest = |(_, parts): &(u16, Vec<Part<'_>>)| parts.iter().map(|part| part.state).min();
        slots.sort_by_key(lowest);
        let mut settled = None;
        for (slot, parts) in &slots {
            let there = self.give_back_in_slot(*slot, until, settlement, parts).await?;
            settled.get_or_insert(there);
        }
        Ok(settled.unwrap_or(Settled::Done))
    }

    /// Settles the parts of a receipt that are in one slot, once.
    async fn give_back_in_slot(
        &self,
        slot: u16,
        until: Timestamp,
        settlement: &Settlement<'_>,
        parts: &[Part<'_>],
    ) -> Result<Settled, StoreError> {
        // A script reads each state once, so a second part of the same state needs a call of its own.
        let (mut first, mut more): (Vec<Part<'_>>, Vec<Part<'_>>) = (Vec::new(), Vec::new());
        for part in parts {
            let repeated = first.iter().any(|earlier| earlier.state == part.state);
            if repeated { more.push(*part) } else { first.push(*part) }
        }
        let receipt = Some((settlement.id, settlement.until));
        let settled = match self.call(slot, until, ScriptCall::give_back(&first, receipt)).await? {
            ScriptReply::Over => Settled::Late,
            ScriptReply::Already => Settled::Already,
            ScriptReply::Found { .. } => Settled::Done,
            ScriptReply::UnknownShape(_) | ScriptReply::Moved(_) | ScriptReply::Late(_) => {
                return Err(unexpected_reply());
            }
        };
        if settled == Settled::Done {
            for part in more {
                self.call(slot, until, ScriptCall::give_back(&[part], None)).await?;
            }
        }
        Ok(settled)
    }

    // === refunds ===

    /// Refunds before the deadline of the caller; what fails is tried again in the background. `at` is the server's time of the
    /// takes.
    pub(super) async fn refund(&self, parts: Vec<OwnedReceipt>, at: Timestamp, until: Timestamp) {
        if parts.is_empty() {
            return;
        }
        let refund = Refund {
            id: self.next_receipt_id(),
            until: at.after(RECEIPT_KEPT).unwrap_or(Timestamp::END),
            parts,
        };
        if self.try_refund(&refund, until).await.is_ok() {
            return;
        }
        // Without a permit the refund is dropped: the takes stay counted until their period is over. Then too little passes,
        // never too much.
        let Ok(permit) = Arc::clone(&self.refund_permits).try_acquire_owned() else { return };
        let store = self.for_task();
        tokio::spawn(async move {
            let _permit = permit;
            let mut pause = FIRST_PAUSE;
            for _ in 0..MAX_RETRIES {
                tokio::time::sleep(pause).await;
                pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
                if store.try_refund(&refund, store.deadline()).await.is_ok() {
                    return;
                }
            }
        });
    }

    async fn try_refund(&self, refund: &Refund, until: Timestamp) -> Result<(), StoreError> {
        let parts: Vec<Part<'_>> = refund
            .parts
            .iter()
            .map(|(state, limit, receipt)| Part { state: *state, limit, receipt: *receipt })
            .collect();
        let settlement = Settlement { id: refund.id, until: refund.until, parts: &parts };
        self.give_back_until(&settlement, until).await.map(drop)
    }
}
