//! The cases of the conformance suite, a function each.

use super::Rig;
use super::case_helpers::{NOW, cost, limit, one, peek, remaining, state, supported, take};
use super::permit_cases::permits_are_held_until_they_are_given_back_or_their_lease_is_over;
use super::receipt_cases::{
    a_part_of_a_take_is_given_back, a_receipt_is_settled_once,
    a_receipt_is_settled_once_in_any_order_of_its_parts,
    a_receipt_of_a_past_window_gives_nothing_back, an_expired_receipt_is_not_settled,
    two_parts_of_one_state_are_both_given_back,
};
use crate::key::Name;
use crate::secret::Secret;
use crate::store::Store;
use tidegate_core::{
    Algorithm, Bound, Headroom, Limit, Need, Outcome, Plan, RejectedCost, Retry, Span, StateId,
    Take, Timestamp,
};

/// Runs all cases; returns how many there are.
pub(super) async fn all<S: Store>(make: impl AsyncFn() -> Rig<S>) -> usize {
    let mut cases = 0;
    macro_rules! run {
        ($($case:ident),* $(,)?) => { $( $case(make().await).await; cases += 1; )* };
    }
    run!(
        an_empty_plan_passes,
        exactly_the_limit_passes,
        a_refused_plan_counts_nothing,
        every_take_is_answered_when_one_refuses,
        an_optional_take_refuses_nothing,
        a_refused_take_may_be_charged,
        a_cost_above_capacity_is_never_charged,
        an_optional_take_may_be_charged,
        plans_of_one_call_are_decided_in_order,
        states_do_not_mix,
        a_peek_changes_nothing,
        a_charge_goes_into_debt_by_one_capacity_at_most,
        a_receipt_is_settled_once,
        a_receipt_is_settled_once_in_any_order_of_its_parts,
        two_parts_of_one_state_are_both_given_back,
        a_part_of_a_take_is_given_back,
        an_expired_receipt_is_not_settled,
        a_receipt_of_a_past_window_gives_nothing_back,
        permits_are_held_until_they_are_given_back_or_their_lease_is_over,
        a_reset_removes_states_and_returns_how_many,
        headroom_is_granted_and_reported,
        a_queue_says_how_long_to_wait,
        an_edited_limit_finds_its_states,
        any_cost_is_answered,
        a_retry_passes_on_time_and_not_a_microsecond_earlier,
        blocked_and_unlimited_limits_keep_no_state,
        an_unsupported_limit_is_refused_by_every_call,
    );
    cases
}

async fn an_empty_plan_passes<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    let answer = take(&rig, &[]).await;
    assert!(answer.done.passes && answer.done.decisions.is_empty());
    assert!(rig.store.take(&[]).await.is_empty());
}

async fn exactly_the_limit_passes<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    for (id, limit) in (1u128..).zip(&supported(&rig)) {
        let mut passed = 0;
        for _ in 0..20 {
            let answer = take(&rig, &[one(id, limit)]).await;
            assert_eq!(answer.at, Timestamp::from_nanos(NOW));
            passed += u64::from(answer.done.passes);
        }
        assert_eq!(passed, limit.capacity(), "{}", limit.algorithm().name());
    }
}

async fn a_refused_plan_counts_nothing<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    let (small, large) =
        (limit(2, 60, Algorithm::TOKEN_BUCKET), limit(1_000, 60, Algorithm::FIXED_WINDOW));
    let takes = [one(1, &small), one(2, &large)];
    let mut passed = 0;
    for _ in 0..50 {
        passed += u64::from(take(&rig, &takes).await.done.passes);
    }
    assert_eq!(passed, 2);
    assert_eq!(remaining(&rig, one(2, &large)).await, 998);
}

async fn every_take_is_answered_when_one_refuses<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    let (small, large) =
        (limit(1, 60, Algorithm::FIXED_WINDOW), limit(9, 60, Algorithm::FIXED_WINDOW));
    let takes = [one(1, &large), one(2, &small), one(3, &large)];
    take(&rig, &takes).await;
    let answer = take(&rig, &takes).await;
    let [first, second, third] = <[_; 3]>::try_from(&*answer.done.decisions).unwrap();
    assert_eq!((first.outcome, first.remaining), (Outcome::Allow, 8));
    assert_eq!(second.outcome, Outcome::Deny(Retry::After(Span::from_secs(60))));
    assert_eq!(third.remaining, 8);
    assert_eq!(answer.done.receipts, [None; 3]);
}

async fn an_optional_take_refuses_nothing<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    let (small, large) =
        (limit(1, 60, Algorithm::TOKEN_BUCKET), limit(9, 60, Algorithm::TOKEN_BUCKET));
    let takes = [Take { need: Need::Optional, ..one(1, &small) }, one(2, &large)];
    let first = take(&rig, &takes).await;
    let second = take(&rig, &takes).await;
    assert!(first.done.passes && first.done.receipts.iter().all(Option::is_some));
    assert!(
        second.done.passes
            && second.done.receipts[0].is_none()
            && !second.done.decisions[0].passes()
    );
    assert_eq!(remaining(&rig, one(2, &large)).await, 7);
}

async fn a_refused_take_may_be_charged<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    let (small, large) =
        (limit(1, 60, Algorithm::FIXED_WINDOW), limit(9, 60, Algorithm::FIXED_WINDOW));
    let charged = |take| Take { refused: RejectedCost::Charged, ..take };
    let takes = [charged(one(1, &small)), charged(one(2, &large)), one(3, &large)];
    take(&rig, &takes).await;
    let refused = take(&rig, &takes).await;
    assert!(!refused.done.passes);
    assert_eq!(remaining(&rig, one(2, &large)).await, 7); // counted twice
    assert_eq!(remaining(&rig, one(3, &large)).await, 8); // once
    assert!(!peek(&rig, cost(1, &small, 0)).await.passes()); // in debt
}

async fn an_optional_take_may_be_charged<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    let small = limit(1, 60, Algorithm::FIXED_WINDOW);
    let shadow = Take { need: Need::Optional, refused: RejectedCost::Charged, ..one(1, &small) };
    assert!(take(&rig, &[shadow]).await.done.passes);
    assert!(peek(&rig, cost(1, &small, 0)).await.passes()); // full, but not in debt
    assert!(take(&rig, &[shadow]).await.done.passes);
    assert!(!peek(&rig, cost(1, &small, 0)).await.passes()); // in debt
}

async fn a_cost_above_capacity_is_never_charged<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    let small = limit(3, 60, Algorithm::FIXED_WINDOW);
    let answer = take(&rig, &[Take { refused: RejectedCost::Charged, ..cost(1, &small, 4) }]).await;
    assert_eq!(answer.done.decisions[0].outcome, Outcome::Deny(Retry::Never));
    assert_eq!(remaining(&rig, one(1, &small)).await, 3);
}

async fn plans_of_one_call_are_decided_in_order<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    let small = limit(3, 60, Algorithm::TOKEN_BUCKET);
    let plans: Vec<Plan<'_>> =
        (0..5).map(|_| Plan::new(vec![one(1, &small)], Span::ZERO).unwrap()).collect();
    let answers = rig.store.take(&plans).await;
    let passed: Vec<bool> = answers.into_iter().map(|answer| answer.unwrap().done.passes).collect();
    assert_eq!(passed, [true, true, true, false, false]);
}

async fn states_do_not_mix<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    let secret = Secret::new([7; 32]);
    let limits = supported(&rig);
    // Names that differ in one part, each with all limits.
    let names = [
        ("r", "l", "u", "1"),
        ("r", "l", "u", "2"),
        ("r", "l", "v", "1"),
        ("r", "m", "u", "1"),
        ("q", "l", "u", "1"),
    ];
    let ids: Vec<(StateId, &Limit)> = limits
        .iter()
        .flat_map(|limit| {
            names.map(|(rule, name, attribute, value)| {
                let key = [(attribute, value)];
                (Name { rule, limit: name, key: &key }.id(limit, &secret), limit)
            })
        })
        .collect();
    for (taken, (id, limit)) in (0u64..).zip(&ids) {
        take(&rig, &[cost(id.0, limit, 1 + taken % 5)]).await;
    }
    for (taken, (id, limit)) in (0u64..).zip(&ids) {
        let left = take(&rig, &[cost(id.0, limit, 0)]).await.done.decisions[0].remaining;
        assert_eq!(left, limit.capacity() - 1 - taken % 5, "{}", limit.algorithm().name());
    }
}

async fn a_peek_changes_nothing<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    for (id, limit) in (1u128..).zip(&supported(&rig)) {
        take(&rig, &[one(id, limit)]).await;
        let first = peek(&rig, cost(id, limit, 2)).await;
        let second = peek(&rig, cost(id, limit, 2)).await;
        assert_eq!(first, second);
    }
}

async fn a_charge_goes_into_debt_by_one_capacity_at_most<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    for (id, limit) in (1u128..).zip(&supported(&rig)) {
        let name = limit.algorithm().name();
        let charged = rig.store.charge(&[cost(id, limit, 1_000_000)]).await.unwrap();
        assert!(!charged.decisions[0].passes(), "{name}");
        let again = rig.store.charge(&[cost(id, limit, 1)]).await.unwrap();
        assert_eq!(again.receipts[0].weight, 0, "{name}");
        assert_eq!(again.decisions, charged.decisions, "{name}");
    }
}

async fn a_reset_removes_states_and_returns_how_many<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    let limits = supported(&rig);
    let ids: Vec<StateId> = (1u128..).zip(&limits).map(|(id, _)| state(id)).collect();
    for (id, limit) in (1u128..).zip(&limits) {
        take(&rig, &[one(id, limit)]).await;
    }
    assert_eq!(
        rig.store.reset(&[ids.as_slice(), &[state(999)]].concat()).await.unwrap(),
        limits.len()
    );
    assert_eq!(rig.store.reset(&ids).await.unwrap(), 0);
    for (id, limit) in (1u128..).zip(&limits) {
        assert_eq!(remaining(&rig, one(id, limit)).await, limit.capacity());
    }
}

async fn headroom_is_granted_and_reported<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    let soft = limit(10, 60, Algorithm::FIXED_WINDOW).with_headroom(Headroom::Soft(20)).unwrap();
    let stretched = |n| Take { bound: Bound::Headroom, ..cost(1, &soft, n) };
    assert!(!take(&rig, &[stretched(10)]).await.done.decisions[0].over);
    let over = take(&rig, &[stretched(2)]).await.done;
    assert!(over.passes && over.decisions[0].over && over.decisions[0].remaining == 0);
    assert!(!take(&rig, &[stretched(1)]).await.done.passes);
    assert!(!take(&rig, &[cost(1, &soft, 1)]).await.done.passes);
}

async fn a_queue_says_how_long_to_wait<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    let queue = limit(1, 1, Algorithm::LeakyBucket { queue: Some(2) });
    if rig.store.supports(&queue).is_err() {
        return;
    }
    let outcomes =
        [Outcome::Allow, Outcome::Delay(Span::from_secs(1)), Outcome::Delay(Span::from_secs(2))];
    for outcome in outcomes {
        assert_eq!(take(&rig, &[one(1, &queue)]).await.done.decisions[0].outcome, outcome);
    }
    let full = take(&rig, &[one(1, &queue)]).await.done;
    assert_eq!(full.decisions[0].outcome, Outcome::Deny(Retry::After(Span::from_secs(1))));
    let hasty = Plan::new(vec![one(1, &queue)], Span::ZERO).unwrap();
    let hasty = rig.store.take(&[hasty]).await.pop().unwrap().unwrap();
    assert_eq!(hasty.done.decisions[0].outcome, Outcome::Deny(Retry::After(Span::from_secs(3))));
}

async fn an_edited_limit_finds_its_states<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    for (id, old) in (1u128..).zip(&supported(&rig)) {
        let name = old.algorithm().name();
        let is_bucket = matches!(old.algorithm(), Algorithm::TokenBucket { .. });
        if is_bucket && rig.declared.edits_begin_anew {
            continue;
        }
        take(&rig, &[cost(id, old, 3)]).await;
        let more = limit(8, 60, old.algorithm());
        let done = take(&rig, &[one(id, &more)]).await.done;
        if old.algorithm() == Algorithm::LEAKY_BUCKET {
            // Three turns of 12 s each, rounded up to a tick of the new limit.
            let Outcome::Delay(wait) = done.decisions[0].outcome else { panic!("{done:?}") };
            assert!((Span::from_secs(36)..=Span::from_nanos(36_000_001_000)).contains(&wait));
            continue;
        }
        assert_eq!(done.decisions[0].remaining, 4, "{name}");
        let fewer = limit(2, 60, old.algorithm());
        assert!(!take(&rig, &[one(id, &fewer)]).await.done.passes, "{name}");
        assert_eq!(remaining(&rig, one(id, &more)).await, 4, "{name}: a refusal changed the state");
    }
}

async fn any_cost_is_answered<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    for (id, limit) in (1u128..).zip(&supported(&rig)) {
        let capacity = limit.capacity();
        for (n, passes) in [
            (0, true),
            (1, true),
            (capacity, false),
            (capacity + 1, false),
            (1 << 32, false),
            (1 << 63, false),
            (u64::MAX, false),
        ] {
            let done = take(&rig, &[cost(id, limit, n)]).await.done;
            assert_eq!(done.passes, passes, "{} cost {n}", limit.algorithm().name());
            if n > capacity {
                assert_eq!(done.decisions[0].outcome, Outcome::Deny(Retry::Never));
            }
        }
        assert_eq!(
            take(&rig, &[cost(id, limit, 0)]).await.done.decisions[0].remaining,
            capacity - 1
        );
    }
}

/// Also for a store whose clock has a resolution of a microsecond.
async fn a_retry_passes_on_time_and_not_a_microsecond_earlier<S: Store>(rig: Rig<S>) {
    for (id, limit) in (1u128..).zip(&supported(&rig)) {
        rig.at(NOW);
        let name = limit.algorithm().name();
        take(&rig, &[cost(id, limit, limit.capacity())]).await;
        let refused = take(&rig, &[cost(id, limit, limit.capacity())]).await.done;
        let Outcome::Deny(Retry::After(wait)) = refused.decisions[0].outcome else {
            panic!("{name}: {:?}", refused.decisions[0])
        };
        let then = NOW + wait.as_nanos().next_multiple_of(1_000);
        rig.at(then - 1_000);
        assert!(
            !take(&rig, &[cost(id, limit, limit.capacity())]).await.done.passes,
            "{name}: too early"
        );
        rig.at(then);
        assert!(
            take(&rig, &[cost(id, limit, limit.capacity())]).await.done.passes,
            "{name}: not on time"
        );
    }
}

async fn blocked_and_unlimited_limits_keep_no_state<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    let (blocked, unlimited) = (limit(0, 60, Algorithm::TOKEN_BUCKET), Limit::unlimited());
    let refused = take(&rig, &[one(1, &unlimited), one(2, &blocked)]).await.done;
    assert!(!refused.passes);
    assert_eq!(refused.decisions[1].outcome, Outcome::Deny(Retry::Never));
    assert!(take(&rig, &[cost(1, &unlimited, u64::MAX)]).await.done.passes);
    assert_eq!(rig.store.reset(&[state(1), state(2)]).await.unwrap(), 0);
}

async fn an_unsupported_limit_is_refused_by_every_call<S: Store>(rig: Rig<S>) {
    rig.at(NOW);
    // Every store supports at least these two algorithms.
    for algorithm in [Algorithm::FIXED_WINDOW, Algorithm::SLIDING_WEIGHTED] {
        rig.store.supports(&limit(15, 60, algorithm)).unwrap();
    }
    // A limit that the store does not support is refused by all calls.
    let odd = Span::from_nanos(1_000_000_007);
    for algorithm in Algorithm::ALL {
        let odd = Limit::new(5, odd, algorithm).unwrap();
        let said = rig.store.supports(&odd).is_ok();
        let plan = || Plan::new(vec![one(1, &odd)], Span::ZERO).unwrap();
        assert_eq!(rig.store.take(&[plan()]).await.pop().unwrap().is_ok(), said);
        assert_eq!(rig.store.charge(&[one(1, &odd)]).await.is_ok(), said);
        assert_eq!(rig.store.peek(&plan()).await.is_ok(), said);
        rig.store.reset(&[state(1)]).await.unwrap();
    }
}
