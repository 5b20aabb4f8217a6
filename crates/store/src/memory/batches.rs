//! Batches: many takes or plans with one reading of the clock, whose states are prefetched.

use super::Memory;
use super::fast_path::ClockReading;
use super::tag::Tag;
use crate::store::Answer;
use tidegate_core::{Now, Plan, Take, Taken};

/// How many plans of a batch are prefetched before they are decided.
const AHEAD: usize = 16;

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
        let mut now = self.clock.now();
        let prefetch = |take: &Take<'_>| self.table.prefetch(Tag::of(take.state));
        takes.iter().take(AHEAD).for_each(prefetch);
        let mut ahead = takes.iter().skip(AHEAD);
        let mut taken = Vec::with_capacity(takes.len());
        // Consecutive takes of the same limit and cost share most of the arithmetic.
        for run in takes.chunk_by(Take::asks_the_same) {
            let Some(first) = run.first() else { continue };
            let mut ready = first.limit.prepare(&first.ask(now));
            let number = self.limit_numbers.number(first.limit);
            for take in run {
                ahead.next().into_iter().for_each(prefetch);
                let reading = ClockReading::<fn() -> Now>::FromBatch(now);
                let fast = number
                    .and_then(|number| self.take_optimistically(take, number, |_| ready, &reading));
                taken.push(match fast {
                    Some((_, taken)) => taken,
                    None => {
                        let taken;
                        (now, taken) = *self.take_one_slowly(take);
                        ready = first.limit.prepare(&first.ask(now));
                        taken
                    }
                });
            }
        }
        taken
    }

    /// Decides plans in order, without async. The clock is read once for all of them, and their states are prefetched. So a
    /// batch costs far less than its plans one by one.
    ///
    /// That one reading decides only plans of the fast path: their states are in the table, in one word each, not empty, and
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
        let mut now = self.clock.now();
        let prefetch = |plan: &Plan<'_>| {
            plan.takes().iter().for_each(|take| self.table.prefetch(Tag::of(take.state)));
        };
        plans.iter().take(AHEAD).for_each(prefetch);
        let mut ahead = plans.iter().skip(AHEAD);
        let take = |plan: &Plan<'_>| {
            ahead.next().into_iter().for_each(prefetch);
            let reading = ClockReading::<fn() -> Now>::FromBatch(now);
            self.take_fast(plan, &reading).unwrap_or_else(|| {
                let answer;
                (now, answer) = self.take_slowly(plan);
                answer
            })
        };
        plans.iter().map(take).collect()
    }
}
