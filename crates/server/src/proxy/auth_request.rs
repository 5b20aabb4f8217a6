//! The auth sub-request: another server says whether a request may pass, and who sent it.
//!
//! ```text
//!   head ──► limit by address ──► GET to the auth server ──► 2xx: its fields are attributes ──► limits ──► upstream server
//!              │ 429                  │ 4xx                    │ anything else
//!              └ nothing is asked     └ answered as it is,     └ 502, or on without attributes (`on_error: allow`)
//!                                       after the limits
//! ```
//!
//! The limit by address is taken before the auth server is asked, because otherwise a client could flood it with requests that
//! the policy would refuse. The limits of the policy come after it, because they may count by what the auth server says. As with
//! tokens, a request that it refuses takes from the limits that do not depend on its answer.
//!
//! A client must not be able to make the auth server fail, because `on_error: allow` would let it pass. So every 4xx is a refusal, and
//! a request whose fields the auth server may be unable to read is refused without asking (431).

use super::gate::{ArrivingRequest, Proxy, unreadable};
use super::headers::{self, Forwarding};
use super::observe::RequestRecord;
use super::request_body::RequestBody;
use super::routes::{AuthSpec, OnAuthError};
use super::upstream::{Pool, UpstreamBody, UpstreamError};
use crate::backend::Backend;
use crate::net::source;
use crate::web::Answer;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use std::net::IpAddr;
use std::rc::Rc;
use tokio::time::timeout;

/// What the auth server says about a request.
pub(super) enum AuthAnswer {
    /// The group has no auth server, or it did not answer and the request may pass without it.
    Nothing,
    /// The request may pass. These are the fields of the answer.
    Passed(HeaderMap),
    /// The client gets this answer.
    Refused(Answer),
}

/// Bytes of the body of a refusal, which is passed on.
const MOST_BODY: usize = 64 * 1024;
/// Bytes of the fields and the URI that the auth server gets. Common servers read at least this much: nginx and Apache 8 KiB, Node
/// 16 KiB.
const MOST_ASKED: usize = 8 * 1024;
/// Fields of the client's request that are about its body, or would make the auth server answer with something else.
const NOT_SENT: [HeaderName; 9] = [
    header::CONTENT_LENGTH,
    header::CONTENT_ENCODING,
    header::EXPECT,
    header::RANGE,
    header::IF_RANGE,
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_UNMODIFIED_SINCE,
];
const METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const TARGET: HeaderName = HeaderName::from_static("x-forwarded-uri");

impl AuthAnswer {
    /// A field of the answer, as the value of an attribute.
    pub(super) fn field(&self, name: &str) -> Result<Option<String>, Answer> {
        let Self::Passed(fields) = self else { return Ok(None) };
        let mut values = fields.get_all(name).iter();
        let Some(value) = values.next() else { return Ok(None) };
        let value = values.next().is_none().then_some(value).and_then(|one| one.to_str().ok());
        let text = format!("the auth server sent no valid `{name}`");
        let wrong = || Answer::problem(StatusCode::BAD_GATEWAY, &text);
        value.map(|value| Some(value.trim().to_owned())).ok_or_else(wrong)
    }
}

impl<S: Backend> Proxy<S> {
    /// Asks the auth server of a group about a request, if it has one.
    pub(super) async fn authenticate(
        &self,
        pool: &Pool,
        request: &tidegate::Request<'_, '_>,
        arrival: &ArrivingRequest<'_>,
    ) -> Result<AuthAnswer, Answer> {
        let ArrivingRequest { head, client, .. } = arrival;
        let (Some(auth), Some(spec), Some(peer)) =
            (&pool.auth, &pool.group.spec.auth, request.peer)
        else {
            return Ok(AuthAnswer::Nothing);
        };
        let known = self.parts.desk.limiter.attributes_verified(request, &|_| None);
        let known = known.map_err(|error| unreadable(&error))?;
        let address = known.get("ip").and_then(|address| address.parse().ok()).unwrap_or(peer);
        let key = format!("auth {} {}", spec.server, source(address));
        self.take_from(spec.limit.as_ref(), &key, head).await?;
        let request = self.sub_request(spec, head, peer);
        if size(request.headers()) > MOST_ASKED {
            return Err(too_large());
        }
        let bounds = client.exchange(None, Rc::default()).ok_or(UpstreamError::NoRoom);
        let asking = async {
            let mut record = RequestRecord::default();
            answer(auth.send(request, None, bounds?, &mut record).await?).await
        };
        let answered = timeout(spec.timeout, asking).await;
        match (answered.unwrap_or(Err(UpstreamError::TimedOut)), spec.on_error) {
            (Ok(answer), _) => Ok(answer),
            (Err(error), OnAuthError::Allow) => {
                tracing::warn!(
                    "auth server {}: {error}; the request passes without it",
                    spec.server
                );
                Ok(AuthAnswer::Nothing)
            }
            (Err(error), OnAuthError::Deny) => {
                tracing::warn!("auth server {}: {error}", spec.server);
                Err(failed(&error))
            }
        }
    }

    /// The request to the auth server: the fields of the client's request, and where it was going.
    fn sub_request(&self, spec: &AuthSpec, head: &Parts, peer: IpAddr) -> Request<RequestBody> {
        let mut request = Request::new(RequestBody::empty());
        *request.method_mut() = Method::GET;
        if let Ok(target) = spec.target.parse() {
            *request.uri_mut() = target;
        }
        let fields = request.headers_mut();
        fields.clone_from(&head.headers);
        NOT_SENT.iter().for_each(|name| _ = fields.remove(name));
        let host = headers::host(&head.uri, &head.headers).ok().flatten();
        let peer_is_trusted = self.parts.desk.limiter.trusts(peer);
        let (secure, request_id) = (self.parts.options.secure, &*self.parts.ids.next());
        let forwarding = Forwarding { peer, peer_is_trusted, secure, host, request_id };
        headers::to_upstream(fields, &forwarding, None);
        if let Some(names) = &spec.send {
            headers::keep_named(fields, names);
        }
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        let (method, authority) = (head.method.as_str(), spec.server.authority());
        for (name, value) in [(METHOD, method), (TARGET, target), (header::HOST, &authority)] {
            // A method, a target and an authority are valid values of a field.
            if let Ok(value) = HeaderValue::try_from(value) {
                fields.insert(name, value);
            }
        }
        request
    }
}

/// Reads the answer of the auth server.
async fn answer(response: Response<UpstreamBody>) -> Result<AuthAnswer, UpstreamError> {
    let (mut parts, body) = response.into_parts();
    headers::check_response(parts.status, &parts.headers, parts.version)
        .map_err(UpstreamError::Invalid)?;
    // The body is read to its end, so that the connection can be used again.
    let body = Limited::new(body, MOST_BODY).collect().await;
    let body = body.map_err(|_| UpstreamError::Invalid("its body is too long or incomplete"))?;
    if parts.status.is_success() {
        return Ok(AuthAnswer::Passed(parts.headers));
    }
    if !parts.status.is_client_error() {
        return Err(UpstreamError::Invalid("its status is neither 2xx nor 4xx"));
    }
    headers::to_client(&mut parts.headers, None);
    // They are written with the answer.
    [header::CONTENT_LENGTH, header::DATE].iter().for_each(|name| _ = parts.headers.remove(name));
    let body = body.to_bytes().to_vec();
    Ok(AuthAnswer::Refused(Answer::new(parts.status, "", body).with_all(&parts.headers)))
}

/// The bytes of these fields, as HTTP/1 writes them.
fn size(fields: &HeaderMap) -> usize {
    let lines = fields.iter().map(|(name, value)| name.as_str().len().saturating_add(value.len()));
    lines.fold(0, |sum, line| sum.saturating_add(line).saturating_add(": \r\n".len()))
}

/// The answer to a request that is too large for the auth server.
fn too_large() -> Answer {
    let text = format!(
        "the auth server gets the header fields and the path, and they have more than {MOST_ASKED} bytes"
    );
    Answer::problem(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, &text)
}

/// The answer to a request about which the auth server said nothing.
fn failed(error: &UpstreamError) -> Answer {
    let (status, text) = match error {
        UpstreamError::Full
        | UpstreamError::Drained
        | UpstreamError::NoRoom
        | UpstreamError::NoFiles => {
            (StatusCode::SERVICE_UNAVAILABLE, "cannot be asked at the moment")
        }
        UpstreamError::TimedOut | UpstreamError::TimedOutByClient => {
            (StatusCode::GATEWAY_TIMEOUT, "did not answer in time")
        }
        UpstreamError::Unreachable
        | UpstreamError::Broken(_)
        | UpstreamError::Invalid(_)
        | UpstreamError::CutShort
        | UpstreamError::SlowClient => (StatusCode::BAD_GATEWAY, "gave no valid answer"),
    };
    let answer = Answer::problem(status, &format!("the auth server {text}"));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        return answer.with(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    answer
}

/// Replaces the fields that the auth server sets: a client must not be able to send them itself.
pub(super) fn replace_fields(names: &[HeaderName], said: &HeaderMap, fields: &mut HeaderMap) {
    headers::remove_spellings(fields, names);
    for name in names {
        for value in said.get_all(name) {
            fields.append(name.clone(), value.clone());
        }
    }
}
