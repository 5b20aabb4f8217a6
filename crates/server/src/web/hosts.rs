//! Requests that a web page of another site makes a browser send. The browser is in the network that a listener trusts; the page is not.
//!
//! ```text
//!   page of evil.example ──► fetch("http://127.0.0.1:8080/…")                  Origin, Sec-Fetch-Site: of another site
//!   evil.example, which now resolves to 127.0.0.1 (DNS rebinding) ──► fetch    Host: evil.example
//! ```
//!
//! So a listener answers only to names that an attacker cannot lead to it, and not to pages of other origins. Programs send neither
//! `Origin` nor `Sec-Fetch-Site`.

use super::call::{Answer, Call, Headers};
use http::StatusCode;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// The values of `Host` to which a listener answers.
pub(crate) struct Hosts {
    /// With or without a port.
    names: Vec<String>,
    others: OtherHosts,
    /// The setting that adds names.
    setting: &'static str,
}

/// What is accepted besides the names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OtherHosts {
    Nothing,
    /// Addresses, and names that public DNS does not have. Also no `Host` at all, which only programs send.
    Private,
}

/// Why a request is refused before anything else of it is examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForeignRequest {
    /// `Host` is missing, or is not a name of this listener.
    Host,
    /// A browser sent it for a page of another origin.
    Page,
}

/// Names in these domains belong to private networks: mDNS, RFC 9476 and its kin, and services of Kubernetes (`.cluster.local` is
/// among the first).
const PRIVATE_DOMAINS: [&str; 3] = [".local", ".internal", ".svc"];

impl Hosts {
    /// For the listener of operators: its address, `localhost` and these names.
    pub(crate) fn of_operators(listens: SocketAddr, others: &[String]) -> Self {
        let port = listens.port();
        let mut names = vec![listens.ip().to_string(), "localhost".to_owned()];
        if listens.ip().is_loopback() {
            names.extend(["127.0.0.1".to_owned(), "::1".to_owned()]);
        }
        let own = names.iter().flat_map(|name| {
            let name = if name.contains(':') { format!("[{name}]") } else { name.clone() };
            [format!("{name}:{port}"), name]
        });
        let others = others.iter().flat_map(|name| [name.clone(), format!("{name}:{port}")]);
        let names = own.chain(others).collect();
        Self { names, others: OtherHosts::Nothing, setting: "admin.hosts" }
    }

    /// For listeners of programs: every host that a page cannot have, and these names. The port may be that of a load balancer.
    pub(crate) fn of_programs(names: &[String]) -> Self {
        Self { names: names.to_vec(), others: OtherHosts::Private, setting: "http.hosts" }
    }

    /// Refuses a request that names another host, or that a web page of another origin sends.
    pub(crate) fn check(&self, call: &Call<'_>) -> Result<(), ForeignRequest> {
        let host = call.headers.one("host").unwrap_or_default();
        let has_none = call.headers.all("host").next().is_none();
        if !(self.knows(host)
            || self.others == OtherHosts::Private && (has_none || is_private(host)))
        {
            return Err(ForeignRequest::Host);
        }
        let is_own = |origin: &str| {
            let authority = origin.strip_prefix("http://").or(origin.strip_prefix("https://"));
            authority.is_some_and(|authority| {
                authority.eq_ignore_ascii_case(host)
                    || self.others == OtherHosts::Nothing && self.knows(authority)
            })
        };
        if is_of_page(call.headers, is_own) { Err(ForeignRequest::Page) } else { Ok(()) }
    }

    fn knows(&self, host: &str) -> bool {
        let host = match self.others {
            OtherHosts::Nothing => host,
            OtherHosts::Private => without_port(host),
        };
        self.names.iter().any(|known| known.eq_ignore_ascii_case(host))
    }

    /// The answer to a request that was refused.
    pub(crate) fn refusal(&self, foreign: ForeignRequest) -> Answer {
        match foreign {
            ForeignRequest::Host => {
                let detail = format!(
                    "unknown `host`; use the address of this listener, or add the name to {}",
                    self.setting
                );
                Answer::problem(StatusCode::MISDIRECTED_REQUEST, &detail)
            }
            ForeignRequest::Page => {
                Answer::problem(StatusCode::FORBIDDEN, "cross-origin requests are not allowed")
            }
        }
    }
}

/// Whether a browser sends a request for a page whose origin is not among the own ones.
pub(crate) fn is_of_page(headers: Headers<'_>, is_own: impl Fn(&str) -> bool) -> bool {
    let foreign = |origin: &[u8]| !str::from_utf8(origin).is_ok_and(&is_own);
    // `none`: the user opened the address. A page on another port of the same host is `same-site`, and another program.
    let cross = |site: &[u8]| !matches!(site, b"none" | b"same-origin");
    headers.all("origin").any(foreign) || headers.all("sec-fetch-site").any(cross)
}

/// Whether a host is an address, or a name that public DNS does not have.
fn is_private(host: &str) -> bool {
    let name = without_port(host);
    if let Some(address) = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        return address.parse::<Ipv6Addr>().is_ok();
    }
    if name.parse::<Ipv4Addr>().is_ok() {
        return true;
    }
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let mut labels = name.split('.');
    let is_label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let has_domain = || PRIVATE_DOMAINS.iter().any(|domain| name.ends_with(domain));
    labels.all(is_label) && (!name.contains('.') || has_domain())
}

/// `Host` without its port.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit()) => {
            name
        }
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::ForeignRequest::{Host, Page};
    use super::*;
    use crate::net::Reservation;

    fn check(hosts: &Hosts, lines: &[(&str, &str)]) -> Result<(), ForeignRequest> {
        let lines: Vec<httparse::Header<'_>> = lines
            .iter()
            .map(|(name, value)| httparse::Header { name, value: value.as_bytes() })
            .collect();
        hosts.check(&Call {
            peer: [127, 0, 0, 1].into(),
            method: "GET",
            path: "/",
            query: None,
            headers: Headers::Lines(&lines),
            body: b"",
            room: &Reservation::default(),
        })
    }

    #[test]
    fn operators_use_the_names_of_their_listener() {
        let listens = "127.0.0.1:8082".parse().unwrap();
        let hosts = Hosts::of_operators(listens, &["admin.example".to_owned()]);
        for (lines, expected) in [
            (&[("Host", "127.0.0.1:8082")][..], Ok(())),
            (&[("Host", "localhost:8082")], Ok(())),
            (&[("Host", "[::1]:8082")], Ok(())),
            (&[("Host", "Admin.Example")], Ok(())),
            (&[("Host", "evil.example")], Err(Host)),
            (&[("Host", "evil.example:8082")], Err(Host)),
            (&[("Host", "127.0.0.1:8082@evil.example")], Err(Host)),
            (&[("Host", "192.0.2.1:8082")], Err(Host)),
            (&[("Host", "tidegate")], Err(Host)),
            (&[("Host", "")], Err(Host)),
            (&[], Err(Host)),
            (&[("Host", "localhost"), ("Origin", "http://localhost:8082")], Ok(())),
            (&[("Host", "localhost:8082"), ("Origin", "https://admin.example")], Ok(())),
            (&[("Host", "localhost"), ("Origin", "null")], Err(Page)),
            (&[("Host", "localhost"), ("Origin", "http://evil.example")], Err(Page)),
            (&[("Host", "localhost"), ("Sec-Fetch-Site", "cross-site")], Err(Page)),
            (&[("Host", "localhost"), ("Sec-Fetch-Site", "same-site")], Err(Page)),
            (&[("Host", "localhost"), ("Sec-Fetch-Site", "same-origin")], Ok(())),
        ] {
            assert_eq!(check(&hosts, lines), expected, "{lines:?}");
        }
    }

    #[test]
    fn programs_use_hosts_that_a_page_cannot_have() {
        let hosts = Hosts::of_programs(&["limits.example".to_owned()]);
        for host in [
            "127.0.0.1",
            "127.0.0.1:8080",
            "192.0.2.1:80",
            "[::1]:8080",
            "[2001:db8::7]",
            "localhost",
            "LOCALHOST:18080",
            "localhost.",
            "tidegate:8080",
            "my_service",
            "tidegate.ns.svc",
            "tidegate.ns.svc:8080",
            "tidegate.ns.svc.cluster.local",
            "tidegate.ns.svc.cluster.local.",
            "node-7.internal",
            "printer.local",
            "Limits.Example:443",
        ] {
            assert_eq!(check(&hosts, &[("Host", host)]), Ok(()), "{host}");
        }
        for host in [
            "",
            ":8080",
            ".",
            "..",
            "evil.example",
            "evil.example.",
            "evil.example:8080",
            "limits.example.evil.example",
            "x.limits.example",
            "tidegate.ns",
            "local.evil.example",
            "evil.local.example",
            ".local",
            "evil..local",
            "notlocal.evillocal",
            "127.0.0.1.evil.example",
            "127.1",
            "u@localhost",
            "evil.example/.local",
            "evil.example\\.local",
            "localhost:80:80",
            "localhost:999999",
            "localhost:x",
            "[::1",
            "[evil.example]",
            "::1",
        ] {
            assert_eq!(check(&hosts, &[("Host", host)]), Err(Host), "{host}");
        }
        assert_eq!(check(&hosts, &[]), Ok(()));
        assert_eq!(check(&hosts, &[("Host", "localhost"), ("Host", "localhost")]), Err(Host));
    }

    #[test]
    fn programs_are_no_pages() {
        let hosts = Hosts::of_programs(&["limits.example".to_owned()]);
        for (field, expected) in [
            (("Origin", "http://localhost:8080"), Ok(())),
            (("Origin", "http://localhost:3000"), Err(Page)),
            (("Origin", "http://localhost"), Err(Page)),
            (("Origin", "http://127.0.0.1:8080"), Err(Page)),
            (("Origin", "https://limits.example"), Err(Page)),
            (("Origin", "https://evil.example"), Err(Page)),
            (("Origin", "null"), Err(Page)),
            (("Origin", ""), Err(Page)),
            (("Sec-Fetch-Site", "none"), Ok(())),
            (("Sec-Fetch-Site", "same-origin"), Ok(())),
            (("Sec-Fetch-Site", "same-site"), Err(Page)),
            (("Sec-Fetch-Site", "cross-site"), Err(Page)),
        ] {
            assert_eq!(check(&hosts, &[("Host", "localhost:8080"), field]), expected, "{field:?}");
        }
    }
}
