//! Wiring: builds a running server from the settings, and stops it gracefully.
//!
//! ```text
//!   start: everything that can fail, before the first request ──► Server::serve: listeners, workers, watchers
//!                                                                     └─ until a signal ──► drain ──► exit
//! ```

mod greeting;
mod listeners;
mod preflight;
mod protocols;
mod proxy;
mod signals;
mod start;
mod watchers;

pub(crate) use preflight::{CheckFor, Findings, check};
pub(crate) use start::start;

use crate::backend::Backend;
use crate::decision_logs::DecisionRecords;
use crate::front::admin::Tokens;
use crate::health::{Health, Stage};
use crate::metrics::Metrics;
use crate::net::{Budget, Certificate, Drain, Listener};
use crate::proxy::{AccessLogWriter, LiveKeys, LiveRoutes};
use crate::rule_files::RuleFiles;
use crate::rulebook::Rulebook;
use crate::settings::Settings;
use signals::Signals;
use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use tidegate::{Clock, Limiter, Secret};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

type Failure = Box<dyn Error>;

/// A running server: what all its parts share.
struct Server<S> {
    settings: Settings,
    clock: Clock,
    secret: Secret,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    limiter: Limiter<S>,
    rulebook: Arc<Rulebook<S>>,
    /// Envoy rule files, which apply to gRPC only, if they are configured.
    rule_files: Option<Arc<RuleFiles<S>>>,
    grpc_health: HealthReporter,
    certificate: Option<Arc<Certificate>>,
    /// The routes of the proxy, if it is on.
    routes: Option<Arc<LiveRoutes>>,
    /// The access log of the proxy, if it is on.
    access_log: Option<AccessLogWriter>,
    decisions: DecisionRecords,
    /// The keys that verify tokens, if there are any.
    keys: Option<Arc<LiveKeys>>,
    /// The connection budget: memory for requests and answers.
    budget: Arc<Budget>,
    /// Memory for requests and bodies on their way through the proxy, if it is on.
    proxy_budget: Option<Arc<Budget>>,
    drain: Drain,
}

impl<S: Backend> Server<S> {
    /// Serves until the process gets a signal to stop.
    async fn serve(self, out: &mut impl Write) -> Result<(), Failure> {
        let tokens = self.settings.admin.listen.map(|_| self.tokens()).transpose()?;
        let admin_users = tokens.as_ref().and_then(Tokens::users);
        let users = self.users()?;
        let listeners = self.open()?;
        let addresses = listeners::addresses(&listeners)?;
        let workers = Rc::new(self.workers(users)?);
        let admin = addresses.get(&Listener::Admin).copied();
        let operators = match admin.or(addresses.get(&Listener::Metrics).copied()) {
            Some(_) => Some(Rc::new(self.operators_worker(admin.zip(tokens))?)),
            None => None,
        };
        // Before the first request, so that no signal is missed.
        let signals = Signals::new()?;
        self.greet(&addresses, out);
        self.run_in_background().await;
        self.watch_admin_users(admin_users);
        let accepting = self.accept_all(listeners, &workers, operators.as_ref());
        self.until_stopped(signals).await;
        self.stop(async {
            accepting.wait().await;
            // The accepting tasks have ended, so these are the only references to the workers.
            for workers in [workers].into_iter().chain(operators).filter_map(Rc::into_inner) {
                workers.finish().await;
            }
        })
        .await;
        if let Some(log) = &self.access_log {
            log.flush().await;
        }
        self.decisions.finish().await;
        Ok(())
    }

    /// Starts the background tasks and reports that the server is ready.
    async fn run_in_background(&self) {
        self.watch_store();
        self.follow_other_nodes();
        self.health.enter(Stage::Serving);
        self.set_grpc_health(ServingStatus::Serving).await;
        self.watch_files();
        self.watch_upstreams();
        self.watch_keys();
        self.watch_denials();
        self.watch_expiry();
        self.watch_top_keys();
    }

    /// Drains the server: waits for `all_done`, up to the drain timeout.
    async fn stop(&self, all_done: impl Future<Output = ()>) {
        self.health.enter(Stage::Draining);
        self.set_grpc_health(ServingStatus::NotServing).await;
        tracing::info!("stopping; requests that have arrived are answered");
        match self.drain.end(self.settings.server.drain_timeout, all_done).await {
            Ok(()) => tracing::info!("stopped; every request was answered"),
            Err(_) => tracing::warn!("stopped; some connections were closed before their answer"),
        }
        self.limiter.store().release().await;
    }

    /// Sets the status that the gRPC health service reports.
    async fn set_grpc_health(&self, status: ServingStatus) {
        // The last name is the one that Envoy's reference service uses.
        for service in ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"] {
            self.grpc_health.set_service_status(service, status).await;
        }
    }
}

/// Adds the setting and the path to an error.
fn named<'p>(setting: &'static str, path: &'p Path) -> impl Fn(io::Error) -> io::Error + 'p {
    move |error| io::Error::new(error.kind(), format!("{setting}: {}: {error}", path.display()))
}
