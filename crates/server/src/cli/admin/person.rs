//! `tidegate admin who` and `reset`: one person, of whom a user name, an address or another attribute is known.

use super::consent::{self, ChangeFlags, Consent};
use super::moment::{ago, ahead, at, now_ms};
use super::{AdminSession, accepted, flag, key_text, list, number, print_json, shown, text};
use crate::cli::client::ApiRequest;
use crate::cli::table::{self, Column};
use crate::cli::{duration, style};
use clap::Args;
use http::Method;
use serde_json::{Map, Value, json};
use std::io::{self, Write};
use std::process::ExitCode;
use tidegate_policy::printable;

#[derive(Args)]
pub(super) struct WhoOptions {
    /// What is known of the person, such as `user=alice ip=203.0.113.7 tier=pro`.
    #[arg(value_name = "ATTRIBUTE=VALUE", required = true)]
    attributes: Vec<String>,
}

#[derive(Args)]
pub(super) struct ResetOptions {
    /// What is known of the person, such as `user=alice ip=203.0.113.7`.
    #[arg(value_name = "ATTRIBUTE=VALUE", required = true)]
    attributes: Vec<String>,
    /// Only under this rule.
    #[arg(long, value_name = "RULE")]
    rule: Option<String>,
    #[command(flatten)]
    flags: ChangeFlags,
}

/// Attributes as a JSON object. A value may be a secret, so an error names only the attribute.
pub(super) fn pairs(words: &[String]) -> io::Result<Map<String, Value>> {
    let mut pairs = Map::new();
    for word in words {
        let shown = printable(word.split('=').next().unwrap_or_default());
        let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
        let (name, value) = word.split_once('=').ok_or_else(|| {
            invalid(format!("`{shown}` is not a valid attribute; write it like `user=alice`"))
        })?;
        if pairs.insert(name.to_owned(), json!(value)).is_some() {
            return Err(invalid(format!("`{shown}` is given twice; give it once")));
        }
    }
    Ok(pairs)
}

// === who ===

pub(super) fn who(
    session: &AdminSession,
    options: &WhoOptions,
    json: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let body = json!({ "attributes": pairs(&options.attributes)? });
    let response = session.send(&ApiRequest::json(Method::POST, "/admin/v1/who", &body))?;
    let person = accepted(session, &response)?;
    if json { print_json(&person, out) } else { show(&person, now_ms(), out) }
}

const LIMITS: [Column; 8] = [
    Column::Left("rule"),
    Column::Left("key"),
    Column::Left("limit"),
    Column::Left("used"),
    Column::Right("left"),
    Column::Left("full again in"),
    Column::Left("now"),
    Column::Left("limit from"),
];

const DENIALS: [Column; 5] = [
    Column::Left("refused by"),
    Column::Left("key"),
    Column::Right("times"),
    Column::Left("since"),
    Column::Left("last"),
];

fn show(person: &Value, now_ms: u64, out: &mut impl Write) -> io::Result<()> {
    let (scope, hash) = (text(person, "scope"), text(person, "policy_hash"));
    writeln!(out, "Figures of {scope}, under the policy {hash}.")?;
    if let Some(tier) = person.get("tier").filter(|tier| !tier.is_null()) {
        let by = if text(tier, "from") == "operator" { note(tier, now_ms) } else { String::new() };
        writeln!(out, "Tier {}{by}.", text(tier, "name"))?;
    }
    let rows: Vec<[String; 8]> = list(person, "rules").flat_map(rows).collect();
    if rows.is_empty() {
        writeln!(out, "No rule counts by these attributes alone.")?;
    } else {
        table::write(LIMITS, &rows, out)?;
    }
    for rule in list(person, "rules") {
        notes(rule, now_ms, out)?;
    }
    denials(person, now_ms, out)?;
    for rule in list(person, "not_covered") {
        let needs = rule.get("needs").map(shown).unwrap_or_default();
        writeln!(out, "Not shown: {}, because {needs} is not given.", text(rule, "rule"))?;
    }
    Ok(())
}

/// One row for each limit of a rule.
fn rows(rule: &Value) -> Vec<[String; 8]> {
    let name = text(rule, "rule");
    let key = match text(rule, "key_text") {
        key if key.is_empty() => key_text(rule.get("key").unwrap_or(&Value::Null)),
        key => key,
    };
    let from = text(rule, "from");
    let mut rows: Vec<[String; 8]> = list(rule, "limits")
        .map(|limit| {
            let count = |name: &str| number(limit, name).unwrap_or(0);
            [
                name.clone(),
                key.clone(),
                text(limit, "rate"),
                format!("{} of {}", count("used"), count("limit")),
                count("remaining").to_string(),
                number(limit, "reset_ms").map(duration::of_millis).unwrap_or_default(),
                answer(rule, limit),
                from.clone(),
            ]
        })
        .collect();
    if rows.is_empty() {
        let none = String::new;
        rows.push([name, key, "unlimited".to_owned(), none(), none(), none(), none(), from]);
    }
    rows
}

/// What a limit would answer to the next request.
fn answer(rule: &Value, limit: &Value) -> String {
    let (enabled, shadow) = (flag(rule, "enabled"), flag(rule, "shadow"));
    let wait = number(limit, "retry_after_ms");
    let wait = wait.map(|wait| format!(" for {}", duration::of_millis(wait))).unwrap_or_default();
    match (enabled, flag(limit, "allowed"), shadow) {
        (false, _, _) => "off".to_owned(),
        (true, true, _) => "passes".to_owned(),
        (true, false, true) => format!("would refuse{wait} (shadow)"),
        (true, false, false) => format!("refuses{wait}"),
    }
}

/// The override of a rule, and when the rule applies at all.
fn notes(rule: &Value, now_ms: u64, out: &mut impl Write) -> io::Result<()> {
    let name = text(rule, "rule");
    if let Some(over) = rule.get("override").filter(|over| !over.is_null()) {
        let limits = over.get("limits").map(shown).unwrap_or_default();
        writeln!(out, "Override of {name}: {limits}{}.", note(over, now_ms))?;
    }
    match text(rule, "only_when") {
        condition if condition.is_empty() => Ok(()),
        condition => writeln!(out, "{name} applies only if: {condition}."),
    }
}

/// Who made a change, until when it holds, and why.
fn note(change: &Value, now_ms: u64) -> String {
    let mut note = String::new();
    match (text(change, "by"), number(change, "since_ms")) {
        (by, _) if by.is_empty() => note.push_str(", set in the policy"),
        (by, Some(since)) => note.push_str(&format!(", set by {by} {}", ago(since, now_ms))),
        (by, None) => note.push_str(&format!(", set by {by}")),
    }
    if let Some(end) = number(change, "expires_at_ms") {
        note.push_str(&format!(", until {} ({})", at(end), ahead(end, now_ms)));
    }
    match text(change, "reason") {
        reason if reason.is_empty() => note,
        reason => format!("{note}: {reason}"),
    }
}

/// The keys of the person that were refused lately.
fn denials(person: &Value, now_ms: u64, out: &mut impl Write) -> io::Result<()> {
    let rows: Vec<[String; 5]> = list(person, "rules")
        .chain(list(person, "seen"))
        .filter_map(|rule| {
            let denied = rule.get("denied").filter(|denied| !denied.is_null())?;
            let since = number(denied, "first_ms").unwrap_or(0);
            Some([
                text(rule, "rule") + if flag(denied, "would_deny") { " (shadow)" } else { "" },
                key_text(rule.get("key").unwrap_or(&Value::Null)),
                number(denied, "denials").unwrap_or(0).to_string(),
                format!("{} ({})", at(since), ago(since, now_ms)),
                ago(number(denied, "last_ms").unwrap_or(0), now_ms),
            ])
        })
        .collect();
    if rows.is_empty() {
        return writeln!(out, "{}", style::good("Not refused lately, as far as this node knows."));
    }
    table::write(DENIALS, &rows, out)
}

// === reset ===

const COUNTERS: [Column; 2] = [Column::Left("rule"), Column::Right("counters")];

pub(super) fn reset(
    session: &AdminSession,
    options: &ResetOptions,
    json: bool,
    out: &mut impl Write,
) -> io::Result<ExitCode> {
    let ask = |dry_run: bool| {
        let mut body = json!({ "attributes": pairs(&options.attributes)?, "dry_run": dry_run });
        if let (Some(fields), Some(rule)) = (body.as_object_mut(), &options.rule) {
            fields.insert("rule".to_owned(), json!(rule));
        }
        if let (Some(fields), Some(reason)) = (body.as_object_mut(), &options.flags.reason) {
            fields.insert("reason".to_owned(), json!(reason));
        }
        accepted(session, &session.send(&ApiRequest::json(Method::POST, "/admin/v1/reset", &body))?)
    };
    let planned = ask(true)?;
    if !json {
        show_counters(options, &planned, out)?;
    }
    let question = format!("Reset {}?", counters(&planned));
    let answer = match consent::ask(&options.flags, &question)? {
        Consent::Given => ask(false)?,
        Consent::NotAsked if json => planned,
        Consent::NotAsked => return done(out, "Nothing was reset."),
        Consent::Declined => return consent::declined(out),
    };
    if json {
        print_json(&answer, out)?;
        return Ok(ExitCode::SUCCESS);
    }
    done(out, &format!("Reset {}.", counters(&answer)))
}

fn counters(answer: &Value) -> String {
    match number(answer, "states").unwrap_or(0) {
        1 => "1 counter".to_owned(),
        many => format!("{many} counters"),
    }
}

fn done(out: &mut impl Write, text: &str) -> io::Result<ExitCode> {
    writeln!(out, "{text}")?;
    Ok(ExitCode::SUCCESS)
}

fn show_counters(options: &ResetOptions, planned: &Value, out: &mut impl Write) -> io::Result<()> {
    if options.rule.is_some() {
        return Ok(());
    }
    let row = |rule: &Value| [text(rule, "rule"), number(rule, "states").unwrap_or(0).to_string()];
    let rows: Vec<[String; 2]> = list(planned, "rules").map(row).collect();
    if !rows.is_empty() {
        table::write(COUNTERS, &rows, out)?;
    }
    for rule in list(planned, "not_covered") {
        let (name, needs) = (text(rule, "rule"), rule.get("needs").map(shown).unwrap_or_default());
        if needs.is_empty() {
            writeln!(out, "Not reset: {name}, which counts all requests together.")?;
        } else {
            writeln!(out, "Not reset: {name}, because {needs} is not given.")?;
        }
    }
    Ok(())
}
