//! `tidegate top`: who uses the limits and who is refused, live in the terminal.
//!
//! ```text
//!   admin API ──► figures: what was answered, and the rates since the answer before ──┬─► screen, again every two seconds
//!                                                                                     ├─► tables   --once
//!                                                                                     └─► JSON     --json
//! ```

mod figures;
mod screen;

use super::admin::access::AdminAccess;
use super::table::{self, Column};
use super::{duration, style};
use crate::front::admin::AdminRole;
use crate::top_keys::TopBy;
use clap::Args;
use figures::{Figures, TopQuestion};
use std::io::{self, IsTerminal, Write};
use tidegate_policy::printable;

#[derive(Args)]
pub(crate) struct TopOptions {
    #[command(flatten)]
    access: AdminAccess,
    /// What is counted: `used` (the cost of requests that passed), `denied`, or `would_deny` (requests that a rule in shadow mode
    /// would have refused).
    #[arg(long, value_name = "TALLY", default_value = "denied", value_parser = tally)]
    by: TopBy,
    /// Only this rule.
    #[arg(long, value_name = "RULE")]
    rule: Option<String>,
    /// How many keys of each rule are shown, at most 100.
    #[arg(long, value_name = "N", default_value_t = 10)]
    last: usize,
    /// Prints tables once, and ends. It is also done if the output is not a terminal.
    #[arg(long)]
    once: bool,
    /// Prints the answers of the server as JSON, for programs.
    #[arg(long)]
    json: bool,
}

fn tally(name: &str) -> Result<TopBy, String> {
    TopBy::of(name).ok_or_else(|| "`used`, `denied` or `would_deny`".to_owned())
}

pub(crate) fn run(options: &TopOptions, out: &mut impl Write) -> io::Result<()> {
    let session = options.access.connect(AdminRole::Reader)?;
    let asked = TopQuestion { by: options.by, rule: options.rule.clone(), last: options.last };
    if !options.once && !options.json && io::stdout().is_terminal() {
        return screen::run(&session, asked);
    }
    let figures = Figures::fetch(&session, &asked)?;
    if options.json {
        return writeln!(out, "{}", printable(&figures.json().to_string()));
    }
    show(&figures, out)
}

const KEYS: [Column; 4] =
    [Column::Left("rule"), Column::Left("key"), Column::Right("count"), Column::Right("±")];
const RULES: [Column; 5] = [
    Column::Left("rule"),
    Column::Right("allowed"),
    Column::Right("delayed"),
    Column::Right("denied"),
    Column::Right("would deny"),
];
const NODES: [Column; 3] =
    [Column::Left("node"), Column::Left("policy"), Column::Left("silent for")];

/// Prints the figures for people.
fn show(figures: &Figures, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}", style::heading(figures.title()))?;
    if figures.keys.is_empty() {
        writeln!(out, "  no key")?;
    } else {
        let row = |key: &figures::KeyRow| {
            let error = Some(key.error).filter(|error| *error > 0);
            let error = error.map(|error| error.to_string()).unwrap_or_default();
            [key.rule.clone(), key.key.clone(), key.count.to_string(), error]
        };
        table::write(KEYS, &figures.keys.iter().map(row).collect::<Vec<_>>(), out)?;
    }
    writeln!(out, "\n{}", style::heading("Rules on this node"))?;
    let row = |rule: &figures::RuleRow| {
        let [allowed, delayed, denied, would_deny] = rule.counts.map(|count| count.to_string());
        [rule.rule.clone(), allowed, delayed, denied, would_deny]
    };
    table::write(RULES, &figures.rules.iter().map(row).collect::<Vec<_>>(), out)?;
    writeln!(out, "\n{}", style::heading("Nodes"))?;
    let row = |node: &figures::NodeRow| {
        let silent = Some(node.silent_ms).filter(|silent| *silent > 0);
        [
            node.name.clone(),
            node.policy.clone(),
            silent.map(duration::of_millis).unwrap_or_default(),
        ]
    };
    table::write(NODES, &figures.nodes.iter().map(row).collect::<Vec<_>>(), out)?;
    match &figures.problems[..] {
        [] => writeln!(out, "\n{}", style::good("No problems found")),
        problems => {
            problems.iter().try_for_each(|problem| writeln!(out, "\n{}", style::bad(problem)))
        }
    }
}
