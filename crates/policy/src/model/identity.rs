//! Identity: turns an HTTP request into attributes.
//!
//! ```text
//!   peer 10.0.0.1 (trusted)   X-Forwarded-For: forged, 203.0.113.7   X-User-Id: alice   X-Api-Key: s3cr3t
//!        └─► ip 203.0.113.7      user alice      api_key #9f86…      method POST      path /urls
//! ```
//!
//! A client can forge everything that it sends. So headers, cookies and queries are read only from trusted peers; for any
//! other peer, only its address is used, and sources that the policy marks with `peers: any`: credentials of the client itself,
//! such as API keys. A claim of a token (`jwt:sub`) and what an auth server says (`auth:x-user`) are the exceptions: they count
//! from every peer, but only the caller can verify them. Secrets are replaced by their digests here, so that nothing shows one.
//!
//! Of `Cookie: sid=REAL; sid=7` some frameworks use the first value and some the last. A client must not be one customer
//! here and another one in the service behind, so a request with different values of something that the policy reads is
//! refused, unless the policy says which value counts.

mod decode;
mod overrides;
mod sources;
pub(crate) use decode::{Decode, Duplicates};
pub use overrides::METHOD_OVERRIDES;

use crate::document::{Place, shown};
use crate::model::address::{HopHeader, Trusted};
use crate::model::attributes::{AttributeError, Attributes, is_attribute};
use decode::{ValuePicker, credentials};
use ipnet::IpNet;
use std::borrow::Cow;
use std::net::IpAddr;

/// How HTTP requests are turned into attributes.
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
    /// The position of `identity` in the file.
    pub(crate) place: Place,
    pub(crate) trusted: Trusted,
    pub(crate) everyone: bool,
    pub(crate) header: HopHeader,
    pub(crate) ipv6_prefix: u8,
    pub(crate) sources: Vec<(Box<str>, Source)>,
}

/// An HTTP request as a front end received it.
#[derive(Clone, Copy)]
pub struct Request<'r, 'h> {
    /// The address of the other end of the connection, if it is known.
    pub peer: Option<IpAddr>,
    /// The method.
    pub method: &'r str,
    /// Path and query, as sent.
    pub target: &'r str,
    /// All values of a header, by its name in lower case, in the order of the lines. They are bytes, not text: if a front
    /// end dropped values that are not valid text, its clients could choose what is dropped.
    pub headers: &'h dyn Fn(&str) -> Vec<&'r [u8]>,
}

/// Where the value of an attribute comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) place: SourcePlace,
    pub(crate) peers: Peers,
    /// Whether only the digest of the value is kept.
    pub(crate) secret: bool,
    pub(crate) duplicates: Duplicates,
    pub(crate) decode: Decode,
}

/// From whom a source is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Peers {
    /// Only from trusted peers, which write the value for their clients.
    #[default]
    Trusted,
    /// From every peer. A client that invents values gets a new counter for each of them.
    Any,
}

/// A source whose values the caller must verify before they become attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifiedSource<'s> {
    /// A claim of the JSON Web Token in `Authorization: Bearer`.
    Jwt(&'s str),
    /// A header field in the answer of an auth server, in lower case.
    Auth(&'s str),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SourcePlace {
    Header(String),
    Cookie(String),
    Query(String),
    WholeQuery,
    /// A claim of a token.
    Jwt(String),
    /// A header field in the answer of an auth server.
    Auth(String),
}

/// A longer value is replaced by its digest.
const LONGEST_SHOWN: usize = 1024;
/// The header in which trusted peers name the priority class of a request.
const CLASS_HEADER: &str = "tidegate-priority";
/// Attributes that are never replaced by a digest.
const ALWAYS_SHOWN: [&str; 3] = ["ip", "method", "path"];

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
    /// Whether the headers of a peer are trusted.
    #[must_use]
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.trusted.trusts(peer.to_canonical())
    }

    /// The attributes of a request. `digest` returns the digest of a secret, which is kept in its place. A policy with sources
    /// that must be verified is an error here: without their attributes, its rules would not apply.
    ///
    /// ```
    /// use tidegate_policy::{Identity, Request};
    /// let headers = |_: &str| vec![&b"198.51.100.1"[..]]; // forged, and the peer is not trusted
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
        match self.verified_sources().next() {
            None => self.unverified(request, digest),
            Some((name, source)) => {
                Err(AttributeError::Unverified(name.to_owned(), source.to_string()))
            }
        }
    }

    /// The attributes of a request, for a caller that verifies tokens. `verified` returns the value of a source, if the request has
    /// one; it is called only for sources that the policy names. `digest` returns the digest of a secret, which is kept in its place.
    ///
    /// ```
    /// use tidegate_policy::{Policy, Request, VerifiedSource};
    /// let policy = Policy::parse("
    /// version: 1
    /// identity: { user: 'jwt:sub' }
    /// rules: [{ name: per-user, key: [user], limits: [15/s] }]
    /// ").unwrap();
    /// let peer = "203.0.113.7".parse().ok();
    /// let request = Request { peer, method: "GET", target: "/", headers: &|_| vec![] };
    /// let verified = |source: VerifiedSource<'_>| match source {
    ///     VerifiedSource::Jwt("sub") => Some("alice".to_owned()),
    ///     VerifiedSource::Jwt(_) | VerifiedSource::Auth(_) => None,
    /// };
    /// let digest = |_: &str| String::new();
    /// let attributes = policy.identity().attributes_verified(&request, &verified, &digest).unwrap();
    /// assert_eq!(attributes.get("user").as_deref(), Some("alice"));
    /// assert!(policy.identity().attributes(&request, &digest).is_err());
    /// ```
    pub fn attributes_verified<'r>(
        &self,
        request: &Request<'r, '_>,
        verified: &dyn Fn(VerifiedSource<'_>) -> Option<String>,
        digest: &dyn Fn(&str) -> String,
    ) -> Result<Attributes<'r>, AttributeError> {
        let mut attributes = self.unverified(request, digest)?;
        for (name, source) in &self.sources {
            if let Some(value) = source.place.verified().and_then(verified) {
                source.store(&mut attributes, name, value, digest)?;
            }
        }
        Ok(attributes)
    }

    /// The attributes whose values must be verified, with their sources.
    pub fn verified_sources(&self) -> impl Iterator<Item = (&str, VerifiedSource<'_>)> {
        let sources = self.sources.iter();
        sources.filter_map(|(name, source)| Some((&**name, source.place.verified()?)))
    }

    /// The attributes that need no verification.
    fn unverified<'r>(
        &self,
        request: &Request<'r, '_>,
        digest: &dyn Fn(&str) -> String,
    ) -> Result<Attributes<'r>, AttributeError> {
        let mut attributes = Attributes::of(request.method, request.target)?;
        let is_trusted = request.peer.is_some_and(|peer| self.trusts(peer));
        if let Some(peer) = request.peer {
            let hops = if is_trusted { request.texts(self.header.name()) } else { vec![] };
            let client = self.trusted.client(peer, hops.iter().map(|hop| &**hop));
            attributes = attributes.from_address(client);
        }
        if is_trusted && let Some(class) = request.named_class() {
            attributes.set("priority", class)?;
        }
        let is_read = |source: &Source| is_trusted || source.peers == Peers::Any;
        for (name, source) in self.sources.iter().filter(|(_, source)| is_read(source)) {
            let value = source.read(request).map_err(|DifferentValues| {
                AttributeError::Duplicates(name.to_string(), source.place.to_string())
            })?;
            if let Some(value) = value {
                source.store(&mut attributes, name, value, digest)?;
            }
        }
        Ok(attributes)
    }

    /// Whether an attribute is read from requests.
    pub(crate) fn reads(&self, name: &str) -> bool {
        self.sources.iter().any(|(known, _)| **known == *name)
    }

    /// Whether every client can invent values of an attribute: it is read from any peer, and not verified.
    pub(crate) fn lets_clients_invent(&self, name: &str) -> bool {
        let mut sources = self.sources.iter().filter(|(known, _)| **known == *name);
        sources.any(|(_, source)| source.peers == Peers::Any)
    }

    /// Whether attributes contain secrets, or texts that are too long to show.
    #[must_use]
    pub fn reveals(&self, attributes: &Attributes<'_>) -> bool {
        attributes.any_named(|name, value| self.hides(name, value))
    }

    /// Replaces secrets and overlong texts by their digests, for attributes that did not come from an HTTP request. A value
    /// that is a digest already stays.
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

    /// The value of an attribute as a log may show it: a secret or an overlong text is replaced by its digest.
    ///
    /// ```
    /// let policy = tidegate_policy::Policy::parse("
    /// version: 1
    /// rules: [{ name: a, key: [user], limits: [15/s] }]
    /// ").unwrap();
    /// let shown = |name, value| policy.identity().shown(name, value, &|_| "#5f".to_owned());
    /// assert_eq!(shown("user", "alice"), "alice");
    /// assert_eq!(shown("api_key", "hunter2"), "#5f");
    /// ```
    #[must_use]
    pub fn shown<'v>(
        &self,
        name: &str,
        value: &'v str,
        digest: &dyn Fn(&str) -> String,
    ) -> Cow<'v, str> {
        if self.hides(name, value) { digest(value).into() } else { value.into() }
    }

    fn hides(&self, name: &str, value: &str) -> bool {
        (self.digests(name) && !is_digest(value)) || value.len() > LONGEST_SHOWN
    }

    /// Whether a policy may contain this value of an attribute. Requests have the digest in place of a secret and of an
    /// overlong text, so the value itself would never be equal; and a secret does not belong in a file.
    pub(crate) fn may_name(&self, name: &str, value: &str) -> Result<(), String> {
        if !ALWAYS_SHOWN.contains(&name) && self.hides(name, value) {
            let what = match name {
                "api_key" => "an API key".to_owned(),
                _ if self.is_secret(name) => format!("`{}`", shown(name)),
                _ => format!("a value of `{}` above {LONGEST_SHOWN} bytes", shown(name)),
            };
            let how = "is stored as a digest; write the digest (`#…`) that `policy explain --secret-file` shows";
            return Err(format!("{what} {how}"));
        }
        Ok(())
    }

    /// Whether an attribute is always stored as a digest.
    pub(crate) fn digests(&self, name: &str) -> bool {
        name == "api_key" || self.is_secret(name)
    }

    /// The first attribute in a text that is stored as a digest.
    pub(crate) fn secret_in<'s>(&'s self, text: &str) -> Option<&'s str> {
        let secrets = self.sources.iter().filter(|(_, source)| source.secret);
        let mut names = std::iter::once("api_key").chain(secrets.map(|(name, _)| &**name));
        names.find(|name| text.contains(name))
    }

    /// The length of the prefix by which IPv6 addresses are counted.
    ///
    /// ```
    /// let policy = tidegate_policy::Policy::parse("
    /// version: 1
    /// identity: { ip: { ipv6_prefix: 48 } }
    /// rules: [{ name: a, key: [ip], limits: [15/s] }]
    /// ").unwrap();
    /// assert_eq!(policy.identity().ipv6_prefix(), 48);
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
    /// The priority class that the request names, if it names exactly one.
    fn named_class(&self) -> Option<&'r str> {
        let values = (self.headers)(CLASS_HEADER);
        let class = values.first().and_then(|value| std::str::from_utf8(value).ok())?;
        (values.len() == 1 && is_attribute(class)).then_some(class)
    }

    /// The values of a header as text. Invalid UTF-8 becomes U+FFFD, and the rest of the line stays readable.
    fn texts(&self, name: &str) -> Vec<Cow<'r, str>> {
        (self.headers)(name).into_iter().map(String::from_utf8_lossy).collect()
    }
}

// === impl Source ===

/// A request has different values where one is expected.
struct DifferentValues;

impl Source {
    /// Parses `header:x-user-id`, `digest:cookie:session`, `jwt:sub` or `digest:query`.
    pub(crate) fn parse(attribute: &str, text: &str) -> Option<Self> {
        let (secret, rest) = match text.strip_prefix("digest:") {
            Some("query") => return Some(Self::new(SourcePlace::WholeQuery, true)),
            Some(rest) => (true, rest),
            None => (attribute == "api_key", text),
        };
        let (kind, name) = rest.split_once(':')?;
        let name = name.trim();
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        // The names of claims may be URLs.
        let valid = |byte: u8| if kind == "jwt" { byte.is_ascii_graphic() } else { token(byte) };
        if name.is_empty() || name.len() > 128 || !name.bytes().all(valid) {
            return None;
        }
        let place = match kind {
            "jwt" => SourcePlace::Jwt(name.to_owned()),
            "auth" => SourcePlace::Auth(name.to_ascii_lowercase()),
            "header" => SourcePlace::Header(name.to_ascii_lowercase()),
            "cookie" => SourcePlace::Cookie(name.to_owned()),
            "query" => SourcePlace::Query(name.to_owned()),
            _ => return None,
        };
        Some(Self::new(place, secret))
    }

    fn new(place: SourcePlace, secret: bool) -> Self {
        let decode = match place {
            SourcePlace::Query(_) => Decode::Form,
            SourcePlace::Header(_)
            | SourcePlace::Cookie(_)
            | SourcePlace::WholeQuery
            | SourcePlace::Jwt(_)
            | SourcePlace::Auth(_) => Decode::Nothing,
        };
        let (peers, duplicates) = (Peers::Trusted, Duplicates::Reject);
        Self { place, peers, secret, duplicates, decode }
    }

    /// Sets an attribute to a value of this source, or to its digest.
    fn store(
        &self,
        attributes: &mut Attributes<'_>,
        name: &str,
        value: String,
        digest: &dyn Fn(&str) -> String,
    ) -> Result<(), AttributeError> {
        let hidden = self.secret || value.len() > LONGEST_SHOWN;
        let value = if hidden && !value.is_empty() { digest(&value) } else { value };
        attributes.set(name.to_owned(), value)
    }

    /// The value; `None` if it is absent or empty.
    fn read(&self, request: &Request<'_, '_>) -> Result<Option<String>, DifferentValues> {
        let mut values = ValuePicker { duplicates: self.duplicates, chosen: None, differ: false };
        let query = || request.target.split_once('?').map(|(_, query)| query);
        match &self.place {
            SourcePlace::Header(name) => {
                let lines = request.texts(name);
                let plain =
                    |line| if name == "authorization" { credentials(line) } else { line.into() };
                lines.iter().for_each(|line| values.add(&self.decode.of(&plain(line))));
            }
            SourcePlace::Cookie(name) => self.read_cookie(request, name, &mut values),
            // The name is always decoded: no framework compares it as it was sent.
            SourcePlace::Query(name) => {
                for (found, value) in pairs(query().unwrap_or_default(), '&') {
                    if Decode::Form.of(found) == *name {
                        values.add(&self.decode.of(value));
                    }
                }
            }
            SourcePlace::WholeQuery => {
                query().into_iter().for_each(|query| values.add(query));
            }
            // The caller verifies it.
            SourcePlace::Jwt(_) | SourcePlace::Auth(_) => {}
        }
        if values.differ {
            return Err(DifferentValues);
        }
        Ok(values.chosen.filter(|value| !value.is_empty()))
    }

    fn read_cookie(&self, request: &Request<'_, '_>, name: &str, values: &mut ValuePicker) {
        let lines = request.texts("cookie");
        for (found, value) in lines.iter().flat_map(|line| pairs(line, ';')) {
            if self.decode.of(found.trim()) == *name {
                values.add(&self.decode.of(value.trim().trim_matches('"')));
            }
        }
    }
}

/// Names and values. A name without `=` has an empty value.
fn pairs(text: &str, separator: char) -> impl Iterator<Item = (&str, &str)> {
    text.split(separator).map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

impl SourcePlace {
    /// The source as the caller sees it who must verify it.
    pub(crate) fn verified(&self) -> Option<VerifiedSource<'_>> {
        match self {
            Self::Jwt(claim) => Some(VerifiedSource::Jwt(claim)),
            Self::Auth(name) => Some(VerifiedSource::Auth(name)),
            Self::Header(_) | Self::Cookie(_) | Self::Query(_) | Self::WholeQuery => None,
        }
    }
}

impl std::fmt::Display for VerifiedSource<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Jwt(claim) => write!(f, "jwt:{claim}"),
            Self::Auth(name) => write!(f, "auth:{name}"),
        }
    }
}

impl std::fmt::Display for SourcePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header(name) => write!(f, "the header field `{name}`"),
            Self::Cookie(name) => write!(f, "the cookie `{name}`"),
            Self::Query(name) => write!(f, "the query parameter `{name}`"),
            Self::WholeQuery => f.write_str("the query"),
            Self::Jwt(claim) => write!(f, "the claim `{claim}`"),
            Self::Auth(name) => write!(f, "the field `{name}` of the auth server"),
        }
    }
}

/// Whether a value is a digest already: `#` and 32 hexadecimal digits.
pub(crate) fn is_digest(value: &str) -> bool {
    let digits = value.strip_prefix('#').unwrap_or_default();
    digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether networks together contain every IPv4 or every IPv6 address.
pub(crate) fn contain_all_addresses(networks: &[IpNet]) -> bool {
    IpNet::aggregate(&networks.to_vec()).iter().any(|network| network.prefix_len() == 0)
}

#[cfg(test)]
mod tests {
    use crate::{Attributes, Policy, Request, VerifiedSource};
    use std::borrow::Cow;

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

    /// Servers find the same token in all of these, so they are one customer.
    #[test]
    fn credentials_have_one_counter_however_they_are_spelled() {
        let text = "version: 1
identity: { client: { from: 'header:authorization', peers: any } }
rules: [{ name: a, key: [client], limits: [1/s] }]";
        let policy = Policy::parse(text).unwrap();
        let client = |field: &'static [u8]| {
            let headers =
                move |name: &str| if name == "authorization" { vec![field] } else { vec![] };
            let request = Request { peer: None, method: "GET", target: "/", headers: &headers };
            let request = policy.attributes(&request, &|_| String::new()).unwrap();
            request.get("client").map(Cow::into_owned)
        };
        let fields: [&[u8]; 7] = [
            b"Bearer a.b-c",
            b"bearer a.b-c",
            b"BEARER   a.b-c ",
            b"Bearer\ta.b-c",
            b"Bearer\xa0a.b-c",
            "\u{a0}Bearer\u{3000}a.b-c".as_bytes(),
            b"Bearer \x85a.b-c\xa0",
        ];
        for field in fields {
            assert_eq!(client(field).as_deref(), Some("Bearer a.b-c"), "{field:?}");
        }
        assert_eq!(client(b"basic YTpi").as_deref(), Some("Basic YTpi"));
        assert_eq!(client(b"Key a  b").as_deref(), Some("Key a  b"));
        assert_eq!(client(b"\xa0"), None);
    }

    #[test]
    fn headers_are_read_only_from_trusted_peers() {
        let headers = [
            ("x-user-id", "alice"),
            ("cookie", "a=b; sid=77"),
            ("x-api-key", "s3cr3t"),
            ("x-forwarded-for", "203.0.113.7"),
        ];
        let trusted = attributes("10.0.0.1", "/urls?page=%32&x=y", &headers);
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
            assert_eq!(trusted.get(name).as_deref(), Some(value), "{name}");
        }
        let stranger = attributes("198.51.100.1", "/urls?page=2", &headers);
        let known: Vec<&str> = stranger.iter().map(|(name, _)| name).collect();
        assert_eq!(known, ["ip", "method", "path"]);
        assert_eq!(stranger.get("ip").as_deref(), Some("198.51.100.1"));
    }

    /// A client that shows an API key could not be counted by it unless a proxy passed the key on.
    #[test]
    fn a_source_with_peers_any_is_read_from_every_peer_and_no_other_source_is() {
        let policy = Policy::parse(
            "
version: 1
identity:
  trusted: [10.0.0.0/8]
  user: header:x-user-id
  api_key: { from: header:x-api-key, peers: any }
rules: [{ name: a, key: [api_key|ip], limits: [1/s] }, { name: b, key: [ip], limits: [9/s] }]
",
        )
        .unwrap();
        let known = |peer: Option<&str>, keys: &[&'static str]| {
            let values = |wanted: &str| -> Vec<&'static [u8]> {
                match wanted {
                    "x-api-key" => keys.iter().map(|key| key.as_bytes()).collect(),
                    "x-user-id" => vec![b"alice"],
                    "x-forwarded-for" => vec![b"203.0.113.7"],
                    "tidegate-priority" => vec![b"critical"],
                    _ => vec![],
                }
            };
            let peer = peer.and_then(|peer| peer.parse().ok());
            let request = Request { peer, method: "GET", target: "/", headers: &values };
            let known = policy.attributes(&request, &|secret| format!("#{}", secret.len()));
            let names = ["ip", "user", "api_key", "priority"];
            known.map(|known| names.map(|name| known.get(name).map(Cow::into_owned)))
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            known(Some("198.51.100.1"), &["s3cr3t"]),
            Ok([some("198.51.100.1"), None, some("#6"), None])
        );
        assert_eq!(known(None, &["s3cr3t"]), Ok([None, None, some("#6"), None]));
        assert_eq!(
            known(Some("10.0.0.1"), &["s3cr3t"]),
            Ok([some("203.0.113.7"), some("alice"), some("#6"), some("critical")])
        );
        assert_eq!(known(Some("198.51.100.1"), &[]), Ok([some("198.51.100.1"), None, None, None]));
        // Also here, a client is not one customer for tidegate and another one for the service behind it.
        assert!(known(Some("198.51.100.1"), &["s3cr3t", "other"]).is_err());
    }

    #[test]
    fn an_empty_value_is_absent_and_a_long_one_is_replaced_by_its_digest() {
        let empty = attributes("10.0.0.1", "/", &[("x-user-id", "  ")]);
        assert_eq!(empty.get("user"), None);
        let long: &'static str = "x".repeat(2_000).leak();
        let long = attributes("10.0.0.1", "/", &[("x-user-id", long)]);
        assert_eq!(long.get("user").as_deref(), Some("#2000"));
    }

    /// A policy whose users come from tokens must not be decided by a caller that does not verify: `key: [user]` would apply
    /// to no request.
    #[test]
    fn verified_sources_count_from_every_peer_and_only_if_the_caller_verifies() {
        let policy = Policy::parse(
            "{ version: 1, identity: { trusted: [10.0.0.0/8], user: 'jwt:sub', key: 'digest:jwt:https://a.example/key', team: 'auth:X-Team' }, rules: [{ name: a, key: [user], limits: [1/s] }] }",
        )
        .unwrap();
        let digest = |secret: &str| format!("#{}", secret.len());
        let verified = |source: VerifiedSource<'_>| match source {
            VerifiedSource::Jwt("sub") => Some("x".repeat(2_000)),
            VerifiedSource::Jwt("https://a.example/key") => Some("s3cr3t".to_owned()),
            VerifiedSource::Auth("x-team") => Some(String::new()),
            VerifiedSource::Jwt(_) | VerifiedSource::Auth(_) => panic!("{source}"),
        };
        for peer in ["10.0.0.1", "203.0.113.7"] {
            let headers = |_: &str| vec![&b"forged"[..]];
            let peer = peer.parse().ok();
            let request = Request { peer, method: "GET", target: "/", headers: &headers };
            let known = policy.attributes_verified(&request, &verified, &digest).unwrap();
            let values = ["user", "key", "team"].map(|name| known.get(name).map(Cow::into_owned));
            assert_eq!(values, [Some("#2000".to_owned()), Some("#6".to_owned()), None]);
            let error = policy.attributes(&request, &digest).unwrap_err().to_string();
            assert!(error.starts_with("`user` comes from `jwt:sub`, which only"), "{error}");
        }
    }

    /// The attribute `session`, read from this source; `Err` if the request is refused.
    fn session(
        source: &str,
        target: &'static str,
        headers: &[(&str, &'static str)],
    ) -> Result<Option<String>, String> {
        let values = |wanted: &str| -> Vec<&'static [u8]> {
            let named = headers.iter().filter(|(name, _)| *name == wanted);
            named.map(|(_, value)| value.as_bytes()).collect()
        };
        let peer = "10.0.0.1".parse().ok();
        let request = Request { peer, method: "GET", target, headers: &values };
        let policy = Policy::parse(format!(
            "{{ version: 1, identity: {{ trusted: [10.0.0.0/8], session: {source} }}, rules: [{{ name: a, key: [ip], limits: [1/s] }}] }}"
        ));
        let known = policy.unwrap().attributes(&request, &|_| String::new());
        let known = known.map_err(|error| error.to_string())?;
        Ok(known.get("session").map(Cow::into_owned))
    }

    /// `Cookie: sid=REAL; sid=7` was read as 7 here, and as REAL by frameworks that use the first value. So an attacker with
    /// one session got new limits for every number.
    #[test]
    fn different_values_are_refused_unless_the_policy_chooses_one() {
        for lines in [
            &["sid=REAL; sid=7"][..],
            &["sid=REAL", "sid=7"],
            &["a=b; sid=REAL; c=d", "sid=7; e"],
            &["sid=; sid=7"],
            &["sid=7; sid="],
            &["sid; sid=7"],
            &["sid=REAL; sid =7"],
            &["sid=REAL;sid= 7"],
            &["sid=\"REAL\"; sid=7"],
            // A parser that supports quotes sees only the second one.
            &["x=\"; sid=7; y=\"; sid=REAL"],
        ] {
            let headers: Vec<_> = lines.iter().map(|line| ("cookie", *line)).collect();
            let refused = session("'cookie:sid'", "/", &headers).unwrap_err();
            assert!(refused.starts_with("the cookie `sid` appears more than once"), "{refused}");
        }
        let cookie = [("cookie", "sid=REAL; sid=7")];
        for (duplicates, expected) in [("first", "REAL"), ("last", "7")] {
            let source = format!("{{ from: 'cookie:sid', duplicates: {duplicates} }}");
            assert_eq!(session(&source, "/", &cookie), Ok(Some(expected.to_owned())));
        }
        let headers = [("x-user", "alice"), ("x-user", "bob")];
        assert!(session("'header:x-user'", "/", &headers).is_err());
        assert!(session("'query:sid'", "/?sid=REAL&sid=7", &[]).is_err());
        assert!(session("'query:sid'", "/?sid=REAL&s%69d=7", &[]).is_err());
        assert!(session("'query:sid'", "/?sid&sid=7", &[]).is_err());
        let last = "{ from: 'query:sid', duplicates: last }";
        assert_eq!(session(last, "/?sid=REAL&sid=7", &[]), Ok(Some("7".to_owned())));
    }

    #[test]
    fn equal_values_and_other_names_make_no_difference() {
        for (source, target, headers) in [
            ("'cookie:sid'", "/", &[("cookie", "sid=7; sid=7")][..]),
            ("'cookie:sid'", "/", &[("cookie", "sid=7"), ("cookie", "a=1; a=2; sid=\"7\"")]),
            ("'cookie:sid'", "/", &[("cookie", " sid = 7 ;")]),
            ("'cookie:sid'", "/?sid=8&sid=9", &[("cookie", "sid=7; SID=8"), ("x-user", "a")]),
            ("'header:x-user'", "/", &[("x-user", "7"), ("x-user", " 7 ")]),
            ("'query:sid'", "/?sid=7&a=1&a=2&sid=%37", &[]),
        ] {
            assert_eq!(session(source, target, headers), Ok(Some("7".to_owned())), "{headers:?}");
        }
        // A comma does not separate values: many values contain one.
        let comma = [("x-user", "Doe, John")];
        assert_eq!(session("'header:x-user'", "/", &comma), Ok(Some("Doe, John".to_owned())));
    }

    /// `sid=%52EAL` is REAL for frameworks that decode cookies, and another value for those that do not.
    #[test]
    fn values_are_decoded_as_the_policy_says() {
        let cookie = [("cookie", "sid=%52EAL+1")];
        for (decode, expected) in [("none", "%52EAL+1"), ("percent", "REAL+1"), ("form", "REAL 1")]
        {
            let source = format!("{{ from: 'cookie:sid', decode: {decode} }}");
            assert_eq!(session(&source, "/", &cookie), Ok(Some(expected.to_owned())));
            let source = format!("{{ from: 'query:sid', decode: {decode} }}");
            assert_eq!(session(&source, "/?sid=%52EAL+1", &[]), Ok(Some(expected.to_owned())));
        }
        assert_eq!(session("'cookie:sid'", "/", &cookie), Ok(Some("%52EAL+1".to_owned())));
        assert_eq!(session("'query:sid'", "/?sid=%52EAL+1", &[]), Ok(Some("REAL 1".to_owned())));
        // After decoding, names and values are equal.
        let twice = [("cookie", "sid=REAL; s%69d=%52EAL")];
        let percent = "{ from: 'cookie:sid', decode: percent }";
        assert_eq!(session(percent, "/", &twice), Ok(Some("REAL".to_owned())));
        assert_eq!(session(percent, "/", &[("cookie", "sid=a%")]), Ok(Some("a%".to_owned())));
    }

    /// A byte that is not valid UTF-8 made the whole cookie line unreadable, so the client had no session.
    #[test]
    fn invalid_utf8_hides_nothing_beside_it() {
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
