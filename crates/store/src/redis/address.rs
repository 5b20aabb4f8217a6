//! The URL of the store: which kind of deployment it is, where its servers are, and how to log in.
//!
//! ```text
//!   redis://[user:password@]host[:port][/db]              one server; rediss:// uses TLS
//!   redis+unix:///path                                    one server on this machine, over a Unix socket
//!   redis+cluster://[user:password@]host:port,host:port   seeds of a cluster; rediss+cluster://
//!   redis+sentinel://[user:password@]host:port,…/name     the sentinels of a primary; rediss+sentinel://
//! ```

use super::server_stream::client_config;
use super::settings::RedisTls;
use crate::error::StoreError;
use ::redis::io::tcp::TcpSettings;
use ::redis::{Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo};
use ::redis::{RedisConnectionInfo, TlsCertificates};
use rustls::ClientConfig;
use std::fmt;
use std::sync::Arc;

/// The TCP address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

/// The kind of deployment, and where to begin.
pub(super) enum Deployment {
    One(ServerClient),
    /// Seeds: any server of a cluster knows the others.
    Cluster(Vec<Address>),
    /// The sentinels, and the name by which they know the primary.
    Sentinels(Vec<Address>, String),
}

/// What connecting to any server of the store needs besides an address: credentials and TLS.
pub(super) struct ConnectOptions {
    info: RedisConnectionInfo,
    /// TLS twice: as the client library takes it, and as our own connections do.
    tls: Option<(TlsCertificates, Arc<ClientConfig>)>,
}

/// One server, and how to connect to it.
pub(super) struct ServerClient {
    pub(super) client: Client,
    pub(super) tls: Option<Arc<ClientConfig>>,
}

const DEFAULT_PORT: u16 = 6_379;
const DEFAULT_SENTINEL_PORT: u16 = 26_379;

impl Address {
    /// `host:port`, with or without brackets around an IPv6 address.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = port.parse().ok().filter(|port| *port != 0)?;
        (!host.is_empty()).then(|| Self { host: host.to_owned(), port })
    }

    /// `host` or `host:port`.
    fn parse_with_default(text: &str, port: u16) -> Option<Self> {
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

/// Parses the URL of a store.
pub(super) fn parse(url: &str, tls: &RedisTls) -> Result<(Deployment, ConnectOptions), StoreError> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid("it has no `://`"))?;
    let secure = scheme.starts_with("rediss");
    let (kind, default_port) = match scheme {
        "redis+cluster" | "rediss+cluster" => (UrlKind::Cluster, DEFAULT_PORT),
        "redis+sentinel" | "rediss+sentinel" => (UrlKind::Sentinels, DEFAULT_SENTINEL_PORT),
        _ => (UrlKind::One, DEFAULT_PORT),
    };
    if kind == UrlKind::One {
        let info = url.into_connection_info().map_err(|error| invalid(&error.to_string()))?;
        let options = ConnectOptions::new(info.redis_settings().clone(), secure, tls)?;
        let client = options.client_at(info.addr().clone())?;
        return Ok((Deployment::One(client), options));
    }
    let (credentials, servers) = rest.rsplit_once('@').map_or((None, rest), |(c, s)| (Some(c), s));
    let (servers, name) = servers.split_once('/').unwrap_or((servers, ""));
    let credentials = credentials.map(|text| format!("{text}@")).unwrap_or_default();
    // The client library decodes the user and the password, as in the URL of a single server.
    let info = format!("redis://{credentials}localhost/").as_str().into_connection_info();
    let info = info.map_err(|error| invalid(&error.to_string()))?;
    let servers = servers.split(',').map(|server| {
        Address::parse_with_default(server, default_port)
            .ok_or_else(|| invalid(&format!("write `{server}` like `host:{default_port}`")))
    });
    let servers = servers.collect::<Result<Vec<_>, _>>()?;
    let options = ConnectOptions::new(info.redis_settings().clone(), secure, tls)?;
    match kind {
        UrlKind::Sentinels if name.is_empty() => {
            Err(invalid("add the name of the primary, as in `redis+sentinel://host:26379/name`"))
        }
        UrlKind::Sentinels => Ok((Deployment::Sentinels(servers, name.to_owned()), options)),
        UrlKind::Cluster if !name.is_empty() => {
            Err(invalid("a cluster has no databases; remove the path"))
        }
        UrlKind::Cluster | UrlKind::One => Ok((Deployment::Cluster(servers), options)),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum UrlKind {
    One,
    Cluster,
    Sentinels,
}

impl ConnectOptions {
    fn new(info: RedisConnectionInfo, secure: bool, tls: &RedisTls) -> Result<Self, StoreError> {
        if !secure {
            return Ok(Self { info, tls: None });
        }
        let client = tls.client.clone();
        let certificates = TlsCertificates {
            client_tls: client
                .map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key }),
            root_cert: tls.authority.clone(),
        };
        let config = client_config(tls).map_err(|error| invalid(&error))?;
        Ok(Self { info, tls: Some((certificates, config)) })
    }

    /// A client of one server.
    pub(super) fn client(&self, address: &Address) -> Result<ServerClient, StoreError> {
        let Address { host, port } = address.clone();
        self.client_at(if self.tls.is_some() {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        })
    }

    /// A client of a sentinel. Sentinels do not share the users of the servers, so it logs in without credentials.
    pub(super) fn client_of_sentinel(&self, address: &Address) -> Result<ServerClient, StoreError> {
        let anonymous = Self { info: RedisConnectionInfo::default(), tls: self.tls.clone() };
        anonymous.client(address)
    }

    fn client_at(&self, address: ConnectionAddr) -> Result<ServerClient, StoreError> {
        let to_invalid = |error: ::redis::RedisError| invalid(&error.to_string());
        let info = address.into_connection_info().map_err(to_invalid)?;
        let info = info
            .set_redis_settings(self.info.clone())
            .set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let client = match &self.tls {
            Some((certificates, _)) => Client::build_with_tls(info, certificates.clone()),
            None => Client::open(info),
        };
        let tls = self.tls.as_ref().map(|(_, config)| Arc::clone(config));
        Ok(ServerClient { client: client.map_err(to_invalid)?, tls })
    }
}

fn invalid(why: &str) -> StoreError {
    StoreError::Unusable(format!("its address is not valid: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<(Deployment, ConnectOptions), StoreError> {
        parse(url, &RedisTls::default())
    }

    fn shown(servers: &[Address]) -> Vec<String> {
        servers.iter().map(Address::to_string).collect()
    }

    #[test]
    fn the_url_of_a_cluster_lists_seeds_and_credentials() {
        let (deployment, options) =
            read("redis+cluster://us%20er:p%40ss@10.0.0.1:7000,[fd00::2]:7001,node-3").unwrap();
        let Deployment::Cluster(seeds) = deployment else { panic!("not a cluster") };
        assert_eq!(shown(&seeds), ["10.0.0.1:7000", "[fd00::2]:7001", "node-3:6379"]);
        assert_eq!(
            (options.info.username(), options.info.password()),
            (Some("us er"), Some("p@ss"))
        );
    }

    #[test]
    fn the_url_of_sentinels_ends_with_the_name_of_the_primary() {
        let (deployment, _) = read("redis+sentinel://a,b:1/mymaster").unwrap();
        let Deployment::Sentinels(sentinels, name) = deployment else { panic!("not sentinels") };
        assert_eq!(
            (shown(&sentinels), name.as_str()),
            (vec!["a:26379".to_owned(), "b:1".to_owned()], "mymaster")
        );
    }

    #[test]
    fn an_error_names_the_part_of_the_url_that_is_not_valid() {
        for (url, said) in [
            ("nothing", "no `://`"),
            ("redis+cluster://", "write `` like `host:6379`"),
            ("redis+cluster://a,,b", "write `` like"),
            ("redis+cluster://a:0", "write `a:0` like"),
            ("redis+cluster://a:99999", "`a:99999`"),
            ("redis+cluster://a/3", "no databases"),
            ("redis+sentinel://a", "the name of the primary"),
            ("redis://host/x", "its address is not valid: "),
        ] {
            let error = read(url).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(said), "{url}: {error}");
        }
    }
}
