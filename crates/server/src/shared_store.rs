//! Looking after a store that other nodes share: how it is, how many nodes there are, what operators changed elsewhere.

use crate::backend::Backend;
use crate::files;
use crate::health::Health;
use crate::rulebook::Rulebook;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidegate::{Limiter, StoreError};

const LOOKED_AT_EVERY: Duration = Duration::from_millis(250);
/// So many looks, two seconds, after a request was decided without the store it is still said.
const SAID_FOR: u32 = 8;
const SOME: &str = "some requests are decided without the store";
const CHANGES_LOOKED_FOR_EVERY: Duration = Duration::from_millis(400);
/// The number of nodes, in the data directory.
const NODES_FILE: &str = "nodes";
/// A number.
const MOST_NODES_BYTES: u64 = 16;

/// Says in the log and by `/ready` what is wrong with the store.
pub(crate) struct StoreWatch<S> {
    limiter: Limiter<S>,
    health: Arc<Health>,
    nodes_file: PathBuf,
    /// Borrowed by `look` alone, which does not wait.
    seen: RefCell<Seen>,
}

/// What was seen the last time.
#[derive(Default)]
struct Seen {
    /// What is in the log.
    complaint: Option<String>,
    nodes: Option<u32>,
    unanswered: Unanswered,
}

/// Requests that the store did not answer lately, although it is asked: a caller in a hurry, a slow reply, a key with another
/// program's data under it.
#[derive(Default)]
struct Unanswered {
    /// Up to the last look.
    count: u64,
    /// By what went wrong, as of when they last were none.
    before: Vec<(&'static str, u64)>,
    /// How many looks it is still said.
    said_for: u32,
}

// === impl StoreWatch ===

impl<S: Backend> StoreWatch<S> {
    pub(crate) fn new(limiter: Limiter<S>, health: Arc<Health>, data_dir: &Path) -> Self {
        let nodes_file = data_dir.join(NODES_FILE);
        Self { limiter, health, nodes_file, seen: RefCell::default() }
    }

    /// Looks again and again, for ever.
    pub(crate) async fn go_on(&self) {
        let mut ticks = tokio::time::interval(LOOKED_AT_EVERY);
        loop {
            ticks.tick().await;
            self.look();
        }
    }

    pub(crate) fn look(&self) {
        let store = self.limiter.store();
        let mut seen = self.seen.borrow_mut();
        let errors = store.report().map(|report| report.errors).unwrap_or_default();
        let unanswered = seen.unanswered.look(self.limiter.store_errors(), errors);
        let of_store = store.complaint();
        // How many are unanswered changes all the time, and is logged once.
        let logged = of_store.clone().or(unanswered.as_ref().map(|_| SOME.to_owned()));
        match &logged {
            Some(why) if logged != seen.complaint => {
                tracing::error!("something is wrong with the store: {why}");
            }
            None if seen.complaint.is_some() => tracing::info!("all is well with the store again"),
            Some(_) | None => {}
        }
        seen.complaint = logged;
        self.health.complain("store", of_store.or(unanswered));
        let counted = store.known_nodes();
        if counted != seen.nodes
            && let Some(counted) = counted
        {
            seen.nodes = Some(counted);
            let path = self.nodes_file.clone();
            // The disk may be slow. Without the file, a start without the store assumes a number.
            tokio::task::spawn_blocking(move || {
                let _ = files::replace(&path, counted.to_string().as_bytes());
            });
        }
    }
}

// === impl Unanswered ===

impl Unanswered {
    /// Compares with the last look; answers what there is to say.
    fn look(&mut self, count: u64, errors: Vec<(&'static str, u64)>) -> Option<String> {
        if count > self.count {
            self.said_for = SAID_FOR;
        } else {
            self.said_for = self.said_for.saturating_sub(1);
        }
        self.count = count;
        if self.said_for == 0 {
            self.before = errors;
            return None;
        }
        let more = errors.into_iter().filter_map(|(class, now)| {
            let before = self.before.iter().find(|(name, _)| *name == class);
            let more = now.saturating_sub(before.map_or(0, |(_, count)| *count));
            (more > 0).then(|| format!("{more} {class}"))
        });
        let more: Vec<String> = more.collect();
        let why = if more.is_empty() { String::new() } else { format!(": {}", more.join(", ")) };
        Some(format!("{SOME}{why}"))
    }
}

/// Looks for changes that were made on other nodes, for ever.
pub(crate) async fn follow<S: Backend>(
    limiter: Limiter<S>,
    rulebook: Arc<Rulebook<S>>,
    health: Arc<Health>,
) {
    let mut ticks = tokio::time::interval(CHANGES_LOOKED_FOR_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut said = None;
    loop {
        ticks.tick().await;
        let complaint = match limiter.store().document(rulebook.version()).await {
            Ok(None) => None,
            Ok(Some((version, text))) => {
                let rulebook = Arc::clone(&rulebook);
                let followed = tokio::task::spawn_blocking(move || rulebook.follow(version, &text));
                match followed.await {
                    Ok(Ok(())) => None,
                    Ok(Err(error)) => Some(error.to_string()),
                    Err(_) => Some("a mistake of ours".to_owned()),
                }
            }
            Err(error @ StoreError::Broken(_)) => Some(error.to_string()),
            // That the store is away is said elsewhere; what was wrong before may still be.
            Err(_) => continue,
        };
        let complaint = complaint
            .map(|why| format!("what other nodes have changed is not in force here: {why}"));
        if let Some(complaint) = complaint.as_ref().filter(|_| complaint != said) {
            tracing::error!("{complaint}");
        }
        said.clone_from(&complaint);
        health.complain("control", complaint);
    }
}

/// How many nodes there were when this one last knew; nothing if it never did. What is not a number is not believed.
pub(crate) fn known_nodes(data_dir: &Path) -> Option<u32> {
    let bytes = files::read_regular(&data_dir.join(NODES_FILE), MOST_NODES_BYTES).ok()?;
    str::from_utf8(&bytes).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unanswered_requests_are_said_for_two_seconds() {
        let mut unanswered = Unanswered::default();
        assert_eq!(unanswered.look(0, vec![("timed_out", 7), ("wrong", 0)]), None);
        let said = unanswered.look(3, vec![("timed_out", 9), ("wrong", 1)]).unwrap();
        assert_eq!(said, "some requests are decided without the store: 2 timed_out, 1 wrong");
        for _ in 1..SAID_FOR {
            assert!(unanswered.look(3, vec![("timed_out", 9), ("wrong", 1)]).is_some());
        }
        assert_eq!(unanswered.look(3, vec![("timed_out", 9), ("wrong", 1)]), None);
        let said = unanswered.look(4, vec![("timed_out", 10), ("wrong", 1)]).unwrap();
        assert_eq!(said, "some requests are decided without the store: 1 timed_out");
    }
}
