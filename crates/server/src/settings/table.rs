//! The table of settings: names, defaults, what they are for.

use clap::{Arg, ArgMatches, Command};
use tidegate_policy::printable;

/// One setting.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Its name in the file: `http.idle_timeout`.
    pub(crate) name: &'static str,
    pub(crate) default: &'static str,
    /// What a value looks like.
    shape: &'static str,
    help: &'static str,
}

const fn setting(
    name: &'static str,
    shape: &'static str,
    default: &'static str,
    help: &'static str,
) -> Setting {
    Setting { name, default, shape, help }
}

/// All settings; those with a point in their names stand together.
pub(crate) const TABLE: &[Setting] = &[
    setting(
        "policy",
        "FILE",
        "",
        "The rules; without one, 15 requests a second per client address",
    ),
    setting(
        "store",
        "URL",
        "memory:",
        "Where states live: `memory:`, or, for all nodes together, `redis://host:6379/`, `redis+cluster://host:port,host:port` or `redis+sentinel://host:port/name`; `rediss` speaks TLS",
    ),
    setting(
        "data_dir",
        "DIR",
        "tidegate-data",
        "Where the secret, tokens, changes and the audit log lie",
    ),
    setting(
        "secret_file",
        "FILE",
        "",
        "The secret of the deployment; usually `secret` in the data directory",
    ),
    setting("workers", "N", "auto", "Threads that serve requests; usually one for each core"),
    setting("receipt_ttl", "TIME", "60s", "How long a receipt can be settled"),
    setting(
        "drain_timeout",
        "TIME",
        "10s",
        "How long a stop waits for requests that were received",
    ),
    setting(
        "max_open_files",
        "N",
        "auto",
        "Limit of open files, of which each connection is one; `auto` is as many as the system allows",
    ),
    setting("memory.budget", "SIZE", "256MiB", "Memory for states, never passed"),
    setting(
        "memory.connection_budget",
        "SIZE",
        "64MiB",
        "Memory for requests that are arriving and answers that wait to be taken, beyond 8 KiB for each connection",
    ),
    setting("redis.timeout", "TIME", "50ms", "How long a decision waits for the store"),
    setting("redis.connect_timeout", "TIME", "1s", "How long connecting to the store may take"),
    setting(
        "redis.ca_file",
        "FILE",
        "",
        "Certificates, in PEM, of whoever signs those of the store, instead of those that this machine trusts",
    ),
    setting("redis.certificate", "FILE", "", "Our certificate for the store, in PEM"),
    setting("redis.key", "FILE", "", "The private key of redis.certificate, in PEM"),
    setting(
        "redis.clock",
        "server|node",
        "server",
        "Whose clock decides; `node` for engines that let no script read the time",
    ),
    setting(
        "redis.denial_cache",
        "on|off",
        "on",
        "Whether a refusal is remembered, for half a second, instead of asking the store again",
    ),
    setting(
        "cluster.nodes",
        "N",
        "auto",
        "How many nodes share the store: each lets pass its share of a limit while the store is gone",
    ),
    setting(
        "tls.certificate",
        "FILE",
        "",
        "A certificate and its chain, in PEM; the listeners of tls.listeners speak TLS then",
    ),
    setting("tls.key", "FILE", "", "The private key of tls.certificate, in PEM"),
    setting(
        "tls.client_ca_file",
        "FILE",
        "",
        "Certificates, in PEM, of whoever signs those that clients must show",
    ),
    setting("tls.listeners", "NAMES", "http,grpc,resp,admin", "Which listeners speak TLS"),
    setting("tls.handshake_timeout", "TIME", "5s", "How long a TLS handshake may take"),
    setting(
        "http.listen",
        "ADDR",
        "127.0.0.1:8080",
        "Where requests are decided; `off` for nowhere",
    ),
    setting(
        "http.header_timeout",
        "TIME",
        "10s",
        "From the first byte of a request to the end of its head",
    ),
    setting(
        "http.body_timeout",
        "TIME",
        "20s",
        "For a body to arrive, and for an answer to be taken",
    ),
    setting("http.idle_timeout", "TIME", "60s", "Between the requests of a connection"),
    setting("http.max_connections", "N", "10000", "Connections at once"),
    setting(
        "http.max_connections_per_source",
        "N",
        "1000",
        "Connections at once from one address or IPv6 /64; an address that the policy trusts may have 7/8 of all",
    ),
    setting(
        "http.legacy_headers",
        "FORM",
        "off",
        "X-RateLimit-* in forward auth, with the reset as `delta` or `epoch`",
    ),
    setting("grpc.listen", "ADDR", "127.0.0.1:8081", "Where Envoy asks; `off` for nowhere"),
    setting("grpc.header_timeout", "TIME", "10s", "From the connection to its first bytes"),
    setting(
        "grpc.body_timeout",
        "TIME",
        "20s",
        "For a message to arrive, and for an answer to be taken",
    ),
    setting("grpc.idle_timeout", "TIME", "1h", "Between the calls of a connection"),
    setting("grpc.max_connections", "N", "10000", "Connections at once"),
    setting(
        "grpc.max_connections_per_source",
        "N",
        "1000",
        "Connections at once from one address or IPv6 /64; an address that the policy trusts may have 7/8 of all",
    ),
    setting(
        "grpc.response_headers",
        "FORM",
        "off",
        "What Envoy is told to add to answers: `ratelimit` (RateLimit, RateLimit-Policy), `legacy` (X-RateLimit-*) or `reference` (RateLimit-Limit, -Remaining, -Reset)",
    ),
    setting(
        "grpc.dynamic_metadata",
        "on|off",
        "on",
        "Whether Envoy is told the `metadata` of rules that let a call pass",
    ),
    setting(
        "envoy.config",
        "DIR",
        "",
        "Rule files of envoyproxy/ratelimit, which then decide over gRPC instead of the policy",
    ),
    setting(
        "envoy.merge_domains",
        "on|off",
        "off",
        "Whether several of those files may be about one domain",
    ),
    setting("resp.listen", "ADDR", "127.0.0.1:6380", "Where Redis clients ask; `off` for nowhere"),
    setting(
        "resp.users_file",
        "FILE",
        "",
        "Who may ask over RESP; without one, everybody who can connect",
    ),
    setting("resp.command_timeout", "TIME", "10s", "From the first byte of a command to its end"),
    setting("resp.write_timeout", "TIME", "20s", "For replies to be taken"),
    setting("resp.idle_timeout", "TIME", "5min", "Between the commands of a connection"),
    setting("resp.max_connections", "N", "10000", "Connections at once"),
    setting(
        "resp.max_connections_per_source",
        "N",
        "1000",
        "Connections at once from one address or IPv6 /64",
    ),
    setting(
        "admin.listen",
        "ADDR",
        "127.0.0.1:8082",
        "Where operators look and change; `off` for nowhere",
    ),
    setting(
        "admin.hosts",
        "NAMES",
        "",
        "Host names by which the admin listener is reached, besides its address",
    ),
    setting(
        "admin.operator_token_file",
        "FILE",
        "",
        "The token of operators; made in the data directory when not set",
    ),
    setting(
        "admin.reader_token_file",
        "FILE",
        "",
        "The token of readers; made in the data directory when not set",
    ),
    setting("admin.header_timeout", "TIME", "10s", "As http.header_timeout"),
    setting("admin.body_timeout", "TIME", "20s", "As http.body_timeout"),
    setting("admin.idle_timeout", "TIME", "60s", "As http.idle_timeout"),
    setting("admin.max_connections", "N", "200", "Connections at once"),
    setting(
        "admin.max_connections_per_source",
        "N",
        "50",
        "Connections at once from one address or IPv6 /64",
    ),
    setting("log.format", "FORM", "auto", "`text`, `json`; `auto` is text on a terminal"),
    setting("log.level", "LEVEL", "info", "`error`, `warn`, `info`, `debug` or `trace`"),
];

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

    fn long(&self) -> String {
        flag_of(self.name)
    }

    /// A complaint about a name that is none, and which was probably meant.
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

fn flag_of(name: &str) -> String {
    name.replace(['.', '_'], "-")
}

fn variable_of(name: &str) -> String {
    format!("TIDEGATE_{}", name.replace('.', "_").to_ascii_uppercase())
}

fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let near = known.map(|known| (strsim::damerau_levenshtein(name, known), known)).min()?;
    (near.0 <= 3 && near.0 < name.len()).then_some(near.1)
}

/// Settings that had another name once, and their names now.
const RENAMED: &[(&str, &str)] = &[
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
