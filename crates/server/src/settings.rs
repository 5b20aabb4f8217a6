//! Settings: one table, three places.
//!
//! ```text
//!   tidegate.yaml          environment                  command line
//!   http:
//!     idle_timeout: 30s  ◄ TIDEGATE_HTTP_IDLE_TIMEOUT ◄ --http-idle-timeout      the later wins
//! ```
//!
//! Every setting has one name, and each place spells it by the same rule. What cannot be read is told all at
//! once, with the place where it stands, before anything starts.

pub(crate) mod reference;
mod table;
mod value;

pub(crate) use table::{Flags, Setting};

use crate::front::grpc::Manners;
use crate::net::{Caps, Timeouts};
use crate::tls::TlsFiles;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use table::TABLE;
use tidegate::http::LegacyReset;
use tidegate_policy::{Document, Value, printable};
use tidegate_store::RedisClock;

/// How the names of variables begin that are settings.
pub(crate) const PREFIX: &str = "TIDEGATE_";

/// What the server is told before it starts.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) policy: Option<PathBuf>,
    pub(crate) store: StoreUrl,
    pub(crate) redis: RedisOptions,
    pub(crate) data_dir: PathBuf,
    pub(crate) secret_file: PathBuf,
    pub(crate) workers: usize,
    pub(crate) memory_budget: usize,
    pub(crate) connection_budget: usize,
    /// `None` is as many as the system allows.
    pub(crate) max_open_files: Option<u64>,
    pub(crate) receipt_ttl: Duration,
    pub(crate) drain_timeout: Duration,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) http: Listen,
    pub(crate) legacy_headers: Option<LegacyReset>,
    pub(crate) grpc: Listen,
    pub(crate) grpc_manners: Manners,
    pub(crate) envoy_config: Option<PathBuf>,
    pub(crate) merge_domains: bool,
    pub(crate) resp: Listen,
    pub(crate) users_file: Option<PathBuf>,
    pub(crate) admin: Listen,
    pub(crate) admin_hosts: Vec<String>,
    pub(crate) operator_token_file: Option<PathBuf>,
    pub(crate) reader_token_file: Option<PathBuf>,
    pub(crate) log: Log,
    /// Every setting as text, and where it comes from.
    given: Given,
}

/// Where states live.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    Memory,
    /// It may hold a password, so it shows nowhere.
    Redis(String),
}

/// How the store is reached.
#[derive(Clone, Debug)]
pub(crate) struct RedisOptions {
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) ca_file: Option<PathBuf>,
    /// A certificate and its key.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
    pub(crate) clock: RedisClock,
    pub(crate) denial_cache: bool,
    pub(crate) nodes: Option<u32>,
}

/// A listener.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listen {
    /// `None` is off.
    pub(crate) address: Option<SocketAddr>,
    pub(crate) tls: bool,
    pub(crate) timeouts: Timeouts,
    pub(crate) caps: Caps,
}

/// How logs are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Log {
    pub(crate) format: LogFormat,
    pub(crate) level: tracing::Level,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Lines for people on a terminal, JSON elsewhere.
    Auto,
    Text,
    Json,
}

/// Where a value stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    Default,
    File(String),
    Variable(String),
    Flag(String),
}

type Given = BTreeMap<&'static str, (String, Origin)>;

/// Everything that is wrong with the settings.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub(crate) struct SettingsError(pub(crate) Vec<String>);

/// The file that is read when none is named.
const USUAL_FILE: &str = "tidegate.yaml";
/// A file of settings has some dozen lines.
const MOST_BYTES: u64 = 64 * 1024;

impl Settings {
    /// Reads all three places.
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
        from_environment(environment, &mut given, &mut problems);
        for (setting, text) in flags.given() {
            given.insert(setting.name, (text.clone(), Origin::Flag(setting.flag())));
        }
        let settings = Self::read(given, &mut problems);
        if problems.is_empty() { Ok(settings) } else { Err(SettingsError(problems)) }
    }

    /// All settings as a file that could be read again, with where each comes from.
    pub(crate) fn print(&self) -> String {
        let mut text = String::new();
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

    /// From text to values; what cannot be read is noted, and a value that will never be used stands for it.
    fn read(given: Given, problems: &mut Vec<String>) -> Self {
        let mut reader = Reader { given: &given, problems };
        let data_dir = PathBuf::from(reader.text("data_dir"));
        let path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
        let secret_file =
            path(reader.text("secret_file")).unwrap_or_else(|| data_dir.join("secret"));
        let store = reader.hidden("store", value::store).unwrap_or(StoreUrl::Memory);
        let of_http = ["header_timeout", "body_timeout"];
        let http = reader.listen("http", of_http);
        let grpc = reader.listen("grpc", of_http);
        let resp = reader.listen("resp", ["command_timeout", "write_timeout"]);
        let admin = reader.listen("admin", of_http);
        let settings = Self {
            policy: path(reader.text("policy")),
            store,
            redis: reader.redis(),
            secret_file,
            workers: reader.check("workers", value::workers).unwrap_or(1),
            memory_budget: reader.check("memory.budget", value::bytes).unwrap_or(0),
            connection_budget: reader
                .check("memory.connection_budget", value::connection_budget)
                .unwrap_or(0),
            max_open_files: reader.check("max_open_files", value::open_files).flatten(),
            receipt_ttl: reader.time("receipt_ttl"),
            drain_timeout: reader.time("drain_timeout"),
            tls: reader.tls(),
            http,
            legacy_headers: reader.check("http.legacy_headers", value::legacy).flatten(),
            grpc,
            grpc_manners: reader.grpc_manners(),
            envoy_config: path(reader.text("envoy.config")),
            merge_domains: reader.check("envoy.merge_domains", value::switch).unwrap_or(false),
            resp,
            users_file: path(reader.text("resp.users_file")),
            admin,
            admin_hosts: value::words(reader.text("admin.hosts")),
            operator_token_file: path(reader.text("admin.operator_token_file")),
            reader_token_file: path(reader.text("admin.reader_token_file")),
            log: Log {
                format: reader.check("log.format", value::log_format).unwrap_or(LogFormat::Auto),
                level: reader.check("log.level", value::level).unwrap_or(tracing::Level::INFO),
            },
            data_dir,
            given: BTreeMap::new(),
        };
        reader.agree(&settings);
        Self { given, ..settings }
    }
}

/// Turns texts into values and notes what is wrong with them.
struct Reader<'g> {
    given: &'g Given,
    problems: &'g mut Vec<String>,
}

impl<'g> Reader<'g> {
    fn text(&self, name: &str) -> &'g str {
        self.given.get(name).map_or("", |(text, _)| text)
    }

    fn check<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&'g str) -> Result<T, String>,
    ) -> Option<T> {
        let (text, origin) = self.given.get(name)?;
        match read(text) {
            Ok(value) => Some(value),
            Err(error) => {
                self.problems.push(format!("{origin}: `{}`: {error}", printable(text)));
                None
            }
        }
    }

    /// The same for what may hold a password: the text is not repeated.
    fn hidden<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&'g str) -> Result<T, String>,
    ) -> Option<T> {
        let (text, origin) = self.given.get(name)?;
        read(text).map_err(|error| self.problems.push(format!("{origin}: {error}"))).ok()
    }

    fn time(&mut self, name: &str) -> Duration {
        self.check(name, value::time).unwrap_or_default()
    }

    fn listen(&mut self, group: &str, [head, body]: [&str; 2]) -> Listen {
        let named = |name: &str| format!("{group}.{name}");
        let address = self.check(&named("listen"), value::address).flatten();
        let timeouts = Timeouts {
            handshake: self.time("tls.handshake_timeout"),
            head: self.time(&named(head)),
            body: self.time(&named(body)),
            idle: self.time(&named("idle_timeout")),
        };
        let tls = !self.text("tls.certificate").is_empty()
            && value::words(self.text("tls.listeners")).iter().any(|name| name == group);
        let caps = Caps {
            all: self.check(&named("max_connections"), value::count).unwrap_or(1),
            per_source: self.check(&named("max_connections_per_source"), value::count).unwrap_or(1),
        };
        Listen { address, tls, timeouts, caps }
    }

    fn tls(&mut self) -> Option<TlsFiles> {
        self.check("tls.listeners", value::listeners);
        let file = |name: &str| {
            Some(PathBuf::from(self.text(name))).filter(|path| !path.as_os_str().is_empty())
        };
        let [certificate, key, client_ca_file] =
            ["tls.certificate", "tls.key", "tls.client_ca_file"].map(file);
        match (certificate, key) {
            (Some(certificate), Some(key)) => Some(TlsFiles { certificate, key, client_ca_file }),
            (None, None) if client_ca_file.is_none() => None,
            _ => {
                let text =
                    "tls.certificate and tls.key go together, and tls.client_ca_file with them";
                self.problems.push(text.to_owned());
                None
            }
        }
    }

    fn grpc_manners(&mut self) -> Manners {
        let headers = self.check("grpc.response_headers", value::response_headers);
        let metadata = self.check("grpc.dynamic_metadata", value::switch);
        Manners { headers: headers.unwrap_or_default(), metadata: metadata.unwrap_or(true) }
    }

    fn redis(&mut self) -> RedisOptions {
        let file = |name: &str| {
            Some(PathBuf::from(self.text(name))).filter(|path| !path.as_os_str().is_empty())
        };
        let [ca_file, certificate, key] =
            ["redis.ca_file", "redis.certificate", "redis.key"].map(file);
        if certificate.is_some() != key.is_some() {
            self.problems.push("redis.certificate and redis.key go together".to_owned());
        }
        RedisOptions {
            timeout: self.time("redis.timeout"),
            connect_timeout: self.time("redis.connect_timeout"),
            ca_file,
            certificate: certificate.zip(key),
            clock: self.check("redis.clock", value::redis_clock).unwrap_or_default(),
            denial_cache: self.check("redis.denial_cache", value::switch).unwrap_or(true),
            nodes: self.check("cluster.nodes", value::nodes).flatten(),
        }
    }

    /// What makes sense alone may not make sense together.
    fn agree(&mut self, settings: &Settings) {
        let listeners = [
            ("http.listen", settings.http.address),
            ("grpc.listen", settings.grpc.address),
            ("resp.listen", settings.resp.address),
            ("admin.listen", settings.admin.address),
        ];
        let on = || listeners.iter().filter_map(|(name, address)| Some((name, (*address)?)));
        for (at, (name, address)) in on().enumerate() {
            let same = on().skip(at.saturating_add(1)).find(|(_, other)| *other == address);
            if let Some((other, _)) = same.filter(|_| address.port() != 0) {
                self.problems.push(format!(
                    "{name} and {other} are both {address}; give one of them another port"
                ));
            }
        }
        if on().next().is_none() {
            self.problems.push("every listener is off; there would be nothing to serve".to_owned());
        }
        let admin = settings.admin.address;
        if let Some(admin) = admin.filter(|admin| !admin.ip().is_loopback())
            && settings.operator_token_file.is_none()
        {
            self.problems.push(format!(
                "admin.listen is {admin}, which others can reach; set admin.operator_token_file to a file with a token of your own, or listen on 127.0.0.1"
            ));
        }
    }
}

/// Reads the file: nested names become one, joined by points.
fn from_file(file: Option<&Path>, given: &mut Given, problems: &mut Vec<String>) {
    let path = match file {
        Some(path) => path,
        None if Path::new(USUAL_FILE).is_file() => Path::new(USUAL_FILE),
        None => return,
    };
    let name = printable(&path.display().to_string());
    let bytes = match crate::files::read_regular(path, MOST_BYTES) {
        Ok(bytes) => bytes,
        Err(error) => return problems.push(format!("{name}: {error}")),
    };
    let blank = bytes.split(|byte| *byte == b'\n').all(|line| {
        let line = line.trim_ascii();
        line.is_empty() || line.starts_with(b"#")
    });
    if blank {
        return;
    }
    match Document::parse(&bytes) {
        Ok(document) => entries(&name, "", &document, given, problems),
        Err(found) => {
            problems.extend(found.iter().map(|problem| format!("{name}:{problem}")));
        }
    }
}

fn entries(
    file: &str,
    prefix: &str,
    document: &Document,
    given: &mut Given,
    problems: &mut Vec<String>,
) {
    let Value::Map(map) = &document.value else {
        return problems.push(format!("{file}:{}: settings are a map of names", document.place));
    };
    for entry in map {
        let name = format!("{prefix}{}", entry.name);
        let place = format!("{file}:{}", entry.place);
        let group = format!("{name}.");
        let setting = Setting::find(&name);
        match (&entry.node.value, setting) {
            (Value::Map(_), None) if TABLE.iter().any(|one| one.name.starts_with(&group)) => {
                entries(file, &group, &entry.node, given, problems);
            }
            (Value::Text(text, _), Some(setting)) => {
                given
                    .insert(setting.name, (text.clone(), Origin::File(format!("{place}: {name}"))));
            }
            (Value::Nothing, Some(setting)) => {
                given.insert(
                    setting.name,
                    (String::new(), Origin::File(format!("{place}: {name}"))),
                );
            }
            (Value::List(_) | Value::Map(_), Some(_)) => {
                problems.push(format!("{place}: `{}` is one value", printable(&name)));
            }
            (_, None) => problems.push(format!("{place}: {}", Setting::unknown(&name))),
        }
    }
}

/// Reads the environment; what looks like ours and is not is a mistake.
fn from_environment(
    environment: impl Iterator<Item = (String, String)>,
    given: &mut Given,
    problems: &mut Vec<String>,
) {
    for (variable, text) in environment {
        if !variable.starts_with(PREFIX) {
            continue;
        }
        match TABLE.iter().find(|setting| setting.variable() == variable) {
            Some(setting) => _ = given.insert(setting.name, (text, Origin::Variable(variable))),
            None => problems.push(Setting::unknown_variable(&variable)),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory:",
            Self::Redis(_) => "redis:",
        })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(place) => f.write_str(place),
            Self::Variable(name) | Self::Flag(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn load(file: &str, environment: &[(&str, &str)], flags: &[&str]) -> Result<Settings, String> {
        // Each has a file of its own: tests run at the same time.
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
    fn the_later_place_wins() {
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
    fn everything_that_is_wrong_is_told_at_once_and_where() {
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
    fn listeners_must_agree() {
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
