//! The admin API, with which operators inspect and change a running server.
//!
//! ```text
//!   GET  /metrics                      GET  /admin/v1/status    /control   /audit   /rules
//!   GET  /admin/v1/policy              PUT  /admin/v1/policy    ?dry_run=true  ?force=true    DELETE
//!   POST /admin/v1/peek   /explain     POST /admin/v1/reset
//!   POST /admin/v1/who                 GET  /admin/v1/whoami
//!   PUT  /admin/v1/rules  /overrides   /tiers   /signals
//!   GET  /admin/v1/top       /denials
//!   GET  /admin/v1/upstreams  /leases  PUT  /admin/v1/upstreams
//!   POST /admin/v1/playground          one trace under the six algorithms
//!   GET  /admin/v1/openapi.json        describes this API, for programs
//!   GET  /dashboard/…                  the dashboard; needs no token
//! ```
//!
//! Every request carries a token: a reader's token to inspect, an operator's token to change, or that of a named user. There are no cookies, so a web
//! page cannot make the browser of an operator send credentials. DNS rebinding, where an attacker's host name is made to
//! resolve to this listener, is prevented by checking the `Host` header: a host name that is not one of the listener's own is
//! refused before anything else is examined.

mod answers;
mod auth;
mod changes;
mod handler;
mod playground;
mod request;
mod routes;
mod top;
mod upstreams;
mod users;
mod views;
mod who;
mod wire;

pub(crate) use answers::ExplanationBody;
pub(crate) use auth::{AdminRole, Tokens, read_or_make};
pub(crate) use handler::AdminHandler;
pub(crate) use users::AdminUsers;
