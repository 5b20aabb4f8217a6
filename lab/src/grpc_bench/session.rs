//! The client side of one HTTP/2 connection, without I/O: which bytes to send, and what received bytes mean.
//!
//! ```text
//! client   preface, SETTINGS, WINDOW_UPDATE, then for each call   HEADERS, DATA (end)
//! server   SETTINGS, now and then PING and WINDOW_UPDATE          HEADERS, DATA, HEADERS (end)
//! ```
//!
//! A call is a sequence of bytes that was rendered once; only the stream number and the key are written into
//! it. This is *not* a general client. It does not support `CONTINUATION` frames and header tables smaller
//! than the default, and returns an error when a server needs them.

use super::failures::Failure;
use super::frames::{self, Frame, FrameKind};
use super::hpack::{HpackDecoder, Statuses, first_head, next_head};
use super::message::{GrpcRequest, unwrapped, wrapped};
use crate::rig::template;

/// A connection, and its calls in flight.
pub(crate) struct Session {
    first: RenderedCall,
    next: RenderedCall,
    allows: fn(&[u8]) -> Option<bool>,
    /// Bytes to send before the next call: the connection preface, acknowledgements and window updates.
    due: Vec<u8>,
    /// The part of an incomplete frame that has arrived.
    begun: Vec<u8>,
    in_flight: Vec<InFlight>,
    next_stream: u32,
    fields: HpackDecoder,
    /// The send window of the connection: how many bytes the client may still send.
    window: i64,
    /// How many bytes have arrived since the last `WINDOW_UPDATE` to the server.
    taken: usize,
}

/// The result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Allowed,
    Refused,
    Failed(Failure),
}

/// A call whose answer is incomplete.
#[derive(Debug)]
struct InFlight {
    stream: u32,
    statuses: Statuses,
    reply: ReplyState,
}

/// The state of the message of an answer.
#[derive(Debug)]
enum ReplyState {
    Nothing,
    /// An incomplete or unknown message.
    Begun(Vec<u8>),
    Verdict(bool),
}

/// The default of both windows.
const WINDOW: u32 = 0xffff;
/// The receive window: large, but small enough that the generator must extend it now and then.
const OUR_WINDOW: u32 = 1 << 20;
/// After how many received bytes the generator sends a `WINDOW_UPDATE`.
const GIVE_BACK: usize = 32 << 10;
/// The header table that the calls need: the default size.
const TABLE: u32 = 4096;

impl Session {
    pub(crate) fn new(request: &GrpcRequest) -> Self {
        let mut due = frames::PREFACE.to_vec();
        let settings = [(frames::ENABLE_PUSH, 0), (frames::INITIAL_WINDOW_SIZE, OUR_WINDOW)];
        frames::write(&mut due, FrameKind::Settings, 0, 0, &frames::settings(settings));
        let more = OUR_WINDOW.saturating_sub(WINDOW).to_be_bytes();
        frames::write(&mut due, FrameKind::WindowUpdate, 0, 0, &more);
        Self {
            first: RenderedCall::new(&first_head(request.path, &request.authority), request),
            next: RenderedCall::new(&next_head(), request),
            allows: request.allows,
            due,
            begun: Vec::new(),
            in_flight: Vec::new(),
            next_stream: 1,
            fields: HpackDecoder::new(),
            window: WINDOW.into(),
            taken: 0,
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Appends what must be sent before further calls.
    pub(crate) fn write_due(&mut self, bytes: &mut Vec<u8>) {
        bytes.append(&mut self.due);
    }

    /// Appends a call for a key.
    pub(crate) fn write_call(&mut self, bytes: &mut Vec<u8>, key: u32) {
        let stream = self.next_stream;
        let call = if stream == 1 { &self.first } else { &self.next };
        call.write(bytes, stream, key);
        self.window = self.window.saturating_sub(call.counts);
        // Stream numbers suffice for a thousand million calls, more than any connection here makes.
        self.next_stream = stream.saturating_add(2);
        let statuses = Statuses::default();
        self.in_flight.push(InFlight { stream, statuses, reply: ReplyState::Nothing });
    }

    /// Reads bytes that have arrived, and reports each call that has ended.
    pub(crate) fn read(
        &mut self,
        bytes: &[u8],
        mut over: impl FnMut(Outcome),
    ) -> Result<(), String> {
        if self.begun.is_empty() {
            let rest = self.frames(bytes, &mut over)?;
            self.begun.extend_from_slice(rest);
        } else {
            let mut begun = std::mem::take(&mut self.begun);
            begun.extend_from_slice(bytes);
            let rest = self.frames(&begun, &mut over)?.len();
            begun.drain(..begun.len().saturating_sub(rest));
            self.begun = begun;
        }
        let many = i64::try_from(self.in_flight.len().max(1)).unwrap_or(i64::MAX);
        // A server that reads extends the window long before that.
        if self.window < self.next.counts.saturating_mul(many) {
            return Err("the server's window is used up".to_owned());
        }
        Ok(())
    }

    /// Handles the complete frames, and returns the bytes after them.
    fn frames<'b>(
        &mut self,
        mut bytes: &'b [u8],
        over: &mut impl FnMut(Outcome),
    ) -> Result<&'b [u8], String> {
        while let Some((frame, rest)) = frames::first(bytes)? {
            if frame.kind == FrameKind::GoAway {
                let (code, error) = gone_away(&frame);
                over(Outcome::Failed(Failure::GoAway(code)));
                return Err(error);
            }
            if let Some(outcome) = self.frame(&frame)? {
                over(outcome);
            }
            bytes = rest;
        }
        Ok(bytes)
    }

    /// Handles a frame. Returns the result of a call if this is its last frame.
    fn frame(&mut self, frame: &Frame<'_>) -> Result<Option<Outcome>, String> {
        match frame.kind {
            FrameKind::Headers => return self.headers(frame),
            FrameKind::Data => return self.data(frame),
            FrameKind::ResetStream => return Ok(self.reset(frame)),
            FrameKind::Settings if !frame.has(frames::ACK) => self.settings(frame)?,
            FrameKind::Ping if !frame.has(frames::ACK) => {
                frames::write(&mut self.due, FrameKind::Ping, frames::ACK, 0, frame.payload);
            }
            FrameKind::WindowUpdate if frame.stream == 0 => {
                self.window = self.window.saturating_add(frame.number().into());
            }
            FrameKind::Continuation => {
                return Err("headers in several frames are not supported".to_owned());
            }
            FrameKind::Settings
            | FrameKind::Ping
            | FrameKind::WindowUpdate
            | FrameKind::GoAway
            | FrameKind::Other => {}
        }
        Ok(None)
    }

    fn settings(&mut self, frame: &Frame<'_>) -> Result<(), String> {
        frames::write(&mut self.due, FrameKind::Settings, frames::ACK, 0, &[]);
        let mut tables = frame.settings().filter(|(id, _)| *id == frames::HEADER_TABLE_SIZE);
        match tables.find(|(_, size)| *size < TABLE) {
            Some((_, size)) => {
                Err(format!("the server's header table of {size} bytes is too small"))
            }
            None => Ok(()),
        }
    }

    fn headers(&mut self, frame: &Frame<'_>) -> Result<Option<Outcome>, String> {
        let block = frame.content().filter(|_| frame.has(frames::END_HEADERS));
        let block = block.ok_or("headers in several frames are not supported")?;
        // The headers of every stream change the header table, so they are decoded before the stream is
        // looked up.
        let read = self.fields.read(block).ok_or("the headers cannot be decoded")?;
        let call = self.call(frame.stream)?;
        call.statuses.http = call.statuses.http.or(read.http);
        call.statuses.grpc = call.statuses.grpc.or(read.grpc);
        Ok(self.ended(frame))
    }

    fn data(&mut self, frame: &Frame<'_>) -> Result<Option<Outcome>, String> {
        self.give_back(frame.payload.len());
        let allows = self.allows;
        let content = frame.content().ok_or("the padding of a frame is longer than the frame")?;
        self.call(frame.stream)?.reply.add(content, allows);
        Ok(self.ended(frame))
    }

    fn reset(&mut self, frame: &Frame<'_>) -> Option<Outcome> {
        // A server may reset a stream after its answer, to say that it does not need the rest of the request.
        self.remove(frame.stream)?;
        Some(Outcome::Failed(Failure::Reset(frame.number())))
    }

    /// The result of the call, if this is its last frame.
    fn ended(&mut self, frame: &Frame<'_>) -> Option<Outcome> {
        if !frame.has(frames::END_STREAM) {
            return None;
        }
        self.remove(frame.stream).map(InFlight::outcome)
    }

    fn call(&mut self, stream: u32) -> Result<&mut InFlight, String> {
        let call = self.in_flight.iter_mut().find(|call| call.stream == stream);
        call.ok_or_else(|| format!("the server answered on stream {stream}, which has no call"))
    }

    fn remove(&mut self, stream: u32) -> Option<InFlight> {
        let place = self.in_flight.iter().position(|call| call.stream == stream)?;
        Some(self.in_flight.swap_remove(place))
    }

    /// Extends the server's window after a number of received bytes.
    fn give_back(&mut self, taken: usize) {
        self.taken = self.taken.saturating_add(taken);
        if self.taken >= GIVE_BACK {
            let more = u32::try_from(self.taken).unwrap_or(0).to_be_bytes();
            frames::write(&mut self.due, FrameKind::WindowUpdate, 0, 0, &more);
            self.taken = 0;
        }
    }
}

/// The error code and the text of a `GOAWAY`.
fn gone_away(frame: &Frame<'_>) -> (u32, String) {
    let (number, text) = frame.payload.split_at_checked(8).unwrap_or_default();
    let code = number.last_chunk().map_or(0, |code| u32::from_be_bytes(*code));
    let message = format!("{} {}", Failure::GoAway(code), String::from_utf8_lossy(text));
    (code, message.trim_end().to_owned())
}

// === impl InFlight ===

impl InFlight {
    /// The result of the call, after its stream has ended.
    fn outcome(self) -> Outcome {
        match (self.statuses, self.reply) {
            (Statuses { grpc: Some(0), .. }, ReplyState::Verdict(true)) => Outcome::Allowed,
            (Statuses { grpc: Some(0), .. }, ReplyState::Verdict(false)) => Outcome::Refused,
            (Statuses { grpc: Some(0), .. }, ReplyState::Nothing) => {
                Outcome::Failed(Failure::NoMessage)
            }
            (Statuses { grpc: Some(0), .. }, ReplyState::Begun(_)) => {
                Outcome::Failed(Failure::NoDecision)
            }
            (Statuses { grpc: Some(status), .. }, _) => Outcome::Failed(Failure::Grpc(status)),
            (Statuses { http: Some(200) | None, .. }, _) => Outcome::Failed(Failure::NoStatus),
            (Statuses { http: Some(status), .. }, _) => Outcome::Failed(Failure::Http(status)),
        }
    }
}

impl ReplyState {
    /// Adds received bytes. Nearly always they are the whole message.
    fn add(&mut self, content: &[u8], allows: fn(&[u8]) -> Option<bool>) {
        let mut begun = match std::mem::replace(self, Self::Nothing) {
            Self::Nothing => Vec::new(),
            Self::Begun(begun) => begun,
            // A second message is invalid, but an empty frame adds nothing.
            Self::Verdict(verdict) if content.is_empty() => return *self = Self::Verdict(verdict),
            Self::Verdict(_) => return *self = Self::Begun(Vec::new()),
        };
        let verdict = |bytes: &[u8]| unwrapped(bytes).and_then(allows);
        if begun.is_empty()
            && let Some(verdict) = verdict(content)
        {
            return *self = Self::Verdict(verdict);
        }
        begun.extend_from_slice(content);
        *self = verdict(&begun).map_or(Self::Begun(begun), Self::Verdict);
    }
}

// === impl RenderedCall ===

/// The bytes of a call.
struct RenderedCall {
    bytes: Vec<u8>,
    /// The positions of the stream number in its two frames.
    streams: [usize; 2],
    /// The positions of the key's digits, the last digit first.
    digits: Vec<usize>,
    /// How many bytes it takes from the server's window.
    counts: i64,
}

impl RenderedCall {
    fn new(head: &[u8], request: &GrpcRequest) -> Self {
        let mut bytes = Vec::new();
        let body = wrapped(&request.message.bytes);
        let asks = frames::write(&mut bytes, FrameKind::Headers, frames::END_HEADERS, 0, head);
        let says = frames::write(&mut bytes, FrameKind::Data, frames::END_STREAM, 0, &body);
        let message = bytes.len().saturating_sub(request.message.bytes.len());
        let digits = request.message.digits.iter().rev().map(|at| at.saturating_add(message));
        let digits = digits.collect();
        let counts = i64::try_from(body.len()).unwrap_or(i64::MAX);
        Self { bytes, streams: [asks, says], digits, counts }
    }

    fn write(&self, out: &mut Vec<u8>, stream: u32, key: u32) {
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        let Some(call) = out.get_mut(start..) else { return };
        for place in self.streams {
            let number = call.get_mut(place..).and_then(|rest| rest.first_chunk_mut());
            if let Some(number) = number {
                *number = stream.to_be_bytes();
            }
        }
        template::write_digits(call, &self.digits, key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc_bench::message::should_rate_limit;

    /// A header block with `:status 200`, and one with `grpc-status 0`.
    const OK: &[u8] = b"\x88";
    const END: &[u8] = b"\x00\x0bgrpc-status\x010";
    const ALLOWED: &[u8] = b"\0\0\0\0\x02\x08\x01";
    const REFUSED: &[u8] = b"\0\0\0\0\x02\x08\x02";
    const LAST: u8 = frames::END_HEADERS | frames::END_STREAM;

    fn request() -> GrpcRequest {
        should_rate_limit("localhost".to_owned(), "bench", [("remote_address", "10.1##")])
    }

    /// A connection with this many calls in flight, and the bytes that it sent.
    fn begun(calls: u32) -> (Session, Vec<u8>) {
        let (mut session, mut sent) = (Session::new(&request()), Vec::new());
        session.write_due(&mut sent);
        (0..calls).for_each(|key| session.write_call(&mut sent, key));
        (session, sent)
    }

    fn frames_of(mut bytes: &[u8]) -> Vec<Frame<'_>> {
        let mut found = Vec::new();
        while let Some((frame, rest)) = frames::first(bytes).unwrap() {
            found.push(frame);
            bytes = rest;
        }
        assert_eq!(bytes, b"");
        found
    }

    fn frame(kind: FrameKind, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        frames::write(&mut bytes, kind, flags, stream, payload);
        bytes
    }

    /// An answer as servers send it.
    fn answer(stream: u32, message: &[u8]) -> Vec<u8> {
        [
            frame(FrameKind::Headers, frames::END_HEADERS, stream, OK),
            frame(FrameKind::Data, 0, stream, message),
            frame(FrameKind::Headers, LAST, stream, END),
        ]
        .concat()
    }

    fn read(session: &mut Session, bytes: &[u8]) -> Result<Vec<Outcome>, String> {
        let mut outcomes = Vec::new();
        session.read(bytes, |outcome| outcomes.push(outcome))?;
        Ok(outcomes)
    }

    #[test]
    fn each_call_has_its_own_stream_and_key_and_the_headers_are_sent_once() {
        let (_, sent) = begun(3);
        let sent = frames_of(sent.strip_prefix(frames::PREFACE).unwrap());
        let kinds: Vec<(FrameKind, u32)> =
            sent.iter().map(|frame| (frame.kind, frame.stream)).collect();
        let begin = [(FrameKind::Settings, 0), (FrameKind::WindowUpdate, 0)];
        let calls =
            [1, 3, 5].map(|stream| [(FrameKind::Headers, stream), (FrameKind::Data, stream)]);
        assert_eq!(kinds, [&begin[..], calls.as_flattened()].concat());
        assert!(sent[2].payload.ends_with(b"\x02te\x08trailers"));
        assert_eq!(sent[4].payload, [0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe]);
        assert_eq!(sent[6].payload, sent[4].payload);
        for (place, address) in [(3, b"10.100"), (5, b"10.101"), (7, b"10.102")] {
            assert!(sent[place].payload.ends_with(address), "{place}");
            assert!(sent[place].has(frames::END_STREAM));
            assert!(unwrapped(sent[place].payload).is_some());
        }
    }

    #[test]
    fn answers_may_arrive_in_any_order_and_in_pieces() {
        let bytes = [answer(5, REFUSED), answer(1, ALLOWED), answer(3, ALLOWED)].concat();
        for cut in 0..=bytes.len() {
            let mut session = begun(3).0;
            let mut outcomes = read(&mut session, &bytes[..cut]).unwrap();
            assert_eq!(session.in_flight() + outcomes.len(), 3);
            outcomes.extend(read(&mut session, &bytes[cut..]).unwrap());
            assert_eq!(outcomes, [Outcome::Refused, Outcome::Allowed, Outcome::Allowed], "{cut}");
            assert_eq!(session.in_flight(), 0);
        }
    }

    #[test]
    fn a_message_may_arrive_in_pieces() {
        let pieces = [&ALLOWED[..2], &ALLOWED[2..], &[]];
        let data = pieces.map(|piece| frame(FrameKind::Data, 0, 1, piece)).concat();
        let end = frame(FrameKind::Headers, LAST, 1, END);
        let outcomes = read(&mut begun(1).0, &[data, end].concat()).unwrap();
        assert_eq!(outcomes, [Outcome::Allowed]);
    }

    /// Everything that may arrive instead of an answer, each on a connection with one call in flight.
    #[test]
    fn every_kind_of_failure_is_reported() {
        let head = frame(FrameKind::Headers, frames::END_HEADERS, 1, OK);
        let data = |bytes: &[u8]| frame(FrameKind::Data, 0, 1, bytes);
        let end = |block: &[u8]| frame(FrameKind::Headers, LAST, 1, block);
        let unavailable = b"\x00\x0bgrpc-status\x0214".as_slice();
        for (bytes, failure) in [
            (end(&[OK, unavailable].concat()), Failure::Grpc(14)),
            // A message does not compensate for an error status.
            ([head.clone(), data(ALLOWED), end(unavailable)].concat(), Failure::Grpc(14)),
            ([head.clone(), end(END)].concat(), Failure::NoMessage),
            ([head.clone(), data(b"\0\0\0\0\x02\x08\x00"), end(END)].concat(), Failure::NoDecision),
            ([head.clone(), data(&ALLOWED[..6]), end(END)].concat(), Failure::NoDecision),
            ([head.clone(), data(ALLOWED), data(ALLOWED), end(END)].concat(), Failure::NoDecision),
            (
                [head, frame(FrameKind::Data, frames::END_STREAM, 1, ALLOWED)].concat(),
                Failure::NoStatus,
            ),
            (end(b"\x8d"), Failure::Http(404)),
            (frame(FrameKind::ResetStream, 0, 1, &7u32.to_be_bytes()), Failure::Reset(7)),
        ] {
            let mut session = begun(1).0;
            assert_eq!(read(&mut session, &bytes), Ok(vec![Outcome::Failed(failure)]));
            assert_eq!(session.in_flight(), 0);
        }
    }

    #[test]
    fn protocol_errors_end_the_load() {
        for (bytes, error) in [
            (
                frame(FrameKind::GoAway, 0, 0, b"\0\0\0\x01\0\0\0\x0btoo_many_pings"),
                "GOAWAY ENHANCE_YOUR_CALM too_many_pings",
            ),
            (answer(3, ALLOWED), "the server answered on stream 3, which has no call"),
            (frame(FrameKind::Headers, 0, 1, OK), "headers in several frames are not supported"),
            (frame(FrameKind::Headers, LAST, 1, b"\xbe"), "the headers cannot be decoded"),
            (
                frame(
                    FrameKind::Settings,
                    0,
                    0,
                    &frames::settings([(frames::HEADER_TABLE_SIZE, 0)]),
                ),
                "the server's header table of 0 bytes is too small",
            ),
        ] {
            assert_eq!(read(&mut begun(1).0, &bytes), Err(error.to_owned()));
        }
    }

    #[test]
    fn an_answered_call_may_be_reset() {
        let bytes = [answer(1, ALLOWED), frame(FrameKind::ResetStream, 0, 1, &[0; 4])].concat();
        assert_eq!(read(&mut begun(1).0, &bytes), Ok(vec![Outcome::Allowed]));
    }

    #[test]
    fn settings_and_pings_are_acknowledged_once_and_acknowledgements_are_not() {
        let mut session = begun(1).0;
        let asked =
            [frame(FrameKind::Settings, 0, 0, &[]), frame(FrameKind::Ping, 0, 0, b"12345678")];
        let answers = [
            frame(FrameKind::Settings, frames::ACK, 0, &[]),
            frame(FrameKind::Ping, frames::ACK, 0, b"12345678"),
        ];
        read(&mut session, &[asked.concat(), answers.concat()].concat()).unwrap();
        let mut due = Vec::new();
        session.write_due(&mut due);
        assert_eq!(due, answers.concat());
        due.clear();
        session.write_due(&mut due);
        assert_eq!(due, b"");
    }

    #[test]
    fn the_window_of_the_server_is_extended() {
        let (mut session, mut due) = (begun(1).0, Vec::new());
        let piece = frame(FrameKind::Data, 0, 1, &[0; 16 << 10]);
        read(&mut session, &piece).unwrap();
        session.write_due(&mut due);
        assert_eq!(due, b"");
        read(&mut session, &piece).unwrap();
        session.write_due(&mut due);
        assert_eq!(due, frame(FrameKind::WindowUpdate, 0, 0, &(32u32 << 10).to_be_bytes()));
    }

    #[test]
    fn the_client_respects_the_window_of_the_server() {
        let (mut session, mut sent) = (begun(0).0, Vec::new());
        let counts = u32::try_from(session.next.counts).unwrap();
        for stream in (1..).step_by(2).take(usize::try_from(WINDOW / counts - 1).unwrap()) {
            session.write_call(&mut sent, 0);
            read(&mut session, &answer(stream, ALLOWED)).unwrap();
        }
        let more = frame(FrameKind::WindowUpdate, 0, 0, &counts.to_be_bytes());
        let of_a_stream = frame(FrameKind::WindowUpdate, 0, 1, &counts.to_be_bytes());
        session.write_call(&mut sent, 0);
        assert!(read(&mut session, &more).is_ok());
        session.write_call(&mut sent, 0);
        assert_eq!(
            read(&mut session, &of_a_stream),
            Err("the server's window is used up".to_owned())
        );
    }
}
