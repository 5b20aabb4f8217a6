//! The PROXY protocol: load balancers that announce their clients to the reverse proxy.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests may fail loudly"
)]

use crate::support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::{Arc, Mutex};
use support::Server;
use support::authority::Authority;
use support::http1::Wire;
use support::upstream::listen;

/// Each address may send 2 requests an hour. This machine is a load balancer.
const POLICY: &str = "
version: 1
identity: { trusted: [127.0.0.0/8] }
rules: [{ name: per-address, key: [ip], limits: [2/h] }]
";
const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: t\r\nx-forwarded-for: 198.51.100.9\r\n\r\n";

/// An upstream server that remembers who it was told the client is.
fn upstream() -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let told = Arc::<Mutex<Vec<String>>>::default();
    let remembered = Arc::clone(&told);
    let address = listen(move |mut stream| {
        let (mut text, mut buffer) = (String::new(), [0; 4096]);
        while !text.contains("\r\n\r\n") {
            let Ok(count @ 1..) = stream.read(&mut buffer) else { return };
            text.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
        let field = text.lines().find_map(|line| line.strip_prefix("x-forwarded-for: "));
        remembered.lock().unwrap().push(field.unwrap_or_default().to_owned());
        let _ =
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    });
    (address, told)
}

fn server(policy: &str, upstream: SocketAddr, flags: &[&str]) -> Server {
    let url = format!("http://{upstream}");
    let mut all = vec!["--proxy-listen", "127.0.0.1:0", "--proxy-upstream", &url];
    all.extend(["--proxy-proxy-protocol", "on"]);
    all.extend(flags);
    Server::with_policy(policy, &all)
}

fn line(client: &str) -> Vec<u8> {
    format!("PROXY TCP4 {client} 127.0.0.1 40000 443\r\n").into_bytes()
}

/// A header of version 2 with this command and address.
fn binary(command: u8, client: &str) -> Vec<u8> {
    let client: Ipv4Addr = client.parse().unwrap();
    let mut bytes = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    bytes.extend([0x20 | command, 0x11, 0, 12]);
    bytes.extend(client.octets());
    bytes.extend([127, 0, 0, 1, 1, 2, 3, 4]);
    bytes
}

/// The status of the answer to a request after this header; 0 if the connection was closed.
fn status(server: &Server, header: &[u8]) -> u16 {
    let mut wire = Wire::to(server.proxy);
    wire.send(&[header, GET].concat());
    wire.answer().map_or(0, |reply| reply.status)
}

#[test]
fn the_announced_client_is_limited_and_passed_on() {
    let (address, told) = upstream();
    let server = server(POLICY, address, &[]);
    for (header, expected) in [
        (line("203.0.113.7"), 200),
        (binary(1, "203.0.113.7"), 200),
        (line("203.0.113.7"), 429),
        (line("203.0.113.8"), 200),
        // A load balancer that speaks for itself is the peer. It is trusted, so its client is in the header field.
        (binary(0, "203.0.113.7"), 200),
    ] {
        assert_eq!(status(&server, &header), expected);
    }
    let own = "198.51.100.9, 127.0.0.1";
    assert_eq!(*told.lock().unwrap(), ["203.0.113.7", "203.0.113.7", "203.0.113.8", own]);
}

#[test]
fn a_connection_without_a_valid_header_is_closed() {
    let (address, told) = upstream();
    let server = server(POLICY, address, &[]);
    for header in [&b""[..], b"PROXY TCP4 203.0.113.7\r\n", b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\0"] {
        assert_eq!(status(&server, header), 0);
    }
    server.until_refused("proxy_header", 3);
    server.until_logged("the connection does not begin with a PROXY header");
    assert!(told.lock().unwrap().is_empty());
    server.is_sound();
}

#[test]
fn a_peer_that_is_not_trusted_may_not_announce_clients() {
    let (address, told) = upstream();
    let server = server(&POLICY.replace("127.0.0.0/8", "192.0.2.0/24"), address, &[]);
    assert_eq!(status(&server, &line("203.0.113.7")), 0);
    server.until_refused("proxy_header", 1);
    server.until_logged("the peer is not in `identity.trusted` of the policy");
    assert!(told.lock().unwrap().is_empty());
}

#[test]
fn connections_are_counted_for_the_announced_client() {
    let (address, _) = upstream();
    let flags = ["--proxy-max-connections-per-source", "1"];
    let server = server(&POLICY.replace("2/h", "1000000/h"), address, &flags);
    let open = |client: &str| {
        let mut wire = Wire::to(server.proxy);
        wire.send(&[&line(client), GET].concat());
        (wire.answer().map_or(0, |reply| reply.status), wire)
    };
    let (first, second) = (open("203.0.113.7"), open("203.0.113.8"));
    assert_eq!([first.0, second.0], [200, 200]);
    assert_eq!(open("203.0.113.7").0, 0);
    server.until_refused("full", 1);
    drop(first);
    server.until("there is room again", |_| open("203.0.113.7").0 == 200);
}

/// curl writes the header before the handshake.
#[test]
fn the_header_comes_before_tls() {
    let authority = Authority::new();
    authority.sign("server");
    let (address, told) = upstream();
    let (certificate, key) = (authority.text("server.pem"), authority.text("server.key"));
    let flags = ["--tls-certificate", &certificate, "--tls-key", &key, "--tls-listeners", "proxy"];
    let server = server(POLICY, address, &flags);
    for http in ["--http1.1", "--http2"] {
        let output = Command::new("curl")
            .args(["--silent", "--show-error", "--max-time", "20", http])
            .args(["--haproxy-protocol", "--write-out", "%{http_code}"])
            .args(["--cacert", &authority.text("authority.pem")])
            .arg(format!("https://{}/", server.proxy))
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "200", "{output:?}");
    }
    assert_eq!(*told.lock().unwrap(), ["127.0.0.1", "127.0.0.1"]);
}
