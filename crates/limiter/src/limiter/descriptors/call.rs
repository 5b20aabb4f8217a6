//! What Envoy asks: a call with descriptors.

use smallvec::SmallVec;
use std::borrow::Cow;
use tidegate_core::Span;
use tidegate_policy::Unit;

/// One rate limit call of Envoy: a domain, descriptors, and a cost. See [`Limiter::check_descriptors`](crate::Limiter::check_descriptors).
#[derive(Clone, Copy, Debug)]
pub struct DescriptorCall<'c, 'd> {
    /// The domain, which selects the rule file. Under a policy, it is the attribute `domain`.
    pub domain: &'d str,
    /// The descriptors, each of which is decided.
    pub descriptors: &'c [Descriptor<'d>],
    /// The cost (`hits_addend`) of descriptors without a cost of their own; 0 means 1.
    pub hits: u32,
    /// How long the caller waits for the answer; see [`Check::timeout`](crate::Check::timeout).
    pub timeout: Option<Span>,
    /// How long the caller can wait for its turn, under limits that delay.
    pub max_wait: Span,
}

/// One descriptor of a call.
#[derive(Clone, Debug, Default)]
pub struct Descriptor<'d> {
    /// The entries, as names and values, in order.
    pub entries: SmallVec<[(&'d str, Cow<'d, str>); 4]>,
    /// A limit to use instead of those of the rules: an amount per unit.
    pub limit: Option<(u32, Unit)>,
    /// The cost of this descriptor, instead of that of the call. 0 charges nothing, and is denied only if the limit is
    /// already exceeded.
    pub hits: Option<u64>,
    /// Whether the cost is given back instead of taken (a negative `hits_addend`), at most as much as was taken.
    pub gives_back: bool,
}
