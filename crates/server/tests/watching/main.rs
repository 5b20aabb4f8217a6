//! What operators watch: the metrics listener, the denial log, and that dashboard, alerts, runbook and reference name only
//! metrics that exist.
//!
//! | file | contents |
//! |---|---|
//! | `deployment.rs` | two servers under load that use every part of tidegate |
//! | `page.rs`, `queries.rs` | readers of `/metrics`, and of the queries of the dashboard and the alerts |
//! | `files.rs` | `deploy/` and `docs/` against the metrics of these servers |
//! | `listener.rs` | the metrics listener |
//! | `denials.rs` | the denial log |
//! | `top.rs` | top keys, recent refusals, `tidegate top` |
//!
//! `make test-watching` sends the same queries to Prometheus.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests may fail loudly"
)]

mod denials;
mod deployment;
mod files;
mod listener;
mod page;
mod queries;
mod top;
