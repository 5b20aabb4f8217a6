//! What is read from a line of a log, and which attribute of the request each field becomes.
//!
//! ```text
//!   line ──► time, duration                              when the request arrived
//!        ──► ip, method, path, forwarded-for header      fields 0 to 3
//!        ──► user=alice tenant=acme …                    one field for each further attribute
//! ```
//!
//! Logs of proxies name fields; policies name attributes. A field becomes an attribute because a flag says so, or because the
//! identity of the policy reads the same header, cookie or query parameter that nginx logs (`header:x-user-id` is
//! `$http_x_user_id`), or because it is the user whom the proxy has authenticated (`$remote_user`).

use super::log_time::LogStamp;
use clap::Args;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::fmt;
use tidegate_policy::Policy;

/// Which fields of the log to read, if they are not those that the format usually has.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Fields of the log")]
pub(super) struct FieldFlags {
    /// The field with the time of a request.
    #[arg(long, value_name = "FIELD")]
    time_field: Option<String>,
    /// The field with the duration of a request, in seconds. It is subtracted, because proxies log a request when it ends.
    #[arg(long, value_name = "FIELD")]
    duration_field: Option<String>,
    /// The field with the address of the client.
    #[arg(long, value_name = "FIELD")]
    ip_field: Option<String>,
    /// The field with the method.
    #[arg(long, value_name = "FIELD")]
    method_field: Option<String>,
    /// The field with the path; a query is left out.
    #[arg(long, value_name = "FIELD")]
    path_field: Option<String>,
    /// The field with the user, such as `remote_user` or `http_x_user_id`.
    #[arg(long, value_name = "FIELD")]
    user_field: Option<String>,
    /// Another attribute of requests and the field that has its value, such as `tenant=http_x_tenant`. May be repeated.
    #[arg(long = "attribute", value_name = "ATTRIBUTE=FIELD")]
    attributes: Vec<String>,
}

/// One request, as a line tells it.
#[derive(Debug, Default)]
pub(super) struct LoggedRequest<'l> {
    pub(super) stamp: Option<LogStamp>,
    /// Whether the time is that of the arrival. Otherwise it is that of the end.
    pub(super) at_start: bool,
    /// How long the request took, in nanoseconds.
    pub(super) took: u64,
    /// Fields by their numbers. A value that the log does not have is not in the list.
    pub(super) values: SmallVec<[(u16, Cow<'l, str>); 8]>,
    /// Only in recordings of tidegate.
    pub(super) recorded: Option<RecordedDecision>,
}

/// How a recording of tidegate says that a request was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordedDecision {
    pub(super) cost: u64,
    /// How long the caller could wait, in nanoseconds.
    pub(super) wait: u64,
    /// Whether rules set the wait.
    pub(super) wait_by_rule: bool,
    pub(super) allowed: bool,
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LineError(pub(super) Cow<'static, str>);

/// Where a field of a line goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldUse {
    /// It is not read.
    Skip,
    Time,
    Duration,
    /// `GET /path HTTP/1.1`
    RequestLine,
    Value(u16),
}

pub(super) const IP: u16 = 0;
pub(super) const METHOD: u16 = 1;
pub(super) const PATH: u16 = 2;
/// The header in which proxies name the client.
pub(super) const HOPS: u16 = 3;
/// The number of the first field that is another attribute.
pub(super) const FIRST_NAMED: u16 = 4;

/// The fields that a log should have. `Option`s are those that the user did not choose.
#[derive(Clone, Debug, Default)]
pub(super) struct WantedFields {
    pub(super) time: Option<String>,
    pub(super) duration: Option<String>,
    pub(super) ip: Option<String>,
    pub(super) method: Option<String>,
    pub(super) path: Option<String>,
    pub(super) hops: String,
    /// Attributes from [`FIRST_NAMED`] on, each with its field.
    pub(super) named: Vec<NamedField>,
}

/// An attribute and the field with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedField {
    pub(super) attribute: String,
    pub(super) field: String,
    /// Whether a flag asks for it, so that a log without this field is an error.
    pub(super) required: bool,
}

// === impl WantedFields ===

impl WantedFields {
    /// The fields that flags and policies ask for.
    pub(super) fn new<'p>(
        flags: &FieldFlags,
        policies: impl Iterator<Item = &'p Policy> + Clone,
    ) -> Result<Self, String> {
        let mut wanted = Self {
            time: flags.time_field.clone(),
            duration: flags.duration_field.clone(),
            ip: flags.ip_field.clone(),
            method: flags.method_field.clone(),
            path: flags.path_field.clone(),
            ..Self::default()
        };
        let hops = policies.clone().map(|policy| policy.identity().hop_header().name()).next();
        wanted.hops = format!("http_{}", hops.unwrap_or_default().replace('-', "_"));
        for text in &flags.attributes {
            let (attribute, field) = text.split_once('=').ok_or_else(|| {
                format!("--attribute `{text}` is not valid; write it like `tenant=http_x_tenant`")
            })?;
            if ["ip", "method", "path"].contains(&attribute) {
                return Err(format!("--attribute `{text}`: use --{attribute}-field"));
            }
            wanted.name(attribute, field.trim_start_matches('$'), true);
        }
        if let Some(field) = &flags.user_field {
            wanted.name("user", field.trim_start_matches('$'), true);
        }
        for (attribute, source) in policies.flat_map(|policy| policy.identity().sources()) {
            if let Some(field) = variable(&source) {
                wanted.name(attribute, &field, false);
            }
        }
        Ok(wanted)
    }

    /// Asks for an attribute, unless it is asked for already.
    pub(super) fn name(&mut self, attribute: &str, field: &str, required: bool) {
        if self.named.iter().all(|known| known.attribute != attribute) {
            let (attribute, field) = (attribute.to_owned(), field.to_owned());
            self.named.push(NamedField { attribute, field, required });
        }
    }

    /// The number of the attribute that has its value in this field.
    pub(super) fn number_of(&self, field: &str) -> Option<u16> {
        let at = self.named.iter().position(|named| named.field == field)?;
        u16::try_from(at).ok()?.checked_add(FIRST_NAMED)
    }
}

/// The variable of nginx with the value that a policy reads from this source.
fn variable(source: &str) -> Option<String> {
    let (kind, name) = source.split_once(':')?;
    let prefix = match kind {
        "header" => "http_",
        "cookie" => "cookie_",
        "query" => "arg_",
        _ => return None,
    };
    Some(format!("{prefix}{}", name.replace('-', "_")))
}

// === impl LoggedRequest ===

impl<'l> LoggedRequest<'l> {
    /// Adds a value, unless the log says that there is none.
    pub(super) fn push(&mut self, number: u16, value: Cow<'l, str>) {
        if !value.is_empty() && value != "-" {
            self.values.push((number, value));
        }
    }

    /// Adds the path of a target: without the query, and without the scheme and host that some clients send.
    pub(super) fn push_target(&mut self, target: Cow<'l, str>) {
        let path = match target {
            Cow::Borrowed(target) => Cow::Borrowed(path_of(target)),
            Cow::Owned(target) => Cow::Owned(path_of(&target).to_owned()),
        };
        if path.starts_with('/') {
            self.push(PATH, path);
        }
    }

    /// Adds method and path of a request line, such as `GET /a?b HTTP/1.1`.
    pub(super) fn push_request_line(&mut self, line: Cow<'l, str>) -> Result<(), LineError> {
        let words = |line: &str| {
            let (method, rest) = line.split_once(' ')?;
            let target = rest.rsplit_once(" HTTP/").map_or(rest, |(target, _)| target);
            Some((method.len(), target.len()))
        };
        let (method, target) =
            words(&line).ok_or(LineError("the request line has no path".into()))?;
        let from = method.saturating_add(1);
        let to = from.saturating_add(target);
        match line {
            Cow::Borrowed(line) => {
                self.push(METHOD, line.get(..method).unwrap_or_default().into());
                self.push_target(line.get(from..to).unwrap_or_default().into());
            }
            Cow::Owned(line) => {
                self.push(METHOD, line.get(..method).unwrap_or_default().to_owned().into());
                self.push_target(line.get(from..to).unwrap_or_default().to_owned().into());
            }
        }
        Ok(())
    }
}

/// The path of a request target.
fn path_of(target: &str) -> &str {
    let target = match target.split_once("://") {
        Some((scheme, rest)) if !scheme.contains(['/', '?']) => {
            rest.find(['/', '?']).and_then(|at| rest.get(at..)).unwrap_or("/")
        }
        Some(_) | None => target,
    };
    let end = target.find(['?', '#']).unwrap_or(target.len());
    target.get(..end).unwrap_or(target)
}

// === impl LineError ===

impl LineError {
    /// A field whose value is not what it should be.
    pub(super) fn value(field: &str, value: &str, what: &str) -> Self {
        let shown: String = value.chars().take(60).collect();
        Self(format!("{field} `{shown}` is not {what}").into())
    }
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_neither_query_nor_host() {
        for (target, path) in [
            ("/a/b?c=d", "/a/b"),
            ("/", "/"),
            ("http://shop.example/a?b", "/a"),
            ("http://shop.example", "/"),
            ("/redirect?to=http://other.example/x", "/redirect"),
            ("*", "*"),
        ] {
            assert_eq!(path_of(target), path, "{target}");
        }
    }

    #[test]
    fn the_identity_of_a_policy_finds_variables_of_nginx() {
        let policy = Policy::parse(
            "
version: 1
identity: { user: header:x-user-id, session: cookie:sid, page: query:page, org: jwt:org }
rules: [{ name: a, key: [user], limits: [1/s] }]",
        )
        .unwrap();
        let flags =
            FieldFlags { attributes: vec!["page=arg_p".to_owned()], ..FieldFlags::default() };
        let wanted = WantedFields::new(&flags, [&policy].into_iter()).unwrap();
        let named: Vec<_> =
            wanted.named.iter().map(|named| (&*named.attribute, &*named.field)).collect();
        assert_eq!(
            named,
            [("page", "arg_p"), ("user", "http_x_user_id"), ("session", "cookie_sid")]
        );
        assert_eq!(wanted.hops, "http_x_forwarded_for");
        assert_eq!(wanted.number_of("cookie_sid"), Some(FIRST_NAMED + 2));
    }
}
