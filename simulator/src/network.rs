//! What lies between nodes and the store. Messages of one connection stay in order, as TCP keeps them.

use crate::history::{Backend, EPOCH, Told};
use crate::random::Random;
use crate::run::state;
use crate::scenario::{Fault, Kind, Scenario};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tidegate_core::{Decision, StateId, Timestamp};
use tidegate_store::testing::{Carried, Did, Executed, Network, OwnedTake, Reply, Request};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until};

/// Everything but the nodes.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) scenario: Scenario,
    /// The states of each user and tenant, under each version of its rule.
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
    /// Nothing arrives before what was sent before it.
    last_request: Instant,
    last_reply: Instant,
}

/// The network as one process sees it.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) world: Arc<World>,
    pub(crate) node: usize,
    pub(crate) process: usize,
    /// Which server of the store is at its other end.
    pub(crate) server: usize,
}

/// Which connections end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cut {
    All,
    Process(usize),
    Server(usize),
}

/// What becomes of one message and its reply.
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

/// A reply that comes later than this is not waited for any more. The store settles late replies within its own, longer
/// time, so what is told later than this may remain counted.
pub(crate) const LATE: Duration = Duration::from_millis(4_000);

/// What is executed so long after it was sent should have done nothing: a script knows when its caller will have gone, which
/// is after 50 ms, by an idea of the server's time that is at most 25 ms off.
const TOO_LATE: Duration = Duration::from_millis(80);

impl World {
    pub(crate) fn new(scenario: Scenario) -> Arc<Self> {
        let random = Random::new(scenario.seed ^ 0x6e65_7477_6f72_6b00);
        let wires = Mutex::new(Wires { random, connections: vec![] });
        let of_subject = |subject| [0, 1].map(|version| state(&scenario, subject, version));
        let states = (0..scenario.subjects()).map(of_subject).collect();
        Arc::new(Self { scenario, states, start: Instant::now(), backend: Mutex::default(), wires })
    }

    pub(crate) fn backend(&self) -> MutexGuard<'_, Backend> {
        self.backend.lock().unwrap()
    }

    fn wires(&self) -> MutexGuard<'_, Wires> {
        self.wires.lock().unwrap()
    }

    /// The true time since the beginning.
    pub(crate) fn nanos(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap()
    }

    pub(crate) fn millis(&self) -> u64 {
        self.nanos() / 1_000_000
    }

    pub(crate) fn instant(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    /// The time of the store.
    pub(crate) fn store_time(&self) -> Timestamp {
        shifted(self.nanos(), self.scenario.store_clock, 0)
    }

    pub(crate) fn say(&self, line: &str) {
        let millis = self.millis();
        let line = format!("{:>3}.{:03} s  {line}", millis / 1_000, millis % 1_000);
        self.backend().history.trace.push(line);
    }

    /// Ends all connections, or those of a process, or those to a server.
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

    /// Whether a fault of some kind is on now.
    fn is(&self, wanted: impl Fn(&Kind) -> bool) -> bool {
        self.scenario.now(self.millis()).any(wanted)
    }

    /// Waits until no fault of some kind is on.
    async fn over(&self, wanted: impl Fn(&Kind) -> bool) {
        loop {
            let now = self.millis();
            let on = |fault: &&Fault| fault.at <= now && now < fault.until && wanted(&fault.kind);
            let Some(until) = self.scenario.faults.iter().filter(on).map(|fault| fault.until).max()
            else {
                return;
            };
            sleep_until(self.instant(until)).await;
        }
    }

    fn is_down(&self, server: usize) -> bool {
        let down = |kind: &Kind| matches!(kind, Kind::StoreDown { .. });
        self.is(|kind| down(kind) || *kind == Kind::ServerDown(server))
    }

    /// Waits until messages between a node and the store get through.
    async fn reachable(&self, node: usize) {
        let stuck = |kind: &Kind| *kind == Kind::Partition(node) || *kind == Kind::NodePaused(node);
        self.over(stuck).await;
    }

    async fn not_paused(&self, server: usize) {
        let paused =
            |kind: &Kind| *kind == Kind::StorePaused || *kind == Kind::ServerPaused(server);
        self.over(paused).await;
    }

    /// How much longer a message takes now, in milliseconds.
    fn delay(&self, random: &mut Random, reply: bool) -> u64 {
        let mut delay = 0;
        for kind in self.scenario.now(self.millis()) {
            if let Kind::Jitter(most) = kind {
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
            if let Kind::LoseRequests(rate) = kind {
                fate.request_lost |= random.happens(*rate);
            }
            if let Kind::LoseReplies(rate) = kind
                && random.happens(*rate)
            {
                fate.reply = ReplyFate::Lost;
            }
            if let Kind::CutReplies(rate) = kind
                && random.happens(*rate)
            {
                fate.reply = ReplyFate::Cut;
            }
        }
        fate
    }

    /// A message to the store and back; nothing if the caller never hears of it.
    async fn exchange(&self, number: usize, request: &Request) -> io::Result<Reply> {
        let (node, process, server, cut, fate, arrives) = {
            let mut wires = self.wires();
            let fate = self.fate(&mut wires.random);
            let delay = self.delay(&mut wires.random, false);
            let connection = &mut wires.connections[number];
            let arrives = self.instant(self.millis() + delay).max(connection.last_request);
            connection.last_request = arrives;
            let (node, process, server) = (connection.node, connection.process, connection.server);
            (node, process, server, connection.cut.subscribe(), fate, arrives)
        };
        let sent = Instant::now();
        let mut waiting = cut.clone();
        let arriving = async {
            sleep_until(arrives).await;
            self.reachable(node).await;
            self.not_paused(server).await;
            if fate.request_lost {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            _ = waiting.wait_for(|cut| *cut) => return Err(broken()),
            () = arriving => {}
        }
        let (reply, told) = self.execute(process, request, sent);
        if fate.reply == ReplyFate::Cut {
            self.wires().connections[number].cut.send_replace(true);
            self.untold(process, &told);
            return Err(broken());
        }
        let told = if fate.reply == ReplyFate::Lost {
            self.untold(process, &told);
            vec![]
        } else {
            told
        };
        let returns = {
            let mut wires = self.wires();
            let delay = self.delay(&mut wires.random, true);
            let connection = &mut wires.connections[number];
            let returns = self.instant(self.millis() + delay).max(connection.last_reply);
            connection.last_reply = returns;
            returns
        };
        let mut waiting = cut;
        let returning = async {
            sleep_until(returns).await;
            self.reachable(node).await;
            if fate.reply == ReplyFate::Lost {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            _ = waiting.wait_for(|cut| *cut) => {
                self.untold(process, &told);
                return Err(broken());
            }
            () = returning => {}
        }
        if sent.elapsed() >= LATE {
            self.untold(process, &told);
        }
        Ok(reply)
    }

    /// What the server does, and what the model makes of it.
    fn execute(&self, process: usize, request: &Request, sent: Instant) -> (Reply, Vec<Told>) {
        let (now, at) = (self.store_time(), self.nanos());
        let mut backend = self.backend();
        let (reply, executed) = backend.server.execute(now, request);
        let told = executed.as_ref().and_then(|executed| backend.replay(process, executed, at));
        let told = told.unwrap_or_default();
        if executed.as_ref().is_some_and(|executed| self.is_of_users(executed))
            && sent.elapsed() > TOO_LATE
        {
            let millis = u64::try_from(sent.elapsed().as_millis()).unwrap();
            backend.history.counted_late.push(millis);
        }
        drop(backend);
        if let Some(executed) = executed {
            self.say(&format!("store: {}", words(&executed)));
        }
        (reply, told)
    }

    /// Whether something was done to the state of a user; keepers have states of their own.
    fn is_of_users(&self, executed: &Executed) -> bool {
        let state = match &executed.did {
            Did::Took { takes, .. } | Did::Charged(takes) => takes.first().map(|take| take.state),
            Did::GaveBack(parts) => parts.first().map(|part| part.state),
        };
        self.states.iter().flatten().any(|of_user| Some(*of_user) == state)
    }

    /// Nobody will tell the caller that this was counted.
    fn untold(&self, process: usize, told: &[Told]) {
        let mut backend = self.backend();
        for told in told {
            if let Some(list) = backend.told.get_mut(&process) {
                list.retain(|other| other.number != told.number);
            }
            if told.passes {
                *backend.history.untold.entry(told.state).or_default() += told.cost;
            }
        }
    }
}

impl Backend {
    /// Compares what the server did with what the core makes of the same history.
    fn replay(&mut self, process: usize, executed: &Executed, at: u64) -> Option<Vec<Told>> {
        if let Did::GaveBack(parts) = &executed.did {
            parts.iter().for_each(|part| self.gave_back(part.state, at));
        }
        let (passes, decisions) = self.model.replay(executed)?;
        let Did::Took { takes, passes: said, .. } = &executed.did else { return None };
        if passes != *said {
            let (cost, amount) = (takes[0].cost.get(), takes[0].limit.amount());
            self.history.wrong.push(format!(
                "the store decided passes = {said} for a take of {cost} under a limit of {amount}, the core {passes}"
            ));
        }
        let first = self.decided;
        self.decided += takes.len();
        let told = |((number, take), [told, before]): ((usize, &OwnedTake), [Decision; 2])| {
            let (remaining, before) = (told.remaining, before.remaining);
            Told { number, state: take.state, passes, cost: take.cost.get(), remaining, before, at }
        };
        let told: Vec<Told> = (first..).zip(takes).zip(decisions).map(told).collect();
        self.told.entry(process).or_default().extend_from_slice(&told);
        Some(told)
    }
}

impl Network for Wire {
    fn connect(&self) -> Carried<u64> {
        let (world, node, process) = (Arc::clone(&self.world), self.node, self.process);
        let server = self.server;
        Box::pin(async move {
            world.reachable(node).await;
            world.not_paused(server).await;
            if world.is_down(server) {
                return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
            }
            let mut wires = world.wires();
            let (last_request, last_reply) = (Instant::now(), Instant::now());
            let cut = watch::channel(false).0;
            let connection = Connection { node, server, process, cut, last_request, last_reply };
            wires.connections.push(connection);
            Ok(u64::try_from(wires.connections.len() - 1).unwrap())
        })
    }

    fn carry(&self, connection: u64, request: Arc<Request>) -> Carried<Reply> {
        let world = Arc::clone(&self.world);
        let (tell, told) = oneshot::channel();
        // What was sent goes on its way, whether or not its caller waits.
        tokio::spawn(async move {
            let number = usize::try_from(connection).unwrap();
            let _ = tell.send(world.exchange(number, &request).await);
        });
        Box::pin(async move { told.await.unwrap_or_else(|_gone| Err(broken())) })
    }
}

fn broken() -> io::Error {
    io::Error::from(io::ErrorKind::ConnectionReset)
}

/// A time of a clock that is off by milliseconds and drifts by millionths.
pub(crate) fn shifted(nanos: u64, off_millis: i64, drift_ppm: i64) -> Timestamp {
    let nanos = i64::try_from(nanos).unwrap();
    let gained = nanos / 1_000_000 * drift_ppm;
    let shift = nanos + gained + off_millis * 1_000_000;
    Timestamp::from_nanos(EPOCH.as_nanos().checked_add_signed(shift).unwrap())
}

fn words(executed: &Executed) -> String {
    match &executed.did {
        Did::Took { takes, passes, .. } => {
            let take = &takes[0];
            let outcome = if *passes { "passes" } else { "is refused" };
            format!("a take of {} under {} {outcome}", take.cost.get(), take.limit.amount())
        }
        Did::Charged(takes) => {
            let costs: u64 = takes.iter().map(|take| take.cost.get()).sum();
            format!("is charged {costs}")
        }
        Did::GaveBack(parts) => format!("is given back {} of", parts.len()),
    }
}
