//! Plays a scenario against a layer: the pure core, a store or a server.

use crate::{Action, Answer, Scenario, Verb};
use core::fmt;
use tidegate_core::{Ask, Bound, Cost, Decision, Headroom, Limit, Span, Timestamp};

/// One call of a scenario to the layer under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call<'s> {
    /// Take, and keep the receipt under the name if there is one.
    Take(&'s Limit, Ask, Option<&'s str>),
    /// Peek: ask for a cost of 0, and take nothing.
    Peek(&'s Limit, Ask),
    /// Charge, keep the receipt under the name if there is one, and answer like a peek afterwards.
    Charge(&'s Limit, Ask, Option<&'s str>),
    /// Give back the receipt with that name.
    GiveBack(Timestamp, &'s str),
    /// Forget everything.
    Reset,
}

/// An answer that differs from the scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The line of the scenario.
    pub line: usize,
    /// What differs.
    pub difference: String,
}

/// Plays a scenario. `layer` answers each call; giving back and resetting have no answer.
pub fn play<'s>(
    scenario: &'s Scenario,
    mut layer: impl FnMut(Call<'s>) -> Option<Decision>,
) -> Result<(), Mismatch> {
    walk(scenario, |line, call, answer| {
        check(answer, layer(call)).map_err(|difference| Mismatch { line, difference })
    })
}

/// The calls of a scenario in order, for a layer that cannot answer synchronously: make the calls first, then [`play`] the
/// scenario with the collected answers.
#[must_use]
pub fn calls(scenario: &Scenario) -> Vec<Call<'_>> {
    let mut calls = Vec::new();
    let walked = walk(scenario, |_, call, _| {
        calls.push(call);
        Ok(())
    });
    debug_assert_eq!(walked, Ok(()));
    calls
}

/// Visits every call with its line and its expected answer.
fn walk<'s>(
    scenario: &'s Scenario,
    mut visit: impl FnMut(usize, Call<'s>, Option<&'s Answer>) -> Result<(), Mismatch>,
) -> Result<(), Mismatch> {
    let mut limit: Option<&'s Limit> = None;
    let mut elastic = false;
    for step in &scenario.steps {
        match (&step.action, limit) {
            (Action::Limit(new), _) => limit = Some(new),
            (Action::Elastic(holds), _) => elastic = *holds,
            (Action::At(_, _), None) => {
                return Err(Mismatch { line: step.line, difference: "no limit is set".to_owned() });
            }
            (Action::At(now, verb), Some(limit)) => {
                let bound = bound(limit, elastic);
                let ask = |cost, wait| Ask::new(*now, cost).bounded(bound).waiting(wait);
                let (call, answer) = call(limit, verb, ask, *now);
                for _ in 0..times(verb) {
                    visit(step.line, call, answer)?;
                }
            }
        }
    }
    Ok(())
}

/// Headroom applies always to a soft limit, and to an elastic limit while its condition holds.
fn bound(limit: &Limit, elastic: bool) -> Bound {
    match limit.headroom() {
        Headroom::Soft(_) => Bound::Headroom,
        Headroom::Elastic(_) if elastic => Bound::Headroom,
        Headroom::None | Headroom::Elastic(_) => Bound::Plain,
    }
}

fn call<'s>(
    limit: &'s Limit,
    verb: &'s Verb,
    ask: impl Fn(Cost, Span) -> Ask,
    now: Timestamp,
) -> (Call<'s>, Option<&'s Answer>) {
    match verb {
        Verb::Take { cost, waiting, name, answer, .. } => {
            (Call::Take(limit, ask(*cost, *waiting), name.as_deref()), Some(answer))
        }
        Verb::Peek { waiting, answer } => {
            (Call::Peek(limit, ask(Cost::default(), *waiting)), Some(answer))
        }
        Verb::Charge { cost, name, answer } => {
            (Call::Charge(limit, ask(*cost, Span::ZERO), name.as_deref()), answer.as_ref())
        }
        Verb::GiveBack(name) => (Call::GiveBack(now, name), None),
        Verb::Reset => (Call::Reset, None),
    }
}

const fn times(verb: &Verb) -> u32 {
    match verb {
        Verb::Take { times, .. } => *times,
        Verb::Peek { .. } | Verb::Charge { .. } | Verb::GiveBack(_) | Verb::Reset => 1,
    }
}

fn check(answer: Option<&Answer>, decision: Option<Decision>) -> Result<(), String> {
    match (answer, decision) {
        (None, _) => Ok(()),
        (Some(answer), Some(decision)) => answer.check(&decision),
        (Some(_), None) => Err("the layer gave no answer".to_owned()),
    }
}

// === impl Mismatch ===

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.difference)
    }
}
