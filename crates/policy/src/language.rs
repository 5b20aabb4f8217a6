//! The policy language: reads policy files, checks them, and explains their effect on a request.
//!
//! ```text
//!   grammar                      the keys and values of the language, as one table
//!   reader  schema  expression   reads values by that table; prints it as JSON Schema; parses conditions
//!   lint  explain                finds mistakes in valid policies; says why a rule applies
//!   file                         from a document to a policy
//! ```

mod explain;
mod expression;
mod file;
mod grammar;
mod lint;
mod reader;
#[cfg(test)]
mod reference;
mod schema;

pub use explain::{AppliedRule, Explanation, RuleExplanation};
pub use schema::schema;

use crate::document::Problem;
use crate::model::allowance::Allowance;
use crate::model::policy::Policy;
use std::fmt;

/// Everything that is wrong with a policy.
///
/// ```
/// let error = tidegate_policy::Policy::parse("version: 2\nrulez: []").unwrap_err();
/// assert_eq!(error.problems().len(), 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    problems: Vec<Problem>,
}

impl Policy {
    /// Parses a policy file, or returns everything that is wrong with it. A policy can be valid and still not do what its author
    /// wants: see [`Policy::warnings`].
    ///
    /// ```
    /// use tidegate_policy::Policy;
    /// let error = Policy::parse("
    /// version: 1
    /// rules: [{ name: a, key: [ip], limts: [15/s] }]").unwrap_err();
    /// assert_eq!(error.to_string(), "3:31: unknown key `limts`, did you mean `limits`?");
    /// ```
    pub fn parse(text: impl AsRef<[u8]>) -> Result<Self, PolicyError> {
        file::read(text.as_ref()).map_err(|problems| PolicyError { problems })
    }

    /// Warnings: what is valid but probably a mistake, such as a limit that no request meets. `tidegate policy lint` prints the
    /// same list, and a limiter logs it when it gets the policy.
    ///
    /// A policy of Envoy's rule files has none here; its own are in [`Descriptors::warnings`](crate::Descriptors::warnings).
    ///
    /// ```
    /// let policy = tidegate_policy::Policy::parse("
    /// version: 1
    /// rules: [{ name: a, key: [user], limits: [1/s] }]").unwrap();
    /// assert!(policy.warnings()[0].text.contains("a request without `user`"));
    /// ```
    #[must_use]
    pub fn warnings(&self) -> &[Problem] {
        let find = || if self.descriptors.is_some() { vec![] } else { lint::warnings(self) };
        self.warnings.get_or_init(find)
    }
}

impl std::str::FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        Self::parse(text)
    }
}

impl Allowance {
    /// Parses an allowance as a policy writes it: `unlimited`, or a list of limits.
    ///
    /// ```
    /// use tidegate_policy::Allowance;
    /// let allowance = Allowance::parse("[1000/s, { rate: 500/h, algorithm: sliding_log }]").unwrap();
    /// assert_eq!(allowance.limits().len(), 2);
    /// assert_eq!(Allowance::parse("unlimited"), Ok(Allowance::Unlimited));
    /// assert!(Allowance::parse("[1000/fortnight]").is_err());
    /// ```
    pub fn parse(text: impl AsRef<[u8]>) -> Result<Self, PolicyError> {
        file::read_allowance(text.as_ref()).map_err(|problems| PolicyError { problems })
    }
}

// === impl PolicyError ===

impl PolicyError {
    /// The problems, in the order of the file.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for PolicyError {}
