//! The PROXY protocol: a load balancer that passes on TCP connections writes the address of the client before the first byte of
//! the client.
//!
//! ```text
//!   version 1   PROXY TCP4 203.0.113.7 192.0.2.1 56324 443\r\n                           and then TLS or HTTP
//!   version 2   \r\n\r\n\0\r\nQUIT\n · version, command · family · length · addresses      and then TLS or HTTP
//! ```
//!
//! The header is believed without any proof, so it is accepted only from peers that the policy trusts. A listener that expects
//! it requires it on every connection: whether a header is missing cannot be told from what the client sends next.
//!
//! Exactly the header is consumed. The bytes are peeked at first: if they are a part of a header, all of them belong to it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// What a header says about the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProxiedClient {
    Address(IpAddr),
    /// The load balancer speaks for itself (a health check), or the client has no IP address.
    Unknown,
}

/// Why a connection is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProxyHeaderError {
    #[error("the peer is not in `identity.trusted` of the policy")]
    Untrusted,
    #[error("the connection does not begin with a PROXY header")]
    Missing,
    #[error("the PROXY header is not valid: {0}")]
    Invalid(&'static str),
    #[error("the PROXY header did not arrive in time")]
    Late,
    #[error("the connection ended before its PROXY header")]
    Ended(#[from] io::Error),
}

/// The beginning of bytes that may be a header.
#[derive(Debug, PartialEq, Eq)]
enum ParsedHeader {
    Whole {
        length: usize,
        client: ProxiedClient,
    },
    /// All bytes belong to a header, which is not complete.
    Part,
}

/// The first bytes of version 2.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// The longest header of version 1, with its line end.
const LONGEST_LINE: usize = 107;
/// The fixed part of version 2.
const FIXED: usize = 16;
/// The longest header of version 2. The addresses have up to 216 bytes; what follows them is skipped. Load balancers add some
/// hundred bytes there, such as names of certificates.
const LONGEST: usize = 2048;

/// Reads the header of a new connection.
pub(super) async fn read(
    stream: &mut TcpStream,
    within: Duration,
) -> Result<ProxiedClient, ProxyHeaderError> {
    timeout(within, read_header(stream)).await.map_err(|_late| ProxyHeaderError::Late)?
}

async fn read_header(stream: &mut TcpStream) -> Result<ProxiedClient, ProxyHeaderError> {
    let mut header = Vec::new();
    loop {
        let known = header.len();
        header.resize(LONGEST, 0);
        let free = header.get_mut(known..).unwrap_or_default();
        let peeked = stream.peek(free).await?;
        let seen = known.saturating_add(peeked);
        let parsed = parse(header.get(..seen).unwrap_or_default())?;
        let (end, client) = match parsed {
            ParsedHeader::Whole { length, client } => (length, Some(client)),
            ParsedHeader::Part if peeked == 0 => {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            ParsedHeader::Part => (seen, None),
        };
        stream.read_exact(header.get_mut(known..end).unwrap_or_default()).await?;
        if let Some(client) = client {
            return Ok(client);
        }
        header.truncate(end);
    }
}

fn parse(bytes: &[u8]) -> Result<ParsedHeader, ProxyHeaderError> {
    let begins = |start: &[u8]| {
        let seen = start.len().min(bytes.len());
        start.get(..seen) == bytes.get(..seen)
    };
    if begins(SIGNATURE) {
        parse_binary(bytes)
    } else if begins(b"PROXY ") {
        parse_line(bytes)
    } else {
        Err(ProxyHeaderError::Missing)
    }
}

// === version 1 ===

fn parse_line(bytes: &[u8]) -> Result<ParsedHeader, ProxyHeaderError> {
    const LONG: ProxyHeaderError = ProxyHeaderError::Invalid("it has more than 107 bytes");
    let Some(end) = bytes.iter().take(LONGEST_LINE).position(|byte| *byte == b'\n') else {
        return if bytes.len() < LONGEST_LINE { Ok(ParsedHeader::Part) } else { Err(LONG) };
    };
    let line = bytes.get(..end).unwrap_or_default();
    let line = line.strip_suffix(b"\r").and_then(|line| str::from_utf8(line).ok());
    let client = line
        .and_then(client_of_line)
        .ok_or(ProxyHeaderError::Invalid("write `PROXY TCP4 CLIENT SERVER PORT PORT`"))?;
    Ok(ParsedHeader::Whole { length: end.saturating_add(1), client })
}

fn client_of_line(line: &str) -> Option<ProxiedClient> {
    let words: Vec<&str> = line.split(' ').collect();
    match *words.as_slice() {
        // What follows is for people, and has no meaning.
        ["PROXY", "UNKNOWN", ..] => Some(ProxiedClient::Unknown),
        ["PROXY", family, client, server, from, to] => {
            let address = |text: &str| match family {
                "TCP4" => text.parse::<Ipv4Addr>().ok().map(IpAddr::from),
                "TCP6" => text.parse::<Ipv6Addr>().ok().map(IpAddr::from),
                _ => None,
            };
            let (client, _) = address(client).zip(address(server))?;
            let is_valid = is_port(from) && is_port(to);
            is_valid.then(|| ProxiedClient::Address(client.to_canonical()))
        }
        _ => None,
    }
}

/// `u16` alone would also accept `+80` and `0080`.
fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok_and(|port| port.to_string() == text)
}

// === version 2 ===

fn parse_binary(bytes: &[u8]) -> Result<ParsedHeader, ProxyHeaderError> {
    let Some(&[version, family, high, low]) =
        bytes.get(SIGNATURE.len()..FIXED).and_then(|fixed| fixed.first_chunk())
    else {
        return Ok(ParsedHeader::Part);
    };
    let length = FIXED.saturating_add(usize::from(u16::from_be_bytes([high, low])));
    if length > LONGEST {
        return Err(ProxyHeaderError::Invalid("it has more than 2048 bytes"));
    }
    let is_local = match version {
        0x20 => true,
        0x21 => false,
        _ => return Err(ProxyHeaderError::Invalid("its version or its command is unknown")),
    };
    let Some(addresses) = bytes.get(FIXED..length) else { return Ok(ParsedHeader::Part) };
    let client = if is_local { ProxiedClient::Unknown } else { client_of(family, addresses)? };
    Ok(ParsedHeader::Whole { length, client })
}

fn client_of(family: u8, addresses: &[u8]) -> Result<ProxiedClient, ProxyHeaderError> {
    const SHORT: ProxyHeaderError = ProxyHeaderError::Invalid("its addresses are incomplete");
    // The address of the client, then that of the server, then their ports.
    let client: IpAddr = match family {
        // Unspecified, and Unix sockets.
        0x00 | 0x31 => return Ok(ProxiedClient::Unknown),
        0x11 => {
            let both = addresses.first_chunk::<12>().ok_or(SHORT)?;
            Ipv4Addr::from(*both.first_chunk::<4>().ok_or(SHORT)?).into()
        }
        0x21 => {
            let both = addresses.first_chunk::<36>().ok_or(SHORT)?;
            Ipv6Addr::from(*both.first_chunk::<16>().ok_or(SHORT)?).into()
        }
        _ => return Err(ProxyHeaderError::Invalid("its connection is not TCP")),
    };
    Ok(ProxiedClient::Address(client.to_canonical()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Option<ProxiedClient> {
        Some(ProxiedClient::Address(text.parse().unwrap()))
    }

    /// A header of version 2.
    fn binary(version: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
        let length = u16::try_from(addresses.len()).unwrap().to_be_bytes();
        [SIGNATURE, &[version, family], &length, addresses].concat()
    }

    const V4: [u8; 12] = [203, 0, 113, 7, 192, 0, 2, 1, 0xdc, 4, 1, 0xbb];

    fn v6() -> Vec<u8> {
        let client: Ipv6Addr = "2001:db8::7".parse().unwrap();
        let server: Ipv6Addr = "2001:db8::1".parse().unwrap();
        [&client.octets()[..], &server.octets(), &[1, 2, 3, 4]].concat()
    }

    #[test]
    fn headers_of_both_versions_are_read() {
        let unknown = Some(ProxiedClient::Unknown);
        let mapped = "PROXY TCP6 ::ffff:203.0.113.7 ::1 1 2\r\n";
        for (header, expected) in [
            (b"PROXY TCP4 203.0.113.7 192.0.2.1 56324 443\r\n".to_vec(), address("203.0.113.7")),
            (b"PROXY TCP6 2001:db8::7 2001:db8::1 0 65535\r\n".to_vec(), address("2001:db8::7")),
            (mapped.into(), address("203.0.113.7")),
            (b"PROXY UNKNOWN\r\n".to_vec(), unknown),
            (b"PROXY UNKNOWN ffff:f...f:ffff any thing\r\n".to_vec(), unknown),
            (binary(0x21, 0x11, &V4), address("203.0.113.7")),
            (binary(0x21, 0x11, &[&V4[..], &[3, 0, 1, 7]].concat()), address("203.0.113.7")),
            (binary(0x21, 0x21, &v6()), address("2001:db8::7")),
            (binary(0x20, 0x11, &V4), unknown),
            (binary(0x20, 0x00, &[]), unknown),
            (binary(0x20, 0xff, &[9; 70]), unknown),
            (binary(0x21, 0x00, &[]), unknown),
            (binary(0x21, 0x31, &[0; 216]), unknown),
            (binary(0x21, 0x11, &[&V4[..], &[0; 2020]].concat()), address("203.0.113.7")),
        ] {
            let shown = String::from_utf8_lossy(&header).into_owned();
            let (length, client) = (header.len(), expected.unwrap());
            let whole = ParsedHeader::Whole { length, client };
            assert_eq!(parse(&header).unwrap(), whole, "{shown}");
            // What the client sends belongs to the client.
            assert_eq!(parse(&[&header[..], b"GET /"].concat()).unwrap(), whole, "{shown}");
            for end in 0..length {
                assert_eq!(parse(&header[..end]).unwrap(), ParsedHeader::Part, "{end} of {shown}");
            }
        }
    }

    #[test]
    fn other_bytes_are_refused_as_early_as_possible() {
        let long = format!("PROXY UNKNOWN {}", "x".repeat(93));
        for header in [
            b"GET / HTTP/1.1\r\n".to_vec(),
            b"\x16\x03\x01\x02\x00".to_vec(),
            b"\r\n\r\nGET".to_vec(),
            b"proxy TCP4 ".to_vec(),
            b"PROXY\tTCP4".to_vec(),
            b"PROXY \r\n".to_vec(),
            b"PROXY TCP4\r\n".to_vec(),
            b"PROXY TCP4 203.0.113.7 192.0.2.1 1\r\n".to_vec(),
            b"PROXY TCP4 203.0.113.7 192.0.2.1 1 2 3\r\n".to_vec(),
            b"PROXY TCP4  203.0.113.7 192.0.2.1 1 2\r\n".to_vec(),
            b"PROXY TCP4 203.0.113.7 192.0.2.1 1 2 \r\n".to_vec(),
            b"PROXY TCP4 203.0.113.7 192.0.2.1 1 2\n".to_vec(),
            b"PROXY TCP4 203.0.113.07 192.0.2.1 1 2\r\n".to_vec(),
            b"PROXY TCP4 203.0.113.256 192.0.2.1 1 2\r\n".to_vec(),
            b"PROXY TCP4 2001:db8::7 2001:db8::1 1 2\r\n".to_vec(),
            b"PROXY TCP6 203.0.113.7 192.0.2.1 1 2\r\n".to_vec(),
            b"PROXY TCP4 203.0.113.7 192.0.2.1 +1 2\r\n".to_vec(),
            b"PROXY TCP4 203.0.113.7 192.0.2.1 01 2\r\n".to_vec(),
            b"PROXY TCP4 203.0.113.7 192.0.2.1 1 65536\r\n".to_vec(),
            b"PROXY UDP4 203.0.113.7 192.0.2.1 1 2\r\n".to_vec(),
            b"PROXY \xff\r\n".to_vec(),
            long.clone().into(),
            format!("{long}\r\n").into(),
            binary(0x11, 0x11, &V4),
            binary(0x31, 0x11, &V4),
            binary(0x22, 0x11, &V4),
            binary(0x21, 0x12, &V4),
            binary(0x21, 0x22, &v6()),
            binary(0x21, 0x41, &V4),
            binary(0x21, 0x11, &V4[..11]),
            binary(0x21, 0x21, &v6()[..35]),
            // The length is enough: nothing of what follows is waited for.
            [SIGNATURE, &[0x21, 0x11, 0xff, 0xff]].concat(),
            [SIGNATURE, &[0x20, 0x00, 0x07, 0xf1]].concat(),
        ] {
            let shown = String::from_utf8_lossy(&header).into_owned();
            assert!(parse(&header).is_err(), "{shown}");
        }
    }

    /// A header may arrive byte by byte, or together with what the client sends.
    #[tokio::test]
    async fn exactly_the_header_is_consumed() {
        use tokio::io::AsyncWriteExt;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let line = b"PROXY TCP4 203.0.113.7 192.0.2.1 1 2\r\n".to_vec();
        for header in [line, b"PROXY UNKNOWN\r\n".to_vec(), binary(0x21, 0x11, &V4)] {
            for piece in [1, 7, 1000] {
                let bytes = [&header[..], b"hello"].concat();
                let sent = async {
                    let mut client = TcpStream::connect(to).await.unwrap();
                    client.set_nodelay(true).unwrap();
                    for piece in bytes.chunks(piece) {
                        client.write_all(piece).await.unwrap();
                        tokio::task::yield_now().await;
                    }
                };
                let received = async {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    read(&mut stream, Duration::from_secs(600)).await.unwrap();
                    let mut rest = String::new();
                    stream.read_to_string(&mut rest).await.unwrap();
                    assert_eq!(rest, "hello");
                };
                tokio::join!(sent, received);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_header_that_ends_or_does_not_come_is_an_error() {
        use tokio::io::AsyncWriteExt;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        client.write_all(b"PROXY TCP4 203").await.unwrap();
        let late = read(&mut stream, Duration::from_secs(5)).await;
        assert!(matches!(late, Err(ProxyHeaderError::Late)), "{late:?}");
        drop(client);
        let ended = read(&mut stream, Duration::from_secs(600)).await;
        assert!(ended.is_err(), "{ended:?}");
    }
}
