//! What is kept about decisions: the denial log, the recording, and the top keys. Front ends report each decision here, once.

use crate::denial_log::Denials;
use crate::recorder::Recorder;
use crate::top_keys::{TopKeys, WorkerTop};
use tidegate::{Check, Cost, DecidedBy, DescriptorCall, DescriptorVerdict, Outcome, Verdict};

/// The denial log, the recorder and the top keys of the server, each if it is on.
#[derive(Clone, Default)]
pub(crate) struct DecisionRecords {
    pub(crate) denials: Denials,
    pub(crate) recorder: Recorder,
    pub(crate) top: TopKeys,
}

/// The same for the front ends of one worker.
#[derive(Clone, Default)]
pub(crate) struct DecisionLogs {
    denials: Denials,
    recorder: Recorder,
    top: WorkerTop,
}

impl DecisionRecords {
    /// What the front ends of one more worker report to.
    pub(crate) fn on_worker(&self) -> DecisionLogs {
        let (denials, recorder) = (self.denials.clone(), self.recorder.clone());
        DecisionLogs { denials, recorder, top: self.top.on_worker() }
    }

    /// Waits until all lines are written, for a second at most.
    pub(crate) async fn finish(&self) {
        self.denials.finish().await;
        self.recorder.finish().await;
    }
}

impl DecisionLogs {
    /// A request was decided.
    #[inline]
    pub(crate) fn of_request(&self, protocol: &'static str, verdict: &Verdict, check: &Check<'_>) {
        self.denials.of_request(protocol, verdict, check.attributes);
        self.recorder.of_request(verdict, check);
        self.top.of_request(verdict, check.attributes);
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
        self.top.of_call(answer, call.descriptors);
    }

    /// A take under a limit that the client named was decided. It is not recorded, because no policy decides it.
    #[inline]
    pub(crate) fn of_take(
        &self,
        protocol: &'static str,
        key: &[u8],
        (outcome, by): (Outcome, DecidedBy),
        cost: Cost,
    ) {
        self.denials.of_take(protocol, key, (outcome, by));
        self.top.of_take(key, outcome, cost);
    }
}
