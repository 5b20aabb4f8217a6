//! Rule files of Envoy's reference service: a folder that is read at the start and again whenever its contents change.
//!
//! Files with errors change nothing: the old rules stay in force, and the log, the metrics and `/ready` say why. An empty folder
//! is an error too, because a folder that is being replaced is empty for a moment.

use crate::backend::Backend;
use crate::files;
use crate::health::Health;
use crate::metrics::{Metrics, Reload};
use crate::rulebook::content_hash;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate::{Limiter, LimiterError, Policy};
use tidegate_policy::{EnvoyError, EnvoyFile, printable};

/// The rules of a folder, and the only way to change them.
pub(crate) struct RuleFiles<S> {
    limiter: Limiter<S>,
    folder: RuleFolder,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    /// The files in force. Locked while they are replaced.
    texts: Mutex<Texts>,
}

/// A folder of rule files.
#[derive(Clone, Debug)]
pub(crate) struct RuleFolder {
    pub(crate) path: PathBuf,
    pub(crate) merge_domains: bool,
}

/// Names and contents of files, sorted by name.
pub(crate) type Texts = Vec<(String, Vec<u8>)>;

/// The most files in a folder: more than are kept by hand.
const MOST_FILES: usize = 1_000;

/// How the log announces rule files that were not valid before.
const REPAIRED: &str = "the rule files are valid again";

/// The most names in one line of the log.
const MOST_LOGGED: usize = 20;

/// Why rules were not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RuleFilesError {
    #[error("{0}")]
    Rules(#[from] EnvoyError),
    #[error("{path}: {error}")]
    Io { path: String, error: io::Error },
    #[error("{0}: there is no file whose name ends in .yaml or .yml")]
    Empty(String),
    #[error("{0}: more than {MOST_FILES} files")]
    TooMany(String),
    #[error("{0}")]
    Limiter(#[from] LimiterError),
}

impl RuleFolder {
    /// The rule files in it: those whose names end in `.yaml` or `.yml` and do not begin with a dot. Symbolic links are
    /// followed, because mounted configuration uses them.
    pub(crate) fn paths(&self) -> Result<Vec<PathBuf>, RuleFilesError> {
        let wrong = |error| RuleFilesError::Io { path: shown(&self.path), error };
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(wrong)? {
            let path = entry.map_err(wrong)?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if has_rules(name) && !path.is_dir() {
                paths.push(path);
            }
            if paths.len() > MOST_FILES {
                return Err(RuleFilesError::TooMany(shown(&self.path)));
            }
        }
        paths.sort();
        if paths.is_empty() { Err(RuleFilesError::Empty(shown(&self.path))) } else { Ok(paths) }
    }

    /// Entries that are not read, although the reference service would read them: folders, and files with other names.
    fn unread(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        let mut unread: Vec<String> = entries
            .map(|entry| entry.path())
            .filter(|path| {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                !name.starts_with('.') && (path.is_dir() || !has_rules(name))
            })
            .map(|path| shown(&path))
            .collect();
        unread.sort();
        unread
    }

    pub(crate) fn texts(&self) -> Result<Texts, RuleFilesError> {
        let read = |path: PathBuf| {
            let text = files::read_regular(&path, crate::rulebook::MOST_BYTES)
                .map_err(|error| RuleFilesError::Io { path: shown(&path), error })?;
            Ok((shown(&path), text))
        };
        self.paths()?.into_iter().map(read).collect()
    }

    pub(crate) fn policy(&self, texts: &Texts) -> Result<Policy, RuleFilesError> {
        let files: Vec<EnvoyFile<'_>> =
            texts.iter().map(|(name, text)| EnvoyFile { name, text }).collect();
        Ok(Policy::from_envoy(&files, self.merge_domains)?)
    }
}

/// Whether a file of this name is a rule file.
fn has_rules(name: &str) -> bool {
    !name.starts_with('.') && (name.ends_with(".yaml") || name.ends_with(".yml"))
}

/// Logs what is valid but probably a mistake.
pub(crate) fn warn(folder: &RuleFolder, policy: &Policy) {
    let unread = folder.unread();
    if let Some(names) =
        unread.get(..unread.len().min(MOST_LOGGED)).filter(|names| !names.is_empty())
    {
        tracing::warn!(
            "these are not read: {}; put rule files directly into the folder, with names that end in .yaml or .yml",
            names.join(", ")
        );
    }
    for warning in policy.descriptors().iter().flat_map(|rules| rules.warnings()) {
        tracing::warn!("{warning}");
    }
}

impl<S: Backend> RuleFiles<S> {
    pub(crate) fn new(
        limiter: Limiter<S>,
        folder: RuleFolder,
        texts: Texts,
        (metrics, health): (Arc<Metrics>, Arc<Health>),
    ) -> Self {
        health.set_hash("rules", hash(&texts));
        Self { limiter, folder, metrics, health, texts: Mutex::new(texts) }
    }

    pub(crate) fn limiter(&self) -> &Limiter<S> {
        &self.limiter
    }

    /// The path of the folder, for messages.
    pub(crate) fn folder(&self) -> String {
        shown(&self.folder.path)
    }

    /// The files in force, concatenated, each after a comment with its name.
    pub(crate) fn text(&self) -> Vec<u8> {
        let texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Vec::new();
        for (name, text) in texts.iter() {
            all.extend_from_slice(format!("---\n# {name}\n").as_bytes());
            all.extend_from_slice(text);
            all.push(b'\n');
        }
        all
    }

    /// The rules in force.
    pub(crate) fn policy(&self) -> Option<Policy> {
        let texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.folder.policy(&texts).ok()
    }

    /// The files to watch; none while the folder cannot be read.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.folder.paths().unwrap_or_default()
    }

    /// Reads the files again. Errors are logged, counted and reported by `/ready`.
    pub(crate) fn reload(&self) {
        match self.try_reload() {
            Ok(None) => {
                if self.health.set_problem("rules", None).is_some() {
                    tracing::info!("{REPAIRED}; their rules were in force all the time");
                }
            }
            Ok(Some(version)) => {
                self.metrics.reloaded(Reload::Applied);
                if self.health.set_problem("rules", None).is_some() {
                    tracing::info!(version, "{REPAIRED}; their rules are in force");
                } else {
                    tracing::info!(version, "the rule files were read again");
                }
            }
            Err(error) => {
                self.metrics.reloaded(Reload::Refused);
                let text = error.to_string();
                for line in text.lines().take(20) {
                    tracing::error!("the rules are not changed: {}", printable(line));
                }
                let first = text.lines().next().unwrap_or_default();
                self.health.set_problem("rules", Some(printable(first)));
            }
        }
    }

    fn try_reload(&self) -> Result<Option<u64>, RuleFilesError> {
        let mut known = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        let texts = self.folder.texts()?;
        if *known == texts {
            return Ok(None);
        }
        let policy = self.folder.policy(&texts)?;
        warn(&self.folder, &policy);
        let version = self.limiter.reload(policy)?;
        self.health.set_hash("rules", hash(&texts));
        *known = texts;
        Ok(Some(version))
    }
}

/// The hash of the rules in files. The names of files do not matter.
fn hash(texts: &Texts) -> String {
    content_hash::of_texts(texts.iter().map(|(_, text)| text.as_slice()))
}

fn shown(path: &Path) -> String {
    printable(&path.display().to_string())
}
