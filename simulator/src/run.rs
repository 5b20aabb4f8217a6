//! Runs a scenario: starts nodes, makes requests and injects faults at their times, and waits until everything has healed.

use crate::caller::{decider, request};
use crate::history::History;
use crate::names::attributes;
use crate::network::{Cut, World};
use crate::node::{Node, start};
use crate::scenario::{FaultKind, Scenario};
use crate::timers;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidegate::Check;
use tidegate_store::StoreHealth;

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

/// Runs a scenario in virtual time, and returns its history.
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
        timers::sleep_until(world.instant(at)).await;
        handle(&world, &nodes, &event);
    }
    timers::sleep(HEALS_WITHIN).await;
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
        let imbalance = process.limiter.store().lease_imbalance();
        let mut backend = world.backend();
        if let Some(what) = imbalance {
            let wrong = format!("leases of node {} do not add up: {what}", node.number);
            backend.history.wrong.push(wrong);
        }
        backend.history.healed.push(seen);
        if restarts > 0 {
            backend.history.wrong.push(format!("a task of node {} panicked", node.number));
        }
        if backend.open.get(&process.number).is_some_and(|open| *open > 0) {
            backend.history.unanswered.push(process.number);
        }
    }
}
