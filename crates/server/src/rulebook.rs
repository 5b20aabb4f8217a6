//! The rules in force: the policy of the file or an uploaded one, with the changes of operators on top.
//!
//! ```text
//!   file, signal ──┐                                    ┌──► limiter (replaced atomically)
//!   admin API ─────┼──► rulebook: checked, written ─────┤
//!   start ─────────┘                                    └──► audit log
//! ```
//!
//! All changes of the rules go through here, one at a time. A policy with errors changes nothing: the old rules stay in force,
//! and the log, the metrics and `/ready` say why.

pub(crate) mod content_hash;
mod control_file;
mod diff;
mod expiry;
mod forks;
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
use expiry::ExpiryWatch;
use forks::Forks;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate::{Clock, Limiter, LimiterError, Policy, PolicyError, Secret, VerifiedSource};
use tidegate_policy::printable;
use writing::withdrawn;

/// The rules that are in force, and the only way to change them.
pub(crate) struct Rulebook<S> {
    limiter: Limiter<S>,
    secret: Secret,
    clock: Clock,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    /// The policy file; without it, [`DEFAULT_POLICY`] is in force.
    file: Option<PathBuf>,
    token_keys: TokenKeys,
    control_file: PathBuf,
    /// Held during a change, which may wait for the store. So a thread that serves requests never locks it.
    changing: Mutex<()>,
    /// Locked briefly to read or replace it. Deciding a request never locks it.
    state: Mutex<RulebookState>,
}

struct RulebookState {
    control: Control,
    audit: Audit,
    /// The text of the file, as it was last read without errors.
    file_text: Vec<u8>,
    /// The text of the policy in force.
    text: Vec<u8>,
    policy: Policy,
    expiry: ExpiryWatch,
    forks: Forks,
}

/// The policy of a server that is started without one.
pub(crate) const DEFAULT_POLICY: &str = "\
# What tidegate decides by when it is given no policy: 15 requests a second for each client address.
version: 1
identity: { trusted: [127.0.0.0/8, \"::1/128\"] }
rules:
  - { name: per-client, key: [ip], limits: [15/s] }
";

/// The name of the control file in the data directory.
const CONTROL_FILE: &str = "control.json";

/// The largest policy.
pub(crate) const MOST_BYTES: u64 = 4 * 1024 * 1024;

/// Why the rules were not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RulebookError {
    #[error("{0}")]
    Policy(#[from] PolicyError),
    /// The new policy has less than half of the old rules.
    #[error("it would drop {dropped} of {rules} rules: {names}")]
    Drops { dropped: usize, rules: usize, names: String },
    #[error("{0}")]
    Change(#[from] RefusedChange),
    #[error("{0}")]
    Limiter(#[from] LimiterError),
    /// The policy reads tokens, and the proxy has no keys to verify them.
    #[error(
        "`identity.{attribute}` comes from a token (`{source_text}`), but there are no keys to verify it; set jwt.keys to a JWKS file or a PEM public key"
    )]
    NoTokenKeys { attribute: String, source_text: String },
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Whether a policy may drop most of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caution {
    /// It is refused if it drops most of the rules: the file may be incomplete.
    Careful,
    /// The operator has confirmed it.
    Forced,
}

/// What a rulebook needs besides the limiter and the policy.
pub(crate) struct RulebookContext {
    pub(crate) secret: Secret,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) health: Arc<Health>,
    pub(crate) data_dir: PathBuf,
    pub(crate) file: Option<PathBuf>,
    pub(crate) token_keys: TokenKeys,
}

/// Whether policies may read tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKeys {
    /// The proxy has keys, or it is off and nothing reads tokens.
    Present,
    /// The proxy is on and has no keys.
    Missing,
}

impl TokenKeys {
    /// Refuses a policy whose tokens could not be verified.
    pub(crate) fn suffice_for(self, policy: &Policy) -> Result<(), RulebookError> {
        let mut sources = policy.identity().verified_sources();
        let token = sources.find(|(_, source)| matches!(source, VerifiedSource::Jwt(_)));
        match (self, token) {
            (Self::Missing, Some((attribute, source))) => Err(RulebookError::NoTokenKeys {
                attribute: attribute.to_owned(),
                source_text: source.to_string(),
            }),
            (Self::Present | Self::Missing, _) => Ok(()),
        }
    }
}

impl<S: Backend> Rulebook<S> {
    /// Restores the state of the last run: the limiter already has the policy of the file, and the changes of operators are
    /// applied to it.
    pub(crate) fn open(
        limiter: Limiter<S>,
        context: RulebookContext,
        text: Vec<u8>,
    ) -> Result<Self, RulebookError> {
        let RulebookContext { secret, clock, metrics, health, data_dir, file, token_keys } =
            context;
        let control_file = data_dir.join(CONTROL_FILE);
        let ControlFile { edition, audit: head } = ControlFile::read(&control_file)?;
        let mut audit = Audit::open(&data_dir, &secret, head.as_ref())?;
        if head.is_none() {
            audit.end_is_unknown();
        }
        let policy = Policy::parse(&text)?;
        let control = Control::new(edition);
        let (file_text, expiry) = (text.clone(), ExpiryWatch::default());
        let forks = Forks::found(&control_file)?;
        let state = RulebookState { control, audit, file_text, text, policy, expiry, forks };
        let state = Mutex::new(state);
        let changing = Mutex::new(());
        let rulebook = Self {
            limiter,
            secret,
            clock,
            metrics,
            health,
            file,
            token_keys,
            control_file,
            changing,
            state,
        };
        rulebook.check_audit_log();
        rulebook.restore()?;
        Ok(rulebook)
    }

    /// Puts the control document of the last run in force.
    fn restore(&self) -> Result<(), RulebookError> {
        let mut state = self.lock();
        if *state.control.document() == Document::default() {
            self.publish_hash(&state);
            return Ok(());
        }
        if let Some(uploaded) = state.control.document().policy.clone() {
            // A shared document is in force on every node, whatever file the node was started with.
            if S::SHARED || uploaded.over == digest(&state.file_text) {
                state.policy = self.parse(uploaded.text.as_bytes())?;
                state.text = uploaded.text.into_bytes();
            } else {
                tracing::warn!(
                    "the policy file is newer than the uploaded policy; the file is in force"
                );
                drop(state);
                self.write(Change::Policy(None), None, &withdrawn())?;
                state = self.lock();
            }
        }
        self.install(&mut state).map(|_| ())
    }

    // === reading ===

    /// The control document. Some of its entries may have expired.
    pub(crate) fn document(&self) -> Document {
        self.lock().control.document().clone()
    }

    /// The control document without entries that have expired.
    pub(crate) fn document_in_force(&self) -> Document {
        let now_ms = self.now_ms();
        self.lock().control.document().in_force(now_ms)
    }

    /// The time by the wall clock, in milliseconds of Unix time.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now().calendar.as_nanos().checked_div(1_000_000).unwrap_or(0)
    }

    /// The text of the policy in force, and whether it was uploaded.
    pub(crate) fn policy_text(&self) -> (String, bool) {
        let state = self.lock();
        let uploaded = state.control.document().policy.is_some();
        (String::from_utf8_lossy(&state.text).into_owned(), uploaded)
    }

    /// The policy in force.
    pub(crate) fn policy(&self) -> Policy {
        self.lock().policy.clone()
    }

    pub(crate) fn last_changes(&self, count: usize) -> io::Result<Vec<serde_json::Value>> {
        self.lock().audit.last(count)
    }

    /// The policy file, to be watched.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    // === helpers ===

    fn lock(&self) -> MutexGuard<'_, RulebookState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other change is being made.
    fn turn(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Parses a policy, and refuses one that this server cannot decide by.
    fn parse(&self, text: &[u8]) -> Result<Policy, RulebookError> {
        let policy = Policy::parse(text)?;
        self.token_keys.suffice_for(&policy)?;
        Ok(policy)
    }

    /// Puts the policy and the changes of operators in force, and returns their version.
    fn install(&self, state: &mut RulebookState) -> Result<u64, RulebookError> {
        let now_ms = self.now_ms();
        let in_force = state.control.document().in_force(now_ms);
        state.expiry = ExpiryWatch::of::<S>(state.control.document(), &in_force, now_ms);
        let (changes, unfit) = in_force.changes(&state.policy);
        for text in unfit {
            tracing::warn!("a change by hand waits for its rule: {}", printable(&text));
        }
        let version = self.limiter.install(state.policy.clone(), changes)?;
        self.publish_hash(state);
        Ok(version)
    }

    /// Shows operators and other nodes by which rules this node decides.
    fn publish_hash(&self, state: &RulebookState) {
        let document = state.control.document().in_force(self.now_ms());
        let hash = content_hash::of_rules(&state.text, &state.policy, &document);
        self.health.set_hash("policy", hash);
    }
}

/// Whether the control file of a data directory can be read, if there is one.
pub(crate) fn check_control_file(data_dir: &Path) -> io::Result<()> {
    ControlFile::read(&data_dir.join(CONTROL_FILE)).map(drop)
}

fn digest(text: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    HEXLOWER.encode(&Sha256::digest(text))
}
