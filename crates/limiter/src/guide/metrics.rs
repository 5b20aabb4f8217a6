//! Metrics: publish what the rules decide to Prometheus, `StatsD`, OpenTelemetry, or whatever your program uses. (Feature
//! `metrics`.)
//!
//! tidegate publishes through the facade crate [`metrics`](https://docs.rs/metrics), as libraries log through the facade `log`. Your program
//! chooses the exporter, for example `metrics-exporter-prometheus`, and installs it once. [`MetricsExporter`] lists all metrics
//! and their labels.
//!
//! ```toml
//! [dependencies]
//! tidegate = { path = "../tidegate/crates/limiter", features = ["metrics"] } # a clone of the repository
//! metrics-exporter-prometheus = "0.17" # the exporter; the example below runs without it
//!
//! [dev-dependencies]
//! metrics-util = { version = "0.20", features = ["debugging"] } # a recorder for tests
//! ```
//!
//! A whole program, which the tests of tidegate run:
//!
//! ```
//! use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshot};
//! use tidegate::metrics::MetricsExporter;
//! use tidegate::{Attributes, Check, Limiter, Policy};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // 1. Install an exporter. This recorder is one for tests; for Prometheus it would be:
//!     //    let prometheus = metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder()?;
//!     let recorder = DebuggingRecorder::new();
//!     let snapshotter = recorder.snapshotter();
//!     recorder.install()?;
//!
//!     // 2. Give it the limiter. Clones of a limiter share their counters.
//!     let policy = Policy::parse("
//! version: 1
//! rules:
//!   - { name: per-user, key: [user], limits: [2/h] }
//!   - { name: stricter, key: [user], limits: [1/h], shadow: true }
//! ")?;
//!     let limiter = Limiter::in_memory(policy)?;
//!     let exporter = MetricsExporter::new(limiter.clone());
//!
//!     let alice = Attributes::new().with("user", "alice")?;
//!     for _ in 0..5 {
//!         limiter.check_now(&Check::new(&alice))?;
//!     }
//!
//!     // 3. Publish when the metrics are read, here where Prometheus scrapes: exporter.publish(); prometheus.render()
//!     exporter.publish();
//!
//!     let decisions = decisions(snapshotter.snapshot());
//!     let count = |rule: &str, outcome: &str| {
//!         let labels = [rule.to_owned(), outcome.to_owned()];
//!         decisions.iter().find(|(found, _)| *found == labels).map(|(_, count)| *count)
//!     };
//!     // tidegate_decisions_total{rule="per-user",outcome="allow"} 2
//!     // tidegate_decisions_total{rule="per-user",outcome="deny"} 3
//!     assert_eq!((count("per-user", "allow"), count("per-user", "deny")), (Some(2), Some(3)));
//!     // The rule in shadow mode denies nothing. It counts what it would have denied.
//!     assert_eq!((count("stricter", "deny"), count("stricter", "would_deny")), (Some(0), Some(4)));
//!     Ok(())
//! }
//!
//! /// The values of `tidegate_decisions_total`, by rule and outcome.
//! fn decisions(metrics: Snapshot) -> Vec<([String; 2], u64)> {
//!     let mut found = Vec::new();
//!     for (key, _, _, value) in metrics.into_vec() {
//!         let labels: Vec<_> = key.key().labels().map(|label| label.value().to_owned()).collect();
//!         if key.key().name() == "tidegate_decisions_total"
//!             && let DebugValue::Counter(count) = value
//!             && let Ok(rule_and_outcome) = labels.try_into()
//!         {
//!             found.push((rule_and_outcome, count));
//!         }
//!     }
//!     found
//! }
//! ```
//!
//! An exporter that pushes, or that answers scrapes by itself, does not say when it reads. Then let a task publish every few
//! seconds: `tokio::spawn(exporter.publish_every(Span::from_secs(5)))`.
//!
//! # What it costs
//!
//! Requests pay nothing. The limiter counts decisions in any case, in counters that are divided among threads, and publishing
//! reads them. It takes time in proportion to the number of rules.
//!
//! # What to watch
//!
//! - `rate(tidegate_decisions_total{outcome="deny"}[5m])` by `rule`: which rule denies how much.
//! - The same with `would_deny`, before you enforce a rule that is in shadow mode.
//! - `rate(tidegate_store_errors_total[5m])`: above 0 while the store does not answer and the fallback decides.
//! - `tidegate_unmatched_requests_total`: requests that no rule limits. If it grows like your traffic, a `match` or a `key` does not
//!   fit the requests.
//!
//! Names of users, addresses and keys are never labels, so the number of series depends on the policy alone. To see who is
//! limited, log the verdict of a denied request.
//!
//! [`MetricsExporter`]: crate::metrics::MetricsExporter
