//! JSON bodies of the HTTP API, in and out. The `OpenAPI` document is written from these types and their comments.

use crate::backend::Backend;
use crate::desk::ClientTake;
use crate::web::Answer;
use http::StatusCode;
#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::json;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use tidegate::{
    Algorithm, Attributes, LimitReport, Limiter, Outcome, Period, Receipt, Retry, RuleLimit, Span,
    Verdict,
};
use tidegate_core::{Headroom, Refill};
use tidegate_policy::Rate;

#[cfg(test)]
pub(crate) use tests::VerdictBody;
#[cfg(test)]
pub(super) use tests::{Refusal, Renewed, ReportResult, Settled, Undecided};

// === requests ===

/// A request to decide.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(JsonSchema), schemars(example = json!({
    "attributes": { "ip": "203.0.113.7", "user": "alice", "method": "POST", "path": "/urls" }, "cost": 1,
})))]
pub(crate) struct Check<'b> {
    #[serde(borrow)]
    pub(crate) attributes: Pairs<'b>,
    /// How much of its limits the request uses.
    #[serde(default = "one")]
    pub(crate) cost: u64,
    /// How long the caller is willing to delay the request.
    #[serde(default)]
    pub(crate) max_wait_ms: u64,
    /// How long the caller waits for the answer; if the store is slower, the rules decide without the store.
    #[serde(default = "forever")]
    pub(crate) timeout_ms: u64,
    /// Whether to return a receipt, with which the true cost can be reported later.
    #[serde(default)]
    pub(crate) receipt: bool,
}

/// A request to decide under a limit that the caller defines.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(JsonSchema), schemars(example = json!({
    "key": "user:1", "limit": 15, "per": "1s", "algorithm": "token_bucket", "burst": 15, "cost": 1,
})))]
pub(crate) struct Take<'b> {
    /// What is counted, such as a user.
    #[serde(borrow)]
    #[cfg_attr(test, schemars(length(min = 1)))]
    pub(crate) key: Cow<'b, str>,
    /// How much passes per period.
    #[cfg_attr(test, schemars(range(min = 1)))]
    limit: u64,
    /// The period.
    #[serde(borrow)]
    #[cfg_attr(test, schemars(example = "1s", example = "500ms", example = "1h"))]
    per: Cow<'b, str>,
    #[cfg_attr(test, schemars(extend("default" = "token_bucket")))]
    algorithm: Option<AlgorithmName>,
    /// `token_bucket`: the burst; defaults to `limit`.
    burst: Option<u64>,
    /// `leaky_bucket`: how many requests may wait.
    queue: Option<u64>,
    /// `sliding_buckets`: the number of sub-windows.
    #[cfg_attr(test, schemars(range(min = 2, max = 1_000)))]
    buckets: Option<u16>,
    /// How much of the limit the request uses.
    #[serde(default = "one")]
    pub(crate) cost: u64,
    /// How long the caller is willing to delay the request.
    #[serde(default)]
    pub(crate) max_wait_ms: u64,
}

/// The outcome or the true cost of a request, or the renewal of its permits: exactly one of the three. Whatever is reported, the
/// permits of concurrency limits are returned.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct Report<'b> {
    /// The receipt that the answer to the request had.
    #[serde(borrow)]
    pub(crate) receipt: Cow<'b, str>,
    /// How the request ended.
    pub(crate) outcome: Option<ReportOutcome>,
    /// What the request cost in the end.
    pub(crate) cost: Option<u64>,
    /// Whether to hold the permits of concurrency limits for another lease, instead of returning them. The answer has a new receipt.
    #[serde(default)]
    pub(crate) renew: bool,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) enum ReportOutcome {
    Success,
    Failure,
    Cancelled,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(JsonSchema), schemars(rename = "Algorithm"))]
enum AlgorithmName {
    FixedWindow,
    SlidingLog,
    SlidingBuckets,
    SlidingWeighted,
    TokenBucket,
    LeakyBucket,
}

/// Attributes, each once, in the order of the body.
pub(crate) struct Pairs<'b>(SmallVec<[(Cow<'b, str>, Cow<'b, str>); 4]>);

/// Attributes of a request.
const MOST_PAIRS: usize = 32;

const fn forever() -> u64 {
    u64::MAX
}

fn one() -> u64 {
    1
}

/// Reads a body that holds one request; `None` if it is a list.
pub(crate) fn read_one<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Option<Result<T, WireError>> {
    if body.trim_ascii_start().first() == Some(&b'[') {
        return None;
    }
    Some(serde_json::from_slice(body).map_err(|_| explain::<T>(body, unmoved)))
}

/// Reads an invalid body, or a part of one, a second time to find the place of the error; tracking the place would slow down
/// valid ones. `moved` turns a line and a column of the part into those of the body.
pub(super) fn explain<'b, T: Deserialize<'b>>(
    part: &'b [u8],
    moved: impl Fn(usize, usize) -> (usize, usize),
) -> WireError {
    let mut text = serde_json::Deserializer::from_slice(part);
    let mut track = serde_path_to_error::Track::new();
    let read = T::deserialize(serde_path_to_error::Deserializer::new(&mut text, &mut track));
    let detail = match read.and_then(|_| text.end()) {
        Err(error) => placed(&error, moved),
        // Not reached: the same bytes were just refused.
        Ok(()) => "the body is not valid".to_owned(),
    };
    WireError::new(StatusCode::BAD_REQUEST, &pointer(&track.path()), detail)
}

/// The text of an error, with its place in the body.
fn placed(error: &serde_json::Error, moved: impl Fn(usize, usize) -> (usize, usize)) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    match text.strip_suffix(&place) {
        None => text,
        Some(what) => {
            let (line, column) = moved(error.line(), error.column());
            format!("{what} at line {line} column {column}")
        }
    }
}

/// For a part that is the whole body.
fn unmoved(line: usize, column: usize) -> (usize, usize) {
    (line, column)
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

/// Reads a body that holds one value.
pub(crate) fn read_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, WireError> {
    serde_json::from_slice(body).map_err(|_| explain::<T>(body, unmoved))
}

impl<'b> Check<'b> {
    pub(crate) fn check<'c>(&self, attributes: &'c Attributes<'c>) -> tidegate::Check<'c> {
        let check = tidegate::Check::new(attributes)
            .cost(self.cost)
            .waiting(Span::from_millis(self.max_wait_ms));
        let check = check.within(Span::from_millis(self.timeout_ms));
        if self.receipt { check.with_receipt() } else { check }
    }
}

impl Pairs<'_> {
    /// Checked attributes for the policy.
    pub(crate) fn attributes(&self) -> Result<Attributes<'_>, WireError> {
        let mut attributes = Attributes::new();
        for (name, value) in &self.0 {
            attributes.set_from_client(&**name, &**value).map_err(|error| {
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
                return Err(A::Error::custom(format!("attribute `{name}` is given twice")));
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

/// A string, borrowed from the body unless it has escapes.
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
    /// What is taken, under the limit that the caller defines.
    pub(crate) fn take<'t>(&'t self, limit: &'t RuleLimit) -> ClientTake<'t> {
        let max_wait = Span::from_millis(self.max_wait_ms);
        ClientTake { key: &self.key, limit, cost: self.cost.into(), max_wait }
    }

    /// The limit that the caller defines.
    pub(crate) fn limit(&self) -> Result<RuleLimit, WireError> {
        let wrong =
            |pointer: &str, detail| Err(WireError::new(StatusCode::BAD_REQUEST, pointer, detail));
        if self.key.is_empty() {
            return wrong("/key", "the key must not be empty".to_owned());
        }
        if self.limit == 0 {
            return wrong("/limit", "the limit must be at least 1".to_owned());
        }
        if self.per.len() > 64 {
            return wrong("/per", "write the period like `1s`, `500ms` or `1h`".to_owned());
        }
        let rate: Rate = match format!("{}/{}", self.limit, self.per).parse() {
            Ok(rate) => rate,
            Err(error) => return wrong("/per", format!("{error}")),
        };
        let algorithm = self.algorithm()?;
        RuleLimit::new(None, rate, algorithm, Headroom::None)
            .map_err(|error| WireError::new(StatusCode::BAD_REQUEST, "", error.to_string()))
    }

    /// The algorithm. An option that belongs to another algorithm is an error.
    fn algorithm(&self) -> Result<Algorithm, WireError> {
        let kind = self.algorithm.unwrap_or(AlgorithmName::TokenBucket);
        let options = [
            ("burst", self.burst.is_some(), matches!(kind, AlgorithmName::TokenBucket)),
            ("queue", self.queue.is_some(), matches!(kind, AlgorithmName::LeakyBucket)),
            ("buckets", self.buckets.is_some(), matches!(kind, AlgorithmName::SlidingBuckets)),
        ];
        for (name, given, fits) in options {
            if given && !fits {
                let detail = format!("`{name}` is not an option of this algorithm");
                return Err(WireError::new(StatusCode::BAD_REQUEST, &format!("/{name}"), detail));
            }
        }
        Ok(match kind {
            AlgorithmName::FixedWindow => Algorithm::FIXED_WINDOW,
            AlgorithmName::SlidingLog => Algorithm::SlidingLog,
            AlgorithmName::SlidingBuckets => match self.buckets {
                Some(buckets) => Algorithm::SlidingBuckets { buckets },
                None => Algorithm::SLIDING_BUCKETS,
            },
            AlgorithmName::SlidingWeighted => Algorithm::SlidingWeighted,
            AlgorithmName::TokenBucket => {
                Algorithm::TokenBucket { burst: self.burst, refill: Refill::Continuous }
            }
            AlgorithmName::LeakyBucket => Algorithm::LeakyBucket { queue: self.queue },
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

// === errors ===

/// Why a body is refused: the status, the JSON pointer of the error, and its text.
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

    /// The same error, in the entry of a list with this index.
    pub(crate) fn within(mut self, index: usize) -> Self {
        self.pointer = format!("/{index}{}", self.pointer);
        self
    }

    pub(crate) fn answer(&self) -> Answer {
        Answer::problem_at(self.status, &self.pointer, &self.detail)
    }

    /// The error as an entry of the answer to a list; `allowed` is false, so that no client takes it for a pass.
    pub(crate) fn entry(&self) -> String {
        let title = self.status.canonical_reason().unwrap_or_default();
        let (status, detail) = (self.status.as_u16(), &self.detail);
        json!({ "allowed": false, "title": title, "status": status, "detail": detail }).to_string()
    }
}

// === responses ===

/// A verdict as JSON.
pub(crate) struct VerdictText<'v> {
    verdict: &'v Verdict,
    receipt: Option<String>,
}

impl<'v> VerdictText<'v> {
    pub(crate) fn new<S: Backend>(verdict: &'v Verdict, limiter: &Limiter<S>) -> Self {
        let receipt = verdict.receipt().map(|receipt| limiter.sealed(receipt));
        Self { verdict, receipt }
    }

    /// Writes the JSON by hand, because it is mostly fixed names, which a serializer would search for characters to escape each
    /// time.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let verdict = self.verdict;
        put(out, "{\"allowed\":", flag(verdict.allowed()));
        put(out, ",\"outcome\":\"", outcome(verdict.outcome));
        put_number(out, "\",\"delay_ms\":", millis(verdict.delay()));
        put_or_null(out, ",\"retry_after_ms\":", verdict.retry_after().map(millis));
        put(out, ",\"over\":", flag(verdict.over));
        put(out, ",\"decided_by\":\"", verdict.decided_by.name());
        put_number(out, "\",\"policy_version\":", verdict.policy_version());
        self.write_rare(out);
        out.extend_from_slice(b",\"limits\":[");
        for (at, limit) in verdict.limits().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            write_limit(out, &limit);
        }
        out.extend_from_slice(b"]}");
    }

    /// Fields that are written only when they apply.
    fn write_rare(&self, out: &mut Vec<u8>) {
        let verdict = self.verdict;
        if verdict.shadow_deny {
            out.extend_from_slice(b",\"shadow_deny\":true");
        }
        if let Some(class) = verdict.unusual_class() {
            put_text(out, ",\"priority\":", class);
        }
        let mut before = ",\"flags\":[";
        for flag in verdict.flags() {
            put_text(out, before, flag);
            before = ",";
        }
        if before == "," {
            out.push(b']');
        }
        if let Some(receipt) = &self.receipt {
            put_text(out, ",\"receipt\":", receipt);
        }
        if let Some(lease) = verdict.receipt().and_then(Receipt::lease) {
            put_number(out, ",\"lease_ms\":", millis(lease));
        }
        if let Some(reason) = verdict.unreadable() {
            put_text(out, ",\"detail\":", &reason.to_string());
        }
    }
}

fn write_limit(out: &mut Vec<u8>, report: &LimitReport<'_>) {
    let LimitReport { rule, id, limit, decision, shadow, .. } = report;
    put_text(out, "{\"rule\":", rule);
    put_number(out, ",\"limit\":", limit.amount());
    match limit.period() {
        Period::Every(_) if limit.lease().is_some() => put(out, ",\"per_ms\":", "null"),
        Period::Every(span) => put_number(out, ",\"per_ms\":", millis(*span)),
        Period::Calendar(_) => put_text(out, ",\"per_ms\":null,\"window\":", id),
    }
    put(out, ",\"algorithm\":\"", limit.algorithm().name());
    put(out, "\",\"outcome\":\"", outcome(decision.outcome));
    put_number(out, "\",\"remaining\":", decision.remaining);
    put_or_null(out, ",\"reset_ms\":", decision.reset.map(millis));
    let retry = match decision.outcome {
        Outcome::Allow | Outcome::Delay(_) => Some(0),
        Outcome::Deny(Retry::After(wait)) => Some(millis(wait)),
        Outcome::Deny(Retry::Never) => None,
    };
    put_or_null(out, ",\"retry_after_ms\":", retry);
    put(out, ",\"shadow\":", flag(*shadow));
    // Only limits that may be exceeded: the answer of the others should stay short.
    match limit.headroom() {
        Headroom::None => {}
        Headroom::Soft(_) => {
            put_number(out, ",\"used_percent\":", u64::from(report.used_percent()));
        }
        Headroom::Elastic(_) => {
            put_number(out, ",\"used_percent\":", u64::from(report.used_percent()));
            put_or_null(out, ",\"elastic_percent\":", report.elastic_percent().map(u64::from));
        }
    }
    if decision.over {
        put(out, ",\"over\":", "true");
    }
    out.push(b'}');
}

/// A name, and a value that needs no escaping.
fn put(out: &mut Vec<u8>, name: &str, words: &str) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(words.as_bytes());
}

fn put_number(out: &mut Vec<u8>, name: &str, number: u64) {
    put(out, name, itoa::Buffer::new().format(number));
}

fn put_or_null(out: &mut Vec<u8>, name: &str, number: Option<u64>) {
    match number {
        Some(number) => put_number(out, name, number),
        None => put(out, name, "null"),
    }
}

/// A name, and a string that may need escaping.
fn put_text(out: &mut Vec<u8>, name: &str, text: &str) {
    out.extend_from_slice(name.as_bytes());
    // Cannot fail: every string can be written as JSON, and a vector grows.
    let _ = serde_json::to_writer(out, text);
}

const fn flag(flag: bool) -> &'static str {
    if flag { "true" } else { "false" }
}

const fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Allow => "allow",
        Outcome::Delay(_) => "delay",
        Outcome::Deny(_) => "deny",
    }
}

/// Whole milliseconds, rounded up, so that a client that waits this long is not too early.
pub(super) fn millis(span: Span) -> u64 {
    span.as_nanos().div_ceil(1_000_000)
}

#[cfg(test)]
mod tests {
    //! What is written by hand, as types for the `OpenAPI` document. A field with `skip_serializing_if` is left out when it does not
    //! apply.

    #![allow(
        dead_code,
        reason = "only the schemas are used; tests/openapi.rs compares the answers with them"
    )]

    use super::{AlgorithmName, Cow, JsonSchema, MOST_PAIRS, Pairs};
    use schemars::{Schema, SchemaGenerator, json_schema};

    impl JsonSchema for Pairs<'_> {
        fn schema_name() -> Cow<'static, str> {
            "Attributes".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({
                "type": "object",
                "description": "`ip`, `method` and `path` have a fixed meaning; all other names are free. An empty value is the same as an absent attribute.",
                "maxProperties": MOST_PAIRS,
                "properties": {
                    "ip": { "type": "string", "examples": ["203.0.113.7"] },
                    "method": { "type": "string", "examples": ["POST"] },
                    "path": { "type": "string", "examples": ["/urls"] },
                    "user": { "type": "string" },
                    "tier": { "type": "string" },
                },
                "additionalProperties": { "type": "string", "maxLength": 8_192 },
            })
        }
    }

    /// The answer to a request.
    #[derive(JsonSchema)]
    #[schemars(rename = "Verdict", deny_unknown_fields)]
    pub(crate) struct VerdictBody {
        allowed: bool,
        outcome: Outcome,
        /// How long the caller must delay the request.
        delay_ms: u64,
        /// 0 if allowed; null if the request can never pass.
        retry_after_ms: Option<u64>,
        /// The request is over the limit, but within the extra room of a soft or elastic limit.
        over: bool,
        decided_by: DecidedBy,
        policy_version: u64,
        /// A rule in shadow mode would have denied the request.
        #[schemars(skip_serializing_if = "absent", extend("const" = true))]
        shadow_deny: bool,
        /// The priority class of the request, unless it is the usual one, normal. The caller serves requests of higher classes first.
        #[schemars(skip_serializing_if = "absent")]
        priority: String,
        /// Flags that rules set, such as `challenge`.
        #[schemars(skip_serializing_if = "absent")]
        flags: Vec<String>,
        /// The receipt for /v1/report.
        #[schemars(skip_serializing_if = "absent")]
        receipt: String,
        /// How long the request holds its permits of concurrency limits, unless they are returned or renewed by /v1/report; absent if
        /// there are none.
        #[schemars(skip_serializing_if = "absent")]
        lease_ms: u64,
        /// Why the path is unreadable, if the request is denied for that.
        #[schemars(skip_serializing_if = "absent")]
        detail: String,
        limits: Vec<Limit>,
    }

    #[derive(JsonSchema)]
    #[schemars(rename_all = "snake_case")]
    enum Outcome {
        Allow,
        Delay,
        Deny,
    }

    #[derive(JsonSchema)]
    #[schemars(rename_all = "snake_case")]
    enum DecidedBy {
        Store,
        Cache,
        Lease,
        Fallback,
        Policy,
    }

    /// What one limit says about the request.
    #[derive(JsonSchema)]
    #[schemars(deny_unknown_fields)]
    struct Limit {
        /// The name of the rule; empty for /v1/take.
        rule: String,
        limit: u64,
        /// The period; null for calendar windows and for concurrency limits.
        per_ms: Option<u64>,
        /// The calendar window.
        #[schemars(skip_serializing_if = "absent")]
        window: String,
        algorithm: LimitAlgorithm,
        outcome: Outcome,
        remaining: u64,
        reset_ms: Option<u64>,
        retry_after_ms: Option<u64>,
        shadow: bool,
        /// Of soft and elastic limits: how much of the limit is in use.
        #[schemars(skip_serializing_if = "absent", range(max = 100))]
        used_percent: u64,
        /// Of elastic limits: how much the limit allows at the moment, in per cent of its amount.
        #[schemars(skip_serializing_if = "absent", range(min = 100, max = 1_000))]
        elastic_percent: u64,
        /// The request exceeds this limit, and passes because of its headroom.
        #[schemars(skip_serializing_if = "absent", extend("const" = true))]
        over: bool,
    }

    #[derive(JsonSchema)]
    #[schemars(untagged)]
    enum LimitAlgorithm {
        Rate(AlgorithmName),
        Concurrent(Concurrent),
    }

    #[derive(JsonSchema)]
    #[schemars(rename_all = "snake_case", inline)]
    enum Concurrent {
        Concurrent,
    }

    /// The answer to a report of an outcome or a cost.
    #[derive(JsonSchema)]
    #[schemars(deny_unknown_fields)]
    pub(crate) struct Settled {
        #[schemars(extend("const" = "done"))]
        settled: String,
    }

    /// The answer to a renewal.
    #[derive(JsonSchema)]
    #[schemars(deny_unknown_fields)]
    pub(crate) struct Renewed {
        /// The receipt that takes the place of the old one.
        receipt: String,
        lease_ms: u64,
    }

    /// The result of one report of a list.
    #[derive(JsonSchema)]
    #[schemars(deny_unknown_fields)]
    pub(crate) struct ReportResult {
        status: u16,
        detail: String,
        /// The new receipt, if permits were renewed.
        #[schemars(skip_serializing_if = "absent")]
        receipt: String,
        #[schemars(skip_serializing_if = "absent")]
        lease_ms: u64,
    }

    /// Why a client is refused, as problem details (RFC 9457).
    #[derive(JsonSchema)]
    pub(crate) struct Refusal {
        #[schemars(skip_serializing_if = "absent")]
        r#type: String,
        title: String,
        status: u16,
        detail: String,
        #[schemars(skip_serializing_if = "absent", rename = "violated-policies")]
        violated: Vec<String>,
    }

    /// An entry of a list that could not be decided, such as one with more than 16 limits; the other entries are decided.
    #[derive(JsonSchema)]
    #[schemars(deny_unknown_fields)]
    pub(crate) struct Undecided {
        #[schemars(extend("const" = false))]
        allowed: bool,
        title: String,
        status: u16,
        detail: String,
    }
}
