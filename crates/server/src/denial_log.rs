//! The denial log: who is refused, by which rule. One line of JSON for every refused key, rule and minute.
//!
//! ```text
//!   refusal ──► a key that is new in this minute? ──► a line         the first 1,000 keys of a minute
//!                └ no: counted                    └──► left out      all others
//!   the minute is over ──► if it had more refusals than lines: a line with the sums
//! ```
//!
//! A client that is refused a thousand times in a second makes one line, and a flood of made-up keys makes a thousand in a
//! minute, so neither memory nor the file grows with what clients send. Requests that pass cost nothing: the lock here is taken
//! only for refusals. Keys that are secrets, such as API keys, appear only as their digests.

use crate::health::Health;
use crate::line_writer::{LineWriter, LogKind, LogPlace};
use crate::metrics::Metrics;
use crate::shown_key::{KeyForm, RequestKey, ShownKey};
use serde::Serialize;
use smallvec::SmallVec;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate::{
    Attributes, Clock, DecidedBy, Descriptor, DescriptorVerdict, LimitReport, Outcome, Retry,
    Secret, Span, Verdict,
};
use tokio::time::interval;

/// What the denial log is for and how it shows keys.
#[derive(Clone, Debug)]
pub(crate) struct DenialLogSettings {
    pub(crate) place: LogPlace,
    pub(crate) keys: KeyForm,
}

/// The denial log, if it is on.
#[derive(Clone, Default)]
pub(crate) struct Denials(Option<Arc<DenialLog>>);

/// The denial log of the whole server.
struct DenialLog {
    lines: LineWriter,
    keys: KeyForm,
    clock: Clock,
    /// Makes digests.
    secret: Secret,
    metrics: Arc<Metrics>,
    /// Its keys are random, so no client can choose a key that looks like another one.
    fingerprints: RandomState,
    /// Locked by refusals only, for a moment.
    minute: Mutex<Minute>,
}

/// The refusals of the current minute.
#[derive(Debug, Default)]
struct Minute {
    /// Minutes of the steady clock, which is never set.
    number: u64,
    /// Fingerprints of the rules and keys that have a line.
    seen: HashSet<u64>,
    refusals: u64,
    left_out: u64,
}

/// What becomes of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Noted {
    /// It is the first of its rule and key in this minute.
    First,
    Repeated,
    LeftOut,
}

/// A refusal by one rule.
struct Refusal<'r> {
    protocol: &'static str,
    /// Empty for a limit that the client named.
    rule: &'r str,
    limit: Option<&'r str>,
    key: RequestKey<'r>,
    retry_after: Option<Span>,
    by: DecidedBy,
}

/// A line about a refusal.
#[derive(Serialize)]
struct DenialLine<'r> {
    /// When it happened, in Unix time.
    at_ms: u64,
    protocol: &'static str,
    rule: &'r str,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<ShownKey>,
    /// `None`: it never passes.
    retry_after_ms: Option<u64>,
    decided_by: &'static str,
}

/// The line about a minute in which not every refusal has a line.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct MinuteLine {
    /// When the line was written, in Unix time.
    at_ms: u64,
    /// All refusals of the minute.
    refusals: u64,
    /// Those that have a line, each the first of its rule and key.
    lines: u64,
    /// Those of rules and keys that have no line, because the minute had too many.
    left_out: u64,
}

const DENIAL_LOG: LogKind =
    LogKind { name: "denial log", written: None, dropped: |metrics| &metrics.denial_lines_dropped };
/// Rules and keys that get a line in one minute. They use 16 KiB of memory, and the file grows by at most 360 MiB in a day of
/// uninterrupted attacks, if lines have 250 bytes.
const MOST_KEYS: usize = 1_000;
const MINUTE_NANOS: u64 = 60_000_000_000;
/// How often the log looks whether the minute is over.
const LOOK_EVERY: Duration = Duration::from_secs(1);

// === impl Denials ===

impl Denials {
    /// Opens the log.
    pub(crate) fn start(
        settings: &DenialLogSettings,
        (clock, secret): (&Clock, &Secret),
        reports: (Arc<Metrics>, Arc<Health>),
    ) -> io::Result<Self> {
        let metrics = Arc::clone(&reports.0);
        let lines = LineWriter::start(&settings.place, DENIAL_LOG, reports)?;
        let (clock, secret) = (clock.clone(), secret.clone());
        Ok(Self::writing(lines, settings.keys, (clock, secret), metrics))
    }

    fn writing(
        lines: LineWriter,
        keys: KeyForm,
        (clock, secret): (Clock, Secret),
        metrics: Arc<Metrics>,
    ) -> Self {
        let (fingerprints, minute) = (RandomState::new(), Mutex::default());
        Self(Some(Arc::new(DenialLog {
            lines,
            keys,
            clock,
            secret,
            metrics,
            fingerprints,
            minute,
        })))
    }

    /// A request with these attributes was decided.
    #[inline]
    pub(crate) fn of_request(
        &self,
        protocol: &'static str,
        verdict: &Verdict,
        attributes: &Attributes<'_>,
    ) {
        if let Some(log) = self.on(verdict) {
            log.refused_request(protocol, verdict, attributes);
        }
    }

    /// A call with these descriptors was decided.
    #[inline]
    pub(crate) fn of_call(
        &self,
        protocol: &'static str,
        answer: &DescriptorVerdict,
        descriptors: &[Descriptor<'_>],
    ) {
        if let Some(log) = self.on(&answer.verdict) {
            log.refused_call(protocol, answer, descriptors);
        }
    }

    /// A take under a limit that the client named was decided.
    #[inline]
    pub(crate) fn of_take(
        &self,
        protocol: &'static str,
        key: &[u8],
        (outcome, by): (Outcome, DecidedBy),
    ) {
        if let (Some(log), Outcome::Deny(_)) = (&self.0, outcome) {
            log.refused_take(protocol, key, (outcome, by));
        }
    }

    /// The log, if it is on and the request was refused.
    #[inline]
    fn on(&self, verdict: &Verdict) -> Option<&DenialLog> {
        if verdict.allowed() { None } else { self.0.as_deref() }
    }

    /// Writes the sums of each minute soon after its end; never returns if the log is on.
    pub(crate) async fn watch_minutes(self) {
        let Some(log) = self.0 else { return };
        let mut looks = interval(LOOK_EVERY);
        loop {
            looks.tick().await;
            log.look();
        }
    }

    /// Writes the sums of the minute that has begun, and waits until all lines are written, for a second at most.
    pub(crate) async fn finish(&self) {
        if let Some(log) = &self.0 {
            let sums = log.minute().close();
            log.write_sums(sums);
            log.lines.flush().await;
        }
    }
}

// === impl DenialLog ===

impl DenialLog {
    fn refused_request(
        &self,
        protocol: &'static str,
        verdict: &Verdict,
        attributes: &Attributes<'_>,
    ) {
        let policy = verdict.policy();
        for limit in refusing_rules(verdict) {
            self.note(&Refusal {
                protocol,
                rule: limit.rule,
                limit: Some(limit.id),
                key: RequestKey::of_rule(policy, limit.number, attributes),
                retry_after: retry_after(limit.decision.outcome),
                by: verdict.decided_by,
            });
        }
    }

    fn refused_call(
        &self,
        protocol: &'static str,
        answer: &DescriptorVerdict,
        descriptors: &[Descriptor<'_>],
    ) {
        for (status, descriptor) in answer.statuses().zip(descriptors) {
            if !status.over {
                continue;
            }
            self.note(&Refusal {
                protocol,
                rule: status.limit.map_or("", |limit| limit.name),
                limit: None,
                key: RequestKey::of_entries(answer.verdict.policy(), &descriptor.entries),
                retry_after: status.reset,
                by: answer.verdict.decided_by,
            });
        }
    }

    fn refused_take(
        &self,
        protocol: &'static str,
        key: &[u8],
        (outcome, by): (Outcome, DecidedBy),
    ) {
        let (key, retry_after) = (RequestKey::named(key), retry_after(outcome));
        self.note(&Refusal { protocol, rule: "", limit: None, key, retry_after, by });
    }

    /// Counts a refusal, and writes its line if it is the first of its rule and key.
    fn note(&self, refusal: &Refusal<'_>) {
        let key = (self.keys != KeyForm::Omitted).then_some(&refusal.key.pairs);
        let fingerprint = self.fingerprints.hash_one((refusal.rule, key));
        let (sums, noted) = {
            let mut minute = self.minute();
            (minute.begin(self.minute_number()), minute.note(fingerprint))
        };
        self.write_sums(sums);
        match noted {
            Noted::First => self.write(refusal),
            Noted::Repeated => {}
            Noted::LeftOut => {
                self.metrics.denials_left_out.inc();
            }
        }
    }

    fn write(&self, refusal: &Refusal<'_>) {
        let Refusal { protocol, rule, limit, ref key, retry_after, by } = *refusal;
        let millis = |wait: Span| wait.as_nanos().div_ceil(1_000_000);
        self.lines.write(&DenialLine {
            at_ms: self.at_ms(),
            protocol,
            rule,
            limit,
            key: key.shown(self.keys, &self.secret),
            retry_after_ms: retry_after.map(millis),
            decided_by: by.name(),
        });
    }

    /// Writes the sums of a minute that is over.
    fn write_sums(&self, sums: Option<Minute>) {
        if let Some(Minute { seen, refusals, left_out, .. }) = sums {
            let lines = u64::try_from(seen.len()).unwrap_or(u64::MAX);
            self.lines.write(&MinuteLine { at_ms: self.at_ms(), refusals, lines, left_out });
        }
    }

    /// Closes the minute if it is over.
    fn look(&self) {
        let sums = self.minute().begin(self.minute_number());
        self.write_sums(sums);
    }

    fn minute(&self) -> std::sync::MutexGuard<'_, Minute> {
        self.minute.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn minute_number(&self) -> u64 {
        self.clock.now().steady.as_nanos().checked_div(MINUTE_NANOS).unwrap_or(0)
    }

    fn at_ms(&self) -> u64 {
        self.clock.now().calendar.as_nanos().checked_div(1_000_000).unwrap_or(0)
    }
}

/// One limit of each rule that refuses a request. If none does, the request would have to wait behind others, and these are the
/// limits that it waits for.
fn refusing_rules(verdict: &Verdict) -> SmallVec<[LimitReport<'_>; 2]> {
    let limits = || verdict.by_rule().map(|rule| rule.limit);
    let refusing: SmallVec<[LimitReport<'_>; 2]> = limits().filter(LimitReport::refuses).collect();
    if !refusing.is_empty() {
        return refusing;
    }
    limits().filter(|limit| matches!(limit.decision.outcome, Outcome::Delay(_))).collect()
}

const fn retry_after(outcome: Outcome) -> Option<Span> {
    match outcome {
        Outcome::Deny(Retry::After(span)) | Outcome::Delay(span) => Some(span),
        Outcome::Deny(Retry::Never) | Outcome::Allow => None,
    }
}

// === impl Minute ===

impl Minute {
    /// Begins this minute, if it is another one. Returns the sums of the last one, if its lines do not say everything.
    fn begin(&mut self, number: u64) -> Option<Self> {
        if number == self.number {
            return None;
        }
        let sums = self.close();
        self.number = number;
        sums
    }

    /// Ends the minute, and returns its sums if its lines do not say everything.
    fn close(&mut self) -> Option<Self> {
        let over = std::mem::take(self);
        self.number = over.number;
        let has_more = u64::try_from(over.seen.len()).is_ok_and(|lines| over.refusals > lines);
        has_more.then_some(over)
    }

    /// Counts a refusal of the rule and key with this fingerprint.
    fn note(&mut self, fingerprint: u64) -> Noted {
        self.refusals = self.refusals.saturating_add(1);
        if self.seen.contains(&fingerprint) {
            return Noted::Repeated;
        }
        if self.seen.len() >= MOST_KEYS {
            self.left_out = self.left_out.saturating_add(1);
            return Noted::LeftOut;
        }
        self.seen.insert(fingerprint);
        Noted::First
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line_writer::QueuedLines;
    use serde_json::{Value, json};
    use tidegate::{Check, Limiter, Memory, Policy, Timestamp};

    const POLICY: &str = "
    version: 1
    rules:
      - { name: users, key: [user], limits: [{ rate: 1/h, algorithm: fixed_window }] }
      - { name: keys, key: [api_key, ip/48], limits: [{ rate: 1/h, algorithm: fixed_window }] }";

    /// A denial log, a limiter, and the clock of both.
    struct Logged {
        denials: Denials,
        lines: QueuedLines,
        limiter: Limiter,
        clock: Clock,
        metrics: Arc<Metrics>,
    }

    impl Logged {
        fn new(keys: KeyForm) -> Self {
            let clock = Clock::manual(Timestamp::from_nanos(1_000 * MINUTE_NANOS));
            let (writer, lines) = LineWriter::queued(DENIAL_LOG, 10_000);
            let (secret, metrics) = (Secret::new([7; 32]), Arc::new(Metrics::default()));
            let store = Memory::new(clock.clone());
            let policy = Policy::parse(POLICY).unwrap();
            let limiter = Limiter::new(policy, store, secret.clone(), clock.clone()).unwrap();
            let shared = (clock.clone(), secret);
            let denials = Denials::writing(writer, keys, shared, Arc::clone(&metrics));
            Self { denials, lines, limiter, clock, metrics }
        }

        fn check(&self, pairs: &[(&'static str, &str)]) {
            let mut attributes = Attributes::new();
            pairs.iter().for_each(|(name, value)| attributes.set(*name, *value).unwrap());
            let verdict = self.limiter.check_now(&Check::new(&attributes)).unwrap();
            self.denials.of_request("http", &verdict, &attributes);
        }

        /// Refuses a user, after one request that passes.
        fn refuse(&self, user: &str, times: usize) {
            (0..=times).for_each(|_| self.check(&[("user", user)]));
        }

        fn minutes_later(&self, minutes: u64) {
            let later = self.clock.now().steady.after(Span::from_secs(60 * minutes));
            self.clock.set(later.unwrap());
        }

        /// The sums of the last line: refusals, lines, left out.
        fn sums(&self) -> [u64; 3] {
            let line = self.lines.take().pop().unwrap();
            ["refusals", "lines", "left_out"].map(|name| line[name].as_u64().unwrap())
        }
    }

    fn keys(lines: &[Value]) -> Vec<&Value> {
        lines.iter().map(|line| &line["key"]).collect()
    }

    #[test]
    fn a_refused_key_has_one_line_in_a_minute() {
        let logged = Logged::new(KeyForm::Clear);
        logged.refuse("alice", 5);
        logged.refuse("bob", 1);
        let lines = logged.lines.take();
        assert_eq!(keys(&lines), [&json!({ "user": "alice" }), &json!({ "user": "bob" })]);
        let line = json!({
            "at_ms": 60_000_000, "protocol": "http", "rule": "users", "limit": "h",
            "key": { "user": "alice" }, "retry_after_ms": 1_200_000, "decided_by": "store",
        });
        assert_eq!(lines[0], line);
        logged.minutes_later(1);
        logged.denials.0.as_ref().unwrap().look();
        assert_eq!(logged.sums(), [6, 2, 0]);
        // A new minute, and so a new line; but none about a minute in which every refusal has its line.
        logged.check(&[("user", "alice")]);
        logged.minutes_later(1);
        logged.check(&[("user", "bob")]);
        assert_eq!(logged.lines.take().len(), 2);
    }

    /// A flood of made-up keys once would have filled the disk.
    #[test]
    fn a_flood_of_keys_is_bounded_and_summed() {
        let logged = Logged::new(KeyForm::Clear);
        (0..MOST_KEYS + 300).for_each(|user| logged.refuse(&format!("u{user}"), 1));
        assert_eq!(logged.lines.take().len(), MOST_KEYS);
        logged.minutes_later(1);
        logged.check(&[("user", "u7")]);
        let lines = logged.lines.take();
        assert_eq!((lines.len(), &lines[1]["key"]), (2, &json!({ "user": "u7" })));
        let sums =
            json!({ "at_ms": 60_060_000, "refusals": 1_300, "lines": 1_000, "left_out": 300 });
        assert_eq!(lines[0], sums);
        let text = logged.metrics.families().text();
        assert!(text.contains("tidegate_denial_log_left_out_total{} 300"), "{text}");
    }

    #[test]
    fn secrets_are_digests_and_other_values_as_the_setting_says() {
        let digest = |text: &str| Secret::new([7; 32]).digest(text);
        let secret = [("api_key", "s3cr3t"), ("ip", "2001:db8::7")];
        for (mode, user, key) in [
            (
                KeyForm::Clear,
                json!({ "user": "a\u{fffd}b" }),
                json!({ "api_key": digest("s3cr3t"), "ip": "2001:db8::/48" }),
            ),
            (
                KeyForm::Hashed,
                json!({ "user": digest("a\u{1b}b") }),
                json!({ "api_key": digest("s3cr3t"), "ip": digest("2001:db8::/48") }),
            ),
            (KeyForm::Omitted, Value::Null, Value::Null),
        ] {
            let logged = Logged::new(mode);
            logged.refuse("a\u{1b}b", 1);
            (0..2).for_each(|_| logged.check(&secret));
            let lines = logged.lines.take();
            assert_eq!(keys(&lines), [&user, &key], "{mode:?}");
            assert!(lines.iter().all(|line| !line.to_string().contains("s3cr3t")));
        }
    }

    #[test]
    fn omitted_keys_leave_one_line_for_each_rule() {
        let logged = Logged::new(KeyForm::Omitted);
        (0..20).for_each(|user| logged.refuse(&format!("u{user}"), 3));
        let lines = logged.lines.take();
        assert_eq!((lines.len(), lines[0].get("key")), (1, None));
        logged.minutes_later(1);
        logged.denials.0.as_ref().unwrap().look();
        assert_eq!(logged.sums(), [60, 1, 0]);
    }

    #[test]
    fn a_long_value_is_shortened() {
        let logged = Logged::new(KeyForm::Clear);
        logged.refuse(&"x".repeat(500), 1);
        logged.denials.of_take(
            "resp",
            &[b'y'; 5_000],
            (Outcome::Deny(Retry::Never), DecidedBy::Store),
        );
        let lines = logged.lines.take();
        assert!(lines.iter().all(|line| line.to_string().len() < 400), "{lines:?}");
        assert_eq!((&lines[1]["rule"], &lines[1]["retry_after_ms"]), (&json!(""), &Value::Null));
    }

    #[test]
    fn requests_that_pass_are_not_noted() {
        let logged = Logged::new(KeyForm::Clear);
        logged.check(&[("user", "alice")]);
        assert_eq!(logged.denials.0.as_ref().unwrap().minute().refusals, 0);
        assert_eq!(logged.lines.take(), [Value::Null; 0]);
    }
}
