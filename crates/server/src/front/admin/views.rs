//! Read-only endpoints: status, the policy and its rules, the audit log, `peek` and `explain`.

use super::auth::AdminIdentity;
use super::handler::AdminHandler;
use super::request::{attributes, bad, read, unprocessable};
use super::wire;
use crate::backend::Backend;
use crate::front;
use crate::front::http::VerdictText;
use crate::timers;
use crate::web::{Answer, Call, JSON};
use http::{HeaderName, HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use tidegate::{Changes, Check};
use tidegate_store::{LeaseReport, NodeReport};

const YAML: &str = "application/yaml";
const POLICY_FROM: HeaderName = HeaderName::from_static("tidegate-policy-from");
const GRPC_RULES: HeaderName = HeaderName::from_static("tidegate-grpc-rules");
/// Lines of the audit log that are shown by default, and at most.
const AUDIT_LINES: (usize, usize) = (100, 1_000);

/// Whose token a request carries.
pub(super) fn who_am_i(identity: &AdminIdentity) -> Answer {
    let (name, role) = (&*identity.name, identity.role.name());
    Answer::json(StatusCode::OK, &json!({ "name": name, "role": role }))
}

impl<S: Backend> AdminHandler<S> {
    pub(super) fn leases_status(&self) -> Answer {
        let rule = |(rule, report): &(String, LeaseReport)| {
            json!({
                "rule": rule, "overshoot_bound": 0, "keys": report.leases, "held": report.held,
                "asks": report.asks, "granted": report.granted, "spent": report.spent,
                "returned": report.returned, "drained": report.drained, "lost": report.lost,
            })
        };
        let rules: Vec<Value> = self.page.leases().iter().map(rule).collect();
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
                "policy_hash": self.health.policy_hash(),
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

    /// The nodes that share the store, each with the hash of its policy.
    pub(super) fn nodes(&self) -> Answer {
        let store = self.limiter.store();
        let own = self.health.policy_hash();
        let node = |node: &NodeReport| {
            // What this node has announced may be a second old.
            let policy = if node.is_this { &own } else { &node.policy };
            json!({
                "node": node.name, "this": node.is_this, "policy_hash": policy,
                "silent_ms": node.silent.as_millis_ceil(),
            })
        };
        let mut nodes: Vec<Value> = store.node_reports().iter().map(node).collect();
        if nodes.is_empty() {
            // The store is not shared, or the settings say how many nodes there are.
            nodes.push(json!({ "node": null, "this": true, "policy_hash": own, "silent_ms": 0 }));
        }
        Answer::json(StatusCode::OK, &json!({ "count": store.nodes(), "nodes": nodes }))
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
        let document = self.rulebook.document_in_force();
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
        let (changes, _) = self.rulebook.document_in_force().changes(&policy);
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
