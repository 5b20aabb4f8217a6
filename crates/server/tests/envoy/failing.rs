//! What Envoy does while tidegate is down, and when it is back.

use super::mesh::{Mesh, Setup};
use super::stories::does;
use crate::support;
use crate::support::process::is_stopped;
use crate::support::upstream::free_address;
use std::process::{Child, Command, Stdio};
use std::thread;

/// Long enough for a busy machine, and short enough to wait for.
const TIMEOUT: (&str, &str) = ("timeout: 10s", "timeout: 3s");
const CONNECTIONS: &str = "cluster.tidegate.upstream_cx_total";

fn closed() -> Setup {
    Setup::by_rules()
}

fn open() -> Setup {
    closed().with("failure_mode_deny: true", "failure_mode_deny: false")
}

/// With an Envoy that has a short timeout.
fn hasty(setup: Setup) -> Setup {
    setup.with(TIMEOUT.0, TIMEOUT.1)
}

/// Stops tidegate for one request and lets it continue: limits hold as before, on the same connection.
fn stalls(mesh: &Mesh, meanwhile: u16) {
    let order = does("alice", "order");
    assert_eq!(mesh.statuses(4, "/shop", &order), [200, 200, 200, 429]);
    let connections = mesh.envoy.stat(CONNECTIONS);
    mesh.tidegate.stall();
    assert_eq!(mesh.get("/shop", &order).status, meanwhile);
    mesh.tidegate.signal("CONT");
    assert_eq!(mesh.get("/shop", &order).status, 429);
    assert_eq!(mesh.statuses(4, "/shop", &does("bob", "order")), [200, 200, 200, 429]);
    assert_eq!(mesh.envoy.stat(CONNECTIONS), connections);
    assert_eq!(mesh.envoy.stat("cluster.shop.ratelimit.error"), 1);
}

#[test]
fn an_open_envoy_lets_pass_what_we_do_not_answer() {
    let mesh = hasty(open()).start();
    stalls(&mesh, 200);
    assert_eq!(mesh.envoy.stat("cluster.shop.ratelimit.failure_mode_allowed"), 1);
}

#[test]
fn a_closed_envoy_refuses_what_we_do_not_answer() {
    stalls(&hasty(closed()).start(), 500);
}

/// Envoy reconnects by itself. What was counted in memory is gone, and counting starts again.
#[test]
fn envoy_finds_a_tidegate_that_was_started_again() {
    for (setup, meanwhile, signal) in [(open(), 200, "KILL"), (closed(), 500, "TERM")] {
        let address = free_address();
        let first = setup.tidegate(address);
        let mut mesh = Mesh::of(first, setup.envoy.clone());
        let order = does("alice", "order");
        assert_eq!(mesh.statuses(4, "/shop", &order), [200, 200, 200, 429]);
        mesh.tidegate.signal(signal);
        mesh.tidegate.wait();
        assert_eq!(mesh.statuses(3, "/shop", &order), [meanwhile; 3], "{signal}");
        mesh.tidegate = setup.tidegate(address);
        let look = does("alice", "look");
        mesh.until("/shop", &look, |reply| reply.field("x-ratelimit-limit").is_some());
        assert_eq!(mesh.statuses(4, "/shop", &order), [200, 200, 200, 429], "{signal}");
    }
}

/// Calls that Envoy had made before tidegate was told to stop are answered: on a connection that tidegate has
/// accepted, and on one that it has not. The second was once closed unread, and Envoy's request failed.
#[test]
fn a_stop_answers_what_was_asked() {
    for first in [Some(200), None] {
        let mut mesh = closed().start();
        let ask = || mesh.get("/shop", &does("alice", "order")).status;
        assert_eq!(first.map(|_| ask()), first);
        mesh.tidegate.stall();
        thread::scope(|scope| {
            let asked = scope.spawn(ask);
            let waiting = || mesh.envoy.stat("cluster.tidegate.upstream_rq_active") == 1;
            mesh.tidegate.until("Envoy has asked", |_| waiting());
            mesh.tidegate.signal("TERM");
            mesh.tidegate.signal("CONT");
            assert_eq!(asked.join().unwrap(), 200, "{first:?}");
        });
        assert!(mesh.tidegate.wait().success(), "{}", mesh.tidegate.log());
        assert!(mesh.tidegate.log().contains("every request was answered"));
    }
}

#[test]
fn envoy_looks_after_us() {
    let checked = "- name: tidegate
      health_checks:
        - timeout: 10s
          interval: 0.1s
          no_traffic_interval: 0.1s
          unhealthy_threshold: 1
          healthy_threshold: 1
          grpc_health_check: {}
";
    let mesh = open().with("- name: tidegate\n", checked).start();
    mesh.tidegate
        .until("we are well", |_| mesh.envoy.stat("cluster.tidegate.health_check.healthy") == 1);
    assert_eq!(mesh.envoy.stat("cluster.tidegate.health_check.failure"), 0);
    assert_eq!(mesh.statuses(4, "/shop", &does("alice", "order")), [200, 200, 200, 429]);
    mesh.tidegate.signal("TERM");
    let unwell = |name: &str| mesh.envoy.stat(&format!("cluster.tidegate.health_check.{name}"));
    mesh.tidegate.until("we are not", |_| unwell("healthy") == 0 && unwell("failure") > 0);
}

// === without the store ===

struct Redis(Child);

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends requests until the store has decided one.
fn asks_the_store(mesh: &Mesh) {
    let before = mesh.decided_by("store");
    mesh.tidegate.until("the store decides", |_| {
        mesh.get("/shop", &does("somebody", "look"));
        mesh.decided_by("store") > before
    });
}

/// If the store hangs or is gone, tidegate counts by itself, and Envoy gets its answer within its timeout.
#[test]
fn without_the_store_limits_hold() {
    let folder = support::folder("redis");
    let socket = folder.join("socket");
    let redis = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "redis-server", "--port", "0", "--save", "", "--unixsocket"])
        .arg(&socket)
        .stdout(Stdio::null())
        .spawn();
    let redis = Redis(redis.unwrap());
    let store = format!("redis+unix://{}", socket.display());
    // The share of a single node is the whole limit. The timeout of the store is longer than Envoy's.
    let flags = ["--store", &store, "--cluster-nodes", "1"];
    let mesh = hasty(closed()).flags(&flags).start();
    asks_the_store(&mesh);
    let limited = [200, 429];
    assert_eq!(mesh.statuses(2, "/shop", &does("alice", "haggle")), limited);

    let signal = |name: &str| {
        let pid = redis.0.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    };
    signal("-STOP");
    mesh.tidegate.until("Redis stands still", |_| is_stopped(redis.0.id()));
    assert_eq!(mesh.statuses(2, "/shop", &does("bob", "haggle")), limited);
    assert!(mesh.decided_by("fallback") >= 2);
    signal("-CONT");
    asks_the_store(&mesh);
    assert_eq!(mesh.get("/shop", &does("alice", "haggle")).status, 429);
    signal("-KILL");
    assert_eq!(mesh.statuses(2, "/shop", &does("carol", "haggle")), limited);
    std::fs::remove_dir_all(folder).unwrap();
}
