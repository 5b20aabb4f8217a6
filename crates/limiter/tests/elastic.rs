//! Elastic limits: more passes while the system has resources, and nothing beyond the limit soon after it has not.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    reason = "a test fails loudly"
)]

use tidegate::{Attributes, Check, Clock, Elasticity, Limiter, Memory, Policy, Secret, Timestamp};

const SECOND: u64 = 1_000_000_000;

fn limiter(clock: &Clock) -> Limiter<Memory> {
    let policy = Policy::parse(
        "
version: 1
rules:
  - name: exports
    key: []
    limits: [{ rate: 100/min, algorithm: sliding_log }]
    mode: { elastic: { up_to: 200%, while: 'load < 0.7' } }",
    )
    .unwrap();
    let secret = Secret::new([7; 32]);
    Limiter::new(policy, Memory::new(clock.clone()), secret, clock.clone()).unwrap()
}

/// What passed in one second of five requests: how many, and how many of them only because of the headroom.
fn one_second(limiter: &Limiter<Memory>, clock: &Clock, second: u64, load: f64) -> (u32, u32) {
    let request = Attributes::new();
    let (mut passed, mut over) = (0, 0);
    for fifth in 0..5 {
        clock.set(Timestamp::from_nanos(second * SECOND + fifth * SECOND / 5));
        if fifth == 0 {
            limiter.signal("load", load).unwrap();
        }
        let verdict = limiter.check_now(&Check::new(&request)).unwrap();
        passed += u32::from(verdict.allowed());
        over += u32::from(verdict.over);
    }
    (passed, over)
}

#[test]
fn an_idle_system_lets_more_pass_and_a_busy_one_nothing_beyond_the_limit() {
    let clock = Clock::manual(Timestamp::EPOCH);
    let limiter = limiter(&clock);
    let idle: u32 = (0..60).map(|second| one_second(&limiter, &clock, second, 0.2).0).sum();
    assert_eq!(idle, 200); // of 300
    // From second 60 on, the system is busy.
    let over: u32 = (60..180).map(|second| one_second(&limiter, &clock, second, 0.9).1).sum();
    assert_eq!(over, 0);
    let busy: u32 = (180..240).map(|second| one_second(&limiter, &clock, second, 0.9).0).sum();
    assert_eq!(busy, 100);
}

#[test]
fn near_the_threshold_a_part_passes() {
    let clock = Clock::manual(Timestamp::EPOCH);
    let limiter = limiter(&clock);
    // 0.665 is half of a tenth of 0.7 below it.
    let some: u32 = (0..60).map(|second| one_second(&limiter, &clock, second, 0.665).0).sum();
    assert_eq!(some, 150);
    let request = Attributes::new();
    let verdict = limiter.check_now(&Check::new(&request)).unwrap();
    assert_eq!(verdict.limits().next().unwrap().elastic_percent(), Some(150));
}

#[test]
fn without_reports_it_is_closed_and_says_so() {
    let clock = Clock::manual(Timestamp::EPOCH);
    let limiter = limiter(&clock);
    let why = || limiter.elasticities().remove(0).1;
    assert_eq!(why(), Elasticity::NoSignal);
    limiter.signal("load", 0.1).unwrap();
    clock.set(Timestamp::from_nanos(2 * SECOND));
    assert_eq!(why(), Elasticity::Open(100));
    let request = Attributes::new();
    let explained = limiter.explain(&Check::new(&request)).to_string();
    assert!(explained.contains("elastic, open: 100 % of the headroom"), "{explained}");
    clock.set(Timestamp::from_nanos(11 * SECOND));
    assert_eq!(why(), Elasticity::NoSignal);
}
