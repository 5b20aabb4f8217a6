//! `tidegate check`: asks a running server, or evaluates a policy file, whether a request may pass.

use super::client::{ApiClient, ApiRequest};
use super::policy::{attributes, source::PolicyFile};
use super::table::{self, Column};
use super::{duration, style};
use crate::front::http::VerdictText;
use clap::Args;
use http::{Method, StatusCode, Uri};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidegate::{Check, Clock, Limiter, Memory};
use tidegate_policy::printable;

#[derive(Args)]
pub(crate) struct CheckOptions {
    /// Attributes of the request, such as `ip=203.0.113.7 method=POST path=/urls user=alice`.
    #[arg(value_name = "ATTRIBUTE=VALUE")]
    attributes: Vec<String>,
    /// The server to ask.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    server: Uri,
    /// CA bundle (PEM) used to verify the certificate of an https server.
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// Evaluates this policy file instead, with all counters at zero.
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    policy: Option<PathBuf>,
    /// The cost of the request.
    #[arg(long, default_value_t = 1)]
    cost: u64,
    /// Asks without counting.
    #[arg(long)]
    peek: bool,
    /// Prints the verdict as JSON.
    #[arg(long)]
    json: bool,
}

/// The exit code for a request that may not pass.
const REFUSED: u8 = 1;

/// The exit code is 0 if the request may pass, 1 if it may not, and 2 on error.
pub(crate) fn run(options: &CheckOptions, out: &mut impl Write) -> io::Result<ExitCode> {
    // Invalid attributes are reported before the server is asked.
    attributes(&options.attributes)?;
    let verdict = match &options.policy {
        Some(path) => match of_policy(path, options, out)? {
            Some(verdict) => verdict,
            None => return Ok(ExitCode::from(2)),
        },
        None => of_server(options)?,
    };
    if options.json {
        writeln!(out, "{}", printable(&verdict.to_string()))?;
    } else {
        show(&verdict, out)?;
    }
    let allowed = verdict.get("allowed").and_then(Value::as_bool).unwrap_or(false);
    Ok(if allowed { ExitCode::SUCCESS } else { ExitCode::from(REFUSED) })
}

// === a policy ===

/// The verdict of a limiter whose counters are at zero; `None` if the policy has errors, which are printed.
fn of_policy(
    path: &Path,
    options: &CheckOptions,
    out: &mut impl Write,
) -> io::Result<Option<Value>> {
    let Some(policy) = PolicyFile::read(path)?.parse(out)? else { return Ok(None) };
    let clock = Clock::system();
    let store = Memory::new(clock.clone());
    let limiter = Limiter::new(policy, store, tidegate::Secret::random()?, clock)
        .map_err(io::Error::other)?;
    let attributes = attributes(&options.attributes)?;
    let check = Check::new(&attributes).cost(options.cost);
    let verdict = limiter.check_now(&check).map_err(io::Error::other)?;
    let mut text = Vec::new();
    VerdictText::new(&verdict, &limiter).write(&mut text);
    Ok(Some(serde_json::from_slice(&text)?))
}

// === a server ===

fn of_server(options: &CheckOptions) -> io::Result<Value> {
    let client = ApiClient::new(&options.server, options.cacert.as_deref());
    let path = if options.peek { "/v1/peek" } else { "/v1/check" };
    let response = client.send(&ApiRequest::json(Method::POST, path, &body(options)?))?;
    let verdict = response.json().filter(|body| body.get("allowed").is_some());
    match (response.status, verdict) {
        (StatusCode::OK | StatusCode::TOO_MANY_REQUESTS, Some(verdict)) => Ok(verdict),
        _ => Err(client.refused(&response)),
    }
}

fn body(options: &CheckOptions) -> io::Result<Value> {
    let attributes = attributes(&options.attributes)?;
    let pairs: serde_json::Map<String, Value> =
        attributes.iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
    Ok(json!({ "attributes": pairs, "cost": options.cost }))
}

// === showing ===

/// One row for each limit that applies.
const LIMITS: [Column; 6] = [
    Column::Left("rule"),
    Column::Left("limit"),
    Column::Right("left"),
    Column::Left("full again in"),
    Column::Left("algorithm"),
    Column::Left("its answer"),
];

/// Prints a verdict for people: the answer, then a table of the limits that apply.
fn show(verdict: &Value, out: &mut impl Write) -> io::Result<()> {
    let (allowed, refused) = (style::good("allowed"), style::bad("refused"));
    match text(verdict, "outcome").as_str() {
        "allow" => writeln!(out, "{allowed}")?,
        "delay" => {
            let wait = number(verdict, "delay_ms").unwrap_or(0);
            writeln!(out, "{allowed}, after {}", duration::of_millis(wait))?;
        }
        _ => match number(verdict, "retry_after_ms") {
            Some(wait) => writeln!(out, "{refused}; try again in {}", duration::of_millis(wait))?,
            None => writeln!(out, "{refused}; it can never pass")?,
        },
    }
    let limits = verdict.get("limits").and_then(Value::as_array);
    let rows: Vec<_> = limits.into_iter().flatten().map(row).collect();
    if rows.is_empty() {
        return writeln!(out, "  no rule applies to it");
    }
    table::write(LIMITS, &rows, out)
}

fn row(limit: &Value) -> [String; 6] {
    let amount = number(limit, "limit").unwrap_or(0);
    let per = match number(limit, "per_ms") {
        Some(per) => period(&duration::of_millis(per)),
        None if text(limit, "algorithm") == "concurrent" => "at a time".to_owned(),
        None => format!("per {}", text(limit, "window")),
    };
    [
        text(limit, "rule"),
        format!("{amount} {per}"),
        number(limit, "remaining").unwrap_or(0).to_string(),
        number(limit, "reset_ms").map(duration::of_millis).unwrap_or_default(),
        text(limit, "algorithm"),
        answer(limit),
    ]
}

/// A period after an amount: `per s`, `per 15 min`.
fn period(duration: &str) -> String {
    let unit = duration.strip_prefix("1 ").filter(|unit| !unit.contains(' '));
    format!("per {}", unit.unwrap_or(duration))
}

/// What one limit says, unless it lets the request pass now.
fn answer(limit: &Value) -> String {
    let shadow = limit.get("shadow").and_then(Value::as_bool).unwrap_or(false);
    match (text(limit, "outcome").as_str(), shadow) {
        ("deny", false) => "refuses".to_owned(),
        ("deny", true) => "would refuse (shadow)".to_owned(),
        ("delay", _) => "delays".to_owned(),
        _ => String::new(),
    }
}

fn number(value: &Value, name: &str) -> Option<u64> {
    value.get(name).and_then(Value::as_u64)
}

fn text(value: &Value, name: &str) -> String {
    printable(value.get(name).and_then(Value::as_str).unwrap_or_default())
}
