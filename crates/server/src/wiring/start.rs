//! Everything that can fail, before the first connection is accepted: files, secret, policy, store.

use super::{Failure, Server, named};
use crate::backend::Backend;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::net::{Budget, Certificate, Drain};
use crate::rule_files::{self, RuleFiles, RuleFolder, Texts};
use crate::rulebook::{self, DEFAULT_POLICY, Rulebook, RulebookContext};
use crate::settings::{RedisOptions, Settings, StoreUrl, reference};
use crate::shared_store::known_nodes;
use crate::{files, log};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate::{Clock, Limiter, Memory, Policy, Secret};
use tidegate_store::{Redis, RedisSettings, RedisTls};
use tonic_health::server::HealthReporter;

/// Everything that can go wrong goes wrong here, before anybody is served.
pub(crate) async fn start(settings: Settings, out: &mut impl Write) -> Result<(), Failure> {
    let clock = Clock::system();
    let bounded = log::start(settings.log, &clock);
    warn_of_variables();
    let data_dir = named("data_dir", &settings.data_dir);
    files::private_folder(&settings.data_dir).map_err(&data_dir)?;
    // Held until the server ends.
    let _lock = files::lock_folder(&settings.data_dir).map_err(&data_dir)?;
    drop(data_dir);
    let secret = Secret::load_or_create(&settings.secret_file)
        .map_err(named("secret_file", &settings.secret_file))?;
    let certificate = settings.tls.clone().map(Certificate::read).transpose()?;
    let text = policy_text(settings.policy.as_deref())?;
    let policy = read_policy(settings.policy.as_deref(), &text)?;
    let rules = read_rules(&settings)?;
    let prepared = Prepared { settings, clock, secret, certificate, text, policy, rules, bounded };
    match prepared.settings.store.clone() {
        StoreUrl::Memory => {
            let budget = prepared.settings.memory_budget;
            let store = Memory::with_budget(prepared.clock.clone(), budget);
            prepared.serve(store, out).await
        }
        StoreUrl::Redis(url) => {
            let known_nodes = known_nodes(&prepared.settings.data_dir);
            let redis = redis_settings(&url, &prepared.settings.redis)?;
            let redis = RedisSettings { known_nodes, ..redis };
            let store = Redis::open(&redis, &prepared.secret).await;
            prepared.serve(store.map_err(|error| format!("store: {error}"))?, out).await
        }
    }
}

/// What there is before anything is counted.
struct Prepared {
    settings: Settings,
    clock: Clock,
    secret: Secret,
    certificate: Option<Arc<Certificate>>,
    text: Vec<u8>,
    policy: Policy,
    rules: Option<(RuleFolder, Texts, Policy)>,
    bounded: Arc<log::Bounded>,
}

impl Prepared {
    async fn serve<S: Backend>(self, store: S, out: &mut impl Write) -> Result<(), Failure> {
        let Self { settings, clock, secret, certificate, text, policy, rules, bounded } = self;
        let store = Arc::new(store);
        let limiter = Limiter::new(policy, Arc::clone(&store), secret.clone(), clock.clone())?
            .settling_within(settings.receipt_ttl.into());
        let (metrics, health) = (Arc::new(Metrics::default()), Arc::new(Health::default()));
        let context = RulebookContext {
            secret: secret.clone(),
            clock: clock.clone(),
            metrics: Arc::clone(&metrics),
            health: Arc::clone(&health),
            data_dir: settings.data_dir.clone(),
            file: settings.policy.clone(),
        };
        let rulebook = Arc::new(Rulebook::open(limiter.clone(), context, text)?);
        let rule_files = match rules {
            None => None,
            Some((folder, texts, policy)) => {
                let limiter = Limiter::new(policy, store, secret.clone(), clock.clone())?;
                let told = (Arc::clone(&metrics), Arc::clone(&health));
                Some(Arc::new(RuleFiles::new(limiter, folder, texts, told)))
            }
        };
        tokio::task::spawn_local(log::tell_left_out(bounded, Arc::clone(&metrics)));
        let (budget, drain) = (Budget::new(settings.connection_budget), Drain::default());
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
            budget,
            drain,
        };
        shared.serve(out).await
    }
}

/// Tells which variables of Envoy's reference service are set and not read.
fn warn_of_variables() {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let ignored = reference::ignored(names);
    if !ignored.is_empty() {
        let names = ignored.join(", ");
        tracing::warn!("environment variables of Envoy's reference service are not read: {names}");
    }
}

/// How the store is reached, with the certificates that it needs.
fn redis_settings(url: &str, options: &RedisOptions) -> Result<RedisSettings, Failure> {
    let read = |setting, path: &PathBuf| std::fs::read(path).map_err(named(setting, path));
    let ca_file = options.ca_file.as_ref().map(|path| read("redis.ca_file", path));
    let client = options.certificate.as_ref().map(|(certificate, key)| {
        Ok::<_, Failure>((read("redis.certificate", certificate)?, read("redis.key", key)?))
    });
    Ok(RedisSettings {
        tls: RedisTls { authority: ca_file.transpose()?, client: client.transpose()? },
        timeout: options.timeout.into(),
        connect_timeout: options.connect_timeout.into(),
        clock: options.clock,
        remember_refusals: options.denial_cache,
        nodes: options.nodes,
        ..RedisSettings::new(url)
    })
}

fn policy_text(path: Option<&Path>) -> io::Result<Vec<u8>> {
    match path {
        None => Ok(DEFAULT_POLICY.as_bytes().to_vec()),
        Some(path) => {
            files::read_regular(path, rulebook::MOST_BYTES).map_err(named("policy", path))
        }
    }
}

/// The rule files, if there are some, or everything that is wrong with them.
fn read_rules(settings: &Settings) -> Result<Option<(RuleFolder, Texts, Policy)>, Failure> {
    let Some(path) = settings.envoy_config.clone() else { return Ok(None) };
    let folder = RuleFolder { path, merge_domains: settings.merge_domains };
    let texts = folder.texts().map_err(|error| format!("envoy.config: {error}"))?;
    let policy = folder.policy(&texts)?;
    rule_files::warn(&folder, &policy);
    Ok(Some((folder, texts, policy)))
}

/// The policy, or everything that is wrong with it, as `tidegate policy lint` says it.
fn read_policy(path: Option<&Path>, text: &[u8]) -> Result<Policy, Failure> {
    let name = path.map_or("the usual policy".to_owned(), |path| path.display().to_string());
    let policy = Policy::parse(text).map_err(|error| {
        let lines = error.problems().iter().map(|problem| format!("{name}:{problem}"));
        lines.collect::<Vec<_>>().join("\n")
    })?;
    for warning in policy.warnings() {
        tracing::warn!("{name}:{warning}");
    }
    Ok(policy)
}
