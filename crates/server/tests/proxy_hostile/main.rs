//! Clients that try to get more than their limits from the reverse proxy, or to keep others from it: by leaving, by being slow,
//! and by requests that only look like preflights.
//!
//! The upstream server answers a request only when the test says so, so nothing depends on time.
//!
//! | file | contents |
//! |---|---|
//! | `failures.rs` | a slow client whose request times out |
//! | `preflights.rs` | `OPTIONS` requests, and what looks like a preflight |
//! | `leaving.rs` | clients that leave: before their request is sent, and after that |
//! | `uploads.rs` | clients that send their bodies slowly |
//! | `crowd.rs` | fifty hostile clients of each kind, and polite ones beside them |

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests may fail loudly"
)]

use crate::support::client;
mod crowd;
mod failures;
mod leaving;
mod preflights;
use crate::support;
mod uploads;

use client::Client;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use support::{PATIENCE, Server};

/// A request that the upstream server has got, with its body if it has a length. The test answers it.
struct Held {
    path: String,
    stream: TcpStream,
}

const OK: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";

/// An upstream server that hands every request to the test. Each connection is for one request.
fn upstream() -> (String, Receiver<Held>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (report, reports) = channel();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let report = report.clone();
            thread::spawn(move || {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let Some(head) = read_head(&mut stream) else { return };
                let path = head.split(' ').nth(1).unwrap().to_owned();
                if path == "/large" {
                    return endless(&mut stream);
                }
                // A test that has ended needs no more requests.
                let _ = report.send(Held { path, stream });
            });
        }
    });
    (url, reports)
}

/// Answers with a body that does not end before the client has gone.
fn endless(stream: &mut TcpStream) {
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n");
    while stream.write_all(&[b'x'; 64 * 1024]).is_ok() {}
}

/// Reads up to the end of a head, byte by byte; `None` if the connection ends before that.
fn read_head(stream: &mut TcpStream) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

impl Held {
    fn answer(mut self, bytes: &str) {
        self.stream.write_all(bytes.as_bytes()).unwrap();
    }

    /// Waits until the proxy closes its sending side.
    fn sees_the_end(&mut self) {
        assert_eq!(self.stream.read(&mut [0]).unwrap(), 0, "{}", self.path);
    }
}

/// The next request that the upstream server gets.
fn next(held: &Receiver<Held>) -> Held {
    held.recv_timeout(PATIENCE).expect("the upstream server gets a request")
}

/// The status of the next answer; 0 if the connection ends without one.
fn status(client: &mut Client) -> u16 {
    client.receive().ok().flatten().map_or(0, |reply| reply.status)
}

/// Waits until this many requests wait for their turns.
fn until_held(server: &Server, many: usize) {
    let held = |server: &Server| {
        let text = server.admin("GET", "/metrics", "", "").body;
        let series = "tidegate_proxy_held_requests{group=\"api\"} ";
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.unwrap_or_else(|| panic!("{text}")).parse::<usize>().unwrap()
    };
    server.until(&format!("{many} requests are held"), |server| held(server) == many);
}

/// How many seats are taken.
fn seats_taken(server: &Server) -> u64 {
    let answer = server.admin("GET", "/admin/v1/upstreams", "", "").json();
    let classes = answer["groups"][0]["seats"]["classes"].as_array().unwrap().clone();
    classes.iter().map(|class| class["in_flight"].as_u64().unwrap()).sum()
}

fn until_seats_taken(server: &Server, many: u64) {
    server.until(&format!("{many} seats are taken"), |server| seats_taken(server) == many);
}

/// A proxy with this policy whose only group has these settings. It has one worker.
fn proxy(policy: &str, url: &str, settings: &str) -> Server {
    let folder = support::folder("hostile");
    let path = folder.join("routes.yaml");
    let routes = format!("groups: {{ api: {{ servers: [\"{url}\"], {settings} }} }}");
    std::fs::write(&path, routes).unwrap();
    let path = path.to_str().unwrap();
    let flags = ["--workers", "1", "--proxy-listen", "127.0.0.1:0", "--proxy-routes", path];
    Server::with_policy(policy, &flags)
}

/// Sends a request without waiting for the answer.
fn send(server: &Server, method: &str, path: &str, fields: &[(&str, &str)]) -> Client {
    let mut client = Client::of(server.proxy);
    let request = client.request(method, path, fields, "");
    client.send(&request).unwrap();
    client
}
