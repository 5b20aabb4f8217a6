//! Addresses of memcached servers.

use crate::error::StoreError;

/// A server: `host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostPort {
    pub(super) host: String,
    pub(super) port: u16,
}

/// More servers are refused: every key is compared with all of them.
const MOST_SERVERS: usize = 64;
const DEFAULT_PORT: u16 = 11_211;

/// The servers of a store.
pub(super) fn parse(url: &str) -> Result<Vec<HostPort>, StoreError> {
    let unusable = |why: String| StoreError::Unusable(why);
    let example = "memcached is written like `memcached://host:11211,host:11211`";
    let servers = url.strip_prefix("memcached://").ok_or_else(|| unusable(example.to_owned()))?;
    if servers.contains('@') {
        let why = "passwords are not supported with memcached; let only trusted machines reach it";
        return Err(unusable(why.to_owned()));
    }
    let mut found: Vec<HostPort> = Vec::new();
    for server in servers.trim_end_matches('/').split(',') {
        let wrong = || unusable(format!("`{server}` is not a server: {example}"));
        let address = HostPort::parse(server).ok_or_else(wrong)?;
        if found.contains(&address) {
            return Err(unusable(format!("the server `{server}` is named twice")));
        }
        found.push(address);
    }
    if found.len() > MOST_SERVERS {
        return Err(unusable(format!("at most {MOST_SERVERS} memcached servers")));
    }
    Ok(found)
}

impl HostPort {
    /// `host`, `host:port`, `[IPv6]` or `[IPv6]:port`.
    fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']')?;
                host.parse::<std::net::Ipv6Addr>().ok()?;
                (host, port)
            }
            None => text.find(':').map_or((text, ""), |colon| text.split_at(colon)),
        };
        let port = match port {
            "" => DEFAULT_PORT,
            port => port.strip_prefix(':')?.parse().ok().filter(|port| *port > 0)?,
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
        let is_host = !host.is_empty() && host.chars().all(is_name);
        is_host.then(|| Self { host: host.to_owned(), port })
    }
}

impl std::fmt::Display for HostPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str) -> Result<Vec<String>, String> {
        let parsed = parse(url).map_err(|error| error.to_string())?;
        Ok(parsed.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn servers_have_names_and_ports() {
        for (url, servers) in [
            ("memcached://localhost", &["localhost:11211"][..]),
            (
                "memcached://a:1,b-2.example,10.0.0.3:3/",
                &["a:1", "b-2.example:11211", "10.0.0.3:3"],
            ),
            ("memcached://[::1]:5,[fd00::2]", &["[::1]:5", "[fd00::2]:11211"]),
        ] {
            assert_eq!(shown(url).unwrap(), servers, "{url}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (url, why) in [
            ("redis://a", "is written like"),
            ("memcached://", "`` is not a server"),
            ("memcached://a,,b", "`` is not a server"),
            ("memcached://a:0", "`a:0`"),
            ("memcached://a:x", "`a:x`"),
            ("memcached://a:99999", "`a:99999`"),
            ("memcached://a b", "`a b`"),
            ("memcached://[::1", "`[::1`"),
            ("memcached://user:password@a", "passwords are not supported"),
            ("memcached://a:1,b,a:1", "`a:1` is named twice"),
        ] {
            let error = shown(url).unwrap_err();
            assert!(error.contains(why), "{url}: {error}");
        }
        let many: Vec<String> = (0..65).map(|n| format!("s{n}")).collect();
        let error = shown(&format!("memcached://{}", many.join(","))).unwrap_err();
        assert!(error.contains("at most 64"), "{error}");
    }
}
