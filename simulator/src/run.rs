//! Plays a scenario: starts nodes, lets callers ask and things break when it is their time, and heals all of it.

use crate::history::{Answered, By, History};
use crate::network::{Wire, World, shifted};
use crate::scenario::{Arrival, Kind, Scenario};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate::{Attributes, Check, Clock, DecidedBy, Limiter, Policy, Secret, Store as _, Verdict};
use tidegate_core::{Now, Span, StateId, Timestamp};
use tidegate_store::{Name, Redis, RedisSettings};
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
                tokio::spawn(ask(Arc::clone(world), process, arrival));
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
        Kind::StoreDown { .. } => world.cut(None),
        Kind::LoseData => {
            let mut backend = world.backend();
            backend.server.lose_data();
            backend.model.forget_all();
        }
        Kind::Failover { .. } => {
            let mut backend = world.backend();
            if let Some((server, model)) = backend.replicas.remove(&number) {
                (backend.server, backend.model) = (server, model);
                backend.server.forget_scripts();
            }
            drop(backend);
            world.cut(None);
        }
        Kind::Crash(node) => nodes[node].end(world),
        Kind::ForeignState(user) => {
            let states = world.states[user];
            let mut backend = world.backend();
            for state in states {
                backend.server.overwrite_state(state);
                backend.model.forget(state);
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
        world.cut(Some(process.number));
        world.backend().history.processes[process.number].2 = world.millis();
    }

    fn policy(&self, world: &World) -> Policy {
        let version = usize::from(self.new_policy.load(Ordering::Relaxed));
        Policy::parse(world.scenario.rules[version].policy()).expect("a policy")
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

/// The state of a user under a version of the rule.
pub(crate) fn state(scenario: &Scenario, user: usize, version: usize) -> StateId {
    let limit = scenario.rules[version].rule_limit();
    let user = user_name(user);
    let name = Name { rule: "r", limit: limit.id(), key: &[("user", &user)] };
    name.id(limit.limit(), &secret())
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
    let wire = Wire { world: Arc::clone(&world), node: node.number, process };
    let known = node.disk.load(Ordering::Relaxed);
    let known_nodes = (world.scenario.keeps_disk && known > 0).then_some(known);
    let settings = RedisSettings { known_nodes, ..RedisSettings::new("redis://simulated/") };
    let store = Redis::simulated(&settings, &secret(), clock.clone(), Arc::new(wire)).await;
    let limiter = Limiter::new(node.policy(&world), store.expect("a store"), secret(), clock);
    let limiter = limiter.expect("a limiter");
    world.say(&format!("node {} is process {process}", node.number));
    let process = Process { number: process, limiter, alive: AtomicBool::new(true) };
    *node.process.lock().unwrap() = Some(Arc::new(process));
}

// === callers ===

async fn ask(world: Arc<World>, process: Arc<Process>, arrival: Arrival) {
    let name = user_name(arrival.user);
    let attributes = Attributes::new().with("user", &*name).expect("a user");
    let check = Check::new(&attributes).cost(arrival.cost);
    let check = match arrival.timeout {
        Some(millis) => check.within(Span::from_millis(millis)),
        None => check,
    };
    let asked = world.nanos();
    let verdict = process.limiter.check(&check).await.expect("a verdict");
    if !process.alive.load(Ordering::Relaxed) {
        return; // Its caller was left without an answer when the process ended.
    }
    let patience = arrival.timeout.unwrap_or(PATIENCE).clamp(SLACK, PATIENCE);
    let mut answered = Answered {
        process: process.number,
        user: arrival.user,
        cost: arrival.cost,
        asked,
        answered: world.nanos(),
        deadline: asked + (patience + SLACK) * 1_000_000,
        decided: world.nanos(),
        allowed: verdict.allowed(),
        by: by(&verdict),
    };
    if answered.by == By::Store {
        match told(&world, &process, &arrival, &verdict) {
            Some(at) => answered.decided = at,
            None => {
                let wrong = "an answer of the store is not what the core makes of its history";
                world.backend().history.wrong.push(wrong.to_owned());
            }
        }
    }
    world.say(&format!(
        "node of process {} {} user {} a cost of {} by {:?}{}",
        answered.process,
        if answered.allowed { "grants" } else { "refuses" },
        answered.user,
        answered.cost,
        answered.by,
        arrival.timeout.map(|millis| format!(", asked within {millis} ms")).unwrap_or_default(),
    ));
    world.backend().history.answered.push(answered);
}

fn by(verdict: &Verdict) -> By {
    match verdict.decided_by {
        DecidedBy::Store | DecidedBy::Sketch | DecidedBy::Lease | DecidedBy::Policy => By::Store,
        DecidedBy::Cache => By::Cache,
        DecidedBy::Fallback => By::Fallback,
    }
}

/// When the store decided what a node answers, by the model; nothing if the model says something else.
fn told(world: &World, process: &Process, arrival: &Arrival, verdict: &Verdict) -> Option<u64> {
    let states = world.states[arrival.user];
    let remaining = verdict.limits().next()?.decision.remaining;
    let mut backend = world.backend();
    let list = backend.told.get_mut(&process.number)?;
    let place = list.iter().position(|told| {
        states.contains(&told.state)
            && told.passes == verdict.allowed()
            && told.remaining == remaining
            && told.cost == arrival.cost
    })?;
    Some(list.remove(place).at)
}

/// Looks at everything after it was healed.
async fn end(world: &Arc<World>, nodes: &[Arc<Node>]) {
    for states in &world.states {
        let used = states.map(|state| world.backend().model.used(state, world.store_time()));
        world.backend().history.counted.push(used[0].max(used[1]));
    }
    for node in nodes {
        let process = node.process.lock().unwrap().clone();
        let Some(process) = process else { continue };
        let stranger = format!("stranger-{}", node.number);
        let attributes = Attributes::new().with("user", &*stranger).expect("a user");
        let verdict = process.limiter.check(&Check::new(&attributes)).await.expect("a verdict");
        let complaint = process.limiter.store().complaint();
        world.say(&format!("node {} in the end: {:?}, {complaint:?}", node.number, by(&verdict)));
        let seen = (node.number, Some(by(&verdict)), complaint);
        world.backend().history.healed.push(seen);
    }
}
