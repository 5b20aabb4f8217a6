//! A document that all nodes share: read by everybody now and then, replaced by who has read the last version.

use super::OURS;
use super::fleet::Fleet;
use super::slots::slot_of;
use crate::error::StoreError;
use ::redis::Value;
use tidegate_core::Timestamp;

const DOCUMENT_KEY: &str = "{tidegate}control";

/// Answers nothing if the version is known already, so that nobody reads what has not changed.
pub(super) const READ: &str = "
local version = redis.call('HGET', KEYS[1], 'version') or '0'
if version == ARGV[1] then return false end
return { version, redis.call('HGET', KEYS[1], 'text') or '' }";

/// Writes the next version, if the one that it was made from is the last.
const REPLACE: &str = "
if (redis.call('HGET', KEYS[1], 'version') or '0') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'text', ARGV[3])
return 1";

/// The document, unless its version is this one; version 0 is that there is none.
pub(super) async fn read(
    fleet: &Fleet,
    until: Timestamp,
    known: u64,
) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
    let mut command = ::redis::cmd("EVAL");
    command.arg(READ).arg(1).arg(DOCUMENT_KEY).arg(known);
    let answer = fleet.query(slot_of(OURS), until, &command).await?;
    ::redis::from_redis_value(answer).map_err(|_| {
        StoreError::Broken(format!("`{DOCUMENT_KEY}` holds what no node of ours has written"))
    })
}

/// Puts the next version in the place of the one that it was made from; answers whether that was still the last.
pub(super) async fn replace(
    fleet: &Fleet,
    until: Timestamp,
    (old, new): (u64, u64),
    text: &[u8],
) -> Result<bool, StoreError> {
    let mut command = ::redis::cmd("EVAL");
    command.arg(REPLACE).arg(1).arg(DOCUMENT_KEY).arg(old).arg(new).arg(text);
    Ok(fleet.query(slot_of(OURS), until, &command).await? == Value::Int(1))
}
