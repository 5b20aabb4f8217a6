//! A scenario: everything that is decided before a run begins. Nodes, rules, requests and faults, with their times.
//!
//! Each seed uses only some kinds of faults (swarm testing): a run with all of them at the same time would hide what a single
//! fault shows.

use crate::random::Random;
use tidegate_core::Limit;
use tidegate_policy::{Policy, RuleLimit};

/// Everything that is decided before a run begins.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed of the scenario; the network draws its random numbers from it too.
    pub seed: u64,
    /// The offset of each node's clock, in milliseconds, and its drift, in parts per million.
    pub clocks: Vec<(i64, i64)>,
    /// The offset of the store's clock, in milliseconds.
    pub store_clock: i64,
    /// Whether a node that restarts still has its disk.
    pub keeps_disk: bool,
    /// The rule for users, and the version that [`FaultKind::NewPolicy`] loads.
    pub rules: [RuleSpec; 2],
    /// How the rule for users is leased, if it is.
    pub lease: Option<LeaseSpec>,
    /// An additional rule for tenants. The store then has two servers, and most requests need both.
    pub tenants: Option<RuleSpec>,
    /// The faults.
    pub faults: Vec<Fault>,
    /// The requests.
    pub arrivals: Vec<Arrival>,
}

/// The limit of a rule: `amount` per `seconds`, by one of the algorithms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSpec {
    /// The name of the algorithm in a policy.
    pub algorithm: &'static str,
    /// The amount of the limit.
    pub amount: u64,
    /// Its period.
    pub seconds: u64,
    /// The burst, if it differs from the amount.
    pub burst: Option<u64>,
}

/// How a rule is leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseSpec {
    /// The most of a limit that a node asks for, in percent.
    pub share: u64,
    /// How often it asks, in milliseconds.
    pub interval: u64,
}

/// A request.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// When it is made, in milliseconds.
    pub at: u64,
    /// The node that receives it.
    pub node: usize,
    /// Its user.
    pub user: usize,
    /// Its tenant; used only if tenants have a rule.
    pub tenant: usize,
    /// Its cost.
    pub cost: u64,
    /// Its own timeout, in milliseconds, if it has one.
    pub timeout: Option<u64>,
    /// The actual cost, if the caller reports it later.
    pub report: Option<Reported>,
}

/// The caller's report on the actual cost of a request that passed.
#[derive(Clone, Copy, Debug)]
pub struct Reported {
    /// How long after the answer, in milliseconds.
    pub after: u64,
    /// The node that receives the report.
    pub node: usize,
    /// The actual cost: less than the request's cost, or 0.
    pub cost: u64,
    /// Whether the same report is sent twice.
    pub again: bool,
}

/// A fault and its time.
#[derive(Clone, Debug)]
pub struct Fault {
    /// When it begins, in milliseconds.
    pub at: u64,
    /// When it ends.
    pub until: u64,
    /// The fault.
    pub kind: FaultKind,
}

/// The kinds of faults. Rates are in thousandths, times in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Requests take longer.
    RequestDelay(u64),
    /// Replies take longer.
    ReplyDelay(u64),
    /// Requests and replies take longer, by a random time up to this one.
    Jitter(u64),
    /// Requests are lost.
    LoseRequests(u64),
    /// Replies are lost.
    LoseReplies(u64),
    /// Connections are cut in the middle of a reply.
    CutReplies(u64),
    /// A node and the store cannot reach each other.
    Partition(usize),
    /// The store is down.
    StoreDown {
        /// Whether it has its data when it is back.
        keeps_data: bool,
    },
    /// The store is paused; it executes the requests of that time later.
    StorePaused,
    /// One of two servers is down; it has its data when it is back.
    ServerDown(usize),
    /// One of two servers is paused; it executes the requests of that time later.
    ServerPaused(usize),
    /// FLUSHALL.
    LoseData,
    /// A replica takes over that has not seen the last writes.
    Failover {
        /// The replication lag, in milliseconds.
        lag: u64,
    },
    /// A node crashes when the fault begins, and restarts when it ends.
    Crash(usize),
    /// A node is paused.
    NodePaused(usize),
    /// Another program writes to the state of a user.
    ForeignState(usize),
    /// Another program writes to the registry of shapes.
    ForeignShapes,
    /// Another program writes to the node registry.
    ForeignNodes,
    /// The server refuses EVAL.
    ForbidEval,
    /// A node's wall clock is stepped by this many seconds.
    WallStep(usize, i64),
    /// A node loads the second version of the policy.
    NewPolicy(usize),
}

/// When requests begin, in milliseconds: by then all nodes have counted each other.
pub(crate) const BEGINS: u64 = 2_500;
/// A node knows after this time that its store is down, in milliseconds.
const NOTICED_WITHIN: u64 = 1_500;
/// Seeds the random numbers of features that scenarios did not have at first, so that older seeds keep their meaning. Chosen so
/// that the seeds in `simulator/tests/promises.rs` get none of these features.
const ADDED: u64 = 0x6164_6465_6404_dc87;
/// The time of the last request, at the latest.
pub(crate) const LONGEST: u64 = 14_000;

impl RuleSpec {
    /// A rule of a policy with this limit.
    fn rule(&self, name: &str, key: &str, lease: Option<LeaseSpec>) -> String {
        let Self { algorithm, amount, seconds, burst } = self;
        let burst = burst.map(|burst| format!(", burst: {burst}")).unwrap_or_default();
        let limit = format!("{{ rate: {amount}/{seconds}s, algorithm: {algorithm}{burst} }}");
        let lease = lease.map_or(String::new(), |LeaseSpec { share, interval }| {
            format!(", consistency: {{ lease: {{ share: {share}%, interval: {interval}ms }} }}")
        });
        format!("{{ name: {name}, key: [{key}], limits: [{limit}]{lease} }}")
    }

    /// The limit.
    #[must_use]
    pub fn limit(&self) -> Limit {
        self.rule_limit().limit().clone()
    }

    /// This limit divided among `nodes` nodes. The core divides limits too; this is an independent definition.
    pub(crate) fn share(&self, nodes: u32) -> Limit {
        let part = |amount: u64| (amount / u64::from(nodes)).max(1);
        Self { amount: part(self.amount), burst: self.burst.map(part), ..self.clone() }.limit()
    }

    pub(crate) fn rule_limit(&self) -> RuleLimit {
        let policy = policy(&[self.rule("r", "user", None)]);
        policy.rules()[0].allowance().limits()[0].clone()
    }
}

fn policy(rules: &[String]) -> Policy {
    let text = format!("{{ version: 1, rules: [{}] }}", rules.join(", "));
    Policy::parse(text).expect("a policy of the simulation")
}

impl FaultKind {
    /// Whether the fault does not end by itself.
    #[must_use]
    pub const fn is_for_good(&self) -> bool {
        matches!(
            self,
            Self::ForeignState(_) | Self::ForeignShapes | Self::ForeignNodes | Self::ForbidEval
        )
    }

    /// The extra delay of a request, in milliseconds.
    pub(crate) const fn request_delay(&self) -> u64 {
        if let Self::RequestDelay(millis) = self { *millis } else { 0 }
    }

    /// The extra delay of a reply, in milliseconds.
    pub(crate) const fn reply_delay(&self) -> u64 {
        if let Self::ReplyDelay(millis) = self { *millis } else { 0 }
    }

    /// Whether the store loses counts.
    #[must_use]
    pub const fn loses_data(&self) -> bool {
        matches!(
            self,
            Self::LoseData | Self::Failover { .. } | Self::StoreDown { keeps_data: false }
        )
    }
}

impl Scenario {
    /// The scenario of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let nodes = usize::try_from(random.within(1, 4)).unwrap();
        let lasts = random.within(4_000, LONGEST - BEGINS);
        let rules = rules(&mut random);
        let faults = faults(&mut random, nodes, lasts);
        let arrivals = arrivals(&mut random, nodes, lasts);
        let clock = |random: &mut Random| {
            (signed(random, 1_500), if random.happens(300) { signed(random, 200) } else { 0 })
        };
        let mut scenario = Self {
            seed,
            clocks: (0..nodes).map(|_| clock(&mut random)).collect(),
            store_clock: signed(&mut random, 1_500),
            keeps_disk: random.happens(500),
            rules,
            lease: None,
            tenants: None,
            faults,
            arrivals,
        };
        scenario.add_to(&mut Random::new(seed ^ ADDED));
        scenario.separate_tags();
        scenario
    }

    /// Adds features that scenarios did not have at first. Their random numbers are separate, so a seed keeps everything else.
    fn add_to(&mut self, random: &mut Random) {
        if random.happens(100) {
            let far = i64::try_from(random.within(60_000, 300_000)).unwrap();
            self.store_clock += if random.happens(500) { far } else { -far };
        }
        let [bursts, reports] = [random.happens(250), random.happens(250)];
        if bursts && self.rules[0].algorithm == "token_bucket" {
            let burst = random.within(1, 2 * self.rules[0].amount);
            self.rules.iter_mut().for_each(|rule| rule.burst = Some(burst));
        }
        if random.happens(200) {
            self.add_tenants(random);
        }
        let often = random.one_of(&[30, 300]);
        let last = u64::try_from(self.clocks.len() - 1).unwrap();
        for arrival in self.arrivals.iter_mut().filter(|_| reports) {
            if random.happens(often) {
                arrival.report = Some(Reported {
                    after: random.within(1, 1_500),
                    node: usize::try_from(random.within(0, last)).unwrap(),
                    cost: random.within(0, arrival.cost - 1),
                    again: random.happens(300),
                });
            }
        }
    }

    /// Adds a rule for tenants, a second server, and faults of one of the two servers.
    fn add_tenants(&mut self, random: &mut Random) {
        let [tenants, _] = rules(random);
        let amount = (tenants.amount + random.within(0, self.rules[0].amount)).min(900);
        self.tenants = Some(RuleSpec { amount, ..tenants });
        for arrival in &mut self.arrivals {
            arrival.tenant = usize::try_from(random.within(0, 1)).unwrap();
        }
        for _ in 0..random.within(0, 3) {
            let server = usize::try_from(random.within(0, 1)).unwrap();
            let kind =
                random.one_of(&[FaultKind::ServerDown(server), FaultKind::ServerPaused(server)]);
            let at = BEGINS + random.within(0, LONGEST - BEGINS);
            let most = random.one_of(&[50, 500, 3_000, 8_000]);
            self.faults.push(Fault { at, until: at + random.within(1, most), kind });
        }
        self.faults.sort_by_key(|fault| fault.at);
    }

    /// How many servers the store has.
    #[must_use]
    pub const fn servers(&self) -> usize {
        if self.tenants.is_some() { 2 } else { 1 }
    }

    /// How many users and tenants there are.
    #[must_use]
    pub fn subjects(&self) -> usize {
        self.users() + if self.tenants.is_some() { 2 } else { 0 }
    }

    /// How many users there are. Subjects with higher numbers are tenants.
    pub(crate) fn users(&self) -> usize {
        self.arrivals.iter().map(|arrival| arrival.user + 1).max().unwrap_or(1)
    }

    /// The rule of a subject, in both versions of the policy.
    pub(crate) fn rules_of(&self, subject: usize) -> [&RuleSpec; 2] {
        match &self.tenants {
            Some(tenants) if subject >= self.users() => [tenants, tenants],
            Some(_) | None => self.rules.each_ref(),
        }
    }

    /// The policy of a node: version 0, or version 1 after [`FaultKind::NewPolicy`].
    pub(crate) fn policy(&self, version: usize) -> Policy {
        let users = self.rules[version].rule("r", "user", self.lease);
        let tenants = self.tenants.iter().map(|tenants| tenants.rule("t", "tenant", None));
        policy(&std::iter::once(users).chain(tenants).collect::<Vec<_>>())
    }

    /// The scenario of a seed without its faults and without timeouts of requests.
    #[must_use]
    pub fn healthy(seed: u64) -> Self {
        let mut scenario = Self::of(seed);
        scenario.faults.clear();
        scenario.arrivals.iter_mut().for_each(|arrival| arrival.timeout = None);
        scenario
    }

    /// Whether there are no faults and no timeouts of requests: then the store decides everything.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.faults.is_empty() && self.arrivals.iter().all(|arrival| arrival.timeout.is_none())
    }

    /// When the last fault and the last request are over, in milliseconds.
    #[must_use]
    pub fn ends(&self) -> u64 {
        let faults = self.faults.iter().map(|fault| fault.until);
        faults.chain(self.arrivals.iter().map(|arrival| arrival.at)).max().unwrap_or(BEGINS)
    }

    /// Whether a node could not reach the store during an interval in nanoseconds and for a while before it. Then the store has
    /// not been charged for what the node's fallback granted.
    pub(crate) fn is_cut_off(&self, node: usize, from: u64, to: u64) -> bool {
        let cut = |fault: &Fault| {
            let begins = (fault.at + NOTICED_WITHIN) * 1_000_000;
            let stuck = matches!(fault.kind, FaultKind::StoreDown { .. } | FaultKind::StorePaused);
            let stuck = stuck || fault.kind == FaultKind::Partition(node);
            stuck && begins <= from && to < fault.until * 1_000_000
        };
        self.faults.iter().any(cut)
    }

    /// The faults that are active at a time.
    pub(crate) fn now(&self, at: u64) -> impl Iterator<Item = &FaultKind> {
        let on = move |fault: &&Fault| fault.at <= at && at < fault.until;
        self.faults.iter().filter(on).map(|fault| &fault.kind)
    }
}

/// A number between `-most` and `most`; 0 in half of the cases.
fn signed(random: &mut Random, most: u64) -> i64 {
    if random.happens(500) {
        return 0;
    }
    i64::try_from(random.within(0, 2 * most)).unwrap() - i64::try_from(most).unwrap()
}

fn rules(random: &mut Random) -> [RuleSpec; 2] {
    let algorithm = random.one_of(&[
        "token_bucket",
        "token_bucket",
        "leaky_bucket",
        "fixed_window",
        "sliding_log",
        "sliding_buckets",
        "sliding_weighted",
    ]);
    // Mostly longer than a run: then every admission counts until its end.
    let seconds = random.one_of(&[604_800, 3_600, 3_600, 10, 2]);
    // Small amounts are used up soon; large ones show what was counted but not granted.
    let amount = if random.happens(600) { random.within(3, 40) } else { random.within(100, 900) };
    let first = RuleSpec { algorithm, amount, seconds, burst: None };
    let amount =
        if random.happens(500) { first.amount + random.within(1, 20) } else { first.amount };
    [first.clone(), RuleSpec { amount, ..first }]
}

fn faults(random: &mut Random, nodes: usize, lasts: u64) -> Vec<Fault> {
    let kinds: Vec<u64> = (0..random.within(0, 4)).map(|_| random.within(0, 18)).collect();
    let mut faults = Vec::new();
    for kind in kinds {
        for _ in 0..random.within(1, 3) {
            faults.push(fault(random, kind, nodes, lasts));
        }
    }
    if random.happens(50) {
        faults.extend(new_version_after_a_loss(random, nodes, lasts));
    }
    faults.sort_by_key(|fault| fault.at);
    faults
}

/// A node restarts with another version of the policy after the store has lost its data: rare by chance, so it is forced.
fn new_version_after_a_loss(random: &mut Random, nodes: usize, lasts: u64) -> [Fault; 3] {
    let node = nodes - 1;
    let at = BEGINS + random.within(0, lasts);
    let fault = |at: u64, lasts: u64, kind: FaultKind| Fault { at, until: at + lasts, kind };
    [
        fault(at, 1, FaultKind::LoseData),
        fault(at + random.within(0, 200), 1, FaultKind::NewPolicy(node)),
        fault(at + random.within(0, 200), random.within(1, 2_000), FaultKind::Crash(node)),
    ]
}

fn fault(random: &mut Random, kind: u64, nodes: usize, lasts: u64) -> Fault {
    let last = u64::try_from(nodes - 1).unwrap();
    let node = usize::try_from(random.within(0, last)).unwrap();
    let rate = random.one_of(&[20, 100, 500, 1_000]);
    let at = BEGINS + random.within(0, lasts);
    let most = random.one_of(&[50, 500, 3_000, 8_000]);
    let until = at + random.within(1, most);
    let kind = match kind {
        0 => FaultKind::RequestDelay(random.within(1, 80)),
        1 => FaultKind::ReplyDelay(random.within(1, 80)),
        2 => FaultKind::Jitter(random.within(1, 80)),
        3 => FaultKind::LoseRequests(rate),
        4 => FaultKind::LoseReplies(rate),
        5 => FaultKind::CutReplies(rate),
        6 => FaultKind::Partition(node),
        7 => FaultKind::StoreDown { keeps_data: true },
        8 => FaultKind::StoreDown { keeps_data: false },
        9 => FaultKind::StorePaused,
        10 => FaultKind::LoseData,
        11 => FaultKind::Failover { lag: random.within(0, 1_000) },
        12 => FaultKind::Crash(node),
        13 => FaultKind::NodePaused(node),
        14 => FaultKind::ForeignState(0),
        15 => FaultKind::ForeignShapes,
        16 => FaultKind::ForeignNodes,
        17 => random.one_of(&[
            FaultKind::ForbidEval,
            FaultKind::WallStep(node, 100),
            FaultKind::WallStep(node, -100),
        ]),
        _ => FaultKind::NewPolicy(node),
    };
    Fault { at, until, kind }
}

fn arrivals(random: &mut Random, nodes: usize, lasts: u64) -> Vec<Arrival> {
    let last = u64::try_from(nodes - 1).unwrap();
    let users = random.within(1, 3);
    let hurried = random.one_of(&[0, 0, 100, 500]);
    let (pause, patience) = (random.one_of(&[5, 20, 60]), random.within(1, 40));
    let mut arrivals = Vec::new();
    let mut at = BEGINS;
    while at < BEGINS + lasts {
        at += random.within(0, pause);
        let timeout = random.happens(hurried).then(|| random.within(1, patience));
        arrivals.push(Arrival {
            at,
            node: usize::try_from(random.within(0, last)).unwrap(),
            user: usize::try_from(random.within(0, users - 1)).unwrap(),
            tenant: 0,
            cost: if random.happens(900) { 1 } else { random.within(2, 5) },
            timeout,
            report: None,
        });
    }
    arrivals
}
