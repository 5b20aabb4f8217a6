//! An exhaustive search: two nodes, a limit that four costs fit, and all orders of a number of steps.
//!
//! Whatever the nodes let pass must also pass an exact limiter that sees it at the same time. Calls to the store may arrive late
//! or never, and so may replies; nodes crash, are idle, and get their costs back.

use super::clock_sample::ClockSample;
use super::lease::{Granted, Lease, LeaseAction, LeaseEvent, LeaseMoment};
use std::collections::HashSet;
use std::sync::Arc;
use tidegate_core::{
    Algorithm, Ask, Bound, Cost, LeaseAsk, LeaseTerms, Limit, Refill, Slice, Span, State,
    TakeReceipt, Timestamp, Written,
};

/// Four costs fit the limit. A limit of less than 32 is not worth leasing for two nodes.
const CAPACITY: u64 = 32;
const COST: u64 = 8;
const NODES: usize = 2;
/// How long a step of time is.
const STEP: Span = Span::from_millis(150);

#[derive(Clone, Debug)]
struct World {
    limit: Arc<Limit>,
    now: Timestamp,
    store: State,
    /// What an exact limiter makes of everything that passed and was not given back.
    passed: Vec<(Timestamp, TakeReceipt)>,
    nodes: [Node; NODES],
    /// What is on its way to the store to be given back.
    returns: Vec<Slice>,
}

#[derive(Clone, Debug)]
struct Node {
    lease: Lease,
    /// An ask on its way to the store, and when it was sent.
    asked: Option<(LeaseAsk, Timestamp)>,
    /// A reply on its way back.
    granted: Option<Granted>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    TimePasses,
    Request(usize),
    AskArrives(usize),
    AskIsLost(usize),
    ReplyArrives(usize),
    ReplyIsLost(usize),
    Look(usize),
    Crash(usize),
    ReturnArrives,
    ReturnIsLost,
    /// A client of this node gives back the cost that passed last.
    Refund(usize),
}

fn limit(algorithm: Algorithm) -> Limit {
    Limit::new(CAPACITY, Span::from_secs(1), algorithm).unwrap()
}

impl World {
    fn new(algorithm: Algorithm) -> Self {
        let (limit, now) = (Arc::new(limit(algorithm)), Timestamp::from_nanos(7_000_000_000));
        let terms = LeaseTerms { share: 40, ..LeaseTerms::default() };
        let node = || Node {
            lease: Lease::new(Arc::clone(&limit), terms, &moment(now)),
            asked: None,
            granted: None,
        };
        let nodes = [node(), node()];
        Self { store: State::Empty, passed: vec![], returns: vec![], nodes, limit, now }
    }

    fn weight(&self) -> u64 {
        self.limit.weight(Cost::new(COST), Bound::Plain).unwrap()
    }

    /// The steps that are possible now.
    fn steps(&self) -> Vec<Step> {
        let mut steps = vec![Step::TimePasses];
        for (number, node) in self.nodes.iter().enumerate() {
            steps.push(Step::Request(number));
            if node.lease.held() > 0 {
                steps.extend([Step::Look(number), Step::Crash(number)]);
            }
            if node.asked.is_some() {
                steps.extend([Step::AskArrives(number), Step::AskIsLost(number)]);
            }
            if node.granted.is_some() {
                steps.extend([Step::ReplyArrives(number), Step::ReplyIsLost(number)]);
            }
            if !self.passed.is_empty() {
                steps.push(Step::Refund(number));
            }
        }
        if !self.returns.is_empty() {
            steps.extend([Step::ReturnArrives, Step::ReturnIsLost]);
        }
        steps
    }

    fn after(mut self, step: Step) -> Self {
        let now = moment(self.now);
        match step {
            Step::TimePasses => self.now = self.now.after(STEP).unwrap(),
            Step::Request(number) => self.request(number),
            Step::AskArrives(number) => self.ask_arrives(number),
            Step::AskIsLost(number) => {
                self.nodes[number].asked = None;
                self.tell(number, LeaseEvent::Unanswered);
            }
            Step::ReplyArrives(number) => {
                if let Some(granted) = self.nodes[number].granted.take() {
                    // The reply is received now, so the server read its clock between then and now.
                    let sample = granted.sample.received_at(now.local);
                    self.tell(number, LeaseEvent::Granted(Granted { sample, ..granted }));
                }
            }
            Step::ReplyIsLost(number) => {
                self.nodes[number].granted = None;
                self.tell(number, LeaseEvent::Unanswered);
            }
            Step::Look(number) => self.tell(number, LeaseEvent::Looked),
            Step::Crash(number) => {
                let terms = *self.nodes[number].lease.terms();
                let lease = Lease::new(Arc::clone(&self.limit), terms, &now);
                self.nodes[number] = Node { lease, asked: None, granted: None };
            }
            Step::ReturnArrives => {
                let slice = self.returns.remove(0);
                self.in_store(|limit, written, now| {
                    written.give_back(now, limit, &slice.receipt());
                });
            }
            Step::ReturnIsLost => {
                self.returns.remove(0);
            }
            Step::Refund(number) => self.refund(number),
        }
        self
    }

    fn in_store<T>(&mut self, change: impl FnOnce(&Limit, &mut Written<'_>, Timestamp) -> T) -> T {
        let limit = Arc::clone(&self.limit);
        let mut written = Written { shape: &limit, state: self.store.clone() };
        let result = change(&limit, &mut written, self.now);
        self.store = written.state;
        result
    }

    fn request(&mut self, number: usize) {
        let (now, weight) = (moment(self.now), self.weight());
        if let Some(receipt) = self.nodes[number].lease.spend(&now, weight) {
            let action = self.nodes[number].lease.renewal(&now);
            self.act(number, action);
            self.passed.push((self.now, receipt));
            return;
        }
        let limit = Arc::clone(&self.limit);
        let mut written = Written { shape: &limit, state: self.store.clone() };
        let taken = limit.take(&mut written, &Ask::new(self.now, Cost::new(COST)));
        let receipt = taken.receipt.map(|receipt| written.slot_of(receipt));
        self.store = written.state;
        self.passed.extend(receipt.map(|receipt| (self.now, receipt)));
        self.tell(number, LeaseEvent::Missed(weight));
    }

    fn ask_arrives(&mut self, number: usize) {
        let Some((ask, sent)) = self.nodes[number].asked.take() else { return };
        let limit = Arc::clone(&self.limit);
        let mut written = Written { shape: &limit, state: self.store.clone() };
        let slice = limit.grant(&mut written, self.now, &ask);
        self.store = written.state;
        let sample = ClockSample::new(sent, self.now, self.now);
        let (reset, epoch) = (Timestamp::END, 0);
        self.nodes[number].granted = Some(Granted { slice, reset, sample, epoch });
    }

    fn refund(&mut self, number: usize) {
        let Some((_, receipt)) = self.passed.pop() else { return };
        let limit = Arc::clone(&self.limit);
        let written = Written { shape: &limit, state: self.store.clone() };
        if receipt.is_slot && !written.ends_with(&limit, &receipt) {
            let slice = Slice::of_slot(&receipt).unwrap();
            return self.tell(number, LeaseEvent::Refunded(slice));
        }
        self.in_store(|limit, written, now| written.give_back(now, limit, &receipt));
    }

    fn tell(&mut self, number: usize, event: LeaseEvent) {
        let now = moment(self.now);
        let action = self.nodes[number].lease.on_event(&now, event);
        self.act(number, action);
    }

    fn act(&mut self, number: usize, action: Option<LeaseAction>) {
        match action {
            None => {}
            Some(LeaseAction::Ask(_, ask)) => self.nodes[number].asked = Some((ask, self.now)),
            Some(LeaseAction::GiveBack(_, slices)) => self.returns.extend(slices),
        }
    }

    /// What tells worlds apart. Which node is the first one does not matter.
    fn key(&self) -> String {
        let Self { limit: _, now, store, passed, nodes, returns } = self;
        let mut nodes = nodes.each_ref().map(|node| format!("{node:?}"));
        nodes.sort();
        format!("{now:?} {store:?} {passed:?} {nodes:?} {returns:?}")
    }

    /// Whether an exact limiter lets everything pass that passed, and the totals of all leases agree.
    fn is_right(&self) -> bool {
        let mut exact = Written::empty(&self.limit);
        let passes = |(at, _): &(Timestamp, TakeReceipt)| {
            self.limit.take(&mut exact, &Ask::new(*at, Cost::new(COST))).decision.passes()
        };
        let agree = |node: &Node| node.lease.totals().agree(node.lease.held());
        self.passed.iter().all(passes) && self.nodes.iter().all(agree)
    }
}

fn moment(now: Timestamp) -> LeaseMoment {
    LeaseMoment { local: now, nodes: 2, epoch: 0 }
}

/// Tries all orders of this many steps, and returns how many worlds there are and how many costs were spent from leases at most.
fn search(algorithm: Algorithm, depth: usize) -> (usize, usize) {
    let mut seen = HashSet::new();
    let mut worlds = vec![World::new(algorithm)];
    let mut most_spent = 0;
    for _ in 0..depth {
        let mut next = Vec::new();
        for world in worlds {
            for step in world.steps() {
                let after = world.clone().after(step);
                assert!(after.is_right(), "{step:?} leads from {world:?} to {after:?}");
                let spent = |node: &Node| node.lease.totals().spent / after.weight();
                let spent: u64 = after.nodes.iter().map(spent).sum();
                most_spent = most_spent.max(usize::try_from(spent).unwrap());
                if seen.insert(after.key()) {
                    next.push(after);
                }
            }
        }
        worlds = next;
    }
    (seen.len(), most_spent)
}

#[test]
fn in_every_order_of_steps_only_what_an_exact_limiter_allows_passes() {
    let token_bucket = |refill| Algorithm::TokenBucket { burst: None, refill };
    for algorithm in [
        token_bucket(Refill::Continuous),
        token_bucket(Refill::Interval),
        Algorithm::FIXED_WINDOW,
        Algorithm::SLIDING_WEIGHTED,
    ] {
        let (worlds, spent) = search(algorithm, 7);
        assert!(worlds > 10_000 && spent > 0, "{algorithm:?}: {worlds} worlds, {spent} spent");
    }
}
