//! Many clients at once: one counter, whichever protocol they use, and however many of them cancel.

use super::bytes::ALICE;
use crate::support::Server;
use crate::support::grpc::{Grpc, HEAD, cancel, message};
use crate::support::http1::{Dice, Wire};
use crate::support::http2::{DATA, END_STREAM, NONE, frame};
use crate::support::messages::{Descriptor, Request};
use crate::support::redis::Redis;
use prost::Message;
use std::sync::atomic::{AtomicU32, Ordering};

const RULES: &str = "{ name: per-user, key: [user], limits: [{ rate: 1000/h, algorithm: fixed_window, align: first }] }";

/// Eight connections with eight calls at a time and 16 connections of HTTP/1.1 take from one key. All of them
/// together get no more than the limit.
#[test]
fn all_draw_from_one_counter() {
    let server = Server::with_policy(&format!("version: 1\nrules: [{RULES}]"), &[]);
    let (by_grpc, by_http) = (AtomicU32::new(0), AtomicU32::new(0));
    let grpc = || {
        let mut grpc = Grpc::to(server.grpc);
        for _ in 0..20 {
            let streams = [(); 8].map(|()| grpc.ask(&Request::about(&ALICE)));
            for stream in streams {
                let passed = grpc.told(stream).answer().passed();
                by_grpc.fetch_add(u32::from(passed), Ordering::Relaxed);
            }
        }
    };
    let json = "{\"attributes\":{\"user\":\"alice\"}}";
    let check = format!(
        "POST /v1/check HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{json}",
        json.len()
    );
    let http = || {
        let mut wire = Wire::to(server.http);
        for _ in 0..80 {
            wire.send(check.as_bytes());
            match wire.answer().unwrap().status {
                200 => _ = by_http.fetch_add(1, Ordering::Relaxed),
                other => assert_eq!(other, 429),
            }
        }
    };
    std::thread::scope(|scope| {
        (0..8).for_each(|_| _ = scope.spawn(grpc));
        (0..16).for_each(|_| _ = scope.spawn(http));
    });
    let (by_grpc, by_http) = (by_grpc.into_inner(), by_http.into_inner());
    println!("{by_grpc} passed by gRPC, {by_http} by HTTP");
    assert_eq!(by_grpc + by_http, 1_000);
    // What remains is the same over both protocols.
    assert_eq!(Grpc::to(server.grpc).remaining(&ALICE), 0);
    server.is_sound();
}

/// In turn, over both protocols: each sees what the other has left.
#[test]
fn each_sees_what_the_other_has_left() {
    let server = Server::with_policy(&format!("version: 1\nrules: [{RULES}]"), &[]);
    let mut grpc = Grpc::to(server.grpc);
    for left in (0..20).map(|turn| 1_000 - 2 * turn) {
        let answer = grpc.asked(&Request::about(&ALICE));
        assert_eq!(answer.statuses[0].limit_remaining, left - 1);
        let told = server.post("/v1/check", "{\"attributes\":{\"user\":\"alice\"}}").json();
        assert_eq!(told["limits"][0]["remaining"], left - 2);
    }
    server.is_sound();
}

// === cancelled calls ===

const BOTH: &str = "
  { name: per-user, key: [user], limits: [{ rate: 1000000/h, algorithm: fixed_window, align: first }] },
  { name: per-tenant, key: [tenant], limits: [{ rate: 1000000/h, algorithm: fixed_window, align: first }] }";
const CONNECTIONS: u64 = 4;
const CALLS: usize = 1_000;

/// What clients saw of their calls.
#[derive(Debug, Default)]
struct Seen {
    /// Sent completely, whatever the result.
    whole: u64,
    answered: u64,
    given_up: u64,
}

/// Sends calls with two descriptors, and cancels one of five: before it is sent completely, immediately afterwards,
/// or a few calls later.
fn client(server: &Server, seed: u64) -> Seen {
    let mut dice = Dice::new(seed);
    let mut grpc = Grpc::to(server.grpc);
    let body = message(&both().encode_to_vec());
    let (mut seen, mut waiting, mut leaving) = (Seen::default(), vec![], vec![]);
    for _ in 0..CALLS {
        let stream = grpc.open(&HEAD);
        let gives_up = dice.up_to(5) == 1;
        if gives_up && dice.up_to(4) == 1 {
            grpc.two.send(&frame(DATA, NONE, stream, &body[..dice.up_to(body.len()) - 1]));
            leaving.push(stream);
        } else {
            grpc.two.send(&frame(DATA, END_STREAM, stream, &body));
            seen.whole += 1;
            if gives_up { leaving.push(stream) } else { waiting.push(stream) }
        }
        while leaving.len() >= dice.up_to(4) {
            grpc.two.send(&cancel(leaving.remove(0)));
            seen.given_up += 1;
        }
        while waiting.len() >= dice.up_to(32) {
            assert!(grpc.told(waiting.remove(0)).answer().passed());
            seen.answered += 1;
        }
    }
    for stream in leaving {
        grpc.two.send(&cancel(stream));
        seen.given_up += 1;
    }
    for stream in waiting {
        assert!(grpc.told(stream).answer().passed());
        seen.answered += 1;
    }
    assert!(grpc.two.in_step() && grpc.goodbyes.is_empty());
    seen
}

fn both() -> Request {
    Request::of([Descriptor::of(&ALICE), Descriptor::of(&[("tenant", "acme")])])
}

fn clients(server: &Server) -> Seen {
    std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..CONNECTIONS).map(|seed| scope.spawn(move || client(server, seed + 1))).collect();
        let seen = clients.into_iter().map(|client| client.join().unwrap());
        seen.reduce(|a, b| Seen {
            whole: a.whole + b.whole,
            answered: a.answered + b.answered,
            given_up: a.given_up + b.given_up,
        })
        .unwrap()
    })
}

/// What was charged to both rules; it must be the same.
fn charged(server: &Server) -> u64 {
    let mut grpc = Grpc::to(server.grpc);
    let [user, tenant] = [ALICE, [("tenant", "acme")]].map(|entries| grpc.remaining(&entries));
    assert_eq!(user, tenant, "one was charged without the other");
    u64::from(1_000_000 - user)
}

#[test]
fn whoever_gives_up_leaves_nothing_half_done() {
    let server = Server::with_policy(&format!("version: 1\nrules: [{BOTH}]"), &[]);
    let seen = clients(&server);
    let decided = server.metric("tidegate_decision_seconds_count{protocol=\"grpc\"}");
    let charged = charged(&server);
    println!("{seen:?}: {decided} decided, {charged} charged");
    assert!(seen.given_up > 500, "{seen:?}");
    assert_eq!(charged, decided);
    assert!((seen.answered..=seen.whole).contains(&charged), "{seen:?}: {charged}");
    server.is_sound();
}

/// Calls that are cancelled, with a store in another process. What the store was asked before a call was cancelled, it has counted
/// completely.
#[test]
fn whoever_gives_up_leaves_nothing_half_done_in_redis() {
    let redis = Redis::started();
    let server = redis.server(BOTH, &[]);
    server.until("the store is asked", |server| server.get("/ready").body.contains("\"ready\""));
    let seen = clients(&server);
    let decided = server.metric("tidegate_decision_seconds_count{protocol=\"grpc\"}");
    let charged = charged(&server);
    println!("{seen:?}: {decided} decided and told, {charged} charged");
    assert!(seen.given_up > 500, "{seen:?}");
    // Some calls were decided after their client had cancelled them.
    assert!((seen.answered..=decided).contains(&seen.answered));
    assert!((decided..=seen.whole).contains(&charged), "{seen:?}: {decided}, {charged}");
    server.is_sound();
}

/// Forty users and a banned one in one call: more limits than one plan has. All of them pass or none is counted: in
/// memory, in Redis, and while Redis is unreachable and each rule uses its fallback.
#[test]
fn many_limits_pass_together_or_not_at_all() {
    let ban = "{ name: ban, key: [banned], limits: [{ rate: 0/h, block: true }] }";
    let policy = format!("version: 1\nrules: [{RULES}, {ban}]");
    let users: Vec<String> = (0..40).map(|number| format!("user{number}")).collect();
    let mut parts: Vec<Descriptor> =
        users.iter().map(|user| Descriptor::of(&[("user", user)])).collect();
    let mut redis = Redis::started();
    redis.tell(&["SET", "here", "1"]);
    let url = redis.url();
    let store = ["--store", &url, "--cluster-nodes", "1"];
    let servers = [Server::with_policy(&policy, &[]), Server::with_policy(&policy, &store)];
    let mut is_decided = |server: &Server, how: &str| {
        let mut grpc = Grpc::to(server.grpc);
        let remaining = |answer: &crate::support::messages::Response| -> Vec<u32> {
            answer.statuses.iter().map(|status| status.limit_remaining).collect()
        };
        let answer = grpc.asked(&Request::of(parts.clone()));
        assert!(answer.passed());
        assert_eq!(remaining(&answer), [999; 40]);
        for at in [0, 15, 16, 39] {
            let user = std::mem::replace(&mut parts[at], Descriptor::of(&[("banned", "x")]));
            let answer = grpc.asked(&Request::of(parts.clone()));
            parts[at] = user;
            assert!(!answer.passed(), "{at}");
            let mut left = remaining(&answer);
            assert_eq!(left.remove(at), 0);
            assert_eq!(left, [999; 39], "{how} {at}");
        }
        let looks = parts.iter().map(|part| part.clone().hits(0));
        let answer = grpc.asked(&Request::of(looks.collect::<Vec<_>>()));
        assert_eq!(remaining(&answer), [999; 40]);
    };
    is_decided(&servers[0], "memory");
    let mut grpc = Grpc::to(servers[1].grpc);
    servers[1].until("Redis decides", |server| {
        grpc.asked(&Request::about(&ALICE));
        let metrics = server.admin("GET", "/metrics", "", "").body;
        metrics.lines().any(|line| {
            line.starts_with("tidegate_decisions_total") && line.contains("decided_by=\"store\"")
        })
    });
    is_decided(&servers[1], "Redis");
    redis.kill();
    // The fallback starts from zero.
    is_decided(&servers[1], "without Redis");
}
