//! Where the store is, as its URL says it.
//!
//! ```text
//!   redis://[user:password@]host[:port][/db]              one server; rediss:// speaks TLS
//!   redis+unix:///path                                    one server of this machine
//!   redis+cluster://[user:password@]host:port,host:port   some servers of a cluster; rediss+cluster://
//!   redis+sentinel://[user:password@]host:port,…/name     the sentinels of a primary; rediss+sentinel://
//! ```

use super::RedisTls;
use crate::error::StoreError;
use ::redis::io::tcp::TcpSettings;
use ::redis::{Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo};
use ::redis::{RedisConnectionInfo, TlsCertificates};
use std::fmt;

/// A server that is reached over TCP.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

/// The servers of a store.
pub(super) enum Deployment {
    One(Client),
    Cluster(Vec<Address>),
    /// Whoever these sentinels say is the primary of that name.
    Sentinels(Vec<Address>, String),
}

/// How servers are reached besides where they are: who we are, and whether TLS is spoken.
pub(super) struct Manners {
    info: RedisConnectionInfo,
    secure: bool,
    tls: Option<TlsCertificates>,
}

const USUAL_PORT: u16 = 6_379;
const USUAL_SENTINEL_PORT: u16 = 26_379;

impl Address {
    /// `host:port`, with or without brackets around an IPv6 address.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = port.parse().ok().filter(|port| *port != 0)?;
        (!host.is_empty()).then(|| Self { host: host.to_owned(), port })
    }

    /// The same, where the port may be left out.
    fn parse_or(text: &str, port: u16) -> Option<Self> {
        let bare = !text.is_empty() && (!text.contains(':') || text.ends_with(']'));
        if bare { Self::parse(&format!("{text}:{port}")) } else { Self::parse(text) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            return write!(f, "[{}]:{}", self.host, self.port);
        }
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Reads a URL.
pub(super) fn parse(url: &str, tls: &RedisTls) -> Result<(Deployment, Manners), StoreError> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("it has no `://`"))?;
    let secure = scheme.starts_with("rediss");
    let (kind, usual) = match scheme {
        "redis+cluster" | "rediss+cluster" => (Kind::Cluster, USUAL_PORT),
        "redis+sentinel" | "rediss+sentinel" => (Kind::Sentinels, USUAL_SENTINEL_PORT),
        _ => (Kind::One, USUAL_PORT),
    };
    if kind == Kind::One {
        let info = url.into_connection_info().map_err(|error| wrong(&error.to_string()))?;
        let manners = Manners::new(info.redis_settings().clone(), secure, tls);
        let client = manners.client_at(info.addr().clone())?;
        return Ok((Deployment::One(client), manners));
    }
    // Who we are, then where they are, then the name of the primary.
    let (who, places) = rest.rsplit_once('@').map_or((None, rest), |(who, at)| (Some(who), at));
    let (places, name) = places.split_once('/').unwrap_or((places, ""));
    let who = who.map(|who| format!("{who}@")).unwrap_or_default();
    // The client reads names and passwords as it does in every other URL.
    let info = format!("redis://{who}localhost/").as_str().into_connection_info();
    let info = info.map_err(|error| wrong(&error.to_string()))?;
    let read = |place: &str| {
        Address::parse_or(place, usual)
            .ok_or_else(|| wrong(&format!("`{place}` is not written like `host:{usual}`")))
    };
    let places = places.split(',').map(read).collect::<Result<Vec<_>, _>>()?;
    let manners = Manners::new(info.redis_settings().clone(), secure, tls);
    match kind {
        Kind::Sentinels if name.is_empty() => {
            Err(wrong("it needs the name of the primary, as in `redis+sentinel://host:26379/name`"))
        }
        Kind::Sentinels => Ok((Deployment::Sentinels(places, name.to_owned()), manners)),
        Kind::Cluster if !name.is_empty() => Err(wrong("a cluster has no databases")),
        Kind::Cluster | Kind::One => Ok((Deployment::Cluster(places), manners)),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    One,
    Cluster,
    Sentinels,
}

impl Manners {
    fn new(info: RedisConnectionInfo, secure: bool, tls: &RedisTls) -> Self {
        let certificates = TlsCertificates {
            client_tls: tls
                .client
                .clone()
                .map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key }),
            root_cert: tls.authority.clone(),
        };
        Self { info, secure, tls: secure.then_some(certificates) }
    }

    /// A client of one server.
    pub(super) fn client(&self, address: &Address) -> Result<Client, StoreError> {
        let Address { host, port } = address.clone();
        self.client_at(if self.secure {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        })
    }

    /// A client of a sentinel, which has users of its own.
    pub(super) fn client_of_sentinel(&self, address: &Address) -> Result<Client, StoreError> {
        let stranger = Self {
            info: RedisConnectionInfo::default(),
            secure: self.secure,
            tls: self.tls.clone(),
        };
        stranger.client(address)
    }

    fn client_at(&self, address: ConnectionAddr) -> Result<Client, StoreError> {
        let told = |error: ::redis::RedisError| wrong(&error.to_string());
        let info = address.into_connection_info().map_err(told)?;
        let info = info
            .set_redis_settings(self.info.clone())
            .set_tcp_settings(TcpSettings::default().set_nodelay(true));
        match &self.tls {
            Some(tls) => Client::build_with_tls(info, tls.clone()),
            None => Client::open(info),
        }
        .map_err(told)
    }
}

fn wrong(why: &str) -> StoreError {
    StoreError::Unusable(format!("its address: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<(Deployment, Manners), StoreError> {
        parse(url, &RedisTls::default())
    }

    fn shown(places: &[Address]) -> Vec<String> {
        places.iter().map(Address::to_string).collect()
    }

    #[test]
    fn a_cluster_is_some_of_its_servers() {
        let (deployment, manners) =
            read("redis+cluster://us%20er:p%40ss@10.0.0.1:7000,[fd00::2]:7001,node-3").unwrap();
        let Deployment::Cluster(places) = deployment else { panic!("no cluster") };
        assert_eq!(shown(&places), ["10.0.0.1:7000", "[fd00::2]:7001", "node-3:6379"]);
        assert_eq!(
            (manners.info.username(), manners.info.password()),
            (Some("us er"), Some("p@ss"))
        );
    }

    #[test]
    fn sentinels_know_a_name() {
        let (deployment, _) = read("redis+sentinel://a,b:1/mymaster").unwrap();
        let Deployment::Sentinels(places, name) = deployment else { panic!("no sentinels") };
        assert_eq!(
            (shown(&places), name.as_str()),
            (vec!["a:26379".to_owned(), "b:1".to_owned()], "mymaster")
        );
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        for (url, said) in [
            ("nothing", "no `://`"),
            ("redis+cluster://", "`` is not written like `host:6379`"),
            ("redis+cluster://a,,b", "`` is not written"),
            ("redis+cluster://a:0", "`a:0` is not written"),
            ("redis+cluster://a:99999", "`a:99999`"),
            ("redis+cluster://a/3", "no databases"),
            ("redis+sentinel://a", "the name of the primary"),
            ("redis://host/x", "its address: "),
        ] {
            let error = read(url).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(said), "{url}: {error}");
        }
    }
}
