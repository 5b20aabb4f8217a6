//! Contradictions: settings that are valid on their own, but not together.

use super::table::{ProxyGroup, Settings, TlsGroup};
use crate::net::Listener;

/// What contradicts each other, in sentences that say what to change.
pub(super) fn of(settings: &Settings) -> Vec<String> {
    let Settings { redis, jwt, admin, .. } = settings;
    let mut problems = Vec::new();
    if redis.certificate.is_some() != redis.key.is_some() {
        problems.push("set both redis.certificate and redis.key, or neither".to_owned());
    }
    problems.extend(of_certificates(&settings.tls).map(str::to_owned));
    if jwt.keys.is_none() && (jwt.issuer.is_some() || !jwt.audience.is_empty()) {
        problems.push("jwt.issuer and jwt.audience have no effect without jwt.keys; set it to a JWKS file or a PEM public key".to_owned());
    }
    of_addresses(settings, &mut problems);
    problems.extend(of_upstreams(&settings.proxy).map(str::to_owned));
    if let Some(address) = admin.listen.filter(|address| !address.ip().is_loopback())
        && admin.operator_token_file.is_none()
    {
        problems.push(format!(
            "admin.listen is {address}, which other machines can reach; set admin.operator_token_file to a file with a token of your own, or listen on 127.0.0.1"
        ));
    }
    problems
}

/// Every certificate needs its key, and clients cannot be verified without a certificate to show them.
fn of_certificates(tls: &TlsGroup) -> Option<&'static str> {
    match (tls.certificate.len(), tls.key.len()) {
        (0, 0) if tls.client_ca_file.is_none() => None,
        (1.., number) if number == tls.certificate.len() => None,
        (1.., 1..) => Some(
            "tls.certificate and tls.key list different numbers of files; write them in the same order, with commas between them",
        ),
        (_, _) => {
            Some("set both tls.certificate and tls.key; tls.client_ca_file needs both as well")
        }
    }
}

/// The proxy knows where to forward requests: by one URL or by a file.
fn of_upstreams(proxy: &ProxyGroup) -> Option<&'static str> {
    match (&proxy.upstream, &proxy.routes) {
        (Some(_), Some(_)) => Some("set proxy.upstream or proxy.routes, not both"),
        (None, None) if proxy.listen.is_some() => Some(
            "proxy.listen needs an upstream server: set proxy.upstream to its URL, or proxy.routes to a routes file",
        ),
        (Some(_), None) | (None, Some(_)) | (None, None) => None,
    }
}

/// At least one listener is on, and no two have the same address.
fn of_addresses(settings: &Settings, problems: &mut Vec<String>) {
    let mut seen: Vec<(Listener, _)> = Vec::new();
    for (listener, address) in settings.addresses() {
        let same = seen.iter().find(|(_, other)| *other == address && address.port() != 0);
        if let Some((other, _)) = same {
            let (first, second) = (other.name(), listener.name());
            problems.push(format!("{first}.listen and {second}.listen are both {address}; give one of them another port"));
        }
        seen.push((listener, address));
    }
    if seen.is_empty() {
        let text = "every listener is off, so there is nothing to serve; turn at least one on";
        problems.push(text.to_owned());
    }
}
