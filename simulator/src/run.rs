//! Plays a scenario: starts nodes, lets callers ask and things break when it is their time, and heals all of it.

use crate::history::{Answered, By, History};
use crate::network::{Cut, Wire, World, shifted};
use crate::scenario::{Arrival, Kind, Scenario};
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
    /// How far its wall clock was set, in nanoseconds.
    stepped: AtomicI64,
    /// What survives a process: how many nodes it knew of.
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

/// Something that happens at a time.
enum Event {
    Asked(usize),
    Begins(usize),
    Ends(usize),
    /// A replica that will take over has seen everything up to now.
    Replicated(usize),
}

/// How long everything may take to be as it was after all is healed.
const HEALS_WITHIN: Duration = Duration::from_secs(8);
/// How long a caller that does not say waits for its answer, in milliseconds: the store's own timeout.
const PATIENCE: u64 = 50;
/// How far a node may be wrong about the store's time beyond what it knows, in nanoseconds.
const CLOCK_DOUBT: u64 = 5_000_000;
/// Timers count milliseconds, and a fallback may begin when one has just ended.
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
        happen(&world, &nodes, &event);
    }
    sleep(HEALS_WITHIN).await;
    end(&world, &nodes).await;
    for node in &nodes {
        node.end(&world);
    }
    std::mem::take(&mut world.backend().history)
}

fn events(scenario: &Scenario) -> Vec<(u64, Event)> {
    let mut events: Vec<(u64, Event)> = Vec::new();
    for (number, fault) in scenario.faults.iter().enumerate() {
        if let Kind::Failover { lag } = fault.kind {
            events.push((fault.at.saturating_sub(lag), Event::Replicated(number)));
        }
        events.push((fault.at, Event::Begins(number)));
        events.push((fault.until, Event::Ends(number)));
    }
    for (number, arrival) in scenario.arrivals.iter().enumerate() {
        // Who asks a node that stands still is heard when it goes on.
        let stopped = |fault: &&crate::Fault| {
            let on = fault.at <= arrival.at && arrival.at < fault.until;
            on && fault.kind == Kind::NodePaused(arrival.node)
        };
        let paused = scenario.faults.iter().filter(stopped).map(|fault| fault.until).max();
        events.push((paused.unwrap_or(arrival.at), Event::Asked(number)));
    }
    events.sort_by_key(|(at, _)| *at);
    events
}

fn happen(world: &Arc<World>, nodes: &[Arc<Node>], event: &Event) {
    match event {
        Event::Asked(number) => {
            let arrival = world.scenario.arrivals[*number].clone();
            let process = nodes[arrival.node].process.lock().unwrap().clone();
            if let Some(process) = process {
                *world.backend().open.entry(process.number).or_default() += 1;
                let reported_to = arrival.report.map(|report| Arc::clone(&nodes[report.node]));
                tokio::spawn(ask(Arc::clone(world), process, arrival, reported_to));
            }
        }
        Event::Replicated(number) => {
            let mut backend = world.backend();
            let replica = (backend.server.clone(), backend.model.clone());
            backend.replicas.insert(*number, replica);
        }
        Event::Begins(number) => {
            let kind = world.scenario.faults[*number].kind;
            world.say(&format!("fault {number} begins: {kind:?}"));
            begin(world, nodes, *number, kind);
        }
        Event::Ends(number) => {
            let kind = world.scenario.faults[*number].kind;
            world.say(&format!("fault {number} ends"));
            if let Kind::StoreDown { keeps_data } = kind {
                let mut backend = world.backend();
                backend.server.forget_scripts();
                if !keeps_data {
                    backend.server.lose_data();
                    backend.model.forget_all();
                    backend.lost_data(world.nanos());
                }
            }
            if let Kind::Crash(node) = kind {
                tokio::spawn(start(Arc::clone(world), Arc::clone(&nodes[node])));
            }
        }
    }
}

fn begin(world: &Arc<World>, nodes: &[Arc<Node>], number: usize, kind: Kind) {
    match kind {
        Kind::StoreDown { .. } => world.cut(Cut::All),
        Kind::ServerDown(server) => world.cut(Cut::Server(server)),
        Kind::LoseData => {
            let mut backend = world.backend();
            backend.server.lose_data();
            backend.model.forget_all();
            backend.lost_data(world.nanos());
        }
        Kind::Failover { .. } => {
            let mut backend = world.backend();
            if let Some((server, model)) = backend.replicas.remove(&number) {
                (backend.server, backend.model) = (server, model);
                backend.server.forget_scripts();
                backend.lost_data(world.nanos());
            }
            drop(backend);
            world.cut(Cut::All);
        }
        Kind::Crash(node) => nodes[node].end(world),
        Kind::ForeignState(user) => {
            let states = world.states[user];
            let mut backend = world.backend();
            for state in states {
                backend.server.overwrite_state(state);
                backend.model.forget(state);
                backend.gave_back(state, world.nanos());
            }
        }
        Kind::ForeignShapes => world.backend().server.overwrite("{tidegate}shapes"),
        Kind::ForeignNodes => world.backend().server.overwrite("{tidegate}nodes"),
        Kind::ForbidEval => world.backend().server.forbid("EVAL"),
        Kind::WallStep(node, seconds) => {
            nodes[node].stepped.fetch_add(seconds * 1_000_000_000, Ordering::Relaxed);
        }
        Kind::NewPolicy(node) => nodes[node].renew(world),
        Kind::RequestDelay(_)
        | Kind::ReplyDelay(_)
        | Kind::Jitter(_)
        | Kind::LoseRequests(_)
        | Kind::LoseReplies(_)
        | Kind::CutReplies(_)
        | Kind::Partition(_)
        | Kind::StorePaused
        | Kind::ServerPaused(_)
        | Kind::NodePaused(_) => {}
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
    world.say(&format!("node {} is process {process}", node.number));
    let process = Process { number: process, limiter, alive: AtomicBool::new(true) };
    *node.process.lock().unwrap() = Some(Arc::new(process));
}

// === callers ===

async fn ask(
    world: Arc<World>,
    process: Arc<Process>,
    arrival: Arrival,
    reported_to: Option<Arc<Node>>,
) {
    let (user, tenant) = (user_name(arrival.user), tenant_name(arrival.tenant));
    let attributes = attributes(&user, &tenant);
    let check = Check::new(&attributes).cost(arrival.cost);
    let check = match arrival.timeout {
        Some(millis) => check.within(Span::from_millis(millis)),
        None => check,
    };
    let check = if reported_to.is_some() { check.with_receipt() } else { check };
    let asked = world.nanos();
    let verdict = process.limiter.check(&check).await.expect("a verdict");
    if !process.alive.load(Ordering::Relaxed) {
        return; // Its caller was left without an answer when the process ended.
    }
    world.backend().open.entry(process.number).and_modify(|open| *open -= 1);
    let patience = arrival.timeout.unwrap_or(PATIENCE).clamp(SLACK, PATIENCE);
    let mut answered = Answered {
        process: process.number,
        user: arrival.user,
        tenant: subjects(&world.scenario, &arrival).nth(1),
        cost: arrival.cost,
        asked,
        answered: world.nanos(),
        deadline: asked + (patience + SLACK) * 1_000_000,
        decided: [world.nanos(); 2],
        allowed: verdict.allowed(),
        by: by(&verdict),
        hurried: arrival.timeout.is_some(),
        given_back: (0, 0),
        refused_there: refused_there(&world, &arrival, &verdict),
    };
    if answered.by == By::Store {
        match told(&world, &process, &arrival, (asked, &verdict)) {
            Some(at) => answered.decided = at,
            None => {
                let wrong = "an answer of the store is not what the core makes of its history";
                world.backend().history.wrong.push(wrong.to_owned());
            }
        }
    }
    world.say(&format!(
        "node of process {} {} user {}{} a cost of {} by {:?}{}",
        answered.process,
        if answered.allowed { "grants" } else { "refuses" },
        answered.user,
        answered.tenant.map(|tenant| format!(" and tenant {tenant}")).unwrap_or_default(),
        answered.cost,
        answered.by,
        arrival.timeout.map(|millis| format!(", asked within {millis} ms")).unwrap_or_default(),
    ));
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

/// Reports what the request of an answer cost in truth, and notes what that gave back.
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
    // It may be done although its answer never comes.
    given_back(0, amount);
    let reported_at = world.nanos();
    let settled = process.limiter.report(receipt, what).await;
    if !process.alive.load(Ordering::Relaxed) {
        return;
    }
    world.say(&format!("process {} is told to give back {amount}: {settled:?}", process.number));
    match settled {
        Ok(Settled::Done) => {
            let answered = world.backend().history.answered[number].clone();
            let sure = answered.by == By::Store
                || world.scenario.is_cut_off(arrival.node, answered.asked, reported_at);
            given_back(if sure { amount } else { 0 }, amount);
            let alone = answered.by == By::Fallback && world.scenario.tenants.is_none();
            if alone && answered.process != process.number {
                let wrong = "a node gave back what another had counted by itself";
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
        let wrong = "what was reported twice was given back twice";
        world.backend().history.wrong.push(wrong.to_owned());
    }
}

fn by(verdict: &Verdict) -> By {
    match verdict.decided_by {
        DecidedBy::Store | DecidedBy::Sketch | DecidedBy::Lease | DecidedBy::Policy => By::Store,
        DecidedBy::Cache => By::Cache,
        DecidedBy::Fallback => By::Fallback,
    }
}

/// The numbers of whom a request is of: its user, and its tenant if tenants have a rule.
fn subjects(scenario: &Scenario, arrival: &Arrival) -> impl Iterator<Item = usize> {
    let tenant = scenario.tenants.is_some().then(|| scenario.users() + arrival.tenant);
    std::iter::once(arrival.user).chain(tenant)
}

/// When the store decided what a node answers, by the model; nothing if the model says something else.
fn told(
    world: &World,
    process: &Process,
    arrival: &Arrival,
    (asked, verdict): (u64, &Verdict),
) -> Option<[u64; 2]> {
    let mut backend = world.backend();
    let list = backend.told.get_mut(&process.number)?;
    let mut taken = Vec::new();
    for (subject, said) in subjects(&world.scenario, arrival).zip(verdict.limits()) {
        let place = list.iter().position(|told| {
            // What passed on one server and was refused on the other is given back, and answered as if it had not been taken.
            let remaining =
                if told.passes == verdict.allowed() { told.remaining } else { told.before };
            // What the store decided before the request was made belongs to a caller that did not wait for it.
            told.at >= asked
                && world.states[subject].contains(&told.state)
                && (told.passes || !verdict.allowed())
                && remaining == said.decision.remaining
                && told.cost == arrival.cost
        })?;
        taken.push(list.remove(place));
    }
    let passes = taken.iter().all(|told| told.passes);
    (passes == verdict.allowed()).then_some([taken.first()?.at, taken.last()?.at])
}

fn attributes<'a>(user: &'a str, tenant: &'a str) -> Attributes<'a> {
    let attributes = Attributes::new().with("user", user);
    attributes.and_then(|attributes| attributes.with("tenant", tenant)).expect("attributes")
}

/// Whether the store would refuse a request, too, or did so a moment ago.
fn refused_there(world: &World, arrival: &Arrival, verdict: &Verdict) -> bool {
    let (backend, now) = (world.backend(), world.nanos());
    // A node knows the store's time to a few milliseconds, and errs on the side of asking it.
    let then = shifted(now.saturating_sub(CLOCK_DOUBT), world.scenario.store_clock, 0);
    subjects(&world.scenario, arrival).zip(verdict.limits()).any(|(subject, of)| {
        world.states[subject].into_iter().any(|state| {
            backend.refused_more_lately(state, now)
                || backend.model.refuses(state, of.limit, arrival.cost, then)
        })
    })
}

/// Looks at everything after it was healed.
async fn end(world: &Arc<World>, nodes: &[Arc<Node>]) {
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
        world.say(&format!("node {} in the end: {:?}, {complaint:?}", node.number, by(&verdict)));
        let seen = (node.number, Some(by(&verdict)), complaint);
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
