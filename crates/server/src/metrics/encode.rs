//! Counts as text of `OpenMetrics`.

use super::tally::BUCKETS;
use super::{GaugeReadings, Metrics, Refused, Reload};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text::encode};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_store::LinkReport;

/// What is written, collected once.
#[derive(Debug)]
struct Collected {
    decisions: BTreeMap<[String; 4], u64>,
    /// By front and rule: hits, and hits near the limit.
    hits: BTreeMap<[String; 2], [u64; 2]>,
    seconds: BTreeMap<&'static str, ([u64; BUCKETS.len()], u64)>,
    counters: Vec<Family>,
    gauges: Vec<Family>,
}

/// One metric with the values of one label.
#[derive(Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    label: &'static str,
    values: Vec<(Cow<'static, str>, u64)>,
}

pub(super) fn text(metrics: &Metrics, moment: &GaugeReadings) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Collected::of(metrics, moment)));
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = encode(&mut text, &registry);
    text
}

impl Collected {
    fn of(metrics: &Metrics, moment: &GaugeReadings) -> Self {
        let (mut decisions, mut hits) = (BTreeMap::new(), BTreeMap::new());
        let mut seconds: BTreeMap<&str, ([u64; BUCKETS.len()], u64)> = BTreeMap::new();
        for tally in metrics.all_tallies().iter() {
            for row in tally.rows() {
                for (outcome, by, count) in row.cells().filter(|(_, _, count)| *count > 0) {
                    let labels = [tally.front, &row.rule, outcome, by].map(str::to_owned);
                    let sum: &mut u64 = decisions.entry(labels).or_default();
                    *sum = sum.wrapping_add(count);
                }
                let [all, near] = row.hits();
                if all > 0 {
                    let labels = [tally.front, &row.rule].map(str::to_owned);
                    let [sum, sum_near]: &mut [u64; 2] = hits.entry(labels).or_default();
                    *sum = sum.wrapping_add(all);
                    *sum_near = sum_near.wrapping_add(near);
                }
            }
            let (counts, nanos) = tally.seconds();
            let (sums, all) = seconds.entry(tally.front).or_default();
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.wrapping_add(count));
            *all = all.wrapping_add(nanos);
        }
        let (counters, gauges) = (counters(metrics, moment), gauges(moment));
        Self { decisions, hits, seconds, counters, gauges }
    }
}

fn counters(metrics: &Metrics, moment: &GaugeReadings) -> Vec<Family> {
    let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
    let refused = Refused::ALL.iter().zip(&metrics.refused);
    let reloads = Reload::ALL.iter().zip(&metrics.reloads);
    let alone = |value: u64| vec![(Cow::Borrowed(""), value)];
    let store_errors = match &moment.store {
        Some(store) => {
            store.errors.iter().map(|(class, count)| (Cow::Borrowed(*class), *count)).collect()
        }
        None => vec![(Cow::Borrowed("unavailable"), read(&metrics.store_errors))],
    };
    vec![
        Family {
            name: "tidegate_refused",
            help: "Connections and requests that were refused before anybody looked what they ask",
            label: "reason",
            values: refused.map(|((_, name), cell)| (Cow::Borrowed(*name), read(cell))).collect(),
        },
        Family {
            name: "tidegate_reload",
            help: "New policies",
            label: "result",
            values: reloads.map(|((_, name), cell)| (Cow::Borrowed(*name), read(cell))).collect(),
        },
        Family {
            name: "tidegate_store_errors",
            help: "Requests for which the store gave no answer",
            label: "class",
            values: store_errors,
        },
        Family {
            name: "tidegate_panics",
            help: "Requests in whose handling the server found a mistake of its own",
            label: "",
            values: alone(read(&metrics.panics)),
        },
        Family {
            name: "tidegate_log_lines_left_out",
            help: "Lines that were not logged because there were too many like them",
            label: "",
            values: alone(read(&metrics.lines_left_out)),
        },
        Family {
            name: "tidegate_overflow",
            help: "States that were demoted into the sketch because memory was full",
            label: "",
            values: moment.memory.iter().flat_map(|memory| alone(memory.demotions)).collect(),
        },
        Family {
            name: "tidegate_task_restarts",
            help: "Tasks in the background that met a mistake of ours and began anew",
            label: "",
            values: alone(
                moment
                    .store
                    .iter()
                    .fold(metrics.restarts(), |all, store| all.saturating_add(store.restarts)),
            ),
        },
    ]
}

fn gauges(moment: &GaugeReadings) -> Vec<Family> {
    let mut gauges = vec![Family {
        name: "tidegate_policy_version",
        help: "The version of the policy that decides, and of the rule files that decide over gRPC",
        label: "rules",
        values: [("", Some(moment.version)), ("envoy_config", moment.rules_version)]
            .into_iter()
            .filter_map(|(rules, version)| Some((Cow::Borrowed(rules), version?)))
            .collect(),
    }];
    if let Some(store) = &moment.store {
        let open = |link: &LinkReport| (link.name.clone().into(), u64::from(!link.asked));
        gauges.push(Family {
            name: "tidegate_breaker_state",
            help: "1 while a server of the store is not asked, because it does not answer",
            label: "node",
            values: store.links.iter().map(open).collect(),
        });
        gauges.push(Family {
            name: "tidegate_cluster_nodes",
            help: "Nodes that share the store",
            label: "",
            values: vec![(Cow::Borrowed(""), u64::from(moment.nodes))],
        });
    }
    let bytes = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let (held, budget) = moment.held;
    gauges.push(Family {
        name: "tidegate_connection_bytes",
        help: "Memory for requests that are arriving and answers that wait to be taken: in use, and at most",
        label: "kind",
        values: vec![("used".into(), bytes(held)), ("budget".into(), bytes(budget))],
    });
    if let Some(memory) = moment.memory {
        gauges.push(Family {
            name: "tidegate_memory_bytes",
            help: "Memory of the store: in use, and at most",
            label: "kind",
            values: vec![
                ("used".into(), bytes(memory.bytes)),
                ("budget".into(), bytes(memory.budget)),
            ],
        });
        gauges.push(Family {
            name: "tidegate_states",
            help: "States that the store keeps",
            label: "",
            values: vec![("".into(), bytes(memory.entries))],
        });
    }
    gauges
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
        Ok(())
    }
}

impl Collected {
    fn encode_decisions(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Decisions, by front, rule, outcome and who decided";
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
            ("tidegate_hits", "What descriptors asked for, in hits, by front and rule"),
            ("tidegate_near_limit_hits", "Hits that passed above four fifths of their limit"),
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

    #[allow(clippy::float_arithmetic, reason = "metrics speak of seconds as fractions")]
    fn encode_seconds(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "How long answers took, from the whole request to the whole answer";
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

/// Nanoseconds as seconds; the largest is without bound.
#[allow(
    clippy::float_arithmetic,
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "metrics speak of seconds as fractions, and nobody reads the sixteenth digit"
)]
fn seconds(nanos: u64) -> f64 {
    if nanos == u64::MAX { f64::INFINITY } else { nanos as f64 / 1e9 }
}

impl Family {
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
