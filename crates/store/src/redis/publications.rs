//! Texts that each node publishes for the others until they expire, such as its top keys.
//!
//! ```text
//!   node a ── publish ──► `{tidegate}top:a`  expires seconds after the last time ─┐
//!   node b ── publish ──► `{tidegate}top:b`                                       ├──► node c reads those of others
//!                         `{tidegate}top`    their names ─────────────────────────┘
//! ```

use super::router::Router;
use super::script;
use super::slots::slot_of;
use super::wire::{CONTROL_TAG, PUBLISHED_KEY};
use crate::error::StoreError;
use ::redis::{Cmd, FromRedisValue, cmd};
use std::time::Duration;
use tidegate_core::Timestamp;

/// The longest text.
const MAX_TEXT: usize = 256 << 10;
/// The most texts that are read.
const MAX_READ: usize = 1_000;

/// Publishes the text of the node with this name.
pub(super) async fn publish(
    router: &Router,
    until: Timestamp,
    name: &str,
    (text, keep): (&[u8], Duration),
) -> Result<(), StoreError> {
    if text.len() > MAX_TEXT {
        return Err(StoreError::Unusable(format!("a text of {} bytes is too long", text.len())));
    }
    let mut command = cmd("EVAL");
    command.arg(script::PUBLISH).arg(2).arg(PUBLISHED_KEY).arg(key_of(name));
    command.arg(name).arg(text).arg(u64::try_from(keep.as_millis()).unwrap_or(u64::MAX));
    query(router, until, &command).await
}

/// The texts of all other nodes. Each call has its own deadline.
pub(super) async fn read(
    router: &Router,
    deadline: impl Fn() -> Timestamp,
    own: &str,
) -> Result<Vec<Vec<u8>>, StoreError> {
    let names: Vec<(String, Vec<u8>)> =
        query(router, deadline(), cmd("HGETALL").arg(PUBLISHED_KEY)).await?;
    let mut texts = Vec::new();
    for (name, _) in names.iter().filter(|(name, _)| name != own).take(MAX_READ) {
        let text: Option<Vec<u8>> = query(router, deadline(), cmd("GET").arg(key_of(name))).await?;
        match text {
            Some(text) => texts.push(text),
            // The node is gone. If it comes back, it adds its name again.
            None => query(router, deadline(), cmd("HDEL").arg(PUBLISHED_KEY).arg(name)).await?,
        }
    }
    Ok(texts)
}

fn key_of(name: &str) -> String {
    format!("{PUBLISHED_KEY}:{name}")
}

async fn query<T: FromRedisValue>(
    router: &Router,
    until: Timestamp,
    command: &Cmd,
) -> Result<T, StoreError> {
    let reply = router.query(slot_of(CONTROL_TAG), until, command).await?;
    ::redis::from_redis_value(reply).map_err(|_| {
        StoreError::Broken(format!("`{PUBLISHED_KEY}` holds data that tidegate did not write"))
    })
}
