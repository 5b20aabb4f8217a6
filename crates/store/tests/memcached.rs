//! The store on memcached, with real servers.

mod support;

use support::memcached::{Server, connect};
use support::{memcached_twin as twin, timelines};
use tidegate_core::{Algorithm, Align, Cost, Limit, Plan, Span, StateId, Take, Timestamp};
use tidegate_store::testing::conformance;
use tidegate_store::{Clock, Memcached, MemcachedSettings, Secret, Store, StoreError};

fn per_minute(amount: u64, algorithm: Algorithm) -> Limit {
    Limit::new(amount, Span::from_secs(60), algorithm).unwrap()
}

async fn take(store: &Memcached, id: u128, limit: &Limit, cost: u64) -> bool {
    let plan = Plan::from(Take::new(StateId(id), limit, Cost::new(cost)));
    store.take_one(&plan).await.unwrap().done.passes
}

#[tokio::test]
async fn memcached_keeps_the_contract() {
    let server = Server::start(&[]);
    let cases = conformance(async || server.rig().await).await;
    println!("{cases} cases of the contract");
    assert!(cases >= 22);
}

/// Steps of the twins of each kind; `make twins` plays more.
fn steps() -> u64 {
    std::env::var("TIDEGATE_TWIN_STEPS").map_or(3_000, |steps| steps.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_core_and_memcached_agree_at_every_step_of_random_histories() {
    let server = std::sync::Arc::new(Server::start(&[]));
    let kinds = || twin::KINDS.into_iter().chain([twin::PLANS]);
    let compared: Vec<_> = kinds()
        .map(|kind| {
            let server = std::sync::Arc::clone(&server);
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
    let server = Server::start(&[]);
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
    let clock = Clock::manual(Timestamp::from_nanos(1_700_000_000_000_000_000));
    let store = connect(&url, clock).await.unwrap();
    let limit = per_minute(5, Algorithm::FIXED_WINDOW);
    for key in 0..60 {
        assert!(take(&store, key << 90, &limit, 5).await);
        assert!(!take(&store, key << 90, &limit, 1).await);
    }
    let items = |server: &Server| server.command("mg tg:canary v");
    assert!(servers.iter().all(|server| items(server).starts_with("VA")));
    servers[1].kill();
    let mut unanswered = 0;
    for key in 0..60_u128 {
        let plan = Plan::from(Take::new(StateId(key << 90), &limit, Cost::ONE));
        match store.take_one(&plan).await {
            Ok(answer) => assert!(!answer.done.passes, "key {key} moved to another server"),
            Err(_) => unanswered += 1,
        }
    }
    assert!((8..35).contains(&unanswered), "{unanswered}");
}

#[tokio::test]
async fn a_server_without_compare_and_swap_or_with_another_secret_is_refused() {
    let server = Server::start(&["-C"]);
    let error = connect(&server.url(), Clock::system()).await.unwrap_err();
    assert!(matches!(&error, StoreError::Unusable(why) if why.contains("-C")), "{error}");

    let server = Server::start(&[]);
    let _first = server.store_by(Clock::system()).await;
    let settings = MemcachedSettings::new(&server.url());
    let other = Memcached::connect(&settings, &Secret::new([8; 32]), Clock::system()).await;
    assert!(matches!(other.unwrap_err(), StoreError::OtherSecret));
}

#[tokio::test]
async fn a_limit_of_more_than_thirty_days_keeps_its_counts() {
    let server = Server::start(&[]);
    let store = server.store_by(Clock::system()).await;
    let limit = Limit::new(3, Span::from_secs(90 * 86_400), Algorithm::FIXED_WINDOW).unwrap();
    let passed = [(); 5].map(|()| ());
    let mut allowed = 0;
    for () in passed {
        allowed += u32::from(take(&store, 1 << 100, &limit, 1).await);
    }
    assert_eq!(allowed, 3);
}
