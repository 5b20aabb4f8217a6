//! The health of the server, as `/ready` reports it: starting, ready, degraded (ready, with problems) or draining.

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
#[derive(Debug)]
pub(crate) struct HealthReport {
    pub(crate) ready: bool,
    pub(crate) status: &'static str,
    pub(crate) reasons: Vec<String>,
}

impl Health {
    pub(crate) fn enter(&self, stage: Stage) {
        self.lock().stage = stage;
    }

    /// Sets the problem of a part of the server, or clears it.
    pub(crate) fn set_problem(&self, part: &'static str, problem: Option<String>) {
        let mut state = self.lock();
        match problem {
            Some(problem) => _ = state.problems.insert(part, problem),
            None => _ = state.problems.remove(part),
        }
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
        HealthReport { ready, status, reasons: state.problems.values().cloned().collect() }
    }

    #[cfg(test)]
    pub(crate) fn is_degraded(&self) -> bool {
        !self.lock().problems.is_empty()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HealthState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
