//! Leases: what a node holds of limits that it shares with others, and when it asks for more.
//!
//! ```text
//!   take ──► a slice is held: spent here ──► little is left: ask the store for more, in the background
//!        └─► none is held: the store decides ──► many such takes: ask the store for a slice
//!   idle, evicted, edited, shutting down ──► what is left is given back, once
//! ```
//!
//! The core says when a slice may be spent ([`Slice`]); so the limit holds whatever is decided here. This module
//! decides how much to ask for, and when. All of it is pure: time and events are arguments, and calls to the store are returned
//! as [`LeaseAction`]s. A driver carries them out; for Redis that is `redis/leasing.rs`.
//!
//! Bounds: [`LeaseTable`] holds a bounded number of leases, each a bounded number of slices. If an answer of the store is lost,
//! the slice is too: it counts in the store as spent. It comes back as time goes on, with a bucket within the time that the bucket
//! takes to refill, with a window when the window ends.

mod clock_sample;
mod demand;
mod hot_keys;
mod lease;
mod lease_table;
#[cfg(test)]
mod search;

pub(crate) use clock_sample::ClockSample;
pub(crate) use lease::{Granted, LeaseAction, LeaseEvent, LeaseMoment};
pub(crate) use lease_table::{LeaseActions, LeaseTable, Spent};
