//! Asking before a change.

use clap::Args;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

/// Whether a change is made, and how it is explained.
#[derive(Args)]
pub(crate) struct ChangeFlags {
    /// Makes the change without asking, for scripts.
    #[arg(long)]
    pub(super) yes: bool,
    /// Shows what would be changed, and changes nothing.
    #[arg(long, conflicts_with = "yes")]
    pub(super) dry_run: bool,
    /// Why, for the audit log.
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: Option<String>,
}

/// What the operator decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Consent {
    Given,
    Declined,
    /// The operator was not asked, because of `--dry-run`.
    NotAsked,
}

/// The exit code of a change that the operator declined.
const DECLINED: u8 = 1;

/// Asks whether a change is meant. Without a terminal the operator cannot answer, so the change needs `--yes`.
pub(super) fn ask(flags: &ChangeFlags, question: &str) -> io::Result<Consent> {
    if flags.dry_run {
        return Ok(Consent::NotAsked);
    }
    if flags.yes {
        return Ok(Consent::Given);
    }
    if !io::stdin().is_terminal() {
        return Err(io::Error::other(
            "this changes the server, and there is no terminal to ask; add --yes to change it, or --dry-run to see what would change",
        ));
    }
    let mut prompt = io::stderr();
    write!(prompt, "{question} [y/N] ")?;
    prompt.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    let given = ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str());
    Ok(if given { Consent::Given } else { Consent::Declined })
}

/// Says that nothing was changed.
pub(super) fn declined(out: &mut impl Write) -> io::Result<ExitCode> {
    writeln!(out, "Nothing was changed.")?;
    Ok(ExitCode::from(DECLINED))
}
