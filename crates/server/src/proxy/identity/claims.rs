//! The claims of a token that was verified, and the reasons why a token is not valid.

use serde_json::{Map, Value};

/// The claims of a verified token: those that can be attributes, and when it is valid.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Claims {
    /// `exp`, in seconds since the epoch.
    expires: u64,
    /// `nbf`, or 0.
    begins: u64,
    /// Claims that are texts, whole numbers, `true` or `false`. `None`: another value.
    values: Vec<(Box<str>, Option<Box<str>>)>,
}

/// Why a token is not valid. The client sees these texts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TokenError {
    #[error("the request has more than one Authorization field")]
    Repeated,
    #[error("it is not a signed JSON Web Token")]
    Malformed,
    #[error("it has more than 8 KiB")]
    TooLong,
    #[error("its header names extensions (`crit`) that are not supported")]
    Critical,
    #[error("no key has its key id (`kid`) and its algorithm")]
    UnknownKey,
    #[error("its signature is wrong")]
    Signature,
    #[error("it has no valid claim `{0}`")]
    Missing(String),
    #[error("it was issued by another issuer")]
    Issuer,
    #[error("it is meant for another audience")]
    Audience,
    #[error("it has expired")]
    Expired,
    #[error("it is not valid yet")]
    TooEarly,
    #[error("its claim `{0}` is neither a text nor a whole number")]
    Unusable(String),
    #[error("this server has no keys to verify it")]
    NoKeys,
}

/// How far the clock of the issuer may be from the clock of this server, in seconds.
const LEEWAY: u64 = 30;

impl Claims {
    pub(super) fn new(claims: Map<String, Value>) -> Result<Self, TokenError> {
        let expires = seconds(claims.get("exp")).ok_or(TokenError::Missing("exp".to_owned()))?;
        let begins = match claims.get("nbf") {
            None => 0,
            begins => seconds(begins).ok_or(TokenError::Missing("nbf".to_owned()))?,
        };
        let values = claims.into_iter().filter(|(_, value)| !value.is_null());
        let values = values.map(|(name, value)| (name.into(), text(value))).collect();
        Ok(Self { expires, begins, values })
    }

    /// A claim as text; `None` if the token does not have it.
    pub(super) fn get(&self, name: &str) -> Result<Option<&str>, TokenError> {
        match self.values.iter().find(|(known, _)| **known == *name) {
            None => Ok(None),
            Some((_, Some(value))) => Ok(Some(value)),
            Some((_, None)) => Err(TokenError::Unusable(name.to_owned())),
        }
    }

    /// Checks `exp` and `nbf`.
    pub(super) fn are_valid_at(&self, now: u64) -> Result<(), TokenError> {
        if now >= self.expires.saturating_add(LEEWAY) {
            return Err(TokenError::Expired);
        }
        if self.begins > now.saturating_add(LEEWAY) {
            return Err(TokenError::TooEarly);
        }
        Ok(())
    }
}

/// A number of seconds. Some issuers write fractions, which are dropped.
fn seconds(value: Option<&Value>) -> Option<u64> {
    let Value::Number(number) = value? else { return None };
    number.as_u64().or_else(|| number.to_string().split('.').next()?.parse().ok())
}

/// A value that can be an attribute.
fn text(value: Value) -> Option<Box<str>> {
    match value {
        Value::String(text) => Some(text.into()),
        Value::Number(number) if number.is_i64() || number.is_u64() => {
            Some(number.to_string().into())
        }
        Value::Bool(flag) => Some(flag.to_string().into()),
        Value::Number(_) | Value::Array(_) | Value::Object(_) | Value::Null => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claims(value: Value) -> Result<Claims, TokenError> {
        let Value::Object(map) = value else { panic!("{value}") };
        Claims::new(map)
    }

    #[test]
    fn only_texts_and_whole_numbers_become_attributes() {
        let claims = claims(json!({
            "exp": 100, "sub": "alice", "id": -7, "big": u64::MAX, "admin": true,
            "none": null, "part": 0.5, "list": ["a"], "map": {},
        }))
        .unwrap();
        for (name, expected) in [
            ("sub", Ok(Some("alice"))),
            ("id", Ok(Some("-7"))),
            ("big", Ok(Some("18446744073709551615"))),
            ("admin", Ok(Some("true"))),
            ("none", Ok(None)),
            ("absent", Ok(None)),
            ("part", Err(TokenError::Unusable("part".to_owned()))),
            ("list", Err(TokenError::Unusable("list".to_owned()))),
            ("map", Err(TokenError::Unusable("map".to_owned()))),
        ] {
            assert_eq!(claims.get(name), expected, "{name}");
        }
    }

    #[test]
    fn a_token_is_valid_from_nbf_to_exp_with_half_a_minute_of_leeway() {
        let known = claims(json!({ "exp": 1000.9, "nbf": 500 })).unwrap();
        for (now, expected) in [
            (469, Err(TokenError::TooEarly)),
            (470, Ok(())),
            (1029, Ok(())),
            (1030, Err(TokenError::Expired)),
            (u64::MAX, Err(TokenError::Expired)),
        ] {
            assert_eq!(known.are_valid_at(now), expected, "{now}");
        }
        assert_eq!(claims(json!({ "exp": u64::MAX })).unwrap().are_valid_at(u64::MAX - 1), Ok(()));
        for (name, wrong) in [
            ("exp", json!({})),
            ("exp", json!({ "exp": "tomorrow" })),
            ("exp", json!({ "exp": -5 })),
            ("exp", json!({ "exp": 1e300 })),
            ("nbf", json!({ "exp": 5, "nbf": null })),
        ] {
            assert_eq!(claims(wrong), Err(TokenError::Missing(name.to_owned())));
        }
    }
}
