//! Names of settings: their spellings, and what an unknown name probably means.

use super::declare::Setting;
use super::table::TABLE;
use tidegate_policy::printable;

/// The prefix of environment variables that are settings.
pub(crate) const PREFIX: &str = "TIDEGATE_";

impl Setting {
    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        TABLE.iter().find(|setting| setting.name == name)
    }

    /// `--http-idle-timeout`
    pub(crate) fn flag(&self) -> String {
        format!("--{}", self.long())
    }

    /// `TIDEGATE_HTTP_IDLE_TIMEOUT`
    pub(crate) fn variable(&self) -> String {
        variable_of(self.name)
    }

    pub(super) fn long(&self) -> String {
        flag_of(self.name)
    }

    /// The error for a name that is not a setting, with the name that was probably meant.
    pub(crate) fn unknown(name: &str) -> String {
        if let Some((_, new)) = RENAMED.iter().find(|(old, _)| *old == name) {
            return format!("`{name}` is now called `{new}`");
        }
        let groups =
            TABLE.iter().filter_map(|one| one.name.split_once('.')).map(|(group, _)| group);
        let names = TABLE.iter().map(|one| one.name).chain(groups);
        match nearest(name, names) {
            Some(near) => {
                format!("unknown setting `{}`, did you mean `{near}`?", printable(name))
            }
            None => format!(
                "unknown setting `{}`; `tidegate serve --print-config` shows all",
                printable(name)
            ),
        }
    }

    pub(crate) fn unknown_variable(variable: &str) -> String {
        let renamed = RENAMED.iter().find(|(old, _)| variable_of(old) == variable);
        if let Some((_, new)) = renamed {
            return format!("{}: this setting is now called {}", variable, variable_of(new));
        }
        let names: Vec<String> = TABLE.iter().map(Self::variable).collect();
        let hint = match nearest(variable, names.iter().map(String::as_str)) {
            Some(near) => format!("did you mean {near}?"),
            None => "`tidegate serve --print-config` shows all".to_owned(),
        };
        format!("{}: there is no such setting; {hint}", printable(variable))
    }
}

pub(super) fn flag_of(name: &str) -> String {
    name.replace(['.', '_'], "-")
}

fn variable_of(name: &str) -> String {
    format!("{PREFIX}{}", name.replace('.', "_").to_ascii_uppercase())
}

fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let near = known.map(|known| (strsim::damerau_levenshtein(name, known), known)).min()?;
    (near.0 <= 3 && near.0 < name.len()).then_some(near.1)
}

/// Settings that had another name once, and their names now.
pub(super) const RENAMED: &[(&str, &str)] = &[
    ("settle_within", "receipt_ttl"),
    ("redis.authority", "redis.ca_file"),
    ("tls.client_authority", "tls.client_ca_file"),
    ("http.connections", "http.max_connections"),
    ("http.connections_per_source", "http.max_connections_per_source"),
    ("grpc.connections", "grpc.max_connections"),
    ("grpc.connections_per_source", "grpc.max_connections_per_source"),
    ("resp.connections", "resp.max_connections"),
    ("resp.connections_per_source", "resp.max_connections_per_source"),
    ("admin.connections", "admin.max_connections"),
    ("admin.connections_per_source", "admin.max_connections_per_source"),
];
