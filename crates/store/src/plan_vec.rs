//! A list with an entry for each take of a plan.

use smallvec::SmallVec;

/// Entries for the takes of a plan. Most plans have up to four takes: their entries are on the stack and need no allocation.
pub(crate) type PlanVec<T> = SmallVec<[T; 4]>;
