//! How well arrivals keep their distance, computed from their instants. `T` is the distance that the rate demands.
//!
//! ```text
//!   turn          0 ── T ── 2T ── 3T
//!   arrival       0 ──── T + 3 ── 2T + 1        the second one is late by 3
//!   gaps             T + 3    T − 2             so the next gap is shorter than T
//! ```
//!
//! A request can be late, because timers and schedulers are. If none is later than `e`, then in every window of length `w` at
//! most `⌊(w + e) / T⌋ + 1` requests arrive: `e` is the price of the lateness, and it is paid once per window, not once per
//! request.

/// The instants of arrivals in nanoseconds, in ascending order, and the distance of turns.
pub(crate) struct Arrivals<'a> {
    pub(crate) at: &'a [u64],
    pub(crate) turn: u64,
}

impl Arrivals<'_> {
    /// The times between neighbours, in ascending order.
    pub(crate) fn gaps(&self) -> Vec<u64> {
        let pairs = self.at.iter().zip(self.at.iter().skip(1));
        let mut gaps: Vec<u64> = pairs.map(|(one, next)| next.saturating_sub(*one)).collect();
        gaps.sort_unstable();
        gaps
    }

    /// How much later than its turn the latest request came. Turns follow each other without a pause, and the request that
    /// came earliest for its turn came on time. So a turn that was left out counts as lateness too.
    pub(crate) fn lateness(&self) -> u64 {
        let early = self.offsets().min().unwrap_or(0);
        let late = self.offsets().max().unwrap_or(0);
        u64::try_from(late.saturating_sub(early)).unwrap_or(0)
    }

    /// The smallest `e` for which every window conforms: how far a request came closer to an earlier one than the turns
    /// between the two allow.
    pub(crate) fn least_slack(&self) -> u64 {
        let mut latest = i64::MIN;
        let mut slack = 0;
        for offset in self.offsets() {
            latest = latest.max(offset);
            slack = latest.saturating_sub(offset).max(slack);
        }
        u64::try_from(slack).unwrap_or(0)
    }

    /// Among the windows that begin and end with an arrival, how many contain more than `⌊(w + e) / T⌋ + 1`. Other windows
    /// contain fewer arrivals for their length.
    pub(crate) fn windows_above(&self, e: u64) -> usize {
        let counted_from = |start: usize, from: u64| {
            let ends = self.at.iter().skip(start).zip(1_u64..);
            let above = ends.filter(|(end, count)| {
                let width = end.saturating_sub(from).saturating_add(e);
                *count > width.checked_div(self.turn).unwrap_or(0).saturating_add(1)
            });
            above.count()
        };
        let starts = self.at.iter().enumerate();
        starts.map(|(start, from)| counted_from(start, *from)).fold(0, usize::saturating_add)
    }

    /// For each arrival, its instant minus its turn.
    fn offsets(&self) -> impl Iterator<Item = i64> {
        let turns = (0_u64..).map(|number| number.saturating_mul(self.turn));
        let signed = |nanos: u64| i64::try_from(nanos).unwrap_or(i64::MAX);
        self.at.iter().zip(turns).map(move |(at, turn)| signed(*at).saturating_sub(signed(turn)))
    }
}

/// A quantile of values in ascending order, in thousandths.
pub(crate) fn quantile(sorted: &[u64], thousandths: usize) -> u64 {
    let place = sorted.len().saturating_mul(thousandths).checked_div(1_000).unwrap_or(0);
    sorted.get(place.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(at: &[u64]) -> Arrivals<'_> {
        Arrivals { at, turn: 10 }
    }

    #[test]
    fn arrivals_on_their_turns_need_no_slack() {
        let exact = arrivals(&[5, 15, 25, 35]);
        assert_eq!((exact.lateness(), exact.least_slack(), exact.windows_above(0)), (0, 0, 0));
        assert_eq!(exact.gaps(), [10, 10, 10]);
    }

    /// The example at the top of the file, with one more on time.
    #[test]
    fn a_late_arrival_shortens_the_gap_behind_it() {
        let late = arrivals(&[0, 13, 21, 30]);
        assert_eq!(late.gaps(), [8, 9, 13]);
        assert_eq!((late.lateness(), late.least_slack()), (3, 3));
        // 13 to 21 and 13 to 30, 21 to 30.
        assert_eq!(late.windows_above(0), 3);
        assert_eq!(late.windows_above(2), 1);
        assert_eq!(late.windows_above(3), 0);
    }

    #[test]
    fn the_least_slack_is_the_least_e_for_which_every_window_conforms() {
        let bursts = arrivals(&[0, 1, 50, 51, 52, 90, 200, 201, 202, 203]);
        let slack = bursts.least_slack();
        assert_eq!(bursts.windows_above(slack), 0);
        assert!(bursts.windows_above(slack - 1) > 0);
    }

    #[test]
    fn a_turn_that_is_left_out_is_lateness_but_needs_no_slack() {
        let pause = arrivals(&[0, 10, 30, 40]);
        assert_eq!((pause.lateness(), pause.least_slack(), pause.windows_above(0)), (10, 0, 0));
    }

    #[test]
    fn quantiles_are_values_of_the_list() {
        let hundred: Vec<u64> = (1..=100).collect();
        let found = [0, 10, 500, 990, 1_000].map(|thousandths| quantile(&hundred, thousandths));
        assert_eq!(found, [1, 2, 51, 100, 100]);
        assert_eq!(quantile(&[], 500), 0);
    }
}
