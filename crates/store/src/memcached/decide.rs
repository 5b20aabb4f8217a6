//! Deciding a plan: add first, and take back what is refused.
//!
//! ```text
//!   each take: `ma key D<weight> v c` ──► the new value less the weight: what was found ──► Plan::take of the core
//!     it counts as much as was added ──► done, in one round trip
//!     it counts less or nothing      ──► `ma key MD D<rest>`, in the background
//!     the bucket had drained         ──► a second command makes it count: an addition, or compare and swap
//!   a key that was refused a moment ago: `mg key v` first, and nothing is added if that is enough to refuse
//!   a bucket that is filled far into the future: the same, for ten minutes
//! ```
//!
//! All takes of a plan are added at the same time, and taken back together. What is added is in use until it is taken back: other
//! callers may be refused too early meanwhile, but never pass too early.
//!
//! **A bucket far ahead.** A node whose clock is an hour fast fills buckets an hour into the future, and they stay full for that hour
//! when its clock has been corrected. But memcached forgets a bucket to which nothing is added when its time to live ends: a little
//! later than the fullest bucket can take to drain. So nothing is added to a bucket that is further ahead than it can be by right. It is not lowered:
//! a node that is behind would lower the buckets of all others.
//!
//! **A drained bucket.** Its value is the tick at which nothing will be in use any more. When that tick has passed, an addition moves a
//! tick of the past, and counts less than the weight or nothing. Let the found value be `v`, the weight `w`, and `v < now`:
//! - `v + w ≥ now`: everyone after this finds a current value, and adds to it. It is raised by `now − v`, which makes it what it
//!   should be. Until then others found less in use than there is; so the take counts only if the raised value is within the limit.
//! - `v + w < now`: others may be in the same situation. The value is swapped for `now + w`, if nothing has changed since; otherwise
//!   the weight did not count, and the take is tried again. What it left behind is still a tick of the past, which no caller can spend.

use super::Memcached;
use super::call::{Abandoned, Call};
use super::connection::MetaConnection;
use super::counters::{Counter, CounterShape, Reading};
use super::meta::{self, Reply};
use super::server::{Failed, MemcachedServer};
use crate::error::StoreError;
use crate::remote::ErrorClass;
use crate::store::{Answer, AnsweredBy};
use futures_util::future::join_all;
use tidegate_core::{
    Decision, Limit, Now, Outcome, Plan, PlanOutcome, RejectedCost, StateId, Take, Timestamp,
    Written,
};

/// A take, while it is decided.
pub(super) struct Attempt<'l> {
    pub(super) take: Take<'l>,
    /// `None`: the limit keeps no state.
    pub(super) counter: Option<Counter>,
    /// What is added; 0 for a take that never passes or costs nothing.
    pub(super) weight: u64,
    /// The most that may be in use afterwards.
    pub(super) most: u64,
}

/// What the server of a take replied.
pub(super) struct VisitReply {
    reading: Reading,
    /// The limit as which it is read, if that is not the limit of the take.
    wide: Option<Box<Limit>>,
    /// The value after the weight was added, and the number by which it can be swapped.
    value: u64,
    cas: u64,
    added: u64,
    /// The connection over which it was added. What follows goes over the same: a restarted server numbers its values anew.
    connection: Option<(MetaConnection, u64)>,
}

/// Whether a visit adds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum VisitKind {
    Look,
    Add,
}

/// How many times a plan or a charge is tried. It is tried again when another caller changed a drained bucket between our addition and
/// our compare and swap.
pub(super) const MAX_TRIES: usize = 8;

impl Memcached {
    pub(super) async fn decide(
        &self,
        plan: &Plan<'_>,
        until: Timestamp,
    ) -> Result<Answer, StoreError> {
        let decided = self.try_to_decide(plan, until).await;
        decided.map_err(|failed| self.counted(failed))
    }

    async fn try_to_decide(&self, plan: &Plan<'_>, until: Timestamp) -> Result<Answer, Failed> {
        for _ in 0..MAX_TRIES {
            let now = self.context.wall.now();
            let attempts = self.attempts(plan.takes(), now)?;
            self.check_servers(&attempts)?;
            let answer = |done| Answer { at: now.steady, done, by: AnsweredBy::Store };
            if plan.takes().iter().any(|take| self.looks_first(take.state)) {
                let found = self.visit(&attempts, VisitKind::Look, until).await?;
                let (done, _) = judge(plan, now, &attempts, &found);
                let is_free = |take: &Take<'_>| take.refused == RejectedCost::Free;
                if !done.passes && plan.takes().iter().all(is_free) {
                    self.note_refusals(&attempts, &found, &done);
                    return Ok(answer(done));
                }
            }
            let found = self.visit(&attempts, VisitKind::Add, until).await?;
            let (done, effects) = judge(plan, now, &attempts, &found);
            if self.settle(&attempts, &found, &effects, until).await? {
                self.note_refusals(&attempts, &found, &done);
                return Ok(answer(done));
            }
        }
        Err(contended())
    }

    /// Whether a state is looked at before anything is added to it.
    fn looks_first(&self, state: StateId) -> bool {
        let now = self.now();
        self.refused.contains(state, now) || self.far_ahead.contains(state, now)
    }

    fn note_refusals(&self, attempts: &[Attempt<'_>], found: &[VisitReply], done: &PlanOutcome) {
        let now = self.now();
        for ((attempt, found), decision) in attempts.iter().zip(found).zip(&done.decisions) {
            let Take { state, limit, .. } = attempt.take;
            if matches!(decision.outcome, Outcome::Deny(_)) {
                self.refused.note(state, now);
            }
            let counter = attempt.counter.as_ref();
            if counter.is_some_and(|counter| counter.is_far_ahead(limit, found.reading)) {
                self.far_ahead.note(state, now);
            }
        }
    }

    /// What each take would be answered alone. Adds nothing.
    pub(super) async fn look(
        &self,
        plan: &Plan<'_>,
        until: Timestamp,
    ) -> Result<Vec<Decision>, Failed> {
        let now = self.context.wall.now();
        let attempts = self.attempts(plan.takes(), now)?;
        let found = self.visit(&attempts, VisitKind::Look, until).await?;
        let decide = |(attempt, found): (&Attempt<'_>, &VisitReply)| {
            let ask = plan.ask(&attempt.take, now);
            attempt.take.limit.decide(&attempt.state(found), &ask)
        };
        Ok(attempts.iter().zip(&found).map(decide).collect())
    }

    // === attempts ===

    fn attempts<'l>(&self, takes: &[Take<'l>], now: Now) -> Result<Vec<Attempt<'l>>, Failed> {
        takes.iter().map(|take| self.attempt(*take, now)).collect()
    }

    pub(super) fn attempt<'l>(&self, take: Take<'l>, now: Now) -> Result<Attempt<'l>, Failed> {
        let shape = self.shape(take.limit)?;
        let counter = |shape| {
            let counter = Counter::new(shape, take.state, take.limit, now.of(take.limit));
            if shape == CounterShape::Calendar {
                self.shapes.remember_window(counter.number);
            }
            counter
        };
        let weight = take.limit.weight(take.cost, take.bound);
        let most = take.limit.room(take.bound);
        let weight = weight.filter(|weight| *weight <= most).unwrap_or(0);
        Ok(Attempt { take, counter: shape.map(counter), weight, most })
    }

    /// The shape of a limit, which is remembered for resets.
    fn shape(&self, limit: &Limit) -> Result<Option<CounterShape>, Failed> {
        let shape = CounterShape::of(limit).map_err(|reason| {
            let limit = Box::new(limit.clone());
            Failed(ErrorClass::Other, StoreError::Unsupported { limit, reason })
        })?;
        if let Some(shape) = shape {
            self.shapes.remember(shape);
        }
        Ok(shape)
    }

    pub(super) fn server_of(&self, state: StateId) -> Result<&MemcachedServer, Failed> {
        let server = self.servers.get(self.placement.server_of(state));
        let missing = || StoreError::Broken("a key without a server".to_owned());
        server.map(|server| &**server).ok_or_else(|| Failed(ErrorClass::Other, missing()))
    }

    /// If some servers are down and others are not, the takes whose servers are down are named, and nothing is counted.
    fn check_servers(&self, attempts: &[Attempt<'_>]) -> Result<(), Failed> {
        if let [_] | [] = attempts {
            return Ok(());
        }
        let is_down = |attempt: &Attempt<'_>| {
            attempt.counter.is_some()
                && self.server_of(attempt.take.state).is_ok_and(|server| server.down().is_some())
        };
        let down = attempts.iter().enumerate().filter(|(_, attempt)| is_down(attempt));
        let down: Vec<usize> = down.map(|(index, _)| index).collect();
        if down.is_empty() || down.len() == attempts.len() {
            return Ok(());
        }
        Err(Failed(ErrorClass::Disconnected, StoreError::Partly(down)))
    }

    // === visits ===

    /// Visits the counters of all takes at the same time. If one fails, what the others added is taken back.
    async fn visit(
        &self,
        attempts: &[Attempt<'_>],
        visit: VisitKind,
        until: Timestamp,
    ) -> Result<Vec<VisitReply>, Failed> {
        if let [attempt] = attempts {
            return Ok(vec![self.visit_one(attempt, visit, until).await?]);
        }
        let visits = attempts.iter().map(|attempt| self.visit_one(attempt, visit, until));
        let visited = join_all(visits).await;
        if visited.iter().all(Result::is_ok) {
            return visited.into_iter().collect();
        }
        for (attempt, found) in attempts.iter().zip(&visited) {
            if let Ok(found) = found {
                found.take_back(attempt, found.added);
            }
        }
        visited.into_iter().collect()
    }

    pub(super) async fn visit_one(
        &self,
        attempt: &Attempt<'_>,
        visit: VisitKind,
        until: Timestamp,
    ) -> Result<VisitReply, Failed> {
        let Some(counter) = &attempt.counter else { return Ok(VisitReply::nothing()) };
        let server = self.server_of(attempt.take.state)?;
        let added = if visit == VisitKind::Add { attempt.weight } else { 0 };
        let command = if added == 0 {
            meta::get(&counter.key)
        } else {
            let ttl = server.ttl(counter.seconds);
            meta::add(&counter.key, added, counter.first(added), ttl)
        };
        let call = Call::begin(server, until)?;
        let mut abandoned = Abandoned { call: &call, counter, added };
        let before = counter.before.as_ref().map(|key| call.connection.send(&meta::get(key)));
        let sent = call.connection.send(&command);
        let mut reply = sent.map_err(|error| {
            abandoned.added = 0;
            call.not_sent(error)
        })?;
        let reply = call.reply(&mut reply).await?;
        let value = match (&reply, added) {
            (Reply::Missing, 0) => counter.empty(),
            _ => reply.number().ok_or_else(|| {
                // memcached adds only to numbers, so there is nothing to take back.
                abandoned.added = 0;
                call.unexpected(&reply)
            })?,
        };
        let before = match before {
            None => 0,
            Some(sent) => {
                let mut reply = sent.map_err(|error| call.not_sent(error))?;
                let reply = call.reply(&mut reply).await?;
                if reply == Reply::Missing {
                    0
                } else {
                    reply.number().ok_or_else(|| call.unexpected(&reply))?
                }
            }
        };
        abandoned.added = 0;
        let cas = if let Reply::Number { cas, .. } = reply { cas } else { 0 };
        let reading = Reading { value: value.saturating_sub(added), before };
        drop(abandoned);
        let wide = counter.wide(attempt.take.limit, reading);
        Ok(VisitReply {
            reading,
            wide,
            value,
            cas,
            added,
            connection: Some((call.connection, call.generation)),
        })
    }

    // === corrections ===

    /// Makes the counters show what the decision counted. Returns whether it did; if not, nothing is counted.
    pub(super) async fn settle(
        &self,
        attempts: &[Attempt<'_>],
        found: &[VisitReply],
        effects: &[i128],
        until: Timestamp,
    ) -> Result<bool, Failed> {
        let all = || attempts.iter().zip(found).zip(effects);
        let mut raises = Vec::new();
        for ((attempt, found), effect) in all() {
            let Some(counter) = &attempt.counter else { continue };
            let counted = u64::try_from(*effect).unwrap_or(0);
            if counted > 0 && !counter.is_current(found.reading) {
                raises.push(self.raise(attempt, counter, found, counted, until));
            } else {
                found.take_back(attempt, found.added.saturating_sub(counted));
            }
        }
        if raises.is_empty() {
            return Ok(true);
        }
        let raised = join_all(raises).await;
        if raised.iter().all(|raised| matches!(raised, Ok(true))) {
            return Ok(true);
        }
        let mut raised_one = raised.iter();
        for ((attempt, found), effect) in all() {
            let Some(counter) = &attempt.counter else { continue };
            let counted = u64::try_from(*effect).unwrap_or(0);
            let was_raised = counted > 0 && !counter.is_current(found.reading);
            if !was_raised || matches!(raised_one.next(), Some(Ok(true))) {
                found.undo(attempt, counted);
            }
        }
        for raised in raised {
            raised?;
        }
        Ok(false)
    }

    /// Makes a weight count that was added to a drained bucket. Returns whether it does.
    async fn raise(
        &self,
        attempt: &Attempt<'_>,
        counter: &Counter,
        found: &VisitReply,
        counted: u64,
        until: Timestamp,
    ) -> Result<bool, Failed> {
        let server = self.server_of(attempt.take.state)?;
        let Some((connection, generation)) = found.connection.clone() else { return Ok(true) };
        let (now, ttl) = (counter.number, server.ttl(counter.seconds));
        let target = now.saturating_add(counted);
        let by = target.saturating_sub(found.value);
        let command = if found.value >= now {
            meta::add(&counter.key, by, target, ttl)
        } else {
            meta::swap(&counter.key, target, found.cas, ttl)
        };
        let call = Call::over(server, connection, generation, until)?;
        let sent = call.connection.send(&command);
        let mut reply = sent.map_err(|error| call.not_sent(error))?;
        match call.reply(&mut reply).await? {
            Reply::Done => Ok(true),
            reply @ Reply::Number { .. } => {
                let raised = reply.number().ok_or_else(|| call.unexpected(&reply))?;
                let is_within = raised.saturating_sub(now) <= attempt.most;
                if !is_within {
                    found.undo(attempt, counted);
                }
                Ok(is_within)
            }
            Reply::NotStored | Reply::Missing => Ok(false),
            reply @ (Reply::Text(_) | Reply::Version(_) | Reply::Stats(_) | Reply::Error(_)) => {
                Err(call.unexpected(&reply))
            }
        }
    }
}

/// The error after [`MAX_TRIES`] tries.
pub(super) fn contended() -> Failed {
    let why = "too many callers write this key at the same time";
    Failed(ErrorClass::Busy, StoreError::Unavailable(why.into()))
}

/// The core's decision on a plan, and how much each take counted.
fn judge<'l>(
    plan: &Plan<'l>,
    now: Now,
    attempts: &[Attempt<'l>],
    found: &[VisitReply],
) -> (PlanOutcome, Vec<i128>) {
    let states = attempts.iter().zip(found).map(|(attempt, found)| attempt.state(found));
    let mut states: Vec<Written<'_>> = states.collect();
    let done = plan.take(now, &mut states);
    let effects = attempts.iter().zip(found).zip(&states);
    let effect = |((attempt, found), state)| Attempt::effect(attempt, found, state, now);
    (done, effects.map(effect).collect())
}

impl<'l> Attempt<'l> {
    /// The state that was found.
    pub(super) fn state<'s>(&self, found: &'s VisitReply) -> Written<'s>
    where
        'l: 's,
    {
        let limit = found.wide.as_deref().unwrap_or(self.take.limit);
        match &self.counter {
            None => Written::empty(limit),
            Some(counter) => {
                let state = limit.remember(&counter.contents(limit, found.reading));
                Written { shape: limit, state }
            }
        }
    }

    /// How much was counted when this state was left.
    pub(super) fn effect(&self, found: &VisitReply, left: &Written<'_>, now: Now) -> i128 {
        let read_as = found.wide.as_deref().unwrap_or(self.take.limit);
        self.counter.as_ref().map_or(0, |counter| {
            counter.effect(read_as, found.reading, &left.remembered(now.of(read_as)))
        })
    }
}

impl VisitReply {
    fn nothing() -> Self {
        let reading = Reading { value: 0, before: 0 };
        Self { reading, wide: None, value: 0, cas: 0, added: 0, connection: None }
    }

    /// Takes back a part of what was added and did not count. What was added to a drained bucket is taken back only as far as it
    /// reaches into the future: others may have found the present there, and counted from it.
    fn take_back(&self, attempt: &Attempt<'_>, weight: u64) {
        let Some(counter) = &attempt.counter else { return };
        let reaches = self.value.saturating_sub(counter.empty());
        let is_current = counter.is_current(self.reading);
        self.undo(attempt, if is_current { weight } else { weight.min(reaches) });
    }

    /// Takes back what counted. Nobody waits for it: it is executed before whatever this node sends next.
    fn undo(&self, attempt: &Attempt<'_>, weight: u64) {
        if weight > 0
            && let (Some(counter), Some((connection, _))) = (&attempt.counter, &self.connection)
        {
            // If the connection has ended, or too much waits, the weight stays: less than the limit passes.
            let _ = connection.send_only(&meta::subtract(&counter.key, weight));
        }
    }
}
