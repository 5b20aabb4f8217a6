//! The reverse proxy: its routes and the keys for tokens are read before anything is served, and read again when the files
//! change.

use super::{Failure, Server, named};
use crate::backend::Backend;
use crate::desk::Desk;
use crate::files;
use crate::front::Front;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::net::{IsTrustedProxy, Listener, client_tls};
use crate::proxy::{
    self, AccessLogWriter, LiveKeys, LiveRoutes, Proxy, ProxyOptions, ProxyParts, RequestIds,
    Routes, TokenSettings, TokenVerifier,
};
use crate::rulebook::TokenKeys;
use crate::settings::Settings;
use crate::supervise::supervised;
use crate::watch;
use rustls::ClientConfig;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate::http::HeaderStyle;
use tidegate::{Clock, Limiter};

/// The largest routes file that is read.
const MOST_BYTES: u64 = 4 * 1024 * 1024;

/// The routes, if the proxy is on; or all errors of their file.
pub(super) fn read_routes(settings: &Settings) -> Result<Option<Arc<LiveRoutes>>, Failure> {
    if settings.proxy.listen.is_none() {
        return Ok(None);
    }
    let routes = match (&settings.proxy.upstream, &settings.proxy.routes) {
        (Some(url), _) => {
            Routes::single(url).map_err(|error| format!("proxy.upstream: {error}"))?
        }
        (None, Some(path)) => read_file(path)?,
        (None, None) => return Ok(None),
    };
    Ok(Some(LiveRoutes::new(routes)))
}

fn read_file(path: &Path) -> Result<Routes, Failure> {
    let text = files::read_regular(path, MOST_BYTES).map_err(named("proxy.routes", path))?;
    let name = path.display();
    let routes = Routes::parse(&text).map_err(|problems| {
        let lines = problems.iter().map(|problem| format!("{name}:{problem}"));
        lines.collect::<Vec<_>>().join("\n")
    })?;
    for warning in routes.warnings() {
        tracing::warn!("{name}:{warning}");
    }
    Ok(routes)
}

/// Opens the access log, if the proxy is on and has one.
pub(super) fn open_access_log(
    settings: &Settings,
    clock: &Clock,
    reports: (Arc<Metrics>, Arc<Health>),
) -> io::Result<Option<AccessLogWriter>> {
    let settings = &settings.proxy;
    let place = settings.access_log.as_ref().filter(|_| settings.listen.is_some());
    let Some(place) = place else { return Ok(None) };
    let log = AccessLogWriter::start(place, settings.access_log_sample, clock, reports);
    log.map(Some).map_err(named("proxy.access_log", place.path()))
}

/// Reads the routes file again. If it is not valid, the old routes stay in force, and the log and `/ready` say why.
fn reload(path: &Path, live: &LiveRoutes, health: &Health) {
    let problem = match read_file(path) {
        Ok(routes) => {
            live.replace(routes);
            tracing::info!("the routes were read");
            None
        }
        Err(error) => {
            tracing::error!("the routes are not changed: {error}");
            Some(error.to_string())
        }
    };
    health.set_problem("routes", problem);
}

/// The keys that verify tokens, if they are configured.
pub(super) fn read_keys(settings: &Settings) -> io::Result<Option<Arc<LiveKeys>>> {
    let jwt = &settings.jwt;
    let accepted = jwt.keys.as_ref().map(|keys| TokenSettings {
        keys: keys.clone(),
        issuer: jwt.issuer.clone(),
        audience: jwt.audience.clone(),
    });
    accepted.map(LiveKeys::read).transpose()
}

/// Whether policies may read tokens. Only the proxy verifies them.
pub(super) fn token_keys(settings: &Settings) -> TokenKeys {
    match (settings.proxy.listen, &settings.jwt.keys) {
        (Some(_), None) => TokenKeys::Missing,
        (None, _) | (Some(_), Some(_)) => TokenKeys::Present,
    }
}

/// Reads the keys again. If the file is not valid, the old keys stay in use, and the log and `/ready` say why.
pub(super) fn renew_keys(keys: &LiveKeys, health: &Health) {
    let problem = keys.reload().err().map(|error| error.to_string());
    match &problem {
        None => tracing::info!("the keys for tokens were read"),
        Some(error) => tracing::error!("the keys for tokens are not changed: {error}"),
    }
    health.set_problem("keys for tokens", problem);
}

/// Builds the proxy of each worker.
pub(super) struct ProxyMaker<S> {
    limiter: Limiter<S>,
    style: HeaderStyle,
    live: Arc<LiveRoutes>,
    tls: Option<Arc<ClientConfig>>,
    options: ProxyOptions,
    /// The first part of request ids, which differs from worker to worker.
    next_prefix: AtomicU64,
    access_log: Option<AccessLogWriter>,
    keys: Option<Arc<LiveKeys>>,
    clock: Clock,
    /// Whether connections begin with a PROXY header.
    is_behind_load_balancers: bool,
}

impl<S: Backend> ProxyMaker<S> {
    /// Which peers may begin a connection with a PROXY header, if all must begin with one.
    pub(super) fn load_balancers(&self) -> Option<IsTrustedProxy> {
        let limiter = self.limiter.clone();
        let trusts: IsTrustedProxy = Box::new(move |peer| limiter.trusts(peer));
        self.is_behind_load_balancers.then_some(trusts)
    }

    /// The proxy of one worker.
    pub(super) fn make(&self, desk: &Desk<S>) -> Front<S> {
        let ids = RequestIds::with_prefix(self.next_prefix.fetch_add(1, Ordering::Relaxed));
        let clock = || self.clock.clone();
        Front::Proxy(Rc::new(Proxy::new(ProxyParts {
            desk: desk.for_protocol("proxy"),
            style: self.style,
            live: Arc::clone(&self.live),
            tls: self.tls.clone(),
            ids,
            options: self.options,
            access_log: self.access_log.as_ref().map(AccessLogWriter::of_worker),
            verifier: self.keys.clone().map(|keys| TokenVerifier::new(keys, clock())),
        })))
    }
}

impl<S: Backend> Server<S> {
    /// What builds the proxies of the workers, if the proxy is on.
    pub(super) fn proxy_maker(&self, style: HeaderStyle) -> io::Result<Option<ProxyMaker<S>>> {
        let Some(live) = self.routes.clone() else { return Ok(None) };
        let settings = &self.settings.proxy;
        let most = u64::try_from(settings.max_body).unwrap_or(u64::MAX);
        let secure = self.settings.uses_tls(Listener::Proxy);
        let options = ProxyOptions { body_limit: most, secure };
        let prefix = getrandom::u64().map_err(io::Error::other)?;
        Ok(Some(ProxyMaker {
            limiter: self.limiter.clone(),
            style,
            live,
            tls: client_tls()?,
            options,
            next_prefix: AtomicU64::new(prefix),
            access_log: self.access_log.clone(),
            keys: self.keys.clone(),
            clock: self.clock.clone(),
            is_behind_load_balancers: settings.proxy_protocol,
        }))
    }

    /// Watches the routes file, and checks the health of upstream servers.
    pub(super) fn watch_upstreams(&self) {
        let Some(live) = self.routes.clone() else { return };
        if let Some(path) = self.settings.proxy.routes.clone() {
            self.watch_routes(path, &live);
        }
        let (watched, health) = (Arc::clone(&live), Arc::clone(&self.health));
        supervised("watching upstream servers", Arc::clone(&self.metrics), move || {
            proxy::watch_groups(Arc::clone(&watched), Arc::clone(&health))
        });
        let (pressed, limiter) = (Arc::clone(&live), self.limiter.clone());
        let metrics = Arc::clone(&self.metrics);
        supervised("measuring the pressure", Arc::clone(&self.metrics), move || {
            proxy::report_pressure(Arc::clone(&pressed), limiter.clone(), Arc::clone(&metrics))
        });
        let tls = client_tls().ok().flatten();
        supervised("checking upstream servers", Arc::clone(&self.metrics), move || {
            proxy::check_upstreams(Arc::clone(&live), tls.clone())
        });
    }

    /// Watches the file with the keys for tokens.
    pub(super) fn watch_keys(&self) {
        let Some(keys) = self.keys.clone() else { return };
        let (path, health) = (keys.file().to_owned(), Arc::clone(&self.health));
        let read = move || renew_keys(&keys, &health);
        supervised("watching the keys", Arc::clone(&self.metrics), move || {
            let path = path.clone();
            watch::on_change("keys for tokens", move || vec![path.clone()], read.clone())
        });
    }

    fn watch_routes(&self, path: PathBuf, live: &Arc<LiveRoutes>) {
        let (live, health) = (Arc::clone(live), Arc::clone(&self.health));
        let file = path.clone();
        let read = move || reload(&file, &live, &health);
        supervised("watching the routes", Arc::clone(&self.metrics), move || {
            let path = path.clone();
            watch::on_change("routes", move || vec![path.clone()], read.clone())
        });
    }
}
