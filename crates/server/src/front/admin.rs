//! The admin listener: where operators look and change.
//!
//! ```text
//!   GET  /metrics                      GET  /admin/v1/status    /control   /audit   /rules
//!   GET  /admin/v1/policy              PUT  /admin/v1/policy    ?dry_run=true  ?force=true    DELETE
//!   POST /admin/v1/peek   /explain     POST /admin/v1/reset
//!   PUT  /admin/v1/rules  /overrides   /tiers   /signals
//! ```
//!
//! Whoever asks shows a token: a reader's to look, an operator's to change. There are no cookies, so a page in
//! a browser has nothing to borrow; and a page that was made to believe that it lives here names a host that
//! is not ours, and is told so before anything is looked at.

mod auth;
mod handler;
mod wire;

pub(crate) use auth::{Tokens, read_or_make};
pub(crate) use handler::AdminHandler;
pub(crate) use wire::explanation;
