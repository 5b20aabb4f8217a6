//! Plays every scenario in `timelines/policies` against a limiter, with a clock that the scenario sets.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::arithmetic_side_effects,
    reason = "a test fails loudly, and prints how many scenarios it played"
)]

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use tidegate::{
    Allowance, Attributes, Check, Clock, Limiter, Memory, Outcome, Policy, Receipt, Report,
    RuleLimit, Secret, Settled, Verdict,
};
use tidegate_timelines::Expected;
use tidegate_timelines::policy::{self as timeline, Action, Answer, Ask, Fact, Said, Scenario};

/// The fewest scenarios there must be, so that none is lost unnoticed.
const FEWEST: usize = 120;

fn files() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(timeline::FOLDER).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[tokio::test]
async fn the_limiter_agrees_with_every_timeline() {
    let mut played = 0;
    let mut wrong = Vec::new();
    for file in files() {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let scenarios = timeline::parse(&fs::read_to_string(&file).unwrap())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        for scenario in &scenarios {
            played += 1;
            if let Err(difference) = play(scenario).await {
                wrong.push(format!("{name}: {}: {difference}", scenario.title));
            }
        }
    }
    println!("{played} timelines of policies played");
    assert!(wrong.is_empty(), "{} of {played} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(played >= FEWEST, "only {played} timelines");
}

/// A limiter, its clock, and the receipts of takes that have a name.
struct Player<'s> {
    limiter: Limiter,
    clock: Clock,
    receipts: HashMap<&'s str, Receipt>,
}

async fn play(scenario: &Scenario) -> Result<(), String> {
    let mut player = Player::new(scenario).map_err(|e| format!("line {}: {e}", scenario.line))?;
    for step in &scenario.steps {
        player.clock.set(step.at);
        let done = player.act(&step.action).await;
        done.map_err(|difference| format!("line {}: {difference}", step.line))?;
    }
    Ok(())
}

/// The error as text.
fn ok<T>(result: Result<T, impl ToString>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

/// The error as text, without the value.
fn done<T>(result: Result<T, impl ToString>) -> Result<(), String> {
    ok(result).map(|_| ())
}

// === impl Player ===

impl<'s> Player<'s> {
    fn new(scenario: &'s Scenario) -> Result<Self, String> {
        let policy = ok(Policy::parse(&*scenario.policy))?;
        // The limiter starts at the time of the first step, not at the epoch, so that calendars are laid out for that time.
        let clock = Clock::manual(scenario.steps.first().unwrap().at);
        let store = Memory::new(clock.clone());
        let limiter = ok(Limiter::new(policy, store, Secret::new([7; 32]), clock.clone()))?;
        Ok(Self { limiter, clock, receipts: HashMap::new() })
    }

    async fn act(&mut self, action: &'s Action) -> Result<(), String> {
        let limiter = &self.limiter;
        match action {
            Action::Take { ask, times, name } => {
                for _ in 0..*times {
                    self.take(ask, name.as_deref()).await?;
                }
                Ok(())
            }
            Action::Peek(ask) => {
                let who = attributes(&ask.who)?;
                compare(&ask.answer, &ok(limiter.peek(&check(&who, ask)).await)?)
            }
            Action::Report { name, outcome, settled } => {
                self.report(name, *outcome, *settled).await
            }
            Action::Reset { rule, who, states } => {
                let found = ok(limiter.reset(rule, &attributes(who)?).await)?;
                equal("states", &found, states.as_ref())
            }
            Action::Signal(name, value) => done(limiter.signal(name, *value)),
            Action::Tier((name, value), tier) => {
                done(limiter.assign_tier((name, value), tier.as_deref()))
            }
            Action::Override { rule, who, allowance } => {
                self.set_override(rule, who, allowance.as_ref())
            }
            Action::Enable(rule, enabled) => done(limiter.set_enabled(rule, *enabled)),
            Action::Shadow(rule, shadow) => done(limiter.set_shadow(rule, *shadow)),
            Action::Reload(policy) => done(limiter.reload(ok(Policy::parse(&**policy))?)),
        }
    }

    async fn take(&mut self, ask: &'s Ask, name: Option<&'s str>) -> Result<(), String> {
        let who = attributes(&ask.who)?;
        let check = check(&who, ask);
        let check = if name.is_some() { check.with_receipt() } else { check };
        let verdict = ok(self.limiter.check(&check).await)?;
        self.receipts.extend(name.zip(verdict.receipt().cloned()));
        compare(&ask.answer, &verdict)
    }

    async fn report(
        &self,
        name: &str,
        outcome: timeline::Outcome,
        settled: Option<timeline::Settled>,
    ) -> Result<(), String> {
        let receipt =
            self.receipts.get(name).ok_or_else(|| format!("nothing was taken as `{name}`"))?;
        let report = match outcome {
            timeline::Outcome::Success => Report::Success,
            timeline::Outcome::Failure => Report::Failure,
            timeline::Outcome::Cancelled => Report::Cancelled,
            timeline::Outcome::Cost(cost) => Report::Cost(cost),
        };
        let found = match ok(self.limiter.report(receipt, report).await)? {
            Settled::Done => timeline::Settled::Done,
            Settled::Already => timeline::Settled::Already,
            Settled::Late => timeline::Settled::Late,
            Settled::Full => panic!("the store has no room for another receipt"),
        };
        equal("settled", &found, settled.as_ref())
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

fn attributes(who: &[(String, String)]) -> Result<Attributes<'_>, String> {
    who.iter().try_fold(Attributes::new(), |attributes, (name, value)| {
        ok(attributes.with(&**name, &**value))
    })
}

fn check<'c>(who: &'c Attributes<'c>, ask: &Ask) -> Check<'c> {
    Check::new(who).cost(ask.cost).waiting(ask.waiting)
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

// === differences ===

fn compare(answer: &Answer, verdict: &Verdict) -> Result<(), String> {
    let mut wrong: Vec<String> = answer.said.iter().filter_map(|s| differs(s, verdict)).collect();
    if !fits(answer.outcome, verdict.outcome) {
        wrong.push(format!("{:?}, not {:?}", verdict.outcome, answer.outcome));
    }
    let retry = match verdict.outcome {
        Outcome::Deny(retry) => Some(retry),
        Outcome::Allow | Outcome::Delay(_) => None,
    };
    let mut flags: Vec<&str> = verdict.flags().collect();
    flags.dedup(); // several rules may set the same flag
    let low = verdict.class().name() == "low";
    let all = [
        equal("retry", &retry, answer.retry.map(Some).as_ref()),
        equal("over", &verdict.over, Some(&answer.over)),
        equal("shadow deny", &verdict.shadow_deny, Some(&answer.shadow_deny)),
        equal("low priority", &low, Some(&answer.low_priority)),
        equal("flags", &flags, Some(&answer.flags.iter().map(String::as_str).collect())),
        equal("version", &verdict.policy_version(), answer.version.as_ref()),
        equal("limits", &verdict.limits().count(), answer.limits.as_ref()),
    ];
    wrong.extend(all.into_iter().filter_map(Result::err));
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

/// Compares a value, if the scenario states it.
fn equal<T: PartialEq + std::fmt::Debug>(
    what: &str,
    found: &T,
    expected: Option<&T>,
) -> Result<(), String> {
    match expected {
        Some(expected) if expected != found => Err(format!("{what} {found:?}, not {expected:?}")),
        Some(_) | None => Ok(()),
    }
}

fn fits(expected: Expected, found: Outcome) -> bool {
    match (expected, found) {
        (Expected::Allow, Outcome::Allow) | (Expected::Deny, Outcome::Deny(_)) => true,
        (Expected::Delay(expected), Outcome::Delay(found)) => expected == found,
        (Expected::Allow | Expected::Delay(_) | Expected::Deny, _) => false,
    }
}

fn differs(said: &Said, verdict: &Verdict) -> Option<String> {
    let name = format!("{}/{}", said.rule, said.id);
    let Some(limit) = verdict.limits().find(|l| (l.rule, l.id) == (&*said.rule, &*said.id)) else {
        return Some(format!("{name} does not apply"));
    };
    let decision = limit.decision;
    let as_said = match said.fact {
        Fact::Outcome(outcome) => fits(outcome, decision.outcome),
        Fact::Over => decision.over,
        Fact::Retry(retry) => decision.outcome == Outcome::Deny(retry),
        Fact::Remaining(remaining) => decision.remaining == remaining,
        Fact::Reset(reset) => decision.reset == Some(reset),
    };
    (!as_said).then(|| format!("{name} says {decision:?}, not {:?}", said.fact))
}

/// The player itself must notice every wrong answer, also a mark that the scenario does not state.
#[tokio::test]
async fn a_wrong_answer_is_noticed() {
    for (line, difference) in [
        ("at 0s take -> allow, a/s remaining 2", "a/s says"),
        ("at 0s take -> allow, b/s remaining 1", "b/s does not apply"),
        ("at 0s take 2 -> allow, a/s reset 2s", "a/s says"),
        ("at 0s take -> deny", "Allow, not Deny"),
        ("at 0s take 3 -> allow", "over true, not false"),
        ("at 0s take 4 -> deny, retry 1s", "retry Some(Never), not Some(After("),
        ("at 0s take -> allow, version 2", "version 1, not 2"),
        ("at 0s take -> allow, no rules", "limits 1, not 0"),
        ("at 0s take -> allow, flag x", "flags [], not [\"x\"]"),
        ("at 0s take -> allow, low priority", "low priority false, not true"),
        ("at 0s take -> allow, shadow deny", "shadow deny false, not true"),
        ("at 0s reset a -> 1", "states 0, not 1"),
        ("at 0s report a success", "nothing was taken as `a`"),
    ] {
        let policy = "rules: [{ name: a, key: [], limits: [2/s], mode: { soft: 50% } }]";
        let text = format!("scenario s\npolicy\nversion: 1\n{policy}\nend\n{line}");
        let scenarios = timeline::parse(&text).unwrap();
        let found = play(scenarios.first().unwrap()).await.unwrap_err();
        assert!(found.contains("line 6: ") && found.contains(difference), "{line}: {found}");
    }
}
