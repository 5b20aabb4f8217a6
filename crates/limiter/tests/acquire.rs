//! Waiting until a request may pass, in virtual time: tokio's clock is paused, and jumps to the next timer whenever all tasks
//! wait. So no test really sleeps, and none depends on how fast or busy the machine is.

#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test fails loudly, and its instants come from the paused clock of the runtime"
)]

use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate::{
    Attributes, Check, Clock, Limiter, Memory, Outcome, Policy, Retry, Secret, Span, Timestamp,
    Verdict,
};
use tokio::time::{Instant, sleep as virtual_time_passes};

/// A clock that follows the paused clock of the runtime.
fn clock() -> Clock {
    let start = Instant::now();
    Clock::borrowed(move || {
        let passed = u64::try_from(start.elapsed().as_nanos()).unwrap();
        tidegate_core::Now::at(Timestamp::from_nanos(1_000_000_000_000 + passed))
    })
}

fn limiter(rules: &str) -> Limiter {
    let policy = Policy::parse(format!("version: 1\nrules:\n{rules}")).unwrap();
    let clock = clock();
    Limiter::new(policy, Memory::new(clock.clone()), Secret::new([7; 32]), clock).unwrap()
}

fn user(name: &str) -> Attributes<'static> {
    Attributes::new().with("user", name.to_owned()).unwrap()
}

/// The numbers of the tasks that were served, and when.
type Served = Arc<Mutex<Vec<(usize, Duration)>>>;

/// Starts a thousand tasks one after another, aborts every third one while it waits, and returns which tasks were served and
/// when.
async fn serve_a_thousand(rules: &str) -> Vec<(usize, Duration)> {
    let limiter = limiter(rules);
    let served: Served = Arc::default();
    let start = Instant::now();
    let mut tasks = Vec::new();
    for number in 0..1_000 {
        let (limiter, served) = (limiter.clone(), Arc::clone(&served));
        tasks.push(tokio::spawn(async move {
            let alice = user("alice");
            let check = Check::new(&alice).waiting(Span::from_secs(10_000));
            let verdict = limiter.acquire(&check).await.unwrap();
            assert!(verdict.allowed());
            served.lock().unwrap().push((number, start.elapsed()));
        }));
        tokio::task::yield_now().await; // lets it ask before the next one starts
    }
    virtual_time_passes(Duration::from_millis(1_050)).await;
    for (number, task) in tasks.iter().enumerate() {
        if number % 3 == 1 {
            task.abort();
        }
    }
    for (number, task) in tasks.into_iter().enumerate() {
        let ended = task.await;
        assert!(number % 3 == 1 || ended.is_ok(), "{number}: {ended:?}");
    }
    Arc::try_unwrap(served).unwrap().into_inner().unwrap()
}

/// When a third of a thousand waiting tasks leaves, the others are served in order, none is lost, and the rate holds.
#[tokio::test(start_paused = true)]
async fn waiting_tasks_are_served_in_order_at_the_rate_although_a_third_leaves() {
    for algorithm in [
        "{ rate: 10/s, burst: 1 }",
        "{ rate: 10/s, algorithm: sliding_log }",
        "{ rate: 10/s, algorithm: fixed_window }",
        "{ rate: 10/s, algorithm: leaky_bucket, queue: 2000 }",
    ] {
        let rules = format!("  - {{ name: a, key: [user], limits: [{algorithm}] }}");
        let served = serve_a_thousand(&rules).await;
        let numbers: Vec<usize> = served.iter().map(|(number, _)| *number).collect();
        assert!(numbers.is_sorted(), "{algorithm}: {numbers:?}");
        let missing: Vec<usize> =
            (0..1_000).filter(|n| n % 3 != 1 && !numbers.contains(n)).collect();
        assert_eq!(missing, [0; 0], "{algorithm}");
        // In any second at most twice the rate is served: one window or burst, and what flows in meanwhile.
        for (at, (_, then)) in served.iter().enumerate() {
            let within =
                served[at..].iter().take_while(|(_, t)| *t - *then < Duration::from_secs(1));
            assert!(within.count() <= 20, "{algorithm} at {then:?}");
        }
        let (_, last) = served.last().unwrap();
        let fastest = Duration::from_millis(100) * u32::try_from(served.len()).unwrap();
        let leaky = algorithm.contains("leaky"); // turns that were promised to tasks that left stay unused
        let slowest =
            if leaky { Duration::from_secs(101) } else { fastest + Duration::from_secs(2) };
        assert!(
            *last + Duration::from_secs(2) > fastest && *last <= slowest,
            "{algorithm}: {last:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_does_not_overtake_and_other_keys_do_not_wait() {
    let limiter = limiter("  - { name: a, key: [user], limits: [{ rate: 1/s, burst: 1 }] }");
    let (alice, bob) = (user("alice"), user("bob"));
    assert!(limiter.check_now(&Check::new(&alice)).unwrap().allowed());
    let waiting = Check::new(&alice).waiting(Span::from_secs(10));
    let order: Mutex<Vec<&str>> = Mutex::default();
    let wait = |name: &'static str, after: u64| {
        let (limiter, order) = (&limiter, &order);
        async move {
            virtual_time_passes(Duration::from_millis(after)).await;
            limiter.acquire(&waiting).await.unwrap();
            order.lock().unwrap().push(name);
        }
    };
    let other = async {
        virtual_time_passes(Duration::from_millis(500)).await;
        assert!(limiter.acquire(&Check::new(&bob)).await.unwrap().allowed());
        order.lock().unwrap().push("bob");
    };
    // The third arrives exactly when a token becomes available, and is still served third.
    tokio::join!(wait("first", 0), wait("second", 900), wait("third", 1_000), other);
    assert_eq!(*order.lock().unwrap(), ["bob", "first", "second", "third"]);
}

#[tokio::test(start_paused = true)]
async fn waiting_is_bounded_by_max_wait_and_by_max_queue() {
    let limiter = limiter(
        "  - { name: a, key: [user], limits: [{ rate: 1/s, burst: 1 }], on_limit: { delay: { max_wait: 5s, max_queue: 2 } } }",
    );
    let alice = user("alice");
    assert!(limiter.check_now(&Check::new(&alice)).unwrap().allowed());
    // A request that would have to wait longer than it can is denied immediately, with the retry time.
    let hasty = limiter.acquire(&Check::new(&alice).waiting(Span::from_millis(900))).await.unwrap();
    assert_eq!(hasty.outcome, Outcome::Deny(Retry::After(Span::from_secs(1))));
    // Of three simultaneous requests two may wait. A cost above the burst can never pass, and does not wait at all.
    let patient = Check::new(&alice).waiting(Span::from_secs(10));
    let start = Instant::now();
    let (a, b, c) = tokio::join!(
        limiter.acquire(&patient),
        limiter.acquire(&patient),
        limiter.acquire(&patient)
    );
    let passed = [&a, &b, &c].iter().filter(|v| v.as_ref().unwrap().allowed()).count();
    assert_eq!((passed, start.elapsed().as_secs()), (2, 2));
    assert!(!c.unwrap().allowed());
    let never = limiter.acquire(&patient.cost(2)).await.unwrap();
    assert_eq!(never.outcome, Outcome::Deny(Retry::Never));
    // A request behind another one that cannot be served before its time is over is denied immediately, with the time at
    // which it could be.
    let start = Instant::now();
    let hasty = Check::new(&alice).waiting(Span::from_millis(1_500));
    let second = async { (limiter.acquire(&hasty).await.unwrap(), start.elapsed()) };
    let (first, (second, after)) = tokio::join!(limiter.acquire(&patient), second);
    assert!(first.unwrap().allowed());
    assert_eq!(second.outcome, Outcome::Deny(Retry::After(Span::from_secs(2))));
    assert_eq!((after, start.elapsed()), (Duration::ZERO, Duration::from_secs(1)));
    // With half a second more it is served.
    let start = Instant::now();
    let hasty = Check::new(&alice).waiting(Span::from_secs(2));
    let (first, second) = tokio::join!(limiter.acquire(&patient), limiter.acquire(&hasty));
    assert!(first.unwrap().allowed() && second.unwrap().allowed());
    assert_eq!(start.elapsed(), Duration::from_secs(2));
}

/// A leaky bucket knows the time of a turn in advance, so a turn later than `max_wait` is denied immediately. After a wait the
/// outcome is `Allow`, not `Delay`: the caller must not wait again.
#[tokio::test(start_paused = true)]
async fn a_turn_later_than_max_wait_is_denied_immediately() {
    let limiter = limiter(
        "  - { name: a, key: [], limits: [{ rate: 1/s, algorithm: leaky_bucket, queue: 4 }] }",
    );
    let request = Attributes::new();
    let start = Instant::now();
    let hasty = Check::new(&request).waiting(Span::from_secs(2));
    let ask = || async { (limiter.acquire(&hasty).await.unwrap(), start.elapsed().as_secs()) };
    let (a, b, c, d) = tokio::join!(ask(), ask(), ask(), ask());
    let seconds = [&a, &b, &c, &d].map(|(verdict, seconds)| (verdict.outcome, *seconds));
    let too_late = Outcome::Deny(Retry::After(Span::from_secs(1)));
    assert_eq!(
        seconds,
        [(Outcome::Allow, 0), (Outcome::Allow, 1), (Outcome::Allow, 2), (too_late, 0)]
    );
    // A request that can wait long enough waits until a full queue has room.
    let start = Instant::now();
    let patient = Check::new(&request).waiting(Span::from_secs(100));
    let ask = || async { (limiter.acquire(&patient).await.unwrap(), start.elapsed().as_secs()) };
    let all = tokio::join!(ask(), ask(), ask(), ask(), ask(), ask(), ask());
    assert!(all.6.0.allowed() && all.6.1 <= 8, "{}", all.6.1);
}

/// A turn that was used is gone. A turn that was promised to a request that left is given to the next one.
#[tokio::test(start_paused = true)]
async fn a_promised_turn_is_used_once_or_given_back() {
    let limiter = limiter(
        "  - { name: a, key: [], limits: [{ rate: 1/s, algorithm: leaky_bucket, queue: 9 }] }",
    );
    let request = Attributes::new();
    let patient = Check::new(&request).waiting(Span::from_secs(60));
    let start = Instant::now();
    let turn = || async {
        assert!(limiter.acquire(&patient).await.unwrap().allowed());
        tokio::task::yield_now().await; // lets tasks that it spawned finish
        start.elapsed().as_millis()
    };
    for seconds in 0..5 {
        assert_eq!(turn().await, seconds * 1_000);
    }
    // The next turn is at 5 s. A request is promised it, and leaves half a second before.
    let leaver = limiter.acquire(&patient);
    assert!(tokio::time::timeout(Duration::from_millis(500), leaver).await.is_err());
    tokio::task::yield_now().await;
    assert_eq!(turn().await, 5_000);
}

/// The story: a leaky bucket for all, and a limit for each address beside it. A client asked and left, again and again. Each turn
/// that it left was burnt, since later ones were promised, and the limit of its address was given back each time. So it used up the
/// turns of all others, and was never refused.
#[tokio::test(start_paused = true)]
async fn a_turn_that_cannot_be_given_back_keeps_all_that_its_request_took() {
    let limiter = limiter(
        "  - { name: line, key: [], limits: [{ rate: 10/s, algorithm: leaky_bucket, queue: 100 }] }
  - { name: each, key: [user], limits: [{ rate: 5/h, algorithm: fixed_window }] }
  - { name: running, key: [user], limits: [{ concurrent: 50 }] }",
    );
    let (mallory, alice) = (user("mallory"), user("alice"));
    let left = async |who: &Attributes<'_>, rule: &str| {
        let peek = limiter.peek(&Check::new(who)).await.unwrap();
        peek.limits().find(|limit| limit.rule == rule).unwrap().decision.remaining
    };
    let task = |who: &Attributes<'static>| {
        let (limiter, who) = (limiter.clone(), who.clone());
        let patient = Span::from_secs(60);
        tokio::spawn(async move { limiter.acquire(&Check::new(&who).waiting(patient)).await })
    };
    let pass = || virtual_time_passes(Duration::from_millis(1));
    task(&alice).await.unwrap().unwrap(); // the first turn is at once
    let leavers: Vec<_> = (0..3).map(|_| task(&mallory)).collect();
    pass().await;
    let waits = task(&alice);
    pass().await;
    assert_eq!(left(&mallory, "each").await, 2);
    for leaver in leavers {
        leaver.abort();
        pass().await;
    }
    // Alice has the turn behind them, so their turns stay empty, and count for mallory. A request that does not run has no permit.
    assert_eq!((left(&mallory, "each").await, left(&mallory, "running").await), (2, 50));
    // The last turn can be given to the next request, so nothing of it stays counted.
    let last = task(&mallory);
    pass().await;
    assert_eq!(left(&mallory, "each").await, 1);
    last.abort();
    pass().await;
    assert_eq!(left(&mallory, "each").await, 2);
    waits.await.unwrap().unwrap();
}

/// Requests that share one key but not another must not wait for each other in a circle, nor longer than needed.
#[tokio::test(start_paused = true)]
async fn waiters_of_several_keys_do_not_block_each_other() {
    let limiter = limiter(
        "  - { name: all, key: [], limits: [{ rate: 100/s, burst: 1 }] }\n  - { name: a, key: [user], limits: [{ rate: 1/min, burst: 1 }] }",
    );
    let alice = user("alice");
    assert!(limiter.check_now(&Check::new(&alice)).unwrap().allowed());
    // Alice waits a minute under her own limit. That must not hold up a hundred other users under the shared limit.
    let patient = Check::new(&alice).waiting(Span::from_secs(300));
    let start = Instant::now();
    let others = async {
        virtual_time_passes(Duration::from_millis(10)).await;
        for n in 0..100 {
            let other = user(&format!("user-{n}"));
            let check = Check::new(&other).waiting(Span::from_secs(300));
            assert!(limiter.acquire(&check).await.unwrap().allowed());
        }
        start.elapsed()
    };
    let (alice, others) = tokio::join!(limiter.acquire(&patient), others);
    assert!(alice.unwrap().allowed());
    assert!(others < Duration::from_secs(2), "{others:?}");
}

#[tokio::test(start_paused = true)]
async fn a_reset_wakes_waiting_requests() {
    let limiter = limiter("  - { name: a, key: [user], limits: [{ rate: 1/h, burst: 1 }] }");
    let alice = user("alice");
    assert!(limiter.check_now(&Check::new(&alice)).unwrap().allowed());
    let patient = Check::new(&alice).waiting(Span::from_secs(7_200));
    let start = Instant::now();
    let reset = async {
        virtual_time_passes(Duration::from_secs(1)).await;
        assert_eq!(limiter.reset_now("a", &alice).unwrap(), 1);
    };
    let (verdict, ()) = tokio::join!(limiter.acquire(&patient), reset);
    assert!(verdict.unwrap().allowed());
    assert_eq!(start.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_new_policy_wakes_waiting_requests() {
    let limiter = limiter("  - { name: a, key: [user], limits: [1/h] }");
    let alice = user("alice");
    assert!(limiter.check_now(&Check::new(&alice)).unwrap().allowed());
    let patient = Check::new(&alice).waiting(Span::from_secs(7_200));
    let start = Instant::now();
    let reload = async {
        virtual_time_passes(Duration::from_secs(1)).await;
        let raised = "version: 1\nrules: [{ name: a, key: [user], limits: [10/h] }]";
        limiter.reload(Policy::parse(raised).unwrap()).unwrap();
    };
    let (verdict, ()) = tokio::join!(limiter.acquire(&patient), reload);
    assert!(verdict.unwrap().allowed());
    assert_eq!(start.elapsed().as_secs(), 1);
}

/// Blocked threads pass at exactly the rate of the limit. The clock is set by hand: one hour forward whenever the token of the
/// hour has been taken. So the test counts steps and waits for events, and the timers of the blocked threads, which are an
/// hour away, never fire.
#[test]
fn blocked_threads_pass_at_the_rate() {
    const THREADS: u64 = 8;
    const EACH: u64 = 25;
    let at = |hour: u64| Timestamp::from_nanos((1_000_000 + hour * 3_600) * 1_000_000_000);
    let clock = Clock::manual(at(0));
    let policy = Policy::parse(
        "{ version: 1, rules: [{ name: a, key: [], limits: [{ rate: 1/h, burst: 1 }] }] }",
    );
    let memory = Memory::new(clock.clone());
    let limiter = Limiter::new(policy.unwrap(), memory, Secret::new([7; 32]), clock.clone());
    let limiter = limiter.unwrap();
    // When each request passed; `None` for one that did not. A panic in a thread would leave the loop below waiting.
    let passed: Mutex<Vec<Option<Timestamp>>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let job = Attributes::new();
                let check = Check::new(&job).waiting(Span::from_secs(3_600 * 1_000));
                for _ in 0..EACH {
                    let verdict = limiter.acquire_blocking(&check).ok().filter(Verdict::allowed);
                    passed.lock().unwrap().push(verdict.map(|verdict| verdict.decided_at));
                }
            });
        }
        for hour in 1..=THREADS * EACH {
            while u64::try_from(passed.lock().unwrap().len()).unwrap() < hour {
                limiter.change(|_, _| Ok(())).unwrap(); // any change wakes the first in the queue
                std::thread::yield_now();
            }
            clock.set(at(hour));
        }
    });
    let expected: Vec<_> = (0..THREADS * EACH).map(|hour| Some(at(hour))).collect();
    assert_eq!(*passed.lock().unwrap(), expected);
}
