//! As much of HTTP/2 as a generator needs: frames, which is what both sides send.
//!
//! ```text
//! length      type   flags   stream        payload
//! 3 bytes     1      1       4             as many as the length says
//! 00 00 06    01     04      00 00 00 05   83 86 c1 c0 bf be          the head of the third call
//! ```

/// What stands before a payload.
const HEAD: usize = 9;
/// The longest payload that a server may send unless it is told otherwise, which we do not.
const LONGEST: usize = 16 << 10;

/// What a client says before its first frame.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The last frame of its stream; of a `PING` or `SETTINGS`, that it answers one.
pub(crate) const END_STREAM: u8 = 0x1;
pub(crate) const ACK: u8 = 0x1;
pub(crate) const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Settings: the size of the server's table of fields, whether it may push, the window of a stream.
pub(crate) const HEADER_TABLE_SIZE: u16 = 1;
pub(crate) const ENABLE_PUSH: u16 = 2;
pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;

/// What a frame is for.
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
    /// What may be passed over, as the standard wants it of kinds that are not known.
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

    /// The payload of `DATA` or `HEADERS` without what it may be wrapped in; `None` when there is less than it says.
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

    /// The number that a payload begins with.
    pub(crate) fn number(&self) -> u32 {
        self.payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
    }

    /// The settings of a `SETTINGS`.
    pub(crate) fn settings(&self) -> impl Iterator<Item = (u16, u32)> {
        let (settings, _) = self.payload.as_chunks::<6>();
        settings
            .iter()
            .map(|[a, b, value @ ..]| (u16::from_be_bytes([*a, *b]), u32::from_be_bytes(*value)))
    }
}

/// The first frame of what has arrived, and what stands behind it; `None` until it is whole.
pub(crate) fn first(bytes: &[u8]) -> Result<Option<(Frame<'_>, &[u8])>, String> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else { return Ok(None) };
    let [high, middle, low, kind, flags, stream @ ..] = *head;
    let length = u32::from_be_bytes([0, high, middle, low]);
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > LONGEST {
        let text = String::from_utf8_lossy(head);
        return Err(format!("a frame of {length} bytes: no HTTP/2 begins with {text:?}"));
    }
    let Some((payload, rest)) = rest.split_at_checked(length) else { return Ok(None) };
    let stream = u32::from_be_bytes(stream) & 0x7fff_ffff;
    Ok(Some((Frame { kind: FrameKind::of(kind), flags, stream, payload }, rest)))
}

/// Writes a frame, and answers where its stream stands.
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

/// The payload of a `SETTINGS`.
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
    fn a_frame_is_written_as_the_standard_draws_it() {
        let mut bytes = vec![];
        let place = write(&mut bytes, FrameKind::Headers, END_HEADERS, 5, b"\x83\x86");
        assert_eq!(bytes, b"\0\0\x02\x01\x04\0\0\0\x05\x83\x86");
        assert_eq!(place, 5);
    }

    #[test]
    fn a_frame_is_read_when_its_last_byte_is_there_and_not_before() {
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
    fn settings_are_read_as_they_are_written() {
        let payload = settings([(HEADER_TABLE_SIZE, 4096), (INITIAL_WINDOW_SIZE, 0x0102_0304)]);
        assert_eq!(payload, b"\0\x01\0\0\x10\0\0\x04\x01\x02\x03\x04");
        let frame = Frame { kind: FrameKind::Settings, flags: 0, stream: 0, payload: &payload };
        assert!(frame.settings().eq([(1, 4096), (4, 0x0102_0304)]));
    }

    #[test]
    fn content_is_taken_out_of_its_padding_and_priority() {
        for (kind, flags, payload, content) in [
            (FrameKind::Data, 0, "hello", Some("hello")),
            (FrameKind::Data, PADDED, "\x02hello..", Some("hello")),
            (FrameKind::Data, PADDED, "\x09hello..", None),
            (FrameKind::Data, PADDED, "", None),
            // In `DATA` this flag means nothing.
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
    fn a_server_of_another_protocol_is_noticed() {
        let told = first(b"HTTP/1.1 400 Bad Request").unwrap_err();
        assert!(told.ends_with("no HTTP/2 begins with \"HTTP/1.1 \""), "{told}");
    }
}
