//! gRPC calls written by hand: any bytes in any frames, and their results.

use super::http2::{
    DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, NONE, RST_STREAM, Two, WINDOW_UPDATE,
    fields, frame, number, read_fields,
};
use super::messages::{Descriptor, Request, Response};
use prost::Message;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// A connection for calls.
pub(crate) struct Grpc {
    pub(crate) two: Two,
    /// What has arrived for each call whose result was not fetched yet.
    told: BTreeMap<u32, Told>,
    /// The GOAWAY frames of the server.
    pub(crate) goodbyes: Vec<Frame>,
}

/// The result of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// The HTTP status and the gRPC status.
    pub(crate) http: u16,
    pub(crate) code: Option<u32>,
    /// `grpc-message`
    pub(crate) text: String,
    /// All header fields, including the trailers.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Whether the stream ended with its first header block.
    pub(crate) is_head_alone: bool,
    pub(crate) end: Option<End>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Normally.
    Whole,
    /// Only the stream was ended, for this reason.
    Reset(u32),
    /// The connection ended before.
    Gone,
}

pub(crate) const CALL: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
pub(crate) const CANCEL: u32 = 8;

pub(crate) const INVALID_ARGUMENT: u32 = 3;
pub(crate) const DEADLINE_EXCEEDED: u32 = 4;
pub(crate) const NOT_FOUND: u32 = 5;
pub(crate) const RESOURCE_EXHAUSTED: u32 = 8;
pub(crate) const OUT_OF_RANGE: u32 = 11;
pub(crate) const UNIMPLEMENTED: u32 = 12;
pub(crate) const UNAVAILABLE: u32 = 14;

/// The header fields of a call.
pub(crate) const HEAD: [(&str, &str); 6] = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", CALL),
    (":authority", "t"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
];

/// The header fields of a call of another method.
pub(crate) fn to_method(path: &'static str) -> Vec<(&'static str, &'static str)> {
    HEAD.map(|(name, value)| (name, if name == ":path" { path } else { value })).to_vec()
}

/// A message with its prefix: not compressed, and its length.
pub(crate) fn message(bytes: &[u8]) -> Vec<u8> {
    prefixed(0, u32::try_from(bytes.len()).unwrap(), bytes)
}

/// A message with any prefix, which may be wrong.
pub(crate) fn prefixed(packed: u8, length: u32, bytes: &[u8]) -> Vec<u8> {
    [&[packed][..], &length.to_be_bytes(), bytes].concat()
}

/// A complete call as frames.
pub(crate) fn call(stream: u32, head: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut bytes = begin(stream, head);
    let mut pieces = body.chunks(16 * 1024).peekable();
    while let Some(piece) = pieces.next() {
        let flags = if pieces.peek().is_none() { END_STREAM } else { NONE };
        bytes.extend(frame(DATA, flags, stream, piece));
    }
    bytes
}

/// The header of a call whose messages follow later.
pub(crate) fn begin(stream: u32, head: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &fields(head))
}

pub(crate) fn cancel(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, NONE, stream, &CANCEL.to_be_bytes())
}

impl Grpc {
    pub(crate) fn to(address: SocketAddr) -> Self {
        Self::over(Two::to(address))
    }

    pub(crate) fn over(mut two: Two) -> Self {
        // A window for all answers.
        two.send(&frame(WINDOW_UPDATE, NONE, 0, &(1_u32 << 30).to_be_bytes()));
        Self { two, told: BTreeMap::new(), goodbyes: Vec::new() }
    }

    /// Sends any bytes as the messages of a call.
    pub(crate) fn send(&mut self, head: &[(&str, &str)], body: &[u8]) -> u32 {
        if body.is_empty() {
            let stream = self.two.next();
            self.two.send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields(head)));
            return stream;
        }
        let stream = self.open(head);
        let mut pieces = body.chunks(16 * 1024).peekable();
        while let Some(piece) = pieces.next() {
            let flags = if pieces.peek().is_none() { END_STREAM } else { NONE };
            self.send_piece(flags, stream, piece);
        }
        stream
    }

    /// Sends a piece of a body when the window allows it.
    pub(crate) fn send_piece(&mut self, flags: u8, stream: u32, piece: &[u8]) {
        let length = i64::try_from(piece.len()).unwrap();
        while self.two.window(stream) < length {
            if !self.read() {
                return;
            }
        }
        self.two.send_data(flags, stream, piece);
    }

    /// Begins a call whose messages follow later.
    pub(crate) fn open(&mut self, head: &[(&str, &str)]) -> u32 {
        let stream = self.two.next();
        self.two.send(&begin(stream, head));
        stream
    }

    pub(crate) fn ask(&mut self, request: &Request) -> u32 {
        self.send(&HEAD, &message(&request.encode_to_vec()))
    }

    /// Sends any bytes as a call, and returns the result.
    pub(crate) fn sent(&mut self, head: &[(&str, &str)], body: &[u8]) -> Told {
        let stream = self.send(head, body);
        self.told(stream)
    }

    /// The answer to a valid call.
    pub(crate) fn asked(&mut self, request: &Request) -> Response {
        let stream = self.ask(request);
        self.told(stream).answer()
    }

    /// The answer to a valid call with additional header fields.
    pub(crate) fn asked_with(&mut self, more: &[(&str, &str)], request: &Request) -> Response {
        let head = [&HEAD[..], more].concat();
        self.sent(&head, &message(&request.encode_to_vec())).answer()
    }

    /// What remains for these entries, by a call that charges nothing.
    pub(crate) fn remaining(&mut self, entries: &[(&str, &str)]) -> u32 {
        let answer = self.asked(&Request::of([Descriptor::of(entries).hits(0)]));
        answer.statuses[0].limit_remaining
    }

    /// Waits for the end of a call.
    pub(crate) fn told(&mut self, stream: u32) -> Told {
        self.until(stream, |told| told.end.is_some());
        self.told.remove(&stream).unwrap_or(Told { end: Some(End::Gone), ..Told::default() })
    }

    /// Whether the answer to a call is among what was read so far.
    pub(crate) fn has_answered(&self, stream: u32) -> bool {
        self.told.contains_key(&stream)
    }

    /// Waits for the next message of a call that goes on.
    pub(crate) fn next_message<M: Message + Default>(&mut self, stream: u32) -> M {
        self.until(stream, |told| first(&told.body).is_some() || told.end.is_some());
        let told = self.told.get_mut(&stream).unwrap_or_else(|| panic!("nothing came"));
        let length = first(&told.body).unwrap_or_else(|| panic!("no message came: {told:?}"));
        let bytes: Vec<u8> = told.body.drain(..5 + length).skip(5).collect();
        M::decode(&*bytes).unwrap()
    }

    /// Reads until a call meets the condition, or the connection has ended.
    fn until(&mut self, stream: u32, is_so: impl Fn(&Told) -> bool) {
        while !self.told.get(&stream).is_some_and(&is_so) {
            if !self.read() {
                return;
            }
        }
    }

    /// Reads a frame; false if there are no more.
    pub(crate) fn read(&mut self) -> bool {
        let Some(frame) = self.two.frame() else { return false };
        let told = self.told.entry(frame.stream).or_default();
        match frame.kind {
            HEADERS => {
                told.is_head_alone = told.fields.is_empty() && frame.flags & END_STREAM != 0;
                told.head(&frame.payload);
            }
            DATA => told.body.extend_from_slice(&frame.payload),
            // A complete answer stays complete, whatever happens to the rest of the request.
            RST_STREAM if told.end.is_none() => {
                told.end = Some(End::Reset(number(&frame.payload)));
            }
            _ => {}
        }
        if matches!(frame.kind, HEADERS | DATA) && frame.flags & END_STREAM != 0 {
            told.end = Some(End::Whole);
        }
        if frame.kind == GOAWAY {
            self.goodbyes.push(frame);
        }
        true
    }
}

/// The length of the first message, once it has arrived completely.
fn first(body: &[u8]) -> Option<usize> {
    let length = usize::try_from(number(body.get(1..5)?)).unwrap();
    (body.len() >= 5 + length).then_some(length)
}

impl Told {
    fn head(&mut self, block: &[u8]) {
        for (name, value) in read_fields(block) {
            match name.as_str() {
                ":status" => self.http = value.parse().unwrap(),
                "grpc-status" => self.code = Some(value.parse().unwrap()),
                "grpc-message" => self.text.clone_from(&value),
                _ => {}
            }
            self.fields.push((name, value));
        }
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The only message of a successful call.
    pub(crate) fn message<M: Message + Default>(&self) -> M {
        assert_eq!((self.http, self.code, self.end), (200, Some(0), Some(End::Whole)), "{self:?}");
        assert_eq!(self.field("content-type"), Some("application/grpc"), "{self:?}");
        assert_eq!((self.body[0], first(&self.body)), (0, Some(self.body.len() - 5)), "{self:?}");
        M::decode(&self.body[5..]).unwrap()
    }

    pub(crate) fn answer(&self) -> Response {
        self.message()
    }
}
