//! What the cases of the conformance suite share.

use super::Rig;
use crate::store::{Answer, Part, Store};
use tidegate_core::{Algorithm, Cost, Decision, Limit, Plan, Span, StateId, Take};

pub(super) const SECOND: u64 = 1_000_000_000;
/// A whole minute in 2023: no window of the cases ends within the next half minute.
pub(super) const NOW: u64 = 1_699_999_980 * SECOND;

pub(super) fn limit(amount: u64, secs: u64, algorithm: Algorithm) -> Limit {
    Limit::new(amount, Span::from_secs(secs), algorithm).unwrap()
}

/// The algorithms that the store supports, with their defaults, 5 per minute each; and 5 permits with a lease of a minute.
pub(super) fn supported<S: Store>(rig: &Rig<S>) -> Vec<Limit> {
    let all = Algorithm::ALL.into_iter().chain([Algorithm::Concurrent]);
    let all = all.map(|algorithm| limit(5, 60, algorithm));
    all.filter(|limit| rig.store.supports(limit).is_ok()).collect()
}

/// A state of a key of its own: on a cluster such states are on different servers.
pub(super) fn state(id: u128) -> StateId {
    StateId(id | id << 112)
}

pub(super) fn one(id: u128, limit: &Limit) -> Take<'_> {
    Take::new(state(id), limit, Cost::ONE)
}

pub(super) fn cost(id: u128, limit: &Limit, cost: u64) -> Take<'_> {
    Take::new(state(id), limit, Cost::new(cost))
}

/// Takes with a maximal wait of 10 min, so that queues let pass as much as other limits do.
pub(super) async fn take<S: Store>(rig: &Rig<S>, takes: &[Take<'_>]) -> Answer {
    let plan = Plan::new(takes.to_vec(), Span::from_secs(600)).unwrap();
    rig.store.take(&[plan]).await.pop().unwrap().unwrap()
}

/// Peeks for a caller that does not wait.
pub(super) async fn peek<S: Store>(rig: &Rig<S>, take: Take<'_>) -> Decision {
    let plan = Plan::new(vec![take], Span::ZERO).unwrap();
    rig.store.peek(&plan).await.unwrap()[0]
}

pub(super) async fn remaining<S: Store>(rig: &Rig<S>, take: Take<'_>) -> u64 {
    peek(rig, Take { cost: Cost::new(0), ..take }).await.remaining
}

pub(super) fn parts<'s>(takes: &[Take<'s>], answer: &Answer) -> Vec<Part<'s>> {
    let receipts = takes.iter().zip(&answer.done.receipts);
    receipts
        .filter_map(|(take, receipt)| {
            Some(Part { state: take.state, limit: take.limit, receipt: (*receipt)? })
        })
        .collect()
}
