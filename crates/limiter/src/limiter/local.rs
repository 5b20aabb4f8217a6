//! Deciding without the store, or without a part of it: each rule as it says for that case.
//!
//! ```text
//!   deny   the request is refused
//!   allow  the rule has nothing to say
//!   local  this node counts by itself, its share of the limit: the amount by the number of nodes, at least 1
//! ```
//!
//! A cluster may lose one of its servers. Then only rules whose states lie there decide so; the others are asked for as
//! ever.
//!
//! **Outages do not forgive.** What this node counted stays counted for as long as the limit counts it, whether or not the
//! store answers in between: otherwise everybody whom the store does not answer in time (a hurried caller, a slow reply, a
//! key with another program's data under it) would get a fresh share each time somebody else is answered. So a limit `L`
//! on `N` nodes lets pass at most `L + N·⌈L/N⌉` in a window, however often the store comes and goes. What was granted here
//! is also reported to the store ([`Store::owe`]), which charges it when it is back.

use super::decide::{Asked, Decided, blind};
use super::{Limiter, now};
use crate::error::CheckError;
use crate::verdict::DecidedBy;
use std::sync::atomic::Ordering;
use tidegate_core::{Decision, Limit, Need, Plan, RejectedCost, Span, StateId, Take, TakeReceipt};
use tidegate_policy::OnStoreError;
use tidegate_store::{Answer, Clock, Memory, Part, ReceiptId, Settlement, Store};

/// What this node counts by itself, within the budget of a store in memory.
#[derive(Debug)]
pub(super) struct Local {
    memory: Memory,
}

/// Takes under this node's share of their limits.
pub(super) struct Shares(Vec<Limit>);

impl Local {
    pub(super) fn new(clock: Clock) -> Self {
        Self { memory: Memory::new(clock) }
    }

    pub(super) const fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Decides takes, each under the limit that belongs to it.
    fn take<'l>(
        &self,
        takes: impl Iterator<Item = Take<'l>>,
        shares: &'l Shares,
        max_wait: Span,
    ) -> Result<Answer, CheckError> {
        let takes = takes.zip(&shares.0).map(|(take, limit)| Take { limit, ..take });
        let plan = Plan::new(takes.collect::<Vec<_>>(), max_wait)?;
        Ok(self.memory.take_now(&plan))
    }
}

impl Shares {
    fn of<'l>(limits: impl Iterator<Item = &'l Limit>, nodes: u32) -> Self {
        Self(limits.map(|limit| limit.divided(nodes)).collect())
    }
}

impl<S: Store> Limiter<S> {
    /// The answer of this node to a plan that the store did not answer.
    pub(super) fn take_locally(&self, plan: &Plan<'_>) -> Result<Answer, CheckError> {
        self.inner.store_errors.fetch_add(1, Ordering::Relaxed);
        let shares =
            Shares::of(plan.takes().iter().map(|take| take.limit), self.inner.store.nodes());
        let takes = plan.takes().iter().copied();
        let answer = self.inner.local.take(takes, &shares, plan.max_wait())?;
        if answer.done.passes {
            self.inner.store.owe(plan.takes());
        }
        Ok(answer)
    }

    /// What this node would answer to takes by itself.
    pub(super) fn peek_locally(&self, plan: &Plan<'_>) -> Result<Vec<Decision>, CheckError> {
        let shares =
            Shares::of(plan.takes().iter().map(|take| take.limit), self.inner.store.nodes());
        let takes = plan.takes().iter().zip(&shares.0);
        let takes = takes.map(|(take, limit)| Take { limit, ..*take }).collect::<Vec<_>>();
        Ok(self.inner.local.memory().peek_now(&Plan::new(takes, plan.max_wait())?))
    }

    /// Tells the store what was granted here, so that it is counted there when it is back.
    pub(super) fn owe(&self, asked: &[Asked<'_>], decided: &Decided) {
        let passes = |(asked, decision): (&Asked<'_>, &Decision)| {
            asked.take.need == Need::Optional || decision.passes()
        };
        if decided.here.is_empty() || !asked.iter().zip(&decided.decisions).all(passes) {
            return;
        }
        let takes = decided.here.iter().filter_map(|number| asked.get(*number));
        self.inner.store.owe(&takes.map(|asked| asked.take).collect::<Vec<_>>());
    }

    /// When the store is gone, rules do as they say for that case.
    pub(super) fn without_store(
        &self,
        asked: &[Asked<'_>],
        max_wait: Span,
    ) -> Result<Decided, CheckError> {
        self.inner.store_errors.fetch_add(1, Ordering::Relaxed);
        self.by_rules(&asked.iter().collect::<Vec<_>>(), max_wait)
    }

    /// When some of its takes cannot be asked for: the others are, if the rules of those let the request pass.
    pub(super) async fn without_a_part(
        &self,
        asked: &[Asked<'_>],
        missing: &[usize],
        whole: &Plan<'_>,
    ) -> Result<Decided, CheckError> {
        self.inner.store_errors.fetch_add(1, Ordering::Relaxed);
        let max_wait = whole.max_wait();
        let number = |wanted: bool| {
            let numbered = asked.iter().enumerate();
            numbered.filter(move |(number, _)| missing.contains(number) == wanted)
        };
        let gone: Vec<&Asked<'_>> = number(true).map(|(_, asked)| asked).collect();
        let there: Vec<&Asked<'_>> = number(false).map(|(_, asked)| asked).collect();
        let here = self.by_rules(&gone, max_wait)?;
        let plan = Plan::new(there.iter().map(|asked| asked.take).collect::<Vec<_>>(), max_wait)?;
        // Nothing was asked yet, so its caller has as much time as before.
        let plan = whole.patience().map_or(plan.clone(), |patience| plan.within(patience));
        let passes = gone
            .iter()
            .zip(&here.decisions)
            .all(|(asked, decision)| asked.take.need == Need::Optional || decision.passes());
        let (decisions, receipts, at) = if passes {
            match self.inner.store.take_one(&plan).await {
                Ok(answer) => {
                    if !answer.done.passes {
                        self.undo(&gone, &here);
                    }
                    (answer.done.decisions, answer.done.receipts, answer.at)
                }
                Err(_) => {
                    self.undo(&gone, &here);
                    return self.by_rules(&asked.iter().collect::<Vec<_>>(), max_wait);
                }
            }
        } else {
            // It is refused anyway: only how things stand is of interest.
            let decisions = match self.inner.store.peek(&plan).await {
                Ok(decisions) => decisions,
                Err(_) => there.iter().map(|asked| blind(asked, true)).collect(),
            };
            let receipts: Vec<Option<TakeReceipt>> = vec![None; decisions.len()];
            (decisions.into(), receipts.into(), here.at)
        };
        let numbers: Vec<usize> = number(true).map(|(number, _)| number).collect();
        let counted = here.here.iter().filter_map(|at| numbers.get(*at).copied()).collect();
        let (mut here, mut there) =
            (here.decisions.into_iter(), decisions.into_iter().zip(receipts));
        // What is counted here has no receipt: it is settled by nobody, and counts until its period is over.
        let merged = asked.iter().enumerate().map(|(number, asked)| {
            let from = if missing.contains(&number) {
                here.next().map(|decision| (decision, None))
            } else {
                there.next()
            };
            from.unwrap_or_else(|| (blind(asked, false), None))
        });
        let (decisions, receipts): (Vec<Decision>, Vec<Option<TakeReceipt>>) = merged.unzip();
        let (decisions, receipts) = (decisions.into(), receipts.into());
        let by = DecidedBy::Fallback;
        Ok(Decided { decisions, receipts, at, by, shares: None, here: counted })
    }

    /// What rules say of takes that nobody can be asked about.
    fn by_rules(&self, asked: &[&Asked<'_>], max_wait: Span) -> Result<Decided, CheckError> {
        let refuses = |asked: &Asked<'_>| {
            asked.take.need == Need::Required && asked.rule.on_store_error() == OnStoreError::Deny
        };
        let refused = asked.iter().any(|asked| refuses(asked));
        let local = |asked: &Asked<'_>| asked.rule.on_store_error() == OnStoreError::Local;
        // Nothing is counted for a request that is refused anyway.
        let counted = || asked.iter().filter(|asked| !refused && local(asked));
        let shares =
            Shares::of(asked.iter().map(|asked| asked.take.limit), self.inner.store.nodes());
        let shares_counted = Shares(
            asked
                .iter()
                .zip(&shares.0)
                .filter(|(asked, _)| local(asked))
                .map(|(_, limit)| limit.clone())
                .collect(),
        );
        let answer =
            self.inner.local.take(counted().map(|asked| asked.take), &shares_counted, max_wait)?;
        let mut answers = answer.done.decisions.into_iter().zip(answer.done.receipts);
        let decide = |asked: &&Asked<'_>| {
            if !refused && local(asked) {
                return answers.next().unwrap_or((blind(asked, true), None));
            }
            (blind(asked, !refuses(asked)), None)
        };
        let (decisions, receipts): (Vec<_>, Vec<Option<TakeReceipt>>) =
            asked.iter().map(decide).unzip();
        let taken = receipts.iter().enumerate().filter(|(_, receipt)| receipt.is_some());
        let here = taken.map(|(number, _)| number).collect();
        let (decisions, receipts) = (decisions.into(), receipts.into());
        let (by, shares) = (DecidedBy::Fallback, Some(shares.0));
        Ok(Decided { decisions, receipts, at: answer.at, by, shares, here })
    }

    /// Gives back what was counted here for a request that others refuse.
    fn undo(&self, asked: &[&Asked<'_>], here: &Decided) {
        let limits = here.shares.iter().flatten();
        let taken = asked.iter().zip(limits).zip(&here.receipts);
        let parts: Vec<Part<'_>> = taken
            .filter(|((asked, _), _)| asked.take.refused == RejectedCost::Free)
            .filter_map(|((asked, limit), receipt)| {
                Some(Part { state: asked.take.state, limit, receipt: (*receipt)? })
            })
            .collect();
        let id = ReceiptId(self.next_receipt());
        let until = here.at.after(Span::from_secs(1)).unwrap_or(here.at);
        let settlement = Settlement { id, until, parts: &parts };
        // A store in this process answers at once, and has nothing to complain about.
        let _ = now(self.inner.local.memory().give_back(&settlement));
    }

    /// Gives back what was counted here for a call that another of its plans refuses, and answers how its takes stand then.
    pub(super) fn take_back_locally(&self, asked: &[Asked<'_>], here: &mut Decided) {
        self.undo(&asked.iter().collect::<Vec<_>>(), here);
        let limits = here.shares.iter().flatten();
        let takes = asked.iter().zip(limits).map(|(asked, limit)| Take { limit, ..asked.take });
        let Ok(plan) = Plan::new(takes.collect::<Vec<_>>(), Span::ZERO) else { return };
        let after = self.inner.local.memory().peek_now(&plan);
        let taken = asked.iter().zip(&here.receipts).zip(here.decisions.iter_mut()).zip(after);
        for (((asked, receipt), decision), after) in taken {
            if receipt.is_some() && asked.take.refused == RejectedCost::Free {
                *decision = after;
            }
        }
    }

    /// Forgets states here too.
    pub(super) fn reset_locally(&self, states: &[StateId]) {
        self.inner.local.memory().reset_now(states);
    }
}
