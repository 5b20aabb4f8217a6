//! The table of the store in memory: it decides as the plain store does, and where it has no room it overestimates use.

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

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use support::concurrency::{self, NOW, zipf_key};
use support::dice::Dice;
use tidegate_core::{
    Algorithm, Align, Ask, Bound, Calendar, Cost, Decision, Headroom, Limit, Need, Now, Plan,
    PlanOutcome, Refill, RejectedCost, Span, StateId, Take, TakeReceipt, Timestamp, WhenFull,
    Written,
};
use tidegate_store::{Clock, Memory, Part, Plain, ReceiptId, Settled, Settlement};

const SECOND: u64 = 1_000_000_000;
const MINUTE: Span = Span::from_secs(60);
const TINY: [usize; 3] = [8 << 10, 20 << 10, 40 << 10];
/// Longer than any queue.
const PATIENT: Span = Span::from_secs(1_000_000);

fn clock() -> Clock {
    Clock::manual(Timestamp::from_nanos(NOW))
}

fn index(n: u64) -> usize {
    usize::try_from(n).unwrap()
}

/// Well-spread bits, like those of a hash.
fn spread(key: u64) -> StateId {
    StateId(u128::from(key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

/// A plan of one take of cost 1, for a client that can wait.
fn one(id: u64, limit: &Limit, when_full: WhenFull) -> Plan<'_> {
    let take = Take { when_full, ..Take::new(spread(id), limit, Cost::ONE) };
    Plan::new(take, PATIENT).unwrap()
}

// === twins: random histories, compared step by step ===

/// A reference that the store is compared with.
trait Twin<'l> {
    fn take(&mut self, plan: &Plan<'l>, now: Now) -> PlanOutcome;
    fn charge(&mut self, takes: &[Take<'l>], now: Now) -> (Vec<Decision>, Vec<TakeReceipt>);
    fn give_back(&mut self, settlement: &Settlement<'l>, now: Now) -> Settled;
    fn peek(&mut self, plan: &Plan<'l>, now: Now) -> Vec<Decision>;
    fn reset(&mut self, id: StateId, now: Now) -> bool;
}

impl<'l> Twin<'l> for Plain {
    fn take(&mut self, plan: &Plan<'l>, now: Now) -> PlanOutcome {
        self.clock().set(now.steady);
        self.take_now(plan).done
    }

    fn charge(&mut self, takes: &[Take<'l>], now: Now) -> (Vec<Decision>, Vec<TakeReceipt>) {
        self.clock().set(now.steady);
        let charged = self.charge_now(takes);
        (charged.decisions, charged.receipts)
    }

    fn give_back(&mut self, settlement: &Settlement<'l>, now: Now) -> Settled {
        self.clock().set(now.steady);
        self.give_back_now(settlement)
    }

    fn peek(&mut self, plan: &Plan<'l>, now: Now) -> Vec<Decision> {
        self.clock().set(now.steady);
        self.peek_now(plan)
    }

    fn reset(&mut self, id: StateId, now: Now) -> bool {
        self.clock().set(now.steady);
        self.reset_now(&[id]) == 1
    }
}

/// A reference that never removes states. It is for clocks that are put back: a state that was removed meanwhile would be
/// missing.
#[derive(Default)]
struct Core<'l>(HashMap<StateId, Written<'l>>);

impl<'l> Core<'l> {
    fn of(&mut self, take: &Take<'l>) -> &mut Written<'l> {
        self.0.entry(take.state).or_insert(Written::empty(take.limit))
    }
}

impl<'l> Twin<'l> for Core<'l> {
    fn take(&mut self, plan: &Plan<'l>, now: Now) -> PlanOutcome {
        let mut states: Vec<Written<'l>> =
            plan.takes().iter().map(|take| self.of(take).clone()).collect();
        let done = plan.take(now, &mut states);
        self.0.extend(plan.takes().iter().map(|take| take.state).zip(states));
        done
    }

    fn charge(&mut self, takes: &[Take<'l>], now: Now) -> (Vec<Decision>, Vec<TakeReceipt>) {
        let charge = |take: &Take<'l>| {
            let ask = Ask::new(now.of(take.limit), take.cost).bounded(take.bound);
            let receipt = take.limit.charge(self.of(take), &ask);
            let after = Ask { cost: Cost::default(), ..ask };
            (take.limit.decide(self.of(take), &after), receipt)
        };
        takes.iter().map(charge).unzip()
    }

    /// Receipts that are settled twice or too late are for the other twin.
    fn give_back(&mut self, settlement: &Settlement<'l>, now: Now) -> Settled {
        for part in settlement.parts {
            let take = Take::new(part.state, part.limit, Cost::ONE);
            self.of(&take).give_back(now.of(part.limit), part.limit, &part.receipt);
        }
        Settled::Done
    }

    fn peek(&mut self, plan: &Plan<'l>, now: Now) -> Vec<Decision> {
        let peek = |take: &Take<'l>| take.limit.decide(self.of(take), &plan.ask(take, now));
        plan.takes().iter().map(peek).collect()
    }

    fn reset(&mut self, id: StateId, _now: Now) -> bool {
        self.0.remove(&id);
        true
    }
}

const KINDS: u64 = 8;
const EDITS: u64 = 4;

/// For each kind a limit, and three edits of it. They share a state.
fn edited() -> Vec<Limit> {
    let interval = Algorithm::TokenBucket { burst: Some(7), refill: Refill::Interval };
    let first = Algorithm::FixedWindow { align: Align::First };
    let kinds = Algorithm::ALL.into_iter().chain([first, interval]);
    let edits = kinds.flat_map(|algorithm| {
        let large = match algorithm {
            Algorithm::SlidingWeighted => 10_000_000_000,
            Algorithm::SlidingBuckets { .. } => 90_000,
            Algorithm::FixedWindow { .. }
            | Algorithm::SlidingLog
            | Algorithm::TokenBucket { .. }
            | Algorithm::LeakyBucket { .. }
            | Algorithm::Concurrent => 900,
        };
        [
            (6, Headroom::None),
            (9, Headroom::Soft(50)),
            (4, Headroom::Elastic(200)),
            (large, Headroom::None),
        ]
        .map(|(amount, headroom)| {
            Limit::new(amount, MINUTE, algorithm).unwrap().with_headroom(headroom).unwrap()
        })
    });
    edits.collect()
}

/// A random history of one store and its twin.
struct History<'l> {
    limits: &'l [Limit],
    keys: u64,
    dice: Dice,
    /// The present edit of the limit, by kind.
    edit: [u64; 8],
    receipts: Vec<Part<'l>>,
    settled: u128,
}

impl<'l> History<'l> {
    fn take(&mut self) -> Take<'l> {
        let key = self.dice.roll(self.keys);
        let kind = key % KINDS;
        // Mostly the present edit, sometimes another one, as from a node that has not loaded the present policy.
        let edit =
            if self.dice.roll(20) == 0 { self.dice.roll(EDITS) } else { self.edit[index(kind)] };
        let limit = &self.limits[index(kind * EDITS + edit)];
        let half = limit.amount() / 2;
        let cost = if self.dice.roll(12) == 0 { half } else { self.dice.roll(5) };
        let need = if self.dice.roll(8) == 0 { Need::Optional } else { Need::Required };
        let refused =
            if self.dice.roll(6) == 0 { RejectedCost::Charged } else { RejectedCost::Free };
        let bound = match self.dice.roll(8) {
            0 => Bound::Headroom,
            1 => Bound::Part(37),
            _ => Bound::Plain,
        };
        let take = Take::new(spread(key), limit, Cost::new(cost));
        Take { need, refused, bound, ..take }
    }

    fn plan(&mut self) -> Plan<'l> {
        let most = if self.dice.roll(2) == 0 { 1 } else { 1 + self.dice.roll(4) };
        let mut takes: Vec<Take<'l>> = Vec::new();
        for _ in 0..most {
            let take = self.take();
            if takes.iter().all(|other| other.state != take.state) {
                takes.push(take);
            }
        }
        let wait = [Span::ZERO, Span::from_secs(self.dice.roll(90)), PATIENT];
        Plan::new(takes, wait[index(self.dice.roll(3))]).unwrap()
    }

    fn file(&mut self, plan: &Plan<'l>, done: &PlanOutcome) {
        let parts = plan.takes().iter().zip(&*done.receipts).filter_map(|(take, receipt)| {
            Some(Part { state: take.state, limit: take.limit, receipt: (*receipt)? })
        });
        self.receipts.extend(parts);
    }

    /// One random call of the store and its twin.
    fn step(&mut self, step: u64, store: &Memory, twin: &mut impl Twin<'l>) {
        let now = store.clock().now();
        if self.dice.roll(500) == 0 {
            let kind = index(self.dice.roll(KINDS));
            self.edit[kind] = self.dice.roll(EDITS);
        }
        let plan = self.plan();
        let story = || format!("step {step} at {now:?}: {plan:?}");
        match self.dice.roll(16) {
            0 | 1 => {
                let takes: Vec<Take<'l>> = (0..=self.dice.roll(3)).map(|_| self.take()).collect();
                let ours = store.charge_now(&takes);
                let (decisions, receipts) = twin.charge(&takes, now);
                assert_eq!((ours.decisions, &ours.receipts), (decisions, &receipts), "{takes:?}");
                let parts = takes.iter().zip(receipts);
                self.receipts.extend(parts.map(|(take, receipt)| Part {
                    state: take.state,
                    limit: take.limit,
                    receipt,
                }));
            }
            2 | 3 if !self.receipts.is_empty() => {
                let chosen = self.dice.roll(self.receipts.len().try_into().unwrap());
                let part = self.receipts.swap_remove(index(chosen));
                self.settled += 1;
                let part: &'l [Part<'l>] = Box::leak(Box::new([part]));
                let settlement =
                    Settlement { id: ReceiptId(self.settled), until: Timestamp::END, parts: part };
                let ours = store.give_back_now(&settlement);
                assert_eq!(ours, twin.give_back(&settlement, now), "give back {part:?}");
                assert_eq!(store.give_back_now(&settlement), Settled::Already);
            }
            4 => assert_eq!(store.peek_now(&plan), twin.peek(&plan, now), "peek, {}", story()),
            5 => {
                for take in plan.takes() {
                    let look = Plan::new(*take, PATIENT).unwrap();
                    let in_use = twin.peek(&look, now)[0].remaining < take.limit.capacity();
                    let (ours, theirs) =
                        (store.reset_now(&[take.state]) == 1, twin.reset(take.state, now));
                    // An expired state may have been removed already, or not.
                    assert!(ours == theirs || !in_use, "reset, {}", story());
                }
            }
            6 => {
                let plans: Vec<Plan<'l>> = (0..=self.dice.roll(24)).map(|_| self.plan()).collect();
                for (plan, ours) in plans.iter().zip(store.take_batch_now(&plans)) {
                    assert_eq!(
                        ours.done,
                        twin.take(plan, now),
                        "step {step}, in a batch: {plan:?}"
                    );
                    self.file(plan, &ours.done);
                }
            }
            7 => {
                let takes: Vec<Take<'l>> = (0..=self.dice.roll(24)).map(|_| self.take()).collect();
                let one = self.take();
                let taken = store.take_each_now(&takes).into_iter();
                let taken = taken.chain([store.take_one_now(&one)]);
                for (take, ours) in takes.iter().chain([&one]).zip(taken) {
                    let plan = Plan::from(*take);
                    let theirs = twin.take(&plan, now);
                    let alone = (ours.decision, ours.receipt);
                    assert_eq!(alone, (theirs.decisions[0], theirs.receipts[0]), "{take:?}");
                    self.file(&plan, &theirs);
                }
            }
            _ => {
                let ours = store.take_now(&plan);
                assert_eq!(ours.at, now.steady);
                assert_eq!(ours.done, twin.take(&plan, now), "take, {}", story());
                self.file(&plan, &ours.done);
            }
        }
        assert_eq!(store.peek_now(&plan), twin.peek(&plan, now), "after, {}", story());
        self.receipts.truncate(1_000);
    }
}

/// Plays a random history; `advance` moves the clock.
fn play<'l>(
    limits: &'l [Limit],
    seed: u64,
    twin: &mut impl Twin<'l>,
    advance: impl Fn(u64, &mut Dice) -> u64,
) {
    let store = Memory::new(clock());
    let (mut nanos, mut dice) = (NOW, Dice::new(seed ^ 77));
    let mut history = History {
        limits,
        keys: 300,
        dice: Dice::new(seed),
        edit: [0; 8],
        receipts: Vec::new(),
        settled: 0,
    };
    for step in 0..20_000 {
        nanos = advance(nanos, &mut dice);
        store.clock().set(Timestamp::from_nanos(nanos));
        history.step(step, &store, twin);
    }
    assert_eq!(store.gauges().demotions, 0);
}

#[test]
fn twins_agree_at_every_step_as_the_clock_goes_on() {
    let limits = edited();
    for seed in [1, 2] {
        play(&limits, seed, &mut Plain::new(clock()), |nanos, dice| {
            nanos
                + match dice.roll(300) {
                    0 => dice.roll(200 * SECOND),
                    1..=60 => dice.roll(SECOND),
                    _ => 0,
                }
        });
    }
}

/// An expired state is kept for a second, so a clock that is put back by less finds all states.
#[test]
fn twins_agree_at_every_step_as_the_clock_goes_forward_and_back() {
    let limits = edited();
    for seed in [3, 4] {
        let latest = AtomicU64::new(NOW);
        play(&limits, seed, &mut Core::default(), |nanos, dice| {
            let on = match dice.roll(300) {
                0 => dice.roll(200 * SECOND),
                1..=60 => dice.roll(SECOND),
                61..=90 => return latest.load(Ordering::Relaxed) - dice.roll(SECOND),
                _ => 0,
            };
            latest.fetch_max(nanos + on, Ordering::Relaxed);
            nanos + on
        });
    }
}

// === growing ===

/// Two hundred thousand new keys, with takes of earlier keys in between.
#[test]
fn no_state_is_lost_or_doubled_as_the_table_grows() {
    const KEYS: u64 = 200_000;
    let limits =
        Algorithm::ALL.map(|algorithm| Limit::new(20, Span::from_secs(86_400), algorithm).unwrap());
    let (store, plain, mut dice) = (Memory::new(clock()), Plain::new(clock()), Dice::new(5));
    let plan = |key: u64, cost: u64| {
        // Mostly states of one word: the others are slow.
        let limit = &limits[[0, 3, 4, 5, 0, 3, 4, 5, 0, 3, 4, 5, 1, 3, 4, 2][index(key % 16)]];
        Plan::new(Take::new(spread(key), limit, Cost::new(cost)), PATIENT).unwrap()
    };
    let before = store.gauges().bytes;
    for key in 0..KEYS {
        let new = plan(key, 1 + key % 4);
        assert_eq!(store.take_now(&new).done, plain.take_now(&new).done, "key {key}");
        if key % 4 == 0 {
            let old = plan(dice.roll(key + 1), dice.roll(3));
            assert_eq!(store.take_now(&old).done, plain.take_now(&old).done, "{old:?}");
        }
    }
    assert!(store.gauges().bytes > before, "it did not grow");
    let lengths = (store.len(), store.gauges().entries, store.gauges().demotions);
    assert_eq!(lengths, (plain.len(), index(KEYS), 0));
    for key in 0..KEYS {
        assert_eq!(store.peek_now(&plan(key, 0)), plain.peek_now(&plan(key, 0)), "key {key}");
    }
    assert_eq!(store.reset_now(&(0..KEYS).map(spread).collect::<Vec<_>>()), index(KEYS));
    assert!(store.is_empty());
}

/// Plans of many new keys. Each key found a free slot, but several keys found the same one. For all but the first, other states
/// were then demoted, in a table that could have grown.
#[test]
fn nothing_is_demoted_for_large_plans_while_the_table_can_grow() {
    let limit = Limit::new(5, Span::from_secs(3_600), Algorithm::TOKEN_BUCKET).unwrap();
    for keys in [2, 8, 12, 16] {
        let store = Memory::new(clock());
        for first in (0..20_000).step_by(keys) {
            let take =
                |key: usize| Take::new(spread(u64::try_from(key).unwrap()), &limit, Cost::ONE);
            let takes: Vec<Take<'_>> = (first..first + keys).map(take).collect();
            let done = store.take_now(&Plan::new(takes, Span::ZERO).unwrap()).done;
            assert!(done.passes && done.decisions.iter().all(|one| one.remaining == 4));
        }
        let gauges = store.gauges();
        let kept = (gauges.demotions, gauges.entries, store.len());
        let all = 20_000usize.next_multiple_of(keys);
        assert_eq!(kept, (0, all, all), "plans of {keys} new keys");
    }
}

/// In a full store, plans of rules with `when_full: deny` or `allow` must not demote other states. A plan that finds one free slot for
/// two new keys demotes nothing for the second.
#[test]
fn nothing_is_demoted_for_rules_that_deny_or_allow_when_full() {
    let limit = Limit::new(5, Span::from_secs(3_600), Algorithm::TOKEN_BUCKET).unwrap();
    for when_full in [WhenFull::Deny, WhenFull::Allow] {
        let store = Memory::with_budget(clock(), 8 << 10);
        for first in (0..20_000u64).step_by(16) {
            let take = |key| Take { when_full, ..Take::new(spread(key), &limit, Cost::ONE) };
            let takes: Vec<Take<'_>> = (first..first + 16).map(take).collect();
            let _ = store.take_now(&Plan::new(takes, Span::ZERO).unwrap());
        }
        assert_eq!(store.gauges().demotions, 0, "{when_full:?}");
        assert!(store.len() > 300, "{when_full:?}: {} states", store.len());
        assert_eq!(store.len(), store.gauges().entries, "{when_full:?}");
    }
}

/// Threads add keys of their own and share some others, while the table grows under all of them.
#[test]
fn many_threads_pass_exactly_the_limit_while_the_table_grows() {
    const OWN: u64 = 8_000;
    const SHARED: u64 = 40;
    let [_, log, buckets, _, token, _] = concurrency::limits();
    for threads in [2, 4, 8] {
        for limit in [&token, &log, &buckets] {
            let name = format!("{} by {threads} threads", limit.algorithm().name());
            let store = Memory::new(clock());
            let before = store.gauges().bytes;
            let passed: Vec<AtomicU64> = (0..SHARED).map(|_| AtomicU64::new(0)).collect();
            let start = Barrier::new(index(threads));
            thread::scope(|scope| {
                for thread in 0..threads {
                    let (store, passed, start, name) = (&store, &passed, &start, &name);
                    scope.spawn(move || {
                        start.wait();
                        for n in 0..OWN / threads {
                            let own = 1_000 + n * threads + thread;
                            let done = store.take_now(&concurrency::plan(own.into(), limit)).done;
                            assert!(done.passes && done.decisions[0].remaining == 49, "{name}");
                            // All threads use the same shared key at about the same time.
                            let shared = n / 16 % SHARED;
                            let plan = concurrency::plan(u128::from(shared) + 1, limit);
                            for _ in 0..8 {
                                let passes = store.take_now(&plan).done.passes;
                                passed[index(shared)].fetch_add(passes.into(), Ordering::Relaxed);
                            }
                        }
                    });
                }
            });
            assert!(store.gauges().bytes > before, "{name}: it did not grow");
            assert!(passed.into_iter().all(|passed| passed.into_inner() == 50), "{name}");
            assert_eq!(store.len(), index(OWN + SHARED), "{name}");
            assert_eq!(store.gauges().entries, store.len(), "{name}");
            for own in 1_000..1_000 + OWN {
                let plan = concurrency::plan(own.into(), limit);
                assert_eq!(store.peek_now(&plan)[0].remaining, 49, "{name}, key {own}");
            }
        }
    }
}

// === no room ===

fn within_budget(store: &Memory) {
    let gauges = store.gauges();
    assert!(gauges.bytes <= gauges.budget, "{gauges:?}");
}

/// Six algorithms, and a token bucket that is refilled at intervals.
fn seven() -> Vec<Limit> {
    let interval = Algorithm::TokenBucket { burst: Some(5), refill: Refill::Interval };
    let all = Algorithm::ALL.into_iter().chain([interval]);
    all.map(|algorithm| Limit::new(5, Span::from_secs(10), algorithm).unwrap()).collect()
}

/// Takes of cost 1 under one limit: at no time has the full store let more takes of a key pass than the plain store. (It may pass
/// one take that the plain store refuses, if it has refused an earlier one.)
fn admits_no_more(limit: &Limit, budget: usize, advance: impl Fn(&mut Dice) -> u64) {
    let (store, plain) = (Memory::with_budget(clock(), budget), Plain::new(clock()));
    let (mut dice, mut nanos) = (Dice::new(9), NOW);
    let mut admitted: HashMap<u64, (u64, u64)> = HashMap::new();
    let keys = u64::try_from(budget).unwrap() / 2;
    for step in 0..20_000u64 {
        nanos += advance(&mut dice);
        store.clock().set(Timestamp::from_nanos(nanos));
        plain.clock().set(Timestamp::from_nanos(nanos));
        let often = u64::try_from(zipf_key(&mut dice)).unwrap();
        let key = 1 + if step % 2 == 0 { often % 200 } else { dice.roll(keys) };
        let plan = one(key, limit, WhenFull::Shared);
        let (ours, theirs) = admitted.entry(key).or_default();
        *ours += u64::from(store.take_now(&plan).done.passes);
        *theirs += u64::from(plain.take_now(&plan).done.passes);
        let name = limit.algorithm().name();
        assert!(
            ours <= theirs,
            "{name}, {budget} bytes, step {step}, key {key}: {ours} > {theirs}"
        );
        if step % 256 == 0 {
            within_budget(&store);
        }
    }
    within_budget(&store);
    assert!(store.gauges().demotions > 0, "{} in {budget} bytes", limit.algorithm().name());
}

#[test]
fn without_room_no_more_is_admitted_at_one_instant() {
    for limit in seven() {
        TINY.into_iter().for_each(|budget| admits_no_more(&limit, budget, |_| 0));
    }
}

#[test]
fn without_room_no_more_is_admitted_as_the_clock_goes_on() {
    for limit in seven() {
        for budget in TINY {
            admits_no_more(&limit, budget, |dice| {
                dice.roll(500_000) + if dice.roll(4_000) == 0 { dice.roll(10 * SECOND) } else { 0 }
            });
        }
    }
}

/// Whole plans, several algorithms and costs in one store: no key gets more than its capacity at one instant.
#[test]
fn without_room_no_plan_takes_a_key_above_its_capacity() {
    for budget in TINY {
        let (limits, store, mut dice) =
            (seven(), Memory::with_budget(clock(), budget), Dice::new(11));
        let mut admitted: HashMap<StateId, u64> = HashMap::new();
        for step in 0..30_000u64 {
            let mut takes: Vec<Take<'_>> = Vec::new();
            for _ in 0..=dice.roll(3) {
                let key = if dice.roll(2) == 0 { dice.roll(100) } else { dice.roll(50_000) };
                let limit = &limits[index(key % 7)];
                let id = spread(key);
                let take = Take::new(id, limit, Cost::new(dice.roll(5)));
                let refused =
                    if dice.roll(6) == 0 { RejectedCost::Charged } else { RejectedCost::Free };
                let need = if dice.roll(6) == 0 { Need::Optional } else { Need::Required };
                if takes.iter().all(|other| other.state != id) {
                    takes.push(Take { refused, need, ..take });
                }
            }
            let plan = Plan::new(takes, PATIENT).unwrap();
            let done = store.take_now(&plan).done;
            for (take, decision) in plan.takes().iter().zip(&*done.decisions) {
                let sum = admitted.entry(take.state).or_default();
                *sum += if done.passes && decision.passes() { take.cost.get() } else { 0 };
                assert!(*sum <= take.limit.capacity(), "step {step}: {take:?} has {sum}");
            }
            if step % 256 == 0 {
                within_budget(&store);
            }
        }
        assert!(store.gauges().demotions > 0);
    }
}

/// A key that has used its limit is refused however many new keys come, also after it was demoted for them.
#[test]
fn a_flood_of_new_keys_does_not_reset_a_spent_key() {
    for limit in seven() {
        for (budget, used) in [(TINY[0], 1), (TINY[0], 0), (TINY[1], 1), (TINY[1], 0)] {
            let name = format!("{} in {budget} bytes", limit.algorithm().name());
            let store = Memory::with_budget(clock(), budget);
            let victim = one(1, &limit, WhenFull::Shared);
            // At the limit, or at one less: then it is demoted sooner.
            let first = limit.capacity() - (1 - used);
            assert!((0..first).all(|_| store.take_now(&victim).done.passes), "{name}");
            let slots = u64::try_from(budget / 128 * 7).unwrap();
            for key in 0..20 * slots {
                let _ = store.take_now(&one(1_000 + key, &limit, WhenFull::Shared));
                if key % 512 == 0 {
                    within_budget(&store);
                }
            }
            assert!(store.gauges().demotions > 0, "{name}");
            let more = (0..60).filter(|_| store.take_now(&victim).done.passes).count();
            assert!(more <= index(1 - used), "{name}: {more} more");
        }
    }
}

/// After a limit is edited to a longer period, a demoted bucket still counts what was used under the old one.
#[test]
fn an_edit_does_not_reset_a_demoted_key() {
    let limit = |seconds| Limit::new(5, Span::from_secs(seconds), Algorithm::TOKEN_BUCKET).unwrap();
    let (old, new) = (limit(10), limit(11));
    let (store, plain) = (Memory::with_budget(clock(), 8 << 10), Plain::new(clock()));
    for key in 0..20_000 {
        // Each key takes all but one of its limit, so that all keys are equal candidates for demotion.
        for _ in 0..4 {
            let plan = one(1 + key, &old, WhenFull::Shared);
            let _ = (store.take_now(&plan), plain.take_now(&plan));
        }
    }
    for key in 0..1_000 {
        let plan = one(1 + key, &new, WhenFull::Shared);
        let passed = (0..10).filter(|_| store.take_now(&plan).done.passes).count();
        let right = (0..10).filter(|_| plain.take_now(&plan).done.passes).count();
        assert!(passed <= right, "key {key}: {passed} passed after the edit, and {right} may");
    }
}

/// Weekly windows end by the steady clock, calendar windows by the wall clock. They shared lines of the sketch. The wall clock was
/// put forward by eight days. When states of a calendar limit were demoted then, they cleared lines that had ended by the wall
/// clock. With them the sketch lost weekly windows that had not ended, and their keys passed again.
#[test]
fn a_wall_clock_that_is_put_forward_does_not_reset_weekly_keys() {
    const DAY: u64 = 86_400 * SECOND;
    let weekly = Limit::new(5, Span::from_secs(7 * 86_400), Algorithm::FIXED_WINDOW).unwrap();
    let midnights = (0..30).map(|day| Timestamp::from_nanos(NOW / DAY * DAY + day * DAY));
    let daily = Limit::new(5, Calendar::new(midnights).unwrap(), Algorithm::FIXED_WINDOW).unwrap();
    let ahead = Arc::new(AtomicU64::new(0));
    let step = Arc::clone(&ahead);
    let clock = Clock::borrowed(move || Now {
        steady: Timestamp::from_nanos(NOW),
        calendar: Timestamp::from_nanos(NOW + step.load(Ordering::Relaxed)),
    });
    let store = Memory::with_budget(clock, 40 << 10);
    let mut admitted: HashMap<u64, u64> = HashMap::new();
    let mut take_all = |store: &Memory, times: u64| {
        for key in 0..3_000 {
            let plan = one(key, &weekly, WhenFull::Shared);
            let passed = (0..times).filter(|_| store.take_now(&plan).done.passes).count();
            *admitted.entry(key).or_default() += u64::try_from(passed).unwrap();
        }
        admitted.values().copied().max().unwrap_or(0)
    };
    let _ = take_all(&store, 4);
    ahead.store(8 * DAY, Ordering::Relaxed);
    for key in 100_000..110_000 {
        let _ = store.take_now(&one(key, &daily, WhenFull::Shared));
    }
    assert!(store.gauges().demotions > 10_000, "there was room");
    let most = take_all(&store, 10);
    assert!(most <= 5, "a weekly key passed {most} times of 5");
}

// === a full store that demotes nothing ===

/// Fills a store with keys that used 1 of 5; returns the store and the keys for which it had room.
fn full(limit: &Limit) -> (Memory, Vec<u64>) {
    let store = Memory::with_budget(clock(), 8 << 10);
    let is_new = |key: &u64| {
        let before = store.gauges().entries;
        let _ = store.take_now(&one(*key, limit, WhenFull::Allow));
        store.gauges().entries > before
    };
    let there = (1..20_000).filter(is_new).collect();
    (store, there)
}

/// The keys in the store have what they had, and are still counted.
fn still_there(store: &Memory, there: &[u64], limit: &Limit, when_full: WhenFull) {
    let name = limit.algorithm().name();
    let all = limit.capacity();
    for key in there {
        let plan = one(*key, limit, when_full);
        assert_eq!(store.peek_now(&plan)[0].remaining, all - 1, "{name}, key {key}");
        let done = store.take_now(&plan).done;
        assert_eq!(
            (done.passes, done.decisions[0].remaining),
            (true, all - 2),
            "{name}, key {key}"
        );
    }
    assert_eq!(store.gauges().demotions, 0, "{name}");
}

/// Limits whose states are one word, and limits whose states also need blocks, which run out first.
fn by_size() -> (Vec<Limit>, Vec<Limit>) {
    seven().into_iter().partition(|limit| {
        !matches!(limit.algorithm(), Algorithm::SlidingLog | Algorithm::SlidingBuckets { .. })
    })
}

/// How many of a thousand newcomers pass.
fn newcomers(store: &Memory, limit: &Limit, when_full: WhenFull) -> usize {
    let passes = |key: &u64| store.take_now(&one(*key, limit, when_full)).done.passes;
    (30_000..31_000).filter(passes).count()
}

fn denies(limit: &Limit) {
    let name = limit.algorithm().name();
    let (store, there) = full(limit);
    assert_eq!(newcomers(&store, limit, WhenFull::Deny), 0, "{name}: newcomers that pass");
    assert_eq!(store.len(), there.len(), "{name}");
    still_there(&store, &there, limit, WhenFull::Deny);
    store.clock().set(Timestamp::from_nanos(NOW + 100 * SECOND));
    let passes = |key| store.take_now(&one(key, limit, WhenFull::Deny)).done.passes;
    // As many keys as had room before.
    let mut others = (40_000..40_050).take(there.len());
    assert!(others.all(passes), "{name}: the old states have expired, so there is room");
    let more = (0..20).filter(|_| passes(40_000)).count();
    assert_eq!(more, index(limit.capacity()) - 1, "{name}: the new key is counted");
}

fn allows(limit: &Limit) {
    let name = limit.algorithm().name();
    let (store, there) = full(limit);
    assert_eq!(newcomers(&store, limit, WhenFull::Allow), 1_000, "{name}: newcomers that pass");
    assert_eq!(store.len(), there.len(), "{name}");
    still_there(&store, &there, limit, WhenFull::Allow);
}

#[test]
fn a_full_store_denies_windows() {
    let is_window = |limit: &&Limit| limit.ticks().is_none();
    by_size().0.iter().filter(is_window).for_each(denies);
}

#[test]
fn a_full_store_denies_buckets() {
    let is_bucket = |limit: &&Limit| limit.ticks().is_some();
    by_size().0.iter().filter(is_bucket).for_each(denies);
}

#[test]
fn a_full_store_denies_states_in_blocks() {
    by_size().1.iter().for_each(denies);
}

#[test]
fn a_full_store_allows_states_of_one_word() {
    by_size().0.iter().for_each(allows);
}

#[test]
fn a_full_store_allows_states_in_blocks() {
    by_size().1.iter().for_each(allows);
}

/// All states expire within a second, so there will be room soon. That must not admit takes that count for an hour.
#[test]
fn a_full_store_denies_limits_of_longer_periods() {
    let second = Limit::new(5, Span::from_secs(1), Algorithm::FIXED_WINDOW).unwrap();
    let passed = Algorithm::ALL.map(|algorithm| {
        let hour = Limit::new(5, Span::from_secs(3_600), algorithm).unwrap();
        let (store, _) = full(&second);
        (algorithm.name(), newcomers(&store, &hour, WhenFull::Deny))
    });
    assert!(passed.iter().all(|(_, passed)| *passed == 0), "{passed:?}");
}

// === more limits than limit numbers ===

fn numbered(amount: u64) -> Limit {
    Limit::new(amount, Span::from_secs(3_600), Algorithm::TOKEN_BUCKET).unwrap()
}

/// Limits come and go. Their numbers are used again, and every state is still read under its own limit.
#[test]
fn a_hundred_thousand_limits_one_after_another_are_decided_as_in_the_plain_store() {
    let (store, plain, mut dice) = (Memory::new(clock()), Plain::new(clock()), Dice::new(13));
    for amount in 1..=100_000 {
        let limit = numbered(amount);
        let plan = Plan::new(
            Take::new(spread(dice.roll(3_000)), &limit, Cost::new(dice.roll(5))),
            PATIENT,
        )
        .unwrap();
        assert_eq!(store.take_now(&plan).done, plain.take_now(&plan).done, "{plan:?}");
        assert_eq!(store.peek_now(&plan), plain.peek_now(&plan), "{plan:?}");
    }
    assert_eq!(store.len(), plain.len());
}

/// Every number is in use by some state, and the limits of some keys are edited to limits for which no number is left.
#[test]
fn without_free_limit_numbers_no_key_gets_more_than_its_limit() {
    let (store, plain) = (Memory::new(clock()), Plain::new(clock()));
    for key in 1..=65_536 {
        let limit = numbered(1_000_000 + key);
        let plan = one(key, &limit, WhenFull::Shared);
        assert!(store.take_now(&plan).done.passes && plain.take_now(&plan).done.passes);
    }
    for n in 0..10 {
        let limit = numbered(5 + n);
        for key in [1 + n, 100_000 + n] {
            let plan = one(key, &limit, WhenFull::Shared);
            let passed = (0..30).filter(|_| store.take_now(&plan).done.passes).count();
            let right = (0..30).filter(|_| plain.take_now(&plan).done.passes).count();
            assert!(passed <= right, "key {key}: {passed} passed, and {right} may");
        }
    }
}
