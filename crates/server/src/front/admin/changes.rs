//! Endpoints that change something: rule switches, overrides, tiers, the policy and signals. `who.rs` resets counters.

use super::answers::PolicyChange;
use super::handler::AdminHandler;
use super::request::{bad, expected_version, flags, read};
use super::wire;
use crate::audit::Actor;
use crate::backend::Backend;
use crate::control::RefusedChange;
use crate::rulebook::{Caution, Rulebook, RulebookError};
use crate::web::{Answer, Call, PROBLEM};
use http::StatusCode;
use serde_json::{Value, json};
use std::sync::Arc;

/// Bytes of a signal's name.
const LONGEST_SIGNAL: usize = 64;

impl<S: Backend> AdminHandler<S> {
    /// Changes the control document as the body says; with `?dry_run=true`, only checks that. Answers with all changes that are
    /// then in force.
    pub(super) async fn put_change<B: wire::ChangeBody>(
        &self,
        call: &Call<'_>,
        actor: Actor<'_>,
    ) -> Result<Answer, Answer> {
        let [dry_run] = flags(call, ["dry_run"])?;
        let expected = expected_version(call)?;
        let change = read::<B>(call)?.change(self.rulebook.now_ms()).map_err(wire::invalid)?;
        let change = move |rulebook: &Rulebook<S>, actor: Actor<'_>| {
            rulebook.change(change, dry_run, expected, actor)
        };
        let document = self.on_blocking_thread(actor, change).await?;
        if dry_run {
            return Ok(Answer::json(StatusCode::OK, &json!(document)));
        }
        Ok(self.control())
    }

    pub(super) async fn put_policy(
        &self,
        call: &Call<'_>,
        actor: Actor<'_>,
    ) -> Result<Answer, Answer> {
        let [dry_run, force] = flags(call, ["dry_run", "force"])?;
        let caution = if force { Caution::Forced } else { Caution::Careful };
        let (expected, text) = (expected_version(call)?, call.body.to_vec());
        let upload = move |rulebook: &Rulebook<S>, actor: Actor<'_>| {
            rulebook.upload(&text, caution, dry_run, expected, actor)
        };
        let difference = self.on_blocking_thread(actor, upload).await?;
        Ok(self.difference(dry_run, difference.json()))
    }

    pub(super) async fn delete_policy(
        &self,
        call: &Call<'_>,
        actor: Actor<'_>,
    ) -> Result<Answer, Answer> {
        let expected = expected_version(call)?;
        let withdraw =
            move |rulebook: &Rulebook<S>, actor: Actor<'_>| rulebook.withdraw(expected, actor);
        let difference = self.on_blocking_thread(actor, withdraw).await?;
        Ok(self.difference(false, difference.json()))
    }

    pub(super) fn put_signals(&self, call: &Call<'_>, actor: Actor<'_>) -> Result<Answer, Answer> {
        let wire::SignalsBody(signals) = &read(call)?;
        if signals.len() > wire::MOST_SIGNALS
            || signals.keys().any(|name| name.len() > LONGEST_SIGNAL)
        {
            return Err(bad("at most 64 signals, with names of at most 64 bytes"));
        }
        for (name, value) in signals {
            self.limiter.signal(name, *value).map_err(|error| {
                Answer::problem_at(StatusCode::BAD_REQUEST, &format!("/{name}"), &error.to_string())
            })?;
        }
        tracing::debug!(who = actor.who, "signals: {signals:?}");
        Ok(Answer::json(StatusCode::OK, &json!(signals)))
    }

    /// Changes the rules on a thread that may block. Parsing a large policy and waiting for a store take a while, and the
    /// worker serves other requests meanwhile.
    pub(super) async fn on_blocking_thread<T: Send + 'static>(
        &self,
        actor: Actor<'_>,
        change: impl FnOnce(&Rulebook<S>, Actor<'_>) -> Result<T, RulebookError> + Send + 'static,
    ) -> Result<T, Answer> {
        let rulebook = Arc::clone(&self.rulebook);
        let (who, peer) = (actor.who.to_owned(), actor.peer);
        let changed =
            tokio::task::spawn_blocking(move || change(&rulebook, Actor { who: &who, peer }));
        let changed = changed.await.map_err(|_| {
            self.metrics.panicked();
            let detail = "internal error: a bug in tidegate; nothing was changed";
            Answer::problem(StatusCode::INTERNAL_SERVER_ERROR, detail)
        })?;
        changed.map_err(|error| refused(&error))
    }

    fn difference(&self, dry_run: bool, difference: Value) -> Answer {
        let policy_version = self.limiter.version();
        let change = PolicyChange { dry_run, policy_version, difference };
        Answer::json(StatusCode::OK, &json!(change))
    }
}

/// The answer to a change that was not made.
fn refused(error: &RulebookError) -> Answer {
    let status = match error {
        RulebookError::Policy(problems) => return invalid_policy(problems),
        RulebookError::Drops { .. } => {
            let detail = format!("{error}; if that is meant, add `?force=true`");
            return Answer::problem(StatusCode::CONFLICT, &detail);
        }
        RulebookError::Change(RefusedChange::Stale { .. }) => StatusCode::PRECONDITION_FAILED,
        RulebookError::Change(RefusedChange::Busy | RefusedChange::NothingPending) => {
            StatusCode::CONFLICT
        }
        RulebookError::Change(RefusedChange::StoreGone) => StatusCode::SERVICE_UNAVAILABLE,
        RulebookError::Change(RefusedChange::NotWritten) | RulebookError::Io(_) => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
        RulebookError::Change(RefusedChange::Wrong(_) | RefusedChange::TooMany)
        | RulebookError::Limiter(_)
        | RulebookError::NoTokenKeys { .. } => StatusCode::UNPROCESSABLE_ENTITY,
    };
    Answer::problem(status, &error.to_string())
}

/// Lists every problem of a policy, each with its line and column.
fn invalid_policy(error: &tidegate::PolicyError) -> Answer {
    let problems = error.problems().iter().map(|problem| {
        let place = problem.place;
        json!({ "line": place.line, "column": place.column, "text": problem.text })
    });
    let status = StatusCode::BAD_REQUEST;
    let body = json!({
        "title": "Bad Request", "status": status.as_u16(),
        "detail": error.to_string(), "problems": problems.collect::<Vec<Value>>(),
    });
    Answer::new(status, PROBLEM, format!("{body}\n"))
}
