//! The cases of the conformance suite about receipts: what a take counted is given back once.

use super::Rig;
use super::case_helpers::limit;
use super::case_helpers::{NOW, SECOND, cost, one, parts, peek, remaining, supported, take};
use crate::store::{ReceiptId, Settled, Settlement, Store};
use tidegate_core::{Algorithm, Bound, Cost, Timestamp};

pub(super) async fn a_receipt_is_settled_once<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    let until = Timestamp::from_nanos(NOW + 60 * SECOND);
    for (id, limit) in (1u128..).zip(&supported(&rig)) {
        let takes = [cost(id, limit, 2), cost(id + 100, limit, 1)];
        take(&rig, &[one(id, limit)]).await;
        let answer = take(&rig, &takes).await;
        let parts = parts(&takes, &answer);
        let settlement = Settlement { id: ReceiptId(id), until, parts: &parts };
        assert_eq!(rig.store.give_back(&settlement).await.unwrap(), Settled::Done);
        let name = limit.algorithm().name();
        let left = peek(&rig, cost(id, limit, 0)).await;
        assert_eq!(rig.store.give_back(&settlement).await.unwrap(), Settled::Already);
        assert_eq!(peek(&rig, cost(id, limit, 0)).await, left, "{name}");
        let patient = take(&rig, &[cost(id, limit, 0)]).await.done.decisions[0];
        assert_eq!(patient.remaining, limit.capacity() - 1, "{name}");
    }
}

pub(super) async fn a_receipt_is_settled_once_in_any_order_of_its_parts<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    let limit = limit(9, 3_600, Algorithm::FIXED_WINDOW);
    let takes = [cost(1, &limit, 2), cost(1 << 120, &limit, 2)];
    let answer = take(&rig, &takes).await;
    let mut parts = parts(&takes, &answer);
    let until = Timestamp::from_nanos(NOW + SECOND);
    for expected in [Settled::Done, Settled::Already] {
        let settlement = Settlement { id: ReceiptId(5), until, parts: &parts };
        assert_eq!(rig.store.give_back(&settlement).await.unwrap(), expected);
        parts.reverse();
    }
}

pub(super) async fn two_parts_of_one_state_are_both_given_back<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    let until = Timestamp::from_nanos(NOW + SECOND);
    for (id, limit) in (1u128..).zip(&supported(&rig)) {
        let takes = [cost(id, limit, 2), cost(id, limit, 1)];
        let mut all = Vec::new();
        for one in &takes {
            let answer = take(&rig, &[*one]).await;
            all.extend(parts(&[*one], &answer));
        }
        all.reverse(); // the last in a queue first
        let settlement = Settlement { id: ReceiptId(id), until, parts: &all };
        assert_eq!(rig.store.give_back(&settlement).await.unwrap(), Settled::Done);
        assert_eq!(
            remaining(&rig, one(id, limit)).await,
            limit.capacity(),
            "{}",
            limit.algorithm().name()
        );
    }
}

/// A request that turned out to cost 1 instead of 3.
pub(super) async fn a_part_of_a_take_is_given_back<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    let until = Timestamp::from_nanos(NOW + SECOND);
    for (id, limit) in (1u128..).zip(&supported(&rig)) {
        let takes = [cost(id, limit, 3)];
        let answer = take(&rig, &takes).await;
        let mut parts = parts(&takes, &answer);
        parts[0].receipt.weight -= limit.weight(Cost::ONE, Bound::Plain).unwrap();
        let settlement = Settlement { id: ReceiptId(id), until, parts: &parts };
        assert_eq!(rig.store.give_back(&settlement).await.unwrap(), Settled::Done);
        let name = limit.algorithm().name();
        let patient = take(&rig, &[cost(id, limit, 0)]).await.done.decisions[0];
        assert_eq!(patient.remaining, limit.capacity() - 1, "{name}");
    }
}

pub(super) async fn an_expired_receipt_is_not_settled<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    let limit = limit(5, 3_600, Algorithm::FIXED_WINDOW);
    let takes = [cost(1, &limit, 2)];
    let answer = take(&rig, &takes).await;
    let until = Timestamp::from_nanos(NOW + SECOND);
    let settlement = Settlement { id: ReceiptId(1), until, parts: &parts(&takes, &answer) };
    rig.at(NOW + SECOND);
    assert_eq!(rig.store.give_back(&settlement).await.unwrap(), Settled::Late);
    assert_eq!(remaining(&rig, one(1, &limit)).await, 3);
}

pub(super) async fn a_receipt_of_a_past_window_gives_nothing_back<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    let limit = limit(5, 60, Algorithm::FIXED_WINDOW);
    let takes = [cost(1, &limit, 2)];
    let answer = take(&rig, &takes).await;
    rig.at(NOW + 60 * SECOND);
    take(&rig, &[one(1, &limit)]).await;
    let until = Timestamp::from_nanos(NOW + 600 * SECOND);
    let settlement = Settlement { id: ReceiptId(1), until, parts: &parts(&takes, &answer) };
    assert_eq!(rig.store.give_back(&settlement).await.unwrap(), Settled::Done);
    assert_eq!(remaining(&rig, one(1, &limit)).await, 4);
}
