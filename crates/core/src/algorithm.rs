//! The six ways of counting, and the verbs they share.
//!
//! Every algorithm measures what is *used* of a limit, in hits or in ticks, and answers the same few
//! questions; its chapter says how. Everything a caller sees is then the same for all six:
//!
//! ```text
//!   passes     iff used + weight(cost) ≤ room
//!   remaining  =  ⌊(plain room − used) / unit⌋        rounded down
//!   retry      =  until used ≤ room − weight(cost)     to the nanosecond
//!   reset      =  until used is 0
//!   charge     :  used grows whatever the room, to twice the plain room at most
//! ```
//!
//! | chapter | counts | remembers |
//! |---|---|---|
//! | [`fixed_window`] | hits of this window | 8 bytes |
//! | [`sliding_log`] | hits of the last period | about 2 bytes a hit |
//! | [`sliding_buckets`] | hits of the last sub-windows | 2 bytes a sub-window |
//! | [`sliding_weighted`] | hits of this window, and a share of the last one's | 8 or 16 bytes |
//! | [`token_bucket`] | ticks until all tokens are back | 8 bytes |
//! | [`leaky_bucket`] | ticks until all promised turns are over | 8 bytes |
//!
//! **Clocks that step.** Takes of different threads and hosts arrive out of order by a little; a state
//! that lies ahead of now by up to the *tolerance*, a second, is simply believed. One that lies further ahead was written by a clock that has since been put back. It would
//! refuse everything until that time comes again, so it is *mended*: windows and logs count as of now what
//! they counted then, buckets count all that can be used. What remains never grows by mending, and one
//! passes again within a period and the tolerance; for a bucket, within the time it takes to fill and one
//! token more. Mending is the one thing that a refused take may leave behind.
//!
//! **Limits that change.** A state is read by the shape it was written under, and written under the
//! shape of the take. So use is never forgotten, and nodes with different versions of a policy may
//! alternate on one key. Another algorithm is another state.

pub(crate) mod drain;
mod fast_path;
pub mod fixed_window;
pub mod leaky_bucket;
pub(crate) mod packed;
pub mod sliding_buckets;
pub mod sliding_log;
pub mod sliding_weighted;
pub mod token_bucket;

pub use fast_path::PreparedTake;

use crate::decision::{Ask, Bound, Cost, Decision, Outcome, Retry};
use crate::limit::Limit;
use crate::state::{State, TakeReceipt, Written};
use crate::time::{Span, Timestamp};

/// How far ahead of now a state may lie and still be believed.
///
/// Long enough for hosts whose clocks are kept by NTP, short enough that a key which a clock step has
/// locked is not locked for much longer than its period. It is the same for periods shorter than a
/// second: a state that a slow host moved back by a period would be expired for the fast one.
pub(crate) const TOLERANCE: Span = Span::from_secs(1);

/// A limit, compiled for its algorithm.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Shape {
    Unlimited,
    Blocked,
    FixedWindow(fixed_window::Shape),
    SlidingLog(sliding_log::Shape),
    SlidingBuckets(sliding_buckets::Shape),
    SlidingWeighted(sliding_weighted::Shape),
    TokenBucket(token_bucket::Shape),
    LeakyBucket(leaky_bucket::Shape),
}

/// The shape of a limit and the shape that a state was written under, where both are of one algorithm.
enum Alike<'a> {
    FixedWindow(&'a fixed_window::Shape, &'a fixed_window::Shape),
    SlidingLog(&'a sliding_log::Shape, &'a sliding_log::Shape),
    SlidingBuckets(&'a sliding_buckets::Shape, &'a sliding_buckets::Shape),
    SlidingWeighted(&'a sliding_weighted::Shape, &'a sliding_weighted::Shape),
    TokenBucket(&'a token_bucket::Shape, &'a token_bucket::Shape),
    LeakyBucket(&'a leaky_bucket::Shape, &'a leaky_bucket::Shape),
}

impl Shape {
    /// `None` where the algorithms differ: then nothing of the state counts under this limit.
    #[inline]
    const fn alike<'a>(&'a self, other: &'a Self) -> Option<Alike<'a>> {
        Some(match self {
            Self::Unlimited | Self::Blocked => return None,
            Self::FixedWindow(new) => {
                let Self::FixedWindow(old) = other else { return None };
                Alike::FixedWindow(new, old)
            }
            Self::SlidingLog(new) => {
                let Self::SlidingLog(old) = other else { return None };
                Alike::SlidingLog(new, old)
            }
            Self::SlidingBuckets(new) => {
                let Self::SlidingBuckets(old) = other else { return None };
                Alike::SlidingBuckets(new, old)
            }
            Self::SlidingWeighted(new) => {
                let Self::SlidingWeighted(old) = other else { return None };
                Alike::SlidingWeighted(new, old)
            }
            Self::TokenBucket(new) => {
                let Self::TokenBucket(old) = other else { return None };
                Alike::TokenBucket(new, old)
            }
            Self::LeakyBucket(new) => {
                let Self::LeakyBucket(old) = other else { return None };
                Alike::LeakyBucket(new, old)
            }
        })
    }

    /// Whether a limit of this shape makes callers wait for their turn.
    const fn has_turns(&self) -> bool {
        match self {
            Self::Unlimited
            | Self::Blocked
            | Self::FixedWindow(_)
            | Self::SlidingLog(_)
            | Self::SlidingBuckets(_)
            | Self::SlidingWeighted(_)
            | Self::TokenBucket(_) => false,
            Self::LeakyBucket(_) => true,
        }
    }
}

/// What a take did.
///
/// ```
/// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, Timestamp, Written};
/// let limit = Limit::new(1, Span::from_secs(1), Algorithm::FIXED_WINDOW).unwrap();
/// let mut written = Written::empty(&limit);
/// let one = Ask::new(Timestamp::EPOCH, Cost::ONE);
/// assert!(limit.take(&mut written, &one).receipt.is_some());
/// assert!(limit.take(&mut written, &one).receipt.is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The answer; `remaining` and `reset` are as of after the take.
    pub decision: Decision,
    /// The proof of what was taken; none when it was refused.
    pub receipt: Option<TakeReceipt>,
}

/// Whether a cost passes, and what is used.
#[derive(Clone, Copy)]
struct Judged {
    outcome: Outcome,
    over: bool,
    used: u64,
}

/// How long a cost waits for its turn, and how much of that is more than its caller can wait.
#[derive(Clone, Copy)]
struct Turn {
    wait: Span,
    too_long: Span,
}

// === the verbs ===

impl Limit {
    /// Takes a cost if it passes; a refusal changes nothing.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Ask, Cost, Limit, Outcome, Retry, Span, Timestamp, Written};
    /// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let mut written = Written::empty(&limit);
    /// let all = Ask::new(Timestamp::EPOCH, Cost::new(15));
    /// assert!(limit.take(&mut written, &all).decision.passes());
    /// let more = limit.take(&mut written, &Ask::new(Timestamp::EPOCH, Cost::ONE));
    /// assert_eq!(more.decision.outcome, Outcome::Deny(Retry::After(Span::from_nanos(66_666_667))));
    /// ```
    pub fn take<'l>(&'l self, written: &mut Written<'l>, ask: &Ask) -> Taken {
        match self.take_fast(written, ask) {
            Some(taken) => taken,
            None => self.take_long(written, ask),
        }
    }

    fn take_long<'l>(&'l self, written: &mut Written<'l>, ask: &Ask) -> Taken {
        self.mend(written, ask.now);
        let mut judged = self.judge(written, ask);
        let receipt = judged.outcome.passes().then(|| {
            let weight = self.weight(ask.cost, ask.bound).unwrap_or(0);
            judged.used = judged.used.saturating_add(weight);
            self.write(written, ask.now, weight)
        });
        Taken { decision: self.describe(written, ask, judged), receipt }
    }

    /// What [`take`](Self::take) would answer, were the take not counted: `remaining` is as of before.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, Timestamp, Written};
    /// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let written = Written::empty(&limit);
    /// let decision = limit.decide(&written, &Ask::new(Timestamp::EPOCH, Cost::new(15)));
    /// assert!(decision.passes() && decision.remaining == 15);
    /// ```
    #[must_use]
    pub fn decide(&self, written: &Written<'_>, ask: &Ask) -> Decision {
        if self.finds_ahead(written, ask.now) {
            let mut mended = written.clone();
            self.mend(&mut mended, ask.now);
            return self.decide_mended(&mended, ask);
        }
        self.decide_mended(written, ask)
    }

    /// How things stand under the plain bound: the answer to a cost of nothing.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, Outcome, Span, Timestamp, Written};
    /// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let decision = limit.peek(&Written::empty(&limit), Timestamp::EPOCH);
    /// assert_eq!((decision.outcome, decision.remaining), (Outcome::Allow, 15));
    /// ```
    #[must_use]
    pub fn peek(&self, written: &Written<'_>, now: Timestamp) -> Decision {
        self.decide(written, &Ask::new(now, Cost::default()))
    }

    /// Counts a cost whether or not it passes, at most one capacity deep into debt.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Ask, Cost, Limit, Outcome, Retry, Span, Timestamp, Written};
    /// let limit = Limit::new(10, Span::from_secs(10), Algorithm::TOKEN_BUCKET).unwrap();
    /// let mut written = Written::empty(&limit);
    /// limit.charge(&mut written, &Ask::new(Timestamp::EPOCH, Cost::new(1_000)));
    /// let peek = limit.peek(&written, Timestamp::EPOCH); // ten used, ten owed
    /// assert_eq!(peek.outcome, Outcome::Deny(Retry::After(Span::from_secs(10))));
    /// assert_eq!(peek.remaining, 0);
    /// ```
    pub fn charge<'l>(&'l self, written: &mut Written<'l>, ask: &Ask) -> TakeReceipt {
        self.mend(written, ask.now);
        let weight = self.weight(ask.cost, ask.bound).unwrap_or(u64::MAX);
        let depth = self.deepest().saturating_sub(self.used(written, ask.now));
        self.write(written, ask.now, weight.min(depth))
    }
}

impl Written<'_> {
    /// Gives back what a take still weighs. At the same instant that restores the state bit for bit,
    /// apart from what had expired anyway; after its window, nothing.
    ///
    /// The state cannot tell whether a receipt was given back before: whoever keeps states also
    /// remembers which receipts are settled.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, State, Timestamp, Written};
    /// let limit = Limit::new(3, Span::from_secs(60), Algorithm::SLIDING_LOG).unwrap();
    /// let mut written = Written::empty(&limit);
    /// let taken = limit.take(&mut written, &Ask::new(Timestamp::EPOCH, Cost::new(2)));
    /// written.give_back(Timestamp::EPOCH, &limit, &taken.receipt.unwrap());
    /// assert_eq!(written.state, State::Empty);
    /// ```
    pub fn give_back(&mut self, now: Timestamp, taken_under: &Limit, receipt: &TakeReceipt) {
        self.mend_unasked(now);
        let TakeReceipt { mark, weight } = *receipt;
        let state = &mut self.state;
        match self.shape.shape.alike(&taken_under.shape) {
            None => {} // a receipt of another state
            Some(Alike::FixedWindow(shape, _)) => shape.remove(state, now, mark, weight),
            Some(Alike::SlidingLog(shape, _)) => shape.remove(state, now, mark, weight),
            Some(Alike::SlidingBuckets(shape, _)) => shape.remove(state, now, mark, weight),
            Some(Alike::SlidingWeighted(shape, _)) => shape.remove(state, now, mark, weight),
            Some(Alike::TokenBucket(shape, taken)) => {
                shape.remove(state, now, taken, mark, weight);
            }
            Some(Alike::LeakyBucket(shape, taken)) => {
                shape.remove(state, now, taken, mark, weight);
            }
        }
    }

    /// Drops what no longer counts: two states that mean the same at `now` are then equal, and one
    /// that means nothing is [`State::Empty`].
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, State, Timestamp, Written};
    /// let limit = Limit::new(3, Span::from_secs(1), Algorithm::FIXED_WINDOW).unwrap();
    /// let mut written = Written::empty(&limit);
    /// limit.take(&mut written, &Ask::new(Timestamp::EPOCH, Cost::ONE));
    /// written.settle(Timestamp::from_nanos(1_000_000_000));
    /// assert_eq!(written.state, State::Empty);
    /// ```
    pub fn settle(&mut self, now: Timestamp) {
        self.mend_unasked(now);
        let state = &mut self.state;
        match &self.shape.shape {
            Shape::Unlimited | Shape::Blocked => *state = State::Empty,
            Shape::FixedWindow(shape) => shape.settle(state, now),
            Shape::SlidingLog(shape) => shape.settle(state, now),
            Shape::SlidingBuckets(shape) => shape.settle(state, now),
            Shape::SlidingWeighted(shape) => shape.settle(state, now),
            Shape::TokenBucket(shape) => shape.settle(state, now),
            Shape::LeakyBucket(shape) => shape.settle(state, now),
        }
    }

    /// Counts as of now what a clock that has since been put back wrote too far ahead.
    ///
    /// Every verb that writes begins with this; it is public for stores that decide whole plans.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, Timestamp, Written};
    /// let limit = Limit::new(3, Span::from_secs(1), Algorithm::FIXED_WINDOW).unwrap();
    /// let mut written = Written::empty(&limit);
    /// let next_week = Timestamp::from_nanos(7 * 86_400_000_000_000);
    /// limit.take(&mut written, &Ask::new(next_week, Cost::new(3)));
    /// written.mend(Timestamp::EPOCH);
    /// assert_eq!(limit.peek(&written, Timestamp::EPOCH).remaining, 0);
    /// assert_eq!(limit.peek(&written, Timestamp::from_nanos(1_000_000_000)).remaining, 3);
    /// ```
    pub fn mend(&mut self, now: Timestamp) {
        if !self.is_ahead(now) {
            return;
        }
        let state = &mut self.state;
        match &self.shape.shape {
            Shape::Unlimited | Shape::Blocked => {}
            Shape::FixedWindow(shape) => shape.mend(shape, state, now),
            Shape::SlidingLog(shape) => shape.mend(state, now),
            Shape::SlidingBuckets(shape) => shape.mend(state, now),
            Shape::SlidingWeighted(shape) => shape.mend(state, now),
            Shape::TokenBucket(shape) => shape.mend(state, now),
            Shape::LeakyBucket(shape) => shape.mend(state, now),
        }
    }

    /// Mends where no limit asks that would know the windows of now. A calendar that begins after now does not: it was laid
    /// out by a clock since put back, and no other table would find what it moved to before its first boundary. The state
    /// stays as it is, for the next take to mend.
    fn mend_unasked(&mut self, now: Timestamp) {
        let unknown = matches!(&self.shape.shape, Shape::FixedWindow(shape) if !shape.knows(now));
        if !unknown {
            self.mend(now);
        }
    }

    /// Whether the state lies further ahead of now than a correct clock could have put it.
    fn is_ahead(&self, now: Timestamp) -> bool {
        let state = &self.state;
        match &self.shape.shape {
            Shape::Unlimited | Shape::Blocked => false,
            Shape::FixedWindow(shape) => shape.is_ahead(shape, state, now),
            Shape::SlidingLog(shape) => shape.is_ahead(state, now),
            Shape::SlidingBuckets(shape) => shape.is_ahead(state, now),
            Shape::SlidingWeighted(shape) => shape.is_ahead(state, now),
            Shape::TokenBucket(shape) => shape.is_ahead(state, now),
            Shape::LeakyBucket(shape) => shape.is_ahead(state, now),
        }
    }
}

// === one answer for all algorithms ===

impl Limit {
    /// Mends a state before it is judged by this limit: by the shape it was written under, or, where both count by
    /// calendars, by the table of this one.
    pub(crate) fn mend<'l>(&'l self, written: &mut Written<'l>, now: Timestamp) {
        match self.renews(written) {
            None => written.mend(now),
            Some((new, old)) if new.is_ahead(old, &written.state, now) => {
                new.mend(old, &mut written.state, now);
                written.shape = self;
            }
            Some(_) => {}
        }
    }

    /// Whether [`mend`](Self::mend) would change a state.
    fn finds_ahead(&self, written: &Written<'_>, now: Timestamp) -> bool {
        match self.renews(written) {
            None => written.is_ahead(now),
            Some((new, old)) => new.is_ahead(old, &written.state, now),
        }
    }

    /// This limit's windows and those of a state, if both are of a calendar and may be of different tables.
    fn renews<'a>(
        &'a self,
        written: &Written<'a>,
    ) -> Option<(&'a fixed_window::Shape, &'a fixed_window::Shape)> {
        let (Shape::FixedWindow(new), Shape::FixedWindow(old)) =
            (&self.shape, &written.shape.shape)
        else {
            return None;
        };
        new.shares_calendar(old).then_some((new, old))
    }

    fn decide_mended(&self, written: &Written<'_>, ask: &Ask) -> Decision {
        self.describe(written, ask, self.judge(written, ask))
    }

    /// Whether a cost passes, and whether only thanks to the headroom.
    fn judge(&self, written: &Written<'_>, ask: &Ask) -> Judged {
        if self.is_unlimited() {
            return Judged { outcome: Outcome::Allow, over: false, used: 0 };
        }
        let used = self.used(written, ask.now);
        let outcome = match self.most_used(ask) {
            None => Outcome::Deny(Retry::Never),
            Some(at_most) if used > at_most => {
                let wait = self.wait(written, ask.now, at_most);
                let wait =
                    wait.zip(self.turn(written, ask)).map(|(wait, turn)| wait.max(turn.too_long));
                Outcome::Deny(wait.map_or(Retry::Never, Retry::After))
            }
            Some(_) => match self.turn(written, ask) {
                None => Outcome::Deny(Retry::Never),
                Some(Turn { wait: Span::ZERO, .. }) => Outcome::Allow,
                Some(Turn { wait, too_long: Span::ZERO }) => Outcome::Delay(wait),
                Some(Turn { too_long, .. }) => Outcome::Deny(Retry::After(too_long)),
            },
        };
        let over = ask.bound == Bound::Headroom && outcome.passes() && {
            let plainly = self.most_used(&ask.bounded(Bound::Plain));
            plainly.is_none_or(|at_most| used > at_most)
        };
        Judged { outcome, over, used }
    }

    /// The most that may be used for this cost to pass; `None` when it never does.
    fn most_used(&self, ask: &Ask) -> Option<u64> {
        self.room(ask.bound).checked_sub(self.weight(ask.cost, ask.bound)?)
    }

    /// How long a cost waits for its turn; `None` when that lies past the end of time. Only a leaky
    /// bucket makes anybody wait, and nobody who takes nothing.
    fn turn(&self, written: &Written<'_>, ask: &Ask) -> Option<Turn> {
        if !self.shape.has_turns() || ask.cost == Cost::default() {
            return Some(Turn { wait: Span::ZERO, too_long: Span::ZERO });
        }
        let wait = self.wait(written, ask.now, 0)?;
        let too_long = wait.as_nanos().saturating_sub(ask.max_wait.as_nanos());
        Some(Turn { wait, too_long: Span::from_nanos(too_long) })
    }

    fn describe(&self, written: &Written<'_>, ask: &Ask, judged: Judged) -> Decision {
        let Judged { outcome, over, used } = judged;
        if self.is_unlimited() {
            return Decision { outcome, over, remaining: u64::MAX, reset: Some(Span::ZERO) };
        }
        let reset = self.wait(written, ask.now, 0);
        // Behind a longer queue than the caller can wait for, nothing passes.
        let in_vain = self.shape.has_turns() && reset.is_none_or(|wait| wait > ask.max_wait);
        let room = self.room(Bound::Plain).saturating_sub(used);
        let remaining = if in_vain { 0 } else { self.whole_units(room) };
        Decision { outcome, over, remaining, reset }
    }

    /// Adds a weight and signs for it. Nothing is written when there is nothing to add.
    fn write<'l>(&'l self, written: &mut Written<'l>, now: Timestamp, weight: u64) -> TakeReceipt {
        let mut mark = 0;
        if weight > 0 {
            if !core::ptr::eq(self, written.shape) {
                written.state = self.adopt(written, now);
                written.shape = self;
            }
            mark = self.add(&mut written.state, now, weight);
        }
        TakeReceipt { mark, weight }
    }
}

// === one match for each question ===

impl Limit {
    /// What is used, in the measure of this limit.
    pub(crate) fn used(&self, written: &Written<'_>, now: Timestamp) -> u64 {
        let state = &written.state;
        match self.shape.alike(&written.shape.shape) {
            None => 0, // nothing was ever written under this algorithm
            Some(Alike::FixedWindow(new, old)) => new.used(old, state, now),
            Some(Alike::SlidingLog(_, old)) => old.used(state, now),
            Some(Alike::SlidingBuckets(_, old)) => old.used(state, now),
            Some(Alike::SlidingWeighted(_, old)) => old.used(state, now),
            Some(Alike::TokenBucket(new, old)) => new.used(old, state, now),
            Some(Alike::LeakyBucket(new, old)) => new.used(&new.adopt(old, state, now), now),
        }
    }

    /// How long until no more than `at_most` is used, in the measure of this limit.
    pub(crate) fn wait(&self, written: &Written<'_>, now: Timestamp, at_most: u64) -> Option<Span> {
        let state = &written.state;
        match self.shape.alike(&written.shape.shape) {
            None => Some(Span::ZERO),
            Some(Alike::FixedWindow(new, old)) => new.wait(old, state, now, at_most),
            Some(Alike::SlidingLog(_, old)) => old.wait(state, now, at_most),
            Some(Alike::SlidingBuckets(_, old)) => old.wait(state, now, at_most),
            Some(Alike::SlidingWeighted(_, old)) => old.wait(state, now, at_most),
            Some(Alike::TokenBucket(new, old)) => new.wait(old, state, now, at_most),
            Some(Alike::LeakyBucket(new, old)) => {
                new.wait(&new.adopt(old, state, now), now, at_most)
            }
        }
    }

    /// The state as this limit would have written it.
    fn adopt(&self, written: &Written<'_>, now: Timestamp) -> State {
        let state = &written.state;
        match self.shape.alike(&written.shape.shape) {
            None => State::Empty,
            Some(Alike::FixedWindow(new, old)) => new.adopt(old, state, now),
            Some(Alike::SlidingLog(new, old)) => new.adopt(old, state, now),
            Some(Alike::SlidingBuckets(new, old)) => new.adopt(old, state, now),
            Some(Alike::SlidingWeighted(new, old)) => new.adopt(old, state, now),
            Some(Alike::TokenBucket(new, old)) => new.adopt(old, state, now),
            Some(Alike::LeakyBucket(new, old)) => new.adopt(old, state, now),
        }
    }

    pub(crate) fn add(&self, state: &mut State, now: Timestamp, weight: u64) -> u64 {
        match &self.shape {
            Shape::Unlimited | Shape::Blocked => 0,
            Shape::FixedWindow(shape) => shape.add(state, now, weight),
            Shape::SlidingLog(shape) => shape.add(state, now, weight),
            Shape::SlidingBuckets(shape) => shape.add(state, now, weight),
            Shape::SlidingWeighted(shape) => shape.add(state, now, weight),
            Shape::TokenBucket(shape) => shape.add(state, now, weight),
            Shape::LeakyBucket(shape) => shape.add(state, now, weight),
        }
    }
}
