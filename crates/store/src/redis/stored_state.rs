//! A state as a script returned it: parsed, together with the limit that it was written under.

use super::shape_registry::ShapeRegistry;
use super::wire::{self, WrittenUnder};
use crate::error::StoreError;
use std::sync::Arc;
use tidegate_core::{Limit, StateContents, Written};

/// The contents of a state, and the limit by which they are read.
pub(super) struct StoredState<'l> {
    shape: wire::Shape<'l>,
    contents: StateContents,
}

impl<'l> StoredState<'l> {
    pub(super) fn parse(
        limit: &'l Limit,
        value: &[u8],
        registry: &ShapeRegistry,
    ) -> Result<Self, StoreError> {
        let (contents, under) = wire::parse(limit, value)?;
        let shape = match under {
            WrittenUnder::Registered(tag) => wire::Shape::Kept(registry.known(tag)?),
            WrittenUnder::Inline(shape) => wire::Shape::Kept(Arc::new(shape)),
            WrittenUnder::Room(room) => wire::Shape::with_room(limit, room, &contents),
            WrittenUnder::CurrentLimit => wire::Shape::wide_enough(limit, &contents)?,
        };
        Ok(Self { shape, contents })
    }

    pub(super) fn written(&self) -> Written<'_> {
        Written { shape: self.shape.limit(), state: self.shape.limit().remember(&self.contents) }
    }
}
