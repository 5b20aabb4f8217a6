//! Read-only endpoints: metrics, status, the policy and its rules, the audit log, `peek` and `explain`.

use super::handler::AdminHandler;
use super::request::{attributes, bad, read, unprocessable};
use super::wire;
use crate::backend::Backend;
use crate::front;
use crate::front::http::VerdictText;
use crate::metrics::GaugeReadings;
use crate::timers;
use crate::web::{Answer, Call, JSON};
use http::{HeaderName, HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use tidegate::{Changes, Check, Elasticity};
use tidegate_policy::{Consistency, Mode, Rule};
use tidegate_store::LeaseReport;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const YAML: &str = "application/yaml";
const POLICY_FROM: HeaderName = HeaderName::from_static("tidegate-policy-from");
const GRPC_RULES: HeaderName = HeaderName::from_static("tidegate-grpc-rules");
/// Lines of the audit log that are shown by default, and at most.
const AUDIT_LINES: (usize, usize) = (100, 1_000);

fn granted((rule, elasticity): (String, Elasticity)) -> (String, u64) {
    (rule, u64::from(elasticity.percent()))
}

impl<S: Backend> AdminHandler<S> {
    pub(super) fn metrics_text(&self) -> Answer {
        self.metrics.set_store_errors(self.limiter.stats().store_errors);
        let store = self.limiter.store();
        let moment = GaugeReadings {
            version: self.limiter.version(),
            rules_version: self.rule_files.as_ref().map(|files| files.limiter().version()),
            memory: store.gauges(),
            held: (self.budget.held(), self.budget.bytes()),
            proxied: self.proxy_budget.as_ref().map(|budget| (budget.held(), budget.bytes())),
            store: store.report(),
            nodes: store.nodes(),
            upstreams: self.upstreams.as_ref().map(|live| live.readings()),
            elastic: self.limiter.elasticities().into_iter().map(granted).collect(),
            over: self.over(),
            leases: self.leases(),
            durability: store.durability(),
        };
        Answer::new(StatusCode::OK, OPENMETRICS, self.metrics.text(&moment))
    }

    /// How many requests passed only because of the headroom of a rule, for rules that have one.
    fn over(&self) -> Vec<(String, u64)> {
        let policy = self.rulebook.policy();
        let has_headroom =
            |rule: &str| policy.rule(rule).is_some_and(|(_, rule)| *rule.mode() != Mode::Hard);
        let rules = self.limiter.stats().rules.into_iter();
        rules
            .filter(|(rule, _)| has_headroom(rule))
            .map(|(rule, stats)| (rule, stats.over))
            .collect()
    }

    /// What this node holds of the limits of each leased rule.
    fn leases(&self) -> Vec<(String, LeaseReport)> {
        let (policy, reports) = (self.rulebook.policy(), self.limiter.store().leases());
        let leased = |rule: &&Rule| *rule.consistency() != Consistency::Exact;
        let report = |rule: &Rule| {
            let group = rule.lease_group();
            let found = reports.iter().find(|report| report.group == group).copied();
            (rule.name().to_owned(), found.unwrap_or_default())
        };
        policy.rules().iter().filter(leased).map(report).collect()
    }

    pub(super) fn leases_status(&self) -> Answer {
        let rule = |(rule, report): &(String, LeaseReport)| {
            json!({
                "rule": rule, "overshoot_bound": 0, "keys": report.leases, "held": report.held,
                "asks": report.asks, "granted": report.granted, "spent": report.spent,
                "returned": report.returned, "drained": report.drained, "lost": report.lost,
            })
        };
        let rules: Vec<Value> = self.leases().iter().map(rule).collect();
        Answer::json(StatusCode::OK, &json!({ "rules": rules }))
    }

    pub(super) fn status(&self) -> Answer {
        let stats = self.limiter.stats();
        let health: Value =
            serde_json::from_slice(&front::ready(&self.health).body).unwrap_or_default();
        Answer::json(
            StatusCode::OK,
            &json!({
                "health": health,
                "uptime_s": timers::since(self.started).as_secs(),
                "tidegate": env!("CARGO_PKG_VERSION"),
                "policy_version": self.limiter.version(),
                "control_version": self.rulebook.document().version,
                "memory": self.memory_status(),
                "unmatched": stats.unmatched,
                "unknown_tiers": stats.unknown_tiers,
                "store_errors": stats.store_errors,
                "rules": wire::rule_counts(&stats),
                "envoy": self.rule_files_status(),
            }),
        )
    }

    /// How full the memory store is; `None` for a store elsewhere.
    fn memory_status(&self) -> Option<Value> {
        let gauges = self.limiter.store().gauges()?;
        Some(json!({
            "states": gauges.entries, "bytes": gauges.bytes, "budget": gauges.budget,
            "demotions": gauges.demotions,
        }))
    }

    fn rule_files_status(&self) -> Option<Value> {
        let files = self.rule_files.as_ref()?;
        let stats = files.limiter().stats();
        Some(json!({
            "config": files.folder(),
            "version": files.limiter().version(),
            "unmatched": stats.unmatched,
            "store_errors": stats.store_errors,
            "rules": wire::rule_counts(&stats),
        }))
    }

    /// The changes that are in force. Their version is the `ETag`, with which `If-Match` makes a change conditional.
    pub(super) fn control(&self) -> Answer {
        let document = self.rulebook.document();
        let answer = Answer::json(StatusCode::OK, &json!(document));
        match HeaderValue::try_from(format!("\"{}\"", document.version)) {
            Ok(tag) => answer.with(header::ETAG, tag),
            Err(_) => answer,
        }
    }

    pub(super) fn audit(&self, call: &Call<'_>) -> Result<Answer, Answer> {
        let (default, most) = AUDIT_LINES;
        let count = match call.parameter("last").map(str::parse) {
            None => default,
            Some(Ok(count)) => most.min(count),
            Some(Err(_)) => return Err(bad("`last` must be a number of lines, such as `last=20`")),
        };
        let lines = self.rulebook.last_changes(count).map_err(|error| {
            Answer::problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string())
        })?;
        Ok(Answer::json(StatusCode::OK, &json!(lines)))
    }

    pub(super) fn rules(&self) -> Answer {
        let policy = self.rulebook.policy();
        let (changes, _) = self.rulebook.document().changes(&policy);
        let mut rules: Vec<Value> =
            policy.rules().iter().map(|rule| wire::rule(rule, &policy, &changes)).collect();
        for policy in self.rule_files.iter().filter_map(|files| files.policy()) {
            rules.extend(policy.rules().iter().map(|rule| {
                let mut rule = wire::rule(rule, &policy, &Changes::default());
                if let Some(rule) = rule.as_object_mut() {
                    rule.insert("decides".to_owned(), "grpc".into());
                }
                rule
            }));
        }
        Answer::json(StatusCode::OK, &json!(rules))
    }

    /// The policy, or with `?protocol=grpc` the rule files, where they decide over gRPC.
    pub(super) fn policy(&self, call: &Call<'_>) -> Result<Answer, Answer> {
        match call.parameter("protocol") {
            Some("grpc") if self.rule_files.is_some() => return self.rule_files_text(),
            Some("grpc" | "http" | "proxy" | "resp") | None => {}
            Some(_) => return Err(bad("`protocol` must be `http`, `grpc`, `proxy` or `resp`")),
        }
        let (text, uploaded) = self.rulebook.policy_text();
        let from = HeaderValue::from_static(if uploaded { "upload" } else { "file" });
        let answer = Answer::new(StatusCode::OK, YAML, text).with(POLICY_FROM, from);
        if self.rule_files.is_none() {
            return Ok(answer);
        }
        let path = HeaderValue::from_static("/admin/v1/policy?protocol=grpc");
        Ok(answer.with(GRPC_RULES, path))
    }

    pub(super) fn rule_files_text(&self) -> Result<Answer, Answer> {
        let files = self.rule_files.as_ref().ok_or_else(|| {
            let detail = "this server has no rule files; start it with --envoy-config";
            Answer::problem(StatusCode::NOT_FOUND, detail)
        })?;
        let from = HeaderValue::from_static("envoy_config");
        Ok(Answer::new(StatusCode::OK, YAML, files.text()).with(POLICY_FROM, from))
    }

    pub(super) async fn peek(&self, call: &Call<'_>) -> Result<Answer, Answer> {
        let body: wire::PeekBody = read(call)?;
        let attributes = attributes(&body.attributes)?;
        let check = Check::new(&attributes).cost(body.cost);
        let verdict =
            self.limiter.peek(&check).await.map_err(|error| unprocessable(&error.to_string()))?;
        let mut body = Vec::new();
        VerdictText::new(&verdict, &self.limiter).write(&mut body);
        Ok(Answer::new(StatusCode::OK, JSON, body))
    }

    pub(super) fn explain(&self, call: &Call<'_>) -> Result<Answer, Answer> {
        let body: wire::PeekBody = read(call)?;
        let attributes = attributes(&body.attributes)?;
        let explanation = self.limiter.explain(&Check::new(&attributes).cost(body.cost));
        Ok(Answer::json(StatusCode::OK, &wire::explanation(&explanation)))
    }
}
