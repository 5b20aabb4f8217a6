//! A look at a store before a server starts with it. Nothing is written: no node is registered, no program is loaded, and no
//! key is set. So the nodes that count in the store notice nothing.
//!
//! ```text
//!   connect ──► ROLE: a primary? ──► GET: the verifier of our secret, or none? ──► EVAL: may scripts read the time? ──► INFO
//! ```

use super::Redis;
use super::address::{self, ConnectOptions, Deployment, ServerClient};
use super::command_error::CommandError;
use super::connection::{connect, is_replica};
use super::context::StoreContext;
use super::sentinels::Sentinels;
use super::settings::{RedisClock, RedisSettings};
use super::wire::VERIFIER_KEY;
use crate::clock::Clock;
use crate::error::StoreError;
use crate::key::Secret;
use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, FromRedisValue, Value};

/// What [`Redis::probe`] found.
///
/// ```
/// use tidegate_store::RedisProbe;
/// let probe = RedisProbe { engine: Some("Redis 7.0.15".to_owned()), ..RedisProbe::default() };
/// assert!(!probe.has_secret);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedisProbe {
    /// The program and its version, if the user may read it.
    pub engine: Option<String>,
    /// Whether the store holds the verifier of the secret: a node with this secret has used it. A store without any verifier
    /// is new.
    pub has_secret: bool,
    /// The value of `maxmemory-policy`, if the user may read it.
    pub eviction: Option<String>,
}

impl Redis {
    /// Looks at the store without changing anything in it: whether it answers, is a primary, runs scripts, and holds no states of
    /// another secret. The nodes that count in it notice nothing.
    ///
    /// ```no_run
    /// use tidegate_store::{Redis, RedisSettings, Secret};
    /// # async fn example() -> Result<(), tidegate_store::StoreError> {
    /// let secret = Secret::new([7; 32]);
    /// let probe = Redis::probe(&RedisSettings::new("redis://127.0.0.1/"), &secret).await?;
    /// println!("{}", probe.engine.unwrap_or_default());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn probe(
        settings: &RedisSettings,
        secret: &Secret,
    ) -> Result<RedisProbe, StoreError> {
        let (deployment, options) = address::parse(&settings.url, &settings.tls)?;
        let is_cluster = matches!(deployment, Deployment::Cluster(_));
        let context = StoreContext::new(settings, secret, Clock::system(), is_cluster);
        let servers = servers(deployment, &options, &context).await?;
        let visit = Visit { context: &context, options: &options };
        let mut failed = StoreError::Unavailable("it has no servers".into());
        for server in servers {
            match visit.look(&server).await {
                Err(
                    error @ (StoreError::Unavailable(_)
                    | StoreError::TimedOut(_)
                    | StoreError::Refuses(_)),
                ) => failed = error,
                result => return result,
            }
        }
        Err(failed)
    }
}

/// The servers to look at.
async fn servers(
    deployment: Deployment,
    options: &ConnectOptions,
    context: &StoreContext,
) -> Result<Vec<ServerClient>, StoreError> {
    match deployment {
        Deployment::One(client) => Ok(vec![client]),
        Deployment::Cluster(seeds) => seeds.iter().map(|seed| options.client(seed)).collect(),
        Deployment::Sentinels(addresses, name) => {
            let sentinels = Sentinels::new(addresses, name);
            let primary = sentinels.primary(context, options, None).await?;
            Ok(vec![options.client(&primary)?])
        }
    }
}

/// What a look at one server needs.
struct Visit<'p> {
    context: &'p StoreContext,
    options: &'p ConnectOptions,
}

impl Visit<'_> {
    async fn look(&self, server: &ServerClient) -> Result<RedisProbe, StoreError> {
        let timeout = self.context.settings.longest_timeout();
        let mut connection = connect(server, &self.context.settings).await?;
        let looking = self.questions(&mut connection);
        let looked = tokio::time::timeout(timeout.into(), looking).await;
        looked.map_err(|_late| StoreError::TimedOut(timeout))?
    }

    async fn questions(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<RedisProbe, StoreError> {
        self.check_role(connection).await?;
        let has_secret = self.compare_verifier(connection).await?;
        self.check_scripts(connection).await?;
        // The user need not be allowed INFO.
        let info: Result<String, _> = self.query(connection, &::redis::cmd("INFO")).await;
        let info = info.unwrap_or_default();
        let eviction = field(&info, "maxmemory_policy").map(str::to_owned);
        Ok(RedisProbe { engine: engine(&info), has_secret, eviction })
    }

    async fn query<T: FromRedisValue>(
        &self,
        connection: &mut MultiplexedConnection,
        command: &Cmd,
    ) -> Result<T, CommandError> {
        let reply = command.query_async(connection).await;
        reply.map_err(|error| CommandError::of(&error, self.context.settings.timeout))
    }

    /// A replica is refused, as it is when a server starts. A server that does not know ROLE is not.
    async fn check_role(&self, connection: &mut MultiplexedConnection) -> Result<(), StoreError> {
        let role = self.query::<Value>(connection, &::redis::cmd("ROLE")).await;
        if role.is_ok_and(|role| !self.context.is_cluster && is_replica(&role)) {
            let why = "it is a replica; name its primary, or the sentinels of the primary";
            return Err(StoreError::Refuses(why.to_owned()));
        }
        Ok(())
    }

    /// Whether the store holds the verifier of our secret. It is an error if it holds that of another one.
    async fn compare_verifier(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<bool, StoreError> {
        let mut get = ::redis::cmd("GET");
        get.arg(VERIFIER_KEY);
        let stored: Option<String> = match self.query(connection, &get).await {
            // In a cluster, one server owns the slot of this key.
            Err(CommandError::Redirect { to: Some(to), .. }) if self.context.is_cluster => {
                let owner = self.options.client(&to)?;
                let mut connection = connect(&owner, &self.context.settings).await?;
                self.query(&mut connection, &get).await
            }
            reply => reply,
        }
        .map_err(CommandError::into_error)?;
        match stored {
            None => Ok(false),
            Some(stored) if stored == self.context.verifier => Ok(true),
            Some(_) => Err(StoreError::OtherSecret),
        }
    }

    /// Runs a script that writes nothing, and reads the time if the clock of the server decides.
    async fn check_scripts(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<(), StoreError> {
        let (script, advice) = match self.context.settings.clock {
            RedisClock::Server => (
                "return redis.call('TIME')[1]",
                "its scripts must be allowed to read the time, or redis.clock must be `node`",
            ),
            RedisClock::Node => ("return '1'", "it must be able to run scripts"),
        };
        let mut eval = ::redis::cmd("EVAL");
        eval.arg(script).arg(0);
        let answer: Result<String, _> = self.query(connection, &eval).await;
        answer.map(drop).map_err(|error| {
            let failed = error.into_error();
            if let StoreError::Broken(why) | StoreError::Refuses(why) = &failed {
                return StoreError::Unusable(format!("{advice}: {why}"));
            }
            failed
        })
    }
}

/// The program and its version.
fn engine(info: &str) -> Option<String> {
    let valkey = field(info, "valkey_version").map(|version| format!("Valkey {version}"));
    valkey.or_else(|| field(info, "redis_version").map(|version| format!("Redis {version}")))
}

/// A field of the reply to INFO.
fn field<'i>(info: &'i str, name: &str) -> Option<&'i str> {
    let value = |line: &'i str| line.strip_prefix(name)?.strip_prefix(':');
    info.lines().find_map(value).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_is_the_one_that_names_itself() {
        let redis = "# Server\r\nredis_version:7.0.15\r\nmaxmemory_policy:noeviction\r\n";
        let valkey = "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.0\r\n";
        assert_eq!(engine(redis).as_deref(), Some("Redis 7.0.15"));
        assert_eq!(engine(valkey).as_deref(), Some("Valkey 9.1.0"));
        assert_eq!((engine(""), field(redis, "maxmemory_policy")), (None, Some("noeviction")));
    }
}
