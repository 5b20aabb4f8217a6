//! Another program writes its data under the key of one user. Only this user is decided by the fallback,
//! within the ceiling, and `/ready` and the log name the key.
//!
//! The bug this guards against: answers to other users reset the fallback's counters. 4,000 of 4,000 requests
//! of that user passed, and `/ready` said `ready`.

use crate::support::crowd::{about, ask, others};
use crate::support::redis::Redis;
use crate::support::tidegate::{DecidedBy, Deployment, Tidegate};

const RULE: &str = "{ name: all, key: [ip], limits: [30/week] }";
const LIMIT: u64 = 30;
const NODES: u64 = 3;
const CEILING: u64 = LIMIT + NODES * LIMIT.div_ceil(NODES);
const FLAGS: [&str; 4] = ["--redis-timeout", "10s", "--redis-denial-cache", "off"];
const USER: &str = "203.0.113.7";

#[test]
fn a_foreign_list_under_the_key_of_one_user() {
    let redis = Redis::start();
    let deployment = Deployment::new(RULE);
    let mut servers = deployment.servers(NODES, &redis.url(), &FLAGS);
    let before = ask(&servers, 3, |_| about(USER));
    before.assert_all_by_store();
    let key = redis.state_keys().pop().unwrap();
    let mut connection = redis.connect();
    redis::cmd("DEL").arg(&key).exec(&mut connection).unwrap();
    redis::cmd("LPUSH").arg(&key).arg("foreign").exec(&mut connection).unwrap();
    let _others = others(&servers);

    let during = ask(&servers, 4_000, |_| about(USER));
    println!("foreign: {} of 4,000 passed meanwhile", during.admitted());
    assert!(during.admitted() <= CEILING, "the ceiling is {CEILING}");
    assert_eq!(during.by(DecidedBy::Fallback), during.len());
    let named = key.escape_ascii().to_string();
    servers.iter().for_each(|server| server.until_degraded_and_logged(&named));
    assert!(servers.iter().all(|server| server.metric_with("tidegate_store_errors", "wrong") > 0));
    ask(&servers, 300, |number| about(&format!("192.0.2.{}", number % 100))).assert_all_by_store();

    // The key is repaired, and the servers charge to the store what they granted meanwhile.
    redis::cmd("DEL").arg(&key).exec(&mut connection).unwrap();
    let after = ask(&servers, 300, |_| about(USER));
    after.assert_all_by_store();
    let [before, during, after] = [before, during, after].map(|samples| samples.admitted());
    println!(
        "foreign: {before} passed before, {during} of 4,000 during, {after} after; ceiling {CEILING}"
    );
    // The foreign program deleted the earlier count, so the store starts from zero.
    let all = during + after;
    assert!((LIMIT..=CEILING).contains(&all), "{all} passed, the ceiling is {CEILING}");
    servers.iter().for_each(Tidegate::until_ready);
    servers.iter_mut().for_each(Tidegate::assert_healthy);
}
