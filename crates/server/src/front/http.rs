//! HTTP and JSON: the API for web servers, proxies and scripts.
//!
//! ```text
//!   POST /v1/check   decide a request, and count it if it passes    GET /v1/auth        the same, for proxies (forward auth)
//!   POST /v1/peek    decide a request without counting it           GET /v1/auth/nginx  the same, for nginx
//!   POST /v1/report  report an outcome or true cost, renew a permit  GET /live /ready    for load balancers and monitoring
//!   POST /v1/take    decide under a limit that the caller defines   GET /openapi.json   describes this API, for programs
//!   POST /json       Envoy's descriptors                            GET /healthcheck    as in Envoy's reference service
//! ```
//!
//! The body holds everything about the request to decide; the address of the caller plays no part. Only forward auth, whose
//! format the proxies define, reads headers.

mod batch;
mod forward_auth;
mod handler;
mod json_list;
mod reference;
mod report;
mod routes;
mod wire;

pub(crate) use handler::HttpHandler;
#[cfg(test)]
pub(crate) use wire::VerdictBody;
pub(crate) use wire::{VerdictText, read_json};
