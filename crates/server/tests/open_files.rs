//! Some machines allow few open files, and every connection is one. No listener may use up the files that the others
//! need.
//!
//! The story: a server was started with `ulimit -n 200`. 260 idle connections on one listener used up the limit. From
//! then on, no other listener accepted a connection, not even the admin listener, while `/ready` still said "ready".
//!
//! What a client of a full listener sees: its connection is accepted, and closed without an answer. If the client has sent
//! something by then, this is a reset. It is not refused.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests may fail loudly"
)]

use crate::support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;
use support::http1::Wire;
use support::upstream::{Upstream, free_address, listen};
use support::{Server, connect, request};

const WORKERS: [&str; 2] = ["--workers", "2"];
/// More than all files that the server may open.
const IDLE: usize = 260;

fn idle(address: SocketAddr) -> Vec<TcpStream> {
    (0..IDLE).map(|_| connect(address)).collect()
}

/// The health of the server, as operators see it.
fn reasons(server: &Server) -> String {
    let reply = server.admin("GET", "/admin/v1/status", "", "");
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()["health"].to_string()
}

#[test]
fn idle_connections_on_one_listener_do_not_starve_the_others() {
    let server = Server::start_with_files(200, &WORKERS);
    for flooded in [server.resp, server.grpc, server.http] {
        let mut idle = idle(flooded);
        server.until("it says that files are used up", |server| {
            // Some connections of the previous flood may be closed only now, which makes room for more.
            idle.push(connect(flooded));
            reasons(server).contains("no more files may be open")
        });
        // All requests to the other listeners are served, many times and at the same time.
        let mut others: Vec<Wire> = Vec::new();
        for address in [server.http, server.admin].into_iter().filter(|one| *one != flooded) {
            for _ in 0..10 {
                let mut wire = Wire::to(address);
                wire.send(format!("GET /live HTTP/1.1\r\nhost: {address}\r\n\r\n").as_bytes());
                assert_eq!(wire.answer().unwrap().status, 200);
                others.push(wire);
            }
        }
        if flooded != server.http {
            let ready = server.get("/ready");
            assert_eq!((ready.status, &ready.json()["status"]), (200, &"degraded".into()));
            assert_eq!(server.check_ip("203.0.113.7").status, 200);
        }
        if flooded != server.resp {
            let mut redis = connect(server.resp);
            redis.write_all(b"PING\r\n").unwrap();
            let mut pong = [0; 7];
            redis.read_exact(&mut pong).unwrap();
            assert_eq!(&pong, b"+PONG\r\n");
        }
        drop((idle, others));
        server.until("it is ready again", |server| server.get("/ready").body.contains("\"ready\""));
    }
    let log = server.log();
    assert!(log.contains("200 open files leave room for 152 connections"), "{log}");
    assert!(!log.contains("was not accepted"), "{log}");
}

/// The story: the test above failed on a busy machine, because a request was reset by a listener that was still full. For a loop
/// that waits for a state, that is "not yet".
#[test]
fn a_request_without_an_answer_is_no_panic() {
    let closed = listen(drop);
    let reset = listen(|stream| {
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    });
    for address in [free_address(), closed, reset] {
        let reply = request(address, "GET", "/ready", &[], "");
        assert_eq!(reply.status, 0, "{reply:?}");
    }
}

/// If the limit is lowered while the server runs, or the whole machine has no files left, connections still cannot be
/// accepted. They are neither closed nor refused: they wait until there is room.
#[test]
fn ready_says_when_connections_are_not_accepted() {
    let server = Server::start(&WORKERS);
    let mut wire = Wire::to(server.http);
    let mut ready = || {
        wire.send(b"GET /ready HTTP/1.1\r\nhost: t\r\n\r\n");
        wire.answer().unwrap().body
    };
    let limit = |files: &str| {
        let pid = format!("--pid={}", server.pid());
        let done = Command::new("prlimit").args([&pid, &format!("--nofile={files}:")]).status();
        assert!(done.unwrap().success());
    };
    assert!(ready().contains("\"ready\""));
    limit("10"); // fewer than are open
    let waiting = connect(server.http);
    server.until("it says so", |_| ready().contains("connections are not accepted"));
    limit("1000");
    server.until("it goes on", |_| ready().contains("\"ready\""));
    drop(waiting);
}

/// The story: when the proxy itself could open no more files, its clients got 502, and `/ready` said that the upstream servers were
/// down.
#[test]
fn a_lack_of_files_is_not_the_fault_of_the_upstream_servers() {
    let upstream = Upstream::start("site");
    let url = format!("http://{}", upstream.address);
    let flags = ["--proxy-listen", "127.0.0.1:0", "--proxy-upstream", url.as_str()];
    let server = Server::start(&[&WORKERS[..], &flags].concat());
    let [mut operator, mut client] = [server.http, server.proxy].map(Wire::to);
    let ask = |wire: &mut Wire, path: &str| {
        wire.send(format!("GET {path} HTTP/1.1\r\nhost: t\r\n\r\n").as_bytes());
        wire.answer().unwrap()
    };
    assert_eq!(ask(&mut client, "/").status, 200);
    let limit = |files: &str| {
        let pid = format!("--pid={}", server.pid());
        let done = Command::new("prlimit").args([&pid, &format!("--nofile={files}:")]).status();
        assert!(done.unwrap().success());
    };
    limit("10"); // fewer than are open
    for _ in 0..10 {
        let answer = ask(&mut client, "/");
        assert_eq!((answer.status, answer.field("retry-after")), (503, Some("1")), "{answer:?}");
        assert!(!ask(&mut operator, "/ready").body.contains("upstream"));
    }
    limit("1000");
    assert_eq!(ask(&mut client, "/").status, 200);
}

#[test]
fn fewer_files_can_be_asked_for_and_enough_files_are_no_warning() {
    let server = Server::start(&["--max-open-files", "300", "--workers", "1"]);
    let log = server.log();
    assert!(log.contains("300 open files leave room for 256 connections"), "{log}");
    let server = Server::start_with_files(250, &["--max-open-files", "300", "--workers", "1"]);
    let log = server.log();
    assert!(log.contains("max_open_files is 300, but the system allows 250"), "{log}");
    assert!(log.contains("250 open files leave room for 206 connections"), "{log}");
    let caps = ["--http-max-connections", "50", "--grpc-max-connections", "50"];
    let more = ["--resp-max-connections", "50", "--admin-max-connections", "50"];
    let few = ["--max-open-files", "300", "--workers", "1"];
    let server = Server::start(&[&caps[..], &more, &few].concat());
    assert!(!server.log().contains("open files leave room"), "{}", server.log());
}
