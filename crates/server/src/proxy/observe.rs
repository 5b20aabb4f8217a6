//! What is known about a request while it passes through the proxy, for the metrics and the access log.
//!
//! ```text
//!   head ──► RequestRecord: route, decision, server, first byte, bytes … ──► dropped: counted, and written to the access log
//! ```
//!
//! A record is dropped when its request is over, in whatever way. If nothing was noted about the answer by then, the client went
//! away before there was one.

use super::access_log::{AccessEntry, AccessLog, Decided};
use super::live_routes::LiveRoutes;
use super::request_body::RequestBody;
use super::upstream::{GroupHealth, Held, HeldSeat, Pool, UpstreamError, UpstreamGroup};
use crate::health::Health;
use crate::metrics::{GroupTally, ProxyAnswer};
use crate::timers;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use std::any::Any;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tidegate::{LimitReport, Outcome, Verdict};
use tokio::time::{Instant, interval};

/// What is known about a request.
#[derive(Default)]
pub(crate) struct RequestRecord {
    /// `None`: no route led to a group.
    pool: Option<Rc<Pool>>,
    answer: Option<ProxyAnswer>,
    /// For how long it was held.
    held: Option<Duration>,
    /// How often it was tried.
    tries: u32,
    /// `None`: there is no access log.
    entry: Option<Box<AccessEntry>>,
    /// What it holds until an upstream server works for it. From then on, that work holds it.
    occupies: Held,
}

/// A shared store answers sooner than this, so a request that was held for longer has waited for its turn.
const STORE_ANSWERS: Duration = Duration::from_millis(100);
/// How often it is looked whether groups are down.
const LOOK_EVERY: Duration = Duration::from_millis(250);

impl RequestRecord {
    pub(crate) fn new(log: Option<&Rc<AccessLog>>, head: &Parts, peer: IpAddr) -> Self {
        let entry = log.map(|log| Box::new(AccessEntry::new(log, head, peer)));
        Self { pool: None, answer: None, held: None, tries: 0, entry, occupies: Held::default() }
    }

    // === deciding ===

    /// The request goes to this group.
    pub(crate) fn routed(&mut self, pool: &Rc<Pool>) {
        self.pool = Some(Rc::clone(pool));
    }

    /// Waits for a decision, and takes note of the time if it is not there at once.
    pub(crate) async fn holding<T>(&mut self, decision: Pin<Box<impl Future<Output = T>>>) -> T {
        let (decided, held) = self.timing(decision).await;
        self.held = held;
        decided
    }

    /// Waits for a seat, and takes note of the time.
    pub(crate) async fn waiting_for_seat<T>(
        &mut self,
        seat: Pin<Box<impl Future<Output = T>>>,
    ) -> T {
        let (seat, held) = self.timing(seat).await;
        if let (Some(held), Some(pool)) = (held, &self.pool) {
            pool.tally.waited(held);
        }
        if let (Some(held), Some(entry)) = (held, &mut self.entry) {
            entry.wait = entry.wait.saturating_add(held);
        }
        seat
    }

    /// Waits for a future. The request counts as held meanwhile. The time is `None` if it did not wait.
    async fn timing<T>(
        &self,
        mut decision: Pin<Box<impl Future<Output = T>>>,
    ) -> (T, Option<Duration>) {
        let tally = self.pool.as_ref().map(|pool| Arc::clone(&pool.tally));
        let mut hold = None;
        let decided = poll_fn(|context| {
            let poll = decision.as_mut().poll(context);
            if poll.is_pending() {
                hold.get_or_insert_with(|| Hold::new(tally.clone()));
            }
            poll
        })
        .await;
        (decided, hold.map(|hold| timers::since(hold.since)))
    }

    /// Holds permits until the request is over.
    pub(crate) fn hold_permits(&mut self, permits: Option<impl Any>) {
        self.occupies.permits = permits.map(|permits| -> Box<dyn Any> { Box::new(permits) });
    }

    /// Holds a seat until the request is over.
    pub(crate) fn hold_seat(&mut self, seat: HeldSeat) {
        self.occupies.seat = Some(seat);
    }

    /// Takes back what the request holds, because nothing was sent.
    pub(crate) fn hold(&mut self, held: Held) {
        self.occupies = held;
    }

    pub(crate) fn take_held(&mut self) -> Held {
        std::mem::take(&mut self.occupies)
    }

    /// Takes note of the decision. `in_process`: the store is in this process, so only the rules hold requests.
    pub(crate) fn decided(&mut self, verdict: &Verdict, in_process: bool) {
        // Only a request that was held can have waited for a turn.
        let is_turn = |limit: &LimitReport<'_>| matches!(limit.decision.outcome, Outcome::Delay(_));
        let turn = self.held.and_then(|_| verdict.limits().find(is_turn));
        let held = self.held.filter(|held| in_process || turn.is_some() || *held >= STORE_ANSWERS);
        if let (Some(held), Some(pool), true) = (held, &self.pool, verdict.allowed()) {
            pool.tally.waited(held);
        }
        if !verdict.allowed() {
            self.answer = Some(ProxyAnswer::Refused);
        }
        let Some(entry) = &mut self.entry else { return };
        entry.wait = held.unwrap_or_default();
        let (decided, rule) = if !verdict.allowed() {
            (Decided::Refused, verdict.refusing().next())
        } else if held.is_some() {
            (Decided::Delayed, turn)
        } else {
            (Decided::Passed, None)
        };
        entry.decided = Some(decided);
        entry.rule = rule.map(|limit| limit.rule.to_owned());
    }

    /// The proxy answers the request itself.
    pub(crate) fn own_answer(&mut self, status: StatusCode) {
        let own =
            if status.is_client_error() { ProxyAnswer::Rejected } else { ProxyAnswer::Unavailable };
        self.ends(self.answer.unwrap_or(own), status);
    }

    // === forwarding ===

    /// Counts the bytes of a request's body, if there is an access log.
    pub(crate) fn counting(&self, body: RequestBody) -> RequestBody {
        match &self.entry {
            Some(entry) => body.counted(&entry.bytes_in),
            None => body,
        }
    }

    /// Takes note of the head that the upstream server gets: it contains the id of the request.
    pub(crate) fn identified(&mut self, headers: &HeaderMap) {
        if let Some(entry) = &mut self.entry {
            entry.identified(headers);
        }
    }

    /// The request is sent to this server of its group, or at least that is tried.
    pub(crate) fn tries(&mut self, server: usize) {
        if let (Some(pool), 1..) = (&self.pool, self.tries) {
            pool.tally.retried();
        }
        self.tries = self.tries.saturating_add(1);
        if let Some(entry) = &mut self.entry {
            entry.server = Some(server);
        }
    }

    /// The head of the answer is there.
    pub(crate) fn first_byte(&mut self, time: Duration) {
        if let Some(pool) = &self.pool {
            pool.tally.first_byte(time);
        }
        if let Some(entry) = &mut self.entry {
            entry.first_byte = Some(time);
        }
    }

    /// The upstream server answered with this status.
    pub(crate) fn answered(&mut self, status: StatusCode) {
        self.ends(ProxyAnswer::of_status(status.as_u16()), status);
    }

    /// No upstream server has answered, because of this error. The client gets this status.
    pub(crate) fn failed(&mut self, error: &UpstreamError, status: StatusCode) {
        let answer = match error {
            UpstreamError::Unreachable => ProxyAnswer::Unreachable,
            UpstreamError::TimedOut | UpstreamError::TimedOutByClient => ProxyAnswer::Timeout,
            UpstreamError::Broken(_) => ProxyAnswer::Broken,
            UpstreamError::Invalid(_) => ProxyAnswer::Invalid,
            UpstreamError::Full
            | UpstreamError::Drained
            | UpstreamError::NoRoom
            | UpstreamError::NoFiles => ProxyAnswer::Unavailable,
            UpstreamError::CutShort => ProxyAnswer::CutShort,
            UpstreamError::SlowClient => ProxyAnswer::Rejected,
        };
        self.ends(answer, status);
    }

    fn ends(&mut self, answer: ProxyAnswer, status: StatusCode) {
        self.answer = Some(answer);
        if let Some(entry) = &mut self.entry {
            entry.status = Some(status.as_u16());
        }
    }

    /// Bytes of the answer's body have arrived.
    pub(crate) fn received(&mut self, bytes: usize) {
        if let Some(entry) = &mut self.entry {
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            entry.bytes_out = entry.bytes_out.saturating_add(bytes);
        }
    }

    /// The answer has arrived completely.
    pub(crate) fn complete(&mut self) {
        if let Some(entry) = &mut self.entry {
            entry.complete = true;
        }
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        let answer = self.answer.unwrap_or(ProxyAnswer::CutShort);
        if let Some(pool) = &self.pool {
            pool.tally.answered(answer);
        }
        if let Some(entry) = self.entry.take() {
            entry.write(self.pool.as_ref().map(|pool| &*pool.group), answer);
        }
    }
}

/// A request that is held, until it is dropped.
struct Hold {
    tally: Option<Arc<GroupTally>>,
    since: Instant,
}

impl Hold {
    fn new(tally: Option<Arc<GroupTally>>) -> Self {
        tally.iter().for_each(|tally| tally.hold());
        Self { tally, since: timers::now() }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.tally.iter().for_each(|tally| tally.release());
    }
}

// === groups that are down ===

/// Reports groups without a server that answers to `/ready` and the log; never returns.
pub(crate) async fn watch_groups(live: Arc<LiveRoutes>, health: Arc<Health>) {
    let mut looks = interval(LOOK_EVERY);
    let mut reported = None;
    loop {
        looks.tick().await;
        let problem = problem_of(&live.load().groups);
        if problem == reported {
            continue;
        }
        match &problem {
            Some(problem) => tracing::error!("{problem}"),
            None => tracing::info!("every group has an upstream server that answers again"),
        }
        health.set_problem("upstreams", problem.clone());
        reported = problem;
    }
}

fn problem_of(groups: &[Arc<UpstreamGroup>]) -> Option<String> {
    let problem = |group: &Arc<UpstreamGroup>| {
        let name = &group.spec.name;
        match group.health() {
            GroupHealth::Up => None,
            GroupHealth::Down => Some(format!("all upstream servers of group `{name}` are down")),
            GroupHealth::Drained => {
                Some(format!("all upstream servers of group `{name}` are drained"))
            }
        }
    };
    let problems: Vec<String> = groups.iter().filter_map(problem).collect();
    (!problems.is_empty()).then(|| problems.join("; "))
}
