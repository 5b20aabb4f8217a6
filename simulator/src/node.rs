//! Nodes: machines with a clock and a disk that run the real limiter on the real store, one process after another.

use crate::names::secret;
use crate::network::{Cut, Wire, World, shifted};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use tidegate::{Clock, Limiter, Policy, Store as _};
use tidegate_core::{Now, Timestamp};
use tidegate_store::testing::Network;
use tidegate_store::{Redis, RedisSettings};

/// A machine that runs one process after another.
pub(crate) struct Node {
    pub(crate) number: usize,
    /// How far its wall clock was stepped, in nanoseconds.
    pub(crate) stepped: AtomicI64,
    /// What survives a restart: the number of nodes that it knew.
    disk: AtomicU32,
    pub(crate) process: Mutex<Option<Arc<Process>>>,
    new_policy: AtomicBool,
}

/// A running limiter.
pub(crate) struct Process {
    pub(crate) number: usize,
    pub(crate) limiter: Limiter<Redis>,
    pub(crate) alive: AtomicBool,
}

impl Node {
    pub(crate) fn new(number: usize) -> Arc<Self> {
        Arc::new(Self {
            number,
            stepped: AtomicI64::new(0),
            disk: AtomicU32::new(0),
            process: Mutex::default(),
            new_policy: AtomicBool::new(false),
        })
    }

    /// Ends the running process without a shutdown.
    pub(crate) fn end(&self, world: &World) {
        let Some(process) = self.process.lock().unwrap().take() else { return };
        self.disk.store(process.limiter.store().nodes(), Ordering::Relaxed);
        process.alive.store(false, Ordering::Relaxed);
        world.cut(Cut::Process(process.number));
        world.backend().history.processes[process.number].2 = world.millis();
    }

    fn policy(&self, world: &World) -> Policy {
        world.scenario.policy(usize::from(self.new_policy.load(Ordering::Relaxed)))
    }

    /// Loads the second version of the policy.
    pub(crate) fn renew(&self, world: &World) {
        self.new_policy.store(true, Ordering::Relaxed);
        if let Some(process) = &*self.process.lock().unwrap() {
            process.limiter.reload(self.policy(world)).expect("a policy");
        }
    }
}

/// Starts a process on a node.
pub(crate) async fn start(world: Arc<World>, node: Arc<Node>) {
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
    let node_id = world.scenario.keeps_disk.then(|| u64::try_from(node.number).unwrap());
    let settings =
        RedisSettings { known_nodes, node_id, ..RedisSettings::new("redis://simulated/") };
    let store = Redis::simulated(&settings, &secret(), clock.clone(), wires).await;
    let limiter = Limiter::new(node.policy(&world), store.expect("a store"), secret(), clock);
    let limiter = limiter.expect("a limiter");
    world.trace(&format!("node {} is process {process}", node.number));
    let process = Process { number: process, limiter, alive: AtomicBool::new(true) };
    *node.process.lock().unwrap() = Some(Arc::new(process));
}
