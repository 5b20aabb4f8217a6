//! What all stores on other machines share, whatever protocol they speak.
//!
//! ```text
//!   call ──► Gate: breaker closed, permit free? ──► connection ──┬─► reply: restarts the count of timeouts
//!            └ no: an error immediately                          ├─► timeout: the breaker counts it, and opens after several
//!                                                                └─► the connection ends: the breaker opens at once
//!   keeper (background task): reconnects, probes, closes the breaker
//!   debt ledger: what was granted while the store was away is charged when it is back
//! ```
//!
//! A store brings its own connections, the commands that it sends over them, and the probe that tells whether a server works. Two
//! stores do so: `redis/` and `memcached/`.

mod breaker;
mod debt_ledger;
mod error_class;
mod gate;
mod keeper;
mod supervise;
mod tcp;
pub(crate) mod timers;

pub(crate) use debt_ledger::{
    Creditor, DebtCharger, DebtLedger, PendingCharge, RECEIPT_KEPT, cost_of,
};
pub(crate) use error_class::{ErrorClass, ErrorCounts};
pub(crate) use gate::Gate;
pub(crate) use keeper::{Server, keep, update_breaker};
pub(crate) use supervise::supervised;
pub(crate) use tcp::tcp;
