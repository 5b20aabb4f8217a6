//! Figures of the proxy, as rows of the table in BENCHMARKS.md: beside a peer, or beside a goal.

use crate::rounds::{Comparison, median};
use crate::say;

/// The results of one server, one for each round.
pub(crate) struct Rounds {
    pub(crate) name: &'static str,
    pub(crate) values: Vec<f64>,
}

/// The rows that compare the medians of tidegate, which is first, with those of the peers.
pub(crate) fn compared(
    case: &str,
    unit: &str,
    servers: impl IntoIterator<Item = Rounds>,
    json: bool,
) -> Vec<String> {
    let mut servers = servers.into_iter();
    let ours = servers.next().map_or(0.0, |ours| median(ours.values));
    let row = |peer: Rounds| {
        let (bench, peer_name, peer) = ("proxy", peer.name, median(peer.values));
        Comparison { bench, case, ours, peer, peer_name, unit }.print(json)
    };
    servers.map(row).collect()
}

/// What a figure must reach.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    AtMost(f64),
    AtLeast(f64),
    /// The figure is only reported.
    None,
}

impl Goal {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtMost(bound) => value <= bound,
            Self::AtLeast(bound) => value >= bound,
            Self::None => true,
        }
    }

    /// The goal in words, and its bound.
    fn text(self, unit: &str) -> (&'static str, String) {
        match self {
            Self::AtMost(bound) => ("goal: at most", format!("{bound:.0} {unit}")),
            Self::AtLeast(bound) => ("goal: at least", format!("{bound:.0} {unit}")),
            Self::None => ("", String::new()),
        }
    }
}

/// A figure that is compared with a goal instead of a peer.
pub(crate) struct GoalFigure<'g> {
    pub(crate) case: &'g str,
    pub(crate) value: f64,
    pub(crate) unit: &'g str,
    pub(crate) goal: Goal,
}

impl GoalFigure<'_> {
    /// Prints it, for people or as JSON, and returns it as a row of a Markdown table.
    pub(crate) fn print(&self, json: bool) -> String {
        let Self { case, value, unit, goal } = self;
        let (words, bound) = goal.text(unit);
        let met = match goal {
            Goal::AtMost(_) | Goal::AtLeast(_) if goal.is_met(*value) => "met",
            Goal::AtMost(_) | Goal::AtLeast(_) => "missed",
            Goal::None => "",
        };
        say(&if json {
            format!(
                "{{\"bench\":\"proxy\",\"case\":\"{case}\",\"ours\":{value:.1},\"unit\":\"{unit}\",\"goal\":\"{words} {bound}\",\"result\":\"{met}\"}}"
            )
        } else {
            format!("{case:36} {value:>12.1} {unit:6}  {words} {bound}  {met}")
        });
        format!("| {case} | {value:.0} {unit} | {words} | {bound} | {met} |\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_says_whether_its_goal_is_met() {
        let row = |value, goal| GoalFigure { case: "x", value, unit: "ms", goal }.print(false);
        assert_eq!(row(3.0, Goal::AtMost(3.0)), "| x | 3 ms | goal: at most | 3 ms | met |\n");
        assert_eq!(row(4.0, Goal::AtMost(3.0)), "| x | 4 ms | goal: at most | 3 ms | missed |\n");
        assert_eq!(row(4.0, Goal::AtLeast(3.0)), "| x | 4 ms | goal: at least | 3 ms | met |\n");
        assert_eq!(row(4.0, Goal::None), "| x | 4 ms |  |  |  |\n");
    }
}
