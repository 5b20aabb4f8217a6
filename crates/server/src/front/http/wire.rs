//! JSON in and out: the shapes that stand in `openapi.json`.

use crate::bounds;
use crate::call::Answer;
use http::StatusCode;
use serde::de::{DeserializeOwned, Deserializer, Error as _, MapAccess, Visitor};
use serde::ser::{SerializeSeq, SerializeStruct, Serializer};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use tidegate::{
    Algorithm, Attributes, LimitReport, Limiter, Outcome, Period, Priority, Retry, RuleLimit, Span,
    Store, Verdict,
};
use tidegate_core::{Headroom, Refill};
use tidegate_policy::Rate;

// === what is asked ===

/// A body asks one thing, or a list of them.
pub(crate) enum Asked<T> {
    One(T),
    Many(Vec<T>),
}

/// `POST /v1/check` and `/v1/peek`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Check<'b> {
    #[serde(borrow)]
    pub(crate) attributes: Pairs<'b>,
    #[serde(default = "one")]
    pub(crate) cost: u64,
    #[serde(default)]
    pub(crate) max_wait_ms: u64,
    #[serde(default)]
    pub(crate) receipt: bool,
}

/// `POST /v1/take`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Take<'b> {
    #[serde(borrow)]
    pub(crate) key: Cow<'b, str>,
    limit: u64,
    #[serde(borrow)]
    per: Cow<'b, str>,
    #[serde(default)]
    algorithm: Option<Kind>,
    #[serde(default)]
    burst: Option<u64>,
    #[serde(default)]
    queue: Option<u64>,
    #[serde(default)]
    buckets: Option<u16>,
    #[serde(default = "one")]
    pub(crate) cost: u64,
    #[serde(default)]
    pub(crate) max_wait_ms: u64,
}

/// `POST /v1/report`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Report<'b> {
    #[serde(borrow)]
    pub(crate) receipt: Cow<'b, str>,
    pub(crate) outcome: Option<ReportOutcome>,
    pub(crate) cost: Option<u64>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReportOutcome {
    Success,
    Failure,
    Cancelled,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    FixedWindow,
    SlidingLog,
    SlidingBuckets,
    SlidingWeighted,
    TokenBucket,
    LeakyBucket,
}

/// Attributes, each once, in the order of the body.
pub(crate) struct Pairs<'b>(SmallVec<[(Cow<'b, str>, Cow<'b, str>); 4]>);

/// More names than a request may have attributes.
const MOST_PAIRS: usize = 36;

const fn one() -> u64 {
    1
}

/// Reads a body.
pub(crate) fn read<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<Asked<T>, WireError> {
    if body.trim_ascii_start().first() != Some(&b'[') {
        return serde_json::from_slice(body).map(Asked::One).map_err(|_| explain::<T>(body));
    }
    let many: Vec<T> = serde_json::from_slice(body).map_err(|_| explain::<Vec<T>>(body))?;
    if many.len() > bounds::BATCH {
        let detail = format!("{} requests in a batch; at most {}", many.len(), bounds::BATCH);
        return Err(WireError::new(StatusCode::PAYLOAD_TOO_LARGE, "", detail));
    }
    Ok(Asked::Many(many))
}

/// Reads a body a second time to say where it is wrong; good ones are read without keeping track.
fn explain<'b, T: Deserialize<'b>>(body: &'b [u8]) -> WireError {
    let mut text = serde_json::Deserializer::from_slice(body);
    let mut track = serde_path_to_error::Track::new();
    let read = T::deserialize(serde_path_to_error::Deserializer::new(&mut text, &mut track));
    let error = match read.and_then(|_| text.end()) {
        Err(error) => error.to_string(),
        // It was wrong a moment ago; it is wrong now.
        Ok(()) => "the body could not be read".to_owned(),
    };
    WireError::new(StatusCode::BAD_REQUEST, &pointer(&track.path()), error)
}

/// A path as a JSON pointer (RFC 6901).
fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut pointer = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
            Segment::Map { key } | Segment::Enum { variant: key } => {
                pointer.push('/');
                pointer.push_str(&escaped(key));
            }
            Segment::Unknown => {}
        }
    }
    pointer
}

fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Reads a body that asks one thing.
pub(crate) fn read_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, WireError> {
    serde_json::from_slice(body).map_err(|_| explain::<T>(body))
}

impl<'b> Check<'b> {
    pub(crate) fn check<'c>(&self, attributes: &'c Attributes<'c>) -> tidegate::Check<'c> {
        let check = tidegate::Check::new(attributes)
            .cost(self.cost)
            .waiting(Span::from_millis(self.max_wait_ms));
        if self.receipt { check.with_receipt() } else { check }
    }
}

impl Pairs<'_> {
    /// As the policy knows them.
    pub(crate) fn attributes(&self) -> Result<Attributes<'_>, WireError> {
        let mut attributes = Attributes::new();
        for (name, value) in &self.0 {
            attributes.set(&**name, &**value).map_err(|error| {
                let pointer = format!("/attributes/{}", escaped(name));
                WireError::new(StatusCode::BAD_REQUEST, &pointer, error.to_string())
            })?;
        }
        Ok(attributes)
    }
}

impl<'de: 'b, 'b> Deserialize<'de> for Pairs<'b> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PairsVisitor(PhantomData))
    }
}

struct PairsVisitor<'b>(PhantomData<&'b ()>);

impl<'de: 'b, 'b> Visitor<'de> for PairsVisitor<'b> {
    type Value = Pairs<'b>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object whose values are text, such as {\"ip\":\"203.0.113.7\"}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'b>, A::Error> {
        let mut pairs: SmallVec<[(Cow<'b, str>, Cow<'b, str>); 4]> = SmallVec::new();
        while let Some(Text(name)) = map.next_key::<Text<'de>>()? {
            if pairs.iter().any(|(known, _)| *known == name) {
                return Err(A::Error::custom(format!("attribute `{name}` is there twice")));
            }
            if pairs.len() >= MOST_PAIRS {
                return Err(A::Error::custom("too many attributes; a request has at most 32"));
            }
            let Text(value) = map.next_value()?;
            pairs.push((name, value));
        }
        Ok(Pairs(pairs))
    }
}

/// Text that is borrowed from the body where it has no escapes.
struct Text<'b>(Cow<'b, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Owned(text.to_owned())))
    }
}

impl Take<'_> {
    /// The limit that the caller names.
    pub(crate) fn limit(&self) -> Result<RuleLimit, WireError> {
        let wrong =
            |pointer: &str, detail| Err(WireError::new(StatusCode::BAD_REQUEST, pointer, detail));
        if self.key.is_empty() {
            return wrong("/key", "the key is empty; whose bucket is it?".to_owned());
        }
        if self.limit == 0 {
            return wrong("/limit", "a limit of 0 lets nothing pass".to_owned());
        }
        if self.per.len() > 64 {
            return wrong("/per", "a period is written like `1s`, `500ms` or `1h`".to_owned());
        }
        let rate: Rate = match format!("{}/{}", self.limit, self.per).parse() {
            Ok(rate) => rate,
            Err(error) => return wrong("/per", format!("{error}")),
        };
        let algorithm = self.algorithm()?;
        RuleLimit::new(None, rate, algorithm, Headroom::None)
            .map_err(|error| WireError::new(StatusCode::BAD_REQUEST, "", error.to_string()))
    }

    /// The algorithm; an option that belongs to another one is a mistake.
    fn algorithm(&self) -> Result<Algorithm, WireError> {
        let kind = self.algorithm.unwrap_or(Kind::TokenBucket);
        let options = [
            ("burst", self.burst.is_some(), matches!(kind, Kind::TokenBucket)),
            ("queue", self.queue.is_some(), matches!(kind, Kind::LeakyBucket)),
            ("buckets", self.buckets.is_some(), matches!(kind, Kind::SlidingBuckets)),
        ];
        for (name, given, fits) in options {
            if given && !fits {
                let detail = format!("`{name}` belongs to another algorithm");
                return Err(WireError::new(StatusCode::BAD_REQUEST, &format!("/{name}"), detail));
            }
        }
        Ok(match kind {
            Kind::FixedWindow => Algorithm::FIXED_WINDOW,
            Kind::SlidingLog => Algorithm::SlidingLog,
            Kind::SlidingBuckets => match self.buckets {
                Some(buckets) => Algorithm::SlidingBuckets { buckets },
                None => Algorithm::SLIDING_BUCKETS,
            },
            Kind::SlidingWeighted => Algorithm::SlidingWeighted,
            Kind::TokenBucket => {
                Algorithm::TokenBucket { burst: self.burst, refill: Refill::Continuous }
            }
            Kind::LeakyBucket => Algorithm::LeakyBucket { queue: self.queue },
        })
    }
}

impl From<ReportOutcome> for tidegate::Report {
    fn from(outcome: ReportOutcome) -> Self {
        match outcome {
            ReportOutcome::Success => Self::Success,
            ReportOutcome::Failure => Self::Failure,
            ReportOutcome::Cancelled => Self::Cancelled,
        }
    }
}

// === what is wrong with it ===

/// A body that cannot be answered.
#[derive(Debug)]
pub(crate) struct WireError {
    status: StatusCode,
    pointer: String,
    detail: String,
}

impl WireError {
    pub(crate) fn new(status: StatusCode, pointer: &str, detail: String) -> Self {
        Self { status, pointer: pointer.to_owned(), detail }
    }

    /// The same, in a list.
    pub(crate) fn within(mut self, index: usize) -> Self {
        self.pointer = format!("/{index}{}", self.pointer);
        self
    }

    pub(crate) fn answer(&self) -> Answer {
        Answer::problem_at(self.status, &self.pointer, &self.detail)
    }
}

// === what is answered ===

/// A verdict as JSON.
pub(crate) struct VerdictText<'v> {
    verdict: &'v Verdict,
    receipt: Option<String>,
}

impl<'v> VerdictText<'v> {
    pub(crate) fn new<S: Store>(verdict: &'v Verdict, limiter: &Limiter<S>) -> Self {
        let receipt = verdict.receipt().map(|receipt| limiter.sealed(receipt));
        Self { verdict, receipt }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        // Nothing in a verdict fails to be JSON, and a vector takes all of it.
        let _ = serde_json::to_writer(out, self);
    }
}

impl Serialize for VerdictText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let verdict = self.verdict;
        let mut fields = serializer.serialize_struct("Verdict", 8)?;
        fields.serialize_field("allowed", &verdict.allowed())?;
        fields.serialize_field("outcome", outcome(verdict.outcome))?;
        fields.serialize_field("delay_ms", &millis(verdict.delay()))?;
        fields.serialize_field("retry_after_ms", &verdict.retry_after().map(millis))?;
        fields.serialize_field("over", &verdict.over)?;
        fields.serialize_field("decided_by", verdict.decided_by.name())?;
        fields.serialize_field("policy_version", &verdict.policy_version())?;
        // What is rare is told only when it is so.
        if verdict.shadow_deny {
            fields.serialize_field("shadow_deny", &true)?;
        }
        if verdict.priority == Priority::Low {
            fields.serialize_field("priority", "low")?;
        }
        let flags: SmallVec<[&str; 2]> = verdict.flags().collect();
        if !flags.is_empty() {
            fields.serialize_field("flags", flags.as_slice())?;
        }
        if let Some(receipt) = &self.receipt {
            fields.serialize_field("receipt", receipt)?;
        }
        fields.serialize_field("limits", &Limits(verdict))?;
        fields.end()
    }
}

struct Limits<'v>(&'v Verdict);

impl Serialize for Limits<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let limits = self.0.limits();
        let mut list = serializer.serialize_seq(Some(limits.len()))?;
        for limit in limits {
            list.serialize_element(&LimitText(limit))?;
        }
        list.end()
    }
}

struct LimitText<'v>(LimitReport<'v>);

impl Serialize for LimitText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let LimitReport { rule, id, limit, decision, shadow, .. } = self.0;
        let mut fields = serializer.serialize_struct("Limit", 10)?;
        fields.serialize_field("rule", rule)?;
        fields.serialize_field("limit", &limit.amount())?;
        match limit.period() {
            Period::Every(span) => fields.serialize_field("per_ms", &millis(*span))?,
            Period::Calendar(_) => {
                fields.serialize_field("per_ms", &None::<u64>)?;
                fields.serialize_field("window", id)?;
            }
        }
        fields.serialize_field("algorithm", limit.algorithm().name())?;
        fields.serialize_field("outcome", outcome(decision.outcome))?;
        fields.serialize_field("remaining", &decision.remaining)?;
        fields.serialize_field("reset_ms", &decision.reset.map(millis))?;
        let retry = match decision.outcome {
            Outcome::Allow | Outcome::Delay(_) => Some(0),
            Outcome::Deny(Retry::After(wait)) => Some(millis(wait)),
            Outcome::Deny(Retry::Never) => None,
        };
        fields.serialize_field("retry_after_ms", &retry)?;
        fields.serialize_field("shadow", &shadow)?;
        fields.end()
    }
}

const fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Allow => "allow",
        Outcome::Delay(_) => "delay",
        Outcome::Deny(_) => "deny",
    }
}

/// Whole milliseconds, rounded up: nobody is sent back too early.
fn millis(span: Span) -> u64 {
    span.as_nanos().div_ceil(1_000_000)
}
