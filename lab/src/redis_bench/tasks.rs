//! The load on the store: tasks that take, wait for the answer, and take again, either immediately (a closed
//! loop) or at fixed instants (an open loop).

#![expect(clippy::disallowed_methods, reason = "a load generator measures time")]
#![expect(clippy::float_arithmetic, reason = "rates, for people")]

use crate::rig::template::Keys;
use crate::rounds::float;
use rustix::time::{ClockId, clock_gettime};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::{Cost, Limit, Plan, Span, StateId, Take};
use tidegate_store::{Redis, Store};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval_at};

/// How many tasks there are, unless a case says otherwise.
pub(crate) const TASKS: u32 = 64;
pub(crate) const KEYS: NonZeroU32 = NonZeroU32::new(1_000_000).unwrap();
/// The key whose limit is used up. None of the other keys has this state.
const USED_UP: StateId = StateId(1);

/// The result of a load.
pub(crate) struct TakeTally {
    pub(crate) passed: u64,
    /// Answers per second.
    pub(crate) rate: f64,
    /// Processor time of this thread for each answer, in microseconds.
    pub(crate) cpu_micros: f64,
    took: Duration,
}

/// A closed loop of takes.
pub(crate) struct TakeLoad<S = Redis> {
    pub(crate) store: Arc<S>,
    /// How many keys there are.
    pub(crate) keys: NonZeroU32,
    /// The limits of each plan.
    pub(crate) limits: Arc<[Limit]>,
    pub(crate) tasks: u32,
    pub(crate) length: Duration,
}

impl TakeTally {
    /// A count of events during the load, as events per second.
    pub(crate) fn per_second_of(&self, many: u64) -> f64 {
        per_second(many, self.took)
    }
}

impl<S> Clone for TakeLoad<S> {
    fn clone(&self) -> Self {
        let Self { store, keys, limits, tasks, length } = self;
        let (store, limits) = (Arc::clone(store), Arc::clone(limits));
        Self { store, keys: *keys, limits, tasks: *tasks, length: *length }
    }
}

impl<S: Store + 'static> TakeLoad<S> {
    /// Each task takes from random keys, and takes again when it has its answer. The keys differ in each round. A refusal is an
    /// error.
    pub(crate) async fn run(&self, round: u32) -> Result<TakeTally, String> {
        let (start, cpu) = (Instant::now(), thread_cpu());
        let first = round.wrapping_mul(self.tasks);
        let passed =
            sum((0..self.tasks).map(|task| self.clone().task(start, first.wrapping_add(task))))
                .await?;
        let (took, cpu) = (start.elapsed(), thread_cpu().saturating_sub(cpu));
        let cpu_micros = cpu.as_secs_f64() * 1e6 / float(passed);
        Ok(TakeTally { passed, rate: per_second(passed, took), cpu_micros, took })
    }

    async fn task(self, start: Instant, seed: u32) -> Result<u64, String> {
        let (mut keys, mut passed) = (Keys::new(self.keys, seed), 0_u64);
        while start.elapsed() < self.length {
            if !take(&*self.store, &self.limits, random_state(&mut keys)).await? {
                return Err("the store refused a take although its limit is not used up".to_owned());
            }
            passed = passed.saturating_add(1);
        }
        Ok(passed)
    }
}

/// Processor time of this thread.
fn thread_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// An open loop: the tasks take turns to request the key that is used up, at instants `apart` from each
/// other. A take that passes is an error.
pub(crate) async fn open(
    store: &Arc<Redis>,
    limits: &Arc<[Limit]>,
    apart: Duration,
    length: Duration,
) -> Result<TakeTally, String> {
    let start = Instant::now();
    let task = |number| {
        let (store, limits) = (Arc::clone(store), Arc::clone(limits));
        let first = start.checked_add(apart.saturating_mul(number)).unwrap_or(start);
        let mut turns = interval_at(first, apart.saturating_mul(TASKS));
        async move {
            let mut refused = 0_u64;
            while turns.tick().await.duration_since(start) < length {
                if take(&*store, &limits, USED_UP).await? {
                    return Err("the store allowed a take although the limit is used up".to_owned());
                }
                refused = refused.saturating_add(1);
            }
            Ok(refused)
        }
    };
    let refused = sum((0..TASKS).map(task)).await?;
    let took = start.elapsed();
    Ok(TakeTally { passed: 0, rate: per_second(refused, took), cpu_micros: 0.0, took })
}

/// Uses up the limit of one key, if the limit is 1.
pub(crate) async fn used_up(store: &Redis, limits: &[Limit]) -> Result<(), String> {
    let passes = take(store, limits, USED_UP).await?;
    if passes { Ok(()) } else { Err("the store refused the first take".to_owned()) }
}

/// Takes once from each limit, and returns whether it passed.
pub(crate) async fn take(
    store: &impl Store,
    limits: &[Limit],
    state: StateId,
) -> Result<bool, String> {
    // The states of several limits differ in bits that do not decide the slot.
    let state = |number: u128| StateId(state.0.wrapping_add(number));
    let takes = (0..).zip(limits).map(|(number, limit)| Take::new(state(number), limit, Cost::ONE));
    let plan = Plan::new(takes.collect::<Vec<_>>(), Span::ZERO);
    let plan = plan.map_err(|error| error.to_string())?;
    let answer = store.take(&[plan]).await.pop().ok_or("the store returned no answer")?;
    answer.map(|answer| answer.done.passes).map_err(|error| error.to_string())
}

/// The state of a random key.
pub(crate) fn random_state(keys: &mut Keys) -> StateId {
    spread(keys.draw())
}

/// The state of a key: distinct for each key, and spread like a hash.
fn spread(key: u32) -> StateId {
    const ODD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    StateId(u128::from(key).wrapping_add(2).wrapping_mul(ODD))
}

/// Runs all tasks, and adds up their counts.
pub(crate) async fn sum(
    tasks: impl Iterator<Item = impl Future<Output = Result<u64, String>> + Send + 'static>,
) -> Result<u64, String> {
    let mut tasks: JoinSet<_> = tasks.collect();
    let mut all = 0_u64;
    while let Some(counted) = tasks.join_next().await {
        all = all.saturating_add(counted.map_err(|error| error.to_string())??);
    }
    Ok(all)
}

/// A number of events in a time, as events per second.
pub(crate) fn per_second(many: u64, took: Duration) -> f64 {
    float(many) / took.as_secs_f64()
}
