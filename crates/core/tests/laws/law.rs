//! The laws, one function per law.

use crate::history::{Case, Family, Params, Step};
use crate::leases;
use crate::model::Model;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tidegate_core::{
    Ask, Bound, Cost, Decision, Headroom, Limit, Outcome, Retry, Span, TakeReceipt, Timestamp,
    Written,
};

/// A law and its name.
pub(crate) struct Law {
    pub(crate) name: &'static str,
    pub(crate) holds: fn(&Case) -> Result<(), TestCaseError>,
}

pub(crate) const LAWS: &[Law] = &[
    Law { name: "decides like the naive model", holds: agrees_with_the_model },
    Law { name: "never exceeds the promised bound in any span", holds: keeps_its_bound },
    Law { name: "grants the whole limit at full demand", holds: meets_demand },
    Law { name: "refuses until exactly the retry time", holds: retry_time_is_exact },
    Law { name: "exactly what remains passes", holds: remaining_is_exact },
    Law { name: "a refusal does not change the state", holds: refusal_changes_nothing },
    Law { name: "giving back immediately undoes a take", holds: give_back_restores },
    Law { name: "giving back later keeps the bounds", holds: give_back_keeps_bounds },
    Law { name: "debt is at most one capacity", holds: debt_is_bounded },
    Law { name: "clock steps grant nothing, and heal", holds: clock_steps_heal },
    Law { name: "clock differences grant at most one second more", holds: disorder_is_bounded },
    Law { name: "edited limits never forget use", holds: reshape_never_forgets },
    Law { name: "state contents convert back to the same state", holds: contents_round_trip },
    Law { name: "headroom grants exactly its share", holds: headroom_is_exact },
    Law { name: "slices keep the bounds of the limit", holds: leases::slices_keep_the_bounds },
    Law { name: "extreme numbers get an answer", holds: extremes_are_answered },
];

pub(crate) type Holds = Result<(), TestCaseError>;

// === playing a history ===

fn ask_at(now: u64, step: &Step) -> Ask {
    Ask::new(Timestamp::from_nanos(now), Cost::new(step.cost)).waiting(Span::from_nanos(step.wait))
}

/// The requests with their times.
pub(crate) fn timed(case: &Case) -> impl Iterator<Item = (u64, &Step)> {
    let mut now = case.params.start;
    case.steps.iter().map(move |step| {
        now += step.gap;
        (now, step)
    })
}

/// A request that passed: the time of the request, the time of its turn, and its cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passed {
    pub(crate) at: u64,
    pub(crate) turn: u64,
    pub(crate) cost: u64,
}

fn passed(now: u64, cost: u64, decision: &Decision) -> Option<Passed> {
    match decision.outcome {
        Outcome::Allow => Some(Passed { at: now, turn: now, cost }),
        Outcome::Delay(wait) => Some(Passed { at: now, turn: now + wait.as_nanos(), cost }),
        Outcome::Deny(_) => None,
    }
}

// === the laws ===

fn agrees_with_the_model(case: &Case) -> Holds {
    let limit = case.params.limit();
    let mut model = Model::new(&case.params);
    let mut written = Written::empty(&limit);
    for (now, step) in timed(case) {
        let expected = model.passes(now, step.cost, step.wait);
        let decision = limit.take(&mut written, &ask_at(now, step)).decision;
        prop_assert_eq!(decision.passes(), expected, "at {} cost {}", now, step.cost);
        if expected {
            model.remember(now, step.cost);
        }
        prop_assert_eq!(
            decision.remaining,
            model.remaining(now, step.wait),
            "remaining at {}",
            now
        );
    }
    Ok(())
}

fn keeps_its_bound(case: &Case) -> Holds {
    let limit = case.params.limit();
    let mut written = Written::empty(&limit);
    let mut history = Vec::new();
    for (now, step) in timed(case) {
        let decision = limit.take(&mut written, &ask_at(now, step)).decision;
        history.extend(passed(now, step.cost, &decision));
    }
    within_bounds(&case.params, &history)
}

/// Checks the bound that each algorithm promises, on every span between two takes that passed.
pub(crate) fn within_bounds(params: &Params, history: &[Passed]) -> Holds {
    let model = Model::new(params);
    for (first, from) in history.iter().enumerate() {
        let mut sum = 0u128;
        for to in &history[first..] {
            sum += u128::from(to.cost);
            let span = to.at - from.at;
            let at_most = match params.family {
                Family::FixedEpoch | Family::FixedFirst | Family::Weighted
                    if span < params.window =>
                {
                    2 * u128::from(params.amount)
                }
                Family::Log | Family::Buckets if span < params.window => u128::from(params.amount),
                Family::Token => {
                    let ticks = model.ticks(to.at) - model.ticks(from.at);
                    u128::from(params.size) + ticks / model.unit()
                }
                Family::TokenInterval => {
                    let periods = u128::from(span / params.window) + 1;
                    u128::from(params.size) + u128::from(params.amount) * periods
                }
                _ => u128::MAX,
            };
            prop_assert!(sum <= at_most, "{} passed in {} ns", sum, span);
        }
    }
    match params.family {
        Family::FixedEpoch => windows_hold(params, history, |at| u128::from(at / params.window)),
        Family::FixedCalendar => {
            let calendar = params.calendar();
            windows_hold(params, history, |at| {
                u128::from(calendar.window(Timestamp::from_nanos(at)).0.as_nanos())
            })
        }
        Family::Leaky => output_is_smooth(params, history),
        _ => Ok(()),
    }
}

/// Checks that at most the amount passes in each window.
fn windows_hold(params: &Params, history: &[Passed], window: impl Fn(u64) -> u128) -> Holds {
    for from in history {
        let same = history.iter().filter(|to| window(to.at) == window(from.at));
        prop_assert!(same.map(|hit| hit.cost).sum::<u64>() <= params.amount);
    }
    Ok(())
}

/// Checks that turns come in the order of the takes, and that a take of cost `n` occupies `n` turns.
fn output_is_smooth(params: &Params, history: &[Passed]) -> Holds {
    let model = Model::new(params);
    let taken: Vec<&Passed> = history.iter().filter(|hit| hit.cost > 0).collect();
    for pair in taken.windows(2) {
        let apart = model.ticks(pair[1].turn) - model.ticks(pair[0].turn);
        prop_assert!(
            apart >= u128::from(pair[0].cost) * model.unit(),
            "turns {} ticks apart",
            apart
        );
    }
    Ok(())
}

/// Takes 1 whenever 1 can pass, for some periods, and compares the total with the promise.
fn meets_demand(case: &Case) -> Holds {
    let params = Params {
        amount: case.params.amount % 40 + 1,
        size: case.params.size % 40 + 1,
        ..case.params.clone()
    };
    let limit = params.limit();
    let mut written = Written::empty(&limit);
    let patient = Span::from_nanos(u64::MAX >> 2);
    let (mut now, mut total) = (params.start, 0u128);
    let end = params.start + params.window * 3;
    while now < end {
        prop_assert!(total < 1_000, "far too much passes");
        let ask = Ask::new(Timestamp::from_nanos(now), Cost::ONE).waiting(patient);
        match limit.take(&mut written, &ask).decision.outcome {
            Outcome::Allow | Outcome::Delay(_) => total += 1,
            Outcome::Deny(Retry::After(wait)) if wait > Span::ZERO => now += wait.as_nanos(),
            Outcome::Deny(retry) => prop_assert!(false, "refused with retry time {:?}", retry),
        }
    }
    let expected = promised(&params, end);
    prop_assert!(total >= expected, "{} passed, {} promised", total, expected);
    Ok(())
}

/// How much must pass from the start until just before `end`, at full demand.
fn promised(params: &Params, end: u64) -> u128 {
    let model = Model::new(params);
    let (amount, size, span) =
        (u128::from(params.amount), u128::from(params.size), end - params.start);
    let windows = |length: u64| u128::from((span - 1) / length);
    let tokens = (model.ticks(end - 1) - model.ticks(params.start)) / model.unit();
    match params.family {
        Family::FixedEpoch => {
            amount * u128::from((end - 1) / params.window - params.start / params.window + 1)
        }
        Family::FixedCalendar => amount * windows(params.window * 2).max(1),
        Family::FixedFirst => amount * (windows(params.window + params.window.div_ceil(1_000)) + 1),
        Family::Log => amount * (windows(params.window + params.window.div_ceil(1_000_000)) + 1),
        Family::Buckets => {
            let one = params.window.div_ceil(u64::from(params.buckets)) + 1;
            amount * (windows(params.window + one) + 1)
        }
        // Each window grants what the share of the previous window frees, minus what rounding holds back.
        Family::Weighted => amount * 3 - 3,
        Family::Token => size + tokens,
        Family::TokenInterval => {
            // The first refill may find a nearly full bucket; each later one is used up.
            let refills = (end - 1) / params.window - params.start / params.window;
            size + u128::from(refills) * amount.min(size)
        }
        Family::Leaky => size + 1 + tokens,
    }
}

fn retry_time_is_exact(case: &Case) -> Holds {
    let limit = case.params.limit();
    let mut written = Written::empty(&limit);
    for (now, step) in timed(case) {
        let ask = ask_at(now, step);
        let at = |nanos: u64| Ask { now: Timestamp::from_nanos(nanos), ..ask };
        match limit.take(&mut written, &ask).decision.outcome {
            Outcome::Deny(Retry::After(wait)) => {
                let then = now + wait.as_nanos();
                prop_assert!(wait > Span::ZERO, "refused with a retry time of zero");
                prop_assert!(
                    limit.decide(&written, &at(then)).passes(),
                    "refused at the retry time"
                );
                prop_assert!(
                    !limit.decide(&written, &at(then - 1)).passes(),
                    "passes before the retry time"
                );
            }
            Outcome::Deny(Retry::Never) => {
                prop_assert!(
                    step.cost > limit.capacity(),
                    "refused forever, although the cost fits the capacity"
                );
            }
            Outcome::Delay(wait) => prop_assert!(wait.as_nanos() <= step.wait, "waits too long"),
            Outcome::Allow => {}
        }
    }
    Ok(())
}

fn remaining_is_exact(case: &Case) -> Holds {
    let limit = case.params.limit();
    let mut written = Written::empty(&limit);
    for (now, step) in timed(case) {
        let ask = ask_at(now, step);
        let decision = limit.take(&mut written, &ask).decision;
        let of = |cost: u64| limit.decide(&written, &Ask { cost: Cost::new(cost), ..ask });
        prop_assert!(decision.remaining <= limit.capacity());
        prop_assert!(decision.remaining == 0 || of(decision.remaining).passes());
        prop_assert!(!of(decision.remaining + 1).passes());
        let Some(reset) = decision.reset else { return Ok(()) };
        let left_at = |nanos| limit.peek(&written, Timestamp::from_nanos(nanos)).remaining;
        prop_assert_eq!(left_at(now + reset.as_nanos()), limit.capacity());
        if reset > Span::ZERO {
            prop_assert!(
                left_at(now + reset.as_nanos() - 1) < limit.capacity(),
                "everything is free before the reset time"
            );
        }
    }
    Ok(())
}

fn refusal_changes_nothing(case: &Case) -> Holds {
    let limit = case.params.limit();
    let mut written = Written::empty(&limit);
    for (now, step) in timed(case) {
        let before = written.clone();
        let taken = limit.take(&mut written, &ask_at(now, step));
        if !taken.decision.passes() {
            prop_assert_eq!(&written, &before);
            prop_assert!(taken.receipt.is_none());
        }
    }
    Ok(())
}

fn give_back_restores(case: &Case) -> Holds {
    let limit = case.params.limit();
    let mut written = Written::empty(&limit);
    for (now, step) in timed(case) {
        let at = Timestamp::from_nanos(now);
        let mut before = written.clone();
        before.settle(at);
        let charge = step.dice % 4 == 0;
        let receipt = if charge {
            Some(limit.charge(&mut written, &ask_at(now, step)))
        } else {
            limit.take(&mut written, &ask_at(now, step)).receipt
        };
        if let Some(receipt) = receipt {
            let mut undone = written.clone();
            undone.give_back(at, &limit, &receipt);
            undone.settle(at);
            prop_assert_eq!(&undone, &before);
        }
    }
    Ok(())
}

fn give_back_keeps_bounds(case: &Case) -> Holds {
    let limit = case.params.limit();
    let mut written = Written::empty(&limit);
    let mut kept: Vec<(Passed, TakeReceipt)> = Vec::new();
    for (now, step) in timed(case) {
        let at = Timestamp::from_nanos(now);
        if step.dice % 3 == 0 && !kept.is_empty() {
            let place = usize::try_from(step.dice / 3).unwrap() % kept.len();
            let before = limit.peek(&written, at).remaining;
            let (_, receipt) = kept.remove(place);
            written.give_back(at, &limit, &receipt);
            prop_assert!(
                limit.peek(&written, at).remaining >= before,
                "giving back reduced what remains"
            );
        }
        let taken = limit.take(&mut written, &ask_at(now, step));
        kept.extend(passed(now, step.cost, &taken.decision).zip(taken.receipt));
    }
    let history: Vec<Passed> = kept.into_iter().map(|(hit, _)| hit).collect();
    within_bounds(&case.params, &history)
}

fn debt_is_bounded(case: &Case) -> Holds {
    let limit = case.params.limit();
    let mut written = Written::empty(&limit);
    let patient = Span::from_nanos(u64::MAX >> 2);
    for (now, step) in timed(case) {
        let ask = ask_at(now, step);
        if step.dice % 2 == 0 {
            let cost = Cost::new(step.cost.saturating_mul(1 + step.dice % 5));
            limit.charge(&mut written, &Ask { cost, ..ask });
        } else {
            limit.take(&mut written, &ask);
        }
        // However much was charged, there is no more room for debt than in an empty state.
        let owed = limit.peek(&written, Timestamp::from_nanos(now));
        let again = limit.charge(&mut written.clone(), &Ask { cost: Cost::new(u64::MAX), ..ask });
        let mut full = Written::empty(&limit);
        let all = limit.charge(&mut full, &Ask { cost: Cost::new(u64::MAX), ..ask });
        prop_assert!(again.weight <= all.weight, "there was more room than twice the capacity");
        let mut deepest = written.clone();
        limit.charge(&mut deepest, &Ask { cost: Cost::new(u64::MAX), ..ask });
        let more = limit.charge(&mut deepest, &Ask { cost: Cost::ONE, ..ask });
        prop_assert_eq!(more.weight, 0, "the debt exceeds its bound");
        prop_assert!(owed.remaining == 0 || owed.passes());
        // A cost of 0 is refused only in debt, and then no other cost passes either.
        let zero = limit.decide(&written, &Ask { cost: Cost::new(0), ..ask }.waiting(patient));
        let one = limit.decide(&written, &Ask { cost: Cost::ONE, ..ask }.waiting(patient));
        prop_assert!(zero.passes() || !one.passes());
    }
    Ok(())
}

fn clock_steps_heal(case: &Case) -> Holds {
    let limit = case.params.limit();
    let mut written = Written::empty(&limit);
    let (mut clock, mut real) = (case.params.start, case.params.start);
    let mut history = Vec::new();
    for step in &case.steps {
        clock += step.gap;
        real += step.gap;
        let back = match step.dice % 8 {
            0 => step.dice / 8 % 1_000_000_000,
            1 => step.dice / 8 % (case.params.window * 20),
            2 => u64::MAX,
            _ => 0,
        };
        let at = Timestamp::from_nanos(clock);
        let before = limit.peek(&written, at).remaining;
        clock -= back.min(clock);
        let at = Timestamp::from_nanos(clock);
        prop_assert!(
            limit.peek(&written, at).remaining <= before,
            "a clock step back granted something"
        );
        let mut mended = written.clone();
        mended.mend(at);
        heals(&case.params, &limit, &mended, clock)?;
        let decision = limit.take(&mut written, &ask_at(clock, step)).decision;
        history.extend(passed(real, step.cost, &decision));
    }
    match case.params.family {
        // After a step back, windows with fixed boundaries come again too early. The others are exact in real time.
        Family::FixedEpoch | Family::FixedCalendar | Family::Weighted | Family::TokenInterval => {
            Ok(())
        }
        Family::FixedFirst | Family::Log | Family::Buckets => within_bounds(&case.params, &history),
        // Each step back may round the clock down by one more tick.
        Family::Token => {
            within_bounds(&Params { size: case.params.size + 1, ..case.params.clone() }, &history)
        }
        // Turns are promised in clock time, but the check of smooth output uses real time.
        Family::Leaky => Ok(()),
    }
}

/// Takes on one state by clocks that lag by varying amounts, up to a second. At most as much passes as in a span that is one
/// second longer.
fn disorder_is_bounded(case: &Case) -> Holds {
    const LAG: u64 = 1_000_000_000;
    let params = Params { start: case.params.start + LAG, ..case.params.clone() };
    let (limit, mut real, mut history) = (params.limit(), params.start, Vec::new());
    let mut written = Written::empty(&limit);
    for step in &case.steps {
        real += step.gap;
        // Most clocks are on time. Others lag a little, or to just before a boundary, or by a whole second.
        let lag = match step.dice % 6 {
            0 => step.dice / 6 % (LAG + 1),
            1 => LAG,
            2 => (real % params.window + 1).min(LAG),
            _ => 0,
        };
        let decision = limit.take(&mut written, &ask_at(real - lag, step)).decision;
        history.extend(passed(real, step.cost, &decision));
    }
    let model = Model::new(&params);
    let Params { amount, size, window, .. } = params;
    for (first, from) in history.iter().enumerate() {
        let mut sum = 0u128;
        for to in &history[first..] {
            sum += u128::from(to.cost);
            let (amount, size) = (u128::from(amount), u128::from(size));
            let (since, span) = (from.at - LAG, to.at - from.at + LAG);
            let windows = u128::from(to.at / window - since / window + 1);
            let at_most = match params.family {
                Family::FixedEpoch => amount * windows,
                Family::TokenInterval => size + amount * windows,
                Family::FixedFirst | Family::Weighted if span < window => 2 * amount,
                Family::Log | Family::Buckets if span < window => amount,
                Family::Token => size + (model.ticks(to.at) - model.ticks(since)) / model.unit(),
                _ => u128::MAX,
            };
            prop_assert!(sum <= at_most, "{} passed in {} ns, a second included", sum, span);
        }
    }
    Ok(())
}

/// A cost of 1 passes again at the latest one period and the tolerance after a clock step, if nothing else is taken. For a
/// bucket the period is the time to fill or drain all of it, plus one token or turn.
fn heals(params: &Params, limit: &Limit, written: &Written<'_>, clock: u64) -> Holds {
    let Params { window, amount, size, .. } = *params;
    let tolerance = 1_000_000_000;
    let token = window.div_ceil(amount) + 1_000;
    let period = match params.family {
        Family::FixedEpoch => window,
        Family::FixedCalendar => {
            let (_, end) = params.calendar().window(Timestamp::from_nanos(clock + tolerance));
            end.map_or(u64::MAX, |end| end.as_nanos() - clock)
        }
        Family::FixedFirst => window + window.div_ceil(1_000) * 2,
        Family::Log => window + window.div_ceil(1_000_000) * 2,
        Family::Buckets => window + window.div_ceil(u64::from(params.buckets)) * 2,
        // The share of the previous window must fall to one below the limit.
        Family::Weighted => window + window / amount + 2,
        Family::Token => token * (size + 1),
        Family::TokenInterval => window * (size.div_ceil(amount) + 3),
        Family::Leaky => token * (size + 2),
    };
    let wait = Span::from_nanos(period.saturating_add(tolerance));
    let Some(healed) = Timestamp::from_nanos(clock).after(wait) else { return Ok(()) };
    let patient = Span::from_nanos(u64::MAX >> 2);
    let decision = limit.decide(written, &Ask::new(healed, Cost::ONE).waiting(patient));
    prop_assert!(decision.passes(), "still refused {} after a clock step: {:?}", wait, decision);
    Ok(())
}

fn reshape_never_forgets(case: &Case) -> Holds {
    let Params { amount, window, size, family, .. } = case.params;
    let any_period = matches!(family, Family::Token | Family::TokenInterval | Family::Leaky);
    let other_window = if any_period { window * 2 / 3 + 1_000_000 } else { window };
    let shapes = [
        (amount, window, size),
        (amount * 2, window, size),
        (amount.div_ceil(3), other_window, size / 2 + 1),
        (amount + 1, other_window, size + 5),
    ];
    let limits =
        shapes.map(|(amount, window, size)| case.params.limit_of(amount.min(10_000), window, size));
    let mut written = Written::empty(&limits[0]);
    let mut kept: Vec<(Passed, &Limit, TakeReceipt)> = Vec::new();
    for (now, step) in timed(case) {
        let at = Timestamp::from_nanos(now);
        let limit = &limits[usize::try_from(step.dice % 4).unwrap()];
        if step.dice / 4 % 5 == 0 && !kept.is_empty() {
            let (_, taken_under, receipt) =
                kept.remove(usize::try_from(step.dice / 20).unwrap() % kept.len());
            written.give_back(at, taken_under, &receipt);
        }
        let before = written.clone();
        let left = limit.peek(&written, at).remaining.saturating_sub(step.cost);
        let ask = ask_at(now, step);
        let taken = limit.take(&mut written, &ask);
        if taken.decision.passes() && step.cost > 0 {
            let hit = passed(now, step.cost, &taken.decision);
            kept.extend(hit.zip(taken.receipt).map(|(hit, receipt)| (hit, limit, receipt)));
            let after = limit.peek(&written, at).remaining;
            prop_assert!(
                after <= left,
                "a take under an edited limit refunded something: {} > {}",
                after,
                left
            );
        } else {
            prop_assert_eq!(&written, &before, "nothing was taken, but the state changed");
        }
        if let Outcome::Deny(Retry::After(wait)) = taken.decision.outcome {
            let then = Timestamp::from_nanos(now + wait.as_nanos());
            prop_assert!(
                limit.decide(&written, &Ask { now: then, ..ask }).passes(),
                "refused at the retry time under an edited limit"
            );
        }
    }
    let history: Vec<Passed> = kept.into_iter().map(|(hit, _, _)| hit).collect();
    reshaped_bounds(&case.params, &shapes, &history)
}

/// Under any order of limits, at most the largest burst plus the largest rate passes in any span.
fn reshaped_bounds(params: &Params, shapes: &[(u64, u64, u64)], history: &[Passed]) -> Holds {
    let largest = shapes.iter().map(|shape| shape.0).max().unwrap();
    match params.family {
        Family::Token | Family::TokenInterval => reshaped_tokens(params.family, shapes, history),
        Family::Leaky => reshaped_turns(shapes, history),
        _ => within_bounds(&Params { amount: largest, ..params.clone() }, history),
    }
}

fn reshaped_tokens(family: Family, shapes: &[(u64, u64, u64)], history: &[Passed]) -> Holds {
    let burst = u128::from(shapes.iter().map(|shape| shape.2).max().unwrap());
    for (first, from) in history.iter().enumerate() {
        let mut sum = 0u128;
        for to in &history[first..] {
            sum += u128::from(to.cost);
            let span = u128::from(to.at - from.at);
            let drained = shapes.iter().map(|(amount, window, _)| {
                let (amount, window) = (u128::from(*amount), u128::from(*window));
                match family {
                    Family::TokenInterval => amount * (span / window + 1),
                    // One microsecond more, because the clock is read in whole ticks.
                    _ => (span + 1_000) * amount / window + 1,
                }
            });
            // Intervals of different lengths do not add up to one rate: each refills at its own times.
            let drained = if family == Family::TokenInterval {
                drained.sum()
            } else {
                drained.max().unwrap()
            };
            prop_assert!(sum <= burst + drained, "{} in {} ns", sum, span);
        }
    }
    Ok(())
}

/// Checks that turns keep their order, and that each takes at least as long as its cost does at the fastest rate.
fn reshaped_turns(shapes: &[(u64, u64, u64)], history: &[Passed]) -> Holds {
    for pair in history.windows(2) {
        let turns = |(amount, window, _): &(u64, u64, u64)| {
            u128::from(pair[0].cost) * u128::from(*window) / u128::from(*amount)
        };
        let apart = u128::from(pair[1].turn - pair[0].turn);
        let fastest = shapes.iter().map(turns).min().unwrap();
        prop_assert!(apart + 1_000 >= fastest, "turns {} ns apart, not {}", apart, fastest);
    }
    Ok(())
}

fn contents_round_trip(case: &Case) -> Holds {
    let limit = case.params.limit();
    let mut written = Written::empty(&limit);
    for (now, step) in timed(case) {
        limit.take(&mut written, &ask_at(now, step));
        let contents = written.remembered(Timestamp::from_nanos(now));
        prop_assert_eq!(&limit.remember(&contents), &written.state, "{:?}", contents);
    }
    Ok(())
}

/// Soft headroom acts like a larger limit with the same rate. Elastic headroom grants at least the plain limit. `over` is set
/// exactly when the plain limit would have refused.
fn headroom_is_exact(case: &Case) -> Holds {
    let params = &case.params;
    let percent = u16::try_from(case.steps[0].dice % 300).unwrap();
    let more = |n: u64| n + n * u64::from(percent) / 100;
    let drains = matches!(params.family, Family::Token | Family::TokenInterval | Family::Leaky);
    let amount = if drains { params.amount } else { more(params.amount) };
    if amount > 10_000 {
        return Ok(());
    }
    let larger = params.limit_of(amount, params.window, more(params.size));
    let soft = params.limit().with_headroom(Headroom::Soft(percent)).unwrap();
    let elastic = params.limit().with_headroom(Headroom::Elastic(100 + percent)).unwrap();
    let (mut by_larger, mut by_soft) = (Written::empty(&larger), Written::empty(&soft));
    let mut by_elastic = Written::empty(&elastic);
    for (now, step) in timed(case) {
        let ask = ask_at(now, step);
        let stretched = ask.bounded(Bound::Headroom);
        let plainly = soft.decide(&by_soft, &ask).passes();
        let by_soft_limit = soft.take(&mut by_soft, &stretched).decision;
        prop_assert_eq!(by_soft_limit.outcome, larger.take(&mut by_larger, &ask).decision.outcome);
        prop_assert_eq!(by_soft_limit.over, by_soft_limit.passes() && !plainly);
        let plainly = elastic.decide(&by_elastic, &ask).passes();
        let decision = elastic.take(&mut by_elastic, &stretched).decision;
        prop_assert!(decision.passes() || !plainly, "elastic refused what the plain limit grants");
        prop_assert_eq!(decision.over, decision.passes() && !plainly);
        if !drains {
            prop_assert_eq!(decision.outcome, by_soft_limit.outcome);
        }
    }
    Ok(())
}

fn extremes_are_answered(case: &Case) -> Holds {
    let limit = case.params.limit();
    let mut written = Written::empty(&limit);
    let pick = |dice: u64, small: u64| match dice % 6 {
        0 => u64::MAX,
        1 => u64::MAX - small % 1_000,
        2 => 0,
        3 => small,
        4 => 1 << (small % 64),
        _ => small % 20,
    };
    let mut receipts: Vec<TakeReceipt> = Vec::new();
    for step in &case.steps {
        let now = pick(step.dice, case.params.start + step.gap);
        let cost = pick(step.dice / 7, step.cost);
        let wait = pick(step.dice / 49, step.wait);
        let ask =
            Ask::new(Timestamp::from_nanos(now), Cost::new(cost)).waiting(Span::from_nanos(wait));
        let decision = match step.dice / 343 % 3 {
            0 => {
                receipts.push(limit.charge(&mut written, &ask));
                limit.decide(&written, &ask)
            }
            1 if !receipts.is_empty() => {
                written.give_back(ask.now, &limit, &receipts.swap_remove(0));
                limit.decide(&written, &ask)
            }
            _ => limit.take(&mut written, &ask).decision,
        };
        prop_assert!(decision.remaining <= limit.capacity());
        if cost > limit.capacity() {
            prop_assert_eq!(decision.outcome, Outcome::Deny(Retry::Never));
        }
    }
    Ok(())
}
