//! As much of HTTP/1.1 as a generator needs: requests that are rendered once, answers of which three things are read.
//!
//! A request is a text in which every `#` is a digit of a key's number, so that its length never changes:
//!
//! ```text
//! {"ip":"10.1##.1##.1##"}  for key 20,304  {"ip":"10.102.103.104"}
//! ```
//!
//! Of an answer the status and the length of head and body are read. This is *not* a client for the open sea: it knows
//! no chunks, no continuation and no pipelining, and says so when a server sends them.

use std::num::NonZeroU32;
use std::ops::Range;

// === requests ===

/// A request with a slot for a key.
#[derive(Clone)]
pub(crate) struct Request {
    bytes: Vec<u8>,
    /// Where the digits of the key stand, the last one first.
    digits: Vec<usize>,
}

impl Request {
    pub(crate) fn get(target: &str) -> Self {
        Self::new(&format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    }

    pub(crate) fn post(path: &str, json: &str) -> Self {
        let length = json.len();
        Self::new(&format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{json}"
        ))
    }

    fn new(text: &str) -> Self {
        let slots = text.bytes().enumerate().filter(|(_, byte)| *byte == b'#');
        let mut digits: Vec<usize> = slots.map(|(place, _)| place).collect();
        digits.reverse();
        Self { bytes: text.into(), digits }
    }

    /// The request of one key, in place of the one before.
    pub(crate) fn of(&mut self, key: u32) -> &[u8] {
        let mut rest = key;
        for place in &self.digits {
            if let Some(byte) = self.bytes.get_mut(*place) {
                *byte = u8::try_from(rest % 10).unwrap_or(0) | b'0';
            }
            rest /= 10;
        }
        &self.bytes
    }
}

/// Keys in an order that no cache foresees, each as likely as the others.
pub(crate) struct Keys {
    state: u64,
    many: NonZeroU32,
}

impl Keys {
    /// Different seeds come by different keys.
    pub(crate) fn new(many: NonZeroU32, seed: u32) -> Self {
        let state = u64::from(seed).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self { state, many }
    }

    /// The next key, by Marsaglia's xorshift.
    pub(crate) fn draw(&mut self) -> u32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        u32::try_from(self.state >> 32).unwrap_or(0) % self.many
    }
}

// === answers ===

/// What is read of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Where its body stands among the bytes received.
    pub(crate) body: Range<usize>,
}

/// Reads an answer from what has arrived so far; `None` until all of it has.
pub(crate) fn answer(bytes: &[u8]) -> Result<Option<Answer>, String> {
    let (mut head, mut length) = (0usize, None);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        head = head.saturating_add(line.len());
        match line.strip_suffix(b"\r\n") {
            None => return Ok(None),
            Some([]) => return whole(bytes, head, length),
            Some(field) => length = length.or_else(|| content_length(field)),
        }
    }
    Ok(None)
}

/// The answer whose head is so long and whose body is said to be; `None` while some of it is missing.
fn whole(bytes: &[u8], head: usize, length: Option<usize>) -> Result<Option<Answer>, String> {
    let status = bytes.strip_prefix(b"HTTP/1.1 ").and_then(|rest| number(rest.get(..3)?));
    let status = status.and_then(|status| u16::try_from(status).ok());
    let status = status.ok_or("an answer that does not begin as HTTP/1.1 does")?;
    let length = if status == 204 { Some(0) } else { length };
    let length = length.ok_or_else(|| format!("a {status} without Content-Length"))?;
    let end = head.saturating_add(length);
    if bytes.len() > end {
        return Err(format!("a {status} with more behind it than it says"));
    }
    Ok((bytes.len() == end).then_some(Answer { status, body: head..end }))
}

fn content_length(field: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"content-length:";
    let (name, value) = field.split_at_checked(NAME.len())?;
    if name.eq_ignore_ascii_case(NAME) { number(value) } else { None }
}

fn number(digits: &[u8]) -> Option<usize> {
    str::from_utf8(digits.trim_ascii()).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_is_a_digit_and_the_length_stays() {
        let mut request = Request::post("/v1/check", r#"{"ip":"10.1##.1##.1##"}"#);
        let head = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 23\r\n\r\n";
        for (key, ip) in
            [(0, "10.100.100.100"), (20_304, "10.102.103.104"), (999_999, "10.199.199.199")]
        {
            let expected = format!("{head}{{\"ip\":\"{ip}\"}}");
            assert_eq!(str::from_utf8(request.of(key)).unwrap(), expected);
        }
        // What has no place is left out: the seventh digit.
        let same = request.of(4_020_304).to_owned();
        assert_eq!(request.of(20_304), same);
    }

    #[test]
    fn keys_are_drawn_evenly_and_each_connection_draws_its_own() {
        let mut keys = Keys::new(NonZeroU32::new(10).unwrap(), 0);
        let mut drawn = [0u32; 10];
        for _ in 0..100_000 {
            drawn[usize::try_from(keys.draw()).unwrap()] += 1;
        }
        assert!(drawn.iter().all(|times| (9_500..10_500).contains(times)), "{drawn:?}");
        let many = NonZeroU32::new(1_000_000).unwrap();
        let [first, second] = [0, 1].map(|seed| {
            let mut keys = Keys::new(many, seed);
            [keys.draw(), keys.draw(), keys.draw()]
        });
        assert_ne!(first, second);
    }

    #[test]
    fn an_answer_is_read_when_its_last_byte_is_there_and_not_before() {
        let texts: [(&[u8], u16, &[u8]); 4] = [
            (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nx: y\r\n\r\nhello", 200, b"hello"),
            (
                b"HTTP/1.1 429 Too Many Requests\r\nx: y\r\ncontent-LENGTH:3\r\n\r\nno\n",
                429,
                b"no\n",
            ),
            (b"HTTP/1.1 204 No Content\r\nServer: x\r\n\r\n", 204, b""),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n\r\n\r\n", 200, b"\r\n\r\n"),
        ];
        for (text, status, body) in texts {
            for arrived in 0..text.len() {
                assert_eq!(answer(&text[..arrived]), Ok(None), "{arrived} bytes");
            }
            let whole = answer(text).unwrap().unwrap();
            assert_eq!((whole.status, &text[whole.body]), (status, body));
        }
    }

    #[test]
    fn what_it_does_not_know_it_refuses() {
        for text in [
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
            "HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1",
            "SSH-2.0-OpenSSH\r\n\r\n",
        ] {
            assert!(answer(text.as_bytes()).is_err(), "{text}");
        }
    }
}
