//! One replay: lines become requests, the reorder buffer puts them in order, and each policy decides them.
//!
//! ```text
//!   lines ──► format ──► reorder buffer ──► lane of the policy, lane of the policy to compare with
//!                   └──► a second buffer and lanes, if the log shows only whole seconds
//! ```

use super::fields::{LoggedRequest, WantedFields};
use super::format::{FormatName, ReplayFormat};
use super::input::{InputEnd, LONGEST_LINE, LineBytes, LinePlace, LogInput};
use super::lane::{LaneSettings, ReplayLane};
use super::log_time::{SECOND, shown};
use super::reorder::{Placement, ReorderBuffer};
use super::report::{
    BadLine, LogReport, PolicyDifference, PolicyReport, ReplayReport, lacking, of_policy,
    policy_notes,
};
use super::windows::WindowTally;
use std::io;
use tidegate::Policy;

/// What a replay needs to know.
pub(super) struct ReplaySettings {
    pub(super) format: FormatName,
    pub(super) log_format: Option<String>,
    pub(super) wanted: WantedFields,
    /// Each policy with its name.
    pub(super) policies: Vec<(String, Policy)>,
    pub(super) lanes: LaneSettings,
    /// The most bad lines that are accepted.
    pub(super) most_bad_lines: u64,
    pub(super) suggest: bool,
}

/// A replay and what it has found so far.
pub(super) struct ReplayRun {
    settings: ReplaySettings,
    /// Known from the first line on.
    format: Option<ReplayFormat>,
    /// One, or two if the log shows only whole seconds.
    timelines: Vec<ReplayTimeline>,
    bad_lines: u64,
    first_bad_lines: Vec<BadLine>,
    interrupted: bool,
}

/// The policies on one order of requests.
struct ReplayTimeline {
    buffer: ReorderBuffer,
    lanes: Vec<ReplayLane>,
    difference: PolicyDifference,
    last: u64,
}

/// Bad lines that are shown.
const SHOWN_BAD_LINES: usize = 5;

impl ReplayRun {
    pub(super) const fn new(settings: ReplaySettings) -> Self {
        Self {
            settings,
            format: None,
            timelines: vec![],
            bad_lines: 0,
            first_bad_lines: vec![],
            interrupted: false,
        }
    }

    /// Replays all lines.
    pub(super) fn replay(&mut self, input: &mut LogInput) -> io::Result<()> {
        let end = input.each_line(|line, place| self.line(line, place))?;
        self.interrupted = end == InputEnd::Interrupted;
        self.advance(true);
        for lane in self.timelines.iter_mut().flat_map(|timeline| &mut timeline.lanes) {
            lane.tally.finish();
        }
        Ok(())
    }

    fn line(&mut self, line: LineBytes<'_>, place: &LinePlace) -> io::Result<()> {
        let Some(bytes) = line else {
            return self.bad_line(place, format!("it has more than {LONGEST_LINE} bytes"));
        };
        if bytes.trim_ascii().is_empty() {
            return Ok(());
        }
        let Ok(text) = str::from_utf8(bytes) else {
            return self.bad_line(place, "it is not valid UTF-8".to_owned());
        };
        if self.format.is_none() {
            self.choose_format(text)?;
        }
        let Some(format) = &mut self.format else { return Ok(()) };
        let mut request = LoggedRequest::default();
        match format.read(text, &mut request) {
            Err(error) => self.bad_line(place, error.to_string()),
            Ok(()) if request.stamp.is_none() => Ok(()),
            Ok(()) => self.request(&request),
        }
    }

    /// Chooses the format by the first line.
    fn choose_format(&mut self, first: &str) -> io::Result<()> {
        let settings = &mut self.settings;
        let (name, log_format) = (settings.format, settings.log_format.as_deref());
        let format = ReplayFormat::new(name, log_format, &mut settings.wanted, first);
        self.format = Some(format.map_err(io::Error::other)?);
        Ok(())
    }

    fn request(&mut self, request: &LoggedRequest<'_>) -> io::Result<()> {
        if self.timelines.is_empty() {
            self.timelines.push(self.timeline(Placement::Start)?);
            if request.stamp.is_some_and(|stamp| stamp.whole_second) {
                self.timelines.push(self.timeline(Placement::Spread)?);
            }
        }
        self.timelines.iter_mut().for_each(|timeline| timeline.buffer.push(request));
        self.advance(false);
        Ok(())
    }

    fn timeline(&self, placement: Placement) -> io::Result<ReplayTimeline> {
        let lane = |(_, policy): &(String, Policy)| {
            let mut lane = ReplayLane::new(policy, self.settings.lanes)?;
            let suggests = self.settings.suggest && placement == Placement::Start;
            lane.windows = suggests.then(|| WindowTally::new(policy));
            Ok(lane)
        };
        let lanes = self.settings.policies.iter().map(lane).collect::<io::Result<_>>()?;
        let (buffer, difference) = (ReorderBuffer::new(placement), PolicyDifference::default());
        Ok(ReplayTimeline { buffer, lanes, difference, last: 0 })
    }

    /// Replays what the buffers release.
    fn advance(&mut self, at_end: bool) {
        let names = self.format.as_ref().map_or(&[][..], ReplayFormat::names);
        self.timelines.iter_mut().for_each(|timeline| timeline.advance(at_end, names));
    }

    fn bad_line(&mut self, place: &LinePlace, problem: String) -> io::Result<()> {
        self.bad_lines = self.bad_lines.saturating_add(1);
        if self.first_bad_lines.len() < SHOWN_BAD_LINES {
            self.first_bad_lines.push(BadLine::new(place, problem));
        }
        let most = self.settings.most_bad_lines;
        if self.bad_lines <= most {
            return Ok(());
        }
        let shown = self.first_bad_lines.iter();
        let shown: Vec<String> = shown
            .map(|bad| {
                tidegate_policy::printable(&format!("{}:{}: {}", bad.file, bad.line, bad.problem))
            })
            .collect();
        Err(io::Error::other(format!(
            "more than {most} lines could not be read; check --format and --log-format, or allow more with --max-bad-lines. The first ones:\n  {}",
            shown.join("\n  ")
        )))
    }
}

impl ReplayTimeline {
    fn advance(&mut self, at_end: bool, names: &[String]) {
        while let Some(bucket) = self.buffer.next(at_end) {
            for request in bucket.requests() {
                self.last = self.last.max(request.at);
                let mut allowed =
                    self.lanes.iter_mut().map(|lane| lane.play(&bucket, request, names));
                let both = (allowed.next().flatten(), allowed.next().flatten());
                if let (Some(first), Some(second)) = both {
                    self.difference.add(first, second);
                }
            }
            self.buffer.recycle(bucket);
        }
    }
}

impl PolicyDifference {
    fn add(&mut self, first: bool, second: bool) {
        let count = |number: &mut u64, adds: bool| *number = number.saturating_add(u64::from(adds));
        count(&mut self.only_first_refuses, !first && second);
        count(&mut self.only_second_refuses, first && !second);
    }
}

// === the report ===

impl ReplayRun {
    pub(super) fn report(&self) -> ReplayReport {
        let first = self.timelines.first();
        let both = self.settings.policies.len() > 1;
        ReplayReport {
            log: self.log_report(),
            policies: self.policy_reports(),
            difference: first.map(|timeline| timeline.difference).filter(|_| both),
        }
    }

    fn policy_reports(&self) -> Vec<PolicyReport> {
        let lanes = |at: usize, timeline: usize| self.timelines.get(timeline)?.lanes.get(at);
        let names = self.settings.policies.iter().map(|(name, _)| name.clone()).enumerate();
        let reports = names.filter_map(|(at, name)| {
            let missing = |rule: &tidegate_policy::Rule| {
                lacking(rule, |name| self.knows(name), |name| self.shows(name))
            };
            Some(of_policy(name, lanes(at, 0)?, lanes(at, 1), &missing))
        });
        reports.collect()
    }

    fn knows(&self, attribute: &str) -> bool {
        self.format.as_ref().is_some_and(|format| format.knows(attribute))
    }

    fn shows(&self, attribute: &str) -> bool {
        self.format.as_ref().is_some_and(|format| format.shows(attribute))
    }

    fn log_report(&self) -> LogReport {
        let timeline = self.timelines.first();
        let lane = timeline.and_then(|timeline| timeline.lanes.first());
        let from = lane.and_then(|lane| lane.begin);
        let to = timeline.map(|timeline| timeline.last).filter(|_| from.is_some());
        let nanos = to.unwrap_or(0).saturating_sub(from.unwrap_or(0));
        LogReport {
            requests: lane.map_or(0, |lane| lane.tally.requests),
            from: from.map(shown),
            to: to.map(shown),
            seconds: nanos.div_ceil(SECOND),
            bad_lines: self.bad_lines,
            first_bad_lines: self.first_bad_lines.clone(),
            interrupted: self.interrupted,
            notes: self.notes(),
        }
    }

    /// What makes the counts less certain.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.timelines.len() > 1 {
            notes.push("the log shows only whole seconds, so counts are uncertain: they range from requests that are spread evenly over each second to all at its start".to_owned());
        }
        if self.format.as_ref().is_some_and(|format| !format.knows_arrival()) {
            notes.push(
                "the log does not say how long requests took, so they are counted when they ended"
                    .to_owned(),
            );
        }
        let lanes = || self.timelines.iter().flat_map(|timeline| &timeline.lanes);
        let late = lanes().map(|lane| lane.late).max().unwrap_or(0);
        if late > 0 {
            notes.push(format!(
                "{late} lines were more than 60 s out of order; their requests were counted late"
            ));
        }
        if lanes().any(ReplayLane::was_full) {
            notes.push("the memory for counters was full, so some counters are only known roughly; give more with --memory".to_owned());
        }
        if lanes().any(|lane| lane.tally.keys_full) {
            notes.push(
                "more than 1,000,000 keys were refused; those after them are not counted as keys"
                    .to_owned(),
            );
        }
        for (_, policy) in &self.settings.policies {
            notes.extend(policy_notes(policy, |name| self.knows(name)));
        }
        notes.extend(self.recording_notes());
        notes
    }

    fn recording_notes(&self) -> Vec<String> {
        let recording = self.format.as_ref().and_then(ReplayFormat::recording);
        let Some(recording) = recording else { return vec![] };
        let mut notes = Vec::new();
        if recording.sample > 1 {
            let text = format!(
                "one in {} keys was recorded; limits that keys share are not evaluated as they would be",
                recording.sample
            );
            notes.push(text);
        }
        if recording.policies.len() > 1 {
            let number = recording.policies.len();
            notes.push(format!(
                "the rules changed while this was recorded: there were {number} versions"
            ));
        }
        notes
    }

    /// The requests that the first policy decided after a first period, and the most that it refused of them.
    pub(super) fn share(&self) -> (u64, u64) {
        let lanes = self.timelines.iter().filter_map(|timeline| timeline.lanes.first());
        let share = lanes.map(|lane| (lane.tally.counted, lane.tally.refused));
        share.max_by_key(|(_, refused)| *refused).unwrap_or((0, 0))
    }
}
