//! Rule files of Envoy's reference service: a folder of them, read at the start and again whenever something in it changes.
//!
//! As everywhere, files with mistakes change nothing: what decided before goes on deciding, and everybody who could wonder is
//! told. A folder in which nothing is left is such a mistake: it is what somebody sees who looks while it is filled anew.

use crate::backend::Backend;
use crate::files;
use crate::health::Health;
use crate::metrics::{Metrics, Reload};
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
    /// What decides now; held while it is replaced.
    texts: Mutex<Texts>,
}

/// Where rules lie.
#[derive(Clone, Debug)]
pub(crate) struct RuleFolder {
    pub(crate) path: PathBuf,
    pub(crate) merge_domains: bool,
}

/// Names and texts, in the order of the names.
pub(crate) type Texts = Vec<(String, Vec<u8>)>;

/// As many files as anybody keeps in a folder by hand.
const MOST_FILES: usize = 1_000;

/// Names in one line of the log.
const MOST_TOLD: usize = 20;

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
    /// The files in it that hold rules: those that end in `.yaml` or `.yml` and do not begin with a point. Links are followed,
    /// also those by which mounted configuration is swapped.
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

    /// What lies in the folder and is not read, although the reference service would: folders, and files of other names.
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

/// Whether a file of this name holds rules.
fn has_rules(name: &str) -> bool {
    !name.starts_with('.') && (name.ends_with(".yaml") || name.ends_with(".yml"))
}

/// Tells what is legal but surely a mistake.
pub(crate) fn warn(folder: &RuleFolder, policy: &Policy) {
    let unread = folder.unread();
    if let Some(names) = unread.get(..unread.len().min(MOST_TOLD)).filter(|names| !names.is_empty())
    {
        tracing::warn!(
            "not read: {}; rule files lie in the folder itself, and their names end in .yaml or .yml",
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
        Self { limiter, folder, metrics, health, texts: Mutex::new(texts) }
    }

    pub(crate) fn limiter(&self) -> &Limiter<S> {
        &self.limiter
    }

    /// Where the rules lie.
    pub(crate) fn folder(&self) -> String {
        shown(&self.folder.path)
    }

    /// The files that decide, one behind another, each with its name before it.
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

    /// The rules that decide.
    pub(crate) fn policy(&self) -> Option<Policy> {
        let texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.folder.policy(&texts).ok()
    }

    /// What is watched; nothing, while the folder cannot be read.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.folder.paths().unwrap_or_default()
    }

    /// Reads them again. What is wrong with them is logged, counted and told by `/ready`.
    pub(crate) fn reload(&self) {
        match self.try_reload() {
            Ok(None) => self.health.set_problem("rules", None),
            Ok(Some(version)) => {
                self.metrics.reloaded(Reload::Applied);
                self.health.set_problem("rules", None);
                tracing::info!(version, "the rule files were read again");
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
        *known = texts;
        Ok(Some(version))
    }
}

fn shown(path: &Path) -> String {
    printable(&path.display().to_string())
}
