//! The limits under which states were written, interned: each is kept once.

use crate::sync::{Mutex, lock};
use std::collections::HashMap;
use std::sync::Arc;
use tidegate_core::Limit;

/// One shared copy of every limit under which a state was written.
#[derive(Debug, Default)]
pub(super) struct InternedLimits(Mutex<InternTable>);

#[derive(Debug, Default)]
struct InternTable {
    /// From a limit to the one copy of it.
    limits: HashMap<Limit, Arc<Limit>>,
    /// When the table has grown to this, copies that no state uses are dropped.
    clean_at: usize,
}

/// A smaller table is not cleaned: it is not worth the work.
const CLEAN_AT_LEAST: usize = 1_024;

impl InternedLimits {
    /// The one copy of a limit.
    pub(super) fn intern(&self, limit: &Limit) -> Arc<Limit> {
        let mut table = lock(&self.0);
        if let Some(copy) = table.limits.get(limit) {
            return Arc::clone(copy);
        }
        if table.limits.len() >= table.clean_at.max(CLEAN_AT_LEAST) {
            table.limits.retain(|_, copy| Arc::strong_count(copy) > 1);
            table.clean_at = table.limits.len().saturating_mul(2);
        }
        let copy = Arc::new(limit.clone());
        table.limits.insert(limit.clone(), Arc::clone(&copy));
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{Algorithm, Span};

    #[test]
    fn equal_limits_are_kept_once_and_unused_ones_are_dropped() {
        let interned = InternedLimits::default();
        let limit =
            |amount| Limit::new(amount, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
        let used = interned.intern(&limit(1));
        for amount in 2..100_000 {
            interned.intern(&limit(amount));
        }
        assert!(Arc::ptr_eq(&used, &interned.intern(&limit(1))));
        assert!(lock(&interned.0).limits.len() <= CLEAN_AT_LEAST);
    }
}
