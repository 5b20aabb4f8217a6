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
mod kept;

pub(crate) use diff::Difference;

use crate::audit::{Actor, Audit, Damage, Deed, Head};
use crate::backend::Backend;
use crate::control::{Action, Change, Control, Document, Event, RefusedChange, Uploaded};
use crate::files;
use crate::health::Health;
use crate::metrics::{Metrics, Reload};
use data_encoding::HEXLOWER;
use kept::Kept;
use serde_json::json;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate::{Clock, Limiter, LimiterError, Policy, PolicyError, Secret};
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

impl<S: Backend> Rulebook<S> {
    /// Takes up what was left: the file's policy is in the limiter already, and the changes of operators
    /// are put on it.
    pub(crate) fn open(
        limiter: Limiter<S>,
        ground: Ground,
        text: Vec<u8>,
    ) -> Result<Self, RulebookError> {
        let Ground { secret, clock, metrics, health, data_dir, file } = ground;
        let control_file = data_dir.join("control.json");
        let Kept { document, audit: head } = Kept::read(&control_file)?;
        let audit = Audit::open(&data_dir, &secret, head.as_ref())?;
        let policy = Policy::parse(&text)?;
        let control = Control::new(document);
        let state = State { control, audit, file_text: text.clone(), text, policy };
        let state = Mutex::new(state);
        let changing = Mutex::new(());
        let rulebook =
            Self { limiter, secret, clock, metrics, health, file, control_file, changing, state };
        rulebook.check_the_log();
        rulebook.take_up()?;
        Ok(rulebook)
    }

    /// Looks at the audit log that was found: what another program did to it is told, and so is a change that a crash kept
    /// from being written after its line was.
    fn check_the_log(&self) {
        let mut state = self.lock();
        let (version, lines) = (state.control.document().version, state.audit.head().lines);
        if let Some(damage) = state.audit.damage {
            tracing::error!("{damage}");
            self.health.complain("audit damage", Some(damage.to_string()));
            if matches!(damage, Damage::Shortened { .. }) {
                let details = json!({ "damage": damage.to_string() });
                let _ = self.noted(&mut state, version, Actor::SERVER, "audit", &details);
            }
        }
        // The store may have taken what this node did not write.
        if !S::SHARED && state.audit.version > version {
            let details = json!({ "abandoned": state.audit.version });
            let _ = self.noted(&mut state, version, Actor::SERVER, "abandoned", &details);
        }
        // What was added moves the end of the log. Otherwise the next start would compare the new lines with those that are
        // missing. A log that was changed is compared with the old end until an operator has looked at it.
        if state.audit.head().lines > lines {
            let _ = self.save(&state);
        }
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
            self.write(Change::Policy(None), None, &withdrawn())?;
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
            let digest = |value: &str| self.secret.digest(value);
            change.can_match(state.policy.identity(), &digest)?;
            let change = change.spelled_as_in(state.control.document(), &state.policy);
            change.fits(state.control.document(), &state.policy)?;
            change
        };
        let line = Line { actor, what: change.kind(), details: details(&change) };
        let document = self.write(change, expected, &line)?;
        self.install(&self.lock())?;
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
        let line = Line { actor, what: "policy", details: difference.json() };
        self.write(Change::Policy(Some(Uploaded { text: sent, over })), expected, &line)?;
        let mut state = self.lock();
        state.text = text.to_vec();
        state.policy = policy;
        let version = self.install(&state)?;
        self.metrics.reloaded(Reload::Applied);
        self.health.complain("policy", None);
        tracing::info!(version, "a policy was sent");
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
        let line = Line { actor, what: "policy", details: difference.json() };
        self.write(Change::Policy(None), expected, &line)?;
        let mut state = self.lock();
        state.text = state.file_text.clone();
        state.policy = policy;
        self.install(&state)?;
        Ok(difference)
    }

    /// Notes something that does not change the document.
    pub(crate) fn note(&self, actor: Actor<'_>, what: &str, details: &serde_json::Value) {
        let _turn = self.turn();
        let mut state = self.lock();
        let version = state.control.document().version;
        // That it could not be written is logged and told by `/ready`.
        if self.noted(&mut state, version, actor, what, details).is_ok() {
            let _ = self.save(&state);
        }
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

    /// Leads a change through the protocol: its line in the audit log and then the document are written before anything is
    /// in force.
    fn write(
        &self,
        change: Change,
        expected: Option<u64>,
        line: &Line<'_>,
    ) -> Result<Document, RulebookError> {
        let version = self.document().version;
        let mut action = self.lock().control.on_event(Event::Asked { change, expected });
        loop {
            let event = match action {
                Action::Refuse(refused) => return Err(refused.into()),
                Action::Install(document) => return Ok(document),
                // Nobody may look meanwhile on a thread that the store needs to answer.
                Action::Write(document) => match self.keep(version, &document, line) {
                    Ok(()) => Event::Written,
                    Err(why) => Event::NotWritten(why),
                },
            };
            action = self.lock().control.on_event(event);
        }
    }

    /// Writes a line of the audit log and then a document. If the document could not be written, another line says so.
    fn keep(
        &self,
        version: u64,
        document: &Document,
        line: &Line<'_>,
    ) -> Result<(), RefusedChange> {
        let Line { actor, what, details } = line;
        self.noted(&mut self.lock(), document.version, *actor, what, details)
            .map_err(|_| RefusedChange::NotWritten)?;
        self.keep_document(version, document).inspect_err(|why| {
            let details = json!({ "abandoned": document.version, "why": why.to_string() });
            let _ = self.noted(&mut self.lock(), version, *actor, "abandoned", &details);
        })
    }

    /// Writes a document where it outlives us: into the store, if that is shared, and into the file.
    fn keep_document(&self, version: u64, document: &Document) -> Result<(), RefusedChange> {
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
        let head = self.lock().audit.head().clone();
        self.write_file(document, head).or_else(|error| {
            broken(&error);
            // What the store has taken is in force.
            if S::SHARED { Ok(()) } else { Err(RefusedChange::NotWritten) }
        })
    }

    /// Writes the document in force and the end of the audit log.
    fn save(&self, state: &State) -> io::Result<()> {
        self.write_file(state.control.document(), state.audit.head().clone())
    }

    /// Writes the control file; `/ready` tells when that does not work, and until it works again.
    fn write_file(&self, document: &Document, audit: Head) -> io::Result<()> {
        let kept = Kept { document: document.clone(), audit: Some(audit) };
        let written = kept.write(&self.control_file);
        let complaint = written.as_ref().err();
        let complaint =
            complaint.map(|error| format!("control.json could not be written: {error}"));
        self.health.complain("control file", complaint);
        written
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
        let written = self.save(&state);
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

    /// Adds a line to the audit log. `/ready` tells when that does not work, and until it works again.
    fn noted(
        &self,
        state: &mut State,
        version: u64,
        actor: Actor<'_>,
        what: &str,
        details: &serde_json::Value,
    ) -> io::Result<()> {
        let deed = Deed { actor, what, details };
        let noted = state.audit.append(&self.secret, &self.clock, version, deed);
        let complaint = noted.as_ref().err();
        let complaint = complaint.map(|error| format!("audit.log could not be written: {error}"));
        if let Some(text) = &complaint {
            tracing::error!("{text}");
        }
        self.health.complain("audit", complaint);
        let damage = state.audit.damage.map(|damage| damage.to_string());
        self.health.complain("audit damage", damage);
        noted
    }
}

/// What the audit log tells of a change.
struct Line<'a> {
    actor: Actor<'a>,
    what: &'static str,
    details: serde_json::Value,
}

/// The policy file has taken back the policy that was sent.
fn withdrawn() -> Line<'static> {
    let details = details(&Change::Policy(None));
    Line { actor: Actor::SERVER, what: "policy", details }
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
