//! The store is down for ten seconds. The servers do not overload it with connection attempts, neither while
//! it is down nor when it returns (no thundering herd).

use crate::support::load::Load;
use crate::support::proxy::Proxy;
use crate::support::redis::Redis;
use crate::support::tidegate::{DecidedBy, Deployment, Tidegate};
use std::time::{Duration, Instant};

const RULE: &str =
    "{ name: all, key: [ip], limits: [{ rate: 100000000/day, algorithm: fixed_window }] }";
const AWAY: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);
const NODES: usize = 3;

#[test]
fn a_store_that_returns_is_not_overloaded() {
    let mut redis = Redis::start();
    let deployment = Deployment::new(RULE);
    // Each node has its own proxy to the store, so that its connections can be counted.
    let proxies: Vec<Proxy> = (0..NODES).map(|_| Proxy::start(redis.address)).collect();
    let servers: Vec<_> =
        proxies.iter().map(|proxy| deployment.server(&proxy.url(), &[])).collect();
    servers.iter().for_each(Tidegate::until_ready);
    let load = Load {
        servers: servers.iter().map(|server| server.http).collect(),
        per_second: 900,
        connections: 90,
        length: Duration::from_secs(16),
    };
    let load = load.start(|number| format!("\"ip\":\"203.0.113.{}\"", number % 100));
    load.reaches(2 * SECOND);
    redis.kill();
    let away = Instant::now();
    load.reaches(2 * SECOND + AWAY);
    redis.start_again();
    let back = Instant::now();
    let decided: Vec<Duration> = servers
        .iter()
        .map(|server| server.until_the_store_decides(back, r#""ip":"198.51.100.1""#))
        .collect();
    let samples = load.finish();
    println!("herd: {}; the store decides again after {decided:?}", samples.summary());
    samples.assert_all_answered();
    assert_eq!(samples.between(back + 3 * SECOND, back + 10 * SECOND).by(DecidedBy::Fallback), 0);
    for (node, proxy) in proxies.iter().enumerate() {
        let seconds = (0..10).map(|second| {
            let from = away + SECOND * second;
            proxy.accepted(from, from + SECOND)
        });
        let (tried, first) = (seconds.collect::<Vec<_>>(), proxy.accepted(back, back + SECOND));
        println!(
            "  node {node}: {tried:?} connection attempts while it was down, {first} in the first second after"
        );
        assert!(tried.iter().all(|tries| *tries <= 10), "{tried:?}");
        assert!(first <= 2, "{first}");
    }
    assert!(decided.iter().all(|time| *time <= SECOND), "{decided:?}");
}
