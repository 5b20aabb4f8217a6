//! The requests and responses: Protocol Buffers messages, of which only a few fields are needed.
//!
//! ```text
//! 0a 05 62 65 6e 63 68    field 1, a string of 5 bytes: "bench"
//! 08 02                   field 1, a number: 2
//! ```

use super::hpack::varint;

/// A message under construction. As in every template of the lab, each `#` in a text is a digit of a key's
/// number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
    /// The positions of the digits, the first digit first.
    pub(crate) digits: Vec<usize>,
}

/// Wire types, in the low three bits of a tag: how long the field is.
const NUMBER: u64 = 0;
const EIGHT_BYTES: u64 = 1;
const BYTES: u64 = 2;
const FOUR_BYTES: u64 = 5;

impl Message {
    pub(crate) fn text(self, field: u8, text: &str) -> Self {
        let marks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'#');
        let digits = marks.map(|(place, _)| place).collect();
        self.message(field, &Self { bytes: text.into(), digits })
    }

    pub(crate) fn number(mut self, field: u8, value: usize) -> Self {
        self.bytes.push(field << 3);
        varint(&mut self.bytes, value);
        self
    }

    pub(crate) fn message(mut self, field: u8, inner: &Self) -> Self {
        self.bytes.push((field << 3) | 2);
        varint(&mut self.bytes, inner.bytes.len());
        let start = self.bytes.len();
        self.digits.extend(inner.digits.iter().map(|place| place.saturating_add(start)));
        self.bytes.extend_from_slice(&inner.bytes);
        self
    }
}

// === requests ===

/// A call: its path and message, and how its response is read.
#[derive(Debug, Clone)]
pub(crate) struct GrpcRequest {
    pub(crate) path: &'static str,
    pub(crate) authority: String,
    pub(crate) message: Message,
    /// Whether a response allows the request; `None` when it is not a response to this call.
    pub(crate) allows: fn(&[u8]) -> Option<bool>,
}

/// The call that Envoy makes, with one descriptor of these entries.
pub(crate) fn should_rate_limit<'e>(
    authority: String,
    domain: &str,
    entries: impl IntoIterator<Item = (&'e str, &'e str)>,
) -> GrpcRequest {
    let entry = |(key, value): (&str, &str)| Message::default().text(1, key).text(2, value);
    let descriptor = entries
        .into_iter()
        .fold(Message::default(), |descriptor, each| descriptor.message(1, &entry(each)));
    GrpcRequest {
        path: "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        authority,
        message: Message::default().text(1, domain).message(2, &descriptor),
        // 1 is OK, 2 is OVER_LIMIT. 0 is UNKNOWN, which no server should answer.
        allows: |answer| match number(answer, 1)? {
            1 => Some(true),
            2 => Some(false),
            _ => None,
        },
    }
}

/// A limit as throttlecrab expresses it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Throttle {
    pub(crate) burst: usize,
    pub(crate) count: usize,
    pub(crate) period: usize,
}

/// The call that `throttlecrab-server` gets.
pub(crate) fn throttle(authority: String, key: &str, limit: Throttle) -> GrpcRequest {
    let message = Message::default().text(1, key).number(2, limit.burst);
    GrpcRequest {
        path: "/throttlecrab.RateLimiter/Throttle",
        authority,
        message: message.number(3, limit.count).number(4, limit.period).number(5, 1),
        // Protocol Buffers omit zeros, so a refusal has no field 1. It counts as a refusal only if the limit
        // is there, which is never zero.
        allows: |answer| match number(answer, 1) {
            Some(1) => Some(true),
            Some(_) => None,
            None => number(answer, 2).map(|_limit| false),
        },
    }
}

// === responses ===

/// The number in a field; `None` if the field is missing or the message is invalid.
fn number(mut message: &[u8], field: u64) -> Option<u64> {
    while !message.is_empty() {
        let tag = read_varint(&mut message)?;
        let skipped = match tag & 7 {
            NUMBER => {
                let value = read_varint(&mut message)?;
                if tag >> 3 == field {
                    return Some(value);
                }
                0
            }
            EIGHT_BYTES => 8,
            BYTES => usize::try_from(read_varint(&mut message)?).ok()?,
            FOUR_BYTES => 4,
            _ => return None,
        };
        message = message.get(skipped..)?;
    }
    None
}

fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The message of a response. gRPC prefixes it with five bytes: whether it is compressed, and its length.
/// `None` while it is incomplete.
pub(crate) fn unwrapped(bytes: &[u8]) -> Option<&[u8]> {
    let ([0, length @ ..], message) = bytes.split_first_chunk::<5>()? else { return None };
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    (message.len() == length).then_some(message)
}

/// A message with the prefix of gRPC.
pub(crate) fn wrapped(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&[0], length.as_slice(), message].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_encoded_as_protocol_buffers() {
        let request = should_rate_limit("x".to_owned(), "bench", [("remote_address", "10.1##")]);
        let message = b"\x0a\x05bench\x12\x1a\x0a\x18\x0a\x0eremote_address\x12\x0610.1##";
        assert_eq!(request.message.bytes, message);
        let marked: Vec<u8> = request.message.digits.iter().map(|place| message[*place]).collect();
        assert_eq!((marked.as_slice(), request.message.digits[1]), (&b"##"[..], message.len() - 1));

        let limit = Throttle { burst: 1_000_000, count: 2, period: 3600 };
        let request = throttle("x".to_owned(), "k#", limit);
        let message = b"\x0a\x02k#\x10\xc0\x84\x3d\x18\x02\x20\x90\x1c\x28\x01";
        assert_eq!(request.message.bytes, message);
        assert_eq!(request.message.digits, [3]);
    }

    /// A length of 35 is the same byte as the mark `#`, but not a digit.
    #[test]
    fn only_marks_in_texts_become_digits() {
        let message = Message::default().text(1, &"x".repeat(35)).text(2, "#");
        assert_eq!(message.bytes[1], b'#');
        assert_eq!(message.digits, [39]);
    }

    #[test]
    fn a_response_is_read_in_the_format_of_its_server() {
        let envoy = should_rate_limit(String::new(), "", []).allows;
        let crab = throttle(String::new(), "", Throttle { burst: 1, count: 1, period: 1 }).allows;
        for (allows, answer, says) in [
            (envoy, b"\x08\x01".as_slice(), Some(true)),
            (envoy, b"\x08\x02", Some(false)),
            (envoy, b"\x12\x03abc\x25....\x19........\x08\x02", Some(false)),
            (envoy, b"\x08\x00", None),
            (envoy, b"\x08\x03", None),
            (envoy, b"", None),
            (envoy, b"\x12\x7fabc", None),
            (envoy, b"\x0a\x01\x01", None),
            (envoy, b"\x0b", None),
            (envoy, b"\x08\xff", None),
            (crab, b"\x08\x01\x10\x64\x18\x63", Some(true)),
            (crab, b"\x10\x64\x20\x07", Some(false)),
            (crab, b"", None),
            (crab, b"\x08\x02", None),
            (crab, b"\x18\x02", None),
        ] {
            assert_eq!(allows(answer), says, "{answer:?}");
        }
    }

    #[test]
    fn a_message_is_unwrapped_when_it_is_complete_and_uncompressed() {
        let bytes = wrapped(b"hello");
        assert_eq!(bytes, b"\0\0\0\0\x05hello");
        assert_eq!(unwrapped(&bytes), Some(&b"hello"[..]));
        for other in [&b""[..], &bytes[..9], b"\x01\0\0\0\x05hello", b"\0\0\0\0\x04hello"] {
            assert_eq!(unwrapped(other), None, "{other:?}");
        }
    }
}
