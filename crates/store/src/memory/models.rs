//! Models for loom: a few steps of several threads, in every order, and every store that a load may see.
//!
//! Loom knows fences and relaxed loads, which the scheduler of the other models (shuttle) does not. So what leans on the
//! order of memory is here: reading a bucket without its lock, and numbers of limits that are used again.

use super::bucket::{Bucket, Entry, Read};
use super::shapes::Shapes;
use crate::sync::yield_now;
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;
use tidegate_core::{Algorithm, Limit, NamedBy, Span};

/// How often a thread is interrupted that could go on. Every mistake that we have planted shows with two.
const PREEMPTIONS: usize = 3;

/// Tries every order of a model's steps.
pub(crate) fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

const MINE: Entry = Entry { tag: 7, shape: 1, elsewhere: false, word: 10 };

/// A bucket with so many states of others in it, and one more.
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

/// Somebody else replaces a state while it is read: what is read stood there at one instant.
fn reads_all_or_nothing(others: u64, replacement: Entry) {
    check(move || {
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
            Read::Found(seen) => assert!(
                seen.entry == MINE || seen.entry == replacement,
                "neither the old state nor the new one: {seen:?}"
            ),
            Read::Missing => assert_ne!(replacement.tag, MINE.tag, "it is always there"),
            Read::Busy => {}
        }
        writer.join().expect("it does not panic");
    });
}

/// A state's shape is in the head, or in the tail; and its slot may be given to another state.
pub fn a_bucket_is_read_as_of_one_instant() {
    for others in [0, 3] {
        reads_all_or_nothing(others, Entry { shape: 2, word: 20, ..MINE });
        reads_all_or_nothing(others, Entry { tag: 8, shape: 2, elsewhere: true, word: 20 });
    }
}

/// Takes one: reads, and writes if the state still is what was read.
fn take_one(bucket: &Bucket) -> bool {
    let Read::Found(seen) = bucket.read(MINE.tag) else { return false };
    let Some(locked) = bucket.lock_as(&seen) else { return false };
    locked.set_word(&seen, seen.entry.word + 1);
    true
}

/// Two threads take from one state: none of their takes is lost, and one of them always gets on.
pub fn what_is_locked_as_seen_loses_no_take() {
    check(|| {
        let bucket = bucket(0);
        let other = thread::spawn({
            let bucket = Arc::clone(&bucket);
            move || take_one(&bucket)
        });
        let mine = take_one(&bucket);
        let theirs = other.join().expect("it does not panic");
        let Read::Found(seen) = bucket.read(MINE.tag) else { panic!("nobody has it locked") };
        assert_eq!(seen.entry.word, MINE.word + u64::from(mine) + u64::from(theirs));
        assert!(mine || theirs, "both gave up");
    });
}

/// The holder of the lock writes twice; a reader sees both writes or none.
pub fn what_a_holder_writes_is_seen_at_once() {
    check(|| {
        let bucket = bucket(1);
        let holder = thread::spawn({
            let bucket = Arc::clone(&bucket);
            move || {
                for word in [20, 30] {
                    let mut locked = bucket.lock();
                    let slot = locked.find(MINE.tag).expect("it was put there");
                    let shape = u16::try_from(word).expect("it is small");
                    locked.put(slot, Entry { shape, word, ..MINE });
                }
            }
        });
        if let Read::Found(seen) = bucket.read(MINE.tag) {
            let Entry { shape, word, .. } = seen.entry;
            assert!(seen.entry == MINE || u64::from(shape) == word, "half written: {seen:?}");
        }
        holder.join().expect("it does not panic");
    });
}

/// One number for two limits: it is given to the second while a thread writes a state under the first. The thread begins first
/// or, if it yields, second: loom does not find by itself all orders in which the other one begins.
pub fn a_number_is_not_written_under_its_next_meaning() {
    [false, true].into_iter().for_each(number_is_written_under_its_meaning);
}

fn number_is_written_under_its_meaning(yields: bool) {
    let limit = |amount| Limit::new(amount, Span::from_secs(60), Algorithm::TOKEN_BUCKET);
    let limits = [1, 2].map(|amount| limit(amount).expect("a plain limit"));
    check(move || {
        let (shapes, bucket) = (Arc::new(Shapes::new(1)), Arc::new(Bucket::default()));
        let [mine, other] = limits.clone();
        assert!(shapes.intern(&mine, NamedBy::Policy).is_some(), "it is the first");
        assert!(shapes.number(&mine).is_some(), "it is in the cache from now on");
        let next = thread::spawn({
            let shapes = Arc::clone(&shapes);
            move || shapes.intern(&other, NamedBy::Policy).is_some()
        });
        if yields {
            yield_now();
        }
        let number = shapes.number(&mine);
        let mut locked = bucket.lock();
        number.iter().for_each(|number| shapes.pin(number.number));
        let wrote = number.filter(|number| shapes.is_current(number.epoch));
        match (wrote, number, locked.free()) {
            (Some(number), _, Some(slot)) => {
                locked.put(slot, Entry { shape: number.number, ..MINE });
            }
            (_, Some(number), _) => shapes.release(number.number),
            (_, None, _) => {}
        }
        drop(locked);
        yield_now();
        let taken_over = next.join().expect("it does not panic");
        assert!(wrote.is_none() || !taken_over, "a state stands under the number of another limit");
    });
}
