//! The fronts: protocols by which somebody asks, each in a folder of its own.
//!
//! Fronts that speak HTTP are asked twice about a request: whether they want the body ([`Web::begin`]), and for
//! the answer ([`Accepted::answer`]). Fronts are a closed set, so they are an enum.

pub(crate) mod admin;
pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod resp;
#[cfg(test)]
pub(crate) mod testing;

use crate::backend::Backend;
use crate::call::{Answer, Call};
use crate::metrics::Metrics;
use crate::net::Most;
use ::http::StatusCode;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

/// What whoever serves a request is told of it: that others come first, and words that rules marked it with.
pub(crate) const PRIORITY: &str = "tidegate-priority";
pub(crate) const FLAGS: &str = "tidegate-flags";

/// Who answers on a listener.
pub(crate) enum Front<S> {
    Web(Web<S>),
    Resp(resp::Handler<S>),
    Grpc(grpc::Handler<S>),
}

/// Who answers in HTTP.
pub(crate) enum Web<S> {
    Http(http::Handler<S>),
    Admin(Arc<admin::Handler<S>>),
}

/// A request whose head was accepted: its body may follow.
pub(crate) struct Accepted<'f, S> {
    /// How large its body may be.
    pub(crate) most: Most,
    by: By<'f, S>,
}

/// Who answers it.
enum By<'f, S> {
    Http(&'f http::Handler<S>, http::Route),
    Admin(&'f admin::Handler<S>),
}

impl<S> Front<S> {
    /// Who answers here in HTTP, if anybody does.
    pub(crate) const fn web(&self) -> Option<&Web<S>> {
        match self {
            Self::Web(web) => Some(web),
            Self::Resp(_) | Self::Grpc(_) => None,
        }
    }
}

impl<S: Backend> Web<S> {
    /// Whether a request shows a valid token, where tokens are shown.
    pub(crate) fn knows(&self, call: &Call<'_>) -> bool {
        match self {
            Self::Http(_) => false,
            Self::Admin(handler) => handler.knows(call),
        }
    }

    /// Accepts a request by its head, or answers it when its head is enough to refuse it.
    pub(crate) fn begin(&self, call: &Call<'_>) -> Result<Accepted<'_, S>, Answer> {
        Ok(match self {
            Self::Http(handler) => {
                let (route, most) = handler.begin(call)?;
                Accepted { most, by: By::Http(handler, route) }
            }
            Self::Admin(handler) => Accepted { most: handler.begin(call)?, by: By::Admin(handler) },
        })
    }
}

impl<S: Backend> Accepted<'_, S> {
    /// The answer to the whole request. A panic costs this one answer and nothing else.
    pub(crate) async fn answer(&self, call: &Call<'_>) -> Answer {
        // On the heap: all that a request may become would otherwise take room in every connection.
        let (answer, metrics) = match &self.by {
            By::Http(handler, route) => (
                contained(Box::pin(handler.answer(*route, call)).as_mut()).await,
                handler.metrics(),
            ),
            By::Admin(handler) => {
                (contained(Box::pin(handler.answer(call)).as_mut()).await, handler.metrics())
            }
        };
        answer.unwrap_or_else(|_| broken(metrics))
    }
}

/// A mistake of ours, which stopped one request.
pub(crate) struct Panicked;

/// Runs something that may have a mistake in it. It is large, so it stays where it is.
pub(crate) async fn contained<T>(
    mut future: Pin<&mut impl Future<Output = T>>,
) -> Result<T, Panicked> {
    poll_fn(|context| {
        // What a request shares with others is either atomic or behind a lock that forgives poison.
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(_) => Poll::Ready(Err(Panicked)),
        }
    })
    .await
}

fn broken(metrics: &Metrics) -> Answer {
    metrics.panicked();
    tracing::error!("a request met a mistake of ours and got no answer but 500");
    Answer::problem(StatusCode::INTERNAL_SERVER_ERROR, "a mistake of ours; it has been logged")
}
