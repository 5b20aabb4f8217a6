//! What `/metrics` shows, and the listener that serves nothing else.
//!
//! The admin listener shows the page to those who have a token. Many deployments scrape metrics by a system that has none, in a
//! network of its own; `metrics.listen` is an address for it. The page names rules, upstream servers and servers of the store,
//! and no client.

use crate::backend::Backend;
use crate::health::Health;
use crate::metrics::{Families, Metrics, Refused};
use crate::net::{Budget, Certificate};
use crate::proxy::{GroupReading, LiveRoutes, ServerReading};
use crate::rule_files::RuleFiles;
use crate::rulebook::Rulebook;
use crate::top_keys::TopKeys;
use crate::web::{Answer, BodyBound, Call, Hosts, WebHandler};
use http::{HeaderValue, StatusCode, header};
use std::sync::Arc;
use tidegate::{ClassReading, Clock, Limiter};
use tidegate_policy::{Consistency, Mode, Rule};
use tidegate_store::{DurableReport, LeaseReport};

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
        super::look_for_room(&self.limiter, &self.health);
        let mut families = self.metrics.families();
        self.declare_rules(&mut families);
        self.declare_health(&mut families);
        self.declare_store(&mut families);
        self.declare_memory(&mut families);
        declare_leases(&self.leases(), &mut families);
        if let Some(report) = self.limiter.store().durability() {
            declare_durability(&report, &mut families);
        }
        if let Some(live) = &self.upstreams {
            self.metrics.declare_proxy(&mut families);
            declare_upstreams(&live.readings(), &mut families);
        }
        Answer::new(StatusCode::OK, OPENMETRICS, families.text())
    }

    fn declare_rules(&self, families: &mut Families) {
        let rule_files = self.rule_files.as_ref().map(|files| files.limiter().version());
        let versions = [("", Some(self.limiter.version())), ("envoy_config", rule_files)];
        families.gauges(
            "tidegate_policy_version",
            "The version of the policy that decides, and of the rule files that decide over gRPC",
            ["rules"],
            versions.into_iter().filter_map(|(rules, version)| Some(([rules], version?))),
        );
        families.gauges(
            "tidegate_policy_info",
            "Always 1; the hash of the policy in force, which is the same on nodes that decide by the same rules",
            ["hash"],
            [([self.health.policy_hash()], 1)],
        );
        let policy = self.rulebook.policy();
        let has_headroom =
            |rule: &str| policy.rule(rule).is_some_and(|(_, rule)| *rule.mode() != Mode::Hard);
        let rules = self.limiter.stats().rules.into_iter();
        families.counters(
            "tidegate_over_limit",
            "Requests that exceeded a soft or elastic limit, and passed because of its headroom",
            ["rule"],
            rules.filter(|(rule, _)| has_headroom(rule)).map(|(rule, stats)| ([rule], stats.over)),
        );
        let elastic = self.limiter.elasticities().into_iter();
        families.gauges(
            "tidegate_elastic_granted_percent",
            "How much of its headroom an elastic rule grants at the moment; 0 while it is closed",
            ["rule"],
            elastic.map(|(rule, elasticity)| ([rule], elasticity.percent())),
        );
        if let Some(bytes) = self.top.bytes() {
            families.gauge(
                "tidegate_top_keys_bytes",
                "Memory for the top keys and for recent refusals",
                bytes,
            );
        }
    }

    fn declare_health(&self, families: &mut Families) {
        let problems = self.health.problems().into_iter();
        families.gauges(
            "tidegate_problem",
            "1 while a part of the server has the problem that /ready reports and the log explains",
            ["part"],
            problems.map(|(part, is_there)| ([part.replace(' ', "_")], is_there)),
        );
        let of_store = self.limiter.store().report().map_or(0, |store| store.restarts);
        families.counter(
            "tidegate_task_restarts",
            "Background tasks that were restarted because of a bug in tidegate (a panic)",
            self.metrics.restarts.get().saturating_add(of_store),
        );
        families.gauge(
            "tidegate_clock_seconds",
            "The wall clock of this server, in Unix time: calendar windows begin by it, unless a shared store decides",
            self.clock.now().calendar.as_nanos() / 1_000_000_000,
        );
        if let Some(expires) = self.certificate.as_ref().and_then(|it| it.expires()) {
            families.gauge(
                "tidegate_certificate_expires_seconds",
                "When the first of the certificates in use expires, in Unix time",
                expires,
            );
        }
    }
    fn declare_store(&self, families: &mut Families) {
        let store = self.limiter.store();
        let report = store.report();
        let errors = match &report {
            Some(report) => report.errors.clone(),
            None => vec![("unavailable", self.limiter.stats().store_errors)],
        };
        families.counters(
            "tidegate_store_errors",
            "Requests that the store did not answer, by class of error",
            ["class"],
            errors.into_iter().map(|(class, count)| ([class], count)),
        );
        let Some(report) = report else { return };
        if !report.losses.is_empty() {
            families.counters(
                "tidegate_store_losses",
                "How often a server of the store turned out to have lost counters, by reason: each limit may have passed once more",
                ["reason"],
                report.losses.into_iter().map(|(reason, count)| ([reason], count)),
            );
        }
        families.gauges(
            "tidegate_breaker_state",
            "1 while the circuit breaker of a server of the store is open, because it does not answer",
            ["node"],
            report.links.into_iter().map(|link| ([link.name], !link.asked)),
        );
        families.gauge("tidegate_cluster_nodes", "Nodes that share the store", store.nodes());
    }

    fn declare_memory(&self, families: &mut Families) {
        let memory = self.limiter.store().gauges();
        families.counters::<&str, 0>(
            "tidegate_overflow",
            "Counters that were evicted into the shared sketch because memory was full",
            [],
            memory.map(|memory| ([], memory.demotions)),
        );
        if let Some(memory) = memory {
            families.budget(
                "tidegate_memory_bytes",
                "Memory for counters: in use, and at most",
                memory.bytes,
                memory.budget,
            );
            families.gauge("tidegate_states", "Counters that the store keeps", memory.entries);
        }
        families.budget(
            "tidegate_connection_bytes",
            "Memory for requests that are arriving and answers that clients have not read: in use, and at most",
            self.budget.held(),
            self.budget.bytes(),
        );
        if let Some(budget) = &self.proxy_budget {
            families.budget(
                "tidegate_proxy_buffer_bytes",
                "Memory for requests and bodies on their way through the proxy: in use, and at most",
                budget.held(),
                budget.bytes(),
            );
        }
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

/// What this node holds of leased limits. Without a leased rule there is none of these metrics.
fn declare_leases(leases: &[(String, LeaseReport)], families: &mut Families) {
    if leases.is_empty() {
        return;
    }
    let of_rules = |value: fn(&LeaseReport) -> u64| {
        leases.iter().map(move |(rule, report)| ([rule], value(report)))
    };
    let mut counter = |name, help, value| families.counters(name, help, ["rule"], of_rules(value));
    counter("tidegate_lease_asks", "Calls that asked the store for a part of a limit", |it| {
        it.asks
    });
    counter(
        "tidegate_lease_granted",
        "How much of its limits this node took in advance, in costs of 1",
        |it| it.granted,
    );
    counter("tidegate_lease_spent", "How much of that was spent", |it| it.spent);
    counter("tidegate_lease_returned", "How much of that was given back", |it| it.returned);
    counter("tidegate_lease_drained", "How much of that was not spent in time", |it| it.drained);
    counter(
        "tidegate_lease_lost",
        "How much of that was lost, for example with a connection",
        |it| it.lost,
    );
    let mut gauge = |name, help, value| families.gauges(name, help, ["rule"], of_rules(value));
    gauge("tidegate_leases", "Keys of which this node holds a part of the limit", |it| it.leases);
    gauge(
        "tidegate_lease_held",
        "How much of its limits this node holds, in costs of 1: the sum over all nodes may be refused although it is not used, and passes in addition if the store loses its data",
        |it| it.held,
    );
    gauge(
        "tidegate_lease_overshoot_bound",
        "How much more than a limit can pass because of leases while the store keeps its data",
        |_| 0,
    );
}

/// What the durable store wrote to its data directory. Other stores have none of these metrics.
fn declare_durability(report: &DurableReport, families: &mut Families) {
    families.counter(
        "tidegate_file_written_bytes",
        "Bytes that were written to logs and snapshots of the data directory",
        report.bytes_written,
    );
    families.counter(
        "tidegate_file_writes",
        "How often changed counters were written to the data directory",
        report.writes,
    );
    families.counter(
        "tidegate_file_syncs",
        "How often the log was synced to the disk",
        report.syncs,
    );
    families.counter("tidegate_file_snapshots", "Snapshots that were completed", report.snapshots);
    families.counter("tidegate_file_errors", "Writes and syncs that failed", report.errors);
    families.gauge(
        "tidegate_file_longest_write_microseconds",
        "The longest write of changed counters: a crash of the server loses at most this and the write interval",
        report.longest_write.as_nanos() / 1_000,
    );
    families.gauge(
        "tidegate_file_longest_sync_microseconds",
        "The longest sync of the log: a power failure loses at most this and the sync interval",
        report.longest_sync.as_nanos() / 1_000,
    );
}

/// The upstream servers of the proxy, and the seats of its groups.
fn declare_upstreams(groups: &[GroupReading], families: &mut Families) {
    let servers = |value: fn(&ServerReading) -> u64| {
        groups.iter().flat_map(move |group| {
            let servers = group.servers.iter();
            servers.map(move |one| ([&group.group, &one.server], value(one)))
        })
    };
    let mut gauge =
        |name, help, value| families.gauges(name, help, ["group", "server"], servers(value));
    gauge(
        "tidegate_upstream_in_flight",
        "Requests in flight to an upstream server, until its answer has ended",
        |one| one.in_flight,
    );
    gauge(
        "tidegate_upstream_up",
        "1 if an upstream server answers requests and health checks, 0 if it is down",
        |one| one.is_up.into(),
    );
    gauge(
        "tidegate_upstream_draining",
        "1 if an operator drains an upstream server, so it gets no new requests",
        |one| one.is_draining.into(),
    );
    families.counters(
        "tidegate_upstream_ejections",
        "How often an upstream server got no requests for some time, because it failed",
        ["group", "server"],
        servers(|one| one.ejections),
    );
    declare_seats(groups, families);
}

/// The priority classes of the groups whose seats are bounded.
fn declare_seats(groups: &[GroupReading], families: &mut Families) {
    let classes = || {
        groups.iter().flat_map(|group| {
            let classes = group.seats.iter().flat_map(|seats| &seats.classes);
            classes.map(|class| (&*group.group, class))
        })
    };
    let values = |value: fn(&ClassReading) -> usize| {
        classes().map(move |(group, class)| ([group, &*class.name], value(class)))
    };
    let mut gauge =
        |name, help, value| families.gauges(name, help, ["group", "class"], values(value));
    gauge(
        "tidegate_scheduler_reserved_seats",
        "Seats of a group that are reserved for a priority class",
        |class| class.reserved,
    );
    gauge(
        "tidegate_scheduler_in_flight",
        "Requests of a priority class that have a seat, because they are in flight",
        |class| class.in_flight,
    );
    gauge(
        "tidegate_scheduler_waiting",
        "Requests of a priority class that wait for a seat",
        |class| class.waiting,
    );
    families.counters(
        "tidegate_scheduler_started",
        "Requests of a priority class that got a seat",
        ["group", "class"],
        classes().map(|(group, class)| ([group, &*class.name], class.started)),
    );
    families.counters(
        "tidegate_scheduler_shed",
        "Requests of a priority class that got no seat and were answered with 503, by reason: they waited too long, too many were waiting, or a request of a higher class took their place",
        ["group", "class", "reason"],
        classes().flat_map(|(group, class)| {
            let reasons = [
                ("waited_too_long", class.expired),
                ("queue_full", class.refused),
                ("evicted", class.evicted),
            ];
            reasons.map(|(reason, count)| ([group, &*class.name, reason], count))
        }),
    );
}
