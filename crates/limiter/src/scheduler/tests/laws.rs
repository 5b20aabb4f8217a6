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
    let enter = (0..CLASSES, 0_u64..3, patience)
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
    /// By number of arrival.
    waiting: BTreeMap<u64, ModelRequest>,
    arrivals: u64,
    /// Every demand that a class ever had, and when it began.
    demands: [Vec<(Timestamp, usize)>; CLASSES],
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
            waiting: BTreeMap::new(),
            arrivals: 0,
            demands: std::array::from_fn(|_| vec![(now, 0)]),
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

    fn note_demand(&mut self, class: usize, extra: usize) {
        let demand = self.in_flight[class] + self.waits(class) + extra;
        self.demands[class].push((self.now, demand));
    }

    /// The highest demand of a class in the last seconds.
    fn peak(&self, class: usize, secs: u64) -> usize {
        let demands = &self.demands[class];
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
            }
        }
        self.hear();
        self.check();
    }

    fn enter(&mut self, class: usize, key: u64, patience_ms: u64) {
        let index = ClassIndex::at(class);
        if self.machine.start(index).is_some() {
            assert_eq!(self.waits(class), 0, "it overtook requests of its class");
            self.start(class);
            return self.note_demand(class, 0);
        }
        assert!(self.limit.is_some());
        self.arrivals += 1;
        let (number, patience) = (self.arrivals, Span::from_millis(patience_ms));
        let full = self.waiting.len() == MAX_WAITING;
        let lower = (class + 1..CLASSES).rev().find(|lower| self.waits(*lower) > 0);
        self.note_demand(class, 1);
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
                    self.note_demand(evicted.class.position(), 0);
                }
                let request = ModelRequest { class, deadline, ticket: Some(ticket) };
                self.waiting.insert(number, request);
            }
            Err(shed) => {
                assert!(patience_ms == 0 || (full && lower.is_none()));
                assert_eq!(shed.reason == ShedReason::WaitedTooLong, patience_ms == 0);
            }
        }
        self.note_demand(class, 0);
    }

    fn finish(&mut self, at: usize) {
        let all = (0..CLASSES).flat_map(|class| std::iter::repeat_n(class, self.in_flight[class]));
        let Some(class) = all.clone().nth(at % all.count().max(1)) else { return };
        self.in_flight[class] -= 1;
        self.machine.finish(ClassIndex::at(class));
        self.note_demand(class, 0);
    }

    fn cancel(&mut self, at: usize) {
        let Some(number) = self.waiting.keys().copied().nth(at % self.waiting.len().max(1)) else {
            return;
        };
        let request = self.waiting.remove(&number).unwrap();
        assert_eq!(self.machine.cancel(request.ticket.unwrap()), Some(number));
        assert_eq!(self.machine.cancel(request.ticket.unwrap()), None);
        self.note_demand(request.class, 0);
    }

    /// Compares the ends of waits with the model.
    fn hear(&mut self) {
        for ended in self.machine.take_ended() {
            let request = self.waiting.remove(&ended.waiter).expect("a wait ends once");
            let class = ended.class.position();
            assert_eq!(class, request.class);
            match ended.end {
                WaitEnd::Started => {
                    assert!(request.deadline > self.now, "started after its deadline");
                    self.charge(class);
                    self.start(class);
                }
                WaitEnd::Shed(shed) => {
                    assert_eq!(shed.reason, ShedReason::WaitedTooLong);
                    assert!(request.deadline <= self.now, "shed before its deadline");
                    assert!(
                        shed.retry_after > Span::ZERO && shed.retry_after <= Span::from_secs(60)
                    );
                }
            }
            self.note_demand(class, 0);
            self.forget_pairs();
        }
    }

    /// Forgets the pairs of classes of which one does not wait any more.
    fn forget_pairs(&mut self) {
        let waits: Vec<bool> = (0..CLASSES).map(|class| self.waits(class) > 0).collect();
        self.unreserved.retain(|(f, g), _| waits[*f] && waits[*g]);
    }

    fn start(&mut self, class: usize) {
        let reserved = self.in_flight[class] < self.seats()[class];
        self.in_flight[class] += 1;
        let Some(limit) = self.limit else { return };
        assert!(self.total() <= limit, "more in flight than seats");
        let free = limit - self.total();
        assert!(
            reserved || free >= self.kept_free(10),
            "it took a seat that another class has reserved"
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
        let waits: Vec<bool> = (0..CLASSES).map(|class| self.waits(class) > 0).collect();
        for f in (0..CLASSES).filter(|f| waits[*f]) {
            for g in (f + 1..CLASSES).filter(|g| waits[*g]) {
                self.unreserved.entry((f, g)).or_default();
            }
        }
    }

    /// No request waits while a seat is free, unless that seat is reserved by another class that used it recently.
    fn check_work_conserving(&self) {
        let Some(limit) = self.limit else { return assert!(self.waiting.is_empty()) };
        let free = limit.saturating_sub(self.total());
        let seats = self.seats();
        for class in (0..CLASSES).filter(|class| self.waits(*class) > 0) {
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
        if machine.start(index).is_none() {
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
        machine.finish(ClassIndex::at(above));
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
    (0..4).for_each(|_| assert!(machine.start(ClassIndex::at(2)).is_some()));
    (0..1_000).for_each(|_| arrive(&mut machine, 2)); // normal, of weight 4
    for _ in 0..400 {
        machine.finish(ClassIndex::at(2));
    }
    machine.take_ended();
    // Low comes, of weight 1: it gets its seat, and then one unreserved seat for each four of normal.
    (0..1_000).for_each(|_| arrive(&mut machine, 3));
    machine.finish(ClassIndex::at(2));
    assert_eq!(machine.take_ended()[0].waiter, 3);
    let mut low = 0;
    for _ in 0..100 {
        let above = machine.states().position(|state| state.in_flight > state.reserved).unwrap();
        machine.finish(ClassIndex::at(above));
        low += machine.take_ended().iter().filter(|ended| ended.waiter == 3).count();
    }
    assert!((19..=21).contains(&low), "{low} of 100");
}
