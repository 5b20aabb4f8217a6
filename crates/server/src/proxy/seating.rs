//! Waiting for a seat of the group, when all that a request may have are taken.

use super::gate::{ArrivingRequest, Proxy, stopping};
use super::upstream::{GroupSeat, GroupSeats, SeatRequest};
use crate::backend::Backend;
use crate::web::{Answer, PROBLEM};
use http::header;
use http::request::Parts;
use tidegate::http::{is_grpc, overload_to};
use tidegate::{Report, Shed, Verdict};

impl<S: Backend> Proxy<S> {
    /// Waits for a seat. A request that gets none takes nothing from its limits: refusals of the upstream must not use up what a
    /// client may do.
    pub(super) async fn seat(
        &self,
        seats: &GroupSeats,
        asks: &SeatRequest<'_>,
        arrival: &mut ArrivingRequest<'_>,
    ) -> Result<GroupSeat, Answer> {
        let ArrivingRequest { head, client, record } = arrival;
        let entering = Box::pin(seats.enter(asks));
        let seat = tokio::select! {
            biased;
            seat = record.waiting_for_seat(entering) => seat.map_err(|shed| shed_answer(&shed, head)),
            () = client.drain.nearly_over.cancelled() => Err(stopping()),
        };
        if seat.is_err()
            && let Some(receipt) = asks.verdict.and_then(Verdict::receipt)
        {
            // If the store does not answer, the request stays counted: the error is on the strict side.
            let _ = self.parts.desk.limiter.report(receipt, Report::Cancelled).await;
        }
        seat
    }
}

/// The answer to a request for which the upstream has no capacity, as gRPC for gRPC requests.
fn shed_answer(shed: &Shed, request: &Parts) -> Answer {
    let (mut parts, body) = overload_to(request, shed).into_parts();
    parts.headers.remove(header::CONTENT_TYPE);
    let kind = if is_grpc(request) { "application/grpc" } else { PROBLEM };
    Answer::new(parts.status, kind, body).with_all(&parts.headers)
}
