//! Addresses: which address a request is counted by when there are proxies in front of the server.
//!
//! ```text
//!   client ──► proxy A ──► proxy B ──► tidegate  X-Forwarded-For: forged, client, A        peer: B
//!                                                                   ▲        ◄── read from the right
//!                       trusted: A, B                               └─ the first one that is not trusted
//! ```
//!
//! An untrusted hop can forge everything to its left. So the list is read from the right, and only if the peer itself is
//! trusted; a client that connects directly is counted by its own address, whatever its headers say. Only one header is
//! read, the one that the operator's proxies are known to write: a proxy that appends to `X-Forwarded-For` passes a forged
//! `Forwarded` header on unchanged.
//!
//! An IPv4-mapped IPv6 address (`::ffff:192.0.2.1`) is treated as the IPv4 address. An IPv6 host has at least 2⁶⁴ addresses,
//! so IPv6 is counted by prefix.

use crate::document::shown;
use arrayvec::ArrayString;
use ipnet::{IpNet, Ipv6Net};
use std::fmt::{self, Write as _};
use std::net::{IpAddr, SocketAddr};

/// The peers whose header is trusted, and which header that is.
///
/// ```
/// use tidegate_policy::{HopHeader, Trusted};
/// let trusted = Trusted::new(["10.0.0.0/8".parse().unwrap()], HopHeader::XForwardedFor);
/// let proxy = "10.0.0.1".parse().unwrap();
/// let client = trusted.client(proxy, ["198.51.100.9, 203.0.113.7"]);
/// assert_eq!(client.to_string(), "203.0.113.7");
/// ```
#[derive(Clone, Debug)]
pub struct Trusted {
    peers: Vec<IpNet>,
    header: HopHeader,
}

/// The header in which proxies write the address of the client.
///
/// ```
/// assert_eq!(tidegate_policy::HopHeader::Forwarded.name(), "forwarded");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HopHeader {
    /// `X-Forwarded-For: client, proxy`
    XForwardedFor,
    /// `Forwarded: for=client, for=proxy` (RFC 7239)
    Forwarded,
}

/// An address as it is counted: the whole IPv4 address, or a prefix of the IPv6 address.
///
/// ```
/// use tidegate_policy::AddressKey;
/// let key = AddressKey::new("2001:db8:1:2:3::9".parse().unwrap(), 64);
/// assert_eq!(key.to_string(), "2001:db8:1:2::/64");
/// let mapped = AddressKey::new("::ffff:192.0.2.1".parse().unwrap(), 64);
/// assert_eq!(mapped.to_string(), "192.0.2.1");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressKey(CountedAddress);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum CountedAddress {
    Whole(IpAddr),
    Prefix(Ipv6Net),
}

/// Hops that are read. Real lists have a handful of them.
const MOST_HOPS: usize = 32;

// === impl Trusted ===

impl Trusted {
    /// Trusts these networks, and reads this header from them.
    ///
    /// ```
    /// use tidegate_policy::{HopHeader, Trusted};
    /// let trusted = Trusted::new([], HopHeader::XForwardedFor);
    /// let peer = "203.0.113.7".parse().unwrap();
    /// assert_eq!(trusted.client(peer, ["192.0.2.1"]), peer); // the peer is not trusted
    /// ```
    pub fn new(peers: impl IntoIterator<Item = IpNet>, header: HopHeader) -> Self {
        Self { peers: peers.into_iter().collect(), header }
    }

    /// The address of the client behind a peer. `values` are the lines of the header, in order.
    ///
    /// This is the right-most hop that is not trusted, or the peer if it is not trusted itself. A hop that is not readable
    /// ends the list: the hop that wrote it is the last known one.
    ///
    /// ```
    /// use tidegate_policy::{HopHeader, Trusted};
    /// let trusted = Trusted::new(["10.0.0.0/8".parse().unwrap()], HopHeader::Forwarded);
    /// let client = trusted.client("10.0.0.1".parse().unwrap(), ["for=\"[2001:db8::7]:4711\""]);
    /// assert_eq!(client.to_string(), "2001:db8::7");
    /// ```
    pub fn client<'h>(&self, peer: IpAddr, values: impl IntoIterator<Item = &'h str>) -> IpAddr {
        let mut last_known = peer.to_canonical();
        if !self.trusts(last_known) {
            return last_known;
        }
        let values: Vec<&str> = values.into_iter().collect();
        let hops = values.iter().rev().flat_map(|value| value.rsplit(','));
        for hop in hops.take(MOST_HOPS) {
            let Some(address) = self.header.address(hop.trim()) else { return last_known };
            last_known = address;
            if !self.trusts(address) {
                return address;
            }
        }
        last_known
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    pub(crate) fn trusts(&self, address: IpAddr) -> bool {
        self.peers.iter().any(|network| network.contains(&address))
    }
}

// === impl HopHeader ===

impl HopHeader {
    /// The name of the header, in lower case.
    ///
    /// ```
    /// assert_eq!(tidegate_policy::HopHeader::XForwardedFor.name(), "x-forwarded-for");
    /// ```
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
        }
    }

    /// The address of one hop; `None` for `unknown`, `_hidden` and everything else that is not an address.
    fn address(self, hop: &str) -> Option<IpAddr> {
        match self {
            Self::XForwardedFor => parse_address(hop),
            Self::Forwarded => {
                let pairs = hop.split(';').filter_map(|pair| pair.trim().split_once('='));
                let mut nodes = pairs.filter(|(name, _)| name.eq_ignore_ascii_case("for"));
                let (_, node) = nodes.next()?;
                // A hop with two `for=` values is not readable.
                nodes.next().is_none().then(|| parse_address(node.trim_matches('"'))).flatten()
            }
        }
    }
}

/// Parses an address as proxies write it: bare, in brackets, with a port, or with a zone.
///
/// ```
/// use tidegate_policy::parse_address;
/// let expected = parse_address("2001:db8::7");
/// assert_eq!(parse_address("[2001:db8::7]:443"), expected);
/// assert_eq!(parse_address("fe80::1%eth0"), parse_address("fe80::1"));
/// assert_eq!(parse_address("unknown"), None);
/// ```
#[must_use]
pub fn parse_address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let without_zone = bare.split_once('%').map_or(bare, |(address, _)| address);
    let address = without_zone.parse::<IpAddr>().ok();
    let with_port = || text.parse::<SocketAddr>().ok().map(|socket| socket.ip());
    address.or_else(with_port).map(|address| address.to_canonical())
}

/// Whether a text consists of digits without a leading zero.
pub(crate) fn is_plain_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && (text.len() == 1 || !text.starts_with('0'))
}

/// Parses a network strictly: no host bits, no leading zeros, no IPv4 network written as IPv6.
pub(crate) fn parse_network(text: &str) -> Result<IpNet, String> {
    let hint = "write it like `10.0.0.0/8` or `2001:db8::/32`";
    let refused = || format!("`{}` is not a valid network; {hint}", shown(text));
    let (address, bits) = text.split_once('/').map_or((text, None), |(a, bits)| (a, Some(bits)));
    let address: IpAddr = address.parse().map_err(|_| refused())?;
    let whole = if address.is_ipv4() { 32 } else { 128 };
    let plain = |bits: &str| is_plain_number(bits);
    let bits = bits.map_or(Some(whole), |bits| bits.parse().ok().filter(|_| plain(bits)));
    let network = bits.and_then(|bits| IpNet::new(address, bits).ok()).ok_or_else(refused)?;
    if network.trunc() != network {
        let meant = network.trunc();
        return Err(format!("`{network}` has host bits set; did you mean `{meant}`?"));
    }
    if let (IpAddr::V6(v6), bits @ 96..) = (network.addr(), network.prefix_len())
        && let Some(v4) = v6.to_ipv4_mapped()
    {
        let meant = bits.saturating_sub(96);
        return Err(format!(
            "`{network}` is an IPv4 network written as IPv6; write `{v4}/{meant}`"
        ));
    }
    Ok(network)
}

/// The text of an address or a network. The longest has eight groups and a prefix.
pub(crate) type AddressText = ArrayString<43>;

// === impl AddressKey ===

impl AddressKey {
    /// An address that is counted by this prefix if it is IPv6. A prefix above 128 means the whole address.
    ///
    /// ```
    /// use tidegate_policy::AddressKey;
    /// let [a, b] = ["2001:db8::1", "2001:db8::2"].map(|text| text.parse().unwrap());
    /// assert_eq!(AddressKey::new(a, 64), AddressKey::new(b, 64));
    /// assert_ne!(AddressKey::new(a, 128), AddressKey::new(b, 128));
    /// ```
    #[must_use]
    pub fn new(address: IpAddr, ipv6_prefix: u8) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(CountedAddress::Whole(address.into())),
            IpAddr::V6(address) => match Ipv6Net::new(address, ipv6_prefix) {
                Ok(network) => Self(CountedAddress::Prefix(network.trunc())),
                Err(_) => Self(CountedAddress::Whole(address.into())),
            },
        }
    }
}

impl AddressKey {
    /// The text of the address. Most requests have IPv4, so it has a fast path.
    pub(crate) fn text(&self) -> AddressText {
        let mut text = AddressText::new();
        let CountedAddress::Whole(IpAddr::V4(address)) = self.0 else {
            // The longest text fits.
            let _ = write!(text, "{self}");
            return text;
        };
        // Four bytes are written for each octet, and the next octet begins after those that belong to the text. That needs fewer
        // instructions than a text that is put together character by character.
        let (mut bytes, mut end) = ([0; 16], 0_usize);
        for octet in address.octets() {
            let digit = |digit: u8| b'0'.wrapping_add(digit % 10);
            let [hundreds, tens, ones] = [octet / 100, octet / 10, octet].map(digit);
            let (shown, length) = match octet {
                0..=9 => ([ones, b'.', 0, 0], 2),
                10..=99 => ([tens, ones, b'.', 0], 3),
                100..=255 => ([hundreds, tens, ones, b'.'], 4),
            };
            if let Some(place) = bytes.get_mut(end..).and_then(<[u8]>::first_chunk_mut) {
                *place = shown;
            }
            end = end.wrapping_add(length);
        }
        let without_dot = bytes.get(..end.saturating_sub(1)).unwrap_or_default();
        let shown = str::from_utf8(without_dot);
        let _ = text.try_push_str(shown.unwrap_or_default());
        text
    }
}

impl fmt::Display for AddressKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            CountedAddress::Whole(address) => address.fmt(f),
            CountedAddress::Prefix(network) => network.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn trusted(header: HopHeader) -> Trusted {
        Trusted::new(["10.0.0.0/8", "fd00::/8"].map(|network| network.parse().unwrap()), header)
    }

    /// Ten thousand forged headers, sent directly and through one and two proxies, must all be counted as one client.
    #[test]
    fn forged_headers_do_not_create_new_clients() {
        let header = HopHeader::XForwardedFor;
        let mut keys = HashSet::new();
        for n in 0..10_000u32 {
            let forged = format!("{}.{}.{}.{}", n % 223 + 1, n / 7 % 256, n / 3 % 256, n % 256);
            let garbage = ["unknown", "", ", ,", "10.0.0.9", "not an address", "[::1", "1.2.3.4.5"]
                [usize::try_from(n % 7).unwrap()];
            let list = format!("{garbage}, {forged}, 203.0.113.7");
            keys.insert(trusted(header).client(ip("203.0.113.7"), [forged.as_str()]));
            keys.insert(trusted(header).client(ip("10.0.0.1"), [list.as_str()]));
            keys.insert(
                trusted(header).client(ip("10.0.0.1"), [format!("{list}, 10.0.0.2").as_str()]),
            );
            keys.insert(
                trusted(header).client(ip("::ffff:10.0.0.1"), [forged.as_str(), "203.0.113.7"]),
            );
        }
        assert_eq!(keys, HashSet::from([ip("203.0.113.7")]));
    }

    #[test]
    fn an_unreadable_hop_ends_the_list() {
        for (value, expected) in [
            ("198.51.100.1, unknown", "10.0.0.1"),
            ("198.51.100.1, ", "10.0.0.1"),
            ("198.51.100.1, unknown, 10.0.0.2", "10.0.0.2"),
            ("10.0.0.3, 10.0.0.2", "10.0.0.3"), // all hops are trusted: the first one
            ("", "10.0.0.1"),
        ] {
            let client = trusted(HopHeader::XForwardedFor).client(ip("10.0.0.1"), [value]);
            assert_eq!(client, ip(expected), "{value}");
        }
        let long = vec!["10.0.0.2"; 100_000].join(",");
        let client =
            trusted(HopHeader::XForwardedFor).client(ip("10.0.0.1"), ["203.0.113.7", &long]);
        assert_eq!(client, ip("10.0.0.2"));
    }

    #[test]
    fn forwarded_is_parsed_as_in_rfc_7239() {
        for (value, expected) in [
            ("for=203.0.113.7", "203.0.113.7"),
            ("For=\"[2001:db8::7]\"", "2001:db8::7"),
            ("for=\"[2001:db8::7]:4711\";proto=https;by=10.0.0.1", "2001:db8::7"),
            ("proto=http; for=\"203.0.113.7:80\"", "203.0.113.7"),
            ("for=198.51.100.1, for=203.0.113.7", "203.0.113.7"),
            ("for=203.0.113.7, for=10.0.0.2", "203.0.113.7"),
            ("for=_hidden", "10.0.0.1"),
            ("for=unknown", "10.0.0.1"),
            ("for=1.1.1.1;for=2.2.2.2", "10.0.0.1"),
            ("by=203.0.113.7", "10.0.0.1"),
        ] {
            let client = trusted(HopHeader::Forwarded).client(ip("10.0.0.1"), [value]);
            assert_eq!(client, ip(expected), "{value}");
        }
    }

    #[test]
    fn spellings_of_an_address_are_equal() {
        for text in [
            "::ffff:1.2.3.4",
            "::ffff:102:304",
            "[::ffff:1.2.3.4]",
            "1.2.3.4",
            "1.2.3.4:80",
            "[::ffff:1.2.3.4]:80",
        ] {
            assert_eq!(parse_address(text), Some(ip("1.2.3.4")), "{text}");
        }
        // This is IPv6, although it is written with dots: two IPv4 clients must never share a prefix.
        assert_eq!(parse_address("2001:db8::1.2.3.4"), Some(ip("2001:db8::102:304")));
        for text in [
            "",
            "1.2.3",
            "1.2.3.4.5",
            "01.2.3.4",
            "::g",
            "localhost",
            "1.2.3.4:99999",
            "[1.2.3.4",
            "0x7f.1",
        ] {
            assert_eq!(parse_address(text), None, "{text}");
        }
    }

    #[test]
    fn only_ipv6_is_counted_by_prefix() {
        let of = |text: &str, prefix| AddressKey::new(ip(text), prefix).to_string();
        assert_eq!(of("2001:db8:0:1::1", 64), "2001:db8:0:1::/64");
        assert_eq!(of("2001:db8:0:1::1", 48), "2001:db8::/48");
        assert_eq!(of("192.0.2.1", 8), "192.0.2.1");
        assert_ne!(of("::ffff:192.0.2.1", 64), of("::ffff:192.0.2.2", 64));
        for octet in 0..=255u8 {
            let key = AddressKey::new([octet, 0, 99, octet].into(), 64);
            assert_eq!(&*key.text(), key.to_string());
        }
        let longest = ip("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff");
        assert_eq!(&*AddressKey::new(longest, 128).text(), format!("{longest}/128"));
    }
}
