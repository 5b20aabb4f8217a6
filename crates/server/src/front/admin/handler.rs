//! From an operator's request to its answer.

use super::auth::{AdminRole, Foreign, Hosts, Tokens};
use super::wire;
use crate::audit::Actor;
use crate::backend::Backend;
use crate::bounds;
use crate::control::{Change, RefusedChange};
use crate::front;
use crate::front::http::{VerdictText, read_json};
use crate::health::Health;
use crate::metrics::{GaugeReadings, Metrics, Refused};
use crate::net::Budget;
use crate::rule_files::RuleFiles;
use crate::rulebook::{Caution, Rulebook, RulebookError};
use crate::web::{Answer, BodyBound, Call, JSON, PROBLEM, WebHandler};
use http::{HeaderValue, StatusCode, header};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use tidegate::{Attributes, Changes, Check, Limiter, Policy};
use tokio::time::Instant;

/// Answers operators.
pub(crate) struct AdminHandler<S> {
    limiter: Limiter<S>,
    rulebook: Arc<Rulebook<S>>,
    /// What decides over gRPC in place of the policy, if it does.
    rule_files: Option<Arc<RuleFiles<S>>>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    /// What is held for clients.
    budget: Arc<Budget>,
    tokens: Tokens,
    hosts: Hosts,
    /// Counts wrong tokens, by who sends them.
    guesses: Limiter,
    started: Instant,
}

/// One thing that can be asked: by which method, at which path, by whom.
struct AdminRoute {
    method: &'static str,
    path: &'static str,
    role: AdminRole,
    what: What,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Metrics,
    Status,
    Control,
    Audit,
    Rules,
    Policy,
    PutPolicy,
    DeletePolicy,
    Peek,
    Explain,
    Reset,
    PutRules,
    PutOverrides,
    PutTiers,
    PutSignals,
    /// The rule files, at the path that Envoy's reference service has for them.
    RuleFiles,
}

const fn route(
    method: &'static str,
    path: &'static str,
    role: AdminRole,
    what: What,
) -> AdminRoute {
    AdminRoute { method, path, role, what }
}

/// Everything that can be asked; what is not here is not found.
const ROUTES: [AdminRoute; 16] = [
    route("GET", "/metrics", AdminRole::Reader, What::Metrics),
    route("GET", "/admin/v1/status", AdminRole::Reader, What::Status),
    route("GET", "/admin/v1/control", AdminRole::Reader, What::Control),
    route("GET", "/admin/v1/audit", AdminRole::Reader, What::Audit),
    route("GET", "/admin/v1/rules", AdminRole::Reader, What::Rules),
    route("GET", "/admin/v1/policy", AdminRole::Reader, What::Policy),
    route("GET", "/rlconfig", AdminRole::Reader, What::RuleFiles),
    route("PUT", "/admin/v1/policy", AdminRole::Operator, What::PutPolicy),
    route("DELETE", "/admin/v1/policy", AdminRole::Operator, What::DeletePolicy),
    route("POST", "/admin/v1/peek", AdminRole::Reader, What::Peek),
    route("POST", "/admin/v1/explain", AdminRole::Reader, What::Explain),
    route("POST", "/admin/v1/reset", AdminRole::Operator, What::Reset),
    route("PUT", "/admin/v1/rules", AdminRole::Operator, What::PutRules),
    route("PUT", "/admin/v1/overrides", AdminRole::Operator, What::PutOverrides),
    route("PUT", "/admin/v1/tiers", AdminRole::Operator, What::PutTiers),
    route("PUT", "/admin/v1/signals", AdminRole::Operator, What::PutSignals),
];

/// Wrong tokens that one address, or one IPv6 /64, may send.
const GUESSES: &str = "{ version: 1, rules: [{ name: guesses, key: [ip], limits: [10/min] }] }";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const YAML: &str = "application/yaml";
const POLICY_FROM: http::HeaderName = http::HeaderName::from_static("tidegate-policy-from");
/// Lines of the audit log that are shown unless said otherwise, and at most.
const AUDIT_LINES: (usize, usize) = (100, 1_000);

impl<S: Backend> WebHandler for AdminHandler<S> {
    type Route = ();

    /// Whether a request shows a valid token.
    fn knows(&self, call: &Call<'_>) -> bool {
        self.tokens.role(call).is_some()
    }

    /// Everything that can be refused by the head is: nobody without a token sends us a body.
    fn begin(&self, call: &Call<'_>) -> Result<((), BodyBound), Answer> {
        if let Err(foreign) = self.hosts.meant(call) {
            self.metrics.refused(Refused::Foreign);
            return Err(match foreign {
                Foreign::Host => Answer::problem(
                    StatusCode::MISDIRECTED_REQUEST,
                    "this is not that host; name this listener by its address, or set admin.hosts",
                ),
                Foreign::Page => Answer::problem(
                    StatusCode::FORBIDDEN,
                    "pages of other origins are not answered",
                ),
            });
        }
        if call.path == "/live" && call.method == "GET" {
            return Ok(((), BodyBound::bytes(0)));
        }
        let role = self.tokens.role(call).ok_or_else(|| self.unknown(call))?;
        let route = find(call)?;
        if role < route.role {
            tracing::warn!(peer = %call.peer, path = route.path, "a reader may not do this");
            let detail = "this needs the token of an operator";
            return Err(Answer::problem(StatusCode::FORBIDDEN, detail));
        }
        Ok(((), route.body(call)?))
    }

    async fn answer(&self, (): (), call: &Call<'_>) -> Answer {
        if call.path == "/live" {
            return Answer::fixed(JSON, "{\"status\":\"live\"}\n");
        }
        // Whoever got here has been let in; the role is looked at again for the audit log.
        let Some(role) = self.tokens.role(call) else { return self.unknown(call) };
        let what = match find(call) {
            Ok(route) => route.what,
            Err(answer) => return answer,
        };
        let actor = Actor { who: role.name(), peer: call.peer };
        let answered = match what {
            What::Metrics => Ok(self.metrics_text()),
            What::Status => Ok(self.status()),
            What::Control => Ok(self.control(StatusCode::OK)),
            What::Audit => self.audit(call),
            What::Rules => Ok(self.rules()),
            What::Policy => self.policy(call),
            What::RuleFiles => self.rule_files_text(),
            What::PutPolicy => self.put_policy(call, actor).await,
            What::DeletePolicy => self.delete_policy(call, actor).await,
            What::Peek => self.peek(call).await,
            What::Explain => self.explain(call),
            What::Reset => self.reset(call, actor).await,
            What::PutRules => self.put_rule(call, actor).await,
            What::PutOverrides => {
                let change = read::<wire::PutOverride>(call).map(Change::Override);
                self.changed(call, actor, change).await
            }
            What::PutTiers => {
                self.changed(call, actor, read::<wire::PutTier>(call).map(Change::Tier)).await
            }
            What::PutSignals => self.put_signals(call, actor),
        };
        answered.unwrap_or_else(|answer| answer)
    }

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

impl<S: Backend> AdminHandler<S> {
    pub(crate) fn new(
        limiter: Limiter<S>,
        rulebook: Arc<Rulebook<S>>,
        (metrics, health, budget): (Arc<Metrics>, Arc<Health>, Arc<Budget>),
        tokens: Tokens,
        (listens, hosts): (SocketAddr, &[String]),
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let guesses = Limiter::in_memory(Policy::parse(GUESSES)?)?;
        let hosts = Hosts::new(listens, hosts);
        let started = Instant::now();
        let rule_files = None;
        Ok(Self {
            limiter,
            rulebook,
            rule_files,
            metrics,
            health,
            budget,
            tokens,
            hosts,
            guesses,
            started,
        })
    }

    /// The same, where rule files of Envoy's reference service decide over gRPC.
    pub(crate) fn with_rule_files(self, rule_files: Option<Arc<RuleFiles<S>>>) -> Self {
        Self { rule_files, ..self }
    }

    /// No token, or a wrong one. Whoever guesses is told less and less often.
    fn unknown(&self, call: &Call<'_>) -> Answer {
        self.metrics.refused(Refused::Unauthorized);
        let guesser = Attributes::new().from_address(call.peer);
        let guess = self.guesses.check_now(&Check::new(&guesser));
        if let Some(refused) = guess.ok().filter(|verdict| !verdict.allowed()) {
            let wait = refused.retry_after().map_or(60, |wait| wait.as_secs_ceil().max(1));
            return Answer::problem(StatusCode::TOO_MANY_REQUESTS, "too many wrong tokens")
                .with(header::RETRY_AFTER, HeaderValue::from(wait));
        }
        tracing::warn!(peer = %call.peer, "somebody without a token was at the admin listener");
        let detail = "show a token: `authorization: Bearer …`; it lies in the data directory";
        Answer::problem(StatusCode::UNAUTHORIZED, detail)
            .with(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
    }

    // === looking ===

    fn metrics_text(&self) -> Answer {
        self.metrics.set_store_errors(self.limiter.stats().store_errors);
        let store = self.limiter.store();
        let moment = GaugeReadings {
            version: self.limiter.version(),
            rules_version: self.rule_files.as_ref().map(|files| files.limiter().version()),
            memory: store.gauges(),
            held: (self.budget.held(), self.budget.bytes()),
            store: store.report(),
            nodes: store.nodes(),
        };
        Answer::new(StatusCode::OK, OPENMETRICS, self.metrics.text(&moment))
    }

    fn status(&self) -> Answer {
        let stats = self.limiter.stats();
        let memory = self.limiter.store().gauges().map(|gauges| {
            json!({
                "states": gauges.entries, "bytes": gauges.bytes, "budget": gauges.budget,
                "demotions": gauges.demotions,
            })
        });
        let health: Value =
            serde_json::from_slice(&front::ready(&self.health).body).unwrap_or_default();
        let envoy = self.rule_files.as_ref().map(|files| {
            let stats = files.limiter().stats();
            json!({
                "config": files.folder(),
                "version": files.limiter().version(),
                "unmatched": stats.unmatched,
                "store_errors": stats.store_errors,
                "rules": wire::counts(&stats),
            })
        });
        Answer::json(
            StatusCode::OK,
            &json!({
                "health": health,
                "uptime_s": self.started.elapsed().as_secs(),
                "tidegate": env!("CARGO_PKG_VERSION"),
                "policy_version": self.limiter.version(),
                "control_version": self.rulebook.document().version,
                "memory": memory,
                "unmatched": stats.unmatched,
                "unknown_tiers": stats.unknown_tiers,
                "store_errors": stats.store_errors,
                "rules": wire::counts(&stats),
                "envoy": envoy,
            }),
        )
    }

    /// The changes that are in force; its version is the tag by which a change can be made conditional.
    fn control(&self, status: StatusCode) -> Answer {
        let document = self.rulebook.document();
        let answer = Answer::json(status, &json!(document));
        match HeaderValue::try_from(format!("\"{}\"", document.version)) {
            Ok(tag) => answer.with(header::ETAG, tag),
            Err(_) => answer,
        }
    }

    fn audit(&self, call: &Call<'_>) -> Result<Answer, Answer> {
        let (usual, most) = AUDIT_LINES;
        let count = match call.parameter("last").map(str::parse) {
            None => usual,
            Some(Ok(count)) => most.min(count),
            Some(Err(_)) => return Err(bad("`last` is a number of lines")),
        };
        let lines = self.rulebook.last_changes(count).map_err(|error| {
            Answer::problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string())
        })?;
        Ok(Answer::json(StatusCode::OK, &json!(lines)))
    }

    fn rules(&self) -> Answer {
        let policy = self.rulebook.policy();
        let (changes, _) = self.rulebook.document().changes(&policy);
        let mut rules: Vec<Value> =
            policy.rules().iter().map(|rule| wire::described(rule, &policy, &changes)).collect();
        for policy in self.rule_files.iter().filter_map(|files| files.policy()) {
            rules.extend(policy.rules().iter().map(|rule| {
                let mut rule = wire::described(rule, &policy, &Changes::default());
                if let Some(rule) = rule.as_object_mut() {
                    rule.insert("decides".to_owned(), "grpc".into());
                }
                rule
            }));
        }
        Answer::json(StatusCode::OK, &json!(rules))
    }

    /// The policy; or the rule files, where they decide and are asked for by `?protocol=grpc`.
    fn policy(&self, call: &Call<'_>) -> Result<Answer, Answer> {
        match call.parameter("protocol") {
            Some("grpc") if self.rule_files.is_some() => return self.rule_files_text(),
            Some("grpc" | "http" | "resp") | None => {}
            Some(_) => return Err(bad("`front` is `http`, `grpc` or `resp`")),
        }
        let (text, sent) = self.rulebook.policy_text();
        let from = HeaderValue::from_static(if sent { "upload" } else { "file" });
        let answer = Answer::new(StatusCode::OK, YAML, text).with(POLICY_FROM, from);
        if self.rule_files.is_none() {
            return Ok(answer);
        }
        let elsewhere = HeaderValue::from_static("/admin/v1/policy?protocol=grpc");
        Ok(answer.with(http::HeaderName::from_static("tidegate-grpc-rules"), elsewhere))
    }

    fn rule_files_text(&self) -> Result<Answer, Answer> {
        let files = self.rule_files.as_ref().ok_or_else(|| {
            let detail = "no rule files decide here; start with --envoy-config";
            Answer::problem(StatusCode::NOT_FOUND, detail)
        })?;
        let from = HeaderValue::from_static("envoy_config");
        Ok(Answer::new(StatusCode::OK, YAML, files.text()).with(POLICY_FROM, from))
    }

    async fn peek(&self, call: &Call<'_>) -> Result<Answer, Answer> {
        let ask: wire::Ask = read(call)?;
        let attributes = attributes(&ask.attributes)?;
        let check = Check::new(&attributes).cost(ask.cost);
        let verdict =
            self.limiter.peek(&check).await.map_err(|error| unprocessable(&error.to_string()))?;
        let mut body = Vec::new();
        VerdictText::new(&verdict, &self.limiter).write(&mut body);
        Ok(Answer::new(StatusCode::OK, JSON, body))
    }

    fn explain(&self, call: &Call<'_>) -> Result<Answer, Answer> {
        let ask: wire::Ask = read(call)?;
        let attributes = attributes(&ask.attributes)?;
        let explanation = self.limiter.explain(&Check::new(&attributes).cost(ask.cost));
        Ok(Answer::json(StatusCode::OK, &wire::explanation(&explanation)))
    }

    // === changing ===

    async fn reset(&self, call: &Call<'_>, actor: Actor<'_>) -> Result<Answer, Answer> {
        let asked: wire::Reset = read(call)?;
        let who = attributes(&asked.attributes)?;
        let states = self
            .limiter
            .reset(&asked.rule, &who)
            .await
            .map_err(|error| unprocessable(&error.to_string()))?;
        // Names are kept, and what they are named by is not: it may be a secret.
        let names: Vec<&String> = asked.attributes.keys().collect();
        let details = json!({ "rule": asked.rule, "by": names, "states": states });
        let note = move |rulebook: &Rulebook<S>, actor: Actor<'_>| {
            rulebook.note(actor, "reset", &details);
            Ok(())
        };
        self.aside(actor, note).await?;
        Ok(Answer::json(StatusCode::OK, &json!({ "states": states })))
    }

    async fn put_rule(&self, call: &Call<'_>, actor: Actor<'_>) -> Result<Answer, Answer> {
        let switch = read::<wire::Switch>(call);
        let switch = switch.map(|switch| switch.over(&self.rulebook.document().rules));
        self.changed(call, actor, switch.map(Change::Rule)).await
    }

    /// Makes a change, and answers with all that are in force then.
    async fn changed(
        &self,
        call: &Call<'_>,
        actor: Actor<'_>,
        change: Result<Change, Answer>,
    ) -> Result<Answer, Answer> {
        let (expected, change) = (expected(call)?, change?);
        self.aside(actor, move |rulebook, actor| rulebook.change(change, expected, actor)).await?;
        Ok(self.control(StatusCode::OK))
    }

    async fn put_policy(&self, call: &Call<'_>, actor: Actor<'_>) -> Result<Answer, Answer> {
        let [dry, force] = flags(call, ["dry_run", "force"])?;
        let sure = if force { Caution::Forced } else { Caution::Careful };
        let (expected, text) = (expected(call)?, call.body.to_vec());
        let difference = self
            .aside(actor, move |rulebook, actor| rulebook.upload(&text, sure, dry, expected, actor))
            .await?;
        Ok(self.difference(dry, &difference.json()))
    }

    async fn delete_policy(&self, call: &Call<'_>, actor: Actor<'_>) -> Result<Answer, Answer> {
        let expected = expected(call)?;
        let difference =
            self.aside(actor, move |rulebook, actor| rulebook.withdraw(expected, actor)).await?;
        Ok(self.difference(false, &difference.json()))
    }

    /// Changes the rules on a thread of its own: a large policy takes a while to read, a store to answer, and others want to
    /// be answered meanwhile.
    async fn aside<T: Send + 'static>(
        &self,
        actor: Actor<'_>,
        change: impl FnOnce(&Rulebook<S>, Actor<'_>) -> Result<T, RulebookError> + Send + 'static,
    ) -> Result<T, Answer> {
        let rulebook = Arc::clone(&self.rulebook);
        let (who, peer) = (actor.who.to_owned(), actor.peer);
        let changed =
            tokio::task::spawn_blocking(move || change(&rulebook, Actor { who: &who, peer }));
        let changed = changed.await.map_err(|_| {
            self.metrics.panicked();
            Answer::problem(StatusCode::INTERNAL_SERVER_ERROR, "a mistake of ours; nothing changed")
        })?;
        changed.map_err(|error| refused(&error))
    }

    fn difference(&self, dry: bool, difference: &Value) -> Answer {
        let version = self.limiter.version();
        let body = json!({ "dry_run": dry, "policy_version": version, "difference": difference });
        Answer::json(StatusCode::OK, &body)
    }

    fn put_signals(&self, call: &Call<'_>, actor: Actor<'_>) -> Result<Answer, Answer> {
        let signals: wire::PutSignalsBody = read(call)?;
        if signals.len() > MOST_SIGNALS || signals.keys().any(|name| name.len() > 64) {
            return Err(bad("at most 64 signals, with names of at most 64 bytes"));
        }
        for (name, value) in &signals {
            self.limiter.signal(name, *value).map_err(|error| {
                Answer::problem_at(StatusCode::BAD_REQUEST, &format!("/{name}"), &error.to_string())
            })?;
        }
        tracing::debug!(who = actor.who, "signals: {signals:?}");
        Ok(Answer::json(StatusCode::OK, &json!(signals)))
    }
}

const MOST_SIGNALS: usize = 64;

// === impl AdminRoute ===

/// Which route a request takes; the path has one spelling.
fn find(call: &Call<'_>) -> Result<&'static AdminRoute, Answer> {
    let method = if call.method == "HEAD" { "GET" } else { call.method };
    let mut here = ROUTES.iter().filter(|route| route.path == call.path).peekable();
    if here.peek().is_none() {
        return Err(Answer::problem(StatusCode::NOT_FOUND, "there is nothing at this path"));
    }
    here.find(|route| route.method == method).ok_or_else(|| {
        let methods = ROUTES.iter().filter(|route| route.path == call.path);
        let methods: Vec<&str> = methods.map(|route| route.method).collect();
        let methods = methods.join(", ");
        let answer = Answer::problem(
            StatusCode::METHOD_NOT_ALLOWED,
            &format!("this path is asked by {methods}"),
        );
        match HeaderValue::try_from(methods) {
            Ok(methods) => answer.with(header::ALLOW, methods),
            Err(_) => answer,
        }
    })
}

impl AdminRoute {
    /// What body it takes.
    fn body(&self, call: &Call<'_>) -> Result<BodyBound, Answer> {
        let unsupported = |detail| Answer::problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail);
        match (self.method, self.what) {
            ("GET" | "DELETE", _) => Ok(BodyBound::bytes(0)),
            (_, What::PutPolicy) => {
                let kind = call.headers.one("content-type").unwrap_or_default();
                let kind = kind.split(';').next().unwrap_or_default().trim();
                if ["application/yaml", "application/x-yaml", "text/yaml", "application/json"]
                    .contains(&kind.to_ascii_lowercase().as_str())
                {
                    return Ok(BodyBound::bytes(bounds::POLICY_BODY));
                }
                Err(unsupported("a policy is sent with `content-type: application/yaml`"))
            }
            (_, _) if call.is_json() => Ok(BodyBound::bytes(bounds::BODY)),
            (_, _) => {
                Err(unsupported("the body is JSON; say so with `content-type: application/json`"))
            }
        }
    }
}

// === helpers ===

fn read<T: DeserializeOwned>(call: &Call<'_>) -> Result<T, Answer> {
    read_json(call.body).map_err(|error| error.answer())
}

fn attributes(
    pairs: &std::collections::BTreeMap<String, String>,
) -> Result<Attributes<'_>, Answer> {
    wire::attributes(pairs).map_err(|(pointer, error)| {
        Answer::problem_at(StatusCode::BAD_REQUEST, &pointer, &error.to_string())
    })
}

/// What a query switches on. A word that is not understood may have been meant to hold something back, so it is
/// not read over.
fn flags<const N: usize>(call: &Call<'_>, names: [&str; N]) -> Result<[bool; N], Answer> {
    let mut said = [None; N];
    for pair in call.query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let place = names.iter().position(|known| *known == name).and_then(|at| said.get_mut(at));
        match (place, value) {
            (Some(place @ None), "true") => *place = Some(true),
            (Some(place @ None), "false") => *place = Some(false),
            _ => {
                let names = names.join("` and `");
                return Err(bad(&format!("here are `{names}`, each once, `true` or `false`")));
            }
        }
    }
    Ok(said.map(|flag| flag == Some(true)))
}

/// The version under which a change was made, if the caller says so.
fn expected(call: &Call<'_>) -> Result<Option<u64>, Answer> {
    let mut tags = call.headers.all("if-match");
    let (tag, more) = (tags.next(), tags.next());
    let Some(tag) = tag else { return Ok(None) };
    let text = str::from_utf8(tag).unwrap_or_default().trim();
    let version = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    match (version.and_then(|version| version.parse().ok()), more) {
        (Some(version), None) => Ok(Some(version)),
        _ => Err(bad("`if-match` is the tag of /admin/v1/control, such as `\"7\"`")),
    }
}

fn bad(detail: &str) -> Answer {
    Answer::problem(StatusCode::BAD_REQUEST, detail)
}

fn unprocessable(detail: &str) -> Answer {
    Answer::problem(StatusCode::UNPROCESSABLE_ENTITY, detail)
}

/// A change that was not made.
fn refused(error: &RulebookError) -> Answer {
    let status = match error {
        RulebookError::Policy(problems) => return not_a_policy(problems),
        RulebookError::Drops { .. } => StatusCode::CONFLICT,
        RulebookError::Change(RefusedChange::Stale { .. }) => StatusCode::PRECONDITION_FAILED,
        RulebookError::Change(RefusedChange::Busy | RefusedChange::NothingPending) => {
            StatusCode::CONFLICT
        }
        RulebookError::Change(RefusedChange::StoreGone) => StatusCode::SERVICE_UNAVAILABLE,
        RulebookError::Change(RefusedChange::NotWritten) | RulebookError::Io(_) => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
        RulebookError::Change(RefusedChange::Wrong(_) | RefusedChange::TooMany)
        | RulebookError::Limiter(_) => StatusCode::UNPROCESSABLE_ENTITY,
    };
    let hint = match error {
        RulebookError::Drops { .. } => "; if that is meant, add `?force=true`",
        RulebookError::Policy(_)
        | RulebookError::Change(_)
        | RulebookError::Limiter(_)
        | RulebookError::Io(_) => "",
    };
    Answer::problem(status, &format!("{error}{hint}"))
}

/// Everything that is wrong with a policy, each with its place.
fn not_a_policy(error: &tidegate::PolicyError) -> Answer {
    let problems: Vec<Value> = error
        .problems()
        .iter()
        .map(|problem| {
            let place = problem.place;
            json!({ "line": place.line, "column": place.column, "text": problem.text })
        })
        .collect();
    let status = StatusCode::BAD_REQUEST;
    let body = json!({
        "title": "Bad Request", "status": status.as_u16(),
        "detail": error.to_string(), "problems": problems,
    });
    Answer::new(status, PROBLEM, format!("{body}\n"))
}
