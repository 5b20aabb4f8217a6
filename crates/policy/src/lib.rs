//! Which limits apply to a request, and what a refusal means.
//!
//! So far the parts of which the language of rules will be made: how a rate is written, how a path is
//! spelled, and who is at the other end of a connection.
//!
//! | to learn | read |
//! |---|---|
//! | how a file is read, and what is wrong with it where | [`Document`], [`Problem`] |
//! | how a rate is written | [`Rate`] |
//! | how a path is spelled, and matched | [`NormalPath`], [`Pattern`] |
//! | whose address counts | [`Trusted`], [`AddressKey`] |

#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "tests run with overflow checks and may fail loudly"
    )
)]

mod address;
mod document;
mod path;
mod rate;

pub use address::{AddressKey, HopHeader, Trusted, parse_address};
pub use document::{Document, Entry, Place, Problem, Value};
pub use path::{NormalPath, PathError, Pattern, PatternError};
pub use rate::{CalendarUnit, Per, Rate, RateError};
