//! `tidegate serve`: the server.

use crate::backend::Backend;
use crate::front::{Front, Web, admin, grpc, http, resp};
use crate::health::{Health, Stage};
use crate::metrics::Metrics;
use crate::net::{
    Budget, Caps, Division, Door, Drain, Files, Fronts, Place, Trusts, Turns, Versions, Workers,
    kept, raise_limit,
};
use crate::rule_files::{RuleFiles, RuleFolder, Texts};
use crate::rulebook::{Ground, Rulebook, Sure, USUAL_POLICY};
use crate::settings::{self, Flags, Listen, RedisOptions, Settings, StoreUrl, reference};
use crate::shared_store::{StoreWatch, follow, known_nodes};
use crate::supervise::supervised;
use crate::tls::Certificate;
use crate::{bounds, files, log, rule_files, watch};
use clap::Args;
use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use tidegate::http::HeaderStyle;
use tidegate::{Clock, Limiter, Memory, Policy, Secret};
use tidegate_policy::printable;
use tidegate_store::{Redis, RedisSettings, RedisTls};
use tokio::runtime::{Builder, LocalOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, HealthService};

#[derive(Args)]
pub(crate) struct Options {
    /// A file of settings; usually tidegate.yaml, if there is one.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Prints all settings and where each comes from, and starts nothing.
    #[arg(long)]
    print_config: bool,
    #[command(flatten)]
    flags: Flags,
}

/// What all parts of the server share.
struct Shared<S> {
    settings: Settings,
    clock: Clock,
    secret: Secret,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    limiter: Limiter<S>,
    rulebook: Arc<Rulebook<S>>,
    /// Rules for gRPC alone, if there are some.
    rule_files: Option<Arc<RuleFiles<S>>>,
    grpc_health: HealthReporter,
    certificate: Option<Arc<Certificate>>,
    /// What is held for clients.
    budget: Arc<Budget>,
    drain: Drain,
}

/// The listeners, open before anything is served; those of the workers have numbers.
struct Doors {
    http: Option<Door>,
    grpc: Option<Door>,
    resp: Option<Door>,
    admin: Option<Door>,
}

/// Where they are.
struct Addresses {
    http: Option<SocketAddr>,
    grpc: Option<SocketAddr>,
    resp: Option<SocketAddr>,
    admin: Option<SocketAddr>,
}

const HTTP: usize = 0;
const GRPC: usize = 1;
const RESP: usize = 2;
/// The only listener of the operators' thread.
const ADMIN: usize = 0;

type Failure = Box<dyn Error>;

pub(crate) fn run(options: &Options, out: &mut impl Write) -> io::Result<ExitCode> {
    let variables = match variables() {
        Ok(variables) => variables,
        Err(error) => return refused(&error),
    };
    let settings =
        match Settings::load(options.config.as_deref(), variables.into_iter(), &options.flags) {
            Ok(settings) => settings,
            Err(error) => return refused(&error),
        };
    if options.print_config {
        write!(out, "{}", settings.print())?;
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    match runtime.block_on(start(settings, out)) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => refused(&*error),
    }
}

/// The variables of the environment that could be settings. A value that is not text is an error: it was meant to say
/// something.
fn variables() -> io::Result<Vec<(String, String)>> {
    let ours = std::env::vars_os()
        .filter(|(name, _)| name.as_encoded_bytes().starts_with(settings::PREFIX.as_bytes()));
    let text = |(name, value): (OsString, OsString)| {
        let shown = name.to_string_lossy().into_owned();
        let wrong = || {
            let text = format!("{}: its value is not valid UTF-8", printable(&shown));
            io::Error::new(io::ErrorKind::InvalidInput, text)
        };
        let (Ok(name), Ok(value)) = (name.into_string(), value.into_string()) else {
            return Err(wrong());
        };
        Ok((name, value))
    };
    ours.map(text).collect()
}

/// Nothing was started.
fn refused(error: &dyn Error) -> io::Result<ExitCode> {
    for line in error.to_string().lines() {
        writeln!(io::stderr(), "tidegate: {line}")?;
    }
    Ok(ExitCode::from(2))
}

/// Everything that can go wrong goes wrong here, before anybody is served.
async fn start(settings: Settings, out: &mut impl Write) -> Result<(), Failure> {
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
    let before = Before { settings, clock, secret, certificate, text, policy, rules, bounded };
    match before.settings.store.clone() {
        StoreUrl::Memory => {
            let budget = before.settings.memory_budget;
            let store = Memory::with_budget(before.clock.clone(), budget);
            before.serve(store, out).await
        }
        StoreUrl::Redis(url) => {
            let known_nodes = known_nodes(&before.settings.data_dir);
            let redis = redis_settings(&url, &before.settings.redis)?;
            let redis = RedisSettings { known_nodes, ..redis };
            let store = Redis::open(&redis, &before.secret).await;
            before.serve(store.map_err(|error| format!("store: {error}"))?, out).await
        }
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
    let authority = options.authority.as_ref().map(|path| read("redis.ca_file", path));
    let client = options.certificate.as_ref().map(|(certificate, key)| {
        Ok::<_, Failure>((read("redis.certificate", certificate)?, read("redis.key", key)?))
    });
    Ok(RedisSettings {
        tls: RedisTls { authority: authority.transpose()?, client: client.transpose()? },
        timeout: options.timeout.into(),
        connect_timeout: options.connect_timeout.into(),
        clock: options.clock,
        remember_refusals: options.denial_cache,
        nodes: options.nodes,
        ..RedisSettings::new(url)
    })
}

/// What there is before anything is counted.
struct Before {
    settings: Settings,
    clock: Clock,
    secret: Secret,
    certificate: Option<Arc<Certificate>>,
    text: Vec<u8>,
    policy: Policy,
    rules: Option<(RuleFolder, Texts, Policy)>,
    bounded: Arc<log::Bounded>,
}

impl Before {
    async fn serve<S: Backend>(self, store: S, out: &mut impl Write) -> Result<(), Failure> {
        let Self { settings, clock, secret, certificate, text, policy, rules, bounded } = self;
        let store = Arc::new(store);
        let limiter = Limiter::new(policy, Arc::clone(&store), secret.clone(), clock.clone())?
            .settling_within(settings.receipt_ttl.into());
        let (metrics, health) = (Arc::new(Metrics::default()), Arc::new(Health::default()));
        let ground = Ground {
            secret: secret.clone(),
            clock: clock.clone(),
            metrics: Arc::clone(&metrics),
            health: Arc::clone(&health),
            data_dir: settings.data_dir.clone(),
            file: settings.policy.clone(),
        };
        let rulebook = Arc::new(Rulebook::open(limiter.clone(), ground, text)?);
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
        let shared = Shared {
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

impl<S: Backend> Shared<S> {
    /// Serves until somebody says stop.
    async fn serve(self, out: &mut impl Write) -> Result<(), Failure> {
        let tokens = self.settings.admin.address.map(|_| self.tokens()).transpose()?;
        let users = self.users()?;
        let doors = self.open().await?;
        let addresses = doors.addresses()?;
        let workers = Rc::new(self.workers(users)?);
        let operators = match addresses.admin.zip(tokens) {
            Some((address, tokens)) => Some(Rc::new(self.operators(address, tokens)?)),
            None => None,
        };
        // Signals are heard from before the first request on.
        let signals = Signals::new()?;
        // Nobody may be there to read it; that is no reason not to serve.
        if let Err(error) = self.greet(&addresses, out) {
            tracing::warn!("the greeting could not be written to the standard output: {error}");
        }
        if let Some(http) = addresses.http {
            tracing::info!(%http, "serving");
        }
        self.look_after_the_store();
        self.follow_other_nodes();
        self.health.enter(Stage::Serving);
        self.tell_grpc(ServingStatus::Serving).await;
        self.watch();
        let admitting = TaskTracker::new();
        self.admit(doors.http, HTTP, &workers, &admitting);
        self.admit(doors.grpc, GRPC, &workers, &admitting);
        self.admit(doors.resp, RESP, &workers, &admitting);
        if let Some(operators) = &operators {
            self.admit(doors.admin, ADMIN, operators, &admitting);
        }
        admitting.close();
        self.until_stopped(signals).await;
        self.stop(async {
            admitting.wait().await;
            // Nobody else comes, so nobody else has the workers.
            let workers = Rc::into_inner(workers).into_iter();
            for workers in workers.chain(operators.and_then(Rc::into_inner)) {
                workers.finish().await;
            }
        })
        .await;
        Ok(())
    }

    async fn open(&self) -> Result<Doors, Failure> {
        let Settings { http, grpc, resp, admin, .. } = &self.settings;
        let mut files = self.files(&[http, grpc, resp, admin]).into_iter();
        let mut open =
            async |listen: &Listen, name: &str, trusts: Trusts| -> Result<Option<Door>, Failure> {
                let Some(address) = listen.address else { return Ok(None) };
                let Some(files) = files.next() else { return Ok(None) };
                let told = (Arc::clone(&self.metrics), Arc::clone(&self.health));
                let door = Door::open(address, (listen.caps, files), trusts, told).await;
                Ok(Some(door.map_err(|error| format!("{name}: {address}: {error}"))?))
            };
        Ok(Doors {
            http: open(http, "http.listen", self.trusts()).await?,
            grpc: open(grpc, "grpc.listen", self.trusts()).await?,
            // Proxies ask over HTTP and gRPC.
            resp: open(resp, "resp.listen", Box::new(|_| false)).await?,
            admin: open(admin, "admin.listen", Box::new(|_| false))
                .await?
                .map(Door::preferring_tokens),
        })
    }

    /// Whether a peer is a proxy that the policy trusts, by the policy that is in force when it connects.
    fn trusts(&self) -> Trusts {
        let limiter = self.limiter.clone();
        Box::new(move |peer| limiter.trusts(peer))
    }

    /// Divides the files that may be open among the listeners that are on, in this order.
    fn files(&self, listeners: &[&Listen]) -> Vec<Files> {
        let on = listeners.iter().filter(|listen| listen.address.is_some());
        let caps: Vec<Caps> = on.map(|listen| listen.caps).collect();
        let limit = raise_limit(self.settings.max_open_files);
        let division = Division::new(limit, kept(self.settings.workers, S::SHARED), &caps);
        division.warn(limit);
        division.files(&self.health)
    }

    /// Reads again what changes on the disk: the policy, and the certificate.
    fn watch(&self) {
        if let Some(path) = self.rulebook.file() {
            let (paths, rulebook) = (vec![path.to_owned()], Arc::clone(&self.rulebook));
            let read = move || rulebook.reload(Sure::Careful);
            supervised("watching the policy", Arc::clone(&self.metrics), move || {
                let paths = paths.clone();
                watch::on_change("policy", move || paths.clone(), read.clone())
            });
        }
        if let Some(rules) = &self.rule_files {
            let (rules, read) = (Arc::clone(rules), Arc::clone(rules));
            let read = move || read.reload();
            supervised("watching the rule files", Arc::clone(&self.metrics), move || {
                let rules = Arc::clone(&rules);
                watch::on_change("rule files", move || rules.paths(), read.clone())
            });
        }
        if let Some(certificate) = &self.certificate {
            let paths = certificate.files().map(Path::to_owned).to_vec();
            let (certificate, health) = (Arc::clone(certificate), Arc::clone(&self.health));
            let read = move || renew(&certificate, &health);
            supervised("watching the certificate", Arc::clone(&self.metrics), move || {
                let paths = paths.clone();
                watch::on_change("certificate", move || paths.clone(), read.clone())
            });
        }
    }

    /// Looks after a store that other nodes share.
    fn look_after_the_store(&self) {
        if S::IN_PROCESS {
            return;
        }
        let watch = Rc::new(StoreWatch::new(
            self.limiter.clone(),
            Arc::clone(&self.health),
            &self.settings.data_dir,
        ));
        // Once before anybody is told that we are ready.
        watch.look();
        supervised("watching the store", Arc::clone(&self.metrics), move || {
            let watch = Rc::clone(&watch);
            async move { watch.go_on().await }
        });
    }

    /// Takes up what operators change on other nodes.
    fn follow_other_nodes(&self) {
        if !S::SHARED {
            return;
        }
        let (limiter, rulebook) = (self.limiter.clone(), Arc::clone(&self.rulebook));
        let health = Arc::clone(&self.health);
        supervised("following other nodes", Arc::clone(&self.metrics), move || {
            follow(limiter.clone(), Arc::clone(&rulebook), Arc::clone(&health))
        });
    }

    /// What a listener does with a connection, if it speaks TLS.
    fn tls(&self, listen: &Listen, protocols: &[&[u8]]) -> io::Result<Option<TlsAcceptor>> {
        let certificate = self.certificate.as_ref().filter(|_| listen.tls);
        certificate.map(|certificate| certificate.acceptor(protocols)).transpose()
    }

    fn users(&self) -> Result<resp::Users, Failure> {
        match &self.settings.users_file {
            Some(path) => resp::Users::read(path, self.secret.clone())
                .map_err(|error| format!("resp.users_file: {error}").into()),
            None => {
                // Whoever reaches the listener from another machine may ask, and no more.
                let near = self.settings.resp.address.is_some_and(|at| at.ip().is_loopback());
                let role = if near { resp::Role::Operator } else { resp::Role::Client };
                Ok(resp::Users::everybody(self.secret.clone(), role))
            }
        }
    }

    fn workers(&self, users: resp::Users) -> io::Result<Workers> {
        let settings = &self.settings;
        let style = HeaderStyle { legacy: settings.legacy_headers, ..HeaderStyle::default() };
        let (limiter, users) = (self.limiter.clone(), Arc::new(users));
        let rulebook = Arc::clone(&self.rulebook);
        let (of_http, of_grpc) = (settings.http.timeouts, settings.grpc.timeouts);
        let of_resp = settings.resp.timeouts;
        let tls_of_http = self.tls(&settings.http, &[b"h2", b"http/1.1"])?;
        let tls_of_grpc = self.tls(&settings.grpc, &[b"h2"])?;
        let by_files = self.rule_files.as_ref().map(|rules| rules.limiter().clone());
        let of_descriptors = by_files.unwrap_or_else(|| limiter.clone());
        let (manners, grpc_health) = (settings.grpc_manners, self.grpc_health.clone());
        let tls_of_resp = self.tls(&settings.resp, &[])?;
        let (metrics, health) = (Arc::clone(&self.metrics), Arc::clone(&self.health));
        let budget = Arc::clone(&self.budget);
        let make = move || -> Fronts<S> {
            let turns = Rc::new(Turns::new(S::IN_PROCESS));
            let place = |timeouts, tls: &Option<TlsAcceptor>| {
                let shared = (Arc::clone(&metrics), Arc::clone(&budget));
                let place = Place::new(timeouts, Versions::OneAndTwo, shared);
                place.under(tls.clone()).taking(&turns)
            };
            let (metrics, health) = (|| Arc::clone(&metrics), Arc::clone(&health));
            let http = http::Handler::new(limiter.clone(), style, metrics(), health)
                .deciding_descriptors_by(of_descriptors.clone())
                .taking(&turns);
            let watched = HealthService::from_health_reporter(grpc_health.clone());
            let grpc = grpc::Handler::new(of_descriptors.clone(), manners, metrics(), watched);
            let rulebook = Arc::clone(&rulebook);
            let resp = resp::Handler::new(limiter.clone(), rulebook, metrics(), Arc::clone(&users));
            vec![
                (Front::Web(Web::Http(http)), place(of_http, &tls_of_http)),
                (Front::Grpc(grpc), place(of_grpc, &tls_of_grpc).for_proxies()),
                (Front::Resp(resp), place(of_resp, &tls_of_resp)),
            ]
        };
        Workers::start("worker", settings.workers, &self.clock, &self.drain, make)
    }

    fn tokens(&self) -> Result<admin::Tokens, Failure> {
        let settings = &self.settings;
        let token = |file: &Option<PathBuf>, setting, name: &str, prefix| {
            let made = settings.data_dir.join(name);
            let path = file.as_deref().unwrap_or(&made);
            admin::read_or_make(path, prefix, file.is_none()).map_err(named(setting, path))
        };
        let [of_operators, of_readers] = ["admin.operator_token_file", "admin.reader_token_file"];
        let operator =
            token(&settings.operator_token_file, of_operators, "operator-token", "tgo_")?;
        let reader = token(&settings.reader_token_file, of_readers, "reader-token", "tgr_")?;
        if operator == reader {
            let text = "hold the same token, so every reader would be an operator";
            return Err(format!("{of_operators} and {of_readers} {text}").into());
        }
        Ok(admin::Tokens::new(self.secret.clone(), &operator, &reader))
    }

    /// Operators have a thread of their own: whatever they ask for, and however long that takes, no listener waits for it.
    fn operators(&self, address: SocketAddr, tokens: admin::Tokens) -> Result<Workers, Failure> {
        let handler = admin::Handler::new(
            self.limiter.clone(),
            Arc::clone(&self.rulebook),
            (Arc::clone(&self.metrics), Arc::clone(&self.health), Arc::clone(&self.budget)),
            tokens,
            (address, &self.settings.admin_hosts),
        )?
        .with_rule_files(self.rule_files.clone());
        let (handler, timeouts) = (Arc::new(handler), self.settings.admin.timeouts);
        let tls = self.tls(&self.settings.admin, &[b"http/1.1"])?;
        let metrics = Arc::clone(&self.metrics);
        let budget = Budget::new(bounds::OPERATORS_BUDGET);
        let make = move || -> Fronts<S> {
            let shared = (Arc::clone(&metrics), Arc::clone(&budget));
            let place = Place::new(timeouts, Versions::One, shared);
            vec![(Front::Web(Web::Admin(Arc::clone(&handler))), place.under(tls.clone()))]
        };
        Ok(Workers::start("operators", 1, &self.clock, &self.drain, make)?)
    }

    /// Hands the connections of a listener to the workers.
    fn admit(
        &self,
        door: Option<Door>,
        listener: usize,
        workers: &Rc<Workers>,
        admitting: &TaskTracker,
    ) {
        let Some(door) = door else { return };
        let (workers, drain) = (Rc::clone(workers), self.drain.clone());
        admitting.spawn_local(async move {
            let deliver = |stream, peer, slot| workers.deliver(listener, stream, peer, slot);
            door.admit(&drain, deliver).await;
        });
    }

    /// Reads the policy again whenever somebody says so; comes back when somebody says stop.
    async fn until_stopped(&self, mut signals: Signals) {
        loop {
            tokio::select! {
                _ = signals.hangup.recv() => {
                    let rulebook = Arc::clone(&self.rulebook);
                    let (certificate, health) = (self.certificate.clone(), Arc::clone(&self.health));
                    let rules = self.rule_files.clone();
                    let read = tokio::task::spawn_blocking(move || {
                        rulebook.reload(Sure::Forced);
                        rules.iter().for_each(|rules| rules.reload());
                        certificate.iter().for_each(|certificate| renew(certificate, &health));
                    });
                    if read.await.is_err() {
                        tracing::error!("reading the files met a mistake of ours; nothing is changed");
                    }
                }
                () = either(&mut signals.user_1, &mut signals.user_2) => {
                    tracing::info!("SIGUSR1 and SIGUSR2 do nothing; SIGHUP reads the files again");
                }
                _ = signals.terminate.recv() => break,
                _ = signals.interrupt.recv() => break,
            }
        }
        tokio::task::spawn_local(async move {
            // Whoever says it twice does not want to wait.
            tokio::select! { _ = signals.terminate.recv() => {}, _ = signals.interrupt.recv() => {} }
            std::process::exit(130);
        });
    }

    async fn stop(&self, all_done: impl Future<Output = ()>) {
        self.health.enter(Stage::Draining);
        self.tell_grpc(ServingStatus::NotServing).await;
        tracing::info!("stopping; requests that were received are answered");
        match self.drain.end(self.settings.drain_timeout, all_done).await {
            Ok(()) => tracing::info!("stopped; every request was answered"),
            Err(_) => tracing::warn!("stopped; some connections had to be cut off"),
        }
    }

    /// Tells those who watch over gRPC how we are.
    async fn tell_grpc(&self, status: ServingStatus) {
        // The last is the name that the reference service has.
        for service in ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"] {
            self.grpc_health.set_service_status(service, status).await;
        }
    }

    /// What memory is bounded by.
    fn memory(&self) -> String {
        let Settings { http, grpc, resp, admin, .. } = &self.settings;
        let on = [http, grpc, resp, admin].into_iter().filter(|listen| listen.address.is_some());
        let connections = on.fold(0_usize, |sum, listen| sum.saturating_add(listen.caps.all));
        let mebibytes = |bytes: usize| bytes.checked_div(1 << 20).unwrap_or(0);
        let states = match self.settings.store {
            StoreUrl::Memory => {
                format!("{} MiB for states, ", mebibytes(self.settings.memory_budget))
            }
            StoreUrl::Redis(_) => String::new(),
        };
        let held = mebibytes(self.budget.bytes());
        format!("{states}{held} MiB for what up to {connections} connections send and take")
    }

    /// Says where everything is, and what to try.
    fn greet(&self, addresses: &Addresses, out: &mut impl Write) -> io::Result<()> {
        let Addresses { http, grpc, resp, admin } = addresses;
        let settings = &self.settings;
        let absolute = |path: &Path| {
            std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
        };
        let policy = match &settings.policy {
            Some(path) => absolute(path),
            None => {
                "15 requests a second per client address (give your own with --policy)".to_owned()
            }
        };
        writeln!(out, "tidegate {}", env!("CARGO_PKG_VERSION"))?;
        writeln!(out, "  policy  {policy}")?;
        writeln!(out, "  data    {}", absolute(&settings.data_dir))?;
        writeln!(out, "  memory  {}", self.memory())?;
        if let Some(admin) = admin {
            let scheme = if settings.admin.tls { "https" } else { "http" };
            writeln!(out, "  admin   {scheme}://{admin}/  (token in {})", {
                let made = settings.data_dir.join("operator-token");
                absolute(settings.operator_token_file.as_deref().unwrap_or(&made))
            })?;
        }
        if let Some(grpc) = grpc {
            let rules = match &settings.envoy_config {
                Some(folder) => format!("rules in {}", absolute(folder)),
                None => "for Envoy, by the policy".to_owned(),
            };
            writeln!(out, "  grpc    {grpc}  ({rules})")?;
        }
        if let Some(resp) = resp {
            let scheme = if settings.resp.tls { "rediss" } else { "redis" };
            writeln!(out, "  resp    {scheme}://{resp}/")?;
        }
        if let Some(http) = http {
            let (scheme, trust) = match (&settings.tls, settings.http.tls) {
                (Some(tls), true) => ("https", format!("--cacert {} ", absolute(&tls.certificate))),
                _ => ("http", String::new()),
            };
            writeln!(out, "  http    {scheme}://{http}/")?;
            writeln!(
                out,
                "\ntry\n  curl -i {trust}{scheme}://{http}/v1/check --json '{{\"attributes\":{{\"ip\":\"203.0.113.7\"}}}}'\n"
            )?;
        }
        out.flush()
    }
}

impl Doors {
    fn addresses(&self) -> io::Result<Addresses> {
        let of = |door: &Option<Door>| door.as_ref().map(Door::address).transpose();
        let Self { http, grpc, resp, admin } = self;
        Ok(Addresses { http: of(http)?, grpc: of(grpc)?, resp: of(resp)?, admin: of(admin)? })
    }
}

/// What a process is told from outside.
struct Signals {
    hangup: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    /// Other servers open their logs again, or show their state; unheard, these two would end the process at once.
    user_1: tokio::signal::unix::Signal,
    user_2: tokio::signal::unix::Signal,
}

/// Waits for one of two signals.
async fn either(one: &mut tokio::signal::unix::Signal, two: &mut tokio::signal::unix::Signal) {
    tokio::select! { _ = one.recv() => {}, _ = two.recv() => {} }
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            user_1: signal(SignalKind::user_defined1())?,
            user_2: signal(SignalKind::user_defined2())?,
        })
    }
}

fn policy_text(path: Option<&Path>) -> io::Result<Vec<u8>> {
    match path {
        None => Ok(USUAL_POLICY.as_bytes().to_vec()),
        Some(path) => {
            files::read_regular(path, crate::rulebook::MOST_BYTES).map_err(named("policy", path))
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

/// Reads the certificate again; one that cannot be shown changes nothing, and is complained of.
fn renew(certificate: &Certificate, health: &Health) {
    let wrong = certificate.reload().err().map(|error| error.to_string());
    match &wrong {
        None => tracing::info!("the certificate was read"),
        Some(error) => tracing::error!("the certificate is not changed: {error}"),
    }
    health.complain("certificate", wrong);
}

/// With the setting that it is about.
fn named<'p>(setting: &'static str, path: &'p Path) -> impl Fn(io::Error) -> io::Error + 'p {
    move |error| io::Error::new(error.kind(), format!("{setting}: {}: {error}", path.display()))
}
