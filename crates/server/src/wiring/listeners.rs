//! The listeners: opened before anything is served, then their connections go to the workers.

use super::{Failure, Server};
use crate::backend::Backend;
use crate::net::{Caps, Division, Door, Files, Trusts, Workers, kept, raise_limit};
use crate::settings::{Listen, Settings};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use tokio_util::task::TaskTracker;

/// The listeners, open before anything is served; those of the workers have numbers.
pub(super) struct Doors {
    pub(super) http: Option<Door>,
    pub(super) grpc: Option<Door>,
    pub(super) resp: Option<Door>,
    pub(super) admin: Option<Door>,
}

/// Where they are.
pub(super) struct Addresses {
    pub(super) http: Option<SocketAddr>,
    pub(super) grpc: Option<SocketAddr>,
    pub(super) resp: Option<SocketAddr>,
    pub(super) admin: Option<SocketAddr>,
}

pub(super) const HTTP: usize = 0;
pub(super) const GRPC: usize = 1;
pub(super) const RESP: usize = 2;
/// The only listener of the operators' thread.
pub(super) const ADMIN: usize = 0;

impl<S: Backend> Server<S> {
    /// Opens all listeners that are on.
    pub(super) async fn open(&self) -> Result<Doors, Failure> {
        let Settings { http, grpc, resp, admin, .. } = &self.settings;
        let mut files = self.files(&[http, grpc, resp, admin]).into_iter();
        let mut open =
            async |listen: &Listen, name: &str, trusts: Trusts| -> Result<Option<Door>, Failure> {
                let Some(address) = listen.address else { return Ok(None) };
                let Some(files) = files.next() else { return Ok(None) };
                let told = (Arc::clone(&self.metrics), Arc::clone(&self.health));
                let door = Door::open(address, (listen.caps, files), trusts, told).await;
                Ok(Some(door.map_err(|error| format!("{name}: {address}: {error}"))?))
            };
        Ok(Doors {
            http: open(http, "http.listen", self.trusts()).await?,
            grpc: open(grpc, "grpc.listen", self.trusts()).await?,
            // Proxies ask over HTTP and gRPC.
            resp: open(resp, "resp.listen", Box::new(|_| false)).await?,
            admin: open(admin, "admin.listen", Box::new(|_| false))
                .await?
                .map(Door::preferring_tokens),
        })
    }

    /// Whether a peer is a proxy that the policy trusts, by the policy that is in force when it connects.
    fn trusts(&self) -> Trusts {
        let limiter = self.limiter.clone();
        Box::new(move |peer| limiter.trusts(peer))
    }

    /// Divides the files that may be open among the listeners that are on, in this order.
    fn files(&self, listeners: &[&Listen]) -> Vec<Files> {
        let on = listeners.iter().filter(|listen| listen.address.is_some());
        let caps: Vec<Caps> = on.map(|listen| listen.caps).collect();
        let limit = raise_limit(self.settings.max_open_files);
        let division = Division::new(limit, kept(self.settings.workers, S::SHARED), &caps);
        division.warn(limit);
        division.files(&self.health)
    }

    /// Hands the connections of a listener to the workers.
    pub(super) fn admit(
        &self,
        door: Option<Door>,
        listener: usize,
        workers: &Rc<Workers>,
        admitting: &TaskTracker,
    ) {
        let Some(door) = door else { return };
        let (workers, drain) = (Rc::clone(workers), self.drain.clone());
        admitting.spawn_local(async move {
            let deliver = |stream, peer, slot| workers.deliver(listener, stream, peer, slot);
            door.admit(&drain, deliver).await;
        });
    }
}

impl Doors {
    pub(super) fn addresses(&self) -> io::Result<Addresses> {
        let of = |door: &Option<Door>| door.as_ref().map(Door::address).transpose();
        let Self { http, grpc, resp, admin } = self;
        Ok(Addresses { http: of(http)?, grpc: of(grpc)?, resp: of(resp)?, admin: of(admin)? })
    }
}
