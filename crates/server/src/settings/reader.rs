//! The text of each setting with its source, and how it becomes a value.

use std::collections::BTreeMap;
use std::fmt;
use tidegate_policy::printable;

/// Every setting as text, with its source.
pub(super) type Given = BTreeMap<&'static str, (String, Origin)>;

/// Where a value was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Default,
    File(String),
    Variable(String),
    Flag(String),
}

/// A kind of value: what it looks like, and how its text is read.
pub(super) struct Kind<T> {
    /// The word for it in `--help` and on the page of settings: `TIME`.
    pub(super) shape: &'static str,
    read: fn(&str) -> Result<T, String>,
    /// Whether a text may contain a password, so that errors do not repeat it.
    is_hidden: bool,
}

/// Reads the value of each setting, and collects all problems with their sources.
pub(super) struct Reader<'g> {
    pub(super) given: &'g Given,
    pub(super) problems: &'g mut Vec<String>,
}

impl<T> Kind<T> {
    pub(super) const fn new(shape: &'static str, read: fn(&str) -> Result<T, String>) -> Self {
        Self { shape, read, is_hidden: false }
    }

    /// The same for texts that may contain a password.
    pub(super) const fn hidden(self) -> Self {
        Self { is_hidden: true, ..self }
    }
}

impl Reader<'_> {
    /// The value of a setting. A text that is not valid is a problem, and the default takes its place until all problems are
    /// known.
    pub(super) fn read<T>(&mut self, name: &str, default: &str, kind: &Kind<T>) -> Option<T> {
        let (text, origin) = self.given.get(name)?;
        let error = match (kind.read)(text) {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        let shown = if kind.is_hidden { String::new() } else { format!("`{}`: ", printable(text)) };
        self.problems.push(format!("{origin}: {shown}{error}"));
        let default = (kind.read)(default);
        debug_assert!(default.is_ok(), "the default of {name} is not valid");
        default.ok()
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(place) => f.write_str(place),
            Self::Variable(name) | Self::Flag(name) => f.write_str(name),
        }
    }
}
