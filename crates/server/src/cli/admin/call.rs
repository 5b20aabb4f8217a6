//! `tidegate admin call`: any request to the admin API, for what has no command of its own.

use super::AdminSession;
use super::consent::{self, ChangeFlags, Consent};
use crate::cli::client::ApiRequest;
use clap::Args;
use http::Method;
use std::io::{self, Read, Write};
use std::process::ExitCode;
use tidegate_policy::printable;

#[derive(Args)]
pub(super) struct CallOptions {
    /// The method: GET, POST, PUT or DELETE.
    method: Method,
    /// The path, such as `/admin/v1/leases`.
    path: String,
    /// Reads the body from the standard input: a policy for `/admin/v1/policy`, JSON for all others.
    #[arg(long)]
    body: bool,
    #[command(flatten)]
    flags: ChangeFlags,
}

/// The largest body: one byte more than a policy may have.
const MOST_BYTES: u64 = 4 * 1024 * 1024 + 1;
/// Paths that only look, although they are asked by POST.
const LOOKS: [&str; 3] = ["/admin/v1/peek", "/admin/v1/explain", "/admin/v1/who"];

pub(super) fn run(
    session: &AdminSession,
    options: &CallOptions,
    out: &mut impl Write,
) -> io::Result<ExitCode> {
    let (method, path) = (&options.method, options.path.as_str());
    let mut request = ApiRequest::of(method.clone(), path);
    if options.body {
        let mut body = Vec::new();
        io::stdin().lock().take(MOST_BYTES).read_to_end(&mut body)?;
        let is_policy = path.split('?').next() == Some("/admin/v1/policy");
        let kind = if is_policy { "application/yaml" } else { "application/json" };
        request = request.with_body(kind, body);
    }
    if method != Method::GET && !LOOKS.contains(&path) {
        match consent::ask(&options.flags, &format!("Send {method} {}?", printable(path)))? {
            Consent::Given => {}
            Consent::NotAsked => {
                writeln!(out, "{method} {} was not sent.", printable(path))?;
                return Ok(ExitCode::SUCCESS);
            }
            Consent::Declined => return consent::declined(out),
        }
    }
    let response = session.send(&request)?;
    if !response.status.is_success() {
        return Err(session.refused(&response));
    }
    let text = String::from_utf8_lossy(&response.body);
    text.lines().try_for_each(|line| writeln!(out, "{}", printable(line)))?;
    Ok(ExitCode::SUCCESS)
}
