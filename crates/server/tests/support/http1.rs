//! HTTP/1.1 written by hand: sends any bytes, and reads answers one by one.

use super::{Reply, Server, connect};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

/// A connection on which answers are read one after another.
pub(crate) struct Wire {
    stream: TcpStream,
    /// What was read and is not a complete answer yet.
    read: Vec<u8>,
}

impl Wire {
    pub(crate) fn to(address: SocketAddr) -> Self {
        let stream = connect(address);
        stream.set_nodelay(true).unwrap();
        Self { stream, read: Vec::new() }
    }

    /// This connection for a second thread, which writes while this one reads.
    pub(crate) fn writer(&self) -> Self {
        Self { stream: self.stream.try_clone().unwrap(), read: Vec::new() }
    }

    /// Sends as much as the server reads; it may close the connection before it has read everything.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Sends as much as is possible without waiting, and returns how much that was.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> usize {
        self.stream.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while let Ok(count @ 1..) = self.stream.write(&bytes[sent..]) {
            sent += count;
        }
        self.stream.set_nonblocking(false).unwrap();
        sent
    }

    /// Sends in pieces of random sizes, up to the longest.
    pub(crate) fn send_cut(&mut self, bytes: &[u8], longest: usize, dice: &mut Dice) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (piece, others) = rest.split_at(dice.up_to(longest).min(rest.len()));
            if self.stream.write_all(piece).is_err() {
                return;
            }
            rest = others;
        }
    }

    /// Closes the writing side: nothing more will be sent.
    pub(crate) fn end(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// The next answer; `None` if the connection ends without one.
    pub(crate) fn answer(&mut self) -> Option<Reply> {
        self.answer_to("GET")
    }

    /// The next answer to a request with this method; an answer to `HEAD` has no body.
    pub(crate) fn answer_to(&mut self, method: &str) -> Option<Reply> {
        loop {
            if let Some((reply, length)) = whole(&self.read, method) {
                self.read.drain(..length);
                return Some(reply);
            }
            if !self.more() {
                return None;
            }
        }
    }

    /// Waits until the server closes the connection, and returns what it sent before.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        while self.more() {}
        std::mem::take(&mut self.read)
    }

    /// Waits for bytes; false if there will be none. A wait that is too long fails the test.
    fn more(&mut self) -> bool {
        let mut buffer = [0; 16 * 1024];
        match self.stream.read(&mut buffer) {
            Ok(0) => false,
            Ok(count) => {
                self.read.extend_from_slice(&buffer[..count]);
                true
            }
            Err(error) if is_late(&error) => panic!("neither an answer nor the end came"),
            // The machine was suspended for a moment.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => true,
            Err(_) => false,
        }
    }
}

/// Does something while another client sends requests, all of which must be answered.
pub(crate) fn while_others_ask<T>(server: &Server, something: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let honest = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let mut wire = Wire::to(server.http);
                for _ in 0..10 {
                    wire.send(b"GET /live HTTP/1.1\r\nhost: t\r\n\r\n");
                    assert_eq!(wire.answer().unwrap().status, 200);
                }
            }
        });
        // Also if it fails: otherwise the other client would never stop.
        let ends = Ends(&over);
        let result = something();
        drop(ends);
        honest.join().unwrap();
        result
    })
}

struct Ends<'o>(&'o AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whether a read timed out.
pub(crate) fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

/// An answer, if it is complete, and its length in bytes.
fn whole(bytes: &[u8], method: &str) -> Option<(Reply, usize)> {
    let head_end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let mut reply = Reply::parse(&String::from_utf8_lossy(&bytes[..head_end]));
    let bare = method == "HEAD" || reply.status < 200 || reply.status == 204;
    let length = match reply.field("content-length") {
        Some(length) if !bare => length.parse().unwrap(),
        _ => 0,
    };
    let body = bytes.get(head_end..head_end + length)?;
    reply.body = String::from_utf8_lossy(body).into_owned();
    Some((reply, head_end + length))
}

/// Pseudo-random numbers, the same in every run (xorshift).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number from 1 to this.
    pub(crate) fn up_to(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let most = u64::try_from(most).unwrap();
        usize::try_from(self.0 % most).unwrap() + 1
    }
}
