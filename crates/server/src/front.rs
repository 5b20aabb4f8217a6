//! The protocols over which clients ask for decisions, the admin API, and the page of metrics.
//!
//! The protocols are a closed set, so they are an enum: [`Front`] is the protocol that a listener serves.

pub(crate) mod admin;
#[cfg(test)]
mod api_pages;
pub(crate) mod dashboard;
pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod metrics_page;
#[cfg(test)]
mod openapi;
pub(crate) mod resp;
#[cfg(test)]
pub(crate) mod testing;

use crate::backend::Backend;
use crate::health::Health;
use crate::net::{AcceptedConnection, Drain, ListenerContext, Protocol};
use crate::proxy::{self, Proxy};
use crate::web::{self, Answer};
use ::http::StatusCode;
use metrics_page::MetricsPage;
use serde_json::json;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use tidegate::Limiter;

/// The protocol of a listener, with everything that it needs to answer.
pub(crate) enum Front<S> {
    Http(Rc<http::HttpHandler<S>>),
    Admin(Arc<admin::AdminHandler<S>>),
    Metrics(Arc<MetricsPage<S>>),
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
            Self::Metrics(page) => web::serve(opened, page, &place, &drain).await,
            Self::Resp(handler) => resp::serve(opened, handler, &place, &drain).await,
            Self::Grpc(handler) => grpc::serve(opened, handler, &place, &drain).await,
            Self::Proxy(proxy) => proxy::serve(opened, proxy, &place, &drain).await,
        }
    }

    /// Waits until the proxy has returned the permits of its last requests.
    async fn settled(&self) {
        match self {
            Self::Proxy(proxy) => proxy.parts.desk.limiter.given_back().await,
            Self::Http(_) | Self::Admin(_) | Self::Metrics(_) | Self::Resp(_) | Self::Grpc(_) => {}
        }
    }
}

/// Asks whether the store, or what this node counts without it, runs out of memory; for `/ready` and the metrics.
fn look_for_room<S: Backend>(limiter: &Limiter<S>, health: &Health) {
    let here = || Some(format!("what is counted without the store: {}", limiter.local_shortage()?));
    let shortage = limiter.store().shortage().map(str::to_owned).or_else(here);
    health.set_problem("room", shortage);
}

/// The answer to `GET /ready`.
fn ready(health: &Health) -> Answer {
    let report = health.report();
    let status = if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Answer::json(status, &json!(report))
}
