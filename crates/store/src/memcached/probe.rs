//! A look at the servers before a node starts with them. Nothing is written.

use super::address;
use super::connection::MetaConnection;
use super::meta::{self, Reply};
use super::server::{self, VERIFIER_KEY};
use super::{Memcached, MemcachedSettings};
use crate::error::StoreError;
use crate::remote::tcp;
use crate::secret::Secret;

/// What [`Memcached::probe`] found on one server.
///
/// ```
/// use tidegate_store::MemcachedProbe;
/// let probe = MemcachedProbe { name: "10.0.0.1:11211".to_owned(), version: "1.6.18".to_owned(), ..MemcachedProbe::default() };
/// assert!(!probe.has_secret);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemcachedProbe {
    /// Its address.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Whether it holds the verifier of the secret: a node with this secret has used it.
    pub has_secret: bool,
    /// Whether it evicts counters when it is full.
    pub evicts: bool,
}

impl Memcached {
    /// Looks at all servers without changing anything in them: whether each answers, has what a store needs, and holds no states of
    /// another secret.
    ///
    /// ```no_run
    /// use tidegate_store::{Memcached, MemcachedSettings, Secret};
    /// # async fn example() -> Result<(), tidegate_store::StoreError> {
    /// let settings = MemcachedSettings::new("memcached://127.0.0.1:11211");
    /// for server in Memcached::probe(&settings, &Secret::new([7; 32])).await? {
    ///     println!("{}: memcached {}", server.name, server.version);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn probe(
        settings: &MemcachedSettings,
        secret: &Secret,
    ) -> Result<Vec<MemcachedProbe>, StoreError> {
        let verifier = format!("{:032x}", secret.verifier());
        let within = settings.connect_timeout.max(settings.timeout);
        let mut found = Vec::new();
        for address in address::parse(&settings.url)? {
            let name = address.to_string();
            let looking = async {
                let stream = tcp(&address.host, address.port).await;
                let stream = stream.map_err(|error| StoreError::Unavailable(Box::new(error)))?;
                look(&MetaConnection::new(stream, 8), &verifier).await
            };
            let looked = tokio::time::timeout(within.into(), looking).await;
            let looked = looked.unwrap_or(Err(StoreError::TimedOut(within)));
            let probe = looked.map_err(|error| server::named(&name, error))?;
            found.push(MemcachedProbe { name, ..probe });
        }
        Ok(found)
    }
}

async fn look(connection: &MetaConnection, verifier: &str) -> Result<MemcachedProbe, StoreError> {
    let version = server::checked_version(connection).await?;
    let stored = server::ask(connection, meta::get(VERIFIER_KEY)).await?;
    let has_secret = server::compared(&stored, verifier)?;
    let stats = server::ask(connection, meta::plain(b"stats settings")).await?;
    let Reply::Stats(stats) = stats else { return Err(server::unexpected(&stats)) };
    let has = |name: &str, value: &str| stats.iter().any(|(n, v)| n == name && v == value);
    if has("cas_enabled", "no") {
        return Err(StoreError::Unusable(server::WITHOUT_SWAP.to_owned()));
    }
    Ok(MemcachedProbe { name: String::new(), version, has_secret, evicts: has("evictions", "on") })
}
