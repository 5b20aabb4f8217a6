//! The registry of shapes: a tag of three digits stands for the limit that a bucket's state was written under.
//!
//! A tag is a hash of its shape, so every node computes the same tag. The registry, a hash in Redis, translates tags back into
//! shapes for nodes that do not know them. If two shapes collide on one tag, the second shape is written inline: in full, in
//! every value.
//!
//! **No limit depends on the registry.**
//!
//! - A shape that cannot be registered, for whatever reason, is written inline until it can be. This takes more memory.
//! - A tag that is not in the registry belongs to a state of which nothing is known. The state counts as full, once, under the
//!   current limit, and is written back like that: full in a second, because nodes may hold leases of what comes back until then.
//!   At most a second and one fill time later it is right again, and more than the limit never passes.
//! - A node never registers a shape under a tag that it has seen with another shape, not even in a new registry.
//! - The loss of the registry is noticed within a second, by its epoch. A node then registers its shapes again. From then on, a tag
//!   means what the new registry says. Only where that says nothing, it means what it meant in the old one.
//!
//! **What is left.** The store loses its data; within a second, before it notices, a node writes a state under a tag; and another
//! node registers the other of two colliding shapes under the same tag. Then that state is misread, once. One pair of shapes in 999
//! collides.

use super::router::Router;
use super::script;
use super::slots::slot_of;
use super::wire::{self, CONTROL_TAG, CONTROL_TTL_SECONDS, SHAPES_KEY, ShapeTag};
use crate::error::StoreError;
use crate::remote::timers;
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

/// A cache of the registry in this process, and the task that watches the registry.
pub(super) struct ShapeRegistry {
    core: Arc<RegistryCore>,
    watcher: JoinHandle<()>,
}

struct RegistryCore {
    router: Arc<Router>,
    /// The random id of this node: with a number, the epoch of a registry that this node creates.
    name: String,
    /// The next number: a registry that was lost and created again has another epoch. Relaxed: the numbers only have to
    /// differ.
    number: AtomicU64,
    /// Locked for a look-up, never across an await.
    known: Mutex<KnownShapes>,
}

#[derive(Default)]
struct KnownShapes {
    tags: HashMap<Limit, ShapeTag>,
    /// At most 999, since tags have three digits.
    shapes: HashMap<u16, Arc<Limit>>,
    /// What tags meant in registries that were lost. Two shapes with the same tag may be registered in the other order since.
    older: HashMap<u16, Arc<Limit>>,
    /// Limits that were registered in a registry that was lost, and have to be registered again.
    lost: Vec<Limit>,
    /// The epoch of the registry that the tags are in.
    epoch: Option<String>,
    /// Nothing is registered until this time, because registering failed.
    pause_until: Timestamp,
    /// Why registering failed the last time.
    why: Option<String>,
}

/// Limits whose tags a process remembers; then it forgets all of them and registers them again.
const MAX_TAGS: usize = 10_000;
/// The field of the registry that holds its epoch, which changes when the registry is created again.
const EPOCH_FIELD: &str = "epoch";
/// How often the epoch of the registry is checked.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Pause before registering is tried again after it failed.
const RETRY_PAUSE: Span = Span::from_secs(1);

// === impl ShapeRegistry ===

impl ShapeRegistry {
    pub(super) fn new(router: Arc<Router>, node_id: u64, timeout: Span) -> Self {
        let (name, known) = (format!("{node_id:016x}"), Mutex::default());
        let core = Arc::new(RegistryCore { router, name, number: AtomicU64::new(0), known });
        let watcher = tokio::spawn(core.router.supervised({
            let core = Arc::clone(&core);
            move || watch(Arc::clone(&core), timeout)
        }));
        Self { core, watcher }
    }

    /// The tags of limits, which are registered if necessary.
    pub(super) async fn tags(
        &self,
        limits: impl Iterator<Item = &Limit>,
        until: Timestamp,
    ) -> Vec<ShapeTag> {
        let mut tags = Vec::new();
        for limit in limits {
            let is_bucket = limit.ticks().is_some();
            let no_tag = ShapeTag::Registered(0);
            tags.push(if is_bucket { self.tag(limit, until).await } else { no_tag });
        }
        tags
    }

    async fn tag(&self, limit: &Limit, until: Timestamp) -> ShapeTag {
        let now = self.core.router.now();
        {
            let known = lock(&self.core.known);
            if let Some(tag) = known.tags.get(limit) {
                return *tag;
            }
            if now < known.pause_until {
                return ShapeTag::Inline;
            }
        }
        // Half of the time that is left: the other half is for the call itself.
        let half = Span::from_nanos(until.since(now).as_nanos() / 2);
        match self.core.register(tag_of(limit), limit, now.after(half).unwrap_or(until)).await {
            Ok(tag) => tag,
            Err(error) => {
                let mut known = lock(&self.core.known);
                known.pause_until = self.core.router.now().after(RETRY_PAUSE).unwrap_or(until);
                // An unreachable store is reported by its link.
                if matches!(error, StoreError::Broken(_) | StoreError::Refuses(_)) {
                    known.why = Some(error.to_string());
                }
                ShapeTag::Inline
            }
        }
    }

    /// The shape of a tag, looked up if this process does not know it yet; `None` if it is not in the registry. An unreachable
    /// registry is an error: a state must not count as full because its shape cannot be looked up for a moment.
    pub(super) async fn shape(
        &self,
        tag: u16,
        until: Timestamp,
    ) -> Result<Option<Arc<Limit>>, StoreError> {
        if let Some(shape) = lock(&self.core.known).shapes.get(&tag) {
            return Ok(Some(Arc::clone(shape)));
        }
        let mut get = ::redis::cmd("HGET");
        let text: Option<String> = match self.core.query(get.arg(SHAPES_KEY).arg(tag), until).await
        {
            Err(StoreError::Broken(_)) => None,
            // Without the permission for HGET the shape can never be looked up.
            Err(StoreError::Refuses(why)) if why.contains("NOPERM") => None,
            answered => answered?,
        };
        let registered = text.and_then(|text| wire::parse_shape(&text).ok()).map(Arc::new);
        let mut known = lock(&self.core.known);
        let shape = registered.or_else(|| known.older.get(&tag).map(Arc::clone));
        known.shapes.extend(shape.iter().map(|shape| (tag, Arc::clone(shape))));
        Ok(shape)
    }

    /// The shape of a tag that this process has told a script: it has looked it up or registered it before.
    pub(super) fn known(&self, tag: u16) -> Result<Arc<Limit>, StoreError> {
        lock(&self.core.known).told(tag).ok_or_else(|| {
            StoreError::Broken(format!("a state names shape {tag}, which is not in the registry"))
        })
    }

    /// Why shapes are written inline at the moment.
    pub(super) fn complaint(&self) -> Option<String> {
        let why = lock(&self.core.known).why.clone();
        why.map(|why| {
            format!("buckets take more memory because their limits cannot be registered: {why}")
        })
    }
}

impl Drop for ShapeRegistry {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

// === impl RegistryCore ===

impl RegistryCore {
    /// Registers a shape under its tag; or not, if this node has seen the tag with another shape. Which of two colliding shapes has
    /// their tag depends on which was registered first, and a registry that is lost and created again may see them in the other
    /// order. States that were written under the old meaning would then be misread.
    async fn register(
        &self,
        tag: u16,
        limit: &Limit,
        until: Timestamp,
    ) -> Result<ShapeTag, StoreError> {
        let text = wire::shape_text(limit);
        if lock(&self.known).has_other(tag, &text) {
            return Ok(ShapeTag::Inline);
        }
        let mut register = ::redis::cmd("EVAL");
        register.arg(script::REGISTER_SHAPE).arg(1).arg(SHAPES_KEY).arg(tag).arg(text);
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        register.arg(CONTROL_TTL_SECONDS).arg(EPOCH_FIELD).arg(format!("{}-{number}", self.name));
        let (registered, epoch): (bool, String) = self.query(&register, until).await?;
        let mut known = lock(&self.known);
        let is_new = known.epoch.as_ref().is_some_and(|old| *old != epoch);
        if is_new {
            known.forget_registry();
        }
        if known.tags.len() >= MAX_TAGS || is_new {
            known.tags.clear();
        }
        (known.epoch, known.why) = (Some(epoch), None);
        if tag == CANARY_TAG {
            return Ok(ShapeTag::Inline);
        }
        let tag = if registered { ShapeTag::Registered(tag) } else { ShapeTag::Inline };
        known.tags.insert(limit.clone(), tag);
        if let ShapeTag::Registered(tag) = tag {
            known.shapes.insert(tag, Arc::new(limit.clone()));
        }
        Ok(tag)
    }

    /// Registers the limits of a registry that was lost, before another node registers a limit with the same tag. What cannot be
    /// registered now is when it is next used.
    async fn register_again(&self, until: Timestamp) {
        let lost = std::mem::take(&mut lock(&self.known).lost);
        for limit in lost {
            if self.register(tag_of(&limit), &limit, until).await.is_err() {
                return;
            }
        }
    }

    async fn query<T: FromRedisValue>(
        &self,
        command: &::redis::Cmd,
        until: Timestamp,
    ) -> Result<T, StoreError> {
        let reply = self.router.query(slot_of(CONTROL_TAG), until, command).await?;
        T::from_redis_value(reply).map_err(|error| StoreError::Broken(error.to_string()))
    }
}

// === impl KnownShapes ===

impl KnownShapes {
    /// What a tag means that a script was told, and that is in its reply. The registry may have been lost in between.
    fn told(&self, tag: u16) -> Option<Arc<Limit>> {
        self.shapes.get(&tag).or_else(|| self.older.get(&tag)).map(Arc::clone)
    }

    /// Whether this node has seen the tag with another shape.
    fn has_other(&self, tag: u16, text: &str) -> bool {
        let seen = [&self.shapes, &self.older].map(|shapes| shapes.get(&tag));
        seen.into_iter().flatten().any(|shape| wire::shape_text(shape) != text)
    }

    /// The registry was lost: from now on, the new one says what tags mean. States may have been written since under tags that it
    /// does not have yet.
    fn forget_registry(&mut self) {
        let old = std::mem::take(&mut self.shapes);
        self.older.extend(old);
        let registered = self.tags.iter().filter(|(_, tag)| **tag != ShapeTag::Inline);
        self.lost = registered.map(|(limit, _)| limit.clone()).collect();
    }
}

/// The tag of the canary, which no state is written under: it must not keep a tag from a limit of a policy.
const CANARY_TAG: u16 = 0;

/// Registers a canary limit every second, for ever, in the same way as any bucket. So the loss of the registry, or an error that
/// prevents registering, is noticed before a request needs the registry.
async fn watch(core: Arc<RegistryCore>, timeout: Span) {
    let Ok(canary) = Limit::new(1_000_000, Span::from_secs(1), Algorithm::TOKEN_BUCKET) else {
        return;
    };
    loop {
        timers::sleep(WATCH_INTERVAL).await;
        let until = core.router.now().after(timeout).unwrap_or(Timestamp::END);
        match core.register(CANARY_TAG, &canary, until).await {
            Ok(_) => core.register_again(until).await,
            // The registered shapes may or may not be there still.
            Err(error @ (StoreError::Broken(_) | StoreError::Refuses(_))) => {
                let mut known = lock(&core.known);
                known.tags.clear();
                known.why = Some(error.to_string());
            }
            // An unreachable store is reported by its link.
            Err(_) => {}
        }
    }
}

/// Whether two buckets have the same tag. Nodes that use both may misread a state when the registry is lost.
#[cfg(feature = "testing")]
pub(crate) fn share_a_tag(one: &Limit, other: &Limit) -> bool {
    let are_buckets = one.ticks().is_some() && other.ticks().is_some();
    are_buckets && one != other && tag_of(one) == tag_of(other)
}

/// The tag of a shape, 1 to 999. Every node must compute the same tag, so the hash has a fixed key.
fn tag_of(limit: &Limit) -> u16 {
    let mut hasher = SipHasher13::new();
    hasher.write(wire::shape_text(limit).as_bytes());
    u16::try_from(hasher.finish() % 999).unwrap_or(0).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(amount: u64) -> Limit {
        Limit::new(amount, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap()
    }

    #[test]
    fn a_reply_is_read_by_the_tags_that_its_script_was_told_although_the_registry_was_lost_since() {
        let mut known = KnownShapes::default();
        known.shapes.insert(7, Arc::new(bucket(15)));
        known.forget_registry();
        assert_eq!(known.told(7).as_deref(), Some(&bucket(15)));
        known.shapes.insert(7, Arc::new(bucket(20))); // the new registry says otherwise
        assert_eq!(known.told(7).as_deref(), Some(&bucket(20)));
        assert_eq!(known.told(8), None);
    }
}
