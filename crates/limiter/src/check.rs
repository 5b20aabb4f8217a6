//! What a caller asks about one request: its attributes, its cost, and how long the caller can wait.

use tidegate_core::{Cost, Span};
use tidegate_policy::Attributes;

/// The question to a [`Limiter`](crate::Limiter): may a request with these attributes pass?
///
/// ```
/// use tidegate::{Attributes, Check, Limiter, Policy, Span};
/// let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [user], limits: [5/h] }] }")?;
/// let limiter = Limiter::in_memory(policy)?;
/// let alice = Attributes::new().with("user", "alice")?;
/// let upload = Check::new(&alice).cost(3);
/// assert!(limiter.check_now(&upload)?.allowed());
/// assert!(!limiter.check_now(&upload)?.allowed()); // 2 of 5 remain
/// assert!(limiter.check_now(&upload.cost(2))?.allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Check<'c> {
    /// What is known about the request: its user, its address, its path and so on.
    pub attributes: &'c Attributes<'c>,
    /// How much the request takes from each limit. The default is 1; a cost of 0 takes nothing. A cost above what a limit allows at
    /// a time is always refused.
    pub cost: Cost,
    /// How long the caller can wait for its turn. The default is not to wait.
    pub max_wait: Span,
    /// Whether the `max_wait` of a rule takes the place of that of the caller; see [`Check::waiting_by_rule`].
    pub wait_by_rule: bool,
    /// How long the caller waits for the answer of a remote store; `None` leaves this to the store.
    ///
    /// The store gets 80 % of the timeout, leaving at least 2 ms. If it does not answer in time, the rules decide without it
    /// (`on_store_error`), so the caller has its answer within the timeout.
    pub timeout: Option<Span>,
    /// Whether the verdict should carry a receipt even if no rule counts outcomes.
    pub receipt: bool,
}

impl<'c> Check<'c> {
    /// A request with these attributes that costs 1 and does not wait.
    #[must_use]
    pub const fn new(attributes: &'c Attributes<'c>) -> Self {
        Self {
            attributes,
            cost: Cost::ONE,
            max_wait: Span::ZERO,
            wait_by_rule: false,
            timeout: None,
            receipt: false,
        }
    }

    /// Sets how much the request takes from each limit. A cost above what a limit allows at a time, which is the `burst` of a token
    /// bucket, is always refused.
    #[must_use]
    pub fn cost(self, cost: impl Into<Cost>) -> Self {
        Self { cost: cost.into(), ..self }
    }

    /// Sets how long the caller can wait for its turn. A rule with a shorter `max_wait` shortens it.
    #[must_use]
    pub const fn waiting(self, max_wait: Span) -> Self {
        Self { max_wait, wait_by_rule: false, ..self }
    }

    /// The caller waits as long as the rules say (`on_limit: { delay: { max_wait: … } }`), and `otherwise` for its turn in a
    /// leaky bucket of a rule that says nothing.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Limiter, Outcome, Policy, Span};
    /// let policy = Policy::parse("
    /// version: 1
    /// rules: [{ name: a, key: [], on_limit: { delay: { max_wait: 1h } }, limits: [{ rate: 2/h, algorithm: leaky_bucket }] }]")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// let (job, ten) = (Attributes::new(), Span::from_secs(10));
    /// limiter.check_now(&Check::new(&job))?;
    /// assert!(!limiter.check_now(&Check::new(&job).waiting(ten))?.allowed()); // the next turn is in half an hour
    /// let verdict = limiter.check_now(&Check::new(&job).waiting_by_rule(ten))?;
    /// assert!(matches!(verdict.outcome, Outcome::Delay(_)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn waiting_by_rule(self, otherwise: Span) -> Self {
        Self { max_wait: otherwise, wait_by_rule: true, ..self }
    }

    /// Sets how long the caller waits for the answer; see [`Check::timeout`](#structfield.timeout).
    #[must_use]
    pub const fn within(self, timeout: Span) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// Asks for a receipt, with which the caller can [report](crate::Limiter::report) the outcome later.
    #[must_use]
    pub const fn with_receipt(self) -> Self {
        Self { receipt: true, ..self }
    }
}
