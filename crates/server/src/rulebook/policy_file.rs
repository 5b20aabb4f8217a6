//! Reading the policy file again, when it has changed and on SIGHUP.

use super::writing::withdrawn;
use super::{Caution, MOST_BYTES, Rulebook, RulebookError};
use crate::backend::Backend;
use crate::control::Change;
use crate::files;
use crate::metrics::Reload;
use std::path::Path;
use tidegate::Policy;
use tidegate_policy::{Rule, printable};

/// How the log announces a policy file that was not valid before.
const REPAIRED: &str = "the policy file is valid again";

impl<S: Backend> Rulebook<S> {
    /// Reads the file again. Errors are logged, counted and reported by `/ready`.
    pub(crate) fn reload(&self, caution: Caution) {
        let Some(path) = &self.file else {
            tracing::info!("no policy file is configured, so nothing is reloaded");
            return;
        };
        let name = printable(&path.display().to_string());
        match self.try_reload(path, caution) {
            Ok(None) => {
                // The file may have been invalid, and now has the policy again that was in force all the time.
                if self.health.set_problem("policy", None).is_some() {
                    tracing::info!(file = name, "{REPAIRED}; its policy was in force all the time");
                } else if caution == Caution::Forced {
                    tracing::info!(file = name, "the policy file has not changed");
                }
            }
            Ok(Some(version)) => {
                self.metrics.reloaded(Reload::Applied);
                if self.health.set_problem("policy", None).is_some() {
                    tracing::info!(file = name, version, "{REPAIRED}; its policy is in force");
                } else {
                    tracing::info!(file = name, version, "the policy was read again");
                }
            }
            Err(error) => self.not_reloaded(&name, &error, caution),
        }
    }

    /// Counts, logs and reports that the file has errors.
    fn not_reloaded(&self, name: &str, error: &RulebookError, caution: Caution) {
        self.metrics.reloaded(Reload::Refused);
        let hint = match (error, caution) {
            (RulebookError::Drops { .. }, Caution::Careful) => "; if this is intended, send SIGHUP",
            _ => "",
        };
        let text = format!("{error}{hint}");
        for line in text.lines().take(20) {
            tracing::error!(file = name, "the policy is not changed: {}", printable(line));
        }
        let first = text.lines().next().unwrap_or_default();
        self.health.set_problem("policy", Some(format!("{name}: {first}")));
    }

    fn try_reload(&self, path: &Path, caution: Caution) -> Result<Option<u64>, RulebookError> {
        let text = files::read_regular(path, MOST_BYTES)?;
        let _turn = self.turn();
        if text == self.lock().file_text {
            return Ok(None);
        }
        let policy = self.parse(&text)?;
        drops(&self.lock().policy, &policy, caution)?;
        if self.document().policy.is_some() {
            tracing::warn!(
                "the policy file has changed; the uploaded policy is no longer in force"
            );
            self.write(Change::Policy(None), None, &withdrawn())?;
        }
        let mut state = self.lock();
        state.file_text.clone_from(&text);
        state.text = text;
        state.policy = policy;
        self.install(&mut state).map(Some)
    }
}

/// Refuses a policy that drops most of the rules, unless it is forced: an incomplete file can be a valid policy.
pub(super) fn drops(old: &Policy, new: &Policy, caution: Caution) -> Result<(), RulebookError> {
    let gone: Vec<&str> =
        old.rules().iter().map(Rule::name).filter(|name| new.rule(name).is_none()).collect();
    let (dropped, rules) = (gone.len(), old.rules().len());
    // With two or three rules, dropping most of them is not suspicious.
    if caution == Caution::Forced || rules < 4 || dropped.saturating_mul(2) <= rules {
        return Ok(());
    }
    let names = gone.iter().take(8).copied().collect::<Vec<_>>().join(", ");
    Err(RulebookError::Drops { dropped, rules, names })
}
