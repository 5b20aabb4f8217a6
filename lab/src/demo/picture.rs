//! The picture of the demo, as lines of text: pure, so that a test can look at it. It fits a terminal of 80 × 24.
//!
//! ```text
//! requests a second    offered  passed delayed refused  █passed ▒delayed ░refused
//!   createURL              4.0     2.1     0.0     1.9  ████░░░░
//! ```

use super::board::{Call, Counts, Plan, Recent, Refusal, Sums};
use std::net::SocketAddr;
use std::time::Duration;

/// What is drawn.
pub(crate) struct View {
    pub(crate) proxy: SocketAddr,
    /// The time since the start.
    pub(crate) passed: Duration,
    /// How long the demo runs.
    pub(crate) end: Duration,
    pub(crate) sums: Sums,
    pub(crate) recent: Recent,
}

/// How a piece of text looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ink {
    Plain,
    Bold,
    Passed,
    Delayed,
    Refused,
}

/// A line of the picture: pieces of text, each with its look.
#[derive(Debug, Default)]
pub(crate) struct Line(Vec<(Ink, String)>);

/// A row of the tables.
struct Row {
    name: &'static str,
    wants: fn(Call, Plan) -> bool,
}

const ROWS: [Row; 6] = [
    Row { name: "createURL", wants: |call, _| call == Call::Create },
    Row { name: "deleteURL", wants: |call, _| call == Call::Delete },
    Row { name: "visits", wants: |call, _| call == Call::Visit },
    Row { name: "payments", wants: |call, _| call == Call::Pay },
    Row { name: "analytics", wants: |call, _| call == Call::Analyze },
    Row { name: "all", wants: |_, _| true },
];

/// The most marks of a bar.
const BAR: u64 = 25;
/// Marks for one request a second.
const MARKS: u64 = 2;
/// Rates are not computed over less than this: the first requests would look like many.
const LEAST_SPAN: Duration = Duration::from_secs(1);

/// The picture, from top to bottom.
pub(crate) fn picture(view: &View) -> Vec<Line> {
    let mut lines = vec![title(view), Line::default(), heading("requests a second", legend())];
    lines.extend(ROWS.iter().map(|row| rates(row, &view.recent)));
    lines.push(Line::default());
    lines.push(heading("since the start", Line::plain(waits(&view.sums))));
    lines.extend(ROWS.iter().map(|row| totals(row, &view.sums)));
    lines.push(Line::default());
    lines.push(Line::bold("last refusals"));
    lines.extend([Call::Create, Call::Visit, Call::Analyze].map(|call| last(call, &view.sums)));
    lines.push(bottom(&view.sums));
    lines
}

/// The picture in one line, for output that is not a terminal.
pub(crate) fn summary(view: &View) -> String {
    let all = Counts::of(&view.sums.counts, |_, _| true);
    let Counts { offered, passed, delayed, refused } = all;
    let at = clock(view.passed);
    let failed = match view.sums.failed {
        0 => String::new(),
        failed => format!(", failed {failed}"),
    };
    format!("{at} offered {offered}, passed {passed}, delayed {delayed}, refused {refused}{failed}")
}

// === the lines ===

fn title(view: &View) -> Line {
    let name = format!("tidegate demo: a URL shortener behind http://{}", view.proxy);
    let time = format!("{} of {}", clock(view.passed), clock(view.end));
    Line::bold(&format!("{name:<63}{time:>16}"))
}

fn heading(what: &str, right: Line) -> Line {
    let text =
        format!("{what:<20}{:>8}{:>8}{:>8}{:>8}  ", "offered", "passed", "delayed", "refused");
    let mut line = Line::bold(&text);
    line.0.extend(right.0);
    line
}

fn legend() -> Line {
    let pieces =
        [(Ink::Passed, "█passed "), (Ink::Delayed, "▒delayed "), (Ink::Refused, "░refused")];
    Line(pieces.map(|(ink, text)| (ink, text.to_owned())).into())
}

fn waits(sums: &Sums) -> String {
    let delay = tenths(millis(sums.longest_delay), 1_000);
    format!("{} wait; longest {delay} s", sums.waiting)
}

/// A row with rates, and a bar of two marks for one request a second.
fn rates(row: &Row, recent: &Recent) -> Line {
    let counts = Counts::of(&recent.counts, row.wants);
    let span = millis(recent.span.max(LEAST_SPAN));
    let rate = |count: u64| tenths(count.saturating_mul(1_000), span);
    let mut line = columns(row, &counts, rate);
    if row.name != "all" {
        let scale =
            |count: u64| rounded(count.saturating_mul(MARKS).saturating_mul(1_000), span).min(BAR);
        line.0.extend(bar(&counts, scale).0);
    }
    line
}

/// A row with totals, and a bar that shows their shares.
fn totals(row: &Row, sums: &Sums) -> Line {
    let counts = Counts::of(&sums.counts, row.wants);
    let mut line = columns(row, &counts, |count| count.to_string());
    let answered = counts.passed.saturating_add(counts.delayed).saturating_add(counts.refused);
    let scale = |count: u64| rounded(count.saturating_mul(BAR), answered.max(1));
    line.0.extend(bar(&counts, scale).0);
    line
}

fn columns(row: &Row, counts: &Counts, text: impl Fn(u64) -> String) -> Line {
    let Counts { offered, passed, delayed, refused } = *counts;
    let [offered, passed, delayed, refused] = [offered, passed, delayed, refused].map(text);
    let name = row.name;
    Line::plain(format!("  {name:<18}{offered:>8}{passed:>8}{delayed:>8}{refused:>8}  "))
}

/// Marks for what passed, was delayed and was refused, in a row. The ends are rounded and not the parts, so that the length
/// of the bar is right.
fn bar(counts: &Counts, scale: impl Fn(u64) -> u64) -> Line {
    let (mut sum, mut end, mut line) = (0_u64, 0_u64, Line::default());
    for (ink, mark, count) in [
        (Ink::Passed, "█", counts.passed),
        (Ink::Delayed, "▒", counts.delayed),
        (Ink::Refused, "░", counts.refused),
    ] {
        sum = sum.saturating_add(count);
        let marks = usize::try_from(scale(sum).saturating_sub(end)).unwrap_or(0);
        end = end.max(scale(sum));
        line.0.push((ink, mark.repeat(marks)));
    }
    line
}

fn last(call: Call, sums: &Sums) -> Line {
    let name = match call {
        Call::Create => "createURL",
        Call::Delete => "deleteURL",
        Call::Visit => "visits",
        Call::Pay => "payments",
        Call::Analyze => "analytics",
    };
    let Some(Refusal { sender, retry_after, reason }) = sums.refusals.get(&call) else {
        return Line::plain(format!("  {name:<11}none so far"));
    };
    let who = match sender.plan {
        Plan::Free => format!("{} (free)", sender.name),
        Plan::Pro => format!("{} (pro)", sender.name),
        Plan::Visitor | Plan::Service => sender.name.to_owned(),
    };
    let after = format!("Retry-After: {retry_after}");
    Line::plain(format!("  {name:<11}{who:<14}{after:<19}{reason}"))
}

fn bottom(sums: &Sums) -> Line {
    match (&sums.last_failure, sums.failed) {
        (Some(why), failed) => {
            Line(vec![(Ink::Refused, format!("{failed} requests failed; the last: {why}"))])
        }
        (None, _) => {
            Line::plain("Ctrl-C stops. Change the limits meanwhile: docs/demo/policy.yaml")
        }
    }
}

// === numbers ===

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A quotient, rounded to the nearest whole number. The divisor is not 0.
fn rounded(number: u64, divisor: u64) -> u64 {
    number.saturating_add(divisor / 2).checked_div(divisor).unwrap_or(0)
}

/// A quotient with one digit after the point.
fn tenths(number: u64, divisor: u64) -> String {
    let tenths = rounded(number.saturating_mul(10), divisor);
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// Minutes and seconds.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

// === impl Line ===

impl Line {
    fn plain(text: impl Into<String>) -> Self {
        Self(vec![(Ink::Plain, text.into())])
    }

    fn bold(text: &str) -> Self {
        Self(vec![(Ink::Bold, text.to_owned())])
    }

    /// The line as text, cut to this many columns.
    pub(crate) fn text(&self, columns: usize, colours: bool) -> String {
        let mut left = columns;
        let mut all = String::new();
        for (ink, text) in &self.0 {
            let piece: String = text.chars().take(left).collect();
            left = left.saturating_sub(piece.chars().count());
            match ink.code().filter(|_| colours && !piece.is_empty()) {
                Some(code) => all.push_str(&format!("\x1b[{code}m{piece}\x1b[0m")),
                None => all.push_str(&piece),
            }
        }
        all
    }
}

// === impl Ink ===

impl Ink {
    /// The ANSI code.
    const fn code(self) -> Option<u8> {
        match self {
            Self::Plain => None,
            Self::Bold => Some(1),
            Self::Passed => Some(32),
            Self::Delayed => Some(33),
            Self::Refused => Some(31),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::board::Sender;

    fn view() -> View {
        let create = Counts { offered: 40, passed: 20, delayed: 0, refused: 19 };
        let delete = Counts { offered: 30, passed: 10, delayed: 15, refused: 4 };
        let counts = [((Call::Create, Plan::Free), create), ((Call::Delete, Plan::Pro), delete)];
        let sender = Sender { call: Call::Create, plan: Plan::Free, name: "alice" };
        let reason = "create-shard allows 3 per minute".to_owned();
        let refusal = Refusal { sender, retry_after: "37".to_owned(), reason };
        let sums = Sums {
            counts: counts.into(),
            refusals: [(Call::Create, refusal)].into(),
            waiting: 2,
            longest_delay: Duration::from_millis(4_849),
            ..Sums::default()
        };
        View {
            proxy: SocketAddr::from(([127, 0, 0, 1], 8000)),
            passed: Duration::from_secs(83),
            end: Duration::from_secs(300),
            recent: Recent { counts: counts.into(), span: Duration::from_secs(10) },
            sums,
        }
    }

    #[test]
    fn the_picture_says_what_happened() {
        let text: Vec<String> = picture(&view()).iter().map(|line| line.text(79, false)).collect();
        let text: Vec<&str> = text.iter().map(|line| line.trim_end()).collect();
        let expected = "\
tidegate demo: a URL shortener behind http://127.0.0.1:8000        1:23 of 5:00

requests a second    offered  passed delayed refused  █passed ▒delayed ░refused
  createURL              4.0     2.0     0.0     1.9  ████░░░░
  deleteURL              3.0     1.0     1.5     0.4  ██▒▒▒░
  visits                 0.0     0.0     0.0     0.0
  payments               0.0     0.0     0.0     0.0
  analytics              0.0     0.0     0.0     0.0
  all                    7.0     3.0     1.5     2.3

since the start      offered  passed delayed refused  2 wait; longest 4.8 s
  createURL               40      20       0      19  █████████████░░░░░░░░░░░░
  deleteURL               30      10      15       4  █████████▒▒▒▒▒▒▒▒▒▒▒▒▒░░░
  visits                   0       0       0       0
  payments                 0       0       0       0
  analytics                0       0       0       0
  all                     70      30      15      23  ███████████▒▒▒▒▒▒░░░░░░░░

last refusals
  createURL  alice (free)  Retry-After: 37    create-shard allows 3 per minute
  visits     none so far
  analytics  none so far
Ctrl-C stops. Change the limits meanwhile: docs/demo/policy.yaml";
        assert_eq!(text.join("\n"), expected);
        assert!(text.len() < 24, "{} lines", text.len());
    }

    #[test]
    fn lines_are_cut_and_coloured() {
        let line = Line(vec![(Ink::Passed, "██".to_owned()), (Ink::Plain, "abc".to_owned())]);
        assert_eq!(line.text(79, true), "\x1b[32m██\x1b[0mabc");
        assert_eq!(line.text(3, true), "\x1b[32m██\x1b[0ma");
        assert_eq!(line.text(1, false), "█");
        assert_eq!(line.text(0, true), "");
    }

    #[test]
    fn a_flood_does_not_make_a_bar_too_long() {
        let mut view = view();
        let flood = Counts { offered: u64::MAX, passed: u64::MAX, delayed: 9, refused: u64::MAX };
        view.recent.counts.insert((Call::Visit, Plan::Visitor), flood);
        view.sums.counts.insert((Call::Visit, Plan::Visitor), flood);
        for line in picture(&view) {
            let text = line.text(usize::MAX, false);
            assert!(text.chars().filter(|c| "█▒░".contains(*c)).count() <= 25, "{text}");
        }
    }

    #[test]
    fn failures_are_shown() {
        let mut view = view();
        view.sums.failed = 3;
        view.sums.last_failure = Some("status 502".to_owned());
        let lines = picture(&view);
        let last = lines.last().unwrap().text(79, false);
        assert_eq!(last, "3 requests failed; the last: status 502");
        assert_eq!(summary(&view), "1:23 offered 70, passed 30, delayed 15, refused 23, failed 3");
    }
}
