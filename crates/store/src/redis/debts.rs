//! Charging the [debt ledger](crate::remote) to Redis. A charge carries a receipt that the program in Lua marks.

use super::Redis;
use super::script::{ScriptCall, ScriptReply};
use super::wire::Verb;
use crate::remote::{Creditor, DebtLedger, PendingCharge, RECEIPT_KEPT};
use tidegate_core::{Cost, Limit, Span, StateId, Take, Timestamp};

impl Creditor for Redis {
    fn debts(&self) -> &DebtLedger {
        &self.debts
    }

    fn now(&self) -> Timestamp {
        self.router.now()
    }

    fn is_reachable(&self, state: StateId) -> bool {
        self.router.is_reachable(self.router.slot(state))
    }

    fn pending_charge(
        &self,
        state: StateId,
        limit: Limit,
        cost: Cost,
        now: Timestamp,
    ) -> PendingCharge {
        let id = self.next_receipt_id();
        let slot = self.router.slot(state);
        let server_now = self.router.server_time(slot, now).map_or(now, |(estimate, _)| estimate);
        let until = server_now.after(RECEIPT_KEPT).unwrap_or(Timestamp::END);
        PendingCharge { id, made: now, until, state, limit, cost }
    }

    /// Sends a charge. Returns whether the store has confirmed it.
    async fn charge_once(&self, charge: &PendingCharge) -> bool {
        let takes = [Take::new(charge.state, &charge.limit, charge.cost)];
        let call = ScriptCall {
            receipt: Some((charge.id, charge.until)),
            ..ScriptCall::of_takes(Verb::Charge, &takes, Span::ZERO)
        };
        match self.call(self.router.slot(charge.state), self.deadline(), call).await {
            Ok(ScriptReply::Found { .. } | ScriptReply::Already | ScriptReply::Over) => true,
            Ok(
                ScriptReply::Granted { .. }
                | ScriptReply::UnknownShape(_)
                | ScriptReply::NeedsLong(_)
                | ScriptReply::Moved(_)
                | ScriptReply::Late(_),
            )
            | Err(_) => false,
        }
    }
}
