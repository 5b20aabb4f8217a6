//! How full the store is.

use super::Memory;
use crate::reports::Gauges;
use std::sync::atomic::Ordering;

impl Memory {
    /// How many states are in the table, without the empty ones.
    ///
    /// ```
    /// # use tidegate_core::{Algorithm, Cost, Limit, Span, StateId, Take};
    /// # use tidegate_store::{Clock, Memory};
    /// # let limit = Limit::new(15, Span::from_secs(60), Algorithm::TOKEN_BUCKET).unwrap();
    /// let store = Memory::new(Clock::system());
    /// let takes = [7, 8, 7].map(|id| Take::new(StateId(id), &limit, Cost::ONE));
    /// store.take_each_now(&takes);
    /// assert_eq!(store.len(), 2);
    /// ```
    pub fn len(&self) -> usize {
        let mut live = 0usize;
        self.table.walk(|bucket| {
            let here = bucket.entries().filter(|(_, entry)| entry.word != 0).count();
            live = live.saturating_add(here);
        });
        live
    }

    /// Whether no state is in the table, apart from empty ones.
    ///
    /// ```
    /// # use tidegate_core::{Algorithm, Cost, Limit, Span, StateId, Take};
    /// # use tidegate_store::{Clock, Memory};
    /// # let limit = Limit::new(15, Span::from_secs(60), Algorithm::TOKEN_BUCKET).unwrap();
    /// let store = Memory::new(Clock::system());
    /// store.take_one_now(&Take::new(StateId(7), &limit, Cost::ONE));
    /// assert!(!store.is_empty());
    /// store.reset_now(&[StateId(7)]);
    /// assert!(store.is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How full the store is.
    ///
    /// ```
    /// # use tidegate_core::{Algorithm, Cost, Limit, Span, StateId, Take};
    /// # use tidegate_store::{Clock, Memory};
    /// # let limit = Limit::new(15, Span::from_secs(60), Algorithm::TOKEN_BUCKET).unwrap();
    /// let store = Memory::new(Clock::system());
    /// store.take_one_now(&Take::new(StateId(7), &limit, Cost::ONE));
    /// let gauges = store.gauges();
    /// assert_eq!((gauges.entries, gauges.demotions), (1, 0));
    /// assert!(gauges.bytes <= gauges.budget);
    /// ```
    pub fn gauges(&self) -> Gauges {
        let demotions = self.demotions.load(Ordering::Relaxed);
        Gauges {
            entries: usize::try_from(self.table.entries()).unwrap_or(0),
            bytes: self.budget.used().saturating_add(if demotions > 0 {
                self.budget.sketch()
            } else {
                0
            }),
            budget: self.budget.total(),
            demotions,
            overcount_thousandths: self.overcount_thousandths(),
        }
    }
}
