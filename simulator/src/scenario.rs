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
    /// The rule, and what it is edited to by [`Kind::NewPolicy`].
    pub rules: [RuleSpec; 2],
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
    /// What it costs.
    pub cost: u64,
    /// How long the caller waits, in milliseconds, if it says so.
    pub timeout: Option<u64>,
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
/// What is asked by the latest.
const LONGEST: u64 = 14_000;

impl RuleSpec {
    /// The policy that has this rule alone.
    #[must_use]
    pub fn policy(&self) -> String {
        let Self { algorithm, amount, seconds } = self;
        format!(
            "{{ version: 1, rules: [{{ name: r, key: [user], limits: [{{ rate: {amount}/{seconds}s, algorithm: {algorithm} }}] }}] }}"
        )
    }

    /// The limit.
    #[must_use]
    pub fn limit(&self) -> Limit {
        self.rule_limit().limit().clone()
    }

    pub(crate) fn rule_limit(&self) -> RuleLimit {
        let policy = Policy::parse(self.policy()).expect("a policy of the simulation");
        policy.rules()[0].allowance().limits()[0].clone()
    }
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
        Self {
            seed,
            clocks: (0..nodes).map(|_| clock(&mut random)).collect(),
            store_clock: signed(&mut random, 1_500),
            keeps_disk: random.happens(500),
            rules,
            faults,
            arrivals,
        }
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
    let first = RuleSpec { algorithm, amount, seconds };
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
            cost: if random.happens(900) { 1 } else { random.within(2, 5) },
            timeout,
        });
    }
    arrivals
}
