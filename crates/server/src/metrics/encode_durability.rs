//! What the durable store wrote to its data directory, as metrics. Other stores have none of them.

use super::encode::Family;
use tidegate_store::DurableReport;

pub(super) fn counters(report: &DurableReport) -> Vec<Family> {
    let single = |name, help, value| Family::single(name, help, Some(value));
    vec![
        single(
            "tidegate_file_written_bytes",
            "Bytes that were written to logs and snapshots of the data directory",
            report.bytes_written,
        ),
        single(
            "tidegate_file_writes",
            "How often changed counters were written to the data directory",
            report.writes,
        ),
        single("tidegate_file_syncs", "How often the log was synced to the disk", report.syncs),
        single("tidegate_file_snapshots", "Snapshots that were completed", report.snapshots),
        single("tidegate_file_errors", "Writes and syncs that failed", report.errors),
    ]
}

pub(super) fn gauges(report: &DurableReport) -> Vec<Family> {
    let micros = |span: tidegate_core::Span| span.as_nanos() / 1_000;
    let longest = |name, help, span| Family::single(name, help, Some(micros(span)));
    vec![
        longest(
            "tidegate_file_longest_write_microseconds",
            "The longest write of changed counters: a crash of the server loses at most this and the write interval",
            report.longest_write,
        ),
        longest(
            "tidegate_file_longest_sync_microseconds",
            "The longest sync of the log: a power failure loses at most this and the sync interval",
            report.longest_sync,
        ),
    ]
}
