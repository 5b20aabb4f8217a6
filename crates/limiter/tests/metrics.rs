//! What reaches the recorder of a program.

#![cfg(feature = "metrics")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails loudly")]

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use std::collections::BTreeMap;
use tidegate::metrics::MetricsExporter;
use tidegate::{Attributes, Check, Clock, Limiter, Policy, Timestamp};

/// The values of all series, added up over the snapshots of a recorder, by `name{label values}`.
fn recorded(steps: impl FnOnce()) -> BTreeMap<String, DebugValue> {
    let recorder = DebuggingRecorder::new();
    metrics::with_local_recorder(&recorder, steps);
    let series = recorder.snapshotter().snapshot().into_vec().into_iter();
    let named = series.map(|(key, _, description, value)| {
        assert!(description.is_some(), "{key:?} is not described");
        let (name, labels) = key.key().clone().into_parts();
        let labels: Vec<&str> = labels.iter().map(metrics::Label::value).collect();
        (format!("{}{{{}}}", name.as_str(), labels.join(",")), value)
    });
    named.collect()
}

fn limiter(policy: &str) -> Limiter {
    let policy = Policy::parse(format!("version: 1\n{policy}")).unwrap();
    Limiter::in_memory_with(policy, Clock::manual(Timestamp::EPOCH)).unwrap()
}

fn ask(limiter: &Limiter, user: &str, times: usize) {
    let user = Attributes::new().with("user", user.to_owned()).unwrap();
    for _ in 0..times {
        limiter.check_now(&Check::new(&user)).unwrap();
    }
}

const RULES: &str = "
rules:
  - { name: per-user, key: [user], limits: [2/h] }
  - { name: shadowed, key: [user], limits: [1/h], shadow: true }
  - { name: soft, key: [user], limits: [{ rate: 1/h, algorithm: fixed_window }], mode: { soft: 200% } }
";

#[test]
fn every_series_has_its_value_and_zeros_are_published_too() {
    let limiter = limiter(RULES);
    let series = recorded(|| {
        let exporter = MetricsExporter::new(limiter.clone());
        ask(&limiter, "alice", 5);
        limiter.check_now(&Check::new(&Attributes::new())).unwrap();
        exporter.publish();
    });
    for (name, count) in [
        ("tidegate_decisions_total{per-user,allow}", 2),
        ("tidegate_decisions_total{per-user,delay}", 0),
        ("tidegate_decisions_total{per-user,deny}", 3),
        ("tidegate_decisions_total{per-user,would_deny}", 0),
        ("tidegate_decisions_total{shadowed,would_deny}", 4),
        ("tidegate_over_limit_total{soft}", 1),
        ("tidegate_unmatched_requests_total{}", 1),
        ("tidegate_unknown_tiers_total{}", 0),
        ("tidegate_store_errors_total{}", 0),
    ] {
        assert_eq!(series.get(name), Some(&DebugValue::Counter(count)), "{name} in {series:#?}");
    }
    assert_eq!(series["tidegate_policy_version{}"], DebugValue::Gauge(1.0.into()));
}

/// A series for each user would let clients fill the memory of the monitoring system.
#[test]
fn the_number_of_series_depends_on_the_policy_alone() {
    let limiter = limiter(RULES);
    let exported = |users: usize| {
        let series = recorded(|| {
            (0..users).for_each(|user| ask(&limiter, &format!("user-{user}"), 3));
            MetricsExporter::new(limiter.clone()).publish();
        });
        series.into_keys().collect::<Vec<_>>()
    };
    let few = exported(1);
    assert_eq!(exported(500), few);
    assert!(few.iter().all(|series| !series.contains("user-0")), "{few:?}");
}

#[test]
fn several_limiters_add_up_and_publishing_again_adds_only_what_is_new() {
    let (one, other) = (limiter(RULES), limiter(RULES));
    let series = recorded(|| {
        let exporters = [&one, &other].map(|limiter| MetricsExporter::new(limiter.clone()));
        for _ in 0..3 {
            ask(&one, "alice", 1);
            ask(&other, "alice", 1);
            exporters.iter().for_each(MetricsExporter::publish);
        }
    });
    assert_eq!(series["tidegate_decisions_total{per-user,allow}"], DebugValue::Counter(4));
    assert_eq!(series["tidegate_decisions_total{per-user,deny}"], DebugValue::Counter(2));
}

#[test]
fn a_rule_that_was_removed_and_comes_back_does_not_count_backwards() {
    let limiter = limiter("rules: [{ name: a, key: [user], limits: [100/h] }]");
    let policy = |rule: &str| {
        let text =
            format!("{{ version: 1, rules: [{{ name: {rule}, key: [user], limits: [100/h] }}] }}");
        Policy::parse(text).unwrap()
    };
    let series = recorded(|| {
        let exporter = MetricsExporter::new(limiter.clone());
        ask(&limiter, "alice", 5);
        exporter.publish();
        limiter.reload(policy("b")).unwrap();
        limiter.reload(policy("a")).unwrap();
        ask(&limiter, "alice", 2);
        exporter.publish();
    });
    assert_eq!(series["tidegate_decisions_total{a,allow}"], DebugValue::Counter(7));
    assert_eq!(series["tidegate_policy_version{}"], DebugValue::Gauge(3.0.into()));
}
