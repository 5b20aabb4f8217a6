//! The seam between a link and its server, which is real or simulated.
//!
//! ```text
//!   link ──► Host::connect ──► Connection ──► Message ──► reply
//!            Server     the client library      a command in bytes
//!            Simulated  a network of a test     the call itself, which the core decides
//! ```
//!
//! Everything above this seam (links, breakers, registries, denial cache, plans) is the same code in a simulation and in
//! production.

use super::address::ServerClient;
use super::command_error::CommandError;
use super::library::ProgramKind;
use super::packed_plan::{self, PackedPlan};
use super::script::{self, ScriptCall, ScriptHints, ScriptTimes};
use super::server_stream::ServerStream;
use super::settings::RedisSettings;
#[cfg(feature = "testing")]
use super::simulated::{Network, SimulatedRequest};
use crate::error::StoreError;
use ::redis::aio::{ConnectionLike as _, MultiplexedConnection};
use ::redis::{AsyncConnectionConfig, Cmd, RedisResult, Value};
use std::sync::Arc;

/// A server that can be connected to.
pub(super) enum Host {
    /// Redis or Valkey.
    Server(Box<ServerClient>),
    #[cfg(feature = "testing")]
    Simulated(Arc<dyn Network>),
}

/// A connection that many calls share. Clones are the same connection.
#[derive(Clone)]
pub(super) enum Connection {
    Server(MultiplexedConnection),
    #[cfg(feature = "testing")]
    Simulated(Arc<dyn Network>, u64),
}

/// What is sent to a server.
pub(super) enum Message {
    Command(Cmd),
    /// Plans for the short path, in one call.
    Plans(Vec<Arc<PackedPlan>>),
    /// A script call for a simulated server, which decides it with the core.
    #[cfg(feature = "testing")]
    Simulated(Arc<SimulatedRequest>),
}

impl Host {
    /// Connects, within the connect timeout of the settings.
    pub(super) async fn connect(&self, settings: &RedisSettings) -> Result<Connection, StoreError> {
        match self {
            Self::Server(client) => connect(client, settings).await.map(Connection::Server),
            #[cfg(feature = "testing")]
            Self::Simulated(network) => {
                let connecting = network.connect();
                match tokio::time::timeout(settings.connect_timeout.into(), connecting).await {
                    Ok(Ok(number)) => Ok(Connection::Simulated(Arc::clone(network), number)),
                    Ok(Err(error)) => Err(StoreError::Unavailable(error.into())),
                    Err(_late) => Err(StoreError::TimedOut(settings.connect_timeout)),
                }
            }
        }
    }

    /// A script call as a message for this server. Its reply must carry `echo`.
    pub(super) fn script_message(
        &self,
        call: &ScriptCall<'_>,
        hints: &ScriptHints<'_>,
        times: ScriptTimes,
        echo: u64,
        kind: ProgramKind,
    ) -> Message {
        match self {
            Self::Server(_) => match packed_plan::pack(call, hints, times, echo, kind) {
                Some(plan) => Message::Plans(vec![Arc::new(plan)]),
                None => Message::Command(script::command(call, hints, times, echo, kind)),
            },
            #[cfg(feature = "testing")]
            Self::Simulated(_) => {
                Message::Simulated(Arc::new(SimulatedRequest::of_call(call, hints, times, echo)))
            }
        }
    }
}

impl Connection {
    /// Sends a message and waits for its reply. With `asking`, ASKING goes first: the server accepts the command for a slot
    /// that it is importing. The future borrows nothing, so it can outlive the caller.
    pub(super) async fn send(self, message: Arc<Message>, asking: bool) -> RedisResult<Value> {
        let packed;
        let command = match &*message {
            Message::Command(command) => command,
            Message::Plans(plans) => {
                packed = packed_plan::command(plans);
                &packed
            }
            #[cfg(feature = "testing")]
            Message::Simulated(request) => {
                let Self::Simulated(network, number) = self else {
                    let why = "a simulated call was sent over a real connection";
                    return Err(std::io::Error::other(why).into());
                };
                return network.carry(number, Arc::clone(request)).await?.into_value();
            }
        };
        match self {
            Self::Server(mut connection) if asking => {
                let mut both = ::redis::pipe();
                both.cmd("ASKING").add_command(command.clone());
                // Two replies: the second one is the command's, and may itself be a redirect.
                let replies = connection.req_packed_commands(&both, 0, 2).await?;
                replies.into_iter().next_back().unwrap_or(Value::Nil).extract_error()
            }
            Self::Server(mut connection) => command.query_async(&mut connection).await,
            #[cfg(feature = "testing")]
            Self::Simulated(network, number) => {
                let request = Arc::new(SimulatedRequest::of_command(command));
                network.carry(number, request).await?.into_value()
            }
        }
    }
}

/// Whether the reply to ROLE is that of a replica.
pub(super) fn is_replica(role: &Value) -> bool {
    let Value::Array(parts) = role else { return false };
    matches!(parts.first(), Some(Value::BulkString(role)) if role == b"slave")
}

/// Connects to a server, within the connect timeout of the settings.
pub(super) async fn connect(
    server: &ServerClient,
    settings: &RedisSettings,
) -> Result<MultiplexedConnection, StoreError> {
    let connecting =
        tokio::time::timeout(settings.connect_timeout.into(), logged_in(server, settings));
    let error = match connecting.await {
        Ok(Ok(connection)) => return Ok(connection),
        Ok(Err(error)) if !error.is_timeout() => {
            return Err(CommandError::of(&error, settings.timeout).into_error());
        }
        Ok(Err(_)) | Err(_) => StoreError::TimedOut(settings.connect_timeout),
    };
    if server.tls.is_some() {
        let why = "no TLS handshake; does this port speak TLS? If not, use `redis://`";
        return Err(StoreError::Unavailable(why.into()));
    }
    Err(error)
}

async fn logged_in(
    server: &ServerClient,
    settings: &RedisSettings,
) -> RedisResult<MultiplexedConnection> {
    let info = server.client.get_connection_info();
    let stream = ServerStream::connect(info.addr(), server.tls.as_ref()).await?;
    // Each call has its own deadline.
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_pipeline_buffer_size(settings.in_flight);
    let login = MultiplexedConnection::new_with_config(info.redis_settings(), stream, config);
    let (connection, driver) = login.await?;
    // It ends with the last clone of the connection.
    tokio::spawn(driver);
    Ok(connection)
}
