//! What `/metrics` shows, and the listener that serves nothing else.
//!
//! The admin listener shows the page to those who have a token. Many deployments scrape metrics by a system that has none, in a
//! network of its own; `metrics.listen` is an address for it. The page names rules, upstream servers and servers of the store,
//! and no client.

use crate::backend::Backend;
use crate::health::Health;
use crate::metrics::{GaugeReadings, Metrics, Refused};
use crate::net::{Budget, Certificate};
use crate::proxy::LiveRoutes;
use crate::rule_files::RuleFiles;
use crate::rulebook::Rulebook;
use crate::top_keys::TopKeys;
use crate::web::{Answer, BodyBound, Call, Hosts, WebHandler};
use http::{HeaderValue, StatusCode, header};
use std::sync::Arc;
use tidegate::{Clock, Elasticity, Limiter};
use tidegate_policy::{Consistency, Mode, Rule};
use tidegate_store::LeaseReport;

/// Everything that the metrics are read from.
pub(crate) struct MetricsPage<S> {
    pub(crate) limiter: Limiter<S>,
    pub(crate) rulebook: Arc<Rulebook<S>>,
    /// Rule files of Envoy's reference service, when they decide over gRPC in place of the policy.
    pub(crate) rule_files: Option<Arc<RuleFiles<S>>>,
    /// The routes of the proxy, if it is on.
    pub(crate) upstreams: Option<Arc<LiveRoutes>>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) health: Arc<Health>,
    /// Memory held for the connections of clients.
    pub(crate) budget: Arc<Budget>,
    /// Memory held for requests on their way through the proxy, if it is on.
    pub(crate) proxy_budget: Option<Arc<Budget>>,
    /// The certificates of the listeners, if there are any.
    pub(crate) certificate: Option<Arc<Certificate>>,
    pub(crate) clock: Clock,
    pub(crate) top: TopKeys,
    /// The names of the metrics listener.
    pub(crate) hosts: Hosts,
}

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

impl<S: Backend> WebHandler for MetricsPage<S> {
    type Route = ();

    /// There are no tokens here.
    fn knows(&self, _: &Call<'_>) -> bool {
        false
    }

    fn begin(&self, call: &Call<'_>) -> Result<((), BodyBound), Answer> {
        self.hosts.check(call).map_err(|foreign| {
            self.metrics.refused(Refused::Foreign);
            self.hosts.refusal(foreign)
        })?;
        match (call.path, call.method) {
            ("/metrics", "GET" | "HEAD") => Ok(((), BodyBound::bytes(0))),
            ("/metrics", _) => {
                let detail = "Method not allowed; use GET";
                let answer = Answer::problem(StatusCode::METHOD_NOT_ALLOWED, detail);
                Err(answer.with(header::ALLOW, HeaderValue::from_static("GET, HEAD")))
            }
            (_, _) => {
                let detail = "no such path; this listener serves only /metrics";
                Err(Answer::problem(StatusCode::NOT_FOUND, detail))
            }
        }
    }

    async fn answer(&self, (): (), _: &Call<'_>) -> Answer {
        self.text()
    }

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

impl<S: Backend> MetricsPage<S> {
    /// The page.
    pub(crate) fn text(&self) -> Answer {
        self.metrics.set_store_errors(self.limiter.stats().store_errors);
        let store = self.limiter.store();
        super::look_for_room(&self.limiter, &self.health);
        let moment = GaugeReadings {
            version: self.limiter.version(),
            policy_hash: self.health.policy_hash(),
            clock_seconds: self.clock.now().calendar.as_nanos() / 1_000_000_000,
            certificate_expires: self.certificate.as_ref().and_then(|it| it.expires()),
            problems: self.health.problems(),
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
            top_keys_bytes: self.top.bytes(),
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
    pub(crate) fn leases(&self) -> Vec<(String, LeaseReport)> {
        let (policy, reports) = (self.rulebook.policy(), self.limiter.store().leases());
        let leased = |rule: &&Rule| *rule.consistency() != Consistency::Exact;
        let report = |rule: &Rule| {
            let group = rule.lease_group();
            let found = reports.iter().find(|report| report.group == group).copied();
            (rule.name().to_owned(), found.unwrap_or_default())
        };
        policy.rules().iter().filter(leased).map(report).collect()
    }
}

fn granted((rule, elasticity): (String, Elasticity)) -> (String, u64) {
    (rule, u64::from(elasticity.percent()))
}
