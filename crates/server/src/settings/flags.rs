//! The settings as flags of the command line: `http.idle_timeout` is `--http-idle-timeout`.

use super::declare::Setting;
use super::names::{RENAMED, flag_of};
use super::table::TABLE;
use clap::{Arg, ArgMatches, Command};

/// What the command line says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags(Vec<(&'static Setting, String)>);

impl Flags {
    pub(crate) fn given(&self) -> impl Iterator<Item = &(&'static Setting, String)> {
        self.0.iter()
    }

    #[cfg(test)]
    pub(crate) fn of(arguments: &[&str]) -> Self {
        use clap::{Args, FromArgMatches};
        let command = Self::augment_args(Command::new("test").no_binary_name(true));
        Self::from_arg_matches(&command.get_matches_from(arguments)).unwrap()
    }
}

impl clap::FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let given = TABLE.iter().filter_map(|setting| {
            Some((setting, matches.get_one::<String>(setting.name)?.clone()))
        });
        self.0 = given.collect();
        Ok(())
    }
}

impl clap::Args for Flags {
    fn augment_args(command: Command) -> Command {
        let command = RENAMED.iter().fold(command, |command, (old, new)| {
            let now = format!("this flag is now called --{}", flag_of(new));
            let refuse = move |_: &str| Err::<String, _>(now.clone());
            command.arg(Arg::new(*old).long(flag_of(old)).hide(true).value_parser(refuse))
        });
        TABLE.iter().fold(command, |command, setting| {
            let default = match setting.default {
                "" => String::new(),
                default => format!(" [{default}]"),
            };
            let help = format!("{}{default}", setting.help);
            let argument = Arg::new(setting.name).long(setting.long()).value_name(setting.shape);
            command.arg(argument.help(help))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
