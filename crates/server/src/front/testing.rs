//! For the tests of every protocol: a store that panics, and one that is slow.

use crate::timers;
use std::time::Duration;
use tidegate::{Clock, Decision, Memory, Settled, Store, StoreError};
use tidegate_core::Span;
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

/// A memory store behind a network. It decides calls in the order in which they were sent, and its replies take a while.
pub(crate) struct Slow {
    memory: Memory,
    round_trip: Duration,
}

impl Slow {
    /// How long callers wait unless they say less.
    pub(crate) const TIMEOUT: Span = Span::from_millis(50);

    pub(crate) fn new(clock: &Clock, round_trip: Duration) -> Self {
        Self { memory: Memory::new(clock.clone()), round_trip }
    }

    /// Waits for a reply; an error if the caller does not wait that long.
    async fn reply<T>(&self, patience: Option<Span>, reply: T) -> Result<T, StoreError> {
        let patience = patience.unwrap_or(Self::TIMEOUT).min(Self::TIMEOUT);
        let time = Duration::from_nanos(patience.as_nanos());
        timers::sleep(self.round_trip.min(time)).await;
        if self.round_trip <= time { Ok(reply) } else { Err(StoreError::TimedOut(patience)) }
    }
}

impl Store for Slow {
    async fn take(&self, plans: &[Plan<'_>]) -> Vec<Result<Answer, StoreError>> {
        let mut answers = Vec::new();
        for plan in plans {
            answers.push(self.reply(plan.patience(), self.memory.take_now(plan)).await);
        }
        answers
    }

    async fn charge(&self, takes: &[Take<'_>]) -> Result<Charged, StoreError> {
        self.reply(None, self.memory.charge_now(takes)).await
    }

    async fn give_back(&self, settlement: &Settlement<'_>) -> Result<Settled, StoreError> {
        self.reply(None, self.memory.give_back_now(settlement)).await
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Vec<Decision>, StoreError> {
        self.reply(plan.patience(), self.memory.peek_now(plan)).await
    }

    async fn reset(&self, states: &[StateId]) -> Result<usize, StoreError> {
        self.reply(None, self.memory.reset_now(states)).await
    }

    fn supports(&self, limit: &Limit) -> Result<(), StoreError> {
        self.memory.supports(limit)
    }

    fn timeout(&self) -> Option<Span> {
        Some(Self::TIMEOUT)
    }
}

impl StoreHealth for Slow {}

impl SharedDocument for Slow {}
