//! `tidegate secret`: copies the secret of a deployment from one node to another.
//!
//! ```text
//!   first node:  tidegate secret show  ──►  64 hexadecimal digits  ──►  tidegate secret set  on every other node
//!                                                                  └─►  TIDEGATE_SECRET in the environment
//! ```
//!
//! Nodes that share a store need the same secret, because it names the counters in the store.

use super::serve::variables;
use crate::files;
use crate::settings::{Flags, SECRET, Settings, parse_secret};
use clap::{Args, Subcommand};
use data_encoding::HEXLOWER;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidegate_store::read_private;

#[derive(Args)]
pub(crate) struct SecretOptions {
    #[command(subcommand)]
    command: SecretCommand,
}

#[derive(Subcommand)]
enum SecretCommand {
    /// Prints the secret of this node, for `tidegate secret set` or `TIDEGATE_SECRET` on another one.
    Show(SecretPlace),
    /// Reads a secret from the standard input, and writes it to the secret file of this node.
    Set(SetSecret),
}

/// Where the secret is. Without flags, it is where `tidegate serve` looks for it.
#[derive(Args)]
struct SecretPlace {
    /// The file of settings. Without it, tidegate.yaml is read if it exists.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The data directory, which has the secret in the file `secret`.
    #[arg(long, value_name = "DIR", conflicts_with = "secret_file")]
    data_dir: Option<PathBuf>,
    /// The secret file.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
}

#[derive(Args)]
struct SetSecret {
    #[command(flatten)]
    place: SecretPlace,
    /// Replaces another secret. What was counted, signed and logged under it is lost with it.
    #[arg(long)]
    replace: bool,
}

/// More than a secret and white space around it.
const MOST_BYTES: u64 = 1024;

/// Runs a subcommand of `tidegate secret`.
pub(crate) fn run(options: &SecretOptions, out: &mut impl Write) -> io::Result<ExitCode> {
    match &options.command {
        SecretCommand::Show(place) => show(place, out),
        SecretCommand::Set(options) => set(options, out),
    }
}

fn show(place: &SecretPlace, out: &mut impl Write) -> io::Result<ExitCode> {
    let path = place.path()?;
    let secret = read(&path)?.ok_or_else(|| {
        let text = "there is no secret yet; the server creates it when it starts";
        named(&path, &io::Error::new(ErrorKind::NotFound, text))
    })?;
    writeln!(out, "{}", HEXLOWER.encode(&secret))?;
    Ok(ExitCode::SUCCESS)
}

fn set(options: &SetSecret, out: &mut impl Write) -> io::Result<ExitCode> {
    let path = options.place.path()?;
    let mut text = String::new();
    io::stdin().take(MOST_BYTES).read_to_string(&mut text)?;
    let secret = parse_secret(&text)
        .map_err(|error| io::Error::other(format!("the standard input: {error}")))?;
    match read(&path)? {
        Some(old) if old == secret => {
            writeln!(out, "{} has this secret already", path.display())?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(_) if !options.replace => {
            let text = "the file has another secret; what was counted, signed and logged under it is lost with it. Add --replace to replace it";
            return Err(named(&path, &io::Error::other(text)));
        }
        Some(_) | None => {}
    }
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        files::private_folder(folder).map_err(|error| named(folder, &error))?;
    }
    files::replace(&path, &secret).map_err(|error| named(&path, &error))?;
    writeln!(out, "{} has the secret; restart the server if it is running", path.display())?;
    Ok(ExitCode::SUCCESS)
}

impl SecretPlace {
    /// The secret file.
    fn path(&self) -> io::Result<PathBuf> {
        if let Some(path) = &self.secret_file {
            return Ok(path.clone());
        }
        if let Some(folder) = &self.data_dir {
            return Ok(folder.join("secret"));
        }
        let settings =
            Settings::load(self.config.as_deref(), variables()?.into_iter(), &Flags::default())
                .map_err(io::Error::other)?;
        if settings.secret.is_some() {
            let text = format!("{SECRET} is set, so the server reads no secret file");
            return Err(io::Error::other(text));
        }
        Ok(settings.secret_path())
    }
}

/// The secret in a file; `None` if there is no file.
fn read(path: &Path) -> io::Result<Option<[u8; 32]>> {
    let bytes = match read_private(path, 32) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(named(path, &error)),
    };
    let wrong = |_| named(path, &io::Error::other("a secret file must have exactly 32 bytes"));
    <[u8; 32]>::try_from(bytes).map(Some).map_err(wrong)
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
