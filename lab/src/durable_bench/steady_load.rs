//! Takes at a constant rate, in an open loop, and what they cost.

#![expect(clippy::float_arithmetic, reason = "rates, for people")]

use super::{id, limit, written};
use crate::rounds::float;
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use tidegate_core::{Cost, Limit, Take};
use tidegate_store::{Durable, Memory};

/// Takes at a constant rate.
pub(super) struct Load {
    pub(super) keys: u64,
    pub(super) per_second: u64,
    /// Takes per call.
    pub(super) batch: usize,
}

/// What a second cost.
pub(super) struct SteadyRun {
    pub(super) cpu_millis: f64,
    pub(super) written_bytes: f64,
    /// Different states that changed within an interval of 50 ms, in a second.
    pub(super) changed_states: f64,
}

/// Takes that are made together, so that the loop sleeps and does not spin.
const TOGETHER: u64 = 2_000;

impl Load {
    /// Runs for some seconds; `file` is the store that writes.
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
    pub(super) fn run(&self, store: &Memory, seconds: u64, file: Option<&Durable>) -> SteadyRun {
        let Ok(limit) = limit() else { return SteadyRun::NOTHING };
        let before = file.map_or(0.0, written);
        let (began, cpu) = (Instant::now(), cpu_seconds());
        let mut number = 0u64;
        while number < self.per_second.saturating_mul(seconds) {
            let due = Duration::from_secs_f64(float(number) / float(self.per_second));
            std::thread::sleep(due.saturating_sub(began.elapsed()));
            self.take(store, &limit, number);
            number = number.saturating_add(TOGETHER);
        }
        let took = began.elapsed().as_secs_f64();
        let cpu_millis = (cpu_seconds() - cpu) * 1e3 / took;
        let written_bytes = (file.map_or(0.0, written) - before) / took;
        SteadyRun { cpu_millis, written_bytes, changed_states: self.changed_states() }
    }

    fn take(&self, store: &Memory, limit: &Limit, from: u64) {
        let takes = |from: u64, count: u64| {
            (from..from.saturating_add(count))
                .map(|number| Take::new(id(self.key(number)), limit, Cost::ONE))
        };
        if self.batch == 1 {
            takes(from, TOGETHER).for_each(|take| _ = store.take_one_now(&take));
            return;
        }
        let batch = u64::try_from(self.batch).unwrap_or(1);
        let mut at = 0;
        while at < TOGETHER {
            let takes: Vec<Take<'_>> = takes(from.saturating_add(at), batch).collect();
            store.take_each_now(&takes);
            at = at.saturating_add(batch);
        }
    }

    /// The keys in a random order.
    const fn key(&self, number: u64) -> u64 {
        let mixed = number.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb);
        match (mixed ^ (mixed >> 32)).checked_rem(self.keys) {
            Some(key) => key,
            None => 0,
        }
    }

    fn changed_states(&self) -> f64 {
        let interval = self.per_second / 20;
        let different: HashSet<u64> = (0..interval).map(|number| self.key(number)).collect();
        float(u64::try_from(different.len()).unwrap_or(0)) * 20.0
    }
}

impl SteadyRun {
    const NOTHING: Self = Self { cpu_millis: 0.0, written_bytes: 0.0, changed_states: 0.0 };
}

/// The processor time of this process.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let (seconds, nanos) = (time.tv_sec, time.tv_nsec);
    float(u64::try_from(seconds).unwrap_or(0)) + float(u64::try_from(nanos).unwrap_or(0)) / 1e9
}
