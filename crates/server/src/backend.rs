//! What the server needs of a store: it counts, says how it is, and keeps the document that all nodes share.

use tidegate_store::{SharedDocument, Store, StoreHealth};

/// A store that a server can stand on.
pub(crate) trait Backend: Store + StoreHealth + SharedDocument + 'static {}

impl<S: Store + StoreHealth + SharedDocument + 'static> Backend for S {}
