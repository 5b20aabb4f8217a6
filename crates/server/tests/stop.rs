//! How the server stops: requests that were received are answered, connections are closed in good order, and no
//! client keeps the server from ending.

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

use client::Client;
use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use support::{Reply, Server, connect, pause};

const POLICY: &str = "{ version: 1, rules: [{ name: all, key: [ip], limits: [1000000000/h] }] }";
const CHECK: &str = "{\"attributes\":{\"ip\":\"203.0.113.7\"}}";
const JSON: [(&str, &str); 1] = [("content-type", "application/json")];
/// In these tests, only the drain timeout can expire. No server is behind the proxy.
fn patient(drain: &str) -> Server {
    let of_proxy = ["--proxy-listen", "127.0.0.1:0", "--proxy-upstream", "http://127.0.0.1:9"];
    Server::with_policy(POLICY, &[&of_proxy[..], &["--drain-timeout", drain]].concat())
}

/// State shared by client threads.
#[derive(Default)]
struct Crowd {
    answered: AtomicUsize,
    /// Set before the signal is sent. Requests that were written before it was set were written in time.
    signalled: AtomicBool,
}

/// How a connection ended.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ended {
    /// Requests that were written in time, and how many of these got no answer.
    in_time: usize,
    lost: usize,
    /// Whether the last answer had `connection: close`, and nothing but the end followed it. A connection that was idle for
    /// [`IDLE`] is closed without a word.
    politely: bool,
}

/// How long an idle connection stays open when the server stops.
const IDLE: Duration = Duration::from_secs(1);

impl Crowd {
    /// Sends several requests at once, reads their answers, and repeats until the server closes the connection.
    #[expect(clippy::disallowed_methods, reason = "an idle connection is closed after a second")]
    fn client(&self, address: SocketAddr, at_once: usize, pace: Duration) -> Ended {
        let mut client = Client::of(address);
        let requests = client.request("POST", "/v1/check", &JSON, CHECK).repeat(at_once);
        let mut ended = Ended::default();
        let mut idle_since = Instant::now();
        loop {
            let sent = client.send(&requests);
            // This machine paused the client for so long that the server may have closed its connection.
            if idle_since.elapsed() >= IDLE && self.signalled.load(Ordering::SeqCst) {
                return Ended { politely: true, ..ended };
            }
            sent.unwrap();
            let in_time = !self.signalled.load(Ordering::SeqCst);
            let (answers, last) = self.answers(&mut client, at_once);
            if in_time {
                ended.in_time += at_once;
                ended.lost += at_once - answers;
            }
            if let Some(politely) = last {
                return Ended { politely, ..ended };
            }
            idle_since = Instant::now();
            pause(pace);
        }
    }

    /// Reads this many answers. If there are fewer, also returns whether the last one had `connection: close`.
    fn answers(&self, client: &mut Client, expected: usize) -> (usize, Option<bool>) {
        for answered in 0..expected {
            let Some(reply) = client.receive().unwrap() else { return (answered, Some(false)) };
            assert_eq!(reply.status, 200, "{reply:?}");
            self.answered.fetch_add(1, Ordering::Relaxed);
            if says_close(&reply) {
                return (answered + 1, Some(client.receive().unwrap().is_none()));
            }
        }
        (expected, None)
    }
}

fn says_close(reply: &Reply) -> bool {
    reply.field("connection") == Some("close")
}

/// Whether the log has this line.
fn logged(server: &Server, line: &str) -> bool {
    server.log().contains(line)
}

/// A client that sends much and reads no answers: they pile up until the server cannot write.
fn deaf(server: &Server) -> TcpStream {
    let client = Client::of(server.http);
    let requests = client.request("GET", "/openapi.json", &[], "").repeat(100);
    let mut stream = client.stream;
    stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let full = std::iter::repeat_with(|| stream.write_all(&requests)).find_map(Result::err);
    assert!(matches!(full.unwrap().kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
    stream
}

/// Twenty clients send one request at a time and four send fifty at a time, some thousands a second together. Then
/// the server is told to stop. Requests that were written before are answered. After that, every connection is
/// announced as ending before it is closed, and no client sees an error or a truncated answer.
#[test]
fn whoever_had_asked_is_answered() {
    for signal in ["TERM", "INT"] {
        let mut server = patient("10min");
        let (crowd, address) = (Arc::new(Crowd::default()), server.http);
        let clients = [(20, 1, 6), (4, 50, 80)].into_iter().flat_map(|(clients, at_once, pace)| {
            std::iter::repeat_n((at_once, Duration::from_millis(pace)), clients)
        });
        let threads: Vec<_> = clients
            .map(|(at_once, pace)| {
                let crowd = Arc::clone(&crowd);
                std::thread::spawn(move || crowd.client(address, at_once, pace))
            })
            .collect();
        server.until("they are busy", |_| crowd.answered.load(Ordering::Relaxed) > 4_000);
        crowd.signalled.store(true, Ordering::SeqCst);
        server.signal(signal);
        for thread in threads {
            let ended = thread.join().unwrap();
            assert!(ended.in_time > 0 && ended.lost == 0 && ended.politely, "{ended:?}");
        }
        assert_eq!(server.wait().code(), Some(0));
        assert!(logged(&server, "stopped; every request was answered"), "{}", server.log());
    }
}

/// The process is stopped for a moment, as may happen on a busy machine. Meanwhile requests arrive, some of them on
/// connections that are not accepted yet, and then the signal arrives. All of these requests must be answered.
/// Sometimes no waiting connection was accepted, because the runtime noticed the signal before the connections; and a
/// connection that was accepted late got answers only to its first four kilobytes.
#[test]
fn what_waits_at_the_door_is_answered_too() {
    for _ in 0..20 {
        let mut server = patient("10min");
        let mut known = Client::of(server.http);
        assert_eq!(known.post("/v1/check", CHECK).status, 200);
        server.signal("STOP");
        let mut clients: Vec<Client> = (0..10).map(|_| Client::of(server.http)).collect();
        clients.push(known);
        for client in &mut clients {
            // Sixteen of them are exactly four kilobytes, so a reader with a buffer of that size has nothing left
            // over.
            let bare = client.request("POST", "/v1/check", &[JSON[0], ("pad", "")], CHECK).len();
            let fields = [JSON[0], ("pad", &"x".repeat(256 - bare))];
            let request = client.request("POST", "/v1/check", &fields, CHECK);
            assert_eq!(request.len(), 256);
            client.send(&request.repeat(100)).unwrap();
        }
        server.signal("TERM");
        server.signal("CONT");
        for mut client in clients {
            for number in 0..100 {
                let reply = client.receive().unwrap();
                assert_eq!(reply.map(|reply| reply.status), Some(200), "request {number}");
            }
        }
        assert_eq!(server.wait().code(), Some(0));
    }
}

/// Some clients send request after request without waiting for answers, so another request always follows the one
/// that is being answered. These clients were never told that the connection ends, and requests in progress at the
/// deadline got no answer.
#[test]
fn whoever_never_pauses_is_told_to_go() {
    let mut server = Server::with_policy(POLICY, &["--drain-timeout", "10min", "--workers", "1"]);
    let mut clients: Vec<Client> = (0..4).map(|_| Client::of(server.http)).collect();
    let told = Arc::new(AtomicUsize::new(0));
    let writers = clients.iter().map(|client| {
        let requests = client.request("POST", "/v1/check", &JSON, CHECK).repeat(200);
        let (mut stream, told) = (client.stream.try_clone().unwrap(), Arc::clone(&told));
        // The server may be gone before this client learns that it should stop.
        std::thread::spawn(move || {
            while told.load(Ordering::SeqCst) < 4 && stream.write_all(&requests).is_ok() {}
        })
    });
    let writers: Vec<_> = writers.collect();
    let readers = clients.drain(..).map(|mut client| {
        let told = Arc::clone(&told);
        std::thread::spawn(move || {
            while !says_close(&client.receive().unwrap().expect("left without a word")) {}
            told.fetch_add(1, Ordering::SeqCst);
        })
    });
    let readers: Vec<_> = readers.collect();
    pause(Duration::from_millis(300));
    server.signal("TERM");
    readers.into_iter().chain(writers).for_each(|thread| thread.join().unwrap());
    assert_eq!(server.wait().code(), Some(0));
    assert!(logged(&server, "stopped; every request was answered"), "{}", server.log());
}

/// A client goes on sending after the request that was announced as the last one. The server reads some of it; then
/// the socket was closed with the rest unread. That resets the connection, and discards what the client has not
/// received yet: answers arrived truncated or not at all.
#[test]
fn a_last_answer_is_not_taken_back() {
    for _ in 0..3 {
        let server = patient("10min");
        let mut client = Client::of(server.http);
        let first = client.request("GET", "/openapi.json", &[], "").repeat(100);
        let last = client.request("GET", "/openapi.json", &[("connection", "close")], "");
        let mut writer = client.stream.try_clone().unwrap();
        let writing = std::thread::spawn(move || {
            writer.write_all(&[first, last].concat()).unwrap();
            // The server ignores these bytes, and need not read them.
            while writer.write_all(&[b'x'; 64 * 1024]).is_ok() {}
        });
        for number in 0..=100 {
            let reply = client.receive().unwrap().unwrap();
            assert_eq!((reply.status, says_close(&reply)), (200, number == 100), "answer {number}");
            if number % 10 == 0 {
                pause(Duration::from_millis(5)); // a slow reader
            }
        }
        // Nothing follows but the end of the connection, in good order or not.
        assert!(!matches!(client.receive(), Ok(Some(_))));
        drop(client);
        writing.join().unwrap();
    }
}

/// Idle connections, and a client that reads no answers, would keep the server running for ever. The idle ones are
/// closed after a moment, the other one at the deadline.
#[test]
fn nobody_keeps_it_from_ending() {
    for signal in ["TERM", "INT"] {
        let mut server = patient("2s");
        let silent = server.connect();
        let mut idle = Client::of(server.http);
        assert_eq!(idle.post("/v1/check", CHECK).status, 200);
        let mut halfway = Client::of(server.http);
        halfway.send(b"POST /v1/check HTTP/1.1\r\nhost: x\r\n").unwrap();
        let deaf = deaf(&server);
        server.signal(signal);
        assert!(idle.receive().unwrap().is_none(), "an idle connection is closed without a word");
        assert_eq!(server.wait().code(), Some(0));
        assert!(
            logged(&server, "some connections were closed before their answer"),
            "{}",
            server.log()
        );
        drop((silent, halfway, deaf));
    }
}

/// A browser opens connections in advance, and sends nothing on some of them. The proxy waited for their first bytes as long as it
/// would have before the drain, here an hour, and the server closed them at the end of the drain: it said that requests had lost
/// their answers.
#[test]
fn a_client_that_has_sent_nothing_holds_nothing_up() {
    let mut server = patient("10min");
    let silent = [server.http, server.grpc, server.proxy].map(connect);
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    assert!(logged(&server, "stopped; every request was answered"), "{}", server.log());
    drop(silent);
}

/// Without the second signal this server would wait for a day.
#[test]
fn who_says_it_twice_does_not_wait() {
    for (first, second) in [("TERM", "TERM"), ("INT", "INT"), ("TERM", "INT")] {
        let mut server = patient("1day");
        let deaf = deaf(&server);
        server.signal(first);
        server.until("it is stopping", |server| logged(server, "stopping;"));
        server.signal(second);
        assert_eq!(server.wait().code(), Some(130));
        drop(deaf);
    }
}

/// A load balancer sends a health check on a connection that it kept open. The listener is already closed. The answer
/// says that the server is stopping, and that it is the last one. The proxy once forgot the latter when it answered itself.
#[test]
fn whoever_watches_is_told_that_it_drains() {
    for (path, status, says) in [
        ("/ready", 503, "\"draining\""),
        ("/live", 200, "\"live\""),
        ("/nowhere", 404, "no such path"),
        ("/proxied", 502, "can be reached"),
    ] {
        let mut server = patient("10min");
        let is_proxied = path == "/proxied";
        let mut watcher = Client::of(if is_proxied { server.proxy } else { server.http });
        let usual = watcher.ask("GET", "/ready", &[], "");
        let expected = if is_proxied { says } else { "\"ready\"" };
        assert!(usual.body.contains(expected) && !says_close(&usual), "{usual:?}");
        watcher.send(format!("GET {path} HTTP/1.1\r\n").as_bytes()).unwrap();
        let deaf = deaf(&server);
        server.signal("TERM");
        server.until("nobody is let in", |server| {
            TcpStream::connect(server.http)
                .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        });
        watcher.send(b"host: x\r\n\r\n").unwrap();
        let reply = watcher.receive().unwrap().unwrap();
        assert!(reply.status == status && reply.body.contains(says), "{reply:?}");
        assert!(says_close(&reply), "{reply:?}");
        assert!(watcher.receive().unwrap().is_none());
        drop(deaf);
        assert_eq!(server.wait().code(), Some(0));
    }
}
