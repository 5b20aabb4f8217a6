//! HTTP and JSON: what web servers, proxies and scripts ask by.
//!
//! ```text
//!   POST /v1/check   may it pass? what may, is counted          GET /v1/auth        the same, for proxies
//!   POST /v1/peek    may it pass? nothing is counted            GET /live /ready    for whoever watches us
//!   POST /v1/report  what became of it                          GET /openapi.json   all of this, for programs
//!   POST /v1/take    under a limit that the caller names        GET /v1/auth/nginx  the same, for nginx
//!   POST /json       Envoy's descriptors                        GET /healthcheck    as in Envoy's reference service
//! ```
//!
//! Everything that is known of a request stands in the body; who is at the other end of the connection is
//! nobody's business. Only forward auth, which is asked in a proxy's words, looks at headers.

mod batch;
mod forward_auth;
mod handler;
mod list;
mod reference;
mod wire;

pub(crate) use handler::HttpHandler;
pub(crate) use wire::{VerdictText, read_json};
