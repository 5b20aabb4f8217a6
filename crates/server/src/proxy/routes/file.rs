//! The language of the routes file: its keys, defaults and bounds.
//!
//! A value that cannot be read is replaced by its default while the rest of the file is read. The file is refused then, so
//! the default is never used.

use super::host::HostPattern;
use super::reader::{MapFields, Record, RoutesReader, TimeRange, found, hint, kind, shown};
use super::{BalanceBy, GroupSpec, HealthSpec, HostField, Refusals, Route, Routes, ServerUrl};
use super::{UpstreamTimeouts, warnings};
use http::uri::PathAndQuery;
use std::collections::HashSet;
use std::num::NonZeroU32;
use std::time::Duration;
use tidegate_policy::{Document, Entry, Pattern, Place, Problem, RuleLimit, Value};

const FILE: Record = Record {
    title: "a routes file",
    keys: &["groups", "routes", "refusals"],
    required: &["groups"],
    example: "groups: { api: { servers: [http://10.0.0.1:8080] } }",
};
const GROUP: Record = Record {
    title: "a group",
    keys: &[
        "servers",
        "balance",
        "concurrency",
        "timeouts",
        "health",
        "host",
        "auth",
        "preflight_limit",
        "min_body_rate",
    ],
    required: &["servers"],
    example: "{ servers: [http://10.0.0.1:8080] }",
};
const BALANCE: Record =
    Record { title: "`balance`", keys: &["hash"], required: &["hash"], example: "{ hash: user }" };
const TIMEOUTS: Record = Record {
    title: "`timeouts`",
    keys: &["connect", "first_byte", "idle", "total"],
    required: &[],
    example: "{ connect: 1s, first_byte: 30s }",
};
const HEALTH: Record = Record {
    title: "`health`",
    keys: &["path", "every"],
    required: &["path"],
    example: "{ path: /live }",
};
const ROUTE: Record = Record {
    title: "a route",
    keys: &["host", "path", "group"],
    required: &["group"],
    example: "{ path: /api/**, group: api }",
};

/// Each group has its own connections, health checks and metrics.
const MOST_GROUPS: usize = 256;
const MOST_SERVERS: usize = 64;
/// A request is compared with one route after another.
const MOST_ROUTES: usize = 4_096;
pub(super) const MOST_CONCURRENCY: usize = 1_000_000;
const LONGEST_NAME: usize = 64;
const LONGEST_TARGET: usize = 1_024;
/// Browsers remember the answer to a preflight request, so a page needs few of them.
const USUAL_PREFLIGHT_LIMIT: &str = "20/s";
/// A KiB a second: a hundredth of what the slowest mobile networks carry.
pub(super) const USUAL_BODY_RATE: Option<NonZeroU32> = NonZeroU32::new(1_024);
const MOST_BODY_RATE: usize = 1_000_000_000;
const USUAL_CHECK: Duration = Duration::from_secs(1);

pub(super) fn usual_preflight_limit() -> Option<RuleLimit> {
    RuleLimit::from_rate(USUAL_PREFLIGHT_LIMIT).ok()
}

/// Reads a file, or returns everything that is wrong with it.
pub(super) fn read(text: &[u8]) -> Result<Routes, Vec<Problem>> {
    if is_blank(text) {
        let text = format!("the file is empty; write at least one group: `{}`", FILE.example);
        return Err(vec![Problem { place: Place { line: 1, column: 1 }, text }]);
    }
    let document = Document::parse(text).map_err(|mut problems| {
        problems.iter_mut().for_each(|problem| explain_bracket(text, problem));
        problems
    })?;
    let mut reader = RoutesReader::default();
    let (groups, routes, refusals) = reader.file(&document).unwrap_or_default();
    let warnings = reader.finish()?;
    Ok(Routes { groups, routes, refusals, warnings })
}

/// Whether a file has only empty lines and comments.
fn is_blank(text: &[u8]) -> bool {
    let mut lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    lines.all(|line| line.is_empty() || line.starts_with(b"#"))
}

/// In a list in brackets, YAML takes the bracket of `http://[::1]` for another list. Its error alone would not help.
fn explain_bracket(text: &[u8], problem: &mut Problem) {
    let Place { line, column } = problem.place;
    let found = text.split(|byte| *byte == b'\n').zip(1..).find(|(_, number)| *number == line);
    let line = String::from_utf8_lossy(found.map_or(&[], |(line, _)| line));
    let before = line.chars().zip(1..column).map(|(c, _)| c);
    if before.collect::<String>().ends_with("://") {
        problem.text.push_str("; put a URL with an IPv6 address in quotes");
    }
}

// === impl RoutesReader: the file ===

impl RoutesReader {
    fn file(&mut self, document: &Document) -> Option<(Vec<GroupSpec>, Vec<Route>, Refusals)> {
        let fields = self.record(document, &FILE)?;
        let refusals = fields.get("refusals").and_then(|node| Refusals::read(self, node));
        let entries = fields.get("groups").and_then(|node| self.groups(node)).unwrap_or_default();
        let names: Vec<&str> = entries.iter().map(|entry| &*entry.name).collect();
        let places: Vec<Place> = entries.iter().map(|entry| entry.place).collect();
        let groups: Vec<_> = entries.iter().map(|entry| self.group(entry)).collect();
        let routes = self.routes(document.place, &fields, &names);
        // If some groups could not be read, the indices in the routes do not fit; the file is refused then.
        let groups: Vec<_> = groups.into_iter().collect::<Option<_>>()?;
        warnings::unused(self, &groups, &places, &routes);
        warnings::hidden(self, &routes);
        let routes = routes.into_iter().map(|(_, route)| route).collect();
        Some((groups, routes, refusals.unwrap_or_default()))
    }

    fn groups<'d>(&mut self, node: &'d Document) -> Option<&'d [Entry]> {
        match &node.value {
            Value::Map(entries) if (1..=MOST_GROUPS).contains(&entries.len()) => Some(entries),
            Value::Map(entries) => {
                let text =
                    format!("`groups` has from 1 to {MOST_GROUPS} groups, not {}", entries.len());
                self.wrong(node.place, text)
            }
            other @ (Value::Nothing | Value::Text(..) | Value::List(_)) => {
                let (example, kind) = (GROUP.example, kind(other));
                let text = format!("`groups` is a map such as `{{ api: {example} }}`, not {kind}");
                self.wrong(node.place, text)
            }
        }
    }

    /// The routes with their positions.
    fn routes(
        &mut self,
        place: Place,
        fields: &MapFields<'_>,
        names: &[&str],
    ) -> Vec<(Place, Route)> {
        let Some(node) = fields.get("routes") else {
            if names.len() > 1 && fields.lacks("routes") {
                let text = "a file with several groups needs `routes`, such as";
                self.note(place, format!("{text} `routes: [{}]`", ROUTE.example));
            }
            return vec![(place, Route::everything(0))];
        };
        let list = self.list(node, "`routes`", MOST_ROUTES).unwrap_or_default();
        list.iter().filter_map(|node| Some((node.place, self.route(node, names)?))).collect()
    }
}

// === impl RoutesReader: a group ===

impl RoutesReader {
    fn group(&mut self, entry: &Entry) -> Option<GroupSpec> {
        self.group_name(entry);
        let fields = self.record(&entry.node, &GROUP)?;
        let hosts = [("keep", HostField::Keep), ("upstream", HostField::Upstream)];
        let concurrency = fields.get("concurrency");
        let host = fields.get("host");
        Some(GroupSpec {
            name: entry.name.to_string(),
            servers: fields.get("servers").map(|node| self.servers(node)).unwrap_or_default(),
            balance: fields.get("balance").and_then(|node| self.balance(node)).unwrap_or_default(),
            concurrency: concurrency
                .and_then(|node| self.count(node, "`concurrency`", MOST_CONCURRENCY)),
            timeouts: fields.get("timeouts").map(|node| self.timeouts(node)).unwrap_or_default(),
            health: fields.get("health").and_then(|node| self.health(node)),
            host: host.and_then(|node| self.word(node, "`host`", &hosts)).unwrap_or_default(),
            auth: fields.get("auth").and_then(|node| self.auth(node)),
            preflight_limit: match fields.get("preflight_limit") {
                Some(node) => self.rate_or_off(node, "`preflight_limit`"),
                None => usual_preflight_limit(),
            },
            min_body_rate: match fields.get("min_body_rate") {
                Some(node) => self.body_rate(node),
                None => USUAL_BODY_RATE,
            },
        })
    }

    /// A rate, or `off` for no limit.
    pub(super) fn rate_or_off(&mut self, node: &Document, what: &str) -> Option<RuleLimit> {
        let text = self.text(node, what)?;
        if text == "off" {
            return None;
        }
        let wrong = |error| format!("{what} is a rate such as `20/s`, or `off`: {error}");
        RuleLimit::from_rate(text).map_err(|error| self.note(node.place, wrong(error))).ok()
    }

    /// Bytes per second, or `off`.
    fn body_rate(&mut self, node: &Document) -> Option<NonZeroU32> {
        if matches!(&node.value, Value::Text(text, _) if text == "off") {
            return None;
        }
        let bytes = self.count(node, "`min_body_rate`", MOST_BODY_RATE)?;
        u32::try_from(bytes).ok().and_then(NonZeroU32::new)
    }

    fn group_name(&mut self, entry: &Entry) {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c);
        let name = &entry.name;
        if !(1..=LONGEST_NAME).contains(&name.len()) || !name.chars().all(plain) {
            let text = "is not a valid name of a group; use 1 to 64 of `a-z 0-9 _ -`";
            self.note(entry.place, format!("`{}` {text}", shown(name)));
        }
    }

    fn servers(&mut self, node: &Document) -> Vec<ServerUrl> {
        let list = self.list(node, "`servers`", MOST_SERVERS).unwrap_or_default();
        let servers: Vec<(Place, ServerUrl)> =
            list.iter().filter_map(|node| Some((node.place, self.server(node)?))).collect();
        let mut seen = HashSet::new();
        for (place, server) in &servers {
            if !seen.insert(server) {
                let text = "is listed twice; a server gets its share of the requests once, so remove one of them";
                self.warn(*place, format!("`{server}` {text}"));
            }
        }
        servers.into_iter().map(|(_, server)| server).collect()
    }

    fn server(&mut self, node: &Document) -> Option<ServerUrl> {
        let parsed = self.text(node, "a server")?.parse();
        parsed.map_err(|error: String| self.note(node.place, error)).ok()
    }

    fn balance(&mut self, node: &Document) -> Option<BalanceBy> {
        let options = "`balance` is `least_in_flight` or `{ hash: user }`";
        match &node.value {
            Value::Text(text, _) if text == "least_in_flight" => Some(BalanceBy::LeastInFlight),
            Value::Map(_) => {
                let node = self.record(node, &BALANCE)?.get("hash")?;
                self.attribute(node).map(BalanceBy::Hash)
            }
            other @ (Value::Nothing | Value::Text(..) | Value::List(_)) => {
                self.wrong(node.place, format!("{options}, not {}", found(other)))
            }
        }
    }

    /// The name of an attribute, as a policy may write it.
    fn attribute(&mut self, node: &Document) -> Option<String> {
        let name = self.text(node, "`hash`")?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(plain) {
            return Some(name.to_owned());
        }
        let text = "is not a valid attribute name; use 1 to 64 of `A-Z a-z 0-9 _ - .`";
        self.wrong(node.place, format!("`{}` {text}", shown(name)))
    }

    fn timeouts(&mut self, node: &Document) -> UpstreamTimeouts {
        let usual = UpstreamTimeouts::default();
        let Some(fields) = self.record(node, &TIMEOUTS) else { return usual };
        let connect = fields.get("connect");
        let connect = connect.and_then(|node| self.time(node, "`connect`", &TimeRange::ANY));
        let mut read = |name: &str, usual: Option<Duration>| {
            let what = format!("`{name}`");
            let node = fields.get(name);
            node.and_then(|node| self.time_or_off(node, &what, &TimeRange::ANY)).unwrap_or(usual)
        };
        UpstreamTimeouts {
            connect: connect.unwrap_or(usual.connect),
            first_byte: read("first_byte", usual.first_byte),
            idle: read("idle", usual.idle),
            total: read("total", usual.total),
        }
    }

    fn health(&mut self, node: &Document) -> Option<HealthSpec> {
        let fields = self.record(node, &HEALTH)?;
        let every = fields.get("every");
        let every = every.and_then(|node| self.time(node, "`every`", &TimeRange::INTERVAL));
        let path = self.target(fields.get("path")?)?;
        Some(HealthSpec { path, every: every.unwrap_or(USUAL_CHECK) })
    }

    /// The target of a request, which is sent as it is written.
    fn target(&mut self, node: &Document) -> Option<String> {
        let text = self.text(node, "`path`")?;
        if is_target(text) {
            return Some(text.to_owned());
        }
        let rule = "the path of a health check begins with a slash and has at most 1024 characters that are valid in a URL, without `#`; write it like `/live`";
        self.wrong(node.place, format!("`{}`: {rule}", shown(text)))
    }
}

/// Whether a text is a valid target of a request.
pub(super) fn is_target(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
    text.starts_with('/')
        && text.len() <= LONGEST_TARGET
        && text.bytes().all(plain)
        && PathAndQuery::try_from(text).is_ok()
}

// === impl RoutesReader: a route ===

impl RoutesReader {
    fn route(&mut self, node: &Document, names: &[&str]) -> Option<Route> {
        let fields = self.record(node, &ROUTE)?;
        let host = fields.get("host").and_then(|node| self.host_pattern(node));
        let path = fields.get("path").and_then(|node| self.path_pattern(node));
        let group = self.group_index(fields.get("group")?, names)?;
        Some(Route::new(host, path, group))
    }

    fn host_pattern(&mut self, node: &Document) -> Option<HostPattern> {
        let text = self.text(node, "`host`")?;
        let wrong = |error| self.note(node.place, format!("`{}`: {error}", shown(text)));
        HostPattern::parse(text).map_err(wrong).ok()
    }

    fn path_pattern(&mut self, node: &Document) -> Option<Pattern> {
        let text = self.text(node, "`path`")?;
        if text.contains(['?', '#']) {
            let text = format!("`{}`: a path is matched without its query; remove it", shown(text));
            return self.wrong(node.place, text);
        }
        let mut segments = text.split('/');
        if let Some(variable) = segments.find(|segment| segment.starts_with([':', '{', '<'])) {
            let text = "is matched as it is written; write `*` for any one segment";
            self.warn(node.place, format!("`{}` {text}", shown(variable)));
        }
        match text.parse() {
            Ok(pattern) => Some(pattern),
            Err(error) => {
                let text = format!("`{}`: {error}", shown(text));
                self.wrong(node.place, text)
            }
        }
    }

    /// The index of a group. Without any group, that is the problem, and it was reported.
    fn group_index(&mut self, node: &Document, names: &[&str]) -> Option<usize> {
        let text = self.text(node, "`group`")?;
        let found = names.iter().position(|name| *name == text);
        if found.is_none() && !names.is_empty() {
            let hint = hint(text, names);
            self.note(node.place, format!("unknown group `{}`{hint}", shown(text)));
        }
        found
    }
}

#[cfg(test)]
mod tests;
