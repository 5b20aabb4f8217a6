//! An upstream with a fixed number of workers, simulated in virtual time: what each class gets in a spike, beside slow requests,
//! and when all classes send too much.
//!
//! Requests arrive at random (a Poisson process), and take a random time (exponentially distributed). The seed is fixed, so each
//! run gives the same figures. `cargo test -p tidegate simulation -- --nocapture` prints them.

use crate::scheduler::machine::{ArrivingRequest, Machine, WaitEnd};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;
use tidegate_core::{Span, Timestamp};
use tidegate_policy::{ClassIndex, Classes};

const CLASSES: usize = 4;
const HIGH: usize = 1;
const LOW: usize = 3;

/// The load of one class.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    per_second: u32,
    service_ms: u32,
    keys: u64,
}

/// What a class got.
#[derive(Clone, Debug, Default)]
struct Served {
    offered: u64,
    /// From arrival to the end, for each request that was served.
    latencies: Vec<Span>,
    waits: Vec<Span>,
    /// Seats, times nanoseconds.
    seat_nanos: u128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SimulatedEvent {
    Arrival {
        class: usize,
    },
    End {
        class: usize,
        key: u64,
    },
    /// Time passes, so that requests that waited too long are noticed.
    Tick,
}

/// `SplitMix64`: a small generator whose numbers never change with a version.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A random time with this mean, exponentially distributed.
    #[expect(clippy::float_arithmetic, reason = "a simulated load, not a decision")]
    fn exponential(&mut self, mean: Span) -> Span {
        let upper = u32::try_from(self.next() >> 32).unwrap();
        let uniform = (f64::from(upper) + 1.0) / (f64::from(u32::MAX) + 2.0);
        let times = Duration::from_nanos(mean.as_nanos()).mul_f64(-uniform.ln());
        Span::from_nanos(u64::try_from(times.as_nanos()).unwrap())
    }
}

struct Simulation {
    machine: Machine<(usize, Timestamp)>,
    classes: Classes,
    loads: [Load; CLASSES],
    served: [Served; CLASSES],
    in_flight: [usize; CLASSES],
    events: BinaryHeap<Reverse<(Timestamp, u64, SimulatedEvent)>>,
    scheduled: u64,
    random: Random,
    now: Timestamp,
}

/// Figures count from here on: what was before is the way to the steady state.
const WARM_UP: Timestamp = Timestamp::from_nanos(20_000_000_000);
const END: Timestamp = Timestamp::from_nanos(320_000_000_000);

impl Simulation {
    fn run(limit: usize, loads: [Load; CLASSES]) -> [Served; CLASSES] {
        Self::run_with(Classes::default(), limit, loads)
    }

    fn run_with(classes: Classes, limit: usize, loads: [Load; CLASSES]) -> [Served; CLASSES] {
        let mut simulation = Self {
            machine: Machine::new(&classes, Some(limit), 10_000, Timestamp::EPOCH).unwrap(),
            classes,
            loads,
            served: Default::default(),
            in_flight: [0; CLASSES],
            events: BinaryHeap::new(),
            scheduled: 0,
            random: Random(29),
            now: Timestamp::EPOCH,
        };
        simulation.schedule(Span::ZERO, SimulatedEvent::Tick);
        (0..CLASSES)
            .filter(|class| loads[*class].per_second > 0)
            .for_each(|c| simulation.next_arrival(c));
        while let Some(Reverse((at, _, event))) = simulation.events.pop() {
            if at > END {
                break;
            }
            simulation.pass(at);
            simulation.happen(event);
        }
        simulation.served
    }

    fn schedule(&mut self, after: Span, event: SimulatedEvent) {
        self.scheduled += 1;
        self.events.push(Reverse((self.now.after(after).unwrap(), self.scheduled, event)));
    }

    fn next_arrival(&mut self, class: usize) {
        let gap = Span::from_nanos(1_000_000_000 / u64::from(self.loads[class].per_second));
        let after = self.random.exponential(gap);
        self.schedule(after, SimulatedEvent::Arrival { class });
    }

    fn pass(&mut self, to: Timestamp) {
        if to > WARM_UP {
            let passed = u128::from(to.since(self.now.max(WARM_UP)).as_nanos());
            for (served, in_flight) in self.served.iter_mut().zip(self.in_flight) {
                served.seat_nanos += passed * u128::try_from(in_flight).unwrap();
            }
        }
        self.now = to;
    }

    fn happen(&mut self, event: SimulatedEvent) {
        self.machine.advance(self.now);
        match event {
            SimulatedEvent::Arrival { class } => {
                self.next_arrival(class);
                self.arrive(class);
            }
            SimulatedEvent::End { class, key } => {
                self.in_flight[class] -= 1;
                self.machine.finish(ClassIndex::at(class), key);
            }
            SimulatedEvent::Tick => self.schedule(Span::from_millis(1), SimulatedEvent::Tick),
        }
        for ended in self.machine.take_ended() {
            let (class, arrival) = ended.waiter;
            if ended.end == WaitEnd::Started {
                self.serve(class, ended.key, arrival);
            }
        }
    }

    fn arrive(&mut self, class: usize) {
        let index = ClassIndex::at(class);
        if self.now > WARM_UP {
            self.served[class].offered += 1;
        }
        // Each class has keys of its own.
        let key =
            self.random.next() % self.loads[class].keys + 1_000 * u64::try_from(class).unwrap();
        if self.machine.start(index, key).is_some() {
            return self.serve(class, key, self.now);
        }
        let patience = self.classes.get(index).patience();
        let request = ArrivingRequest { class: index, key, patience };
        let _shed = self.machine.wait(request, (class, self.now));
    }

    fn serve(&mut self, class: usize, key: u64, arrival: Timestamp) {
        let service =
            self.random.exponential(Span::from_millis(self.loads[class].service_ms.into()));
        self.in_flight[class] += 1;
        self.schedule(service, SimulatedEvent::End { class, key });
        if arrival > WARM_UP {
            let wait = self.now.since(arrival);
            let latency = Span::from_nanos(wait.as_nanos() + service.as_nanos());
            self.served[class].latencies.push(latency);
            self.served[class].waits.push(wait);
        }
    }
}

impl Served {
    /// How many of 10,000 requests were served.
    fn success(&self) -> u64 {
        let served = u64::try_from(self.latencies.len()).unwrap();
        (served * 10_000).checked_div(self.offered).unwrap_or(10_000)
    }

    fn p99_ms(&self) -> u64 {
        percentile(&self.latencies, 99)
    }

    fn wait_p99_ms(&self) -> u64 {
        percentile(&self.waits, 99)
    }

    /// The mean number of seats in use, in hundredths.
    fn seats(&self) -> u64 {
        let nanos = u128::from(END.since(WARM_UP).as_nanos());
        u64::try_from(self.seat_nanos * 100 / nanos).unwrap()
    }
}

fn percentile(spans: &[Span], percent: usize) -> u64 {
    let mut spans = spans.to_vec();
    spans.sort_unstable();
    spans.get(spans.len() * percent / 100).map_or(0, |span| span.as_millis_ceil())
}

fn show(story: &str, limit: usize, served: &[Served; CLASSES]) {
    println!("L = {limit:2}, {story}");
    for (name, served) in ["critical", "high", "normal", "low"].iter().zip(served) {
        if served.offered > 0 {
            let (success, seats) = (served.success(), served.seats());
            println!(
                "    {name:8} success {:3}.{:02} %, p99 {:4} ms, p99 of the wait {:3} ms, seats {:2}.{:02}",
                success / 100,
                success % 100,
                served.p99_ms(),
                served.wait_p99_ms(),
                seats / 100,
                seats % 100,
            );
        }
    }
}

/// High 100 and low 50 requests per second for each 8 workers, 20 ms each; low times `spike`, and `slow` ms each.
fn two_classes(limit: usize, spike: u32, slow: u32) -> [Load; CLASSES] {
    let scale = u32::try_from(limit / 8).unwrap();
    let mut loads = [Load::default(); CLASSES];
    loads[HIGH] = Load { per_second: 100 * scale, service_ms: 20, keys: 10 };
    loads[LOW] = Load { per_second: 50 * scale * spike, service_ms: slow, keys: 10 };
    loads
}

#[test]
fn high_does_not_notice_a_spike_of_low_and_low_gets_the_unreserved_seats() {
    for limit in [8, 32] {
        let calm = Simulation::run(limit, two_classes(limit, 1, 20));
        let spike = Simulation::run(limit, two_classes(limit, 12, 20));
        show("calm", limit, &calm);
        show("spike of low, 12 times", limit, &spike);
        assert!(spike[HIGH].success() >= 9_940);
        assert!(spike[HIGH].p99_ms() <= 2 * calm[HIGH].p99_ms());
        let reserved = Classes::default().seats(limit).unwrap()[HIGH];
        let unreserved = u64::try_from(limit - reserved).unwrap();
        assert!(
            spike[LOW].seats() >= 90 * unreserved,
            "{} of {unreserved} seats",
            spike[LOW].seats()
        );
    }
}

#[test]
fn high_does_not_fail_when_low_becomes_slow() {
    for limit in [8, 32] {
        let slow = Simulation::run(limit, two_classes(limit, 1, 2_000));
        show("low takes 2 s", limit, &slow);
        let both = Simulation::run(limit, two_classes(limit, 12, 2_000));
        show("low takes 2 s, and 12 times as many", limit, &both);
        assert!(slow[HIGH].success() >= 9_940);
    }
}

#[test]
fn each_class_has_its_seats_when_all_send_too_much() {
    for limit in [8, 32] {
        let seats = Classes::default().seats(limit).unwrap();
        let scale = u32::try_from(limit / 8).unwrap();
        let load = Load { per_second: 300 * scale, service_ms: 20, keys: 10 };
        let mut loads = [load; CLASSES];
        let served = Simulation::run(limit, loads);
        show("all classes send 300 a second for each 8 workers", limit, &served);
        for class in 0..CLASSES {
            let reserved = u64::try_from(seats[class]).unwrap();
            assert!(served[class].seats() >= 90 * reserved, "class {class} of {seats:?}");
        }
        loads[LOW].service_ms = 2_000;
        let slow = Simulation::run(limit, loads);
        show("all classes send too much, and low takes 2 s", limit, &slow);
        for class in 0..CLASSES {
            let reserved = u64::try_from(seats[class]).unwrap();
            assert!(slow[class].seats() >= 90 * reserved, "class {class} of {seats:?}");
        }
    }
}

/// Why the default patience of low is 100 ms: in a spike, more patience lets no more requests through and only makes them later.
/// And why that of high is 500 ms: beside slow requests of low, it is the margin until a seat becomes free.
#[test]
fn patience_does_not_help_low_in_a_spike() {
    let with_patience = |high, low| {
        let patience = [500, high, 500, low].map(Span::from_millis);
        let classes = Classes::default();
        let classes =
            classes.iter().cloned().zip(patience).map(|(c, patience)| c.with_patience(patience));
        Classes::new(classes.collect()).unwrap()
    };
    let run = |high, low, loads| Simulation::run_with(with_patience(high, low), 8, loads);
    let [short, long] = [100, 1_000].map(|low| run(500, low, two_classes(8, 12, 20)));
    show("spike, low waits up to 100 ms", 8, &short);
    show("spike, low waits up to 1 s", 8, &long);
    assert!(long[LOW].success() <= short[LOW].success() + 100); // at most one request of a hundred more
    assert!(long[LOW].p99_ms() > 5 * short[LOW].p99_ms());
    for high in [50, 100, 250, 500, 1_000] {
        let slow = run(high, 100, two_classes(8, 1, 2_000));
        show(&format!("low takes 2 s, high waits up to {high} ms"), 8, &slow);
    }
}

#[test]
fn the_simulation_is_deterministic() {
    let runs = [0, 1].map(|_| Simulation::run(8, two_classes(8, 12, 20)));
    let figures =
        |served: &[Served; CLASSES]| served.clone().map(|s| (s.offered, s.seat_nanos, s.latencies));
    assert_eq!(figures(&runs[0]), figures(&runs[1]));
}
