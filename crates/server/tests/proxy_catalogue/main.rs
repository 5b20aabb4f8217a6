//! Misbehaving clients and misbehaving upstream servers, with the reverse proxy between them.
//!
//! | file | contents |
//! |---|---|
//! | `strict.rs` | a strict reader of requests, which judges what an upstream server got |
//! | `recorder.rs` | an upstream server that keeps every byte, and judges it with that reader |
//! | `case.rs` | a case: the bytes of a client, and what must come of them on both sides |
//! | `requests.rs` | the cases; `make test-proxies` sends them through nginx and `HAProxy` too |
//! | `http1.rs` | sends them, whole and cut in pieces |
//! | `connection.rs` | `Connection`, upgrades, `Expect`, answers before the end of a body |
//! | `script.rs` | an upstream server that answers as a case says |
//! | `answers.rs` | answers that are not valid, or end too early |
//! | `http2.rs` | requests that HTTP/2 can express and HTTP/1 cannot |
//! | `paths.rs` | one path in many spellings |
//! | `methods.rs` | `HEAD`, method overrides, and what looks like gRPC |
//! | `guards.rs` | paths with an auth server, in generated spellings |

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::integer_division,
    reason = "tests may fail loudly"
)]

mod answers;
mod case;
mod connection;
mod guards;
mod http1;
mod http2;
mod methods;
mod paths;
#[path = "../../../policy/tests/readers/mod.rs"]
mod readers;
mod recorder;
mod requests;
mod script;
mod strict;
use crate::support;

use support::Server;

/// Nothing here is refused for its rate.
const OPEN: &str = "{ version: 1, rules: [{ name: all, key: [ip], limits: [1000000/s] }] }";

/// A proxy in front of this server. It has one worker, so that requests share their connections to the server.
fn proxy(policy: &str, url: &str) -> Server {
    let flags = ["--workers", "1", "--proxy-listen", "127.0.0.1:0", "--proxy-upstream", url];
    Server::with_policy(policy, &flags)
}
