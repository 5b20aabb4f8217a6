//! The model: a policy as the limiter uses it. It evaluates requests against rules, and neither reads files nor explains.
//!
//! Modules from the bottom to the top; a module imports only modules of lines above its own:
//!
//! ```text
//!   number  path  address  rate  priority        values: decimals, paths, addresses, `15/s`, classes
//!   zone  pattern  attributes  expression        calendars, `/urls/**`, what is known of a request, conditions
//!   allowance  key  identity  condition          how much, whose counter, from HTTP requests to attributes, `match`
//!   overrides  unit  descriptors                 exceptions for single customers; periods and rules of Envoy's files
//!   rule
//!   index  needs                                 finds the rules of a request; what a rule needs to know
//!   policy
//!   changes                                      what operators change at run time
//!   person                                       what applies to a person of whom little is known
//! ```

pub(crate) mod address;
pub(crate) mod allowance;
pub(crate) mod attributes;
pub(crate) mod changes;
pub(crate) mod condition;
pub(crate) mod descriptors;
pub(crate) mod expression;
pub(crate) mod identity;
pub(crate) mod index;
pub(crate) mod key;
pub(crate) mod needs;
pub(crate) mod number;
pub(crate) mod overrides;
pub(crate) mod path;
pub(crate) mod pattern;
pub(crate) mod person;
pub(crate) mod policy;
pub(crate) mod priority;
pub(crate) mod rate;
pub(crate) mod rule;
pub(crate) mod unit;
pub(crate) mod zone;
