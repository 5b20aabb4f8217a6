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

mod diff;

pub(crate) use diff::Difference;

use crate::audit::{Actor, Audit};
use crate::control::{Action, Change, Control, Document, Event, RefusedChange, Uploaded};
use crate::files;
use crate::health::Health;
use crate::metrics::{Metrics, Reload};
use data_encoding::HEXLOWER;
use serde_json::json;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate::{Clock, Limiter, LimiterError, Policy, PolicyError, Secret, Store};
use tidegate_policy::{Rule, printable};

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
    state: Mutex<State>,
}

struct State {
    control: Control,
    audit: Audit,
    /// The file's text, as it was last read without mistakes.
    file_text: Vec<u8>,
    /// What decides now.
    text: Vec<u8>,
    policy: Policy,
}

/// What starts without a policy of its own.
pub(crate) const USUAL_POLICY: &str = "\
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
pub(crate) enum Sure {
    /// Refuse what drops most of the rules: it may be half a file.
    Careful,
    /// It is meant.
    Forced,
}

/// What a rulebook stands on.
pub(crate) struct Ground {
    pub(crate) secret: Secret,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) health: Arc<Health>,
    pub(crate) data_dir: PathBuf,
    pub(crate) file: Option<PathBuf>,
}

impl<S: Store> Rulebook<S> {
    /// Takes up what was left: the file's policy is in the limiter already, and the changes of operators
    /// are put on it.
    pub(crate) fn open(
        limiter: Limiter<S>,
        ground: Ground,
        text: Vec<u8>,
    ) -> Result<Self, RulebookError> {
        let Ground { secret, clock, metrics, health, data_dir, file } = ground;
        let control_file = data_dir.join("control.json");
        let document = read_document(&control_file)?;
        let audit = Audit::open(&data_dir, &secret)?;
        if let Some(line) = audit.broken {
            let text = format!("audit.log was changed by somebody else: line {line}");
            tracing::error!("{text}");
            health.complain("audit", Some(text));
        }
        let policy = Policy::parse(&text)?;
        let control = Control::new(document);
        let state = State { control, audit, file_text: text.clone(), text, policy };
        let state = Mutex::new(state);
        let changing = Mutex::new(());
        let rulebook =
            Self { limiter, secret, clock, metrics, health, file, control_file, changing, state };
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
                self.write(Change::Policy(None), None)?;
                state = self.lock();
            }
        }
        self.install(&state).map(|_| ())
    }

    // === the file ===

    /// The file that is watched.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads the file again. What is wrong with it is logged, counted and told by `/ready`.
    pub(crate) fn reload(&self, sure: Sure) {
        let Some(path) = &self.file else {
            tracing::info!("there is no policy file to read again");
            return;
        };
        let name = printable(&path.display().to_string());
        match self.try_reload(path, sure) {
            Ok(None) => {
                // Somebody may have put back what was in force all the time.
                self.health.complain("policy", None);
                if sure == Sure::Forced {
                    tracing::info!(file = name, "the policy file has not changed");
                }
            }
            Ok(Some(version)) => {
                self.metrics.reloaded(Reload::Applied);
                self.health.complain("policy", None);
                tracing::info!(file = name, version, "the policy was read again");
            }
            Err(error) => {
                self.metrics.reloaded(Reload::Refused);
                let hint = match (&error, sure) {
                    (RulebookError::Drops { .. }, Sure::Careful) => {
                        "; if that is meant, send SIGHUP"
                    }
                    _ => "",
                };
                let text = format!("{error}{hint}");
                for line in text.lines().take(20) {
                    tracing::error!(file = name, "the policy is not changed: {}", printable(line));
                }
                let first = text.lines().next().unwrap_or_default();
                self.health.complain("policy", Some(format!("{name}: {first}")));
            }
        }
    }

    fn try_reload(&self, path: &Path, sure: Sure) -> Result<Option<u64>, RulebookError> {
        let text = files::read_regular(path, MOST_BYTES)?;
        let _turn = self.turn();
        if text == self.lock().file_text {
            return Ok(None);
        }
        let policy = Policy::parse(&text)?;
        drops(&self.lock().policy, &policy, sure)?;
        if self.document().policy.is_some() {
            tracing::warn!(
                "the policy file has changed; the policy that was sent is in force no more"
            );
            self.write(Change::Policy(None), None)?;
        }
        let mut state = self.lock();
        state.file_text.clone_from(&text);
        state.text = text;
        state.policy = policy;
        self.install(&state).map(Some)
    }

    // === operators ===

    /// Changes something.
    pub(crate) fn change(
        &self,
        change: Change,
        expected: Option<u64>,
        actor: Actor<'_>,
    ) -> Result<Document, RulebookError> {
        let _turn = self.turn();
        let change = {
            let state = self.lock();
            let change = change.spelled_as_in(state.control.document(), &state.policy);
            change.fits(state.control.document(), &state.policy)?;
            change
        };
        let (kind, details) = (change.kind(), details(&change));
        let document = self.write(change, expected)?;
        let mut state = self.lock();
        self.install(&state)?;
        self.noted(&mut state, actor, kind, &details);
        Ok(document)
    }

    /// Puts a policy in the place of the file's; or only says what that would change.
    pub(crate) fn upload(
        &self,
        text: &[u8],
        sure: Sure,
        dry: bool,
        expected: Option<u64>,
        actor: Actor<'_>,
    ) -> Result<Difference, RulebookError> {
        let policy = Policy::parse(text).inspect_err(|_| self.metrics.reloaded(Reload::Refused))?;
        let _turn = self.turn();
        let (difference, over) = {
            let state = self.lock();
            let difference = Difference::between(&state.text, text, policy.warnings());
            if dry {
                return Ok(difference);
            }
            drops(&state.policy, &policy, sure)?;
            (difference, digest(&state.file_text))
        };
        // What is a policy is UTF-8, so nothing is lost.
        let sent = String::from_utf8_lossy(text).into_owned();
        self.write(Change::Policy(Some(Uploaded { text: sent, over })), expected)?;
        let mut state = self.lock();
        state.text = text.to_vec();
        state.policy = policy;
        let version = self.install(&state)?;
        self.metrics.reloaded(Reload::Applied);
        self.health.complain("policy", None);
        tracing::info!(version, "a policy was sent");
        self.noted(&mut state, actor, "policy", &difference.json());
        Ok(difference)
    }

    /// Goes back to the file's policy.
    pub(crate) fn withdraw(
        &self,
        expected: Option<u64>,
        actor: Actor<'_>,
    ) -> Result<Difference, RulebookError> {
        let _turn = self.turn();
        let (policy, difference) = {
            let state = self.lock();
            let policy = Policy::parse(&state.file_text)?;
            let difference = Difference::between(&state.text, &state.file_text, policy.warnings());
            (policy, difference)
        };
        self.write(Change::Policy(None), expected)?;
        let mut state = self.lock();
        state.text = state.file_text.clone();
        state.policy = policy;
        self.install(&state)?;
        self.noted(&mut state, actor, "policy", &difference.json());
        Ok(difference)
    }

    /// Notes something that is no change of the document.
    pub(crate) fn note(&self, actor: Actor<'_>, what: &str, details: &serde_json::Value) {
        self.noted(&mut self.lock(), actor, what, details);
    }

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

    // === helpers ===

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One change after another.
    fn turn(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leads a change through the protocol: it is written before anything is in force.
    fn write(&self, change: Change, expected: Option<u64>) -> Result<Document, RulebookError> {
        let version = self.document().version;
        let mut action = self.lock().control.on_event(Event::Asked { change, expected });
        loop {
            let event = match action {
                Action::Refuse(refused) => return Err(refused.into()),
                Action::Install(document) => return Ok(document),
                // Nobody may look meanwhile on a thread that the store needs to answer.
                Action::Write(document) => match self.keep(version, &document) {
                    Ok(()) => Event::Written,
                    Err(why) => Event::NotWritten(why),
                },
            };
            action = self.lock().control.on_event(event);
        }
    }

    /// Writes a document where it outlives us: into the store, if that is shared, and into the file.
    fn keep(&self, version: u64, document: &Document) -> Result<(), RefusedChange> {
        let broken = |error: &dyn std::fmt::Display| {
            tracing::error!(%error, "the control document could not be written");
        };
        if S::SHARED {
            let text = serde_json::to_vec(document).map_err(|error| {
                broken(&error);
                RefusedChange::NotWritten
            })?;
            let versions = (version, document.version);
            let replaced = self.limiter.store().replace_document(versions, &text);
            match tokio::runtime::Handle::current().block_on(replaced) {
                Ok(true) => {}
                Ok(false) => {
                    // We hear of it within a second; who changed that document did not know.
                    let (expected, version) = (version, version.saturating_add(1));
                    return Err(RefusedChange::Stale { expected, version });
                }
                Err(error) => {
                    broken(&error);
                    return Err(RefusedChange::StoreGone);
                }
            }
        }
        write_document(&self.control_file, document).or_else(|error| {
            broken(&error);
            // What the store has taken is in force.
            if S::SHARED { Ok(()) } else { Err(RefusedChange::NotWritten) }
        })
    }

    // === other nodes ===

    /// The version that is in force here.
    pub(crate) fn version(&self) -> u64 {
        self.document().version
    }

    /// Takes up what another node has changed; or shows all others what we have, if the store has nothing.
    pub(crate) fn follow(&self, version: u64, text: &[u8]) -> Result<(), RulebookError> {
        let _turn = self.turn();
        let ours = self.document();
        if version == ours.version {
            return Ok(());
        }
        if version == 0 {
            let text = serde_json::to_vec(&ours).map_err(io::Error::other)?;
            let shown = self.limiter.store().replace_document((0, ours.version), &text);
            // If that did not work, it is tried again soon.
            let _ = tokio::runtime::Handle::current().block_on(shown);
            return Ok(());
        }
        let document: Document = serde_json::from_slice(text).map_err(io::Error::other)?;
        let policy = match &document.policy {
            Some(uploaded) => Policy::parse(&uploaded.text)?,
            None => Policy::parse(&self.lock().file_text)?,
        };
        let mut state = self.lock();
        state.text = match &document.policy {
            Some(uploaded) => uploaded.text.clone().into_bytes(),
            None => state.file_text.clone(),
        };
        state.policy = policy;
        let version = document.version;
        let _ = state.control.on_event(Event::Overtaken(document));
        self.install(&state)?;
        let written = write_document(&self.control_file, state.control.document());
        drop(state);
        tracing::info!(version, "another node has changed the rules");
        Ok(written?)
    }

    fn install(&self, state: &State) -> Result<u64, RulebookError> {
        let (changes, unfit) = state.control.document().changes(&state.policy);
        for text in unfit {
            tracing::warn!("a change by hand waits for its rule: {}", printable(&text));
        }
        Ok(self.limiter.install(state.policy.clone(), changes)?)
    }

    fn noted(&self, state: &mut State, actor: Actor<'_>, what: &str, details: &serde_json::Value) {
        let version = state.control.document().version;
        let details = json!({ "version": version, "change": details });
        let noted = state.audit.append(&self.secret, &self.clock, actor, what, &details);
        if let Err(error) = noted {
            tracing::error!(%error, "audit.log could not be written");
            self.health.complain("audit", Some(format!("audit.log could not be written: {error}")));
        }
    }
}

/// A change as the audit log tells it.
fn details(change: &Change) -> serde_json::Value {
    match change {
        Change::Policy(uploaded) => json!({ "uploaded": uploaded.is_some() }),
        Change::Rule(switch) => json!(switch),
        Change::Override(one) => json!(one),
        Change::Tier(one) => json!(one),
    }
}

/// Half a file is a policy too, with half of the rules.
fn drops(old: &Policy, new: &Policy, sure: Sure) -> Result<(), RulebookError> {
    let gone: Vec<&str> =
        old.rules().iter().map(Rule::name).filter(|name| new.rule(name).is_none()).collect();
    let (dropped, rules) = (gone.len(), old.rules().len());
    // Of two or three rules it is no wonder that most are gone.
    if sure == Sure::Forced || rules < 4 || dropped.saturating_mul(2) <= rules {
        return Ok(());
    }
    let names = gone.iter().take(8).copied().collect::<Vec<_>>().join(", ");
    Err(RulebookError::Drops { dropped, rules, names })
}

fn digest(text: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    HEXLOWER.encode(&Sha256::digest(text))
}

fn read_document(path: &Path) -> io::Result<Document> {
    if !path.exists() {
        return Ok(Document::default());
    }
    let named = |text: String| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{}: {text}", path.display()))
    };
    let bytes =
        files::read_regular(path, 64 * 1024 * 1024).map_err(|error| named(error.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|error| named(error.to_string()))
}

fn write_document(path: &Path, document: &Document) -> io::Result<()> {
    files::replace(path, &serde_json::to_vec_pretty(document)?)
}
