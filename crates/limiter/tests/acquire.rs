//! Waiting for a turn, in a time that the test makes: tokio's clock stands still unless everybody waits.

#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test fails loudly, and its instants are the runtime's, which stand still"
)]

use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate::{
    Attributes, Check, Clock, Limiter, Memory, Outcome, Policy, Retry, Secret, Span, Timestamp,
};
use tokio::time::{Instant, sleep};

/// A clock that goes with the runtime's.
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

/// Who was served, when.
type Served = Arc<Mutex<Vec<(usize, Duration)>>>;

/// Starts a thousand tasks one after another, drops every third in the middle of the wait, and answers who
/// was served when.
async fn a_thousand_wait(rules: &str) -> Vec<(usize, Duration)> {
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
        tokio::task::yield_now().await; // it asks before the next one does
    }
    sleep(Duration::from_millis(1_050)).await;
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

/// A thousand wait, a third leaves: order is kept, everybody else is served, the rate is held.
#[tokio::test(start_paused = true)]
async fn a_thousand_wait_and_a_third_leaves() {
    for algorithm in [
        "{ rate: 10/s, burst: 1 }",
        "{ rate: 10/s, algorithm: sliding_log }",
        "{ rate: 10/s, algorithm: fixed_window }",
        "{ rate: 10/s, algorithm: leaky_bucket, queue: 2000 }",
    ] {
        let rules = format!("  - {{ name: a, key: [user], limits: [{algorithm}] }}");
        let served = a_thousand_wait(&rules).await;
        let numbers: Vec<usize> = served.iter().map(|(number, _)| *number).collect();
        assert!(numbers.is_sorted(), "{algorithm}: {numbers:?}");
        let missing: Vec<usize> =
            (0..1_000).filter(|n| n % 3 != 1 && !numbers.contains(n)).collect();
        assert_eq!(missing, [0; 0], "{algorithm}");
        // At any two moments: no more than the window's content and the rate, and no time is lost.
        for (at, (_, then)) in served.iter().enumerate() {
            let within =
                served[at..].iter().take_while(|(_, t)| *t - *then < Duration::from_secs(1));
            assert!(within.count() <= 20, "{algorithm} at {then:?}");
        }
        let (_, last) = served.last().unwrap();
        let fastest = Duration::from_millis(100) * u32::try_from(served.len()).unwrap();
        let leaky = algorithm.contains("leaky"); // promised turns of those who left stay empty
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
            sleep(Duration::from_millis(after)).await;
            limiter.acquire(&waiting).await.unwrap();
            order.lock().unwrap().push(name);
        }
    };
    let other = async {
        sleep(Duration::from_millis(500)).await;
        assert!(limiter.acquire(&Check::new(&bob)).await.unwrap().allowed());
        order.lock().unwrap().push("bob");
    };
    // The third comes at the very moment when a token is there, and still is third.
    tokio::join!(wait("first", 0), wait("second", 900), wait("third", 1_000), other);
    assert_eq!(*order.lock().unwrap(), ["bob", "first", "second", "third"]);
}

#[tokio::test(start_paused = true)]
async fn waiting_is_bounded_by_time_and_by_queue() {
    let limiter = limiter(
        "  - { name: a, key: [user], limits: [{ rate: 1/s, burst: 1 }], on_limit: { delay: { max_wait: 5s, max_queue: 2 } } }",
    );
    let alice = user("alice");
    assert!(limiter.check_now(&Check::new(&alice)).unwrap().allowed());
    // Too long: refused at once, with the time it would take.
    let hasty = limiter.acquire(&Check::new(&alice).waiting(Span::from_millis(900))).await.unwrap();
    assert_eq!(hasty.outcome, Outcome::Deny(Retry::After(Span::from_secs(1))));
    // Three at once, two may wait; a cost above the burst never passes and does not wait at all.
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
    // Who is still behind others when its time is over is refused then.
    let start = Instant::now();
    let hasty = Check::new(&alice).waiting(Span::from_millis(1_500));
    let (first, second) = tokio::join!(limiter.acquire(&patient), limiter.acquire(&hasty));
    assert!(first.unwrap().allowed() && !second.unwrap().allowed());
    assert!(start.elapsed() <= Duration::from_secs(2));
}

/// A leaky bucket promises turns at once, so a turn beyond somebody's patience is refused at once; and whoever
/// has waited is not told to wait again.
#[tokio::test(start_paused = true)]
async fn a_turn_beyond_patience_is_refused_at_once() {
    let limiter = limiter(
        "  - { name: a, key: [], limits: [{ rate: 1/s, algorithm: leaky_bucket, queue: 4 }] }",
    );
    let nobody = Attributes::new();
    let start = Instant::now();
    let hasty = Check::new(&nobody).waiting(Span::from_secs(2));
    let ask = || async { (limiter.acquire(&hasty).await.unwrap(), start.elapsed().as_secs()) };
    let (a, b, c, d) = tokio::join!(ask(), ask(), ask(), ask());
    let seconds = [&a, &b, &c, &d].map(|(verdict, seconds)| (verdict.outcome, *seconds));
    let too_late = Outcome::Deny(Retry::After(Span::from_secs(1)));
    assert_eq!(
        seconds,
        [(Outcome::Allow, 0), (Outcome::Allow, 1), (Outcome::Allow, 2), (too_late, 0)]
    );
    // A full queue is waited out by who has the patience.
    let start = Instant::now();
    let patient = Check::new(&nobody).waiting(Span::from_secs(100));
    let ask = || async { (limiter.acquire(&patient).await.unwrap(), start.elapsed().as_secs()) };
    let all = tokio::join!(ask(), ask(), ask(), ask(), ask(), ask(), ask());
    assert!(all.6.0.allowed() && all.6.1 <= 8, "{}", all.6.1);
}

/// A turn that was taken is gone; one that was promised to somebody who left is given to the next.
#[tokio::test(start_paused = true)]
async fn a_promised_turn_is_taken_once_or_given_back() {
    let limiter = limiter(
        "  - { name: a, key: [], limits: [{ rate: 1/s, algorithm: leaky_bucket, queue: 9 }] }",
    );
    let nobody = Attributes::new();
    let patient = Check::new(&nobody).waiting(Span::from_secs(60));
    let start = Instant::now();
    let turn = || async {
        assert!(limiter.acquire(&patient).await.unwrap().allowed());
        tokio::task::yield_now().await; // what it leaves behind is done
        start.elapsed().as_millis()
    };
    for seconds in 0..5 {
        assert_eq!(turn().await, seconds * 1_000);
    }
    // The next turn is at 5 s. Somebody is promised it and leaves half a second before.
    let leaver = limiter.acquire(&patient);
    assert!(tokio::time::timeout(Duration::from_millis(500), leaver).await.is_err());
    tokio::task::yield_now().await;
    assert_eq!(turn().await, 5_000);
}

/// Two who share one key and not another must not wait for each other in a circle.
#[tokio::test(start_paused = true)]
async fn waiters_of_several_keys_do_not_block_each_other() {
    let limiter = limiter(
        "  - { name: all, key: [], limits: [{ rate: 100/s, burst: 1 }] }\n  - { name: a, key: [user], limits: [{ rate: 1/min, burst: 1 }] }",
    );
    let alice = user("alice");
    assert!(limiter.check_now(&Check::new(&alice)).unwrap().allowed());
    // Alice waits a minute for herself; that must not hold up a hundred others.
    let patient = Check::new(&alice).waiting(Span::from_secs(300));
    let start = Instant::now();
    let others = async {
        sleep(Duration::from_millis(10)).await;
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
async fn a_reset_or_a_new_policy_wakes_those_who_wait() {
    let limiter = limiter("  - { name: a, key: [user], limits: [{ rate: 1/h, burst: 1 }] }");
    let alice = user("alice");
    assert!(limiter.check_now(&Check::new(&alice)).unwrap().allowed());
    let patient = Check::new(&alice).waiting(Span::from_secs(7_200));
    let start = Instant::now();
    let reset = async {
        sleep(Duration::from_secs(1)).await;
        assert_eq!(limiter.reset_now("a", &alice).unwrap(), 1);
    };
    let (verdict, ()) = tokio::join!(limiter.acquire(&patient), reset);
    assert!(verdict.unwrap().allowed());
    assert_eq!(start.elapsed().as_secs(), 1);
}

/// The first seed's `RateLimit()`: threads that call it are let through at the rate.
#[test]
fn threads_are_let_through_at_the_rate() {
    let policy = Policy::parse(
        "{ version: 1, rules: [{ name: a, key: [], limits: [{ rate: 1000/s, burst: 1 }] }] }",
    );
    let limiter = Limiter::in_memory(policy.unwrap()).unwrap();
    let start = limiter.store().clock().now().steady;
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let nobody = Attributes::new();
                for _ in 0..25 {
                    let check = Check::new(&nobody).waiting(Span::from_secs(60));
                    assert!(limiter.acquire_blocking(&check).unwrap().allowed());
                }
            });
        }
    });
    let passed = limiter.store().clock().now().steady.since(start);
    assert!(passed >= Span::from_millis(199), "{passed}");
}
