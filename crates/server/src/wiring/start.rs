//! Startup: everything that can fail happens before the first connection is accepted: files, secret, policy, store.

use super::greeting::absolute;
use super::proxy::{open_access_log, read_keys, read_routes, token_keys};
use super::{Failure, Server, named};
use crate::backend::Backend;
use crate::decision_logs::DecisionRecords;
use crate::denial_log::{DenialLogSettings, Denials};
use crate::health::Health;
use crate::metrics::Metrics;
use crate::net::{Budget, Certificate, Drain};
use crate::proxy::{LiveKeys, LiveRoutes};
use crate::recorder::{RecordSettings, Recorder};
use crate::rotating_file::FileBounds;
use crate::rule_files::{self, RuleFiles, RuleFolder, Texts};
use crate::rulebook::{self, DEFAULT_POLICY, Rulebook, RulebookContext};
use crate::settings::{SECRET, Settings, StoreUrl, reference};
use crate::shared_store::{known_nodes, node_id};
use crate::top_keys::{TopKeys, TopKeysSettings};
use crate::{files, log};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate::{Clock, Limiter, Memory, Policy, Secret};
use tidegate_store::{
    Damage, Durable, DurableSettings, Memcached, MemcachedSettings, Recovered, Redis,
    RedisSettings, RedisTls, StoreError,
};
use tonic_health::server::HealthReporter;

/// Reading a data directory of more bytes than this takes a while, so it shows its progress.
const WORTH_SHOWING: u64 = 64 << 20;

/// Starts the server and runs it until it is stopped.
pub(crate) async fn start(settings: Settings, out: &mut impl Write) -> Result<(), Failure> {
    let clock = Clock::system();
    let log_limiter = log::start(settings.log.format, settings.log.level, &clock);
    warn_of_variables();
    let data_dir = named("data_dir", &settings.server.data_dir);
    files::private_folder(&settings.server.data_dir).map_err(&data_dir)?;
    // Held until the server ends.
    let _lock = files::lock_folder(&settings.server.data_dir).map_err(&data_dir)?;
    drop(data_dir);
    let secret = match settings.secret.clone() {
        Some(secret) => secret,
        None => {
            let path = settings.secret_path();
            Secret::load_or_create(&path).map_err(named("secret_file", &path))?
        }
    };
    let read = |files| Certificate::read(files, clock.clone());
    let certificate = settings.tls_files().map(read).transpose()?;
    let text = policy_text(settings.server.policy.as_deref())?;
    let policy = read_policy(settings.server.policy.as_deref(), &text)?;
    token_keys(&settings).suffice_for(&policy)?;
    let rules = read_rules(&settings)?;
    let routes = read_routes(&settings)?;
    let keys = read_keys(&settings)?;
    let prepared = Prepared {
        settings,
        clock,
        secret,
        certificate,
        text,
        policy,
        rules,
        routes,
        keys,
        log_limiter,
        health: Arc::default(),
    };
    prepared.open_store(out).await
}

/// What is read before the store is opened.
struct Prepared {
    settings: Settings,
    clock: Clock,
    secret: Secret,
    certificate: Option<Arc<Certificate>>,
    text: Vec<u8>,
    policy: Policy,
    rules: Option<(RuleFolder, Texts, Policy)>,
    routes: Option<Arc<LiveRoutes>>,
    keys: Option<Arc<LiveKeys>>,
    log_limiter: Arc<log::LogLimiter>,
    health: Arc<Health>,
}

impl Prepared {
    /// Opens the store, then serves.
    async fn open_store(self, out: &mut impl Write) -> Result<(), Failure> {
        match self.settings.server.store.clone() {
            StoreUrl::Memory => {
                let budget = self.settings.memory.budget;
                let store = Memory::with_budget(self.clock.clone(), budget);
                self.serve(store, out).await
            }
            StoreUrl::File => {
                let store = self.open_data()?;
                self.serve(store, out).await
            }
            StoreUrl::Redis(url) => {
                let data_dir = &self.settings.server.data_dir;
                let (known_nodes, node_id) = (known_nodes(data_dir), Some(node_id(data_dir)?));
                let redis = redis_settings(&url, &self.settings)?;
                let redis = RedisSettings { known_nodes, node_id, ..redis };
                let store = Redis::open(&redis, &self.secret).await;
                let store = store.map_err(|error| advised(&self.settings, &error))?;
                self.serve(store, out).await
            }
            StoreUrl::Memcached(url) => {
                let memcached = memcached_settings(&url, &self.settings);
                if memcached.nodes.is_none() {
                    tracing::warn!(
                        "memcached cannot count the servers that share it; set cluster.nodes, or 8 are assumed while it is unreachable"
                    );
                }
                let store = Memcached::open(&memcached, &self.secret, self.clock.clone()).await;
                let store = store.map_err(|error| advised(&self.settings, &error))?;
                self.serve(store, out).await
            }
        }
    }

    /// Reads the counters of the data directory into memory.
    fn open_data(&self) -> Result<Durable, Failure> {
        let options = &self.settings.file;
        let settings = DurableSettings {
            budget: self.settings.memory.budget,
            write_every: options.write_interval.into(),
            sync_every: options.sync_interval.into(),
            bytes_per_second: options.write_rate,
            ..DurableSettings::new(self.settings.server.data_dir.join("states"))
        };
        let mut tenths = 0;
        let mut progress = |read: u64, all: u64| {
            let tenth = read.saturating_mul(10).checked_div(all).unwrap_or(10);
            if tenth > tenths && all > WORTH_SHOWING {
                tenths = tenth;
                tracing::info!("reading the counters: {}0 % of {} MiB", tenth, all >> 20);
            }
        };
        let opened = Durable::open(&settings, &self.secret, self.clock.clone(), &mut progress);
        let (store, recovered) = opened.map_err(|error| format!("store: {error}"))?;
        for Damage { file, offset, bytes } in &recovered.damage {
            tracing::error!("{file} is damaged: {bytes} bytes from byte {offset} on were left out");
        }
        self.health.set_problem("counters", left_out(&recovered.damage));
        if let Some(warning) = recovered.warning {
            tracing::warn!("the data directory may not survive a restart: {warning}");
        }
        let Recovered { states, frames, .. } = recovered;
        if frames > 0 {
            tracing::info!("read {states} records of counters from the data directory");
        }
        Ok(store)
    }

    async fn serve<S: Backend>(self, store: S, out: &mut impl Write) -> Result<(), Failure> {
        let Self { settings, clock, secret, certificate, text, policy, rules, .. } = self;
        let (routes, keys, log_limiter) = (self.routes, self.keys, self.log_limiter);
        let health = self.health;
        let problems = routes.as_ref().map(|live| live.load().routes.problems_with(&policy));
        if let Some(problems) = problems.filter(|problems| !problems.is_empty()) {
            return Err(problems.join("\n").into());
        }
        let store = Arc::new(store);
        let limiter = Limiter::new(policy, Arc::clone(&store), secret.clone(), clock.clone())?
            .settling_within(settings.server.receipt_ttl.into());
        let metrics = Arc::new(Metrics::default());
        let context = RulebookContext {
            secret: secret.clone(),
            clock: clock.clone(),
            metrics: Arc::clone(&metrics),
            health: Arc::clone(&health),
            data_dir: settings.server.data_dir.clone(),
            file: settings.server.policy.clone(),
            token_keys: token_keys(&settings),
        };
        let rulebook = Arc::new(Rulebook::open(limiter.clone(), context, text)?);
        let rule_files = match rules {
            None => None,
            Some((folder, texts, policy)) => {
                let limiter = Limiter::new(policy, store, secret.clone(), clock.clone())?;
                let reports = (Arc::clone(&metrics), Arc::clone(&health));
                Some(Arc::new(RuleFiles::new(limiter, folder, texts, reports)))
            }
        };
        tokio::task::spawn_local(log::report_left_out(log_limiter, Arc::clone(&metrics)));
        let (budget, drain) = (Budget::new(settings.memory.connection_budget), Drain::default());
        let proxy_budget = routes.is_some().then(|| Budget::new(settings.proxy.buffer_budget));
        let reports = (Arc::clone(&metrics), Arc::clone(&health));
        let access_log = open_access_log(&settings, &clock, reports.clone())?;
        let decisions = decision_logs(&settings, (&clock, &secret), reports)?;
        let shared = Server {
            settings,
            clock,
            secret,
            metrics,
            health,
            limiter,
            rulebook,
            rule_files,
            grpc_health: HealthReporter::new(),
            certificate,
            routes,
            access_log,
            decisions,
            keys,
            budget,
            proxy_budget,
            drain,
        };
        shared.serve(out).await
    }
}

/// What `/ready` says for the whole run about counters that could not be read.
fn left_out(damage: &[Damage]) -> Option<String> {
    let Damage { file, offset, .. } = damage.first()?;
    let more = match damage.len().saturating_sub(1) {
        0 => String::new(),
        more => format!(" (and {more} more places)"),
    };
    Some(format!(
        "{file} is damaged from byte {offset} on{more}: counters were left out at the start, so some clients may start from zero; `tidegate data verify` shows more"
    ))
}

/// Opens the denial log and the recording, each if it is on.
fn decision_logs(
    settings: &Settings,
    (clock, secret): (&Clock, &Secret),
    reports: (Arc<Metrics>, Arc<Health>),
) -> io::Result<DecisionRecords> {
    let Settings { server, record, top_keys, .. } = settings;
    let denials = match server.denial_log.clone() {
        None => Denials::default(),
        Some(place) => {
            let log = DenialLogSettings { place, keys: server.denial_log_keys };
            Denials::start(&log, (clock, secret), reports.clone())
                .map_err(named("denial_log", log.place.path()))?
        }
    };
    let recorder = match &record.file {
        None => Recorder::default(),
        Some(file) => {
            let record = RecordSettings {
                file: file.clone(),
                bounds: FileBounds { bytes: record.max_bytes, age: record.max_age.into() },
                sample: record.sample,
                sample_by: record.sample_by,
                clear: record.attributes,
            };
            Recorder::start(record, (clock, secret), reports).map_err(named("record.file", file))?
        }
    };
    let top = TopKeysSettings { memory: top_keys.memory, show: top_keys.show };
    let top = TopKeys::new((top.memory > 0).then_some(top), server.workers, (clock, secret));
    Ok(DecisionRecords { denials, recorder, top })
}

/// Why the store cannot be used. If it belongs to nodes with another secret, also how to give their secret to this node.
pub(super) fn advised(settings: &Settings, error: &StoreError) -> String {
    let advice = match (error, &settings.secret) {
        (StoreError::OtherSecret, Some(_)) => format!(
            "\n{SECRET} has the secret of this node; set it to what `tidegate secret show` prints on a node that uses the store already, or use another database"
        ),
        (StoreError::OtherSecret, None) => {
            let path = absolute(&settings.secret_path());
            format!(
                "\nthe secret of this node is in {path}; copy that file from a node that uses the store already: `tidegate secret show` prints it there, and `tidegate secret set --replace --secret-file {path}` reads it here. Or set {SECRET} on all nodes, or use another database"
            )
        }
        (_, _) => String::new(),
    };
    format!("store: {error}{advice}")
}

/// Logs which environment variables of Envoy's reference service are set, since they have no effect.
fn warn_of_variables() {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let ignored = reference::ignored(names);
    if !ignored.is_empty() {
        let names = ignored.join(", ");
        tracing::warn!("environment variables of Envoy's reference service are not read: {names}");
    }
}

/// The settings of the Redis store, with the certificates read from their files.
pub(super) fn redis_settings(url: &str, settings: &Settings) -> Result<RedisSettings, Failure> {
    let options = &settings.redis;
    let read = |setting, path: &PathBuf| std::fs::read(path).map_err(named(setting, path));
    let ca_file = options.ca_file.as_ref().map(|path| read("redis.ca_file", path));
    let client =
        options.certificate.as_ref().zip(options.key.as_ref()).map(|(certificate, key)| {
            Ok::<_, Failure>((read("redis.certificate", certificate)?, read("redis.key", key)?))
        });
    Ok(RedisSettings {
        tls: RedisTls { authority: ca_file.transpose()?, client: client.transpose()? },
        timeout: options.timeout.into(),
        connect_timeout: options.connect_timeout.into(),
        clock: options.clock,
        remember_refusals: options.denial_cache,
        nodes: settings.cluster.nodes,
        ..RedisSettings::new(url)
    })
}

/// The settings of the memcached store.
pub(super) fn memcached_settings(url: &str, settings: &Settings) -> MemcachedSettings {
    MemcachedSettings {
        timeout: settings.memcached.timeout.into(),
        connect_timeout: settings.memcached.connect_timeout.into(),
        nodes: settings.cluster.nodes,
        ..MemcachedSettings::new(url)
    }
}

pub(super) fn policy_text(path: Option<&Path>) -> io::Result<Vec<u8>> {
    match path {
        None => Ok(DEFAULT_POLICY.as_bytes().to_vec()),
        Some(path) => {
            files::read_regular(path, rulebook::MOST_BYTES).map_err(named("policy", path))
        }
    }
}

/// The rule files, if they are configured; or all their errors.
pub(super) fn read_rules(
    settings: &Settings,
) -> Result<Option<(RuleFolder, Texts, Policy)>, Failure> {
    let Some(path) = settings.envoy.config.clone() else { return Ok(None) };
    let folder = RuleFolder { path, merge_domains: settings.envoy.merge_domains };
    let texts = folder.texts().map_err(|error| format!("envoy.config: {error}"))?;
    let policy = folder.policy(&texts)?;
    rule_files::warn(&folder, &policy);
    Ok(Some((folder, texts, policy)))
}

/// The policy; or all its errors, as `tidegate policy lint` prints them.
pub(super) fn read_policy(path: Option<&Path>, text: &[u8]) -> Result<Policy, Failure> {
    let name = path.map_or("the default policy".to_owned(), |path| path.display().to_string());
    Policy::parse(text).map_err(|error| {
        let lines = error.problems().iter().map(|problem| format!("{name}:{problem}"));
        lines.collect::<Vec<_>>().join("\n").into()
    })
}
