//! What operators do while requests are decided: reload the policy, change limits, send signals, read statistics.

use super::Limiter;
use crate::check::Check;
use crate::error::LimiterError;
use crate::live::{Live, LiveGuard};
use crate::signals::Elasticity;
use crate::stats::Stats;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use tidegate_policy::{
    Allowance, AttributeError, Attributes, ChangeError, Changes, Explanation, Mode, Number,
    NumberError, Policy, Request, VerifiedSource,
};
use tidegate_store::Store;

impl<S: Store> Limiter<S> {
    /// Replaces the policy for all later requests, and returns the new version.
    ///
    /// What was counted stays: a limit keeps its counters as long as the name of its rule, its id and its algorithm stay the
    /// same. On an error, the old policy stays in force.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Limiter, Policy};
    /// let with = |amount: u32| Policy::parse(format!(
    ///     "{{ version: 1, rules: [{{ name: a, key: [], limits: [{amount}/h] }}] }}"
    /// ));
    /// let limiter = Limiter::in_memory(with(5)?)?;
    /// let request = Attributes::new();
    /// for _ in 0..5 {
    ///     assert!(limiter.check_now(&Check::new(&request))?.allowed());
    /// }
    /// limiter.reload(with(7)?)?; // allows two more, not seven
    /// let passed = (0..9).filter(|_| limiter.check_now(&Check::new(&request)).unwrap().allowed());
    /// assert_eq!(passed.count(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reload(&self, policy: Policy) -> Result<u64, LimiterError> {
        let now = self.inner.wall_clock();
        self.replace(|live| Ok(live.with_policy(policy, now)))
    }

    /// Replaces the policy and all run-time changes in one step, and returns the new version. On an error, nothing changes.
    ///
    /// ```
    /// use tidegate::{Changes, Limiter, Policy};
    /// let policy = |rule: &str| Policy::parse(format!("{{ version: 1, rules: [{rule}] }}"));
    /// let limiter = Limiter::in_memory(policy("{ name: a, key: [], limits: [1/s] }")?)?;
    /// let second = policy("{ name: b, key: [], limits: [2/s] }")?;
    /// assert_eq!(limiter.install(second, Changes::default())?, 2);
    /// assert_eq!(limiter.stats().rules[0].0, "b");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn install(&self, policy: Policy, changes: Changes) -> Result<u64, LimiterError> {
        let now = self.inner.wall_clock();
        self.replace(|live| Ok(live.with_policy(policy, now).changed_to(changes, now)))
    }

    /// Changes overrides, tiers, or whether rules are enabled or in shadow mode, and returns the new version.
    ///
    /// The changes are in the memory of this limiter. They stay when the policy is reloaded, and are over when the process ends.
    ///
    /// Several changes in one closure take effect together. If the closure fails, none does.
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

    /// Gives the requests that match `who` their own limits under a rule. Returns the new version.
    ///
    /// A limit that says only its rate counts like the limit of the rule that it replaces, so what was counted still counts.
    ///
    /// Like all changes at run time, it is in the memory of this limiter: it is over when the process ends, and other nodes do not
    /// have it. Keep it where your program keeps its customers, and set it again at the start.
    ///
    /// ```
    /// use tidegate::{Allowance, Attributes, Check, Limiter, Policy};
    /// let limiter = Limiter::in_memory(Policy::parse("
    /// version: 1
    /// rules: [{ name: api, key: [user], limits: [{ rate: 3/h, algorithm: sliding_log }] }]")?)?;
    /// let alice = Attributes::new().with("user", "alice")?;
    /// let passed = || (0..9).filter(|_| limiter.check_now(&Check::new(&alice)).unwrap().allowed()).count();
    /// assert_eq!(passed(), 3);
    /// limiter.set_override("api", &[("user", "alice")], Allowance::parse("[4/h]")?)?;
    /// assert_eq!(passed(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_override(
        &self,
        rule: &str,
        who: &[(&str, &str)],
        allowance: Allowance,
    ) -> Result<u64, LimiterError> {
        self.change(|changes, policy| changes.set_override(policy, rule, who, allowance))
    }

    /// Removes an override. Returns the new version.
    pub fn remove_override(&self, rule: &str, who: &[(&str, &str)]) -> Result<u64, LimiterError> {
        self.change(|changes, policy| changes.remove_override(policy, rule, who).map(|_| ()))
    }

    /// Assigns a tier to a customer, whatever tier its requests carry; `None` removes the assignment. Returns the new version.
    pub fn assign_tier(&self, who: (&str, &str), tier: Option<&str>) -> Result<u64, LimiterError> {
        self.change(|changes, policy| changes.assign_tier(policy, who, tier))
    }

    /// Enables or disables a rule; `None` returns to what the policy says. Returns the new version.
    pub fn set_enabled(&self, rule: &str, enabled: Option<bool>) -> Result<u64, LimiterError> {
        self.change(|changes, policy| changes.set_enabled(policy, rule, enabled))
    }

    /// Sets whether a rule is in shadow mode, in which it counts but never denies; `None` returns to what the policy says.
    /// Returns the new version.
    pub fn set_shadow(&self, rule: &str, shadow: Option<bool>) -> Result<u64, LimiterError> {
        self.change(|changes, policy| changes.set_shadow(policy, rule, shadow))
    }

    /// Reports a signal, such as `load` or `errors`, to the conditions of elastic limits.
    ///
    /// Report it every few seconds: a value older than ten seconds is ignored. A condition takes effect when it has held for
    /// two seconds.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Clock, Limiter, Memory, Policy, Secret, Timestamp};
    /// # let clock = Clock::manual(Timestamp::EPOCH);
    /// # let store = Memory::new(clock.clone());
    /// // 2 per hour, and up to 150 % of that while the load is low.
    /// let policy = Policy::parse("
    /// version: 1
    /// rules:
    ///   - name: a
    ///     key: []
    ///     limits: [{ rate: 2/h, algorithm: fixed_window }]
    ///     mode: { elastic: { up_to: 150%, while: 'load < 0.7' } }")?;
    /// let limiter = Limiter::new(policy, store, Secret::new([7; 32]), clock.clone())?;
    /// let request = Attributes::new();
    /// limiter.signal("load", 0.4)?;
    /// clock.set(Timestamp::from_nanos(2_000_000_000)); // two seconds later
    /// let passed = (0..9).filter(|_| limiter.check_now(&Check::new(&request)).unwrap().allowed());
    /// assert_eq!(passed.count(), 3);
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

    /// Explains, for every rule, whether it applies to a request and where its limits come from. Nothing is counted.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Limiter, Policy};
    /// # let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [user], limits: [1/h] }] }")?;
    /// # let limiter = Limiter::in_memory(policy)?;
    /// let alice = Attributes::new().with("user", "alice")?;
    /// let explanation = limiter.explain(&Check::new(&alice));
    /// assert!(explanation.rules[0].outcome.is_ok()); // the rule applies
    /// println!("{explanation}"); // and this says why
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn explain(&self, check: &Check<'_>) -> Explanation {
        let live = self.live();
        let attributes = self.concealed(&live, check.attributes);
        let mut explanation = live.policy.explain(&live.changes, &attributes, check.cost.get());
        for (rule, elasticity) in self.elasticities() {
            let found = explanation.rules.iter_mut().find(|explained| explained.rule == rule);
            if let Some(Ok(applied)) = found.map(|explained| &mut explained.outcome) {
                applied.notes.push(format!("elastic, {elasticity}"));
            }
        }
        explanation
    }

    /// The names of all rules with `mode: elastic`, and how much of their headroom they grant at the moment, and why.
    ///
    /// ```
    /// use tidegate::{Elasticity, Limiter, Policy};
    /// let policy = Policy::parse("
    /// version: 1
    /// rules: [{ name: a, key: [], limits: [9/s], mode: { elastic: { up_to: 150%, while: 'load < 0.7' } } }]")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// assert_eq!(limiter.elasticities(), [("a".to_owned(), Elasticity::NoSignal)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn elasticities(&self) -> Vec<(String, Elasticity)> {
        let (live, signals) = (self.live(), self.inner.signals.load());
        let now = self.inner.clock.now().steady;
        let elastic = live.policy.rules().iter().filter_map(|rule| match rule.mode() {
            Mode::Elastic { condition, .. } => {
                Some((rule.name().to_owned(), signals.elasticity(now, condition)))
            }
            Mode::Hard | Mode::Soft(_) => None,
        });
        elastic.collect()
    }

    /// Whether a peer is a trusted proxy, by `identity.trusted` of the policy. Headers such as `X-Forwarded-For` are believed
    /// only if they come from a trusted peer.
    ///
    /// ```
    /// use tidegate::{Limiter, Policy};
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

    /// Derives the attributes of an HTTP request, such as user, address and path, by `identity` of the policy.
    pub fn attributes<'r>(
        &self,
        request: &Request<'r, '_>,
    ) -> Result<Attributes<'r>, AttributeError> {
        let live = self.live();
        live.policy.attributes(request, &|secret| self.inner.secret.digest(secret))
    }

    /// Derives the attributes of an HTTP request by `identity` of the policy, for a caller that verifies tokens. `verified` returns
    /// the value of a source, if the request has one; it is called only for sources that the policy names.
    pub fn attributes_verified<'r>(
        &self,
        request: &Request<'r, '_>,
        verified: &dyn Fn(VerifiedSource<'_>) -> Option<String>,
    ) -> Result<Attributes<'r>, AttributeError> {
        let live = self.live();
        let digest = |secret: &str| self.inner.secret.digest(secret);
        live.policy.attributes_verified(request, verified, &digest)
    }

    /// Checks that the policy accepts attributes whose path can be read in several ways. It rejects them if it sets
    /// `paths: { ambiguous: reject }`.
    pub fn accepts(&self, attributes: &Attributes<'_>) -> Result<(), AttributeError> {
        if attributes.is_ambiguous() { self.live().policy.accepts(attributes) } else { Ok(()) }
    }

    /// The statistics since the limiter was built.
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

    /// The number of requests that the store did not answer, so that the fallback decided.
    #[must_use]
    pub fn store_errors(&self) -> u64 {
        self.inner.store_errors.load(Ordering::Relaxed)
    }

    /// The version of the configuration in force. It starts at 1, and every reload or change increments it.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.live().version
    }

    /// The store that holds the counters.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// Lays out calendars for the current time.
    pub(crate) fn renew_calendars(&self) -> LiveGuard {
        let now = self.inner.wall_clock();
        // The version stays, because only the calendars change.
        let renewed = self.replace(|live| {
            let renewed = live.with_changes(live.changes.clone(), now);
            Ok(Live { version: live.version, ..renewed })
        });
        // The limits are the same, so the store supports them. If it refused all the same, the old calendars stay in use.
        let _ = renewed;
        self.inner.live.load()
    }

    /// Builds the successor of the current configuration and installs it, if the store supports its limits.
    fn replace(
        &self,
        successor: impl FnOnce(&Live) -> Result<Live, LimiterError>,
    ) -> Result<u64, LimiterError> {
        let changing = self.inner.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.inner.live.load();
        let live = successor(&before)?;
        live.supported_by(&self.inner.store)?;
        live.log_warnings(Some(&before.policy));
        let mut signals = (*self.inner.signals.load_full()).clone();
        signals.evaluate(self.inner.clock.now().steady, live.conditions());
        self.inner.signals.store(Arc::new(signals));
        let version = live.version;
        self.inner.live.store(Arc::new(live));
        drop(changing);
        self.inner.queues.wake_all();
        Ok(version)
    }
}
