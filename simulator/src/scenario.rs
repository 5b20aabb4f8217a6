//! What happens in a history, decided before it begins: which nodes, which rule, who asks when, what breaks when.
//!
//! Each seed breaks only some things ("swarm testing"): a history in which everything breaks at once hides what a
//! single fault would show.

use crate::random::Random;
use tidegate_core::Limit;
use tidegate_policy::{Policy, RuleLimit};

/// A history to be.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it was made from; the network draws from it, too.
    pub seed: u64,
    /// How far each node's clock is off, in milliseconds, and how it drifts, in millionths.
    pub clocks: Vec<(i64, i64)>,
    /// How far the store's clock is off, in milliseconds.
    pub store_clock: i64,
    /// Whether a node that starts again knows what it wrote to disk.
    pub keeps_disk: bool,
    /// The rule of users, and what it is edited to by [`Kind::NewPolicy`].
    pub rules: [RuleSpec; 2],
    /// A rule of tenants besides. Then the store has two servers, and most requests need both.
    pub tenants: Option<RuleSpec>,
    /// What breaks.
    pub faults: Vec<Fault>,
    /// Who asks.
    pub arrivals: Vec<Arrival>,
}

/// A limit of so many in so many seconds, by one of the algorithms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSpec {
    /// Its name in a policy.
    pub algorithm: &'static str,
    /// How many.
    pub amount: u64,
    /// In how many seconds.
    pub seconds: u64,
    /// How many at once, if not as many as in the whole time.
    pub burst: Option<u64>,
}

/// A request.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// When, in milliseconds.
    pub at: u64,
    /// Which node is asked.
    pub node: usize,
    /// Who asks.
    pub user: usize,
    /// For which tenant; of interest where tenants have a rule.
    pub tenant: usize,
    /// What it costs.
    pub cost: u64,
    /// How long the caller waits, in milliseconds, if it says so.
    pub timeout: Option<u64>,
    /// What it turns out to cost, if the caller reports that.
    pub report: Option<Reported>,
}

/// What a caller reports of a request that passed.
#[derive(Clone, Copy, Debug)]
pub struct Reported {
    /// How long after the answer, in milliseconds.
    pub after: u64,
    /// To which node.
    pub node: usize,
    /// What it cost in truth: less than was asked for, or nothing.
    pub cost: u64,
    /// Whether the same is reported again.
    pub again: bool,
}

/// Something that breaks for a while.
#[derive(Clone, Debug)]
pub struct Fault {
    /// From when, in milliseconds.
    pub at: u64,
    /// Until when.
    pub until: u64,
    /// What.
    pub kind: Kind,
}

/// What can break. Rates are in thousandths, times in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Requests take longer.
    RequestDelay(u64),
    /// Replies take longer.
    ReplyDelay(u64),
    /// Both take up to so much longer, each time something else.
    Jitter(u64),
    /// Requests do not arrive.
    LoseRequests(u64),
    /// Replies do not arrive.
    LoseReplies(u64),
    /// Connections end in the middle of a reply.
    CutReplies(u64),
    /// A node and the store cannot reach each other.
    Partition(usize),
    /// The store is not there.
    StoreDown {
        /// Whether it has its data when it is back.
        keeps_data: bool,
    },
    /// The store does nothing, and later all that it was asked.
    StorePaused,
    /// One of two servers is not there; it has its data when it is back.
    ServerDown(usize),
    /// One of two servers does nothing, and later all that it was asked.
    ServerPaused(usize),
    /// FLUSHALL.
    LoseData,
    /// Another server takes over, which has not seen the last writes.
    Failover {
        /// Of so many milliseconds.
        lag: u64,
    },
    /// A node ends without a word, and starts again at the end.
    Crash(usize),
    /// A node stands still.
    NodePaused(usize),
    /// Another program writes to the key of a user.
    ForeignState(usize),
    /// Another program writes to the registry of shapes.
    ForeignShapes,
    /// Another program writes to the node registry.
    ForeignNodes,
    /// The server does not know EVAL.
    ForbidEval,
    /// A node's wall clock is set, by so many seconds.
    WallStep(usize, i64),
    /// A node gets the second version of the policy.
    NewPolicy(usize),
}

/// When requests begin: by then all nodes know of each other.
pub(crate) const BEGINS: u64 = 2_500;
/// By then a node knows that its store is away, in milliseconds.
const NOTICED_WITHIN: u64 = 1_500;
/// Tells the numbers of what was added to scenarios from those that they are drawn from. Chosen so that the seeds of known
/// stories, `simulator/tests/promises.rs`, were given nothing.
const ADDED: u64 = 0x6164_6465_6404_dc87;
/// What is asked by the latest.
const LONGEST: u64 = 14_000;

impl RuleSpec {
    /// A rule of a policy that has this limit alone.
    fn rule(&self, name: &str, key: &str) -> String {
        let Self { algorithm, amount, seconds, burst } = self;
        let burst = burst.map(|burst| format!(", burst: {burst}")).unwrap_or_default();
        let limit = format!("{{ rate: {amount}/{seconds}s, algorithm: {algorithm}{burst} }}");
        format!("{{ name: {name}, key: [{key}], limits: [{limit}] }}")
    }

    /// The limit.
    #[must_use]
    pub fn limit(&self) -> Limit {
        self.rule_limit().limit().clone()
    }

    /// The share of one of so many nodes. The core divides limits, too; this is what it should do.
    pub(crate) fn share(&self, nodes: u32) -> Limit {
        let part = |amount: u64| (amount / u64::from(nodes)).max(1);
        Self { amount: part(self.amount), burst: self.burst.map(part), ..self.clone() }.limit()
    }

    pub(crate) fn rule_limit(&self) -> RuleLimit {
        let policy = policy(&[self.rule("r", "user")]);
        policy.rules()[0].allowance().limits()[0].clone()
    }
}

fn policy(rules: &[String]) -> Policy {
    let text = format!("{{ version: 1, rules: [{}] }}", rules.join(", "));
    Policy::parse(text).expect("a policy of the simulation")
}

impl Kind {
    /// Whether something else must be true of the store afterwards, for good.
    #[must_use]
    pub const fn is_for_good(&self) -> bool {
        matches!(
            self,
            Self::ForeignState(_) | Self::ForeignShapes | Self::ForeignNodes | Self::ForbidEval
        )
    }

    /// How much longer a request takes, in milliseconds.
    pub(crate) const fn request_delay(&self) -> u64 {
        if let Self::RequestDelay(millis) = self { *millis } else { 0 }
    }

    /// How much longer a reply takes, in milliseconds.
    pub(crate) const fn reply_delay(&self) -> u64 {
        if let Self::ReplyDelay(millis) = self { *millis } else { 0 }
    }

    /// Whether what the store counted is lost.
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
            tenants: None,
            faults,
            arrivals,
        };
        scenario.add_to(&mut Random::new(seed ^ ADDED));
        scenario
    }

    /// What scenarios had not from the beginning, drawn from numbers of its own: so a seed keeps all else that it had.
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

    /// A rule of tenants, a second server, and faults of one of the two.
    fn add_tenants(&mut self, random: &mut Random) {
        let [tenants, _] = rules(random);
        let amount = (tenants.amount + random.within(0, self.rules[0].amount)).min(900);
        self.tenants = Some(RuleSpec { amount, ..tenants });
        for arrival in &mut self.arrivals {
            arrival.tenant = usize::try_from(random.within(0, 1)).unwrap();
        }
        for _ in 0..random.within(0, 3) {
            let server = usize::try_from(random.within(0, 1)).unwrap();
            let kind = random.one_of(&[Kind::ServerDown(server), Kind::ServerPaused(server)]);
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

    /// The rule of a subject, and what it is edited to.
    pub(crate) fn rules_of(&self, subject: usize) -> [&RuleSpec; 2] {
        match &self.tenants {
            Some(tenants) if subject >= self.users() => [tenants, tenants],
            Some(_) | None => self.rules.each_ref(),
        }
    }

    /// What a node has, or has after [`Kind::NewPolicy`].
    pub(crate) fn policy(&self, version: usize) -> Policy {
        let users = self.rules[version].rule("r", "user");
        let tenants = self.tenants.iter().map(|tenants| tenants.rule("t", "tenant"));
        policy(&std::iter::once(users).chain(tenants).collect::<Vec<_>>())
    }

    /// The scenario of a seed in which nothing breaks and nobody is in a hurry.
    #[must_use]
    pub fn healthy(seed: u64) -> Self {
        let mut scenario = Self::of(seed);
        scenario.faults.clear();
        scenario.arrivals.iter_mut().for_each(|arrival| arrival.timeout = None);
        scenario
    }

    /// Whether nothing breaks and nobody is in a hurry: then the store decides everything.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.faults.is_empty() && self.arrivals.iter().all(|arrival| arrival.timeout.is_none())
    }

    /// When everything is over, in milliseconds.
    #[must_use]
    pub fn ends(&self) -> u64 {
        let faults = self.faults.iter().map(|fault| fault.until);
        faults.chain(self.arrivals.iter().map(|arrival| arrival.at)).max().unwrap_or(BEGINS)
    }

    /// Whether a node and the store could not reach each other for a while before and within a time, in nanoseconds: then the
    /// store has not heard of what the node granted by itself.
    pub(crate) fn is_cut_off(&self, node: usize, from: u64, to: u64) -> bool {
        let cut = |fault: &Fault| {
            let begins = (fault.at + NOTICED_WITHIN) * 1_000_000;
            let stuck = matches!(fault.kind, Kind::StoreDown { .. } | Kind::StorePaused);
            let stuck = stuck || fault.kind == Kind::Partition(node);
            stuck && begins <= from && to < fault.until * 1_000_000
        };
        self.faults.iter().any(cut)
    }

    /// Faults that are on at a time.
    pub(crate) fn now(&self, at: u64) -> impl Iterator<Item = &Kind> {
        let on = move |fault: &&Fault| fault.at <= at && at < fault.until;
        self.faults.iter().filter(on).map(|fault| &fault.kind)
    }
}

/// A number around nothing, as often exactly nothing as not.
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
    // Mostly longer than a history: then every admission counts until its end.
    let seconds = random.one_of(&[604_800, 3_600, 3_600, 10, 2]);
    // Small ones are passed soon; under large ones it shows what was counted and not granted.
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

/// A node starts with another version of the policy after the store has lost its data: together more likely than by chance.
fn new_version_after_a_loss(random: &mut Random, nodes: usize, lasts: u64) -> [Fault; 3] {
    let node = nodes - 1;
    let at = BEGINS + random.within(0, lasts);
    let fault = |at: u64, lasts: u64, kind: Kind| Fault { at, until: at + lasts, kind };
    [
        fault(at, 1, Kind::LoseData),
        fault(at + random.within(0, 200), 1, Kind::NewPolicy(node)),
        fault(at + random.within(0, 200), random.within(1, 2_000), Kind::Crash(node)),
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
        0 => Kind::RequestDelay(random.within(1, 80)),
        1 => Kind::ReplyDelay(random.within(1, 80)),
        2 => Kind::Jitter(random.within(1, 80)),
        3 => Kind::LoseRequests(rate),
        4 => Kind::LoseReplies(rate),
        5 => Kind::CutReplies(rate),
        6 => Kind::Partition(node),
        7 => Kind::StoreDown { keeps_data: true },
        8 => Kind::StoreDown { keeps_data: false },
        9 => Kind::StorePaused,
        10 => Kind::LoseData,
        11 => Kind::Failover { lag: random.within(0, 1_000) },
        12 => Kind::Crash(node),
        13 => Kind::NodePaused(node),
        14 => Kind::ForeignState(0),
        15 => Kind::ForeignShapes,
        16 => Kind::ForeignNodes,
        17 => random.one_of(&[
            Kind::ForbidEval,
            Kind::WallStep(node, 100),
            Kind::WallStep(node, -100),
        ]),
        _ => Kind::NewPolicy(node),
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
