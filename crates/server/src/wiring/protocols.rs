//! Builds the workers, and for each listener its protocol with everything that it needs to answer.

use super::{Failure, Server, named};
use crate::backend::Backend;
use crate::bounds;
use crate::desk::Desk;
use crate::front::grpc::GrpcOptions;
use crate::front::metrics_page::MetricsPage;
use crate::front::{Front, admin, grpc, http, resp};
use crate::net::{
    Budget, Listener, ListenerContext, LongWorkQueue, Protocols, Timeouts, Versions, Workers,
};
use crate::web::Hosts;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use tidegate::http::HeaderStyle;
use tokio_rustls::TlsAcceptor;
use tonic_health::server::HealthService;

/// How connections of a listener begin, and how long they may take.
#[derive(Clone)]
struct ConnectionSetup {
    timeouts: Timeouts,
    tls: Option<TlsAcceptor>,
}

impl<S: Backend> Server<S> {
    /// The users of the RESP listener.
    pub(super) fn users(&self) -> Result<resp::Users, Failure> {
        match &self.settings.resp.users_file {
            Some(path) => resp::Users::read(path, self.secret.clone())
                .map_err(|error| format!("resp.users_file: {error}").into()),
            None => {
                // Without a users file, clients on other machines may check limits but not administer the server.
                let near = self.settings.resp.listen.is_some_and(|at| at.ip().is_loopback());
                let role = if near { resp::UserRole::Operator } else { resp::UserRole::Client };
                Ok(resp::Users::everybody(self.secret.clone(), role))
            }
        }
    }

    /// The tokens of the admin listener, which are created if no files are configured.
    pub(super) fn tokens(&self) -> Result<admin::Tokens, Failure> {
        let settings = &self.settings;
        let token = |file: &Option<PathBuf>, setting, name: &str, prefix| {
            let made = settings.server.data_dir.join(name);
            let path = file.as_deref().unwrap_or(&made);
            admin::read_or_make(path, prefix, file.is_none()).map_err(named(setting, path))
        };
        let [of_operators, of_readers] = ["admin.operator_token_file", "admin.reader_token_file"];
        let operator =
            token(&settings.admin.operator_token_file, of_operators, "operator-token", "tgo_")?;
        let reader = token(&settings.admin.reader_token_file, of_readers, "reader-token", "tgr_")?;
        if operator == reader {
            let text =
                "contain the same token, so every reader would be an operator; use two tokens";
            return Err(format!("{of_operators} and {of_readers} {text}").into());
        }
        let users = settings.admin.users_file.as_deref();
        let users = users.map(|path| admin::AdminUsers::open(path, self.secret.clone()));
        let users = users.transpose().map_err(|error| format!("admin.users_file: {error}"))?;
        let tokens = admin::Tokens::new(self.secret.clone(), &operator, &reader);
        Ok(tokens.with_users(users.map(Arc::new)))
    }

    /// The workers of the HTTP, gRPC and RESP listeners.
    pub(super) fn workers(&self, users: resp::Users) -> io::Result<Workers> {
        let settings = &self.settings;
        let style = HeaderStyle { legacy: settings.http.legacy_headers, ..HeaderStyle::default() };
        let (limiter, users) = (self.limiter.clone(), Arc::new(users));
        let rulebook = Arc::clone(&self.rulebook);
        let by_files = self.rule_files.as_ref().map(|rules| rules.limiter().clone());
        let of_descriptors = by_files.unwrap_or_else(|| limiter.clone());
        let options = GrpcOptions {
            headers: settings.grpc.response_headers,
            metadata: settings.grpc.dynamic_metadata,
        };
        let grpc_health = self.grpc_health.clone();
        let of_http = self.setup(Listener::Http)?;
        let of_grpc = self.setup(Listener::Grpc)?;
        let of_resp = self.setup(Listener::Resp)?;
        let of_proxy = self.setup(Listener::Proxy)?;
        let (metrics, health) = (Arc::clone(&self.metrics), Arc::clone(&self.health));
        let budget = Arc::clone(&self.budget);
        let proxy_budget = self.proxy_budget.clone();
        let proxies = self.proxy_maker(style)?.map(Arc::new);
        let (decisions, http_hosts) = (self.decisions.clone(), settings.http.hosts.clone());
        let places = LongWorkQueue::shared_places();
        let make = move || -> Protocols<Front<S>> {
            let long_work = Rc::new(LongWorkQueue::new(S::IN_PROCESS).sharing(&places));
            let context = |setup: &ConnectionSetup, budget| {
                let shared = (Arc::clone(&metrics), Arc::clone(budget));
                let context = ListenerContext::new(setup.timeouts, Versions::OneAndTwo, shared);
                context.with_tls(setup.tls.clone()).with_queue(&long_work)
            };
            let logs = decisions.on_worker();
            let desk = Desk::new(limiter.clone(), "http", Arc::clone(&metrics), logs);
            let proxy = proxies.as_deref().zip(proxy_budget.as_ref()).map(|(proxies, budget)| {
                let context = context(&of_proxy, budget).behind(proxies.load_balancers());
                (Listener::Proxy, (proxies.make(&desk), context))
            });
            let of_calls = desk.for_protocol("grpc").with_limiter(of_descriptors.clone());
            let watched = HealthService::from_health_reporter(grpc_health.clone());
            let grpc = grpc::GrpcHandler::new(of_calls, options, watched);
            let of_commands = desk.for_protocol("resp");
            let resp =
                resp::RespHandler::new(of_commands, Arc::clone(&rulebook), Arc::clone(&users));
            let http = http::HttpHandler::new(desk, style, Arc::clone(&health))
                .called(&http_hosts)
                .deciding_descriptors_by(of_descriptors.clone())
                .taking(&long_work);
            let http = (Front::Http(Rc::new(http)), context(&of_http, &budget));
            let grpc = (Front::Grpc(Rc::new(grpc)), context(&of_grpc, &budget).for_proxies());
            let resp = (Front::Resp(resp), context(&of_resp, &budget));
            let mut protocols = Protocols::from([
                (Listener::Http, http),
                (Listener::Grpc, grpc),
                (Listener::Resp, resp),
            ]);
            protocols.extend(proxy);
            protocols
        };
        Workers::start("worker", settings.server.workers, &self.clock, &self.drain, make)
    }

    /// The worker of the admin and the metrics listener. It is a separate thread, so a slow request of an operator delays no
    /// other listener. `admin`: where the admin listener listens, if it is on.
    pub(super) fn operators_worker(
        &self,
        admin: Option<(SocketAddr, admin::Tokens)>,
    ) -> Result<Workers, Failure> {
        let page = Arc::new(self.metrics_page());
        let handler = admin.map(|(address, tokens)| {
            let hosts = (address, &*self.settings.admin.hosts);
            admin::AdminHandler::new(Arc::clone(&page), tokens, hosts).map(Arc::new)
        });
        let handler = handler.transpose()?;
        let of_metrics = self.setup(Listener::Metrics)?;
        let of_admin = self.setup(Listener::Admin)?;
        let metrics = Arc::clone(&self.metrics);
        let budget = Budget::new(bounds::OPERATORS_BUDGET);
        let make = move || -> Protocols<Front<S>> {
            let context = |setup: &ConnectionSetup| {
                let shared = (Arc::clone(&metrics), Arc::clone(&budget));
                let context = ListenerContext::new(setup.timeouts, Versions::One, shared);
                context.with_tls(setup.tls.clone())
            };
            let metrics = (Front::Metrics(Arc::clone(&page)), context(&of_metrics));
            let admin = handler.iter().map(|handler| Front::Admin(Arc::clone(handler)));
            let mut protocols = Protocols::from([(Listener::Metrics, metrics)]);
            protocols.extend(admin.map(|front| (Listener::Admin, (front, context(&of_admin)))));
            protocols
        };
        Ok(Workers::start("operators", 1, &self.clock, &self.drain, make)?)
    }

    fn metrics_page(&self) -> MetricsPage<S> {
        MetricsPage {
            limiter: self.limiter.clone(),
            rulebook: Arc::clone(&self.rulebook),
            rule_files: self.rule_files.clone(),
            upstreams: self.routes.clone(),
            metrics: Arc::clone(&self.metrics),
            health: Arc::clone(&self.health),
            budget: Arc::clone(&self.budget),
            proxy_budget: self.proxy_budget.clone(),
            certificate: self.certificate.clone(),
            clock: self.clock.clone(),
            top: self.decisions.top.clone(),
            hosts: Hosts::of_programs(&self.settings.http.hosts),
        }
    }

    fn setup(&self, listener: Listener) -> io::Result<ConnectionSetup> {
        let protocols: &[&[u8]] = match listener {
            Listener::Http | Listener::Proxy => &[b"h2", b"http/1.1"],
            Listener::Grpc => &[b"h2"],
            Listener::Resp => &[],
            Listener::Admin | Listener::Metrics => &[b"http/1.1"],
        };
        let certificate = self.certificate.as_ref().filter(|_| self.settings.uses_tls(listener));
        let tls = certificate.map(|certificate| certificate.acceptor(protocols)).transpose()?;
        Ok(ConnectionSetup { timeouts: self.settings.listen(listener).timeouts, tls })
    }
}
