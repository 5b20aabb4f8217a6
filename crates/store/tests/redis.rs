//! The store on real servers: the contract, the timelines, and the scripts beside the core.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::print_stdout,
    reason = "a test fails loudly, and says how much it tried"
)]

mod support;

use support::server::{ENGINES, Server};
use support::{timelines, twin};
use tidegate_store::testing::conformance;

#[tokio::test]
async fn redis_and_valkey_keep_the_contract() {
    for engine in ENGINES {
        let server = Server::start(engine);
        let cases = conformance(async || server.rig().await).await;
        println!("{engine}: {cases} cases of the contract");
    }
}

#[tokio::test]
async fn redis_and_valkey_agree_with_every_timeline_they_support() {
    for engine in ENGINES {
        let server = Server::start(engine);
        let played = timelines::play_all(async || server.rig().await, 1_000).await;
        assert!(played >= 200, "{engine}: only {played} timelines");
    }
}

/// The figure of the contract: at least this many steps of each kind, without a difference.
const TWIN_STEPS: u64 = 50_000;

#[tokio::test(flavor = "multi_thread")]
async fn scripts_and_core_agree_to_the_last_integer() {
    // Half of the steps on each engine, all kinds at once: a step waits for its reply most of the time.
    for engine in ENGINES {
        let server = std::sync::Arc::new(Server::start(engine));
        let kinds = twin::KINDS.map(|kind| {
            let server = std::sync::Arc::clone(&server);
            tokio::spawn(async move {
                let rig = server.rig_beside_others().await;
                twin::compare(&rig, kind, TWIN_STEPS / 2).await
            })
        });
        for (kind, steps) in twin::KINDS.into_iter().zip(kinds) {
            println!("{engine}: {kind}: {} steps", steps.await.unwrap());
        }
    }
}
