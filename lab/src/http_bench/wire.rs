//! As much of HTTP/1.1 as a generator needs: requests that are rendered once, answers of which three things are read.
//!
//! Of an answer the status and the length of head and body are read. This is *not* a client for the open sea: it knows
//! no chunks, no continuation and no pipelining, and says so when a server sends them.

use crate::rig::template::Template;
use std::ops::Range;

// === requests ===

pub(crate) fn get(target: &str) -> Template {
    Template::new(&format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
}

pub(crate) fn post(path: &str, json: &str) -> Template {
    let length = json.len();
    Template::new(&format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{json}"
    ))
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
    fn a_request_says_how_long_its_body_is() {
        let mut request = post("/v1/check", r#"{"ip":"10.1##.1##.1##"}"#);
        let head = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 23\r\n\r\n";
        let expected = format!("{head}{{\"ip\":\"10.102.103.104\"}}");
        assert_eq!(str::from_utf8(request.of(|| 20_304)).unwrap(), expected);
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
