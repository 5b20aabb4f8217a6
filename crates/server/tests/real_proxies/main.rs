//! The reverse proxy between real clients, real servers and other proxies. `make test-proxies` runs these tests; they are not
//! part of `make test`, because they install more programs and take longer.
//!
//! | file | contents |
//! |---|---|
//! | `peer.rs` | nginx and `HAProxy`, before and behind tidegate |
//! | `differential.rs` | the catalogue of `proxy_catalogue`, with these as upstream server and in front |
//! | `clients.rs` | WebSocket, server-sent events, gRPC, `Expect`, trailers and load, with the clients that people use |

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::integer_division,
    clippy::print_stdout,
    reason = "tests may fail loudly"
)]

#[path = "../proxy_catalogue/case.rs"]
mod case;
mod clients;
mod differential;
mod peer;
#[path = "../proxy_catalogue/recorder.rs"]
mod recorder;
#[path = "../proxy_catalogue/requests.rs"]
mod requests;
#[path = "../proxy_catalogue/strict.rs"]
mod strict;
#[path = "../support/mod.rs"]
mod support;

use support::Server;

/// Nothing here is refused for its rate.
const OPEN: &str = "{ version: 1, rules: [{ name: all, key: [ip], limits: [1000000/s] }] }";

/// A proxy in front of this server.
fn proxy(policy: &str, url: &str) -> Server {
    Server::with_policy(policy, &["--proxy-listen", "127.0.0.1:0", "--proxy-upstream", url])
}
