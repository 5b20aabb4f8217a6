//! A request and its answer, independent of the version of HTTP that carries them.

use crate::net::Reservation;
use http::header::ValueIter;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::json;
use std::borrow::Cow;
use std::net::IpAddr;

/// A request: first only its head, then with its body.
#[derive(Clone, Copy)]
pub(crate) struct Call<'c> {
    /// The address at the other end of the connection.
    pub(crate) peer: IpAddr,
    pub(crate) method: &'c str,
    pub(crate) path: &'c str,
    pub(crate) query: Option<&'c str>,
    pub(crate) headers: Headers<'c>,
    /// Empty while only the head has been read.
    pub(crate) body: &'c [u8],
    /// Memory for a long answer, which has to be reserved before anything is decided.
    pub(crate) room: &'c Reservation,
}

/// Header fields, as the parser of each HTTP version returns them: `Lines` for HTTP/1, `Map` for HTTP/2.
#[derive(Clone, Copy)]
pub(crate) enum Headers<'c> {
    Lines(&'c [httparse::Header<'c>]),
    Map(&'c HeaderMap),
}

/// The values of one field. Every request is asked for several fields, so this matches once and does not chain two iterators.
pub(crate) enum HeaderValues<'c, 'n> {
    Lines(std::slice::Iter<'c, httparse::Header<'c>>, &'n str),
    Map(ValueIter<'c, HeaderValue>),
}

/// The answer to a request.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// The content type; empty when there is no body.
    pub(crate) kind: &'static str,
    pub(crate) fields: Vec<(HeaderName, HeaderValue)>,
    pub(crate) body: Cow<'static, [u8]>,
}

pub(crate) const JSON: &str = "application/json";
pub(crate) const PROBLEM: &str = "application/problem+json";

// === impl Call ===

impl<'c> Call<'c> {
    /// The value of a query parameter, without decoding it.
    pub(crate) fn parameter(&self, name: &str) -> Option<&'c str> {
        let pairs = self.query?.split('&').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    /// Whether the `content-type` is JSON, and in UTF-8 if it names a charset.
    pub(crate) fn is_json(&self) -> bool {
        let mut kinds = self.headers.all("content-type");
        let (Some(kind), None) = (kinds.next(), kinds.next()) else { return false };
        if kind == JSON.as_bytes() {
            return true;
        }
        let mut parts = kind.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let json = parts.next().is_some_and(|kind| {
            kind.eq_ignore_ascii_case(b"application/json") || is_json_dialect(kind)
        });
        json && parts.all(|part| {
            let charset = part.get(..8).is_some_and(|name| name.eq_ignore_ascii_case(b"charset="));
            let utf8 = part
                .get(8..)
                .is_some_and(|value| value.trim_ascii().eq_ignore_ascii_case(b"utf-8"));
            !charset || utf8
        })
    }
}

fn is_json_dialect(kind: &[u8]) -> bool {
    kind.len() > 17
        && kind.get(..12).is_some_and(|start| start.eq_ignore_ascii_case(b"application/"))
        && kind
            .get(kind.len().saturating_sub(5)..)
            .is_some_and(|end| end.eq_ignore_ascii_case(b"+json"))
}

// === impl Headers ===

impl<'c> Headers<'c> {
    /// All values of a field. The name is given in lower case.
    pub(crate) fn all(self, name: &str) -> HeaderValues<'c, '_> {
        match self {
            Self::Lines(lines) => HeaderValues::Lines(lines.iter(), name),
            Self::Map(map) => HeaderValues::Map(map.get_all(name).iter()),
        }
    }

    /// The value of a field that must not be repeated; `None` if it is repeated or missing.
    pub(crate) fn one(self, name: &str) -> Option<&'c str> {
        let mut values = self.all(name);
        match (values.next(), values.next()) {
            (Some(value), None) => str::from_utf8(value).ok().map(str::trim),
            _ => None,
        }
    }
}

impl<'c> Iterator for HeaderValues<'c, '_> {
    type Item = &'c [u8];

    fn next(&mut self) -> Option<&'c [u8]> {
        match self {
            Self::Lines(lines, name) => {
                lines.find(|line| line.name.eq_ignore_ascii_case(name)).map(|line| line.value)
            }
            Self::Map(values) => values.next().map(HeaderValue::as_bytes),
        }
    }
}

// === impl Answer ===

impl Answer {
    pub(crate) fn new(status: StatusCode, kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status, kind, fields: Vec::new(), body: Cow::Owned(body.into()) }
    }

    /// The same answer without a body.
    pub(crate) fn without_body(self) -> Self {
        Self { kind: "", body: Cow::Borrowed(b""), ..self }
    }

    pub(crate) fn fixed(kind: &'static str, body: &'static str) -> Self {
        let body = Cow::Borrowed(body.as_bytes());
        Self { status: StatusCode::OK, kind, fields: Vec::new(), body }
    }

    pub(crate) fn json(status: StatusCode, body: &serde_json::Value) -> Self {
        Self::new(status, JSON, format!("{body}\n"))
    }

    /// An error as problem details (RFC 9457).
    pub(crate) fn problem(status: StatusCode, detail: &str) -> Self {
        let title = status.canonical_reason().unwrap_or("Problem");
        let body = json!({ "title": title, "status": status.as_u16(), "detail": detail });
        Self::new(status, PROBLEM, format!("{body}\n"))
    }

    /// An error with a JSON pointer (RFC 6901) to its place in the body.
    pub(crate) fn problem_at(status: StatusCode, pointer: &str, detail: &str) -> Self {
        let title = status.canonical_reason().unwrap_or("Problem");
        let body = json!({
            "title": title, "status": status.as_u16(), "detail": detail, "pointer": pointer,
        });
        Self::new(status, PROBLEM, format!("{body}\n"))
    }

    /// The same answer with these header fields added.
    pub(crate) fn with_all(mut self, fields: &HeaderMap) -> Self {
        self.fields.extend(fields.iter().map(|(name, value)| (name.clone(), value.clone())));
        self
    }

    pub(crate) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.fields.push((name, value));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call<'c>(lines: &'c [httparse::Header<'c>]) -> Call<'c> {
        let peer = IpAddr::from([127, 0, 0, 1]);
        let headers = Headers::Lines(lines);
        let room = Box::leak(Box::default());
        Call { peer, method: "POST", path: "/", query: Some("a=1&b=2"), headers, body: b"", room }
    }

    #[test]
    fn only_json_in_utf8_is_json() {
        for (kind, is) in [
            ("application/json", true),
            ("Application/JSON; charset=UTF-8", true),
            ("application/merge-patch+json", true),
            ("application/json;v=1", true),
            ("application/json; charset=utf-16", false),
            ("text/json", false),
            ("text/xml", false),
            ("application/x-www-form-urlencoded", false),
            ("application/jsonp", false),
            ("+json", false),
            ("", false),
        ] {
            let lines = [httparse::Header { name: "Content-Type", value: kind.as_bytes() }];
            assert_eq!(call(&lines).is_json(), is, "{kind}");
            let twice = [lines[0], lines[0]];
            assert!(!call(&twice).is_json());
        }
        assert!(!call(&[]).is_json());
    }

    #[test]
    fn parameters_are_found_by_name() {
        assert_eq!(call(&[]).parameter("b"), Some("2"));
        assert_eq!(call(&[]).parameter("c"), None);
    }
}
