//! How busy the upstream servers are: the signal `pressure` for elastic limits, from 0 (idle) to 1 (full).
//!
//! ```text
//!   seats in use / all seats ─┐
//!   1 if requests wait, or    ├─ the largest ──► of all groups, the largest ──► smoothed ──► limiter.signal("pressure", …)
//!     got 503 for want of one │
//!   1 − usual time / time now ┘   until the head of an answer
//! ```
//!
//! A look sees one instant, and a few requests that arrive together fill the seats for an instant. So the signal follows what is
//! seen: up within a second, down within five.
//!
//! The usual time is the shortest mean of any quarter of a second, and it is forgotten slowly, by a hundredth for each. An upstream
//! that takes twice its usual time has a pressure of 0.5.

use super::live_routes::LiveRoutes;
use super::upstream::GroupReading;
use crate::backend::Backend;
use crate::metrics::Metrics;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tidegate::Limiter;
use tokio::time::interval;

/// The name of the signal.
const SIGNAL: &str = "pressure";
/// How often it is reported.
const EVERY: Duration = Duration::from_millis(250);
/// How many looks it takes to follow a higher pressure, and a lower one: a second and five.
const LOOKS_UP: u64 = 4;
const LOOKS_DOWN: u64 = 20;
/// A mean of fewer answers than this says nothing.
const LEAST_ANSWERS: u64 = 10;

/// What was seen of a group since it was last looked at.
#[derive(Clone, Copy, Debug, Default)]
struct GroupSample {
    in_flight: u64,
    /// `None`: any number may be in flight.
    seats: Option<u64>,
    waiting: u64,
    /// Requests that got no seat, since the start.
    shed: u64,
    /// Heads of answers, and the time until them in nanoseconds, since the start.
    answers: (u64, u64),
}

/// What is remembered of a group.
#[derive(Default)]
struct GroupPressure {
    last: GroupSample,
    /// The usual time until the head of an answer, in nanoseconds.
    usual: Option<u64>,
}

/// The pressure without its short peaks, in millionths.
#[derive(Default)]
struct SmoothPressure(u64);

/// Reports the pressure again and again; never returns.
pub(crate) async fn report_pressure<S: Backend>(
    live: Arc<LiveRoutes>,
    limiter: Limiter<S>,
    metrics: Arc<Metrics>,
) {
    let mut looks = interval(EVERY);
    let mut groups: HashMap<String, GroupPressure> = HashMap::new();
    let mut smoothed = SmoothPressure::default();
    loop {
        looks.tick().await;
        let readings = live.readings();
        groups.retain(|name, _| readings.iter().any(|reading| reading.group == *name));
        let pressure = readings.iter().map(|reading| {
            let sample = GroupSample::of(reading, metrics.first_bytes(&reading.group));
            groups.entry(reading.group.clone()).or_default().look(sample)
        });
        let thousandths = smoothed.follow(pressure.max().unwrap_or(0));
        let text = format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000);
        if let Ok(pressure) = text.parse() {
            // A number with three places is valid.
            let _ = limiter.signal(SIGNAL, pressure);
        }
    }
}

impl SmoothPressure {
    /// Moves towards what was seen; both are in thousandths.
    fn follow(&mut self, seen: u64) -> u64 {
        let (seen, before) = (seen.saturating_mul(1_000), self.0);
        self.0 = match seen >= before {
            true => before.saturating_add(seen.saturating_sub(before) / LOOKS_UP),
            false => before.saturating_sub(before.saturating_sub(seen) / LOOKS_DOWN),
        };
        self.0 / 1_000
    }
}

impl GroupSample {
    fn of(reading: &GroupReading, answers: (u64, u64)) -> Self {
        let whole = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let classes = || reading.seats.iter().flat_map(|seats| &seats.classes);
        Self {
            in_flight: reading.in_flight,
            seats: reading.seats.as_ref().and_then(|seats| seats.limit).map(whole),
            waiting: classes().map(|class| whole(class.waiting)).fold(0, u64::saturating_add),
            shed: classes()
                .flat_map(|class| [class.expired, class.refused, class.evicted])
                .fold(0, u64::saturating_add),
            answers,
        }
    }
}

impl GroupPressure {
    /// The pressure now, in thousandths.
    fn look(&mut self, now: GroupSample) -> u64 {
        let before = std::mem::replace(&mut self.last, now);
        let share = |seats: u64| now.in_flight.saturating_mul(1_000).checked_div(seats);
        let seats = now.seats.and_then(share).unwrap_or(0);
        let queue = if now.waiting > 0 || now.shed > before.shed { 1_000 } else { 0 };
        let answers = now.answers.0.saturating_sub(before.answers.0);
        let nanos = now.answers.1.saturating_sub(before.answers.1);
        let mean = nanos.checked_div(answers).filter(|_| answers >= LEAST_ANSWERS);
        let slow = mean.map_or(0, |mean| self.slowness(mean.max(1)));
        seats.max(queue).max(slow).min(1_000)
    }

    /// How much slower than usual this mean is: `1 − usual / mean`, in thousandths.
    fn slowness(&mut self, mean: u64) -> u64 {
        let aged = self.usual.map(|usual| usual.saturating_add(usual / 100).max(1));
        let usual = aged.map_or(mean, |usual| usual.min(mean));
        self.usual = Some(usual);
        let share = u128::from(usual).saturating_mul(1_000).checked_div(u128::from(mean));
        1_000_u64.saturating_sub(share.and_then(|share| u64::try_from(share).ok()).unwrap_or(1_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: u64 = 1_000_000;

    #[test]
    fn it_follows_a_load_within_seconds_and_ignores_a_short_peak() {
        let mut pressure = SmoothPressure::default();
        assert_eq!([1_000; 4].map(|seen| pressure.follow(seen)), [250, 437, 578, 683]);
        assert_eq!((0..12).map(|_| pressure.follow(1_000)).last(), Some(989)); // after four seconds
        assert_eq!([0; 4].map(|seen| pressure.follow(seen)), [940, 893, 848, 806]);
        let mut calm = SmoothPressure::default();
        let highest = (0..100).map(|look| calm.follow(if look % 20 == 0 { 1_000 } else { 200 }));
        assert!(highest.max() < Some(500));
    }

    #[test]
    fn seats_waiting_requests_and_sheds_are_pressure() {
        let mut group = GroupPressure::default();
        let calm = GroupSample { in_flight: 2, seats: Some(8), ..GroupSample::default() };
        assert_eq!(group.look(calm), 250);
        assert_eq!(group.look(GroupSample { in_flight: 8, ..calm }), 1_000);
        assert_eq!(group.look(GroupSample { waiting: 1, ..calm }), 1_000);
        assert_eq!(group.look(GroupSample { shed: 3, ..calm }), 1_000);
        assert_eq!(group.look(GroupSample { shed: 3, ..calm }), 250); // none since then
        assert_eq!(group.look(GroupSample { in_flight: 100, seats: None, ..calm }), 0);
    }

    #[test]
    fn an_upstream_that_is_slower_than_usual_is_under_pressure() {
        let mut group = GroupPressure::default();
        let (mut all, mut time) = (0, 0);
        let mut mean = |answers: u64, millis: u64| {
            all += answers;
            time += answers * millis * MILLI;
            group.look(GroupSample { answers: (all, time), ..GroupSample::default() })
        };
        assert_eq!(mean(100, 20), 0);
        assert_eq!(mean(100, 40), 495); // 1 − 20.2 / 40
        assert_eq!(mean(9, 400), 0); // too few to say anything
        // In time it gets used to being slow.
        let last = (0..100).map(|_| mean(100, 40)).last();
        assert_eq!(last, Some(0));
        assert_eq!(mean(100, 10), 0);
        assert_eq!(mean(100, 20), 495);
    }
}
