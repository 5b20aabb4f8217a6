//! `tidegate admin status`, `nodes` and `audit`: how the server is, and who changed it.

use super::moment::{ago, at, now_ms};
use super::{AdminSession, flag, list, number, print_json, shown, text};
use crate::cli::table::{self, Column};
use crate::cli::{duration, style};
use clap::Args;
use serde_json::Value;
use std::io::{self, Write};

#[derive(Args)]
pub(super) struct AuditOptions {
    /// How many of the last lines are shown.
    #[arg(long, value_name = "N", default_value_t = 20)]
    last: usize,
}

// === status ===

const RULES: [Column; 6] = [
    Column::Left("rule"),
    Column::Right("allowed"),
    Column::Right("delayed"),
    Column::Right("refused"),
    Column::Right("would refuse"),
    Column::Right("over the limit"),
];

pub(super) fn status(session: &AdminSession, json: bool, out: &mut impl Write) -> io::Result<()> {
    let status = session.get("/admin/v1/status")?;
    if json {
        return print_json(&status, out);
    }
    let empty = Value::Null;
    let health = status.get("health").unwrap_or(&empty);
    let uptime = number(&status, "uptime_s").unwrap_or(0).saturating_mul(1_000);
    let (version, hash) = (text(&status, "tidegate"), text(&status, "policy_hash"));
    writeln!(
        out,
        "{}; tidegate {version}, up for {}; policy {hash}",
        word(health),
        duration::of_millis(uptime)
    )?;
    let reasons: Vec<String> = list(health, "reasons").map(shown).collect();
    for reason in &reasons {
        writeln!(out, "{}: {reason}", style::bad("problem"))?;
    }
    store(&status, &reasons, out)?;
    let rows: Vec<[String; 6]> = list(&status, "rules").map(rule).collect();
    if rows.is_empty() { Ok(()) } else { table::write(RULES, &rows, out) }
}

/// The health in one word.
fn word(health: &Value) -> String {
    match text(health, "status").as_str() {
        "ready" => style::good("ready").to_string(),
        other => style::bad(other).to_string(),
    }
}

fn store(status: &Value, reasons: &[String], out: &mut impl Write) -> io::Result<()> {
    let is_well = !reasons.iter().any(|reason| reason.starts_with("store"));
    let word = if is_well { "works" } else { "has a problem" };
    let missed = number(status, "store_errors").unwrap_or(0);
    write!(out, "The store {word}; {missed} requests were decided without it since the start")?;
    let memory = status.get("memory").filter(|memory| !memory.is_null());
    if let Some(memory) = memory {
        let count = |name: &str| number(memory, name).unwrap_or(0);
        let (states, used, budget) = (count("states"), count("bytes"), count("budget"));
        write!(out, "; {states} counters in {} of {} MiB", used >> 20, budget >> 20)?;
    }
    writeln!(out, ".")
}

fn rule(rule: &Value) -> [String; 6] {
    let count = |name: &str| number(rule, name).unwrap_or(0).to_string();
    let (allowed, delayed) = (count("allowed"), count("delayed"));
    [text(rule, "rule"), allowed, delayed, count("denied"), count("would_deny"), count("over")]
}

// === nodes ===

const NODES: [Column; 4] =
    [Column::Left("node"), Column::Left("policy"), Column::Left("last heard of"), Column::Left("")];

pub(super) fn nodes(session: &AdminSession, json: bool, out: &mut impl Write) -> io::Result<()> {
    let answer = session.get("/admin/v1/nodes")?;
    if json {
        return print_json(&answer, out);
    }
    let mut hashes: Vec<String> =
        list(&answer, "nodes").map(|node| text(node, "policy_hash")).collect();
    hashes.sort();
    hashes.dedup();
    let verdict = match hashes.len() {
        0 | 1 => style::good("All decide by the same policy.").to_string(),
        _ => style::bad("They decide by different policies.").to_string(),
    };
    let count = match number(&answer, "count").unwrap_or(1) {
        1 => "There is one node.".to_owned(),
        many => format!("There are {many} nodes."),
    };
    writeln!(out, "{count} {verdict}")?;
    let row = |node: &Value| {
        let silent = duration::of_millis(number(node, "silent_ms").unwrap_or(0));
        let is_this = flag(node, "this");
        let name = node.get("node").map(shown).unwrap_or_default();
        let this = if is_this { "this node" } else { "" };
        [name, text(node, "policy_hash"), format!("{silent} ago"), this.to_owned()]
    };
    let rows: Vec<[String; 4]> = list(&answer, "nodes").map(row).collect();
    table::write(NODES, &rows, out)
}

// === audit ===

const AUDIT: [Column; 5] = [
    Column::Left("when"),
    Column::Left("who"),
    Column::Left("what"),
    Column::Left("change"),
    Column::Left("reason"),
];

pub(super) fn audit(
    session: &AdminSession,
    options: &AuditOptions,
    json: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let lines = session.get(&format!("/admin/v1/audit?last={}", options.last))?;
    if json {
        return print_json(&lines, out);
    }
    let now_ms = now_ms();
    let row = |line: &Value| {
        let when = number(line, "at_ms").unwrap_or(0);
        let change = line.pointer("/details/change").unwrap_or(&Value::Null);
        [
            format!("{} ({})", at(when), ago(when, now_ms)),
            text(line, "who"),
            text(line, "what"),
            shortened(&shown(change)),
            text(line, "reason"),
        ]
    };
    let rows: Vec<[String; 5]> = lines.as_array().into_iter().flatten().map(row).collect();
    if rows.is_empty() {
        return writeln!(out, "Nothing was changed yet.");
    }
    table::write(AUDIT, &rows, out)
}

/// At most 100 characters, so that an uploaded policy does not fill the screen.
fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(100).collect();
    if text.chars().nth(100).is_some() {
        short.push('…');
    }
    short
}
