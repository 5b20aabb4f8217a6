//! Rule files of Envoy's reference rate limit service.
//!
//! These files are not the policy language: they say less, and they are read as the reference service reads them, as far as
//! its behaviour was observed, including the settings that it silently ignores. [`Descriptors::import`] translates them into
//! a policy that a person would have written. The tree that they are read into is in `model/descriptors.rs`.

mod import;
mod leaves;
mod reader;
mod scalar;
mod values;

pub use import::Imported;

use crate::model::descriptors::{Descriptors, EnvoyProblem};
use crate::model::identity::Identity;
use crate::model::index::Index;
use crate::model::policy::{Policy, Tiers};
use std::fmt;
use std::sync::Arc;

/// A rule file.
#[derive(Clone, Copy, Debug)]
pub struct EnvoyFile<'f> {
    /// The name of the file in error messages.
    pub name: &'f str,
    /// The content of the file.
    pub text: &'f [u8],
}

/// Everything that is wrong with rule files.
///
/// ```
/// use tidegate_policy::{EnvoyFile, Policy};
/// let file = EnvoyFile { name: "a.yaml", text: b"domain: a\ndescriptors: [{ kee: x }]" };
/// let error = Policy::from_envoy(&[file], false).unwrap_err();
/// assert!(error.to_string().starts_with("a.yaml:2:17: unknown key `kee`, did you mean `key`?"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoyError {
    problems: Vec<EnvoyProblem>,
}

impl Policy {
    /// Reads rule files of Envoy's reference rate limit service, or returns everything that is wrong with them. Two files
    /// for one domain are an error, unless `merge_domains` is set.
    pub fn from_envoy(files: &[EnvoyFile<'_>], merge_domains: bool) -> Result<Self, EnvoyError> {
        let (descriptors, rules) = reader::read(files, merge_domains)?;
        let mut policy = Self::new(Identity::default(), Tiers::default(), rules);
        // Only descriptors find these rules; requests with attributes find none of them.
        policy.index = Index::default();
        policy.descriptors = Some(Arc::new(descriptors));
        Ok(policy)
    }

    /// The trees of its rules, if it was read from files of Envoy's reference service.
    #[must_use]
    pub fn descriptors(&self) -> Option<&Descriptors> {
        self.descriptors.as_deref()
    }
}

// === impl EnvoyError ===

impl EnvoyError {
    /// The problems, file by file.
    #[must_use]
    pub fn problems(&self) -> &[EnvoyProblem] {
        &self.problems
    }
}

impl fmt::Display for EnvoyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for EnvoyError {}
