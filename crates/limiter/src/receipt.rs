//! The proof of a take: what to give back when it turns out that it should not have counted.
//!
//! ```text
//!   check ──► verdict, receipt ──► (the login succeeds) ──► report success ──► failures-only takes are given back
//!                                  (it fails, or nobody says) ──────────────► they stay
//! ```
//!
//! A receipt names states and what was taken of each, so any node can settle it. Outside of our hands it is
//! a signed text: whoever changes it holds nothing.

mod wire;

pub(crate) use wire::{decode, encode};

use tidegate_core::{Algorithm, Bound, Cost, Limit, StateId, Timestamp};
use tidegate_policy::Count;
use tidegate_store::{Part, ReceiptId};

/// The proof of a take.
///
/// ```
/// use tidegate::{Attributes, Check, Limiter, Policy, Report, Settled};
/// let policy = Policy::parse("
/// version: 1
/// rules: [{ name: logins, key: [user], limits: [3/h], count: failures }]")?;
/// let limiter = Limiter::in_memory(policy)?;
/// let alice = Attributes::new().with("user", "alice")?;
/// for _ in 0..10 { // ten logins that succeed: none counts
///     let verdict = limiter.check_now(&Check::new(&alice))?;
///     let receipt = verdict.receipt().unwrap();
///     assert_eq!(limiter.report_now(receipt, Report::Success)?, Settled::Done);
///     assert_eq!(limiter.report_now(receipt, Report::Success)?, Settled::Already);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    pub(crate) id: ReceiptId,
    /// Later reports change nothing.
    pub(crate) until: Timestamp,
    /// The node that counted by itself, because the store was gone; 0 is the store.
    pub(crate) node: u64,
    pub(crate) cost: Cost,
    pub(crate) parts: Vec<Taken>,
}

/// What was taken of one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) state: StateId,
    pub(crate) limit: Limit,
    pub(crate) bound: Bound,
    pub(crate) count: Count,
    pub(crate) receipt: tidegate_core::TakeReceipt,
}

/// What became of a request.
///
/// ```
/// assert_ne!(tidegate::Report::Success, tidegate::Report::Failure);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// It succeeded: what counts failures is given back.
    Success,
    /// It failed: what counts successes is given back.
    Failure,
    /// It turned out to cost this much.
    Cost(Cost),
    /// It never happened: all is given back.
    Cancelled,
}

impl Receipt {
    /// What a report gives back.
    pub(crate) fn given_back(&self, report: Report) -> Vec<Part<'_>> {
        self.parts.iter().filter_map(|taken| taken.given_back(report, self.cost)).collect()
    }
}

impl Taken {
    fn given_back(&self, report: Report, cost: Cost) -> Option<Part<'_>> {
        let all = Part { state: self.state, limit: &self.limit, receipt: self.receipt };
        match report {
            Report::Success => (self.count == Count::Failures).then_some(all),
            Report::Failure => (self.count == Count::Successes).then_some(all),
            Report::Cancelled => Some(all),
            Report::Cost(true_cost) if true_cost < cost => {
                let kept = self.limit.weight(true_cost, self.bound).unwrap_or(u64::MAX);
                let weight = self.receipt.weight.saturating_sub(kept);
                // What is kept drains first: the rest is as if it had been taken that much later.
                let drained = matches!(self.limit.algorithm(), Algorithm::TokenBucket { .. });
                let later = if drained { kept } else { 0 };
                let mark = self.receipt.mark.saturating_add(later);
                let receipt = tidegate_core::TakeReceipt { mark, weight };
                (weight > 0).then_some(Part { receipt, ..all })
            }
            Report::Cost(_) => None,
        }
    }
}
