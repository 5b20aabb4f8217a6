//! The recorder: writes each decision to a file that `tidegate replay --format recorded` decides again.
//!
//! ```text
//!   decision ──► a key of the sample? ──► line: time, attributes, cost, wait, outcome ──► writer thread ──► bounded file
//!                 └ no: left out
//! ```
//!
//! The sample is one of keys: all requests of one in so many users or addresses. A sample of requests would make every limit look
//! too generous, because each key would seem to ask less often.
//!
//! Each line stands for itself, so a file can be cut anywhere. It has the time by which the limiter decided, in nanoseconds, so
//! a replay decides the same. It never has header fields or bodies, and the values of attributes are digests under the secret of the
//! deployment unless the operator asks for clear ones.

use crate::health::Health;
use crate::line_writer::{LineWriter, LogKind, LogPlace};
use crate::metrics::Metrics;
use crate::rotating_file::FileBounds;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tidegate::{
    Check, Clock, Descriptor, DescriptorCall, DescriptorVerdict, Outcome, Secret, Timestamp,
    Verdict,
};
use tidegate_policy::{AddressKey, Identity};

/// What is recorded, and where.
#[derive(Clone, Debug)]
pub(crate) struct RecordSettings {
    pub(crate) file: PathBuf,
    pub(crate) bounds: FileBounds,
    /// Of so many keys, one is recorded.
    pub(crate) sample: u64,
    pub(crate) sample_by: SampleBy,
    pub(crate) clear: bool,
}

/// Which attribute decides whether a request is in the sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SampleBy {
    /// The user, or the address of a request without one.
    User,
    Ip,
}

/// The recorder, if it is on.
#[derive(Clone, Default)]
pub(crate) struct Recorder(Option<Arc<Recording>>);

struct Recording {
    lines: LineWriter,
    settings: RecordSettings,
    secret: Secret,
    clock: Clock,
    /// Knows the hash of the policy.
    health: Arc<Health>,
}

/// A decision as a line.
#[derive(Serialize)]
struct RecordedRequest<'r> {
    /// The version of the format.
    v: u8,
    /// When it was decided, by the steady clock, in nanoseconds.
    t: u64,
    o: &'static str,
    /// The status of the answer over HTTP.
    s: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    c: Option<u64>,
    /// How long the caller could wait, in nanoseconds.
    w: u64,
    /// Whether rules set the wait.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    r: bool,
    /// The hash of the rules.
    p: String,
    /// One in so many keys is recorded.
    #[serde(skip_serializing_if = "is_one")]
    n: u64,
    /// Whether attributes are digests.
    h: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    a: Option<ShownPairs<'r>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    d: Vec<RecordedEntries<'r>>,
}

/// A descriptor of a gRPC call.
#[derive(Serialize)]
struct RecordedEntries<'r> {
    c: u64,
    a: ShownPairs<'r>,
}

/// Attributes, as an object.
struct ShownPairs<'r>(Vec<(&'r str, Cow<'r, str>)>);

const RECORDING: LogKind = LogKind {
    name: "recording",
    written: Some(|metrics| &metrics.recorded_lines),
    dropped: |metrics| &metrics.recorded_lines_dropped,
};
/// Attributes that are never digests: rules compare them, and they name no customer.
const CLEAR: [&str; 5] = ["method", "path", "tier", "priority", "domain"];
/// In place of a path that cannot be read, so that the replay refuses the request for the same reason.
const UNREADABLE: &str = "unreadable";

// === impl Recorder ===

impl Recorder {
    /// Opens the file.
    pub(crate) fn start(
        settings: RecordSettings,
        (clock, secret): (&Clock, &Secret),
        (metrics, health): (Arc<Metrics>, Arc<Health>),
    ) -> io::Result<Self> {
        let place = LogPlace::Bounded(settings.file.clone(), settings.bounds, clock.clone());
        let lines = LineWriter::start(&place, RECORDING, (metrics, Arc::clone(&health)))?;
        let (clock, secret) = (clock.clone(), secret.clone());
        Ok(Self(Some(Arc::new(Recording { lines, settings, secret, clock, health }))))
    }

    /// A request was decided.
    #[inline]
    pub(crate) fn of_request(&self, verdict: &Verdict, check: &Check<'_>) {
        if let Some(recording) = &self.0 {
            recording.request(verdict, check);
        }
    }

    /// A call was decided.
    #[inline]
    pub(crate) fn of_call(&self, answer: &DescriptorVerdict, call: &DescriptorCall<'_, '_>) {
        if let Some(recording) = &self.0 {
            recording.call(answer, call);
        }
    }

    /// Waits until all lines are written, for a second at most.
    pub(crate) async fn finish(&self) {
        if let Some(recording) = &self.0 {
            recording.lines.flush().await;
        }
    }
}

// === impl Recording ===

impl Recording {
    fn request(&self, verdict: &Verdict, check: &Check<'_>) {
        let (attributes, identity) = (check.attributes, verdict.policy().identity());
        if !self.is_sampled(|name| attributes.get(name)) {
            return;
        }
        let mut pairs = self.shown(attributes.iter(), identity);
        if attributes.unreadable().is_some() {
            pairs.0.push(("path", UNREADABLE.into()));
        }
        self.lines.write(&RecordedRequest {
            c: Some(check.cost.get()),
            w: check.max_wait.as_nanos(),
            r: check.wait_by_rule,
            a: Some(pairs),
            ..self.line(verdict)
        });
    }

    /// A call that carries limits or gives something back is left out: a policy alone does not decide it.
    fn call(&self, answer: &DescriptorVerdict, call: &DescriptorCall<'_, '_>) {
        if call.descriptors.iter().any(|one| one.limit.is_some() || one.gives_back) {
            return;
        }
        let entries = || call.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
        let value = |wanted: &str| {
            entries().find(|(name, _)| *name == wanted).map(|(_, value)| Cow::Borrowed(&**value))
        };
        if !self.is_sampled(value) {
            return;
        }
        let identity = answer.verdict.policy().identity();
        let described = |descriptor: &Descriptor<'_>| {
            let domain = [("domain", Cow::Borrowed(call.domain))];
            let entries = descriptor.entries.iter();
            let entries = entries.map(|(name, value)| (*name, Cow::Borrowed(&**value)));
            let cost = descriptor.hits.unwrap_or(u64::from(call.hits.max(1)));
            let pairs = self.shown(domain.into_iter().chain(entries), identity);
            let pairs =
                pairs.0.into_iter().map(|(name, value)| (name.to_owned(), value.into_owned()));
            (cost, pairs.collect::<Vec<_>>())
        };
        let described: Vec<_> = call.descriptors.iter().map(described).collect();
        let entries = described.iter().map(|(cost, pairs)| RecordedEntries {
            c: *cost,
            a: ShownPairs(
                pairs.iter().map(|(name, value)| (&**name, Cow::Borrowed(&**value))).collect(),
            ),
        });
        self.lines.write(&RecordedRequest {
            w: call.max_wait.as_nanos(),
            d: entries.collect(),
            ..self.line(&answer.verdict)
        });
    }

    /// What all lines have.
    fn line<'r>(&self, verdict: &Verdict) -> RecordedRequest<'r> {
        // A verdict to which no limit applied has no time.
        let at = Some(verdict.decided_at).filter(|at| *at > Timestamp::EPOCH);
        let at = at.unwrap_or_else(|| self.clock.now().steady);
        let (o, s) = match verdict.outcome {
            Outcome::Allow => ("allow", 200),
            Outcome::Delay(_) => ("delay", 200),
            Outcome::Deny(_) => ("deny", 429),
        };
        RecordedRequest {
            v: 1,
            t: at.as_nanos(),
            o,
            s,
            c: None,
            w: 0,
            r: false,
            p: self.health.policy_hash(),
            n: self.settings.sample,
            h: !self.settings.clear,
            a: None,
            d: vec![],
        }
    }

    /// Whether the key of a request is in the sample. A request without one always is.
    fn is_sampled<'v>(&self, value: impl Fn(&str) -> Option<Cow<'v, str>>) -> bool {
        let RecordSettings { sample, sample_by, .. } = self.settings;
        if sample <= 1 {
            return true;
        }
        let key = match sample_by {
            SampleBy::User => value("user").or_else(|| value("ip")),
            SampleBy::Ip => value("ip"),
        };
        let Some(key) = key else { return true };
        let digest = self.secret.digest(&key);
        let number = digest.get(1..17).and_then(|digits| u64::from_str_radix(digits, 16).ok());
        number.and_then(|number| number.checked_rem(sample)).is_none_or(|rest| rest == 0)
    }

    /// Attributes as the recording shows them.
    fn shown<'r>(
        &self,
        attributes: impl Iterator<Item = (&'r str, Cow<'r, str>)>,
        identity: &Identity,
    ) -> ShownPairs<'r> {
        let digest = |text: &str| self.secret.digest(text);
        let pairs = attributes.map(|(name, value)| {
            let shown = match name {
                "path" => without_query(value),
                "method" => value,
                "ip" if !self.settings.clear => digest(&counted(&value, identity)).into(),
                _ if CLEAR.contains(&name) || self.settings.clear => {
                    identity.shown(name, &value, &digest).into_owned().into()
                }
                _ if is_secret(name, identity) => {
                    identity.shown(name, &value, &digest).into_owned().into()
                }
                _ => digest(&value).into(),
            };
            (name, shown)
        });
        ShownPairs(pairs.collect())
    }
}

/// An address as rules count it, so that two addresses of one prefix have the same digest.
fn counted(address: &str, identity: &Identity) -> String {
    let parsed = tidegate_policy::parse_address(address);
    parsed.map_or_else(
        || address.to_owned(),
        |address| AddressKey::new(address, identity.ipv6_prefix()).to_string(),
    )
}

/// Whether the limiter itself replaces the values of an attribute by digests. A front end may have done so already, and the digest of
/// a digest would be another key.
fn is_secret(name: &str, identity: &Identity) -> bool {
    matches!(identity.shown(name, "value", &|_| String::new()), Cow::Owned(_))
}

/// A path without its query, which may contain secrets.
fn without_query(path: Cow<'_, str>) -> Cow<'_, str> {
    match (path.find('?'), path) {
        (None, path) => path,
        (Some(end), Cow::Borrowed(path)) => path.get(..end).unwrap_or_default().into(),
        (Some(end), Cow::Owned(path)) => path.get(..end).unwrap_or_default().to_owned().into(),
    }
}

const fn is_one(number: &u64) -> bool {
    *number == 1
}

impl Serialize for ShownPairs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}
