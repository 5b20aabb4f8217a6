//! Batches: many takes or plans with one reading of the clock, whose states are prefetched.

use super::Memory;
use super::fast_path::FastTake;
use super::limit_numbers::LimitNumber;
use super::tag::Tag;
use crate::store::Answer;
use tidegate_core::{Bound, Cost, Limit, Now, Plan, PreparedTake, Take, Taken};

/// How many plans of a batch are prefetched before they are decided.
const AHEAD: usize = 16;

/// What consecutive takes of the same limit and cost share: most of the arithmetic.
struct PreparedRun<'l> {
    limit: &'l Limit,
    cost: Cost,
    number: LimitNumber,
    ready: PreparedTake<'l>,
}

impl<'l> PreparedRun<'l> {
    /// `None` when takes under this limit need the slow path.
    #[inline(never)] // it would take registers from the takes
    fn new(store: &Memory, take: &Take<'l>, now: Now) -> Option<Self> {
        let Take { limit, cost, .. } = *take;
        let number = store.limit_numbers.number(limit)?;
        Some(Self { limit, cost, number, ready: limit.prepare(&take.ask(now))? })
    }

    /// Another bound than the plain one needs the slow path, so it is not compared with that of the run.
    #[inline]
    fn is_of(&self, take: &Take<'_>) -> bool {
        std::ptr::eq(self.limit, take.limit)
            && self.cost == take.cost
            && matches!(take.bound, Bound::Plain)
    }
}

impl Memory {
    /// Decides takes in order, each by itself, without async. It does the same as [`take_batch_now`](Self::take_batch_now) for
    /// plans of one take, and is faster.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Cost, Limit, Span, StateId, Take};
    /// use tidegate_store::{Clock, Memory};
    /// let limit = Limit::new(1, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let take = Take::new(StateId(7), &limit, Cost::ONE);
    /// let taken = Memory::new(Clock::system()).take_each_now(&[take, take]);
    /// assert_eq!([taken[0].decision.passes(), taken[1].decision.passes()], [true, false]);
    /// ```
    pub fn take_each_now(&self, takes: &[Take<'_>]) -> Vec<Taken> {
        let (mut now, size) = (self.clock.now(), self.table.size());
        let prefetch = |take: &Take<'_>| self.table.prefetch(Tag::of(take.state), size);
        takes.iter().take(AHEAD).for_each(prefetch);
        let mut ahead = takes.iter().skip(AHEAD);
        let mut taken = Vec::with_capacity(takes.len());
        let mut prepared: Option<PreparedRun<'_>> = None;
        for take in takes {
            ahead.next().into_iter().for_each(prefetch);
            if !prepared.as_ref().is_some_and(|run| run.is_of(take)) {
                prepared = PreparedRun::new(self, take, now);
            }
            if let Some(run) = &prepared {
                let decide = |word| FastTake::by(now, &run.ready, word);
                let fast = self.take_optimistically(take, run.number, size, decide);
                if let Some(fast) = fast {
                    taken.push(fast.taken);
                    continue;
                }
            }
            let slow;
            (now, slow) = *self.take_one_slowly(take);
            taken.push(slow);
            prepared = None;
        }
        taken
    }

    /// Decides plans in order, without async. The clock is read once for all of them, and their states are prefetched. So a
    /// batch costs far less than its plans one by one.
    ///
    /// The one reading of the clock decides only plans of the fast path: their states are in the table, in one word each, not empty, and
    /// neither ahead of the reading nor in a later window. Every other plan gets a reading of its own, which the rest of the
    /// batch uses from then on.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, StateId, Take};
    /// use tidegate_store::{Clock, Memory};
    /// let limit = Limit::new(1, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let plan = Plan::from(Take::new(StateId(7), &limit, Cost::ONE));
    /// let answers = Memory::new(Clock::system()).take_batch_now(&[plan.clone(), plan]);
    /// assert_eq!([answers[0].done.passes, answers[1].done.passes], [true, false]);
    /// ```
    pub fn take_batch_now(&self, plans: &[Plan<'_>]) -> Vec<Answer> {
        let (mut now, size) = (self.clock.now(), self.table.size());
        let prefetch = |plan: &Plan<'_>| {
            plan.takes().iter().for_each(|take| self.table.prefetch(Tag::of(take.state), size));
        };
        plans.iter().take(AHEAD).for_each(prefetch);
        let mut ahead = plans.iter().skip(AHEAD);
        let take = |plan: &Plan<'_>| {
            ahead.next().into_iter().for_each(prefetch);
            self.take_fast_at(plan, (now, size)).unwrap_or_else(|| {
                let answer;
                (now, answer) = self.take_slowly(plan);
                answer
            })
        };
        plans.iter().map(take).collect()
    }
}
