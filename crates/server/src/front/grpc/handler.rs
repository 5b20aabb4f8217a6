//! Decides a `ShouldRateLimit` call and encodes the response.

use super::reflection::reflect;
use super::tonic_service::{TonicRequest, TonicService};
use super::wire::{MessageError, RateLimitRequest, RateLimitResponse, seconds};
use crate::backend::Backend;
use crate::bounds;
use crate::desk::{Desk, NoVerdict, upstream_fields};
use crate::metrics::{Metrics, Refused};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use std::fmt;
use tidegate::http::{HeaderStyle, LegacyReset};
use tidegate::{DescriptorCall, DescriptorStatus, DescriptorVerdict, Span};
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::HealthService;

/// Answers gRPC calls.
pub(crate) struct GrpcHandler<S> {
    desk: Desk<S>,
    options: GrpcOptions,
    health: HealthServer<HealthService>,
}

/// What a response holds besides the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrpcOptions {
    pub(crate) headers: HeaderChoice,
    /// Whether the `metadata` of rules is sent.
    pub(crate) metadata: bool,
}

/// The header fields that Envoy adds to the response of the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum HeaderChoice {
    #[default]
    Off,
    /// `RateLimit` and `RateLimit-Policy`.
    Current,
    /// `X-RateLimit-*`.
    Legacy,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset`, as Envoy's reference service sends them.
    Reference,
}

/// A response, and how long to hold it back. A rule that delays a call does it by delaying the response.
pub(super) type CallAnswer = Result<(Bytes, Span), CallError>;

/// The prefix of a message: one byte 0 (not compressed), then the length, which is filled in later.
const PREFIX: [u8; 5] = [0; 5];

impl<S: Backend> GrpcHandler<S> {
    pub(crate) fn new(desk: Desk<S>, options: GrpcOptions, health: HealthService) -> Self {
        let health = HealthServer::new(health).max_decoding_message_size(bounds::GRPC_QUESTION);
        Self { desk, options, health }
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        self.desk.metrics()
    }

    /// Calls a service that tonic implements.
    pub(super) async fn call_tonic(
        &self,
        service: TonicService,
        request: Request<TonicRequest>,
    ) -> Response<tonic::body::Body> {
        match service {
            TonicService::Health => {
                use tonic::codegen::Service as _;
                let Ok(response) = self.health.clone().call(request).await;
                response
            }
            TonicService::Reflection(version) => reflect(version, request).await,
        }
    }

    /// The encoded response to a call, and how long to hold it back. Nothing is counted before the whole call is parsed, and
    /// a caller that cancels while the store decides leaves nothing half done there.
    pub(super) async fn answer(&self, message: &[u8], timeout: Option<Span>) -> CallAnswer {
        let request = self.read(message)?;
        let answer = self.desk.check_descriptors(&request.call(timeout)).await?;
        Ok((self.write(&request, &answer), answer.verdict.delay()))
    }

    /// The encoded denial of a call that cannot be decided.
    pub(super) fn undecided(&self, why: &dyn fmt::Display) -> Bytes {
        self.desk.undecided(why);
        let mut out = PREFIX.to_vec();
        RateLimitResponse(&mut out).overall(true);
        framed(out)
    }

    fn read<'b>(&self, message: &'b [u8]) -> Result<RateLimitRequest<'b>, CallError> {
        let refused = |error: &MessageError| {
            if !error.is_undecided() {
                self.metrics().refused(Refused::Malformed);
            }
        };
        Ok(RateLimitRequest::read(message).inspect_err(refused)?)
    }

    fn write(&self, request: &RateLimitRequest<'_>, answer: &DescriptorVerdict) -> Bytes {
        let mut out = Vec::with_capacity(128);
        out.extend_from_slice(&PREFIX);
        let mut wire = RateLimitResponse(&mut out);
        wire.overall(!answer.verdict.allowed());
        for status in answer.statuses() {
            wire.status(&status);
        }
        self.client_headers(answer, &mut wire);
        for (name, value) in upstream_fields(&answer.verdict) {
            wire.request_header(name, &value);
        }
        if self.options.metadata && answer.is_by_files() {
            wire.metadata(request, &answer.metadata);
        }
        framed(out)
    }

    /// Header fields for the response that the client gets.
    fn client_headers(&self, answer: &DescriptorVerdict, wire: &mut RateLimitResponse<'_>) {
        let style = match self.options.headers {
            HeaderChoice::Off => return,
            HeaderChoice::Reference => return reference_headers(answer, wire),
            HeaderChoice::Current => HeaderStyle::default(),
            HeaderChoice::Legacy => HeaderStyle {
                fields: false,
                legacy: Some(LegacyReset::Delta),
                ..HeaderStyle::default()
            },
        };
        let mut fields = HeaderMap::new();
        style.write(&answer.verdict, &mut fields);
        for (name, value) in &fields {
            if let Ok(value) = value.to_str() {
                wire.response_header(name.as_str(), value);
            }
        }
    }
}

/// Fills in the length in the prefix of a message.
fn framed(mut out: Vec<u8>) -> Bytes {
    let length = u32::try_from(out.len().saturating_sub(PREFIX.len())).unwrap_or(0);
    if let Some(place) = out.get_mut(1..PREFIX.len()) {
        place.copy_from_slice(&length.to_be_bytes());
    }
    out.into()
}

impl<'b> RateLimitRequest<'b> {
    fn call(&self, timeout: Option<Span>) -> DescriptorCall<'_, 'b> {
        DescriptorCall {
            domain: self.domain,
            descriptors: &self.descriptors,
            hits: self.hits,
            timeout,
            // A delayed response still needs time to reach the client, so half of the timeout is left for that.
            max_wait: timeout
                .map_or(Span::ZERO, |timeout| Span::from_nanos(timeout.as_nanos() / 2)),
        }
    }
}

/// The header fields of the reference service, for the descriptor that is over its limit or nearest to it.
fn reference_headers(answer: &DescriptorVerdict, wire: &mut RateLimitResponse<'_>) {
    let limited = answer.statuses().filter(|status| status.limit.is_some());
    let nearest = |status: &DescriptorStatus<'_>| (!status.over, status.remaining);
    let Some(status) = limited.min_by_key(nearest) else { return };
    let Some(limit) = &status.limit else { return };
    wire.response_header("RateLimit-Limit", &limit.amount.to_string());
    wire.response_header("RateLimit-Remaining", &status.remaining.to_string());
    wire.response_header("RateLimit-Reset", &status.reset.map_or(0, seconds).to_string());
}

// === CallError ===

/// Why a call could not be decided.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error(transparent)]
    Wire(#[from] MessageError),
    #[error(transparent)]
    Desk(#[from] NoVerdict),
}

impl CallError {
    /// Whether the call is denied and not answered with an error, because a client can cause it through its proxy.
    pub(super) const fn is_undecided(&self) -> bool {
        match self {
            Self::Wire(error) => error.is_undecided(),
            Self::Desk(_) => true,
        }
    }
}
