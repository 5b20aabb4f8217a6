//! As much of HTTP/1.1 as the load generator needs: requests that are rendered once, and answers of which
//! only the status and the lengths are read.
//!
//! This is *not* a general client. It does not support chunked bodies, `100 Continue` or pipelining, and
//! returns an error when a server sends them.

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
    /// The range of its body in the received bytes.
    pub(crate) body: Range<usize>,
}

/// Parses an answer from the bytes that have arrived so far; `None` while some of it is missing.
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

/// The answer with a head and a body of these lengths; `None` while some of it is missing.
fn whole(bytes: &[u8], head: usize, length: Option<usize>) -> Result<Option<Answer>, String> {
    let status = bytes.strip_prefix(b"HTTP/1.1 ").and_then(|rest| number(rest.get(..3)?));
    let status = status.and_then(|status| u16::try_from(status).ok());
    let status = status.ok_or("the answer does not begin with an HTTP/1.1 status line")?;
    let length = if status == 204 { Some(0) } else { length };
    let length = length.ok_or_else(|| format!("the answer {status} has no Content-Length"))?;
    let end = head.saturating_add(length);
    if bytes.len() > end {
        return Err(format!(
            "the answer {status} is followed by more bytes than its Content-Length says"
        ));
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
    fn a_request_has_the_length_of_its_body() {
        let mut request = post("/v1/check", r#"{"ip":"10.1##.1##.1##"}"#);
        let head = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 23\r\n\r\n";
        let expected = format!("{head}{{\"ip\":\"10.102.103.104\"}}");
        assert_eq!(str::from_utf8(request.of(|| 20_304)).unwrap(), expected);
    }

    #[test]
    fn an_answer_is_read_when_its_last_byte_has_arrived_and_not_before() {
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
    fn unsupported_answers_are_errors() {
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
