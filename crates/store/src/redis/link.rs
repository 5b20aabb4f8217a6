//! The connection to the server, and how it comes back.
//!
//! The client's manager reconnects by itself when a connection breaks. When the server answers but refuses (another
//! password for a while, a replica that is still loading), the manager gives up for good; so after such an error
//! a new one is made, by the next call that needs it.

use super::{RedisSettings, script};
use crate::error::StoreError;
use crate::sync::{Mutex, lock};
use ::redis::aio::{ConnectionManager, ConnectionManagerConfig};
use ::redis::io::tcp::TcpSettings;
use ::redis::{Client, IntoConnectionInfo, RedisError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A connection that many calls share.
pub(super) struct Link {
    settings: RedisSettings,
    /// Locked to clone or to replace, never across an await.
    manager: Mutex<ConnectionManager>,
    /// The server refused us since the manager was made. Relaxed: at worst one more call is refused.
    refused: AtomicBool,
}

impl Link {
    pub(super) async fn open(settings: &RedisSettings) -> Result<Self, StoreError> {
        let manager = Mutex::new(
            open(settings).await.map_err(|error| script::store_error(error, settings.timeout))?,
        );
        Ok(Self { settings: settings.clone(), manager, refused: AtomicBool::new(false) })
    }

    /// The connection, made anew if the server refused the last one.
    pub(super) async fn connection(&self) -> Result<ConnectionManager, StoreError> {
        if self.refused.swap(false, Ordering::Relaxed) {
            let manager = open(&self.settings).await.map_err(|error| self.error(error))?;
            *lock(&self.manager) = manager;
        }
        Ok(lock(&self.manager).clone())
    }

    /// What a failed call means for its caller.
    pub(super) fn error(&self, error: RedisError) -> StoreError {
        let passing = error.is_io_error() || error.is_timeout() || error.is_connection_dropped();
        let error = script::store_error(error, self.settings.timeout);
        if !passing && matches!(error, StoreError::Unavailable(_)) {
            self.refused.store(true, Ordering::Relaxed);
        }
        error
    }
}

async fn open(settings: &RedisSettings) -> Result<ConnectionManager, RedisError> {
    let info = settings.url.as_str().into_connection_info()?;
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let config = ConnectionManagerConfig::new()
        .set_response_timeout(Some(Duration::from(settings.timeout)))
        .set_connection_timeout(Some(Duration::from(settings.connect_timeout)))
        .set_number_of_retries(1);
    ConnectionManager::new_with_config(Client::open(info)?, config).await
}
