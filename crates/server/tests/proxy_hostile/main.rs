//! Clients that try to get more than their limits from the reverse proxy, or to keep others from it: by leaving, by being slow,
//! and by preflights that are none.
//!
//! The upstream server answers a request only when the test says so, so nothing depends on time.
//!
//! | file | contents |
//! |---|---|
//! | `failures.rs` | a slow client whose request times out |

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests may fail loudly"
)]

#[path = "../support/client.rs"]
mod client;
mod failures;
#[path = "../support/mod.rs"]
mod support;

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
                // A test that has ended needs no more requests.
                let _ = report.send(Held { path, stream });
            });
        }
    });
    (url, reports)
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
