//! Laws of the machine, on random histories in virtual time, against a naive model.

use crate::scheduler::machine::{ArrivingRequest, Machine, Ticket, WaitEnd};
use crate::scheduler::shed::ShedReason;
use proptest::prelude::*;
use std::collections::BTreeMap;
use tidegate_core::{Span, Timestamp};
use tidegate_policy::{ClassIndex, Classes};

const CLASSES: usize = 4;
const WEIGHTS: [i64; CLASSES] = [64, 16, 4, 1];
const MAX_WAITING: usize = 12;
const KEYS: u64 = 5;

#[derive(Clone, Copy, Debug)]
enum MachineStep {
    Enter {
        class: usize,
        key: u64,
        patience_ms: u64,
    },
    /// The request in flight at this position ends.
    Finish(usize),
    /// The request that waits at this position gives up.
    Cancel(usize),
    Pass {
        ms: u64,
    },
    SetLimit(Option<usize>),
}

fn machine_step() -> impl Strategy<Value = MachineStep> {
    let patience = prop_oneof![Just(0_u64), 1_u64..500, 1_000_u64..60_000];
    let enter = (0..CLASSES, 0..KEYS, patience)
        .prop_map(|(class, key, patience_ms)| MachineStep::Enter { class, key, patience_ms });
    let pass = prop_oneof![0_u64..50, 0_u64..3_000, 5_000_u64..30_000];
    let limit = prop_oneof![1 => Just(None), 9 => (4_usize..12).prop_map(Some)];
    prop_oneof![
        24 => enter,
        16 => (0_usize..100).prop_map(MachineStep::Finish),
        2 => (0_usize..100).prop_map(MachineStep::Cancel),
        4 => pass.prop_map(|ms| MachineStep::Pass { ms }),
        1 => limit.prop_map(MachineStep::SetLimit),
    ]
}

/// A request that waits, in the model.
#[derive(Clone, Copy, Debug)]
struct ModelRequest {
    class: usize,
    key: u64,
    deadline: Timestamp,
    ticket: Option<Ticket>,
}

/// What the machine should know, kept in the simplest way.
struct Model {
    classes: Classes,
    machine: Machine<u64>,
    now: Timestamp,
    limit: Option<usize>,
    in_flight: [usize; CLASSES],
    /// The class and key of each request in flight.
    running: Vec<(usize, u64)>,
    /// By number of arrival.
    waiting: BTreeMap<u64, ModelRequest>,
    arrivals: u64,
    /// Every demand that a class ever had, and when it began.
    demands: [Vec<(Timestamp, usize)>; CLASSES],
    /// Every demand that all keys together ever had, of each key at most its share.
    all_keys: Vec<(Timestamp, usize)>,
    /// Every demand that each key ever had.
    key_demands: [Vec<(Timestamp, usize)>; 5],
    /// For each pair of classes that both wait all the time, how many unreserved seats each got.
    unreserved: BTreeMap<(usize, usize), (i64, i64)>,
}

impl Model {
    fn new(limit: usize) -> Self {
        let classes = Classes::default();
        let now = Timestamp::EPOCH;
        let machine = Machine::new(&classes, Some(limit), MAX_WAITING, now).unwrap();
        Self {
            classes,
            machine,
            now,
            limit: Some(limit),
            in_flight: [0; CLASSES],
            running: vec![],
            waiting: BTreeMap::new(),
            arrivals: 0,
            demands: std::array::from_fn(|_| vec![(now, 0)]),
            all_keys: vec![(now, 0)],
            key_demands: std::array::from_fn(|_| vec![(now, 0)]),
            unreserved: BTreeMap::new(),
        }
    }

    fn seats(&self) -> Vec<usize> {
        self.limit.map_or(vec![0; CLASSES], |limit| self.classes.seats(limit).unwrap())
    }

    fn total(&self) -> usize {
        self.in_flight.iter().sum()
    }

    fn waits(&self, class: usize) -> usize {
        self.waiting.values().filter(|request| request.class == class).count()
    }

    fn note_demand(&mut self, class: usize) {
        self.note_demand_with(class, None);
    }

    /// The demand, and one more request of this key.
    fn note_demand_with(&mut self, class: usize, more: Option<u64>) {
        let demand = self.in_flight[class] + self.waits(class) + usize::from(more.is_some());
        self.demands[class].push((self.now, demand));
        let of_key = |key| self.runs(key) + self.queued(key) + usize::from(more == Some(key));
        let of_keys: Vec<usize> = (0..KEYS).map(of_key).collect();
        let all = of_keys.iter().map(|demand| (*demand).min(self.share())).sum();
        self.all_keys.push((self.now, all));
        for (demands, demand) in self.key_demands.iter_mut().zip(of_keys) {
            demands.push((self.now, demand));
        }
    }

    // === keys ===

    fn share(&self) -> usize {
        self.limit.map_or(usize::MAX, |limit| limit.div_ceil(4))
    }

    fn runs(&self, key: u64) -> usize {
        self.running.iter().filter(|(_, other)| *other == key).count()
    }

    fn queued(&self, key: u64) -> usize {
        self.waiting.values().filter(|request| request.key == key).count()
    }

    /// How many seats a key with its share leaves free for the others, by the demand of the last seconds.
    fn kept_for_others(&self, key: u64, secs: u64) -> usize {
        let others = || (0..KEYS).filter(|other| *other != key);
        let peak = |key: u64| self.peak_of(&self.key_demands[usize::try_from(key).unwrap()], secs);
        let peaks: usize = others().map(|other| peak(other).min(self.share())).sum();
        let used: usize = others().map(|other| self.runs(other).min(self.share())).sum();
        peaks.min(self.peak_of(&self.all_keys, secs)).saturating_sub(used)
    }

    /// Whether a request of a class waits whose key is below its share.
    fn waits_below_share(&self, class: usize) -> bool {
        let below = |request: &ModelRequest| self.runs(request.key) < self.share();
        self.waiting.values().any(|request| request.class == class && below(request))
    }

    // === classes ===

    /// The highest demand of a class in the last seconds.
    fn peak(&self, class: usize, secs: u64) -> usize {
        self.peak_of(&self.demands[class], secs)
    }

    fn peak_of(&self, demands: &[(Timestamp, usize)], secs: u64) -> usize {
        let ends = demands.iter().skip(1).map(|(began, _)| *began).chain([self.now]);
        let recent = demands
            .iter()
            .zip(ends)
            .filter(|(_, end)| self.now.since(*end) <= Span::from_secs(secs));
        recent.map(|((_, demand), _)| *demand).max().unwrap_or(0)
    }

    /// How many seats are kept free for the classes, by their demand of the last seconds.
    fn kept_free(&self, secs: u64) -> usize {
        let seats = self.seats();
        let kept = |class: usize| {
            seats[class].min(self.peak(class, secs)).saturating_sub(self.in_flight[class])
        };
        (0..CLASSES).map(kept).sum()
    }

    fn take(&mut self, step: MachineStep) {
        if let MachineStep::Pass { ms } = step {
            self.now = self.now.after(Span::from_millis(ms)).unwrap();
        }
        self.machine.advance(self.now);
        self.hear();
        match step {
            MachineStep::Enter { class, key, patience_ms } => self.enter(class, key, patience_ms),
            MachineStep::Finish(at) => self.finish(at),
            MachineStep::Cancel(at) => self.cancel(at),
            MachineStep::Pass { .. } => {}
            MachineStep::SetLimit(limit) => {
                self.machine.configure(&self.classes, limit).unwrap();
                self.limit = limit;
                // The shares have changed.
                self.note_demand(0);
            }
        }
        self.hear();
        self.check();
    }

    fn enter(&mut self, class: usize, key: u64, patience_ms: u64) {
        let index = ClassIndex::at(class);
        if self.machine.start(index, key).is_some() {
            assert!(!self.waits_below_share(class), "it overtook requests of its class");
            self.start(class, key);
            return self.note_demand(class);
        }
        assert!(self.limit.is_some());
        self.arrivals += 1;
        let (number, patience) = (self.arrivals, Span::from_millis(patience_ms));
        let full = self.waiting.len() == MAX_WAITING;
        let lower = (class + 1..CLASSES).rev().find(|lower| self.waits(*lower) > 0);
        self.note_demand_with(class, Some(key));
        match self.machine.wait(ArrivingRequest { class: index, key, patience }, number) {
            Ok(ticket) => {
                let deadline = self.now.after(patience).unwrap();
                let evicted = self.machine.take_ended();
                assert_eq!(evicted.len(), usize::from(full));
                for evicted in evicted {
                    assert_eq!(Some(evicted.class.position()), lower, "not the lowest class");
                    assert!(
                        matches!(evicted.end, WaitEnd::Shed(shed) if shed.reason == ShedReason::Evicted)
                    );
                    self.waiting.remove(&evicted.waiter).expect("ends once");
                    self.note_demand(evicted.class.position());
                }
                let request = ModelRequest { class, key, deadline, ticket: Some(ticket) };
                self.waiting.insert(number, request);
            }
            Err(shed) => {
                assert!(patience_ms == 0 || (full && lower.is_none()));
                assert_eq!(shed.reason == ShedReason::WaitedTooLong, patience_ms == 0);
            }
        }
        self.note_demand(class);
    }

    fn finish(&mut self, at: usize) {
        if self.running.is_empty() {
            return;
        }
        let (class, key) = self.running.swap_remove(at % self.running.len());
        self.in_flight[class] -= 1;
        self.machine.finish(ClassIndex::at(class), key);
        self.note_demand(class);
    }

    fn cancel(&mut self, at: usize) {
        let Some(number) = self.waiting.keys().copied().nth(at % self.waiting.len().max(1)) else {
            return;
        };
        let request = self.waiting.remove(&number).unwrap();
        assert_eq!(self.machine.cancel(request.ticket.unwrap()), Some(number));
        assert_eq!(self.machine.cancel(request.ticket.unwrap()), None);
        self.note_demand(request.class);
    }

    /// Compares the ends of waits with the model.
    fn hear(&mut self) {
        for ended in self.machine.take_ended() {
            self.forget_pairs();
            let request = self.waiting.remove(&ended.waiter).expect("a wait ends once");
            let class = ended.class.position();
            assert_eq!((class, ended.key), (request.class, request.key));
            match ended.end {
                WaitEnd::Started => {
                    assert!(request.deadline > self.now, "started after its deadline");
                    self.charge(class);
                    self.start(class, request.key);
                }
                WaitEnd::Shed(shed) => {
                    assert_eq!(shed.reason, ShedReason::WaitedTooLong);
                    assert!(request.deadline <= self.now, "shed before its deadline");
                    assert!(
                        shed.retry_after > Span::ZERO && shed.retry_after <= Span::from_secs(60)
                    );
                }
            }
            self.note_demand(class);
            self.forget_pairs();
        }
    }

    /// Forgets the pairs of classes of which one has no request any more that waits for nothing but a seat.
    fn forget_pairs(&mut self) {
        let waits: Vec<bool> = (0..CLASSES).map(|class| self.waits_below_share(class)).collect();
        self.unreserved.retain(|(f, g), _| waits[*f] && waits[*g]);
    }

    fn start(&mut self, class: usize, key: u64) {
        let reserved = self.in_flight[class] < self.seats()[class];
        let below_share = self.runs(key) < self.share();
        self.in_flight[class] += 1;
        self.running.push((class, key));
        let Some(limit) = self.limit else { return };
        assert!(self.total() <= limit, "more in flight than seats");
        let free = limit - self.total();
        assert!(
            reserved || free >= self.kept_free(10),
            "it took a seat that another class has reserved"
        );
        assert!(
            below_share || free >= self.kept_for_others(key, 10),
            "key {key} took a seat that other keys need"
        );
    }

    /// Counts an unreserved seat for the pairs of classes that both wait.
    fn charge(&mut self, class: usize) {
        if self.limit.is_none() || self.in_flight[class] < self.seats()[class] {
            return;
        }
        for ((f, g), (seats_f, seats_g)) in &mut self.unreserved {
            *seats_f += i64::from(*f == class);
            *seats_g += i64::from(*g == class);
            let unfair = (*seats_f * WEIGHTS[*g] - *seats_g * WEIGHTS[*f]).abs();
            assert!(
                unfair <= WEIGHTS[*f] + WEIGHTS[*g],
                "classes {f} and {g}: {seats_f}, {seats_g}"
            );
        }
    }

    fn check(&mut self) {
        self.machine.assert_consistent();
        assert!(self.waiting.len() <= MAX_WAITING);
        let states: Vec<_> = self.machine.states().collect();
        for (class, state) in states.iter().enumerate() {
            assert_eq!(
                (state.in_flight, state.waiting),
                (self.in_flight[class], self.waits(class))
            );
        }
        assert!(self.waiting.values().all(|request| request.deadline > self.now));
        self.check_work_conserving();
        self.forget_pairs();
        let waits: Vec<bool> = (0..CLASSES).map(|class| self.waits_below_share(class)).collect();
        for f in (0..CLASSES).filter(|f| waits[*f]) {
            for g in (f + 1..CLASSES).filter(|g| waits[*g]) {
                self.unreserved.entry((f, g)).or_default();
            }
        }
    }

    /// No request waits while a seat is free, unless that seat is reserved by another class that used it recently, or its key has
    /// its share and other keys needed that seat recently.
    fn check_work_conserving(&self) {
        let Some(limit) = self.limit else { return assert!(self.waiting.is_empty()) };
        let free = limit.saturating_sub(self.total());
        let seats = self.seats();
        let may_start = |request: &&ModelRequest| {
            let key = request.key;
            self.runs(key) < self.share() || free > self.kept_for_others(key, 20)
        };
        for class in self.waiting.values().filter(may_start).map(|request| request.class) {
            let has_its_seats = self.in_flight[class] >= seats[class];
            assert!(free == 0 || has_its_seats, "class {class} waits for its own seats");
            assert!(free <= self.kept_free(20), "class {class} waits while {free} seats are free");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn every_history_obeys_the_laws(
        limit in 4_usize..12,
        steps in prop::collection::vec(machine_step(), 1..200),
    ) {
        let mut model = Model::new(limit);
        steps.into_iter().for_each(|step| model.take(step));
        // Every request ends: finish all that are in flight and those that start then.
        while model.total() > 0 {
            model.take(MachineStep::Finish(0));
        }
        let wait = MachineStep::Pass { ms: 60_000 };
        model.take(wait);
        while model.total() > 0 {
            model.take(MachineStep::Finish(0));
        }
        prop_assert!(model.waiting.is_empty());
        let counts: Vec<_> = model.machine.states().map(|state| state.counts).collect();
        prop_assert_eq!(counts.len(), CLASSES);
    }
}

/// A class of weight 1 waits beside one of weight 64. It gets one of 65 unreserved seats, so it does not starve.
#[test]
fn unreserved_seats_are_divided_by_weight() {
    let classes = Classes::default();
    let mut machine = Machine::new(&classes, Some(20), 10_000, Timestamp::EPOCH).unwrap();
    let arrive = |machine: &mut Machine<usize>, class: usize| {
        let index = ClassIndex::at(class);
        if machine.start(index, 0).is_none() {
            let patience = Span::from_secs(1);
            let request = ArrivingRequest { class: index, key: 0, patience };
            machine.wait(request, class).unwrap();
        }
    };
    // Critical has 8 seats reserved and low 2. The other ten are borrowed from classes that are not used.
    for _ in 0..2_000 {
        [0, 3].into_iter().for_each(|class| arrive(&mut machine, class));
    }
    let in_flight: Vec<_> = machine.states().map(|state| state.in_flight).collect();
    assert_eq!(in_flight.iter().sum::<usize>(), 20);
    // Only requests above the reserve end, so that each start is in an unreserved seat.
    let mut started = [0; CLASSES];
    for _ in 0..650 {
        let above = machine.states().position(|state| state.in_flight > state.reserved).unwrap();
        machine.finish(ClassIndex::at(above), 0);
        machine.take_ended().iter().for_each(|ended| started[ended.waiter] += 1);
    }
    assert_eq!(started[0] + started[3], 650);
    assert!((9..=11).contains(&started[3]), "{started:?}");
}

/// Trap 7 of fair queueing: a class that was not used must not have saved up turns.
#[test]
fn a_class_that_was_away_has_no_credit() {
    let classes = Classes::default();
    let mut machine = Machine::new(&classes, Some(4), 10_000, Timestamp::EPOCH).unwrap();
    let arrive = |machine: &mut Machine<usize>, class: usize| {
        let index = ClassIndex::at(class);
        let request = ArrivingRequest { class: index, key: 0, patience: Span::from_secs(100) };
        machine.wait(request, class).unwrap();
    };
    (0..4).for_each(|_| assert!(machine.start(ClassIndex::at(2), 0).is_some()));
    (0..1_000).for_each(|_| arrive(&mut machine, 2)); // normal, of weight 4
    for _ in 0..400 {
        machine.finish(ClassIndex::at(2), 0);
    }
    machine.take_ended();
    // Low comes, of weight 1: it gets its seat, and then one unreserved seat for each four of normal.
    (0..1_000).for_each(|_| arrive(&mut machine, 3));
    machine.finish(ClassIndex::at(2), 0);
    assert_eq!(machine.take_ended()[0].waiter, 3);
    let mut low = 0;
    for _ in 0..100 {
        let above = machine.states().position(|state| state.in_flight > state.reserved).unwrap();
        machine.finish(ClassIndex::at(above), 0);
        low += machine.take_ended().iter().filter(|ended| ended.waiter == 3).count();
    }
    assert!((19..=21).contains(&low), "{low} of 100");
}

/// The story: 50 clients of one address kept all seats with slow uploads, and each time a seat became free while no other request
/// happened to wait, they took it. Everyone else got 503.
#[test]
fn one_key_with_slow_requests_leaves_seats_for_the_others() {
    const SLOW: u64 = 99;
    let ms = |ms: u64| Timestamp::EPOCH.after(Span::from_millis(ms)).unwrap();
    let normal = ClassIndex::at(2);
    let mut machine: Machine<u64> =
        Machine::new(&Classes::default(), Some(8), 10_000, Timestamp::EPOCH).unwrap();
    // Requests of the slow key take 5 s, and each is followed by another. Those of the five others take 20 ms, with pauses.
    let ask = |machine: &mut Machine<u64>, key: u64, patience| {
        let started = machine.start(normal, key).is_some();
        if !started {
            let patience = Span::from_millis(patience);
            machine.wait(ArrivingRequest { class: normal, key, patience }, key).unwrap();
        }
        started
    };
    let mut running: Vec<(u64, u64)> = Vec::new(); // end, key
    let (mut asked, mut served, mut most_slow) = (0, 0, 0);
    for now in 0..120_000_u64 {
        machine.advance(ms(now));
        let mut started = Vec::new();
        if now == 0 {
            let slow = (0..50).filter(|_| ask(&mut machine, SLOW, 1_000_000));
            started.extend(slow.map(|_| SLOW));
            assert_eq!(started.len(), 8, "while it is alone, it may use all seats");
        }
        let (ended, left) = running.into_iter().partition(|(end, _)| *end <= now);
        running = left;
        for (_, key) in ended {
            machine.finish(normal, key);
            if key == SLOW && ask(&mut machine, SLOW, 1_000_000) {
                started.push(SLOW);
            }
        }
        for key in (0..5).filter(|key| now > 6_000 && (now + 13 * key) % 50 == 0) {
            asked += 1;
            started.extend(ask(&mut machine, key, 500).then_some(key));
        }
        let waited = machine.take_ended().into_iter();
        started.extend(waited.filter(|one| one.end == WaitEnd::Started).map(|one| one.key));
        served += started.iter().filter(|key| **key != SLOW).count();
        let lasts = |key| if key == SLOW { 5_000 } else { 20 };
        running.extend(started.into_iter().map(|key| (now + lasts(key), key)));
        let slow = running.iter().filter(|(_, key)| *key == SLOW).count();
        most_slow = if now > 20_000 { most_slow.max(slow) } else { 0 };
    }
    assert!(served * 100 >= asked * 95, "{served} of {asked}");
    // Its share is 2, and there is one seat beyond those that were ever needed at a time.
    assert_eq!(most_slow, 3);
}

/// Two keys that both want all seats have all of them: none is kept free for a key that has its share.
#[test]
fn keys_that_all_want_more_use_all_seats() {
    let normal = ClassIndex::at(2);
    let mut machine: Machine<()> =
        Machine::new(&Classes::default(), Some(8), 10_000, Timestamp::EPOCH).unwrap();
    for key in [1, 2].repeat(20) {
        if machine.start(normal, key).is_none() {
            let patience = Span::from_secs(9);
            machine.wait(ArrivingRequest { class: normal, key, patience }, ()).unwrap();
        }
    }
    let in_flight = |machine: &Machine<()>| machine.states().nth(2).unwrap().in_flight;
    assert_eq!(in_flight(&machine), 8);
    machine.finish(normal, 1);
    assert_eq!(in_flight(&machine), 8);
}
