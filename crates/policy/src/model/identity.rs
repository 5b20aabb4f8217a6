//! Identity: turns an HTTP request into attributes.
//!
//! ```text
//!   peer 10.0.0.1 (trusted)   X-Forwarded-For: forged, 203.0.113.7   X-User-Id: alice   X-Api-Key: s3cr3t
//!        └─► ip 203.0.113.7      user alice      api_key #9f86…      method POST      path /urls
//! ```
//!
//! A client can forge everything that it sends. So headers, cookies and queries are read only from trusted peers; for any
//! other peer, only its address is used. Secrets are replaced by their digests here, so that no counter, log or dashboard
//! ever contains one.
//!
//! Of `Cookie: sid=REAL; sid=7` some frameworks use the first value and some the last. A client must not be one customer
//! here and another one in the service behind, so a request with different values of something that the policy reads is
//! refused, unless the policy says which value counts.

use crate::document::{Place, shown};
use crate::model::address::{HopHeader, Trusted};
use crate::model::attributes::{AttributeError, Attributes};
use crate::model::path::decode_escape;
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
    /// Whether only the digest of the value is kept.
    pub(crate) secret: bool,
    pub(crate) duplicates: Duplicates,
    pub(crate) decode: Decode,
}

/// Which of several different values counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Duplicates {
    /// None of them: the request is refused.
    #[default]
    Reject,
    First,
    Last,
}

/// How a value is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decode {
    Nothing,
    /// `%41`.
    Percent,
    /// `%41`, and `+` is a space.
    Form,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SourcePlace {
    Header(String),
    Cookie(String),
    Query(String),
    WholeQuery,
}

/// A longer value is replaced by its digest.
const LONGEST_SHOWN: usize = 1024;
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

    /// The attributes of a request. `digest` returns the digest of a secret, which is kept in its place.
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
        let mut attributes = Attributes::of(request.method, request.target)?;
        let Some(peer) = request.peer else { return Ok(attributes) };
        if !self.trusts(peer) {
            return Ok(attributes.from_address(peer));
        }
        let hops = request.texts(self.header.name());
        attributes =
            attributes.from_address(self.trusted.client(peer, hops.iter().map(|hop| &**hop)));
        for (name, source) in &self.sources {
            let value = source.read(request).map_err(|DifferentValues| {
                AttributeError::Duplicates(name.to_string(), source.place.to_string())
            })?;
            if let Some(value) = value {
                let hidden = source.secret || value.len() > LONGEST_SHOWN;
                let value = if hidden { digest(&value) } else { value };
                attributes.set(name.to_string(), value)?;
            }
        }
        Ok(attributes)
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
    /// The values of a header as text. Invalid UTF-8 becomes U+FFFD, and the rest of the line stays readable.
    fn texts(&self, name: &str) -> Vec<Cow<'r, str>> {
        (self.headers)(name).into_iter().map(String::from_utf8_lossy).collect()
    }
}

// === impl Source ===

/// A request has different values where one is expected.
struct DifferentValues;

impl Source {
    /// Parses `header:x-user-id`, `digest:cookie:session` or `digest:query`.
    pub(crate) fn parse(attribute: &str, text: &str) -> Option<Self> {
        let (secret, rest) = match text.strip_prefix("digest:") {
            Some("query") => return Some(Self::new(SourcePlace::WholeQuery, true)),
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
        Some(Self::new(place, secret))
    }

    fn new(place: SourcePlace, secret: bool) -> Self {
        let decode = match place {
            SourcePlace::Query(_) => Decode::Form,
            SourcePlace::Header(_) | SourcePlace::Cookie(_) | SourcePlace::WholeQuery => {
                Decode::Nothing
            }
        };
        Self { place, secret, duplicates: Duplicates::Reject, decode }
    }

    /// The value; `None` if it is absent or empty.
    fn read(&self, request: &Request<'_, '_>) -> Result<Option<String>, DifferentValues> {
        let mut values = ValuePicker { duplicates: self.duplicates, chosen: None, differ: false };
        let query = || request.target.split_once('?').map(|(_, query)| query);
        match &self.place {
            SourcePlace::Header(name) => {
                let lines = request.texts(name);
                lines.iter().for_each(|line| values.add(&self.decode.of(line.trim())));
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

/// Picks one of several values.
struct ValuePicker {
    duplicates: Duplicates,
    chosen: Option<String>,
    differ: bool,
}

impl ValuePicker {
    fn add(&mut self, value: &str) {
        let value = value.trim();
        match (&self.chosen, self.duplicates) {
            (Some(chosen), Duplicates::Reject) => self.differ |= chosen != value,
            (Some(_), Duplicates::First) => {}
            (None, _) | (Some(_), Duplicates::Last) => self.chosen = Some(value.to_owned()),
        }
    }
}

impl Decode {
    /// Decodes a value once. Invalid escapes stay as they are.
    fn of(self, text: &str) -> Cow<'_, str> {
        let decoded = match self {
            Self::Nothing => false,
            Self::Percent => text.contains('%'),
            Self::Form => text.contains(['%', '+']),
        };
        if decoded { self.decoded(text).into() } else { text.into() }
    }

    fn decoded(self, text: &str) -> String {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let [first, others @ ..] = rest {
            let escaped = match (first, others) {
                (b'%', [high, low, ..]) => decode_escape(*high, *low),
                _ => None,
            };
            rest = if escaped.is_some() { others.get(2..).unwrap_or_default() } else { others };
            bytes.push(match (escaped, first, self) {
                (Some(byte), _, _) => byte,
                (None, b'+', Self::Form) => b' ',
                (None, byte, _) => *byte,
            });
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl std::fmt::Display for SourcePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header(name) => write!(f, "the header field `{name}`"),
            Self::Cookie(name) => write!(f, "the cookie `{name}`"),
            Self::Query(name) => write!(f, "the query parameter `{name}`"),
            Self::WholeQuery => f.write_str("the query"),
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
    use crate::{Attributes, Policy, Request};
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

    #[test]
    fn an_empty_value_is_absent_and_a_long_one_is_replaced_by_its_digest() {
        let empty = attributes("10.0.0.1", "/", &[("x-user-id", "  ")]);
        assert_eq!(empty.get("user"), None);
        let long: &'static str = "x".repeat(2_000).leak();
        let long = attributes("10.0.0.1", "/", &[("x-user-id", long)]);
        assert_eq!(long.get("user").as_deref(), Some("#2000"));
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
