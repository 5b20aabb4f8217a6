//! The limits under which states were written, each kept once.

use crate::sync::{Mutex, lock};
use std::collections::HashMap;
use std::sync::Arc;
use tidegate_core::Limit;

/// Every limit that some state was written under.
#[derive(Debug, Default)]
pub(super) struct Shapes(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// From what a limit says to the one copy of it.
    limits: HashMap<Limit, Arc<Limit>>,
    /// When the table has grown to this, those that nobody uses any more are dropped.
    clean_at: usize,
}

/// Cleaning is not worth it for fewer.
const CLEAN_AT_LEAST: usize = 1_024;

impl Shapes {
    /// The one copy of a limit.
    pub(super) fn intern(&self, limit: &Limit) -> Arc<Limit> {
        let mut table = lock(&self.0);
        if let Some(shape) = table.limits.get(limit) {
            return Arc::clone(shape);
        }
        if table.limits.len() >= table.clean_at.max(CLEAN_AT_LEAST) {
            table.limits.retain(|_, shape| Arc::strong_count(shape) > 1);
            table.clean_at = table.limits.len().saturating_mul(2);
        }
        let shape = Arc::new(limit.clone());
        table.limits.insert(limit.clone(), Arc::clone(&shape));
        shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{Algorithm, Span};

    #[test]
    fn equal_limits_are_kept_once_and_unused_ones_not_for_ever() {
        let shapes = Shapes::default();
        let limit =
            |amount| Limit::new(amount, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
        let used = shapes.intern(&limit(1));
        for amount in 2..100_000 {
            shapes.intern(&limit(amount));
        }
        assert!(Arc::ptr_eq(&used, &shapes.intern(&limit(1))));
        assert!(lock(&shapes.0).limits.len() <= CLEAN_AT_LEAST);
    }
}
