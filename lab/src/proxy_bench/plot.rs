//! Plots as SVG: requests over time, a histogram of gaps, success and latency by class, and what an elastic limit grants. They are readable on a light and on a
//! dark page.

#![expect(clippy::float_arithmetic, reason = "coordinates of a picture")]

use crate::rounds::float;
use std::fmt::Write as _;

/// The size of a picture, and of the area with data in it.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 620.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 268.0;
/// The most points of a line: more would not be seen.
const MOST_POINTS: usize = 250;

/// Colours for light pages, and for dark ones.
const STYLE: &str = "text{fill:#24292f;font:13px sans-serif}.axis{stroke:#8c959f;fill:none}\
.a{stroke:#8250df;fill:none;stroke-width:2}.b{stroke:#1a7f37;fill:none;stroke-width:2}.bar{fill:#1a7f37}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.axis{stroke:#6e7681}.a{stroke:#d2a8ff}.b{stroke:#56d364}.bar{fill:#56d364}}";

/// The scales of a picture and the names of its axes.
struct Axes<'a> {
    title: &'a str,
    x: Axis<'a>,
    y: Axis<'a>,
}

/// One axis: from `least` to `most`, with a number at each `step`.
struct Axis<'a> {
    name: &'a str,
    least: f64,
    most: f64,
    step: f64,
}

impl Axis<'_> {
    /// The place of a value between two coordinates.
    fn place(&self, value: f64, from: f64, to: f64) -> f64 {
        let share = (value - self.least) / (self.most - self.least);
        from + share.clamp(0.0, 1.0) * (to - from)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let tick = |number: u32| self.least + f64::from(number) * self.step;
        (0..=100).map(tick).take_while(|value| *value <= self.most + self.step / 1e3)
    }
}

impl Axes<'_> {
    fn x(&self, value: f64) -> f64 {
        self.x.place(value, LEFT, RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        self.y.place(value, BOTTOM, TOP)
    }

    /// The picture with its axes and this content.
    fn picture(&self, content: &str) -> String {
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n<title>{}</title>\n<style>{STYLE}</style>\n",
            self.title
        );
        let _ = writeln!(text, "<text x=\"{LEFT}\" y=\"18\">{}</text>", self.title);
        let _ = writeln!(text, "<path class=\"axis\" d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\"/>");
        for value in self.x.ticks() {
            let (x, y) = (self.x(value), BOTTOM + 18.0);
            let _ = writeln!(
                text,
                "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{value}</text>"
            );
        }
        for value in self.y.ticks() {
            let (x, y) = (LEFT - 6.0, self.y(value) + 4.0);
            let _ =
                writeln!(text, "<text x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{value}</text>");
        }
        let (x, y) = ((LEFT + RIGHT) / 2.0, HEIGHT - 12.0);
        let _ = writeln!(
            text,
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{}</text>",
            self.x.name
        );
        let _ = writeln!(
            text,
            "<text transform=\"translate(14 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            (TOP + BOTTOM) / 2.0,
            self.y.name
        );
        text + content + "</svg>\n"
    }

    /// A line through one value for each second.
    fn values(&self, class: &str, name: &str, values: &[f64]) -> String {
        let points = (0_u32..).zip(values);
        let path: String = points
            .map(|(second, value)| {
                format!(" {:.1} {:.1}", self.x(f64::from(second) + 0.5), self.y(*value))
            })
            .collect();
        let last = values.last().copied().unwrap_or(0.0);
        let (x, y) = (RIGHT - 4.0, (self.y(last) - 8.0).max(TOP + 12.0));
        format!(
            "<polyline class=\"{class}\" points=\"{}\"/>\n<text x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{name}</text>\n",
            path.trim_start()
        )
    }

    /// A line that rises by one at each of these instants, in seconds.
    fn steps(&self, class: &str, name: &str, seconds: &[f64]) -> String {
        let every = seconds.len().div_ceil(MOST_POINTS).max(1);
        let points = (1_u64..).zip(seconds).step_by(every);
        let path: String = points
            .map(|(count, at)| format!(" {:.1} {:.1}", self.x(*at), self.y(float(count))))
            .collect();
        let last = float(u64::try_from(seconds.len()).unwrap_or(0));
        let (x, y) = (RIGHT - 4.0, self.y(last) - 8.0);
        format!(
            "<polyline class=\"{class}\" points=\"{}\"/>\n<text x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{name}</text>\n",
            path.trim_start()
        )
    }
}

/// Success in per cent and the 99th percentile in milliseconds of a class, second by second.
pub(crate) struct ClassLine {
    pub(crate) label: &'static str,
    pub(crate) success: Vec<f64>,
    pub(crate) p99: Vec<f64>,
}

/// How many requests of two classes succeed, over time.
pub(crate) fn success_by_class(title: &str, lines: &[ClassLine; 2]) -> String {
    let axes = Axes {
        title,
        x: seconds_axis(lines),
        y: Axis { name: "% answered with 200", least: 0.0, most: 100.0, step: 20.0 },
    };
    let [a, b] = lines;
    let content = axes.values("b", a.label, &a.success) + &axes.values("a", b.label, &b.success);
    axes.picture(&content)
}

/// How long requests of two classes take, over time.
pub(crate) fn p99_by_class(title: &str, lines: &[ClassLine; 2]) -> String {
    let most = lines.iter().flat_map(|line| &line.p99).copied().fold(100.0, f64::max);
    let step = nice_step(most / 5.0);
    let axes = Axes {
        title,
        x: seconds_axis(lines),
        y: Axis { name: "p99 in ms", least: 0.0, most: (most / step).ceil() * step, step },
    };
    let [a, b] = lines;
    axes.picture(&(axes.values("b", a.label, &a.p99) + &axes.values("a", b.label, &b.p99)))
}

fn seconds_axis(lines: &[ClassLine; 2]) -> Axis<'static> {
    let most = lines.iter().map(|line| line.p99.len()).max().unwrap_or(1).max(1);
    let most = float(u64::try_from(most).unwrap_or(1));
    Axis { name: "seconds", least: 0.0, most, step: nice_step(most / 10.0) }
}

/// Two values in per cent, second by second.
pub(crate) fn percentages(title: &str, lines: &[(&str, Vec<f64>); 2]) -> String {
    let most = lines.iter().map(|(_, values)| values.len()).max().unwrap_or(1).max(1);
    let most = float(u64::try_from(most).unwrap_or(1));
    let axes = Axes {
        title,
        x: Axis { name: "seconds", least: 0.0, most, step: nice_step(most / 10.0) },
        y: Axis { name: "%", least: 0.0, most: 100.0, step: 20.0 },
    };
    let [(a, first), (b, second)] = lines;
    axes.picture(&(axes.values("a", a, first) + &axes.values("b", b, second)))
}

/// How many requests had been offered, and how many had arrived, at each instant in seconds.
pub(crate) fn cumulative(offered: &[f64], arrived: &[f64]) -> String {
    let seconds = offered.iter().chain(arrived).copied().fold(1.0, f64::max).ceil();
    let most = float(u64::try_from(offered.len().max(arrived.len())).unwrap_or(0)).max(10.0);
    let step = nice_step(most / 5.0);
    let axes = Axes {
        title: "Requests offered by clients, and arrived at the upstream server",
        x: Axis { name: "seconds", least: 0.0, most: seconds, step: nice_step(seconds / 10.0) },
        y: Axis { name: "requests", least: 0.0, most: (most / step).ceil() * step, step },
    };
    let lines = axes.steps("a", "offered", offered) + &axes.steps("b", "arrived", arrived);
    axes.picture(&lines)
}

/// How often each gap occurred. The first and the last bar also contain all gaps beyond them.
pub(crate) fn histogram(gaps_ms: &[f64], middle_ms: f64) -> String {
    const BARS: u32 = 40;
    let (least, most) = (middle_ms - 2.0, middle_ms + 2.0);
    let width = (most - least) / f64::from(BARS);
    let count = |bar: u32| {
        let from = if bar == 0 { 0.0 } else { least + f64::from(bar) * width };
        let last = bar == BARS.saturating_sub(1);
        let to =
            if last { f64::INFINITY } else { least + f64::from(bar.saturating_add(1)) * width };
        let inside = gaps_ms.iter().filter(|gap| (from..to).contains(*gap)).count();
        float(u64::try_from(inside).unwrap_or(0))
    };
    let counts: Vec<f64> = (0..BARS).map(count).collect();
    let highest = counts.iter().copied().fold(5.0, f64::max);
    let step = nice_step(highest / 5.0);
    let axes = Axes {
        title: "Gaps between requests at the upstream server",
        x: Axis { name: "milliseconds", least, most, step: 0.5 },
        y: Axis { name: "gaps", least: 0.0, most: (highest / step).ceil() * step, step },
    };
    let mut bars = String::new();
    for (bar, count) in (0..BARS).zip(&counts).filter(|(_, count)| **count > 0.0) {
        let (x, y) = (axes.x(least + f64::from(bar) * width), axes.y(*count));
        let (wide, high) = ((RIGHT - LEFT) / f64::from(BARS) - 1.0, BOTTOM - y);
        let _ = writeln!(
            bars,
            "<rect class=\"bar\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{high:.1}\"/>"
        );
    }
    axes.picture(&bars)
}

/// The smallest of 1, 2, 5, 10, 20, 50 … that is not below a value.
fn nice_step(value: f64) -> f64 {
    let mut step = 1.0;
    for factor in [2.0, 2.5, 2.0].into_iter().cycle().take(30) {
        if step >= value {
            break;
        }
        step *= factor;
    }
    step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_numbers_that_people_like() {
        assert_eq!(
            [0.3, 1.0, 1.1, 2.5, 6.0, 2_000.0].map(nice_step),
            [1.0, 1.0, 2.0, 5.0, 10.0, 2_000.0]
        );
    }

    #[test]
    fn every_gap_is_in_a_bar() {
        let picture = histogram(&[0.1, 10.05, 10.05, 40.0], 10.0);
        assert_eq!(picture.matches("<rect").count(), 3);
        assert!(picture.contains(">gaps<") && picture.ends_with("</svg>\n"));
    }

    #[test]
    fn a_long_line_has_few_points_and_begins_with_the_first_request() {
        let offered: Vec<f64> = (0..10_000).map(|number| f64::from(number) / 1e3).collect();
        let picture = cumulative(&offered, &[0.0, 5.0]);
        assert!(picture.len() < 8_000, "{} bytes", picture.len());
        assert!(picture.contains("points=\"64.0 268.0 "), "{picture}");
        assert!(picture.contains(">10000</text>"));
    }
}
