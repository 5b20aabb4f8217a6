//! Taking a cost from a limit: take, decide, peek, charge, give back. The rules are the same for all algorithms.
//!
//! ```text
//!   take  =  mend the state   after a clock step back, see `algorithm`
//!         →  judge            does the cost fit, and must the caller wait?
//!         →  write            if it passes: convert the state to this limit, add the weight
//!         →  describe         remaining and reset
//! ```
//!
//! The most common takes need none of the special cases and use the [fast path](crate::fast_path), which gives the same
//! answers.

use crate::algorithm::Shape;
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::decision::{Ask, Bound, Cost, Decision, Outcome, Retry, TakeReceipt, Taken};
use crate::limit::Limit;
use crate::time::{Span, Timestamp};
use crate::written::Written;
use std::ops::Range;

/// Whether a cost passes, and how much was in use before it.
#[derive(Clone, Copy)]
struct Judged {
    outcome: Outcome,
    over: bool,
    used: u64,
}

/// How long a cost waits for its turn, and by how much that exceeds what its caller can wait.
#[derive(Clone, Copy)]
struct Turn {
    wait: Span,
    too_long: Span,
}

// === the public methods of a limit ===

impl Limit {
    /// Takes a cost if it passes. A refusal changes nothing, except that it [mends](Written::mend) the state.
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
            None => self.take_slow(written, ask),
        }
    }

    /// The slow path of [`take`](Self::take), which handles every case.
    pub(crate) fn take_slow<'l>(&'l self, written: &mut Written<'l>, ask: &Ask) -> Taken {
        self.mend(written, ask.now);
        let mut judged = self.judge(written, ask);
        let receipt = judged.outcome.passes().then(|| {
            let weight = self.weight(ask.cost, ask.bound).unwrap_or(0);
            judged.used = judged.used.saturating_add(weight);
            self.write(written, ask.now, weight)
        });
        Taken { decision: self.describe(written, ask, judged), receipt }
    }

    /// The answer that [`take`](Self::take) would give, without taking: `remaining` does not include the cost.
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

    /// The answer to a cost of 0 under the plain bound: what remains, and until when.
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

    /// Counts a cost whether or not it passes. The debt is at most one capacity.
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

impl Limit {
    /// From when to when the turns last that a take in a leaky bucket was promised; `None` for a take that was promised none.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, Timestamp, Written};
    /// let limit = Limit::new(1, Span::from_secs(10), Algorithm::LeakyBucket { queue: Some(3) }).unwrap();
    /// let mut written = Written::empty(&limit);
    /// let now = Timestamp::from_nanos(60_000_000_000);
    /// let ask = Ask::new(now, Cost::ONE).waiting(Span::from_secs(60));
    /// limit.take(&mut written, &ask);
    /// let second = limit.take(&mut written, &ask).receipt.unwrap();
    /// let turn = limit.promised_turn(&second).unwrap();
    /// assert_eq!((turn.start.since(now), turn.end.since(now)), (Span::from_secs(10), Span::from_secs(20)));
    /// ```
    #[must_use]
    pub fn promised_turn(&self, receipt: &TakeReceipt) -> Option<Range<Timestamp>> {
        let Shape::LeakyBucket(LeakyBucket(drain)) = &self.shape else { return None };
        let begins = receipt.mark.checked_sub(receipt.weight).filter(|_| receipt.weight > 0)?;
        Some(drain.instant(begins)?..drain.instant(receipt.mark)?)
    }
}

// === the public methods of a state ===

impl Written<'_> {
    /// Gives back what a take still weighs. At the instant of the take this restores the state bit for bit, apart from
    /// what had expired; after the window of the take it does nothing.
    ///
    /// The state does not record which receipts were given back. The store must remember settled receipts and give each
    /// back only once.
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
        self.mend_by_own_limit(now);
        let TakeReceipt { mark, weight, is_slot } = *receipt;
        if !is_slot {
            self.shape.shape.remove(&taken_under.shape, &mut self.state, now, mark, weight);
        } else if self.ends_with(taken_under, receipt)
            && let Shape::TokenBucket(shape) = &self.shape.shape
        {
            shape.0.lower(&mut self.state, now, weight);
        }
    }

    /// Whether the slot of a take is the last one of this bucket. A slot that is not can be given back only as a
    /// [`Slice`](crate::Slice).
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, Span, State, TakeReceipt, Written};
    /// let limit = Limit::new(3, Span::from_secs(60), Algorithm::TOKEN_BUCKET).unwrap();
    /// let written = Written { shape: &limit, state: State::Word(100) };
    /// let ends_at = |mark| written.ends_with(&limit, &TakeReceipt { mark, weight: 7, is_slot: true });
    /// assert_eq!([100, 93].map(ends_at), [true, false]);
    /// ```
    #[must_use]
    pub fn ends_with(&self, taken_under: &Limit, receipt: &TakeReceipt) -> bool {
        receipt.is_slot
            && self.state.word() == receipt.mark
            && self.shape.shape == taken_under.shape
    }

    /// Drops what has expired. Afterwards two states that mean the same at `now` are equal, and a state in which nothing
    /// is in use is [`State::Empty`](crate::State::Empty).
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
        self.mend_by_own_limit(now);
        self.shape.shape.settle(&mut self.state, now);
    }

    /// Repairs a state that is too far ahead of now, because the clock that wrote it has since been set back: its content
    /// counts as of now.
    ///
    /// Every method that writes begins with this. It is public for stores that decide whole plans.
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
        self.shape.shape.mend(&mut self.state, now);
    }

    /// Mends with only the limit under which the state was written. A calendar that begins after now cannot be used for
    /// this: it was laid out by a clock that has since been set back, and no other table would find a count that was moved
    /// before its first boundary. Then the state stays as it is, and the next take mends it.
    fn mend_by_own_limit(&mut self, now: Timestamp) {
        let unknown = matches!(&self.shape.shape, Shape::FixedWindow(shape) if !shape.knows(now));
        if !unknown {
            self.mend(now);
        }
    }

    /// Whether the state is further ahead of now than a correct clock can have put it.
    fn is_ahead(&self, now: Timestamp) -> bool {
        self.shape.shape.is_ahead(&self.state, now)
    }
}

// === the rules that all algorithms share ===

impl Limit {
    /// Mends a state before this limit judges it: with the limit under which it was written or, if both have calendars,
    /// with this limit's table.
    pub(crate) fn mend<'l>(&'l self, written: &mut Written<'l>, now: Timestamp) {
        match self.calendars(written) {
            None => written.mend(now),
            Some((new, old)) if new.is_ahead(old, &written.state, now) => {
                new.mend(old, self.deepest(), &mut written.state, now);
                written.shape = self;
            }
            Some(_) => {}
        }
    }

    /// Whether [`mend`](Self::mend) would change a state.
    fn finds_ahead(&self, written: &Written<'_>, now: Timestamp) -> bool {
        match self.calendars(written) {
            None => written.is_ahead(now),
            Some((new, old)) => new.is_ahead(old, &written.state, now),
        }
    }

    /// This limit's windows and those of the state, if both have calendars. Their tables may differ.
    fn calendars<'a>(
        &'a self,
        written: &Written<'a>,
    ) -> Option<(&'a FixedWindow, &'a FixedWindow)> {
        let (Shape::FixedWindow(new), Shape::FixedWindow(old)) =
            (&self.shape, &written.shape.shape)
        else {
            return None;
        };
        new.both_have_calendars(old).then_some((new, old))
    }

    fn decide_mended(&self, written: &Written<'_>, ask: &Ask) -> Decision {
        self.describe(written, ask, self.judge(written, ask))
    }

    /// Whether a cost passes, and whether it does so only because of the headroom.
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
        let over = ask.bound != Bound::Plain && outcome.passes() && {
            let plainly = self.most_used(&ask.bounded(Bound::Plain));
            plainly.is_none_or(|at_most| used > at_most)
        };
        Judged { outcome, over, used }
    }

    /// How much may be in use so that this cost still passes; `None` if it never passes.
    fn most_used(&self, ask: &Ask) -> Option<u64> {
        self.room(ask.bound).checked_sub(self.weight(ask.cost, ask.bound)?)
    }

    /// How long a cost waits for its turn; `None` if the turn is past the end of time. Only a leaky bucket has turns, and
    /// a cost of 0 needs none.
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
        // If the queue is longer than the caller can wait, no cost passes.
        let in_vain = self.shape.has_turns() && reset.is_none_or(|wait| wait > ask.max_wait);
        let room = self.room(Bound::Plain).saturating_sub(used);
        let remaining = if in_vain { 0 } else { self.whole_units(room) };
        Decision { outcome, over, remaining, reset }
    }

    /// Adds a weight and returns its receipt. A weight of 0 writes nothing.
    pub(crate) fn write<'l>(
        &'l self,
        written: &mut Written<'l>,
        now: Timestamp,
        weight: u64,
    ) -> TakeReceipt {
        let mut mark = 0;
        if weight > 0 {
            if !core::ptr::eq(self, written.shape) {
                written.state = self.shape.adopt(&written.shape.shape, &written.state, now);
                written.shape = self;
            }
            mark = self.shape.add(&mut written.state, now, weight);
        }
        TakeReceipt { mark, weight, is_slot: false }
    }

    /// How much is in use, in the unit of this limit.
    pub(crate) fn used(&self, written: &Written<'_>, now: Timestamp) -> u64 {
        self.shape.used(&written.shape.shape, &written.state, now)
    }

    /// The time until at most `at_most` is in use, in the unit of this limit.
    pub(crate) fn wait(&self, written: &Written<'_>, now: Timestamp, at_most: u64) -> Option<Span> {
        self.shape.wait(&written.shape.shape, &written.state, now, at_most)
    }
}
