//! Watching a shared store: its health, the number of nodes, and the changes that operators make on other nodes.

use crate::backend::Backend;
use crate::files;
use crate::health::Health;
use crate::rulebook::Rulebook;
use crate::top_keys::{NodeSummary, RuleLists, TopKeys};
use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidegate::{Limiter, StoreError};
use tidegate_store::DocumentCopy;

const CHECK_EVERY: Duration = Duration::from_millis(250);
/// For this many checks (two seconds) after a request was decided without the store, `/ready` still reports it.
const REPORT_FOR: u32 = 8;
const SOME: &str = "some requests are decided without the store";
/// How often a node publishes its top keys, and how long they remain after the last time.
const PUBLISH_EVERY: Duration = Duration::from_secs(5);
const PUBLISHED_FOR: Duration = Duration::from_secs(20);
/// An operator waits no longer than this for the top keys of other nodes.
const READ_WITHIN: Duration = Duration::from_millis(800);
const POLL_CHANGES_EVERY: Duration = Duration::from_millis(400);
/// The file in the data directory that keeps the number of nodes.
const NODES_FILE: &str = "nodes";
/// The file in the data directory that keeps the identity of this node.
const NODE_ID_FILE: &str = "node-id";
/// The largest of these files: one number.
const MOST_NODES_BYTES: u64 = 16;

/// Reports problems of the store in the log and by `/ready`.
pub(crate) struct StoreWatch<S> {
    limiter: Limiter<S>,
    health: Arc<Health>,
    nodes_file: PathBuf,
    /// Borrowed only by `check`, which does not await.
    seen: RefCell<Seen>,
}

/// The results of the last check.
#[derive(Default)]
struct Seen {
    /// The problem that was logged.
    problem: Option<String>,
    nodes: Option<u32>,
    unanswered: Unanswered,
}

/// Requests that the store did not answer lately although its circuit breaker is closed: the caller's deadline was short, the
/// reply was slow, or the key holds another program's data.
#[derive(Default)]
struct Unanswered {
    /// How many, up to the last check.
    count: u64,
    /// Errors by class, at the last check without unanswered requests.
    before: Vec<(&'static str, u64)>,
    /// For how many checks they are still reported.
    report_for: u32,
}

// === impl StoreWatch ===

impl<S: Backend> StoreWatch<S> {
    pub(crate) fn new(limiter: Limiter<S>, health: Arc<Health>, data_dir: &Path) -> Self {
        let nodes_file = data_dir.join(NODES_FILE);
        Self { limiter, health, nodes_file, seen: RefCell::default() }
    }

    /// Checks the store at intervals; never returns.
    pub(crate) async fn run(&self) {
        let mut ticks = tokio::time::interval(CHECK_EVERY);
        loop {
            ticks.tick().await;
            self.check();
        }
    }

    /// Checks the store once.
    pub(crate) fn check(&self) {
        let store = self.limiter.store();
        store.announce_policy(&self.health.policy_hash());
        let mut seen = self.seen.borrow_mut();
        let errors = store.report().map(|report| report.errors).unwrap_or_default();
        let unanswered = seen.unanswered.check(self.limiter.store_errors(), errors);
        let problem = store.complaint();
        // The number of unanswered requests changes all the time, so it is not logged.
        seen.log(problem.clone().or(unanswered.as_ref().map(|_| SOME.to_owned())));
        self.health.set_problem("store", problem.or(unanswered));
        let nodes = store.known_nodes();
        if nodes != seen.nodes
            && let Some(nodes) = nodes
        {
            seen.nodes = Some(nodes);
            self.save_nodes(nodes);
        }
    }

    /// Keeps the number of nodes for the next start, which may happen while the store is unreachable. If it cannot be written,
    /// that start assumes a number.
    fn save_nodes(&self, nodes: u32) {
        let path = self.nodes_file.clone();
        // The disk may be slow.
        tokio::task::spawn_blocking(move || {
            let _ = files::replace(&path, nodes.to_string().as_bytes());
        });
    }
}

// === impl Seen ===

impl Seen {
    /// Logs the problem if it has changed.
    fn log(&mut self, problem: Option<String>) {
        match &problem {
            Some(text) if problem != self.problem => {
                tracing::error!("the store has a problem: {text}");
            }
            None if self.problem.is_some() => tracing::info!("the store works again"),
            Some(_) | None => {}
        }
        self.problem = problem;
    }
}

// === impl Unanswered ===

impl Unanswered {
    /// Compares with the last check, and returns what to report.
    fn check(&mut self, count: u64, errors: Vec<(&'static str, u64)>) -> Option<String> {
        if count > self.count {
            self.report_for = REPORT_FOR;
        } else {
            self.report_for = self.report_for.saturating_sub(1);
        }
        self.count = count;
        if self.report_for == 0 {
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

/// Applies changes that were made on other nodes; never returns.
pub(crate) async fn follow<S: Backend>(
    limiter: Limiter<S>,
    rulebook: Arc<Rulebook<S>>,
    health: Arc<Health>,
) {
    let mut ticks = tokio::time::interval(POLL_CHANGES_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut logged = None;
    loop {
        ticks.tick().await;
        let problem = match limiter.store().document(&rulebook.tag()).await {
            Ok(None) => None,
            Ok(Some(shared)) => apply(&rulebook, shared).await,
            Err(error @ StoreError::Broken(_)) => Some(error.to_string()),
            // `StoreWatch` reports that the store is unreachable. An earlier problem may still exist.
            Err(_) => continue,
        };
        let problem = match problem {
            Some(why) => Some(format!("changes made on other nodes are not in force here: {why}")),
            None if rulebook.has_forks() => {
                let rulebook = Arc::clone(&rulebook);
                // The disk may be slow.
                tokio::task::spawn_blocking(move || rulebook.fork_problem()).await.ok().flatten()
            }
            None => None,
        };
        if let Some(problem) = problem.as_ref().filter(|_| problem != logged) {
            tracing::error!("{problem}");
        }
        logged.clone_from(&problem);
        health.set_problem("control", problem);
    }
}

/// Applies the document of the store, or writes that of this node back; returns why that failed.
async fn apply<S: Backend>(rulebook: &Arc<Rulebook<S>>, shared: DocumentCopy) -> Option<String> {
    let rulebook = Arc::clone(rulebook);
    let applied = tokio::task::spawn_blocking(move || rulebook.follow(&shared));
    match applied.await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some("internal error: a bug in tidegate".to_owned()),
    }
}

/// Tells the other nodes the top keys of this one; never returns. If the store does not answer, its next try is as good.
pub(crate) async fn publish_top_keys<S: Backend>(limiter: Limiter<S>, top: TopKeys) {
    let mut ticks = tokio::time::interval(PUBLISH_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let _ = limiter.store().publish(&top.summary(), PUBLISHED_FOR).await;
    }
}

/// The top keys of the other nodes, as far as the store and they can be read in time; `None` if the store is not shared or does not
/// answer.
pub(crate) async fn top_keys_of_others<S: Backend>(store: &S) -> Option<Vec<(u64, RuleLists)>> {
    if !S::SHARED {
        return None;
    }
    let texts = tokio::time::timeout(READ_WITHIN, store.publications()).await.ok()?.ok()?;
    Some(texts.iter().filter_map(|text| NodeSummary::read(text)).collect())
}

/// The number of nodes when this node last knew it; `None` if there is no file or it does not contain a number.
pub(crate) fn known_nodes(data_dir: &Path) -> Option<u32> {
    let bytes = files::read_regular(&data_dir.join(NODES_FILE), MOST_NODES_BYTES).ok()?;
    str::from_utf8(&bytes).ok()?.trim().parse().ok()
}

/// The identity of this node among those that share its store: a random number that is kept in the data directory, so that a node
/// that restarts is not counted twice. If the file cannot be read, it is written again; if that fails too, the node has another
/// identity until it restarts.
pub(crate) fn node_id(data_dir: &Path) -> io::Result<u64> {
    let path = data_dir.join(NODE_ID_FILE);
    let known = files::read_regular(&path, MOST_NODES_BYTES).ok();
    let known = known.and_then(|text| u64::from_str_radix(str::from_utf8(&text).ok()?, 16).ok());
    if let Some(known) = known {
        return Ok(known);
    }
    let new = getrandom::u64().map_err(io::Error::other)?;
    if let Err(error) = files::replace(&path, format!("{new:016x}").as_bytes()) {
        tracing::warn!("{}: {error}; this node is a new node after a restart", path.display());
    }
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unanswered_requests_are_reported_for_two_seconds() {
        let mut unanswered = Unanswered::default();
        assert_eq!(unanswered.check(0, vec![("timed_out", 7), ("wrong", 0)]), None);
        let said = unanswered.check(3, vec![("timed_out", 9), ("wrong", 1)]).unwrap();
        assert_eq!(said, "some requests are decided without the store: 2 timed_out, 1 wrong");
        for _ in 1..REPORT_FOR {
            assert!(unanswered.check(3, vec![("timed_out", 9), ("wrong", 1)]).is_some());
        }
        assert_eq!(unanswered.check(3, vec![("timed_out", 9), ("wrong", 1)]), None);
        let said = unanswered.check(4, vec![("timed_out", 10), ("wrong", 1)]).unwrap();
        assert_eq!(said, "some requests are decided without the store: 1 timed_out");
    }
}
