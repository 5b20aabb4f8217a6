//! A data directory that version 1 of the format wrote is read by every later version, and what this version writes is the same.
//!
//! `golden/v1` has a snapshot and a log. If the format changes, it stays as it is, and a directory of the new version is added.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests may fail loudly"
)]

use std::fs;
use std::path::{Path, PathBuf};
use tidegate_core::{
    Algorithm, Align, Cost, Headroom, Limit, Plan, Refill, Span, StateId, Take, TakeReceipt,
    Timestamp,
};
use tidegate_store::testing::open_strange_data;
use tidegate_store::{
    Clock, DataContents, Durable, DurableSettings, Part, ReceiptId, Secret, Settled, Settlement,
    StoreHealth,
};

/// When it was written.
const WRITTEN: Timestamp = Timestamp::from_nanos(1_800_000_000_000_000_000);
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/v1");

/// A limit of each kind; state `n` has the `n`-th.
fn limits() -> Vec<Limit> {
    let algorithms = [
        Algorithm::FixedWindow { align: Align::Epoch },
        Algorithm::FixedWindow { align: Align::First },
        Algorithm::SlidingLog,
        Algorithm::SlidingBuckets { buckets: 6 },
        Algorithm::SlidingWeighted,
        Algorithm::TokenBucket { burst: None, refill: Refill::Continuous },
        Algorithm::TokenBucket { burst: Some(7), refill: Refill::Interval },
        Algorithm::LeakyBucket { queue: Some(90) },
    ];
    let plain = |algorithm| Limit::new(100, Span::from_secs(86_400), algorithm).unwrap();
    let soft = plain(Algorithm::TOKEN_BUCKET).with_headroom(Headroom::Soft(20)).unwrap();
    algorithms.map(plain).into_iter().chain([soft]).collect()
}

fn id(number: usize) -> StateId {
    StateId((u128::try_from(number).unwrap() + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn settings(folder: &Path) -> DurableSettings {
    // So everything is written at once, at the end.
    let write_every = Span::from_secs(3_600);
    DurableSettings { budget: 1 << 20, write_every, ..DurableSettings::new(folder) }
}

fn secret() -> Secret {
    Secret::new([7; 32])
}

fn open(folder: &Path) -> Durable {
    let clock = Clock::manual(WRITTEN);
    let store = Durable::open(&settings(folder), &secret(), clock, &mut |_, _| ()).unwrap().0;
    // It writes once at the beginning, and once at the end.
    while store.durability().unwrap().writes == 0 {
        std::thread::yield_now();
    }
    store
}

fn take(store: &Durable, number: usize, cost: u64) -> TakeReceipt {
    let taken =
        store.memory().take_one_now(&Take::new(id(number), &limits()[number], Cost::new(cost)));
    assert!(taken.decision.passes());
    taken.receipt.unwrap()
}

fn settle(store: &Durable, number: usize, receipt: TakeReceipt) -> Settled {
    let part = Part { state: id(number), limit: &limits()[number], receipt };
    let until = WRITTEN.after(Span::from_secs(60)).unwrap();
    store.memory().give_back_now(&Settlement { id: ReceiptId(5), until, parts: &[part] })
}

/// Writes a data directory with everything in it: a snapshot and a log.
fn write(folder: &Path) {
    let store = open(folder);
    for number in 0..limits().len() {
        take(&store, number, 2);
    }
    drop(store);
    settings(folder).compact(&secret(), Clock::manual(WRITTEN), &mut |_, _| ()).unwrap();
    let store = open(folder);
    for number in (0..limits().len()).step_by(2) {
        take(&store, number, 3);
    }
    let receipt = take(&store, 5, 10);
    assert_eq!(settle(&store, 5, receipt), Settled::Done);
    store.memory().reset_now(&[id(1)]);
    drop(store);
}

/// What remains of each limit.
fn remaining(store: &Durable) -> Vec<u64> {
    let of = |(number, limit): (usize, &Limit)| {
        store.memory().peek_now(&Plan::from(Take::new(id(number), limit, Cost::ONE)))[0].remaining
    };
    limits().iter().enumerate().map(of).collect()
}

/// A folder of this test.
fn folder(name: &str) -> PathBuf {
    let folder =
        std::env::temp_dir().join(format!("tidegate-golden-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn copied(name: &str) -> PathBuf {
    let copy = folder(name);
    for file in fs::read_dir(GOLDEN).unwrap() {
        let path = file.unwrap().path();
        fs::copy(&path, copy.join(path.file_name().unwrap())).unwrap();
    }
    copy
}

#[test]
fn a_directory_of_version_1_is_read() {
    let folder = copied("read");
    let found = settings(&folder).verify(Some(&secret()), &mut |_, _| ()).unwrap();
    assert_eq!((found.damage, found.frames), (vec![], 4));
    let store = open(&folder);
    assert_eq!(remaining(&store), [95, 100, 95, 98, 95, 98, 2, 0, 95]);
    let receipt = take(&store, 5, 10);
    assert_eq!(settle(&store, 5, receipt), Settled::Already, "the receipt was settled");
    drop(store);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn this_version_writes_what_version_1_wrote() {
    let new = folder("written");
    write(&new);
    let [new_files, old_files] =
        [&new, Path::new(GOLDEN)].map(|folder| DataContents::read(folder, &mut |_, _| ()).unwrap());
    assert_eq!(new_files, old_files, "{} was written now", new.display());
    fs::remove_dir_all(new).unwrap();
}

/// The body of the first frame of a file.
fn first_body(file: &str) -> Vec<u8> {
    let bytes = fs::read(Path::new(GOLDEN).join(file)).unwrap();
    let length = u32::from_le_bytes(*bytes[136..].first_chunk().unwrap());
    let length = usize::try_from(length).unwrap();
    bytes[208..208 + length].to_vec()
}

#[test]
fn changed_bytes_in_a_frame_with_a_valid_checksum_do_no_harm() {
    for file in ["snapshot-0000000004", "log-0000000005"] {
        let body = first_body(file);
        for at in 0..body.len() {
            let mut changed = [&[1], &body[..]].concat();
            changed[at + 1] ^= 0xff;
            open_strange_data(&changed);
            open_strange_data(&[&[1], &body[..at]].concat());
        }
    }
}
