//! The auth server of a group: `auth: { url: http://10.0.0.9:9000/verify, headers: [x-user] }`.

use super::file::{MOST_CONCURRENCY, is_target};
use super::reader::{Record, RoutesReader, TimeRange, shown};
use super::{BalanceBy, GroupSpec, HostField, ServerUrl, UpstreamTimeouts};
use http::HeaderName;
use std::sync::Arc;
use std::time::Duration;
use tidegate_policy::{Document, RuleLimit};

/// A server that is asked about each request of a group, before the request is decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuthSpec {
    pub(crate) server: ServerUrl,
    /// Its path, perhaps with a query.
    pub(crate) target: String,
    /// How long it may take to answer.
    pub(crate) timeout: Duration,
    /// Requests to it in flight on this node.
    pub(crate) concurrency: usize,
    /// How often one client address may make this server ask it; `None`: without a limit.
    pub(crate) limit: Option<RuleLimit>,
    /// Fields of the client's request that it gets; `None`: all of them.
    pub(crate) send: Option<Vec<HeaderName>>,
    /// Fields of its answer that the upstream server gets. Shared with the requests in flight.
    pub(crate) headers: Arc<[HeaderName]>,
    pub(crate) on_error: OnAuthError,
}

/// What happens to a request if the auth server gives no valid answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OnAuthError {
    #[default]
    Deny,
    /// It passes without the attributes and fields of the auth server.
    Allow,
}

const AUTH: Record = Record {
    title: "`auth`",
    keys: &["url", "timeout", "concurrency", "limit", "send", "headers", "on_error"],
    required: &["url"],
    example: "{ url: http://10.0.0.9:9000/verify }",
};
const USUAL_TIMEOUT: Duration = Duration::from_secs(1);
const USUAL_CONCURRENCY: usize = 100;
const USUAL_LIMIT: &str = "20/s";
const MOST_HEADERS: usize = 32;
/// Fields that say where a message ends or whom it is for.
const FIXED: [&str; 6] =
    ["connection", "content-length", "host", "te", "transfer-encoding", "upgrade"];

impl AuthSpec {
    /// The auth server as a group of one server.
    pub(crate) fn group(&self, of: &str) -> GroupSpec {
        let wait = Some(self.timeout);
        GroupSpec {
            name: format!("{of}-auth"),
            servers: vec![self.server.clone()],
            balance: BalanceBy::LeastInFlight,
            concurrency: Some(self.concurrency),
            timeouts: UpstreamTimeouts {
                connect: self.timeout,
                first_byte: wait,
                idle: wait,
                total: None,
            },
            health: None,
            host: HostField::Upstream,
            auth: None,
            preflight_limit: None,
            min_body_rate: None,
        }
    }
}

impl RoutesReader {
    pub(super) fn auth(&mut self, node: &Document) -> Option<AuthSpec> {
        let fields = self.record(node, &AUTH)?;
        let timeout = fields.get("timeout");
        let timeout = timeout.and_then(|node| self.time(node, "`timeout`", &TimeRange::ANY));
        let concurrency = fields.get("concurrency");
        let concurrency =
            concurrency.and_then(|node| self.count(node, "`concurrency`", MOST_CONCURRENCY));
        let limit = match fields.get("limit") {
            Some(node) => self.rate_or_off(node, "`limit`"),
            None => RuleLimit::from_rate(USUAL_LIMIT).ok(),
        };
        let send = fields.get("send").map(|node| self.sent_headers(node));
        let headers = fields.get("headers").map(|node| self.auth_headers(node));
        let words = [("deny", OnAuthError::Deny), ("allow", OnAuthError::Allow)];
        let on_error = fields.get("on_error");
        let on_error = on_error.and_then(|node| self.word(node, "`on_error`", &words));
        let (server, target) = self.auth_url(fields.get("url")?)?;
        Some(AuthSpec {
            server,
            target,
            timeout: timeout.unwrap_or(USUAL_TIMEOUT),
            concurrency: concurrency.unwrap_or(USUAL_CONCURRENCY),
            limit,
            send,
            headers: headers.unwrap_or_default().into(),
            on_error: on_error.unwrap_or_default(),
        })
    }

    /// A server and a path.
    fn auth_url(&mut self, node: &Document) -> Option<(ServerUrl, String)> {
        let text = self.text(node, "`url`")?;
        let start = text.find("://").map_or(0, |at| at.saturating_add(3));
        let rest = text.get(start..).unwrap_or_default();
        let length = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (server, target) = text.split_at_checked(start.saturating_add(length))?;
        let target = if target.is_empty() { "/" } else { target };
        if !is_target(target) {
            let text = "is not a valid path; write the URL like `http://10.0.0.9:9000/verify`";
            return self.wrong(node.place, format!("`{}` {text}", shown(target)));
        }
        let server = server.parse().map_err(|error: String| self.note(node.place, error)).ok()?;
        Some((server, target.to_owned()))
    }

    /// Which fields the auth server gets.
    fn sent_headers(&mut self, node: &Document) -> Vec<HeaderName> {
        let list = self.list(node, "`send`", MOST_HEADERS).unwrap_or_default();
        list.iter().filter_map(|node| self.sent_header(node)).collect()
    }

    fn sent_header(&mut self, node: &Document) -> Option<HeaderName> {
        let text = self.text(node, "a header field")?;
        let name = HeaderName::try_from(text).ok();
        let text = format!("`{}` is not the name of a header field", shown(text));
        name.or_else(|| self.wrong(node.place, text))
    }

    fn auth_headers(&mut self, node: &Document) -> Vec<HeaderName> {
        let list = self.list(node, "`headers`", MOST_HEADERS).unwrap_or_default();
        list.iter().filter_map(|node| self.auth_header(node)).collect()
    }

    fn auth_header(&mut self, node: &Document) -> Option<HeaderName> {
        let text = self.text(node, "a header field")?;
        let name = HeaderName::try_from(text).ok();
        let is_free = |name: &HeaderName| {
            !FIXED.contains(&name.as_str()) && !name.as_str().starts_with("tidegate-")
        };
        if let Some(name) = name.filter(is_free) {
            return Some(name);
        }
        let text = format!("`{}` is not a field that an auth server can set", shown(text));
        self.wrong(node.place, text)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Routes;
    use super::*;

    fn auth(text: &str) -> Result<AuthSpec, String> {
        let text = format!("groups: {{ a: {{ servers: [http://10.0.0.1], auth: {text} }} }}");
        match Routes::parse(text.as_bytes()) {
            Ok(routes) => Ok(routes.groups[0].auth.clone().unwrap()),
            Err(problems) => Err(problems[0].text.clone()),
        }
    }

    #[test]
    fn an_auth_server_is_read_with_its_defaults() {
        let auth_of = |text: &str| auth(text).unwrap();
        let usual = auth_of("{ url: http://10.0.0.9:9000/verify }");
        let server: ServerUrl = "http://10.0.0.9:9000".parse().unwrap();
        assert_eq!((&usual.server, usual.target.as_str()), (&server, "/verify"));
        assert_eq!((usual.timeout, usual.concurrency), (Duration::from_secs(1), 100));
        assert_eq!(usual.limit, RuleLimit::from_rate("20/s").ok());
        assert_eq!((usual.headers.len(), usual.on_error), (0, OnAuthError::Deny));
        assert_eq!(usual.send, None);
        let all = auth_of(
            "{ url: 'https://id.example', timeout: 200ms, concurrency: 7, limit: off, send: [Cookie], headers: [X-User, x-plan], on_error: allow }",
        );
        assert_eq!((all.target.as_str(), all.concurrency), ("/", 7));
        assert_eq!((all.limit, all.on_error), (None, OnAuthError::Allow));
        assert_eq!(*all.headers, ["x-user", "x-plan"]);
        assert_eq!(all.send, Some(vec![http::header::COOKIE]));
        let group = usual.group("a");
        assert_eq!((group.concurrency, group.host), (Some(100), HostField::Upstream));
    }

    #[test]
    fn mistakes_are_reported() {
        for (text, expected) in [
            ("{}", "`auth` needs the key `url`"),
            ("{ url: 10.0.0.9/verify }", "`10.0.0.9`: a server begins with `http://`"),
            ("{ url: 'http://10.0.0.9?x' }", "`?x` is not a valid path"),
            ("{ url: 'http://10.0.0.9/a#b' }", "`/a#b` is not a valid path"),
            ("{ url: 'http://u:p@10.0.0.9/' }", "a server has no user name"),
            (
                "{ url: http://10.0.0.9, limit: often }",
                "`limit` is a rate such as `20/s`, or `off`",
            ),
            ("{ url: http://10.0.0.9, limit: 0/s }", "`limit` is a rate such as `20/s`, or `off`"),
            ("{ url: http://10.0.0.9, send: [a b] }", "`a b` is not the name of a header field"),
            ("{ url: http://10.0.0.9, headers: [a b] }", "`a b` is not a field"),
            ("{ url: http://10.0.0.9, headers: [Host] }", "`Host` is not a field"),
            ("{ url: http://10.0.0.9, headers: [tidegate-x] }", "`tidegate-x` is not a field"),
            ("{ url: http://10.0.0.9, on_error: pass }", "`on_error`"),
            ("{ url: http://10.0.0.9, timeout: 0s }", "`timeout`"),
            ("{ uri: http://10.0.0.9 }", "unknown key `uri`"),
        ] {
            let error = auth(text).unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
