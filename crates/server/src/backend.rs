//! What the server needs from a store: it counts, reports its health, and keeps the control document that all nodes share.

use tidegate_store::{SharedDocument, Store, StoreHealth};

/// A store that the server can use.
pub(crate) trait Backend: Store + StoreHealth + SharedDocument + 'static {}

impl<S: Store + StoreHealth + SharedDocument + 'static> Backend for S {}
