//! `tidegate admin override`, `tier` and `rule`: changes of what applies, for a time or until they are removed.
//!
//! Each is first sent as a dry run, so that the server checks it before the operator is asked.

use super::consent::{self, ChangeFlags, Consent};
use super::moment::seconds;
use super::person::pairs;
use super::{AdminSession, accepted, key_text, number, print_json, shown};
use crate::cli::client::ApiRequest;
use clap::{Args, ValueEnum};
use http::Method;
use serde_json::{Map, Value, json};
use std::io::{self, Write};
use std::process::ExitCode;
use tidegate_policy::printable;

/// Until when a change holds.
#[derive(Args)]
struct Until {
    /// How long the change holds, such as `90s`, `15min`, `1h` or `7days`; without it, until it is removed.
    #[arg(long = "for", value_name = "TIME", value_parser = seconds)]
    span: Option<u64>,
    /// Until when the change holds, such as `2026-12-24T18:00:00Z`.
    #[arg(long, value_name = "TIME", conflicts_with = "span")]
    until: Option<String>,
}

#[derive(Args)]
pub(super) struct OverrideOptions {
    /// Whose limits are changed: attributes of the key of the rule, such as `user=alice`.
    #[arg(value_name = "ATTRIBUTE=VALUE", required = true)]
    attributes: Vec<String>,
    /// The rule.
    #[arg(long, value_name = "RULE")]
    rule: String,
    /// The limits, such as `100/s` or `100/s,5000/h`, or `unlimited`.
    #[arg(long, value_name = "LIMITS", value_delimiter = ',', required_unless_present = "remove")]
    limits: Vec<String>,
    /// Removes the override.
    #[arg(long, conflicts_with_all = ["limits", "span", "until"])]
    remove: bool,
    #[command(flatten)]
    until: Until,
    #[command(flatten)]
    flags: ChangeFlags,
}

#[derive(Args)]
pub(super) struct TierOptions {
    /// Whose tier is changed, such as `user=alice`.
    #[arg(value_name = "ATTRIBUTE=VALUE")]
    attribute: String,
    /// The tier.
    #[arg(value_name = "TIER", required_unless_present = "remove")]
    tier: Option<String>,
    /// Removes the assignment.
    #[arg(long, conflicts_with_all = ["tier", "span", "until"])]
    remove: bool,
    #[command(flatten)]
    until: Until,
    #[command(flatten)]
    flags: ChangeFlags,
}

#[derive(Args)]
pub(super) struct RuleOptions {
    /// What to do with the rule.
    action: RuleAction,
    /// The rule; `*` is every rule without a switch of its own.
    rule: String,
    #[command(flatten)]
    until: Until,
    #[command(flatten)]
    flags: ChangeFlags,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RuleAction {
    /// Switches it on.
    Enable,
    /// Switches it off: it neither counts nor refuses.
    Disable,
    /// It counts and reports, and refuses nothing.
    Shadow,
    /// It refuses again what is above its limits.
    Enforce,
    /// Removes all switches, so that the policy decides.
    Restore,
}

/// A change of the control document, in JSON and in words.
struct Requested<'o> {
    path: &'static str,
    body: Value,
    words: String,
    flags: &'o ChangeFlags,
}

pub(super) fn put_override(
    session: &AdminSession,
    options: &OverrideOptions,
    json: bool,
    out: &mut impl Write,
) -> io::Result<ExitCode> {
    let OverrideOptions { rule, until, flags, .. } = options;
    let key: Value = pairs(&options.attributes)?.into();
    let limits = match options.limits.as_slice() {
        [] => Value::Null,
        [word] if word == "unlimited" => json!(word),
        limits => json!(limits),
    };
    let of = format!("override of {} for {}", printable(rule), key_text(&key));
    let words = if limits.is_null() {
        format!("Remove the {of}")
    } else {
        format!("Set the {of} to {}{}", shown(&limits), until.words())
    };
    let body = json!({ "rule": rule, "key": key, "limits": limits });
    let body = until.added_to(body, flags);
    Requested { path: "/admin/v1/overrides", body, words, flags }.make(session, json, out)
}

pub(super) fn put_tier(
    session: &AdminSession,
    options: &TierOptions,
    json: bool,
    out: &mut impl Write,
) -> io::Result<ExitCode> {
    let TierOptions { tier, until, flags, .. } = options;
    let pair = pairs(std::slice::from_ref(&options.attribute))?;
    let who = key_text(&Value::Object(pair.clone()));
    let words = match tier {
        None => format!("Remove the tier of {who}"),
        Some(tier) => format!("Set the tier of {who} to {}{}", printable(tier), until.words()),
    };
    let (attribute, value) = pair.into_iter().next().unwrap_or_default();
    let body = json!({ "attribute": attribute, "value": value, "tier": tier });
    let body = until.added_to(body, flags);
    Requested { path: "/admin/v1/tiers", body, words, flags }.make(session, json, out)
}

pub(super) fn put_rule(
    session: &AdminSession,
    options: &RuleOptions,
    json: bool,
    out: &mut impl Write,
) -> io::Result<ExitCode> {
    let RuleOptions { action, rule, until, flags } = options;
    let (switches, verb) = match action {
        RuleAction::Enable => (json!({ "enabled": true }), "Enable"),
        RuleAction::Disable => (json!({ "enabled": false }), "Disable"),
        RuleAction::Shadow => (json!({ "shadow": true }), "Put into shadow mode"),
        RuleAction::Enforce => (json!({ "shadow": false }), "Enforce"),
        RuleAction::Restore => {
            (json!({ "enabled": null, "shadow": null }), "Remove the switches of")
        }
    };
    let which = match rule.as_str() {
        "*" => "every rule without a switch of its own".to_owned(),
        name => format!("the rule {}", printable(name)),
    };
    let mut body = until.added_to(switches, flags);
    if let Some(fields) = body.as_object_mut() {
        fields.insert("rule".to_owned(), json!(rule));
    }
    let words = format!("{verb} {which}{}", until.words());
    Requested { path: "/admin/v1/rules", body, words, flags }.make(session, json, out)
}

// === impl Until ===

impl Until {
    /// The body of a request with the end of the change and its reason.
    fn added_to(&self, mut body: Value, flags: &ChangeFlags) -> Value {
        let span = self.span.map(|seconds| json!(seconds));
        let expires = span.or_else(|| self.until.as_ref().map(|time| json!(time)));
        let reason = flags.reason.as_ref().map(|reason| json!(reason));
        if let Some(fields) = body.as_object_mut() {
            let more = [("expires", expires), ("reason", reason)];
            let more = more.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
            fields.extend(more.collect::<Map<String, Value>>());
        }
        body
    }

    fn words(&self) -> String {
        match (self.span, &self.until) {
            (Some(seconds), _) => {
                let millis = seconds.saturating_mul(1_000);
                format!(" for {}", crate::cli::duration::of_millis(millis))
            }
            (None, Some(time)) => format!(" until {}", printable(time)),
            (None, None) => String::new(),
        }
    }
}

// === impl Requested ===

impl Requested<'_> {
    fn make(
        self,
        session: &AdminSession,
        json: bool,
        out: &mut impl Write,
    ) -> io::Result<ExitCode> {
        let planned = self.send(session, "?dry_run=true")?;
        if !json && !self.flags.yes {
            writeln!(out, "{}.", self.words)?;
        }
        let document = match consent::ask(self.flags, "Do it?")? {
            Consent::Given => self.send(session, "")?,
            Consent::NotAsked if json => planned,
            Consent::NotAsked => {
                writeln!(out, "The server would accept this. Nothing was changed.")?;
                return Ok(ExitCode::SUCCESS);
            }
            Consent::Declined => return consent::declined(out),
        };
        if json {
            print_json(&document, out)?;
        } else {
            let version = number(&document, "version").unwrap_or(0);
            writeln!(out, "Done; the changes of operators now have version {version}.")?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn send(&self, session: &AdminSession, query: &str) -> io::Result<Value> {
        let path = format!("{}{query}", self.path);
        accepted(session, &session.send(&ApiRequest::json(Method::PUT, path, &self.body))?)
    }
}
