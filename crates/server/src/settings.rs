//! Settings: one table of names and defaults, and three sources of values.
//!
//! ```text
//!   tidegate.yaml          environment                  command line
//!   http:
//!     idle_timeout: 30s  ◄ TIDEGATE_HTTP_IDLE_TIMEOUT ◄ --http-idle-timeout      the later wins
//! ```
//!
//! Every setting has one name, and each source spells it by the same rule. All invalid values are reported together, with
//! their source, before the server starts.

mod flags;
#[cfg(test)]
mod page;
mod reader;
pub(crate) mod reference;
mod sources;
mod table;
mod value;

pub(crate) use flags::Flags;
pub(crate) use sources::{PREFIX, SECRET};
pub(crate) use value::{bytes as parse_bytes, secret as parse_secret};

use crate::denial_log::DenialLogSettings;
use crate::front::grpc::GrpcOptions;
use crate::line_writer::LogPlace;
use crate::log::{LogFormat, LogOptions};
use crate::net::{Caps, Timeouts, TlsFiles};
use crate::proxy::TokenSettings;
use crate::recorder::RecordSettings;
use crate::top_keys::TopKeysSettings;
use reader::Reader;
use sources::{Given, Origin, from_environment, from_file};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use table::TABLE;
use tidegate::Secret;
use tidegate::http::LegacyReset;
use tidegate_store::RedisClock;

/// The settings of the server.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) policy: Option<PathBuf>,
    pub(crate) store: StoreUrl,
    pub(crate) file: FileOptions,
    pub(crate) redis: RedisOptions,
    pub(crate) memcached: MemcachedOptions,
    pub(crate) data_dir: PathBuf,
    pub(crate) secret_file: PathBuf,
    /// The secret, if the environment has it. Then no file is read.
    pub(crate) secret: Option<Secret>,
    pub(crate) workers: usize,
    pub(crate) memory_budget: usize,
    pub(crate) connection_budget: usize,
    /// `None`: as many as the system allows.
    pub(crate) max_open_files: Option<u64>,
    pub(crate) receipt_ttl: Duration,
    pub(crate) drain_timeout: Duration,
    pub(crate) tls: Option<TlsFiles>,
    /// Which tokens are accepted, if there are keys.
    pub(crate) tokens: Option<TokenSettings>,
    pub(crate) http: Listen,
    /// Names of the HTTP API and the metrics listener, besides addresses and private names.
    pub(crate) http_hosts: Vec<String>,
    pub(crate) legacy_headers: Option<LegacyReset>,
    pub(crate) grpc: Listen,
    pub(crate) grpc_options: GrpcOptions,
    pub(crate) envoy_config: Option<PathBuf>,
    pub(crate) merge_domains: bool,
    pub(crate) resp: Listen,
    pub(crate) users_file: Option<PathBuf>,
    pub(crate) proxy: Listen,
    pub(crate) proxy_upstream: Option<String>,
    pub(crate) proxy_routes: Option<PathBuf>,
    /// Whether connections to the proxy begin with a PROXY header.
    pub(crate) proxy_protocol: bool,
    pub(crate) proxy_max_body: usize,
    pub(crate) proxy_buffer_budget: usize,
    pub(crate) access_log: Option<LogPlace>,
    /// Of how many successful requests one is written to the access log.
    pub(crate) access_log_sample: usize,
    pub(crate) admin: Listen,
    pub(crate) admin_hosts: Vec<String>,
    pub(crate) operator_token_file: Option<PathBuf>,
    pub(crate) reader_token_file: Option<PathBuf>,
    pub(crate) admin_users_file: Option<PathBuf>,
    /// Serves the metrics without a token.
    pub(crate) metrics: Listen,
    pub(crate) denial_log: Option<DenialLogSettings>,
    pub(crate) record: Option<RecordSettings>,
    /// The most used and most refused keys, if they are counted.
    pub(crate) top_keys: Option<TopKeysSettings>,
    pub(crate) log: LogOptions,
    /// Every setting as text, and where it comes from.
    given: Given,
}

/// Which store keeps the counters.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    Memory,
    /// In memory, and in the data directory.
    File,
    /// The URL. It may contain a password, so it is never printed.
    Redis(String),
    /// The URL, with the addresses of the servers.
    Memcached(String),
}

/// The settings of the durable store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileOptions {
    pub(crate) write_interval: Duration,
    pub(crate) sync_interval: Duration,
    /// Bytes in a second.
    pub(crate) write_rate: usize,
}

/// The settings of the Redis store.
#[derive(Clone, Debug)]
pub(crate) struct RedisOptions {
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) ca_file: Option<PathBuf>,
    /// The client certificate and its key.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
    pub(crate) clock: RedisClock,
    pub(crate) denial_cache: bool,
    pub(crate) nodes: Option<u32>,
}

/// The settings of the store on memcached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemcachedOptions {
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) nodes: Option<u32>,
}

/// The settings of one listener.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listen {
    /// `None`: the listener is off.
    pub(crate) address: Option<SocketAddr>,
    pub(crate) tls: bool,
    pub(crate) timeouts: Timeouts,
    pub(crate) caps: Caps,
}

/// All problems with the settings, one per line.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub(crate) struct SettingsError(pub(crate) Vec<String>);

impl Settings {
    /// Reads the file, the environment and the command line.
    pub(crate) fn load(
        file: Option<&Path>,
        environment: impl Iterator<Item = (String, String)>,
        flags: &Flags,
    ) -> Result<Self, SettingsError> {
        let mut problems = Vec::new();
        let mut given: Given = TABLE
            .iter()
            .map(|setting| (setting.name, (setting.default.to_owned(), Origin::Default)))
            .collect();
        from_file(file, &mut given, &mut problems);
        let environment: Vec<(String, String)> = environment.collect();
        let secret = secret(&environment, &mut problems);
        from_environment(environment.into_iter(), &mut given, &mut problems);
        for (setting, text) in flags.given() {
            given.insert(setting.name, (text.clone(), Origin::Flag(setting.flag())));
        }
        let settings = Self { secret, ..Self::read(given, &mut problems) };
        if problems.is_empty() { Ok(settings) } else { Err(SettingsError(problems)) }
    }

    /// All settings as a file that can be read again, each with its source in a comment.
    pub(crate) fn print(&self) -> String {
        let mut text = String::new();
        if self.secret.is_some() {
            text.push_str(&format!("# {SECRET} is set, so `secret_file` is not read.\n"));
        }
        let mut section = "";
        for setting in TABLE {
            let (value, origin) = match self.given.get(setting.name) {
                Some((value, origin)) => (value.as_str(), origin),
                None => (setting.default, &Origin::Default),
            };
            let (group, name) = setting.name.split_once('.').unwrap_or(("", setting.name));
            if group != section {
                text.push_str(&format!("{group}:\n"));
                section = group;
            }
            let indent = if group.is_empty() { "" } else { "  " };
            let shown =
                format!("{indent}{name}: {}", value::quoted(&value::without_password(value)));
            text.push_str(&format!("{shown:<44} # {origin}\n"));
        }
        text
    }

    /// Parses the texts. An invalid one is added to the problems and replaced with a placeholder, which is never used because
    /// `load` fails.
    fn read(given: Given, problems: &mut Vec<String>) -> Self {
        let mut reader = Reader { given: &given, problems };
        let data_dir = PathBuf::from(reader.text("data_dir"));
        let path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
        let url = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let of_http = ["header_timeout", "body_timeout"];
        let [http, grpc, proxy, admin] =
            ["http", "grpc", "proxy", "admin"].map(|name| reader.listen(name, of_http));
        let resp = reader.listen("resp", ["command_timeout", "write_timeout"]);
        let metrics = reader.listen_like("metrics", admin);
        let settings = Self {
            policy: path(reader.text("policy")),
            store: reader.hidden("store", value::store).unwrap_or(StoreUrl::Memory),
            file: reader.file(),
            redis: reader.redis(),
            memcached: reader.memcached(),
            secret_file: path(reader.text("secret_file")).unwrap_or(data_dir.join("secret")),
            secret: None,
            workers: reader.check("workers", value::workers).unwrap_or(1),
            memory_budget: reader.check("memory.budget", value::bytes).unwrap_or(0),
            connection_budget: reader.budget("memory.connection_budget"),
            max_open_files: reader.check("max_open_files", value::open_files).flatten(),
            receipt_ttl: reader.time("receipt_ttl"),
            drain_timeout: reader.time("drain_timeout"),
            tls: reader.tls(),
            tokens: reader.tokens(),
            http,
            http_hosts: value::words(reader.text("http.hosts")),
            legacy_headers: reader.check("http.legacy_headers", value::legacy).flatten(),
            grpc,
            grpc_options: reader.grpc_options(),
            envoy_config: path(reader.text("envoy.config")),
            merge_domains: reader.check("envoy.merge_domains", value::switch).unwrap_or(false),
            resp,
            users_file: path(reader.text("resp.users_file")),
            proxy,
            proxy_upstream: url(reader.text("proxy.upstream")),
            proxy_routes: path(reader.text("proxy.routes")),
            proxy_buffer_budget: reader.budget("proxy.buffer_budget"),
            proxy_protocol: reader.check("proxy.proxy_protocol", value::switch).unwrap_or(false),
            proxy_max_body: reader.check("proxy.max_body", value::bytes).unwrap_or(0),
            access_log: reader.check("proxy.access_log", value::log_place).flatten(),
            access_log_sample: reader.check("proxy.access_log_sample", value::count).unwrap_or(1),
            admin,
            admin_hosts: value::words(reader.text("admin.hosts")),
            operator_token_file: path(reader.text("admin.operator_token_file")),
            reader_token_file: path(reader.text("admin.reader_token_file")),
            admin_users_file: path(reader.text("admin.users_file")),
            metrics,
            denial_log: reader.denial_log(),
            record: reader.record(),
            top_keys: reader.top_keys(),
            log: reader.log(),
            data_dir,
            given: BTreeMap::new(),
        };
        reader.agree(&settings);
        Self { given, ..settings }
    }
}

/// The secret of the environment. An error does not repeat its text.
fn secret(environment: &[(String, String)], problems: &mut Vec<String>) -> Option<Secret> {
    let (_, text) = environment.iter().find(|(name, _)| name == SECRET)?;
    let read = value::secret(text).map(Secret::new);
    read.map_err(|error| problems.push(format!("{SECRET}: {error}"))).ok()
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory:",
            Self::File => "file:",
            Self::Redis(_) => "redis:",
            Self::Memcached(_) => "memcached:",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn load(file: &str, environment: &[(&str, &str)], flags: &[&str]) -> Result<Settings, String> {
        // Tests run concurrently, so each has a file of its own.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-settings-{}-{number}.yaml", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::File::create(&path).unwrap().write_all(file.as_bytes()).unwrap();
        let environment =
            environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let settings = Settings::load(Some(&path), environment, &Flags::of(flags));
        std::fs::remove_file(&path).unwrap();
        settings.map_err(|error| error.to_string().replace(&path.display().to_string(), "FILE"))
    }

    #[test]
    fn the_later_source_wins() {
        let file = "http:\n  listen: 127.0.0.1:1\n  idle_timeout: 5s\ndrain_timeout: 2s\n";
        let variables = [("TIDEGATE_HTTP_LISTEN", "127.0.0.1:2"), ("PATH", "/bin")];
        let settings = load(file, &variables, &["--http-listen", "127.0.0.1:3"]).unwrap();
        assert_eq!(settings.http.address, "127.0.0.1:3".parse().ok());
        assert_eq!(settings.http.timeouts.idle, Duration::from_secs(5));
        assert_eq!(settings.drain_timeout, Duration::from_secs(2));
        assert_eq!(settings.http.timeouts.head, Duration::from_secs(10));
        let settings = load(file, &variables, &[]).unwrap();
        assert_eq!(settings.http.address, "127.0.0.1:2".parse().ok());
        assert_eq!(load(file, &[], &[]).unwrap().http.address, "127.0.0.1:1".parse().ok());
    }

    #[test]
    fn what_is_printed_can_be_read_again() {
        let settings =
            load("", &[], &["--http-listen", "[::1]:7", "--memory-budget", "1GiB"]).unwrap();
        let printed = settings.print();
        assert!(printed.contains("  listen: \"[::1]:7\""), "{printed}");
        assert!(printed.contains("# --http-listen"), "{printed}");
        let again = load(printed.clone().leak(), &[], &[]).unwrap();
        assert_eq!(again.http.address, settings.http.address);
        assert_eq!(again.memory_budget, 1 << 30);
        let values = |text: &str| -> Vec<String> {
            text.lines().map(|line| line.split('#').next().unwrap().trim().to_owned()).collect()
        };
        assert_eq!(values(&again.print()), values(&printed));
    }

    #[test]
    fn all_problems_are_reported_together_with_their_source() {
        let file =
            "htp: { listen: x }\nhttp:\n  listn: y\n  listen: nowhere\n  idle_timeout: [1s]\n";
        let variables = [("TIDEGATE_WORKER", "2"), ("TIDEGATE_DRAIN_TIMEOUT", "soon")];
        let error = load(file, &variables, &["--memory-budget", "lots"]).unwrap_err();
        let lines: Vec<&str> = error.lines().collect();
        for (line, expected) in lines.iter().zip([
            "FILE:1:1: unknown setting `htp`, did you mean `http`?",
            "FILE:3:3: unknown setting `http.listn`, did you mean `http.listen`?",
            "FILE:5:3: `http.idle_timeout` is one value",
            "TIDEGATE_WORKER: there is no such setting; did you mean TIDEGATE_WORKERS?",
            "FILE:4:3: http.listen: `nowhere`: an address is written like `127.0.0.1:8080` or `[::1]:8080`, or `off`",
            "--memory-budget: `lots`: a size is written like `256MiB` or `1GiB`, at least 64KiB",
            "TIDEGATE_DRAIN_TIMEOUT: `soon`: a time is written like `10s`, `500ms` or `2min`, from 1ms to 1day",
        ]) {
            assert_eq!(*line, expected, "{error}");
        }
        assert_eq!(lines.len(), 7, "{error}");
    }

    #[test]
    fn a_setting_that_was_renamed_is_refused_with_its_new_name() {
        let file = "settle_within: 5s\nhttp: { connections: 7 }\n";
        let error = load(file, &[("TIDEGATE_REDIS_AUTHORITY", "ca.pem")], &[]).unwrap_err();
        let lines: Vec<&str> = error.lines().collect();
        assert_eq!(
            lines,
            [
                "FILE:1:1: `settle_within` is now called `receipt_ttl`",
                "FILE:2:9: `http.connections` is now called `http.max_connections`",
                "TIDEGATE_REDIS_AUTHORITY: this setting is now called TIDEGATE_REDIS_CA_FILE",
            ]
        );
    }

    #[test]
    fn settings_of_listeners_must_not_contradict_each_other() {
        let both = ["--http-listen", "127.0.0.1:9", "--admin-listen", "127.0.0.1:9"];
        assert!(load("", &[], &both).unwrap_err().contains("another port"));
        let off =
            "--http-listen off --grpc-listen off --resp-listen off --admin-listen off".split(' ');
        let off: Vec<&str> = off.collect();
        assert!(load("", &[], &off).unwrap_err().contains("nothing to serve"));
        let open = ["--admin-listen", "0.0.0.0:9"];
        assert!(load("", &[], &open).unwrap_err().contains("admin.operator_token_file"));
        let token = ["--admin-listen", "0.0.0.0:9", "--admin-operator-token-file", "t"];
        assert!(load("", &[], &token).is_ok());
    }
}
