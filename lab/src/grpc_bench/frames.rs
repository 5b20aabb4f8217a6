//! As much of HTTP/2 as the load generator needs: reading and writing frames.
//!
//! ```text
//! length      type   flags   stream        payload
//! 3 bytes     1      1       4             as many as the length says
//! 00 00 06    01     04      00 00 00 05   83 86 c1 c0 bf be          the headers of the third call
//! ```

/// The length of a frame's head.
const HEAD: usize = 9;
/// The longest payload that a server may send. This is the default of the standard, which the generator does
/// not change.
const LONGEST: usize = 16 << 10;

/// What a client sends before its first frame.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The flag of the last frame of a stream.
pub(crate) const END_STREAM: u8 = 0x1;
/// The flag of a `PING` or `SETTINGS` that acknowledges one: the bit that is `END_STREAM` elsewhere.
pub(crate) const ACK: u8 = 0x1;
pub(crate) const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Identifiers of settings: the size of the header table, whether the server may push, the initial window of
/// a stream.
pub(crate) const HEADER_TABLE_SIZE: u16 = 1;
pub(crate) const ENABLE_PUSH: u16 = 2;
pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;

/// The type of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Data,
    Headers,
    ResetStream,
    Settings,
    Ping,
    GoAway,
    WindowUpdate,
    Continuation,
    /// Types that the generator ignores, as the standard demands of unknown types.
    Other,
}

impl FrameKind {
    const fn of(byte: u8) -> Self {
        match byte {
            0 => Self::Data,
            1 => Self::Headers,
            3 => Self::ResetStream,
            4 => Self::Settings,
            6 => Self::Ping,
            7 => Self::GoAway,
            8 => Self::WindowUpdate,
            9 => Self::Continuation,
            _ => Self::Other,
        }
    }

    const fn byte(self) -> u8 {
        match self {
            Self::Data => 0,
            Self::Headers => 1,
            Self::ResetStream => 3,
            Self::Settings => 4,
            Self::Ping => 6,
            Self::GoAway => 7,
            Self::WindowUpdate => 8,
            Self::Continuation => 9,
            Self::Other => u8::MAX,
        }
    }
}

/// A frame that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame<'b> {
    pub(crate) kind: FrameKind,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: &'b [u8],
}

impl Frame<'_> {
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The payload of `DATA` or `HEADERS` without padding and priority; `None` when the frame is too short
    /// for them.
    pub(crate) fn content(&self) -> Option<&[u8]> {
        let mut content = self.payload;
        if self.has(PADDED) {
            let (padding, rest) = content.split_first()?;
            content = rest.get(..rest.len().checked_sub((*padding).into())?)?;
        }
        if self.kind == FrameKind::Headers && self.has(PRIORITY) {
            content = content.get(5..)?;
        }
        Some(content)
    }

    /// The 32-bit number at the beginning of the payload.
    pub(crate) fn number(&self) -> u32 {
        self.payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
    }

    /// The identifiers and values of a `SETTINGS` frame.
    pub(crate) fn settings(&self) -> impl Iterator<Item = (u16, u32)> {
        let (settings, _) = self.payload.as_chunks::<6>();
        settings
            .iter()
            .map(|[a, b, value @ ..]| (u16::from_be_bytes([*a, *b]), u32::from_be_bytes(*value)))
    }
}

/// The first frame of the bytes that have arrived, and the bytes after it; `None` while it is incomplete.
pub(crate) fn first(bytes: &[u8]) -> Result<Option<(Frame<'_>, &[u8])>, String> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else { return Ok(None) };
    let [high, middle, low, kind, flags, stream @ ..] = *head;
    let length = u32::from_be_bytes([0, high, middle, low]);
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > LONGEST {
        let text = String::from_utf8_lossy(head);
        return Err(format!("a frame of {length} bytes is too long; this is not HTTP/2: {text:?}"));
    }
    let Some((payload, rest)) = rest.split_at_checked(length) else { return Ok(None) };
    let stream = u32::from_be_bytes(stream) & 0x7fff_ffff;
    Ok(Some((Frame { kind: FrameKind::of(kind), flags, stream, payload }, rest)))
}

/// Appends a frame, and returns the position of its stream number.
pub(crate) fn write(
    bytes: &mut Vec<u8>,
    kind: FrameKind,
    flags: u8,
    stream: u32,
    payload: &[u8],
) -> usize {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    bytes.extend_from_slice(length.get(1..).unwrap_or_default());
    bytes.extend_from_slice(&[kind.byte(), flags]);
    let place = bytes.len();
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    place
}

/// The payload of a `SETTINGS` frame.
pub(crate) fn settings<const MANY: usize>(settings: [(u16, u32); MANY]) -> Vec<u8> {
    let bytes = settings.map(|(setting, value)| {
        setting.to_be_bytes().into_iter().chain(value.to_be_bytes()).collect::<Vec<u8>>()
    });
    bytes.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_written_as_the_standard_describes() {
        let mut bytes = vec![];
        let place = write(&mut bytes, FrameKind::Headers, END_HEADERS, 5, b"\x83\x86");
        assert_eq!(bytes, b"\0\0\x02\x01\x04\0\0\0\x05\x83\x86");
        assert_eq!(place, 5);
    }

    #[test]
    fn a_frame_is_read_when_its_last_byte_has_arrived_and_not_before() {
        let frames = [
            (
                FrameKind::Settings,
                0,
                0,
                settings([(ENABLE_PUSH, 0), (INITIAL_WINDOW_SIZE, 1 << 20)]),
            ),
            (FrameKind::Data, END_STREAM, 0x7fff_ffff, vec![7; 300]),
            (FrameKind::Settings, ACK, 0, vec![]),
            (FrameKind::GoAway, 0, 0, vec![1; 8]),
        ];
        let mut bytes = vec![];
        for (kind, flags, stream, payload) in &frames {
            write(&mut bytes, *kind, *flags, *stream, payload);
        }
        let mut rest = &*bytes;
        for (kind, flags, stream, payload) in &frames {
            for cut in 0..HEAD + payload.len() {
                assert_eq!(first(&rest[..cut]), Ok(None), "{kind:?} cut at {cut}");
            }
            let (frame, behind) = first(rest).unwrap().unwrap();
            let whole = Frame { kind: *kind, flags: *flags, stream: *stream, payload };
            assert_eq!(frame, whole);
            rest = behind;
        }
        assert_eq!(rest, b"");
    }

    #[test]
    fn written_settings_can_be_read() {
        let payload = settings([(HEADER_TABLE_SIZE, 4096), (INITIAL_WINDOW_SIZE, 0x0102_0304)]);
        assert_eq!(payload, b"\0\x01\0\0\x10\0\0\x04\x01\x02\x03\x04");
        let frame = Frame { kind: FrameKind::Settings, flags: 0, stream: 0, payload: &payload };
        assert!(frame.settings().eq([(1, 4096), (4, 0x0102_0304)]));
    }

    #[test]
    fn padding_and_priority_are_removed_from_a_payload() {
        for (kind, flags, payload, content) in [
            (FrameKind::Data, 0, "hello", Some("hello")),
            (FrameKind::Data, PADDED, "\x02hello..", Some("hello")),
            (FrameKind::Data, PADDED, "\x09hello..", None),
            (FrameKind::Data, PADDED, "", None),
            // `DATA` has no priority, so the flag is ignored.
            (FrameKind::Data, PRIORITY, "hello", Some("hello")),
            (FrameKind::Headers, PRIORITY, "12345hello", Some("hello")),
            (FrameKind::Headers, PADDED | PRIORITY, "\x0112345hello.", Some("hello")),
            (FrameKind::Headers, PRIORITY, "1234", None),
        ] {
            let frame = Frame { kind, flags, stream: 1, payload: payload.as_bytes() };
            assert_eq!(frame.content(), content.map(str::as_bytes), "{payload:?}");
        }
    }

    #[test]
    fn a_server_with_another_protocol_is_reported() {
        let error = first(b"HTTP/1.1 400 Bad Request").unwrap_err();
        assert!(error.ends_with("this is not HTTP/2: \"HTTP/1.1 \""), "{error}");
    }
}
