//! The metrics of one reading of `/metrics`. Each is declared once, where its values are known:
//!
//! ```text
//!   families.gauge("tidegate_clock_seconds", "The wall clock of this server", seconds);
//!   families.counters("tidegate_reload", "Policies that were loaded", ["result"], [(["applied"], 3)]);
//! ```
//!
//! The registry of `prometheus-client` writes them in the `OpenMetrics` format, in the order in which they were declared.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;

/// The metrics that were declared so far.
#[derive(Debug, Default)]
pub(crate) struct Families(Registry);

/// A value of a metric, as the registry writes it.
pub(super) trait MetricValue:
    EncodeMetric + TypedMetric + fmt::Debug + Send + Sync + 'static
{
}

impl<M: EncodeMetric + TypedMetric + fmt::Debug + Send + Sync + 'static> MetricValue for M {}

/// A metric and its values, each with its labels.
#[derive(Debug)]
struct Family<M> {
    name: &'static str,
    help: &'static str,
    series: Vec<(Vec<(&'static str, String)>, M)>,
}

// === impl Families ===

impl Families {
    /// A counter without labels. The format adds `_total` to the names of counters.
    pub(crate) fn counter(&mut self, name: &'static str, help: &'static str, value: u64) {
        self.counters::<&str, 0>(name, help, [], [([], value)]);
    }

    /// A counter with a value for each combination of labels.
    pub(crate) fn counters<L: Into<String>, const N: usize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: [&'static str; N],
        values: impl IntoIterator<Item = ([L; N], u64)>,
    ) {
        let values = values.into_iter();
        let series = values.map(|(labels, value)| (labels, ConstCounter::new(value)));
        self.add(name, help, labels, series);
    }

    /// A gauge without labels.
    pub(crate) fn gauge<V: TryInto<i64>>(
        &mut self,
        name: &'static str,
        help: &'static str,
        value: V,
    ) {
        self.gauges::<&str, V, 0>(name, help, [], [([], value)]);
    }

    /// A gauge with a value for each combination of labels. Values that the format cannot show are the largest that it can.
    pub(crate) fn gauges<L: Into<String>, V: TryInto<i64>, const N: usize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: [&'static str; N],
        values: impl IntoIterator<Item = ([L; N], V)>,
    ) {
        let gauge = |value: V| ConstGauge::new(value.try_into().unwrap_or(i64::MAX));
        let series = values.into_iter().map(|(labels, value)| (labels, gauge(value)));
        self.add(name, help, labels, series);
    }

    /// A gauge of bytes: in use, and at most.
    pub(crate) fn budget(
        &mut self,
        name: &'static str,
        help: &'static str,
        used: usize,
        budget: usize,
    ) {
        self.gauges(name, help, ["kind"], [(["used"], used), (["budget"], budget)]);
    }

    /// A metric of any type. If it has one label, a series whose value of this label is empty has no labels.
    pub(super) fn add<L: Into<String>, M: MetricValue, const N: usize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: [&'static str; N],
        values: impl IntoIterator<Item = ([L; N], M)>,
    ) {
        let label = |of: [L; N]| {
            let labels = labels.into_iter().zip(of.map(Into::into));
            labels.filter(|(_, value): &(_, String)| N > 1 || !value.is_empty()).collect()
        };
        let series = values.into_iter().map(|(of, value)| (label(of), value)).collect();
        self.0.register_collector(Box::new(Family { name, help, series }));
    }

    /// The metrics as `OpenMetrics` text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a string does not fail.
        let _ = text::encode(&mut text, &self.0);
        text
    }
}

// === impl Family ===

impl<M: MetricValue> Collector for Family<M> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut metric = encoder.encode_descriptor(self.name, self.help, None, M::TYPE)?;
        for (labels, value) in &self.series {
            value.encode(metric.encode_family(labels)?)?;
        }
        Ok(())
    }
}
