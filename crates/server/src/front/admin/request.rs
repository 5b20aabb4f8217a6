//! Reads the parts of an operator's request: body, attributes, query and the `If-Match` header.

use super::wire::AttributesBody;
use crate::front::http::read_json;
use crate::web::{Answer, Call};
use http::StatusCode;
use serde::de::DeserializeOwned;
use tidegate::Attributes;

/// Reads a JSON body.
pub(super) fn read<T: DeserializeOwned>(call: &Call<'_>) -> Result<T, Answer> {
    read_json(call.body).map_err(|error| error.answer())
}

/// Checks the attributes of a body.
pub(super) fn attributes(AttributesBody(pairs): &AttributesBody) -> Result<Attributes<'_>, Answer> {
    let mut attributes = Attributes::new();
    for (name, value) in pairs {
        attributes.set(name.as_str(), value.as_str()).map_err(|error| {
            let pointer = format!("/attributes/{name}");
            Answer::problem_at(StatusCode::BAD_REQUEST, &pointer, &error.to_string())
        })?;
    }
    Ok(attributes)
}

/// Whether the media type of a body is that of a policy: YAML, or JSON, which is a subset of it.
pub(super) fn accepts_policy(call: &Call<'_>) -> bool {
    let kind = call.headers.one("content-type").unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    ["application/yaml", "application/x-yaml", "text/yaml", "application/json"]
        .contains(&kind.as_str())
}

/// Reads the flags of a query, all of which default to `false`. An unknown or misspelled flag is an error and not ignored:
/// the operator may have meant it to hold a change back, as `dry_run` does.
pub(super) fn flags<const N: usize>(
    call: &Call<'_>,
    names: [&str; N],
) -> Result<[bool; N], Answer> {
    let mut found = [None; N];
    for pair in call.query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let flag = names.iter().position(|known| *known == name).and_then(|at| found.get_mut(at));
        match (flag, value) {
            (Some(flag @ None), "true") => *flag = Some(true),
            (Some(flag @ None), "false") => *flag = Some(false),
            _ => {
                let names = names.join("` and `");
                return Err(bad(&format!(
                    "the query may hold only `{names}`, each once, as `true` or `false`"
                )));
            }
        }
    }
    Ok(found.map(|flag| flag == Some(true)))
}

/// The version that `If-Match` names: the change is made only if that version is still the current one.
pub(super) fn expected_version(call: &Call<'_>) -> Result<Option<u64>, Answer> {
    let mut tags = call.headers.all("if-match");
    let (tag, more) = (tags.next(), tags.next());
    let Some(tag) = tag else { return Ok(None) };
    let text = str::from_utf8(tag).unwrap_or_default().trim();
    let version = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    match (version.and_then(|version| version.parse().ok()), more) {
        (Some(version), None) => Ok(Some(version)),
        _ => Err(bad("`if-match` must be one `etag` of /admin/v1/control, such as `\"7\"`")),
    }
}

pub(super) fn bad(detail: &str) -> Answer {
    Answer::problem(StatusCode::BAD_REQUEST, detail)
}

pub(super) fn unprocessable(detail: &str) -> Answer {
    Answer::problem(StatusCode::UNPROCESSABLE_ENTITY, detail)
}
