//! Bodies of refusals (429), chosen by what the client accepts.
//!
//! ```yaml
//! refusals:
//!   text/html: "<h1>Too many requests</h1><p>Try again in {retry_after} s."
//!   text/plain: "Too many requests. Try again in {retry_after} s.\n"
//! ```
//!
//! The client's `Accept` field decides (RFC 9110, section 12.5.1). The problem document of RFC 9457 is always one of the
//! choices and comes first: a client that accepts everything gets it.

use super::reader::{RoutesReader, kind, shown};
use http::{HeaderMap, HeaderValue, header};
use std::borrow::Cow;
use tidegate_policy::{Document, Value};

/// The bodies, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refusals(Vec<RefusalBody>);

/// A body of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefusalBody {
    /// The media type, as it is sent in `content-type`.
    pub(crate) media_type: HeaderValue,
    /// The media type in lower case, without parameters.
    range: String,
    text: String,
}

/// The place of the seconds after which a client may try again.
const RETRY_AFTER: &str = "{retry_after}";
const PROBLEM: &str = "application/problem+json";
const MOST_BODIES: usize = 16;
const LONGEST_BODY: usize = 16 * 1024;
/// Elements of an `Accept` field that are looked at.
const MOST_RANGES: usize = 32;

impl Refusals {
    /// The body for a client, or `None` for the problem document.
    pub(crate) fn choose(&self, request: &HeaderMap) -> Option<&RefusalBody> {
        if self.0.is_empty() {
            return None;
        }
        let accept = Accepted::of(request);
        let mut best = (accept.weight(PROBLEM), None);
        for body in &self.0 {
            let weight = accept.weight(&body.range);
            if weight > best.0 {
                best = (weight, Some(body));
            }
        }
        best.1
    }

    /// Reads the bodies of a routes file.
    pub(super) fn read(reader: &mut RoutesReader, node: &Document) -> Option<Self> {
        let Value::Map(entries) = &node.value else {
            let kind = kind(&node.value);
            let text = format!(
                "`refusals` is a map such as `{{ text/plain: \"try again\" }}`, not {kind}"
            );
            return reader.wrong(node.place, text);
        };
        if entries.len() > MOST_BODIES {
            return reader
                .wrong(node.place, format!("`refusals` has at most {MOST_BODIES} bodies"));
        }
        let bodies = entries.iter().filter_map(|entry| {
            let Some((media_type, range)) = media_type(&entry.name) else {
                let text =
                    format!("`{}` is not a media type such as `text/html`", shown(&entry.name));
                return reader.wrong(entry.place, text);
            };
            let text = reader.text(&entry.node, "a body of `refusals`")?;
            if text.len() > LONGEST_BODY {
                let text = format!("a body of `refusals` has at most {LONGEST_BODY} bytes");
                return reader.wrong(entry.node.place, text);
            }
            Some(RefusalBody { media_type, range, text: text.to_owned() })
        });
        Some(Self(bodies.collect()))
    }
}

impl RefusalBody {
    /// The body, with the seconds after which the client may try again.
    pub(crate) fn text(&self, retry_after: &str) -> Vec<u8> {
        self.text.replace(RETRY_AFTER, retry_after).into_bytes()
    }
}

/// The media type as it is sent, and in lower case without its parameters.
fn media_type(text: &str) -> Option<(HeaderValue, String)> {
    let (range, _) = text.split_once(';').unwrap_or((text, ""));
    let range = range.trim().to_ascii_lowercase();
    let is_token = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&byte))
    };
    let is_valid =
        range.split_once('/').is_some_and(|(kind, name)| is_token(kind) && is_token(name));
    let sent = HeaderValue::from_str(text).ok().filter(|_| is_valid)?;
    Some((sent, range))
}

/// What a client accepts: media ranges, each with a weight in thousandths.
struct Accepted(Vec<(String, u16)>);

impl Accepted {
    fn of(request: &HeaderMap) -> Self {
        let lines = request.get_all(header::ACCEPT).iter();
        let text = lines.filter_map(|line| line.to_str().ok()).collect::<Vec<_>>().join(",");
        let ranges = text.split(',').take(MOST_RANGES).filter_map(range).collect::<Vec<_>>();
        // Without the field, everything is accepted.
        Self(if ranges.is_empty() { vec![("*/*".to_owned(), 1_000)] } else { ranges })
    }

    /// The weight of a type: that of the most specific range which contains it.
    fn weight(&self, media_type: &str) -> u16 {
        let of_kind = media_type
            .split_once('/')
            .map_or(Cow::Borrowed("*/*"), |(kind, _)| Cow::Owned(format!("{kind}/*")));
        let ranges = [media_type, &of_kind, "*/*"];
        let found = ranges.into_iter().find_map(|wanted| {
            self.0.iter().find(|(range, _)| range == wanted).map(|(_, weight)| *weight)
        });
        found.unwrap_or(0)
    }
}

/// A media range and its weight: `text/html;q=0.8`.
fn range(text: &str) -> Option<(String, u16)> {
    let mut parts = text.split(';').map(str::trim);
    let range = parts.next().filter(|range| range.contains('/'))?;
    let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    Some((range.to_ascii_lowercase(), weight.map_or(Some(1_000), thousandths)?))
}

/// A weight from 0 to 1 with up to three decimals.
fn thousandths(text: &str) -> Option<u16> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    if decimals.len() > 3 || !decimals.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let decimals: u16 = format!("{decimals:0<3}").parse().ok()?;
    match (whole, decimals) {
        ("0", decimals) => Some(decimals),
        ("1", 0) => Some(1_000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Routes;
    use super::*;

    fn refusals(text: &str) -> Result<Refusals, String> {
        let file = format!("groups: {{ a: {{ servers: [http://a] }} }}\nrefusals: {text}");
        let routes = Routes::parse(file.as_bytes());
        routes.map(|routes| routes.refusals).map_err(|problems| problems[0].to_string())
    }

    #[test]
    fn the_client_decides_and_the_problem_document_comes_first() {
        let refusals =
            refusals("{ text/html: \"<p>{retry_after} s\", text/plain;charset=utf-8: wait }")
                .unwrap();
        let html = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        for (accept, expected) in [
            (None, None),
            (Some("*/*"), None),
            (Some("application/json"), None),
            (Some("image/png"), None),
            (Some("text/html;q=0"), None),
            (Some("text/plain"), Some("text/plain;charset=utf-8")),
            (Some("text/*"), Some("text/html")),
            (Some("text/*;q=0.5, text/plain;q=0.7, */*;q=0.1"), Some("text/plain;charset=utf-8")),
            (Some("application/problem+json, text/html"), None),
            (Some(html), Some("text/html")),
            (Some("text/html;q=2"), None),
            (Some(";;;,,,"), None),
        ] {
            let mut request = HeaderMap::new();
            if let Some(accept) = accept {
                request.insert(header::ACCEPT, HeaderValue::from_static(accept));
            }
            let chosen = refusals.choose(&request);
            let kind = chosen.map(|body| body.media_type.to_str().unwrap());
            assert_eq!(kind, expected, "{accept:?}");
        }
        assert_eq!(refusals.0[0].text("7"), b"<p>7 s");
    }

    #[test]
    fn bodies_that_cannot_be_sent_are_refused() {
        for (text, says) in [
            ("[a]", "is a map such as"),
            ("{ html: x }", "`html` is not a media type"),
            ("{ text/: x }", "is not a media type"),
            ("{ text/html: [x] }", "a body of `refusals`"),
        ] {
            let problem = refusals(text).unwrap_err();
            assert!(problem.contains(says), "{text}: {problem}");
        }
        let long = format!("{{ text/plain: \"{}\" }}", "x".repeat(LONGEST_BODY + 1));
        assert!(refusals(&long).unwrap_err().contains("at most 16384 bytes"));
    }
}
