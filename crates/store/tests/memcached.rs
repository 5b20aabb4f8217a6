//! The store on memcached, with real servers.

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

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::Arc;
use support::dice::Dice;
use support::memcached::{Relay, Server, connect, connect_with};
use support::{concurrency, memcached_twin as twin, timelines};
use tidegate_core::{Algorithm, Align, Cost, Limit, Plan, Span, StateId, Take, Timestamp};
use tidegate_store::testing::conformance;
use tidegate_store::{
    Clock, Memcached, Part, ReceiptId, Secret, Settled, Settlement, Store, StoreError, StoreHealth,
};

fn per_minute(amount: u64, algorithm: Algorithm) -> Limit {
    Limit::new(amount, Span::from_secs(60), algorithm).unwrap()
}

async fn take(store: &Memcached, id: u128, limit: &Limit, cost: u64) -> bool {
    let plan = Plan::from(Take::new(StateId(id), limit, Cost::new(cost)));
    store.take_one(&plan).await.unwrap().done.passes
}

#[tokio::test]
async fn memcached_keeps_the_contract() {
    let server = Server::start_frozen();
    let cases = conformance(async || server.rig().await).await;
    println!("{cases} cases of the contract");
    assert!(cases >= 22);
}

/// At least this many steps of each kind, without a difference. `TWIN_STEPS` sets another number.
const TWIN_STEPS: u64 = 50_000;

fn steps() -> u64 {
    std::env::var("TWIN_STEPS").map_or(TWIN_STEPS, |steps| steps.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_core_and_memcached_agree_at_every_step_of_random_histories() {
    let server = Arc::new(Server::start_frozen());
    let kinds = || twin::KINDS.into_iter().chain([twin::PLANS]);
    let compared: Vec<_> = kinds()
        .map(|kind| {
            let server = Arc::clone(&server);
            tokio::spawn(async move {
                let rig = server.rig_beside_others().await;
                twin::compare(&rig, kind, steps()).await
            })
        })
        .collect();
    for (kind, steps) in kinds().zip(compared) {
        println!("{kind}: {} steps", steps.await.unwrap());
    }
}

#[tokio::test]
async fn memcached_agrees_with_every_timeline_it_supports() {
    let server = Server::start_frozen();
    let played = timelines::play_all(async || server.rig().await, 1).await;
    assert!(played >= 60, "only {played} timelines");
}

#[tokio::test]
async fn what_memcached_cannot_count_is_refused_with_a_reason() {
    let server = Server::start(&[]);
    let store = server.store_by(Clock::system()).await;
    for (algorithm, reason) in [
        (Algorithm::FixedWindow { align: Align::First }, "align: epoch"),
        (Algorithm::SLIDING_LOG, "without gaps"),
        (Algorithm::SLIDING_BUCKETS, "without gaps"),
        (Algorithm::LEAKY_BUCKET, "one turn to two callers"),
        (Algorithm::Concurrent, "in flight"),
    ] {
        let error = store.supports(&per_minute(5, algorithm)).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    let fast = Limit::new(3_000_000, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    assert!(store.supports(&fast).unwrap_err().to_string().contains("two million"));
}

#[tokio::test]
async fn several_servers_share_the_keys_and_one_that_is_down_keeps_its_own() {
    let mut servers = [Server::start(&[]), Server::start(&[]), Server::start(&[])];
    let list: Vec<String> = servers.iter().map(|server| server.address.to_string()).collect();
    let url = format!("memcached://{}", list.join(","));
    let clock = Clock::manual(Timestamp::from_nanos(NOW));
    let store = connect(&url, clock).await.unwrap();
    let limit = hourly(5)[0].clone();
    for key in 0..600 {
        assert!(take(&store, key << 80, &limit, 5).await);
        assert!(!take(&store, key << 80, &limit, 1).await);
    }
    let items = |server: &Server| server.command("mg tg:canary v");
    assert!(servers.iter().all(|server| items(server).starts_with("VA")));
    servers[1].kill();
    let mut unanswered = 0;
    for key in 0..600_u128 {
        let plan = Plan::from(Take::new(StateId(key << 80), &limit, Cost::ONE));
        match store.take_one(&plan).await {
            Ok(answer) => assert!(!answer.done.passes, "key {key} moved to another server"),
            Err(_) => unanswered += 1,
        }
    }
    assert!((130..270).contains(&unanswered), "{unanswered}");
}

#[tokio::test]
async fn a_server_without_compare_and_swap_or_with_another_secret_is_refused() {
    let server = Server::start(&["-C"]);
    let error = connect(&server.url(), Clock::system()).await.unwrap_err();
    assert!(matches!(&error, StoreError::Unusable(why) if why.contains("-C")), "{error}");

    let server = Server::start(&[]);
    let _first = server.store_by(Clock::system()).await;
    let other = connect_with(&server.url(), &Secret::new([8; 32]), Clock::system()).await;
    assert!(matches!(other.unwrap_err(), StoreError::OtherSecret));
}

#[tokio::test]
async fn a_limit_of_more_than_thirty_days_keeps_its_counts() {
    let server = Server::start(&[]);
    let store = server.store_by(Clock::manual(Timestamp::from_nanos(NOW))).await;
    let limit = Limit::new(3, Span::from_secs(90 * 86_400), Algorithm::FIXED_WINDOW).unwrap();
    let mut allowed = 0;
    for _ in 0..5 {
        allowed += u32::from(take(&store, 1 << 100, &limit, 1).await);
    }
    assert_eq!(allowed, 3);
}

// === many processes ===

/// The environment variable that tells a child the URL of the server. A process without it is not a child.
const URL: &str = "TIDEGATE_MEMCACHED_URL";
const PROCESSES: usize = 4;
const TASKS: u64 = 64;
const TAKES: u64 = 100;
const ONE_KEY: u64 = 1_000;
const MANY_KEYS: u64 = 3;

/// A time in 2023, at which the clocks of tests stand still.
const NOW: u64 = 1_700_000_000_000_000_000;

fn hourly(amount: u64) -> [Limit; 3] {
    [Algorithm::FIXED_WINDOW, Algorithm::SLIDING_WEIGHTED, Algorithm::TOKEN_BUCKET]
        .map(|algorithm| Limit::new(amount, Span::from_secs(3_600), algorithm).unwrap())
}

/// Four processes of 64 tasks: 25,600 takes of one key and as many of 10,000 keys, for each algorithm. Exactly the limit passes.
#[test]
fn four_processes_pass_exactly_the_limit() {
    let server = Server::start_frozen();
    let program = std::env::current_exe().unwrap();
    let start = || {
        let mut child = Command::new(&program);
        child
            .args(["--exact", "memcached::a_process_of_four", "--nocapture"])
            .env(URL, server.url());
        child.stdout(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (0..PROCESSES).map(|_| start()).collect();
    let readers: Vec<_> = children
        .into_iter()
        .map(|child| std::thread::spawn(|| child.wait_with_output().unwrap()))
        .collect();
    // For each limit and key: what was asked, and what passed.
    let mut seen: BTreeMap<(usize, u128), (u64, u64)> = BTreeMap::new();
    for reader in readers {
        let output = reader.join().unwrap();
        assert!(output.status.success());
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let ["took", limit, key, asked, passed] = words.as_slice() else { continue };
            let key = (limit.parse().unwrap(), key.parse().unwrap());
            let (all_asked, all_passed) = seen.entry(key).or_default();
            *all_asked += asked.parse::<u64>().unwrap();
            *all_passed += passed.parse::<u64>().unwrap();
        }
    }
    assert!(seen.len() > 3_000, "{}", seen.len());
    for ((limit, key), (asked, passed)) in seen {
        let most = if key == 0 { ONE_KEY } else { MANY_KEYS };
        assert_eq!(passed, asked.min(most), "limit {limit}, key {key}");
    }
}

/// The work of a child, if this process is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_of_four() {
    let Ok(url) = std::env::var(URL) else { return };
    let store: &'static Memcached = Box::leak(Box::new(
        connect(&url, Clock::manual(Timestamp::from_nanos(NOW))).await.unwrap(),
    ));
    for limit in 0..3 {
        let tasks: Vec<_> =
            (0..TASKS).map(|task| tokio::spawn(take_all(store, limit, task))).collect();
        let mut seen: BTreeMap<u128, (u64, u64)> = BTreeMap::new();
        for task in tasks {
            for (key, passed) in task.await.unwrap() {
                let (asked, all_passed) = seen.entry(key).or_default();
                *asked += 1;
                *all_passed += u64::from(passed);
            }
        }
        println!();
        for (key, (asked, passed)) in seen {
            println!("took {limit} {key} {asked} {passed}");
        }
    }
}

/// Takes from the one key, whose number is 0, and from one of many.
async fn take_all(store: &Memcached, which: usize, task: u64) -> Vec<(u128, bool)> {
    let mut dice = Dice::new(task * 1_000 + u64::from(std::process::id()));
    let (one, many) = (&hourly(ONE_KEY)[which], &hourly(MANY_KEYS)[which]);
    let mut seen = Vec::new();
    for _ in 0..TAKES {
        let key = 1 + concurrency::zipf_key(&mut dice);
        let state = (key << 64) | u128::try_from(which).unwrap();
        seen.push((key, take(store, state, many, 1).await));
        seen.push((0, take(store, u128::try_from(which).unwrap(), one, 1).await));
    }
    seen
}

/// The difference between the clocks of two nodes.
const SKEW: u64 = 1_000_000;

/// Nodes whose clocks differ by a millisecond create a bucket, and write one that has drained, at the same moment again and again.
/// What one of them counts is not lost by another, and what it does not count is not left behind: the burst passes, no more and no
/// less.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_bucket_that_many_write_at_once_loses_nothing() {
    let server = Server::start_frozen();
    let clocks = [0, 1, 2, 3].map(|_| Clock::manual(Timestamp::from_nanos(NOW)));
    let mut stores = Vec::new();
    for clock in &clocks {
        stores.push(Arc::new(server.store_by(clock.clone()).await));
    }
    let bucket =
        Algorithm::TokenBucket { burst: Some(5), refill: tidegate_core::Refill::Continuous };
    let limit = Limit::new(1, Span::from_secs(1), bucket).unwrap();
    for round in 0..200_u64 {
        // The bucket has drained for a second longer than it was full.
        for (clock, skew) in clocks.iter().zip([0, SKEW, SKEW / 2, 0]) {
            clock.set(Timestamp::from_nanos(NOW + round * 6_000_000_000 + skew));
        }
        let takes = stores.iter().flat_map(|store| {
            (0..4).map(|_| {
                let (store, limit) = (Arc::clone(store), limit.clone());
                tokio::spawn(async move { take(&store, 7 << 100, &limit, 1).await })
            })
        });
        let takes: Vec<_> = takes.collect();
        let mut passed = 0;
        for take in takes {
            passed += u32::from(take.await.unwrap());
        }
        wait_for_what_is_taken_back(&stores, &limit).await;
        // Callers that were refused may have taken the place of others for a moment, but they left nothing behind, apart from the
        // difference between the clocks.
        clocks[1].set(Timestamp::from_nanos(NOW + round * 6_000_000_000 + 20 * SKEW));
        while take(&stores[1], 7 << 100, &limit, 1).await {
            passed += 1;
        }
        assert_eq!(passed, 5, "round {round}");
        wait_for_what_is_taken_back(&stores, &limit).await;
    }
}

/// A connection executes its commands in order, so the reply to a look comes after what was taken back.
async fn wait_for_what_is_taken_back(stores: &[Arc<Memcached>], limit: &Limit) {
    wait_for_what_is_taken_back_of(stores, StateId(7 << 100), limit).await;
}

async fn wait_for_what_is_taken_back_of(stores: &[Arc<Memcached>], state: StateId, limit: &Limit) {
    for store in stores {
        store.peek(&Plan::from(Take::new(state, limit, Cost::ONE))).await.unwrap();
    }
}

// === clocks that differ ===

/// A node whose clock was ahead had left a window, and kept its counter for two seconds only: another node that was still in this
/// window found it empty, and the limit passed once more.
#[tokio::test]
async fn a_window_is_kept_until_nodes_whose_clocks_are_ten_seconds_behind_have_left_it() {
    let server = Server::start_frozen();
    let end_of_minute = NOW / 60_000_000_000 * 60_000_000_000 + 59_999_999_999;
    let store = server.store_by(Clock::manual(Timestamp::from_nanos(end_of_minute))).await;
    for algorithm in [Algorithm::FIXED_WINDOW, Algorithm::SLIDING_WEIGHTED, Algorithm::TOKEN_BUCKET]
    {
        let limit = per_minute(1, algorithm);
        assert!(take(&store, 1 << 100, &limit, 1).await);
        let kept = server.kept();
        let (key, seconds) = kept.iter().min_by_key(|(_, seconds)| seconds).unwrap();
        assert!(*seconds >= 10, "{}: {key} for {seconds} s", algorithm.name());
        server.command("flush_all");
    }
}

/// The clock of a node was an hour fast when the node started, and was corrected. The buckets to which it had added were full for
/// that hour, because every refused request prolonged their lives.
#[tokio::test]
async fn a_bucket_that_a_wrong_clock_filled_into_the_future_is_forgotten_when_it_would_have_drained()
 {
    let server = Server::start_frozen();
    let hour = 3_600_000_000_000;
    let clock = Clock::manual(Timestamp::from_nanos(NOW + hour));
    let store = server.store_by(clock.clone()).await;
    let limit = per_minute(60, Algorithm::TOKEN_BUCKET);
    for _ in 0..30 {
        assert!(take(&store, 1 << 100, &limit, 1).await);
    }
    let counter = |(key, _): &(String, u64)| !key.starts_with("tgr");
    let [(key, seconds)] = &server.kept().into_iter().filter(counter).collect::<Vec<_>>()[..]
    else {
        panic!("one bucket")
    };
    assert!((60..=140).contains(seconds), "{seconds}");
    clock.set(Timestamp::from_nanos(NOW));
    assert!(!take(&store, 1 << 100, &limit, 1).await);
    // Half of its time is over.
    assert_eq!(server.command(&format!("mg {key} T30")), "HD");
    for _ in 0..100 {
        assert!(!take(&store, 1 << 100, &limit, 1).await);
    }
    assert_eq!(server.command(&format!("mg {key} t")), "HD t30");
    server.command(&format!("md {key}"));
    assert!(take(&store, 1 << 100, &limit, 60).await);
    assert!(!take(&store, 1 << 100, &limit, 1).await);
}

/// Nodes were compared with memcached, which has whole seconds: nodes that agreed were reported, and nodes two seconds apart were
/// not.
#[tokio::test]
async fn clocks_that_differ_by_a_second_are_reported_on_both_nodes() {
    let server = Server::start(&[]);
    let at = |millis: u64| Clock::manual(Timestamp::from_nanos(NOW + millis * 1_000_000));
    let behind = server.store_by(at(0)).await;
    let like_it = server.store_by(at(300)).await;
    let ahead = server.store_by(at(1_300)).await;
    for (store, expected) in [
        (&behind, "the clock of another node is ahead of that of this node by 1.3 s or more"),
        (&like_it, "the clock of another node is ahead of that of this node by 1.0 s or more"),
        (&ahead, "the clock of this node is ahead of that of another node by 1.3 s or more"),
    ] {
        for _ in 0.. {
            if store.complaint().as_deref() == Some(expected) {
                break;
            }
            // A server that answers lets time pass.
            store
                .peek(&Plan::from(Take::new(
                    StateId(1),
                    &per_minute(1, Algorithm::FIXED_WINDOW),
                    Cost::ONE,
                )))
                .await
                .unwrap();
        }
    }
}

// === receipts ===

/// Presents a receipt until the store answers.
async fn settled(store: &Memcached, settlement: &Settlement<'_>) -> Settled {
    loop {
        match store.give_back(settlement).await {
            Ok(settled) => return settled,
            // The connection ended, and the next one is not there yet.
            Err(StoreError::Unavailable(_)) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
}

async fn in_use(store: &Memcached, id: u128, limit: &Limit) -> u64 {
    let plan = Plan::from(Take::new(StateId(id), limit, Cost::default()));
    limit.capacity() - store.peek(&plan).await.unwrap()[0].remaining
}

/// A receipt was marked before it was given back. If the reply to the mark was lost, the caller presented the receipt again, was told
/// that it had been settled, and got nothing back: 28 of 100. Whichever reply is lost, it is given back, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receipt_is_given_back_once_whichever_reply_is_lost() {
    let server = Server::start_frozen();
    let relay = Relay::before(&server);
    let url = format!("memcached://{}", relay.address);
    let store = connect(&url, Clock::manual(Timestamp::from_nanos(NOW))).await.unwrap();
    let until = Timestamp::from_nanos(NOW + 60_000_000_000);
    for (which, limit) in (1_u128..).zip(&hourly(100)) {
        let state = which << 100;
        assert!(take(&store, state, limit, 10).await);
        for lost in 1..=5_u32 {
            let plan = Plan::from(Take::new(StateId(state), limit, Cost::new(5)));
            let receipt = store.take_one(&plan).await.unwrap().done.receipts[0].unwrap();
            let parts = [Part { state: StateId(state), limit, receipt }];
            let id = ReceiptId((which << 8) + u128::from(lost));
            let settlement = Settlement { id, until, parts: &parts };
            relay.lose(lost);
            let first = settled(&store, &settlement).await;
            // A look, the plan, another look, and the plan is executed. Then nothing more is lost.
            let expected = match lost {
                1..=3 => (Settled::Done, true),
                4 => (Settled::Already, true),
                _ => (Settled::Done, false),
            };
            assert_eq!((first, relay.has_lost()), expected, "{lost}");
            assert_eq!(settled(&store, &settlement).await, Settled::Already);
            assert_eq!(
                in_use(&store, state, limit).await,
                10,
                "{} {lost}",
                limit.algorithm().name()
            );
        }
    }
}

/// Four nodes present the same receipts at the same time, and others take from the same counter. Each is given back once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receipts_that_many_nodes_present_are_given_back_once() {
    const RECEIPTS: u64 = 40;
    let server = Server::start_frozen();
    let until = Timestamp::from_nanos(NOW + 60_000_000_000);
    let mut stores = Vec::new();
    for _ in 0..4 {
        let clock = Clock::manual(Timestamp::from_nanos(NOW));
        stores.push(Arc::new(server.store_by(clock).await));
    }
    for (which, limit) in (1_u128..).zip(hourly(1_000)) {
        let state = StateId(which << 100);
        let mut receipts = Vec::new();
        for _ in 0..RECEIPTS {
            let plan = Plan::from(Take::new(state, &limit, Cost::new(5)));
            receipts.push(stores[0].take_one(&plan).await.unwrap().done.receipts[0].unwrap());
        }
        let (limit, receipts) = (Arc::new(limit), Arc::new(receipts));
        let tasks = stores.iter().map(|store| {
            let (store, limit, receipts) =
                (Arc::clone(store), Arc::clone(&limit), Arc::clone(&receipts));
            tokio::spawn(async move {
                for (number, receipt) in (0_u128..).zip(receipts.iter()) {
                    let parts = [Part { state, limit: &limit, receipt: *receipt }];
                    let id = ReceiptId((which << 8) + number);
                    let settlement = Settlement { id, until, parts: &parts };
                    let settling = async {
                        // A caller that meets too many others at one receipt is told so, and comes again.
                        while store.give_back(&settlement).await.is_err() {}
                    };
                    tokio::join!(settling, take(&store, state.0, &limit, 1));
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        wait_for_what_is_taken_back_of(&stores, state, &limit).await;
        let taken = 4 * RECEIPTS;
        assert_eq!(
            in_use(&stores[0], state.0, &limit).await,
            taken,
            "{}",
            limit.algorithm().name()
        );
    }
}
