//! Policies that people copy, behind the reverse proxy: the files of `docs/demo`, and the login recipe of `docs/recipes`.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests may fail loudly"
)]

use crate::support;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use support::upstream::{listen, read_request};
use support::{Reply, Server, project, request};

fn read(path: &str) -> String {
    std::fs::read_to_string(project(path)).unwrap()
}

/// An upstream server whose answers have this status and these lines of header fields.
fn upstream(answer: impl Fn(&str) -> (u16, String) + Send + Sync + 'static) -> SocketAddr {
    listen(move |mut stream| {
        let Some(request) = read_request(&mut stream) else { return };
        let (status, fields) = answer(&request);
        let end = "connection: close\r\ncontent-length: 0";
        let _ = write!(stream, "HTTP/1.1 {status} Status\r\n{fields}{end}\r\n\r\n");
    })
}

// === docs/demo ===

/// The demo's policy and routes, with shards of this test.
struct Demo {
    server: Server,
    routes: PathBuf,
}

impl Demo {
    fn start(shards: usize) -> Self {
        let shard = |number: usize| {
            let shard = upstream(move |_| (201, format!("x-shard: {number}\r\n")));
            format!("http://{shard}")
        };
        let servers: Vec<String> = (1..=shards).map(shard).collect();
        let shipped = ["9001", "9002", "9003"].map(|port| format!("http://127.0.0.1:{port}"));
        let text = read("docs/demo/routes.yaml");
        assert_eq!(text.matches(&shipped.join(", ")).count(), 1, "{text}");
        let routes = support::folder("routes").join("routes.yaml");
        std::fs::write(&routes, text.replace(&shipped.join(", "), &servers.join(", "))).unwrap();
        let flags = ["--proxy-listen", "127.0.0.1:0", "--proxy-routes", routes.to_str().unwrap()];
        let server = Server::with_policy(&read("docs/demo/policy.yaml"), &flags);
        Self { server, routes }
    }

    fn ask(&self, method: &str, path: &str, (user, plan): (&str, &str), code: &str) -> Reply {
        let fields = [("x-user", user), ("x-plan", plan), ("x-code", code)];
        request(self.server.proxy, method, path, &fields, "")
    }

    fn create(&self, who: (&str, &str), code: &str) -> Reply {
        self.ask("POST", "/createURL", who, code)
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.routes.parent().unwrap_or(Path::new("")));
    }
}

const ALICE: (&str, &str) = ("alice", "free");
const BOB: (&str, &str) = ("bob", "free");
const CAROL: (&str, &str) = ("carol", "pro");

fn is_refused_by(reply: &Reply, limit: &str) {
    assert_eq!(reply.status, 429, "{reply:?}");
    let detail = reply.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains(limit), "{detail}");
    let after: u64 = reply.field("retry-after").unwrap().parse().unwrap();
    // An hour, and one of the sixty buckets in which it is counted.
    assert!((1..=3_660).contains(&after), "{after}");
}

/// With forty shards, the limit of a shard is not the one that decides.
#[test]
fn a_user_creates_a_hundred_urls_an_hour_and_with_a_plan_two_hundred() {
    let demo = Demo::start(40);
    for (who, most) in [(ALICE, 100), (CAROL, 200)] {
        let codes = (0..400).map(|number| format!("{}{number}", who.0));
        let created = codes.filter(|code| demo.create(who, code).status == 201).count();
        assert_eq!(created, most, "{who:?}");
        let limit = format!("create-url allows {most} per hour");
        is_refused_by(&demo.create(who, "onemore"), &limit);
        // Deleting has a limit of its own.
        assert_eq!(demo.ask("DELETE", "/deleteURL/x", who, "x").status, 201);
    }
    assert_eq!(demo.create(BOB, "alice0").status, 201);
}

#[test]
fn a_user_creates_three_urls_a_minute_on_each_shard() {
    let demo = Demo::start(3);
    let first = demo.create(ALICE, "a");
    let shard = first.field("x-shard").unwrap().to_owned();
    assert_eq!([(); 2].map(|()| demo.create(ALICE, "a").status), [201; 2]);
    let fourth = demo.create(ALICE, "a");
    is_refused_by(&fourth, "create-shard allows 3 per minute");
    // The refusal was not charged to the hour.
    assert!(fourth.field("ratelimit").unwrap().contains("\"create-url\";r=97"), "{fourth:?}");
    // What belongs to the other shards passes, up to three each.
    let mut by_shard: BTreeMap<String, usize> = BTreeMap::from([(shard, 3)]);
    for reply in (0..60).map(|number| demo.create(ALICE, &format!("b{number}"))) {
        if let Some(shard) = reply.field("x-shard") {
            *by_shard.entry(shard.to_owned()).or_default() += 1;
        }
    }
    assert_eq!(by_shard.into_values().collect::<Vec<_>>(), [3; 3]);
    // Other users, and users of another plan, have their own counts.
    assert_eq!(demo.create(BOB, "a").status, 201);
    assert_eq!([(); 10].map(|()| demo.create(CAROL, "a").status), [201; 10]);
}

#[expect(clippy::disallowed_methods, reason = "the turns of a leaky bucket are real time")]
fn now() -> Instant {
    Instant::now()
}

/// Four a second with the plan `pro`: the fourth comes no sooner than three quarters of a second after the first.
#[test]
fn deleting_waits_for_its_turn() {
    let demo = Demo::start(3);
    let begun = now();
    for _ in 0..4 {
        assert_eq!(demo.ask("DELETE", "/deleteURL/x", CAROL, "x").status, 201);
    }
    // A millisecond for the resolution of timers.
    let passed = now().duration_since(begun) + Duration::from_millis(1);
    assert!(passed >= Duration::from_millis(750), "{passed:?}");
}

#[test]
fn visitors_are_counted_by_address() {
    let demo = Demo::start(3);
    let visit = |address: &str| {
        let fields = [("x-forwarded-for", address), ("x-code", "a")];
        let reply = request(demo.server.proxy, "GET", "/a", &fields, "");
        reply.field("ratelimit").unwrap().to_owned()
    };
    for address in ["203.0.113.7", "198.51.100.1"] {
        let first = visit(address);
        assert!(first.contains("\"visits\";r=9"), "{first}");
        (0..5).for_each(|_| _ = visit(address));
    }
}

#[test]
fn the_policy_of_the_demo_has_no_warnings() {
    let policy = project("docs/demo/policy.yaml");
    let mut lint = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let output = lint.args(["policy", "lint", "--deny-warnings"]).arg(policy).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

// === docs/recipes/login.yaml ===

/// The login recipe behind the proxy: its rules with the `identity` that the page gives for the proxy.
fn login_policy() -> String {
    let page = read("docs/recipes/README.md");
    let chapter = page.split("### Login behind the reverse proxy").nth(1).unwrap();
    let identity = chapter.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    assert_eq!(identity.matches("10.0.0.0/8").count(), 1, "{identity}");
    let policy = read("docs/recipes/login.yaml");
    let (before, rest) = policy.split_once("identity:\n").unwrap();
    let (_, rules) = rest.split_once("rules:\n").unwrap();
    let identity = identity.replace("10.0.0.0/8", "127.0.0.0/8"); // the test is the load balancer
    format!("{before}{identity}rules:\n{rules}")
}

/// A login service behind the proxy. It remembers the requests that reached it.
struct Logins {
    server: Server,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Logins {
    /// The password of every user is `right`.
    fn start() -> Self {
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let remembered = Arc::clone(&seen);
        let service = upstream(move |request| {
            remembered.lock().unwrap().push(request.to_owned());
            (if request.ends_with("right") { 200 } else { 401 }, String::new())
        });
        let url = format!("http://{service}");
        let flags = ["--proxy-listen", "127.0.0.1:0", "--proxy-upstream", &url];
        Self { server: Server::with_policy(&login_policy(), &flags), seen }
    }

    fn login(&self, user: &str, address: &str, password: &str) -> Reply {
        let fields = [("x-login-name", user), ("x-forwarded-for", address)];
        request(self.server.proxy, "POST", "/login", &fields, password)
    }

    fn statuses(&self, times: usize, user: &str, address: &str, password: &str) -> Vec<u16> {
        (0..times).map(|_| self.login(user, address, password).status).collect()
    }

    /// What has reached the service since the last call.
    fn seen(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

const ATTACKER: &str = "203.0.113.7";
const HOME: &str = "198.51.100.9";

#[test]
fn an_attacker_does_not_lock_a_user_out() {
    let logins = Logins::start();
    let guesses = logins.statuses(8, "alice", ATTACKER, "wrong");
    assert_eq!(guesses, [401, 401, 401, 401, 401, 429, 429, 429]);
    assert_eq!(logins.seen().len(), 5);
    // Not even the right password helps the attacker now, and the answer says when to try again.
    let refused = logins.login("alice", ATTACKER, "right");
    assert_eq!((refused.status, refused.field("retry-after").is_some()), (429, true));
    assert!(logins.seen().is_empty());
    // alice makes a mistake herself, and then logs in from another address, as often as she likes.
    assert_eq!(logins.login("alice", HOME, "wrong").status, 401);
    assert_eq!(logins.statuses(20, "alice", HOME, "right"), [200; 20]);
    // Another user behind the attacker's address is not alice.
    assert_eq!(logins.login("bob", ATTACKER, "right").status, 200);
}

/// Too many failures on an account, from many addresses: the owner is not refused, and the service is told.
#[test]
fn an_attacked_account_requires_a_challenge() {
    let logins = Logins::start();
    let flagged = |requests: &[String]| {
        let flags =
            |request: &&String| request.to_lowercase().contains("tidegate-flags: challenge");
        requests.iter().filter(flags).count()
    };
    for address in 1..=4 {
        let guesses = logins.statuses(5, "alice", &format!("203.0.113.{address}"), "wrong");
        assert_eq!(guesses, [401; 5]);
    }
    assert_eq!(flagged(&logins.seen()), 0);
    assert_eq!(logins.login("alice", HOME, "right").status, 200);
    assert_eq!(logins.login("bob", HOME, "right").status, 200);
    let seen = logins.seen();
    assert_eq!((flagged(&seen[..1]), flagged(&seen[1..])), (1, 0), "{seen:?}");
    // A client cannot remove the flag, and cannot report its own outcome.
    let fields = [
        ("x-login-name", "alice"),
        ("x-forwarded-for", "203.0.113.5"),
        ("tidegate-flags", "none"),
        ("tidegate-outcome", "success"),
    ];
    request(logins.server.proxy, "POST", "/login", &fields, "wrong");
    let seen = logins.seen();
    assert_eq!(flagged(&seen), 1, "{seen:?}");
    assert!(!seen[0].contains("none") && !seen[0].contains("outcome"), "{seen:?}");
}

#[test]
fn parallel_guesses_are_counted_before_they_are_answered() {
    let logins = Logins::start();
    let guess = || logins.login("alice", ATTACKER, "wrong").status;
    let mut statuses: Vec<u16> = thread::scope(|scope| {
        let guesses: Vec<_> = (0..30).map(|_| scope.spawn(guess)).collect();
        guesses.into_iter().map(|guess| guess.join().unwrap()).collect()
    });
    statuses.sort_unstable();
    assert_eq!((&statuses[..5], &statuses[5..]), (&[401; 5][..], &[429; 25][..]));
    assert_eq!(logins.seen().len(), 5);
}
