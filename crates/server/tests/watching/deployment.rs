//! Three servers that use every part of tidegate, so that every metric has a value.
//!
//! ```text
//!   shared   counts in Redis: leases, a fallback while Redis is away, the reverse proxy with seats, soft and elastic limits
//!   cached   counts in memcached
//!   durable  counts in its data directory, with so little memory that counters are evicted into the sketch; rule files and TLS for gRPC
//! ```

use crate::support::authority::Authority;
use crate::support::client::Operator;
use crate::support::memcached::Memcached;
use crate::support::redis::Redis;
use crate::support::upstream::Upstream;
use crate::support::{Server, folder, project, request};
use serde_json::json;
use std::path::PathBuf;

/// The servers, and what they need.
pub(crate) struct Deployment {
    pub(crate) shared: Server,
    pub(crate) durable: Server,
    cached: Server,
    _memcached: Memcached,
    redis: Redis,
    _upstream: Upstream,
    _authority: Authority,
    folder: PathBuf,
}

const POLICY: &str = "
version: 1
identity: { trusted: [127.0.0.0/8], user: header:x-user }
rules:
  - { name: payments, match: { path: /payments }, priority: critical }
  - { name: refuse, match: { path: /refuse }, key: [user], limits: [{ rate: 1/h, algorithm: fixed_window, align: first }] }
  - { name: shadow, match: { path: /refuse }, key: [user], limits: [{ rate: 1/h, algorithm: fixed_window, align: first }], shadow: true }
  - { name: leased, match: { path: /leased }, key: [user], limits: [1000000/min], consistency: lease }
  - { name: soft, match: { path: /soft }, key: [user], limits: [{ rate: 2/h, algorithm: fixed_window, align: first }], mode: { soft: 100% } }
  - { name: elastic, match: { path: /elastic }, key: [user], limits: [1000000/h], mode: { elastic: { up_to: 200%, while: 'load < 0.7' } } }
  - { name: wait, match: { path: /wait }, key: [ip], limits: [{ rate: 20/s, algorithm: leaky_bucket, queue: 5 }], on_limit: { delay: { max_wait: 5s, max_queue: 5 } } }
";

impl Deployment {
    /// Starts the servers.
    pub(crate) fn start() -> Self {
        let (redis, upstream) = (Redis::started(), Upstream::start("site"));
        let folder = folder("watching");
        let routes = folder.join("routes.yaml");
        let address = upstream.address;
        let text = format!(
            "groups:\n  site: {{ servers: [http://{address}], concurrency: 8 }}\nroutes: [{{ group: site }}]\n"
        );
        std::fs::write(&routes, text).unwrap();
        let denials = folder.join("denials.log");
        let [routes, denials] = [routes, denials].map(|path| path.to_str().unwrap().to_owned());
        let shared = Server::with_policy(
            POLICY,
            &[
                "--store",
                &redis.url(),
                "--proxy-listen",
                "127.0.0.1:0",
                "--proxy-routes",
                &routes,
                "--metrics-listen",
                "127.0.0.1:0",
                "--denial-log",
                &denials,
            ],
        );
        let authority = Authority::new();
        authority.sign("server");
        let durable = Server::with_policy(
            POLICY,
            &[
                "--store",
                "file:",
                "--memory-budget",
                "64KiB",
                "--metrics-listen",
                "127.0.0.1:0",
                "--tls-certificate",
                &authority.text("server.pem"),
                "--tls-key",
                &authority.text("server.key"),
                "--tls-listeners",
                "grpc",
                "--envoy-config",
                project("docs/envoy/rules").to_str().unwrap(),
            ],
        );
        let memcached = Memcached::started();
        let cached = Server::with_policy(
            "version: 1\nrules: [{ name: calls, key: [ip], limits: [5/s] }]\n",
            &["--store", &memcached.url(), "--metrics-listen", "127.0.0.1:0"],
        );
        Self {
            shared,
            durable,
            cached,
            _memcached: memcached,
            redis,
            _upstream: upstream,
            _authority: authority,
            folder,
        }
    }

    /// Uses every part once.
    pub(crate) fn load(&mut self) {
        until_asked(&self.shared);
        for server in [&self.shared, &self.durable] {
            for path in ["/refuse", "/refuse", "/leased", "/soft", "/soft", "/soft", "/elastic"] {
                check(server, path, "alice");
            }
            let entries = [("path", "/leased"), ("user", "bob")];
            let entries = entries.map(|(key, value)| json!({ "key": key, "value": value }));
            let one = json!({ "domain": "web", "descriptors": [{ "entries": entries }] });
            assert_eq!(server.post("/json", &one.to_string()).status, 200);
            server.post("/v1/take", r#"{"key":"job","limit":1,"per":"1h"}"#);
            server.raw(b"nonsense\r\n\r\n");
        }
        self.reload();
        self.evict();
        self.load_proxy();
        self.lose_redis();
    }

    /// Reads a changed policy, and one that is not valid.
    fn reload(&self) {
        let mut operator = Operator::of(&self.shared);
        let mut loaded = |result: &str| {
            operator.metric(&format!("tidegate_reload_total{{result=\"{result}\"}}"))
        };
        let path = self.shared.folder.join("policy.yaml");
        for (text, result) in [("rules: [", "refused"), (POLICY, "applied")] {
            let before = loaded(result);
            // Another comment, so that the file differs from the policy in force.
            std::fs::write(&path, format!("{text}\n# {before}\n")).unwrap();
            self.shared.signal("HUP");
            self.shared.until("the policy was read", |_| loaded(result) > before);
        }
    }

    /// Counts more keys than there is memory for.
    fn evict(&self) {
        for batch in 0..10 {
            let one = |user: u32| json!({ "attributes": { "path": "/refuse", "user": format!("{batch}-{user}") } });
            let batch: Vec<serde_json::Value> = (0..1_000).map(one).collect();
            assert_eq!(self.durable.post("/v1/check", &json!(batch).to_string()).status, 200);
        }
        let evicted = Operator::of(&self.durable).metric("tidegate_overflow_total{}");
        assert!(evicted > 0, "nothing was evicted");
    }

    /// Sends requests through the proxy, until one had to wait for its turn.
    fn load_proxy(&self) {
        let server = &self.shared;
        let get = |path| request(server.proxy, "GET", path, &[("x-user", "carol")], "").status;
        assert_eq!((get("/payments"), get("/refuse"), get("/refuse")), (200, 200, 429));
        let mut operator = Operator::of(server);
        // Several at a time: on a slow machine, one after another would come no sooner than their turns.
        server.until("a request waits", |_| {
            std::thread::scope(|scope| (0..5).for_each(|_| _ = scope.spawn(|| get("/wait"))));
            operator.metric("tidegate_proxy_wait_seconds_count{group=\"site\"}") > 0
        });
    }

    /// Kills Redis until the fallback decides, and starts it again.
    fn lose_redis(&mut self) {
        self.redis.kill();
        let Self { shared, redis, .. } = self;
        shared.until("the fallback decides", |server| {
            check(server, "/elastic", "dave") == "fallback"
        });
        redis.start();
        until_asked(shared);
    }

    /// The metrics of each server, by its name.
    pub(crate) fn pages(&self) -> [(&'static str, String); 3] {
        let servers =
            [("shared", &self.shared), ("durable", &self.durable), ("cached", &self.cached)];
        servers.map(|(name, server)| {
            let page = request(server.metrics, "GET", "/metrics", &[], "");
            assert_eq!(page.status, 200, "{page:?}");
            (name, page.body)
        })
    }
}

impl Drop for Deployment {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Waits until the store decides.
fn until_asked(server: &Server) {
    server.until("the store decides", |server| check(server, "/elastic", "eve") == "store");
}

/// Checks a request, and returns what decided it.
fn check(server: &Server, path: &str, user: &str) -> String {
    let body = json!({ "attributes": { "path": path, "user": user } });
    let verdict = server.post("/v1/check", &body.to_string()).json();
    verdict["decided_by"].as_str().unwrap().to_owned()
}
