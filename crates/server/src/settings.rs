//! Settings: one table in which each is declared once, and three sources of values.
//!
//! ```text
//!   tidegate.yaml          environment                  command line
//!   http:
//!     idle_timeout: 30s  ◄ TIDEGATE_HTTP_IDLE_TIMEOUT ◄ --http-idle-timeout      the later wins
//! ```
//!
//! Every setting has one name, and each source spells it by the same rule. All invalid values are reported together, with
//! their source, before the server starts.

mod contradictions;
mod declare;
mod flags;
mod kinds;
mod names;
#[cfg(test)]
mod page;
mod reader;
pub(crate) mod reference;
mod sources;
mod table;

pub(crate) use flags::Flags;
pub(crate) use kinds::{StoreUrl, bytes as parse_bytes, secret as parse_secret};
pub(crate) use names::PREFIX;
pub(crate) use sources::SECRET;
pub(crate) use table::Settings;

use crate::net::{Caps, CertificateFiles, Listener, Timeouts, TlsFiles};
use reader::{Given, Origin};
use sources::{from_environment, from_file};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use table::TABLE;
use tidegate::Secret;

/// The settings of one listener.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listen {
    /// `None`: the listener is off.
    pub(crate) address: Option<SocketAddr>,
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
        // The texts, where a later source replaces those of the earlier ones.
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
        // Their values.
        let settings = Self::read(given, secret, &mut problems);
        problems.extend(settings.iter().flat_map(contradictions::of));
        match settings {
            Some(settings) if problems.is_empty() => Ok(settings),
            Some(_) | None => Err(SettingsError(problems)),
        }
    }

    /// All settings as a file that can be read again, each with its source in a comment.
    pub(crate) fn print(&self) -> String {
        let mut text = String::new();
        if self.secret.is_some() {
            text.push_str(&format!("# {SECRET} is set, so `secret_file` is not read.\n"));
        }
        let mut section = "";
        for setting in TABLE {
            let Some((value, origin)) = self.given.get(setting.name) else { continue };
            let (group, name) = setting.name.split_once('.').unwrap_or(("", setting.name));
            if group != section {
                text.push_str(&format!("{group}:\n"));
                section = group;
            }
            let indent = if group.is_empty() { "" } else { "  " };
            let shown =
                format!("{indent}{name}: {}", kinds::quoted(&kinds::without_password(value)));
            text.push_str(&format!("{shown:<44} # {origin}\n"));
        }
        text
    }

    /// The settings of a listener.
    pub(crate) fn listen(&self, listener: Listener) -> Listen {
        // The proxy opens another connection to an upstream server for each.
        let files_each = if listener == Listener::Proxy { 2 } else { 1 };
        // The groups are different types, because two of their timeouts are named for what the clients send.
        macro_rules! listen {
            ($address:expr, $group:expr, $head:ident, $body:ident) => {
                Listen {
                    address: $address,
                    timeouts: Timeouts {
                        handshake: self.tls.handshake_timeout,
                        head: $group.$head,
                        body: $group.$body,
                        idle: $group.idle_timeout,
                    },
                    caps: Caps {
                        all: $group.max_connections,
                        per_source: $group.max_connections_per_source,
                        files_each,
                    },
                }
            };
        }
        match listener {
            Listener::Http => listen!(self.http.listen, self.http, header_timeout, body_timeout),
            Listener::Grpc => listen!(self.grpc.listen, self.grpc, header_timeout, body_timeout),
            Listener::Resp => listen!(self.resp.listen, self.resp, command_timeout, write_timeout),
            Listener::Proxy => listen!(self.proxy.listen, self.proxy, header_timeout, body_timeout),
            Listener::Admin => listen!(self.admin.listen, self.admin, header_timeout, body_timeout),
            // It has the bounds of the admin listener.
            Listener::Metrics => {
                listen!(self.metrics.listen, self.admin, header_timeout, body_timeout)
            }
        }
    }

    /// The addresses of the listeners that are on.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (Listener, SocketAddr)> {
        let address = |listener| Some((listener, self.listen(listener).address?));
        Listener::ALL.into_iter().filter_map(address)
    }

    /// Whether a listener uses TLS.
    pub(crate) fn uses_tls(&self, listener: Listener) -> bool {
        !self.tls.certificate.is_empty() && self.tls.listeners.contains(&listener)
    }

    /// The files for TLS, if it is on.
    pub(crate) fn tls_files(&self) -> Option<TlsFiles> {
        let pairs = self.tls.certificate.iter().cloned().zip(self.tls.key.iter().cloned());
        let pair = |(certificate, key)| CertificateFiles { certificate, key };
        let client_ca_file = self.tls.client_ca_file.clone();
        let files = TlsFiles { pairs: pairs.map(pair).collect(), client_ca_file };
        (!files.pairs.is_empty()).then_some(files)
    }

    /// Where the secret is, unless the environment has it.
    pub(crate) fn secret_path(&self) -> PathBuf {
        let server = &self.server;
        server.secret_file.clone().unwrap_or_else(|| server.data_dir.join("secret"))
    }
}

/// The secret of the environment. An error does not repeat its text.
fn secret(environment: &[(String, String)], problems: &mut Vec<String>) -> Option<Secret> {
    let (_, text) = environment.iter().find(|(name, _)| name == SECRET)?;
    let read = kinds::secret(text).map(Secret::new);
    read.map_err(|error| problems.push(format!("{SECRET}: {error}"))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

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
        assert_eq!(settings.http.listen, "127.0.0.1:3".parse().ok());
        assert_eq!(settings.http.idle_timeout, Duration::from_secs(5));
        assert_eq!(settings.server.drain_timeout, Duration::from_secs(2));
        assert_eq!(settings.http.header_timeout, Duration::from_secs(10));
        let settings = load(file, &variables, &[]).unwrap();
        assert_eq!(settings.http.listen, "127.0.0.1:2".parse().ok());
        assert_eq!(load(file, &[], &[]).unwrap().http.listen, "127.0.0.1:1".parse().ok());
    }

    #[test]
    fn what_is_printed_can_be_read_again() {
        let settings =
            load("", &[], &["--http-listen", "[::1]:7", "--memory-budget", "1GiB"]).unwrap();
        let printed = settings.print();
        assert!(printed.contains("  listen: \"[::1]:7\""), "{printed}");
        assert!(printed.contains("# --http-listen"), "{printed}");
        let again = load(printed.clone().leak(), &[], &[]).unwrap();
        assert_eq!(again.http.listen, settings.http.listen);
        assert_eq!(again.memory.budget, 1 << 30);
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
            "TIDEGATE_DRAIN_TIMEOUT: `soon`: a time is written like `10s`, `500ms` or `2min`, from 1ms to 1day",
            "--memory-budget: `lots`: a size is written like `256MiB` or `1GiB`, at least 64KiB",
            "FILE:4:3: http.listen: `nowhere`: an address is written like `127.0.0.1:8080` or `[::1]:8080`, or `off`",
        ]) {
            assert_eq!(*line, expected, "{error}");
        }
        assert_eq!(lines.len(), 7, "{error}");
    }

    /// Every listener uses the timeout of the handshake, and both shared stores the number of nodes.
    #[test]
    fn a_problem_is_reported_once_and_together_with_contradictions() {
        let flags = ["--tls-handshake-timeout", "soon", "--cluster-nodes", "x", "--redis-key", "k"];
        assert_eq!(
            load("", &[], &flags).unwrap_err().lines().collect::<Vec<_>>(),
            [
                "--cluster-nodes: `x`: a number from 1 to 10000, or `auto`",
                "--tls-handshake-timeout: `soon`: a time is written like `10s`, `500ms` or `2min`, from 1ms to 1day",
                "set both redis.certificate and redis.key, or neither",
            ]
        );
    }

    #[test]
    fn a_group_without_settings_is_refused_as_a_group() {
        for file in ["http:\n", "http: 5\n", "http: [listen]\n"] {
            let text = "FILE:1:1: `http` is a group of settings; write them below it, or remove it";
            assert_eq!(load(file, &[], &[]).unwrap_err(), text);
        }
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
