//! What is known about a change besides what it changes: until when it holds, why, by whom, and since when.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A note on an entry of the control document. Entries of older versions have none. Times are milliseconds of Unix time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ChangeNote {
    /// When the entry stops to have an effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expires_at_ms: Option<u64>,
    /// Why the operator made the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// The name of the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<String>,
    /// When the change was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) since_ms: Option<u64>,
}

/// Bytes of a reason.
const LONGEST_REASON: usize = 256;
/// The longest time until a change expires, in seconds: ten years. A larger number was probably meant as milliseconds.
const MOST_SECONDS: u64 = 10 * 365 * 86_400;

impl ChangeNote {
    /// Whether the time of the entry is over.
    pub(crate) fn has_expired(&self, now_ms: u64) -> bool {
        self.expires_at_ms.is_some_and(|end| end <= now_ms)
    }

    /// The part of the note that belongs to `details` of the audit log: when the change expires. The rest is elsewhere in the line.
    pub(crate) fn for_audit(&self) -> Self {
        Self { expires_at_ms: self.expires_at_ms, ..Self::default() }
    }
}

/// When a change expires, as operators write it: seconds from now, or a time such as `2026-12-24T18:00:00Z`.
pub(crate) fn expiry_ms(value: &Value, now_ms: u64) -> Result<u64, String> {
    let at = match value {
        Value::Number(seconds) => {
            let seconds = seconds.as_u64().filter(|seconds| (1..=MOST_SECONDS).contains(seconds));
            seconds.map(|seconds| now_ms.saturating_add(seconds.saturating_mul(1_000)))
        }
        Value::String(text) => text
            .parse::<jiff::Timestamp>()
            .ok()
            .and_then(|time| u64::try_from(time.as_millisecond()).ok()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    let latest = now_ms.saturating_add(MOST_SECONDS.saturating_mul(1_000));
    match at {
        Some(at) if at <= now_ms => Err("this time is in the past".to_owned()),
        Some(at) if at <= latest => Ok(at),
        Some(_) | None => Err(
            "write seconds from now, such as `3600`, or a time, such as `\"2026-12-24T18:00:00Z\"`; at most ten years from now"
                .to_owned(),
        ),
    }
}

/// Checks the reason that an operator gives. An empty one is none.
pub(crate) fn reason(text: Option<String>) -> Result<Option<String>, String> {
    let text = text.filter(|text| !text.is_empty());
    if text.as_ref().is_some_and(|text| text.len() > LONGEST_REASON) {
        return Err(format!("a reason has at most {LONGEST_REASON} bytes"));
    }
    if text.as_ref().is_some_and(|text| text.chars().any(char::is_control)) {
        return Err("a reason is one line of text, without control characters".to_owned());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: u64 = 1_800_000_000_000;

    #[test]
    fn an_expiry_is_seconds_from_now_or_a_time() {
        assert_eq!(expiry_ms(&json!(3_600), NOW), Ok(NOW + 3_600_000));
        assert_eq!(expiry_ms(&json!("2027-01-15T08:00:01Z"), NOW), Ok(NOW + 1_000));
        assert_eq!(expiry_ms(&json!("2027-01-15T09:00:01+01:00"), NOW), Ok(NOW + 1_000));
        assert_eq!(
            expiry_ms(&json!("2027-01-15T08:00:00Z"), NOW).unwrap_err(),
            "this time is in the past"
        );
        for wrong in [
            json!(0),
            json!(-1),
            json!(1.5),
            json!(NOW),
            json!("tomorrow"),
            json!("1h"),
            json!(null),
            json!("9999-01-01T00:00:00Z"),
        ] {
            assert!(expiry_ms(&wrong, NOW).unwrap_err().contains("seconds from now"), "{wrong}");
        }
    }

    #[test]
    fn a_reason_is_one_short_line() {
        let given = |text: &str| reason(Some(text.to_owned()));
        assert_eq!((reason(None), given("")), (Ok(None), Ok(None)));
        assert_eq!(given("Größe, €"), Ok(Some("Größe, €".to_owned())));
        assert!(given(&"x".repeat(256)).is_ok() && given(&"x".repeat(257)).is_err());
        assert!(given("two\nlines").is_err() && given("\u{1b}[31m").is_err());
    }
}
