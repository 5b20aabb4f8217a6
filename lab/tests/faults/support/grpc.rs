//! gRPC calls as Envoy makes them, written as bytes on one connection.

use super::PATIENCE;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

pub(crate) struct Grpc {
    stream: TcpStream,
    read: Vec<u8>,
    next: u32,
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallResult {
    Ok,
    OverLimit,
    /// An error status, or no answer at all.
    Failed,
}

/// An event on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The call on this stream was answered.
    Answered(u32),
    /// The server sent `GOAWAY`.
    GoAway,
    Closed,
}

const CANCEL: u32 = 8;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

impl Grpc {
    pub(crate) fn connect(server: SocketAddr) -> Self {
        let stream = TcpStream::connect(server).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut grpc = Self { stream, read: Vec::new(), next: 1 };
        let settings = frame(SETTINGS, 0, 0, &[]);
        // A window large enough for all answers.
        let window = frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes());
        grpc.send(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), settings, window].concat());
        grpc
    }

    /// Checks an address with a deadline, and waits for the answer.
    pub(crate) fn call(&mut self, ip: &str, timeout: &str) -> CallResult {
        let stream = self.ask(ip, timeout);
        self.answer(stream)
    }

    /// This connection for a second thread, which reads while the first one writes.
    pub(crate) fn reader(&self) -> Self {
        Self { stream: self.stream.try_clone().unwrap(), read: Vec::new(), next: 0 }
    }

    /// Cancels a call, as Envoy does when its deadline has passed.
    pub(crate) fn cancel(&mut self, stream: u32) {
        self.send(&frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes()));
    }

    /// Starts a call without waiting for the answer, and returns its stream.
    pub(crate) fn ask(&mut self, ip: &str, timeout: &str) -> u32 {
        let stream = self.next;
        self.next += 2;
        let head = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"),
            (":authority", "test"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("grpc-timeout", timeout),
        ];
        let entry = [field(1, b"remote_address"), field(2, ip.as_bytes())].concat();
        let message = [field(1, b"web"), field(2, &field(1, &entry))].concat();
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        let body = [&[0], &length[..], &message].concat();
        let head = frame(HEADERS, END_HEADERS, stream, &head.map(literal).concat());
        self.send(&[head, frame(DATA, END_STREAM, stream, &body)].concat());
        stream
    }

    /// Waits for the next event on the connection.
    pub(crate) fn next_event(&mut self) -> Event {
        loop {
            let Some((kind, flags, stream, _)) = self.frame() else { return Event::Closed };
            match kind {
                GOAWAY => return Event::GoAway,
                DATA | HEADERS if flags & END_STREAM != 0 => return Event::Answered(stream),
                _ => {}
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Reads until the call has ended. The message of an answer begins with the overall code.
    fn answer(&mut self, stream: u32) -> CallResult {
        let mut called = CallResult::Failed;
        while let Some((kind, flags, of, payload)) = self.frame() {
            match kind {
                SETTINGS | PING if flags & ACK == 0 => {
                    let payload = if kind == PING { &payload[..] } else { &[] };
                    self.send(&frame(kind, ACK, 0, payload));
                }
                DATA if of == stream => match payload.get(5..7) {
                    Some([8, 1]) => called = CallResult::Ok,
                    Some([8, 2]) => called = CallResult::OverLimit,
                    _ => {}
                },
                _ => {}
            }
            if of == stream && matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
                return called;
            }
        }
        CallResult::Failed
    }

    fn frame(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        loop {
            if let Some(head) = self.read.get(..9) {
                let [a, b, c, kind, flags, d, e, f, g] = <[u8; 9]>::try_from(head).unwrap();
                let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap();
                if let Some(payload) = self.read.get(9..9 + length) {
                    let payload = payload.to_vec();
                    self.read.drain(..9 + length);
                    return Some((kind, flags, u32::from_be_bytes([d, e, f, g]), payload));
                }
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer).ok()? {
                0 => return None,
                count => self.read.extend_from_slice(&buffer[..count]),
            }
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A literal header field that is not added to the header table.
fn literal((name, value): (&str, &str)) -> Vec<u8> {
    let length = |text: &str| u8::try_from(text.len()).unwrap();
    let (name_length, value_length) = (length(name), length(value));
    [&[0, name_length], name.as_bytes(), &[value_length], value.as_bytes()].concat()
}

/// A Protocol Buffers field with fewer than 128 bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
}
