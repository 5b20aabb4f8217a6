//! The reorder buffer: puts requests into the order of their arrival.
//!
//! Proxies log a request when it ends, and several workers write to one file. So lines are out of order by as much as requests
//! take. The buffer holds the last 60 s of the log, a bucket for each second, and releases a second when the log is 60 s past it:
//!
//! ```text
//!   line: ended 12:00:05.2, took 0.9 s ──► arrived 12:00:04.3 ──► bucket 12:00:04
//!   newest line 12:01:05 ──► bucket 12:00:04 is sorted, requests of the same instant in the order of the file, and replayed
//! ```
//!
//! A log that shows only whole seconds does not say when in a second its requests ended. [`Placement`] has the two extremes.
//! All texts of a second are in one buffer, which is used again for a later second, so a line allocates nothing.

use super::fields::{LoggedRequest, RecordedDecision};
use super::log_time::SECOND;
use std::collections::BTreeMap;

/// Where in a second a request is placed if the log shows only the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// All at its start, as one burst.
    Start,
    /// Evenly over the second.
    Spread,
}

/// The requests that wait to be replayed.
#[derive(Debug)]
pub(super) struct ReorderBuffer {
    placement: Placement,
    /// By the second of arrival.
    buckets: BTreeMap<u64, SecondBucket>,
    /// Lines of each second in which requests ended, if they are spread.
    ended: BTreeMap<u64, u64>,
    /// The latest second of a line.
    newest: u64,
    /// The number of the next request.
    number: u64,
    /// Bytes held.
    bytes: usize,
    /// Buckets to use again.
    spare: Vec<SecondBucket>,
}

/// The requests of one second.
#[derive(Debug, Default)]
pub(super) struct SecondBucket {
    text: String,
    values: Vec<StoredValue>,
    requests: Vec<StoredRequest>,
}

#[derive(Clone, Copy, Debug)]
struct StoredValue {
    number: u16,
    from: u32,
    to: u32,
}

/// A request; its values are in its bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredRequest {
    /// When it arrived, in Unix time.
    pub(super) at: u64,
    /// Its place in the log.
    number: u64,
    values: (u32, u32),
    /// The second in which it ended and its place among those of that second, if it is to be spread.
    spread: Option<(u64, u64)>,
    pub(super) recorded: Option<RecordedDecision>,
}

/// How far lines may be out of order.
const HORIZON: u64 = 60;
/// The most that a buffer holds: as much as a minute with half a million requests a second and 60 bytes each. With more, the
/// oldest second is released earlier.
const MOST_BYTES: usize = 2 << 30;
/// Buckets that are kept to be used again.
const MOST_SPARE: usize = 8;

// === impl ReorderBuffer ===

impl ReorderBuffer {
    pub(super) fn new(placement: Placement) -> Self {
        let (buckets, ended) = (BTreeMap::new(), BTreeMap::new());
        Self { placement, buckets, ended, newest: 0, number: 0, bytes: 0, spare: vec![] }
    }

    /// Adds a request. `stamp` is when it ended or, if `at_start`, when it arrived.
    pub(super) fn push(&mut self, request: &LoggedRequest<'_>) {
        let Some(stamp) = request.stamp else { return };
        let took = if request.at_start { 0 } else { request.took };
        let at = stamp.nanos.saturating_sub(took);
        let second = stamp.nanos / SECOND;
        self.newest = self.newest.max(second);
        let spread = (stamp.whole_second && self.placement == Placement::Spread).then(|| {
            let place = self.ended.entry(second).or_default();
            let before = *place;
            *place = place.saturating_add(1);
            (second, before)
        });
        let number = self.number;
        self.number = number.saturating_add(1);
        let stored =
            StoredRequest { at, number, values: (0, 0), spread, recorded: request.recorded };
        let values = request.values.iter().map(|(number, text)| (*number, &**text));
        self.store(stored, values);
    }

    fn store<'v>(&mut self, request: StoredRequest, values: impl Iterator<Item = (u16, &'v str)>) {
        let spare = &mut self.spare;
        let bucket = self
            .buckets
            .entry(request.at / SECOND)
            .or_insert_with(|| spare.pop().unwrap_or_default());
        self.bytes = self.bytes.saturating_add(bucket.push(request, values));
    }

    /// The oldest second that is complete, sorted by time; `at_end` releases all.
    pub(super) fn next(&mut self, at_end: bool) -> Option<SecondBucket> {
        let (second, _) = self.buckets.first_key_value()?;
        let complete = second.saturating_add(HORIZON) < self.newest;
        if !complete && !at_end && self.bytes <= MOST_BYTES {
            return None;
        }
        let (second, mut bucket) = self.buckets.pop_first()?;
        self.bytes = self.bytes.saturating_sub(bucket.bytes());
        if self.placement == Placement::Spread {
            self.spread(second, &mut bucket);
            let past = second.saturating_sub(HORIZON);
            self.ended = self.ended.split_off(&past);
        }
        bucket.requests.sort_by_key(|request| (request.at, request.number));
        Some(bucket)
    }

    /// Places requests over their second. Those that come into the next second go to its bucket.
    fn spread(&mut self, second: u64, bucket: &mut SecondBucket) {
        let end = second.saturating_add(1).saturating_mul(SECOND);
        let mut requests = std::mem::take(&mut bucket.requests);
        requests.retain_mut(|request| {
            let Some((ended, place)) = request.spread.take() else { return true };
            let all = self.ended.get(&ended).copied().unwrap_or(1).max(1);
            let part =
                u128::from(place).saturating_mul(u128::from(SECOND)).checked_div(u128::from(all));
            request.at = request
                .at
                .saturating_add(part.and_then(|part| u64::try_from(part).ok()).unwrap_or(0));
            if request.at >= end {
                self.store(*request, bucket.values(request));
            }
            request.at < end
        });
        bucket.requests = requests;
    }

    /// Takes back an empty bucket.
    pub(super) fn recycle(&mut self, mut bucket: SecondBucket) {
        if self.spare.len() < MOST_SPARE {
            bucket.text.clear();
            bucket.values.clear();
            bucket.requests.clear();
            self.spare.push(bucket);
        }
    }
}

// === impl SecondBucket ===

impl SecondBucket {
    /// Adds a request and returns how many bytes it takes. A bucket with 4 GiB of text takes no further values.
    fn push<'v>(
        &mut self,
        request: StoredRequest,
        values: impl Iterator<Item = (u16, &'v str)>,
    ) -> usize {
        let before = self.bytes();
        let first = place(self.values.len());
        for (number, text) in values {
            let from = place(self.text.len());
            self.text.push_str(text);
            self.values.push(StoredValue { number, from, to: place(self.text.len()) });
        }
        let values = (first, place(self.values.len()));
        self.requests.push(StoredRequest { values, ..request });
        self.bytes().saturating_sub(before)
    }

    fn bytes(&self) -> usize {
        let values = self.values.len().saturating_mul(size_of::<StoredValue>());
        let requests = self.requests.len().saturating_mul(size_of::<StoredRequest>());
        self.text.len().saturating_add(values).saturating_add(requests)
    }

    pub(super) fn requests(&self) -> &[StoredRequest] {
        &self.requests
    }

    /// The values of a request, by the numbers of their fields.
    pub(super) fn values(&self, request: &StoredRequest) -> impl Iterator<Item = (u16, &str)> {
        let [from, to] = [request.values.0, request.values.1].map(index);
        let values = self.values.get(from..to).unwrap_or_default().iter();
        values.filter_map(|value| {
            Some((value.number, self.text.get(index(value.from)..index(value.to))?))
        })
    }
}

fn place(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

fn index(place: u32) -> usize {
    usize::try_from(place).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::log_time::LogStamp;
    use super::*;

    const BASE: u64 = 1_000;

    /// A line that ended so many milliseconds after the base and took so many.
    fn push(buffer: &mut ReorderBuffer, name: &str, (ended, took): (u64, u64), whole_second: bool) {
        let nanos = BASE * SECOND + ended * 1_000_000;
        let stamp = Some(LogStamp { nanos, whole_second });
        let mut request = LoggedRequest { stamp, took: took * 1_000_000, ..Default::default() };
        request.push(0, name.to_owned().into());
        buffer.push(&request);
    }

    /// The names of requests in the order of their release, each with its milliseconds after the base.
    fn released(buffer: &mut ReorderBuffer, at_end: bool) -> Vec<(String, u64)> {
        let mut all = Vec::new();
        while let Some(bucket) = buffer.next(at_end) {
            for request in bucket.requests() {
                let name = bucket.values(request).map(|(_, text)| text).collect();
                all.push((name, (request.at - BASE * SECOND) / 1_000_000));
            }
            buffer.recycle(bucket);
        }
        all
    }

    fn named(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
        expected.iter().map(|(name, at)| ((*name).to_owned(), *at)).collect()
    }

    #[test]
    fn requests_come_out_in_the_order_of_arrival_and_ties_in_that_of_the_file() {
        let mut buffer = ReorderBuffer::new(Placement::Start);
        for (name, when) in
            [("c", (2_000, 0)), ("a", (2_500, 2_400)), ("d", (3_000, 1_000)), ("b", (1_000, 0))]
        {
            push(&mut buffer, name, when, false);
        }
        let expected = [("a", 100), ("b", 1_000), ("c", 2_000), ("d", 2_000)];
        assert_eq!(released(&mut buffer, true), named(&expected));
    }

    #[test]
    fn a_second_is_released_when_the_log_is_a_minute_past_it() {
        let mut buffer = ReorderBuffer::new(Placement::Start);
        push(&mut buffer, "a", (500, 0), false);
        push(&mut buffer, "b", (60_999, 0), false);
        assert_eq!(released(&mut buffer, false), []);
        push(&mut buffer, "c", (61_000, 0), false);
        assert_eq!(released(&mut buffer, false), named(&[("a", 500)]));
        assert_eq!(released(&mut buffer, true), named(&[("b", 60_999), ("c", 61_000)]));
        assert_eq!(buffer.bytes, 0);
    }

    #[test]
    fn whole_seconds_are_placed_at_the_start_or_evenly() {
        for (placement, times) in
            [(Placement::Start, [0, 0, 0, 0]), (Placement::Spread, [0, 250, 500, 750])]
        {
            let mut buffer = ReorderBuffer::new(placement);
            ["a", "b", "c", "d"].iter().for_each(|name| push(&mut buffer, name, (0, 0), true));
            let found: Vec<_> = released(&mut buffer, true).into_iter().map(|(_, at)| at).collect();
            assert_eq!(found, times);
        }
    }

    #[test]
    fn a_spread_request_that_reaches_the_next_second_is_sorted_there() {
        let mut buffer = ReorderBuffer::new(Placement::Spread);
        // Two ended in second 2; the second one of them is placed at 2.5 s, and arrived 300 ms earlier.
        push(&mut buffer, "a", (2_000, 300), true);
        push(&mut buffer, "b", (2_000, 300), true);
        push(&mut buffer, "c", (2_100, 0), false);
        let expected = [("a", 1_700), ("c", 2_100), ("b", 2_200)];
        assert_eq!(released(&mut buffer, true), named(&expected));
    }
}
