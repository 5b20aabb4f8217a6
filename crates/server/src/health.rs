//! Whether the server should be asked: starting, ready, ready with a complaint, draining.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// How the server is.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Locked by whoever looks and whoever knows something new.
    state: Mutex<HealthState>,
}

#[derive(Debug, Default)]
struct HealthState {
    stage: Stage,
    /// What is wrong, by who says so; the server decides all the same.
    reasons: BTreeMap<&'static str, String>,
}

/// Where in its life the server is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    #[default]
    Starting,
    Serving,
    Draining,
}

/// Whether requests should be sent here, and what is wrong.
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

    /// Somebody has a complaint, or has it no longer.
    pub(crate) fn complain(&self, who: &'static str, reason: Option<String>) {
        let mut state = self.lock();
        match reason {
            Some(reason) => _ = state.reasons.insert(who, reason),
            None => _ = state.reasons.remove(who),
        }
    }

    /// Whether the server decides, with a complaint or without.
    pub(crate) fn is_serving(&self) -> bool {
        self.lock().stage == Stage::Serving
    }

    /// What `/ready` says.
    pub(crate) fn report(&self) -> HealthReport {
        let state = self.lock();
        let (ready, status) = match state.stage {
            Stage::Starting => (false, "starting"),
            Stage::Draining => (false, "draining"),
            Stage::Serving if state.reasons.is_empty() => (true, "ready"),
            Stage::Serving => (true, "degraded"),
        };
        HealthReport { ready, status, reasons: state.reasons.values().cloned().collect() }
    }

    #[cfg(test)]
    pub(crate) fn is_degraded(&self) -> bool {
        !self.lock().reasons.is_empty()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HealthState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
