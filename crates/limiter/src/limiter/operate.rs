//! What operators do while requests are answered: reload, change, signal, look.

use super::Limiter;
use crate::check::Check;
use crate::error::LimiterError;
use crate::live::{Lent, Live};
use crate::stats::Stats;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use tidegate_policy::{
    Allowance, AttributeError, Attributes, ChangeError, Changes, Explanation, Number, NumberError,
    Policy, Request,
};
use tidegate_store::Store;

impl<S: Store> Limiter<S> {
    /// Replaces the policy, at once for all requests that come after. What was counted stays: limits keep
    /// their states as long as their rule, id and algorithm stay. Answers the new version.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Limiter, Policy};
    /// let with = |amount: u32| Policy::parse(format!(
    ///     "{{ version: 1, rules: [{{ name: a, key: [], limits: [{amount}/h] }}] }}"
    /// ));
    /// let limiter = Limiter::in_memory(with(5)?)?;
    /// let nobody = Attributes::new();
    /// for _ in 0..5 {
    ///     assert!(limiter.check_now(&Check::new(&nobody))?.allowed());
    /// }
    /// limiter.reload(with(7)?)?; // two more, not seven
    /// let passed = (0..9).filter(|_| limiter.check_now(&Check::new(&nobody)).unwrap().allowed());
    /// assert_eq!(passed.count(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reload(&self, policy: Policy) -> Result<u64, LimiterError> {
        let now = self.inner.wall_clock();
        self.replace(|live| Ok(live.with_policy(policy, now)))
    }

    /// Puts another policy and other changes in the place of both, at one moment, and says the version. When
    /// either cannot be, nothing changes.
    ///
    /// ```
    /// use tidegate::{Changes, Limiter, Policy};
    /// let policy = |rule: &str| Policy::parse(format!("{{ version: 1, rules: [{rule}] }}"));
    /// let limiter = Limiter::in_memory(policy("{ name: a, key: [], limits: [1/s] }")?)?;
    /// let second = policy("{ name: b, key: [], limits: [2/s] }")?;
    /// assert_eq!(limiter.install(second, Changes::default())?, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn install(&self, policy: Policy, changes: Changes) -> Result<u64, LimiterError> {
        let now = self.inner.wall_clock();
        self.replace(|live| Ok(live.with_policy(policy, now).changed_to(changes, now)))
    }

    /// Changes what is changed by hand: overrides, tiers, enabled, shadow. Answers the new version.
    ///
    /// ```
    /// use tidegate::{Allowance, Attributes, Check, Limiter, Policy, RuleLimit};
    /// # let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [user], limits: [1/h] }] }")?;
    /// # let limiter = Limiter::in_memory(policy)?;
    /// let ten = Allowance::Limits(vec![RuleLimit::from_rate("10/h").unwrap()]);
    /// limiter.change(|changes, policy| changes.set_override(policy, "a", &[("user", "alice")], ten))?;
    /// let alice = Attributes::new().with("user", "alice")?;
    /// let passed = (0..20).filter(|_| limiter.check_now(&Check::new(&alice)).unwrap().allowed());
    /// assert_eq!(passed.count(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn change(
        &self,
        change: impl FnOnce(&mut Changes, &Policy) -> Result<(), ChangeError>,
    ) -> Result<u64, LimiterError> {
        let now = self.inner.wall_clock();
        self.replace(|live| {
            let mut changes = live.changes.clone();
            change(&mut changes, &live.policy)?;
            Ok(live.with_changes(changes, now))
        })
    }

    /// Gives some of a rule's customers an allowance of their own.
    pub fn set_override(
        &self,
        rule: &str,
        who: &[(&str, &str)],
        allowance: Allowance,
    ) -> Result<u64, LimiterError> {
        self.change(|changes, policy| changes.set_override(policy, rule, who, allowance))
    }

    /// Takes an override back.
    pub fn remove_override(&self, rule: &str, who: &[(&str, &str)]) -> Result<u64, LimiterError> {
        self.change(|changes, policy| changes.remove_override(policy, rule, who).map(|_| ()))
    }

    /// Puts a customer on a tier, whatever requests say; `None` takes it back.
    pub fn assign_tier(&self, who: (&str, &str), tier: Option<&str>) -> Result<u64, LimiterError> {
        self.change(|changes, policy| changes.assign_tier(policy, who, tier))
    }

    /// Switches a rule on or off; `None` is what the policy says.
    pub fn set_enabled(&self, rule: &str, enabled: Option<bool>) -> Result<u64, LimiterError> {
        self.change(|changes, policy| changes.set_enabled(policy, rule, enabled))
    }

    /// Lets a rule only pretend, or bite; `None` is what the policy says.
    pub fn set_shadow(&self, rule: &str, shadow: Option<bool>) -> Result<u64, LimiterError> {
        self.change(|changes, policy| changes.set_shadow(policy, rule, shadow))
    }

    /// Says how the world is, for elastic limits: `load` is 0.4. Say it again every few seconds; what was
    /// said more than ten seconds ago is forgotten.
    ///
    /// ```
    /// # use tidegate::{Limiter, Policy};
    /// # let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/h] }] }")?;
    /// # let limiter = Limiter::in_memory(policy)?;
    /// limiter.signal("load", 0.4)?;
    /// assert!(limiter.signal("load", f64::NAN).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn signal(&self, name: &str, value: f64) -> Result<(), NumberError> {
        let number: Number = format!("{value:.6}").parse()?;
        let now = self.inner.clock.now().steady;
        let live = self.live();
        let _changing = self.inner.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut signals = (*self.inner.signals.load_full()).clone();
        signals.set(now, name, number, live.conditions());
        self.inner.signals.store(Arc::new(signals));
        Ok(())
    }

    /// What every rule makes of a request, and where its limits come from.
    #[must_use]
    pub fn explain(&self, check: &Check<'_>) -> Explanation {
        let live = self.live();
        let attributes = self.concealed(&live, check.attributes);
        live.policy.explain(&live.changes, &attributes, check.cost.get())
    }

    /// Whether what a peer says of others is believed, by the policy's `identity`.
    ///
    /// ```
    /// # use tidegate::{Limiter, Policy};
    /// let policy = Policy::parse("
    /// version: 1
    /// identity: { trusted: [10.0.0.0/8] }
    /// rules: [{ name: a, key: [ip], limits: [1/s] }]")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// assert!(limiter.trusts([10, 1, 2, 3].into()) && !limiter.trusts([192, 0, 2, 1].into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.live().policy.identity().trusts(peer)
    }

    /// What the policy makes of a request over HTTP: who sends it, and for what.
    pub fn attributes<'r>(
        &self,
        request: &Request<'r, '_>,
    ) -> Result<Attributes<'r>, AttributeError> {
        let live = self.live();
        live.policy.attributes(request, &|secret| self.inner.secret.digest(secret))
    }

    /// Whether the policy lets a request over HTTP with these attributes be decided; see `paths.ambiguous`.
    pub fn accepts(&self, attributes: &Attributes<'_>) -> Result<(), AttributeError> {
        if attributes.is_ambiguous() { self.live().policy.accepts(attributes) } else { Ok(()) }
    }

    /// What was answered so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let live = self.live();
        let rules = live.policy.rules().iter().zip(&live.counters);
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            rules: rules
                .map(|(rule, counters)| (rule.name().to_owned(), counters.read()))
                .collect(),
            unmatched: read(&self.inner.unmatched),
            unknown_tiers: read(&self.inner.unknown_tiers),
            store_errors: read(&self.inner.store_errors),
        }
    }

    /// Requests for which the store gave no answer.
    #[must_use]
    pub fn store_errors(&self) -> u64 {
        self.inner.store_errors.load(Ordering::Relaxed)
    }

    /// The version of what it works by; every change makes a new one.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.live().version
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    pub(crate) fn renew(&self) -> Lent {
        let now = self.inner.wall_clock();
        // Nobody changed anything, so the version stays: only the calendars are longer.
        let renewed = self.replace(|live| {
            let renewed = live.with_changes(live.changes.clone(), now);
            Ok(Live { version: live.version, ..renewed })
        });
        // Renewing asks nothing new of the store; and were it refused, the old calendars go on.
        let _ = renewed;
        self.inner.live.load()
    }

    /// Makes the successor of what is live and puts it in its place, if the store can count by it.
    fn replace(
        &self,
        successor: impl FnOnce(&Live) -> Result<Live, LimiterError>,
    ) -> Result<u64, LimiterError> {
        let changing = self.inner.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let live = successor(&self.inner.live.load())?;
        live.supported_by(&self.inner.store)?;
        let mut signals = (*self.inner.signals.load_full()).clone();
        signals.judge(self.inner.clock.now().steady, live.conditions());
        self.inner.signals.store(Arc::new(signals));
        let version = live.version;
        self.inner.live.store(Arc::new(live));
        drop(changing);
        self.inner.queues.wake_all();
        Ok(version)
    }
}
