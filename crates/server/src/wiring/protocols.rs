//! Builds the workers, and for each listener its protocol with everything that it needs to answer.

use super::{Failure, Server, named};
use crate::backend::Backend;
use crate::bounds;
use crate::desk::Desk;
use crate::front::metrics_page::MetricsPage;
use crate::front::{Front, admin, grpc, http, resp};
use crate::net::{Budget, ListenerContext, LongWorkQueue, Protocols, Versions, Workers};
use crate::settings::Listen;
use crate::web::Hosts;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use tidegate::http::HeaderStyle;
use tokio_rustls::TlsAcceptor;
use tonic_health::server::HealthService;

impl<S: Backend> Server<S> {
    /// The users of the RESP listener.
    pub(super) fn users(&self) -> Result<resp::Users, Failure> {
        match &self.settings.users_file {
            Some(path) => resp::Users::read(path, self.secret.clone())
                .map_err(|error| format!("resp.users_file: {error}").into()),
            None => {
                // Without a users file, clients on other machines may check limits but not administer the server.
                let near = self.settings.resp.address.is_some_and(|at| at.ip().is_loopback());
                let role = if near { resp::UserRole::Operator } else { resp::UserRole::Client };
                Ok(resp::Users::everybody(self.secret.clone(), role))
            }
        }
    }

    /// The tokens of the admin listener, which are created if no files are configured.
    pub(super) fn tokens(&self) -> Result<admin::Tokens, Failure> {
        let settings = &self.settings;
        let token = |file: &Option<PathBuf>, setting, name: &str, prefix| {
            let made = settings.data_dir.join(name);
            let path = file.as_deref().unwrap_or(&made);
            admin::read_or_make(path, prefix, file.is_none()).map_err(named(setting, path))
        };
        let [of_operators, of_readers] = ["admin.operator_token_file", "admin.reader_token_file"];
        let operator =
            token(&settings.operator_token_file, of_operators, "operator-token", "tgo_")?;
        let reader = token(&settings.reader_token_file, of_readers, "reader-token", "tgr_")?;
        if operator == reader {
            let text =
                "contain the same token, so every reader would be an operator; use two tokens";
            return Err(format!("{of_operators} and {of_readers} {text}").into());
        }
        let users = settings.admin_users_file.as_deref();
        let users = users.map(|path| admin::AdminUsers::open(path, self.secret.clone()));
        let users = users.transpose().map_err(|error| format!("admin.users_file: {error}"))?;
        let tokens = admin::Tokens::new(self.secret.clone(), &operator, &reader);
        Ok(tokens.with_users(users.map(Arc::new)))
    }

    /// The workers of the HTTP, gRPC and RESP listeners.
    pub(super) fn workers(&self, users: resp::Users) -> io::Result<Workers> {
        let settings = &self.settings;
        let style = HeaderStyle { legacy: settings.legacy_headers, ..HeaderStyle::default() };
        let (limiter, users) = (self.limiter.clone(), Arc::new(users));
        let rulebook = Arc::clone(&self.rulebook);
        let (of_http, of_grpc) = (settings.http.timeouts, settings.grpc.timeouts);
        let of_resp = settings.resp.timeouts;
        let tls_of_http = self.tls(&settings.http, &[b"h2", b"http/1.1"])?;
        let tls_of_grpc = self.tls(&settings.grpc, &[b"h2"])?;
        let by_files = self.rule_files.as_ref().map(|rules| rules.limiter().clone());
        let of_descriptors = by_files.unwrap_or_else(|| limiter.clone());
        let (options, grpc_health) = (settings.grpc_options, self.grpc_health.clone());
        let tls_of_resp = self.tls(&settings.resp, &[])?;
        let (metrics, health) = (Arc::clone(&self.metrics), Arc::clone(&self.health));
        let budget = Arc::clone(&self.budget);
        let of_proxy = settings.proxy.timeouts;
        let proxy_budget = self.proxy_budget.clone();
        let tls_of_proxy = self.tls(&settings.proxy, &[b"h2", b"http/1.1"])?;
        let proxies = self.proxy_maker(style)?.map(Arc::new);
        let (decisions, http_hosts) = (self.decisions.clone(), settings.http_hosts.clone());
        let places = LongWorkQueue::shared_places();
        let make = move || -> Protocols<Front<S>> {
            let long_work = Rc::new(LongWorkQueue::new(S::IN_PROCESS).sharing(&places));
            let context_within = |timeouts, tls: &Option<TlsAcceptor>, budget| {
                let shared = (Arc::clone(&metrics), Arc::clone(budget));
                let context = ListenerContext::new(timeouts, Versions::OneAndTwo, shared);
                context.with_tls(tls.clone()).with_queue(&long_work)
            };
            let context = |timeouts, tls| context_within(timeouts, tls, &budget);
            let logs = decisions.on_worker();
            let desk = Desk::new(limiter.clone(), "http", Arc::clone(&metrics), logs);
            let proxy = proxies.as_deref().zip(proxy_budget.as_ref()).map(|(proxies, budget)| {
                let context = context_within(of_proxy, &tls_of_proxy, budget);
                (proxies.make(&desk), context.behind(proxies.load_balancers()))
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
            let mut protocols = vec![
                (Front::Http(Rc::new(http)), context(of_http, &tls_of_http)),
                (Front::Grpc(Rc::new(grpc)), context(of_grpc, &tls_of_grpc).for_proxies()),
                (Front::Resp(resp), context(of_resp, &tls_of_resp)),
            ];
            // The last one, because its index must not depend on whether it is on.
            protocols.extend(proxy);
            protocols
        };
        Workers::start("worker", settings.workers, &self.clock, &self.drain, make)
    }

    /// The worker of the admin and the metrics listener. It is a separate thread, so a slow request of an operator delays no
    /// other listener. `admin`: where the admin listener listens, if it is on.
    pub(super) fn operators_worker(
        &self,
        admin: Option<(SocketAddr, admin::Tokens)>,
    ) -> Result<Workers, Failure> {
        let page = Arc::new(self.metrics_page());
        let handler = admin.map(|(address, tokens)| {
            let hosts = (address, &*self.settings.admin_hosts);
            admin::AdminHandler::new(Arc::clone(&page), tokens, hosts).map(Arc::new)
        });
        let (handler, timeouts) = (handler.transpose()?, self.settings.admin.timeouts);
        let tls_of_metrics = self.tls(&self.settings.metrics, &[b"http/1.1"])?;
        let tls_of_admin = self.tls(&self.settings.admin, &[b"http/1.1"])?;
        let metrics = Arc::clone(&self.metrics);
        let budget = Budget::new(bounds::OPERATORS_BUDGET);
        let make = move || -> Protocols<Front<S>> {
            let context = |tls: &Option<TlsAcceptor>| {
                let shared = (Arc::clone(&metrics), Arc::clone(&budget));
                ListenerContext::new(timeouts, Versions::One, shared).with_tls(tls.clone())
            };
            let mut protocols = vec![(Front::Metrics(Arc::clone(&page)), context(&tls_of_metrics))];
            // The last one, because its index must not depend on whether it is on.
            let admin = handler.iter().map(|handler| Front::Admin(Arc::clone(handler)));
            protocols.extend(admin.map(|front| (front, context(&tls_of_admin))));
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
            hosts: Hosts::of_programs(&self.settings.http_hosts),
        }
    }

    /// The TLS acceptor of a listener, if it uses TLS.
    fn tls(&self, listen: &Listen, protocols: &[&[u8]]) -> io::Result<Option<TlsAcceptor>> {
        let certificate = self.certificate.as_ref().filter(|_| listen.tls);
        certificate.map(|certificate| certificate.acceptor(protocols)).transpose()
    }
}
