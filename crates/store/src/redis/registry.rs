//! The registry of shapes: three digits for what a bucket's state was written under.
//!
//! A tag is a hash of its shape, so every node computes the same one, and computes it again should the registry
//! be lost. The registry is there for the way back: a node that meets a tag it does not know looks it up. If two
//! shapes share a tag, the second one writes itself out in full instead.

use super::fleet::Fleet;
use super::slots::slot_of;
use super::wire::{self, Tag};
use super::{KEPT_SECONDS, OURS, REGISTRY_KEY, script};
use crate::error::StoreError;
use crate::sync::{Mutex, lock};
use ::redis::FromRedisValue;
use siphasher::sip::SipHasher13;
use std::collections::HashMap;
use std::hash::Hasher;
use std::sync::Arc;
use tidegate_core::{Limit, Timestamp};

/// Tags and shapes that this process knows; the server knows all.
pub(super) struct Registry {
    fleet: Arc<Fleet>,
    /// Locked for a look-up, never across an await.
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    tags: HashMap<Limit, Tag>,
    /// At most 999, since tags have three digits.
    shapes: HashMap<u16, Arc<Limit>>,
}

/// Limits that a process remembers the tags of; more are looked up again.
const MOST_TAGS: usize = 10_000;

impl Registry {
    pub(super) fn new(fleet: Arc<Fleet>) -> Self {
        Self { fleet, known: Mutex::default() }
    }

    /// The tags of limits.
    pub(super) async fn tags(
        &self,
        limits: impl Iterator<Item = &Limit>,
        until: Timestamp,
    ) -> Result<Vec<Tag>, StoreError> {
        let mut tags = Vec::new();
        for limit in limits {
            let needs_one = limit.ticks().is_some();
            tags.push(if needs_one { self.tag(limit, until).await? } else { Tag::Registered(0) });
        }
        Ok(tags)
    }

    async fn tag(&self, limit: &Limit, until: Timestamp) -> Result<Tag, StoreError> {
        if let Some(tag) = lock(&self.known).tags.get(limit) {
            return Ok(*tag);
        }
        let (tag, text) = (tag_of(limit), wire::shape_text(limit));
        let mut register = ::redis::cmd("EVAL");
        register.arg(script::REGISTER).arg(1).arg(REGISTRY_KEY).arg(tag).arg(text);
        let ours: bool = self.ask(register.arg(KEPT_SECONDS), until).await?;
        let mut known = lock(&self.known);
        if known.tags.len() >= MOST_TAGS {
            known.tags.clear();
        }
        let tag = if ours { Tag::Registered(tag) } else { Tag::Whole };
        known.tags.insert(limit.clone(), tag);
        if let Tag::Registered(tag) = tag {
            known.shapes.insert(tag, Arc::new(limit.clone()));
        }
        Ok(tag)
    }

    /// The shape of a tag, looked up if this process does not know it yet. One that the registry has lost is
    /// taken for the limit that asks: what its ticks then say is either over, or more than can be in use and
    /// counts as used up once.
    pub(super) async fn shape(
        &self,
        tag: u16,
        asking: &Limit,
        until: Timestamp,
    ) -> Result<Arc<Limit>, StoreError> {
        if let Ok(shape) = self.known(tag) {
            return Ok(shape);
        }
        let mut get = ::redis::cmd("HGET");
        let text: Option<String> = self.ask(get.arg(REGISTRY_KEY).arg(tag), until).await?;
        let shape = match text {
            Some(text) => wire::parse_shape(&text)?,
            None => asking.clone(),
        };
        let shape = Arc::new(shape);
        lock(&self.known).shapes.insert(tag, Arc::clone(&shape));
        Ok(shape)
    }

    async fn ask<T: FromRedisValue>(
        &self,
        command: &::redis::Cmd,
        until: Timestamp,
    ) -> Result<T, StoreError> {
        let answer = self.fleet.query(slot_of(OURS), until, command).await?;
        T::from_redis_value(answer).map_err(|error| StoreError::Broken(error.to_string()))
    }

    /// The shape of a tag that was met before.
    pub(super) fn known(&self, tag: u16) -> Result<Arc<Limit>, StoreError> {
        let shape = lock(&self.known).shapes.get(&tag).map(Arc::clone);
        shape.ok_or_else(|| {
            StoreError::Broken(format!("a state of shape {tag}, which nobody registered"))
        })
    }
}

/// The tag of a shape, 1 to 999: of the server's choosing it is not, so a fixed hash will do.
fn tag_of(limit: &Limit) -> u16 {
    let mut hasher = SipHasher13::new();
    hasher.write(wire::shape_text(limit).as_bytes());
    u16::try_from(hasher.finish() % 999).unwrap_or(0).saturating_add(1)
}
