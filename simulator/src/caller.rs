//! Callers: they make requests, record the answers, and report what the requests cost.

use crate::history::{Answered, Decider};
use crate::names::{attributes, tenant_name, user_name};
use crate::network::{World, shifted};
use crate::node::{Node, Process};
use crate::scenario::{Arrival, Scenario};
use crate::timers;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidegate::{Check, DecidedBy, Receipt, Report, Settled, Verdict};
use tidegate_core::{Algorithm, Cost, Limit, Period, Span, Timestamp};

/// How long a caller without its own timeout waits, in milliseconds: the timeout of the store.
const PATIENCE: u64 = 50;
/// Error of a node's estimate of the store's time, in nanoseconds.
const CLOCK_ERROR: u64 = 5_000_000;
/// Timers have a resolution of 1 ms, and a fallback may begin when one has just ended.
const SLACK: u64 = 3;

/// One request: checks, records the answer, and later reports what it cost.
pub(crate) async fn request(
    world: Arc<World>,
    process: Arc<Process>,
    arrival: Arrival,
    reported_to: Option<Arc<Node>>,
) {
    let asked = world.nanos();
    let verdict = check(&process, &arrival, reported_to.is_some()).await;
    if !process.alive.load(Ordering::Relaxed) {
        return; // The process ended before it could answer.
    }
    world.backend().open.entry(process.number).and_modify(|open| *open -= 1);
    let mut answered = answered(&world, process.number, &arrival, asked, &verdict);
    if answered.by == Decider::Store {
        match decided_at(&world, &process, &arrival, (asked, &verdict)) {
            Some(at) => answered.decided = at,
            None => {
                let wrong = "an answer of the store is not what the core makes of its history";
                world.backend().history.wrong.push(wrong.to_owned());
            }
        }
    }
    world.trace(&describe(&answered, &arrival));
    let number = {
        let answers = &mut world.backend().history.answered;
        answers.push(answered);
        answers.len() - 1
    };
    let receipt = verdict.receipt().cloned();
    drop(verdict);
    if let (Some(node), Some(receipt)) = (reported_to, receipt) {
        report(&world, &node, &arrival, &receipt, number).await;
    }
}

async fn check(process: &Process, arrival: &Arrival, with_receipt: bool) -> Verdict {
    let (user, tenant) = (user_name(arrival.user), tenant_name(arrival.tenant));
    let attributes = attributes(&user, &tenant);
    let check = Check::new(&attributes).cost(arrival.cost);
    let check = match arrival.timeout {
        Some(millis) => check.within(Span::from_millis(millis)),
        None => check,
    };
    let check = if with_receipt { check.with_receipt() } else { check };
    process.limiter.check(&check).await.expect("a verdict")
}

/// The record of an answer that has just been given.
fn answered(
    world: &World,
    process: usize,
    arrival: &Arrival,
    asked: u64,
    verdict: &Verdict,
) -> Answered {
    let patience = arrival.timeout.unwrap_or(PATIENCE).clamp(SLACK, PATIENCE);
    Answered {
        process,
        user: arrival.user,
        tenant: subjects(&world.scenario, arrival).nth(1),
        cost: arrival.cost,
        asked,
        answered: world.nanos(),
        deadline: asked + (patience + SLACK) * 1_000_000,
        decided: [world.nanos(); 2],
        allowed: verdict.allowed(),
        by: decider(verdict),
        hurried: arrival.timeout.is_some(),
        given_back: (0, 0),
        settled: u64::MAX,
        refused_there: refused_there(world, arrival, verdict),
    }
}

/// An answer, for the trace.
fn describe(answered: &Answered, arrival: &Arrival) -> String {
    format!(
        "process {} {} user {}{} a cost of {} by {:?}{}",
        answered.process,
        if answered.allowed { "grants" } else { "refuses" },
        answered.user,
        answered.tenant.map(|tenant| format!(" and tenant {tenant}")).unwrap_or_default(),
        answered.cost,
        answered.by,
        arrival
            .timeout
            .map(|millis| format!(", with a timeout of {millis} ms"))
            .unwrap_or_default(),
    )
}

/// Reports the actual cost of an answered request, and records what that gave back.
async fn report(
    world: &Arc<World>,
    node: &Node,
    arrival: &Arrival,
    receipt: &Receipt,
    number: usize,
) {
    let Some(reported) = arrival.report else { return };
    timers::sleep(Duration::from_millis(reported.after)).await;
    let Some(process) = node.process.lock().unwrap().clone() else { return };
    let what = match reported.cost {
        0 => Report::Cancelled,
        cost => Report::Cost(Cost::new(cost)),
    };
    let amount = arrival.cost - reported.cost;
    let given_back = |least, most| {
        world.backend().history.answered[number].given_back = (least, most);
    };
    // It may be given back although the reply is lost.
    given_back(0, amount);
    let reported_at = world.nanos();
    let settled = process.limiter.report(receipt, what).await;
    if !process.alive.load(Ordering::Relaxed) {
        return;
    }
    world.backend().history.answered[number].settled = world.nanos();
    world.trace(&format!("process {} gives back {amount}: {settled:?}", process.number));
    match settled {
        Ok(Settled::Done) => {
            let answered = world.backend().history.answered[number].clone();
            let sure = answered.by == Decider::Store
                || world.scenario.is_cut_off(arrival.node, answered.asked, reported_at);
            given_back(if sure { amount } else { 0 }, amount);
            let alone = answered.by == Decider::Fallback && world.scenario.tenants.is_none();
            if alone && answered.process != process.number {
                let wrong = "a node gave back what the fallback of another node had counted";
                world.backend().history.wrong.push(wrong.to_owned());
            }
        }
        Ok(Settled::Already | Settled::Late | Settled::Full) => given_back(0, 0),
        Err(_) => {}
    }
    let loses = |fault: &crate::Fault| fault.kind.loses_data();
    if !reported.again || settled.is_err() || world.scenario.faults.iter().any(loses) {
        return;
    }
    if let Ok(Settled::Done) = process.limiter.report(receipt, what).await {
        let wrong = "a cost that was reported twice was given back twice";
        world.backend().history.wrong.push(wrong.to_owned());
    }
}

pub(crate) fn decider(verdict: &Verdict) -> Decider {
    match verdict.decided_by {
        DecidedBy::Store | DecidedBy::Policy => Decider::Store,
        DecidedBy::Cache => Decider::Cache,
        DecidedBy::Lease => Decider::Lease,
        DecidedBy::Fallback => Decider::Fallback,
    }
}

/// The subject numbers of a request: its user, and its tenant if tenants have a rule.
fn subjects(scenario: &Scenario, arrival: &Arrival) -> impl Iterator<Item = usize> {
    let tenant = scenario.tenants.is_some().then(|| scenario.users() + arrival.tenant);
    std::iter::once(arrival.user).chain(tenant)
}

/// When the store decided an answer of a node, by the model; `None` if the model has no such decision.
fn decided_at(
    world: &World,
    process: &Process,
    arrival: &Arrival,
    (asked, verdict): (u64, &Verdict),
) -> Option<[u64; 2]> {
    let mut backend = world.backend();
    let list = backend.pending.get_mut(&process.number)?;
    let mut taken = Vec::new();
    // The node may have spent what it holds for the user, and the store decided only for the tenant. If both are refused, the
    // decision of another request for the same user may look the same.
    let may_be_spent = world.scenario.lease.is_some() && world.scenario.tenants.is_some();
    let mut spent_here = false;
    for (subject, limit) in subjects(&world.scenario, arrival).zip(verdict.limits()) {
        let found = list.iter().position(|pending| {
            // A take that passed on one server and was refused on the other is given back, and answered as if it were not taken.
            let remaining = if pending.passes == verdict.allowed() {
                pending.remaining
            } else {
                pending.before
            };
            // An older decision belongs to a caller that did not wait for it.
            pending.at >= asked
                && world.states[subject].contains(&pending.state)
                && (pending.passes || !verdict.allowed())
                && remaining == limit.decision.remaining
                && pending.cost == arrival.cost
        });
        match found {
            None if may_be_spent && subject == arrival.user => spent_here = true,
            found => taken.push(list.remove(found?)),
        }
    }
    if spent_here {
        return Some([asked, taken.first()?.at]);
    }
    let passes = taken.iter().all(|pending| pending.passes);
    (passes == verdict.allowed()).then_some([taken.first()?.at, taken.last()?.at])
}

/// Whether the store would refuse a request too, or did so half a second ago.
fn refused_there(world: &World, arrival: &Arrival, verdict: &Verdict) -> bool {
    let (backend, now) = (world.backend(), world.nanos());
    // A node's estimate of the store's time is a few milliseconds off, and it calls the store if in doubt.
    let [then, store_now] = [now.saturating_sub(CLOCK_ERROR), now]
        .map(|time| shifted(time, world.scenario.store_clock, 0));
    subjects(&world.scenario, arrival).zip(verdict.limits()).any(|(subject, limit)| {
        world.states[subject].into_iter().any(|state| {
            backend.refused_more_lately(state, now)
                // A take of another node may have moved the model to the next window already.
                || begins_between(limit.limit, then, store_now)
                || backend.model.refuses(state, limit.limit, arrival.cost, then)
        })
    })
}

/// Whether a window or sub-window of a limit begins between two times.
fn begins_between(limit: &Limit, from: Timestamp, to: Timestamp) -> bool {
    let Period::Every(period) = limit.period() else { return false };
    let step = match limit.algorithm() {
        Algorithm::FixedWindow { .. } | Algorithm::SlidingWeighted => period.as_nanos(),
        Algorithm::SlidingBuckets { buckets } => period.as_nanos() / u64::from(buckets),
        Algorithm::SlidingLog
        | Algorithm::TokenBucket { .. }
        | Algorithm::LeakyBucket { .. }
        | Algorithm::Concurrent => return false,
    };
    from.as_nanos() / step != to.as_nanos() / step
}
