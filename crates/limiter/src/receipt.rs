//! A receipt records what a request took, so that it can be given back when the outcome is known.
//!
//! ```text
//!   check ──► verdict, receipt ──► (the login succeeds) ──► report success ──► rules with `count: failures` give back
//!                                  (it fails, or no report) ─────────────────► everything stays counted
//! ```
//!
//! A receipt names the states and what was taken from each, so any node can settle it. Outside of the process it is a signed
//! text (HMAC): a modified receipt is rejected.

mod wire;

pub(crate) use wire::{decode, encode};

use tidegate_core::{Algorithm, Bound, Cost, Limit, Span, StateId, Take, TakeReceipt, Timestamp};
use tidegate_policy::Count;
use tidegate_store::{Part, ReceiptId};

/// A record of what a request took, to be given to [`Limiter::report`](crate::Limiter::report) when the outcome of the request
/// is known.
///
/// A verdict [carries one](crate::Verdict::receipt) if the request passed, and either a rule counts outcomes
/// (`count: failures` or `count: successes`), a concurrency limit applies, or the caller
/// [asked for it](crate::Check::with_receipt).
///
/// ```
/// use tidegate::{Attributes, Check, Limiter, Policy, Report, Settled};
/// let policy = Policy::parse("
/// version: 1
/// rules: [{ name: logins, key: [user], limits: [3/h], count: failures }]")?;
/// let limiter = Limiter::in_memory(policy)?;
/// let alice = Attributes::new().with("user", "alice")?;
/// for _ in 0..10 { // ten successful logins: none of them counts
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
    /// Reports after this time change nothing.
    pub(crate) until: Timestamp,
    /// What counted the request: the fallback of the node with this number, because the store did not answer; or a store whose
    /// states end with the process, by its [incarnation](tidegate_store::Store::incarnation). 0: a store whose states outlive it.
    pub(crate) node: u64,
    pub(crate) cost: Cost,
    pub(crate) parts: Vec<ReceiptPart>,
}

/// What was taken from one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReceiptPart {
    pub(crate) state: StateId,
    pub(crate) limit: Limit,
    pub(crate) bound: Bound,
    pub(crate) count: Count,
    pub(crate) receipt: TakeReceipt,
    /// What is known about the permit, if the limit is one of concurrency.
    pub(crate) permit: Option<PermitRecord>,
}

/// What a receipt knows about a permit, besides what was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermitRecord {
    /// The number of the rule in the policy. After a change of the policy it may be that of another rule; it is used only to
    /// estimate how long permits are held.
    pub(crate) rule: usize,
    /// When the request began to hold it, by the clock of the store.
    pub(crate) since: Timestamp,
    /// When it was last renewed, or else taken. From then on its lease runs.
    pub(crate) taken: Timestamp,
}

/// The outcome of a request that passed; see [`Limiter::report`](crate::Limiter::report). Whatever the outcome is, the permits
/// of concurrency limits are returned.
///
/// ```
/// use tidegate::{Attributes, Check, Limiter, Policy, Report};
/// let policy = Policy::parse("
/// version: 1
/// rules: [{ name: logins, key: [user], limits: [2/h], count: failures }]")?;
/// let limiter = Limiter::in_memory(policy)?;
/// let alice = Attributes::new().with("user", "alice")?;
/// for report in [Report::Failure, Report::Success, Report::Failure] {
///     let verdict = limiter.check_now(&Check::new(&alice))?;
///     limiter.report_now(verdict.receipt().unwrap(), report)?;
/// }
/// assert!(!limiter.check_now(&Check::new(&alice))?.allowed()); // two failures are all that 2/h allows
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// It succeeded. Rules with `count: failures` give back what they counted.
    Success,
    /// It failed. Rules with `count: successes` give back what they counted.
    Failure,
    /// Its true cost is this. The difference is given back, or charged in addition.
    Cost(Cost),
    /// It did not happen. Everything is given back.
    Cancelled,
}

impl Receipt {
    /// The takes that a report charges in addition, because the true cost is larger than what was taken.
    pub(crate) fn charged_beyond(&self, report: Report) -> Vec<Take<'_>> {
        let excess = match report {
            Report::Cost(cost) => cost.get().saturating_sub(self.cost.get()),
            Report::Success | Report::Failure | Report::Cancelled => 0,
        };
        let parts = self.parts.iter().filter(|part| excess > 0 && part.permit.is_none());
        let takes = parts.map(|part| Take {
            bound: part.bound,
            ..Take::new(part.state, &part.limit, Cost::new(excess))
        });
        takes.collect()
    }

    /// The parts that a report gives back.
    pub(crate) fn given_back(&self, report: Report) -> Vec<Part<'_>> {
        self.parts.iter().filter_map(|part| part.given_back(report, self.cost)).collect()
    }

    /// How long its permits are held, unless they are returned or [renewed](crate::Limiter::renew): the shortest lease of the
    /// concurrency limits that apply to the request. `None` if there are none.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Limiter, Policy, Span};
    /// let policy = Policy::parse("
    /// version: 1
    /// rules: [{ name: exports, key: [user], limits: [{ concurrent: 2, lease: 10s }] }]")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// let alice = Attributes::new().with("user", "alice")?;
    /// let verdict = limiter.check_now(&Check::new(&alice))?;
    /// assert_eq!(verdict.receipt().unwrap().lease(), Some(Span::from_secs(10)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn lease(&self) -> Option<Span> {
        self.parts.iter().filter_map(|part| part.limit.lease()).min()
    }

    /// Whether a report can give something back because of its outcome.
    pub(crate) fn counts_outcomes(&self) -> bool {
        self.parts.iter().any(|part| part.count != Count::All)
    }

    /// Its permits, each with what is known about it.
    pub(crate) fn permits(&self) -> impl Iterator<Item = (&ReceiptPart, PermitRecord)> {
        self.parts.iter().filter_map(|part| Some((part, part.permit?)))
    }

    /// When the lease of each permit ends.
    pub(crate) fn lease_ends(&self) -> impl Iterator<Item = Timestamp> {
        self.permits().filter_map(|(part, permit)| permit.taken.after(part.limit.lease()?))
    }

    /// The permits alone.
    pub(crate) fn into_permits(self) -> Option<Self> {
        let id = self.id;
        self.split(id).0
    }

    /// The permits as a receipt of their own, and the rest. Both can be settled, independently of each other.
    pub(crate) fn split(self, id: ReceiptId) -> (Option<Self>, Self) {
        let (permits, others): (Vec<_>, Vec<_>) =
            self.parts.into_iter().partition(|part| part.permit.is_some());
        let rest = Self { parts: others, ..self };
        let Self { until, node, cost, .. } = rest;
        let permits = Self { id, until, node, cost, parts: permits };
        // After the lease there is nothing left to give back, so no store needs to remember the receipt for longer.
        let until = permits.lease_ends().max();
        (until.map(|until| Self { until, ..permits }), rest)
    }
}

impl ReceiptPart {
    fn given_back(&self, report: Report, cost: Cost) -> Option<Part<'_>> {
        let all = self.whole();
        if self.permit.is_some() {
            return Some(all);
        }
        match report {
            Report::Success => (self.count == Count::Failures).then_some(all),
            Report::Failure => (self.count == Count::Successes).then_some(all),
            Report::Cancelled => Some(all),
            Report::Cost(true_cost) if true_cost < cost => self.beyond(true_cost),
            Report::Cost(_) => None,
        }
    }

    /// All that was taken.
    pub(crate) const fn whole(&self) -> Part<'_> {
        Part { state: self.state, limit: &self.limit, receipt: self.receipt }
    }

    /// What was taken beyond the true cost.
    fn beyond(&self, true_cost: Cost) -> Option<Part<'_>> {
        let kept = self.limit.weight(true_cost, self.bound).unwrap_or(u64::MAX);
        let weight = self.receipt.weight.saturating_sub(kept);
        // A bucket drains what is kept first, so the rest counts as if it had been taken that much later. Of a slot the end is
        // given back, and the mark is the end already.
        let drained = matches!(self.limit.algorithm(), Algorithm::TokenBucket { .. });
        let later = if drained && !self.receipt.is_slot { kept } else { 0 };
        let mark = self.receipt.mark.saturating_add(later);
        let receipt = TakeReceipt { mark, weight, ..self.receipt };
        (weight > 0).then_some(Part { state: self.state, limit: &self.limit, receipt })
    }
}
