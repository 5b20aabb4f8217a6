//! The listeners: opened before anything is served; then their connections are handed to the workers.

use super::{Failure, Server};
use crate::backend::Backend;
use crate::net::{
    BoundedListener, Caps, FileQuotas, IsTrustedProxy, Listener, ListenerPlan, Workers,
    raise_limit, reserved,
};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use tokio_util::task::TaskTracker;

/// The listeners that are on.
pub(super) type Listeners = BTreeMap<Listener, BoundedListener>;

/// The addresses of the listeners that are on, with the ports that the system chose.
pub(super) type Addresses = BTreeMap<Listener, SocketAddr>;

impl<S: Backend> Server<S> {
    /// Opens all listeners that are on.
    pub(super) fn open(&self) -> Result<Listeners, Failure> {
        let settings = &self.settings;
        // Divide the open files among them.
        let caps = settings.addresses().map(|(listener, _)| settings.listen(listener).caps);
        let caps: Vec<Caps> = caps.collect();
        let limit = raise_limit(settings.server.max_open_files);
        let reserved = reserved(settings.server.workers, S::SHARED);
        let quotas = FileQuotas::new(limit, reserved, &caps);
        quotas.warn(limit);
        // Open each.
        let files = quotas.files(&self.health);
        let mut listeners = Listeners::new();
        for ((listener, address), files) in settings.addresses().zip(files) {
            let caps = settings.listen(listener).caps;
            let plan =
                ListenerPlan { listener, address, caps, files, trusts: self.trusts(listener) };
            let reports = (Arc::clone(&self.metrics), Arc::clone(&self.health));
            let opened = BoundedListener::open(plan, reports)
                .map_err(|error| format!("{}.listen: {address}: {error}", listener.name()))?;
            listeners.insert(listener, opened);
        }
        Ok(listeners)
    }

    /// Checks whether a peer is a proxy that the policy trusts, by the policy that is in force when it connects. Proxies use
    /// HTTP and gRPC, so the other listeners trust none.
    fn trusts(&self, listener: Listener) -> IsTrustedProxy {
        match listener {
            Listener::Http | Listener::Grpc | Listener::Proxy => {
                let limiter = self.limiter.clone();
                Box::new(move |peer| limiter.trusts(peer))
            }
            Listener::Resp | Listener::Admin | Listener::Metrics => Box::new(|_| false),
        }
    }

    /// Starts to accept connections on all listeners. The tasks end when the server drains.
    pub(super) fn accept_all(
        &self,
        listeners: Listeners,
        workers: &Rc<Workers>,
        operators: Option<&Rc<Workers>>,
    ) -> TaskTracker {
        let accepting = TaskTracker::new();
        for (listener, bounded) in listeners {
            let workers = match listener {
                Listener::Http | Listener::Grpc | Listener::Resp | Listener::Proxy => workers,
                Listener::Admin | Listener::Metrics => operators.unwrap_or(workers),
            };
            let (workers, drain) = (Rc::clone(workers), self.drain.clone());
            accepting.spawn_local(async move {
                let deliver = |stream, peer, slot| workers.deliver(listener, stream, peer, slot);
                bounded.accept_until_drained(&drain, deliver).await;
            });
        }
        accepting.close();
        accepting
    }
}

/// The addresses of listeners.
pub(super) fn addresses(listeners: &Listeners) -> io::Result<Addresses> {
    listeners.iter().map(|(listener, bounded)| Ok((*listener, bounded.address()?))).collect()
}
