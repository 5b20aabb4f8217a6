//! The picture: one row for each algorithm, divided into 48 columns of equal time.

use super::trace::PERIODS;
use super::{Fate, Trace, most_in_a_period};
use std::io::{self, Write};
use tidegate_core::Span;

/// Columns of a row; with the names and figures beside them it fits 100 characters.
const COLUMNS: usize = 48;
const COLUMNS_WIDE: u128 = 48;
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII_BARS: [char; 9] = [' ', '.', ':', ':', '-', '=', '+', '*', '#'];

/// Converts times into columns and counts into bars.
pub(super) struct Screen {
    /// The time that a row shows, in nanoseconds.
    whole: u64,
    bars: [char; 9],
    edge: char,
    refused: char,
}

impl Screen {
    pub(super) fn new(period: u64, ascii: bool) -> Self {
        let whole = period.saturating_mul(PERIODS);
        if ascii {
            Self { whole, bars: ASCII_BARS, edge: '|', refused: 'x' }
        } else {
            Self { whole, bars: BARS, edge: '│', refused: '×' }
        }
    }

    pub(super) fn heading(
        &self,
        out: &mut impl Write,
        trace: Trace,
        amount: u64,
        period: Span,
    ) -> io::Result<()> {
        writeln!(out, "{amount} requests per {period}: {}.\n", trace.story())?;
        let seconds = period.as_nanos() / 1_000_000_000;
        let width = COLUMNS.checked_div(usize::try_from(PERIODS).unwrap_or(1)).unwrap_or(1);
        write!(out, "{:<20}", "")?;
        for window in 0..PERIODS {
            let label = format!("{}{}s", self.edge, window.saturating_mul(seconds));
            write!(out, "{label:<width$}")?;
        }
        writeln!(out, "{}", self.edge)
    }

    pub(super) fn requests(&self, out: &mut impl Write, requests: &[u64]) -> io::Result<()> {
        let counts = self.counts(requests.iter().copied());
        self.row(out, "requests", &self.bars_of(&counts))?;
        writeln!(out, " {:>4} in all", requests.len())
    }

    pub(super) fn fates(
        &self,
        out: &mut impl Write,
        name: &str,
        fates: &[Fate],
        period: u64,
    ) -> io::Result<()> {
        let instants =
            |wanted: fn(&Fate) -> Option<u64>| self.counts(fates.iter().filter_map(wanted));
        let passed = instants(|fate| match fate {
            Fate::Passed(at) => Some(*at),
            Fate::Refused(_) => None,
        });
        let refused = instants(|fate| match fate {
            Fate::Refused(at) => Some(*at),
            Fate::Passed(_) => None,
        });
        let mut row = self.bars_of(&passed);
        for (bar, refused) in row.iter_mut().zip(refused) {
            if *bar == ' ' && refused > 0 {
                *bar = self.refused;
            }
        }
        let total = fates.iter().filter(|fate| matches!(fate, Fate::Passed(_))).count();
        self.row(out, name, &row)?;
        writeln!(
            out,
            " {total:>4} pass, at most {:>3} in one period",
            most_in_a_period(fates, period)
        )
    }

    pub(super) fn legend(&self, out: &mut impl Write) -> io::Result<()> {
        let [_, low, .., high] = self.bars;
        writeln!(
            out,
            "\n{low} few to {high} many in a column, {} all refused; the windows of fixed_window begin at {}",
            self.refused, self.edge
        )?;
        writeln!(out, "Try --trace steady, burst or greedy; see --help for more.")
    }

    fn row(&self, out: &mut impl Write, name: &str, row: &[char]) -> io::Result<()> {
        let row: String = row.iter().collect();
        write!(out, "{name:<18} {}{row}{}", self.edge, self.edge)
    }

    /// How many instants are in each column. Instants after the end of the picture are left out.
    fn counts(&self, instants: impl Iterator<Item = u64>) -> [usize; COLUMNS] {
        let mut counts = [0usize; COLUMNS];
        for instant in instants {
            let part = u128::from(instant).saturating_mul(COLUMNS_WIDE);
            let column =
                part.checked_div(u128::from(self.whole)).and_then(|c| usize::try_from(c).ok());
            if let Some(count) = column.and_then(|column| counts.get_mut(column)) {
                *count = count.saturating_add(1);
            }
        }
        counts
    }

    /// A bar for each column; the largest count has the tallest bar.
    fn bars_of(&self, counts: &[usize]) -> Vec<char> {
        let largest = counts.iter().copied().max().unwrap_or(0).max(8);
        let bar = |count: &usize| {
            let height = count.saturating_mul(8).div_ceil(largest).min(8);
            self.bars.get(height).copied().unwrap_or(' ')
        };
        counts.iter().map(bar).collect()
    }
}
