//! Plays a scenario against anything that can answer: the pure core, a store, a server.

use crate::{Action, Answer, Scenario, Verb};
use core::fmt;
use tidegate_core::{Ask, Bound, Cost, Decision, Headroom, Limit, Span, Timestamp};

/// One call that a scenario makes of the layer under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call<'s> {
    /// Take, and remember the receipt under the name if there is one.
    Take(&'s Limit, Ask, Option<&'s str>),
    /// Peek: ask for a cost of nothing, take nothing.
    Peek(&'s Limit, Ask),
    /// Charge, remember the receipt under the name, and answer as a peek does then.
    Charge(&'s Limit, Ask, Option<&'s str>),
    /// Give back the receipt of that name.
    GiveBack(Timestamp, &'s str),
    /// Forget everything.
    Reset,
}

/// An answer that is not as the scenario says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The line of the scenario.
    pub line: usize,
    /// What differs.
    pub difference: String,
}

/// Plays a scenario; `layer` answers each call (give-back and reset have no answer).
pub fn play<'s>(
    scenario: &'s Scenario,
    mut layer: impl FnMut(Call<'s>) -> Option<Decision>,
) -> Result<(), Mismatch> {
    let mut limit: Option<&'s Limit> = None;
    let mut elastic = false;
    for step in &scenario.steps {
        let mismatch = |difference| Mismatch { line: step.line, difference };
        match (&step.action, limit) {
            (Action::Limit(new), _) => limit = Some(new),
            (Action::Elastic(holds), _) => elastic = *holds,
            (Action::At(_, _), None) => return Err(mismatch("no limit is set".to_owned())),
            (Action::At(now, verb), Some(limit)) => {
                let bound = bound(limit, elastic);
                let ask = |cost, wait| Ask::new(*now, cost).bounded(bound).waiting(wait);
                step_of(limit, verb, ask, *now, &mut layer).map_err(mismatch)?;
            }
        }
    }
    Ok(())
}

/// A soft limit is always asked with headroom, an elastic one while its condition holds.
fn bound(limit: &Limit, elastic: bool) -> Bound {
    match limit.headroom() {
        Headroom::Soft(_) => Bound::Headroom,
        Headroom::Elastic(_) if elastic => Bound::Headroom,
        Headroom::None | Headroom::Elastic(_) => Bound::Plain,
    }
}

fn step_of<'s>(
    limit: &'s Limit,
    verb: &'s Verb,
    ask: impl Fn(Cost, Span) -> Ask,
    now: Timestamp,
    layer: &mut impl FnMut(Call<'s>) -> Option<Decision>,
) -> Result<(), String> {
    match verb {
        Verb::Take { cost, times, waiting, name, answer } => {
            for time in 1..=*times {
                let decision = layer(Call::Take(limit, ask(*cost, *waiting), name.as_deref()));
                check(Some(answer), decision).map_err(|wrong| match times {
                    1 => wrong,
                    _ => format!("take {time} of {times}: {wrong}"),
                })?;
            }
            Ok(())
        }
        Verb::Peek { waiting, answer } => {
            check(Some(answer), layer(Call::Peek(limit, ask(Cost::default(), *waiting))))
        }
        Verb::Charge { cost, name, answer } => {
            let call = Call::Charge(limit, ask(*cost, Span::ZERO), name.as_deref());
            check(answer.as_ref(), layer(call))
        }
        Verb::GiveBack(name) => {
            layer(Call::GiveBack(now, name));
            Ok(())
        }
        Verb::Reset => {
            layer(Call::Reset);
            Ok(())
        }
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
