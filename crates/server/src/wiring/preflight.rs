//! `tidegate serve --check`: tries everything that a start could fail at, and collects all problems.
//!
//! ```text
//!   data directory · secret · certificates · policy ─ routes, keys, rule files · users, tokens · store · addresses
//! ```
//!
//! The checks read with the functions of the start. Nothing is written, and what only a running server may hold (the lock of
//! the data directory, a place among the nodes of the store) is not taken.

use super::named;
use super::proxy::{read_keys, read_routes, token_keys};
use super::start::{
    advised, memcached_settings, policy_text, read_policy, read_rules, redis_settings,
};
use crate::front::{admin, resp};
use crate::line_writer::LogPlace;
use crate::log::{self, LogFormat};
use crate::net::{Certificate, Listener};
use crate::settings::{Settings, StoreUrl};
use crate::{files, rulebook};
use clap::ValueEnum;
use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use tidegate::{Clock, Limiter, Memory, Policy, Secret};
use tidegate_store::{Damage, DurableSettings, Memcached, MemcachedProbe, Redis, RedisProbe};
use tokio::net::TcpSocket;

/// What the settings are checked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckFor {
    /// A server that starts now.
    Start,
    /// The next start of a server that is running.
    Restart,
}

/// What a check found.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Why a start would fail.
    pub(crate) problems: Vec<String>,
    /// What is worth knowing, and no reason to fail.
    pub(crate) notes: Vec<String>,
}

impl Findings {
    /// The value; or nothing, and the error is a problem.
    fn keep<T>(&mut self, result: Result<T, impl Display>) -> Option<T> {
        result.map_err(|error| self.problems.push(error.to_string())).ok()
    }

    fn note(&mut self, text: String) {
        self.notes.push(text);
    }
}

/// Checks whether a server could start with these settings.
pub(crate) async fn check(settings: &Settings, purpose: CheckFor) -> Findings {
    let clock = Clock::system();
    // Warnings about policies, routes and rule files are logged where these are read.
    let _limiter = log::start(LogFormat::Text, tracing::Level::WARN, &clock);
    let mut found = Findings::default();
    let is_free = data_directory(settings, purpose, &mut found);
    let secret = secret(settings, &mut found);
    certificates(settings, &clock, &mut found);
    rules(settings, &clock, &mut found);
    clients(settings, &mut found);
    match &settings.server.store {
        StoreUrl::Memory => {}
        StoreUrl::File if is_free => counters(settings, secret.as_ref(), &mut found),
        StoreUrl::File => {}
        StoreUrl::Redis(url) => store(url, settings, secret, &mut found).await,
        StoreUrl::Memcached(url) => memcached(url, settings, secret, &mut found).await,
    }
    for (listener, address) in settings.addresses() {
        found.keep(bind(listener, address, purpose));
    }
    found
}

/// Whether no other server uses the data directory.
fn data_directory(settings: &Settings, purpose: CheckFor, found: &mut Findings) -> bool {
    let wrong = named("data_dir", &settings.server.data_dir);
    found.keep(files::check_private_folder(&settings.server.data_dir).map_err(&wrong));
    found.keep(rulebook::check_control_file(&settings.server.data_dir));
    let unlocked = files::check_unlocked(&settings.server.data_dir).map_err(&wrong);
    match (unlocked, purpose) {
        (Err(error), CheckFor::Restart) if error.kind() == io::ErrorKind::ResourceBusy => false,
        (unlocked, _) => found.keep(unlocked).is_some(),
    }
}

/// The secret, if there is one already.
fn secret(settings: &Settings, found: &mut Findings) -> Option<Secret> {
    if settings.secret.is_some() {
        return settings.secret.clone();
    }
    let path = &*settings.secret_path();
    if path.exists() {
        return found.keep(Secret::load(path).map_err(named("secret_file", path)));
    }
    // The data directory is created before the secret, and was checked above.
    if !path.starts_with(&settings.server.data_dir) {
        found.keep(files::may_append(path).map_err(named("secret_file", path)))?;
    }
    let shown = path.display();
    found.note(format!("secret_file: {shown} does not exist; the first start creates it"));
    None
}

/// Reads certificates and keys, as at the start. Certificates that have expired, and keys that do not match, are problems.
fn certificates(settings: &Settings, clock: &Clock, found: &mut Findings) {
    let Some(tls) = settings.tls_files() else { return };
    if let Some(certificate) = found.keep(Certificate::read(tls, clock.clone())) {
        found.keep(certificate.acceptor(&[]));
    }
}

/// Reads the policy, the rule files, the routes and the keys, and compares them with each other.
fn rules(settings: &Settings, clock: &Clock, found: &mut Findings) {
    let path = settings.server.policy.as_deref();
    let policy =
        found.keep(policy_text(path)).and_then(|text| found.keep(read_policy(path, &text)));
    let routes = found.keep(read_routes(settings)).flatten();
    found.keep(read_keys(settings));
    let by_files = found.keep(read_rules(settings)).flatten().map(|(_, _, policy)| policy);
    for policy in policy.iter().chain(&by_files) {
        found.keep(is_accepted(policy, clock));
    }
    let Some(policy) = policy else { return };
    found.keep(token_keys(settings).suffice_for(&policy));
    let unfit = routes.map(|live| live.load().routes.problems_with(&policy));
    found.problems.extend(unfit.into_iter().flatten());
}

/// Whether a limiter accepts a policy.
fn is_accepted(policy: &Policy, clock: &Clock) -> Result<(), String> {
    let secret = Secret::random().map_err(|error| error.to_string())?;
    let limiter = Limiter::new(policy.clone(), Memory::new(clock.clone()), secret, clock.clone());
    limiter.map(drop).map_err(|error| error.to_string())
}

/// Reads the users and the tokens, if they are in files of the operator, and looks at the places of the logs.
fn clients(settings: &Settings, found: &mut Findings) {
    if let Some(path) = &settings.resp.users_file {
        let users = Secret::random().and_then(|secret| resp::Users::read(path, secret));
        found.keep(users.map_err(|error| format!("resp.users_file: {error}")));
    }
    if let Some(path) = &settings.admin.users_file {
        let users = Secret::random().and_then(|secret| admin::AdminUsers::open(path, secret));
        found.keep(users.map_err(|error| format!("admin.users_file: {error}")));
    }
    let mut token = |setting, path: &Option<PathBuf>, name: &str| {
        let made = settings.server.data_dir.join(name);
        // The start creates the tokens in the data directory. What is there already must be valid.
        let path = path.as_deref().or_else(|| made.exists().then_some(&*made))?;
        found.keep(admin::read_or_make(path, "", false).map_err(named(setting, path)))
    };
    let [of_operators, of_readers] = ["admin.operator_token_file", "admin.reader_token_file"];
    let operator = token(of_operators, &settings.admin.operator_token_file, "operator-token");
    let reader = token(of_readers, &settings.admin.reader_token_file, "reader-token");
    if operator.is_some() && operator == reader {
        let text =
            format!("{of_operators} and {of_readers} contain the same token; use two tokens");
        found.problems.push(text);
    }
    if let Some(path) = &settings.record.file {
        found.keep(files::may_append(path).map_err(named("record.file", path)));
    }
    let logs = [
        ("proxy.access_log", &settings.proxy.access_log),
        ("denial_log", &settings.server.denial_log),
    ];
    for (setting, place) in logs {
        if let Some(LogPlace::File(path)) = place {
            found.keep(files::may_append(path).map_err(named(setting, path)));
        }
    }
}

// === the store ===

/// Reads the counters of the data directory, as a start would.
fn counters(settings: &Settings, secret: Option<&Secret>, found: &mut Findings) {
    let folder = settings.server.data_dir.join("states");
    if !folder.exists() {
        return;
    }
    let durable =
        DurableSettings { budget: settings.memory.budget, ..DurableSettings::new(&folder) };
    let read = durable.verify(secret, &mut |_, _| ()).map_err(|error| format!("store: {error}"));
    for Damage { file, offset, bytes } in found.keep(read).into_iter().flat_map(|read| read.damage)
    {
        let text =
            format!("{file} is damaged: {bytes} bytes from byte {offset} on would be left out");
        found.note(format!("store: {text}; `tidegate data verify` shows more"));
    }
}

/// Looks at a shared store.
async fn store(url: &str, settings: &Settings, secret: Option<Secret>, found: &mut Findings) {
    let Some(redis) = found.keep(redis_settings(url, settings)) else { return };
    let is_new = secret.is_none();
    // Any verifier in the store is that of another secret than one that does not exist yet.
    let Some(secret) = secret.or_else(|| found.keep(Secret::random())) else { return };
    let probe = Redis::probe(&redis, &secret).await.map_err(|error| advised(settings, &error));
    let Some(RedisProbe { engine, has_secret, eviction }) = found.keep(probe) else { return };
    if let Some(engine) = engine {
        found.note(format!("store: {engine} answers"));
    }
    if !has_secret && !is_new {
        found.note("store: it holds no counters of this secret yet".to_owned());
    }
    if let Some(eviction) = eviction.filter(|eviction| eviction != "noeviction") {
        found.note(format!(
            "store: its maxmemory-policy is {eviction}; with `noeviction` it would never drop a counter that is needed"
        ));
    }
}

/// Looks at the servers of a memcached store.
async fn memcached(url: &str, settings: &Settings, secret: Option<Secret>, found: &mut Findings) {
    let options = memcached_settings(url, settings);
    let is_new = secret.is_none();
    let Some(secret) = secret.or_else(|| found.keep(Secret::random())) else { return };
    let probe = Memcached::probe(&options, &secret).await;
    let servers = found.keep(probe.map_err(|error| advised(settings, &error)));
    for MemcachedProbe { name, version, has_secret, evicts } in servers.unwrap_or_default() {
        found.note(format!("store: {name}: memcached {version} answers"));
        if !has_secret && !is_new {
            found.note(format!("store: {name} holds no counters of this secret yet"));
        }
        if evicts {
            found.note(format!(
                "store: {name} evicts counters when it is full; with -M it would refuse new ones instead"
            ));
        }
    }
}

// === addresses ===

/// Binds an address for a moment. It does not listen, so no client is accepted, and a server that starts at the same time is not
/// hindered.
fn bind(listener: Listener, address: SocketAddr, purpose: CheckFor) -> Result<(), String> {
    let name = listener.name();
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let bound = socket.and_then(|socket| {
        socket.set_reuseaddr(true)?;
        socket.bind(address)
    });
    let wrong =
        |advice: &str, error: &io::Error| Err(format!("{name}.listen: {address}: {error}{advice}"));
    match bound {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => match purpose {
            CheckFor::Restart => Ok(()),
            CheckFor::Start => wrong(
                "; another program listens there; stop it, choose another port, or check with --check=restart",
                &error,
            ),
        },
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            wrong("; choose a port from 1024 on, or give the process CAP_NET_BIND_SERVICE", &error)
        }
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            wrong("; this machine does not have the address", &error)
        }
        bound => bound.map_err(|error| format!("{name}.listen: {address}: {error}")),
    }
}
