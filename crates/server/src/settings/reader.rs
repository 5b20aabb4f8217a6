//! Parses the text of each setting into its value, and collects all problems with their sources.

use super::sources::Given;
use super::{FileOptions, Listen, MemcachedOptions, RedisOptions, Settings, value};
use crate::bounds;
use crate::denial_log::DenialLogSettings;
use crate::front::grpc::GrpcOptions;
use crate::log::{LogFormat, LogOptions};
use crate::net::{Caps, CertificateFiles, Timeouts, TlsFiles};
use crate::proxy::TokenSettings;
use crate::recorder::RecordSettings;
use crate::rotating_file::FileBounds;
use crate::top_keys::TopKeysSettings;
use std::path::PathBuf;
use std::time::Duration;
use tidegate_policy::printable;

/// Parses settings and collects problems.
pub(super) struct Reader<'g> {
    pub(super) given: &'g Given,
    pub(super) problems: &'g mut Vec<String>,
}

impl<'g> Reader<'g> {
    pub(super) fn text(&self, name: &str) -> &'g str {
        self.given.get(name).map_or("", |(text, _)| text)
    }

    pub(super) fn check<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&'g str) -> Result<T, String>,
    ) -> Option<T> {
        let (text, origin) = self.given.get(name)?;
        match read(text) {
            Ok(value) => Some(value),
            Err(error) => {
                self.problems.push(format!("{origin}: `{}`: {error}", printable(text)));
                None
            }
        }
    }

    /// The same for a setting that may contain a password: the error does not repeat the text.
    pub(super) fn hidden<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&'g str) -> Result<T, String>,
    ) -> Option<T> {
        let (text, origin) = self.given.get(name)?;
        read(text).map_err(|error| self.problems.push(format!("{origin}: {error}"))).ok()
    }

    pub(super) fn time(&mut self, name: &str) -> Duration {
        self.check(name, value::time).unwrap_or_default()
    }

    pub(super) fn listen(&mut self, group: &str, [head, body]: [&str; 2]) -> Listen {
        let named = |name: &str| format!("{group}.{name}");
        let address = self.check(&named("listen"), value::address).flatten();
        let timeouts = Timeouts {
            handshake: self.time("tls.handshake_timeout"),
            head: self.time(&named(head)),
            body: self.time(&named(body)),
            idle: self.time(&named("idle_timeout")),
        };
        let tls = self.uses_tls(group);
        let caps = Caps {
            all: self.check(&named("max_connections"), value::count).unwrap_or(1),
            per_source: self.check(&named("max_connections_per_source"), value::count).unwrap_or(1),
            files_each: if group == "proxy" { 2 } else { 1 },
        };
        Listen { address, tls, timeouts, caps }
    }

    /// A listener with the bounds of another one.
    pub(super) fn listen_like(&mut self, group: &str, other: Listen) -> Listen {
        let address = self.check(&format!("{group}.listen"), value::address).flatten();
        Listen { address, tls: self.uses_tls(group), ..other }
    }

    fn uses_tls(&self, group: &str) -> bool {
        !self.text("tls.certificate").is_empty()
            && value::words(self.text("tls.listeners")).iter().any(|name| name == group)
    }

    pub(super) fn tls(&mut self) -> Option<TlsFiles> {
        self.check("tls.listeners", value::listeners);
        let [certificates, keys, ca] =
            ["tls.certificate", "tls.key", "tls.client_ca_file"].map(|name| self.text(name));
        let client_ca_file = Some(PathBuf::from(ca)).filter(|path| !path.as_os_str().is_empty());
        let (certificates, keys) = (files(certificates), files(keys));
        match (certificates.len(), keys.len()) {
            (0, 0) if client_ca_file.is_none() => None,
            (1.., number) if number == certificates.len() => {
                let pairs = certificates.into_iter().zip(keys);
                let pair = |(certificate, key)| CertificateFiles { certificate, key };
                Some(TlsFiles { pairs: pairs.map(pair).collect(), client_ca_file })
            }
            (1.., 1..) => {
                let text = "tls.certificate and tls.key list different numbers of files; write them in the same order, with commas between them";
                self.problems.push(text.to_owned());
                None
            }
            (_, _) => {
                let text =
                    "set both tls.certificate and tls.key; tls.client_ca_file needs both as well";
                self.problems.push(text.to_owned());
                None
            }
        }
    }

    pub(super) fn tokens(&mut self) -> Option<TokenSettings> {
        let [keys, issuer, audience] =
            ["jwt.keys", "jwt.issuer", "jwt.audience"].map(|name| self.text(name));
        if keys.is_empty() {
            if !issuer.is_empty() || !audience.is_empty() {
                let text = "jwt.issuer and jwt.audience have no effect without jwt.keys; set it to a JWKS file or a PEM public key";
                self.problems.push(text.to_owned());
            }
            return None;
        }
        let audience = audience.split([',', ' ']).filter(|name| !name.is_empty());
        Some(TokenSettings {
            keys: PathBuf::from(keys),
            issuer: Some(issuer.to_owned()).filter(|issuer| !issuer.is_empty()),
            audience: audience.map(str::to_owned).collect(),
        })
    }

    /// Memory for requests and answers.
    pub(super) fn budget(&mut self, name: &str) -> usize {
        self.check(name, value::connection_budget).unwrap_or(bounds::LEAST_BUDGET)
    }

    pub(super) fn grpc_options(&mut self) -> GrpcOptions {
        let headers = self.check("grpc.response_headers", value::response_headers);
        let metadata = self.check("grpc.dynamic_metadata", value::switch);
        GrpcOptions { headers: headers.unwrap_or_default(), metadata: metadata.unwrap_or(true) }
    }

    pub(super) fn log(&mut self) -> LogOptions {
        LogOptions {
            format: self.check("log.format", value::log_format).unwrap_or(LogFormat::Auto),
            level: self.check("log.level", value::level).unwrap_or(tracing::Level::INFO),
        }
    }

    pub(super) fn file(&mut self) -> FileOptions {
        FileOptions {
            write_interval: self.time("file.write_interval"),
            sync_interval: self.time("file.sync_interval"),
            write_rate: self.check("file.write_rate", value::write_rate).unwrap_or(1),
        }
    }

    pub(super) fn denial_log(&mut self) -> Option<DenialLogSettings> {
        let keys = self.check("denial_log_keys", value::key_form)?;
        let place = self.check("denial_log", value::log_place).flatten()?;
        Some(DenialLogSettings { place, keys })
    }

    pub(super) fn top_keys(&mut self) -> Option<TopKeysSettings> {
        let show = self.check("top_keys.show", value::key_form)?;
        let memory = self.check("top_keys.memory", value::top_keys_memory)?;
        (memory > 0).then_some(TopKeysSettings { memory, show })
    }

    pub(super) fn record(&mut self) -> Option<RecordSettings> {
        let bytes = self.check("record.max_bytes", value::recording_bytes)?;
        let age = self.check("record.max_age", value::time)?;
        let sample = self.check("record.sample", value::count)?;
        let sample_by = self.check("record.sample_by", value::sample_by)?;
        let clear = self.check("record.attributes", value::recorded_attributes)?;
        let file = Some(self.text("record.file")).filter(|file| !["", "off"].contains(file))?;
        Some(RecordSettings {
            file: PathBuf::from(file),
            bounds: FileBounds { bytes, age: age.into() },
            sample: u64::try_from(sample).unwrap_or(u64::MAX),
            sample_by,
            clear,
        })
    }

    pub(super) fn redis(&mut self) -> RedisOptions {
        let file = |name: &str| {
            Some(PathBuf::from(self.text(name))).filter(|path| !path.as_os_str().is_empty())
        };
        let [ca_file, certificate, key] =
            ["redis.ca_file", "redis.certificate", "redis.key"].map(file);
        if certificate.is_some() != key.is_some() {
            self.problems.push("set both redis.certificate and redis.key, or neither".to_owned());
        }
        RedisOptions {
            timeout: self.time("redis.timeout"),
            connect_timeout: self.time("redis.connect_timeout"),
            ca_file,
            certificate: certificate.zip(key),
            clock: self.check("redis.clock", value::redis_clock).unwrap_or_default(),
            denial_cache: self.check("redis.denial_cache", value::switch).unwrap_or(true),
            nodes: self.check("cluster.nodes", value::nodes).flatten(),
        }
    }

    pub(super) fn memcached(&mut self) -> MemcachedOptions {
        MemcachedOptions {
            timeout: self.time("memcached.timeout"),
            connect_timeout: self.time("memcached.connect_timeout"),
            nodes: self.check("cluster.nodes", value::nodes).flatten(),
        }
    }

    /// Checks that settings which are valid on their own do not contradict each other.
    pub(super) fn agree(&mut self, settings: &Settings) {
        self.listeners_differ(settings);
        self.proxy_has_upstreams(settings);
        let admin = settings.admin.address;
        if let Some(admin) = admin.filter(|admin| !admin.ip().is_loopback())
            && settings.operator_token_file.is_none()
        {
            self.problems.push(format!(
                "admin.listen is {admin}, which other machines can reach; set admin.operator_token_file to a file with a token of your own, or listen on 127.0.0.1"
            ));
        }
    }

    /// Checks that the proxy knows where to forward requests: by one URL or by a file.
    fn proxy_has_upstreams(&mut self, settings: &Settings) {
        let text = match (&settings.proxy_upstream, &settings.proxy_routes) {
            (Some(_), Some(_)) => "set proxy.upstream or proxy.routes, not both",
            (None, None) if settings.proxy.address.is_some() => {
                "proxy.listen needs an upstream server: set proxy.upstream to its URL, or proxy.routes to a routes file"
            }
            (Some(_), None) | (None, Some(_)) | (None, None) => return,
        };
        self.problems.push(text.to_owned());
    }

    /// Checks that at least one listener is on, and that no two have the same address.
    fn listeners_differ(&mut self, settings: &Settings) {
        let listeners = [
            ("http.listen", settings.http.address),
            ("grpc.listen", settings.grpc.address),
            ("resp.listen", settings.resp.address),
            ("proxy.listen", settings.proxy.address),
            ("admin.listen", settings.admin.address),
            ("metrics.listen", settings.metrics.address),
        ];
        let on = || listeners.iter().filter_map(|(name, address)| Some((name, (*address)?)));
        for (at, (name, address)) in on().enumerate() {
            let same = on().skip(at.saturating_add(1)).find(|(_, other)| *other == address);
            if let Some((other, _)) = same.filter(|_| address.port() != 0) {
                self.problems.push(format!(
                    "{name} and {other} are both {address}; give one of them another port"
                ));
            }
        }
        if on().next().is_none() {
            let text = "every listener is off, so there is nothing to serve; turn at least one on";
            self.problems.push(text.to_owned());
        }
    }
}

/// Files, separated by commas.
fn files(text: &str) -> Vec<PathBuf> {
    let paths = text.split(',').map(str::trim).filter(|path| !path.is_empty());
    paths.map(PathBuf::from).collect()
}
