//! What decides: the policy of the file, or one that was sent in its place, and the changes of operators.
//!
//! ```text
//!   file, signal ──┐                                  ┌──► limiter (a new version, at one moment)
//!   admin ─────────┼──► rulebook: judged, written ────┤
//!   start ─────────┘                                  └──► audit log
//! ```
//!
//! Everything that changes the rules goes through here, one at a time. A policy with mistakes changes nothing:
//! what decided before goes on deciding, and everybody who could wonder is told.

mod control_file;
mod diff;
mod operators;
mod other_nodes;
mod policy_file;
mod writing;

pub(crate) use diff::Difference;

use crate::audit::Audit;
use crate::backend::Backend;
use crate::control::{Change, Control, Document, RefusedChange};
use crate::health::Health;
use crate::metrics::Metrics;
use control_file::ControlFile;
use data_encoding::HEXLOWER;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate::{Clock, Limiter, LimiterError, Policy, PolicyError, Secret};
use tidegate_policy::printable;
use writing::withdrawn;

/// The rules that are in force, and the only way to change them.
pub(crate) struct Rulebook<S> {
    limiter: Limiter<S>,
    secret: Secret,
    clock: Clock,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    /// The policy file; without one the usual policy decides.
    file: Option<PathBuf>,
    control_file: PathBuf,
    /// Held while somebody changes something, which may mean to wait for the store: never on a thread that serves.
    changing: Mutex<()>,
    /// Locked to look and to replace; requests never wait for it.
    state: Mutex<RulebookState>,
}

struct RulebookState {
    control: Control,
    audit: Audit,
    /// The file's text, as it was last read without mistakes.
    file_text: Vec<u8>,
    /// What decides now.
    text: Vec<u8>,
    policy: Policy,
}

/// What starts without a policy of its own.
pub(crate) const DEFAULT_POLICY: &str = "\
# What tidegate decides by when it is given no policy: 15 requests a second for each client address.
version: 1
identity: { trusted: [127.0.0.0/8, \"::1/128\"] }
rules:
  - { name: per-client, key: [ip], limits: [15/s] }
";

/// As large as a policy may be.
pub(crate) const MOST_BYTES: u64 = 4 * 1024 * 1024;

/// Why rules were not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RulebookError {
    #[error("{0}")]
    Policy(#[from] PolicyError),
    /// More than half of the rules would be gone.
    #[error("it would drop {dropped} of {rules} rules: {names}")]
    Drops { dropped: usize, rules: usize, names: String },
    #[error("{0}")]
    Change(#[from] RefusedChange),
    #[error("{0}")]
    Limiter(#[from] LimiterError),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// How sure somebody is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caution {
    /// Refuse what drops most of the rules: it may be half a file.
    Careful,
    /// It is meant.
    Forced,
}

/// What a rulebook stands on.
pub(crate) struct RulebookContext {
    pub(crate) secret: Secret,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) health: Arc<Health>,
    pub(crate) data_dir: PathBuf,
    pub(crate) file: Option<PathBuf>,
}

impl<S: Backend> Rulebook<S> {
    /// Takes up what was left: the file's policy is in the limiter already, and the changes of operators
    /// are put on it.
    pub(crate) fn open(
        limiter: Limiter<S>,
        context: RulebookContext,
        text: Vec<u8>,
    ) -> Result<Self, RulebookError> {
        let RulebookContext { secret, clock, metrics, health, data_dir, file } = context;
        let control_file = data_dir.join("control.json");
        let ControlFile { document, audit: head } = ControlFile::read(&control_file)?;
        let audit = Audit::open(&data_dir, &secret, head.as_ref())?;
        let policy = Policy::parse(&text)?;
        let control = Control::new(document);
        let state = RulebookState { control, audit, file_text: text.clone(), text, policy };
        let state = Mutex::new(state);
        let changing = Mutex::new(());
        let rulebook =
            Self { limiter, secret, clock, metrics, health, file, control_file, changing, state };
        rulebook.check_the_log();
        rulebook.take_up()?;
        Ok(rulebook)
    }

    /// Puts the document of the last run in force.
    fn take_up(&self) -> Result<(), RulebookError> {
        let mut state = self.lock();
        if *state.control.document() == Document::default() {
            return Ok(());
        }
        if let Some(uploaded) = state.control.document().policy.clone() {
            // What nodes share is in force wherever a node starts; its file is another's business.
            if S::SHARED || uploaded.over == digest(&state.file_text) {
                state.policy = Policy::parse(&uploaded.text)?;
                state.text = uploaded.text.into_bytes();
            } else {
                tracing::warn!(
                    "the policy file is newer than the policy that was sent; the file decides"
                );
                drop(state);
                self.write(Change::Policy(None), None, &withdrawn())?;
                state = self.lock();
            }
        }
        self.install(&state).map(|_| ())
    }

    // === looking ===

    pub(crate) fn document(&self) -> Document {
        self.lock().control.document().clone()
    }

    /// The text that decides, and whether it was sent.
    pub(crate) fn policy_text(&self) -> (String, bool) {
        let state = self.lock();
        let sent = state.control.document().policy.is_some();
        (String::from_utf8_lossy(&state.text).into_owned(), sent)
    }

    /// Rules and their tests, for whoever lists them.
    pub(crate) fn policy(&self) -> Policy {
        self.lock().policy.clone()
    }

    pub(crate) fn last_changes(&self, count: usize) -> io::Result<Vec<serde_json::Value>> {
        self.lock().audit.last(count)
    }

    /// The file that is watched.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    // === helpers ===

    fn lock(&self) -> MutexGuard<'_, RulebookState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One change after another.
    fn turn(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn install(&self, state: &RulebookState) -> Result<u64, RulebookError> {
        let (changes, unfit) = state.control.document().changes(&state.policy);
        for text in unfit {
            tracing::warn!("a change by hand waits for its rule: {}", printable(&text));
        }
        Ok(self.limiter.install(state.policy.clone(), changes)?)
    }
}

fn digest(text: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    HEXLOWER.encode(&Sha256::digest(text))
}
