//! The greeting of a server that starts: its addresses and folders, and a command to try.
//!
//! If the log is for people, the greeting is printed on the standard output. If the log is JSON, it is a line of the log, because
//! the two streams are often read together (`2>&1`, containers, systemd) by a program that expects nothing but JSON.

use super::Server;
use super::listeners::Addresses;
use crate::backend::Backend;
use crate::settings::{Settings, StoreUrl};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;

impl<S: Backend> Server<S> {
    /// The memory budgets, as a line of the greeting.
    fn memory(&self) -> String {
        let Settings { http, grpc, resp, proxy, admin, metrics, .. } = &self.settings;
        let all = [http, grpc, resp, proxy, admin, metrics].into_iter();
        let on = all.filter(|listen| listen.address.is_some());
        let connections = on.fold(0_usize, |sum, listen| sum.saturating_add(listen.caps.all));
        let mebibytes = |bytes: usize| bytes.checked_div(1 << 20).unwrap_or(0);
        let counters = match self.settings.store {
            StoreUrl::Memory | StoreUrl::File => {
                format!("{} MiB for counters, ", mebibytes(self.settings.memory_budget))
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
        let Addresses { http, grpc, resp, proxy, admin, metrics } = *addresses;
        tracing::info!(
            tidegate = env!("CARGO_PKG_VERSION"),
            policy = self.settings.policy.as_deref().map(absolute),
            data = absolute(&self.settings.data_dir),
            http = http.map(display),
            grpc = grpc.map(display),
            resp = resp.map(display),
            proxy = proxy.map(display),
            admin = admin.map(display),
            metrics = metrics.map(display),
            "serving"
        );
    }

    fn print_greeting(&self, addresses: &Addresses, out: &mut impl Write) -> io::Result<()> {
        self.greet_folders(out)?;
        self.greet_listeners(addresses, out)?;
        out.flush()
    }

    fn greet_folders(&self, out: &mut impl Write) -> io::Result<()> {
        let settings = &self.settings;
        let policy = match &settings.policy {
            Some(path) => absolute(path),
            None => {
                "15 requests a second per client address (give your own with --policy)".to_owned()
            }
        };
        writeln!(out, "tidegate {}", env!("CARGO_PKG_VERSION"))?;
        writeln!(out, "  policy  {policy}")?;
        writeln!(out, "  data    {}", absolute(&settings.data_dir))?;
        writeln!(out, "  memory  {}", self.memory())
    }

    fn greet_listeners(&self, addresses: &Addresses, out: &mut impl Write) -> io::Result<()> {
        let Addresses { http, grpc, resp, proxy, admin, metrics } = addresses;
        let settings = &self.settings;
        if let Some(admin) = admin {
            let scheme = if settings.admin.tls { "https" } else { "http" };
            writeln!(out, "  admin   {scheme}://{admin}/  (token in {})", {
                let made = settings.data_dir.join("operator-token");
                absolute(settings.operator_token_file.as_deref().unwrap_or(&made))
            })?;
        }
        if let Some(metrics) = metrics {
            let scheme = if settings.metrics.tls { "https" } else { "http" };
            writeln!(out, "  metrics {scheme}://{metrics}/metrics")?;
        }
        if let Some(grpc) = grpc {
            writeln!(out, "  grpc    {grpc}  ({})", self.grpc_rules())?;
        }
        if let Some(resp) = resp {
            let scheme = if settings.resp.tls { "rediss" } else { "redis" };
            writeln!(out, "  resp    {scheme}://{resp}/")?;
        }
        if let Some(proxy) = proxy {
            let scheme = if settings.proxy.tls { "https" } else { "http" };
            writeln!(out, "  proxy   {scheme}://{proxy}/  ({})", self.upstreams())?;
        }
        http.map_or(Ok(()), |http| self.greet_http(http, out))
    }

    fn grpc_rules(&self) -> String {
        match &self.settings.envoy_config {
            Some(folder) => format!("rules in {}", absolute(folder)),
            None => "for Envoy, by the policy".to_owned(),
        }
    }

    fn upstreams(&self) -> String {
        match (&self.settings.proxy_upstream, &self.settings.proxy_routes) {
            (Some(url), _) => format!("to {}", tidegate_policy::printable(url)),
            (None, Some(path)) => format!("routes in {}", absolute(path)),
            (None, None) => String::new(),
        }
    }

    fn greet_http(&self, http: SocketAddr, out: &mut impl Write) -> io::Result<()> {
        let settings = &self.settings;
        let certificates = settings.tls.iter().flat_map(|tls| &tls.pairs);
        let (scheme, trust) = match (certificates.into_iter().next(), settings.http.tls) {
            (Some(first), true) => ("https", format!("--cacert {} ", absolute(&first.certificate))),
            (_, _) => ("http", String::new()),
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
