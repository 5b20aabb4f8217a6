//! A state together with the limit under which it was written.
//!
//! A state alone has no meaning: the same word stands for a different use under a different rate. So [`Written`] keeps
//! state and limit together. When the limit was edited in between, the methods of [`Limit`] read the state under its old
//! limit and, if they write, write it under the new one.

use crate::algorithm::Shape;
use crate::limit::Limit;
use crate::state::{Log, State, StateContents};
use crate::time::Timestamp;

/// A state and the limit under which it was written.
///
/// ```
/// use tidegate_core::{Algorithm, Limit, Span, State, Written};
/// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// assert_eq!(Written::empty(&limit), Written { shape: &limit, state: State::Empty });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written<'l> {
    /// The limit under which the state was last written. Methods that write replace it.
    pub shape: &'l Limit,
    /// The state, in the units of that limit.
    pub state: State,
}

impl<'l> Written<'l> {
    /// An empty state under this limit.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, Span, State, Written};
    /// let limit = Limit::new(1, Span::from_secs(1), Algorithm::SLIDING_LOG).unwrap();
    /// assert_eq!(Written::empty(&limit).state, State::Empty);
    /// ```
    #[must_use]
    pub const fn empty(shape: &'l Limit) -> Self {
        Self { shape, state: State::Empty }
    }
}

// === conversion to plain numbers and back ===

impl Written<'_> {
    /// The content of the state as plain numbers. Packed window numbers may repeat after decades; `now` selects the nearest
    /// one, so any instant within decades of the last write gives the same result.
    ///
    /// ```
    /// use tidegate_core::{Limit, StateContents, Timestamp, Written};
    /// let limit = Limit::unlimited();
    /// assert_eq!(Written::empty(&limit).remembered(Timestamp::EPOCH), StateContents::Nothing);
    /// ```
    #[must_use]
    pub fn remembered(&self, now: Timestamp) -> StateContents {
        self.contents(now).unwrap_or(StateContents::Nothing)
    }

    fn contents(&self, now: Timestamp) -> Option<StateContents> {
        match &self.shape.shape {
            Shape::Unlimited | Shape::Blocked => None,
            Shape::FixedWindow(shape) => {
                let State::Word(word) = self.state else { return None };
                shape.contents(word, now)
            }
            Shape::SlidingWeighted(shape) => shape.contents(&self.state, now),
            Shape::SlidingBuckets(_) => {
                let State::Buckets(buckets) = &self.state else { return None };
                Some(buckets.contents())
            }
            Shape::SlidingLog(_) => {
                let State::Log(log) = &self.state else { return None };
                Some(log.contents())
            }
            Shape::TokenBucket(_) | Shape::LeakyBucket(_) => {
                let State::Word(zero) = self.state else { return None };
                Some(StateContents::Zero(zero))
            }
        }
    }
}

impl Limit {
    /// The state with this content, as this limit packs it. It is empty if the content belongs to another algorithm, or if a
    /// count is larger than this limit can have written.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, StateContents, Span, State};
    /// let bucket = Limit::new(3, Span::from_secs(60), Algorithm::TOKEN_BUCKET).unwrap();
    /// assert_eq!(bucket.remember(&StateContents::Zero(7)), State::Word(7));
    /// assert_eq!(bucket.remember(&StateContents::Log(vec![])), State::Empty);
    /// ```
    #[must_use]
    pub fn remember(&self, contents: &StateContents) -> State {
        self.pack(contents).unwrap_or_default()
    }

    fn pack(&self, contents: &StateContents) -> Option<State> {
        match &self.shape {
            Shape::Unlimited | Shape::Blocked => None,
            Shape::FixedWindow(shape) => {
                let StateContents::Window { number, count } = contents else { return None };
                Some(shape.pack(*number, *count))
            }
            Shape::SlidingWeighted(shape) => {
                let StateContents::Windows { number, cur, prev } = contents else { return None };
                Some(shape.pack(*number, *cur, *prev))
            }
            Shape::SlidingBuckets(shape) => {
                let StateContents::Buckets { newest, counts } = contents else { return None };
                Some(shape.pack(*newest, counts))
            }
            Shape::SlidingLog(_) => {
                let StateContents::Log(entries) = contents else { return None };
                Some(Log::filled_with(entries))
            }
            Shape::TokenBucket(_) | Shape::LeakyBucket(_) => {
                let StateContents::Zero(zero) = contents else { return None };
                Some(State::of_word(*zero))
            }
        }
    }
}
