//! After the verdict: reports of outcomes, receipts as text, and resets.
//!
//! A request that is cancelled before its turn in a leaky bucket may leave a turn that cannot be given to another: later ones are
//! promised already. Then nothing of it is given back, in any limit. Otherwise a client that asks and leaves, again and again, would
//! use up the turns of all others, and no limit on its address would ever count that.
//!
//! ```text
//!   cancelled: give back the turn ──► was it the last one, or has it come? ──┬─ yes ──► give back all other parts
//!                                                                            └─ no ───► they stay counted
//! ```

use super::Limiter;
use super::issue::CountedBy;
use crate::error::{CheckError, ReportError};
use crate::limiter::now;
use crate::receipt::{self, Receipt, Report};
use tidegate_core::{Cost, Decision, Limit, Plan, Span, StateId, Take, Timestamp};
use tidegate_policy::{Allowance, Attributes, RuleLimit};
use tidegate_store::{LimitName, Memory, Part, Settled, Settlement, Store, StoreError};

impl Limiter<Memory> {
    /// [`Limiter::report`] without `await`, because a store in this process answers immediately.
    pub fn report_now(&self, receipt: &Receipt, report: Report) -> Result<Settled, ReportError> {
        now(self.report(receipt, report))
    }

    /// [`Limiter::reset`] without `await`, because a store in this process answers immediately.
    pub fn reset_now(&self, rule: &str, who: &Attributes<'_>) -> Result<usize, CheckError> {
        now(self.reset(rule, who))
    }
}

impl<S: Store> Limiter<S> {
    /// Reports the outcome of a request that passed, and gives back or charges accordingly. Whatever the outcome is, permits of
    /// concurrency limits are returned.
    ///
    /// A cancelled request whose turn in a leaky bucket is still to come gives back nothing but its permits, unless its turn is the last
    /// one that was promised: the turn cannot be given to another request.
    ///
    /// Only the first report of a receipt counts. A second one returns [`Settled::Already`]. [`Settled::Late`] is the answer after the
    /// receipt has expired, and if it is about counters that ended with their process: those of [`Memory`], or of the fallback of
    /// another node. Neither changes anything.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Cost, Limiter, Policy, Report};
    /// let policy = Policy::parse("{ version: 1, rules: [{ name: tokens, key: [], limits: [100/h] }] }")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// let prompt = Attributes::new();
    /// // Reserve 80 tokens, the most that the answer may need; it then needs 30.
    /// let verdict = limiter.check_now(&Check::new(&prompt).cost(80).with_receipt())?;
    /// limiter.report_now(verdict.receipt().unwrap(), Report::Cost(Cost::new(30)))?;
    /// let next = limiter.check_now(&Check::new(&prompt).cost(70))?;
    /// assert!(next.allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn report(&self, receipt: &Receipt, report: Report) -> Result<Settled, ReportError> {
        let settled = match self.counted_by(receipt) {
            CountedBy::Fallback => {
                let local = self.inner.local.memory();
                let (settled, parts) = now(self.settle(local, receipt, report))?;
                if settled == Settled::Done {
                    self.inner.store.owe_less(&parts);
                }
                settled
            }
            CountedBy::Store => {
                let (settled, _) = self.settle(&self.inner.store, receipt, report).await?;
                settled
            }
            CountedBy::Others => Settled::Late,
        };
        Ok(self.permits_returned(receipt, settled))
    }

    /// Settles what the fallback of this node counted. What it owes the store for it stays as it is.
    pub(crate) fn settle_here(
        &self,
        receipt: &Receipt,
        report: Report,
    ) -> Result<Settled, ReportError> {
        let (settled, _) = now(self.settle(self.inner.local.memory(), receipt, report))?;
        Ok(self.permits_returned(receipt, settled))
    }

    /// Gives back what the report says, and charges what it costs in addition. Both happen only for the first settlement of a
    /// receipt. Returns what was given back.
    async fn settle<'r>(
        &self,
        store: &impl Store,
        receipt: &'r Receipt,
        report: Report,
    ) -> Result<(Settled, Vec<Part<'r>>), StoreError> {
        let parts = receipt.given_back(report);
        let until = receipt.until;
        if report == Report::Cancelled && parts.iter().any(promises_turn) {
            let (turns, others): (Vec<_>, Vec<_>) = parts.iter().copied().partition(promises_turn);
            let settlement = Settlement { id: receipt.id, until, parts: &turns };
            let settled = store.give_back(&settlement).await?;
            if settled != Settled::Done || others.is_empty() {
                return Ok((settled, turns));
            }
            // A request that does not run holds no permit, whatever else stays counted.
            let stays = burns_turn(store, &turns).await?;
            let returned = |part: &Part<'_>| !stays || part.limit.lease().is_some();
            let others: Vec<_> = others.into_iter().filter(returned).collect();
            let id = self.next_receipt_id();
            store.give_back(&Settlement { id, until, parts: &others }).await?;
            return Ok((Settled::Done, [turns, others].concat()));
        }
        let settlement = Settlement { id: receipt.id, until, parts: &parts };
        let settled = store.give_back(&settlement).await?;
        let takes = receipt.charged_beyond(report);
        if settled == Settled::Done && !takes.is_empty() {
            store.charge(&takes).await?;
        }
        Ok((settled, parts))
    }

    /// If the receipt was settled, wakes requests that wait for its permits, and notes how long they were held.
    fn permits_returned(&self, receipt: &Receipt, settled: Settled) -> Settled {
        if settled != Settled::Done || receipt.permits().next().is_none() {
            return settled;
        }
        let (live, now) = (self.inner.live.load(), self.inner.clock.now().steady);
        for (_, permit) in receipt.permits() {
            if let Some(counters) = live.counters.get(permit.rule) {
                counters.hold_time.add(now.since(permit.since));
            }
        }
        self.inner.queues.wake(receipt.permits().map(|(part, _)| part.state));
        settled
    }

    /// Writes a receipt as signed text, which can leave the process. Any node with the same secret can read it by
    /// [`Limiter::opened`].
    ///
    /// ```
    /// # use tidegate::{Attributes, Check, Limiter, Policy};
    /// # let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/h] }] }")?;
    /// # let limiter = Limiter::in_memory(policy)?;
    /// # let request = Attributes::new();
    /// let verdict = limiter.check_now(&Check::new(&request).with_receipt())?;
    /// let text = limiter.sealed(verdict.receipt().unwrap());
    /// assert_eq!(&limiter.opened(&text)?, verdict.receipt().unwrap());
    /// assert!(limiter.opened("forged").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn sealed(&self, receipt: &Receipt) -> String {
        receipt::encode(receipt, &self.inner.secret)
    }

    /// Reads a receipt that [`Limiter::sealed`] wrote. A text that was modified, or signed with another secret, is an error.
    pub fn opened(&self, text: &str) -> Result<Receipt, ReportError> {
        receipt::decode(text, &self.inner.secret).ok_or(ReportError::Forged)
    }

    /// Deletes all counters of a rule for the key in `who`, and returns how many there were. Requests that wait for them are
    /// woken.
    ///
    /// ```
    /// # use tidegate::{Attributes, Check, Limiter, Policy};
    /// # let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [user], limits: [1/h, 2/day] }] }")?;
    /// # let limiter = Limiter::in_memory(policy)?;
    /// let alice = Attributes::new().with("user", "alice")?;
    /// limiter.check_now(&Check::new(&alice))?;
    /// assert!(!limiter.check_now(&Check::new(&alice))?.allowed());
    /// assert_eq!(limiter.reset_now("a", &alice)?, 2);
    /// assert!(limiter.check_now(&Check::new(&alice))?.allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn reset(&self, rule: &str, who: &Attributes<'_>) -> Result<usize, CheckError> {
        let states = self.states_of(rule, who)?;
        self.reset_states(&states.iter().map(|(state, _)| *state).collect::<Vec<_>>()).await
    }

    /// How many counters of a rule for the key in `who` have counted something. [`Limiter::reset`] would delete these. Changes nothing.
    ///
    /// ```
    /// # use tidegate::{Attributes, Check, Limiter, Policy};
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// # let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [user], limits: [1/h, 2/day] }] }")?;
    /// # let limiter = Limiter::in_memory(policy)?;
    /// let alice = Attributes::new().with("user", "alice")?;
    /// assert_eq!(limiter.in_use("a", &alice).await?, 0);
    /// limiter.check(&Check::new(&alice)).await?;
    /// assert_eq!(limiter.in_use("a", &alice).await?, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn in_use(&self, rule: &str, who: &Attributes<'_>) -> Result<usize, CheckError> {
        let states = self.states_of(rule, who)?;
        let takes = states.iter().map(|(state, limit)| Take::new(*state, limit, Cost::default()));
        self.states_in_use(&takes.collect::<Vec<_>>()).await
    }

    /// In how many of these states something is counted, in the store or by the fallback of this node. The takes cost nothing.
    pub(super) async fn states_in_use(&self, takes: &[Take<'_>]) -> Result<usize, CheckError> {
        let mut count = 0_usize;
        for takes in takes.chunks(Plan::MOST_TAKES) {
            let plan = Plan::new(takes.to_vec(), Span::ZERO)?;
            let local = self.counted_locally(&plan)?;
            let used = |(take, decision): (&Take<'_>, Decision)| {
                decision.remaining < take.limit.capacity()
            };
            let stored: Vec<bool> = match self.inner.store.peek(&plan).await {
                Ok(decisions) => takes.iter().zip(decisions).map(used).collect(),
                // A state that cannot be read can still be deleted.
                Err(StoreError::Broken(_)) => vec![true; takes.len()],
                Err(error) => return Err(error.into()),
            };
            let both = stored.iter().zip(&local).filter(|(stored, local)| **stored || **local);
            count = count.saturating_add(both.count());
        }
        Ok(count)
    }

    /// Deletes these counters, and wakes the requests that wait for them.
    pub(super) async fn reset_states(&self, states: &[StateId]) -> Result<usize, CheckError> {
        self.reset_locally(states);
        let count = self.inner.store.reset(states).await?;
        self.inner.queues.wake_all();
        Ok(count)
    }

    /// All states that a rule may have for the key in `who`, under any tier or override, each with a limit that counts in it.
    fn states_of(
        &self,
        rule: &str,
        who: &Attributes<'_>,
    ) -> Result<Vec<(StateId, Limit)>, CheckError> {
        let live = self.live();
        let who = self.concealed(&live, who);
        let (_, rule) =
            live.policy.rule(rule).ok_or_else(|| CheckError::NoRule(rule.to_owned()))?;
        let values = rule.key().of(&who, live.policy.identity().ipv6_prefix());
        let values = values.ok_or_else(|| CheckError::NoKey {
            rule: rule.name().to_owned(),
            key: rule.key().to_string(),
        })?;
        let subject = self.inner.secret.subject(values.pairs());
        let changed = live.changes.allowances_of(rule);
        let limits = rule.allowances().chain(changed).flat_map(Allowance::limits);
        let state = |limit: &RuleLimit| {
            let name = LimitName::new(rule.name(), limit.id(), limit.limit());
            (subject.state(name), limit.limit().clone())
        };
        let mut states: Vec<(StateId, Limit)> = limits.map(state).collect();
        states.sort_unstable_by_key(|(state, _)| *state);
        states.dedup_by_key(|(state, _)| *state);
        Ok(states)
    }
}

fn promises_turn(part: &Part<'_>) -> bool {
    part.limit.promised_turn(&part.receipt).is_some()
}

/// Whether one of these turns, which were just given back, is still to come and stays taken. If another request took a turn at this
/// moment, the answer may be yes although the turn was free: too little is given back then, never too much.
async fn burns_turn(store: &impl Store, turns: &[Part<'_>]) -> Result<bool, StoreError> {
    for part in turns {
        let Some(turn) = part.limit.promised_turn(&part.receipt) else { continue };
        let nothing = Take::new(part.state, part.limit, Cost::default());
        let answer = store.take_one(&Plan::from(nothing)).await?;
        let until_free = answer.done.only().and_then(|taken| taken.decision.reset);
        let free = until_free.and_then(|left| answer.at.after(left)).unwrap_or(Timestamp::END);
        // The last turn ends at least one turn sooner now. Half of one is more than any rounding.
        let half = Span::from_nanos(turn.end.since(turn.start).as_nanos() >> 1);
        if answer.at < turn.start && free.after(half).is_none_or(|free| free >= turn.end) {
            return Ok(true);
        }
    }
    Ok(false)
}
