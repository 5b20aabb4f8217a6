//! [`Memory`] as a [`Store`]: the calls of `memory.rs` as futures, which are ready when they are first polled.

use super::Memory;
use crate::error::StoreError;
use crate::reports::Gauges;
use crate::store::{
    Answer, AnsweredBy, Charged, Settled, Settlement, SharedDocument, SingleAnswer, Store,
    StoreHealth,
};
use crate::sync::lock;
use tidegate_core::{Decision, Limit, Plan, StateId, Take};

/// What [`StoreHealth::shortage`] reports when limits that callers name are refused.
const TOO_MANY_LIMITS: &str = "too many different limits that clients name are in use: further ones are refused until some of \
                               them have no states left";
/// What [`StoreHealth::shortage`] reports when receipts cannot be settled.
const TOO_MANY_RECEIPTS: &str = "there is no memory to remember further settled receipts: none is settled until some have ended";

/// No future waits or is boxed: each does its work when it is first polled, and nothing before.
impl Store for Memory {
    const IN_PROCESS: bool = true;

    fn incarnation(&self) -> Option<u64> {
        Some(self.incarnation)
    }

    async fn take(&self, plans: &[Plan<'_>]) -> Vec<Result<Answer, StoreError>> {
        self.take_batch_now(plans).into_iter().map(Ok).collect()
    }

    async fn take_one(&self, plan: &Plan<'_>) -> Result<Answer, StoreError> {
        Ok(self.take_now(plan))
    }

    async fn take_each(&self, takes: &[Take<'_>]) -> Vec<Result<SingleAnswer, StoreError>> {
        let taken = self.take_each_now(takes).into_iter();
        taken.map(|taken| Ok(SingleAnswer { taken, by: AnsweredBy::Store })).collect()
    }

    async fn charge(&self, takes: &[Take<'_>]) -> Result<Charged, StoreError> {
        Ok(self.charge_now(takes))
    }

    async fn give_back(&self, settlement: &Settlement<'_>) -> Result<Settled, StoreError> {
        Ok(self.give_back_now(settlement))
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Vec<Decision>, StoreError> {
        Ok(self.peek_now(plan))
    }

    async fn reset(&self, states: &[StateId]) -> Result<usize, StoreError> {
        Ok(self.reset_now(states))
    }

    fn admit_limit(&self, limit: &Limit) -> Result<(), StoreError> {
        self.admit_limit_now(limit)
    }

    fn supports(&self, _limit: &Limit) -> Result<(), StoreError> {
        Ok(())
    }
}

impl StoreHealth for Memory {
    fn shortage(&self) -> Option<&'static str> {
        if self.limit_numbers.is_short() {
            Some(TOO_MANY_LIMITS)
        } else {
            lock(&self.settled).is_full().then_some(TOO_MANY_RECEIPTS)
        }
    }

    fn gauges(&self) -> Option<Gauges> {
        Some(Self::gauges(self))
    }
}

/// A store in memory has one node, so it has no document to share.
impl SharedDocument for Memory {}
