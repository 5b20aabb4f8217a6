//! The picture as SVG, for pages: a row of bars for each algorithm, all on one scale.
//!
//! A solid bar is what passed, and the hollow bar on top of it is what was refused, so the picture can be read without colours.
//! The colours follow the light or dark page around it. The description says in words what the rows show. All coordinates are
//! whole numbers, so the same trace always gives the same bytes.

use super::draw::counts;
use super::trace::PERIODS;
use super::{AlgorithmRow, Comparison};

/// Columns of a row: twice as many as in the terminal.
const COLUMNS: usize = 96;
/// How far apart two columns are, and how wide a bar is.
const STEP: usize = 5;
const BAR: usize = 4;
const WIDTH: usize = 860;
const LEFT: usize = 136;
const RIGHT: usize = LEFT + COLUMNS * STEP;
/// The base line of the first row, how far apart rows are, and the height of the tallest bar.
const FIRST: usize = 92;
const ROW: usize = 44;
const TALLEST: usize = 32;

/// Colours for light pages, and for dark ones; those of `docs/plots`.
const STYLE: &str = "text{fill:#24292f;font:13px sans-serif}.head{font-size:15px}.axis{stroke:#8c959f;fill:none}\
.all{fill:#8250df}.pass{fill:#1a7f37}.no{fill:none;stroke:#cf222e}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.axis{stroke:#6e7681}.all{fill:#d2a8ff}.pass{fill:#56d364}.no{stroke:#ff7b72}}";

type Columns = [usize; COLUMNS];

/// The bars of a row, and the words beside them.
struct Strip {
    name: &'static str,
    /// The class of the solid bars.
    class: &'static str,
    solid: Columns,
    hollow: Columns,
    words: String,
}

/// The picture of a comparison.
pub(super) fn picture(comparison: &Comparison) -> String {
    let whole = comparison.period.as_nanos().saturating_mul(PERIODS);
    let requests = Strip {
        name: "requests",
        class: "all",
        solid: counts(whole, comparison.requests.iter().copied()),
        hollow: [0; COLUMNS],
        words: format!("{} in all", comparison.requests.len()),
    };
    let rows = comparison.rows.iter().map(|row| Strip::of(row, whole));
    let strips: Vec<Strip> = [requests].into_iter().chain(rows).collect();
    let largest = strips.iter().flat_map(Strip::totals).max().unwrap_or(1).max(1);
    let bases = (FIRST..).step_by(ROW);
    let bottom = bases.clone().nth(strips.len().saturating_sub(1)).unwrap_or(FIRST);
    let rows: String = bases.zip(&strips).map(|(base, strip)| strip.drawn(base, largest)).collect();
    let story = format!(
        "{} requests per {}: {}",
        comparison.amount,
        comparison.period,
        comparison.trace.story()
    );
    let head = head(&story, &strips, bottom.saturating_add(36));
    head + &windows(comparison, bottom) + &rows + &legend(bottom.saturating_add(26)) + "</svg>\n"
}

/// The opening of the picture, with what a screen reader says about it.
fn head(story: &str, strips: &[Strip], height: usize) -> String {
    let words: Vec<String> =
        strips.iter().map(|strip| format!("{}: {}", strip.name, strip.words)).collect();
    let words = words.join(". ");
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"t d\">\n\
         <title id=\"t\">{story}</title>\n<desc id=\"d\">{words}.</desc>\n<style>{STYLE}</style>\n\
         <text class=\"head\" x=\"8\" y=\"22\">{story}</text>\n"
    )
}

/// A vertical line where each period begins, with its time.
fn windows(comparison: &Comparison, bottom: usize) -> String {
    let seconds = comparison.period.as_nanos() / 1_000_000_000;
    let periods = usize::try_from(PERIODS).unwrap_or(1);
    let width = COLUMNS.saturating_mul(STEP).checked_div(periods).unwrap_or(STEP);
    let edges = (LEFT..=RIGHT).step_by(width);
    let line = |(number, x): (u64, usize)| {
        let at = number.saturating_mul(seconds);
        format!(
            "<path class=\"axis\" d=\"M{x} 54V{bottom}\"/><text x=\"{x}\" y=\"46\" text-anchor=\"middle\">{at} s</text>\n"
        )
    };
    (0..).zip(edges).map(line).collect()
}

fn legend(y: usize) -> String {
    let (solid, hollow) = (y.saturating_sub(10), y.saturating_sub(9));
    format!(
        "<path class=\"pass\" d=\"M{LEFT} {solid}h4v10h-4z\"/><text x=\"146\" y=\"{y}\">passed</text>\n\
         <path class=\"no\" d=\"M210 {hollow}h3v9h-3z\"/><text x=\"220\" y=\"{y}\">refused</text>\n\
         <text x=\"290\" y=\"{y}\">windows of fixed_window begin at the vertical lines</text>\n"
    )
}

// === impl Strip ===

impl Strip {
    fn of(row: &AlgorithmRow, whole: u64) -> Self {
        let (total, most) = row.summary();
        Self {
            name: row.name,
            class: "pass",
            solid: counts(whole, row.passed()),
            hollow: counts(whole, row.refused()),
            words: format!("{total} pass, at most {most} in one period"),
        }
    }

    fn totals(&self) -> impl Iterator<Item = usize> {
        self.solid.iter().zip(self.hollow).map(|(solid, hollow)| solid.saturating_add(hollow))
    }

    /// The row with its bars above a base line.
    fn drawn(&self, base: usize, largest: usize) -> String {
        let height = |count: usize| count.saturating_mul(TALLEST).checked_div(largest).unwrap_or(0);
        let (mut solid, mut hollow) = (String::new(), String::new());
        let columns = (LEFT..).step_by(STEP).zip(self.solid.iter().zip(self.totals()));
        for (x, (passed, all)) in columns {
            let low = height(*passed);
            let high = height(all).saturating_sub(low);
            if low > 0 {
                solid.push_str(&format!("M{x} {base}v-{low}h{BAR}v{low}z"));
            }
            if let Some(high) = high.checked_sub(1) {
                let y = base.saturating_sub(low).saturating_sub(1);
                let wide = BAR.saturating_sub(1);
                hollow.push_str(&format!("M{x} {y}v-{high}h{wide}v{high}z"));
            }
        }
        let Self { name, class, words, .. } = self;
        let (text, right) = (base.saturating_sub(4), RIGHT.saturating_add(8));
        let hollow = match &*hollow {
            "" => String::new(),
            path => format!("<path class=\"no\" d=\"{path}\"/>"),
        };
        format!(
            "<text x=\"8\" y=\"{text}\">{name}</text><text x=\"{right}\" y=\"{text}\">{words}</text>\n\
             <path class=\"axis\" d=\"M{LEFT} {base}H{RIGHT}\"/><path class=\"{class}\" d=\"{solid}\"/>{hollow}\n"
        )
    }
}
