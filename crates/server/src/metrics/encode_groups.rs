//! The metrics of the proxy's groups as `OpenMetrics` text. The label values are the names and servers of the routes file.

use super::encode::seconds;
use super::group_tally::{GroupSums, ProxyAnswer, TIME_BUCKETS, TimeSums};
use super::{GroupReading, Metrics, ServerReading};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use std::collections::BTreeMap;
use std::fmt;
use tidegate::ClassReading;

/// The metrics of all groups.
#[derive(Debug)]
pub(super) struct CollectedGroups {
    /// Summed over the workers, by group.
    sums: BTreeMap<Box<str>, GroupSums>,
    readings: Vec<GroupReading>,
    lines_dropped: u64,
}

/// The values of a metric, each with its labels.
type LabeledValues<'c> = Vec<(Vec<(&'static str, &'c str)>, u64)>;

impl CollectedGroups {
    /// `None` if the proxy is off.
    pub(super) fn of(metrics: &Metrics, readings: Option<&Vec<GroupReading>>) -> Option<Self> {
        let readings = readings?.clone();
        let mut sums: BTreeMap<Box<str>, GroupSums> = BTreeMap::new();
        for tally in metrics.group_tallies() {
            tally.add_to(sums.entry(tally.group.clone()).or_default());
        }
        let lines_dropped = super::encode::read(&metrics.access_lines_dropped);
        Some(Self { sums, readings, lines_dropped })
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let out = encoder;
        let help = "Requests that the proxy has finished, by group and by how they were answered: the class of the upstream server's status, or the proxy's own reason";
        counter(out, "tidegate_proxy_requests", help, &self.answers())?;
        let help =
            "Requests that are held: they wait for their turn, or for a store outside this process";
        gauge(out, "tidegate_proxy_held_requests", help, &self.by_group(|sums| sums.held))?;
        let help =
            "How long requests waited for their turn; requests that did not wait are not counted";
        self.times(out, "tidegate_proxy_wait_seconds", help, |sums| &sums.waited)?;
        let help = "Time from sending a request to the head of the upstream server's answer";
        self.times(out, "tidegate_upstream_first_byte_seconds", help, |sums| &sums.first_byte)?;
        let help = "Requests that were tried again, because nothing of them was sent";
        counter(out, "tidegate_upstream_retries", help, &self.by_group(|sums| sums.retries))?;
        let help = "Connections to upstream servers that were opened";
        let connections = self.by_group(|sums| sums.connections);
        counter(out, "tidegate_upstream_connections", help, &connections)?;
        self.encode_servers(out)?;
        self.encode_seats(out)?;
        let help = "Lines of the access log that were not written, because the disk or the reader of the log was too slow or failed";
        let dropped = vec![(Vec::new(), self.lines_dropped)];
        counter(out, "tidegate_access_log_lines_dropped", help, &dropped)
    }

    fn encode_servers(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Requests in flight to an upstream server, until its answer has ended";
        gauge(out, "tidegate_upstream_in_flight", help, &self.by_server(|one| one.in_flight))?;
        let help = "1 if an upstream server answers requests and health checks, 0 if it is down";
        gauge(out, "tidegate_upstream_up", help, &self.by_server(|one| u64::from(one.is_up)))?;
        let help = "1 if an operator drains an upstream server, so it gets no new requests";
        let draining = self.by_server(|one| u64::from(one.is_draining));
        gauge(out, "tidegate_upstream_draining", help, &draining)?;
        let help = "How often an upstream server got no requests for some time, because it failed";
        counter(out, "tidegate_upstream_ejections", help, &self.by_server(|one| one.ejections))
    }

    fn encode_seats(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Seats of a group that are reserved for a priority class";
        let reserved = self.by_class(|class| whole(class.reserved));
        gauge(out, "tidegate_scheduler_reserved_seats", help, &reserved)?;
        let help = "Requests of a priority class that have a seat, because they are in flight";
        let in_flight = self.by_class(|class| whole(class.in_flight));
        gauge(out, "tidegate_scheduler_in_flight", help, &in_flight)?;
        let help = "Requests of a priority class that wait for a seat";
        let waiting = self.by_class(|class| whole(class.waiting));
        gauge(out, "tidegate_scheduler_waiting", help, &waiting)?;
        let help = "Requests of a priority class that got a seat";
        counter(out, "tidegate_scheduler_started", help, &self.by_class(|class| class.started))?;
        let help = "Requests of a priority class that got no seat and were answered with 503, by reason: they waited too long, too many were waiting, or a request of a higher class took their place";
        counter(out, "tidegate_scheduler_shed", help, &self.shed())
    }

    /// Classes of the groups whose seats are bounded.
    fn by_class(&self, value: impl Fn(&ClassReading) -> u64) -> LabeledValues<'_> {
        let classes = self.classes();
        classes
            .map(|(group, class)| (vec![("group", group), ("class", &*class.name)], value(class)))
            .collect()
    }

    fn shed(&self) -> LabeledValues<'_> {
        let mut values = Vec::new();
        for (group, class) in self.classes() {
            for (reason, count) in [
                ("waited_too_long", class.expired),
                ("queue_full", class.refused),
                ("evicted", class.evicted),
            ] {
                let labels = vec![("group", group), ("class", &*class.name), ("reason", reason)];
                values.push((labels, count));
            }
        }
        values
    }

    fn classes(&self) -> impl Iterator<Item = (&str, &ClassReading)> {
        self.readings.iter().flat_map(|group| {
            let classes = group.seats.iter().flat_map(|seats| &seats.classes);
            classes.map(|class| (&*group.group, class))
        })
    }

    /// Answers that never happened have no series.
    fn answers(&self) -> LabeledValues<'_> {
        let mut values = Vec::new();
        for (group, sums) in &self.sums {
            let counts = ProxyAnswer::ALL.iter().zip(sums.answers).filter(|(_, count)| *count > 0);
            for ((_, answer), count) in counts {
                values.push((vec![("group", &**group), ("answer", *answer)], count));
            }
        }
        values
    }

    fn by_group(&self, value: impl Fn(&GroupSums) -> u64) -> LabeledValues<'_> {
        let groups = self.sums.iter();
        groups.map(|(group, sums)| (vec![("group", &**group)], value(sums))).collect()
    }

    fn by_server(&self, value: impl Fn(&ServerReading) -> u64) -> LabeledValues<'_> {
        let mut values = Vec::new();
        for group in &self.readings {
            for one in &group.servers {
                let labels = vec![("group", &*group.group), ("server", &*one.server)];
                values.push((labels, value(one)));
            }
        }
        values
    }

    fn times(
        &self,
        out: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        times: impl Fn(&GroupSums) -> &TimeSums,
    ) -> Result<(), fmt::Error> {
        let mut metric = out.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (group, sums) in &self.sums {
            let TimeSums { counts, nanos } = times(sums);
            let bounds = TIME_BUCKETS.iter().map(|most| seconds(*most));
            let buckets: Vec<(f64, u64)> = bounds.zip(counts.iter().copied()).collect();
            let all = counts.iter().fold(0_u64, |sum, count| sum.wrapping_add(*count));
            metric.encode_family(&[("group", &**group)])?.encode_histogram::<[(&str, &str); 0]>(
                seconds(*nanos),
                all,
                &buckets,
                None,
            )?;
        }
        Ok(())
    }
}

fn whole(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn counter(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: &LabeledValues<'_>,
) -> Result<(), fmt::Error> {
    let mut metric = out.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, count) in values {
        metric
            .encode_family(&labels.as_slice())?
            .encode_counter::<[(&str, &str); 0], _, u64>(count, None)?;
    }
    Ok(())
}

fn gauge(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: &LabeledValues<'_>,
) -> Result<(), fmt::Error> {
    let mut metric = out.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        let value = i64::try_from(*value).unwrap_or(i64::MAX);
        metric.encode_family(&labels.as_slice())?.encode_gauge(&value)?;
    }
    Ok(())
}
