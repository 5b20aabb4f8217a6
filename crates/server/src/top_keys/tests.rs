//! Top keys against exact counts, within their memory.

use super::list::RankedKey;
use super::table::{Counted, FIRST_BUCKETS, KeyLabel, TopTable};
use super::*;
use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;
use proptest::prelude::*;
use serde_json::json;
use std::collections::HashMap;
use tidegate::{Attributes, Check, Cost, Limiter, Memory, Outcome, Policy, Retry, Span};
use tidegate_core::Timestamp;

const MIB: usize = 1 << 20;
/// In the middle of a half.
const START_MS: u64 = 1_000 * HALF_MS + 300_000;

/// Top keys of two workers, and their clock.
struct Counting {
    top: TopKeys,
    workers: [WorkerTop; 2],
    clock: Clock,
}

impl Counting {
    fn new(memory: usize, show: KeyForm) -> Self {
        let clock = Clock::manual(Timestamp::from_nanos(START_MS * 1_000_000));
        let settings = Some(TopKeysSettings { memory, show });
        // Random seeds made one run in many fail: of ten million keys one had the fingerprint of a heavy one, and was counted with it.
        // With these seeds none has.
        let prints = SeedableRandomState::with_seed(8, SharedSeed::global_fixed());
        let top = TopKeys::with_prints(settings, 2, (&clock, &Secret::new([7; 32])), prints);
        let workers = [(); 2].map(|()| top.on_worker());
        Self { top, workers, clock }
    }

    fn used(&self, key: &str, times: usize) {
        for time in 0..times {
            self.workers[time % 2].of_take(key.as_bytes(), Outcome::Allow, Cost::ONE);
        }
    }

    fn minutes_later(&self, minutes: u64) {
        let later = self.clock.now().steady.after(Span::from_secs(60 * minutes));
        self.clock.set(later.unwrap());
    }

    /// The list of a rule.
    fn list(&self, by: TopBy, rule: &str) -> TopList {
        let (_, lists) = self.top.lists();
        let mut found = lists.into_iter().filter(|list| (list.0, &*list.1) == (by, rule));
        found.next().map(|(_, _, list)| list).unwrap_or_default()
    }

    /// The keys of a list as they are shown, with their counts.
    fn shown(&self, by: TopBy, rule: &str) -> Vec<(String, u64)> {
        let keys = self.list(by, rule).keys.into_iter();
        keys.map(|key| (json!(key.key).to_string(), key.count)).collect()
    }
}

fn named(key: &str) -> String {
    json!({ "key": key }).to_string()
}

/// A small generator (xorshift), so that the test is the same every time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Ranks with a Zipf distribution of exponent 1: a key is as likely as its rank is low.
struct Zipf(Vec<u64>);

impl Zipf {
    fn new(keys: u64) -> Self {
        let weight = |rank: u64| 1_000_000_000_000 / (rank + 1);
        let mut sum = 0;
        Self(
            (0..keys)
                .map(|rank| {
                    sum += weight(rank);
                    sum
                })
                .collect(),
        )
    }

    fn rank(&self, numbers: &mut Numbers) -> usize {
        let at = numbers.next() % self.0.last().unwrap();
        self.0.partition_point(|sum| *sum <= at)
    }
}

/// Ten million keys that are seen once hide who uses most, unless what they leave behind is bounded.
#[test]
fn heavy_keys_are_listed_in_spite_of_a_flood_of_keys_that_are_seen_once() {
    const FLOOD: u64 = 10_000_000;
    let counting = Counting::new(4 * MIB, KeyForm::Clear);
    let (zipf, mut numbers) = (Zipf::new(1_000_000), Numbers(88_172_645_463_325_252));
    let keys: Vec<String> = (0..1_000_000).map(|rank| format!("k{rank}")).collect();
    let mut exact = vec![0_u64; keys.len()];
    let (mut flooded, mut most_bytes) = (0_u64, 0);
    while flooded < FLOOD {
        let worker = &counting.workers[usize::try_from(numbers.next() % 2).unwrap()];
        if numbers.next() % 4 == 0 {
            let rank = zipf.rank(&mut numbers);
            exact[rank] += 1;
            worker.of_take(keys[rank].as_bytes(), Outcome::Allow, Cost::ONE);
        } else {
            flooded += 1;
            worker.of_take(&flooded.to_be_bytes(), Outcome::Allow, Cost::ONE);
        }
        if flooded % 100_000 == 0 {
            most_bytes = most_bytes.max(counting.top.bytes().unwrap());
        }
    }
    let mut list = counting.list(TopBy::Used, "");
    list.truncate(summary::MOST_KEYS);
    let counts: HashMap<String, &RankedKey> =
        list.keys.iter().map(|key| (json!(key.key).to_string(), key)).collect();
    let mut sorted = exact.clone();
    sorted.sort_unstable();
    let hundredth = sorted[sorted.len() - 100];
    let heavy: Vec<usize> = (0..exact.len()).filter(|rank| exact[*rank] > 2 * hundredth).collect();
    assert!(heavy.len() > 30, "{}", heavy.len());
    for rank in heavy {
        let key = counts.get(&named(&keys[rank]));
        let key = key.unwrap_or_else(|| panic!("{} with {} is missing", keys[rank], exact[rank]));
        assert!(key.count.abs_diff(exact[rank]) <= key.error, "{}: {key:?}", exact[rank]);
        assert!(key.error < exact[rank] / 2, "{}: {key:?}", exact[rank]);
    }
    assert!((100_000..4 * MIB).contains(&most_bytes), "{most_bytes}");
}

#[test]
fn few_keys_are_counted_exactly_on_all_workers() {
    let counting = Counting::new(4 * MIB, KeyForm::Clear);
    for (times, key) in [(3, "carol"), (12, "alice"), (7, "bob")] {
        counting.used(key, times);
    }
    let expected = [("alice", 12), ("bob", 7), ("carol", 3)];
    let expected = expected.map(|(key, count)| (named(key), count));
    assert_eq!(counting.shown(TopBy::Used, ""), expected);
    let list = counting.list(TopBy::Used, "");
    assert_eq!((list.rest, list.keys.iter().map(|key| key.error).max()), (0, Some(0)));
    // Costs count as much as they are, and denials count once.
    let deny = Outcome::Deny(Retry::After(Span::from_secs(9)));
    counting.workers[0].of_take(b"bob", Outcome::Allow, Cost::new(100));
    counting.workers[0].of_take(b"bob", deny, Cost::new(100));
    assert_eq!(counting.shown(TopBy::Used, "")[0], (named("bob"), 107));
    assert_eq!(counting.shown(TopBy::Denied, ""), [(named("bob"), 1)]);
}

/// Of 45 keys, three were once missing: in a table of eight buckets some of them had more keys than slots.
#[test]
fn a_few_dozen_keys_are_counted_exactly() {
    let counting = Counting::new(4 * MIB, KeyForm::Clear);
    let keys: Vec<String> = (0..60).map(|n| format!("k{n:02}")).collect();
    for _ in 0..3 {
        keys.iter().for_each(|key| counting.used(key, 1));
    }
    let expected: Vec<(String, u64)> = keys.iter().map(|key| (named(key), 3)).collect();
    let mut shown = counting.shown(TopBy::Used, "");
    shown.sort();
    assert_eq!(shown, expected);
}

#[test]
fn a_list_is_about_two_halves_of_ten_minutes() {
    let counting = Counting::new(MIB, KeyForm::Clear);
    counting.used("early", 4);
    assert_eq!(counting.top.lists().0, START_MS); // this node counts no longer
    counting.minutes_later(10);
    counting.top.lists(); // reads the clock, as the server does every second
    counting.used("early", 2);
    counting.used("late", 1);
    let both = [(named("early"), 6), (named("late"), 1)];
    assert_eq!(counting.shown(TopBy::Used, ""), both);
    let bytes = counting.top.bytes().unwrap();
    counting.minutes_later(10);
    assert_eq!(counting.shown(TopBy::Used, ""), [(named("early"), 2), (named("late"), 1)]);
    assert_eq!(counting.top.lists().0, 1_001 * HALF_MS);
    counting.minutes_later(10);
    assert_eq!(counting.shown(TopBy::Used, ""), []);
    counting.used("early", 2);
    counting.minutes_later(10);
    assert_eq!(counting.shown(TopBy::Used, ""), [(named("early"), 2)]);
    assert!(counting.top.bytes().unwrap() <= bytes);
}

const POLICY: &str = "
version: 1
rules:
  - { name: users, key: [user], limits: [{ rate: 2/h, algorithm: fixed_window }, 100/day] }
  - { name: trial, key: [user], limits: [{ rate: 1/h, algorithm: fixed_window }], shadow: true }
  - { name: keys, key: [api_key], limits: [{ rate: 1/h, algorithm: fixed_window }] }";

fn limiter(counting: &Counting, policy: &str) -> Limiter {
    let store = Memory::new(counting.clock.clone());
    let policy = Policy::parse(policy).unwrap();
    Limiter::new(policy, store, Secret::new([7; 32]), counting.clock.clone()).unwrap()
}

fn check(limiter: &Limiter, worker: &WorkerTop, name: &'static str, value: &str) -> bool {
    let attributes = Attributes::new().with(name, value).unwrap();
    let verdict = limiter.check_now(&Check::new(&attributes)).unwrap();
    worker.of_request(&verdict, &attributes);
    verdict.allowed()
}

#[test]
fn each_rule_counts_what_it_let_pass_refused_and_would_have_refused() {
    let counting = Counting::new(MIB, KeyForm::Clear);
    let limiter = limiter(&counting, POLICY);
    let passed = [0, 1, 0, 1, 1].map(|at| check(&limiter, &counting.workers[at], "user", "alice"));
    assert_eq!(passed, [true, true, false, false, false]);
    let alice = |count| vec![(json!({ "user": "alice" }).to_string(), count)];
    assert_eq!(counting.shown(TopBy::Used, "users"), alice(2));
    assert_eq!(counting.shown(TopBy::Denied, "users"), alice(3));
    assert_eq!(counting.shown(TopBy::WouldDeny, "users"), []);
    assert_eq!(counting.shown(TopBy::Used, "trial"), alice(1));
    assert_eq!(counting.shown(TopBy::WouldDeny, "trial"), alice(1));
    assert_eq!(counting.shown(TopBy::Denied, "trial"), []);
    let recent = counting.top.recent().newest(9);
    let seen: Vec<_> = recent.iter().map(|one| (&*one.rule, one.denials, one.would_deny)).collect();
    assert_eq!(seen, [("users", 3, false), ("trial", 1, true)]);
    assert_eq!((recent[0].limit.as_deref(), recent[0].retry_after_ms), (Some("h"), Some(900_000)));
}

#[test]
fn secrets_are_digests_and_other_values_as_the_setting_says() {
    let digest = |text: &str| Secret::new([7; 32]).digest(text);
    for (show, user, key) in [
        (KeyForm::Clear, json!({ "user": "alice" }), json!({ "api_key": digest("s3cr3t") })),
        (
            KeyForm::Hashed,
            json!({ "user": digest("alice") }),
            json!({ "api_key": digest("s3cr3t") }),
        ),
        (KeyForm::Omitted, json!(null), json!(null)),
    ] {
        let counting = Counting::new(MIB, show);
        let limiter = limiter(&counting, POLICY);
        check(&limiter, &counting.workers[0], "user", "alice");
        check(&limiter, &counting.workers[0], "api_key", "s3cr3t");
        assert_eq!(counting.shown(TopBy::Used, "users"), [(user.to_string(), 1)]);
        assert_eq!(counting.shown(TopBy::Used, "keys"), [(key.to_string(), 1)]);
    }
}

#[test]
fn rules_keep_their_counts_when_others_come_and_go() {
    let counting = Counting::new(MIB, KeyForm::Clear);
    let old = limiter(&counting, POLICY);
    check(&old, &counting.workers[0], "user", "alice");
    let bytes = counting.top.bytes().unwrap();
    let new = "
version: 1
rules:
  - { name: first, key: [user], limits: [9/h] }
  - { name: users, key: [user], limits: [{ rate: 2/h, algorithm: fixed_window }, 100/day] }";
    old.reload(Policy::parse(new).unwrap()).unwrap();
    check(&old, &counting.workers[0], "user", "alice");
    let alice = json!({ "user": "alice" }).to_string();
    assert_eq!(counting.shown(TopBy::Used, "users"), [(alice.clone(), 2)]);
    assert_eq!(counting.shown(TopBy::Used, "first"), [(alice, 1)]);
    assert_eq!(counting.shown(TopBy::Used, "trial"), []);
    assert_eq!(counting.top.bytes().unwrap(), bytes, "the memory of old rules is used again");
}

/// A worker has 32 KiB here, a part of what sixteen rules would like to have.
#[test]
fn many_rules_share_little_memory() {
    let counting = Counting::new(64 << 10, KeyForm::Clear);
    let rule = |number| format!("  - {{ name: r{number}, key: [user], limits: [999/h] }}\n");
    let rules: String = (0..16).map(rule).collect();
    let limiter = limiter(&counting, &format!("version: 1\nrules:\n{rules}"));
    for user in 0..3_000 {
        let worker = &counting.workers[user % 2];
        check(&limiter, worker, "user", &format!("user {user:0100}"));
        check(&limiter, worker, "user", "often");
        assert!(counting.top.bytes().unwrap() <= 64 << 10);
    }
    let often = json!({ "user": "often" }).to_string();
    for rule in 0..16 {
        let list = counting.shown(TopBy::Used, &format!("r{rule}"));
        assert_eq!(list.first().map(|(key, _)| key), Some(&often), "r{rule}");
    }
}

#[test]
fn without_memory_nothing_is_counted() {
    let clock = Clock::manual(Timestamp::from_nanos(START_MS * 1_000_000));
    let top = TopKeys::new(None, 2, (&clock, &Secret::new([7; 32])));
    let worker = top.on_worker();
    worker.of_take(b"alice", Outcome::Deny(Retry::Never), Cost::ONE);
    assert_eq!((top.lists().1, top.bytes(), top.recent().newest(9)), (vec![], None, vec![]));
}

#[test]
fn a_summary_tells_other_nodes_the_same_lists() {
    let counting = Counting::new(MIB, KeyForm::Clear);
    counting.used("alice", 5);
    counting.workers[0].of_take(b"bob", Outcome::Deny(Retry::Never), Cost::ONE);
    let read = NodeSummary::read(&counting.top.summary()).unwrap();
    assert_eq!(read, counting.top.lists());
    assert_eq!(NodeSummary::read(b"{\"v\":2,\"since_ms\":1,\"lists\":[]}"), None);
    assert_eq!(NodeSummary::read(b"not JSON"), None);
}

#[test]
fn a_summary_of_many_rules_and_long_keys_is_bounded() {
    let counting = Counting::new(64 * MIB, KeyForm::Clear);
    let rule = |number| format!("  - {{ name: r{number}, key: [user], limits: [9/h] }}\n");
    let rules: String = (0..15).map(rule).collect();
    let limiter = limiter(&counting, &format!("version: 1\nrules:\n{rules}"));
    (0..150).for_each(|user| {
        check(&limiter, &counting.workers[0], "user", &format!("{user:0128}"));
    });
    let summary = counting.top.summary();
    assert!((40_000..=128 * 1024).contains(&summary.len()), "{}", summary.len());
    let (_, lists) = NodeSummary::read(&summary).unwrap();
    assert_eq!(lists.len(), 15);
    // What was left out is still accounted for.
    assert!(lists.iter().all(|(_, _, list)| list.rest >= 1 && !list.keys.is_empty()));
}

proptest! {
    /// Whatever is counted, and whenever the table grows: a listed count is never too low, and too high by its error at most; and no
    /// key that is not listed has more than the rest.
    #[test]
    fn counts_are_within_their_errors(
        requests in prop::collection::vec((0_u32..300, 1_u64..4), 1..4_000),
        grow_at in 0_usize..4_000,
        has_room: bool,
    ) {
        let mut table = TopTable::new(0, 2);
        let mut exact = HashMap::<u64, u64>::new();
        for (at, (key, weight)) in requests.iter().enumerate() {
            // A fingerprint with bits for more buckets than the table has.
            let print = key.wrapping_mul(0x9E37_79B1);
            *exact.entry(u64::from(*key)).or_default() += weight;
            let mut counted = table.count(print, *weight);
            while counted == Counted::Full {
                if has_room {
                    table = table.grown(table.buckets() * 4);
                } else {
                    table.stay();
                }
                counted = table.count(print, *weight);
            }
            if counted == Counted::Unnamed {
                table.name(print, KeyLabel { id: u64::from(*key), key: None }, 4_096);
            }
            if at == grow_at {
                table = table.grown(FIRST_BUCKETS);
            }
        }
        let list = table.list();
        let listed: HashMap<u64, &RankedKey> = list.keys.iter().map(|key| (key.id, key)).collect();
        for (key, count) in exact {
            match listed.get(&key) {
                Some(listed) => {
                    prop_assert!(listed.count >= count, "{key}: {count}, {listed:?}");
                    prop_assert!(listed.count - listed.error <= count, "{key}: {count}, {listed:?}");
                }
                None => prop_assert!(count <= list.rest, "{key}: {count} > {}", list.rest),
            }
        }
    }
}
