//! Deciding without the store, or without a part of it: each rule as it says for that case.
//!
//! ```text
//!   deny   the request is refused
//!   allow  the rule has nothing to say
//!   local  this node counts by itself, its share of the limit: the amount by the number of nodes, at least 1
//! ```
//!
//! A cluster may lose one of its servers. Then only rules whose states lie there decide so; the others are asked for as
//! ever. What was counted here is forgotten when the whole store is back, so that the next time begins anew.

use super::decide::{Asked, Decided, blind};
use super::{Limiter, now};
use crate::error::CheckError;
use crate::verdict::DecidedBy;
use arc_swap::{ArcSwap, Guard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidegate_core::{Decision, Limit, Need, Plan, Receipt, Refused, Span, StateId, Take};
use tidegate_policy::OnStoreError;
use tidegate_store::{Answer, Clock, Memory, Part, ReceiptId, Settlement, Store};

/// What this node counts by itself.
#[derive(Debug)]
pub(super) struct Local {
    clock: Clock,
    /// Replaced when the store is back.
    memory: ArcSwap<Memory>,
    /// Whether there is something in it. Relaxed: whoever misses it forgets with the next answer.
    used: AtomicBool,
}

/// Takes under this node's share of their limits.
pub(super) struct Shares(Vec<Limit>);

impl Local {
    pub(super) fn new(clock: Clock) -> Self {
        let memory = ArcSwap::from_pointee(Memory::new(clock.clone()));
        Self { clock, memory, used: AtomicBool::new(false) }
    }

    pub(super) fn memory(&self) -> Guard<Arc<Memory>> {
        self.memory.load()
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
        self.used.store(true, Ordering::Relaxed);
        Ok(self.memory().take_now(&plan))
    }

    /// Forgets everything.
    fn forget(&self) {
        if self.used.swap(false, Ordering::Relaxed) {
            self.memory.store(Arc::new(Memory::new(self.clock.clone())));
        }
    }
}

impl Shares {
    fn of<'l>(limits: impl Iterator<Item = &'l Limit>, nodes: u32) -> Self {
        Self(limits.map(|limit| limit.divided(nodes)).collect())
    }
}

impl<S: Store> Limiter<S> {
    /// The store has answered. If all of it is back, what was counted meanwhile is forgotten.
    pub(super) fn heard_from_store(&self) {
        let local = &self.inner.local;
        if local.used.load(Ordering::Relaxed) && self.inner.store.complaint().is_none() {
            local.forget();
        }
    }

    /// The answer of this node to a plan that the store did not answer.
    pub(super) fn take_locally(&self, plan: &Plan<'_>) -> Result<Answer, CheckError> {
        self.inner.store_errors.fetch_add(1, Ordering::Relaxed);
        let shares =
            Shares::of(plan.takes().iter().map(|take| take.limit), self.inner.store.nodes());
        self.inner.local.take(plan.takes().iter().copied(), &shares, plan.max_wait())
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
        max_wait: Span,
    ) -> Result<Decided, CheckError> {
        self.inner.store_errors.fetch_add(1, Ordering::Relaxed);
        let number = |wanted: bool| {
            let numbered = asked.iter().enumerate();
            numbered.filter(move |(number, _)| missing.contains(number) == wanted)
        };
        let gone: Vec<&Asked<'_>> = number(true).map(|(_, asked)| asked).collect();
        let there: Vec<&Asked<'_>> = number(false).map(|(_, asked)| asked).collect();
        let here = self.by_rules(&gone, max_wait)?;
        let plan = Plan::new(there.iter().map(|asked| asked.take).collect::<Vec<_>>(), max_wait)?;
        let passes = gone
            .iter()
            .zip(&here.decisions)
            .all(|(asked, decision)| asked.take.need == Need::Optional || decision.passes());
        let (decisions, receipts, at) = if passes {
            match self.inner.store.take(std::slice::from_ref(&plan)).await.pop() {
                Some(Ok(answer)) => {
                    if !answer.done.passes {
                        self.undo(&gone, &here);
                    }
                    (answer.done.decisions, answer.done.receipts, answer.at)
                }
                Some(Err(_)) | None => {
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
            let receipts: Vec<Option<Receipt>> = vec![None; decisions.len()];
            (decisions.into(), receipts.into(), here.at)
        };
        let (mut here, mut there) =
            (here.decisions.into_iter(), decisions.into_iter().zip(receipts));
        // What is counted here is settled by nobody: it is forgotten soon.
        let merged = asked.iter().enumerate().map(|(number, asked)| {
            let from = if missing.contains(&number) {
                here.next().map(|decision| (decision, None))
            } else {
                there.next()
            };
            from.unwrap_or_else(|| (blind(asked, false), None))
        });
        let (decisions, receipts): (Vec<Decision>, Vec<Option<Receipt>>) = merged.unzip();
        let (decisions, receipts) = (decisions.into(), receipts.into());
        Ok(Decided { decisions, receipts, at, by: DecidedBy::Fallback, shares: None })
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
        let (decisions, receipts): (Vec<_>, Vec<_>) = asked.iter().map(decide).unzip();
        let (decisions, receipts) = (decisions.into(), receipts.into());
        let shares = Some(shares.0);
        Ok(Decided { decisions, receipts, at: answer.at, by: DecidedBy::Fallback, shares })
    }

    /// Gives back what was counted here for a request that others refuse.
    fn undo(&self, asked: &[&Asked<'_>], here: &Decided) {
        let limits = here.shares.iter().flatten();
        let taken = asked.iter().zip(limits).zip(&here.receipts);
        let parts: Vec<Part<'_>> = taken
            .filter(|((asked, _), _)| asked.take.refused == Refused::Free)
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
            if receipt.is_some() && asked.take.refused == Refused::Free {
                *decision = after;
            }
        }
    }

    /// Forgets states here too.
    pub(super) fn reset_locally(&self, states: &[StateId]) {
        self.inner.local.memory().reset_now(states);
    }
}
