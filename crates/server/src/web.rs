//! HTTP: requests come in over version 1 or 2, a [`WebHandler`] answers them.
//!
//! ```text
//!   first bytes ──► HTTP/1: one request after another ─┐
//!              └──► HTTP/2: many streams, guarded ─────┴─► begin(head) ──► body ──► answer
//! ```

mod call;
mod guard;
mod http1;
mod http2;

#[cfg(test)]
pub(crate) use call::Headers;
pub(crate) use call::{Answer, Call, JSON, PROBLEM};
pub(crate) use http1::{BodyBound, HeadError};
pub(crate) use http2::{Held, Untaken, Work, read_over, serve_calls};

use crate::metrics::{Metrics, Refused};
use crate::net::{Drain, Opened, Place, Versions};
use crate::supervise::contained;
use ::http::StatusCode;
use http1::{Connection, First};
use std::io;
use std::ops::Deref;
use std::rc::Rc;

/// Answers requests of HTTP, whichever version brought them. A request is shown to it twice: its head, which may be enough
/// to refuse it, and the whole of it.
pub(crate) trait WebHandler: 'static {
    /// What the head of a request was understood as.
    type Route: Copy;

    /// Whether the request shows a valid token, where tokens are shown.
    fn knows(&self, call: &Call<'_>) -> bool;

    /// Accepts a request by its head and says how large its body may be; or answers it, if its head is enough to refuse it.
    fn begin(&self, call: &Call<'_>) -> Result<(Self::Route, BodyBound), Answer>;

    /// Answers the whole request.
    fn answer(&self, route: Self::Route, call: &Call<'_>) -> impl Future<Output = Answer>;

    fn metrics(&self) -> &Metrics;
}

/// Serves a connection to its end.
pub(crate) async fn serve<W: WebHandler>(
    opened: Opened<'_>,
    handler: &(impl Deref<Target = W> + Clone + 'static),
    place: &Rc<Place>,
    drain: &Drain,
) -> io::Result<()> {
    let Opened { stream, peer, slot, account } = opened;
    let whose = (peer, slot, Rc::clone(&account));
    let mut connection = Connection::new(stream, whose, &**handler, place, drain);
    match connection.first().await? {
        First::One => connection.serve().await,
        First::Nothing => Ok(()),
        First::Two if place.versions == Versions::One => {
            place.metrics.refused(Refused::NoHttp);
            Ok(())
        }
        First::Two => {
            let (stream, read) = connection.into_parts();
            http2::serve((stream, read), (peer, &account), handler, place, drain).await
        }
    }
}

/// The answer to the whole request. A panic costs this one answer and nothing else.
pub(crate) async fn answer<W: WebHandler>(handler: &W, route: W::Route, call: &Call<'_>) -> Answer {
    // On the heap: everything that a request may become would otherwise take room in every connection.
    let answer = contained(Box::pin(handler.answer(route, call)).as_mut()).await;
    answer.unwrap_or_else(|_| {
        handler.metrics().panicked();
        tracing::error!("a request met a bug in tidegate and was answered with 500");
        let text = "internal error: a bug in tidegate; it has been logged";
        Answer::problem(StatusCode::INTERNAL_SERVER_ERROR, text)
    })
}
