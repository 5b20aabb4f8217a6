//! Leases on real servers: several nodes spend one limit, and never more than it passes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::print_stdout,
    reason = "a test fails loudly, and what it shares with others says how much it tried"
)]

use crate::support;

use support::address::look_again;
use support::server::{ENGINES, Server};
use support::settings::{self, LONG};
use tidegate_core::{
    Algorithm, Cost, Freshness, LeaseTerms, Limit, Plan, RejectedCost, Span, StateId, Take,
    TakeReceipt, Timestamp,
};
use tidegate_store::{
    AnsweredBy, LeaseReport, Part, ReceiptId, Redis, RedisSettings, Secret, Settled, Settlement,
    Store as _, StoreHealth as _,
};

/// A state is hot after eight takes within an interval. A second is long enough also on a busy machine.
const TERMS: LeaseTerms = LeaseTerms { share: 10, interval: Span::from_secs(1), group: 7 };

async fn node(server: &Server) -> Redis {
    let settings = RedisSettings { nodes: Some(2), ..settings::redis(&server.url()) };
    Redis::connect(&settings, &Secret::new([7; 32])).await.unwrap()
}

fn leased(state: u128, limit: &Limit) -> Take<'_> {
    Take { freshness: Freshness::Lease(&TERMS), ..Take::new(StateId(state), limit, Cost::ONE) }
}

async fn take(node: &Redis, take: Take<'_>) -> (bool, AnsweredBy, Option<TakeReceipt>) {
    let answer = node.take_one(&Plan::from(take)).await.unwrap();
    (answer.done.passes, answer.by, answer.done.receipts[0])
}

fn report(node: &Redis) -> LeaseReport {
    let reports = node.leases();
    reports.into_iter().find(|report| report.group == TERMS.group).unwrap_or_default()
}

/// Takes until one is spent from a lease. Returns how many passed and the receipt of the last one.
async fn until_leased(node: &Redis, leased: Take<'_>) -> (u64, TakeReceipt) {
    for passed in 1..=100_000 {
        let (passes, by, receipt) = take(node, leased).await;
        assert!(passes, "the limit is used up before anything is leased");
        if by == AnsweredBy::Lease {
            return (passed, receipt.unwrap());
        }
    }
    panic!("nothing is leased");
}

/// What the store has counted.
async fn counted(node: &Redis, take: Take<'_>) -> u64 {
    let exact = Plan::from(Take { freshness: Freshness::Exact, cost: Cost::default(), ..take });
    take.limit.capacity() - node.peek(&exact).await.unwrap()[0].remaining
}

#[tokio::test]
async fn two_nodes_pass_exactly_the_limit_and_mostly_without_a_call() {
    for engine in ENGINES {
        let server = Server::start(engine);
        let nodes = [node(&server).await, node(&server).await];
        for (number, algorithm) in
            [Algorithm::FIXED_WINDOW, Algorithm::SLIDING_WEIGHTED, Algorithm::TOKEN_BUCKET]
                .into_iter()
                .enumerate()
        {
            let limit = Limit::new(3_000, LONG, algorithm).unwrap();
            let leased = leased(u128::try_from(number).unwrap(), &limit);
            let (mut passed, mut by_lease) = (0, 0);
            // Until both nodes refuse many times in a row: then nothing is held any more.
            let mut refused = 0;
            while refused < 400 {
                for node in &nodes {
                    let (passes, by, _) = take(node, leased).await;
                    passed += u64::from(passes);
                    by_lease += u64::from(by == AnsweredBy::Lease);
                    refused = if passes { 0 } else { refused + 1 };
                }
                assert!(passed <= 3_001, "{engine}, {algorithm:?}");
            }
            // A bucket may have refilled by one token meanwhile.
            assert!((3_000..=3_001).contains(&passed), "{engine}, {algorithm:?}: {passed}");
            assert!(by_lease > 500, "{engine}, {algorithm:?}: {by_lease} by lease");
        }
    }
}

#[tokio::test]
async fn what_is_not_spent_is_given_back_when_a_node_shuts_down() {
    for engine in ENGINES {
        let server = Server::start(engine);
        let (node, other) = (node(&server).await, node(&server).await);
        for (state, algorithm) in [(1, Algorithm::FIXED_WINDOW), (2, Algorithm::TOKEN_BUCKET)] {
            let limit = Limit::new(100_000, LONG, algorithm).unwrap();
            let leased = leased(state, &limit);
            let (passed, _) = until_leased(&node, leased).await;
            assert!(counted(&other, leased).await > passed, "{engine}: what is held is counted");
            node.release().await;
            while counted(&other, leased).await != passed {
                look_again().await;
            }
        }
        let LeaseReport { granted, spent, returned, drained, lost, held, .. } = report(&node);
        assert_eq!(held, 0);
        assert!(spent > 0 && returned > 0);
        assert!(granted.abs_diff(spent + returned + drained + lost) <= 2, "rounded for each lease");
    }
}

/// Each connection that ended burnt what its node held: after thirty, a quarter of a limit per day was gone without being used. As long
/// as it is the same process with the same data, what is held still counts there, and is spent. After a restart it may not count
/// any more, and is not spent.
#[tokio::test]
async fn what_is_held_survives_the_end_of_a_connection_and_not_that_of_the_server() {
    for engine in ENGINES {
        let mut server = Server::start(engine);
        let node = node(&server).await;
        let limit = Limit::new(1_000_000, LONG, Algorithm::FIXED_WINDOW).unwrap();
        let leased = leased(1, &limit);
        for ended in 1..=10 {
            until_leased(&node, leased).await;
            let mut killer = server.connection().await;
            let kill = ["KILL", "TYPE", "normal", "SKIPME", "yes"];
            let killed: i64 =
                redis::cmd("CLIENT").arg(&kill).query_async(&mut killer).await.unwrap();
            assert!(killed >= 1);
            until_connected_again(&node, leased).await;
            assert_eq!(report(&node).lost, 0, "{engine}: after {ended} connections");
        }
        until_leased(&node, leased).await;
        server.restart(engine);
        until_connected_again(&node, leased).await;
        assert_eq!(take(&node, leased).await.1, AnsweredBy::Store, "{engine}");
    }
}

/// Returns when the store answers. The old connection has ended, so it does that over a new one.
async fn until_connected_again(node: &Redis, leased: Take<'_>) {
    let plan = Plan::from(leased);
    while node.peek(&plan).await.is_err() {
        look_again().await;
    }
}

/// What is given back. `make mutants-leases` runs these on mutants.
mod settling {
    use super::*;

    /// One node takes, another node leases, and the first one gives back its take. The store must not give its tokens to others:
    /// they would pass in addition to what the second node holds.
    #[tokio::test]
    async fn a_cost_is_not_given_back_behind_a_slice_that_another_node_holds() {
        let server = Server::start(ENGINES[0]);
        let nodes = [node(&server).await, node(&server).await];
        let limit = Limit::new(1_000, LONG, Algorithm::TOKEN_BUCKET).unwrap();
        let leased = leased(5, &limit);
        let first = take(&nodes[0], leased).await.2.unwrap();
        assert!(first.is_slot);
        let (passed, _) = until_leased(&nodes[1], leased).await;
        let before = counted(&nodes[0], leased).await;
        let part = Part { state: leased.state, limit: &limit, receipt: first };
        let settlement = Settlement { id: ReceiptId(1), until: Timestamp::END, parts: &[part] };
        assert_eq!(nodes[0].give_back(&settlement).await.unwrap(), Settled::Done);
        assert_eq!(counted(&nodes[0], leased).await, before);
        assert_eq!(nodes[0].give_back(&settlement).await.unwrap(), Settled::Already);
        // A cost that was spent from the lease goes back to the lease of the node that gives it back.
        let held = report(&nodes[1]).held;
        let spent = take(&nodes[1], leased).await;
        assert_eq!((spent.0, spent.1), (true, AnsweredBy::Lease), "{passed}");
        let part = Part { receipt: spent.2.unwrap(), ..part };
        let settlement = Settlement { id: ReceiptId(2), parts: &[part], ..settlement };
        assert_eq!(nodes[1].give_back(&settlement).await.unwrap(), Settled::Done);
        assert!(report(&nodes[1]).held >= held);
    }

    /// A slot that is given back is free in the store, or the node that gives it back holds it: one of them, and not both.
    #[tokio::test]
    async fn a_slot_is_given_back_to_the_store_or_to_a_lease() {
        let server = Server::start(ENGINES[0]);
        let (holder, other) = (node(&server).await, node(&server).await);
        let limit = Limit::new(100_000, LONG, Algorithm::TOKEN_BUCKET).unwrap();
        let leased = leased(6, &limit);
        until_leased(&holder, leased).await;
        for id in 1..=1_000 {
            let (asks, held) = (report(&holder).asks, report(&holder).held);
            let (_, by, receipt) = take(&other, leased).await;
            assert_eq!(by, AnsweredBy::Store);
            let before = counted(&other, leased).await;
            let part = Part { state: leased.state, limit: &limit, receipt: receipt.unwrap() };
            let settlement =
                Settlement { id: ReceiptId(id), until: Timestamp::END, parts: &[part] };
            assert_eq!(holder.give_back(&settlement).await.unwrap(), Settled::Done);
            let (free, more) =
                (before - counted(&other, leased).await, report(&holder).held - held);
            // An ask of the holder, from before, may have been answered during these calls; then the numbers say nothing. The
            // holder makes no takes now, so it soon stops asking.
            if report(&holder).asks == asks && free + more > 0 {
                assert_eq!(free + more, 1, "{free} free in the store, {more} held");
                return;
            }
            look_again().await;
        }
        panic!("the node never stops asking");
    }
}

/// A plan of a leased and an exact limit: if the exact one refuses, nothing stays spent of the lease.
#[tokio::test]
async fn a_plan_spends_of_a_lease_only_if_the_store_passes_the_rest() {
    let server = Server::start(ENGINES[0]);
    let node = node(&server).await;
    let limit = Limit::new(100_000, LONG, Algorithm::FIXED_WINDOW).unwrap();
    let few = Limit::new(3, LONG, Algorithm::FIXED_WINDOW).unwrap();
    let leased = leased(5, &limit);
    until_leased(&node, leased).await;
    let both = Plan::new(vec![Take::new(StateId(6), &few, Cost::ONE), leased], Span::ZERO).unwrap();
    for expected in [true, true, true, false, false] {
        let spent = report(&node).spent;
        let answer = node.take_one(&both).await.unwrap();
        assert_eq!(answer.done.passes, expected);
        assert_eq!(answer.done.decisions.len(), 2);
        assert_eq!(answer.done.receipts[1].is_some(), expected);
        assert_eq!(report(&node).spent, spent + u64::from(expected));
    }
    // A refused cost that is charged stays spent.
    let charged = Take { refused: RejectedCost::Charged, ..leased };
    let both =
        Plan::new(vec![Take::new(StateId(6), &few, Cost::ONE), charged], Span::ZERO).unwrap();
    let spent = report(&node).spent;
    assert!(!node.take_one(&both).await.unwrap().done.passes);
    assert_eq!(report(&node).spent, spent + 1);
}

#[tokio::test]
async fn a_reset_and_an_edited_limit_end_a_lease() {
    let server = Server::start(ENGINES[0]);
    let node = node(&server).await;
    let limit = Limit::new(100_000, LONG, Algorithm::FIXED_WINDOW).unwrap();
    let leased = leased(5, &limit);
    until_leased(&node, leased).await;
    assert_eq!(node.reset(&[leased.state]).await.unwrap(), 1);
    assert_eq!(report(&node).leases, 0);
    assert_eq!(take(&node, leased).await.1, AnsweredBy::Store);
    until_leased(&node, leased).await;
    let blocked = Limit::new(0, LONG, Algorithm::FIXED_WINDOW).unwrap();
    let (passes, by, _) = take(&node, Take { limit: &blocked, ..leased }).await;
    assert_eq!((passes, by), (false, AnsweredBy::Store));
    assert_eq!(report(&node).held, 0);
}

/// Many keys, each asked for once: none is leased.
#[tokio::test]
async fn cold_keys_are_not_leased() {
    let server = Server::start(ENGINES[0]);
    let node = node(&server).await;
    let limit = Limit::new(1_000, LONG, Algorithm::TOKEN_BUCKET).unwrap();
    for first in (0..20_000_u64).step_by(100) {
        let id = |n: u64| u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let plans: Vec<Plan<'_>> =
            (first..first + 100).map(|n| Plan::from(leased(id(n), &limit))).collect();
        assert!(node.take(&plans).await.into_iter().all(|answer| answer.unwrap().done.passes));
    }
    assert_eq!(report(&node), LeaseReport::default());
}
