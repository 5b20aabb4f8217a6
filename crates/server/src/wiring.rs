//! Wiring: from settings to a running server, and to its orderly end.
//!
//! ```text
//!   start: everything that can fail, before the first request ──► Server::serve: listeners, workers, watchers
//!                                                                     └─ until a signal ──► drain ──► end
//! ```

mod greeting;
mod listeners;
mod protocols;
mod signals;
mod start;
mod watchers;

pub(crate) use start::start;

use crate::backend::Backend;
use crate::health::{Health, Stage};
use crate::metrics::Metrics;
use crate::net::{Budget, Certificate, Drain};
use crate::rule_files::RuleFiles;
use crate::rulebook::Rulebook;
use crate::settings::Settings;
use listeners::{ADMIN, GRPC, HTTP, RESP};
use signals::Signals;
use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use tidegate::{Clock, Limiter, Secret};
use tokio_util::task::TaskTracker;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

type Failure = Box<dyn Error>;

/// What all parts of the server share.
struct Server<S> {
    settings: Settings,
    clock: Clock,
    secret: Secret,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    limiter: Limiter<S>,
    rulebook: Arc<Rulebook<S>>,
    /// Rules for gRPC alone, if there are some.
    rule_files: Option<Arc<RuleFiles<S>>>,
    grpc_health: HealthReporter,
    certificate: Option<Arc<Certificate>>,
    /// What is held for clients.
    budget: Arc<Budget>,
    drain: Drain,
}

impl<S: Backend> Server<S> {
    /// Serves until somebody says stop.
    async fn serve(self, out: &mut impl Write) -> Result<(), Failure> {
        let tokens = self.settings.admin.address.map(|_| self.tokens()).transpose()?;
        let users = self.users()?;
        let doors = self.open().await?;
        let addresses = doors.addresses()?;
        let workers = Rc::new(self.workers(users)?);
        let operators = match addresses.admin.zip(tokens) {
            Some((address, tokens)) => Some(Rc::new(self.operators(address, tokens)?)),
            None => None,
        };
        // Signals are heard from before the first request on.
        let signals = Signals::new()?;
        // Nobody may be there to read it; that is no reason not to serve.
        if let Err(error) = self.greet(&addresses, out) {
            tracing::warn!("the greeting could not be written to the standard output: {error}");
        }
        if let Some(http) = addresses.http {
            tracing::info!(%http, "serving");
        }
        self.look_after_the_store();
        self.follow_other_nodes();
        self.health.enter(Stage::Serving);
        self.tell_grpc(ServingStatus::Serving).await;
        self.watch();
        let admitting = TaskTracker::new();
        self.admit(doors.http, HTTP, &workers, &admitting);
        self.admit(doors.grpc, GRPC, &workers, &admitting);
        self.admit(doors.resp, RESP, &workers, &admitting);
        if let Some(operators) = &operators {
            self.admit(doors.admin, ADMIN, operators, &admitting);
        }
        admitting.close();
        self.until_stopped(signals).await;
        self.stop(async {
            admitting.wait().await;
            // Nobody else comes, so nobody else has the workers.
            let workers = Rc::into_inner(workers).into_iter();
            for workers in workers.chain(operators.and_then(Rc::into_inner)) {
                workers.finish().await;
            }
        })
        .await;
        Ok(())
    }

    async fn stop(&self, all_done: impl Future<Output = ()>) {
        self.health.enter(Stage::Draining);
        self.tell_grpc(ServingStatus::NotServing).await;
        tracing::info!("stopping; requests that were received are answered");
        match self.drain.end(self.settings.drain_timeout, all_done).await {
            Ok(()) => tracing::info!("stopped; every request was answered"),
            Err(_) => tracing::warn!("stopped; some connections had to be cut off"),
        }
    }

    /// Tells those who watch over gRPC how we are.
    async fn tell_grpc(&self, status: ServingStatus) {
        // The last is the name that the reference service has.
        for service in ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"] {
            self.grpc_health.set_service_status(service, status).await;
        }
    }
}

/// With the setting that it is about.
fn named<'p>(setting: &'static str, path: &'p Path) -> impl Fn(io::Error) -> io::Error + 'p {
    move |error| io::Error::new(error.kind(), format!("{setting}: {}: {error}", path.display()))
}
