//! The store in memory: the contract, the timelines, and what many threads do to it.

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

use support::{concurrency, timelines};
use tidegate_core::Timestamp;
use tidegate_store::testing::{Faulty, Rig, conformance};
use tidegate_store::{Clock, Memory};

fn rig() -> Rig<Memory> {
    Rig {
        store: Memory::new(Clock::manual(Timestamp::EPOCH)),
        set_time: Box::new(|store: &Memory, now| store.clock().set(now)),
    }
}

#[tokio::test]
async fn memory_keeps_the_contract() {
    let cases = conformance(async || rig()).await;
    println!("{cases} cases of the contract");
}

#[tokio::test]
async fn a_faulty_store_without_faults_keeps_the_contract() {
    let set_time = |store: &Faulty<Memory>, now| store.inner().clock().set(now);
    conformance(async || Rig { store: Faulty::new(rig().store), set_time: Box::new(set_time) })
        .await;
}

#[tokio::test]
async fn memory_agrees_with_every_timeline() {
    let played = timelines::play_all(async || rig(), 1).await;
    assert!(played >= 300, "only {played} timelines");
}

#[test]
fn no_number_of_threads_admits_more_or_less_than_the_limit() {
    concurrency::hammer(|| Memory::new(Clock::manual(Timestamp::EPOCH)));
}
