//! Giving back: settlements that callers ask for, and refunds of takes whose request was not granted.
//!
//! ```text
//!   a plan over several slots: one refuses or fails ──► what the others took ─┬─► the server can be reached: one call
//!   a late reply to a request that was not granted  ──► what it took ─────────┘   else: wait, for about a minute
//! ```
//!
//! A settlement has a receipt. The script marks it, once in each slot, before it gives anything back. So a caller may ask again.
//!
//! A refund leaves no mark, so it is sent again only after an error that proves that nothing was done. A mark would not change
//! that: a store that loses its data loses the mark too, and would give back what is not counted any more. A refund that
//! cannot be sent for about a minute, or whose reply is lost, is dropped: the takes may stay counted until their period is over.

use super::Redis;
use super::script::{ScriptCall, ScriptReply, unexpected_reply};
use crate::error::StoreError;
use crate::remote::timers;
use crate::store::{Part, ReceiptId, Settled, Settlement};
use futures_util::future::join_all;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidegate_core::{Limit, Span, StateId, TakeReceipt, Timestamp};

/// What was taken of a state, and under which limit.
pub(super) type OwnedReceipt = (StateId, Limit, TakeReceipt);

/// How long one attempt to refund waits for its reply. It is long, because a refund whose reply is lost is not sent again; its
/// caller waits only until its own deadline.
const REFUND_TIMEOUT: Span = Span::from_secs(5);
/// How often a refund looks whether its server can be reached, with exponential backoff: for about a minute.
const MAX_LOOKS: u32 = 32;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

impl Redis {
    /// An id for the receipt of a debt's charge. No other charge has it: the random id of this node, and a counter.
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
        // Each slot has its own mark of the receipt, so that a second call settles what the first one could not. The slots have a
        // fixed order, and the first of them gives the answer. So of all calls with one receipt at most one is answered `Done`; a
        // second call is answered `Already`, even if it settles the remaining slots.
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
            ScriptReply::Found { values, .. } => {
                if receipt.is_some() {
                    self.refund_as_slices(&first, &values);
                }
                Settled::Done
            }
            ScriptReply::Granted { .. }
            | ScriptReply::UnknownShape(_)
            | ScriptReply::NeedsLong(_)
            | ScriptReply::Moved(_)
            | ScriptReply::Late(_) => {
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

    /// Slots that were not the last ones of their buckets stay counted in the store. This node may spend them again.
    fn refund_as_slices(&self, parts: &[Part<'_>], values: &[Vec<u8>]) {
        if parts.iter().all(|part| !part.receipt.is_slot) {
            return;
        }
        let Ok(found) = self.parse_states(parts.iter().map(|part| part.limit), values) else {
            return;
        };
        let now = self.lease_moment();
        for (part, found) in parts.iter().zip(&found) {
            if part.receipt.is_slot && !found.written().ends_with(part.limit, &part.receipt) {
                self.leases.refund(&now, part.state, part.limit, &part.receipt);
            }
        }
    }

    // === refunds ===

    /// Refunds takes, in a background task for each slot. The caller waits for them, but not after its deadline.
    pub(super) async fn refund(&self, parts: Vec<OwnedReceipt>, until: Timestamp) {
        let mut refunds = Vec::new();
        for (slot, parts) in self.by_slot(parts, |(state, ..)| *state) {
            // Without a permit this refund and those of the remaining slots are dropped: the takes stay counted until their
            // period is over. Then too little passes, never too much.
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

    /// Waits until the server can be reached, and sends the refund. It is sent again if the server refused it, or if too many calls
    /// were waiting: then nothing was done. After any other error it is dropped, even where nothing was sent, because the breaker
    /// opened after `is_reachable`.
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
