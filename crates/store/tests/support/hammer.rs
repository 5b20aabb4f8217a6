//! Several processes on one server: this test binary runs itself again as its own child processes.

use super::concurrency;
use super::dice::Dice;
use super::server::Server;
use super::settings;
use std::collections::BTreeMap;
use std::fmt;
use std::process::{Command, Stdio};
use tidegate_core::{Limit, Now, Span, Timestamp, Written};
use tidegate_store::{Redis, RedisSettings, Secret, Store, StoreError};

/// The environment variable that tells a child the URL of the server. A process without it is not a child.
const URL: &str = "TIDEGATE_HAMMER_URL";
const TASKS: u64 = 16;
const TAKES: u64 = 100;
/// Takes before and after a difference that a failure prints.
const CONTEXT: usize = 200;

/// Limits for the one key: all algorithms, 1,000 per hour.
pub(crate) fn limits() -> [Limit; 6] {
    tidegate_core::Algorithm::ALL.map(|algorithm| {
        let amount = if algorithm == tidegate_core::Algorithm::LEAKY_BUCKET { 999 } else { 1_000 };
        Limit::new(amount, Span::from_secs(3_600), algorithm).unwrap()
    })
}

/// Limits for the many keys: all algorithms, with a short period, so that many states expire during the test.
pub(crate) fn quick_limits() -> [Limit; 6] {
    tidegate_core::Algorithm::ALL
        .map(|algorithm| Limit::new(3, Span::from_secs(1), algorithm).unwrap())
}

/// Which keys a take was made on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// The single key that all tasks of all processes share.
    One,
    /// One of 10,000 keys, some of which are far more popular than others.
    Many,
}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::One => "one",
            Self::Many => "many",
        })
    }
}

/// One take, as the task that made it saw it.
pub(crate) struct Observation {
    process: usize,
    task: u64,
    /// Position among the takes of its task, counting both [`Keys`].
    number: u64,
    key: u128,
    /// The server's time of the decision.
    at: Timestamp,
    pub(crate) passed: bool,
    remaining: u64,
}

/// What all children saw.
pub(crate) struct Report {
    /// Takes of the one key, for each of [`limits`].
    pub(crate) one: Vec<Vec<Observation>>,
    /// Takes of the many keys, for each of [`quick_limits`].
    pub(crate) many: Vec<Vec<Observation>>,
}

/// Runs the test `name` in several child processes, and collects what they saw.
pub(crate) fn children(server: &Server, name: &str, processes: usize) -> Report {
    let program = std::env::current_exe().unwrap();
    let start = || {
        let mut child = Command::new(&program);
        child.args(["--exact", name, "--nocapture"]).env(URL, server.url());
        child.stdout(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (0..processes).map(|_| start()).collect();
    let mut report = Report::empty();
    // All pipes are read at the same time. A child whose pipe is full blocks while its timers go on, and its next take would time
    // out: when the pipes were read one after another, a slow first child failed the others.
    let readers: Vec<_> = children
        .into_iter()
        .map(|child| std::thread::spawn(|| child.wait_with_output().unwrap()))
        .collect();
    for (process, reader) in readers.into_iter().enumerate() {
        let output = reader.join().unwrap();
        assert!(output.status.success());
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            report.read(process, line);
        }
    }
    report
}

impl Report {
    pub(crate) fn empty() -> Self {
        let lists = || limits().iter().map(|_| Vec::new()).collect();
        Self { one: lists(), many: lists() }
    }

    /// Parses a line of a child: `one|many LIMIT KEY SERVER_NANOS 0|1 REMAINING TASK NUMBER`.
    pub(crate) fn read(&mut self, process: usize, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let [keys @ ("one" | "many"), limit, key, nanos, passed, remaining, task, number] =
            words.as_slice()
        else {
            return; // a line of the test runner
        };
        let observation = Observation {
            process,
            task: task.parse().unwrap(),
            number: number.parse().unwrap(),
            key: key.parse().unwrap(),
            at: Timestamp::from_nanos(nanos.parse().unwrap()),
            passed: *passed == "1",
            remaining: remaining.parse().unwrap(),
        };
        let lists = if *keys == "one" { &mut self.one } else { &mut self.many };
        lists[limit.parse::<usize>().unwrap()].push(observation);
    }
}

/// The work of a child, if this process is one: many tasks take from each limit at the same time, from one key and from many.
pub(crate) async fn work() {
    let Ok(url) = std::env::var(URL) else { return };
    // An answer of the denial cache has no time of the server's clock, so it could not be replayed in order.
    let settings = RedisSettings { remember_refusals: false, ..settings::redis(&url) };
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

async fn take_all(
    store: &Redis,
    limit_number: usize,
    limit: &Limit,
    quick: &Limit,
    task: u64,
) -> Result<(), StoreError> {
    let mut dice = Dice::new(task * 1_000 + u64::from(std::process::id()));
    let limit_number = u128::try_from(limit_number).unwrap();
    let mut number = 0;
    for _ in 0..TAKES {
        let key = concurrency::zipf_key(&mut dice);
        let one = concurrency::plan(u128::MAX - limit_number, limit);
        let many = concurrency::plan((key << 8) | limit_number, quick);
        for (keys, key, plan) in [(Keys::One, 0, one), (Keys::Many, key, many)] {
            for answer in store.take(&[plan]).await {
                let answer = answer?;
                let (at, passed) = (answer.at.as_nanos(), u8::from(answer.done.passes));
                let remaining = answer.done.decisions[0].remaining;
                println!("{keys} {limit_number} {key} {at} {passed} {remaining} {task} {number}");
                number += 1;
            }
        }
    }
    Ok(())
}

// === replay ===

/// Replays each key's takes in the core, in the order of the server's time: at each instant exactly as many must have passed.
pub(crate) fn replay(engine: &str, keys: Keys, limit: &Limit, seen: &[Observation]) {
    let mut histories: BTreeMap<u128, BTreeMap<Timestamp, Vec<&Observation>>> = BTreeMap::new();
    for observation in seen {
        let history = histories.entry(observation.key).or_default();
        history.entry(observation.at).or_default().push(observation);
    }
    for (key, history) in &histories {
        let mut written = [Written::empty(limit)];
        let plan = concurrency::plan(*key, limit);
        for (at, takes) in history {
            let by_core =
                takes.iter().filter(|_| plan.take(Now::at(*at), &mut written).passes).count();
            let by_server = takes.iter().filter(|take| take.passed).count();
            assert!(
                by_core == by_server,
                "{engine}: {} with {} in {:?}, key {key} of `{keys}`: of {} takes at {} the server let {by_server} \
                 pass, the core {by_core}\n{}{}",
                limit.algorithm().name(),
                limit.amount(),
                limit.period(),
                takes.len(),
                at.as_nanos(),
                around(history, *at),
                steps_back(seen),
            );
        }
    }
}

/// The takes of a key around an instant, as the processes saw them.
fn around(history: &BTreeMap<Timestamp, Vec<&Observation>>, difference: Timestamp) -> String {
    let all: Vec<&Observation> = history.values().flatten().copied().collect();
    let before = all.iter().filter(|take| take.at < difference).count();
    let same = all.iter().filter(|take| take.at == difference).count();
    let from = before.saturating_sub(CONTEXT);
    let to = (before + same + CONTEXT).min(all.len());
    let mut text = format!(
        "takes {from} to {to} of {} of this key, by server time in nanoseconds; > marks the difference\n",
        all.len()
    );
    for take in &all[from..to] {
        let mark = if take.at == difference { '>' } else { ' ' };
        text += &format!("{mark} {take}\n");
    }
    text
}

/// The places where a task saw the server's clock go back, which would put takes into another order than the server's.
fn steps_back(seen: &[Observation]) -> String {
    let mut by_task: BTreeMap<(usize, u64), Vec<&Observation>> = BTreeMap::new();
    for take in seen {
        by_task.entry((take.process, take.task)).or_default().push(take);
    }
    let mut text = String::from("the server's clock, as seen by each task:");
    for takes in by_task.values_mut() {
        takes.sort_by_key(|take| take.number);
        for pair in takes.windows(2).filter(|pair| pair[1].at < pair[0].at) {
            text += &format!("\nwent back from {}\n            to {}", pair[0], pair[1]);
        }
    }
    if !text.contains("went back") {
        text += " never went back";
    }
    text
}

impl fmt::Display for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { process, task, number, key, at, passed, remaining } = self;
        let outcome = if *passed { "passed" } else { "refused" };
        let at = at.as_nanos();
        write!(f, "{at}  process {process} task {task:2} take {number:3}  key {key}  ")?;
        write!(f, "{outcome:7}  remaining {remaining}")
    }
}
