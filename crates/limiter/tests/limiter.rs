//! The limiter under load, while its policy is edited, and without its store.

#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "a test fails loudly"
)]

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tidegate::{
    Attributes, Check, Clock, Cost, DecidedBy, Decision, Limit, Limiter, Memory, Outcome, Policy,
    Renewal, Report, Retry, Secret, Settled, Span, Store, StoreError, Timestamp,
};
use tidegate_core::{Plan, StateId, Take};
use tidegate_store::{Answer, Charged, Settlement};

const NOW: Timestamp = Timestamp::from_nanos(1_800_000_000_000_000_000);

fn policy(rules: &str) -> Policy {
    Policy::parse(format!("version: 1\nrules:\n{rules}")).unwrap()
}

fn limiter(rules: &str) -> (Limiter, Clock) {
    let clock = Clock::manual(NOW);
    let memory = Memory::new(clock.clone());
    (Limiter::new(policy(rules), memory, Secret::new([7; 32]), clock.clone()).unwrap(), clock)
}

fn user(name: &str) -> Attributes<'static> {
    Attributes::new().with("user", name.to_owned()).unwrap()
}

/// A policy whose amounts tell its version: 1,001 and 2,001 in version 1, and so on up to a multiple of 7.
fn version(n: u64, algorithm: &str) -> Policy {
    let rule = |name: &str, amount: u64| {
        format!(
            "  - {{ name: {name}, key: [user], limits: [{{ rate: {amount}/day, algorithm: {algorithm} }}] }}\n"
        )
    };
    policy(&(rule("a", 1_000 + n % 7) + &rule("b", 2_000 + n % 7)))
}

/// Limits are edited hundreds of times while four threads ask. No counter may be reset, no client may get a free burst, and
/// every verdict must be of exactly one version.
#[test]
fn editing_under_load() {
    for algorithm in
        ["fixed_window", "sliding_log", "sliding_buckets", "sliding_weighted", "token_bucket"]
    {
        let clock = Clock::manual(NOW);
        let memory = Memory::new(clock.clone());
        let limiter =
            Limiter::new(version(1, algorithm), memory, Secret::new([7; 32]), clock).unwrap();
        let (passed, edits, done) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let alice = user("alice");
                    // Until enough edits and requests have run concurrently, however slow the machine is.
                    while edits.load(Ordering::Relaxed) < 300
                        || passed.load(Ordering::Relaxed) < 1_000
                    {
                        let verdict = limiter.check_now(&Check::new(&alice)).unwrap();
                        let n = verdict.policy_version() % 7;
                        let amounts: Vec<u64> =
                            verdict.limits().map(|l| l.limit.amount()).collect();
                        assert_eq!(amounts, [1_000 + n, 2_000 + n], "{algorithm}");
                        passed.fetch_add(u64::from(verdict.allowed()), Ordering::Relaxed);
                    }
                    done.store(true, Ordering::Relaxed);
                });
            }
            while !done.load(Ordering::Relaxed) {
                let next = limiter.version() + 1;
                assert_eq!(limiter.reload(version(next, algorithm)).unwrap(), next);
                edits.fetch_add(1, Ordering::Relaxed);
            }
        });
        // The clock stands still, so in total as many pass as the largest version allows: 1,006.
        let alice = user("alice");
        limiter.reload(version(6, algorithm)).unwrap();
        while limiter.check_now(&Check::new(&alice)).unwrap().allowed() {
            passed.fetch_add(1, Ordering::Relaxed);
        }
        assert_eq!(passed.load(Ordering::Relaxed), 1_006, "{algorithm}");
    }
}

/// A store that fails, completely or in part, when the test says so.
struct Fragile {
    memory: Memory,
    gone: AtomicBool,
    /// The indices of takes that it cannot decide, in a plan of several.
    missing: Mutex<Vec<usize>>,
    nodes: AtomicU32,
    /// The cost that was granted without it.
    owed: AtomicU64,
}

impl Fragile {
    fn check(&self) -> Result<(), StoreError> {
        let gone = self.gone.load(Ordering::Relaxed);
        if gone { Err(StoreError::TimedOut(Span::from_millis(5))) } else { Ok(()) }
    }
}

impl Store for Fragile {
    async fn take(&self, plans: &[Plan<'_>]) -> Vec<Result<Answer, StoreError>> {
        let missing = self.missing.lock().unwrap().clone();
        let partly = |plan: &Plan<'_>| missing.iter().any(|take| *take < plan.takes().len());
        match self.check() {
            Ok(()) if plans.iter().any(|plan| plan.takes().len() > 1 && partly(plan)) => {
                plans.iter().map(|_| Err(StoreError::Partly(missing.clone()))).collect()
            }
            Ok(()) => self.memory.take(plans).await,
            Err(_) => plans.iter().map(|_| Err(self.check().unwrap_err())).collect(),
        }
    }

    async fn charge(&self, takes: &[Take<'_>]) -> Result<Charged, StoreError> {
        self.check()?;
        self.memory.charge(takes).await
    }

    async fn give_back(&self, settlement: &Settlement<'_>) -> Result<Settled, StoreError> {
        self.check()?;
        self.memory.give_back(settlement).await
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Vec<Decision>, StoreError> {
        self.check()?;
        self.memory.peek(plan).await
    }

    async fn reset(&self, states: &[StateId]) -> Result<usize, StoreError> {
        self.check()?;
        self.memory.reset(states).await
    }

    fn owe(&self, takes: &[Take<'_>]) {
        let costs = takes.iter().map(|take| take.cost.get()).sum();
        self.owed.fetch_add(costs, Ordering::Relaxed);
    }

    fn nodes(&self) -> u32 {
        self.nodes.load(Ordering::Relaxed)
    }

    fn supports(&self, limit: &Limit) -> Result<(), StoreError> {
        // Like a store with smaller integers, such as the 53 bits of Lua.
        match limit.amount() {
            0..=1_000_000 => Ok(()),
            _ => {
                Err(StoreError::Unsupported { limit: Box::new(limit.clone()), reason: "too large" })
            }
        }
    }
}

fn fragile(rules: &str) -> Limiter<Fragile> {
    let clock = Clock::manual(NOW);
    let store = Fragile {
        memory: Memory::new(clock.clone()),
        gone: AtomicBool::new(true),
        missing: Mutex::default(),
        nodes: AtomicU32::new(1),
        owed: AtomicU64::new(0),
    };
    Limiter::new(policy(rules), store, Secret::new([7; 32]), clock).unwrap()
}

#[tokio::test]
async fn without_the_store_every_rule_follows_its_on_store_error() {
    let alice = user("alice");
    for (setting, expected) in [("local", 2), ("allow", 5), ("deny", 0)] {
        let limiter = fragile(&format!(
            "  - {{ name: a, key: [user], limits: [2/h], on_store_error: {setting} }}"
        ));
        let mut passed = 0;
        for _ in 0..5 {
            let verdict = limiter.check(&Check::new(&alice)).await.unwrap();
            assert_eq!(verdict.decided_by, DecidedBy::Fallback);
            passed += u32::from(verdict.allowed());
        }
        assert_eq!(passed, expected, "{setting}");
        assert_eq!(limiter.stats().store_errors, 5);
        limiter.store().gone.store(false, Ordering::Relaxed);
        let back = limiter.check(&Check::new(&alice)).await.unwrap();
        assert!(back.allowed() && back.decided_by == DecidedBy::Store);
    }
}

/// How many of `requests` requests pass.
async fn passed_of(limiter: &Limiter<Fragile>, who: &Attributes<'_>, requests: u32) -> u32 {
    let mut passed = 0;
    for _ in 0..requests {
        passed += u32::from(limiter.check(&Check::new(who)).await.unwrap().allowed());
    }
    passed
}

/// What a node had counted in its fallback was forgotten as soon as the store answered any request. So a client whom the store
/// did not answer in time got a fresh share whenever another client was answered. It must count for as long as the limit
/// counts.
#[tokio::test]
async fn a_node_grants_its_share_once_however_often_the_store_recovers() {
    let alice = user("alice");
    for (nodes, share) in [(1, 10), (3, 3), (4, 2), (100, 1)] {
        let limiter = fragile(
            "  - { name: a, key: [user], limits: [{ rate: 10/h, algorithm: fixed_window }] }",
        );
        limiter.store().nodes.store(nodes, Ordering::Relaxed);
        assert_eq!(passed_of(&limiter, &alice, 20).await, share, "{nodes} nodes");
        for time in 0..5 {
            limiter.store().gone.store(false, Ordering::Relaxed);
            assert_eq!(passed_of(&limiter, &alice, 1).await, 1);
            limiter.store().gone.store(true, Ordering::Relaxed);
            assert_eq!(passed_of(&limiter, &alice, 20).await, 0, "{nodes} nodes, time {time}");
        }
    }
}

/// The fallback reports to the store what it granted, and only that.
#[tokio::test]
async fn what_the_fallback_grants_is_owed_to_the_store() {
    let alice = user("alice");
    for (setting, owed) in [("local", 4), ("allow", 0), ("deny", 0)] {
        let limiter = fragile(&format!(
            "  - {{ name: a, key: [user], limits: [5/h], on_store_error: {setting} }}"
        ));
        for cost in [3, 1, 2, 2] {
            limiter.check(&Check::new(&alice).cost(cost)).await.unwrap();
        }
        assert_eq!(limiter.store().owed.load(Ordering::Relaxed), owed, "{setting}");
        limiter.check_without_store(&Check::new(&alice)).unwrap();
        let one_more = u64::from(setting == "local");
        assert_eq!(limiter.store().owed.load(Ordering::Relaxed), owed + one_more, "{setting}");
        limiter.store().gone.store(false, Ordering::Relaxed);
        limiter.check(&Check::new(&alice)).await.unwrap();
        assert_eq!(limiter.store().owed.load(Ordering::Relaxed), owed + one_more, "{setting}");
    }
}

/// A request that the reachable part of the store denies was not granted by the fallback either.
#[tokio::test]
async fn only_requests_that_pass_are_owed() {
    let limiter = fragile(
        "  - { name: here, key: [user], limits: [1/h] }\n  - { name: gone, key: [user], limits: [{ rate: 5/h, algorithm: fixed_window }] }",
    );
    limiter.store().gone.store(false, Ordering::Relaxed);
    *limiter.store().missing.lock().unwrap() = vec![1];
    assert_eq!(passed_of(&limiter, &user("alice"), 4).await, 1);
    assert_eq!(limiter.store().owed.load(Ordering::Relaxed), 1);
}

/// A receipt of the fallback gives back what was taken under the share of the node, not what the whole limit would have taken.
#[tokio::test]
async fn a_share_is_given_back_as_it_was_taken() {
    let limiter = fragile("  - { name: a, key: [user], limits: [9/h] }");
    limiter.store().nodes.store(3, Ordering::Relaxed);
    let alice = user("alice");
    for _ in 0..10 {
        let verdict = limiter.check(&Check::new(&alice).cost(2).with_receipt()).await.unwrap();
        assert!(verdict.allowed());
        let settled = limiter.report(verdict.receipt().unwrap(), Report::Cancelled).await.unwrap();
        assert_eq!(settled, Settled::Done);
    }
    assert_eq!(passed_of(&limiter, &alice, 5).await, 3);
}

#[tokio::test]
async fn the_fallback_decides_only_the_part_that_does_not_answer() {
    let rules = |on_error: &str| {
        format!(
            "  - {{ name: here, key: [user], limits: [3/h] }}\n  - {{ name: gone, key: [user], limits: [{{ rate: 5/h, algorithm: fixed_window }}], on_store_error: {on_error} }}"
        )
    };
    let alice = user("alice");
    for (on_error, passed, used_here) in [("allow", 3, 3), ("local", 3, 3), ("deny", 0, 0)] {
        let limiter = fragile(&rules(on_error));
        limiter.store().gone.store(false, Ordering::Relaxed);
        *limiter.store().missing.lock().unwrap() = vec![1];
        let verdict = limiter.peek(&Check::new(&alice)).await.unwrap();
        assert!(verdict.allowed());
        assert_eq!(passed_of(&limiter, &alice, 10).await, passed, "{on_error}");
        limiter.store().missing.lock().unwrap().clear();
        let verdict = limiter.peek(&Check::new(&alice)).await.unwrap();
        let left: Vec<u64> = verdict.limits().map(|limit| limit.decision.remaining).collect();
        assert_eq!(left, [3 - used_here, 5], "{on_error}: the store counted only its own part");
    }
    // If the share of this node denies, the store counts nothing.
    let limiter = fragile(&rules("local"));
    limiter.store().gone.store(false, Ordering::Relaxed);
    limiter.store().nodes.store(5, Ordering::Relaxed);
    *limiter.store().missing.lock().unwrap() = vec![1];
    assert_eq!(passed_of(&limiter, &alice, 10).await, 1);
    limiter.store().missing.lock().unwrap().clear();
    let verdict = limiter.peek(&Check::new(&alice)).await.unwrap();
    assert_eq!(verdict.limits().next().unwrap().decision.remaining, 2);
}

/// If the store denies a request, what the fallback counted for it is given back.
#[tokio::test]
async fn a_denial_by_the_store_leaves_nothing_counted_in_the_fallback() {
    let limiter = fragile(
        "  - { name: here, key: [user], limits: [1/h] }\n  - { name: gone, key: [], limits: [{ rate: 5/h, algorithm: fixed_window }] }",
    );
    limiter.store().gone.store(false, Ordering::Relaxed);
    *limiter.store().missing.lock().unwrap() = vec![1];
    assert_eq!(passed_of(&limiter, &user("alice"), 10).await, 1);
    for name in ["bob", "carol", "dave", "erin"] {
        assert_eq!(passed_of(&limiter, &user(name), 3).await, 1, "{name}");
    }
    assert_eq!(passed_of(&limiter, &user("frank"), 3).await, 0);
}

#[tokio::test]
async fn on_store_error_deny_wins_and_then_nothing_is_counted() {
    let limiter = fragile(
        "  - { name: a, key: [user], limits: [2/h], on_store_error: local }\n  - { name: b, match: { path: /pay }, key: [user], limits: [2/h], on_store_error: deny }",
    );
    let (alice, paying) = (user("alice"), user("alice").with("path", "/pay").unwrap());
    for _ in 0..5 {
        let verdict = limiter.check(&Check::new(&paying)).await.unwrap();
        assert_eq!(verdict.outcome, Outcome::Deny(Retry::After(Span::from_secs(1))));
        assert_eq!(verdict.refusing().map(|limit| limit.rule).collect::<Vec<_>>(), ["b"]);
    }
    for allowed in [true, true, false] {
        assert_eq!(limiter.check(&Check::new(&alice)).await.unwrap().allowed(), allowed);
    }
}

/// What the fallback counted is settled in the memory of its node. On another node the report changes nothing.
#[tokio::test]
async fn a_receipt_of_the_fallback_stays_on_its_node() {
    let rules = "  - { name: a, key: [user], limits: [1/h], count: failures }";
    let (here, there) = (fragile(rules), fragile(rules));
    let alice = user("alice");
    let verdict = here.check(&Check::new(&alice)).await.unwrap();
    let receipt = here.opened(&here.sealed(verdict.receipt().unwrap())).unwrap();
    assert_eq!(there.report(&receipt, Report::Success).await.unwrap(), Settled::Late);
    assert!(!here.check(&Check::new(&alice)).await.unwrap().allowed());
    assert_eq!(here.report(&receipt, Report::Success).await.unwrap(), Settled::Done);
    assert!(here.check(&Check::new(&alice)).await.unwrap().allowed());
}

/// After a restart with counters in memory, a receipt of before once gave back what the new counters had counted for others: 10 left
/// of a limit became 60. So a receipt is valid for the states that it was taken from, and for no others.
#[tokio::test]
async fn a_receipt_of_states_that_are_gone_changes_nothing() {
    let rules = "  - { name: a, key: [], limits: [100/h] }\n  - { name: b, key: [], limits: [{ concurrent: 9 }] }";
    let clock = Clock::manual(NOW);
    let on = |store: &Arc<Memory>| {
        let secret = Secret::new([7; 32]);
        Limiter::new(policy(rules), Arc::clone(store), secret, clock.clone()).unwrap()
    };
    let store = || Arc::new(Memory::new(clock.clone()));
    let (first, second) = (store(), store());
    let nobody = Attributes::new();
    let verdict = on(&first).check(&Check::new(&nobody).cost(50)).await.unwrap();
    let receipt = on(&first).sealed(verdict.receipt().unwrap());
    // The process starts again, and counts from zero.
    let limiter = on(&second);
    limiter.check(&Check::new(&nobody).cost(90)).await.unwrap();
    let old = limiter.opened(&receipt).unwrap();
    let left = async || {
        let peeked = limiter.peek(&Check::new(&nobody)).await.unwrap();
        peeked.limits().map(|limit| limit.decision.remaining).collect::<Vec<_>>()
    };
    let before = left().await;
    for report in [Report::Cancelled, Report::Success, Report::Cost(Cost::new(1))] {
        assert_eq!(limiter.report(&old, report).await.unwrap(), Settled::Late);
    }
    assert_eq!(limiter.renew(&old).await.unwrap(), Renewal::Expired);
    assert_eq!(left().await, before);
    // Another limiter on the same states settles it.
    assert_eq!(on(&first).report(&old, Report::Cancelled).await.unwrap(), Settled::Done);
}

#[test]
fn a_limit_that_the_store_cannot_count_is_rejected_when_loaded() {
    let limiter = fragile("  - { name: a, key: [user], limits: [2/h] }");
    let refused = limiter.reload(policy("  - { name: a, key: [user], limits: [2000000/h] }"));
    assert!(refused.unwrap_err().to_string().starts_with("rule `a`: this store cannot count"));
    let large =
        tidegate::Allowance::Limits(vec![tidegate::RuleLimit::from_rate("2000000/h").unwrap()]);
    assert!(limiter.set_override("a", &[("user", "alice")], large).is_err());
    assert_eq!(limiter.version(), 1);
}

/// Statistics belong to the name of a rule, wherever it is in a new policy.
#[test]
fn statistics_survive_a_reload() {
    let (limiter, _) = limiter("  - { name: a, key: [], limits: [1/h] }");
    let request = Attributes::new();
    for _ in 0..3 {
        limiter.check_now(&Check::new(&request)).unwrap();
    }
    let rules = "  - { name: b, key: [], limits: [9/h] }\n  - { name: a, key: [], limits: [1/h] }";
    limiter.reload(policy(rules)).unwrap();
    limiter.check_now(&Check::new(&request)).unwrap();
    let stats = limiter.stats();
    let of = |name: &str| stats.rules.iter().find(|(rule, _)| rule == name).unwrap().1;
    assert_eq!((of("a").allowed, of("a").denied), (1, 3));
    assert_eq!((of("b").allowed, of("b").denied), (1, 0)); // rule `b` allowed it; rule `a` denied it
}

/// Calendars are laid out two years ahead and renewed while the limiter runs, so days in the third year are still counted
/// correctly.
#[test]
fn calendars_are_renewed_for_ever() {
    let (limiter, clock) =
        limiter("  - { name: a, key: [], limits: [2/calendar-day@Europe/Berlin] }");
    let request = Attributes::new();
    let mut now = NOW;
    for _ in 0..3 * 365 {
        let passed = (0..3).filter(|_| limiter.check_now(&Check::new(&request)).unwrap().allowed());
        assert_eq!(passed.count(), 2);
        now = now.after(Span::from_secs(86_400)).unwrap();
        clock.set(now);
    }
    assert_eq!(limiter.version(), 1);
}

/// An API key is replaced by its digest, also if the caller passes it as an attribute.
#[test]
fn secrets_are_not_shown() {
    let (limiter, _) = limiter("  - { name: a, key: [api_key], limits: [1/h] }");
    let secret = Attributes::new().with("api_key", "sk_live_s3cr3t").unwrap();
    let shown = limiter.explain(&Check::new(&secret)).to_string();
    assert!(shown.contains("api_key=#") && !shown.contains("s3cr3t"), "{shown}");
    assert!(limiter.check_now(&Check::new(&secret)).unwrap().allowed());
    // The digest selects the same counter, so an operator who sees it can reset it.
    let digest = shown.split("api_key=").nth(1).unwrap().split_whitespace().next().unwrap();
    let customer = Attributes::new().with("api_key", digest.to_owned()).unwrap();
    assert!(!limiter.check_now(&Check::new(&customer)).unwrap().allowed());
    assert_eq!(limiter.reset_now("a", &customer).unwrap(), 1);
    assert!(limiter.check_now(&Check::new(&secret)).unwrap().allowed());
}

/// The lifetime of receipts was ignored if the limiter had been cloned before it was set.
#[test]
fn a_clone_can_have_its_own_receipt_lifetime() {
    let (limiter, clock) = limiter("  - { name: a, key: [], limits: [9/h] }");
    let patient = limiter.clone().settling_within(Span::from_secs(600));
    let request = Attributes::new();
    let receipts = [&limiter, &patient].map(|limiter| {
        let verdict = limiter.check_now(&Check::new(&request).with_receipt()).unwrap();
        verdict.receipt().unwrap().clone()
    });
    clock.set(NOW.after(Span::from_secs(300)).unwrap());
    let settled = receipts.map(|receipt| limiter.report_now(&receipt, Report::Cancelled).unwrap());
    assert_eq!(settled, [Settled::Late, Settled::Done]);
}

/// A report of a larger cost charges the difference, one of a smaller cost gives it back; each receipt counts once.
#[test]
fn true_costs_are_settled_once() {
    let (limiter, _) =
        limiter("  - { name: a, key: [], limits: [{ rate: 100/h, algorithm: sliding_log }] }");
    let request = Attributes::new();
    let left = |limiter: &Limiter| {
        let verdict = limiter.check_now(&Check::new(&request).cost(0)).unwrap();
        verdict.limits().next().unwrap().decision.remaining
    };
    let take = |cost: u64| {
        let verdict = limiter.check_now(&Check::new(&request).cost(cost).with_receipt()).unwrap();
        verdict.receipt().unwrap().clone()
    };
    let small = take(40);
    assert_eq!(limiter.report_now(&small, Report::Cost(Cost::new(10))).unwrap(), Settled::Done);
    assert_eq!(left(&limiter), 90);
    assert_eq!(limiter.report_now(&small, Report::Cost(Cost::new(0))).unwrap(), Settled::Already);
    let large = take(10);
    assert_eq!(limiter.report_now(&large, Report::Cost(Cost::new(50))).unwrap(), Settled::Done);
    assert_eq!(left(&limiter), 40);
    let cancelled = take(40);
    assert_eq!(limiter.report_now(&cancelled, Report::Cancelled).unwrap(), Settled::Done);
    assert_eq!(left(&limiter), 40);
}
