//! What nodes tell each other through the store: one document of all nodes, and texts of each node.

use super::{Redis, publications, shared_document};
use crate::error::StoreError;
use crate::store::SharedDocument;
use std::time::Duration;

impl SharedDocument for Redis {
    const SHARED: bool = true;

    async fn document(&self, known: u64) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
        shared_document::read(&self.router, || self.deadline(), known).await
    }

    async fn replace_document(
        &self,
        versions: (u64, u64),
        text: &[u8],
    ) -> Result<bool, StoreError> {
        shared_document::replace(&self.router, self.deadline(), versions, text).await
    }

    async fn publish(&self, text: &[u8], keep: Duration) -> Result<(), StoreError> {
        let name = self.nodes.name();
        publications::publish(&self.router, self.deadline(), &name, (text, keep)).await
    }

    async fn publications(&self) -> Result<Vec<Vec<u8>>, StoreError> {
        publications::read(&self.router, || self.deadline(), &self.nodes.name()).await
    }
}
