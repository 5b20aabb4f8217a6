//! Whether the server should be asked: starting, ready, ready with a complaint, draining.

use crate::call::Answer;
use http::StatusCode;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// How the server is.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Locked by whoever looks and whoever knows something new.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
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

    pub(crate) fn answer(&self) -> Answer {
        let state = self.lock();
        let (status, word) = match state.stage {
            Stage::Starting => (StatusCode::SERVICE_UNAVAILABLE, "starting"),
            Stage::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
            Stage::Serving if state.reasons.is_empty() => (StatusCode::OK, "ready"),
            Stage::Serving => (StatusCode::OK, "degraded"),
        };
        let reasons: Vec<&String> = state.reasons.values().collect();
        Answer::json(status, &json!({ "status": word, "reasons": reasons }))
    }

    #[cfg(test)]
    pub(crate) fn is_degraded(&self) -> bool {
        !self.lock().reasons.is_empty()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
