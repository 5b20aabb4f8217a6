//! Several servers share one Redis and one limit. In every window of the store exactly as many requests pass
//! as the limit allows.

use crate::support::load::{Load, Sample, Samples};
use crate::support::redis::{Redis, StoreTime};
use crate::support::tidegate::{Deployment, Tidegate};
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) const LIMIT: u64 = 1_000;
pub(crate) const WINDOW: Duration = Duration::from_secs(10);
const RULE: &str =
    "{ name: all, key: [ip], limits: [{ rate: 1000/10s, algorithm: fixed_window }] }";

/// How many requests passed in each window that the load covered completely.
pub(crate) fn admitted(samples: &Samples, time: StoreTime, period: Duration) -> BTreeMap<u64, u64> {
    let window = |sample: &Sample| time.window(sample, period);
    let windows: Vec<u64> = samples.0.iter().map(window).collect();
    let (first, last) = (windows.iter().min().unwrap(), windows.iter().max().unwrap());
    let mut admitted: BTreeMap<u64, u64> = (first + 1..*last).map(|window| (window, 0)).collect();
    for (sample, window) in samples.0.iter().zip(&windows) {
        if let Some(count) = admitted.get_mut(window) {
            *count += u64::from(sample.verdict.status == 200);
        }
    }
    admitted
}

#[test]
fn four_servers_admit_exactly_what_one_would() {
    let redis = Redis::start();
    let deployment = Deployment::new(RULE);
    // The timeout is long, because this test is about counts and not about latency.
    let flags = ["--redis-timeout", "1s"];
    let servers: Vec<_> = (0..4).map(|_| deployment.server(&redis.url(), &flags)).collect();
    servers.iter().for_each(Tidegate::until_ready);
    let time = redis.store_time();
    let load = Load {
        servers: servers.iter().map(|server| server.http).collect(),
        per_second: 3_000,
        // At least two whole windows, whenever the load begins.
        length: 3 * WINDOW + Duration::from_millis(100),
        connections: 64,
    };
    let samples = load.start(|_| r#""ip":"203.0.113.7""#.to_owned()).finish();
    let admitted = admitted(&samples, time, WINDOW);
    println!("exact: {}; {admitted:?}", samples.summary());
    samples.assert_all_answered();
    samples.assert_all_by_store();
    assert!(admitted.len() >= 2, "{admitted:?}");
    assert!(admitted.values().all(|count| *count == LIMIT), "{admitted:?}");
}
