//! The greeting of a server that starts: its addresses and folders, and a command to try.
//!
//! If the log is for people, the greeting is printed on the standard output. If the log is JSON, it is a line of the log, because
//! the two streams are often read together (`2>&1`, containers, systemd) by a program that expects nothing but JSON.

use super::Server;
use super::listeners::Addresses;
use crate::backend::Backend;
use crate::net::Listener;
use crate::settings::StoreUrl;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use tracing::field::display;

impl<S: Backend> Server<S> {
    /// The memory budgets, as a line of the greeting.
    fn memory(&self) -> String {
        let settings = &self.settings;
        let caps = settings.addresses().map(|(listener, _)| settings.listen(listener).caps.all);
        let connections = caps.fold(0, usize::saturating_add);
        let mebibytes = |bytes: usize| bytes.checked_div(1 << 20).unwrap_or(0);
        let counters = match settings.server.store {
            StoreUrl::Memory | StoreUrl::File => {
                format!("{} MiB for counters, ", mebibytes(settings.memory.budget))
            }
            StoreUrl::Redis(_) | StoreUrl::Memcached(_) => String::new(),
        };
        let budget = mebibytes(self.budget.bytes());
        format!(
            "{counters}{budget} MiB for requests and answers of up to {connections} connections"
        )
    }

    /// Prints the greeting, or logs it.
    pub(super) fn greet(&self, addresses: &Addresses, out: &mut impl Write) {
        if !self.settings.log.format.is_json() {
            // The standard output may be closed, which is not a reason to stop.
            if let Err(error) = self.print_greeting(addresses, out) {
                tracing::warn!("the greeting could not be written to the standard output: {error}");
            }
        }
        self.log_greeting(addresses);
    }

    fn log_greeting(&self, addresses: &Addresses) {
        let server = &self.settings.server;
        let at = |listener| addresses.get(&listener).map(display);
        tracing::info!(
            tidegate = env!("CARGO_PKG_VERSION"),
            policy = server.policy.as_deref().map(absolute),
            data = absolute(&server.data_dir),
            http = at(Listener::Http),
            grpc = at(Listener::Grpc),
            resp = at(Listener::Resp),
            proxy = at(Listener::Proxy),
            admin = at(Listener::Admin),
            metrics = at(Listener::Metrics),
            "serving"
        );
    }

    fn print_greeting(&self, addresses: &Addresses, out: &mut impl Write) -> io::Result<()> {
        self.greet_folders(out)?;
        self.greet_listeners(addresses, out)?;
        out.flush()
    }

    fn greet_folders(&self, out: &mut impl Write) -> io::Result<()> {
        let server = &self.settings.server;
        let policy = match &server.policy {
            Some(path) => absolute(path),
            None => {
                "15 requests a second per client address (give your own with --policy)".to_owned()
            }
        };
        writeln!(out, "tidegate {}", env!("CARGO_PKG_VERSION"))?;
        writeln!(out, "  policy  {policy}")?;
        writeln!(out, "  data    {}", absolute(&server.data_dir))?;
        writeln!(out, "  memory  {}", self.memory())
    }

    fn greet_listeners(&self, addresses: &Addresses, out: &mut impl Write) -> io::Result<()> {
        let settings = &self.settings;
        let scheme = |listener| if settings.uses_tls(listener) { "https" } else { "http" };
        if let Some(admin) = addresses.get(&Listener::Admin) {
            let made = settings.server.data_dir.join("operator-token");
            let token = absolute(settings.admin.operator_token_file.as_deref().unwrap_or(&made));
            let scheme = scheme(Listener::Admin);
            writeln!(out, "  admin   {scheme}://{admin}/  (token in {token})")?;
        }
        if let Some(metrics) = addresses.get(&Listener::Metrics) {
            writeln!(out, "  metrics {}://{metrics}/metrics", scheme(Listener::Metrics))?;
        }
        if let Some(grpc) = addresses.get(&Listener::Grpc) {
            writeln!(out, "  grpc    {grpc}  ({})", self.grpc_rules())?;
        }
        if let Some(resp) = addresses.get(&Listener::Resp) {
            let scheme = if settings.uses_tls(Listener::Resp) { "rediss" } else { "redis" };
            writeln!(out, "  resp    {scheme}://{resp}/")?;
        }
        if let Some(proxy) = addresses.get(&Listener::Proxy) {
            let scheme = scheme(Listener::Proxy);
            writeln!(out, "  proxy   {scheme}://{proxy}/  ({})", self.upstreams())?;
        }
        addresses.get(&Listener::Http).map_or(Ok(()), |http| self.greet_http(*http, out))
    }

    fn grpc_rules(&self) -> String {
        match &self.settings.envoy.config {
            Some(folder) => format!("rules in {}", absolute(folder)),
            None => "for Envoy, by the policy".to_owned(),
        }
    }

    fn upstreams(&self) -> String {
        match (&self.settings.proxy.upstream, &self.settings.proxy.routes) {
            (Some(url), _) => format!("to {}", tidegate_policy::printable(url)),
            (None, Some(path)) => format!("routes in {}", absolute(path)),
            (None, None) => String::new(),
        }
    }

    fn greet_http(&self, http: SocketAddr, out: &mut impl Write) -> io::Result<()> {
        let certificate = self.settings.tls.certificate.first();
        let (scheme, trust) = match certificate.filter(|_| self.settings.uses_tls(Listener::Http)) {
            Some(first) => ("https", format!("--cacert {} ", absolute(first))),
            None => ("http", String::new()),
        };
        writeln!(out, "  http    {scheme}://{http}/")?;
        writeln!(
            out,
            "\ntry\n  curl -i {trust}{scheme}://{http}/v1/check -H 'content-type: application/json' -d '{{\"attributes\":{{\"ip\":\"203.0.113.7\"}}}}'\n"
        )
    }
}

/// A path for messages, which do not depend on the working directory.
pub(super) fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}
