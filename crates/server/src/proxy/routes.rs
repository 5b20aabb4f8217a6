//! The routes file: which upstream servers there are, and which requests go to which of them.
//!
//! ```yaml
//! groups:
//!   api:
//!     servers: [http://10.0.0.1:8080, http://10.0.0.2:8080]
//!     concurrency: 200                     # requests in flight, for the whole group
//!     health: { path: /live }
//!   pages:
//!     servers: ["http://[2001:db8::7]:8080"]
//! routes:
//!   - { host: shop.example.com, path: /api/**, group: api }
//!   - { host: "*.example.com", group: pages }
//! ```
//!
//! A *group* is a set of servers that answer the same requests. A *route* sends requests to a group. The first route that
//! matches wins: `/api/urls/7` of `shop.example.com` goes to `api`, `/` of the same host goes to `pages`. A request that no
//! route matches is answered with status 404. A file with a single group may leave out `routes`.
//!
//! In a path, `*` is one segment and `**` is any number of segments, as in a policy: `/api/*` does not match `/api/urls/7`.
//!
//! | file | contents |
//! |---|---|
//! | `file.rs` | the language: its keys, defaults and bounds |
//! | `auth.rs` | the auth server of a group |
//! | `guards.rs` | which group a request goes to if servers read its path in several ways |
//! | `reader.rs` | texts, numbers, times, lists and maps; collects all problems |
//! | `refusals.rs` | bodies of refusals, chosen by what the client accepts |
//! | `server_url.rs` | the URL of an upstream server |
//! | `host.rs` | host names, and the host patterns of routes |
//! | `warnings.rs` | routes and groups that are never used |
//! | `with_policy.rs` | whether the routes fit a policy |

mod auth;
mod file;
mod guards;
mod host;
mod reader;
mod refusals;
mod server_url;
mod warnings;
mod with_policy;

pub(crate) use auth::{AuthSpec, OnAuthError};
pub(crate) use refusals::Refusals;
pub(crate) use server_url::{Scheme, ServerUrl};

use host::{HostPattern, host_of_request};
use std::num::NonZeroU32;
use std::time::Duration;
use tidegate_policy::{NormalPath, PathError, Pattern, Problem, RuleLimit};

/// The groups of upstream servers, and the routes to them.
#[derive(Clone, Debug)]
pub(crate) struct Routes {
    /// In the order of the file. A route refers to a group by its index.
    pub(crate) groups: Vec<GroupSpec>,
    /// In the order of the file: the first route that matches wins.
    routes: Vec<Route>,
    /// The bodies of refusals.
    pub(crate) refusals: Refusals,
    warnings: Vec<Problem>,
}

/// The settings of a group. It does not contain its position in the file, so that a group is equal to itself after lines
/// above it have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupSpec {
    /// 1 to 64 of `a-z 0-9 _ -`, unique in the file.
    pub(crate) name: String,
    /// 1 to 64 servers.
    pub(crate) servers: Vec<ServerUrl>,
    /// How a server is chosen.
    pub(crate) balance: BalanceBy,
    /// How many requests may be in flight for the whole group; `None`: any number.
    pub(crate) concurrency: Option<usize>,
    /// How long the proxy waits for a server.
    pub(crate) timeouts: UpstreamTimeouts,
    /// Active health checks; `None`: none.
    pub(crate) health: Option<HealthSpec>,
    /// Which `Host` a server gets.
    pub(crate) host: HostField,
    /// The server that is asked about each request; `None`: none.
    pub(crate) auth: Option<AuthSpec>,
    /// How often one client address may send preflight requests, which the rules do not limit; `None`: without a limit.
    pub(crate) preflight_limit: Option<RuleLimit>,
    /// The least bytes per second of a body, if the group has seats; `None`: none.
    pub(crate) min_body_rate: Option<NonZeroU32>,
}

/// How one of the servers of a group is chosen for a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum BalanceBy {
    /// The server with the fewest requests in flight.
    #[default]
    LeastInFlight,
    /// Requests with the same value of this attribute go to the same server.
    Hash(String),
}

/// How long the proxy waits for an upstream server. `None`: without a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UpstreamTimeouts {
    /// For a connection, including TLS.
    pub(crate) connect: Duration,
    /// From the end of the request to the head of the response.
    pub(crate) first_byte: Option<Duration>,
    /// Between two parts of a body.
    pub(crate) idle: Option<Duration>,
    /// For the whole exchange, from the start of the request to the end of the response.
    pub(crate) total: Option<Duration>,
}

/// Active health checks: the proxy requests a path of each server again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HealthSpec {
    /// The path, perhaps with a query: a valid target of a request.
    pub(crate) path: String,
    /// The time between two checks of a server, from 100 ms to 1 h.
    pub(crate) every: Duration,
}

/// Which `Host` header (in HTTP/2: `:authority`) an upstream server gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum HostField {
    /// The one that the client sent.
    #[default]
    Keep,
    /// The host and port of the server's URL.
    Upstream,
}

/// Sends requests to a group.
#[derive(Clone, Debug)]
struct Route {
    /// `None`: any host, also a request without one.
    host: Option<HostPattern>,
    /// `None`: any path.
    path: Option<Pattern>,
    /// `path` for servers that ignore the case of letters.
    path_in_any_case: Option<Pattern>,
    /// The index of the group.
    group: usize,
}

/// Why a request has no group, although a route may match it. The client gets 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RouteError {
    /// Its `Host` or `:authority`.
    #[error("its host is not valid")]
    Host,
    #[error(transparent)]
    Path(#[from] PathError),
    /// Servers could read its path as one that needs another auth server, or that other servers answer.
    #[error(
        "servers read this path in different ways, which need different auth servers; send it without `..`, `//`, `\\`, `;` and needless escapes"
    )]
    Guards,
}

/// The name of the group that `--upstream` makes.
const SINGLE: &str = "upstream";

// === impl Routes ===

impl Routes {
    /// Reads a routes file, or returns everything that is wrong with it, in the order of the file.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, Vec<Problem>> {
        file::read(text)
    }

    /// What is valid but probably a mistake, in the order of the file.
    pub(crate) fn warnings(&self) -> &[Problem] {
        &self.warnings
    }

    /// All requests go to one server (`--upstream URL`). The error does not repeat a password.
    pub(crate) fn single(upstream: &str) -> Result<Self, String> {
        let group = GroupSpec {
            name: SINGLE.to_owned(),
            servers: vec![upstream.parse()?],
            balance: BalanceBy::default(),
            concurrency: None,
            timeouts: UpstreamTimeouts::default(),
            health: None,
            host: HostField::default(),
            auth: None,
            preflight_limit: file::usual_preflight_limit(),
            min_body_rate: file::USUAL_BODY_RATE,
        };
        let (groups, routes) = (vec![group], vec![Route::everything(0)]);
        Ok(Self { groups, routes, refusals: Refusals::default(), warnings: Vec::new() })
    }

    /// The index of the group for a request, or `None` if no route matches. `host` is the `Host` or `:authority` that the
    /// client sent, with or without a port. `target` is its path and query. The first reading of the path decides, unless another
    /// one [leads to an auth server](guards).
    pub(crate) fn group_of(
        &self,
        host: Option<&str>,
        target: &str,
    ) -> Result<Option<usize>, RouteError> {
        let host = host.map(|host| host_of_request(host).ok_or(RouteError::Host)).transpose()?;
        let path = NormalPath::new(target)?;
        let found = self.routes.iter().find(|route| route.matches(host.as_deref(), &path));
        match found.map(|route| route.group) {
            Some(group) if self.has_guards() => self.guarded(host.as_deref(), target, group),
            group => Ok(group),
        }
    }
}

// === impl Route ===

impl Route {
    /// A route that matches every request.
    const fn everything(group: usize) -> Self {
        Self { host: None, path: None, path_in_any_case: None, group }
    }

    fn new(host: Option<HostPattern>, path: Option<Pattern>, group: usize) -> Self {
        let path_in_any_case = path.clone().map(Pattern::in_any_case);
        Self { host, path, path_in_any_case, group }
    }

    fn matches(&self, host: Option<&str>, path: &NormalPath<'_>) -> bool {
        self.is_for(host) && self.path.as_ref().is_none_or(|pattern| pattern.matches(path))
    }

    /// Whether it matches for a server that ignores the case of letters.
    fn matches_in_any_case(&self, host: Option<&str>, path: &NormalPath<'_>) -> bool {
        let path_in_any_case = self.path_in_any_case.as_ref();
        self.is_for(host) && path_in_any_case.is_none_or(|pattern| pattern.matches(path))
    }

    fn is_for(&self, host: Option<&str>) -> bool {
        let of_host = |pattern: &HostPattern| host.is_some_and(|host| pattern.matches(host));
        self.host.as_ref().is_none_or(of_host)
    }
}

// === impl UpstreamTimeouts ===

impl Default for UpstreamTimeouts {
    /// Long enough for slow pages; `total` is off, because downloads and event streams may last for hours.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(1),
            first_byte: Some(Duration::from_secs(30)),
            idle: Some(Duration::from_secs(60)),
            total: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name of the group that a request goes to.
    fn target<'r>(routes: &'r Routes, host: Option<&str>, path: &str) -> Option<&'r str> {
        let group = routes.group_of(host, path).unwrap();
        group.map(|group| routes.groups[group].name.as_str())
    }

    fn routes_with(routes: &str) -> Routes {
        let group = |name: &str| format!("  {name}: {{ servers: [http://{name}] }}\n");
        let groups: String = ["a", "b", "c"].map(group).concat();
        Routes::parse(format!("groups:\n{groups}routes:\n{routes}").as_bytes()).unwrap()
    }

    #[test]
    fn the_first_route_that_matches_wins() {
        let routes = routes_with(
            "  - { host: shop.example.com, path: /api/**, group: c }
  - { path: /api/*, group: b }
  - { host: shop.example.com, group: a }\n",
        );
        for (host, path, expected) in [
            (Some("shop.example.com"), "/api/urls", Some("c")),
            (Some("shop.example.com"), "/api/urls/7", Some("c")),
            (Some("shop.example.com"), "/other", Some("a")),
            (Some("other.example.com"), "/api/urls", Some("b")),
            (Some("other.example.com"), "/api/urls/7", None),
            (Some("other.example.com"), "/", None),
            (None, "/api/urls", Some("b")),
            (None, "/", None),
        ] {
            assert_eq!(target(&routes, host, path), expected, "{host:?} {path}");
        }
        let swapped = routes_with("  - { path: /api/*, group: b }\n  - { path: /**, group: a }\n");
        assert_eq!(target(&swapped, None, "/api/x"), Some("b"));
        let swapped = routes_with("  - { path: /**, group: a }\n  - { path: /api/*, group: b }\n");
        assert_eq!(target(&swapped, None, "/api/x"), Some("a"));
    }

    #[test]
    fn hosts_are_matched_without_case_port_and_final_dot() {
        let routes = routes_with(
            "  - { host: Shop.Example.com, group: a }
  - { host: '*.example.com', group: b }
  - { host: '[2001:db8::7]', group: c }\n",
        );
        for (host, expected) in [
            ("shop.example.com", Some("a")),
            ("SHOP.example.COM:8443", Some("a")),
            ("shop.example.com.", Some("a")),
            ("www.example.com", Some("b")),
            ("a.b.Example.com:80", Some("b")),
            ("[2001:DB8:0::7]:443", Some("c")),
            ("example.com", None),
            ("badexample.com", None),
        ] {
            assert_eq!(target(&routes, Some(host), "/"), expected, "{host}");
        }
        assert_eq!(target(&routes, None, "/"), None);
    }

    /// An invalid host once fell to the routes without `host`, so `admin.example.com:999999` escaped the auth server of
    /// `admin.example.com`, while a server behind the proxy may read the name and ignore the port.
    #[test]
    fn a_host_that_is_not_valid_has_no_route() {
        let routes = routes_with("  - { path: /x, group: a }\n");
        for host in [
            "",
            " ",
            ":80",
            "no host!",
            ".example.com",
            "u@www.example.com",
            "www.example.com:80:80",
            "www.example.com:65536",
            "www.example.com:999999",
            "www.example.com:x",
            "www.example.com:+80",
            "www..example.com",
            "www.example.com..",
            "%77ww.example.com",
            "[::1",
            "[www.example.com]",
            "[fe80::1%25eth0]",
            "10.1",
        ] {
            assert_eq!(routes.group_of(Some(host), "/x"), Err(RouteError::Host), "{host}");
        }
        for host in [None, Some("h"), Some("h:"), Some("h:65535"), Some("[::1]:1"), Some("a_b")] {
            assert_eq!(routes.group_of(host, "/x"), Ok(Some(0)), "{host:?}");
        }
    }

    #[test]
    fn an_upstream_is_one_group_with_all_defaults() {
        let routes = Routes::single("http://127.0.0.1:3000").unwrap();
        assert_eq!(target(&routes, Some("any.example.com"), "/any"), Some("upstream"));
        assert_eq!(target(&routes, None, "/"), Some("upstream"));
        let file = b"groups: { upstream: { servers: [http://127.0.0.1:3000] } }";
        assert_eq!(routes.groups, Routes::parse(file).unwrap().groups);
        assert!(routes.warnings().is_empty());
        assert_eq!(
            Routes::single("127.0.0.1:3000").unwrap_err(),
            "`127.0.0.1:3000`: a server begins with `http://`, `https://` or `h2c://`; write `http://127.0.0.1:3000`"
        );
        let secret = Routes::single("http://root:hunter2@db").unwrap_err();
        assert!(!secret.contains("hunter2"), "{secret}");
    }
}
