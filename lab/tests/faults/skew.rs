//! Servers whose clocks differ use the windows of the store, so the limit stays exact.

use crate::exact::admitted;
use crate::support::load::Load;
use crate::support::redis::Redis;
use crate::support::shim::Shim;
use crate::support::tidegate::{Deployment, Tidegate};
use std::time::{Duration, SystemTime};

const WINDOW: Duration = Duration::from_secs(5);

#[test]
fn three_servers_whose_clocks_differ_by_ten_seconds() {
    let redis = Redis::start();
    let deployment = Deployment::new(
        "{ name: all, key: [ip], limits: [{ rate: 100/5s, algorithm: fixed_window }] }",
    );
    let clocks = [-5, 0, 5].map(Shim::wrong_by);
    let flags = ["--redis-timeout", "1s"];
    let servers = clocks.each_ref().map(|clock| deployment.server_by(clock, &redis.url(), &flags));
    servers.iter().for_each(Tidegate::until_ready);
    let time = redis.store_time();
    let load = Load {
        servers: servers.iter().map(|server| server.http).collect(),
        per_second: 300,
        connections: 12,
        length: 4 * WINDOW + Duration::from_millis(100),
    };
    let load = load.start(|_| r#""ip":"203.0.113.7""#.to_owned());
    // The clocks are also changed under load.
    load.reaches(2 * WINDOW);
    clocks.iter().zip([3_600, -3_600, -5]).for_each(|(clock, seconds)| clock.set(seconds));
    let samples = load.finish();
    let admitted = admitted(&samples, time, WINDOW);
    println!("skew: {}; {admitted:?}", samples.summary());
    samples.assert_all_answered();
    samples.assert_all_by_store();
    assert!(admitted.len() >= 3, "{admitted:?}");
    assert!(admitted.values().all(|count| *count == 100), "{admitted:?}");
}

#[test]
fn three_servers_whose_clocks_are_set_while_they_hold_leases() {
    crate::leases::clocks_of_nodes_that_are_set();
}

/// Checks the test itself: the changed clock reaches the server. Without a store it decides by its own clock,
/// so windows of an hour end ten minutes early.
#[test]
fn a_server_uses_the_clock_that_the_test_sets() {
    const HOUR: u64 = 3_600_000;
    let deployment = Deployment::new(
        "{ name: all, key: [ip], limits: [{ rate: 100/h, algorithm: fixed_window }] }",
    );
    let clock = Shim::wrong_by(600);
    let server = deployment.server_by(&clock, "redis://127.0.0.1:1/", &[]);
    let reset = server.check(r#""ip":"203.0.113.7""#).reset_ms.unwrap();
    let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let ends = (u64::try_from(wall.as_millis()).unwrap() + 600_000 + reset) % HOUR;
    assert!(ends.min(HOUR - ends) < 5_000, "the window ends {ends} ms off the hour");
}
