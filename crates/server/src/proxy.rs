//! The reverse proxy: it holds the requests of clients itself, asks the limiter, and forwards what may pass.
//!
//! ```text
//!   client ──► HTTP/1, HTTP/2 ──► route ──► limiter ──► wait for a turn ──► upstream server ──► client
//!                                  │ 404      │ 429       │ 429                │ 502, 503, 504
//! ```

mod access_log;
mod auth_request;
mod body_pump;
mod departure;
mod exchange;
pub mod fuzzing;
mod gate;
mod headers;
mod http1;
mod http1_answer;
mod http2;
mod identity;
mod interim;
mod live_routes;
mod observe;
mod piece_room;
mod preflight;
mod pressure;
mod request_body;
mod request_head;
mod routes;
mod seating;
mod tunnel;
mod upstream;

pub(crate) use access_log::AccessLogWriter;
pub(crate) use gate::{Proxy, ProxyOptions, ProxyParts};
pub(crate) use headers::RequestIds;
pub(crate) use identity::{LiveKeys, TokenSettings, TokenVerifier};
pub(crate) use live_routes::LiveRoutes;
pub(crate) use observe::watch_groups;
pub(crate) use pressure::report_pressure;
pub(crate) use routes::Routes;
pub(crate) use upstream::{GroupReading, ServerReading, check_upstreams};

use crate::backend::Backend;
use crate::net::{AcceptedConnection, Drain, ListenerContext};
use crate::web::{Connection, FirstBytes};
use gate::ProxyClient;
use http1::StreamedAnswers;
use std::io;
use std::rc::Rc;

/// Serves a connection of a client to its end.
pub(crate) async fn serve<S: Backend>(
    AcceptedConnection { stream, peer, account, .. }: AcceptedConnection<'_>,
    proxy: &Rc<Proxy<S>>,
    listener: &Rc<ListenerContext>,
    drain: &Drain,
) -> io::Result<()> {
    proxy.sweep();
    // Behind a trusted proxy, clients that do not read must not use up the share of all others behind it.
    let account =
        if proxy.parts.desk.limiter.trusts(peer) { account.of_its_own() } else { account };
    let client = Rc::new(ProxyClient { peer, account, drain: drain.clone() });
    let mut connection = Connection::new(stream, &client.account, listener, drain);
    match connection.first().await? {
        FirstBytes::One => connection.serve(&StreamedAnswers { client, proxy }).await,
        FirstBytes::Two => http2::serve(connection.into_parts(), client, proxy, listener).await,
        FirstBytes::Nothing => Ok(()),
    }
}
