//! Models for loom: a few steps of several threads, in every order, with every value that the memory model allows a load to see.
//!
//! Loom understands fences and relaxed loads; shuttle, which runs the other models, does not. So here is what depends on
//! memory ordering: reading a bucket without its lock (the seqlock), and limit numbers that are used again.

use super::bucket::{Bucket, Entry, Read};
use super::limit_numbers::LimitNumbers;
use crate::sync::{check_model, yield_now};
use loom::sync::Arc;
use loom::thread;
use tidegate_core::{Algorithm, Limit, NamedBy, Span};

const MINE: Entry = Entry { tag: 7, limit_number: 1, in_blocks: false, word: 10 };

/// A bucket with `others` other states in it, and then `MINE`.
fn bucket(others: u64) -> Arc<Bucket> {
    let bucket = Arc::new(Bucket::default());
    {
        let mut locked = bucket.lock();
        let all = (0..others).map(|n| Entry { tag: 100 + n, ..MINE }).chain([MINE]);
        for entry in all {
            let slot = locked.free().expect("a bucket has seven slots");
            locked.put(slot, entry);
        }
    }
    bucket
}

/// Another thread replaces a state during an optimistic read: the read returns the old entry or the new one.
fn reads_all_or_nothing(others: u64, replacement: Entry) {
    check_model(move || {
        let bucket = bucket(others);
        let writer = thread::spawn({
            let bucket = Arc::clone(&bucket);
            move || {
                let mut locked = bucket.lock();
                let slot = locked.find(MINE.tag).expect("it was put there");
                locked.put(slot, replacement);
            }
        });
        match bucket.read(MINE.tag) {
            Read::Found(snapshot) => assert!(
                snapshot.entry() == MINE || snapshot.entry() == replacement,
                "neither the old state nor the new one: {snapshot:?}"
            ),
            Read::Missing => assert_ne!(replacement.tag, MINE.tag, "it is always there"),
            Read::Busy => {}
        }
        writer.join().expect("it does not panic");
    });
}

/// The limit number of the state is in the head or in the tail; and the slot may be given to another state.
pub fn a_bucket_is_read_as_of_one_instant() {
    for others in [0, 3] {
        reads_all_or_nothing(others, Entry { limit_number: 2, word: 20, ..MINE });
        reads_all_or_nothing(others, Entry { tag: 8, limit_number: 2, in_blocks: true, word: 20 });
    }
}

/// An optimistic take: reads, and writes if the state still is what was read.
fn take_one(bucket: &Bucket) -> bool {
    let Read::Found(snapshot) = bucket.read(MINE.tag) else { return false };
    let Some(locked) = bucket.lock_if_unchanged(&snapshot) else { return false };
    locked.set_word(&snapshot, snapshot.word + 1);
    true
}

/// Two threads take from one state: no take is lost, and at least one of the threads succeeds.
pub fn optimistic_writes_lose_no_take() {
    check_model(|| {
        let bucket = bucket(0);
        let other = thread::spawn({
            let bucket = Arc::clone(&bucket);
            move || take_one(&bucket)
        });
        let mine = take_one(&bucket);
        let theirs = other.join().expect("it does not panic");
        let Read::Found(snapshot) = bucket.read(MINE.tag) else {
            panic!("no thread has it locked")
        };
        assert_eq!(snapshot.word, MINE.word + u64::from(mine) + u64::from(theirs));
        assert!(mine || theirs, "both gave up");
    });
}

/// A thread replaces the entry twice, each time under the lock. A reader never sees one half of a replacement.
pub fn a_reader_sees_all_that_a_holder_wrote_or_nothing() {
    check_model(|| {
        let bucket = bucket(1);
        let holder = thread::spawn({
            let bucket = Arc::clone(&bucket);
            move || {
                for word in [20, 30] {
                    let mut locked = bucket.lock();
                    let slot = locked.find(MINE.tag).expect("it was put there");
                    let limit_number = u16::try_from(word).expect("it is small");
                    locked.put(slot, Entry { limit_number, word, ..MINE });
                }
            }
        });
        if let Read::Found(snapshot) = bucket.read(MINE.tag) {
            let Entry { limit_number, word, .. } = snapshot.entry();
            assert!(
                snapshot.entry() == MINE || u64::from(limit_number) == word,
                "half written: {snapshot:?}"
            );
        }
        holder.join().expect("it does not panic");
    });
}

/// There is one number for two limits. It is given to the second limit while a thread writes a state under the first. The
/// thread begins first or, if it yields, second: loom does not find by itself all orders in which the other thread begins.
pub fn a_number_is_not_written_after_another_limit_got_it() {
    [false, true].into_iter().for_each(number_is_written_under_its_meaning);
}

fn number_is_written_under_its_meaning(yields: bool) {
    let limit = |amount| Limit::new(amount, Span::from_secs(60), Algorithm::TOKEN_BUCKET);
    let limits = [1, 2].map(|amount| limit(amount).expect("a plain limit"));
    check_model(move || {
        let (numbers, bucket) = (Arc::new(LimitNumbers::new(1)), Arc::new(Bucket::default()));
        let [mine, other] = limits.clone();
        assert!(numbers.intern(&mine, NamedBy::Policy).is_some(), "it is the first");
        assert!(numbers.number(&mine).is_some(), "it is in the cache from now on");
        let next = thread::spawn({
            let numbers = Arc::clone(&numbers);
            move || numbers.intern(&other, NamedBy::Policy).is_some()
        });
        if yields {
            yield_now();
        }
        let number = numbers.number(&mine);
        let mut locked = bucket.lock();
        number.iter().for_each(|number| numbers.pin(number.number));
        let wrote = number.filter(|number| numbers.is_current(number.epoch));
        match (wrote, number, locked.free()) {
            (Some(number), _, Some(slot)) => {
                locked.put(slot, Entry { limit_number: number.number, ..MINE });
            }
            (_, Some(number), _) => numbers.release(number.number),
            (_, None, _) => {}
        }
        drop(locked);
        yield_now();
        let taken_over = next.join().expect("it does not panic");
        assert!(
            wrote.is_none() || !taken_over,
            "a state was written under the number of another limit"
        );
    });
}
