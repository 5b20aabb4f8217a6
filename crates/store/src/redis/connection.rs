//! The seam between the keeper of a connection and the server behind it.
//!
//! ```text
//!   link ──► Host::connect ──► Connection ──► Message ──► reply
//!            Server     the client library      bytes
//!            Simulated  a network in a test     the call itself, which the core decides
//! ```
//!
//! Everything above this seam (links, breakers, registry, node registry, denial cache, plans) is the same code in a
//! simulation and in production.

use super::RedisSettings;
use super::script::{self, Call, Times, Told};
#[cfg(feature = "testing")]
use super::simulated::{Network, Request};
use super::trouble::Trouble;
use crate::error::StoreError;
use ::redis::aio::{ConnectionLike as _, MultiplexedConnection};
use ::redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, RedisResult, Value};
use std::sync::Arc;

/// A server that can be connected to.
pub(super) enum Host {
    /// Redis or Valkey.
    Server(Box<Client>),
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
    Bytes(Cmd),
    /// A script call, which a simulated server decides with the core.
    #[cfg(feature = "testing")]
    Call(Arc<Request>),
}

impl Host {
    /// Connects, within the time that the settings give.
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

    /// A call of the script as this server takes it; its reply must show `echo`.
    pub(super) fn script(
        &self,
        call: &Call<'_>,
        told: &Told<'_>,
        times: Times,
        echo: u64,
    ) -> Message {
        match self {
            Self::Server(_) => Message::Bytes(script::command(call, told, times, echo)),
            #[cfg(feature = "testing")]
            Self::Simulated(_) => {
                Message::Call(Arc::new(Request::of_call(call, told, times, echo)))
            }
        }
    }
}

impl Connection {
    /// Sends a message and waits for its reply. `asking` tells a server that it is asked for a slot which it does not have yet.
    /// Borrows nothing, so that the reply can be waited for longer than its caller does.
    pub(super) async fn send(self, message: Arc<Message>, asking: bool) -> RedisResult<Value> {
        match (self, &*message) {
            (Self::Server(mut connection), Message::Bytes(command)) if asking => {
                let mut both = ::redis::pipe();
                both.cmd("ASKING").add_command(command.clone());
                // Each has an answer; the second is ours, and an error in it says where to go.
                let answers = connection.req_packed_commands(&both, 0, 2).await?;
                answers.into_iter().next_back().unwrap_or(Value::Nil).extract_error()
            }
            (Self::Server(mut connection), Message::Bytes(command)) => {
                command.query_async(&mut connection).await
            }
            #[cfg(feature = "testing")]
            (Self::Simulated(network, number), Message::Bytes(command)) => {
                let request = Arc::new(Request::of_command(command));
                network.carry(number, request).await?.into_value()
            }
            #[cfg(feature = "testing")]
            (Self::Simulated(network, number), Message::Call(request)) => {
                network.carry(number, Arc::clone(request)).await?.into_value()
            }
            #[cfg(feature = "testing")]
            (Self::Server(_), Message::Call(_)) => {
                Err(std::io::Error::other("a simulated call on a real connection").into())
            }
        }
    }
}

/// Whether the answer to ROLE is that of a replica.
pub(super) fn is_replica(role: &Value) -> bool {
    let Value::Array(parts) = role else { return false };
    matches!(parts.first(), Some(Value::BulkString(role)) if role == b"slave")
}

/// Connects to a server, within the time that the settings give.
pub(super) async fn connect(
    client: &Client,
    settings: &RedisSettings,
) -> Result<MultiplexedConnection, StoreError> {
    let config = AsyncConnectionConfig::new()
        // Calls have their own time.
        .set_response_timeout(None)
        .set_connection_timeout(Some(settings.connect_timeout.into()))
        .set_pipeline_buffer_size(settings.in_flight);
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    let error = match tokio::time::timeout(settings.connect_timeout.into(), connecting).await {
        Ok(Ok(connection)) => return Ok(connection),
        Ok(Err(error)) if !error.is_timeout() => {
            return Err(Trouble::of(&error, settings.timeout).into_error());
        }
        Ok(Err(_)) | Err(_) => StoreError::TimedOut(settings.connect_timeout),
    };
    if speaks_tls(client) {
        let why = "no answer to TLS; does this port speak TLS? `redis://` does without";
        return Err(StoreError::Unavailable(why.into()));
    }
    Err(error)
}

fn speaks_tls(client: &Client) -> bool {
    matches!(client.get_connection_info().addr(), ConnectionAddr::TcpTls { .. })
}
