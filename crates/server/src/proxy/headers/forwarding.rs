//! Where a request came from, told to the upstream server.
//!
//! ```text
//!   client ──► tidegate             X-Forwarded-For: 203.0.113.7             replaced: a client may write anything
//!   client ──► proxy ──► tidegate   X-Forwarded-For: 203.0.113.7, 10.0.0.1   appended: the proxy is trusted
//! ```
//!
//! There are two families of fields, `X-Forwarded-*` and `Forwarded` (RFC 7239). A trusted proxy that writes only one family
//! gets only that one extended: in the other one, the proxy would look like the client, and the connection from the proxy
//! like the connection from the client.

use super::only;
use super::request_id::{REQUEST_ID, is_valid_id};
use http::header::{FORWARDED, HeaderName};
use http::{HeaderMap, HeaderValue};
use std::fmt::Write as _;
use std::net::IpAddr;

const FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// What the server knows about the origin of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forwarding<'a> {
    /// The address at the other end of the connection.
    pub(crate) peer: IpAddr,
    /// Whether the peer is a proxy whose fields are believed.
    pub(crate) peer_is_trusted: bool,
    /// Whether the connection from the peer uses TLS.
    pub(crate) secure: bool,
    /// The host that the request is for, from [`host`](super::host).
    pub(crate) host: Option<&'a str>,
    /// The id of the request, unless a trusted peer sent one.
    pub(crate) request_id: &'a str,
}

/// Fields that say where a request came from, what it asked for originally, or which id it has. Upstream servers believe them.
/// A client that could choose them would choose its address, or a path that the rules did not see.
pub(super) fn is_provenance(name: &str) -> bool {
    let prefixes = ["x-forwarded-", "x-original-", "x-envoy-"];
    let listed = matches!(
        name,
        "cf-connecting-ip"
            | "fastly-client-ip"
            | "forwarded"
            | "true-client-ip"
            | "x-client-ip"
            | "x-cluster-client-ip"
            | "x-real-ip"
            | "x-request-id"
            | "x-rewrite-url"
    );
    listed || prefixes.iter().any(|prefix| name.starts_with(prefix))
}

// === impl Forwarding ===

impl Forwarding<'_> {
    /// Whether this field may be forged. A trusted proxy overwrites such fields, but may pass on spellings with underscores;
    /// `hyphened` is the name without them.
    pub(super) fn is_forged(&self, name: &HeaderName, hyphened: &str) -> bool {
        let misspelled = name.as_str() != hyphened;
        (misspelled || !self.peer_is_trusted) && is_provenance(hyphened)
    }

    /// Adds this hop to the fields that are left after the forged ones were removed.
    pub(super) fn write(&self, headers: &mut HeaderMap) {
        let standard = headers.contains_key(FORWARDED);
        let common = [FOR, PROTO, HOST].iter().any(|name| headers.contains_key(name));
        if standard || !common {
            append(headers, FORWARDED, self.element());
        }
        if common || !standard {
            append(headers, FOR, self.peer.to_canonical().to_string());
            headers.entry(PROTO).or_insert(HeaderValue::from_static(self.proto()));
            self.write_host(headers);
        }
        if !only(headers, &REQUEST_ID).is_some_and(is_valid_id) {
            set(headers, REQUEST_ID, self.request_id.as_bytes().to_vec());
        }
    }

    fn write_host(&self, headers: &mut HeaderMap) {
        if let Some(host) = self.plain_host()
            && !headers.contains_key(HOST)
        {
            set(headers, HOST, host.as_bytes().to_vec());
        }
    }

    /// This hop as an element of `Forwarded`, such as `for="[2001:db8::7]";host=shop.example;proto=https`.
    fn element(&self) -> String {
        let mut element = match self.peer.to_canonical() {
            IpAddr::V4(peer) => format!("for={peer}"),
            IpAddr::V6(peer) => format!("for=\"[{peer}]\""),
        };
        // Writing to a `String` cannot fail.
        let _ = match self.plain_host() {
            // A port or an IPv6 address is only allowed in quotes.
            Some(host) if host.contains([':', '[', ']']) => write!(element, ";host=\"{host}\""),
            Some(host) => write!(element, ";host={host}"),
            None => Ok(()),
        };
        let _ = write!(element, ";proto={}", self.proto());
        element
    }

    const fn proto(&self) -> &'static str {
        if self.secure { "https" } else { "http" }
    }

    /// The host, if it consists of the characters of a name or an address and a port. A client may send
    /// `Host: x,for=192.0.2.1`, and a reader that splits `Forwarded` at commas, even at those in quotes, would believe it.
    fn plain_host(&self) -> Option<&str> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
        self.host.filter(|host| !host.is_empty() && host.bytes().all(plain))
    }
}

/// Appends an element to a list. The fields of this name become one, because many programs read only the first.
fn append(headers: &mut HeaderMap, name: HeaderName, element: String) {
    let mut list = Vec::new();
    let lines = headers.get_all(&name).into_iter().map(|line| line.as_bytes().trim_ascii());
    for line in lines.filter(|line| !line.is_empty()) {
        list.extend_from_slice(line);
        list.extend_from_slice(b", ");
    }
    if list.is_empty() {
        return set(headers, name, element.into_bytes());
    }
    list.extend_from_slice(element.as_bytes());
    set(headers, name, list);
}

/// Replaces a field. If the new value cannot be sent, the old one is removed all the same.
fn set(headers: &mut HeaderMap, name: HeaderName, value: Vec<u8>) {
    match HeaderValue::try_from(value) {
        Ok(value) => headers.insert(name, value),
        Err(_) => headers.remove(name),
    };
}

#[cfg(test)]
mod tests {
    use super::super::tests::{HeaderLines, lines, map};
    use super::super::to_upstream;
    use super::*;

    const X_FOR: &str = "x-forwarded-for";
    const X_PROTO: &str = "x-forwarded-proto";
    const X_HOST: &str = "x-forwarded-host";
    const X_ID: &str = "x-request-id";

    const PROXY: &str = "10.0.0.1";
    const TRUSTED: Forwarding<'_> = Forwarding {
        peer: IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)),
        peer_is_trusted: true,
        secure: false,
        host: Some("shop.example"),
        request_id: "ours",
    };
    const UNTRUSTED: Forwarding<'_> = Forwarding { peer_is_trusted: false, ..TRUSTED };

    fn forwarded(forwarding: &Forwarding<'_>, sent: &[(&str, &str)]) -> HeaderLines {
        let mut headers = map(sent);
        to_upstream(&mut headers, forwarding, None);
        lines(&headers)
    }

    /// The value of one field after forwarding.
    fn field(forwarding: &Forwarding<'_>, sent: &[(&str, &str)], name: &str) -> Option<String> {
        let mut values = forwarded(forwarding, sent).into_iter().filter(|(field, _)| field == name);
        let value = values.next().map(|(_, value)| value);
        assert_eq!(values.next(), None, "{name} is repeated");
        value
    }

    /// Everything that this module writes for `UNTRUSTED`.
    fn written() -> HeaderLines {
        let element = "for=10.0.0.1;host=shop.example;proto=http";
        lines(&map(&[
            ("forwarded", element),
            (X_FOR, PROXY),
            (X_PROTO, "http"),
            (X_HOST, "shop.example"),
            (X_ID, "ours"),
        ]))
    }

    #[test]
    fn an_untrusted_peer_cannot_choose_where_its_request_came_from() {
        assert_eq!(forwarded(&UNTRUSTED, &[]), written());
        let names = [
            "Forwarded",
            "X-Forwarded-For",
            "X-Forwarded-Host",
            "X-Forwarded-Proto",
            "X-Forwarded-Port",
            "X-Forwarded-Prefix",
            "X-Forwarded-Uri",
            "X-Original-URI",
            "X-Original-URL",
            "X-Rewrite-URL",
            "X-Envoy-External-Address",
            "X-Real-IP",
            "X-Client-IP",
            "X-Cluster-Client-IP",
            "True-Client-IP",
            "CF-Connecting-IP",
            "Fastly-Client-IP",
            "X-Request-Id",
            "X_Forwarded_For",
            "X-Forwarded_For",
            "x_request_id",
        ];
        for name in names {
            let twice = [(name, "6.6.6.6"), (name, "for=\"[::1]\"\u{ff}")];
            assert_eq!(forwarded(&UNTRUSTED, &twice), written(), "{name}");
        }
    }

    #[test]
    fn the_address_of_a_trusted_peer_is_appended() {
        let cases: &[(&[&str], &str)] = &[
            (&["203.0.113.7"], "203.0.113.7, 10.0.0.1"),
            (&["1.1.1.1, 203.0.113.7"], "1.1.1.1, 203.0.113.7, 10.0.0.1"),
            (&["1.1.1.1", "203.0.113.7"], "1.1.1.1, 203.0.113.7, 10.0.0.1"),
            (&["", " ", "203.0.113.7 "], "203.0.113.7, 10.0.0.1"),
            (&[""], "10.0.0.1"),
            (&["\u{ff}, unknown"], "\u{ff}, unknown, 10.0.0.1"),
        ];
        for (values, expected) in cases {
            let sent: Vec<_> = values.iter().map(|value| (X_FOR, *value)).collect();
            assert_eq!(field(&TRUSTED, &sent, X_FOR).as_deref(), Some(*expected), "{values:?}");
        }
        let sent = [("Forwarded", "for=203.0.113.7;proto=https"), ("Forwarded", "for=_hidden")];
        let own = "for=10.0.0.1;host=shop.example;proto=http";
        let expected = format!("for=203.0.113.7;proto=https, for=_hidden, {own}");
        assert_eq!(field(&TRUSTED, &sent, "forwarded"), Some(expected));
    }

    #[test]
    fn a_trusted_peer_knows_the_scheme_and_the_host_better() {
        let sent = [(X_FOR, "203.0.113.7"), (X_PROTO, "https"), (X_HOST, "www.example")];
        for (name, expected) in [(X_PROTO, "https"), (X_HOST, "www.example"), ("forwarded", "")] {
            let value = field(&TRUSTED, &sent, name);
            assert_eq!(value.as_deref().unwrap_or_default(), expected, "{name}");
        }
        let sent = [(X_FOR, "203.0.113.7"), ("x-forwarded-port", "443"), ("x_forwarded_for", "x")];
        let cases = [
            (X_PROTO, "http"),
            (X_HOST, "shop.example"),
            ("x-forwarded-port", "443"),
            ("x_forwarded_for", ""),
        ];
        for (name, expected) in cases {
            let value = field(&TRUSTED, &sent, name);
            assert_eq!(value.as_deref().unwrap_or_default(), expected, "{name}");
        }
    }

    #[test]
    fn only_the_family_of_fields_that_a_trusted_peer_writes_is_extended() {
        let cases: &[(&[&str], bool, bool)] = &[
            (&[], true, true),
            (&["forwarded"], true, false),
            (&[X_FOR], false, true),
            (&[X_PROTO], false, true),
            (&["forwarded", X_FOR], true, true),
        ];
        for (names, standard, common) in cases {
            let sent: Vec<_> = names.iter().map(|name| (*name, "for=a")).collect();
            assert_eq!(field(&TRUSTED, &sent, "forwarded").is_some(), *standard, "{names:?}");
            assert_eq!(field(&TRUSTED, &sent, X_FOR).is_some(), *common, "{names:?}");
        }
    }

    #[test]
    fn an_element_of_forwarded_is_quoted_where_it_must_be() {
        let cases = [
            ("192.0.2.1", None, false, "for=192.0.2.1;proto=http"),
            ("::ffff:192.0.2.1", None, true, "for=192.0.2.1;proto=https"),
            ("2001:db8::7", None, true, "for=\"[2001:db8::7]\";proto=https"),
            ("192.0.2.1", Some("a.example"), true, "for=192.0.2.1;host=a.example;proto=https"),
            ("192.0.2.1", Some("a:80"), false, "for=192.0.2.1;host=\"a:80\";proto=http"),
            ("192.0.2.1", Some("[::1]"), false, "for=192.0.2.1;host=\"[::1]\";proto=http"),
            ("192.0.2.1", Some("x,for=6.6.6.6"), false, "for=192.0.2.1;proto=http"),
            ("192.0.2.1", Some("x\";for=6.6.6.6"), false, "for=192.0.2.1;proto=http"),
            ("192.0.2.1", Some("x\\"), false, "for=192.0.2.1;proto=http"),
            ("192.0.2.1", Some(""), false, "for=192.0.2.1;proto=http"),
        ];
        for (peer, host, secure, expected) in cases {
            let peer: IpAddr = peer.parse().unwrap();
            let forwarding = Forwarding { peer, host, secure, ..UNTRUSTED };
            assert_eq!(field(&forwarding, &[], "forwarded").as_deref(), Some(expected));
            let address = Some(peer.to_canonical().to_string());
            assert_eq!(field(&forwarding, &[], X_FOR), address);
            let host = forwarding.plain_host().map(str::to_owned);
            assert_eq!(field(&forwarding, &[(X_HOST, "forged")], X_HOST), host);
        }
    }

    #[test]
    fn only_a_trusted_peer_may_send_a_request_id() {
        let longest = "a".repeat(128);
        let too_long = "a".repeat(129);
        let cases: &[(&Forwarding<'_>, &[&str], &str)] = &[
            (&TRUSTED, &[], "ours"),
            (&TRUSTED, &["0af7651916cd43dd"], "0af7651916cd43dd"),
            (&TRUSTED, &[&longest], &longest),
            (&TRUSTED, &[&too_long], "ours"),
            (&TRUSTED, &[""], "ours"),
            (&TRUSTED, &["a b"], "ours"),
            (&TRUSTED, &["a\tb"], "ours"),
            (&TRUSTED, &["\u{e9}"], "ours"),
            (&TRUSTED, &["a", "b"], "ours"),
            (&UNTRUSTED, &["a"], "ours"),
        ];
        for (forwarding, values, expected) in cases {
            let sent: Vec<_> = values.iter().map(|value| (X_ID, *value)).collect();
            assert_eq!(field(forwarding, &sent, X_ID).as_deref(), Some(*expected));
        }
        let unusable = Forwarding { request_id: "a\nb", ..TRUSTED };
        assert_eq!(field(&unusable, &[(X_ID, "a b")], X_ID), None);
    }
}
