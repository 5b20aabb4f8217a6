//! The picture: one row for each algorithm, divided into 48 columns of equal time.

use super::trace::PERIODS;
use super::{AlgorithmRow, Comparison};
use std::io::{self, Write};

/// Columns of a row; with the names and figures beside them it fits 100 characters.
const COLUMNS: usize = 48;
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII_BARS: [char; 9] = [' ', '.', ':', ':', '-', '=', '+', '*', '#'];

/// Draws a comparison with characters.
pub(super) fn text(comparison: &Comparison, ascii: bool, out: &mut impl Write) -> io::Result<()> {
    let screen = Screen::new(comparison.period.as_nanos(), ascii);
    screen.heading(comparison, out)?;
    screen.requests(&comparison.requests, out)?;
    comparison.rows.iter().try_for_each(|row| screen.fates(row, out))?;
    screen.legend(out)
}

/// How many instants are in each of `N` columns that show the time until `whole`. Later instants are left out.
pub(super) fn counts<const N: usize>(
    whole: u64,
    instants: impl Iterator<Item = u64>,
) -> [usize; N] {
    let mut counts = [0; N];
    for instant in instants {
        let part = u128::from(instant).saturating_mul(u128::try_from(N).unwrap_or(0));
        let column = part.checked_div(u128::from(whole)).and_then(|c| usize::try_from(c).ok());
        if let Some(count) = column.and_then(|column| counts.get_mut(column)) {
            *count = usize::saturating_add(*count, 1);
        }
    }
    counts
}

/// Converts times into columns and counts into bars.
struct Screen {
    /// The time that a row shows, in nanoseconds.
    whole: u64,
    bars: [char; 9],
    edge: char,
    refused: char,
}

impl Screen {
    fn new(period: u64, ascii: bool) -> Self {
        let whole = period.saturating_mul(PERIODS);
        if ascii {
            Self { whole, bars: ASCII_BARS, edge: '|', refused: 'x' }
        } else {
            Self { whole, bars: BARS, edge: '│', refused: '×' }
        }
    }

    fn heading(&self, comparison: &Comparison, out: &mut impl Write) -> io::Result<()> {
        let Comparison { trace, amount, period, .. } = comparison;
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

    fn requests(&self, requests: &[u64], out: &mut impl Write) -> io::Result<()> {
        let counts = counts(self.whole, requests.iter().copied());
        self.row("requests", &self.bars_of(&counts), out)?;
        writeln!(out, " {:>4} in all", requests.len())
    }

    fn fates(&self, row: &AlgorithmRow, out: &mut impl Write) -> io::Result<()> {
        let refused: [usize; COLUMNS] = counts(self.whole, row.refused());
        let mut bars = self.bars_of(&counts(self.whole, row.passed()));
        for (bar, refused) in bars.iter_mut().zip(refused) {
            if *bar == ' ' && refused > 0 {
                *bar = self.refused;
            }
        }
        let (total, most) = row.summary();
        self.row(row.name, &bars, out)?;
        writeln!(out, " {total:>4} pass, at most {most:>3} in one period")
    }

    fn legend(&self, out: &mut impl Write) -> io::Result<()> {
        let [_, low, .., high] = self.bars;
        writeln!(
            out,
            "\n{low} few to {high} many in a column, {} all refused; the windows of fixed_window begin at {}",
            self.refused, self.edge
        )?;
        writeln!(out, "Try --trace steady, burst or greedy; see --help for more.")
    }

    fn row(&self, name: &str, row: &[char], out: &mut impl Write) -> io::Result<()> {
        let row: String = row.iter().collect();
        write!(out, "{name:<18} {}{row}{}", self.edge, self.edge)
    }

    /// A bar for each column; the largest count has the tallest bar.
    fn bars_of(&self, counts: &[usize; COLUMNS]) -> Vec<char> {
        let largest = counts.iter().copied().max().unwrap_or(0).max(8);
        let bar = |count: &usize| {
            let height = count.saturating_mul(8).div_ceil(largest).min(8);
            self.bars.get(height).copied().unwrap_or(' ')
        };
        counts.iter().map(bar).collect()
    }
}
