//! The connections of each listener, and the bytes that they hold, as metrics.

use super::encode::{Family, bytes};
use super::{ConnectionCount, GaugeReadings, Metrics};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

pub(super) fn gauges(metrics: &Metrics, readings: &GaugeReadings) -> Vec<Family> {
    let proxied = readings.proxied.map(|bytes| {
        let help =
            "Memory for requests and bodies on their way through the proxy: in use, and at most";
        Family::of_budget("tidegate_proxy_buffer_bytes", help, bytes)
    });
    let mut gauges = vec![
        by_listener(metrics, "tidegate_connections", "Open connections of a listener", |count| {
            count.open.load(Ordering::Relaxed)
        }),
        by_listener(
            metrics,
            "tidegate_max_connections",
            "Connections that a listener may have at most, if enough files may be open",
            |count| count.most,
        ),
        Family::of_budget(
            "tidegate_connection_bytes",
            "Memory for requests that are arriving and answers that clients have not read: in use, and at most",
            readings.held,
        ),
    ];
    gauges.extend(proxied);
    gauges
}

fn by_listener(
    metrics: &Metrics,
    name: &'static str,
    help: &'static str,
    value: fn(&ConnectionCount) -> usize,
) -> Family {
    let listeners = metrics.listeners.lock().unwrap_or_else(PoisonError::into_inner);
    let values = listeners.iter().map(|one| (one.listener.into(), bytes(value(one)))).collect();
    Family { name, help, label: "listener", values }
}
