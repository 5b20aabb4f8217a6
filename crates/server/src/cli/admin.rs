//! `tidegate admin`: looks at a running server and changes it, through the admin API.
//!
//! ```text
//!   tidegate admin who user=alice          why is this customer refused?
//!   tidegate admin override user=alice --rule per-user --limits 100/s --for 1h --reason 'import until noon'
//! ```
//!
//! It finds the server and the token by itself if both are on this machine. A command that changes something shows what it would do,
//! and asks.

pub(super) mod access;
mod call;
mod changes;
mod consent;
mod in_force;
mod moment;
mod person;
mod policy;
mod status;

pub(crate) use access::{AdminAccess, AdminSession};

use super::client::ApiResponse;
use crate::front::admin::AdminRole;
use clap::{Args, Subcommand};
use serde_json::Value;
use std::io::{self, Write};
use std::process::ExitCode;
use tidegate_policy::printable;

#[derive(Args)]
pub(crate) struct AdminOptions {
    #[command(flatten)]
    access: AdminAccess,
    /// Prints the answer of the server as JSON, for programs.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: AdminCommand,
}

#[derive(Subcommand)]
enum AdminCommand {
    /// Shows what applies to a person, what is used and left, and since when requests are refused.
    Who(person::WhoOptions),
    /// Forgets what was counted for a person, under all rules or one.
    Reset(person::ResetOptions),
    /// Gives a person other limits under a rule, or removes them again.
    Override(changes::OverrideOptions),
    /// Assigns a tier to a person, or removes the assignment.
    Tier(changes::TierOptions),
    /// Switches a rule on or off, or to shadow mode, in which it counts and refuses nothing.
    Rule(changes::RuleOptions),
    /// Shows the policy in force, or compares, replaces or withdraws it.
    Policy(policy::PolicyCommandOptions),
    /// Shows health, the store, and what each rule has allowed, refused and would have refused.
    Status,
    /// Shows the changes of operators that are in force, until when, by whom and why.
    Changes,
    /// Shows the nodes that share the store, and by which policy each decides.
    Nodes,
    /// Shows who changed what, when and why.
    Audit(status::AuditOptions),
    /// Prints the link to the dashboard, with a token in it that the page removes from the address.
    Dashboard(DashboardOptions),
    /// Sends any request to the admin API, and prints the answer.
    Call(call::CallOptions),
}

#[derive(Args)]
struct DashboardOptions {
    /// With the token of a reader, with which nothing can be changed.
    #[arg(long)]
    reader: bool,
}

/// Runs a command. The exit code is 0, or 1 if the operator declines a change, or 2 on error.
pub(crate) fn run(options: &AdminOptions, out: &mut impl Write) -> io::Result<ExitCode> {
    let (access, json) = (&options.access, options.json);
    let reader = || access.connect(AdminRole::Reader);
    let operator = || access.connect(AdminRole::Operator);
    match &options.command {
        AdminCommand::Who(options) => person::who(&reader()?, options, json, out)?,
        AdminCommand::Status => status::status(&reader()?, json, out)?,
        AdminCommand::Changes => in_force::changes(&reader()?, json, out)?,
        AdminCommand::Nodes => status::nodes(&reader()?, json, out)?,
        AdminCommand::Audit(options) => status::audit(&reader()?, options, json, out)?,
        AdminCommand::Dashboard(options) => dashboard(access, options, out)?,
        AdminCommand::Reset(options) => return person::reset(&operator()?, options, json, out),
        AdminCommand::Override(options) => {
            return changes::put_override(&operator()?, options, json, out);
        }
        AdminCommand::Tier(options) => return changes::put_tier(&operator()?, options, json, out),
        AdminCommand::Rule(options) => return changes::put_rule(&operator()?, options, json, out),
        AdminCommand::Policy(options) => return policy::run(access, options, json, out),
        AdminCommand::Call(options) => return call::run(&operator()?, options, out),
    }
    Ok(ExitCode::SUCCESS)
}

fn dashboard(
    access: &AdminAccess,
    options: &DashboardOptions,
    out: &mut impl Write,
) -> io::Result<()> {
    let role = if options.reader { AdminRole::Reader } else { AdminRole::Operator };
    let session = access.connect(role)?;
    if options.reader && session.role != AdminRole::Reader.name() {
        return Err(io::Error::other(
            "no reader's token was found; name its file with --token-file",
        ));
    }
    let server = session.server().to_string();
    writeln!(out, "{}/dashboard/#token={}", server.trim_end_matches('/'), session.token)
}

/// Prints the body of an answer on one line.
fn print_json(body: &Value, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}", printable(&body.to_string()))
}

/// The body of an answer that says that the request was accepted; otherwise its error.
fn accepted(session: &AdminSession, response: &ApiResponse) -> io::Result<Value> {
    match response.json() {
        Some(body) if response.status.is_success() => Ok(body),
        Some(_) | None => Err(session.refused(response)),
    }
}

/// A field as text, safe to print.
fn text(value: &Value, name: &str) -> String {
    printable(value.get(name).and_then(Value::as_str).unwrap_or_default())
}

fn number(value: &Value, name: &str) -> Option<u64> {
    value.get(name).and_then(Value::as_u64)
}

fn flag(value: &Value, name: &str) -> bool {
    value.get(name).and_then(Value::as_bool).unwrap_or(false)
}

/// The elements of a list.
fn list<'v>(value: &'v Value, name: &str) -> impl Iterator<Item = &'v Value> {
    value.get(name).and_then(Value::as_array).into_iter().flatten()
}

/// A value on one line: a text as it is, a list with commas, everything else as JSON.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => printable(text),
        Value::Array(list) => list.iter().map(shown).collect::<Vec<_>>().join(", "),
        Value::Null => "-".to_owned(),
        Value::Object(_) | Value::Bool(_) | Value::Number(_) => printable(&value.to_string()),
    }
}

/// A key such as `user=alice ip=203.0.113.7`.
fn key_text(key: &Value) -> String {
    let pairs = key.as_object().into_iter().flatten();
    let pairs = pairs.map(|(name, value)| format!("{}={}", printable(name), shown(value)));
    pairs.collect::<Vec<_>>().join(" ")
}
