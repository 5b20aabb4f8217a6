//! Which limits apply to a request, and what happens above them.
//!
//! ```
//! use tidegate_policy::{Attributes, Changes, Policy};
//! let policy = Policy::parse("
//! version: 1
//! rules:
//!   - { name: logins, match: { method: POST, path: /login }, key: [ip], limits: [5/min] }
//!   - { name: per-client, key: [user|ip], limits: [15/s] }
//! ").unwrap();
//! let request = Attributes::new()
//!     .with("ip", "203.0.113.7")?
//!     .with("method", "POST")?
//!     .with("path", "//login/")?;
//! println!("{}", policy.explain(&Changes::default(), &request, 1));
//! assert_eq!(policy.applying(&request, 1).count(), 2);
//! # Ok::<(), tidegate_policy::AttributeError>(())
//! ```
//!
//! | topic | types |
//! |---|---|
//! | a policy file, compiled | [`Policy`], [`Rule`] |
//! | what is known about a request | [`Attributes`]; from HTTP headers, [`Identity`] |
//! | which counter a request uses | [`Key`], [`AddressKey`], [`Trusted`] |
//! | how much is allowed | [`Allowance`], [`RuleLimit`], [`Rate`], [`Overrides`] |
//! | conditions | [`Expression`] |
//! | which requests are served first | [`Classes`], [`PriorityClass`] |
//! | what operators change at run time | [`Changes`] |
//! | why a request is limited | [`Explanation`] |
//! | the YAML reader, and errors with their positions | [`Document`], [`Problem`] |
//! | paths and path patterns | [`NormalPath`], [`Readings`], [`Pattern`] |
//!
//! The modules, from the bottom to the top:
//!
//! ```text
//!   document  suggest      the YAML reader; "did you mean …?"
//!   model                  a policy as the limiter evaluates it
//!   language  envoy        the policy language; rule files of Envoy's reference service
//! ```

#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "tests run with overflow checks and may fail loudly"
    )
)]

mod document;
mod envoy;
mod language;
mod model;
mod suggest;

pub use document::{Document, Entry, Place, Problem, Value, printable};
pub use envoy::{EnvoyError, EnvoyFile, Imported};
pub use language::{AppliedRule, Explanation, PolicyError, RuleExplanation, schema};
pub use model::address::{AddressKey, HopHeader, Trusted, parse_address};
pub use model::allowance::{Allowance, RuleLimit, RuleLimitError};
pub use model::attributes::{AttributeError, Attributes};
pub use model::changes::{
    ChangeError, Changes, RequestStanding, Resolved, ResolvedRule, TierAssignment,
};
pub use model::descriptors::{DescriptorRule, Descriptors, EnvoyProblem, Met};
pub use model::expression::{Expression, ExpressionError, Fact};
pub use model::identity::{Identity, METHOD_OVERRIDES, Request, VerifiedSource};
pub use model::key::{Key, KeyError, KeyValue, KeyValues};
pub use model::number::{Number, NumberError};
pub use model::overrides::{OverrideError, Overrides};
pub use model::path::{NormalPath, PathError, Readings};
pub use model::pattern::{Pattern, PatternError};
pub use model::person::{Person, PersonRule};
pub use model::policy::{Origin, Policy, Tiers};
pub use model::priority::{ClassIndex, Classes, ClassesError, PriorityClass};
pub use model::rate::{CalendarUnit, Per, Rate, RateError};
pub use model::rule::{Consistency, Count, Mode, OnLimit, OnStoreError, Rule, Skipped};
pub use model::unit::Unit;
pub use tidegate_core::WhenFull;
