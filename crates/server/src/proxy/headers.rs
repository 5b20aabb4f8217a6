//! Header rules of the proxy: what may pass from the client to the upstream server, and back.
//!
//! ```text
//!   the client sends                     the upstream server gets
//!   Host: shop.example                   host: shop.example
//!   Connection: keep-alive, X-Debug      (removed: it is about the connection to us)
//!   X-Debug: 1                           (removed: `Connection` names it)
//!   X-Forwarded-For: 6.6.6.6             x-forwarded-for: 203.0.113.7      (an untrusted client)
//!   Tidegate-Priority: high              (removed: only this server writes `tidegate-*`)
//! ```
//!
//! A message is checked first ([`check_request`], [`check_response`], [`host`]): a message that two servers could read in two
//! ways is refused, because that is how requests are smuggled. Then it is rewritten ([`to_upstream`], [`to_client`]).
//!
//! **Hop-by-hop fields** (RFC 9110, section 7.6.1) concern one connection and are removed: a fixed list, and the fields that
//! `Connection` names. A client could abuse `Connection` to remove a field that protects the upstream server, so it cannot
//! name [protected](is_protected) fields.
//!
//! CGI and WSGI programs cannot tell `X_Forwarded_For` from `X-Forwarded-For`. So every field that is removed here is also
//! removed if it is spelled with underscores, and so are `Content_Length` and `X_HTTP_Method_Override`, which the rules do not see.
//!
//! These are pure functions. They do not read bodies and do not choose the `Host` of the upstream request; the caller does.

mod forwarding;
mod framing;
mod request_id;
mod upgrade;

pub(crate) use forwarding::Forwarding;
pub(crate) use framing::{check_request, check_response, host};
pub(crate) use request_id::RequestIds;
pub(crate) use upgrade::{accepts_upgrade, is_upgrade};

use http::header::{CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HeaderName, TE, UPGRADE};
use http::{HeaderMap, HeaderValue};
use std::borrow::Cow;
use std::collections::HashSet;
use std::mem;
use tidegate_policy::METHOD_OVERRIDES;

/// How the upstream server says that a request went, in its `tidegate-outcome` field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamOutcome {
    Success,
    Failure,
}

/// Response header in which the upstream server reports the outcome of a request.
const OUTCOME: HeaderName = HeaderName::from_static("tidegate-outcome");

/// Fields that [`to_upstream`] adds at most, so that the map does not have to grow.
const MOST_ADDED: usize = 8;

/// Rewrites the header of a request for the upstream server.
///
/// `Expect: 100-continue` is removed, because the proxy has told the client to continue. Other expectations are forwarded: the
/// upstream server knows whether it meets them. `upgrade` is the protocol that [`is_upgrade`] found, if the caller is able to switch. The caller adds its own `tidegate-*`
/// fields afterwards, because this function removes all of them.
pub(crate) fn to_upstream(
    headers: &mut HeaderMap,
    forwarding: &Forwarding<'_>,
    upgrade: Option<&HeaderValue>,
) {
    let named = named_by_connection(headers);
    let wants_trailers =
        tokens(headers, &TE).any(|coding| coding.eq_ignore_ascii_case(b"trailers"));
    let continues = expects_only_continue(headers);
    retain(headers, MOST_ADDED, |name| {
        let hyphened = with_hyphens(name);
        let dropped = is_hop_by_hop(&hyphened)
            || is_ours(&hyphened)
            || named.contains(name)
            || forwarding.is_forged(name, &hyphened)
            || (*hyphened != *name.as_str() && is_read_by_us(&hyphened))
            || (continues && *name == EXPECT);
        !dropped
    });
    if wants_trailers {
        // RFC 9110 also asks for `Connection: te`. hyper would then remove both from an HTTP/2 request, and HTTP/1 servers
        // do not look for it.
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    write_plainly(headers);
    forwarding.write(headers);
    switch(headers, upgrade);
}

/// Writes a length without leading zeros, which some programs read as octal, and cookies in one field: an HTTP/2 client may send
/// each of them in a field of its own, but an HTTP/1 server may read the first field only (RFC 9113, 8.2.3).
fn write_plainly(headers: &mut HeaderMap) {
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    let length = length.filter(|length| length.starts_with('0'));
    if let Some(Ok(length)) = length.map(str::parse::<u64>) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    if headers.get_all(COOKIE).iter().nth(1).is_some() {
        let cookies: Vec<_> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
        if let Ok(joined) = HeaderValue::try_from(cookies.join(&b"; "[..])) {
            headers.insert(COOKIE, joined);
        }
    }
}

/// Removes from the trailers of a request what must not be in trailers, and what this server would have removed from the header, set
/// there or read there: a server may treat trailers as header fields. `set` has fields that this request got.
pub(crate) fn trailers_to_upstream(trailers: &mut HeaderMap, set: &[HeaderName]) {
    remove_spellings(trailers, set);
    retain(trailers, 0, |name| {
        let hyphened = with_hyphens(name);
        let is_read = hyphened == EXPECT.as_str() || METHOD_OVERRIDES.contains(&&*hyphened);
        is_trailer(&hyphened) && !forwarding::is_provenance(&hyphened) && !is_read
    });
}

/// Removes from the trailers of a response what must not be in trailers, and the fields in which the header says what is left of the
/// limits.
pub(crate) fn trailers_to_client(trailers: &mut HeaderMap) {
    retain(trailers, 0, |name| {
        let hyphened = with_hyphens(name);
        let is_set = hyphened.starts_with("x-ratelimit-")
            || matches!(
                &*hyphened,
                "access-control-expose-headers"
                    | "date"
                    | "ratelimit"
                    | "ratelimit-policy"
                    | "retry-after"
            );
        is_trailer(&hyphened) && !is_set
    });
}

/// Rewrites the header of a response for the client, and returns the outcome that the upstream server reported.
///
/// `upgrade` is the protocol of a `101 Switching Protocols` response that [`accepts_upgrade`] has checked.
pub(crate) fn to_client(
    headers: &mut HeaderMap,
    upgrade: Option<&HeaderValue>,
) -> Option<UpstreamOutcome> {
    let outcome = outcome(headers);
    let named = named_by_connection(headers);
    retain(headers, 0, |name| {
        let hyphened = with_hyphens(name);
        !(is_hop_by_hop(&hyphened) || is_ours(&hyphened) || named.contains(name))
    });
    // `check_response` has made sure that all lengths are equal, and a client may refuse repeated ones.
    if headers.get_all(CONTENT_LENGTH).iter().nth(1).is_some()
        && let Some(length) = headers.get(CONTENT_LENGTH).cloned()
    {
        headers.insert(CONTENT_LENGTH, length);
    }
    switch(headers, upgrade);
    outcome
}

/// Keeps only these fields, and those that say where a request came from.
pub(crate) fn keep_named(headers: &mut HeaderMap, names: &[HeaderName]) {
    retain(headers, MOST_ADDED, |name| {
        names.contains(name) || forwarding::is_provenance(name.as_str())
    });
}

/// Removes fields, also if they are spelled with underscores.
pub(crate) fn remove_spellings(headers: &mut HeaderMap, names: &[HeaderName]) {
    retain(headers, names.len(), |name| {
        let hyphened = with_hyphens(name);
        !names.iter().any(|removed| *with_hyphens(removed) == *hyphened)
    });
}

/// Names the protocol to switch to. `Connection` and `Upgrade` were removed with the other hop-by-hop fields.
fn switch(headers: &mut HeaderMap, upgrade: Option<&HeaderValue>) {
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol.clone());
    }
}

/// The reported outcome. It counts only if it is given once and spelled exactly.
fn outcome(headers: &HeaderMap) -> Option<UpstreamOutcome> {
    match only(headers, &OUTCOME)?.as_bytes() {
        b"success" => Some(UpstreamOutcome::Success),
        b"failure" => Some(UpstreamOutcome::Failure),
        _ => None,
    }
}

fn expects_only_continue(headers: &HeaderMap) -> bool {
    tokens(headers, &EXPECT).all(|expected| expected.eq_ignore_ascii_case(b"100-continue"))
}

/// Fields that concern one connection only.
///
/// `Trailer` is not one of them: hyper sends only those trailers that it names.
///
/// The `Proxy-*` fields are a dialogue with a forward proxy. This server is a gateway: for the client it is the origin server.
/// So credentials for a forward proxy must not reach the upstream server, and the upstream server must not ask the client
/// for them.
fn is_hop_by_hop(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "http2-settings"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authentication-info"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Fields that this server reads, but not if they are spelled with underscores.
fn is_read_by_us(name: &str) -> bool {
    name == CONTENT_LENGTH.as_str() || METHOD_OVERRIDES.contains(&name)
}

/// Fields with which this server and the upstream server talk to each other. Clients neither send nor see them.
fn is_ours(name: &str) -> bool {
    name.starts_with("tidegate-")
}

/// Whether a field may be a trailer. Fields that frame or route a message, or say who sent it, have no meaning behind it
/// (RFC 9110, 6.5.1).
fn is_trailer(name: &str) -> bool {
    let leading = matches!(
        name,
        "authorization"
            | "content-encoding"
            | "content-length"
            | "content-range"
            | "content-type"
            | "cookie"
            | "host"
            | "set-cookie"
            | "trailer"
    );
    !leading && !is_hop_by_hop(name) && !is_ours(name)
}

/// Fields that `Connection` cannot remove: they say where a message ends, what it contains, whom it is for and who sent it.
/// RFC 9110 forbids senders to name such fields, so no well-behaved sender is affected.
fn is_protected(name: &str) -> bool {
    let listed = matches!(
        name,
        "authorization"
            | "cache-control"
            | "content-encoding"
            | "content-length"
            | "content-type"
            | "cookie"
            | "expect"
            | "host"
            | "origin"
            | "set-cookie"
            | "traceparent"
            | "tracestate"
            | "trailer"
    );
    listed || forwarding::is_provenance(name)
}

/// The fields of this message that `Connection` names and may remove. A name that is not valid removes nothing.
///
/// A `HashSet` keeps the work linear in the size of the header: an attacker can send thousands of names.
fn named_by_connection(headers: &HeaderMap) -> HashSet<HeaderName> {
    tokens(headers, &CONNECTION)
        .filter_map(|token| str::from_utf8(token).ok())
        .filter(|token| headers.contains_key(*token))
        .filter_map(|token| HeaderName::from_bytes(token.as_bytes()).ok())
        .filter(|name| !is_protected(&with_hyphens(name)))
        .collect()
}

/// Keeps the fields for which `keep` returns true, in their order, and leaves room for `added` more. (`HeaderMap::remove` would
/// move the last field to the place of the removed one.)
fn retain(headers: &mut HeaderMap, added: usize, keep: impl Fn(&HeaderName) -> bool) {
    if headers.keys().all(&keep) {
        return;
    }
    let mut kept = HeaderMap::with_capacity(headers.keys_len().saturating_add(added));
    let mut current = None;
    for (name, value) in mem::take(headers) {
        // The iterator gives the name only with the first value of a field.
        if name.is_some() {
            current = name.filter(&keep);
        }
        if let Some(name) = &current {
            kept.append(name.clone(), value);
        }
    }
    *headers = kept;
}

/// The elements of a comma-separated list, from all fields of this name. Empty elements are skipped.
fn tokens<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'h [u8]> + use<'h> {
    let lines = headers.get_all(name).into_iter();
    let tokens = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    tokens.map(<[u8]>::trim_ascii).filter(|token| !token.is_empty())
}

/// The value of a field that is given exactly once.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h HeaderValue> {
    let mut values = headers.get_all(name).into_iter();
    values.next().filter(|_| values.next().is_none())
}

/// The name of a field as a CGI program sees it: `_` and `-` are the same.
fn with_hyphens(name: &HeaderName) -> Cow<'_, str> {
    let name = name.as_str();
    if name.contains('_') { Cow::Owned(name.replace('_', "-")) } else { Cow::Borrowed(name) }
}

#[cfg(test)]
mod tests;
