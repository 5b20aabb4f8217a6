//! Who sends a request: from a connection and headers to attributes.
//!
//! ```text
//!   peer 10.0.0.1 (trusted)   X-Forwarded-For: forged, 203.0.113.7   X-User-Id: alice   X-Api-Key: s3cr3t
//!        └─► ip 203.0.113.7      user alice      api_key #9f86…      method POST      path /urls
//! ```
//!
//! Whatever a client can write, it can forge. So headers, cookies and queries name somebody only when a
//! trusted peer passed them on; from anybody else the address counts, and nothing but the address. Secrets
//! are known by their digests from here on: no counter, log or picture ever holds one.

use crate::address::{HopHeader, Trusted};
use crate::attributes::{AttributeError, Attributes};
use crate::document::Place;
use ipnet::IpNet;
use std::borrow::Cow;
use std::net::IpAddr;

/// How requests become attributes.
///
/// ```
/// use tidegate_policy::{Policy, Request};
/// let policy = Policy::parse("
/// version: 1
/// identity: { trusted: [10.0.0.0/8], user: 'header:x-user-id' }
/// rules: [{ name: per-user, key: [user], limits: [15/s] }]
/// ").unwrap();
/// let headers = |name: &str| match name {
///     "x-user-id" => vec![&b"alice"[..]],
///     _ => vec![],
/// };
/// let request = Request {
///     peer: "10.0.0.1".parse().ok(), method: "GET", target: "/urls?page=2", headers: &headers,
/// };
/// let attributes = policy.identity().attributes(&request, &|_| String::new()).unwrap();
/// assert_eq!(attributes.get("user").as_deref(), Some("alice"));
/// assert_eq!(attributes.get("path").as_deref(), Some("/urls"));
/// ```
#[derive(Clone, Debug)]
pub struct Identity {
    /// Where it stands in the file.
    pub(crate) place: Place,
    pub(crate) trusted: Trusted,
    pub(crate) everyone: bool,
    pub(crate) header: HopHeader,
    pub(crate) ipv6_prefix: u8,
    pub(crate) sources: Vec<(Box<str>, Source)>,
}

/// A request as a front received it.
#[derive(Clone, Copy)]
pub struct Request<'r, 'h> {
    /// Who is at the other end of the connection, if that is known.
    pub peer: Option<IpAddr>,
    /// The method.
    pub method: &'r str,
    /// Path and query, as sent.
    pub target: &'r str,
    /// All values of a header, by its name in small letters, in the order of their lines; as bytes, because
    /// a front that left out what is no text would let its client choose what is left out.
    pub headers: &'h dyn Fn(&str) -> Vec<&'r [u8]>,
}

/// Where an attribute is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) place: SourcePlace,
    /// Whether only its digest is kept.
    pub(crate) secret: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SourcePlace {
    Header(String),
    Cookie(String),
    Query(String),
    WholeQuery,
}

/// A value that is longer is known by its digest.
const LONGEST_SHOWN: usize = 1024;

// === impl Identity ===

impl Default for Identity {
    fn default() -> Self {
        let header = HopHeader::XForwardedFor;
        let trusted = Trusted::new([], header);
        let place = Place { line: 1, column: 1 };
        Self { place, trusted, everyone: false, header, ipv6_prefix: 64, sources: Vec::new() }
    }
}

impl Identity {
    /// Whether the headers of a peer are believed.
    #[must_use]
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.trusted.trusts(peer.to_canonical())
    }

    /// What is known of a request. `digest` turns a secret into a name for it.
    ///
    /// ```
    /// use tidegate_policy::{Identity, Request};
    /// let headers = |_: &str| vec![&b"198.51.100.1"[..]]; // claims to be somebody else; nobody is trusted
    /// let peer = "203.0.113.7".parse().ok();
    /// let request = Request { peer, method: "GET", target: "/", headers: &headers };
    /// let attributes = Identity::default().attributes(&request, &|_| String::new()).unwrap();
    /// assert_eq!(attributes.get("ip").as_deref(), Some("203.0.113.7"));
    /// ```
    pub fn attributes<'r>(
        &self,
        request: &Request<'r, '_>,
        digest: &dyn Fn(&str) -> String,
    ) -> Result<Attributes<'r>, AttributeError> {
        let mut attributes = Attributes::of(request.method, request.target)?;
        let Some(peer) = request.peer else { return Ok(attributes) };
        if !self.trusts(peer) {
            return Ok(attributes.from_address(peer));
        }
        let hops = request.texts(self.header.name());
        attributes =
            attributes.from_address(self.trusted.client(peer, hops.iter().map(|hop| &**hop)));
        for (name, source) in &self.sources {
            if let Some(value) = source.place.read(request) {
                let hidden = source.secret || value.len() > LONGEST_SHOWN;
                let value = if hidden { digest(&value) } else { value };
                attributes.set(name.to_string(), value)?;
            }
        }
        Ok(attributes)
    }

    /// Whether attributes hold secrets, or texts that are too long to show.
    #[must_use]
    pub fn reveals(&self, attributes: &Attributes<'_>) -> bool {
        attributes.any_named(|name, value| self.hides(name, value))
    }

    /// Replaces secrets by their digests, and texts that are too long to show, in attributes that came by
    /// another way. What is a digest already stays.
    ///
    /// ```
    /// use tidegate_policy::{Attributes, Identity};
    /// let mut request = Attributes::new().with("api_key", "s3cr3t")?;
    /// Identity::default().conceal(&mut request, &|secret| format!("#{}", secret.len()));
    /// assert_eq!(request.get("api_key").as_deref(), Some("#6"));
    /// # Ok::<(), tidegate_policy::AttributeError>(())
    /// ```
    pub fn conceal(&self, attributes: &mut Attributes<'_>, digest: &dyn Fn(&str) -> String) {
        attributes.conceal(|name, value| self.hides(name, value).then(|| digest(value)));
    }

    fn hides(&self, name: &str, value: &str) -> bool {
        let secret = name == "api_key" || self.is_secret(name);
        (secret && !is_digest(value)) || value.len() > LONGEST_SHOWN
    }

    /// By how many bits IPv6 is counted.
    ///
    /// ```
    /// assert_eq!(tidegate_policy::Identity::default().ipv6_prefix(), 64);
    /// ```
    #[must_use]
    pub const fn ipv6_prefix(&self) -> u8 {
        self.ipv6_prefix
    }

    fn is_secret(&self, name: &str) -> bool {
        self.sources.iter().any(|(known, source)| **known == *name && source.secret)
    }
}

// === impl Request ===

impl<'r> Request<'r, '_> {
    /// The values of a header as text. A byte that is none becomes U+FFFD, and the rest of its line counts.
    fn texts(&self, name: &str) -> Vec<Cow<'r, str>> {
        (self.headers)(name).into_iter().map(String::from_utf8_lossy).collect()
    }
}

// === impl Source ===

impl Source {
    /// Reads `header:x-user-id`, `digest:cookie:session`, `digest:query`.
    pub(crate) fn parse(attribute: &str, text: &str) -> Option<Self> {
        let (secret, rest) = match text.strip_prefix("digest:") {
            Some("query") => return Some(Self { place: SourcePlace::WholeQuery, secret: true }),
            Some(rest) => (true, rest),
            None => (attribute == "api_key", text),
        };
        let (kind, name) = rest.split_once(':')?;
        let name = name.trim();
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || name.len() > 128 || !name.bytes().all(token) {
            return None;
        }
        let place = match kind {
            "header" => SourcePlace::Header(name.to_ascii_lowercase()),
            "cookie" => SourcePlace::Cookie(name.to_owned()),
            "query" => SourcePlace::Query(name.to_owned()),
            _ => return None,
        };
        Some(Self { place, secret })
    }
}

impl SourcePlace {
    /// The value; the last one where there are several: the nearest proxy wrote it.
    fn read(&self, request: &Request<'_, '_>) -> Option<String> {
        let query = || request.target.split_once('?').map(|(_, query)| query);
        let value = match self {
            Self::Header(name) => request.texts(name).pop().map(Cow::into_owned),
            Self::Cookie(name) => {
                let lines = request.texts("cookie");
                let pairs = lines.iter().flat_map(|line| line.split(';'));
                let pairs = pairs.filter_map(|pair| pair.trim().split_once('='));
                let mut named = pairs.filter(|(found, _)| *found == name);
                named.next_back().map(|(_, value)| value.trim_matches('"').to_owned())
            }
            Self::Query(name) => {
                let pairs = query()?.split('&').filter_map(|pair| pair.split_once('='));
                let mut named = pairs.filter(|(found, _)| decoded(found) == *name);
                named.next_back().map(|(_, value)| decoded(value))
            }
            Self::WholeQuery => query().map(str::to_owned),
        };
        value.map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }
}

/// A part of a query, with its escapes decoded; what cannot be decoded stays.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, others @ ..] = rest {
        rest = others;
        let escaped = match (first, others) {
            (b'%', [high, low, ..]) => {
                let digits = [*high, *low].map(|digit| char::from(digit).to_digit(16));
                match digits {
                    [Some(high), Some(low)] => u8::try_from((high << 4) | low).ok(),
                    _ => None,
                }
            }
            _ => None,
        };
        match escaped {
            Some(byte) => {
                rest = others.get(2..).unwrap_or_default();
                bytes.push(byte);
            }
            None => bytes.push(if *first == b'+' { b' ' } else { *first }),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether a value is a digest already: `#` and 32 hexadecimal digits.
pub(crate) fn is_digest(value: &str) -> bool {
    let digits = value.strip_prefix('#').unwrap_or_default();
    digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether networks are, taken together, everybody.
pub(crate) fn is_everybody(networks: &[IpNet]) -> bool {
    IpNet::aggregate(&networks.to_vec()).iter().any(|network| network.prefix_len() == 0)
}

#[cfg(test)]
mod tests {
    use crate::{Attributes, Policy, Request};

    const POLICY: &str = "
version: 1
identity:
  trusted: [10.0.0.0/8]
  user: header:x-user-id
  session: cookie:sid
  page: query:page
  api_key: header:x-api-key
  query: digest:query
rules: [{ name: a, key: [user], limits: [1/s] }]
";

    fn attributes(
        peer: &str,
        target: &'static str,
        headers: &[(&str, &'static str)],
    ) -> Attributes<'static> {
        let headers: Vec<_> =
            headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        attributes_of_bytes(peer, target, &headers)
    }

    fn attributes_of_bytes(
        peer: &str,
        target: &'static str,
        headers: &[(&str, &'static [u8])],
    ) -> Attributes<'static> {
        let values = |wanted: &str| -> Vec<&'static [u8]> {
            headers.iter().filter(|(name, _)| *name == wanted).map(|(_, value)| *value).collect()
        };
        let request = Request { peer: peer.parse().ok(), method: "get", target, headers: &values };
        let policy = Policy::parse(POLICY).unwrap();
        policy.identity().attributes(&request, &|secret| format!("#{}", secret.len())).unwrap()
    }

    #[test]
    fn headers_name_somebody_only_when_a_trusted_peer_passed_them_on() {
        let headers = [
            ("x-user-id", "alice"),
            ("cookie", "a=b; sid=77"),
            ("x-api-key", "s3cr3t"),
            ("x-forwarded-for", "203.0.113.7"),
        ];
        let believed = attributes("10.0.0.1", "/urls?page=%32&x=y", &headers);
        for (name, value) in [
            ("ip", "203.0.113.7"),
            ("user", "alice"),
            ("session", "77"),
            ("page", "2"),
            ("api_key", "#6"),
            ("query", "#12"),
            ("method", "GET"),
            ("path", "/urls"),
        ] {
            assert_eq!(believed.get(name).as_deref(), Some(value), "{name}");
        }
        let stranger = attributes("198.51.100.1", "/urls?page=2", &headers);
        let known: Vec<&str> = stranger.iter().map(|(name, _)| name).collect();
        assert_eq!(known, ["ip", "method", "path"]);
        assert_eq!(stranger.get("ip").as_deref(), Some("198.51.100.1"));
    }

    #[test]
    fn the_nearest_of_several_values_counts_and_an_empty_one_is_none() {
        let twice = attributes("10.0.0.1", "/", &[("x-user-id", "forged"), ("x-user-id", "alice")]);
        assert_eq!(twice.get("user").as_deref(), Some("alice"));
        let empty = attributes("10.0.0.1", "/", &[("x-user-id", "  ")]);
        assert_eq!(empty.get("user"), None);
        let long: &'static str = "x".repeat(2_000).leak();
        let long = attributes("10.0.0.1", "/", &[("x-user-id", long)]);
        assert_eq!(long.get("user").as_deref(), Some("#2000"));
    }
    /// A cookie with a byte that is no text once made its whole line unread, and its client nobody.
    #[test]
    fn bytes_that_are_no_text_hide_nothing_beside_them() {
        let headers: [(&str, &[u8]); 3] = [
            ("x-user-id", b"alice\xff"),
            ("cookie", b"a=\xe9; sid=77"),
            ("x-forwarded-for", b"\xff, 203.0.113.7"),
        ];
        let known = attributes_of_bytes("10.0.0.1", "/", &headers);
        for (name, value) in [("user", "alice\u{fffd}"), ("session", "77"), ("ip", "203.0.113.7")] {
            assert_eq!(known.get(name).as_deref(), Some(value), "{name}");
        }
    }
}
