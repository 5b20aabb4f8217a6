//! `tidegate policy`: checks, explains and tests policy files, and imports rules from Envoy.

pub(crate) mod source;
mod store_notes;
mod timelines;

use crate::front::admin::ExplanationBody;
use crate::rule_files::RuleFolder;
use clap::{Args, Subcommand};
use serde_json::json;
use source::{ERROR, PolicyFile, WARNING};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use store_notes::{StoreKind, StoreNotes};
use tidegate_policy::{Attributes, Changes, Policy, Problem, printable};
use tidegate_store::Secret;

#[derive(Args)]
pub(crate) struct PolicyOptions {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Subcommand)]
enum PolicyCommand {
    /// Checks a policy file and prints its problems. The exit code is 2 for errors, 0 for warnings.
    Lint(Lint),
    /// Explains what every rule does with a request: whether it matches or why not, the key, the limits and where they come
    /// from.
    Explain(Explain),
    /// Plays test files: requests at given times, and the answers that the policy must give.
    ///
    /// The exit code is 0 if every step is answered as expected, 1 if one is not, and 2 on error.
    Test(timelines::TestOptions),
    /// Prints the JSON Schema of policy files, for editors with completion.
    Schema,
    /// Converts rules of other programs into a policy and prints it.
    #[command(subcommand)]
    Import(Import),
}

#[derive(Subcommand)]
enum Import {
    /// Rule files of envoyproxy/ratelimit. What a policy cannot express is reported, and becomes a comment in the policy.
    /// Files with errors are refused, as the server would, with exit code 2.
    Envoy(ImportEnvoy),
}

#[derive(Args)]
struct ImportEnvoy {
    /// The folder of the rule files; those whose names end in .yaml or .yml are read.
    folder: PathBuf,
    /// Allows several files with rules for the same domain.
    #[arg(long)]
    merge_domains: bool,
}

#[derive(Args)]
struct Lint {
    /// The policy file; `-` is the standard input.
    file: PathBuf,
    /// Makes the exit code 2 for warnings, too.
    #[arg(long)]
    deny_warnings: bool,
    /// Also says which limits this store cannot count, and how exactly it counts the others.
    #[arg(long, value_name = "KIND")]
    store: Option<StoreKind>,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Explain {
    /// The policy file; `-` is the standard input.
    file: PathBuf,
    /// Attributes of the request, such as `ip=203.0.113.7 method=POST path=/urls user=alice tier=pro`.
    #[arg(value_name = "ATTRIBUTE=VALUE")]
    attributes: Vec<String>,
    /// The cost of the request.
    #[arg(long, default_value_t = 1)]
    cost: u64,
    /// Also says how exactly this store counts the limits of the rules that apply.
    #[arg(long, value_name = "KIND")]
    store: Option<StoreKind>,
    /// The secret of the deployment. With it, secret attributes are shown as the digests under which they are counted.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// The exit code for errors in the file or in the arguments.
const REFUSED: u8 = 2;

pub(crate) fn run(options: &PolicyOptions, out: &mut impl Write) -> io::Result<ExitCode> {
    match &options.command {
        PolicyCommand::Lint(options) => lint(options, out),
        PolicyCommand::Explain(options) => explain(options, out),
        PolicyCommand::Test(options) => timelines::run(options, out),
        PolicyCommand::Schema => {
            write!(out, "{}", tidegate_policy::schema())?;
            Ok(ExitCode::SUCCESS)
        }
        PolicyCommand::Import(Import::Envoy(options)) => import(options, out),
    }
}

// === import ===

fn import(options: &ImportEnvoy, out: &mut impl Write) -> io::Result<ExitCode> {
    let (path, merge_domains) = (options.folder.clone(), options.merge_domains);
    let folder = RuleFolder { path, merge_domains };
    let policy = match folder.texts().and_then(|texts| folder.policy(&texts)) {
        Ok(policy) => policy,
        Err(error) => {
            report(error.to_string().lines())?;
            return Ok(ExitCode::from(REFUSED));
        }
    };
    if let Some(rules) = policy.descriptors() {
        let imported = rules.import();
        let warnings = rules.warnings().iter().map(|warning| format!("warning: {warning}"));
        let left_out = imported.left_out.iter().map(|line| format!("left out: {line}"));
        report(warnings.chain(left_out))?;
        write!(out, "{}", imported.text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints lines to the standard error.
fn report(lines: impl Iterator<Item = impl AsRef<str>>) -> io::Result<()> {
    lines
        .into_iter()
        .try_for_each(|line| writeln!(io::stderr(), "tidegate: {}", printable(line.as_ref())))
}

// === lint ===

fn lint(options: &Lint, out: &mut impl Write) -> io::Result<ExitCode> {
    let source = PolicyFile::read(&options.file)?;
    let mut notes = vec![];
    let (errors, warnings, rules) = match Policy::parse(&source.bytes) {
        Ok(policy) => {
            let of_store = StoreNotes::of(&policy, options.store);
            notes = of_store.notes;
            (of_store.problems, policy.warnings().to_vec(), policy.rules().len())
        }
        Err(error) => (error.problems().to_vec(), vec![], 0),
    };
    if options.json {
        let notes = options.store.map(|_| notes.as_slice());
        write_json(&errors, &warnings, notes, out)?;
    } else {
        for (problems, severity) in [(&errors, ERROR), (&warnings, WARNING)] {
            source.show(problems, severity, out)?;
        }
        write_notes(&notes, out)?;
        if errors.is_empty() && warnings.is_empty() {
            writeln!(out, "{}: {rules} {}, no problems found", source.name, plural(rules, "rule"))?;
        }
    }
    let refused = !errors.is_empty() || (options.deny_warnings && !warnings.is_empty());
    Ok(if refused { ExitCode::from(REFUSED) } else { ExitCode::SUCCESS })
}

fn write_notes(notes: &[String], out: &mut impl Write) -> io::Result<()> {
    notes.iter().try_for_each(|note| writeln!(out, "note: {}", printable(note)))
}

fn write_json(
    errors: &[Problem],
    warnings: &[Problem],
    notes: Option<&[String]>,
    out: &mut impl Write,
) -> io::Result<()> {
    let all = |problems: &[Problem]| -> Vec<serde_json::Value> {
        let one = |problem: &Problem| {
            let place = problem.place;
            json!({ "line": place.line, "column": place.column, "text": problem.text })
        };
        problems.iter().map(one).collect()
    };
    let mut found = json!({ "errors": all(errors), "warnings": all(warnings) });
    if let (Some(found), Some(notes)) = (found.as_object_mut(), notes) {
        found.insert("notes".to_owned(), json!(notes));
    }
    writeln!(out, "{found:#}")
}

fn plural(n: usize, word: &str) -> String {
    if n == 1 { word.to_owned() } else { format!("{word}s") }
}

// === explain ===

fn explain(options: &Explain, out: &mut impl Write) -> io::Result<ExitCode> {
    let Some(policy) = PolicyFile::read(&options.file)?.parse(out)? else {
        return Ok(ExitCode::from(REFUSED));
    };
    let mut attributes = attributes(&options.attributes)?;
    let secret = options.secret_file.as_deref().map(secret).transpose()?;
    policy.identity().conceal(&mut attributes, &|value| match &secret {
        Some(secret) => secret.digest(value),
        None => "#(hidden; give --secret-file)".to_owned(),
    });
    let mut explanation = policy.explain(&Changes::default(), &attributes, options.cost);
    for rule in &mut explanation.rules {
        if let (Ok(applied), Some((_, of))) = (&mut rule.outcome, policy.rule(&rule.rule)) {
            applied.notes.extend(StoreNotes::of_rule(of, options.store));
        }
    }
    if options.json {
        let explanation = json!(ExplanationBody::from(&explanation));
        writeln!(out, "{}", escaped(&format!("{explanation:#}")))?;
    } else {
        for line in explanation.to_string().lines() {
            writeln!(out, "{}", printable(line))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn secret(path: &Path) -> io::Result<Secret> {
    Secret::load(path).map_err(|error| super::explained(&path.display(), &error))
}

/// Parses the attributes of a command line.
pub(crate) fn attributes(words: &[String]) -> io::Result<Attributes<'_>> {
    let mut attributes = Attributes::new();
    for word in words {
        // The value may be a secret, so an error names only the attribute.
        let name = word.split('=').next().unwrap_or_default();
        let shown = printable(&name.chars().take(64).collect::<String>());
        let (name, value) = word.split_once('=').ok_or_else(|| {
            invalid(format!("`{shown}` is not a valid attribute; write it like `user=alice`"))
        })?;
        if name == "cost" {
            return Err(invalid(format!("`{shown}`: the cost is given with --cost")));
        }
        let twice = words.iter().filter(|other| other.split('=').next() == Some(name)).count() > 1;
        if twice {
            return Err(invalid(format!("`{shown}` is given twice; give it once")));
        }
        attributes.set(name, value).map_err(|error| invalid(format!("`{shown}`: {error}")))?;
    }
    Ok(attributes)
}

/// JSON without terminal control characters, except for its own line ends.
fn escaped(json: &str) -> String {
    json.lines().map(printable).collect::<Vec<_>>().join("\n")
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}
