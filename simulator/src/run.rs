//! Runs a scenario: starts nodes, makes requests and injects faults at their times, and waits until everything has healed.

use crate::history::{Answered, Decider, History};
use crate::network::{Cut, Wire, World, shifted};
use crate::scenario::{Arrival, FaultKind, Scenario};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate::{
    Attributes, Check, Clock, DecidedBy, Limiter, Policy, Receipt, Report, Secret, Settled,
    Store as _, Verdict,
};
use tidegate_core::{Cost, Now, Span, StateId, Timestamp};
use tidegate_store::testing::Network;
use tidegate_store::{Name, Redis, RedisSettings, StoreHealth};
use tokio::time::{sleep, sleep_until};

/// A machine that runs one process after another.
struct Node {
    number: usize,
    /// How far its wall clock was stepped, in nanoseconds.
    stepped: AtomicI64,
    /// What survives a restart: the number of nodes that it knew.
    disk: AtomicU32,
    process: Mutex<Option<Arc<Process>>>,
    new_policy: AtomicBool,
}

/// A running limiter.
struct Process {
    number: usize,
    limiter: Limiter<Redis>,
    alive: AtomicBool,
}

/// An event, with the index of its arrival or fault.
enum Event {
    Request(usize),
    FaultBegins(usize),
    FaultEnds(usize),
    /// The replica that takes over in a failover has seen all writes up to now.
    Replicated(usize),
}

/// How long healing may take after the last fault.
const HEALS_WITHIN: Duration = Duration::from_secs(8);
/// How long a caller without its own timeout waits, in milliseconds: the timeout of the store.
const PATIENCE: u64 = 50;
/// Error of a node's estimate of the store's time, in nanoseconds.
const CLOCK_ERROR: u64 = 5_000_000;
/// Timers have a resolution of 1 ms, and a fallback may begin when one has just ended.
const SLACK: u64 = 3;

/// The history of a scenario.
#[must_use]
pub fn run(scenario: &Scenario) -> History {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let history = runtime.block_on(play(scenario.clone()));
    runtime.shutdown_background();
    history
}

async fn play(scenario: Scenario) -> History {
    let world = World::new(scenario);
    let nodes: Vec<Arc<Node>> = (0..world.scenario.clocks.len()).map(Node::new).collect();
    for node in &nodes {
        tokio::spawn(start(Arc::clone(&world), Arc::clone(node)));
    }
    for (at, event) in events(&world.scenario) {
        sleep_until(world.instant(at)).await;
        handle(&world, &nodes, &event);
    }
    sleep(HEALS_WITHIN).await;
    record_end(&world, &nodes).await;
    for node in &nodes {
        node.end(&world);
    }
    std::mem::take(&mut world.backend().history)
}

fn events(scenario: &Scenario) -> Vec<(u64, Event)> {
    let mut events: Vec<(u64, Event)> = Vec::new();
    for (number, fault) in scenario.faults.iter().enumerate() {
        if let FaultKind::Failover { lag } = fault.kind {
            events.push((fault.at.saturating_sub(lag), Event::Replicated(number)));
        }
        events.push((fault.at, Event::FaultBegins(number)));
        events.push((fault.until, Event::FaultEnds(number)));
    }
    for (number, arrival) in scenario.arrivals.iter().enumerate() {
        // A node that is paused handles the request when it goes on.
        let stopped = |fault: &&crate::Fault| {
            let on = fault.at <= arrival.at && arrival.at < fault.until;
            on && fault.kind == FaultKind::NodePaused(arrival.node)
        };
        let paused = scenario.faults.iter().filter(stopped).map(|fault| fault.until).max();
        events.push((paused.unwrap_or(arrival.at), Event::Request(number)));
    }
    events.sort_by_key(|(at, _)| *at);
    events
}

fn handle(world: &Arc<World>, nodes: &[Arc<Node>], event: &Event) {
    match event {
        Event::Request(number) => {
            let arrival = world.scenario.arrivals[*number].clone();
            let process = nodes[arrival.node].process.lock().unwrap().clone();
            if let Some(process) = process {
                *world.backend().open.entry(process.number).or_default() += 1;
                let reported_to = arrival.report.map(|report| Arc::clone(&nodes[report.node]));
                tokio::spawn(request(Arc::clone(world), process, arrival, reported_to));
            }
        }
        Event::Replicated(number) => {
            let mut backend = world.backend();
            let replica = (backend.server.clone(), backend.model.clone());
            backend.replicas.insert(*number, replica);
        }
        Event::FaultBegins(number) => {
            let kind = world.scenario.faults[*number].kind;
            world.trace(&format!("fault {number} begins: {kind:?}"));
            begin_fault(world, nodes, *number, kind);
        }
        Event::FaultEnds(number) => {
            let kind = world.scenario.faults[*number].kind;
            world.trace(&format!("fault {number} ends"));
            if let FaultKind::StoreDown { keeps_data } = kind {
                let mut backend = world.backend();
                backend.server.forget_scripts();
                if !keeps_data {
                    backend.server.lose_data();
                    backend.model.forget_all();
                    backend.lost_data(world.nanos());
                }
            }
            if let FaultKind::Crash(node) = kind {
                tokio::spawn(start(Arc::clone(world), Arc::clone(&nodes[node])));
            }
        }
    }
}

fn begin_fault(world: &Arc<World>, nodes: &[Arc<Node>], number: usize, kind: FaultKind) {
    match kind {
        FaultKind::StoreDown { .. } => world.cut(Cut::All),
        FaultKind::ServerDown(server) => world.cut(Cut::Server(server)),
        FaultKind::LoseData => {
            let mut backend = world.backend();
            backend.server.lose_data();
            backend.model.forget_all();
            backend.lost_data(world.nanos());
        }
        FaultKind::Failover { .. } => {
            let mut backend = world.backend();
            if let Some((server, model)) = backend.replicas.remove(&number) {
                (backend.server, backend.model) = (server, model);
                backend.server.forget_scripts();
                backend.lost_data(world.nanos());
            }
            drop(backend);
            world.cut(Cut::All);
        }
        FaultKind::Crash(node) => nodes[node].end(world),
        FaultKind::ForeignState(user) => {
            let states = world.states[user];
            let mut backend = world.backend();
            for state in states {
                backend.server.overwrite_state(state);
                backend.model.forget(state);
                backend.gave_back(state, world.nanos());
            }
        }
        FaultKind::ForeignShapes => world.backend().server.overwrite("{tidegate}shapes"),
        FaultKind::ForeignNodes => world.backend().server.overwrite("{tidegate}nodes"),
        FaultKind::ForbidEval => world.backend().server.forbid("EVAL"),
        FaultKind::WallStep(node, seconds) => {
            nodes[node].stepped.fetch_add(seconds * 1_000_000_000, Ordering::Relaxed);
        }
        FaultKind::NewPolicy(node) => nodes[node].renew(world),
        FaultKind::RequestDelay(_)
        | FaultKind::ReplyDelay(_)
        | FaultKind::Jitter(_)
        | FaultKind::LoseRequests(_)
        | FaultKind::LoseReplies(_)
        | FaultKind::CutReplies(_)
        | FaultKind::Partition(_)
        | FaultKind::StorePaused
        | FaultKind::ServerPaused(_)
        | FaultKind::NodePaused(_) => {}
    }
}

// === nodes ===

impl Node {
    fn new(number: usize) -> Arc<Self> {
        Arc::new(Self {
            number,
            stepped: AtomicI64::new(0),
            disk: AtomicU32::new(0),
            process: Mutex::default(),
            new_policy: AtomicBool::new(false),
        })
    }

    fn end(&self, world: &World) {
        let Some(process) = self.process.lock().unwrap().take() else { return };
        self.disk.store(process.limiter.store().nodes(), Ordering::Relaxed);
        process.alive.store(false, Ordering::Relaxed);
        world.cut(Cut::Process(process.number));
        world.backend().history.processes[process.number].2 = world.millis();
    }

    fn policy(&self, world: &World) -> Policy {
        world.scenario.policy(usize::from(self.new_policy.load(Ordering::Relaxed)))
    }

    fn renew(&self, world: &World) {
        self.new_policy.store(true, Ordering::Relaxed);
        if let Some(process) = &*self.process.lock().unwrap() {
            process.limiter.reload(self.policy(world)).expect("a policy");
        }
    }
}

fn secret() -> Secret {
    Secret::new([7; 32])
}

/// The state of a user or a tenant under a version of its rule.
pub(crate) fn state(scenario: &Scenario, subject: usize, version: usize) -> StateId {
    let limit = scenario.rules_of(subject)[version].rule_limit();
    let (rule, key, name) = match subject.checked_sub(scenario.users()) {
        None => ("r", "user", user_name(subject)),
        Some(tenant) => ("t", "tenant", tenant_name(tenant)),
    };
    let name = Name { rule, limit: limit.id(), key: &[(key, &name)] };
    name.id(limit.limit(), &secret())
}

fn tenant_name(tenant: usize) -> String {
    format!("tenant-{tenant}")
}

fn user_name(user: usize) -> String {
    format!("user-{user}")
}

/// Starts a process on a node.
async fn start(world: Arc<World>, node: Arc<Node>) {
    let process = {
        let (mut backend, began) = (world.backend(), world.millis());
        backend.history.processes.push((node.number, began, u64::MAX));
        backend.history.processes.len() - 1
    };
    let clock = {
        let (world, node) = (Arc::clone(&world), Arc::clone(&node));
        let (off, drift) = world.scenario.clocks[node.number];
        Clock::borrowed(move || {
            let steady = shifted(world.nanos(), off, drift);
            let stepped = node.stepped.load(Ordering::Relaxed);
            let calendar =
                Timestamp::from_nanos(steady.as_nanos().checked_add_signed(stepped).unwrap());
            Now { steady, calendar }
        })
    };
    let wire = |server| -> Arc<dyn Network> {
        Arc::new(Wire { world: Arc::clone(&world), node: node.number, process, server })
    };
    let wires = (0..world.scenario.servers()).map(wire).collect();
    let known = node.disk.load(Ordering::Relaxed);
    let known_nodes = (world.scenario.keeps_disk && known > 0).then_some(known);
    let settings = RedisSettings { known_nodes, ..RedisSettings::new("redis://simulated/") };
    let store = Redis::simulated(&settings, &secret(), clock.clone(), wires).await;
    let limiter = Limiter::new(node.policy(&world), store.expect("a store"), secret(), clock);
    let limiter = limiter.expect("a limiter");
    world.trace(&format!("node {} is process {process}", node.number));
    let process = Process { number: process, limiter, alive: AtomicBool::new(true) };
    *node.process.lock().unwrap() = Some(Arc::new(process));
}

// === callers ===

/// One request: checks, records the answer, and later reports what it cost.
async fn request(
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
        match decided_at(&world, &process, &arrival, &verdict) {
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
    sleep(Duration::from_millis(reported.after)).await;
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

fn decider(verdict: &Verdict) -> Decider {
    match verdict.decided_by {
        DecidedBy::Store | DecidedBy::Sketch | DecidedBy::Lease | DecidedBy::Policy => {
            Decider::Store
        }
        DecidedBy::Cache => Decider::Cache,
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
    verdict: &Verdict,
) -> Option<[u64; 2]> {
    let mut backend = world.backend();
    let list = backend.pending.get_mut(&process.number)?;
    let mut taken = Vec::new();
    for (subject, limit) in subjects(&world.scenario, arrival).zip(verdict.limits()) {
        let index = list.iter().position(|pending| {
            // A take that passed on one server and was refused on the other is given back, and answered as if it were not taken.
            let remaining = if pending.passes == verdict.allowed() {
                pending.remaining
            } else {
                pending.before
            };
            world.states[subject].contains(&pending.state)
                && (pending.passes || !verdict.allowed())
                && remaining == limit.decision.remaining
                && pending.cost == arrival.cost
        })?;
        taken.push(list.remove(index));
    }
    let passes = taken.iter().all(|pending| pending.passes);
    (passes == verdict.allowed()).then_some([taken.first()?.at, taken.last()?.at])
}

fn attributes<'a>(user: &'a str, tenant: &'a str) -> Attributes<'a> {
    let attributes = Attributes::new().with("user", user);
    attributes.and_then(|attributes| attributes.with("tenant", tenant)).expect("attributes")
}

/// Whether the store would refuse a request too, or did so half a second ago.
fn refused_there(world: &World, arrival: &Arrival, verdict: &Verdict) -> bool {
    let (backend, now) = (world.backend(), world.nanos());
    // A node's estimate of the store's time is a few milliseconds off, and it calls the store if in doubt.
    let then = shifted(now.saturating_sub(CLOCK_ERROR), world.scenario.store_clock, 0);
    subjects(&world.scenario, arrival).zip(verdict.limits()).any(|(subject, limit)| {
        world.states[subject].into_iter().any(|state| {
            backend.refused_more_lately(state, now)
                || backend.model.refuses(state, limit.limit, arrival.cost, then)
        })
    })
}

/// Records the final state, after everything has healed.
async fn record_end(world: &Arc<World>, nodes: &[Arc<Node>]) {
    for states in &world.states {
        let used = states.map(|state| world.backend().model.used(state, world.store_time()));
        let short = states.map(|state| world.backend().model.short(state));
        world.backend().history.counted.push(used[0].max(used[1]));
        world.backend().history.short.push(short[0].max(short[1]));
    }
    for node in nodes {
        let process = node.process.lock().unwrap().clone();
        let Some(process) = process else { continue };
        let stranger = format!("stranger-{}", node.number);
        let attributes = attributes(&stranger, &stranger);
        let verdict = process.limiter.check(&Check::new(&attributes)).await.expect("a verdict");
        let complaint = process.limiter.store().complaint();
        world.trace(&format!(
            "node {} in the end: {:?}, {complaint:?}",
            node.number,
            decider(&verdict)
        ));
        let seen = (node.number, Some(decider(&verdict)), complaint);
        let restarts = process.limiter.store().report().map_or(0, |report| report.restarts);
        let mut backend = world.backend();
        backend.history.healed.push(seen);
        if restarts > 0 {
            backend.history.wrong.push(format!("a task of node {} panicked", node.number));
        }
        if backend.open.get(&process.number).is_some_and(|open| *open > 0) {
            backend.history.unanswered.push(process.number);
        }
    }
}
