//! What came instead of answers, by kind. A call that fails is none that was answered: it is counted here, and another is made.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::sync::{Arc, Mutex, PoisonError};

/// What came instead of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Failure {
    /// A status of HTTP, and not 200.
    Http(u16),
    /// A status of gRPC, and not 0.
    Grpc(u16),
    /// An end without any status.
    NoStatus,
    /// A good status, and no message.
    NoMessage,
    /// A message that is no answer to the request.
    NoVerdict,
    /// `RST_STREAM`, with its reason.
    Reset(u32),
    /// `GOAWAY`, with its reason. It ends the whole experiment.
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
            Self::NoVerdict => f.write_str("no verdict in the message"),
            Self::Reset(code) => write!(f, "RST_STREAM {}", named(&HTTP2, *code)),
            Self::GoAway(code) => write!(f, "GOAWAY {}", named(&HTTP2, *code)),
        }
    }
}

/// How often each was seen, by all connections together. The lock is taken when something failed, so hardly ever.
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

    /// All of them in a line; `None` if there were none.
    pub(crate) fn summary(&self) -> Option<String> {
        let each = self.seen().into_iter().map(|(failure, times)| format!("{times} × {failure}"));
        let told: Vec<String> = each.collect();
        (!told.is_empty()).then(|| told.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_counted_by_kind_wherever_they_are_seen() {
        let failures = Failures::default();
        assert_eq!(failures.summary(), None);
        let external = failures.clone();
        for failure in [Failure::Reset(7), Failure::Grpc(14), Failure::Reset(7), Failure::Reset(99)]
        {
            external.note(failure);
        }
        let told = "1 × grpc-status UNAVAILABLE, 2 × RST_STREAM REFUSED_STREAM, 1 × RST_STREAM 99";
        assert_eq!(failures.summary().as_deref(), Some(told));
    }
}
