//! From a call to its answer.

use super::call::CallError;
use super::others::RequestBody;
use super::reflection::{RequestOf, reflect};
use super::wire::{MessageError, RateLimitRequest, RateLimitResponse, seconds};
use crate::backend::Backend;
use crate::bounds;
use crate::front::{FLAGS, PRIORITY};
use crate::metrics::{Metrics, Refused, Tally};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use std::fmt;
use std::sync::Arc;
use tidegate::http::{HeaderStyle, LegacyReset};
use tidegate::{DecidedBy, DescriptorCall, DescriptorStatus, DescriptorVerdict, Limiter, Outcome};
use tidegate::{Retry, Span};
use tidegate_policy::printable;
use tokio::time::Instant;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::HealthService;

/// Answers what is asked over gRPC.
pub(crate) struct GrpcHandler<S> {
    limiter: Limiter<S>,
    options: GrpcOptions,
    tally: Arc<Tally>,
    metrics: Arc<Metrics>,
    health: HealthServer<HealthService>,
}

/// What is said besides the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrpcOptions {
    pub(crate) headers: HeaderChoice,
    /// What rules say in `metadata` is told.
    pub(crate) metadata: bool,
}

/// Which header fields Envoy is told to add to what the client gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum HeaderChoice {
    #[default]
    Off,
    /// `RateLimit` and `RateLimit-Policy`.
    Current,
    /// `X-RateLimit-*`.
    Legacy,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset`, as the reference service has them.
    Reference,
}

/// An answer and how long it is to wait: where rules let a call wait for its turn, the answer is what waits.
pub(super) type CallAnswer = Result<(Bytes, Span), CallError>;

/// The bytes before a message: it is not packed, and so long.
const PREFIX: [u8; 5] = [0; 5];

impl<S: Backend> GrpcHandler<S> {
    pub(crate) fn new(
        limiter: Limiter<S>,
        options: GrpcOptions,
        metrics: Arc<Metrics>,
        health: HealthService,
    ) -> Self {
        let tally = metrics.tally("grpc");
        let health = HealthServer::new(health).max_decoding_message_size(bounds::GRPC_QUESTION);
        Self { limiter, options, tally, metrics, health }
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The services that are not ours.
    pub(super) async fn others(
        &self,
        whose: RequestOf,
        request: Request<RequestBody>,
    ) -> Response<tonic::body::Body> {
        match whose {
            RequestOf::Health => {
                use tonic::codegen::Service as _;
                let Ok(response) = self.health.clone().call(request).await;
                response
            }
            RequestOf::Reflection(version) => reflect(version, request).await,
        }
    }

    /// The answer to a call, as it goes out, and how long it is to wait until then. Nothing is counted before all of the call
    /// was understood, and a caller that gives up while the store is asked leaves nothing half done there.
    pub(super) async fn answer(&self, message: &[u8], timeout: Option<Span>) -> CallAnswer {
        let began = Instant::now();
        let asked = self.read(message)?;
        let answer = self.limiter.check_descriptors(&asked.call(timeout)).await?;
        Ok(self.answered(&asked, &answer, began))
    }

    /// The refusal of a call that cannot be decided.
    pub(super) fn undecided(&self, why: &dyn fmt::Display) -> Bytes {
        tracing::warn!("a call cannot be decided and is refused: {}", printable(&why.to_string()));
        self.metrics.refused(Refused::Undecided);
        self.tally.count_bare(Outcome::Deny(Retry::Never), DecidedBy::Policy);
        let mut out = PREFIX.to_vec();
        RateLimitResponse(&mut out).overall(true);
        framed(out)
    }

    fn read<'b>(&self, message: &'b [u8]) -> Result<RateLimitRequest<'b>, CallError> {
        let refused = |error: &MessageError| {
            if !error.is_undecided() {
                self.metrics.refused(Refused::Malformed);
            }
        };
        Ok(RateLimitRequest::read(message).inspect_err(refused)?)
    }

    fn answered(
        &self,
        asked: &RateLimitRequest<'_>,
        answer: &DescriptorVerdict,
        began: Instant,
    ) -> (Bytes, Span) {
        self.tally.count_descriptors(&answer.verdict);
        let written = self.written(asked, answer);
        self.tally.took(began.elapsed());
        (written, answer.verdict.delay())
    }

    fn written(&self, asked: &RateLimitRequest<'_>, answer: &DescriptorVerdict) -> Bytes {
        let mut out = Vec::with_capacity(128);
        out.extend_from_slice(&PREFIX);
        let mut wire = RateLimitResponse(&mut out);
        wire.overall(!answer.verdict.allowed());
        for status in answer.statuses() {
            wire.status(&status);
        }
        self.headers(answer, &mut wire);
        if self.options.metadata && answer.is_by_files() {
            wire.metadata(asked, &answer.metadata);
        }
        framed(out)
    }

    fn headers(&self, answer: &DescriptorVerdict, wire: &mut RateLimitResponse<'_>) {
        let verdict = &answer.verdict;
        let style = match self.options.headers {
            HeaderChoice::Off => None,
            HeaderChoice::Current => Some(HeaderStyle::default()),
            HeaderChoice::Legacy => Some(HeaderStyle {
                fields: false,
                legacy: Some(LegacyReset::Delta),
                ..HeaderStyle::default()
            }),
            HeaderChoice::Reference => {
                reference(answer, wire);
                None
            }
        };
        if let Some(style) = style {
            let mut fields = HeaderMap::new();
            style.write(verdict, &mut fields);
            for (name, value) in &fields {
                if let Ok(value) = value.to_str() {
                    wire.response_header(name.as_str(), value);
                }
            }
        }
        let flags: Vec<&str> = verdict.flags().collect();
        if !flags.is_empty() {
            wire.request_header(FLAGS, &flags.join(", "));
        }
        if verdict.priority == tidegate::Priority::Low {
            wire.request_header(PRIORITY, "low");
        }
    }
}

/// A message behind its prefix, which says now how long it is.
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
            // The other half is for the way back.
            max_wait: timeout
                .map_or(Span::ZERO, |timeout| Span::from_nanos(timeout.as_nanos() / 2)),
        }
    }
}

/// The fields of the reference service: about the descriptor that is nearest to its limit, or over it.
fn reference(answer: &DescriptorVerdict, wire: &mut RateLimitResponse<'_>) {
    let limited = answer.statuses().filter(|status| status.limit.is_some());
    let nearest = |status: &DescriptorStatus<'_>| (!status.over, status.remaining);
    let Some(status) = limited.min_by_key(nearest) else { return };
    let Some(limit) = &status.limit else { return };
    wire.response_header("RateLimit-Limit", &limit.amount.to_string());
    wire.response_header("RateLimit-Remaining", &status.remaining.to_string());
    wire.response_header("RateLimit-Reset", &status.reset.map_or(0, seconds).to_string());
}
