//! The URL of an upstream server: `http://10.0.0.1:8080`, `https://api.internal`, `h2c://[2001:db8::7]:50051`.
//!
//! It has a scheme, a host and perhaps a port. It has no path, because requests keep their path, and no user name, because
//! passwords do not belong into a file that is printed and logged.

use super::host::{canonical, split_port};
use super::reader::shown;
use std::fmt;
use std::str::FromStr;

/// Where an upstream server is, and which protocol it speaks. Two spellings of one URL are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ServerUrl {
    /// The protocol.
    pub(crate) scheme: Scheme,
    /// A name in lower case, or an address. An IPv6 address has no brackets.
    pub(crate) host: String,
    /// The port; never 0.
    pub(crate) port: u16,
}

/// The protocol of an upstream server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scheme {
    /// HTTP/1.1 without TLS.
    Http,
    /// HTTP over TLS.
    Https,
    /// HTTP/2 without TLS.
    H2c,
}

impl Scheme {
    const ALL: [Self; 3] = [Self::Http, Self::Https, Self::H2c];

    /// The scheme as a URL writes it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::H2c => "h2c",
        }
    }

    /// The port of a URL that names none.
    pub(crate) const fn default_port(self) -> u16 {
        match self {
            Self::Http | Self::H2c => 80,
            Self::Https => 443,
        }
    }
}

// === impl ServerUrl ===

impl ServerUrl {
    /// The value of the `Host` header for this server: without the port if it is the default one.
    pub(crate) fn authority(&self) -> String {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == self.scheme.default_port() { host } else { format!("{host}:{}", self.port) }
    }

    fn read(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| without_scheme(text))?;
        let known = Scheme::ALL.into_iter().find(|one| one.name().eq_ignore_ascii_case(scheme));
        let scheme = known.ok_or_else(|| SCHEMES.to_owned())?;
        if let Some((server, _)) = rest.split_once(['/', '?', '#']) {
            let server = format!("{}://{server}", scheme.name());
            return Err(format!("a server has no path; write `{}`", shown(&server)));
        }
        if rest.matches(':').count() > 1 && !rest.starts_with('[') {
            let example = "`http://[2001:db8::7]:8080`";
            return Err(format!("put an IPv6 address in brackets, as in {example}"));
        }
        let (host, given) = split_port(rest).ok_or(HOST)?;
        let host = canonical(host).ok_or(HOST)?;
        Ok(Self { scheme, host, port: given.map_or(Ok(scheme.default_port()), port)? })
    }
}

const SCHEMES: &str = "a server begins with `http://`, `https://` or `h2c://`";
const HOST: &str = "the host is not valid; write it like `http://10.0.0.1:8080`, `http://[2001:db8::7]:8080` or `https://api.internal`";

/// The error for a text such as `10.0.0.1:8080`.
fn without_scheme(text: &str) -> String {
    let with = format!("http://{text}");
    let meant = ServerUrl::read(&with).map(|_| with);
    format!("{SCHEMES}; write `{}`", meant.as_deref().unwrap_or("http://10.0.0.1:8080"))
}

fn port(text: &str) -> Result<u16, String> {
    // `parse` alone would accept `+80`.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let port = text.parse().ok().filter(|port| digits && *port > 0);
    port.ok_or_else(|| format!("a port is a number from 1 to 65535, not `{}`", shown(text)))
}

impl FromStr for ServerUrl {
    type Err = String;

    /// The error quotes the text, unless it may contain a password.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('@') {
            let text = "a server has no user name and no password; write only its host and port, as in `http://10.0.0.1:8080`";
            return Err(text.to_owned());
        }
        Self::read(text).map_err(|error| format!("`{}`: {error}", shown(text)))
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.name(), self.authority())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_printed() {
        for (text, scheme, host, port, printed) in [
            ("http://10.0.0.1:8080", Scheme::Http, "10.0.0.1", 8080, "http://10.0.0.1:8080"),
            ("HTTP://Api.Internal", Scheme::Http, "api.internal", 80, "http://api.internal"),
            ("http://api:080", Scheme::Http, "api", 80, "http://api"),
            ("https://api", Scheme::Https, "api", 443, "https://api"),
            ("https://api:80", Scheme::Https, "api", 80, "https://api:80"),
            ("h2c://my_service.:443", Scheme::H2c, "my_service.", 443, "h2c://my_service.:443"),
            ("http://[2001:DB8:0::7]", Scheme::Http, "2001:db8::7", 80, "http://[2001:db8::7]"),
            ("h2c://[::1]:65535", Scheme::H2c, "::1", 65535, "h2c://[::1]:65535"),
        ] {
            let url: ServerUrl = text.parse().unwrap();
            assert_eq!(url, ServerUrl { scheme, host: host.to_owned(), port }, "{text}");
            assert_eq!(url.to_string(), printed);
            assert_eq!(printed.parse(), Ok(url));
        }
    }

    #[test]
    fn the_authority_has_brackets_and_no_default_port() {
        let authority = |text: &str| text.parse::<ServerUrl>().unwrap().authority();
        assert_eq!(authority("http://[::1]:80"), "[::1]");
        assert_eq!(authority("http://[::1]:443"), "[::1]:443");
        assert_eq!(authority("https://api:443"), "api");
    }

    #[test]
    fn invalid_urls_are_refused_with_what_to_write() {
        let scheme = |text: &str| format!("{SCHEMES}; write `{text}`");
        let port = |text: &str| format!("a port is a number from 1 to 65535, not `{text}`");
        let path = |text: &str| format!("a server has no path; write `{text}`");
        let brackets = "put an IPv6 address in brackets, as in `http://[2001:db8::7]:8080`";
        for (text, expected) in [
            ("10.0.0.1:8080", scheme("http://10.0.0.1:8080")),
            ("", scheme("http://10.0.0.1:8080")),
            ("ftp://a", SCHEMES.to_owned()),
            ("http://a:80/", path("http://a:80")),
            ("https://a?x", path("https://a")),
            ("http://a#x", path("http://a")),
            ("http://::1:80", brackets.to_owned()),
            ("http://", HOST.to_owned()),
            ("http://:80", HOST.to_owned()),
            ("http://a b", HOST.to_owned()),
            ("http://10.0.0.256", HOST.to_owned()),
            ("http://[::1", HOST.to_owned()),
            ("http://[::1]x", HOST.to_owned()),
            ("http://[::1]x:80", HOST.to_owned()),
            ("http://[fe80::1%eth0]", HOST.to_owned()),
            ("http://a:", port("")),
            ("http://a:0", port("0")),
            ("http://a:+80", port("+80")),
            ("http://a:65536", port("65536")),
        ] {
            assert_eq!(text.parse::<ServerUrl>(), Err(format!("`{text}`: {expected}")), "{text}");
        }
    }

    #[test]
    fn passwords_are_not_repeated() {
        for text in ["http://root:hunter2@db", "root:hunter2@db", "ftp://hunter2@db/x"] {
            assert_eq!(
                text.parse::<ServerUrl>().unwrap_err(),
                "a server has no user name and no password; write only its host and port, as in `http://10.0.0.1:8080`"
            );
        }
    }
}
