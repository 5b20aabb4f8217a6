//! The load on the store: tasks that take, wait for the answer, and take again, either immediately (a closed
//! loop) or at fixed instants (an open loop).

#![expect(clippy::disallowed_methods, reason = "a load generator measures time")]
#![expect(clippy::float_arithmetic, reason = "rates, for people")]

use crate::rig::template::Keys;
use crate::rounds::float;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::{Cost, Limit, Plan, Span, StateId, Take};
use tidegate_store::{Redis, Store};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval_at};

const TASKS: u32 = 64;
const KEYS: NonZeroU32 = NonZeroU32::new(1_000_000).unwrap();
/// The key whose limit is used up. None of the other keys has this state.
const USED_UP: StateId = StateId(1);

/// The result of a load.
pub(crate) struct TakeTally {
    pub(crate) passed: u64,
    /// Answers per second.
    pub(crate) rate: f64,
    took: Duration,
}

impl TakeTally {
    /// A count of events during the load, as events per second.
    pub(crate) fn per_second_of(&self, many: u64) -> f64 {
        per_second(many, self.took)
    }
}

/// A closed loop: each task takes from random keys, and takes again when it has its answer. The keys differ
/// in each round. A refusal is an error.
pub(crate) async fn closed(
    store: &Arc<Redis>,
    limit: &Arc<Limit>,
    round: u32,
    length: Duration,
) -> Result<TakeTally, String> {
    let (start, first) = (Instant::now(), round.wrapping_mul(TASKS));
    let task = |number| {
        let (store, limit) = (Arc::clone(store), Arc::clone(limit));
        async move {
            let (mut keys, mut passed) = (Keys::new(KEYS, first.wrapping_add(number)), 0_u64);
            while start.elapsed() < length {
                if !take(&store, &limit, spread(keys.draw())).await? {
                    return Err(
                        "the store refused a take although its limit is not used up".to_owned()
                    );
                }
                passed = passed.saturating_add(1);
            }
            Ok(passed)
        }
    };
    let passed = sum((0..TASKS).map(task)).await?;
    let took = start.elapsed();
    Ok(TakeTally { passed, rate: per_second(passed, took), took })
}

/// An open loop: the tasks take turns to request the key that is used up, at instants `apart` from each
/// other. A take that passes is an error.
pub(crate) async fn open(
    store: &Arc<Redis>,
    limit: &Arc<Limit>,
    apart: Duration,
    length: Duration,
) -> Result<TakeTally, String> {
    let start = Instant::now();
    let task = |number| {
        let (store, limit) = (Arc::clone(store), Arc::clone(limit));
        let first = start.checked_add(apart.saturating_mul(number)).unwrap_or(start);
        let mut turns = interval_at(first, apart.saturating_mul(TASKS));
        async move {
            let mut refused = 0_u64;
            while turns.tick().await.duration_since(start) < length {
                if take(&store, &limit, USED_UP).await? {
                    return Err("the store allowed a take although the limit is used up".to_owned());
                }
                refused = refused.saturating_add(1);
            }
            Ok(refused)
        }
    };
    let refused = sum((0..TASKS).map(task)).await?;
    let took = start.elapsed();
    Ok(TakeTally { passed: 0, rate: per_second(refused, took), took })
}

/// Uses up the limit of one key, if the limit is 1.
pub(crate) async fn used_up(store: &Redis, limit: &Limit) -> Result<(), String> {
    let passes = take(store, limit, USED_UP).await?;
    if passes { Ok(()) } else { Err("the store refused the first take".to_owned()) }
}

/// Takes once, and returns whether it passed.
async fn take(store: &Redis, limit: &Limit, state: StateId) -> Result<bool, String> {
    let plan = Plan::new(vec![Take::new(state, limit, Cost::ONE)], Span::ZERO);
    let plan = plan.map_err(|error| error.to_string())?;
    let answer = store.take(&[plan]).await.pop().ok_or("the store returned no answer")?;
    answer.map(|answer| answer.done.passes).map_err(|error| error.to_string())
}

/// The state of a key: distinct for each key, and spread like a hash.
fn spread(key: u32) -> StateId {
    const ODD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    StateId(u128::from(key).wrapping_add(2).wrapping_mul(ODD))
}

/// Runs all tasks, and adds up their counts.
async fn sum(
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
fn per_second(many: u64, took: Duration) -> f64 {
    float(many) / took.as_secs_f64()
}
