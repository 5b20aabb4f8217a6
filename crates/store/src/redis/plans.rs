//! From a plan to its answer: one call, or one for each place that its takes lie at.
//!
//! ```text
//!   all at one place ──► one script call: decided at one instant, all or none
//!   several places   ──► one call each, together ──► all pass: an answer
//!                                                └─► one refuses: what the others took is given back
//! ```
//!
//! On several places a plan is not decided at one instant. It never passes when one of its limits refuses; but while it is
//! asked, others may find charged what is then given back.

use super::late::SettlesLate;
use super::registry::Registry;
use super::script::{Call, Reply, Verb};
use super::wire::{self, WrittenUnder};
use super::{Redis, garbled, whole_micros};
use crate::error::StoreError;
use crate::store::{Answer, Part, ReceiptId, Settlement};
use futures_util::future::join_all;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidegate_core::{
    Decision, Limit, Now, Plan, PlanOutcome, RejectedCost, Span, StateId, Take, TakeReceipt,
    Timestamp, Written,
};

/// A state that a script found, and the shape that it was written under.
pub(super) struct Found<'l> {
    shape: wire::Shape<'l>,
    value: tidegate_core::StateContents,
}

/// The takes of a plan that lie at one place.
struct Group<'l> {
    place: u16,
    /// Which takes of the plan they are.
    numbers: Vec<usize>,
    plan: Plan<'l>,
}

/// Whether takes are all of a plan; otherwise others may refuse it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whole {
    Yes,
    No,
}

/// What became of a group.
struct Taken {
    at: Timestamp,
    done: PlanOutcome,
    /// What each take would be answered if nothing were counted, where the group passes.
    judged: Vec<Decision>,
}

/// What was taken and must be given back, whatever becomes of its caller.
struct Debt {
    id: ReceiptId,
    until: Timestamp,
    parts: Vec<(StateId, Limit, TakeReceipt)>,
}

/// How long a debt is remembered by the store, so that it is settled once.
const DEBT_KEPT: Span = Span::from_secs(60);
/// How often giving back is tried again, within the time that a debt is remembered; and how long after the time before, at
/// first and at most.
const TRIES: u32 = 32;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

impl<'l> Found<'l> {
    pub(super) fn read(
        limit: &'l Limit,
        value: &[u8],
        registry: &Registry,
    ) -> Result<Self, StoreError> {
        let (value, under) = wire::parse(limit, value)?;
        let shape = match under {
            WrittenUnder::Registered(tag) => wire::Shape::Kept(registry.known(tag)?),
            WrittenUnder::Whole(shape) => wire::Shape::Kept(Arc::new(shape)),
            WrittenUnder::Room(room) => wire::Shape::with_room(limit, room, &value),
            WrittenUnder::Asking => wire::Shape::wide_enough(limit, &value)?,
        };
        Ok(Self { shape, value })
    }

    pub(super) fn written(&self) -> Written<'_> {
        Written { shape: self.shape.limit(), state: self.shape.limit().remember(&self.value) }
    }
}

impl Redis {
    /// Decides one plan.
    pub(super) async fn decide(&self, plan: &Plan<'_>) -> Result<Answer, StoreError> {
        if let Some(answer) = self.refused_lately(plan)? {
            return Ok(answer);
        }
        let until = self.until_within(plan.patience());
        let takes = plan.takes();
        let place = takes.first().map_or(0, |take| self.fleet.place(take.state));
        if takes.iter().all(|take| self.fleet.place(take.state) == place) {
            let taken = self.take_at(place, until, plan, Whole::Yes).await;
            let taken = taken.inspect_err(|error| self.note_foreign(takes, error))?;
            return Ok(Answer { at: taken.at, done: taken.done, remembered: false });
        }
        self.take_together(plan, until).await
    }

    /// The takes of a plan by place.
    fn groups<'l>(&self, plan: &Plan<'l>) -> Result<Vec<Group<'l>>, StoreError> {
        let takes = plan.takes().iter().copied().enumerate();
        let group = |(place, takes): (u16, Vec<(usize, Take<'l>)>)| {
            let (numbers, takes): (Vec<usize>, Vec<Take<'l>>) = takes.into_iter().unzip();
            let plan = Plan::new(takes, plan.max_wait()).map_err(impossible)?;
            Ok(Group { place, numbers, plan })
        };
        self.by_place(takes, |(_, take)| take.state).into_iter().map(group).collect()
    }

    /// Decides takes that lie at one place.
    async fn take_at(
        &self,
        place: u16,
        until: Timestamp,
        plan: &Plan<'_>,
        whole: Whole,
    ) -> Result<Taken, StoreError> {
        let (takes, max_wait) = (plan.takes(), whole_micros(plan.max_wait()));
        let settles = SettlesLate::new(self, takes, max_wait);
        let late = Some(settles.slot());
        let call = Call { verb: Verb::Take, takes, parts: &[], max_wait, receipt: None, late };
        let reply = self.call(place, until, call).await?;
        let Reply::Found { now, passes, values } = reply else {
            return Err(garbled());
        };
        let found = self.states(takes.iter().map(|take| take.limit), &values)?;
        let mut states: Vec<Written<'_>> = found.iter().map(Found::written).collect();
        let plan = Plan::new(takes.to_vec(), max_wait).map_err(impossible)?;
        let done = plan.take(Now::at(now), &mut states);
        if done.passes != passes {
            return Err(StoreError::Broken(format!(
                "the script says passes = {passes}, the core {} at {now:?} for {values:?}",
                done.passes
            )));
        }
        let judge = |(take, found): (&Take<'_>, &Found<'_>)| {
            take.limit.decide(&found.written(), &plan.ask(take, Now::at(now)))
        };
        let judged = if passes && whole == Whole::No {
            takes.iter().zip(&found).map(judge).collect()
        } else {
            vec![]
        };
        if self.test_time().is_none() {
            self.seen.note(&plan, &done, &states, self.fleet.now());
        }
        Ok(Taken { at: now, done, judged })
    }

    /// Decides takes that lie at several places.
    async fn take_together(&self, plan: &Plan<'_>, until: Timestamp) -> Result<Answer, StoreError> {
        let groups = self.groups(plan)?;
        let away = groups.iter().filter(|group| !self.fleet.answers(group.place));
        let away: Vec<usize> = away.flat_map(|group| group.numbers.iter().copied()).collect();
        if !away.is_empty() && away.len() < plan.takes().len() {
            return Err(StoreError::Partly(away));
        }
        let taking =
            groups.iter().map(|group| self.take_at(group.place, until, &group.plan, Whole::No));
        let taken = join_all(taking).await;
        for (group, taken) in groups.iter().zip(&taken) {
            let _ =
                taken.as_ref().inspect_err(|error| self.note_foreign(group.plan.takes(), error));
        }
        let passes = taken.iter().all(|taken| taken.as_ref().is_ok_and(|taken| taken.done.passes));
        let answered = || {
            groups
                .iter()
                .zip(&taken)
                .filter_map(|(group, taken)| Some((group, taken.as_ref().ok()?)))
        };
        if !passes {
            let failed = taken.iter().any(Result::is_err);
            let parts = answered().flat_map(|(group, taken)| taken.owed(group, failed)).collect();
            let at = answered().map(|(_, taken)| taken.at).max().unwrap_or(Timestamp::EPOCH);
            self.settle(parts, at, until).await;
        }
        let mut merged = Merged::new(plan.takes().len(), passes);
        for (group, taken) in groups.iter().zip(taken) {
            merged.add(group, taken?);
        }
        merged.answer()
    }

    /// Remembers takes that failed because of what the store holds under their keys.
    fn note_foreign(&self, takes: &[Take<'_>], error: &StoreError) {
        self.foreign.note(takes, error, self.fleet.now());
    }

    // === what was taken in vain ===

    /// Gives back at once, as far as there is time `until` the caller wants its answer; what cannot be given back now, soon.
    pub(super) async fn settle(
        &self,
        parts: Vec<(StateId, Limit, TakeReceipt)>,
        at: Timestamp,
        until: Timestamp,
    ) {
        if parts.is_empty() {
            return;
        }
        let number = self.debts.fetch_add(1, Ordering::Relaxed);
        let debt = Debt {
            id: ReceiptId(u128::from(self.ours) << 64 | u128::from(number)),
            until: at.after(DEBT_KEPT).unwrap_or(Timestamp::END),
            parts,
        };
        if self.pay(&debt, until).await.is_ok() {
            return;
        }
        // Where too many try already it is left: it counts until its period is over, too much and never too little.
        let Ok(room) = Arc::clone(&self.debtors).try_acquire_owned() else { return };
        let store = self.another();
        tokio::spawn(async move {
            let _room = room;
            let mut pause = FIRST_PAUSE;
            for _ in 0..TRIES {
                tokio::time::sleep(pause).await;
                pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
                if store.pay(&debt, store.until()).await.is_ok() {
                    return;
                }
            }
        });
    }

    async fn pay(&self, debt: &Debt, until: Timestamp) -> Result<(), StoreError> {
        let parts: Vec<Part<'_>> = debt
            .parts
            .iter()
            .map(|(state, limit, receipt)| Part { state: *state, limit, receipt: *receipt })
            .collect();
        let settlement = Settlement { id: debt.id, until: debt.until, parts: &parts };
        self.give_back_until(&settlement, until).await.map(drop)
    }

    // === refusals that are remembered ===

    /// The answer to a plan that is refused by what was seen of its states lately.
    fn refused_lately(&self, plan: &Plan<'_>) -> Result<Option<Answer>, StoreError> {
        let ours = self.fleet.now();
        let Some(sights) = self.seen.look(plan.takes(), ours) else { return Ok(None) };
        let mut passes = true;
        let mut decided = Vec::new();
        for group in self.groups(plan)? {
            let Some((theirs, latest)) = self.fleet.time_at(group.place, ours) else {
                return Ok(None);
            };
            let states = || group.numbers.iter().filter_map(|number| sights.get(*number));
            let mut states_then: Vec<Written<'_>> = states().map(|sight| sight.written()).collect();
            let mut states_now = states_then.clone();
            // It must be refused by the latest time that it can be there.
            let late = group.plan.take(Now::at(latest), &mut states_then);
            let done = group.plan.take(Now::at(theirs), &mut states_now);
            passes &= late.passes || done.passes;
            let judge = |(take, sight): (&Take<'_>, &super::seen::Sight)| {
                take.limit.decide(&sight.written(), &group.plan.ask(take, Now::at(theirs)))
            };
            let judged = group.plan.takes().iter().zip(states()).map(judge).collect();
            decided.push((group, Taken { at: theirs, done, judged }));
        }
        if passes {
            return Ok(None);
        }
        let mut merged = Merged::new(plan.takes().len(), false);
        for (group, taken) in decided {
            merged.add(&group, taken);
        }
        merged.answer().map(|answer| Some(Answer { remembered: true, ..answer }))
    }
}

impl Taken {
    /// What must be given back because others refuse; all of it, if somebody did not answer.
    fn owed<'g>(
        &'g self,
        group: &'g Group<'_>,
        all: bool,
    ) -> impl Iterator<Item = (StateId, Limit, TakeReceipt)> + 'g {
        let owes =
            move |take: &Take<'_>| self.done.passes && (all || take.refused == RejectedCost::Free);
        let takes = group.plan.takes().iter().zip(&self.done.receipts);
        takes
            .filter(move |(take, _)| owes(take))
            .filter_map(|(take, receipt)| Some((take.state, take.limit.clone(), (*receipt)?)))
    }
}

/// Answers of groups, put together in the order of the plan.
struct Merged {
    passes: bool,
    at: Timestamp,
    answers: Vec<Option<(Decision, Option<TakeReceipt>)>>,
}

impl Merged {
    fn new(takes: usize, passes: bool) -> Self {
        Self { passes, at: Timestamp::EPOCH, answers: vec![None; takes] }
    }

    fn add(&mut self, group: &Group<'_>, taken: Taken) {
        self.at = self.at.max(taken.at);
        let given_back = !self.passes && taken.done.passes;
        let answers = taken.done.decisions.into_iter().zip(taken.done.receipts);
        let mut judged = taken.judged.into_iter();
        for ((take, number), answer) in group.plan.takes().iter().zip(&group.numbers).zip(answers) {
            let before = judged.next();
            let answer = match before {
                Some(before) if given_back && take.refused == RejectedCost::Free => (before, None),
                _ => answer,
            };
            if let Some(place) = self.answers.get_mut(*number) {
                *place = Some(answer);
            }
        }
    }

    fn answer(self) -> Result<Answer, StoreError> {
        let answers = self.answers.into_iter().collect::<Option<Vec<_>>>().ok_or_else(garbled)?;
        let (decisions, receipts): (Vec<_>, Vec<_>) = answers.into_iter().unzip();
        let done = PlanOutcome {
            passes: self.passes,
            decisions: decisions.into(),
            receipts: receipts.into(),
        };
        Ok(Answer { at: self.at, done, remembered: false })
    }
}

pub(super) fn impossible(error: tidegate_core::PlanError) -> StoreError {
    StoreError::Broken(error.to_string())
}
