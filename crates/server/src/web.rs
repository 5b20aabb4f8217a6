//! HTTP: parses requests of versions 1 and 2, and passes them to a [`WebHandler`].
//!
//! ```text
//!   first bytes ──► HTTP/1: one request after another ─┐
//!              └──► HTTP/2: many streams, guarded ─────┴─► begin(head) ──► read the body ──► answer
//! ```

mod call;
mod guard;
mod hosts;
mod http1;
mod http2;

pub(crate) use call::{Answer, Call, Headers, JSON, PROBLEM};
pub(crate) use hosts::{ForeignRequest, Hosts, is_of_page};
pub(crate) use http1::{
    AfterAnswer, BodyBound, BodyDecoder, BodyError, Connection, Decoded, FirstBytes, HeadError,
    Responder, field, head, status_line, write_fields,
};
pub(crate) use http2::{
    BudgetedBody, InFlightRequest, LocalExecutor, UnreadResponse, check_head, read_over, refused,
    response, serve_calls, serve_streams,
};

use crate::metrics::Metrics;
use crate::net::{AcceptedConnection, Drain, ListenerContext};
use crate::supervise::{Panicked, contained};
use ::http::StatusCode;
use http1::WholeAnswers;
use std::io;
use std::ops::Deref;
use std::rc::Rc;

/// Answers HTTP requests of any version. It sees a request twice: first its head, which may be enough to refuse it, then the
/// whole request.
pub(crate) trait WebHandler: 'static {
    /// What the head of a request asks for.
    type Route: Copy;

    /// Whether the request has a valid token, on a listener that uses tokens.
    fn knows(&self, call: &Call<'_>) -> bool;

    /// Accepts a request by its head and returns how large its body may be; or refuses it with an answer.
    fn begin(&self, call: &Call<'_>) -> Result<(Self::Route, BodyBound), Answer>;

    /// Answers the whole request.
    fn answer(&self, route: Self::Route, call: &Call<'_>) -> impl Future<Output = Answer>;

    fn metrics(&self) -> &Metrics;
}

/// Serves a connection to its end.
pub(crate) async fn serve<W: WebHandler>(
    opened: AcceptedConnection<'_>,
    handler: &(impl Deref<Target = W> + Clone + 'static),
    listener: &Rc<ListenerContext>,
    drain: &Drain,
) -> io::Result<()> {
    let AcceptedConnection { stream, peer, slot, account } = opened;
    let mut connection = Connection::new(stream, &account, listener, drain);
    match connection.first().await? {
        FirstBytes::One => {
            connection.serve(&WholeAnswers { peer, slot, handler: &**handler }).await
        }
        FirstBytes::Two => {
            let parts = connection.into_parts();
            http2::serve(parts, (peer, &account), handler, listener, drain).await
        }
        FirstBytes::Nothing => Ok(()),
    }
}

/// The answer to the whole request. If the handler panics, only this request fails.
pub(crate) async fn answer<W: WebHandler>(handler: &W, route: W::Route, call: &Call<'_>) -> Answer {
    // Boxed: the future of the largest handler would otherwise be part of every connection.
    let answer = contained(Box::pin(handler.answer(route, call)).as_mut()).await;
    answer.unwrap_or_else(|Panicked| {
        handler.metrics().panicked();
        tracing::error!("a request met a bug in tidegate and was answered with 500");
        let text = "internal error: a bug in tidegate; it has been logged";
        Answer::problem(StatusCode::INTERNAL_SERVER_ERROR, text)
    })
}
