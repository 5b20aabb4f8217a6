//! The protocols over which clients ask for decisions, and the admin API; each has a folder of its own.
//!
//! The protocols are a closed set, so they are an enum: [`Front`] is the protocol that a listener serves.

pub(crate) mod admin;
pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod resp;
#[cfg(test)]
pub(crate) mod testing;

use crate::backend::Backend;
use crate::health::Health;
use crate::net::{AcceptedConnection, Drain, ListenerContext, Protocol};
use crate::proxy::{self, Proxy};
use crate::web::{self, Answer};
use ::http::StatusCode;
use serde_json::json;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

/// The protocol of a listener, with everything that it needs to answer.
pub(crate) enum Front<S> {
    Http(Rc<http::HttpHandler<S>>),
    Admin(Arc<admin::AdminHandler<S>>),
    Resp(resp::RespHandler<S>),
    Grpc(Rc<grpc::GrpcHandler<S>>),
    Proxy(Rc<Proxy<S>>),
}

impl<S: Backend> Protocol for Front<S> {
    async fn serve(
        self: Rc<Self>,
        opened: AcceptedConnection<'_>,
        place: Rc<ListenerContext>,
        drain: Drain,
    ) -> io::Result<()> {
        match &*self {
            Self::Http(handler) => web::serve(opened, handler, &place, &drain).await,
            Self::Admin(handler) => web::serve(opened, handler, &place, &drain).await,
            Self::Resp(handler) => resp::serve(opened, handler, &place, &drain).await,
            Self::Grpc(handler) => grpc::serve(opened, handler, &place, &drain).await,
            Self::Proxy(proxy) => proxy::serve(opened, proxy, &place, &drain).await,
        }
    }

    /// Waits until the proxy has returned the permits of its last requests.
    async fn settled(&self) {
        match self {
            Self::Proxy(proxy) => proxy.limiter().given_back().await,
            Self::Http(_) | Self::Admin(_) | Self::Resp(_) | Self::Grpc(_) => {}
        }
    }
}

/// The answer to `GET /ready`.
fn ready(health: &Health) -> Answer {
    let report = health.report();
    let status = if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Answer::json(status, &json!({ "status": report.status, "reasons": report.reasons }))
}
