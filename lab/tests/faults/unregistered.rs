//! A limit cannot be registered in the store, because the key of the registry holds another program's data,
//! or because the store forbids a command.
//!
//! The bug this guards against: every token bucket then fell back without any report, and 600 of 600 requests
//! passed where the limit was 10. Now the store still counts. Buckets take more memory, and `/ready` and the
//! log say why.

use crate::support::crowd::{about, ask};
use crate::support::redis::Redis;
use crate::support::tidegate::{Deployment, Tidegate};
use crate::support::{PATIENCE, within};

const RULE: &str = "{ name: all, key: [ip], limits: [{ rate: 10/week, algorithm: token_bucket }] }";
const LIMIT: u64 = 10;
const REQUESTS: u32 = 600;
/// With these flags every answer comes from the store, even on a busy machine.
const FLAGS: [&str; 4] = ["--redis-timeout", "10s", "--redis-denial-cache", "off"];

/// Starts three servers, each of which must report why it cannot register its limits, and must still count in
/// the store.
fn play(name: &str, url: &str, why: &str) -> Vec<Tidegate> {
    let deployment = Deployment::new(RULE);
    let servers: Vec<_> = (0..3).map(|_| deployment.server(url, &FLAGS)).collect();
    assert_still_counted(&servers, name, why);
    servers
}

fn assert_still_counted(servers: &[Tidegate], name: &str, why: &str) {
    let samples = ask(servers, REQUESTS, |_| about("203.0.113.7"));
    println!("unregistered, {name}: {} of {REQUESTS} passed", samples.admitted());
    assert_eq!(samples.admitted(), LIMIT);
    samples.assert_all_by_store();
    servers.iter().for_each(|server| server.until_degraded_and_logged(why));
}

/// Waits until the servers are ready again. A limit is registered when it is next used.
fn until_repaired(mut servers: Vec<Tidegate>) {
    for server in &servers {
        within(PATIENCE, "it is ready", || {
            server.check("\"ip\":\"198.51.100.1\"");
            server.readiness() == "ready"
        });
    }
    servers.iter_mut().for_each(Tidegate::assert_healthy);
}

#[test]
fn a_registry_with_data_of_another_program() {
    let redis = Redis::start();
    let _: String = redis.tell(&["SET", "{tidegate}shapes", "foreign"]);
    let servers = play("wrong type", &redis.url(), "WRONGTYPE");
    let _: u64 = redis.tell(&["DEL", "{tidegate}shapes"]);
    until_repaired(servers);
}

/// The registry is overwritten while it is in use.
#[test]
fn a_registry_that_is_overwritten() {
    let redis = Redis::start();
    let deployment = Deployment::new(RULE);
    let servers = deployment.servers(3, &redis.url(), &FLAGS);
    ask(&servers, 3, |_| about("203.0.113.1")).assert_all_by_store();
    let _: String = redis.tell(&["SET", "{tidegate}shapes", "foreign"]);
    assert_still_counted(&servers, "overwritten", "WRONGTYPE");
    let _: u64 = redis.tell(&["DEL", "{tidegate}shapes"]);
    until_repaired(servers);
}

/// Without EVAL the servers cannot learn the number of nodes either.
#[test]
fn a_store_without_the_command_eval() {
    let redis = Redis::with(&["--rename-command", "EVAL", ""], None);
    play("no EVAL", &redis.url(), "unknown command");
}

#[test]
fn a_redis_user_without_permission_for_hset() {
    let redis = Redis::start();
    let words = ["ACL", "SETUSER", "tg", "on", ">hush", "~*", "+@all", "-hset"];
    let _: String = redis.tell(&words);
    let url = redis.url().replace("redis://", "redis://tg:hush@");
    let servers = play("no HSET", &url, "cannot be registered");
    let _: String = redis.tell(&["ACL", "SETUSER", "tg", "+hset"]);
    until_repaired(servers);
}
