//! The listeners: opened before anything is served; then their connections are handed to the workers.

use super::{Failure, Server};
use crate::backend::Backend;
use crate::net::{
    BoundedListener, Caps, FileQuota, FileQuotas, IsTrustedProxy, Workers, raise_limit, reserved,
};
use crate::settings::{Listen, Settings};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use tokio_util::task::TaskTracker;

/// The listeners that are on.
pub(super) struct Listeners {
    pub(super) http: Option<BoundedListener>,
    pub(super) grpc: Option<BoundedListener>,
    pub(super) resp: Option<BoundedListener>,
    pub(super) proxy: Option<BoundedListener>,
    pub(super) admin: Option<BoundedListener>,
    pub(super) metrics: Option<BoundedListener>,
}

/// The addresses of the listeners, with the ports that the system chose.
pub(super) struct Addresses {
    pub(super) http: Option<SocketAddr>,
    pub(super) grpc: Option<SocketAddr>,
    pub(super) resp: Option<SocketAddr>,
    pub(super) proxy: Option<SocketAddr>,
    pub(super) admin: Option<SocketAddr>,
    pub(super) metrics: Option<SocketAddr>,
}

/// The index of each listener's protocol on the workers.
pub(super) const HTTP: usize = 0;
pub(super) const GRPC: usize = 1;
pub(super) const RESP: usize = 2;
pub(super) const PROXY: usize = 3;
/// The indexes on the worker of operators.
pub(super) const METRICS: usize = 0;
pub(super) const ADMIN: usize = 1;

impl<S: Backend> Server<S> {
    /// Opens all listeners that are on.
    pub(super) async fn open(&self) -> Result<Listeners, Failure> {
        let Settings { http, grpc, resp, proxy, admin, metrics, .. } = &self.settings;
        let mut files = self.files(&[http, grpc, resp, proxy, admin, metrics]).into_iter();
        let mut open = async |listen: &Listen,
                              name: &'static str,
                              trusts: IsTrustedProxy|
               -> Result<Option<BoundedListener>, Failure> {
            let Some(address) = listen.address else { return Ok(None) };
            let Some(files) = files.next() else { return Ok(None) };
            let reports = (Arc::clone(&self.metrics), Arc::clone(&self.health));
            let listener =
                BoundedListener::open((name, address), (listen.caps, files), trusts, reports).await;
            Ok(Some(listener.map_err(|error| format!("{name}.listen: {address}: {error}"))?))
        };
        Ok(Listeners {
            http: open(http, "http", self.trusts()).await?,
            grpc: open(grpc, "grpc", self.trusts()).await?,
            // Proxies use HTTP and gRPC, so there are no trusted proxies here.
            resp: open(resp, "resp", Box::new(|_| false)).await?,
            proxy: open(proxy, "proxy", self.trusts()).await?,
            admin: open(admin, "admin", Box::new(|_| false))
                .await?
                .map(BoundedListener::preferring_tokens),
            metrics: open(metrics, "metrics", Box::new(|_| false)).await?,
        })
    }

    /// Checks whether a peer is a proxy that the policy trusts, by the policy that is in force when it connects.
    fn trusts(&self) -> IsTrustedProxy {
        let limiter = self.limiter.clone();
        Box::new(move |peer| limiter.trusts(peer))
    }

    /// Divides the open files among the listeners that are on, in this order.
    fn files(&self, listeners: &[&Listen]) -> Vec<FileQuota> {
        let on = listeners.iter().filter(|listen| listen.address.is_some());
        let caps: Vec<Caps> = on.map(|listen| listen.caps).collect();
        let limit = raise_limit(self.settings.max_open_files);
        let quotas = FileQuotas::new(limit, reserved(self.settings.workers, S::SHARED), &caps);
        quotas.warn(limit);
        quotas.files(&self.health)
    }

    /// Starts to accept connections and hand them to the workers.
    pub(super) fn accept(
        &self,
        listener: Option<BoundedListener>,
        index: usize,
        workers: &Rc<Workers>,
        accepting: &TaskTracker,
    ) {
        let Some(listener) = listener else { return };
        let (workers, drain) = (Rc::clone(workers), self.drain.clone());
        accepting.spawn_local(async move {
            let deliver = |stream, peer, slot| workers.deliver(index, stream, peer, slot);
            listener.accept_until_drained(&drain, deliver).await;
        });
    }
}

impl Listeners {
    pub(super) fn addresses(&self) -> io::Result<Addresses> {
        let of = |listener: &Option<BoundedListener>| {
            listener.as_ref().map(BoundedListener::address).transpose()
        };
        let Self { http, grpc, resp, proxy, admin, metrics } = self;
        let (resp, proxy) = (of(resp)?, of(proxy)?);
        let (admin, metrics) = (of(admin)?, of(metrics)?);
        Ok(Addresses { http: of(http)?, grpc: of(grpc)?, resp, proxy, admin, metrics })
    }
}
