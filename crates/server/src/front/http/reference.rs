//! `/json` and `/healthcheck`, as Envoy's reference rate limit service serves them on its HTTP port.
//!
//! ```text
//!   POST /json {"domain":"site","descriptors":[{"entries":[{"key":"user","value":"alice"}]}]}
//!     200 {"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{…},"limitRemaining":2,"durationUntilReset":"59s"}]}
//!     429 {"overallCode":"OVER_LIMIT",…}        also for a request that cannot be decided
//!     400                                       for a body that is not a valid request
//! ```
//!
//! The messages are those of gRPC in the JSON encoding of protobuf: names in camel case, or as in the `.proto` file; 0 and empty
//! values are left out of a response; numbers may be strings.

use super::handler::HttpHandler;
use crate::backend::Backend;
use crate::bounds;
use crate::net::PIECE;
use crate::web::Answer;
use http::StatusCode;
use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::fmt;
use tidegate::{Descriptor, DescriptorCall, DescriptorStatus, DescriptorVerdict, Span};
use tidegate_policy::Unit;

/// `RateLimitRequest`
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JsonRequest<'b> {
    #[serde(borrow)]
    domain: Cow<'b, str>,
    #[serde(borrow)]
    descriptors: Vec<JsonDescriptor<'b>>,
    #[serde(default, alias = "hits_addend", deserialize_with = "number_or_string")]
    hits_addend: Option<u64>,
}

/// `RateLimitDescriptor`
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JsonDescriptor<'b> {
    #[serde(borrow, default)]
    entries: Vec<Entry<'b>>,
    limit: Option<OwnLimit>,
    #[serde(default, alias = "hits_addend", deserialize_with = "number_or_string")]
    hits_addend: Option<u64>,
    #[serde(default, alias = "is_negative_hits")]
    is_negative_hits: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry<'b> {
    #[serde(borrow)]
    key: Cow<'b, str>,
    #[serde(borrow, default)]
    value: Cow<'b, str>,
}

/// `RateLimitOverride`
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct OwnLimit {
    #[serde(default, alias = "requests_per_unit", deserialize_with = "number_or_string")]
    requests_per_unit: Option<u64>,
    unit: UnitName,
}

/// A unit by its name, or by its number in the protocol.
#[derive(Deserialize)]
#[serde(untagged)]
enum UnitName {
    Name(String),
    Number(u64),
}

const PLAIN: &str = "text/plain; charset=utf-8";

impl<S: Backend> HttpHandler<S> {
    /// `GET /healthcheck`: whether clients should send requests here.
    pub(super) fn reference_healthcheck(&self) -> Answer {
        match self.health.is_serving() {
            true => Answer::fixed(PLAIN, "OK"),
            false => Answer::new(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, ""),
        }
    }

    /// `POST /json`
    pub(super) async fn reference_json(&self, body: &[u8]) -> Answer {
        if body.len() > bounds::SHORT_MESSAGE {
            // A long request is decided in one piece, so it waits for its turn once.
            self.turns.pass(PIECE).await;
        }
        let request: JsonRequest<'_> = match serde_json::from_slice(body) {
            Ok(request) => request,
            Err(error) => return bad(&error.to_string()),
        };
        let (hits, descriptors) = match request.read() {
            Ok(read) => read,
            Err(detail) => return bad(detail),
        };
        let entries = descriptors.iter().map(|descriptor| descriptor.entries.len()).max();
        if descriptors.len() > bounds::DESCRIPTORS || entries.unwrap_or(0) > bounds::ENTRIES {
            return self.undecided(&"too many descriptors or entries");
        }
        let call = DescriptorCall {
            domain: &request.domain,
            descriptors: &descriptors,
            hits,
            timeout: None,
            max_wait: Span::ZERO,
        };
        match self.json.check_descriptors(&call).await {
            Ok(answer) => reference_answer(&answer),
            Err(error) => self.undecided(&error),
        }
    }

    fn undecided(&self, why: &dyn fmt::Display) -> Answer {
        self.json.undecided(why);
        Answer::json(status_of(true), &json!({ "overallCode": code(true) }))
    }
}

fn reference_answer(answer: &DescriptorVerdict) -> Answer {
    let statuses: Vec<Value> = answer.statuses().map(|status| status_json(&status)).collect();
    let over = !answer.verdict.allowed();
    Answer::json(status_of(over), &json!({ "overallCode": code(over), "statuses": statuses }))
}

fn bad(detail: &str) -> Answer {
    Answer::problem(StatusCode::BAD_REQUEST, detail)
}

const fn code(over: bool) -> &'static str {
    if over { "OVER_LIMIT" } else { "OK" }
}

const fn status_of(over: bool) -> StatusCode {
    if over { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK }
}

/// `DescriptorStatus`
fn status_json(status: &DescriptorStatus<'_>) -> Value {
    let mut out = Map::new();
    out.insert("code".to_owned(), code(status.over).into());
    if let Some(limit) = &status.limit {
        let mut described = Map::new();
        described.insert("requestsPerUnit".to_owned(), limit.amount.min(u32::MAX.into()).into());
        if let Some(unit) = limit.unit {
            described.insert("unit".to_owned(), unit.name().to_uppercase().into());
        }
        if !limit.name.is_empty() {
            described.insert("name".to_owned(), limit.name.into());
        }
        out.insert("currentLimit".to_owned(), described.into());
    }
    if status.remaining > 0 {
        out.insert("limitRemaining".to_owned(), status.remaining.min(u32::MAX.into()).into());
    }
    if let Some(reset) = status.reset {
        out.insert("durationUntilReset".to_owned(), format!("{}s", reset.as_secs_ceil()).into());
    }
    out.into()
}

// === impl JsonRequest ===

impl JsonRequest<'_> {
    /// The hits and descriptors, or what is wrong with them.
    fn read(&self) -> Result<(u32, Vec<Descriptor<'_>>), &'static str> {
        if self.domain.is_empty() || self.descriptors.is_empty() {
            return Err("a request must have a `domain` and `descriptors`");
        }
        let hits = u32::try_from(self.hits_addend.unwrap_or(0))
            .map_err(|_| "`hitsAddend` of a request must be a number of 32 bits")?;
        let descriptors = self.descriptors.iter().map(JsonDescriptor::descriptor);
        Ok((hits, descriptors.collect::<Result<_, _>>()?))
    }
}

// === impl JsonDescriptor ===

impl JsonDescriptor<'_> {
    fn descriptor(&self) -> Result<Descriptor<'_>, &'static str> {
        if self.entries.iter().any(|entry| entry.key.is_empty()) {
            return Err("an entry must have a `key`");
        }
        let entries = self.entries.iter();
        let entries = entries.map(|entry| (&*entry.key, Cow::Borrowed(&*entry.value)));
        Ok(Descriptor {
            entries: entries.collect(),
            limit: self.limit.as_ref().map(OwnLimit::limit).transpose()?,
            hits: self.hits_addend,
            gives_back: self.is_negative_hits,
        })
    }
}

impl OwnLimit {
    fn limit(&self) -> Result<(u32, Unit), &'static str> {
        let unit = match &self.unit {
            UnitName::Name(name) => Unit::named(name),
            UnitName::Number(number) => Unit::numbered(*number),
        };
        let amount = u32::try_from(self.requests_per_unit.unwrap_or(0));
        match (amount, unit) {
            (Ok(amount), Some(unit)) => Ok((amount, unit)),
            _ => Err("a `limit` must have a `requestsPerUnit` of 32 bits and a `unit`"),
        }
    }
}

/// A whole number, or a string that holds one.
fn number_or_string<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum NumberOrString {
        Number(u64),
        Text(String),
        Null,
    }
    match NumberOrString::deserialize(deserializer)? {
        NumberOrString::Number(number) => Ok(Some(number)),
        NumberOrString::Text(text) => text.parse().map(Some).map_err(de::Error::custom),
        NumberOrString::Null => Ok(None),
    }
}
