//! What is asked about one request.

use tidegate_core::{Cost, Span};
use tidegate_policy::Attributes;

/// A question: may a request with these attributes pass?
///
/// ```
/// use tidegate::{Attributes, Check, Span};
/// let alice = Attributes::new().with("user", "alice")?;
/// let check = Check::new(&alice).cost(3).waiting(Span::from_secs(2));
/// assert_eq!(check.cost.get(), 3);
/// # Ok::<(), tidegate::AttributeError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Check<'c> {
    /// Who asks, and for what.
    pub attributes: &'c Attributes<'c>,
    /// What it costs; 1 unless said otherwise. 0 takes nothing.
    pub cost: Cost,
    /// How long the caller can wait; not at all unless said otherwise.
    pub max_wait: Span,
    /// How long the caller waits for the answer, if it matters: then the store has four fifths of it, all but
    /// two milliseconds at most, and the rules
    /// answer without it in time.
    pub timeout: Option<Span>,
    /// Whether a receipt is wanted, also when no rule counts outcomes.
    pub receipt: bool,
}

impl<'c> Check<'c> {
    /// A request that costs 1 and cannot wait.
    #[must_use]
    pub const fn new(attributes: &'c Attributes<'c>) -> Self {
        Self { attributes, cost: Cost::ONE, max_wait: Span::ZERO, timeout: None, receipt: false }
    }

    /// The same at another cost.
    #[must_use]
    pub fn cost(self, cost: impl Into<Cost>) -> Self {
        Self { cost: cost.into(), ..self }
    }

    /// The same from somebody who can wait.
    #[must_use]
    pub const fn waiting(self, max_wait: Span) -> Self {
        Self { max_wait, ..self }
    }

    /// The same from somebody who must have an answer within this time.
    #[must_use]
    pub const fn within(self, timeout: Span) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// The same with a receipt, to settle it later.
    #[must_use]
    pub const fn with_receipt(self) -> Self {
        Self { receipt: true, ..self }
    }
}
