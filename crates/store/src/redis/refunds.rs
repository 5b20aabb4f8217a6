//! Giving back: settlements that callers ask for, and refunds of takes that turned out to be in vain.
//!
//! ```text
//!   a plan over several slots: one refuses ──► what the others took ──► the server can be reached: one call
//!   a late reply: nothing was granted      ──┘                          else: wait, for about a minute
//! ```
//!
//! A settlement has a receipt that each server marks before it gives anything back, so a caller may ask again. A refund needs
//! none, because it is sent once. A mark would not be enough to send it again: a store that loses its data loses the mark too,
//! and would give back what nobody had taken.

use super::Redis;
use super::script::{ScriptCall, ScriptReply, unexpected_reply};
use super::timers;
use crate::error::StoreError;
use crate::store::{Part, ReceiptId, Settled, Settlement};
use futures_util::future::join_all;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidegate_core::{Limit, Span, StateId, TakeReceipt, Timestamp};

/// What was taken of a state, and under which limit.
pub(super) type OwnedReceipt = (StateId, Limit, TakeReceipt);

/// How long a refund waits for its reply: its caller does not wait for it, and it is not sent again.
const REFUND_TIMEOUT: Span = Span::from_secs(5);
/// How often a refund looks whether its server can be reached, exponential backoff: for about a minute.
const MAX_LOOKS: u32 = 32;
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
        let mut slots = self.by_slot(settlement.parts.iter().copied(), |part| part.state);
        if slots.is_empty() {
            slots.push((self.router.slot(StateId(settlement.id.0)), vec![]));
        }
        // Each slot has its own mark of the receipt, so that a second try settles what the first one could not.
        let lowest = |(_, parts): &(u16, Vec<Part<'_>>)| parts.iter().map(|part| part.state).min();
        slots.sort_by_key(lowest);
        let receipt = Some((settlement.id, settlement.until));
        let mut settled = None;
        for (slot, parts) in &slots {
            let there = self.give_back_in_slot(*slot, until, receipt, parts).await?;
            settled.get_or_insert(there);
        }
        Ok(settled.unwrap_or(Settled::Done))
    }

    /// Gives back parts that are in one slot: once, if there is a receipt.
    async fn give_back_in_slot(
        &self,
        slot: u16,
        until: Timestamp,
        receipt: Option<(ReceiptId, Timestamp)>,
        parts: &[Part<'_>],
    ) -> Result<Settled, StoreError> {
        self.denials.forget(parts.iter().map(|part| part.state));
        // A script reads each state once, so a second part of the same state needs a call of its own.
        let (mut first, mut more): (Vec<Part<'_>>, Vec<Part<'_>>) = (Vec::new(), Vec::new());
        for part in parts {
            let repeated = first.iter().any(|earlier| earlier.state == part.state);
            if repeated { more.push(*part) } else { first.push(*part) }
        }
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

    /// Refunds takes. The caller waits for it until its deadline at most, then the refund goes on in the background.
    pub(super) async fn refund(&self, parts: Vec<OwnedReceipt>, until: Timestamp) {
        let mut refunds = Vec::new();
        for (slot, parts) in self.by_slot(parts, |(state, ..)| *state) {
            // Without a permit the refund is dropped: the takes stay counted until their period is over. Then too little
            // passes, never too much.
            let Ok(permit) = Arc::clone(&self.refund_permits).try_acquire_owned() else { return };
            let store = self.for_task();
            refunds.push(tokio::spawn(async move {
                let _permit = permit;
                store.refund_in_slot(slot, &parts).await;
            }));
        }
        let _too_late =
            tokio::time::timeout(until.since(self.router.now()).into(), join_all(refunds)).await;
    }

    /// Waits until the server can be reached, and refunds once. Only if the server surely did nothing is the refund sent again.
    async fn refund_in_slot(&self, slot: u16, parts: &[OwnedReceipt]) {
        let parts: Vec<Part<'_>> = parts
            .iter()
            .map(|(state, limit, receipt)| Part { state: *state, limit, receipt: *receipt })
            .collect();
        let mut pause = FIRST_PAUSE;
        for _ in 0..MAX_LOOKS {
            if self.router.is_reachable(slot) {
                let until = self.router.now().after(REFUND_TIMEOUT).unwrap_or(Timestamp::END);
                let refunded = self.give_back_in_slot(slot, until, None, &parts).await;
                if !matches!(refunded, Err(StoreError::Overloaded | StoreError::Refuses(_))) {
                    return;
                }
            }
            timers::sleep(pause).await;
            pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
        }
    }
}
