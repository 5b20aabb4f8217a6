//! Thousands of connections of which each has at most one request outstanding.

use crate::http_bench::load::AnswerReader;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Connections to one server.
pub(crate) struct Crowd {
    streams: Vec<TcpStream>,
}

/// How a request ended, as its client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ending {
    /// A whole answer, with this status.
    Answer(u16),
    /// The connection ended without an answer.
    Closed,
    /// Nothing came in time.
    Silence,
}

/// How many requests ended in which way.
pub(crate) type Endings = BTreeMap<Ending, usize>;

impl Crowd {
    pub(crate) async fn open(address: SocketAddr, many: usize) -> Result<Self, String> {
        let mut streams = Vec::with_capacity(many);
        for number in 0..many {
            let stream = TcpStream::connect(address).await;
            streams.push(stream.map_err(|error| format!("connection {number}: {error}"))?);
        }
        Ok(Self { streams })
    }

    /// Sends a request on each connection.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> Result<(), String> {
        for stream in &mut self.streams {
            stream.write_all(request).await.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Closes every second connection.
    pub(crate) fn halve(&mut self) {
        let streams = self.streams.drain(..).zip([true, false].into_iter().cycle());
        self.streams = streams.filter_map(|(stream, stays)| stays.then_some(stream)).collect();
    }

    /// Adds the connections of another crowd.
    pub(crate) fn join(&mut self, other: Self) {
        self.streams.extend(other.streams);
    }

    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }

    /// How many connections have received something, or were closed.
    pub(crate) fn heard(&self) -> usize {
        let has_heard = |stream: &&TcpStream| {
            let peeked = rustix::net::recv(stream, &mut [0_u8; 1][..], PEEK);
            peeked.is_ok()
        };
        self.streams.iter().filter(has_heard).count()
    }

    /// Reads one answer on each connection.
    pub(crate) async fn answers(&mut self, patience: Duration) -> Endings {
        let mut reading = JoinSet::new();
        for stream in self.streams.drain(..) {
            reading.spawn(answer(stream, patience));
        }
        let mut endings = Endings::new();
        while let Some(read) = reading.join_next().await {
            let Ok((ending, stream)) = read else { continue };
            let times = endings.entry(ending).or_default();
            *times = times.saturating_add(1);
            self.streams.push(stream);
        }
        endings
    }
}

const PEEK: rustix::net::RecvFlags =
    rustix::net::RecvFlags::PEEK.union(rustix::net::RecvFlags::DONTWAIT);

async fn answer(mut stream: TcpStream, patience: Duration) -> (Ending, TcpStream) {
    let read = timeout(patience, status(&mut stream)).await;
    let ending = match read {
        Ok(Some(status)) => Ending::Answer(status),
        Ok(None) => Ending::Closed,
        Err(_late) => Ending::Silence,
    };
    (ending, stream)
}

/// The status of an answer; `None` if the connection ends without a whole answer.
async fn status(stream: &mut TcpStream) -> Option<u16> {
    let (mut reader, mut buffer) = (AnswerReader::default(), [0; 2048]);
    loop {
        let read = stream.read(&mut buffer).await.ok().filter(|read| *read > 0)?;
        let bytes = buffer.get(..read).unwrap_or_default();
        if let Some(status) = reader.receive(bytes).ok()? {
            return Some(status);
        }
    }
}

/// The endings in one line.
pub(crate) fn summary(endings: &Endings) -> String {
    let each = endings.iter().map(|(ending, times)| match ending {
        Ending::Answer(status) => format!("{times} × {status}"),
        Ending::Closed => format!("{times} × closed without an answer"),
        Ending::Silence => format!("{times} × no answer in time"),
    });
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn an_answer_and_an_end_without_one_are_told_apart() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut crowd = Crowd::open(listener.local_addr().unwrap(), 5).await.unwrap();
        crowd.ask(b"?").await.unwrap();
        crowd.halve();
        assert_eq!(crowd.len(), 3);
        for number in 0..5 {
            let mut stream = listener.accept().await.unwrap().0;
            // The second and the fourth client have left.
            let _ = stream.read(&mut [0; 1]).await;
            if number == 2 {
                let answer = b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n";
                stream.write_all(answer).await.unwrap();
            }
        }
        let endings = crowd.answers(Duration::from_secs(3600)).await;
        assert_eq!(summary(&endings), "1 × 503, 2 × closed without an answer");
        assert_eq!(crowd.len(), 3);
    }
}
