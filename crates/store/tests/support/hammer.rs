//! Several processes on one server: this test binary, run again as its own children.

use super::concurrency::{self, Seen};
use super::dice::Dice;
use super::server::Server;
use std::process::{Command, Stdio};
use tidegate_core::{Limit, Span, Timestamp};
use tidegate_store::{Redis, RedisSettings, Secret, Store, StoreError};

/// Where a child finds the server; without it, it is no child.
const URL: &str = "TIDEGATE_HAMMER_URL";
const TASKS: u64 = 16;
const TAKES: u64 = 100;

/// All kinds of limit, 1,000 an hour.
pub(crate) fn limits() -> [Limit; 6] {
    tidegate_core::Algorithm::ALL.map(|algorithm| {
        let amount = if algorithm == tidegate_core::Algorithm::LEAKY_BUCKET { 999 } else { 1_000 };
        Limit::new(amount, Span::from_secs(3_600), algorithm).unwrap()
    })
}

/// What children saw, all together.
pub(crate) struct Report {
    /// Takes of one key, for each limit.
    pub(crate) one: Vec<Vec<Seen>>,
    /// Takes of many keys, for each quick limit.
    pub(crate) many: Vec<Vec<Seen>>,
}

/// Starts children that run the test `name`.
pub(crate) fn children(server: &Server, name: &str, processes: usize) -> Report {
    let program = std::env::current_exe().unwrap();
    let start = || {
        let mut child = Command::new(&program);
        child.args(["--exact", name, "--nocapture"]).env(URL, server.url());
        child.stdout(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (0..processes).map(|_| start()).collect();
    let mut report = Report { one: Vec::new(), many: Vec::new() };
    report.one.resize_with(limits().len(), Vec::new);
    report.many.resize_with(limits().len(), Vec::new);
    // All pipes are read at the same time. A child whose pipe is full stands still, its timers go on, and its next
    // take would time out: when they were read one after another, a slow first child failed the others.
    let readers: Vec<_> = children
        .into_iter()
        .map(|child| std::thread::spawn(|| child.wait_with_output().unwrap()))
        .collect();
    for reader in readers {
        let output = reader.join().unwrap();
        assert!(output.status.success());
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            read(line, &mut report);
        }
    }
    report
}

/// Lines of children: `one LIMIT KEY NANOS 0|1`, and the same with `many`.
fn read(line: &str, report: &mut Report) {
    let words: Vec<&str> = line.split(' ').collect();
    let [kind @ ("one" | "many"), limit, key, nanos, passed] = words.as_slice() else {
        return; // what the test runner says
    };
    let at = Timestamp::from_nanos(nanos.parse().unwrap());
    let seen = Seen { key: key.parse().unwrap(), at, passed: *passed == "1" };
    let lists = if *kind == "one" { &mut report.one } else { &mut report.many };
    lists[limit.parse::<usize>().unwrap()].push(seen);
}

/// The work of a child, if this process is one: takes of each limit by many tasks at once, of one key and
/// of many.
pub(crate) async fn work() {
    let Ok(url) = std::env::var(URL) else { return };
    // A refusal that is remembered has no instant of the store's clock, so it cannot be played again in order.
    let (timeout, remember_refusals) = (Span::from_secs(30), false);
    let settings = RedisSettings {
        timeout,
        connect_timeout: timeout,
        remember_refusals,
        ..RedisSettings::new(&url)
    };
    let store = Redis::connect(&settings, &Secret::new([7; 32])).await.unwrap();
    let store: &'static Redis = Box::leak(Box::new(store));
    let limits: &'static [Limit; 6] = Box::leak(Box::new(limits()));
    let quick: &'static [Limit; 6] = Box::leak(Box::new(quick_limits()));
    println!();
    for (number, (limit, quick)) in limits.iter().zip(quick).enumerate() {
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| tokio::spawn(take_all(store, number, limit, quick, task)))
            .collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
    }
}

/// The same kinds with a short period, so that much expires while the test runs.
pub(crate) fn quick_limits() -> [Limit; 6] {
    tidegate_core::Algorithm::ALL
        .map(|algorithm| Limit::new(3, Span::from_secs(1), algorithm).unwrap())
}

async fn take_all(
    store: &Redis,
    number: usize,
    limit: &Limit,
    quick: &Limit,
    task: u64,
) -> Result<(), StoreError> {
    let mut dice = Dice::new(task * 1_000 + u64::from(std::process::id()));
    let number = u128::try_from(number).unwrap();
    for _ in 0..TAKES {
        let key = concurrency::zipf_key(&mut dice);
        let one = concurrency::plan(u128::MAX - number, limit);
        let many = concurrency::plan((key << 8) | number, quick);
        for (kind, key, plan) in [("one", 0, one), ("many", key, many)] {
            for answer in store.take(&[plan]).await {
                let answer = answer?;
                let passed = u8::from(answer.done.passes);
                println!("{kind} {number} {key} {} {passed}", answer.at.as_nanos());
            }
        }
    }
    Ok(())
}
