//! `tidegate admin policy`: the policy in force, and another one in its place.

use super::consent::{self, ChangeFlags, Consent};
use super::{AdminAccess, AdminSession, accepted, list, print_json, shown, text};
use crate::cli::client::ApiRequest;
use crate::cli::policy::source::PolicyFile;
use crate::cli::style;
use crate::front::admin::AdminRole;
use clap::{Args, Subcommand};
use http::Method;
use serde_json::Value;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidegate_policy::printable;

#[derive(Args)]
pub(super) struct PolicyCommandOptions {
    #[command(subcommand)]
    command: Option<LivePolicyCommand>,
}

#[derive(Subcommand)]
enum LivePolicyCommand {
    /// Prints the policy in force, which is also the default.
    Show,
    /// Shows what a policy file would change, and its warnings.
    Diff {
        /// The policy file; `-` is the standard input.
        file: PathBuf,
    },
    /// Puts a policy file in force, on all nodes that share the store.
    Put {
        /// The policy file; `-` is the standard input.
        file: PathBuf,
        /// Puts it in force although it drops most of the rules.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        flags: ChangeFlags,
    },
    /// Withdraws the policy that was put in force: the policy file of the server decides again.
    Withdraw {
        #[command(flatten)]
        flags: ChangeFlags,
    },
}

pub(super) fn run(
    access: &AdminAccess,
    options: &PolicyCommandOptions,
    json: bool,
    out: &mut impl Write,
) -> io::Result<ExitCode> {
    let operator = || access.connect(AdminRole::Operator);
    match options.command.as_ref().unwrap_or(&LivePolicyCommand::Show) {
        LivePolicyCommand::Show => show(&access.connect(AdminRole::Reader)?, json, out),
        LivePolicyCommand::Diff { file } => {
            let answer = upload(&operator()?, file, "?dry_run=true")?;
            print(&answer, json, out)?;
            Ok(ExitCode::SUCCESS)
        }
        LivePolicyCommand::Put { file, force, flags } => {
            put(&operator()?, (file, *force), flags, json, out)
        }
        LivePolicyCommand::Withdraw { flags } => withdraw(&operator()?, flags, json, out),
    }
}

fn show(session: &AdminSession, json: bool, out: &mut impl Write) -> io::Result<ExitCode> {
    let response = session.send(&ApiRequest::get("/admin/v1/policy"))?;
    if !response.status.is_success() {
        return Err(session.refused(&response));
    }
    let text = String::from_utf8_lossy(&response.body);
    if json {
        print_json(&serde_json::json!({ "policy": text }), out)?;
    } else {
        text.lines().try_for_each(|line| writeln!(out, "{}", printable(line)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn put(
    session: &AdminSession,
    (file, force): (&Path, bool),
    flags: &ChangeFlags,
    json: bool,
    out: &mut impl Write,
) -> io::Result<ExitCode> {
    let source = PolicyFile::read(file)?;
    let planned = sent(session, &source.bytes, "?dry_run=true")?;
    if !json {
        print(&planned, false, out)?;
    }
    let query = if force { "?force=true" } else { "" };
    match consent::ask(flags, "Put this policy in force?")? {
        Consent::Given => {
            let answer = sent(session, &source.bytes, query)?;
            finished(&answer, json, "The policy is in force.", out)
        }
        Consent::NotAsked => finished(&planned, json, "Nothing was changed.", out),
        Consent::Declined => consent::declined(out),
    }
}

fn withdraw(
    session: &AdminSession,
    flags: &ChangeFlags,
    json: bool,
    out: &mut impl Write,
) -> io::Result<ExitCode> {
    match consent::ask(flags, "Return to the policy file of the server?")? {
        Consent::Given => {
            let request = ApiRequest::of(Method::DELETE, "/admin/v1/policy");
            let answer = accepted(session, &session.send(&request)?)?;
            finished(&answer, json, "The policy file of the server is in force.", out)
        }
        Consent::NotAsked => {
            writeln!(out, "The policy file of the server would be in force. Nothing was changed.")?;
            Ok(ExitCode::SUCCESS)
        }
        Consent::Declined => consent::declined(out),
    }
}

fn finished(answer: &Value, json: bool, text: &str, out: &mut impl Write) -> io::Result<ExitCode> {
    if json {
        print_json(answer, out)?;
    } else {
        writeln!(out, "{text}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Uploads a policy file.
fn upload(session: &AdminSession, file: &Path, query: &str) -> io::Result<Value> {
    sent(session, &PolicyFile::read(file)?.bytes, query)
}

fn sent(session: &AdminSession, text: &[u8], query: &str) -> io::Result<Value> {
    let path = format!("/admin/v1/policy{query}");
    let request = ApiRequest::of(Method::PUT, path).with_body("application/yaml", text);
    let response = session.send(&request)?;
    let body = response.json().unwrap_or_default();
    let problems: Vec<String> = list(&body, "problems").map(problem).collect();
    if problems.is_empty() {
        return accepted(session, &response);
    }
    Err(io::Error::other(format!("the policy is not valid:\n{}", problems.join("\n"))))
}

fn problem(problem: &Value) -> String {
    let number = |name: &str| super::number(problem, name).unwrap_or(0);
    format!("{}:{}: {}", number("line"), number("column"), text(problem, "text"))
}

/// The difference between the policy in force and another.
fn print(answer: &Value, json: bool, out: &mut impl Write) -> io::Result<()> {
    if json {
        return print_json(answer, out);
    }
    let difference = answer.get("difference").unwrap_or(&Value::Null);
    let mut lines: Vec<String> = Vec::new();
    for (name, sign) in [("added", "+"), ("removed", "-")] {
        lines.extend(list(difference, name).map(|rule| format!("{sign} rule {}", shown(rule))));
    }
    for rule in list(difference, "changed") {
        let side = |name: &str| rule.get(name).map(shown).unwrap_or_default();
        lines.push(format!("~ rule {}", text(rule, "rule")));
        lines.push(format!("    before {}", side("before")));
        lines.push(format!("    after  {}", side("after")));
    }
    lines.extend(list(difference, "elsewhere").map(|part| format!("~ {}", shown(part))));
    if lines.is_empty() {
        lines.push("No rule changes.".to_owned());
    }
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    let mut warnings = list(difference, "warnings");
    warnings.try_for_each(|text| writeln!(out, "{}: {}", style::notable("warning"), shown(text)))
}
