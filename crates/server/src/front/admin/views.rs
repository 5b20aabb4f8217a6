//! Read-only endpoints: status, the policy and its rules, the audit log, `peek` and `explain`.

use super::answers::{
    ExplanationBody, Lease, Leases, Node, Nodes, RuleCounts, RuleFilesStatus, RuleInForce, Status,
    WhoAmI,
};
use super::auth::AdminIdentity;
use super::handler::AdminHandler;
use super::request::{attributes, bad, read, unprocessable};
use super::wire;
use crate::backend::Backend;
use crate::front::http::VerdictText;
use crate::timers;
use crate::web::{Answer, Call, JSON};
use http::{HeaderName, HeaderValue, StatusCode, header};
use serde_json::json;
use tidegate::{Changes, Check};

const YAML: &str = "application/yaml";
const POLICY_FROM: HeaderName = HeaderName::from_static("tidegate-policy-from");
const GRPC_RULES: HeaderName = HeaderName::from_static("tidegate-grpc-rules");
/// Lines of the audit log that are shown by default, and at most.
pub(super) const AUDIT_LINES: (usize, usize) = (100, 1_000);

/// Whose token a request carries.
pub(super) fn who_am_i(identity: &AdminIdentity) -> Answer {
    let AdminIdentity { name, role } = identity;
    Answer::json(StatusCode::OK, &json!(WhoAmI { name, role: *role }))
}

impl<S: Backend> AdminHandler<S> {
    pub(super) fn leases_status(&self) -> Answer {
        let leases = self.page.leases().into_iter();
        let rules = leases.map(|(rule, report)| Lease::of(rule, &report)).collect();
        Answer::json(StatusCode::OK, &json!(Leases { rules }))
    }

    pub(super) fn status(&self) -> Answer {
        let stats = self.limiter.stats();
        let status = Status {
            health: self.health.report(),
            uptime_s: timers::since(self.started).as_secs(),
            tidegate: env!("CARGO_PKG_VERSION"),
            policy_version: self.limiter.version(),
            policy_hash: self.health.policy_hash(),
            control_version: self.rulebook.document().version,
            memory: self.limiter.store().gauges().map(Into::into),
            unmatched: stats.unmatched,
            unknown_tiers: stats.unknown_tiers,
            store_errors: stats.store_errors,
            rules: RuleCounts::of_rules(stats),
            envoy: self.rule_files_status(),
        };
        Answer::json(StatusCode::OK, &json!(status))
    }

    /// The nodes that share the store, each with the hash of its policy.
    pub(super) fn nodes(&self) -> Answer {
        let store = self.limiter.store();
        let own = self.health.policy_hash();
        let mut nodes: Vec<Node> = store.node_reports().into_iter().map(Node::from).collect();
        // What this node has announced may be a second old.
        for node in nodes.iter_mut().filter(|node| node.this) {
            node.policy_hash.clone_from(&own);
        }
        if nodes.is_empty() {
            // The store is not shared, or the settings say how many nodes there are.
            nodes.push(Node { node: None, this: true, policy_hash: own, silent_ms: 0 });
        }
        Answer::json(StatusCode::OK, &json!(Nodes { count: store.nodes(), nodes }))
    }

    fn rule_files_status(&self) -> Option<RuleFilesStatus> {
        let files = self.rule_files.as_ref()?;
        let stats = files.limiter().stats();
        Some(RuleFilesStatus {
            config: files.folder(),
            version: files.limiter().version(),
            unmatched: stats.unmatched,
            store_errors: stats.store_errors,
            rules: RuleCounts::of_rules(stats),
        })
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
        let in_force = policy.rules().iter().map(|rule| RuleInForce::new(rule, &policy, &changes));
        let mut rules: Vec<RuleInForce> = in_force.collect();
        for policy in self.rule_files.iter().filter_map(|files| files.policy()) {
            let new = |rule| RuleInForce::new(rule, &policy, &Changes::default()).over_grpc();
            rules.extend(policy.rules().iter().map(new));
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
        Ok(Answer::json(StatusCode::OK, &json!(ExplanationBody::from(&explanation))))
    }
}
