//! What nodes tell each other through the store: one document of all nodes, and texts of each node.

use super::{Redis, publications, shared_document};
use crate::error::StoreError;
use crate::store::{DocumentCopy, DocumentTag, SharedDocument};
use std::time::Duration;

impl SharedDocument for Redis {
    const SHARED: bool = true;

    async fn document(&self, known: &DocumentTag) -> Result<Option<DocumentCopy>, StoreError> {
        shared_document::read(&self.router, || self.deadline(), known).await
    }

    async fn replace_document(
        &self,
        old: &DocumentTag,
        new: &DocumentCopy,
    ) -> Result<bool, StoreError> {
        shared_document::replace(&self.router, self.deadline(), old, new).await
    }

    async fn publish(&self, text: &[u8], keep: Duration) -> Result<(), StoreError> {
        let name = self.nodes.name();
        publications::publish(&self.router, self.deadline(), &name, (text, keep)).await
    }

    async fn publications(&self) -> Result<Vec<Vec<u8>>, StoreError> {
        publications::read(&self.router, || self.deadline(), &self.nodes.name()).await
    }
}
