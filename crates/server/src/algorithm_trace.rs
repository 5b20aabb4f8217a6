//! One trace of requests under one algorithm: which requests pass, when, and how many of them within one period.
//!
//! ```text
//!   instants of requests ──► the limit of the core, with time as a number ──► a fate for each request
//! ```
//!
//! `tidegate simulate` draws it in the terminal, and the dashboard's playground on its page. Nothing waits, and no clock is read.

use tidegate_core::{Algorithm, Ask, Cost, Limit, LimitError, Outcome, Span, Timestamp, Written};

/// What happened to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It passed at this instant, immediately or after a delay.
    Passed(u64),
    /// It was refused at this instant.
    Refused(u64),
}

impl Fate {
    /// The instant at which the request passed.
    pub(crate) const fn passed(&self) -> Option<u64> {
        match self {
            Self::Passed(at) => Some(*at),
            Self::Refused(_) => None,
        }
    }

    /// The instant at which the request was refused.
    pub(crate) const fn refused(&self) -> Option<u64> {
        match self {
            Self::Refused(at) => Some(*at),
            Self::Passed(_) => None,
        }
    }
}

/// The fate of every request under one algorithm. `requests` are instants in nanoseconds, in order. A request waits for at most `wait`.
pub(crate) fn play(
    algorithm: Algorithm,
    (amount, period): (u64, Span),
    wait: Span,
    requests: &[u64],
) -> Result<Vec<Fate>, LimitError> {
    let limit = Limit::new(amount, period, algorithm)?;
    let mut written = Written::empty(&limit);
    let fate = |nanos: u64| {
        let ask = Ask::new(Timestamp::from_nanos(nanos), Cost::ONE).waiting(wait);
        match limit.take(&mut written, &ask).decision.outcome {
            Outcome::Allow => Fate::Passed(nanos),
            Outcome::Delay(wait) => Fate::Passed(nanos.saturating_add(wait.as_nanos())),
            Outcome::Deny(_) => Fate::Refused(nanos),
        }
    };
    Ok(requests.iter().copied().map(fate).collect())
}

/// The most requests that passed in any interval of one period, which begins with one of them.
pub(crate) fn most_in_a_period(fates: &[Fate], period: u64) -> usize {
    let mut passed: Vec<u64> = fates.iter().filter_map(Fate::passed).collect();
    passed.sort_unstable();
    // The end of the interval only moves forward, as its beginning does.
    let mut ends = passed.iter().copied().peekable();
    let mut ended: usize = 0;
    let counts = passed.iter().enumerate().map(|(before, from)| {
        while ends.next_if(|at| *at < from.saturating_add(period)).is_some() {
            ended = ended.saturating_add(1);
        }
        ended.saturating_sub(before)
    });
    counts.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_most_in_a_period_is_that_of_counting_every_interval(
            instants in proptest::collection::vec(0_u64..50, 0..30),
            period in 1_u64..20,
        ) {
            let fates: Vec<Fate> = instants.iter().map(|at| Fate::Passed(*at)).collect();
            let within = |from: &u64| instants.iter().filter(|at| (*from..from + period).contains(at)).count();
            let expected = instants.iter().map(within).max().unwrap_or(0);
            prop_assert_eq!(most_in_a_period(&fates, period), expected);
        }
    }
}
