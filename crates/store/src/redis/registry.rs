//! The registry of shapes: three digits for what a bucket's state was written under.
//!
//! A tag is a hash of its shape, so every node computes the same one. The registry is there for the way back: a node that
//! meets a tag it does not know looks it up. If two shapes share a tag, the second one writes itself out in full instead.
//!
//! **No limit depends on the registry.**
//!
//! - A shape that cannot be registered, for whatever reason, is written out in full until it can be: it takes more memory.
//! - A tag that nobody can translate is a state of which nothing is known. It counts as full, once, under the limit that
//!   asks, and is written back so: at most one fill time later it is right again, and never does more pass.
//! - A registry that was lost is noticed within a second, by its epoch, and written again by whoever uses its shapes.

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
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidegate_core::{Algorithm, Limit, Span, Timestamp};
use tokio::task::JoinHandle;

/// Tags and shapes that this process knows; the server knows all.
pub(super) struct Registry {
    shared: Arc<Shared>,
    watcher: JoinHandle<()>,
}

struct Shared {
    fleet: Arc<Fleet>,
    /// Drawn at random: with a number, what this node calls a registry that it begins.
    name: String,
    /// The next number: a registry that was lost and begun anew has another name. Relaxed: only different numbers are
    /// wanted.
    number: AtomicU64,
    /// Locked for a look-up, never across an await.
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    tags: HashMap<Limit, Tag>,
    /// At most 999, since tags have three digits.
    shapes: HashMap<u16, Arc<Limit>>,
    /// Which registry the tags are in.
    epoch: Option<String>,
    /// Until then nothing is registered, because it failed.
    pause_until: Timestamp,
    /// Why registering failed the last time.
    why: Option<String>,
}

/// Limits that a process remembers the tags of; more are looked up again.
const MOST_TAGS: usize = 10_000;
/// The field of the registry that changes when it is begun anew.
const EPOCH_FIELD: &str = "epoch";
/// How often it is looked whether the registry is still the one that shapes were registered in.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(1);
/// How soon registering is tried again after it failed.
const PAUSE: Span = Span::from_secs(1);

// === impl Registry ===

impl Registry {
    pub(super) fn new(fleet: Arc<Fleet>, ours: u64, timeout: Span) -> Self {
        let (name, known) = (format!("{ours:016x}"), Mutex::default());
        let shared = Arc::new(Shared { fleet, name, number: AtomicU64::new(0), known });
        let watcher = tokio::spawn(shared.fleet.supervised({
            let shared = Arc::clone(&shared);
            move || watch(Arc::clone(&shared), timeout)
        }));
        Self { shared, watcher }
    }

    /// The tags of limits.
    pub(super) async fn tags(
        &self,
        limits: impl Iterator<Item = &Limit>,
        until: Timestamp,
    ) -> Vec<Tag> {
        let mut tags = Vec::new();
        for limit in limits {
            let needs_one = limit.ticks().is_some();
            tags.push(if needs_one { self.tag(limit, until).await } else { Tag::Registered(0) });
        }
        tags
    }

    async fn tag(&self, limit: &Limit, until: Timestamp) -> Tag {
        let now = self.shared.fleet.now();
        {
            let known = lock(&self.shared.known);
            if let Some(tag) = known.tags.get(limit) {
                return *tag;
            }
            if now < known.pause_until {
                return Tag::Whole;
            }
        }
        // Half of the time that is left: the other half is for the question itself.
        let half = Span::from_nanos(until.since(now).as_nanos() / 2);
        match self.shared.register(limit, now.after(half).unwrap_or(until)).await {
            Ok(tag) => tag,
            Err(error) => {
                let mut known = lock(&self.shared.known);
                known.pause_until = self.shared.fleet.now().after(PAUSE).unwrap_or(until);
                // That the store is away is said elsewhere.
                if matches!(error, StoreError::Broken(_) | StoreError::Refuses(_)) {
                    known.why = Some(error.to_string());
                }
                Tag::Whole
            }
        }
    }

    /// The shape of a tag, looked up if this process does not know it yet; nothing if it is lost. If nobody can be asked, that is
    /// an error: a state must not count as full because its shape is out of reach for a moment.
    pub(super) async fn shape(
        &self,
        tag: u16,
        until: Timestamp,
    ) -> Result<Option<Arc<Limit>>, StoreError> {
        if let Ok(shape) = self.known(tag) {
            return Ok(Some(shape));
        }
        let mut get = ::redis::cmd("HGET");
        let text: Option<String> =
            match self.shared.ask(get.arg(REGISTRY_KEY).arg(tag), until).await {
                Err(StoreError::Broken(_)) => None,
                // Who may not look never learns.
                Err(StoreError::Refuses(why)) if why.contains("NOPERM") => None,
                answered => answered?,
            };
        let Some(shape) = text.and_then(|text| wire::parse_shape(&text).ok()) else {
            return Ok(None);
        };
        let shape = Arc::new(shape);
        lock(&self.shared.known).shapes.insert(tag, Arc::clone(&shape));
        Ok(Some(shape))
    }

    /// The shape of a tag that was met before.
    pub(super) fn known(&self, tag: u16) -> Result<Arc<Limit>, StoreError> {
        let shape = lock(&self.shared.known).shapes.get(&tag).map(Arc::clone);
        shape.ok_or_else(|| {
            StoreError::Broken(format!("a state of shape {tag}, which nobody registered"))
        })
    }

    /// Why shapes are written out in full at the moment.
    pub(super) fn complaint(&self) -> Option<String> {
        let why = lock(&self.shared.known).why.clone();
        why.map(|why| {
            format!("buckets take more memory, because their limits cannot be registered: {why}")
        })
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

// === impl Shared ===

impl Shared {
    async fn register(&self, limit: &Limit, until: Timestamp) -> Result<Tag, StoreError> {
        let (tag, text) = (tag_of(limit), wire::shape_text(limit));
        let mut register = ::redis::cmd("EVAL");
        register.arg(script::REGISTER).arg(1).arg(REGISTRY_KEY).arg(tag).arg(text);
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        register.arg(KEPT_SECONDS).arg(EPOCH_FIELD).arg(format!("{}-{number}", self.name));
        let (ours, epoch): (bool, String) = self.ask(&register, until).await?;
        let mut known = lock(&self.known);
        if known.tags.len() >= MOST_TAGS || known.epoch.as_ref().is_some_and(|old| *old != epoch) {
            known.tags.clear();
        }
        (known.epoch, known.why) = (Some(epoch), None);
        let tag = if ours { Tag::Registered(tag) } else { Tag::Whole };
        known.tags.insert(limit.clone(), tag);
        if let Tag::Registered(tag) = tag {
            known.shapes.insert(tag, Arc::new(limit.clone()));
        }
        Ok(tag)
    }

    async fn ask<T: FromRedisValue>(
        &self,
        command: &::redis::Cmd,
        until: Timestamp,
    ) -> Result<T, StoreError> {
        let answer = self.fleet.query(slot_of(OURS), until, command).await?;
        T::from_redis_value(answer).map_err(|error| StoreError::Broken(error.to_string()))
    }
}

/// Registers a limit of its own again and again, for ever, as any bucket is registered. So a registry that was lost, or where
/// nothing can be registered, is noticed before somebody needs it; lost shapes are registered again when they are used next.
async fn watch(shared: Arc<Shared>, timeout: Span) {
    let Ok(canary) = Limit::new(1_000_000, Span::from_secs(1), Algorithm::TOKEN_BUCKET) else {
        return;
    };
    loop {
        tokio::time::sleep(LOOKED_AT_EVERY).await;
        let until = shared.fleet.now().after(timeout).unwrap_or(Timestamp::END);
        match shared.register(&canary, until).await {
            Ok(_) => {}
            // What was registered may be there or not.
            Err(error @ (StoreError::Broken(_) | StoreError::Refuses(_))) => {
                let mut known = lock(&shared.known);
                known.tags.clear();
                known.why = Some(error.to_string());
            }
            // That the store is away is said elsewhere.
            Err(_) => {}
        }
    }
}

/// The tag of a shape, 1 to 999: of the server's choosing it is not, so a fixed hash will do.
fn tag_of(limit: &Limit) -> u16 {
    let mut hasher = SipHasher13::new();
    hasher.write(wire::shape_text(limit).as_bytes());
    u16::try_from(hasher.finish() % 999).unwrap_or(0).saturating_add(1)
}
