//! The metrics as `OpenMetrics` text.

use super::encode_connections;
use super::encode_durability;
use super::encode_groups::CollectedGroups;
use super::encode_leases;
use super::tally::{BUCKETS, Row};
use super::{GaugeReadings, Metrics, Refused, Reload};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text::encode};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_store::{Gauges, LinkReport, StoreReport};

/// All metrics, summed over the tallies.
#[derive(Debug)]
struct Collected {
    decisions: BTreeMap<[String; 4], u64>,
    /// By protocol and rule: hits, and hits near the limit.
    hits: BTreeMap<[String; 2], [u64; 2]>,
    seconds: BTreeMap<&'static str, ([u64; BUCKETS.len()], u64)>,
    counters: Vec<Family>,
    gauges: Vec<Family>,
    groups: Option<CollectedGroups>,
}

/// One metric, with a value for each value of its label. Without a label, there is one value.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) label: &'static str,
    pub(super) values: Vec<(Cow<'static, str>, u64)>,
}

pub(super) fn text(metrics: &Metrics, readings: &GaugeReadings) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Collected::of(metrics, readings)));
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = encode(&mut text, &registry);
    text
}

impl Collected {
    fn of(metrics: &Metrics, readings: &GaugeReadings) -> Self {
        let (mut decisions, mut hits) = (BTreeMap::new(), BTreeMap::new());
        let mut seconds: BTreeMap<&str, ([u64; BUCKETS.len()], u64)> = BTreeMap::new();
        for tally in metrics.all_tallies().iter() {
            for row in tally.rows() {
                add_decisions(&mut decisions, tally.front, &row);
                add_hits(&mut hits, tally.front, &row);
            }
            let (counts, nanos) = tally.seconds();
            let (sums, all) = seconds.entry(tally.front).or_default();
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.wrapping_add(count));
            *all = all.wrapping_add(nanos);
        }
        let (counters, gauges) = (counters(metrics, readings), gauges(metrics, readings));
        let groups = CollectedGroups::of(metrics, readings.upstreams.as_ref());
        Self { decisions, hits, seconds, counters, gauges, groups }
    }
}

fn add_decisions(decisions: &mut BTreeMap<[String; 4], u64>, front: &str, row: &Row) {
    for (outcome, by, count) in row.cells().filter(|(_, _, count)| *count > 0) {
        let labels = [front, &row.rule, outcome, by].map(str::to_owned);
        let sum = decisions.entry(labels).or_default();
        *sum = sum.wrapping_add(count);
    }
}

fn add_hits(hits: &mut BTreeMap<[String; 2], [u64; 2]>, front: &str, row: &Row) {
    let [all, near] = row.hits();
    if all > 0 {
        let labels = [front, &row.rule].map(str::to_owned);
        let [sum, sum_near] = hits.entry(labels).or_default();
        *sum = sum.wrapping_add(all);
        *sum_near = sum_near.wrapping_add(near);
    }
}

fn counters(metrics: &Metrics, readings: &GaugeReadings) -> Vec<Family> {
    let mut counters = vec![
        refusals(metrics),
        reloads(metrics),
        store_errors(metrics, readings),
        panics(metrics),
        log_lines_left_out(metrics),
        overflow(readings),
        restarts(metrics, readings),
        over(readings),
        denials_left_out(metrics),
        denial_lines_dropped(metrics),
        recorded_lines(metrics),
        recorded_lines_dropped(metrics),
    ];
    if !readings.leases.is_empty() {
        counters.extend(encode_leases::counters(readings));
    }
    counters.extend(readings.durability.iter().flat_map(encode_durability::counters));
    counters.extend(store_losses(readings));
    counters
}

fn over(readings: &GaugeReadings) -> Family {
    Family {
        name: "tidegate_over_limit",
        help: "Requests that exceeded a soft or elastic limit, and passed because of its headroom",
        label: "rule",
        values: readings.over.iter().map(|(rule, count)| (rule.clone().into(), *count)).collect(),
    }
}

fn elastic(readings: &GaugeReadings) -> Family {
    let granted = readings.elastic.iter();
    Family {
        name: "tidegate_elastic_granted_percent",
        help: "How much of its headroom an elastic rule grants at the moment; 0 while it is closed",
        label: "rule",
        values: granted.map(|(rule, percent)| (rule.clone().into(), *percent)).collect(),
    }
}

fn panics(metrics: &Metrics) -> Family {
    let help = "Requests that failed because of a bug in tidegate (a panic)";
    Family::single("tidegate_panics", help, Some(read(&metrics.panics)))
}

fn log_lines_left_out(metrics: &Metrics) -> Family {
    let help = "Log lines that were not written because there were too many of the same kind";
    Family::single("tidegate_log_lines_left_out", help, Some(read(&metrics.lines_left_out)))
}

fn denials_left_out(metrics: &Metrics) -> Family {
    let help = "Refusals without a line in the denial log, because too many keys were refused in their minute";
    Family::single("tidegate_denial_log_left_out", help, Some(read(&metrics.denials_left_out)))
}

fn denial_lines_dropped(metrics: &Metrics) -> Family {
    let help = "Lines of the denial log that were not written, because the disk or the reader of the log was too slow or failed";
    let count = Some(read(&metrics.denial_lines_dropped));
    Family::single("tidegate_denial_log_lines_dropped", help, count)
}

fn recorded_lines(metrics: &Metrics) -> Family {
    let help = "Decisions that were written to the recording";
    Family::single("tidegate_recorded_lines", help, Some(read(&metrics.recorded_lines)))
}

fn recorded_lines_dropped(metrics: &Metrics) -> Family {
    let help =
        "Decisions that are missing in the recording, because the disk was too slow or failed";
    let count = Some(read(&metrics.recorded_lines_dropped));
    Family::single("tidegate_recorded_lines_dropped", help, count)
}

fn problems(readings: &GaugeReadings) -> Family {
    let values = readings.problems.iter();
    let values =
        values.map(|(part, is_there)| (Cow::Owned(part.replace(' ', "_")), u64::from(*is_there)));
    Family {
        name: "tidegate_problem",
        help: "1 while a part of the server has the problem that /ready reports and the log explains",
        label: "part",
        values: values.collect(),
    }
}

fn clock(readings: &GaugeReadings) -> Family {
    let help = "The wall clock of this server, in Unix time: calendar windows begin by it, unless a shared store decides";
    Family::single("tidegate_clock_seconds", help, Some(readings.clock_seconds))
}

fn certificate_expires(seconds: u64) -> Family {
    let help = "When the first of the certificates in use expires, in Unix time";
    Family::single("tidegate_certificate_expires_seconds", help, Some(seconds))
}

fn overflow(readings: &GaugeReadings) -> Family {
    let help = "Counters that were evicted into the shared sketch because memory was full";
    Family::single("tidegate_overflow", help, readings.memory.map(|memory| memory.demotions))
}

fn refusals(metrics: &Metrics) -> Family {
    let refused = Refused::ALL.iter().zip(&metrics.refused);
    Family {
        name: "tidegate_refused",
        help: "Connections and requests that were refused before a decision",
        label: "reason",
        values: refused.map(|((_, name), cell)| (Cow::Borrowed(*name), read(cell))).collect(),
    }
}

fn reloads(metrics: &Metrics) -> Family {
    let reloads = Reload::ALL.iter().zip(&metrics.reloads);
    Family {
        name: "tidegate_reload",
        help: "Policies that were loaded or uploaded after the start, by result",
        label: "result",
        values: reloads.map(|((_, name), cell)| (Cow::Borrowed(*name), read(cell))).collect(),
    }
}

fn store_errors(metrics: &Metrics, readings: &GaugeReadings) -> Family {
    let values = match &readings.store {
        Some(store) => {
            store.errors.iter().map(|(class, count)| (Cow::Borrowed(*class), *count)).collect()
        }
        None => vec![(Cow::Borrowed("unavailable"), read(&metrics.store_errors))],
    };
    let help = "Requests that the store did not answer, by class of error";
    Family { name: "tidegate_store_errors", help, label: "class", values }
}

/// Losses of counters that a store noticed.
fn store_losses(readings: &GaugeReadings) -> Option<Family> {
    let losses = &readings.store.as_ref()?.losses;
    let value = |(reason, count): &(&'static str, u64)| (Cow::Borrowed(*reason), *count);
    (!losses.is_empty()).then(|| Family {
        name: "tidegate_store_losses",
        help: "How often a server of the store turned out to have lost counters, by reason: each limit may have passed once more",
        label: "reason",
        values: losses.iter().map(value).collect(),
    })
}

/// Restarts of the server's background tasks and of those of the store.
fn restarts(metrics: &Metrics, readings: &GaugeReadings) -> Family {
    let of_store = readings.store.as_ref().map_or(0, |store| store.restarts);
    let help = "Background tasks that were restarted because of a bug in tidegate (a panic)";
    let count = metrics.restarts().saturating_add(of_store);
    Family::single("tidegate_task_restarts", help, Some(count))
}

pub(super) fn read(cell: &AtomicU64) -> u64 {
    cell.load(Ordering::Relaxed)
}

fn gauges(metrics: &Metrics, readings: &GaugeReadings) -> Vec<Family> {
    let mut gauges = vec![
        policy_version(readings),
        policy_info(readings),
        elastic(readings),
        problems(readings),
        clock(readings),
    ];
    if !readings.leases.is_empty() {
        gauges.extend(encode_leases::gauges(readings));
    }
    gauges.extend(readings.durability.iter().flat_map(encode_durability::gauges));
    gauges.extend(readings.certificate_expires.map(certificate_expires));
    if let Some(store) = &readings.store {
        gauges.push(breakers(store));
        gauges.push(Family::single(
            "tidegate_cluster_nodes",
            "Nodes that share the store",
            Some(u64::from(readings.nodes)),
        ));
    }
    gauges.extend(encode_connections::gauges(metrics, readings));
    gauges.extend(readings.memory.iter().flat_map(memory_gauges));
    gauges.extend(readings.top_keys_bytes.map(top_keys));
    gauges
}

fn memory_gauges(memory: &Gauges) -> [Family; 2] {
    let help = "Memory for counters: in use, and at most";
    let used = Family::of_budget("tidegate_memory_bytes", help, (memory.bytes, memory.budget));
    let help = "Counters that the store keeps";
    [used, Family::single("tidegate_states", help, Some(bytes(memory.entries)))]
}

fn top_keys(used: usize) -> Family {
    let help = "Memory for the top keys and for recent refusals";
    Family::single("tidegate_top_keys_bytes", help, Some(bytes(used)))
}

fn policy_version(readings: &GaugeReadings) -> Family {
    let versions = [("", Some(readings.version)), ("envoy_config", readings.rules_version)];
    let values = versions.into_iter();
    Family {
        name: "tidegate_policy_version",
        help: "The version of the policy that decides, and of the rule files that decide over gRPC",
        label: "rules",
        values: values.filter_map(|(rules, version)| Some((rules.into(), version?))).collect(),
    }
}

fn policy_info(readings: &GaugeReadings) -> Family {
    Family {
        name: "tidegate_policy_info",
        help: "Always 1; the hash of the policy in force, which is the same on nodes that decide by the same rules",
        label: "hash",
        values: vec![(readings.policy_hash.clone().into(), 1)],
    }
}

fn breakers(store: &StoreReport) -> Family {
    let open = |link: &LinkReport| (link.name.clone().into(), u64::from(!link.asked));
    Family {
        name: "tidegate_breaker_state",
        help: "1 while the circuit breaker of a server of the store is open, because it does not answer",
        label: "node",
        values: store.links.iter().map(open).collect(),
    }
}

pub(super) fn bytes(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

impl Collector for Collected {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        self.encode_decisions(&mut encoder)?;
        self.encode_hits(&mut encoder)?;
        self.encode_seconds(&mut encoder)?;
        let counters = self.counters.iter().map(|family| (family, MetricType::Counter));
        let gauges = self.gauges.iter().map(|family| (family, MetricType::Gauge));
        for (family, kind) in counters.chain(gauges) {
            family.encode(kind, &mut encoder)?;
        }
        self.groups.iter().try_for_each(|groups| groups.encode(&mut encoder))
    }
}

impl Collected {
    fn encode_decisions(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Decisions, by protocol, rule, outcome, and what decided";
        let mut metric =
            encoder.encode_descriptor("tidegate_decisions", help, None, MetricType::Counter)?;
        for ([front, rule, outcome, by], count) in &self.decisions {
            let labels = [
                ("protocol", front.as_str()),
                ("rule", rule),
                ("outcome", outcome),
                ("decided_by", by),
            ];
            metric
                .encode_family(&labels)?
                .encode_counter::<[(&str, &str); 0], _, u64>(count, None)?;
        }
        Ok(())
    }

    fn encode_hits(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let families = [
            ("tidegate_hits", "Hits that descriptors asked for, by protocol and rule"),
            ("tidegate_near_limit_hits", "Hits that passed above 80 % of their limit"),
        ];
        for (at, (name, help)) in families.into_iter().enumerate() {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for ([front, rule], counts) in &self.hits {
                let count = counts.get(at).copied().unwrap_or(0);
                metric
                    .encode_family(&[("protocol", front.as_str()), ("rule", rule)])?
                    .encode_counter::<[(&str, &str); 0], _, u64>(&count, None)?;
            }
        }
        Ok(())
    }

    #[allow(clippy::float_arithmetic, reason = "metrics are in fractions of seconds")]
    fn encode_seconds(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Time from the complete request to the complete answer";
        let mut metric = encoder.encode_descriptor(
            "tidegate_decision_seconds",
            help,
            None,
            MetricType::Histogram,
        )?;
        for (front, (counts, nanos)) in &self.seconds {
            let buckets: Vec<(f64, u64)> =
                BUCKETS.iter().zip(counts).map(|(most, count)| (seconds(*most), *count)).collect();
            let all = counts.iter().fold(0_u64, |sum, count| sum.wrapping_add(*count));
            metric.encode_family(&[("protocol", *front)])?.encode_histogram::<[(&str, &str); 0]>(
                seconds(*nanos),
                all,
                &buckets,
                None,
            )?;
        }
        Ok(())
    }
}

/// Nanoseconds as seconds; `u64::MAX` is infinite.
#[allow(
    clippy::float_arithmetic,
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "metrics are in fractions of seconds, and the sixteenth digit does not matter"
)]
pub(super) fn seconds(nanos: u64) -> f64 {
    if nanos == u64::MAX { f64::INFINITY } else { nanos as f64 / 1e9 }
}

impl Family {
    /// A metric without labels. Without a value, it has only its description.
    pub(super) fn single(name: &'static str, help: &'static str, value: Option<u64>) -> Self {
        let values = value.map(|value| (Cow::Borrowed(""), value));
        Self { name, help, label: "", values: values.into_iter().collect() }
    }

    /// Bytes in use, and at most.
    pub(super) fn of_budget(
        name: &'static str,
        help: &'static str,
        (used, budget): (usize, usize),
    ) -> Self {
        let values = vec![("used".into(), bytes(used)), ("budget".into(), bytes(budget))];
        Self { name, help, label: "kind", values }
    }

    fn encode(
        &self,
        kind: MetricType,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), fmt::Error> {
        let gauge = matches!(kind, MetricType::Gauge);
        let mut metric = encoder.encode_descriptor(self.name, self.help, None, kind)?;
        for (value, number) in &self.values {
            let labels: &[(&str, &str)] = &[(self.label, value)];
            let labels = if self.label.is_empty() || value.is_empty() { &[] } else { labels };
            let mut one = metric.encode_family(&labels)?;
            if gauge {
                one.encode_gauge(&i64::try_from(*number).unwrap_or(i64::MAX))?;
            } else {
                one.encode_counter::<[(&str, &str); 0], _, u64>(number, None)?;
            }
        }
        Ok(())
    }
}
