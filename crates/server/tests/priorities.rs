//! Priorities in the reverse proxy: which request gets the next seat of a group, and what the others are told.
//!
//! The upstream server answers a request only when the test says so, so nothing depends on time.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests may fail loudly"
)]

use crate::support;
use crate::support::client;

use client::{Client, Operator};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use support::Server;

/// Requests of `high` and `low` wait for as long as a test needs; those of `hasty` do not wait.
const POLICY: &str = "
version: 1
identity: { trusted: [127.0.0.0/8] }
priorities:
  - { name: high, weight: 16, share: 50%, max_wait: 1h }
  - { name: low, weight: 1, share: 25%, max_wait: 1h }
  - { name: hasty, weight: 1, share: 25%, max_wait: 1ms }
rules:
  - { name: high, match: { path: /high/* }, priority: high, key: [path] }
  - { name: low, match: { path: /low/* }, priority: low, key: [path] }
  - { name: all, match: { path: /counted }, key: [], limits: [10/h] }
";

/// An upstream server that has read a request, and waits for the word to answer it.
struct Held {
    path: String,
    head: String,
    answer: Sender<&'static str>,
}

const HASTY: [(&str, &str); 1] = [("tidegate-priority", "hasty")];
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// An upstream server that reports every request and answers as it is told.
fn upstream() -> (String, Receiver<Held>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (report, reports) = channel();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let report = report.clone();
            thread::spawn(move || serve(stream, &report));
        }
    });
    (url, reports)
}

fn serve(mut stream: TcpStream, report: &Sender<Held>) {
    loop {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            if !matches!(stream.read(&mut byte), Ok(1)) {
                return;
            }
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let path = head.split(' ').nth(1).unwrap().to_owned();
        let (answer, told) = channel();
        report.send(Held { path, head, answer }).unwrap();
        let Ok(answer) = told.recv() else { return };
        stream.write_all(answer.as_bytes()).unwrap();
    }
}

/// A proxy with this number of seats.
fn proxy(url: &str, seats: usize) -> Server {
    let folder = support::folder("priorities");
    let path = folder.join("routes.yaml");
    let routes = format!("groups: {{ api: {{ servers: [\"{url}\"], concurrency: {seats} }} }}");
    std::fs::write(&path, routes).unwrap();
    let flags = ["--proxy-listen", "127.0.0.1:0", "--proxy-routes", path.to_str().unwrap()];
    Server::with_policy(POLICY, &flags)
}

fn send(server: &Server, path: &str, fields: &[(&str, &str)]) -> Client {
    let mut client = Client::of(server.proxy);
    let request = client.request("GET", path, fields, "");
    client.send(&request).unwrap();
    client
}

/// The seats of all classes by name, as operators see them.
fn classes(server: &Server) -> HashMap<String, serde_json::Value> {
    let answer: serde_json::Value =
        serde_json::from_str(&server.admin("GET", "/admin/v1/upstreams", "", "").body).unwrap();
    let classes = answer["groups"][0]["seats"]["classes"].as_array().unwrap().clone();
    classes.into_iter().map(|class| (class["class"].as_str().unwrap().to_owned(), class)).collect()
}

fn until_waiting(server: &Server, class: &str, many: u64) {
    server.until(&format!("{many} requests of {class} wait"), |server| {
        classes(server).get(class).is_some_and(|class| class["waiting"] == many)
    });
}

#[test]
fn a_request_of_a_higher_class_gets_the_next_seat() {
    let (url, held) = upstream();
    let server = proxy(&url, 4);
    // The other classes have sent no requests, so their reserved seats are lent to low.
    let lows: Vec<Client> = (0..4).map(|_| send(&server, "/low/a", &[])).collect();
    let running: Vec<Held> = (0..4).map(|_| held.recv().unwrap()).collect();
    let waiting = send(&server, "/low/b", &[]);
    until_waiting(&server, "low", 1);
    let high = send(&server, "/high/c", &[]);
    until_waiting(&server, "high", 1);
    // The seat goes to high, although low was first.
    running[0].answer.send(OK).unwrap();
    let next = held.recv().unwrap();
    assert_eq!(next.path, "/high/c");
    assert!(next.head.contains("tidegate-priority: high\r\n"), "{}", next.head);
    // Then it is the turn of low.
    running[1].answer.send(OK).unwrap();
    running[2].answer.send(OK).unwrap();
    assert_eq!(held.recv().unwrap().path, "/low/b");
    let reading = classes(&server);
    assert_eq!(
        (&reading["high"]["in_flight"], &reading["high"]["reserved"]),
        (&1.into(), &2.into())
    );
    assert_eq!(reading["low"]["started"], 5);
    let metrics = server.admin("GET", "/metrics", "", "").body;
    let series = "tidegate_scheduler_started_total{group=\"api\",class=\"low\"} 5";
    assert!(metrics.contains(series), "{metrics}");
    drop((lows, waiting, high));
}

/// Many systems allow a process 1,024 open files, unless it asks for more.
fn allow_many_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}

#[test]
fn keys_of_one_class_take_turns() {
    let (url, held) = upstream();
    allow_many_files();
    let server = proxy(&url, 3);
    let first: Vec<Client> = (0..3).map(|_| send(&server, "/low/heavy", &[])).collect();
    let running: Vec<Held> = (0..3).map(|_| held.recv().unwrap()).collect();
    let more: Vec<Client> = (0..1_000).map(|_| send(&server, "/low/heavy", &[])).collect();
    until_waiting(&server, "low", 1_000);
    let other = send(&server, "/low/light", &[]);
    until_waiting(&server, "low", 1_001);
    for one in running {
        one.answer.send(OK).unwrap();
    }
    // They are kept: the upstream server would close the connection of one that is dropped, and its seat would be free.
    let next: Vec<Held> = (0..3).map(|_| held.recv().unwrap()).collect();
    let paths: Vec<&str> = next.iter().map(|one| &*one.path).collect();
    assert!(paths.contains(&"/low/light"), "{paths:?}");
    drop((first, more, other));
}

#[test]
fn what_a_shed_request_took_is_given_back() {
    let (url, held) = upstream();
    let server = proxy(&url, 3);
    let lows: Vec<Client> = (0..3).map(|_| send(&server, "/low/a", &[])).collect();
    let running: Vec<Held> = (0..3).map(|_| held.recv().unwrap()).collect();
    for _ in 0..15 {
        let mut shed = send(&server, "/counted", &HASTY);
        let reply = shed.receive().unwrap().unwrap();
        assert_eq!(reply.status, 503, "{reply:?}");
        assert!(reply.body.contains("#temporary-reduced-capacity"), "{}", reply.body);
        assert!(reply.field("retry-after").unwrap().parse::<u32>().unwrap() >= 1);
    }
    assert_eq!(classes(&server)["hasty"]["shed"]["waited_too_long"], 15);
    // Of ten an hour, none is used. The next request waits for no more than a moment, so the seat must be free before it comes.
    running[0].answer.send(OK).unwrap();
    server.until("a seat is free", |server| classes(server)["low"]["in_flight"] == 2);
    let mut passes = send(&server, "/counted", &HASTY);
    held.recv().unwrap().answer.send(OK).unwrap();
    let reply = passes.receive().unwrap().unwrap();
    assert_eq!((reply.status, reply.field("ratelimit").unwrap().contains("r=9")), (200, true));
    drop(lows);
}

#[test]
fn a_client_that_leaves_gives_its_place_to_others() {
    let (url, held) = upstream();
    let server = proxy(&url, 3);
    let lows: Vec<Client> = (0..3).map(|_| send(&server, "/low/a", &[])).collect();
    let running: Vec<Held> = (0..3).map(|_| held.recv().unwrap()).collect();
    let leaves = send(&server, "/low/leaves", &[]);
    until_waiting(&server, "low", 1);
    drop(leaves);
    until_waiting(&server, "low", 0);
    let stays = send(&server, "/low/stays", &[]);
    until_waiting(&server, "low", 1);
    running[0].answer.send(OK).unwrap();
    assert_eq!(held.recv().unwrap().path, "/low/stays");
    drop((lows, stays));
}

#[test]
fn a_switched_protocol_frees_its_seat() {
    let (url, held) = upstream();
    let server = proxy(&url, 3);
    let upgrade = [("connection", "upgrade"), ("upgrade", "websocket")];
    let mut tunnels = Vec::new();
    for _ in 0..5 {
        let mut tunnel = send(&server, "/low/ws", &upgrade);
        let switch =
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        held.recv().unwrap().answer.send(switch).unwrap();
        let mut status = [0; 12];
        tunnel.stream.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 101");
        tunnels.push(tunnel);
    }
    server.until("all seats are free", |server| classes(server)["low"]["in_flight"] == 0);
}

#[test]
fn a_policy_with_other_classes_is_followed() {
    let (url, held) = upstream();
    let server = proxy(&url, 3);
    let policy = "version: 1\npriorities: [{ name: only, weight: 1, share: 100% }]\nrules: [{ name: a, key: [ip], limits: [100/s] }]";
    let put = Operator::of(&server).put_policy("?force=true", policy);
    assert_eq!(put.status, 200, "{}", put.body);
    let one = send(&server, "/x", &[]);
    held.recv().unwrap().answer.send(OK).unwrap();
    assert_eq!(classes(&server).into_keys().collect::<Vec<_>>(), ["only"]);
    drop(one);
}

#[test]
fn classes_without_seats_are_refused_at_the_start() {
    let folder = support::folder("few-seats");
    let path = folder.join("routes.yaml");
    std::fs::write(&path, "groups: { api: { servers: [http://127.0.0.1:1], concurrency: 2 } }")
        .unwrap();
    let flags = ["--proxy-listen", "127.0.0.1:0", "--proxy-routes", path.to_str().unwrap()];
    let policy = folder.join("policy.yaml");
    std::fs::write(&policy, POLICY).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["serve", "--policy", policy.to_str().unwrap(), "--http-listen", "127.0.0.1:0"])
        .args(["--admin-listen", "off", "--resp-listen", "off", "--grpc-listen", "off"])
        .arg("--data-dir")
        .arg(folder.join("data"))
        .args(flags)
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(error.contains("`concurrency: 2`, but the policy has 3 priority classes"), "{error}");
}
