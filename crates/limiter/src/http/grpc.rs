//! A denial as gRPC: `RESOURCE_EXHAUSTED`, with the details `RetryInfo` and `QuotaFailure` for clients that read them.
//!
//! ```text
//!   grpc-status: 8
//!   grpc-message: per-client allows 15 per second; try again in 1 s.
//!   grpc-retry-pushback-ms: 34
//!   grpc-status-details-bin: google.rpc.Status { code, message, details: [RetryInfo, QuotaFailure] }
//! ```

use super::fields::policy_name;
use super::problem::detail;
use crate::scheduler::Shed;
use crate::verdict::Verdict;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use tidegate_core::{Outcome, Retry};

const RESOURCE_EXHAUSTED: u64 = 8;
const UNAVAILABLE: u64 = 14;
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";
const QUOTA_FAILURE: &str = "type.googleapis.com/google.rpc.QuotaFailure";

/// The complete gRPC response to a denied call. It consists of headers only (a "trailers-only" response).
///
/// `RetryInfo` and `grpc-retry-pushback-ms` hold the exact time to wait. If the call can never pass, `RetryInfo` is absent
/// and the pushback is negative, which tells clients not to retry.
///
/// ```
/// # use tidegate::{Attributes, Check, Limiter, Policy};
/// # let policy = Policy::parse("{ version: 1, rules: [{ name: all, key: [], limits: [1/h] }] }")?;
/// # let limiter = Limiter::in_memory(policy)?;
/// # let request = Attributes::new();
/// # limiter.check_now(&Check::new(&request))?;
/// let refused = limiter.check_now(&Check::new(&request))?;
/// let answer = tidegate::http::grpc_refusal(&refused);
/// assert_eq!(answer.headers()["grpc-status"], "8"); // RESOURCE_EXHAUSTED
/// assert!(answer.headers()["grpc-message"].to_str()?.starts_with("all allows 1 per hour; try again in"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn grpc_refusal(verdict: &Verdict) -> Response<()> {
    let message = detail(verdict);
    let pushback = match verdict.outcome {
        Outcome::Deny(Retry::After(retry)) => retry.as_millis_ceil().to_string(),
        // A negative number means: do not retry.
        Outcome::Deny(Retry::Never) | Outcome::Allow | Outcome::Delay(_) => "-1".to_owned(),
    };
    let details = status(verdict, &message);
    trailers_only(RESOURCE_EXHAUSTED, &message, pushback, &details)
}

/// The complete gRPC response to a call that the [`Scheduler`](crate::Scheduler) sheds: `UNAVAILABLE`, with `RetryInfo`.
///
/// ```
/// use tidegate::{Shed, ShedReason, Span};
/// let shed = Shed { reason: ShedReason::QueueFull, retry_after: Span::from_millis(2_300) };
/// let answer = tidegate::http::grpc_overload(&shed);
/// assert_eq!(answer.headers()["grpc-status"], "14"); // UNAVAILABLE
/// assert_eq!(answer.headers()["grpc-retry-pushback-ms"], "2300");
/// ```
#[must_use]
pub fn grpc_overload(shed: &Shed) -> Response<()> {
    let message = shed.to_string();
    let mut details = number(1, UNAVAILABLE);
    details.extend(field(2, message.as_bytes()));
    details.extend(field(3, &any(RETRY_INFO, &field(1, &duration(shed.retry_after.as_nanos())))));
    let pushback = shed.retry_after.as_millis_ceil().to_string();
    trailers_only(UNAVAILABLE, &message, pushback, &details)
}

/// A response of headers only. `details` is a `google.rpc.Status`.
fn trailers_only(code: u64, message: &str, pushback: String, details: &[u8]) -> Response<()> {
    let details = data_encoding::BASE64_NOPAD.encode(details);
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    // A denial is valid only for the moment, but its status is 200, which caches may store.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    for (name, value) in [
        ("grpc-status", code.to_string()),
        ("grpc-message", percent_encoded(message)),
        ("grpc-retry-pushback-ms", pushback),
        ("grpc-status-details-bin", details),
    ] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    response
}

/// Percent-encoding of gRPC messages: printable ASCII stays, except the percent sign; everything else becomes `%XX`.
fn percent_encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b' '..=b'~' if byte != b'%' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

// === protobuf: only five messages, so encoded by hand; the tests decode them with prost ===

/// `google.rpc.Status { int32 code = 1; string message = 2; repeated Any details = 3; }`
fn status(verdict: &Verdict, message: &str) -> Vec<u8> {
    let mut bytes = number(1, RESOURCE_EXHAUSTED);
    bytes.extend(field(2, message.as_bytes()));
    if let Outcome::Deny(Retry::After(retry)) = verdict.outcome {
        bytes.extend(field(3, &any(RETRY_INFO, &field(1, &duration(retry.as_nanos())))));
    }
    bytes.extend(field(3, &any(QUOTA_FAILURE, &violations(verdict))));
    bytes
}

/// `QuotaFailure { repeated Violation violations = 1; }`, `Violation { string subject = 1; … = 2; }`
fn violations(verdict: &Verdict) -> Vec<u8> {
    let violation = |name: String| {
        let text = format!("limit {name} is reached");
        field(1, &[field(1, name.as_bytes()), field(2, text.as_bytes())].concat())
    };
    verdict.refusing().flat_map(|limit| violation(policy_name(verdict, &limit))).collect()
}

/// `google.protobuf.Duration { int64 seconds = 1; int32 nanos = 2; }`
fn duration(nanos: u64) -> Vec<u8> {
    [number(1, nanos / 1_000_000_000), number(2, nanos % 1_000_000_000)].concat()
}

/// `google.protobuf.Any { string type_url = 1; bytes value = 2; }`
fn any(kind: &str, value: &[u8]) -> Vec<u8> {
    [field(1, kind.as_bytes()), field(2, value)].concat()
}

/// A field of wire type 0: a number.
fn number(tag: u64, value: u64) -> Vec<u8> {
    [varint(tag << 3), varint(value)].concat()
}

/// A field of wire type 2, with a length: text, bytes, a message.
fn field(tag: u64, value: &[u8]) -> Vec<u8> {
    let length = u64::try_from(value.len()).unwrap_or(u64::MAX);
    [varint((tag << 3) | 2), varint(length), value.to_vec()].concat()
}

fn varint(number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    tidegate_core::varint::encode(&mut bytes, number);
    bytes
}
