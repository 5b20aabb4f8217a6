//! Several processes on one server: this test binary, run again as its own children.

use super::server::Server;
use std::process::{Command, Stdio};
use tidegate_core::{Cost, Limit, Plan, Span, StateId, Take};
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

/// Starts children that run the test `name`; answers what passed for each limit, all together.
pub(crate) fn children(server: &Server, name: &str, processes: usize) -> Vec<u64> {
    let program = std::env::current_exe().unwrap();
    let start = || {
        let mut child = Command::new(&program);
        child.args(["--exact", name, "--nocapture"]).env(URL, server.url());
        child.stdout(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (0..processes).map(|_| start()).collect();
    let mut passed = vec![0; limits().len()];
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find_map(|line| line.split_once("passed: ")).unwrap().1.to_owned();
        for (sum, count) in passed.iter_mut().zip(line.split(' ')) {
            *sum += count.parse::<u64>().unwrap();
        }
    }
    passed
}

/// The work of a child, if this process is one: takes of each limit by many tasks at once.
pub(crate) async fn work() {
    let Ok(url) = std::env::var(URL) else { return };
    let settings = RedisSettings { timeout: Span::from_secs(30), ..RedisSettings::new(&url) };
    let store = Redis::connect(&settings, &Secret::new([7; 32])).await.unwrap();
    let store: &'static Redis = Box::leak(Box::new(store));
    let mut counts = Vec::new();
    for (id, limit) in (1u128..).zip(limits()) {
        let limit: &'static Limit = Box::leak(Box::new(limit));
        let tasks: Vec<_> = (0..TASKS).map(|_| tokio::spawn(take_all(store, id, limit))).collect();
        let mut passed = 0;
        for task in tasks {
            passed += task.await.unwrap().unwrap();
        }
        counts.push(passed.to_string());
    }
    println!("\npassed: {}", counts.join(" "));
}

async fn take_all(store: &Redis, id: u128, limit: &Limit) -> Result<u64, StoreError> {
    let mut passed = 0;
    for _ in 0..TAKES {
        let plan =
            Plan::new(vec![Take::new(StateId(id), limit, Cost::ONE)], Span::from_secs(86_400))
                .unwrap();
        for answer in store.take(&[plan]).await {
            passed += u64::from(answer?.done.passes);
        }
    }
    Ok(passed)
}
