//! A document that all nodes share. Every node reads it now and then; a node replaces it with compare-and-set, so that no
//! change is overwritten by a node that has not read it.

use super::router::Router;
use super::script;
use super::slots::slot_of;
use super::wire::{CONTROL_TAG, DOCUMENT_KEY};
use crate::error::StoreError;
use ::redis::Value;
use tidegate_core::Timestamp;

/// The document, unless its version is `known`. Version 0 means that there is none.
pub(super) async fn read(
    router: &Router,
    until: Timestamp,
    known: u64,
) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
    let mut command = ::redis::cmd("EVAL");
    command.arg(script::READ_DOCUMENT).arg(1).arg(DOCUMENT_KEY).arg(known);
    let reply = router.query(slot_of(CONTROL_TAG), until, &command).await?;
    ::redis::from_redis_value(reply).map_err(|_| {
        StoreError::Broken(format!("`{DOCUMENT_KEY}` holds data that tidegate did not write"))
    })
}

/// Replaces version `old` of the document with version `new`. Returns whether `old` was still the current version.
pub(super) async fn replace(
    router: &Router,
    until: Timestamp,
    (old, new): (u64, u64),
    text: &[u8],
) -> Result<bool, StoreError> {
    let mut command = ::redis::cmd("EVAL");
    command.arg(script::REPLACE_DOCUMENT).arg(1).arg(DOCUMENT_KEY).arg(old).arg(new).arg(text);
    Ok(router.query(slot_of(CONTROL_TAG), until, &command).await? == Value::Int(1))
}
