//! The store on a real cluster: the contract over several slots, and slots that migrate under load.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::print_stdout,
    reason = "a test fails loudly, and says how much it tried"
)]

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use support::address::{look_again, own_ip};
use support::cluster::{Cluster, PATIENCE};
use support::server::{ENGINES, Server};
use support::settings;
use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, StateId, Take};
use tidegate_store::testing::conformance;
use tidegate_store::{AnsweredBy, Redis, Secret, Store, StoreError, StoreHealth};

/// The state of a key: the upper bits choose the slot.
fn state(key: u128) -> StateId {
    StateId(key | key << 112)
}

/// No window of this limit ends during a test.
fn yearly(amount: u64) -> Limit {
    Limit::new(amount, settings::LONG, Algorithm::FIXED_WINDOW).unwrap()
}

fn plan<'l>(takes: &[(u128, &'l Limit)]) -> [Plan<'l>; 1] {
    let take = |(key, limit): &(u128, &'l Limit)| Take::new(state(*key), limit, Cost::ONE);
    [Plan::new(takes.iter().map(take).collect::<Vec<_>>(), Span::ZERO).unwrap()]
}

async fn passes(store: &Redis, takes: &[(u128, &Limit)]) -> bool {
    store.take(&plan(takes)).await.pop().unwrap().unwrap().done.passes
}

async fn used(store: &Redis, key: u128, limit: &Limit) -> u64 {
    let look = &plan(&[(key, limit)])[0];
    limit.amount() - store.peek(look).await.unwrap()[0].remaining
}

#[tokio::test]
async fn a_cluster_keeps_the_contract() {
    for engine in ENGINES {
        let cluster = Cluster::start(engine).await;
        let cases = conformance(async || cluster.rig().await).await;
        println!("{engine}: {cases} cases of the contract");
        assert!(cases >= 22);
    }
}

/// Many tasks take from two limits in two slots at the same time: neither limit is exceeded, and refused plans leave no trace.
#[tokio::test(flavor = "multi_thread")]
async fn plans_over_several_slots_exceed_no_limit_and_refund_everything() {
    let cluster = Cluster::start("redis").await;
    let stores = [Arc::new(cluster.store().await), Arc::new(cluster.store().await)];
    let (user, ip): (&'static Limit, &'static Limit) =
        (Box::leak(Box::new(yearly(100))), Box::leak(Box::new(yearly(150))));
    // Three users behind two addresses; all of them want more than their limits allow.
    let tasks: Vec<_> = (0..24_u128)
        .map(|task| {
            let store = Arc::clone(&stores[usize::try_from(task % 2).unwrap()]);
            tokio::spawn(async move {
                let (user_key, ip_key) = (1 + task % 3, 1_001 + task % 2);
                let mut passed = 0_u64;
                for _ in 0..40 {
                    passed += u64::from(passes(&store, &[(user_key, user), (ip_key, ip)]).await);
                }
                (user_key, ip_key, passed)
            })
        })
        .collect();
    let mut of = std::collections::BTreeMap::<u128, u64>::new();
    for task in tasks {
        let (user_key, ip_key, passed) = task.await.unwrap();
        *of.entry(user_key).or_default() += passed;
        *of.entry(ip_key).or_default() += passed;
    }
    for (key, passed) in of {
        let limit = if key > 1_000 { ip } else { user };
        assert!(passed <= limit.amount(), "{key}: {passed} passed");
        assert_eq!(used(&stores[0], key, limit).await, passed, "{key}: charged and passed differ");
    }
}

/// A refusal is cached also if another slot had to give something back for it, and the cached answer says what is left there.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_over_several_slots_are_cached() {
    let cluster = Cluster::start("redis").await;
    let store = cluster.store().await;
    let (user, ip) = (yearly(1), yearly(100));
    let plan = plan(&[(1, &user), (1_001, &ip)]);
    assert!(store.take(&plan).await[0].as_ref().unwrap().done.passes);
    let mut cached = None;
    for _ in 0..1_000 {
        let answer = store.take(&plan).await.pop().unwrap().unwrap();
        assert!(!answer.done.passes);
        if answer.by == AnsweredBy::Cache {
            cached = Some(answer);
            break;
        }
    }
    let cached = cached.expect("no refusal was cached");
    let left = cached.done.decisions.iter().map(|decision| decision.remaining);
    assert_eq!(left.collect::<Vec<_>>(), [0, 99]);
    assert_eq!(used(&store, 1_001, &ip).await, 1);
}

/// Slots migrate with their keys while stores count in them: there is no error, and exactly the limit passes.
#[tokio::test(flavor = "multi_thread")]
async fn slots_that_migrate_lose_no_count_and_cause_no_error() {
    let cluster = Cluster::start("redis").await;
    move_under_load(&cluster, 1).await;
}

/// Slots migrate to a new server, which CLUSTER SLOTS does not list before it owns its first slot: there is no error, and exactly the
/// limit passes.
#[tokio::test(flavor = "multi_thread")]
async fn slots_that_migrate_to_a_new_server_lose_no_count_and_cause_no_error() {
    let mut cluster = Cluster::start("redis").await;
    cluster.grow("redis").await;
    move_under_load(&cluster, 3).await;
}

/// A slot begins to migrate to a server without slots: new keys are counted there, after an ASK redirect.
#[tokio::test]
async fn an_ask_redirect_to_a_server_without_slots_is_followed() {
    let mut cluster = Cluster::start("redis").await;
    cluster.grow("redis").await;
    let (store, limit) = (cluster.store().await, yearly(3));
    let key = cluster.key_on(0).await;
    cluster.begin_to_move(key, 0, 3).await;
    for passed in [true, true, true, false] {
        assert_eq!(passes(&store, &[(key, &limit)]).await, passed);
    }
}

/// One of a plan's two keys has been migrated, the other has not, and it stays so for longer than a few retries: the request
/// waits, and is counted when the migration is finished.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_migrates_slowly_only_delays_its_plans() {
    let cluster = Cluster::start("redis").await;
    let store = Arc::new(cluster.store().await);
    let limit: &'static Limit = Box::leak(Box::new(yearly(2)));
    let key = cluster.key_on(0).await;
    let take = async move |store: &Redis| {
        let other = Take::new(StateId(state(key).0 ^ (1 << 70)), limit, Cost::ONE);
        let takes = vec![Take::new(state(key), limit, Cost::ONE), other];
        store.take(&[Plan::new(takes, Span::ZERO).unwrap()]).await.pop().unwrap()
    };
    assert!(take(&store).await.unwrap().done.passes);
    cluster.begin_to_move(key, 0, 1).await;
    assert!(cluster.move_one_key(key, 0, 1).await);
    let waiting = tokio::spawn({
        let store = Arc::clone(&store);
        async move { take(&store).await }
    });
    let until_retried = async {
        while cluster.retries_told(0).await < 30 {
            look_again().await;
        }
    };
    tokio::time::timeout(PATIENCE, until_retried).await.unwrap();
    assert!(!waiting.is_finished());
    while cluster.move_one_key(key, 0, 1).await {}
    cluster.finish_move(key, 0, 1).await;
    assert!(waiting.await.unwrap().unwrap().done.passes);
    assert_eq!(used(&store, key, limit).await, 2);
}

/// Migrates the slots of the first server while four stores count in them.
async fn move_under_load(cluster: &Cluster, to: usize) {
    const KEYS: u128 = 64;
    let limits: &'static [Limit; 2] = Box::leak(Box::new([yearly(50), yearly(70)]));
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for task in 0..4_u128 {
        let (store, stop) = (cluster.store().await, Arc::clone(&stop));
        tasks.push(tokio::spawn(async move {
            let mut passed = vec![0_u64; usize::try_from(KEYS).unwrap()];
            let mut round = 0;
            while !stop.load(Ordering::Relaxed) || round < 20 {
                for key in (0..KEYS).map(|key| (key + task * 16) % KEYS) {
                    // Two states of one key are in one slot, so both must be on the same server.
                    let other =
                        Take::new(StateId(state(key + 1).0 ^ (1 << 70)), &limits[1], Cost::ONE);
                    let takes = vec![Take::new(state(key + 1), &limits[0], Cost::ONE), other];
                    let plan = [Plan::new(takes, Span::ZERO).unwrap()];
                    let answer = store.take(&plan).await.pop().unwrap();
                    let answer = answer.unwrap_or_else(|error| panic!("key {key}: {error}"));
                    passed[usize::try_from(key).unwrap()] += u64::from(answer.done.passes);
                }
                round += 1;
            }
            passed
        }));
    }
    // All keys exist before the migration begins.
    while keys(cluster).await < 2 * u64::try_from(KEYS).unwrap() {
        look_again().await;
    }
    let moved = cluster.move_slots(0, to).await;
    println!("{moved} slots migrated");
    assert!(moved >= 5, "{moved} slots migrated");
    stop.store(true, Ordering::Relaxed);
    let mut all = vec![0; usize::try_from(KEYS).unwrap()];
    for task in tasks {
        for (sum, passed) in all.iter_mut().zip(task.await.unwrap()) {
            *sum += passed;
        }
    }
    assert!(all.iter().all(|passed| *passed == 50), "{all:?}");
}

/// How many keys the cluster holds.
async fn keys(cluster: &Cluster) -> u64 {
    let mut all = 0;
    for port in cluster.ports() {
        all += redis::from_redis_value::<u64>(cluster.tell(port, &["DBSIZE"]).await).unwrap();
    }
    all
}

/// When a server is down, the error names the takes in its slots; the takes of other slots are counted as before.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_down_affects_only_its_own_slots() {
    let mut cluster = Cluster::start("redis").await;
    let (store, limit) = (cluster.store().await, yearly(1_000_000));
    // A key of each server, by CLUSTER KEYSLOT.
    let here = cluster.key_on(0).await;
    let there = cluster.key_on(1).await;
    assert!(passes(&store, &[(here, &limit), (there, &limit)]).await);
    cluster.kill(1);
    let named = async {
        loop {
            match store.take(&plan(&[(here, &limit), (there, &limit)])).await.pop().unwrap() {
                Err(StoreError::Partly(takes)) => return takes,
                Err(_) => look_again().await,
                Ok(answer) => assert!(answer.done.passes),
            }
        }
    };
    let named = tokio::time::timeout(PATIENCE, named).await.unwrap();
    assert_eq!(named, [1]);
    let before = used(&store, here, &limit).await;
    assert!(store.take(&plan(&[(there, &limit)])).await[0].is_err());
    assert!(passes(&store, &[(here, &limit)]).await);
    assert_eq!(used(&store, here, &limit).await, before + 1);
    assert!(store.complaint().is_some());
}

#[tokio::test]
async fn an_address_that_can_never_work_is_an_immediate_error() {
    let cluster = Cluster::start("redis").await;
    let server = Server::start("redis");
    let alone = cluster.url().replace("redis+cluster", "redis");
    let (ip, port) = (own_ip(), cluster.ports()[0]);
    for (url, said) in [
        (alone.as_str(), "redis+cluster://"),
        ("redis+cluster://nobody:x", "nobody:x"),
        (&format!("redis+sentinel://{ip}:{port}/primary"), "unknown command"),
    ] {
        let error = Redis::open(&settings::redis(url), &Secret::new([7; 32])).await.unwrap_err();
        assert!(error.to_string().contains(said), "{url}: {error}");
    }
    drop(server);
}

#[tokio::test]
async fn another_secret_is_refused_by_a_cluster_too() {
    let cluster = Cluster::start("redis").await;
    cluster.store().await;
    let error = Redis::open(&settings::redis(&cluster.url()), &Secret::new([8; 32])).await;
    let error = error.unwrap_err();
    assert!(matches!(error, StoreError::OtherSecret), "{error}");
}
