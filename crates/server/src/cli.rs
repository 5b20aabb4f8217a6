//! The sub-commands, one file each: options in, text out.

pub(crate) mod check;
pub(crate) mod policy;
pub(crate) mod serve;
pub(crate) mod simulate;
