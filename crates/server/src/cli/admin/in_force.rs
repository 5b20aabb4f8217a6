//! `tidegate admin changes`: the changes of operators that are in force.

use super::moment::{ahead, at, now_ms};
use super::{AdminSession, key_text, list, number, print_json, shown, text};
use crate::cli::table::{self, Column};
use serde_json::Value;
use std::io::{self, Write};

const CHANGES: [Column; 6] = [
    Column::Left("change"),
    Column::Left("of"),
    Column::Left("to"),
    Column::Left("until"),
    Column::Left("by"),
    Column::Left("reason"),
];

pub(super) fn changes(session: &AdminSession, json: bool, out: &mut impl Write) -> io::Result<()> {
    let document = session.get("/admin/v1/control")?;
    if json {
        return print_json(&document, out);
    }
    let now_ms = now_ms();
    let uploaded = document.get("policy").is_some_and(|policy| !policy.is_null());
    let from = if uploaded { "an uploaded policy" } else { "the policy file" };
    let version = number(&document, "version").unwrap_or(0);
    writeln!(out, "Version {version}; {from} is in force.")?;
    let rules =
        list(&document, "rules").map(|one| row("rule", text(one, "rule"), switch(one), one));
    let overrides = list(&document, "overrides").map(|one| {
        let key = key_text(one.get("key").unwrap_or(&Value::Null));
        let of = format!("{} for {key}", text(one, "rule"));
        row("override", of, one.get("limits").map(shown).unwrap_or_default(), one)
    });
    let tiers = list(&document, "tiers").map(|one| {
        let of = format!("{}={}", text(one, "attribute"), text(one, "value"));
        row("tier", of, text(one, "tier"), one)
    });
    let rows = rules.chain(overrides).chain(tiers);
    let rows: Vec<[String; 6]> = rows.map(|row| row.finish(now_ms)).collect();
    if rows.is_empty() {
        return writeln!(out, "There are no changes of rules, limits or tiers.");
    }
    table::write(CHANGES, &rows, out)
}

/// A change of one subject.
struct ChangeRow<'v> {
    kind: &'static str,
    of: String,
    to: String,
    entry: &'v Value,
}

const fn row<'v>(kind: &'static str, of: String, to: String, entry: &'v Value) -> ChangeRow<'v> {
    ChangeRow { kind, of, to, entry }
}

impl ChangeRow<'_> {
    fn finish(self, now_ms: u64) -> [String; 6] {
        let end = number(self.entry, "expires_at_ms");
        let until = end.map(|end| format!("{} ({})", at(end), ahead(end, now_ms)));
        let (by, reason) = (text(self.entry, "by"), text(self.entry, "reason"));
        [self.kind.to_owned(), self.of, self.to, until.unwrap_or_default(), by, reason]
    }
}

/// The switches of a rule in words.
fn switch(entry: &Value) -> String {
    let is = |name: &str| entry.get(name).and_then(Value::as_bool);
    let words = [
        is("enabled").map(|on| if on { "on" } else { "off" }),
        is("shadow").map(|on| if on { "shadow" } else { "enforced" }),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
