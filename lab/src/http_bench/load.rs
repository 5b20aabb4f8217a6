//! The client side of one connection: a request, its answer, the next request.

use super::wire::{Answer, answer};
use crate::rig::drive::LoadClient;
use crate::rig::template::{Keys, Template};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Sends a check for one key after another. An answer other than 2xx and 429 is an error.
pub(crate) struct HttpClient {
    request: Template,
    keys: Keys,
    answers: AnswerReader,
}

impl HttpClient {
    pub(crate) fn new(request: Template, keys: Keys) -> Self {
        Self { request, keys, answers: AnswerReader::default() }
    }
}

impl LoadClient for HttpClient {
    fn request(&mut self) -> &[u8] {
        self.request.of(|| self.keys.draw())
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<Option<(u64, u64)>, String> {
        self.answers.receive(bytes)?.map(counted).transpose()
    }
}

/// Reads the answers of one connection, which may arrive in pieces.
#[derive(Default)]
pub(crate) struct AnswerReader {
    /// The part of an incomplete answer that has arrived.
    begun: Vec<u8>,
}

impl AnswerReader {
    /// Reads bytes that have arrived. Returns the status of the answer when it is complete.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> Result<Option<u16>, String> {
        let whole = if self.begun.is_empty() {
            answer(bytes)?
        } else {
            self.begun.extend_from_slice(bytes);
            answer(&self.begun)?
        };
        match whole {
            Some(answer) => {
                self.begun.clear();
                Ok(Some(answer.status))
            }
            None if self.begun.is_empty() => {
                self.begun.extend_from_slice(bytes);
                Ok(None)
            }
            None if self.begun.len() > LONGEST_ANSWER => {
                Err(format!("an answer of more than {} bytes", self.begun.len()))
            }
            None => Ok(None),
        }
    }
}

/// How many requests an answer with this status allows and refuses.
fn counted(status: u16) -> Result<(u64, u64), String> {
    match status {
        200..300 => Ok((1, 0)),
        429 => Ok((0, 1)),
        _ => Err(format!("answered {status}")),
    }
}

// === a single request ===

/// More bytes than any answer of the servers here.
const LONGEST_ANSWER: usize = 64 << 10;

/// A keep-alive connection, and a buffer for one answer.
pub(crate) struct HttpConnection {
    stream: TcpStream,
    buffer: Box<[u8]>,
}

impl HttpConnection {
    pub(crate) async fn open(address: SocketAddr) -> Result<Self, String> {
        let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        Ok(Self { stream, buffer: vec![0; LONGEST_ANSWER].into() })
    }

    /// Sends one request and reads its answer.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> Result<Answer, String> {
        self.stream.write_all(request).await.map_err(|error| error.to_string())?;
        let mut filled = 0usize;
        loop {
            let room = self.buffer.get_mut(filled..).filter(|room| !room.is_empty());
            let room = room.ok_or_else(|| format!("an answer of more than {filled} bytes"))?;
            let read = self.stream.read(room).await.map_err(|error| error.to_string())?;
            if read == 0 {
                return Err("the server closed the connection".to_owned());
            }
            filled = filled.saturating_add(read);
            if let Some(answer) = answer(self.buffer.get(..filled).unwrap_or_default())? {
                return Ok(answer);
            }
        }
    }

    /// The body of the last answer.
    pub(crate) fn body(&self, answer: &Answer) -> &[u8] {
        self.buffer.get(answer.body.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http_bench::wire::get;
    use std::num::NonZeroU32;

    #[test]
    fn an_answer_counts_once_also_when_it_arrives_in_pieces() {
        let mut client = HttpClient::new(get("/?"), Keys::new(NonZeroU32::MIN, 0));
        for (status, counts) in [("200 OK", (1, 0)), ("429 Too Many Requests", (0, 1))] {
            let text = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nok");
            for cut in 0..=text.len() {
                let (first, second) = text.as_bytes().split_at(cut);
                let heard: Vec<_> = [first, second]
                    .into_iter()
                    .filter(|piece| !piece.is_empty())
                    .map(|piece| client.receive(piece).unwrap())
                    .collect();
                assert_eq!(heard.iter().flatten().collect::<Vec<_>>(), [&counts], "{cut}");
                assert_eq!(heard.last(), Some(&Some(counts)), "{cut}");
            }
        }
    }

    #[test]
    fn an_answer_other_than_2xx_and_429_is_an_error() {
        let mut client = HttpClient::new(get("/?"), Keys::new(NonZeroU32::MIN, 0));
        let error = client.receive(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(error, Err("answered 500".to_owned()));
        let endless = vec![b'x'; LONGEST_ANSWER];
        assert_eq!(client.receive(&endless), Ok(None));
        assert!(client.receive(b"x").is_err());
    }
}
