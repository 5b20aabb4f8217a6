//! Which limits apply to a request, and what a refusal means.
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
//! | to learn | read |
//! |---|---|
//! | the rules of a file, compiled | [`Policy`], [`Rule`] |
//! | what is known of a request | [`Attributes`]; from headers, [`Identity`] |
//! | who is counted | [`Key`], [`AddressKey`], [`Trusted`] |
//! | how much | [`Allowance`], [`RuleLimit`], [`Rate`], [`Overrides`] |
//! | conditions | [`Expression`] |
//! | what operators change at run time | [`Changes`] |
//! | why a request is limited as it is | [`Explanation`] |
//! | how a file is read, and what is wrong with it where | [`Document`], [`Problem`] |
//! | how a path is spelled, and matched | [`NormalPath`], [`Pattern`] |

#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "tests run with overflow checks and may fail loudly"
    )
)]

mod address;
mod allowance;
mod attributes;
mod changes;
mod document;
mod envoy;
mod explain;
mod expression;
mod file;
mod grammar;
mod identity;
mod index;
mod key;
mod lint;
mod number;
mod overrides;
mod path;
mod pattern;
mod policy;
mod rate;
mod reader;
mod readings;
mod rule;
mod schema;
mod zone;

pub use address::{AddressKey, HopHeader, Trusted, parse_address};
pub use allowance::{Allowance, RuleLimit, RuleLimitError};
pub use attributes::{AttributeError, Attributes};
pub use changes::{ChangeError, Changes, Resolved, ResolvedRule};
pub use document::{Document, Entry, Place, Problem, Value, printable};
pub use envoy::{
    DescriptorRule, Descriptors, EnvoyError, EnvoyFile, EnvoyProblem, Imported, Met, Unit,
};
pub use explain::{AppliedRule, Explanation, RuleExplanation};
pub use expression::{Expression, ExpressionError, Fact};
pub use identity::{Identity, Request};
pub use key::{Key, KeyError, KeyValue, KeyValues};
pub use number::{Number, NumberError};
pub use overrides::{OverrideError, Overrides};
pub use path::{NormalPath, PathError};
pub use pattern::{Pattern, PatternError};
pub use policy::{Origin, Policy, PolicyError, Tiers};
pub use rate::{CalendarUnit, Per, Rate, RateError};
pub use rule::{Count, Mode, OnLimit, OnStoreError, Rule, Skipped};
pub use schema::schema;
pub use tidegate_core::WhenFull;
