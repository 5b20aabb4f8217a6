//! `POST /admin/v1/playground`: one trace of requests under all six algorithms, decided by the real core on a clock that is a number.
//!
//! ```text
//!   6 per 10 s, steps of 1 s, requests 0 0 9 0 …   ──►   for each algorithm: passed 0 0 6 0 …   refused 0 0 3 0 …
//! ```
//!
//! The requests of a step arrive evenly within it. A delayed request is counted in the step in which it may pass.

use super::handler::AdminHandler;
use super::request::{read, unprocessable};
use crate::algorithm_trace::{Fate, most_in_a_period, play};
use crate::backend::Backend;
use crate::web::{Answer, Call};
use http::StatusCode;
#[cfg(test)]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_core::{Algorithm, Span};

/// Requests of a trace: some milliseconds of work for all algorithms together.
const MOST_REQUESTS: u64 = 10_000;
/// Steps of a trace, and of an answer: delayed requests pass after the end of the trace.
const MOST_STEPS: (usize, usize) = (1_000, 2_000);
const MOST_AMOUNT: u64 = 1_000;
/// A day.
const LONGEST_MS: u64 = 86_400_000;
const NANOS_PER_MS: u64 = 1_000_000;

/// A limit and a trace of requests.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(JsonSchema), schemars(rename = "Playground"))]
#[cfg_attr(test, schemars(example = json!({
    "amount": 6, "period_ms": 10_000, "step_ms": 1_000, "requests": [0, 6, 6, 0],
})))]
pub(super) struct PlaygroundBody {
    /// How many requests pass per period.
    #[cfg_attr(test, schemars(range(min = 1, max = MOST_AMOUNT)))]
    amount: u64,
    #[cfg_attr(test, schemars(range(min = 1, max = LONGEST_MS)))]
    period_ms: u64,
    /// The length of a step of the trace.
    #[cfg_attr(test, schemars(range(min = 1, max = LONGEST_MS)))]
    step_ms: u64,
    /// How many requests arrive in each step, evenly; at most 10,000 in all.
    #[cfg_attr(test, schemars(length(max = MOST_STEPS.0), inner(range(max = MOST_REQUESTS))))]
    requests: Vec<u64>,
    /// How long a request would wait; a period if absent or `null`.
    #[cfg_attr(test, schemars(range(max = LONGEST_MS)))]
    wait_ms: Option<u64>,
}

/// What each algorithm makes of the trace.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct PlaygroundResult {
    step_ms: u64,
    /// How many requests the trace has.
    requests: usize,
    algorithms: Vec<PlayedAlgorithm>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct PlayedAlgorithm {
    algorithm: &'static str,
    #[serde(flatten)]
    result: PlayedTrace,
}

#[derive(Serialize)]
#[serde(untagged)]
#[cfg_attr(test, derive(JsonSchema))]
enum PlayedTrace {
    /// The algorithm cannot have this limit.
    Impossible { error: String },
    Possible {
        passed: usize,
        refused: usize,
        /// How many of those that passed had to wait.
        delayed: usize,
        longest_wait_ms: u64,
        /// The most requests that passed in any interval of one period.
        most_in_a_period: usize,
        /// A delayed request is counted in the step in which it may pass.
        passed_by_step: Vec<u64>,
        refused_by_step: Vec<u64>,
    },
}

impl<S: Backend> AdminHandler<S> {
    pub(super) async fn playground(&self, call: &Call<'_>) -> Result<Answer, Answer> {
        let body: PlaygroundBody = read(call)?;
        body.check().map_err(unprocessable)?;
        // The largest trace takes a while, and the worker serves other requests meanwhile.
        let played = tokio::task::spawn_blocking(move || body.played()).await;
        let played = played.map_err(|_| {
            self.metrics.panicked();
            let detail = "internal error: a bug in tidegate";
            Answer::problem(StatusCode::INTERNAL_SERVER_ERROR, detail)
        })?;
        Ok(Answer::json(StatusCode::OK, &json!(played)))
    }
}

impl PlaygroundBody {
    fn check(&self) -> Result<(), &'static str> {
        let all = self.requests.iter().fold(0, |all: u64, some| all.saturating_add(*some));
        let lengths = [self.period_ms, self.step_ms];
        match () {
            () if !(1..=MOST_AMOUNT).contains(&self.amount) => {
                Err("`amount` must be between 1 and 1,000")
            }
            () if !lengths.iter().all(|length| (1..=LONGEST_MS).contains(length)) => {
                Err("`period_ms` and `step_ms` must be between 1 and 86,400,000, which is a day")
            }
            () if self.wait_ms.is_some_and(|wait| wait > LONGEST_MS) => {
                Err("`wait_ms` must be at most 86,400,000, which is a day")
            }
            () if self.requests.len() > MOST_STEPS.0 => {
                Err("`requests` must have at most 1,000 steps")
            }
            () if all > MOST_REQUESTS => Err("a trace must have at most 10,000 requests"),
            () => Ok(()),
        }
    }

    /// The trace under every algorithm.
    fn played(&self) -> PlaygroundResult {
        let instants = self.instants();
        let row = |algorithm: Algorithm| PlayedAlgorithm {
            algorithm: algorithm.name(),
            result: self.trace(algorithm, &instants),
        };
        let algorithms = Algorithm::ALL.into_iter().map(row).collect();
        PlaygroundResult { step_ms: self.step_ms, requests: instants.len(), algorithms }
    }

    /// The instants of all requests, in nanoseconds, in order.
    fn instants(&self) -> Vec<u64> {
        let step = self.step();
        let starts = (0_u64..).map(|number| number.saturating_mul(step));
        let arrivals = starts.zip(&self.requests).flat_map(|(start, count)| {
            let part =
                move |number: u64| number.saturating_mul(step).checked_div(*count).unwrap_or(0);
            (0..*count).map(move |number| start.saturating_add(part(number)))
        });
        arrivals.collect()
    }

    fn trace(&self, algorithm: Algorithm, instants: &[u64]) -> PlayedTrace {
        let period = Span::from_millis(self.period_ms);
        let wait = self.wait_ms.map_or(period, Span::from_millis);
        let fates = match play(algorithm, (self.amount, period), wait, instants) {
            Ok(fates) => fates,
            Err(error) => return PlayedTrace::Impossible { error: error.to_string() },
        };
        let waits = fates.iter().zip(instants).filter_map(|(fate, at)| {
            fate.passed().map(|passed| passed.saturating_sub(*at)).filter(|wait| *wait > 0)
        });
        let waits: Vec<u64> = waits.collect();
        let longest = waits.iter().max().copied().unwrap_or(0);
        let passed = fates.iter().filter_map(Fate::passed);
        let refused = fates.iter().filter_map(Fate::refused);
        PlayedTrace::Possible {
            passed: passed.clone().count(),
            refused: refused.clone().count(),
            delayed: waits.len(),
            longest_wait_ms: longest.div_ceil(NANOS_PER_MS),
            most_in_a_period: most_in_a_period(&fates, period.as_nanos()),
            passed_by_step: self.by_step(passed),
            refused_by_step: self.by_step(refused),
        }
    }

    /// How many of these instants are in each step. Instants behind the last step that an answer may have are left out.
    fn by_step(&self, instants: impl Iterator<Item = u64>) -> Vec<u64> {
        let mut counts = vec![0_u64; self.requests.len()];
        for instant in instants {
            let step = instant.checked_div(self.step()).unwrap_or(0);
            let step = usize::try_from(step).unwrap_or(usize::MAX);
            if step >= MOST_STEPS.1 {
                continue;
            }
            if step >= counts.len() {
                counts.resize(step.saturating_add(1), 0);
            }
            if let Some(count) = counts.get_mut(step) {
                *count = count.saturating_add(1);
            }
        }
        counts
    }

    const fn step(&self) -> u64 {
        self.step_ms.saturating_mul(NANOS_PER_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn body(requests: &[u64]) -> PlaygroundBody {
        let requests = requests.to_vec();
        PlaygroundBody { amount: 6, period_ms: 10_000, step_ms: 1_000, requests, wait_ms: None }
    }

    fn row<'v>(played: &'v Value, algorithm: &str) -> &'v Value {
        let rows = played["algorithms"].as_array().unwrap();
        rows.iter().find(|row| row["algorithm"] == algorithm).unwrap()
    }

    #[test]
    fn a_fixed_window_passes_twice_the_amount_at_a_boundary_and_a_log_does_not() {
        let mut trace = vec![0; 20];
        (trace[9], trace[10]) = (6, 6);
        let played = json!(body(&trace).played());
        let fixed = row(&played, "fixed_window");
        assert_eq!((&fixed["passed"], &fixed["most_in_a_period"]), (&json!(12), &json!(12)));
        assert_eq!(fixed["passed_by_step"], json!(trace));
        let log = row(&played, "sliding_log");
        assert_eq!((&log["passed"], &log["refused"]), (&json!(6), &json!(6)));
        assert_eq!(log["refused_by_step"][10], json!(6));
        assert_eq!(played["algorithms"].as_array().unwrap().len(), Algorithm::ALL.len());
    }

    #[test]
    fn a_leaky_bucket_delays_a_burst_beyond_the_end_of_the_trace() {
        let played = json!(body(&[6]).played());
        let leaky = row(&played, "leaky_bucket");
        assert_eq!(leaky["passed"], json!(6));
        assert_eq!(leaky["delayed"], json!(5));
        assert!(leaky["passed_by_step"].as_array().unwrap().len() > 5, "{leaky}");
    }

    #[test]
    fn a_request_that_may_not_wait_is_not_delayed() {
        let played = json!(PlaygroundBody { wait_ms: Some(0), ..body(&[6]) }.played());
        let leaky = row(&played, "leaky_bucket");
        assert_eq!((&leaky["delayed"], &leaky["longest_wait_ms"]), (&json!(0), &json!(0)));
    }

    #[test]
    fn every_field_is_bounded() {
        assert_eq!(body(&[10_000]).check(), Ok(()));
        for wrong in [
            body(&[10_001]),
            body(&[u64::MAX, u64::MAX]),
            body(&[0; 1_001]),
            PlaygroundBody { amount: 0, ..body(&[]) },
            PlaygroundBody { amount: 1_001, ..body(&[]) },
            PlaygroundBody { period_ms: 0, ..body(&[]) },
            PlaygroundBody { step_ms: LONGEST_MS + 1, ..body(&[]) },
            PlaygroundBody { wait_ms: Some(LONGEST_MS + 1), ..body(&[]) },
        ] {
            assert!(wrong.check().is_err());
        }
        let far = json!(PlaygroundBody { step_ms: 1, ..body(&[6]) }.played());
        for row in far["algorithms"].as_array().unwrap() {
            assert!(row["passed_by_step"].as_array().unwrap().len() <= MOST_STEPS.1);
        }
    }
}
