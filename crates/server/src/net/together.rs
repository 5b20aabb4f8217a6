//! Several questions to the store at the same time, answered in their order.
//!
//! ```text
//!   a list or a pipeline   1 2 3 4 5 6 …    each is sent in its turn, without waiting for the answers before it
//!   the store              └──┬──┘          at most this many questions of all lists are there at a time; further ones wait here
//!   answers                1 2 3 …          in the same order
//! ```
//!
//! One after another, a thousand questions would take a thousand round trips. All at once, a few lists would take all places that the
//! store has for calls, and other requests would be decided without it.

use super::LongWorkQueue;
use futures_util::FutureExt as _;
use futures_util::stream::{FuturesOrdered, StreamExt as _};
use std::collections::VecDeque;
use std::pin::pin;
use tokio::sync::SemaphorePermit;

/// Questions that were begun and not answered yet.
pub(crate) struct Together<'q, F: Future> {
    queue: &'q LongWorkQueue,
    asked: FuturesOrdered<F>,
    /// A place for each of them; none with a store in this process, which answers at once.
    places: VecDeque<SemaphorePermit<'q>>,
}

impl<'q, F: Future> Together<'q, F> {
    pub(crate) fn new(queue: &'q LongWorkQueue) -> Self {
        Self { queue, asked: FuturesOrdered::new(), places: VecDeque::new() }
    }

    /// Begins a question when there is a place for it. Answers that have arrived meanwhile are passed to `done`.
    pub(crate) async fn ask(&mut self, question: F, done: &mut impl FnMut(F::Output)) {
        let Self { queue, asked, places } = self;
        if let Some(all) = queue.places() {
            let mut place = pin!(all.acquire());
            let place = loop {
                tokio::select! {
                    biased;
                    place = place.as_mut() => break place,
                    Some(answer) = asked.next(), if !asked.is_empty() => {
                        places.pop_front();
                        done(answer);
                    }
                }
            };
            // The semaphore is never closed.
            places.extend(place.ok());
        }
        asked.push_back(question);
        // Polled once, so that it is sent before the next one.
        if let Some(Some(answer)) = asked.next().now_or_never() {
            places.pop_front();
            done(answer);
        }
    }

    /// Waits for the remaining answers.
    pub(crate) async fn finish(mut self, done: &mut impl FnMut(F::Output)) {
        while let Some(answer) = self.asked.next().await {
            self.places.pop_front();
            done(answer);
        }
    }
}
