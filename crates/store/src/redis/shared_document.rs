//! A document that all nodes share. Every node reads it now and then; a node replaces it with compare-and-set, so that no
//! change is overwritten by a node that has not read it.

use super::router::Router;
use super::script;
use super::slots::slot_of;
use super::wire::{CONTROL_TAG, DOCUMENT_KEY};
use crate::error::StoreError;
use ::redis::Value;
use tidegate_core::Timestamp;

/// The longest document. It is read in pieces, because replies are bounded.
const MAX_DOCUMENT: usize = 32 << 20;
const PIECE: usize = 1 << 19;
/// How often another node may replace the document while it is read.
const MAX_RESTARTS: usize = 3;

/// The document, unless its version is `known`. Version 0 means that there is none. Each piece has its own deadline.
pub(super) async fn read(
    router: &Router,
    deadline: impl Fn() -> Timestamp,
    known: u64,
) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
    let (mut first, mut text, mut restarts) = (None, Vec::new(), 0_usize);
    loop {
        let piece = read_piece(router, deadline(), known, text.len()).await?;
        let Some((version, length, piece)) = piece else { return Ok(None) };
        if *first.get_or_insert(version) != version {
            (first, text, restarts) = (None, Vec::new(), restarts.saturating_add(1));
            if restarts > MAX_RESTARTS {
                return Err(StoreError::Broken(format!("`{DOCUMENT_KEY}` changes all the time")));
            }
            continue;
        }
        if length > MAX_DOCUMENT || (piece.is_empty() && text.len() < length) {
            return Err(not_ours());
        }
        text.extend(piece);
        if text.len() >= length {
            return Ok(Some((version, text)));
        }
    }
}

/// The version of the document, its length, and the piece that begins at `from`.
async fn read_piece(
    router: &Router,
    until: Timestamp,
    known: u64,
    from: usize,
) -> Result<Option<(u64, usize, Vec<u8>)>, StoreError> {
    let mut command = ::redis::cmd("EVAL");
    command.arg(script::READ_DOCUMENT).arg(1).arg(DOCUMENT_KEY).arg(known).arg(from).arg(PIECE);
    let reply = router.query(slot_of(CONTROL_TAG), until, &command).await?;
    ::redis::from_redis_value(reply).map_err(|_| not_ours())
}

fn not_ours() -> StoreError {
    StoreError::Broken(format!("`{DOCUMENT_KEY}` holds data that tidegate did not write"))
}

/// Replaces version `old` of the document with version `new`. Returns whether `old` was still the current version.
pub(super) async fn replace(
    router: &Router,
    until: Timestamp,
    (old, new): (u64, u64),
    text: &[u8],
) -> Result<bool, StoreError> {
    if text.len() > MAX_DOCUMENT {
        let why = format!("the shared document would be longer than {} MiB", MAX_DOCUMENT >> 20);
        return Err(StoreError::Unusable(why));
    }
    let mut command = ::redis::cmd("EVAL");
    command.arg(script::REPLACE_DOCUMENT).arg(1).arg(DOCUMENT_KEY).arg(old).arg(new).arg(text);
    Ok(router.query(slot_of(CONTROL_TAG), until, &command).await? == Value::Int(1))
}
