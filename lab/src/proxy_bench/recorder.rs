//! An upstream server that remembers when the first byte of each request arrived, and which number is in its path
//! (`GET /n/00000042`).
//!
//! Each connection has a thread that blocks in `read`, because a thread that waits for one socket notices a byte sooner than an
//! event loop that is busy with another one.

#![expect(clippy::disallowed_methods, reason = "the instants are what is measured")]

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

/// The arrival of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// When its first byte was read.
    pub(crate) at: Instant,
    pub(crate) number: u32,
}

/// A running recorder. It serves until the program ends.
pub(crate) struct Recorder {
    pub(crate) address: SocketAddr,
    arrivals: Arc<Mutex<Vec<Arrival>>>,
}

/// The most bytes of a request.
const LONGEST_HEAD: usize = 16 << 10;

impl Recorder {
    pub(crate) fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let arrivals = Arc::<Mutex<Vec<Arrival>>>::default();
        let recorder = Self { address, arrivals: Arc::clone(&arrivals) };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let arrivals = Arc::clone(&arrivals);
                // A proxy that closes the connection ends the thread.
                thread::spawn(move || record(stream, &arrivals).ok());
            }
        });
        Ok(recorder)
    }

    /// The requests with a number that have arrived, in order of their arrival.
    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Two threads may have noted their arrivals in another order than they read the clock.
        arrivals.sort_by_key(|arrival| arrival.at);
        arrivals
    }
}

fn record(mut stream: TcpStream, arrivals: &Mutex<Vec<Arrival>>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; LONGEST_HEAD];
    loop {
        let mut filled = stream.read(&mut buffer)?;
        let at = Instant::now();
        if filled == 0 {
            return Ok(());
        }
        while !buffer.get(..filled).unwrap_or_default().ends_with(b"\r\n\r\n") {
            let more = stream.read(buffer.get_mut(filled..).unwrap_or_default())?;
            if more == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            filled = filled.saturating_add(more);
        }
        if let Some(number) = number(&buffer) {
            arrivals.lock().unwrap_or_else(PoisonError::into_inner).push(Arrival { at, number });
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
    }
}

/// The number in the path; `None` for other paths.
fn number(head: &[u8]) -> Option<u32> {
    let path = head.strip_prefix(b"GET /n/")?;
    let digits = path.split(|byte| *byte == b' ').next()?;
    str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_with_a_number_is_recorded_once() {
        let recorder = Recorder::start().unwrap();
        let mut stream = TcpStream::connect(recorder.address).unwrap();
        for path in ["/n/00000007", "/live", "/n/00000009"] {
            write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n").unwrap();
            stream.write_all(b"\r\n").unwrap();
            stream.read_exact(&mut [0; 40]).unwrap();
        }
        let numbers: Vec<u32> = recorder.arrivals().iter().map(|arrival| arrival.number).collect();
        assert_eq!(numbers, [7, 9]);
    }
}
