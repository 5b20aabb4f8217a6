//! One busy key on eight nodes, in virtual time: how much passes, and how many calls the store gets.

use tidegate_core::{Algorithm, LeaseTerms, Limit, LimitError, Refill, Span};
use tidegate_simulator::{Load, LoadResult, play_load};

const NODES: u64 = 8;
const RATE: u64 = 20_000;
/// What a busy node asks for beside a quiet one, and what the quiet one asks for.
const BUSY: u64 = 12_500;
const QUIET: u64 = 50;
/// Long enough that the calls with which nodes begin do not count.
const MILLIS: u64 = 20_000;

/// The rows of a table.
pub(super) fn table(only: &str) -> Vec<String> {
    if !"lease-virtual".contains(only) {
        return vec![];
    }
    let mut rows = vec![
        "| burst | load | of `exact` passes | calls per request that passes |".to_owned(),
        "|---|---|---|---|".to_owned(),
    ];
    for burst in [1, 10, 100, 128, 400, 2_000, 20_000] {
        for percent in [30, 60, 90, 150, 500] {
            let even = RATE.saturating_mul(percent) / 100 / NODES;
            let requests = vec![even; usize::try_from(NODES).unwrap_or(0)];
            rows.extend(row(burst, &format!("{percent} %"), requests).ok());
        }
    }
    for burst in [2_000, 20_000] {
        let mut requests = vec![BUSY; 7];
        requests.push(QUIET);
        rows.extend(row(burst, "seven busy nodes, one quiet", requests).ok());
    }
    rows
}

fn row(burst: u64, load: &str, requests: Vec<u64>) -> Result<String, LimitError> {
    let algorithm = Algorithm::TokenBucket { burst: Some(burst), refill: Refill::Continuous };
    let limit = Limit::new(RATE, Span::from_secs(1), algorithm)?;
    let terms = Some(LeaseTerms::default());
    let result = play_load(&Load { limit, terms, requests, millis: MILLIS, seed: 1 });
    let LoadResult { asked, passed, exact, calls, .. } = &result;
    let sum: u64 = passed.iter().sum();
    let quiet = match (asked.last(), passed.last()) {
        (Some(asked), Some(passed)) if load.contains("quiet") => {
            format!("; the quiet node {} % of its requests", share(*passed, *asked, 100))
        }
        _ => String::new(),
    };
    let of_exact = share(sum, *exact, 10_000);
    Ok(format!(
        "| {burst} | {load} | {}.{:02} %{quiet} | {}.{:04} |",
        of_exact / 100,
        of_exact % 100,
        share(*calls, sum, 1),
        share(*calls, sum, 10_000) % 10_000
    ))
}

/// `⌊scale · a / b⌋`.
fn share(a: u64, b: u64, scale: u64) -> u64 {
    a.saturating_mul(scale).checked_div(b).unwrap_or(0)
}
