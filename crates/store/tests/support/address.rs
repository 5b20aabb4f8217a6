//! Addresses that no other process uses, or can start to use before the server of the test does.
//!
//! A port that was free a moment ago may be taken when the server starts: every outgoing connection takes one. Outgoing
//! connections come from 127.0.0.1, so each process uses a loopback address of its own.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// The loopback address of this process.
pub(crate) fn own_ip() -> Ipv4Addr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, a | 128, b, c)
}

/// A port of that address; each call returns another one.
pub(crate) fn own_port() -> u16 {
    static PORT: AtomicU16 = AtomicU16::new(20_000);
    let mut ports = std::iter::repeat_with(|| PORT.fetch_add(1, Ordering::Relaxed));
    ports.find(|port| TcpListener::bind((own_ip(), *port)).is_ok()).unwrap()
}

/// A pause between two looks at a server that does not announce what the test waits for.
#[expect(clippy::disallowed_methods, reason = "only another look shows that a cluster has formed")]
pub(crate) async fn look_again() {
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
}
