//! For the tests of every protocol: a store that panics.

use tidegate::{Clock, Decision, Memory, Settled, Store, StoreError};
use tidegate_core::{Limit, Plan, StateId, Take};
use tidegate_store::{Answer, Charged, Settlement, SharedDocument, StoreHealth};

/// A memory store that panics for chosen plans.
pub(crate) struct Panicking {
    memory: Memory,
    panics: Box<dyn Fn(&Plan<'_>) -> bool + Send + Sync>,
}

impl Panicking {
    pub(crate) fn new(
        clock: &Clock,
        panics: impl Fn(&Plan<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { memory: Memory::new(clock.clone()), panics: Box::new(panics) }
    }
}

impl Store for Panicking {
    const IN_PROCESS: bool = true;

    async fn take(&self, plans: &[Plan<'_>]) -> Vec<Result<Answer, StoreError>> {
        assert!(!plans.iter().any(|plan| (self.panics)(plan)), "this plan panics");
        self.memory.take(plans).await
    }

    async fn charge(&self, takes: &[Take<'_>]) -> Result<Charged, StoreError> {
        self.memory.charge(takes).await
    }

    async fn give_back(&self, settlement: &Settlement<'_>) -> Result<Settled, StoreError> {
        self.memory.give_back(settlement).await
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Vec<Decision>, StoreError> {
        self.memory.peek(plan).await
    }

    async fn reset(&self, states: &[StateId]) -> Result<usize, StoreError> {
        self.memory.reset(states).await
    }

    fn supports(&self, limit: &Limit) -> Result<(), StoreError> {
        self.memory.supports(limit)
    }
}

impl StoreHealth for Panicking {}

impl SharedDocument for Panicking {}
