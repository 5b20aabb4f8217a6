//! A server is killed while its proxy holds half of the permits of a concurrency limit. The other servers never hold more than
//! the rest, also for much longer than a lease, as long as it lives. When it is dead, its permits are free after the lease.
//!
//! Redis is killed for longer than the lease, again and again, while a proxy runs as many requests as the limit lets run. When it
//! is back, it lets no others pass: the requests that run are counted again. (Another full limit passed after each outage.)

use crate::support::load::Http;
use crate::support::redis::Redis;
use crate::support::tidegate::{Deployment, Tidegate};
use crate::support::{PATIENCE, pause, within};
use serde_json::{Value, json};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

const PERMITS: usize = 20;
const HELD: usize = 10;
const RULE: &str = "{ name: jobs, key: [], limits: [{ concurrent: 20, lease: 4s }] }";
const LEASE: Duration = Duration::from_secs(4);

/// The receipts that callers of `/v1/check` hold.
struct Callers<'s> {
    servers: &'s [Tidegate],
    receipts: Vec<Value>,
}

impl Callers<'_> {
    /// Asks each server until none lets a request pass.
    fn take_all(&mut self) {
        for server in self.servers {
            while self.take(server) {}
        }
    }

    fn take(&mut self, server: &Tidegate) -> bool {
        let (status, body) = Http::connect(server.http).post("/v1/check", r#"{"attributes":{}}"#);
        let body: Value = serde_json::from_str(&body).unwrap();
        if status == 200 {
            assert_eq!(body["lease_ms"], 4_000);
            self.receipts.push(body["receipt"].clone());
        }
        status == 200
    }

    /// Renews every permit, at another server than before.
    fn renew(&mut self) {
        for (receipt, server) in self.receipts.iter_mut().zip(self.servers.iter().cycle().skip(1)) {
            let renew = json!({ "receipt": receipt, "renew": true }).to_string();
            let (status, body) = Http::connect(server.http).post("/v1/report", &renew);
            assert_eq!(status, 200, "{body}");
            *receipt = serde_json::from_str::<Value>(&body).unwrap()["receipt"].clone();
        }
    }
}

/// A server that accepts connections and never answers.
fn silent_site() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[test]
fn the_permits_of_a_killed_server_are_free_after_the_lease() {
    let redis = Redis::start();
    let deployment = Deployment::new(RULE);
    let (_site, address) = silent_site();
    let upstream = format!("http://{address}");
    let patient = ["--redis-timeout", "10s"];
    let flags = ["--proxy-listen", "127.0.0.1:0", "--proxy-upstream", &upstream];
    let victim = deployment.server(&redis.url(), &[&patient[..], &flags].concat());
    victim.until_ready();
    let others: Vec<_> = (0..3).map(|_| deployment.server(&redis.url(), &patient)).collect();
    others.iter().for_each(Tidegate::until_ready);
    let clients: Vec<TcpStream> = (0..HELD)
        .map(|_| {
            let mut client = TcpStream::connect(victim.proxy.unwrap()).unwrap();
            write!(client, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
            client
        })
        .collect();
    let mut callers = Callers { servers: &others, receipts: vec![] };
    let is_held = || {
        let peek = r#"{"attributes":{},"cost":0}"#;
        let (_, body) = Http::connect(others[0].http).post("/v1/peek", peek);
        serde_json::from_str::<Value>(&body).unwrap()["limits"][0]["remaining"] == PERMITS - HELD
    };
    within(PATIENCE, "the proxy holds its permits", is_held);
    callers.take_all();
    assert_eq!(callers.receipts.len(), PERMITS - HELD);
    // For much longer than a lease: the proxy renews its permits, and the callers theirs.
    let begun = Instant::now();
    while begun.elapsed() < LEASE * 2 {
        callers.renew();
        callers.take_all();
        assert_eq!(callers.receipts.len(), PERMITS - HELD, "after {:?}", begun.elapsed());
        pause(Duration::from_millis(100));
    }
    drop(victim); // SIGKILL
    let killed = Instant::now();
    within(PATIENCE, "the permits of the killed server are free", || {
        callers.renew();
        callers.take_all();
        assert!(callers.receipts.len() <= PERMITS);
        callers.receipts.len() == PERMITS
    });
    println!("permits: free {:?} after the end of their server", killed.elapsed());
    assert!(!crate::QUIET || killed.elapsed() < LEASE + Duration::from_secs(1));
    callers.renew();
    callers.take_all();
    assert_eq!(callers.receipts.len(), PERMITS);
    drop(clients);
}

const FULL: usize = 6;
const STRICT: &str =
    "{ name: jobs, key: [], limits: [{ concurrent: 6, lease: 2s }], on_store_error: deny }";

#[test]
fn requests_that_run_through_outages_stay_counted() {
    let mut redis = Redis::start();
    let deployment = Deployment::new(STRICT);
    let (_site, address) = silent_site();
    let upstream = format!("http://{address}");
    let flags =
        ["--cluster-nodes", "2", "--proxy-listen", "127.0.0.1:0", "--proxy-upstream", &upstream];
    let servers: Vec<_> = (0..2).map(|_| deployment.server(&redis.url(), &flags)).collect();
    servers.iter().for_each(Tidegate::until_ready);
    let clients: Vec<TcpStream> = (0..FULL)
        .map(|number| {
            let mut client = TcpStream::connect(servers[number % 2].proxy.unwrap()).unwrap();
            write!(client, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
            client
        })
        .collect();
    let is_full = || {
        let peek = r#"{"attributes":{},"cost":0}"#;
        let (_, body) = Http::connect(servers[0].http).post("/v1/peek", peek);
        let body: Value = serde_json::from_str(&body).unwrap();
        body["decided_by"] == "store" && body["limits"][0]["remaining"] == 0
    };
    within(PATIENCE, "the proxies hold all permits", is_full);
    let assert_none_passes = |time: Duration| {
        let begun = Instant::now();
        while begun.elapsed() < time {
            for server in &servers {
                let answer = server.check("");
                assert_ne!(answer.status, 200, "after {:?}: {answer:?}", begun.elapsed());
            }
            pause(Duration::from_millis(20));
        }
    };
    // All of it takes less than the 30 s for which the proxies wait for the first byte of an answer.
    for _outage in 1..=2 {
        redis.kill();
        assert_none_passes(Duration::from_secs(4));
        redis.start_again();
        assert_none_passes(Duration::from_secs(3));
        within(PATIENCE, "all permits are charged again", is_full);
    }
    // The store cannot know what it has lost. It is charged again what runs.
    let _: () = redis.tell(&["FLUSHALL"]);
    within(PATIENCE, "all permits are charged again", is_full);
    assert_none_passes(Duration::from_secs(3));
    drop(clients);
}
