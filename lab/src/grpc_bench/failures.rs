//! Counts of failed calls, by kind. A failed call does not count as answered; the generator makes another
//! one.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::sync::{Arc, Mutex, PoisonError};

/// Why a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Failure {
    /// An HTTP status other than 200.
    Http(u16),
    /// A gRPC status other than 0.
    Grpc(u16),
    /// The stream ended without a status.
    NoStatus,
    /// The status is 0, but there is no message.
    NoMessage,
    /// The message contains no decision.
    NoDecision,
    /// `RST_STREAM`, with its error code.
    Reset(u32),
    /// `GOAWAY`, with its error code. It ends the whole experiment.
    GoAway(u32),
}

const GRPC: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

const HTTP2: [&str; 14] = [
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
];

/// The name of a code, or the code itself.
fn named(names: &[&str], code: u32) -> String {
    let name = usize::try_from(code).ok().and_then(|code| names.get(code));
    name.map_or_else(|| code.to_string(), |name| (*name).to_owned())
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(status) => write!(f, "HTTP {status}"),
            Self::Grpc(status) => write!(f, "grpc-status {}", named(&GRPC, (*status).into())),
            Self::NoStatus => f.write_str("no status"),
            Self::NoMessage => f.write_str("no message"),
            Self::NoDecision => f.write_str("no decision in the message"),
            Self::Reset(code) => write!(f, "RST_STREAM {}", named(&HTTP2, *code)),
            Self::GoAway(code) => write!(f, "GOAWAY {}", named(&HTTP2, *code)),
        }
    }
}

/// How often each failure occurred, over all connections. The lock is taken only after a failure, so hardly
/// ever.
#[derive(Debug, Clone, Default)]
pub(crate) struct Failures(Arc<Mutex<BTreeMap<Failure, u64>>>);

impl Failures {
    pub(crate) fn note(&self, failure: Failure) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let times = seen.entry(failure).or_default();
        *times = times.saturating_add(1);
    }

    pub(crate) fn seen(&self) -> BTreeMap<Failure, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All failures in one line; `None` if there were none.
    pub(crate) fn summary(&self) -> Option<String> {
        let each = self.seen().into_iter().map(|(failure, times)| format!("{times} × {failure}"));
        let text: Vec<String> = each.collect();
        (!text.is_empty()).then(|| text.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_all_connections_are_counted_by_kind() {
        let failures = Failures::default();
        assert_eq!(failures.summary(), None);
        let external = failures.clone();
        for failure in [Failure::Reset(7), Failure::Grpc(14), Failure::Reset(7), Failure::Reset(99)]
        {
            external.note(failure);
        }
        let text = "1 × grpc-status UNAVAILABLE, 2 × RST_STREAM REFUSED_STREAM, 1 × RST_STREAM 99";
        assert_eq!(failures.summary().as_deref(), Some(text));
    }
}
