//! A store that fails on purpose: it simulates the faults of a network around another store.

use crate::error::StoreError;
use crate::store::{Answer, Charged, Settled, Settlement, SharedDocument, Store, StoreHealth};
use crate::sync::{Mutex, lock};
use std::collections::VecDeque;
use tidegate_core::{Decision, Limit, Plan, Span, StateId, Take};

/// What happens to a call.
///
/// ```
/// use tidegate_store::testing::{Fault, Faulty};
/// let store = Faulty::new(());
/// store.plan([Fault::Refused, Fault::Late(3)]); // the first call fails, the second comes late
/// assert_eq!(store.planned(), 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call succeeds.
    None,
    /// The call does not reach the store.
    Refused,
    /// The store executes the call, but its reply is lost.
    ReplyLost,
    /// The call waits for this many turns of the runtime before it reaches the store.
    Late(u32),
}

/// Wraps a store and adds faults, in the order in which they were planned. Without planned faults it behaves like that store.
///
/// ```
/// use tidegate_core::Timestamp;
/// use tidegate_store::testing::{Fault, Faulty};
/// use tidegate_store::{Clock, Memory};
/// let store = Faulty::new(Memory::new(Clock::manual(Timestamp::EPOCH)));
/// store.plan([Fault::Refused]);
/// assert_eq!(store.inner().len(), 0);
/// ```
#[derive(Debug)]
pub struct Faulty<S> {
    inner: S,
    faults: Mutex<VecDeque<Fault>>,
}

impl<S> Faulty<S> {
    /// Wraps a store; no faults are planned yet.
    ///
    /// ```
    /// use tidegate_store::testing::Faulty;
    /// assert_eq!(*Faulty::new(7).inner(), 7);
    /// ```
    pub fn new(inner: S) -> Self {
        Self { inner, faults: Mutex::default() }
    }

    /// Plans the faults of the next calls, one for each.
    ///
    /// ```
    /// use tidegate_store::testing::{Fault, Faulty};
    /// let store = Faulty::new(());
    /// store.plan([Fault::None, Fault::ReplyLost]);
    /// assert_eq!(store.planned(), 2);
    /// ```
    pub fn plan(&self, faults: impl IntoIterator<Item = Fault>) {
        lock(&self.faults).extend(faults);
    }

    /// How many planned faults are left.
    ///
    /// ```
    /// use tidegate_store::testing::{Fault, Faulty};
    /// let store = Faulty::new(());
    /// store.plan([Fault::Refused]);
    /// assert_eq!(store.planned(), 1);
    /// ```
    pub fn planned(&self) -> usize {
        lock(&self.faults).len()
    }

    /// The wrapped store.
    ///
    /// ```
    /// assert!(tidegate_store::testing::Faulty::new(true).inner());
    /// ```
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    /// Runs a call under the next fault.
    async fn under_fault<T>(&self, call: impl Future<Output = T>) -> Result<T, StoreError> {
        let fault = lock(&self.faults).pop_front().unwrap_or(Fault::None);
        match fault {
            Fault::None => Ok(call.await),
            Fault::Refused => Err(StoreError::Unavailable("refused on purpose".into())),
            Fault::ReplyLost => {
                call.await;
                Err(StoreError::TimedOut(Span::ZERO))
            }
            Fault::Late(turns) => {
                for _ in 0..turns {
                    yield_once().await;
                }
                Ok(call.await)
            }
        }
    }
}

/// Yields to the runtime once.
async fn yield_once() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if yielded {
            return std::task::Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

impl<S: Store> Store for Faulty<S> {
    fn incarnation(&self) -> Option<u64> {
        self.inner.incarnation()
    }

    async fn take(&self, plans: &[Plan<'_>]) -> Vec<Result<Answer, StoreError>> {
        match self.under_fault(self.inner.take(plans)).await {
            Ok(answers) => answers,
            Err(StoreError::TimedOut(after)) => {
                plans.iter().map(|_| Err(StoreError::TimedOut(after))).collect()
            }
            Err(_) => plans
                .iter()
                .map(|_| Err(StoreError::Unavailable("refused on purpose".into())))
                .collect(),
        }
    }

    async fn charge(&self, takes: &[Take<'_>]) -> Result<Charged, StoreError> {
        self.under_fault(self.inner.charge(takes)).await?
    }

    async fn give_back(&self, settlement: &Settlement<'_>) -> Result<Settled, StoreError> {
        self.under_fault(self.inner.give_back(settlement)).await?
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Vec<Decision>, StoreError> {
        self.under_fault(self.inner.peek(plan)).await?
    }

    async fn reset(&self, states: &[StateId]) -> Result<usize, StoreError> {
        self.under_fault(self.inner.reset(states)).await?
    }

    fn supports(&self, limit: &Limit) -> Result<(), StoreError> {
        self.inner.supports(limit)
    }

    fn timeout(&self) -> Option<Span> {
        self.inner.timeout()
    }

    fn admit_limit(&self, limit: &Limit) -> Result<(), StoreError> {
        self.inner.admit_limit(limit)
    }

    fn back_for(&self, state: StateId) -> Option<Span> {
        self.inner.back_for(state)
    }
}

impl<S: StoreHealth> StoreHealth for Faulty<S> {
    fn shortage(&self) -> Option<&'static str> {
        self.inner.shortage()
    }
}

impl<S> SharedDocument for Faulty<S> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Clock, Memory};
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use tidegate_core::{Algorithm, Cost, Timestamp};

    /// Runs a future and counts how often it had to be woken.
    fn turns<T>(future: impl Future<Output = T>) -> (T, u32) {
        let (mut future, mut context) = (pin!(future), Context::from_waker(Waker::noop()));
        let mut turns = 0;
        loop {
            match future.as_mut().poll(&mut context) {
                Poll::Ready(value) => return (value, turns),
                Poll::Pending => turns += 1,
            }
        }
    }

    #[test]
    fn faults_do_what_they_say() {
        let limit = Limit::new(9, Span::from_secs(60), Algorithm::FIXED_WINDOW).unwrap();
        let take = Take::new(StateId(1), &limit, Cost::ONE);
        let plan = Plan::new(vec![take], Span::ZERO).unwrap();
        let store = Faulty::new(Memory::new(Clock::manual(Timestamp::EPOCH)));
        store.plan([Fault::Refused, Fault::ReplyLost, Fault::Late(3), Fault::None]);
        let left = || store.inner().peek_now(&plan)[0].remaining;
        let call = || turns(store.take(std::slice::from_ref(&plan)));
        let (refused, _) = call();
        assert!(matches!(refused[0], Err(StoreError::Unavailable(_))) && left() == 9);
        let (lost, _) = call();
        assert!(matches!(lost[0], Err(StoreError::TimedOut(_))) && left() == 8);
        let (late, turns) = call();
        assert!(late[0].is_ok() && turns == 3 && left() == 7);
        assert!(call().0[0].is_ok() && left() == 6);
    }
}
