//! Plays a scenario against a limiter, with a clock that the scenario sets. Nothing waits.

use super::PreparedScenario;
use super::answer::{SeenAnswer, compared};
use futures_util::FutureExt as _;
use std::collections::HashMap;
use std::fmt::Display;
use std::slice;
use tidegate::{
    Allowance, Attributes, Check, Clock, Limiter, Memory, Policy, Receipt, Report, RuleLimit,
    Secret, Settled, Verdict,
};
use tidegate_timelines::policy::{self as timeline, Action, Ask, Scenario, Step};

/// What became of a scenario.
pub(super) struct ScenarioReport<'s> {
    pub(super) scenario: &'s Scenario,
    pub(super) steps: Vec<StepReport<'s>>,
}

/// What became of one step.
pub(super) struct StepReport<'s> {
    pub(super) step: &'s Step,
    pub(super) seen: SeenAnswer,
    /// How the answer differs from the expected one; empty if it does not.
    pub(super) differences: Vec<String>,
    /// If a request was repeated and answered differently: which repetition it was.
    pub(super) repetition: Option<u32>,
}

/// A limiter, its clock, and what the steps so far left behind.
struct Player<'s> {
    limiter: Limiter,
    clock: Clock,
    /// The policies of the reloads to come.
    reloads: slice::Iter<'s, Policy>,
    /// The receipts of takes that have a name.
    receipts: HashMap<&'s str, Receipt>,
}

/// An error of the limiter as text, such as an unknown rule.
type Played = Result<(SeenAnswer, Vec<String>), String>;

/// Plays a scenario to its end, also after a step that differs.
pub(super) fn play(prepared: &PreparedScenario) -> Result<ScenarioReport<'_>, String> {
    let PreparedScenario { scenario, policies } = prepared;
    let mut player = Player::new(scenario, policies)?;
    let steps = scenario.steps.iter().map(|step| player.step(step)).collect();
    Ok(ScenarioReport { scenario, steps })
}

// === impl ScenarioReport ===

impl ScenarioReport<'_> {
    pub(super) fn passed(&self) -> bool {
        self.steps.iter().all(StepReport::passed)
    }
}

impl StepReport<'_> {
    pub(super) fn passed(&self) -> bool {
        self.differences.is_empty()
    }
}

// === impl Player ===

impl<'s> Player<'s> {
    fn new(scenario: &Scenario, policies: &'s [Policy]) -> Result<Self, String> {
        let mut reloads = policies.iter();
        let policy = reloads.next().ok_or("a scenario has no policy")?.clone();
        // The limiter starts at the time of the first step, not at the epoch, so that calendars are laid out for that time.
        let start = scenario.steps.first().ok_or("a scenario has no step")?.at;
        let clock = Clock::manual(start);
        let store = Memory::new(clock.clone());
        let limiter = Limiter::new(policy, store, Secret::new([7; 32]), clock.clone());
        let limiter = limiter.map_err(|error| format!("line {}: {error}", scenario.line))?;
        Ok(Self { limiter, clock, reloads, receipts: HashMap::new() })
    }

    fn step(&mut self, step: &'s Step) -> StepReport<'s> {
        self.clock.set(step.at);
        let (played, repetition) = if let Action::Take { ask, times, name, then } = &step.action {
            self.takes(ask, *times, name.as_deref(), *then)
        } else {
            (self.act(&step.action), None)
        };
        let (seen, differences) =
            played.unwrap_or_else(|error| (SeenAnswer::default(), vec![error]));
        StepReport { step, seen, differences, repetition }
    }

    /// Takes several times, up to the first answer that differs.
    fn takes(
        &mut self,
        ask: &Ask,
        times: u32,
        name: Option<&'s str>,
        then: Option<timeline::Outcome>,
    ) -> (Played, Option<u32>) {
        let mut last = Ok((SeenAnswer::default(), vec![]));
        for number in 1..=times {
            last = self.take(ask, number, name, then);
            if last.as_ref().map_or(true, |(_, differences)| !differences.is_empty()) {
                return (last, (times > 1).then_some(number));
            }
        }
        (last, None)
    }

    fn take(
        &mut self,
        ask: &Ask,
        number: u32,
        name: Option<&'s str>,
        then: Option<timeline::Outcome>,
    ) -> Played {
        let who = attributes(&ask.who, number)?;
        let check = check(&who, ask);
        let check = if name.is_some() || then.is_some() { check.with_receipt() } else { check };
        let verdict = ok(self.limiter.check_now(&check))?;
        if let (Some(outcome), Some(receipt)) = (then, verdict.receipt()) {
            ok(self.limiter.report_now(receipt, report(outcome)))?;
        }
        self.receipts.extend(name.zip(verdict.receipt().cloned()));
        Ok(judged(ask, &verdict))
    }

    fn act(&mut self, action: &'s Action) -> Played {
        match action {
            Action::Take { .. } => Err("a take is played by itself".to_owned()),
            Action::Peek(ask) => self.peek(ask),
            Action::Report { name, outcome, settled } => self.report(name, *outcome, *settled),
            Action::Reset { rule, who, states } => {
                let found = ok(self.limiter.reset_now(rule, &attributes(who, 1)?))?;
                Ok(compared(found.to_string(), states.map(|states| states.to_string())))
            }
            Action::Signal(..)
            | Action::Tier(..)
            | Action::Override { .. }
            | Action::Enable(..)
            | Action::Shadow(..)
            | Action::Reload(_) => self.change(action).map(|()| (SeenAnswer::default(), vec![])),
        }
    }

    fn peek(&self, ask: &Ask) -> Played {
        let who = attributes(&ask.who, 1)?;
        let check = check(&who, ask);
        let peeked = self.limiter.peek(&check).now_or_never();
        let verdict = ok(peeked.ok_or("the store in memory did not answer at once")?)?;
        Ok(judged(ask, &verdict))
    }

    fn report(
        &self,
        name: &str,
        outcome: timeline::Outcome,
        settled: Option<timeline::Settled>,
    ) -> Played {
        let receipt = self.receipts.get(name).ok_or_else(|| {
            format!("nothing was taken as `{name}`; write `as {name}` at a take that passes")
        })?;
        let found = match ok(self.limiter.report_now(receipt, report(outcome)))? {
            Settled::Done => "settled",
            Settled::Already => "already",
            Settled::Late => "late",
            Settled::Full => "no room for another receipt",
        };
        let expected = settled.map(|settled| match settled {
            timeline::Settled::Done => "settled",
            timeline::Settled::Already => "already",
            timeline::Settled::Late => "late",
        });
        Ok(compared(found.to_owned(), expected.map(str::to_owned)))
    }

    /// What an operator does.
    fn change(&mut self, action: &Action) -> Result<(), String> {
        let limiter = &self.limiter;
        match action {
            Action::Signal(name, value) => done(limiter.signal(name, *value)),
            Action::Tier((name, value), tier) => {
                done(limiter.assign_tier((name, value), tier.as_deref()))
            }
            Action::Override { rule, who, allowance } => {
                self.set_override(rule, who, allowance.as_ref())
            }
            Action::Enable(rule, enabled) => done(limiter.set_enabled(rule, *enabled)),
            Action::Shadow(rule, shadow) => done(limiter.set_shadow(rule, *shadow)),
            Action::Reload(_) => {
                let policy = self.reloads.next().ok_or("a reload has no policy")?;
                done(limiter.reload(policy.clone()))
            }
            Action::Take { .. }
            | Action::Peek(_)
            | Action::Report { .. }
            | Action::Reset { .. } => Err("it changes no rules".to_owned()),
        }
    }

    fn set_override(
        &self,
        rule: &str,
        who: &[(String, String)],
        allowed: Option<&timeline::Allowance>,
    ) -> Result<(), String> {
        let who: Vec<(&str, &str)> = who.iter().map(|(name, value)| (&**name, &**value)).collect();
        match allowed {
            Some(allowed) => done(self.limiter.set_override(rule, &who, allowance(allowed)?)),
            None => done(self.limiter.remove_override(rule, &who)),
        }
    }
}

// === from the words of scenarios to those of the limiter ===

/// The error as text.
fn ok<T>(result: Result<T, impl Display>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

/// The error as text, without the value.
fn done<T>(result: Result<T, impl Display>) -> Result<(), String> {
    ok(result).map(|_| ())
}

/// Attributes, with the number of the repetition for `{n}`.
fn attributes(who: &[(String, String)], number: u32) -> Result<Attributes<'_>, String> {
    who.iter().try_fold(Attributes::new(), |attributes, (name, value)| {
        if value.contains("{n}") {
            let value = value.replace("{n}", &number.to_string());
            return ok(attributes.with(&**name, value));
        }
        ok(attributes.with(&**name, &**value))
    })
}

fn check<'c>(who: &'c Attributes<'c>, ask: &Ask) -> Check<'c> {
    Check::new(who).cost(ask.cost).waiting(ask.waiting)
}

fn judged(ask: &Ask, verdict: &Verdict) -> (SeenAnswer, Vec<String>) {
    (SeenAnswer::of(verdict), super::answer::differences(&ask.answer, verdict))
}

const fn report(outcome: timeline::Outcome) -> Report {
    match outcome {
        timeline::Outcome::Success => Report::Success,
        timeline::Outcome::Failure => Report::Failure,
        timeline::Outcome::Cancelled => Report::Cancelled,
        timeline::Outcome::Cost(cost) => Report::Cost(cost),
    }
}

fn allowance(allowed: &timeline::Allowance) -> Result<Allowance, String> {
    match allowed {
        timeline::Allowance::Unlimited => Ok(Allowance::Unlimited),
        timeline::Allowance::Rates(rates) => {
            let limits = rates.iter().map(|rate| ok(RuleLimit::from_rate(rate)));
            Ok(Allowance::Limits(limits.collect::<Result<_, _>>()?))
        }
    }
}
