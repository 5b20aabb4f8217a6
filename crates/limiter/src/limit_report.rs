//! What one limit decided about a request, and how much of it is left: a line of a verdict.
//!
//! ```text
//!   rule api, limit h: 5/h      asked for 2, passes, 3 remain
//! ```

use std::fmt;
use tidegate_core::{Bound, Cost, Decision, Headroom, Limit, Need, StateId};
use tidegate_policy::RuleLimit;

/// The decision of one limit about a request.
///
/// ```
/// use tidegate::{Attributes, Check, Limiter, Policy};
/// let policy = Policy::parse("{ version: 1, rules: [{ name: api, key: [], limits: [5/h, 9/day] }] }")?;
/// let limiter = Limiter::in_memory(policy)?;
/// let request = Attributes::new();
/// let verdict = limiter.check_now(&Check::new(&request).cost(2))?;
/// let left: Vec<_> = verdict.limits().map(|l| (l.rule, l.id, l.decision.remaining)).collect();
/// assert_eq!(left, [("api", "h", 3), ("api", "day", 7)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct LimitReport<'v> {
    /// The index of the rule in the policy.
    pub number: usize,
    /// The name of the rule; empty for a limit that the caller named.
    pub rule: &'v str,
    /// The name of the limit within the rule, such as `h` for `5/h`.
    pub id: &'v str,
    /// The limit itself.
    pub limit: &'v Limit,
    /// How much the request asked for.
    pub cost: Cost,
    /// What the limit decided, and how much of it remains.
    pub decision: Decision,
    /// Whether a denial by this limit denies the request.
    pub need: Need,
    /// Whether the rule is in shadow mode: it counts and decides, but never denies the request.
    pub shadow: bool,
    /// How much of the headroom of the limit applied.
    pub bound: Bound,
    /// The name of the state that the limit counts in: a keyed hash of the key's values, and of the rule and the limit.
    pub state: StateId,
    /// The limit as the policy writes it.
    pub(crate) written: &'v RuleLimit,
}

/// What one rule decided about a request.
#[derive(Clone, Copy, Debug)]
pub struct RuleDecision<'v> {
    /// The limit that speaks for the rule: the first that refuses; if none does, the first that delays; else the first.
    pub limit: LimitReport<'v>,
    /// The name of the state of the rule's first limit. It is the same for all requests with the same key, whichever limit speaks.
    pub first_state: StateId,
}

// === impl LimitReport ===

impl LimitReport<'_> {
    /// Whether the limit denies the request.
    #[must_use]
    pub const fn refuses(&self) -> bool {
        matches!(self.need, Need::Required) && !self.decision.passes()
    }

    /// The amount and its unit as a policy writes them: `5/h`, or `20 concurrent`. For logs and for messages to people.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Limiter, Policy};
    /// let policy = Policy::parse("{ version: 1, rules: [{ name: api, key: [user], limits: [1/h, 9/day] }] }")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// let alice = Attributes::new().with("user", "alice")?;
    /// limiter.check_now(&Check::new(&alice))?;
    /// let refused = limiter.check_now(&Check::new(&alice))?;
    /// let reasons: Vec<_> = refused.refusing().map(|l| format!("{}: {}", l.rule, l.summary())).collect();
    /// assert_eq!(reasons, ["api: 1/h"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn summary(&self) -> String {
        self.written.summary()
    }

    /// How much of the limit is in use, in per cent from 0 to 100. With [`Decision::over`] it is more than 100.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Limiter, Policy};
    /// let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [4/h] }] }")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// let verdict = limiter.check_now(&Check::new(&Attributes::new()).cost(3))?;
    /// assert_eq!(verdict.limits().next().unwrap().used_percent(), 75);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn used_percent(&self) -> u8 {
        let whole = u128::from(self.limit.capacity());
        let left = u128::from(self.decision.remaining).min(whole).saturating_mul(100);
        let left = left.checked_div(whole).and_then(|left| u8::try_from(left).ok());
        100_u8.saturating_sub(left.unwrap_or(0))
    }

    /// How much an elastic limit allows at the moment, in per cent of its amount; `None` for other limits.
    #[must_use]
    pub fn elastic_percent(&self) -> Option<u16> {
        let Headroom::Elastic(up_to) = self.limit.headroom() else { return None };
        let part = match self.bound {
            Bound::Plain => 0,
            Bound::Headroom => 100,
            Bound::Part(part) => part,
        };
        let more = u32::from(up_to.saturating_sub(100)).saturating_mul(u32::from(part)) / 100;
        Some(100_u16.saturating_add(u16::try_from(more).unwrap_or(u16::MAX)))
    }
}

impl fmt::Debug for LimitReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitReport")
            .field("rule", &self.rule)
            .field("id", &self.id)
            .field("limit", &self.summary())
            .field("cost", &self.cost)
            .field("decision", &self.decision)
            .field("need", &self.need)
            .field("shadow", &self.shadow)
            .field("bound", &self.bound)
            .finish_non_exhaustive()
    }
}
