//! A document that all nodes share. Every node reads it now and then; a node replaces it with compare-and-set, so that no
//! change is overwritten by a node that has not read it.

use super::router::Router;
use super::script;
use super::slots::slot_of;
use super::wire::{CONTROL_TAG, DOCUMENT_KEY};
use crate::error::StoreError;
use crate::store::{DocumentCopy, DocumentTag};
use ::redis::Value;
use tidegate_core::Timestamp;

/// The longest document. It is read in pieces, because replies are bounded.
const MAX_DOCUMENT: usize = 32 << 20;
const PIECE: usize = 1 << 19;
/// How often another node may replace the document while it is read.
const MAX_RESTARTS: usize = 3;

/// One piece of the text of a document, and what belongs to the whole document.
struct DocumentPiece {
    of: DocumentCopy,
    /// The bytes of the whole text.
    length: usize,
}

/// The document, unless it is the `known` one. Version 0 means that there is none. Each piece has its own deadline.
pub(super) async fn read(
    router: &Router,
    deadline: impl Fn() -> Timestamp,
    known: &DocumentTag,
) -> Result<Option<DocumentCopy>, StoreError> {
    let (mut read, mut restarts): (Option<DocumentCopy>, usize) = (None, 0);
    loop {
        let from = read.as_ref().map_or(0, |read| read.text.len());
        let piece = read_piece(router, deadline(), known, from).await?;
        let Some(DocumentPiece { of, length }) = piece else { return Ok(None) };
        if read.as_ref().is_some_and(|read| read.tag() != of.tag()) {
            (read, restarts) = (None, restarts.saturating_add(1));
            if restarts > MAX_RESTARTS {
                return Err(StoreError::Broken(format!("`{DOCUMENT_KEY}` changes all the time")));
            }
            continue;
        }
        if length > MAX_DOCUMENT || (of.text.is_empty() && from < length) {
            return Err(not_ours());
        }
        let mut whole = read.take().unwrap_or(DocumentCopy { text: vec![], ..of.clone() });
        whole.text.extend(of.text);
        if whole.text.len() >= length {
            return Ok(Some(whole));
        }
        read = Some(whole);
    }
}

/// The piece of the document that begins at `from`.
async fn read_piece(
    router: &Router,
    until: Timestamp,
    known: &DocumentTag,
    from: usize,
) -> Result<Option<DocumentPiece>, StoreError> {
    let mut command = ::redis::cmd("EVAL");
    command.arg(script::READ_DOCUMENT).arg(1).arg(DOCUMENT_KEY);
    command.arg(known.version).arg(from).arg(PIECE).arg(&known.id);
    let reply = router.query(slot_of(CONTROL_TAG), until, &command).await?;
    let piece: Option<(u64, usize, Vec<u8>, String)> =
        ::redis::from_redis_value(reply).map_err(|_| not_ours())?;
    Ok(piece.map(|(version, length, text, lineage)| {
        let of = DocumentCopy { version, lineage, text };
        DocumentPiece { of, length }
    }))
}

fn not_ours() -> StoreError {
    StoreError::Broken(format!("`{DOCUMENT_KEY}` holds data that tidegate did not write"))
}

/// Replaces the document if it still is the `old` one. Returns whether it was.
pub(super) async fn replace(
    router: &Router,
    until: Timestamp,
    old: &DocumentTag,
    new: &DocumentCopy,
) -> Result<bool, StoreError> {
    if new.text.len() > MAX_DOCUMENT {
        let why = format!("the shared document would be longer than {} MiB", MAX_DOCUMENT >> 20);
        return Err(StoreError::Unusable(why));
    }
    let mut command = ::redis::cmd("EVAL");
    command.arg(script::REPLACE_DOCUMENT).arg(1).arg(DOCUMENT_KEY);
    command.arg(old.version).arg(&old.id).arg(new.version).arg(&new.text).arg(&new.lineage);
    Ok(router.query(slot_of(CONTROL_TAG), until, &command).await? == Value::Int(1))
}
