//! `POST /v1/report`: outcomes, true costs, and the renewal of permits.
//!
//! ```text
//!   { receipt, outcome | cost }    settles the receipt, and returns its permits
//!   { receipt, renew: true }       holds its permits for another lease, under a new receipt
//! ```

use super::handler::HttpHandler;
use super::wire::{self, WireError};
use crate::backend::Backend;
use crate::web::{Answer, Call, JSON};
use http::StatusCode;
use serde_json::{Value, json};
use tidegate::{Receipt, Renewal, Report, ReportError, Settled};

/// The answer to a report.
pub(super) enum Reported {
    Done,
    /// The permits are held for another lease.
    Renewed {
        receipt: String,
        lease_ms: u64,
    },
    Failed(StatusCode, &'static str),
}

/// What a report asks for.
enum Asked {
    Settle(Report),
    Renew,
}

const ALREADY: &str = "this receipt has already been settled";
const FORGED: &str = "this is not a receipt of this deployment";

impl<S: Backend> HttpHandler<S> {
    pub(super) async fn report(&self, call: &Call<'_>) -> Result<Answer, WireError> {
        let Some(asked) = wire::read_one::<wire::Report<'_>>(call.body) else {
            return Box::pin(self.report_list(call)).await;
        };
        Ok(match self.report_one(&asked?).await {
            Reported::Done => Answer::fixed(JSON, "{\"settled\":\"done\"}\n"),
            Reported::Renewed { receipt, lease_ms } => {
                let body = json!({ "receipt": receipt, "lease_ms": lease_ms });
                Answer::new(StatusCode::OK, JSON, format!("{body}\n"))
            }
            Reported::Failed(status, detail) => Answer::problem(status, detail),
        })
    }

    pub(super) async fn report_one(&self, asked: &wire::Report<'_>) -> Reported {
        let report = match asked.asked() {
            Ok(report) => report,
            Err(detail) => return Reported::Failed(StatusCode::BAD_REQUEST, detail),
        };
        let Ok(receipt) = self.desk.limiter.opened(&asked.receipt) else {
            return Reported::Failed(StatusCode::BAD_REQUEST, FORGED);
        };
        match report {
            Asked::Settle(report) => settled(&self.desk.limiter.report(&receipt, report).await),
            Asked::Renew => self.renew(&receipt).await,
        }
    }

    async fn renew(&self, receipt: &Receipt) -> Reported {
        let conflict = |detail| Reported::Failed(StatusCode::CONFLICT, detail);
        let unavailable = |detail| Reported::Failed(StatusCode::SERVICE_UNAVAILABLE, detail);
        match self.desk.limiter.renew(receipt).await {
            Ok(Renewal::Renewed(renewed)) => Reported::Renewed {
                receipt: self.desk.limiter.sealed(&renewed),
                lease_ms: renewed.lease().map_or(0, wire::millis),
            },
            Ok(Renewal::Already) => conflict(ALREADY),
            Ok(Renewal::Expired) => conflict("the lease is over; the permit is not held any more"),
            Ok(Renewal::NoPermit) => {
                let detail = "this receipt has no permit; no concurrency limit applied";
                Reported::Failed(StatusCode::BAD_REQUEST, detail)
            }
            Ok(Renewal::Full) => {
                unavailable("the permit was not renewed: there is no memory for it; try again soon")
            }
            Err(ReportError::Forged) => Reported::Failed(StatusCode::BAD_REQUEST, FORGED),
            Err(ReportError::Store(_)) => {
                unavailable("the store is unavailable; the permit was not renewed; try again soon")
            }
        }
    }
}

fn settled(settled: &Result<Settled, ReportError>) -> Reported {
    let (status, detail) = match settled {
        Ok(Settled::Done) => return Reported::Done,
        Ok(Settled::Already) => (StatusCode::CONFLICT, ALREADY),
        Ok(Settled::Late) => (StatusCode::CONFLICT, "this receipt has expired"),
        Ok(Settled::Full) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the receipt was not settled: there is no memory to record that; try again later",
        ),
        Err(ReportError::Forged) => (StatusCode::BAD_REQUEST, FORGED),
        Err(ReportError::Store(_)) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the store is unavailable; it is unknown whether the report was counted",
        ),
    };
    Reported::Failed(status, detail)
}

impl Reported {
    /// A report of a list whose deadline was over before it was sent.
    pub(super) const NOT_SENT: Self = Self::Failed(
        StatusCode::SERVICE_UNAVAILABLE,
        "the store did not answer the reports before this one in time; it was not sent, so send it again",
    );

    /// The answer as an entry of the answer to a list.
    pub(super) fn entry(&self) -> Value {
        match self {
            Self::Done => json!({ "status": 200, "detail": "done" }),
            Self::Renewed { receipt, lease_ms } => json!({
                "status": 200, "detail": "renewed", "receipt": receipt, "lease_ms": lease_ms,
            }),
            Self::Failed(status, detail) => json!({ "status": status.as_u16(), "detail": detail }),
        }
    }
}

impl wire::Report<'_> {
    /// What is asked for: exactly one of `outcome`, `cost` and `renew: true` must be present.
    fn asked(&self) -> Result<Asked, &'static str> {
        match (self.outcome, self.cost, self.renew) {
            (Some(outcome), None, false) => Ok(Asked::Settle(outcome.into())),
            (None, Some(cost), false) => Ok(Asked::Settle(Report::Cost(cost.into()))),
            (None, None, true) => Ok(Asked::Renew),
            (None, None, false)
            | (Some(_), Some(_), _)
            | (Some(_), _, true)
            | (_, Some(_), true) => {
                Err("a report must have either an `outcome`, a `cost` or `renew: true`")
            }
        }
    }
}
