//! What is written about decisions: the denial log and the recording. Front ends report each decision here, once.

use crate::denial_log::Denials;
use crate::recorder::Recorder;
use tidegate::{Check, DecidedBy, DescriptorCall, DescriptorVerdict, Outcome, Verdict};

/// The denial log and the recorder, each if it is on.
#[derive(Clone, Default)]
pub(crate) struct DecisionLogs {
    pub(crate) denials: Denials,
    pub(crate) recorder: Recorder,
}

impl DecisionLogs {
    /// A request was decided.
    #[inline]
    pub(crate) fn of_request(&self, protocol: &'static str, verdict: &Verdict, check: &Check<'_>) {
        self.denials.of_request(protocol, verdict, check.attributes);
        self.recorder.of_request(verdict, check);
    }

    /// A call with descriptors was decided.
    #[inline]
    pub(crate) fn of_call(
        &self,
        protocol: &'static str,
        answer: &DescriptorVerdict,
        call: &DescriptorCall<'_, '_>,
    ) {
        self.denials.of_call(protocol, answer, call.descriptors);
        self.recorder.of_call(answer, call);
    }

    /// A take under a limit that the client named was decided. It is not recorded, because no policy decides it.
    #[inline]
    pub(crate) fn of_take(
        &self,
        protocol: &'static str,
        key: &[u8],
        decision: (Outcome, DecidedBy),
    ) {
        self.denials.of_take(protocol, key, decision);
    }

    /// Waits until all lines are written, for a second at most.
    pub(crate) async fn finish(&self) {
        self.denials.finish().await;
        self.recorder.finish().await;
    }
}
