//! The nodes that count in one store: each says every second that it is there, and learns how many are.
//!
//! When the store is gone, a node that counts by itself lets pass its share of a limit: the amount by their number, as it was
//! last known.

use super::fleet::Fleet;
use super::slots::slot_of;
use super::{OURS, RedisSettings};
use ::redis::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tidegate_core::Timestamp;
use tokio::task::JoinHandle;

/// How many there are.
pub(super) struct Nodes {
    count: Arc<AtomicU32>,
    caller: Option<JoinHandle<()>>,
}

/// Writes down that a node is there, and answers how many are.
pub(super) const CALL: &str = include_str!("scripts/nodes.lua");
const NODES_KEY: &str = "{tidegate}nodes";
const CALLED_EVERY: Duration = Duration::from_secs(1);

impl Nodes {
    /// Says that `name` is there from now on; or nothing, where the settings say how many there are.
    pub(super) async fn join(fleet: &Arc<Fleet>, settings: &RedisSettings, name: u64) -> Self {
        if let Some(count) = settings.nodes {
            return Self { count: Arc::new(AtomicU32::new(count.max(1))), caller: None };
        }
        let count = Arc::new(AtomicU32::new(1));
        let (timeout, name) = (settings.timeout, format!("{name:016x}"));
        call(fleet, timeout, &name, &count).await;
        let caller = tokio::spawn(fleet.supervised({
            let (fleet, count) = (Arc::clone(fleet), Arc::clone(&count));
            move || {
                let (fleet, count, name) = (Arc::clone(&fleet), Arc::clone(&count), name.clone());
                async move {
                    loop {
                        tokio::time::sleep(CALLED_EVERY).await;
                        call(&fleet, timeout, &name, &count).await;
                    }
                }
            }
        }));
        Self { count, caller: Some(caller) }
    }

    pub(super) fn count(&self) -> u32 {
        // Relaxed: any recent number will do.
        self.count.load(Ordering::Relaxed)
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if let Some(caller) = &self.caller {
            caller.abort();
        }
    }
}

/// Says that we are there; without an answer the number stays what it was.
async fn call(fleet: &Fleet, timeout: tidegate_core::Span, name: &str, count: &AtomicU32) {
    let until = fleet.now().after(timeout).unwrap_or(Timestamp::END);
    let mut roll = ::redis::cmd("EVAL");
    roll.arg(CALL).arg(1).arg(NODES_KEY).arg(name).arg(fleet.told_time(slot_of(OURS)));
    if let Ok(Value::Int(nodes)) = fleet.query(slot_of(OURS), until, &roll).await {
        count.store(u32::try_from(nodes).unwrap_or(u32::MAX).max(1), Ordering::Relaxed);
    }
}
