//! Paths of requests, and the different paths that servers make of one spelling.
//!
//! ```text
//!   /urls/42     /urls//42     /urls/./42     /x/../urls/42     /%75rls/42     \urls\42     /urls;v=1/42
//!        └──────────────┴────────────┴────────── all ──────────┴──────────────┴─────────────┘
//!                                      have the canonical form /urls/42
//! ```
//!
//! Proxies and frameworks disagree on what a path means. The canonical form ([`NormalPath`]) is generous: a character that
//! some server takes for a slash is a slash, and an escape that some server decodes is decoded. [`Readings`] holds, in
//! addition, the other paths that servers may make of the same spelling.
//!
//! | file | contents |
//! |---|---|
//! | `bytes.rs` | decodes the escapes of a path; errors |
//! | `interpretation.rs` | the choices that a server makes when it reads a path |
//! | `features.rs` | which of these choices matter for a path |
//! | `normal.rs` | the canonical form, and its segments |
//! | `readings.rs` | all different results of these choices |
//! | `case.rs` | whether `/LOGIN` equals `/login` |

mod bytes;
mod case;
mod features;
mod interpretation;
mod normal;
mod readings;

pub use bytes::PathError;
pub(crate) use bytes::decode_escape;
pub(crate) use case::Case;
pub use normal::NormalPath;
pub(crate) use normal::Segments;
pub use readings::Readings;
