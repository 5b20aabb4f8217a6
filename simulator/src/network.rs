//! The network between the nodes and the store. Messages of one connection stay in order, as with TCP.

use crate::history::{Backend, EPOCH, PendingAnswer};
use crate::names::state;
use crate::random::Random;
use crate::scenario::{Fault, FaultKind, Scenario};
use crate::timers;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tidegate_core::{StateId, Timestamp};
use tidegate_store::testing::{
    Effect, Executed, Network, NetworkFuture, SimulatedReply, SimulatedRequest,
};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

/// Everything except the nodes: the scenario, the true time, the network and the store.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) scenario: Scenario,
    /// The state of each user and tenant under each version of its rule.
    pub(crate) states: Vec<[StateId; 2]>,
    start: Instant,
    backend: Mutex<Backend>,
    wires: Mutex<Wires>,
}

#[derive(Debug)]
struct Wires {
    random: Random,
    connections: Vec<Connection>,
}

#[derive(Debug)]
struct Connection {
    node: usize,
    server: usize,
    process: usize,
    cut: watch::Sender<bool>,
    /// Arrival of the last message: no message overtakes an earlier one.
    last_request: Instant,
    last_reply: Instant,
}

/// The network as one process sees it.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) world: Arc<World>,
    pub(crate) node: usize,
    pub(crate) process: usize,
    /// The server of the store at the other end.
    pub(crate) server: usize,
}

/// Which connections are cut.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cut {
    All,
    Process(usize),
    Server(usize),
}

/// A request under way.
#[derive(Debug)]
struct Trip {
    node: usize,
    process: usize,
    server: usize,
    cut: watch::Receiver<bool>,
    fate: Fate,
    /// When the request arrives, if nothing stops it.
    arrives: Instant,
}

/// Which faults hit one request and its reply.
#[derive(Debug)]
struct Fate {
    request_lost: bool,
    reply: ReplyFate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyFate {
    Arrives,
    Lost,
    Cut,
}

/// The checks expect nothing of a reply that arrives later than this. The store settles late replies for 5 s, so what arrives
/// later may stay counted.
pub(crate) const LATE: Duration = Duration::from_millis(4_000);

/// A request that is executed this long after it was sent should do nothing: the script knows the deadline of its caller,
/// which is 50 ms, by an estimate of the server's time that is off by at most 25 ms.
const TOO_LATE: Duration = Duration::from_millis(80);
/// A give-back that is executed this long after it was sent should do nothing: its deadline is 5 s.
const GIVEN_BACK_TOO_LATE: Duration = Duration::from_millis(5_030);

impl World {
    pub(crate) fn new(scenario: Scenario) -> Arc<Self> {
        let random = Random::new(scenario.seed ^ 0x6e65_7477_6f72_6b00);
        let wires = Mutex::new(Wires { random, connections: vec![] });
        let of_subject = |subject| [0, 1].map(|version| state(&scenario, subject, version));
        let states = (0..scenario.subjects()).map(of_subject).collect();
        Arc::new(Self { scenario, states, start: timers::now(), backend: Mutex::default(), wires })
    }

    pub(crate) fn backend(&self) -> MutexGuard<'_, Backend> {
        self.backend.lock().unwrap()
    }

    fn wires(&self) -> MutexGuard<'_, Wires> {
        self.wires.lock().unwrap()
    }

    /// The true time since the beginning.
    pub(crate) fn nanos(&self) -> u64 {
        u64::try_from(timers::since(self.start).as_nanos()).unwrap()
    }

    pub(crate) fn millis(&self) -> u64 {
        self.nanos() / 1_000_000
    }

    pub(crate) fn instant(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    /// The time by the store's clock.
    pub(crate) fn store_time(&self) -> Timestamp {
        shifted(self.nanos(), self.scenario.store_clock, 0)
    }

    pub(crate) fn trace(&self, line: &str) {
        let millis = self.millis();
        let line = format!("{:>3}.{:03} s  {line}", millis / 1_000, millis % 1_000);
        self.backend().history.trace.push(line);
    }

    /// Cuts all connections, or those of a process, or those to a server.
    pub(crate) fn cut(&self, whose: Cut) {
        for connection in &self.wires().connections {
            let cut = match whose {
                Cut::All => true,
                Cut::Process(process) => process == connection.process,
                Cut::Server(server) => server == connection.server,
            };
            if cut {
                connection.cut.send_replace(true);
            }
        }
    }

    /// Whether a fault of these kinds is active now.
    fn is(&self, wanted: impl Fn(&FaultKind) -> bool) -> bool {
        self.scenario.now(self.millis()).any(wanted)
    }

    /// Waits until no fault of these kinds is active.
    async fn over(&self, wanted: impl Fn(&FaultKind) -> bool) {
        loop {
            let now = self.millis();
            let on = |fault: &&Fault| fault.at <= now && now < fault.until && wanted(&fault.kind);
            let Some(until) = self.scenario.faults.iter().filter(on).map(|fault| fault.until).max()
            else {
                return;
            };
            timers::sleep_until(self.instant(until)).await;
        }
    }

    fn is_down(&self, server: usize) -> bool {
        let down = |kind: &FaultKind| matches!(kind, FaultKind::StoreDown { .. });
        self.is(|kind| down(kind) || *kind == FaultKind::ServerDown(server))
    }

    /// Waits until messages between a node and the store get through.
    async fn reachable(&self, node: usize) {
        let stuck = |kind: &FaultKind| {
            *kind == FaultKind::Partition(node) || *kind == FaultKind::NodePaused(node)
        };
        self.over(stuck).await;
    }

    async fn not_paused(&self, server: usize) {
        let paused = |kind: &FaultKind| {
            *kind == FaultKind::StorePaused || *kind == FaultKind::ServerPaused(server)
        };
        self.over(paused).await;
    }

    /// The extra delay of a message that is sent now, in milliseconds.
    fn delay(&self, random: &mut Random, reply: bool) -> u64 {
        let mut delay = 0;
        for kind in self.scenario.now(self.millis()) {
            if let FaultKind::Jitter(most) = kind {
                delay += random.within(0, *most);
            }
            let one_way = if reply { kind.reply_delay() } else { kind.request_delay() };
            delay += one_way;
        }
        delay
    }

    fn fate(&self, random: &mut Random) -> Fate {
        let mut fate = Fate { request_lost: false, reply: ReplyFate::Arrives };
        for kind in self.scenario.now(self.millis()) {
            if let FaultKind::LoseRequests(rate) = kind {
                fate.request_lost |= random.happens(*rate);
            }
            if let FaultKind::LoseReplies(rate) = kind
                && random.happens(*rate)
            {
                fate.reply = ReplyFate::Lost;
            }
            if let FaultKind::CutReplies(rate) = kind
                && random.happens(*rate)
            {
                fate.reply = ReplyFate::Cut;
            }
        }
        fate
    }

    /// Carries a request to the store and the reply back. The future of a lost reply never completes.
    async fn exchange(
        &self,
        connection: usize,
        request: &SimulatedRequest,
    ) -> io::Result<SimulatedReply> {
        let sent = timers::now();
        let trip = self.depart(connection);
        if trip.fate.request_lost {
            self.not_given_back(request);
        }
        let delivered = self.deliver_request(&trip).await;
        delivered.inspect_err(|_cut| self.not_given_back(request))?;
        let (reply, pending) = self.execute(trip.process, request, sent);
        if trip.fate.reply == ReplyFate::Cut {
            self.wires().connections[connection].cut.send_replace(true);
            self.untold(trip.process, &pending);
            return Err(reset());
        }
        let pending = if trip.fate.reply == ReplyFate::Lost {
            self.untold(trip.process, &pending);
            vec![]
        } else {
            pending
        };
        if let Err(error) = self.deliver_reply(connection, &trip).await {
            self.untold(trip.process, &pending);
            return Err(error);
        }
        if timers::since(sent) >= LATE {
            self.untold(trip.process, &pending);
        }
        Ok(reply)
    }

    /// Draws the fate and the delay of a request that is sent now.
    fn depart(&self, connection: usize) -> Trip {
        let mut wires = self.wires();
        let fate = self.fate(&mut wires.random);
        let delay = self.delay(&mut wires.random, false);
        let connection = &mut wires.connections[connection];
        let arrives = self.instant(self.millis() + delay).max(connection.last_request);
        connection.last_request = arrives;
        let (node, process, server) = (connection.node, connection.process, connection.server);
        Trip { node, process, server, cut: connection.cut.subscribe(), fate, arrives }
    }

    /// Waits until the request has arrived; an error if the connection is cut first.
    async fn deliver_request(&self, trip: &Trip) -> io::Result<()> {
        let arriving = async {
            timers::sleep_until(trip.arrives).await;
            self.reachable(trip.node).await;
            self.not_paused(trip.server).await;
            if trip.fate.request_lost {
                std::future::pending::<()>().await;
            }
        };
        unless_cut(trip.cut.clone(), arriving).await
    }

    /// Waits until the reply has arrived; an error if the connection is cut first.
    async fn deliver_reply(&self, connection: usize, trip: &Trip) -> io::Result<()> {
        let returns = {
            let mut wires = self.wires();
            let delay = self.delay(&mut wires.random, true);
            let connection = &mut wires.connections[connection];
            let returns = self.instant(self.millis() + delay).max(connection.last_reply);
            connection.last_reply = returns;
            returns
        };
        let returning = async {
            timers::sleep_until(returns).await;
            self.reachable(trip.node).await;
            if trip.fate.reply == ReplyFate::Lost {
                std::future::pending::<()>().await;
            }
        };
        unless_cut(trip.cut.clone(), returning).await
    }

    /// Executes a request on the server and replays it in the model.
    fn execute(
        &self,
        process: usize,
        request: &SimulatedRequest,
        sent: Instant,
    ) -> (SimulatedReply, Vec<PendingAnswer>) {
        let (now, at) = (self.store_time(), self.nanos());
        let mut backend = self.backend();
        let (reply, executed) = backend.server.execute(now, request);
        let told = executed.as_ref().and_then(|executed| backend.replay(process, executed, at));
        let told = told.unwrap_or_default();
        if executed.is_some() {
            request.refunds().iter().for_each(|part| backend.undid(process, part));
        }
        let too_late =
            executed.as_ref().filter(|executed| self.is_of_users(executed)).map(too_late);
        if too_late.is_some_and(|too_late| timers::since(sent) > too_late) {
            let millis = u64::try_from(timers::since(sent).as_millis()).unwrap();
            backend.history.counted_late.push(millis);
        }
        drop(backend);
        if executed.is_none() {
            self.not_given_back(request);
        }
        if let Some(executed) = executed {
            self.trace(&format!("store: {}", describe(&executed)));
        }
        (reply, told)
    }

    /// Whether a call was about the state of a user; canary calls have states of their own.
    fn is_of_users(&self, executed: &Executed) -> bool {
        let state = match &executed.effect {
            Effect::Took { takes, .. } | Effect::Charged(takes) => {
                takes.first().map(|take| take.state)
            }
            Effect::GaveBack(parts) => parts.first().map(|part| part.state),
            Effect::Granted { take, .. } => Some(take.state),
        };
        self.states.iter().flatten().any(|of_user| Some(*of_user) == state)
    }

    /// The store did not get this request. What it would have given back may stay counted, because it is not sent again.
    fn not_given_back(&self, request: &SimulatedRequest) {
        let mut backend = self.backend();
        for (state, cost) in request.gives_back() {
            *backend.history.untold.entry(state).or_default() += cost;
        }
    }

    /// The caller will never learn of these decisions, so their costs may stay counted.
    fn untold(&self, process: usize, answers: &[PendingAnswer]) {
        let mut backend = self.backend();
        for answer in answers {
            if let Some(list) = backend.pending.get_mut(&process) {
                list.retain(|other| other.number != answer.number);
            }
            if answer.passes {
                *backend.history.untold.entry(answer.state).or_default() += answer.cost;
            }
        }
    }
}

impl Network for Wire {
    fn connect(&self) -> NetworkFuture<u64> {
        let (world, node, process) = (Arc::clone(&self.world), self.node, self.process);
        let server = self.server;
        Box::pin(async move {
            world.reachable(node).await;
            world.not_paused(server).await;
            if world.is_down(server) {
                return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
            }
            // Requests that were under way keep the limiter of an ended process for a while, and it would announce itself again.
            if world.backend().history.processes[process].2 != u64::MAX {
                return Err(reset());
            }
            let mut wires = world.wires();
            let (last_request, last_reply) = (timers::now(), timers::now());
            let cut = watch::channel(false).0;
            let connection = Connection { node, server, process, cut, last_request, last_reply };
            wires.connections.push(connection);
            Ok(u64::try_from(wires.connections.len() - 1).unwrap())
        })
    }

    fn carry(
        &self,
        connection: u64,
        request: Arc<SimulatedRequest>,
    ) -> NetworkFuture<SimulatedReply> {
        let world = Arc::clone(&self.world);
        let (tell, told) = oneshot::channel();
        // A request that was sent goes on its way even if its caller gives up.
        tokio::spawn(async move {
            let number = usize::try_from(connection).unwrap();
            let _ = tell.send(world.exchange(number, &request).await);
        });
        Box::pin(async move { told.await.unwrap_or_else(|_gone| Err(reset())) })
    }
}

/// Waits for a future; an error if the connection is cut first.
async fn unless_cut(
    mut cut: watch::Receiver<bool>,
    arriving: impl Future<Output = ()>,
) -> io::Result<()> {
    tokio::select! {
        biased;
        _ = cut.wait_for(|cut| *cut) => Err(reset()),
        () = arriving => Ok(()),
    }
}

fn reset() -> io::Error {
    io::Error::from(io::ErrorKind::ConnectionReset)
}

/// The time by a clock that is off by some milliseconds and drifts by some parts per million.
pub(crate) fn shifted(nanos: u64, off_millis: i64, drift_ppm: i64) -> Timestamp {
    let nanos = i64::try_from(nanos).unwrap();
    let gained = nanos / 1_000_000 * drift_ppm;
    let shift = nanos + gained + off_millis * 1_000_000;
    Timestamp::from_nanos(EPOCH.as_nanos().checked_add_signed(shift).unwrap())
}

/// What a script did, for the trace.
fn describe(executed: &Executed) -> String {
    match &executed.effect {
        Effect::Took { takes, passes, .. } => {
            let take = &takes[0];
            let outcome = if *passes { "passes" } else { "is refused" };
            format!("a take of {} under {} {outcome}", take.cost.get(), take.limit.amount())
        }
        Effect::Charged(takes) => {
            let costs: u64 = takes.iter().map(|take| take.cost.get()).sum();
            format!("a charge of {costs}")
        }
        Effect::GaveBack(parts) => format!("{} takes are given back", parts.len()),
        Effect::Granted { take, ask, amount } => {
            format!("a slice of {amount} of {} is granted, {ask:?}", take.limit.amount())
        }
    }
}

/// After how long a call must no longer be counted. Nobody waits for what is given back, so that has longer.
const fn too_late(executed: &Executed) -> Duration {
    match &executed.effect {
        Effect::GaveBack(_) => GIVEN_BACK_TOO_LATE,
        Effect::Took { .. } | Effect::Charged(_) | Effect::Granted { .. } => TOO_LATE,
    }
}
