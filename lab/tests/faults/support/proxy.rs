//! A TCP proxy whose network conditions can be changed while it is used: delay, jitter, bandwidth, silence,
//! lost and cut replies, resets.
//!
//! Each direction of a connection has two threads. One reads, and notes when the bytes are due at the other
//! end; the other one writes them at that time. So a delay does not reduce the bandwidth: what is sent
//! together arrives together.
//!
//! ```text
//!   client ──► read ──► queue: bytes and when they are due ──► write, by the rules at that time ──► server
//! ```
//!
//! Replies are forwarded one by one, because some of the rules count them.

use super::{Dice, PATIENCE, free_listener, resp};
use rustix::net::sockopt::set_socket_linger;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// A proxy to one server. It closes its connections when it is dropped.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    shared: Arc<ProxyState>,
}

/// The network conditions of one direction.
#[derive(Clone, Copy, Default)]
pub(crate) struct Conditions {
    pub(crate) delay: Duration,
    /// The most that is added to the delay, at random.
    pub(crate) jitter: Duration,
    pub(crate) bytes_per_second: Option<u32>,
    pub(crate) byte_by_byte: bool,
    /// Nothing arrives while this is set; afterwards everything does.
    pub(crate) frozen: bool,
    /// Everything that is sent is lost.
    pub(crate) swallowed: bool,
}

/// What happens to single replies, counted over all connections.
#[derive(Clone, Copy, Default)]
struct Replies {
    /// The connection is reset after every `n` replies.
    reset_every: Option<u64>,
    /// The next reply is cut after this many bytes, and its connection is closed.
    cut_after: Option<usize>,
    /// The next replies that are lost, although the server has executed the commands.
    dropped: u64,
    passed: u64,
}

struct ProxyState {
    server: SocketAddr,
    rules: Mutex<Rules>,
    changed: Condvar,
    /// When each connection was accepted.
    accepted: Mutex<Vec<Instant>>,
    links: Mutex<Vec<Arc<Link>>>,
    over: AtomicBool,
}

struct Rules {
    requests: Conditions,
    replies: Conditions,
    counted: Replies,
    dice: Dice,
}

/// The two sockets of a connection.
struct Link {
    client: TcpStream,
    server: TcpStream,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Requests,
    Replies,
}

/// Bytes, and when they are due.
type Piece = (Instant, Vec<u8>);

/// What happens to a reply.
enum Fate {
    Passes,
    Dropped,
    /// The connection closes after this many bytes of it.
    Cut(usize),
    ResetBehind,
}

// === impl Proxy ===

impl Proxy {
    pub(crate) fn start(server: SocketAddr) -> Self {
        let rules = Rules {
            requests: Conditions::default(),
            replies: Conditions::default(),
            counted: Replies::default(),
            dice: Dice::new(7),
        };
        let shared = Arc::new(ProxyState {
            server,
            rules: Mutex::new(rules),
            changed: Condvar::new(),
            accepted: Mutex::new(Vec::new()),
            links: Mutex::new(Vec::new()),
            over: AtomicBool::new(false),
        });
        let (listener, address) = free_listener();
        let serving = Arc::clone(&shared);
        thread::spawn(move || serving.listen(&listener));
        Self { address, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// Sets the conditions for requests from now on.
    pub(crate) fn requests(&self, conditions: Conditions) {
        self.shared.change(|rules| rules.requests = conditions);
    }

    /// Sets the conditions for replies from now on.
    pub(crate) fn replies(&self, conditions: Conditions) {
        self.shared.change(|rules| rules.replies = conditions);
    }

    /// Sets the conditions of both directions.
    pub(crate) fn both_directions(&self, conditions: Conditions) {
        self.requests(conditions);
        self.replies(conditions);
    }

    pub(crate) fn reset_every(&self, replies: Option<u64>) {
        self.shared.change(|rules| rules.counted.reset_every = replies);
    }

    pub(crate) fn cut_next_reply_after(&self, bytes: usize) {
        self.shared.change(|rules| rules.counted.cut_after = Some(bytes));
    }

    pub(crate) fn drop_replies(&self, count: u64) {
        self.shared.change(|rules| rules.counted.dropped = count);
    }

    /// Whether all ordered cuts and losses have happened.
    pub(crate) fn is_done(&self) -> bool {
        let counted = self.shared.rules.lock().unwrap().counted;
        counted.cut_after.is_none() && counted.dropped == 0
    }

    /// Resets all open connections.
    pub(crate) fn reset(&self) {
        for link in self.shared.links.lock().unwrap().drain(..) {
            link.reset();
        }
    }

    /// How many connections were accepted between two instants.
    pub(crate) fn accepted(&self, from: Instant, to: Instant) -> usize {
        let accepted = self.shared.accepted.lock().unwrap();
        accepted.iter().filter(|at| (from..to).contains(*at)).count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        self.shared.changed.notify_all();
        self.reset();
        // Wakes the listening thread, which then sees that the proxy has ended.
        let _ = TcpStream::connect(self.address);
    }
}

// === impl ProxyState ===

impl ProxyState {
    fn change(&self, change: impl FnOnce(&mut Rules)) {
        change(&mut self.rules.lock().unwrap());
        self.changed.notify_all();
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn listen(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.is_over() {
                return;
            }
            let Ok(client) = client else { continue };
            self.accepted.lock().unwrap().push(Instant::now());
            // The server is down: the client's connection is closed immediately.
            let Ok(server) = TcpStream::connect(self.server) else { continue };
            client.set_nodelay(true).unwrap();
            server.set_nodelay(true).unwrap();
            let link = Arc::new(Link { client, server });
            self.links.lock().unwrap().push(Arc::clone(&link));
            for direction in [Direction::Requests, Direction::Replies] {
                let (sender, receiver) = channel();
                let (shared, reading) = (Arc::clone(self), Arc::clone(&link));
                thread::spawn(move || shared.read(&reading, direction, &sender));
                let (shared, writing) = (Arc::clone(self), Arc::clone(&link));
                thread::spawn(move || shared.write(&writing, direction, &receiver));
            }
        }
    }

    fn read(&self, link: &Link, direction: Direction, queue: &Sender<Piece>) {
        let (mut from, _) = link.ends(direction);
        let (mut buffer, mut due) = (vec![0; 64 << 10], Instant::now());
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let late = self.lateness(direction);
            // Later bytes never overtake earlier ones.
            due = due.max(Instant::now() + late);
            if queue.send((due, buffer[..count].to_vec())).is_err() {
                return;
            }
        }
    }

    fn lateness(&self, direction: Direction) -> Duration {
        let rules = &mut *self.rules.lock().unwrap();
        let conditions = rules.conditions(direction);
        let most = u64::try_from(conditions.jitter.as_micros()).unwrap();
        conditions.delay + Duration::from_micros(rules.dice.below(most))
    }

    fn write(&self, link: &Link, direction: Direction, queue: &Receiver<Piece>) {
        let mut waiting: Vec<u8> = Vec::new();
        let mut free_at = Instant::now();
        // Ends when the reading thread has ended and everything is written.
        while let Ok((due, bytes)) = queue.recv() {
            waiting.extend(bytes);
            let mut due = due;
            while let Some(length) = ready(direction, &waiting) {
                let Some(conditions) = self.wait_until(direction, due.max(free_at)) else { return };
                let piece: Vec<u8> = waiting.drain(..length).collect();
                due = Instant::now();
                if let Some(rate) = conditions.bytes_per_second {
                    let micros = u64::try_from(piece.len()).unwrap() * 1_000_000 / u64::from(rate);
                    free_at = due + Duration::from_micros(micros);
                }
                if self.forward(link, direction, conditions, &piece).is_none() {
                    return;
                }
            }
        }
        let _ = link.ends(direction).1.shutdown(Shutdown::Write);
    }

    /// Waits until bytes are due and the direction is not frozen. Returns the conditions at that time, or
    /// `None` when the proxy has ended.
    fn wait_until(&self, direction: Direction, due: Instant) -> Option<Conditions> {
        let mut rules = self.rules.lock().unwrap();
        loop {
            let conditions = rules.conditions(direction);
            let left = due.saturating_duration_since(Instant::now());
            if self.is_over() {
                return None;
            }
            if left.is_zero() && !conditions.frozen {
                return Some(conditions);
            }
            let patience = if left.is_zero() { PATIENCE } else { left };
            rules = self.changed.wait_timeout(rules, patience).unwrap().0;
        }
    }

    fn forward(
        &self,
        link: &Link,
        direction: Direction,
        conditions: Conditions,
        piece: &[u8],
    ) -> Option<()> {
        if conditions.swallowed {
            return Some(());
        }
        let (_, to) = link.ends(direction);
        let fate = match direction {
            Direction::Requests => Fate::Passes,
            Direction::Replies => self.rules.lock().unwrap().counted.fate(),
        };
        match fate {
            Fate::Passes => put(to, piece, conditions.byte_by_byte),
            Fate::Dropped => Some(()),
            Fate::Cut(bytes) => {
                put(to, &piece[..bytes.min(piece.len())], conditions.byte_by_byte);
                let _ = link.client.shutdown(Shutdown::Both);
                let _ = link.server.shutdown(Shutdown::Both);
                None
            }
            Fate::ResetBehind => {
                put(to, piece, conditions.byte_by_byte);
                self.links.lock().unwrap().retain(|other| !std::ptr::eq(&**other, link));
                link.reset();
                None
            }
        }
    }
}

/// How many of the waiting bytes can be forwarded as one piece.
fn ready(direction: Direction, waiting: &[u8]) -> Option<usize> {
    match direction {
        Direction::Requests => Some(waiting.len()).filter(|length| *length > 0),
        Direction::Replies => resp::length(waiting),
    }
}

fn put(mut to: &TcpStream, bytes: &[u8], byte_by_byte: bool) -> Option<()> {
    let pieces = if byte_by_byte { 1 } else { bytes.len().max(1) };
    bytes.chunks(pieces).try_for_each(|piece| to.write_all(piece)).ok()
}

impl Rules {
    fn conditions(&self, direction: Direction) -> Conditions {
        match direction {
            Direction::Requests => self.requests,
            Direction::Replies => self.replies,
        }
    }
}

impl Replies {
    fn fate(&mut self) -> Fate {
        self.passed += 1;
        if let Some(bytes) = self.cut_after.take() {
            return Fate::Cut(bytes);
        }
        if self.dropped > 0 {
            self.dropped -= 1;
            return Fate::Dropped;
        }
        match self.reset_every {
            Some(every) if self.passed.is_multiple_of(every) => Fate::ResetBehind,
            _ => Fate::Passes,
        }
    }
}

impl Link {
    /// The sockets from which and to which bytes go.
    fn ends(&self, direction: Direction) -> (&TcpStream, &TcpStream) {
        match direction {
            Direction::Requests => (&self.client, &self.server),
            Direction::Replies => (&self.server, &self.client),
        }
    }

    /// Wakes the reading threads without sending a FIN to the client. When the last reference to the socket
    /// is dropped, it is reset (`SO_LINGER` 0).
    fn reset(&self) {
        let _ = set_socket_linger(&self.client, Some(Duration::ZERO));
        let _ = self.client.shutdown(Shutdown::Read);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    /// A server that answers each byte with a reply of five bytes, a proxy in front of it, and a client.
    fn proxied_client() -> (Proxy, TcpStream) {
        let (listener, address) = free_listener();
        thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            while let Ok(1) = stream.read(&mut [0; 1]) {
                stream.write_all(b"+OK\r\n").unwrap();
            }
        });
        let proxy = Proxy::start(address);
        let client = TcpStream::connect(proxy.address).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        (proxy, client)
    }

    fn asked(client: &mut TcpStream) -> std::io::Result<()> {
        client.write_all(b"?")?;
        client.read_exact(&mut [0; 5])
    }

    #[test]
    fn a_delay_is_applied() {
        let (proxy, mut client) = proxied_client();
        asked(&mut client).unwrap();
        let (delay, jitter) = (Duration::from_millis(20), Duration::from_millis(5));
        proxy.replies(Conditions { delay, jitter, byte_by_byte: true, ..Conditions::default() });
        let start = Instant::now();
        asked(&mut client).unwrap();
        assert!(start.elapsed() >= delay);
        assert_eq!(proxy.accepted(start - PATIENCE, Instant::now()), 1);
    }

    #[test]
    fn frozen_bytes_arrive_later_and_swallowed_bytes_never() {
        let (proxy, mut client) = proxied_client();
        proxy.requests(Conditions { frozen: true, ..Conditions::default() });
        client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert_eq!(asked(&mut client).unwrap_err().kind(), ErrorKind::WouldBlock);
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        proxy.requests(Conditions::default());
        client.read_exact(&mut [0; 5]).unwrap();
        proxy.replies(Conditions { swallowed: true, ..Conditions::default() });
        client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert_eq!(asked(&mut client).unwrap_err().kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn replies_are_dropped_cut_and_followed_by_a_reset() {
        let (proxy, mut client) = proxied_client();
        proxy.drop_replies(2);
        client.write_all(b"???").unwrap();
        client.read_exact(&mut [0; 5]).unwrap();
        assert!(proxy.is_done());
        proxy.cut_next_reply_after(3);
        client.write_all(b"?").unwrap();
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"+OK");

        let (proxy, mut client) = proxied_client();
        proxy.reset_every(Some(2));
        asked(&mut client).unwrap();
        client.write_all(b"?").unwrap();
        let mut rest = Vec::new();
        assert_eq!(client.read_to_end(&mut rest).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}
