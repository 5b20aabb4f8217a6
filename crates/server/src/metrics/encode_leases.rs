//! What this node holds of leased limits, as metrics. Without a leased rule there are none.

use super::GaugeReadings;
use super::encode::Family;
use tidegate_store::LeaseReport;

/// A value of each leased rule.
fn of_rules(
    readings: &GaugeReadings,
    name: &'static str,
    help: &'static str,
    value: fn(&LeaseReport) -> u64,
) -> Family {
    let values = readings.leases.iter();
    let values = values.map(|(rule, report)| (rule.clone().into(), value(report))).collect();
    Family { name, help, label: "rule", values }
}

pub(super) fn counters(readings: &GaugeReadings) -> Vec<Family> {
    vec![
        of_rules(
            readings,
            "tidegate_lease_asks",
            "Calls that asked the store for a part of a limit",
            |it| it.asks,
        ),
        of_rules(
            readings,
            "tidegate_lease_granted",
            "How much of its limits this node took in advance, in costs of 1",
            |it| it.granted,
        ),
        of_rules(readings, "tidegate_lease_spent", "How much of that was spent", |it| it.spent),
        of_rules(readings, "tidegate_lease_returned", "How much of that was given back", |it| {
            it.returned
        }),
        of_rules(
            readings,
            "tidegate_lease_drained",
            "How much of that was not spent in time",
            |it| it.drained,
        ),
        of_rules(
            readings,
            "tidegate_lease_lost",
            "How much of that was lost, for example with a connection",
            |it| it.lost,
        ),
    ]
}

pub(super) fn gauges(readings: &GaugeReadings) -> Vec<Family> {
    vec![
        of_rules(
            readings,
            "tidegate_leases",
            "Keys of which this node holds a part of the limit",
            |it| it.leases,
        ),
        of_rules(
            readings,
            "tidegate_lease_held",
            "How much of its limits this node holds, in costs of 1: the sum over all nodes may be refused although it is not used, and passes in addition if the store loses its data",
            |it| it.held,
        ),
        of_rules(
            readings,
            "tidegate_lease_overshoot_bound",
            "How much more than a limit can pass because of leases while the store keeps its data",
            |_| 0,
        ),
    ]
}
