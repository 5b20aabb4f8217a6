//! HTTP/2 written by hand: sends and reads any frames.
//!
//! Header fields are sent as literals without indexing. The server is told to use no dynamic table, so the fields
//! that it sends are literals, or entries of the static table.

use super::connect;
use super::http1::is_late;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// An HTTP/2 connection.
pub(crate) struct Two {
    stream: TcpStream,
    /// What was read and is not a complete frame yet.
    read: Vec<u8>,
    /// The number of the next stream.
    next: u32,
    /// The initial window of every stream.
    initial: i64,
    /// What the server has granted since, minus what was sent: by stream, and for the connection under 0.
    granted: BTreeMap<u32, i64>,
}

#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// The result of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Whole {
        status: u16,
        body: Vec<u8>,
    },
    /// Only the stream was ended, for this reason.
    Reset(u32),
    /// The connection ended, or is about to end.
    Gone,
}

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const NONE: u8 = 0;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The default size of every window.
const WINDOW: i64 = 65_535;
/// `SETTINGS_HEADER_TABLE_SIZE`: 0.
const NO_TABLE: [u8; 6] = [0, 1, 0, 0, 0, 0];

impl Two {
    pub(crate) fn to(address: SocketAddr) -> Self {
        Self::with_settings(address, &[])
    }

    /// Begins a connection with these additional settings.
    pub(crate) fn with_settings(address: SocketAddr, settings: &[u8]) -> Self {
        let stream = connect(address);
        stream.set_nodelay(true).unwrap();
        let (initial, granted) = (WINDOW, BTreeMap::new());
        let mut two = Self { stream, read: Vec::new(), next: 1, initial, granted };
        let settings = [&NO_TABLE, settings].concat();
        two.send(&[PREFACE, &frame(SETTINGS, NONE, 0, &settings)].concat());
        two
    }

    /// Sends bytes; false if the server accepts no more.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// The number for a new stream.
    pub(crate) fn next(&mut self) -> u32 {
        let next = self.next;
        self.next += 2;
        next
    }

    /// Sends a request on a new stream.
    pub(crate) fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> u32 {
        let stream = self.next();
        let mut bytes = request(stream, method, path, body.is_empty());
        if !body.is_empty() {
            bytes.extend(frame(DATA, END_STREAM, stream, body));
        }
        self.send(&bytes);
        stream
    }

    /// Sends a request and waits for the answer.
    pub(crate) fn asked(&mut self, method: &str, path: &str, body: &[u8]) -> Answer {
        let stream = self.ask(method, path, body);
        self.answer(stream)
    }

    /// Waits for the result of a stream. Answers settings and pings meanwhile.
    pub(crate) fn answer(&mut self, stream: u32) -> Answer {
        let (mut status, mut body) = (0_u16, Vec::new());
        while let Some(frame) = self.frame() {
            match frame.kind {
                GOAWAY => return Answer::Gone,
                _ if frame.stream != stream => {}
                RST_STREAM => return Answer::Reset(number(&frame.payload)),
                // Trailers have no status.
                HEADERS => status = status.max(status_of(&frame.payload)),
                DATA => body.extend_from_slice(&frame.payload),
                _ => {}
            }
            let ends = matches!(frame.kind, HEADERS | DATA) && frame.flags & END_STREAM != 0;
            if frame.stream == stream && ends {
                return Answer::Whole { status, body };
            }
        }
        Answer::Gone
    }

    /// Waits until the server has handled everything so far; false if it closed the connection.
    pub(crate) fn in_step(&mut self) -> bool {
        let mark = *b"in step?";
        if !self.send(&frame(PING, NONE, 0, &mark)) {
            return false;
        }
        while let Some(frame) = self.frame() {
            match (frame.kind, frame.flags) {
                (PING, ACK) if frame.payload == mark => return true,
                (GOAWAY, _) => return false,
                _ => {}
            }
        }
        false
    }

    /// Sends what `make` builds for the next stream, this many times, a hundred at a time, and waits after each
    /// hundred until the server has handled them. Returns how many were accepted before the server closed the
    /// connection.
    pub(crate) fn flood(&mut self, times: usize, mut make: impl FnMut(u32) -> Vec<u8>) -> usize {
        for taken in (0..times).step_by(100) {
            let bytes: Vec<u8> = (0..100)
                .flat_map(|_| {
                    let stream = self.next();
                    make(stream)
                })
                .collect();
            if !self.send(&bytes) || !self.in_step() {
                return taken;
            }
        }
        times
    }

    /// Waits for the end of the connection. Answers settings and pings meanwhile.
    pub(crate) fn until_end(&mut self) -> Vec<Frame> {
        std::iter::from_fn(|| self.frame()).collect()
    }

    /// The next frame; `None` if the connection has ended. Settings and pings are answered.
    pub(crate) fn frame(&mut self) -> Option<Frame> {
        let whole = self.unanswered()?;
        if matches!(whole.kind, SETTINGS | PING) && whole.flags & ACK == 0 {
            let payload = if whole.kind == PING { &whole.payload[..] } else { &[] };
            self.send(&frame(whole.kind, ACK, 0, payload));
        }
        self.grant(&whole);
        Some(whole)
    }

    /// The next frame, without answering it.
    fn unanswered(&mut self) -> Option<Frame> {
        loop {
            if let Some(whole) = split(&mut self.read) {
                return Some(whole);
            }
            let mut buffer = [0; 16 * 1024];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(count) => self.read.extend_from_slice(&buffer[..count]),
                Err(error) if is_late(&error) => panic!("neither a frame nor the end came"),
                // The machine was suspended for a moment.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }

    /// Reads until the server sends a PING, which it returns and does not answer.
    pub(crate) fn until_ping(&mut self) -> Vec<u8> {
        loop {
            let frame = self.unanswered().unwrap_or_else(|| panic!("the connection ended"));
            match frame.kind {
                PING if frame.flags & ACK == 0 => return frame.payload,
                _ => self.grant(&frame),
            }
        }
    }

    /// Updates how much may be sent.
    fn grant(&mut self, frame: &Frame) {
        match frame.kind {
            WINDOW_UPDATE => {
                *self.granted.entry(frame.stream).or_default() += i64::from(number(&frame.payload));
            }
            SETTINGS => {
                let settings = frame.payload.chunks(6).filter(|setting| setting[..2] == [0, 4]);
                settings.for_each(|setting| self.initial = number(&setting[2..]).into());
            }
            _ => {}
        }
    }

    /// How much may be sent on a stream now.
    pub(crate) fn window(&self, stream: u32) -> i64 {
        let granted = |stream| self.granted.get(&stream).copied().unwrap_or(0);
        (WINDOW + granted(0)).min(self.initial + granted(stream))
    }

    /// Sends a piece of a body. The window must have room for it.
    pub(crate) fn send_data(&mut self, flags: u8, stream: u32, piece: &[u8]) {
        let length = i64::try_from(piece.len()).unwrap();
        for window in [0, stream] {
            *self.granted.entry(window).or_default() -= length;
        }
        self.send(&frame(DATA, flags, stream, piece));
    }

    /// Sends a whole body as the windows allow; false if the connection ends before, or the stream is answered.
    pub(crate) fn send_body(&mut self, stream: u32, body: &[u8]) -> bool {
        let mut rest = body;
        while !rest.is_empty() {
            let window = usize::try_from(self.window(stream).max(0)).unwrap();
            let (piece, others) = rest.split_at(rest.len().min(window).min(16 * 1024));
            if piece.is_empty() {
                match self.frame() {
                    Some(frame) if frame.kind == GOAWAY => return false,
                    Some(frame) if frame.stream == stream && frame.kind == HEADERS => return false,
                    Some(_) => {}
                    None => return false,
                }
                continue;
            }
            self.send_data(if others.is_empty() { END_STREAM } else { NONE }, stream, piece);
            rest = others;
        }
        true
    }

    /// This connection for a second thread, which writes while this one reads.
    pub(crate) fn writer(&self) -> TcpStream {
        self.stream.try_clone().unwrap()
    }
}

/// One frame, as bytes.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// The header of a request, as bytes; `whole` means that no body follows.
pub(crate) fn request(stream: u32, method: &str, path: &str, whole: bool) -> Vec<u8> {
    let mut list =
        vec![(":method", method), (":scheme", "http"), (":path", path), (":authority", "t")];
    if method == "POST" {
        list.push(("content-type", "application/json"));
    }
    let flags = if whole { END_HEADERS | END_STREAM } else { END_HEADERS };
    frame(HEADERS, flags, stream, &fields(&list))
}

/// Header fields, each a literal without indexing.
pub(crate) fn fields(list: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in list {
        bytes.push(0);
        text(&mut bytes, name.as_bytes());
        text(&mut bytes, value.as_bytes());
    }
    bytes
}

/// An HPACK string: its length with a prefix of seven bits, and then its bytes.
pub(crate) fn text(out: &mut Vec<u8>, text: &[u8]) {
    match u8::try_from(text.len()) {
        Ok(length @ 0..127) => out.push(length),
        _ => {
            out.push(127);
            let mut rest = text.len() - 127;
            while rest >= 128 {
                out.push(u8::try_from(rest % 128).unwrap() | 128);
                rest /= 128;
            }
            out.push(u8::try_from(rest).unwrap());
        }
    }
    out.extend_from_slice(text);
}

/// Removes and returns the first frame, if it is complete.
fn split(read: &mut Vec<u8>) -> Option<Frame> {
    let head = read.get(..9)?;
    let length = usize::try_from(number(&[0, head[0], head[1], head[2]])).unwrap();
    let (kind, flags, stream) = (head[3], head[4], number(&head[5..9]));
    let payload = read.get(9..9 + length)?.to_vec();
    read.drain(..9 + length);
    Some(Frame { kind, flags, stream, payload })
}

pub(crate) fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

/// The status, which is the first field of an answer.
fn status_of(block: &[u8]) -> u16 {
    match read_fields(block).as_slice() {
        [(name, status), ..] if name == ":status" => status.parse().unwrap(),
        // Trailers have none.
        _ => 0,
    }
}

/// The header fields of a block, in order.
pub(crate) fn read_fields(block: &[u8]) -> Vec<(String, String)> {
    let (mut rest, mut list) = (block, Vec::new());
    while let [first, ..] = rest {
        match first {
            0x80.. => {
                let known = length(&mut rest, 7);
                list.push((name(known), value(known)));
            }
            // A change of the size of the table.
            0x20..0x40 => _ = length(&mut rest, 5),
            // To be kept in the table, which has no room; or not to be kept.
            _ => {
                let known = length(&mut rest, if *first >= 0x40 { 6 } else { 4 });
                let name = if known == 0 { read_text(&mut rest) } else { name(known) };
                list.push((name, read_text(&mut rest)));
            }
        }
    }
    list
}

/// An HPACK integer: as much as fits into the low bits of a byte, the rest in the following bytes.
fn length(rest: &mut &[u8], bits: u32) -> usize {
    let most = (1_usize << bits) - 1;
    let mut number = usize::from(rest[0]) & most;
    *rest = &rest[1..];
    if number < most {
        return number;
    }
    for shift in (0..).step_by(7) {
        let byte = usize::from(rest[0]);
        *rest = &rest[1..];
        number += (byte & 127) << shift;
        if byte < 128 {
            break;
        }
    }
    number
}

fn read_text(rest: &mut &[u8]) -> String {
    let is_code = rest[0] >= 0x80;
    let length = length(rest, 7);
    let (text, behind) = rest.split_at(length);
    *rest = behind;
    if is_code { decoded(text) } else { String::from_utf8(text.to_vec()).unwrap() }
}

/// The Huffman code of HPACK is canonical: the length of each symbol's code determines the codes. Longer codes stand
/// for symbols that never occur in our fields.
const SIGNS: [(u32, &str); 11] = [
    (5, "012aceiost"),
    (6, " %-./3456789=A_bdfghlmnpru"),
    (7, ":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, "&*,;XZ"),
    (10, "!\"()?"),
    (11, "'+|"),
    (12, "#>"),
    (13, "\0$@[]~"),
    (14, "^}"),
    (15, "<`{"),
    (19, "\\"),
];

fn decoded(code: &[u8]) -> String {
    let bits = code.iter().flat_map(|byte| (0..8).rev().map(move |bit| u32::from(byte >> bit & 1)));
    let (mut text, mut read, mut length) = (String::new(), 0, 0);
    for bit in bits {
        (read, length) = (read << 1 | bit, length + 1);
        if let Some(sign) = sign(read, length) {
            text.push(sign);
            (read, length) = (0, 0);
        }
    }
    // The rest of the last byte is padded with ones.
    assert!(length < 8 && read == (1 << length) - 1, "no end of {text}");
    text
}

fn sign(read: u32, length: u32) -> Option<char> {
    let (mut first, mut before) = (0, 0);
    for (bits, signs) in SIGNS {
        first <<= bits - before;
        if bits == length {
            return signs.chars().nth(usize::try_from(read.checked_sub(first)?).unwrap());
        }
        (first, before) = (first + u32::try_from(signs.len()).unwrap(), bits);
    }
    None
}

/// The names of the static table, by their index.
fn name(number: usize) -> String {
    match number {
        8..=14 => ":status".to_owned(),
        24 => "cache-control".to_owned(),
        28 => "content-length".to_owned(),
        31 => "content-type".to_owned(),
        33 => "date".to_owned(),
        _ => format!("the field {number}"),
    }
}

fn value(number: usize) -> String {
    let statuses = ["200", "204", "206", "304", "400", "404", "500"];
    number.checked_sub(8).and_then(|at| statuses.get(at)).unwrap_or(&"").to_string()
}
