//! Addresses at which no other process listens, or can come to listen before our server does.
//!
//! A port that was free a moment ago may be taken when the server starts: every connection that goes out takes one. Those come
//! from 127.0.0.1, so an address of loopback of this process's own is safe from them.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// The address of this process.
pub(crate) fn own_ip() -> Ipv4Addr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, a | 128, b, c)
}

/// A port of that address which is used once.
pub(crate) fn own_port() -> u16 {
    static PORT: AtomicU16 = AtomicU16::new(20_000);
    let mut ports = std::iter::repeat_with(|| PORT.fetch_add(1, Ordering::Relaxed));
    ports.find(|port| TcpListener::bind((own_ip(), *port)).is_ok()).unwrap()
}
