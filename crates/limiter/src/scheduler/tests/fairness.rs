//! Keys of one class take turns.

use crate::scheduler::fair_queue::{FairQueue, QueuedRequest};
use proptest::prelude::*;
use std::collections::BTreeMap;
use tidegate_core::Timestamp;

/// A queue that numbers its requests.
struct NumberedQueue {
    queue: FairQueue<()>,
    number: u64,
}

impl NumberedQueue {
    fn new() -> Self {
        Self { queue: FairQueue::new(), number: 0 }
    }

    fn push(&mut self, key: u64) -> u64 {
        self.number += 1;
        self.queue.push(key, self.number, QueuedRequest { deadline: Timestamp::END, waiter: () });
        self.number
    }

    fn push_all(&mut self, keys: impl IntoIterator<Item = u64>) {
        for key in keys {
            self.push(key);
        }
    }

    fn pops(&mut self, turns: usize) -> Vec<u64> {
        (0..turns).map(|_| self.pop()).collect()
    }

    /// The key of the next turn.
    fn pop(&mut self) -> u64 {
        self.queue.pop(|_| true).unwrap().key
    }
}

#[test]
fn keys_take_turns_and_the_requests_of_a_key_keep_their_order() {
    let mut queue = NumberedQueue::new();
    queue.push_all([1, 1, 1, 2, 2, 3]);
    let order: Vec<_> =
        (0..6).map(|_| queue.queue.pop(|_| true).unwrap()).map(|r| (r.key, r.number)).collect();
    assert_eq!(order, [(1, 1), (2, 4), (3, 6), (1, 2), (2, 5), (1, 3)]);
}

#[test]
fn a_key_with_a_thousand_waiting_requests_delays_another_key_by_at_most_one_turn() {
    for turns_before in 0..50 {
        let mut queue = NumberedQueue::new();
        queue.push_all([1; 1_000]);
        assert!(queue.pops(turns_before).iter().all(|key| *key == 1));
        for _ in 0..20 {
            queue.push(2);
            let first_two = [queue.pop(), queue.pop()];
            assert!(first_two.contains(&2), "after {turns_before} turns: {first_two:?}");
        }
    }
}

/// In plain start-time fair queueing, new keys begin at the virtual time of the last turn, which does not move while there are
/// such keys. An old key, one round ahead, then never has a turn.
#[test]
fn an_endless_stream_of_new_keys_does_not_starve_an_old_key() {
    for others in [1_usize, 2, 10, 100] {
        let mut queue = NumberedQueue::new();
        let mut fresh = 1..;
        queue.push_all([0; 10_000]);
        queue.push_all(fresh.by_ref().take(others));
        let (mut since, mut longest, mut turns) = (0, 0, 0);
        for _ in 0..5_000 {
            if queue.pop() == 0 {
                (since, turns) = (0, turns + 1);
            } else {
                since += 1;
                queue.push(fresh.next().unwrap()); // the place of a key that is gone is taken by a new one
            }
            longest = longest.max(since);
            queue.queue.assert_consistent();
        }
        let keys = others + 1;
        assert!(longest < 2 * keys, "{longest} turns of others, with {keys} keys");
        let share = 5_000 / keys;
        assert!(turns >= share * 9 / 10, "{turns} turns of a share of {share}");
    }
}

/// Each time that its queue is empty, such a key would begin at the virtual time again, before the others' next tags.
#[test]
fn a_key_that_comes_back_as_soon_as_it_had_its_turn_gets_no_more_than_its_share() {
    let mut queue = NumberedQueue::new();
    for key in 1..=20 {
        queue.push_all([key; 1_000]);
        queue.pop(); // so that the keys begin at different virtual times
    }
    queue.push(0);
    let mut turns = [0; 21];
    for _ in 0..2_100 {
        let key = queue.pop();
        turns[usize::try_from(key).unwrap()] += 1;
        if key == 0 {
            queue.push(0);
        }
    }
    assert!(turns.iter().all(|turns| (99..=101).contains(turns)), "{turns:?}");
}

/// While many keys with one request each come to an end, fewer and fewer keys share a round. Virtual time must not run ahead of
/// the tags of a key that waits on, or that key would have many turns before a new one.
#[test]
fn a_key_that_waited_beside_many_others_delays_a_new_key_by_at_most_one_turn() {
    let mut queue = NumberedQueue::new();
    queue.push_all([0; 100]);
    queue.push_all(1..=1_000);
    queue.pops(1_001);
    queue.push(2_000);
    assert!(queue.pops(2).contains(&2_000));
}

#[test]
fn a_key_that_was_away_has_no_credit() {
    let mut queue = NumberedQueue::new();
    queue.push_all([1; 2_000]);
    queue.push(2);
    queue.pops(1_000);
    queue.push_all([2; 1_000]);
    let turns_of_2 = (0..100).filter(|_| queue.pop() == 2).count();
    assert!((49..=51).contains(&turns_of_2), "{turns_of_2} of 100");
}

#[test]
fn finish_tags_of_keys_that_left_are_forgotten() {
    let mut queue = NumberedQueue::new();
    for key in 0..100_000 {
        queue.push(key);
        if key >= 50 {
            queue.pop();
        }
        assert!(queue.queue.remembered() <= 51, "{}", queue.queue.remembered());
    }
    queue.pops(50);
    assert_eq!((queue.queue.len(), queue.queue.remembered()), (0, 0));
}

#[test]
fn the_youngest_request_of_the_longest_queue_is_removed() {
    let mut queue = NumberedQueue::new();
    queue.push_all([1, 2, 2, 2, 3, 3]);
    let mut remove = || {
        let removed = queue.queue.remove_youngest_of_longest()?;
        queue.queue.assert_consistent();
        Some((removed.key, removed.number))
    };
    assert_eq!(remove(), Some((2, 4)));
    assert_eq!(remove(), Some((3, 6))); // both have two; either would do
    assert_eq!(remove(), Some((2, 3)));
    // One each: the last in the order of turns.
    assert_eq!([remove(), remove(), remove()], [Some((3, 5)), Some((2, 2)), Some((1, 1))]);
    assert_eq!(remove(), None);
}

/// A waiting request with a key of its own takes this many bytes at most: what it adds to every index, divided by how full the
/// nodes of a B-tree are at least in practice (6 of 11 entries), and two entries of the hash table.
#[test]
fn a_waiting_request_takes_at_most_about_two_hundred_bytes() {
    let tree = |entry: usize| entry * 11 / 6;
    let request = tree(size_of::<((u64, u64), QueuedRequest<Box<()>>)>());
    let deadline = tree(size_of::<(Timestamp, crate::scheduler::machine::Ticket)>());
    let (turn, key) = (tree(24), 2 * (size_of::<(u64, [u64; 3])>() + 1));
    let bytes = request + deadline + turn + key;
    assert!(bytes <= 230, "{bytes} bytes");
}

#[derive(Clone, Copy, Debug)]
enum QueueStep {
    Push(u64),
    Pop,
    /// A turn of a key that comes back at once, if it has no other request.
    PopAndComeBack,
    /// The request that waits at this position of all that wait.
    Remove(usize),
    Evict,
}

fn step() -> impl Strategy<Value = QueueStep> {
    prop_oneof![
        6 => (0_u64..8).prop_map(QueueStep::Push),
        3 => Just(QueueStep::Pop),
        3 => Just(QueueStep::PopAndComeBack),
        1 => (0_usize..100).prop_map(QueueStep::Remove),
        1 => Just(QueueStep::Evict),
    ]
}

/// Who waits, in the simplest form: the numbers of each key.
type Waiting = BTreeMap<u64, Vec<u64>>;

fn leave(waiting: &mut Waiting, key: u64, number: u64) {
    let numbers = waiting.get_mut(&key).expect("the key waits");
    numbers.retain(|waiting| *waiting != number);
    if numbers.is_empty() {
        waiting.remove(&key);
    }
}

/// How many turns other keys had while a key waits, and between how many keys they were.
#[derive(Clone, Copy, Default)]
struct TurnsOfOthers {
    turns: usize,
    most_keys: usize,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn no_key_waits_for_two_rounds(steps in prop::collection::vec(step(), 1..300)) {
        let mut queue = NumberedQueue::new();
        let mut waiting = Waiting::new();
        let mut waits = BTreeMap::<u64, TurnsOfOthers>::new();
        // For each pair of keys that both wait all the time, how many turns each had meanwhile.
        let mut pairs = BTreeMap::<(u64, u64), (i64, i64)>::new();
        for step in steps {
            match step {
                QueueStep::Push(key) => waiting.entry(key).or_default().push(queue.push(key)),
                QueueStep::Pop | QueueStep::PopAndComeBack => {
                    let keys = waiting.len();
                    let Some(popped) = queue.queue.pop(|_| true) else { continue };
                    prop_assert_eq!(Some(&popped.number), waiting[&popped.key].first());
                    leave(&mut waiting, popped.key, popped.number);
                    waits.remove(&popped.key);
                    for key in waiting.keys().filter(|key| **key != popped.key) {
                        let others = waits.entry(*key).or_default();
                        others.turns += 1;
                        others.most_keys = others.most_keys.max(keys);
                        prop_assert!(others.turns < 2 * others.most_keys);
                    }
                    for ((a, b), (turns_a, turns_b)) in &mut pairs {
                        *turns_a += i64::from(*a == popped.key);
                        *turns_b += i64::from(*b == popped.key);
                        prop_assert!((*turns_a - *turns_b).abs() <= 2);
                    }
                    let back = matches!(step, QueueStep::PopAndComeBack);
                    if back && !waiting.contains_key(&popped.key) {
                        waiting.insert(popped.key, vec![queue.push(popped.key)]);
                    }
                }
                QueueStep::Remove(at) => {
                    let all = waiting.iter().flat_map(|(key, all)| all.iter().map(|n| (*key, *n)));
                    let Some((key, number)) = all.clone().nth(at % all.count().max(1)) else { continue };
                    prop_assert!(queue.queue.remove(key, number).is_some());
                    prop_assert!(queue.queue.remove(key, number).is_none());
                    leave(&mut waiting, key, number);
                }
                QueueStep::Evict => {
                    let Some(evicted) = queue.queue.remove_youngest_of_longest() else { continue };
                    let longest = waiting.values().map(Vec::len).max();
                    prop_assert_eq!(Some(waiting[&evicted.key].len()), longest);
                    prop_assert_eq!(Some(&evicted.number), waiting[&evicted.key].last());
                    leave(&mut waiting, evicted.key, evicted.number);
                }
            }
            queue.queue.assert_consistent();
            waits.retain(|key, _| waiting.contains_key(key));
            pairs.retain(|(a, b), _| waiting.contains_key(a) && waiting.contains_key(b));
            for a in waiting.keys() {
                for b in waiting.keys().filter(|b| *b > a) {
                    pairs.entry((*a, *b)).or_default();
                }
            }
        }
    }
}
