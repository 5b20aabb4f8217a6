//! Concurrency limits through the limiter: permits are held, renewed and returned, in virtual time.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test fails loudly, and its instants come from the paused clock of the runtime"
)]

use std::sync::Arc;
use std::time::Duration;
use tidegate::{
    Algorithm, Attributes, Check, Clock, Cost, Limit, Limiter, Memory, Outcome, Permit, Policy,
    Receipt, Renewal, Report, Retry, Secret, Settled, Span, Timestamp, Verdict,
};
use tidegate_store::testing::{Fault, Faulty};
use tokio::time::{Instant, sleep as virtual_time_passes};

const START: u64 = 1_000_000_000_000;

/// A clock that follows the paused clock of the runtime.
fn paused_clock() -> Clock {
    let start = Instant::now();
    Clock::borrowed(move || {
        let passed = u64::try_from(start.elapsed().as_nanos()).unwrap();
        tidegate_core::Now::at(Timestamp::from_nanos(START + passed))
    })
}

fn at(clock: &Clock, millis: u64) {
    clock.set(Timestamp::from_nanos(START + millis * 1_000_000));
}

fn policy(rules: &str) -> Policy {
    let tiers = "tiers: { default: free, known: [free, pro] }";
    Policy::parse(format!("version: 1\n{tiers}\nrules:\n{rules}")).unwrap()
}

/// A limiter with a clock that the test sets.
fn limiter(rules: &str) -> (Limiter, Clock) {
    let clock = Clock::manual(Timestamp::from_nanos(START));
    (limiter_on(rules, &clock), clock)
}

fn limiter_on(rules: &str, clock: &Clock) -> Limiter {
    let store = Memory::new(clock.clone());
    Limiter::new(policy(rules), store, Secret::new([7; 32]), clock.clone()).unwrap()
}

fn ask(limiter: &Limiter) -> Verdict {
    limiter.check_now(&Check::new(&Attributes::new())).unwrap()
}

/// The receipt of a request that passes.
fn taken(limiter: &Limiter) -> Receipt {
    ask(limiter).receipt().unwrap().clone()
}

fn remaining(limiter: &Limiter) -> u64 {
    let free = limiter.check_now(&Check::new(&Attributes::new()).cost(0)).unwrap();
    free.limits().next().unwrap().decision.remaining
}

const THREE: &str = "  - { name: jobs, key: [], limits: [{ concurrent: 3, lease: 10s }] }";

#[test]
fn whatever_is_reported_returns_exactly_one_permit() {
    let (limiter, _) = limiter(THREE);
    let receipts: Vec<Receipt> = (0..3).map(|_| taken(&limiter)).collect();
    assert!(!ask(&limiter).allowed());
    let reports = [Report::Success, Report::Failure, Report::Cancelled, Report::Cost(Cost::new(7))];
    for (round, report) in reports.into_iter().enumerate() {
        let receipt = match receipts.get(round) {
            Some(receipt) => receipt.clone(),
            None => taken(&limiter),
        };
        let before = remaining(&limiter);
        assert_eq!(limiter.report_now(&receipt, report).unwrap(), Settled::Done);
        assert_eq!(remaining(&limiter), before + 1, "{report:?}");
        assert_eq!(limiter.report_now(&receipt, report).unwrap(), Settled::Already);
        assert_eq!(remaining(&limiter), before + 1, "{report:?} twice");
    }
    assert_eq!(remaining(&limiter), 3);
}

#[test]
fn a_permit_that_is_not_returned_is_free_when_its_lease_is_over() {
    let (limiter, clock) = limiter(THREE);
    let first = taken(&limiter);
    at(&clock, 4_000);
    (0..2).for_each(|_| drop(taken(&limiter)));
    at(&clock, 9_999);
    assert!(!ask(&limiter).allowed());
    at(&clock, 10_000);
    assert_eq!(remaining(&limiter), 1);
    // A report after the lease gives nothing back: the permit of no other request is freed.
    assert_eq!(limiter.report_now(&first, Report::Success).unwrap(), Settled::Done);
    assert_eq!(remaining(&limiter), 1);
    at(&clock, 14_000);
    assert_eq!(remaining(&limiter), 3);
}

#[test]
fn a_renewed_permit_is_held_for_another_lease() {
    let (limiter, clock) = limiter(THREE);
    let mut receipts: Vec<Receipt> = (0..3).map(|_| taken(&limiter)).collect();
    for round in 1..=20 {
        at(&clock, round * 9_000);
        for receipt in &mut receipts {
            let Renewal::Renewed(renewed) = limiter.renew_now(receipt).unwrap() else {
                panic!("round {round}");
            };
            assert!(!ask(&limiter).allowed(), "round {round}");
            assert_eq!(limiter.renew_now(receipt).unwrap(), Renewal::Already);
            assert_eq!(limiter.report_now(receipt, Report::Success).unwrap(), Settled::Already);
            assert!(!ask(&limiter).allowed(), "round {round}");
            *receipt = renewed;
        }
    }
    for (free, receipt) in (1..).zip(&receipts) {
        assert_eq!(limiter.report_now(receipt, Report::Success).unwrap(), Settled::Done);
        assert_eq!(remaining(&limiter), free);
        assert_eq!(limiter.renew_now(receipt).unwrap(), Renewal::Already);
        assert_eq!(remaining(&limiter), free, "a renewal in vain takes nothing");
    }
}

/// After the lease another request may hold the permit. If it could be renewed then, four requests would hold three.
#[test]
fn a_permit_whose_lease_is_over_cannot_be_renewed() {
    let (limiter, clock) = limiter(THREE);
    let late = taken(&limiter);
    for (millis, renews) in [(9_999, true), (20_000, false)] {
        at(&clock, millis);
        let renewal = limiter.renew_now(&late).unwrap();
        assert_eq!(matches!(renewal, Renewal::Renewed(_)), renews, "{millis} ms: {renewal:?}");
    }
    let (limiter, clock) = self::limiter(THREE);
    let late = taken(&limiter);
    at(&clock, 10_000);
    let others: Vec<Receipt> = (0..3).map(|_| taken(&limiter)).collect();
    assert_eq!(limiter.renew_now(&late).unwrap(), Renewal::Expired);
    assert_eq!(limiter.report_now(&others[0], Report::Success).unwrap(), Settled::Done);
    assert_eq!(remaining(&limiter), 1);
}

#[test]
fn a_receipt_is_renewed_and_returned_as_text_by_any_node() {
    let clock = Clock::manual(Timestamp::from_nanos(START));
    let store = Arc::new(Memory::new(clock.clone()));
    let nodes: Vec<Limiter<Arc<Memory>>> = (0..2)
        .map(|_| {
            let secret = Secret::new([7; 32]);
            Limiter::new(policy(THREE), Arc::clone(&store), secret, clock.clone()).unwrap()
        })
        .collect();
    let nothing = Attributes::new();
    let verdict = ready(nodes[0].check(&Check::new(&nothing))).unwrap();
    let text = nodes[0].sealed(verdict.receipt().unwrap());
    let received = nodes[1].opened(&text).unwrap();
    let Renewal::Renewed(renewed) = ready(nodes[1].renew(&received)).unwrap() else { panic!() };
    let renewed = nodes[0].opened(&nodes[1].sealed(&renewed)).unwrap();
    assert_eq!(ready(nodes[0].report(&renewed, Report::Success)).unwrap(), Settled::Done);
}

fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("a store in memory answers at once"),
    }
}

/// The cost counts under rates. Under a concurrency limit a request is one request.
#[test]
fn a_request_holds_one_permit_whatever_it_costs() {
    let (limiter, _) = limiter(
        "  - { name: tokens, key: [], limits: [{ rate: 100/h, algorithm: fixed_window }, { concurrent: 2 }] }",
    );
    let nothing = Attributes::new();
    let prompt = Check::new(&nothing).cost(80).with_receipt();
    let verdict = limiter.check_now(&prompt).unwrap();
    let left = |verdict: &Verdict| -> Vec<u64> {
        verdict.limits().map(|limit| limit.decision.remaining).collect()
    };
    assert_eq!(left(&verdict), [20, 1]);
    limiter.report_now(verdict.receipt().unwrap(), Report::Cost(Cost::new(30))).unwrap();
    assert_eq!(left(&limiter.check_now(&prompt.cost(0)).unwrap()), [70, 2]);
    let verdict = limiter.check_now(&prompt.cost(10)).unwrap();
    limiter.report_now(verdict.receipt().unwrap(), Report::Cost(Cost::new(40))).unwrap();
    assert_eq!(left(&limiter.check_now(&prompt.cost(0)).unwrap()), [30, 2]);
    // A cost of 0 takes no permit, so there is none to return.
    let free = limiter.check_now(&prompt.cost(0)).unwrap();
    assert_eq!(free.receipt().unwrap().lease(), None);
    assert_eq!(limiter.renew_now(free.receipt().unwrap()).unwrap(), Renewal::NoPermit);
}

/// The store knows only when the oldest lease ends. Clients are told the mean time for which permits were held on this node.
#[test]
fn a_refused_request_is_told_the_mean_hold_time_and_never_the_rest_of_a_lease() {
    let (limiter, clock) =
        limiter("  - { name: jobs, key: [], limits: [{ concurrent: 1, lease: 1h }] }");
    let first = taken(&limiter);
    let retry = |verdict: &Verdict| {
        (
            verdict.retry_after().unwrap().as_millis_ceil(),
            verdict.limits().next().unwrap().decision.reset,
        )
    };
    assert_eq!(retry(&ask(&limiter)), (1_000, None)); // nothing is known yet
    at(&clock, 8_000);
    limiter.report_now(&first, Report::Success).unwrap();
    let second = taken(&limiter);
    assert_eq!(retry(&ask(&limiter)), (8_000, None));
    at(&clock, 24_000);
    let Renewal::Renewed(second) = limiter.renew_now(&second).unwrap() else { panic!() };
    at(&clock, 48_000);
    limiter.report_now(&second, Report::Success).unwrap(); // it was held for 40 s, renewed once
    drop(taken(&limiter));
    let refused = ask(&limiter);
    assert_eq!(retry(&refused), (12_000, None));
    assert_eq!(refused.outcome, Outcome::Deny(Retry::After(Span::from_secs(12))));
}

#[test]
fn tiers_overrides_soft_limits_and_shadow_rules_apply() {
    let (limiter, _) = limiter(
        "  - { name: soft, key: [user], limits: [{ concurrent: 10 }], mode: { soft: 50% }, match: { path: /soft } }
  - { name: shadow, key: [user], limits: [{ concurrent: 1 }], shadow: true, match: { path: /shadow } }
  - { name: own, key: [user], limits: [{ concurrent: 2 }], overrides: [{ key: { user: bob }, limits: [{ concurrent: 5 }] }], match: { path: /own } }
  - { name: scaled, key: [user], limits: [{ concurrent: 4 }], tiers: { pro: { scale: 2.5 } }, match: { path: /scaled } }",
    );
    let passed = |user: &str, path: &str| {
        let request = Attributes::new().with("user", user.to_owned()).unwrap();
        let tier = if user == "carol" { "pro" } else { "free" };
        let request = request.with("tier", tier).unwrap();
        let request = request.with("path", path.to_owned()).unwrap();
        let all = (0..20).map(|_| limiter.check_now(&Check::new(&request)).unwrap());
        let all: Vec<Verdict> = all.filter(Verdict::allowed).collect();
        let receipts = all.iter().filter(|verdict| verdict.receipt().is_some()).count();
        (all.len(), receipts)
    };
    assert_eq!(passed("alice", "/soft"), (15, 15));
    assert_eq!(passed("alice", "/shadow"), (20, 1));
    assert_eq!(passed("alice", "/own"), (2, 2));
    assert_eq!(passed("bob", "/own"), (5, 5));
    assert_eq!(passed("alice", "/scaled"), (4, 4));
    assert_eq!(passed("carol", "/scaled"), (10, 10));
}

#[test]
fn dropping_a_permit_returns_it_at_once_and_leaves_the_receipt_of_other_limits() {
    let (limiter, _) = limiter(
        "  - { name: jobs, key: [], limits: [{ concurrent: 1 }] }\n  - { name: logins, key: [], limits: [2/h], count: failures }",
    );
    let mut verdict = ask(&limiter);
    let permit = limiter.hold(&mut verdict).unwrap();
    assert!(limiter.hold(&mut verdict).is_none(), "there is one permit");
    let receipt = verdict.receipt().unwrap().clone();
    assert_eq!(limiter.report_now(&receipt, Report::Success).unwrap(), Settled::Done);
    assert!(!ask(&limiter).allowed(), "the report is about the other limits");
    drop(permit);
    let mut verdict = ask(&limiter);
    assert!(verdict.allowed());
    drop(limiter.hold(&mut verdict));
    assert!(!ask(&limiter).refusing().any(|limit| limit.rule == "jobs"));
}

#[test]
fn a_verdict_without_permits_has_nothing_to_hold() {
    let (limiter, _) = limiter("  - { name: a, key: [], limits: [1/h] }");
    let nothing = Attributes::new();
    let mut verdict = limiter.check_now(&Check::new(&nothing).with_receipt()).unwrap();
    assert!(limiter.hold(&mut verdict).is_none());
    assert!(verdict.receipt().is_some(), "the receipt stays");
    let (limiter, _) = self::limiter(THREE);
    let held: Vec<Permit> = (0..3).map(|_| limiter.hold(&mut ask(&limiter)).unwrap()).collect();
    assert!(limiter.hold(&mut ask(&limiter)).is_none(), "a denied request holds nothing");
    drop(held);
    assert_eq!(remaining(&limiter), 3);
}

#[tokio::test(start_paused = true)]
async fn a_held_permit_renews_itself_until_it_is_dropped() {
    let limiter = limiter_on(THREE, &paused_clock());
    let held: Vec<Permit> = (0..3).map(|_| limiter.hold(&mut ask(&limiter)).unwrap()).collect();
    for _ in 0..100 {
        virtual_time_passes(Duration::from_millis(990)).await;
        assert!(!ask(&limiter).allowed());
    }
    drop(held);
    assert_eq!(remaining(&limiter), 3);
    virtual_time_passes(Duration::from_secs(100)).await;
    assert_eq!(remaining(&limiter), 3, "the tasks have ended");
}

#[tokio::test(start_paused = true)]
async fn a_waiting_request_is_woken_when_a_permit_is_returned() {
    let limiter = limiter_on(
        "  - { name: jobs, key: [], limits: [{ concurrent: 1, lease: 1h }], on_limit: { delay: { max_wait: 30s } } }",
        &paused_clock(),
    );
    let permit = limiter.hold(&mut ask(&limiter)).unwrap();
    let start = Instant::now();
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let nothing = Attributes::new();
                let check = Check::new(&nothing).waiting_by_rule(Span::from_secs(1));
                let mut verdict = limiter.admit(&check).await.unwrap();
                let waited = start.elapsed();
                let permit = limiter.hold(&mut verdict);
                virtual_time_passes(Duration::from_millis(2_300)).await;
                drop(permit);
                (verdict.allowed(), waited.as_millis())
            })
        })
        .collect();
    virtual_time_passes(Duration::from_millis(1_234)).await;
    drop(permit);
    let mut ends = Vec::new();
    for task in waiting {
        ends.push(task.await.unwrap());
    }
    ends.sort_unstable();
    // The first at once, each other one when the one before it has ended.
    assert_eq!(ends, [(true, 1_234), (true, 3_534), (true, 5_834)]);
}

/// Another node returns a permit; nothing wakes the request that waits here. It asks every second.
#[tokio::test(start_paused = true)]
async fn a_waiting_request_finds_the_permit_of_another_node_within_a_second() {
    let clock = paused_clock();
    let store = Arc::new(Memory::new(clock.clone()));
    let rules = "  - { name: jobs, key: [], limits: [{ concurrent: 1, lease: 1h }], on_limit: { delay: { max_wait: 3s } } }";
    let node = || {
        let secret = Secret::new([7; 32]);
        Limiter::new(policy(rules), Arc::clone(&store), secret, clock.clone()).unwrap()
    };
    let (here, there) = (node(), node());
    let nothing = Attributes::new();
    // Permits are held for long here, so a refused client is told to wait for 20 s. A request that waits does not.
    let mut verdict = here.check(&Check::new(&nothing)).await.unwrap();
    let long = here.hold(&mut verdict);
    virtual_time_passes(Duration::from_secs(20)).await;
    drop(long);
    let mut verdict = there.check(&Check::new(&nothing)).await.unwrap();
    let permit = there.hold(&mut verdict);
    let start = Instant::now();
    let wait = async || {
        let check = Check::new(&nothing).waiting_by_rule(Span::from_secs(1));
        (here.admit(&check).await.unwrap(), start.elapsed())
    };
    let returned = async {
        virtual_time_passes(Duration::from_millis(1_700)).await;
        drop(permit);
    };
    let ((mut verdict, waited), ()) = tokio::join!(wait(), returned);
    assert!(verdict.allowed());
    assert_eq!(waited.as_millis(), 2_000);
    let _held = here.hold(&mut verdict);
    // This one is not returned: the request gives up after its longest wait.
    let (verdict, waited) = wait().await;
    assert!(!verdict.allowed());
    assert_eq!(waited.as_millis(), 5_000);
}

/// A request that has no permit and is cancelled while it waits takes none with it.
#[tokio::test(start_paused = true)]
async fn cancelled_requests_and_dropped_permits_leave_nothing_behind() {
    let rounds = std::env::var("PERMITS").map_or(50_000, |count| count.parse().unwrap());
    let limiter = limiter_on(
        "  - { name: jobs, key: [user], limits: [{ concurrent: 20, lease: 5s }], on_limit: { delay: { max_wait: 2s, max_queue: 50 } } }",
        &paused_clock(),
    );
    let (mut random, mut passed) = (0x2545_f491_4f6c_dd1d_u64, 0_u64);
    let mut running = tokio::task::JoinSet::new();
    for number in 0..rounds {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let (limiter, user) = (limiter.clone(), format!("user-{}", number % 3));
        let holds = Duration::from_millis(random >> 8 & 0x7ff);
        let gives_up = Duration::from_millis(random >> 24 & 0xfff);
        running.spawn(async move {
            let user = Attributes::new().with("user", user).unwrap();
            let check = Check::new(&user).waiting_by_rule(Span::from_secs(1));
            let request = async {
                let mut verdict = limiter.admit(&check).await.unwrap();
                let permit = limiter.hold(&mut verdict);
                assert_eq!(permit.is_some(), verdict.allowed());
                if permit.is_some() {
                    virtual_time_passes(holds).await;
                }
                permit.is_some()
            };
            tokio::time::timeout(gives_up, request).await.unwrap_or(false)
        });
        if random & 3 == 0 {
            virtual_time_passes(Duration::from_millis(random >> 40 & 0x7f)).await;
        }
        if running.len() > 500 {
            passed += u64::from(running.join_next().await.unwrap().unwrap());
        }
    }
    while let Some(ended) = running.join_next().await {
        passed += u64::from(ended.unwrap());
    }
    assert!(passed > rounds / 10, "only {passed} of {rounds} ended in peace");
    for number in 0..3 {
        let user = Attributes::new().with("user", format!("user-{number}")).unwrap();
        let free = limiter.check_now(&Check::new(&user).cost(0)).unwrap();
        assert_eq!(free.limits().next().unwrap().decision.remaining, 20, "user-{number}");
    }
}

/// A store that is not in this process: permits are given back by a task. `here` asks it over a network with faults, and
/// `observer` without.
struct Remote {
    here: Limiter<Arc<Faulty<Arc<Memory>>>>,
    observer: Limiter<Arc<Memory>>,
    network: Arc<Faulty<Arc<Memory>>>,
}

impl Remote {
    fn new() -> Self {
        let (clock, secret) = (paused_clock(), || Secret::new([7; 32]));
        let rules = "  - { name: jobs, key: [], limits: [{ concurrent: 3, lease: 9s }] }";
        let memory = Arc::new(Memory::new(clock.clone()));
        let network = Arc::new(Faulty::new(Arc::clone(&memory)));
        let here = Limiter::new(policy(rules), Arc::clone(&network), secret(), clock.clone());
        let observer = Limiter::new(policy(rules), memory, secret(), clock);
        Self { here: here.unwrap(), observer: observer.unwrap(), network }
    }

    async fn take(&self) -> Permit<Arc<Faulty<Arc<Memory>>>> {
        let mut verdict = self.here.check(&Check::new(&Attributes::new())).await.unwrap();
        self.here.hold(&mut verdict).unwrap()
    }

    fn free(&self) -> u64 {
        let nothing = Attributes::new();
        let free = ready(self.observer.check(&Check::new(&nothing).cost(0))).unwrap();
        free.limits().next().unwrap().decision.remaining
    }
}

#[tokio::test(start_paused = true)]
async fn a_remote_store_gets_each_permit_back_once_although_replies_are_lost() {
    for faults in [
        &[][..],
        &[Fault::Refused],
        &[Fault::ReplyLost],
        &[Fault::Late(5)],
        &[Fault::ReplyLost, Fault::Refused],
    ] {
        let remote = Remote::new();
        let (first, _second) = (remote.take().await, remote.take().await);
        assert_eq!(remote.free(), 1);
        remote.network.plan(faults.iter().copied());
        drop(first);
        remote.here.given_back().await;
        assert_eq!(remote.free(), 2, "{faults:?}");
    }
}

/// Whatever happens to a renewal, the permit is held. It may count twice for a while, never not at all. In the end all are free.
#[tokio::test(start_paused = true)]
async fn a_permit_is_held_although_every_other_renewal_fails() {
    for faults in [
        &[Fault::Refused][..],
        &[Fault::ReplyLost],
        &[Fault::None, Fault::Refused],
        &[Fault::None, Fault::ReplyLost],
        &[Fault::Late(9), Fault::Late(9)],
    ] {
        let remote = Remote::new();
        let permit = remote.take().await;
        for second in 1..=120_u64 {
            if second % 6 == 2 {
                remote.network.plan(faults.iter().copied()); // the next renewal is at the next multiple of 3 s
            }
            virtual_time_passes(Duration::from_secs(1)).await;
            assert!(remote.free() <= 2, "{faults:?} at {second} s");
        }
        drop(permit);
        remote.here.given_back().await;
        assert!(remote.free() >= 1, "{faults:?}");
        virtual_time_passes(Duration::from_secs(9)).await;
        assert_eq!(remote.free(), 3, "{faults:?}");
    }
}

/// The permit is dropped while its renewal is on its way: the task that renews it gives back the new one.
#[tokio::test(start_paused = true)]
async fn a_permit_that_is_dropped_while_it_is_renewed_is_given_back() {
    for faults in [&[Fault::Late(1_000)][..], &[Fault::None, Fault::Late(1_000)]] {
        let remote = Remote::new();
        let permit = remote.take().await;
        remote.network.plan(faults.iter().copied());
        virtual_time_passes(Duration::from_secs(3)).await;
        for _ in 0..100 {
            if remote.network.planned() > 0 {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(remote.network.planned(), 0, "it is being renewed");
        drop(permit);
        remote.here.given_back().await;
        assert_eq!(remote.free(), 3, "{faults:?}");
    }
}

/// While the store is gone, each node counts by itself, under its share: at least one permit.
#[tokio::test(start_paused = true)]
async fn without_the_store_a_node_holds_its_share_and_gets_it_back() {
    let remote = Remote::new();
    remote.network.plan(std::iter::repeat_n(Fault::Refused, 1_000));
    let nothing = Attributes::new();
    let mut held = Vec::new();
    for expected in [true, true, true, false] {
        let mut verdict = remote.here.check(&Check::new(&nothing)).await.unwrap();
        assert_eq!((verdict.allowed(), verdict.decided_by.name()), (expected, "fallback"));
        held.extend(remote.here.hold(&mut verdict));
    }
    virtual_time_passes(Duration::from_secs(30)).await; // they are renewed in the memory of this node
    assert!(!remote.here.check(&Check::new(&nothing)).await.unwrap().allowed());
    held.pop();
    assert!(remote.here.check(&Check::new(&nothing)).await.unwrap().allowed());
    assert_eq!(remote.free(), 3, "the store was not asked");
}

#[test]
fn a_concurrency_limit_is_divided_among_nodes() {
    let limit = Limit::new(20, Span::from_secs(30), Algorithm::Concurrent).unwrap();
    let share = limit.divided(3);
    assert_eq!((share.amount(), share.lease()), (6, limit.lease()));
    assert_eq!(limit.divided(100).amount(), 1);
}

/// One of four nodes, with a runtime of its own.
struct Node {
    limiter: Limiter<Arc<Memory>>,
    held: Vec<Permit<Arc<Memory>>>,
    /// `None` for a node that was killed.
    runtime: Option<tokio::runtime::Runtime>,
}

impl Node {
    /// Takes a permit, if there is one.
    fn take(&mut self) -> bool {
        let Some(runtime) = &self.runtime else { return false };
        let _inside = runtime.enter();
        let mut verdict = ready(self.limiter.check(&Check::new(&Attributes::new()))).unwrap();
        let permit = self.limiter.hold(&mut verdict);
        assert_eq!(permit.is_some(), verdict.allowed());
        self.held.extend(permit);
        verdict.allowed()
    }

    /// Lets time pass in its runtime, so that permits are renewed.
    fn pass(&self, time: Duration) {
        if let Some(runtime) = &self.runtime {
            runtime.block_on(async { virtual_time_passes(time).await });
        }
    }

    /// Ends without returning anything, as a process does that is killed.
    fn kill(&mut self) -> usize {
        self.runtime.take().unwrap().shutdown_background();
        let held = std::mem::take(&mut self.held);
        let count = held.len();
        held.into_iter().for_each(std::mem::forget);
        count
    }
}

/// Four nodes share 20 permits. One of them is killed while it holds 10. Until the lease is over the others hold 10 at most, and
/// after that all 20.
#[test]
fn the_permits_of_a_killed_node_are_back_when_their_lease_is_over() {
    const STEP: u64 = 500;
    let rules = "  - { name: jobs, key: [], limits: [{ concurrent: 20, lease: 6s }] }";
    let clock = Clock::manual(Timestamp::from_nanos(START));
    let store = Arc::new(Memory::new(clock.clone()));
    let node = |_| {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build().unwrap();
        let (store, secret) = (Arc::clone(&store), Secret::new([7; 32]));
        let limiter = Limiter::new(policy(rules), store, secret, clock.clone()).unwrap();
        Node { limiter, held: vec![], runtime: Some(runtime) }
    };
    let mut nodes: Vec<Node> = (0..4).map(node).collect();
    (0..10).for_each(|_| assert!(nodes[0].take()));
    let (mut random, mut dead, mut killed_at) = (0x2545_f491_4f6c_dd1d_u64, 0, None);
    for step in 0..200_u64 {
        at(&clock, step * STEP);
        nodes.iter().for_each(|node| node.pass(Duration::from_millis(STEP)));
        if step == 60 {
            dead = nodes[0].kill();
            killed_at = Some(step);
            assert_eq!(dead, 10);
        }
        // The last renewal was at most two seconds ago, so the lease ends four to six seconds after the end of the node.
        let since = killed_at.map_or(0, |killed| (step - killed) * STEP);
        if since > 6_000 {
            dead = 0;
        }
        for node in nodes.iter_mut().skip(1) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            if random & 3 == 0 {
                node.held.pop();
            } else {
                node.take();
            }
        }
        let living: usize = nodes.iter().map(|node| node.held.len()).sum();
        assert!(living <= 20, "step {step}");
        if killed_at.is_none() || since < 4_000 {
            assert!(living + dead <= 20, "step {step}: {living} beside {dead} of the dead node");
        }
        if step == 59 || step == 199 {
            while nodes[1].take() {}
            let living: usize = nodes.iter().map(|node| node.held.len()).sum();
            assert_eq!(living, 20, "step {step}");
        }
    }
}
