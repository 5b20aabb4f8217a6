//! Host names, and the host patterns of routes.
//!
//! ```text
//!   shop.example.com    this host
//!   *.example.com       www.example.com, a.b.example.com; not example.com itself
//!   [2001:db8::7]       an address
//! ```
//!
//! Case, the port and a final dot do not count: `Shop.example.com.:8443` is `shop.example.com`.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The hosts that a route matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HostPattern {
    /// In lower case, without a final dot; an IPv6 address without brackets.
    Exactly(String),
    /// All hosts that end with this text, which begins with a dot.
    Below(String),
}

/// The longest name that DNS allows.
const LONGEST_NAME: usize = 253;
/// The longest part between two dots that DNS allows.
const LONGEST_LABEL: usize = 63;

impl HostPattern {
    /// Reads a pattern. The error says what to write instead.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        Self::read(text).ok_or_else(|| wrong(text))
    }

    fn read(text: &str) -> Option<Self> {
        let without_dot = |name: String| name.trim_end_matches('.').to_owned();
        match text.strip_prefix("*.") {
            None => canonical(text).map(without_dot).map(Self::Exactly),
            Some(rest) => {
                let name = canonical(rest).filter(|name| name.parse::<IpAddr>().is_err())?;
                Some(Self::Below(format!(".{}", without_dot(name))))
            }
        }
    }

    /// Whether a host that [`host_of_request`] returned matches.
    pub(super) fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exactly(name) => name.eq_ignore_ascii_case(host),
            Self::Below(end) => ends_with(host, end),
        }
    }

    /// Whether every host that `other` matches is matched by this pattern too.
    pub(super) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (_, Self::Exactly(name)) => self.matches(name),
            (Self::Below(mine), Self::Below(theirs)) => theirs.ends_with(mine),
            (Self::Exactly(_), Self::Below(_)) => false,
        }
    }
}

/// Whether a host has this end. A valid host does not begin with a dot, so it has more labels before the end.
fn ends_with(host: &str, end: &str) -> bool {
    let start = host.len().checked_sub(end.len());
    start.and_then(|start| host.get(start..)).is_some_and(|found| found.eq_ignore_ascii_case(end))
}

/// What is wrong with a pattern, and what to write instead.
fn wrong(text: &str) -> String {
    if text == "*" {
        return "to match every host, remove `host`".to_owned();
    }
    if text.contains("://") {
        return "write only the host, such as `shop.example.com`, without `http://`".to_owned();
    }
    if let Some((name, port)) = text.rsplit_once(':')
        && is_port(port)
        && HostPattern::read(name).is_some()
    {
        return format!("a route matches every port; write `{name}`");
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        return format!("put an IPv6 address in brackets: `\"[{text}]\"`");
    }
    if text.contains('*') {
        return "a star stands only for the first part of a host, as in `*.example.com`".to_owned();
    }
    "this is not a valid host; write it like `shop.example.com` or `*.example.com`, and an international name in its `xn--` form".to_owned()
}

/// The name in a `Host` or `:authority`, without the port and a final dot; an IPv6 address in its shortest form, without
/// brackets. `None` if the host is not valid.
pub(super) fn host_of_request(host: &str) -> Option<Cow<'_, str>> {
    let (name, port) = split_port(host)?;
    if !is_port(port.unwrap_or_default()) {
        return None;
    }
    if name.starts_with('[') {
        return canonical(name).map(Cow::Owned);
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    (is_name(name) && !name.ends_with('.')).then_some(Cow::Borrowed(name))
}

/// Splits `name:port` or `[address]:port`. The brackets stay.
pub(super) fn split_port(text: &str) -> Option<(&str, Option<&str>)> {
    if !text.starts_with('[') {
        return Some(text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port))));
    }
    let (address, rest) = text.split_at_checked(text.find(']')?.checked_add(1)?)?;
    let port = if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) };
    Some((address, port))
}

/// Whether a text may follow the colon. RFC 3986 allows an empty port.
fn is_port(text: &str) -> bool {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    is_number && (text.is_empty() || text.parse::<u16>().is_ok())
}

/// A name or an IPv4 address in lower case, or an IPv6 address in brackets in its shortest form, without the brackets.
/// `None` if it is not valid. A final dot stays: it tells a resolver not to append its search domains.
pub(super) fn canonical(text: &str) -> Option<String> {
    if let Some(address) = text.strip_prefix('[') {
        let address: Ipv6Addr = address.strip_suffix(']')?.parse().ok()?;
        return Some(address.to_string());
    }
    is_name(text).then(|| text.to_ascii_lowercase())
}

/// Whether a text is a DNS name or an IPv4 address. Underscores are allowed, because names of containers have them.
fn is_name(text: &str) -> bool {
    let name = text.strip_suffix('.').unwrap_or(text);
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    // A name that ends with a number is an address or a mistake: some resolvers take `10.1` for `10.0.0.1`.
    let ends_with_number = name.rsplit('.').next().is_some_and(is_number);
    name.len() <= LONGEST_NAME
        && name.split('.').all(is_label)
        && (!ends_with_number || text.parse::<Ipv4Addr>().is_ok())
}

fn is_label(label: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    (1..=LONGEST_LABEL).contains(&label.len())
        && label.bytes().all(plain)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_read_in_their_canonical_form() {
        let exactly = |text: &str| HostPattern::Exactly(text.to_owned());
        for (text, expected) in [
            ("Shop.Example.com", exactly("shop.example.com")),
            ("localhost.", exactly("localhost")),
            ("10.0.0.1", exactly("10.0.0.1")),
            ("my_service", exactly("my_service")),
            ("[2001:DB8:0::1]", exactly("2001:db8::1")),
            ("*.Example.com", HostPattern::Below(".example.com".to_owned())),
        ] {
            assert_eq!(HostPattern::parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn invalid_patterns_are_refused_with_what_to_write() {
        let invalid = "this is not a valid host; write it like `shop.example.com` or `*.example.com`, and an international name in its `xn--` form";
        let star = "a star stands only for the first part of a host, as in `*.example.com`";
        let long = "a".repeat(64);
        for (text, expected) in [
            ("*", "to match every host, remove `host`"),
            (
                "https://shop.example.com",
                "write only the host, such as `shop.example.com`, without `http://`",
            ),
            ("shop.example.com:443", "a route matches every port; write `shop.example.com`"),
            ("*.example.com:443", "a route matches every port; write `*.example.com`"),
            ("[::1]:443", "a route matches every port; write `[::1]`"),
            ("::1", "put an IPv6 address in brackets: `\"[::1]\"`"),
            ("www.*.com", star),
            ("*example.com", star),
            ("*.10.0.0.1", star),
            ("*.[::1]", star),
            ("", invalid),
            ("a..b", invalid),
            ("-a.com", invalid),
            ("a-.com", invalid),
            ("a b", invalid),
            ("10.0.0.300", invalid),
            ("münchen.de", invalid),
            ("[::1", invalid),
            (long.as_str(), invalid),
        ] {
            assert_eq!(HostPattern::parse(text), Err(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn names_have_the_lengths_of_dns() {
        let longest = [&"a".repeat(63)[..]; 3].join(".") + "." + &"b".repeat(61);
        assert_eq!(longest.len(), 253);
        assert!(is_name(&longest));
        assert!(!is_name(&format!("{longest}b")));
        assert!(!is_name(&"a".repeat(64)));
    }

    #[test]
    fn a_wider_pattern_covers_a_narrower_one() {
        for (mine, theirs, expected) in [
            ("a.com", "A.com", true),
            ("a.com", "b.com", false),
            ("*.a.com", "x.a.com", true),
            ("*.a.com", "a.com", false),
            ("*.a.com", "*.a.com", true),
            ("*.a.com", "*.x.a.com", true),
            ("*.x.a.com", "*.a.com", false),
            ("*.a.com", "*.ba.com", false),
            ("x.a.com", "*.a.com", false),
        ] {
            let [mine, theirs] = [mine, theirs].map(|text| HostPattern::parse(text).unwrap());
            assert_eq!(mine.covers(&theirs), expected, "{mine:?} {theirs:?}");
        }
    }
}
