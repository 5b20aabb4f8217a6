//! An upstream server for large bodies: `GET /1000` gets 1,000 zeros, and the body of a `POST` is read and forgotten.
//!
//! Each connection has a thread, because a few connections carry all bytes.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

/// The direction of a body.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Transfer {
    Download,
    Upload,
}

impl Transfer {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Download => "download",
            Self::Upload => "upload",
        }
    }
}

/// The most bytes of one read or write.
const CHUNK: usize = 256 << 10;
/// The most bytes of a head.
const LONGEST_HEAD: usize = 16 << 10;

/// Serves on a free port until the program ends.
pub(crate) fn serve_bodies() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A proxy that closes the connection ends the thread.
            thread::spawn(move || serve(stream).ok());
        }
    });
    Ok(address)
}

fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    while let Some((head, behind)) = read_head(&mut stream)? {
        if head.starts_with("post ") {
            let length = number_after(&head, "content-length: ");
            let length = length.ok_or_else(|| io::Error::other("a body without a length"))?;
            skip(&mut stream, length.saturating_sub(behind))?;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
        } else {
            // Other requests are those that ask whether the server is there.
            let bytes = number_after(&head, "get /").unwrap_or(2);
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n")?;
            send_zeros(&mut stream, bytes)?;
        }
    }
    Ok(())
}

// === what the client uses too ===

/// Reads a head, in lower case, and how many bytes behind it were read with it; `None` if the connection ended before.
pub(crate) fn read_head(stream: &mut TcpStream) -> io::Result<Option<(String, u64)>> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    while bytes.len() < LONGEST_HEAD {
        let read = stream.read(&mut buffer)?;
        bytes.extend_from_slice(buffer.get(..read).unwrap_or_default());
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(end) = end.map(|end| end.saturating_add(4)) {
            let head = String::from_utf8_lossy(bytes.get(..end).unwrap_or_default());
            let behind = u64::try_from(bytes.len().saturating_sub(end)).unwrap_or(u64::MAX);
            return Ok(Some((head.to_ascii_lowercase(), behind)));
        }
        if read == 0 {
            return Ok(None);
        }
    }
    Err(io::Error::other(format!("a head of more than {LONGEST_HEAD} bytes")))
}

/// The number that follows a word in a head.
pub(crate) fn number_after(head: &str, word: &str) -> Option<u64> {
    let (_, rest) = head.split_once(word)?;
    rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

/// Sends zeros.
pub(crate) fn send_zeros(stream: &mut TcpStream, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; CHUNK];
    let mut left = bytes;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        let sent = stream.write(zeros.get(..most).unwrap_or_default())?;
        left = left.saturating_sub(u64::try_from(sent).unwrap_or(left));
    }
    Ok(())
}

/// Reads bytes and forgets them.
pub(crate) fn skip(stream: &mut TcpStream, bytes: u64) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut left = bytes;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        let read = stream.read(buffer.get_mut(..most).unwrap_or_default())?;
        if read == 0 {
            return Err(io::Error::other(format!("the body ended {left} bytes too early")));
        }
        left = left.saturating_sub(u64::try_from(read).unwrap_or(left));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_pass_in_both_directions_on_one_connection() {
        let mut stream = TcpStream::connect(serve_bodies().unwrap()).unwrap();
        for bytes in [1, 700_000] {
            write!(stream, "GET /{bytes} HTTP/1.1\r\n\r\n").unwrap();
            let (head, behind) = read_head(&mut stream).unwrap().unwrap();
            assert_eq!(number_after(&head, "content-length: "), Some(bytes));
            skip(&mut stream, bytes - behind).unwrap();
            write!(stream, "POST / HTTP/1.1\r\nContent-Length: {bytes}\r\n\r\n").unwrap();
            send_zeros(&mut stream, bytes).unwrap();
            let (head, behind) = read_head(&mut stream).unwrap().unwrap();
            assert!(head.starts_with("http/1.1 200 "), "{head}");
            skip(&mut stream, 2 - behind).unwrap();
        }
    }
}
