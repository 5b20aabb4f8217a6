//! What a state says, apart from how it is packed.
//!
//! A store that counts elsewhere (in a script, in a file) has its own way to write states down. This is
//! the form that all ways share: plain numbers, with names.
//!
//! ```text
//!   Word(0x0000_001c_2000_0003)  under 3/min fixed_window   ⇄   Window { number: 28, count: 3 }
//! ```

use crate::algorithm::Shape;
use crate::algorithm::{sliding_buckets::Buckets, sliding_log::Log};
use crate::limit::Limit;
use crate::state::{State, Written};
use crate::time::Timestamp;

/// What a state says.
///
/// ```
/// use tidegate_core::{Algorithm, Ask, Cost, Limit, StateContents, Span, Timestamp, Written};
/// let limit = Limit::new(3, Span::from_secs(60), Algorithm::FIXED_WINDOW).unwrap();
/// let mut written = Written::empty(&limit);
/// let now = Timestamp::from_nanos(61_000_000_000);
/// limit.take(&mut written, &Ask::new(now, Cost::new(2)));
/// let says = written.remembered(now);
/// assert_eq!(says, StateContents::Window { number: 1, count: 2 });
/// assert_eq!(limit.remember(&says), written.state);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateContents {
    /// Nothing.
    Nothing,
    /// A window and its count.
    Window {
        /// The window's number; for `align: first` its start in steps, for a calendar in minutes.
        number: u64,
        /// What was counted in it.
        count: u64,
    },
    /// A window, its count, and the count of the one before it.
    Windows {
        /// The window's number.
        number: u64,
        /// What was counted in it.
        cur: u64,
        /// What was counted in the one before it.
        prev: u64,
    },
    /// Sub-windows that counted something, oldest first.
    Buckets {
        /// The number of the newest sub-window, which may have counted nothing.
        newest: u64,
        /// Numbers and counts.
        counts: Vec<(u64, u64)>,
    },
    /// Takes, oldest first: steps and costs.
    Log(Vec<(u64, u64)>),
    /// The tick at which nothing is used any more.
    Zero(u64),
}

impl Written<'_> {
    /// What the state says. `now` tells which of the window numbers that look alike is meant; any
    /// instant within decades will do.
    ///
    /// ```
    /// use tidegate_core::{Limit, StateContents, Timestamp, Written};
    /// let limit = Limit::unlimited();
    /// assert_eq!(Written::empty(&limit).remembered(Timestamp::EPOCH), StateContents::Nothing);
    /// ```
    #[must_use]
    pub fn remembered(&self, now: Timestamp) -> StateContents {
        self.said(now).unwrap_or(StateContents::Nothing)
    }

    fn said(&self, now: Timestamp) -> Option<StateContents> {
        match &self.shape.shape {
            Shape::Unlimited | Shape::Blocked => None,
            Shape::FixedWindow(shape) => {
                let State::Word(word) = self.state else { return None };
                shape.remembered(word, now)
            }
            Shape::SlidingWeighted(shape) => shape.remembered(&self.state, now),
            Shape::SlidingBuckets(_) => {
                let State::Buckets(buckets) = &self.state else { return None };
                Some(buckets.remembered())
            }
            Shape::SlidingLog(_) => {
                let State::Log(log) = &self.state else { return None };
                Some(log.remembered())
            }
            Shape::TokenBucket(_) | Shape::LeakyBucket(_) => {
                let State::Word(zero) = self.state else { return None };
                Some(StateContents::Zero(zero))
            }
        }
    }
}

impl Limit {
    /// The state that says this, as this limit packs it; empty when it says what only another algorithm
    /// could, or counts what this limit never could.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, StateContents, Span, State};
    /// let bucket = Limit::new(3, Span::from_secs(60), Algorithm::TOKEN_BUCKET).unwrap();
    /// assert_eq!(bucket.remember(&StateContents::Zero(7)), State::Word(7));
    /// assert_eq!(bucket.remember(&StateContents::Log(vec![])), State::Empty);
    /// ```
    #[must_use]
    pub fn remember(&self, said: &StateContents) -> State {
        self.state_that_says(said).unwrap_or_default()
    }

    fn state_that_says(&self, said: &StateContents) -> Option<State> {
        match &self.shape {
            Shape::Unlimited | Shape::Blocked => None,
            Shape::FixedWindow(shape) => {
                let StateContents::Window { number, count } = said else { return None };
                Some(shape.remember(*number, *count))
            }
            Shape::SlidingWeighted(shape) => {
                let StateContents::Windows { number, cur, prev } = said else { return None };
                Some(shape.remember(*number, *cur, *prev))
            }
            Shape::SlidingBuckets(shape) => {
                let StateContents::Buckets { newest, counts } = said else { return None };
                Some(Buckets::remember(shape, *newest, counts))
            }
            Shape::SlidingLog(_) => {
                let StateContents::Log(entries) = said else { return None };
                Some(Log::remember(entries))
            }
            Shape::TokenBucket(_) | Shape::LeakyBucket(_) => {
                let StateContents::Zero(zero) = said else { return None };
                Some(State::of_word(*zero))
            }
        }
    }
}
