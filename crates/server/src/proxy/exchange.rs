//! The second half of a request's way: it is sent to an upstream server, and the answer is checked and prepared for the client.
//!
//! ```text
//!   forward: upstream server ──► its answer is checked ──► the outcome is reported ──► RateLimit fields
//! ```

use super::auth_request;
use super::gate::{Admitted, Proxy, ProxyClient, expose};
use super::headers::{self, Forwarding, UpstreamOutcome};
use super::interim::InterimAnswers;
use super::request_body::{BodyProgress, RequestBody};
use super::routes::{HostField, ServerUrl, UpstreamTimeouts};
use super::upstream::{ClientPresence, UpstreamBody, UpstreamError};
use crate::backend::Backend;
use crate::desk::tell_upstream;
use crate::net::after;
use crate::timers;
use crate::web::Answer;
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::Body;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tidegate::{Report, Verdict};

/// The client's side of an exchange.
pub(crate) struct ClientSide<'c> {
    pub(crate) client: &'c ProxyClient,
    /// The interim answers that it gets.
    pub(crate) interim: &'c InterimAnswers,
    /// Whether it is still there.
    pub(crate) presence: &'c Rc<ClientPresence>,
}

impl<S: Backend> Proxy<S> {
    /// Sends an admitted request to an upstream server, and returns its answer as the client gets it.
    pub(crate) async fn forward(
        &self,
        mut admitted: Admitted,
        mut head: Parts,
        body: RequestBody,
        side: &ClientSide<'_>,
    ) -> Result<Response<UpstreamBody>, Answer> {
        let spec = &admitted.pool.group.spec;
        let least_rate = spec.min_body_rate.filter(|_| spec.concurrency.is_some());
        let body = admitted.record.counting(body).at_least(least_rate);
        let body = match &spec.auth {
            Some(auth) => body.without_trailers(&auth.headers),
            None => body,
        };
        let is_eleven = head.version == http::Version::HTTP_11;
        let upgrade = headers::is_upgrade(&head.headers).filter(|_| is_eleven);
        self.prepare(&admitted, &mut head, side.client.peer, upgrade.as_ref());
        admitted.record.identified(&head.headers);
        if body.size_hint().exact().is_none() {
            // hyper sends no body with a GET otherwise.
            head.headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        let mut request = Request::from_parts(head, body);
        side.interim.watch(&mut request);
        let sent = self.send(&mut admitted, request, side).await;
        let checked = sent.and_then(|answer| checked(answer, upgrade.as_ref()));
        let mut answer = match checked {
            Ok(answer) => answer,
            Err(error) => {
                let answer = failed(&error);
                admitted.record.failed(&error, answer.status);
                let said = error.is_by_client().then_some(UpstreamOutcome::Failure);
                self.report(&admitted, said, StatusCode::BAD_GATEWAY).await;
                return Err(answer);
            }
        };
        let status = answer.status();
        admitted.record.answered(status);
        let upgraded = upgrade.filter(|_| status == StatusCode::SWITCHING_PROTOCOLS);
        let outcome = headers::to_client(answer.headers_mut(), upgraded.as_ref());
        self.report(&admitted, outcome, status).await;
        if let Some(verdict) = admitted.verdict.as_ref().filter(|_| !status.is_redirection()) {
            self.parts.style.write(verdict, answer.headers_mut());
            expose(answer.headers_mut(), admitted.cross_origin);
        }
        answer.body_mut().keep_record(admitted.record);
        Ok(answer)
    }

    /// Sends a request within the bounds of its group, and waits for the head of the answer.
    async fn send(
        &self,
        admitted: &mut Admitted,
        request: Request<RequestBody>,
        side: &ClientSide<'_>,
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        let timeouts = admitted.pool.group.spec.timeouts;
        let until = timeouts.total.map(after);
        let progress = request.body().progress();
        let late = || {
            let waited = progress.as_ref().map(BodyProgress::waited_for_client);
            match leaves_too_little(timeouts, waited.unwrap_or_default()) {
                true => UpstreamError::TimedOutByClient,
                false => {
                    side.presence.release();
                    UpstreamError::TimedOut
                }
            }
        };
        let presence = Rc::clone(side.presence);
        let bounds = side.client.exchange(until, presence).ok_or(UpstreamError::NoRoom)?;
        let (pool, home) = (&admitted.pool, admitted.home.as_deref());
        let mut sending = pin!(pool.send(request, home, bounds, &mut admitted.record));
        let mut over = until.map(|until| Box::pin(timers::sleep_until(until)));
        poll_fn(|context| {
            let sent = sending.as_mut().poll(context);
            if side.interim.are_too_many() {
                side.presence.release();
                return Poll::Ready(Err(UpstreamError::Invalid("too many interim answers")));
            }
            if let (Poll::Pending, Some(over)) = (&sent, &mut over) {
                return over.as_mut().poll(context).map(|()| Err(late()));
            }
            sent
        })
        .await
    }

    /// Changes the head of a request to what the upstream server gets.
    fn prepare(
        &self,
        admitted: &Admitted,
        head: &mut Parts,
        peer: IpAddr,
        upgrade: Option<&HeaderValue>,
    ) {
        // The route was found by this host, so it is valid.
        let host = headers::host(&head.uri, &head.headers).ok().flatten().map(str::to_owned);
        let forwarding = Forwarding {
            peer,
            peer_is_trusted: self.parts.desk.limiter.trusts(peer),
            secure: self.parts.options.secure,
            host: host.as_deref(),
            request_id: &self.parts.ids.next(),
        };
        headers::to_upstream(&mut head.headers, &forwarding, upgrade);
        let named = match admitted.pool.group.spec.host {
            HostField::Keep if host.is_some() => host,
            // Only HTTP/1.0 allows a request without a host.
            HostField::Keep | HostField::Upstream => {
                let servers = &admitted.pool.group.spec.servers;
                servers.first().map(ServerUrl::authority)
            }
        };
        if let Some(Ok(host)) = named.map(HeaderValue::try_from) {
            head.headers.insert(header::HOST, host);
        }
        if let Some(target) = head.uri.path_and_query().cloned() {
            head.uri = target.into();
        }
        head.version = http::Version::HTTP_11;
        if let Some(verdict) = &admitted.verdict {
            tell_upstream(verdict, &mut head.headers);
        }
        if let Some(auth) = &admitted.pool.group.spec.auth {
            auth_request::replace_fields(&auth.headers, &admitted.said, &mut head.headers);
        }
    }

    /// Reports the outcome of a request, if a rule counts outcomes.
    async fn report(&self, admitted: &Admitted, said: Option<UpstreamOutcome>, status: StatusCode) {
        let receipt = admitted.verdict.as_ref().and_then(Verdict::receipt_to_report);
        let Some(receipt) = receipt else { return };
        let report = match said {
            Some(UpstreamOutcome::Failure) => Report::Failure,
            Some(UpstreamOutcome::Success) => Report::Success,
            None if is_failure(status) => Report::Failure,
            None => Report::Success,
        };
        // If the store does not answer, the request stays counted: the error is on the strict side.
        let _ = self.parts.desk.limiter.report(receipt, report).await;
    }
}

/// Whether a client that the upstream server waited for this long has left it too little of `total` to answer. A server that is
/// down takes all of the time by itself, so its clients are not blamed.
fn leaves_too_little(timeouts: UpstreamTimeouts, waited: Duration) -> bool {
    let Some(total) = timeouts.total else { return false };
    // With more time left than `first_byte`, that timeout would have ended the request, whatever the client had done.
    let first_byte = timeouts.first_byte.filter(|first_byte| *first_byte < total);
    let needed = first_byte.unwrap_or_default().max(total.checked_div(4).unwrap_or_default());
    total.saturating_sub(waited) < needed
}

/// Whether a status counts as a failure of the client. Errors of the server do not: an outage must not lock users out.
fn is_failure(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::UNAUTHORIZED
            | StatusCode::PAYMENT_REQUIRED
            | StatusCode::FORBIDDEN
            | StatusCode::UNPROCESSABLE_ENTITY
    )
}

/// Refuses an answer that two readers could understand differently.
fn checked(
    mut answer: Response<UpstreamBody>,
    upgrade: Option<&HeaderValue>,
) -> Result<Response<UpstreamBody>, UpstreamError> {
    let (status, fields) = (answer.status(), answer.headers());
    let mut checked = headers::check_response(status, fields, answer.version());
    if status == StatusCode::SWITCHING_PROTOCOLS
        && !upgrade.is_some_and(|upgrade| headers::accepts_upgrade(fields, upgrade))
    {
        checked = Err("it switches to a protocol that was not asked for");
    }
    if let Err(why) = checked {
        answer.body_mut().refuse();
        return Err(UpstreamError::Invalid(why));
    }
    Ok(answer)
}

fn failed(error: &UpstreamError) -> Answer {
    let status = match error {
        UpstreamError::Unreachable | UpstreamError::Broken(_) | UpstreamError::Invalid(_) => {
            StatusCode::BAD_GATEWAY
        }
        UpstreamError::TimedOut | UpstreamError::TimedOutByClient => StatusCode::GATEWAY_TIMEOUT,
        UpstreamError::Full
        | UpstreamError::Drained
        | UpstreamError::NoRoom
        | UpstreamError::NoFiles => StatusCode::SERVICE_UNAVAILABLE,
        UpstreamError::CutShort => StatusCode::BAD_REQUEST,
        UpstreamError::SlowClient => StatusCode::REQUEST_TIMEOUT,
    };
    let answer = Answer::problem(status, &error.to_string());
    if status == StatusCode::SERVICE_UNAVAILABLE {
        return answer.with(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_to_blame_that_leaves_less_than_first_byte_or_a_quarter_of_total() {
        let [ms, seconds] = [Duration::from_millis, Duration::from_secs];
        let left = |first_byte: u64, total: Option<u64>, waited: u64| {
            let (first_byte, total) = (Some(seconds(first_byte)), total.map(seconds));
            let timeouts = UpstreamTimeouts { first_byte, total, ..UpstreamTimeouts::default() };
            leaves_too_little(timeouts, ms(waited))
        };
        // `first_byte` is longer than `total`, so a quarter of `total` decides.
        assert_eq!(
            [0, 1_499, 1_501, 1_850, 9_000].map(|waited| left(30, Some(2), waited)),
            [false, false, true, true, true]
        );
        assert_eq!([0, 6_999, 7_001].map(|waited| left(3, Some(10), waited)), [false, false, true]);
        assert_eq!([7_400, 7_501].map(|waited| left(1, Some(10), waited)), [false, true]);
        assert!(!left(1, None, 100_000));
    }
}
