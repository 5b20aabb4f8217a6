//! The health of the server, as `/ready` reports it: starting, ready, degraded (ready, with problems) or draining; and by which rules
//! it decides.

#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The health of the server.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Locked to report and to change, never to decide a request.
    state: Mutex<HealthState>,
}

#[derive(Debug, Default)]
struct HealthState {
    stage: Stage,
    /// Problems by the part of the server that reported them. The server decides requests in spite of them.
    problems: BTreeMap<&'static str, String>,
    /// The hash of the policy in force, and of the rule files if there are any.
    hashes: BTreeMap<&'static str, String>,
}

/// The stage in the life of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    #[default]
    Starting,
    Serving,
    Draining,
}

/// What `/ready` answers: whether requests should be sent to this server, and its problems.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema), schemars(rename = "Health", deny_unknown_fields))]
pub(crate) struct HealthReport {
    #[serde(skip)]
    pub(crate) ready: bool,
    #[cfg_attr(test, schemars(extend("enum" = ["starting", "ready", "degraded", "draining"])))]
    pub(crate) status: &'static str,
    pub(crate) reasons: Vec<String>,
    /// Hash of the policy in force; servers that decide by the same rules have the same.
    pub(crate) policy_hash: String,
}

impl HealthState {
    fn policy_hash(&self) -> String {
        self.hashes.values().map(String::as_str).collect::<Vec<_>>().join("+")
    }
}

/// The parts of the server that can have a problem.
pub(crate) const PARTS: [&str; 19] = [
    "accept",
    "access log",
    "admin users",
    "audit",
    "audit damage",
    "certificate",
    "control",
    "control file",
    "counters",
    "denial log",
    "keys for tokens",
    "open files",
    "policy",
    "recording",
    "room",
    "routes",
    "rules",
    "store",
    "upstreams",
];

impl Health {
    pub(crate) fn enter(&self, stage: Stage) {
        self.lock().stage = stage;
    }

    /// Sets the problem of a part of the server, or clears it. Returns the problem that the part had before.
    pub(crate) fn set_problem(
        &self,
        part: &'static str,
        problem: Option<String>,
    ) -> Option<String> {
        debug_assert!(PARTS.contains(&part), "{part} is not among the parts");
        let mut state = self.lock();
        match problem {
            Some(problem) => state.problems.insert(part, problem),
            None => state.problems.remove(part),
        }
    }

    /// Each part of the server, and whether it has a problem.
    pub(crate) fn problems(&self) -> Vec<(&'static str, bool)> {
        let state = self.lock();
        let known = PARTS.into_iter().map(|part| (part, state.problems.contains_key(part)));
        known.collect()
    }

    /// Whether the server decides requests, with problems or without.
    pub(crate) fn is_serving(&self) -> bool {
        self.lock().stage == Stage::Serving
    }

    /// What `/ready` answers.
    pub(crate) fn report(&self) -> HealthReport {
        let state = self.lock();
        let (ready, status) = match state.stage {
            Stage::Starting => (false, "starting"),
            Stage::Draining => (false, "draining"),
            Stage::Serving if state.problems.is_empty() => (true, "ready"),
            Stage::Serving => (true, "degraded"),
        };
        let reasons = state.problems.values().cloned().collect();
        HealthReport { ready, status, reasons, policy_hash: state.policy_hash() }
    }

    /// Sets the hash of the rules from a source.
    pub(crate) fn set_hash(&self, source: &'static str, hash: String) {
        self.lock().hashes.insert(source, hash);
    }

    /// The hash of the policy in force; with rule files, followed by `+` and theirs.
    pub(crate) fn policy_hash(&self) -> String {
        self.lock().policy_hash()
    }

    #[cfg(test)]
    pub(crate) fn is_degraded(&self) -> bool {
        !self.lock().problems.is_empty()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HealthState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
