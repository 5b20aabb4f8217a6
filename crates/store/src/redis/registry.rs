//! The registry of shapes: three digits for what a bucket's state was written under.

use super::wire::{self, Tag};
use super::{KEPT_SECONDS, REGISTRY_KEY, script};
use crate::error::StoreError;
use crate::sync::{Mutex, lock};
use ::redis::aio::ConnectionManager;
use std::collections::HashMap;
use std::sync::Arc;
use tidegate_core::{Limit, Span};

/// Tags and shapes that this process knows; the server knows all.
pub(super) struct Registry {
    connection: ConnectionManager,
    timeout: Span,
    /// Locked for a look-up, never across an await.
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    tags: HashMap<Limit, u16>,
    shapes: HashMap<u16, Arc<Limit>>,
    /// The server has no tag left to give.
    full: bool,
}

impl Registry {
    pub(super) fn new(connection: ConnectionManager, timeout: Span) -> Self {
        Self { connection, timeout, known: Mutex::default() }
    }

    /// The tags of limits.
    pub(super) async fn tags(
        &self,
        limits: impl Iterator<Item = &Limit>,
    ) -> Result<Vec<Tag>, StoreError> {
        let mut tags = Vec::new();
        for limit in limits {
            let needs_one = limit.ticks().is_some();
            tags.push(if needs_one { self.tag(limit).await? } else { Tag::Registered(0) });
        }
        Ok(tags)
    }

    async fn tag(&self, limit: &Limit) -> Result<Tag, StoreError> {
        if let Some(tag) = lock(&self.known).tag(limit) {
            return Ok(tag);
        }
        let mut connection = self.connection.clone();
        let mut invocation = script::REGISTER.prepare_invoke();
        invocation.key(REGISTRY_KEY).arg(wire::shape_text(limit)).arg(KEPT_SECONDS);
        let tag: u16 = invocation
            .invoke_async(&mut connection)
            .await
            .map_err(|error| script::store_error(error, self.timeout))?;
        let mut known = lock(&self.known);
        if tag == 0 {
            known.full = true;
            return Ok(Tag::Whole);
        }
        known.tags.insert(limit.clone(), tag);
        known.shapes.insert(tag, Arc::new(limit.clone()));
        Ok(Tag::Registered(tag))
    }

    /// The shape of a tag, looked up if this process does not know it yet.
    pub(super) async fn shape(&self, tag: u16) -> Result<Arc<Limit>, StoreError> {
        if let Ok(shape) = self.known(tag) {
            return Ok(shape);
        }
        let mut connection = self.connection.clone();
        let mut get = ::redis::cmd("HGET");
        get.arg(REGISTRY_KEY).arg(format!("t:{tag}"));
        let text: Option<String> = get
            .query_async(&mut connection)
            .await
            .map_err(|error| script::store_error(error, self.timeout))?;
        let shape = Arc::new(wire::parse_shape(&text.unwrap_or_default())?);
        let mut known = lock(&self.known);
        known.shapes.insert(tag, Arc::clone(&shape));
        Ok(shape)
    }

    /// The shape of a tag that was met before.
    pub(super) fn known(&self, tag: u16) -> Result<Arc<Limit>, StoreError> {
        let shape = lock(&self.known).shapes.get(&tag).map(Arc::clone);
        shape.ok_or_else(|| {
            StoreError::Broken(format!("a state of shape {tag}, which nobody registered"))
        })
    }
}

impl Known {
    fn tag(&self, limit: &Limit) -> Option<Tag> {
        let registered = self.tags.get(limit).map(|tag| Tag::Registered(*tag));
        registered.or(self.full.then_some(Tag::Whole))
    }
}
