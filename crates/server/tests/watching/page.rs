//! A reader of `/metrics`.

use std::collections::{BTreeMap, BTreeSet};

/// A page of metrics.
pub(crate) struct Page {
    /// The type of each metric, by its name without `_total`.
    pub(crate) kinds: BTreeMap<String, String>,
    pub(crate) samples: Vec<Sample>,
}

/// One line with a value.
#[allow(dead_code, reason = "the tests with Prometheus use the rest")]
pub(crate) struct Sample {
    pub(crate) metric: String,
    /// With `_total`, `_bucket` and so on.
    pub(crate) name: String,
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) value: String,
}

impl Page {
    pub(crate) fn read(text: &str) -> Self {
        let (mut kinds, mut samples) = (BTreeMap::new(), Vec::new());
        let mut metric = String::new();
        for line in text.lines() {
            if let Some(described) = line.strip_prefix("# TYPE ") {
                let (name, kind) = described.split_once(' ').unwrap();
                name.clone_into(&mut metric);
                kinds.insert(name.to_owned(), kind.to_owned());
            } else if !line.starts_with('#') {
                let (series, value) = line.rsplit_once(' ').unwrap();
                let (name, labels) = series.split_once('{').unwrap();
                let labels = labels.strip_suffix('}').unwrap().split_terminator(',');
                let labels = labels.map(|label| {
                    let (name, value) = label.split_once('=').unwrap();
                    (name.to_owned(), value.trim_matches('"').to_owned())
                });
                samples.push(Sample {
                    metric: metric.clone(),
                    name: name.to_owned(),
                    labels: labels.collect(),
                    value: value.to_owned(),
                });
            }
        }
        Self { kinds, samples }
    }

    /// The labels of each metric that has a value, with the values of each.
    pub(crate) fn labels(&self) -> BTreeMap<&str, BTreeMap<&str, BTreeSet<&str>>> {
        let mut all: BTreeMap<&str, BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
        for sample in &self.samples {
            for name in [&sample.metric, &sample.name] {
                let known = all.entry(name).or_default();
                for (label, value) in &sample.labels {
                    known.entry(label).or_default().insert(value);
                }
            }
        }
        all
    }
}
