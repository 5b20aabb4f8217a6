//! Calls of several descriptors, as Envoy sends them, under rule files of its reference service and under a policy.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test fails loudly"
)]

use tidegate::{
    Clock, Descriptor, DescriptorCall, DescriptorError, DescriptorVerdict, Limiter, Memory, Policy,
    Secret, Span, Timestamp,
};
use tidegate_policy::{EnvoyFile, Unit};

const RULES: &str = "
domain: rl
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 3 }
  - key: user
    value: vip
    rate_limit: { unit: minute, requests_per_unit: 5, replaces: [{ name: per-tenant }] }
  - key: tenant
    rate_limit: { unit: minute, requests_per_unit: 2, name: per-tenant }
  - key: banned
    rate_limit: { unit: minute, requests_per_unit: 0 }
  - key: free
    rate_limit: { unlimited: true }
  - key: shady
    shadow_mode: true
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: file
    value: /a/*
    share_threshold: true
    rate_limit: { unit: hour, requests_per_unit: 2 }
  - key: service
    value: one
    quota_mode: true
    metadata: { with_quota: { name: one, both: 1 } }
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: service
    value: two
    quota_mode: true
    metadata: { with_quota: { name: two, also: 2 } }
    rate_limit: { unit: minute, requests_per_unit: 2 }
";

struct Rig {
    limiter: Limiter<Memory>,
    clock: Clock,
}

impl Rig {
    fn new(policy: Policy) -> Self {
        let clock = Clock::manual(Timestamp::from_nanos(600_000_000_000));
        let memory = Memory::new(clock.clone());
        let limiter = Limiter::new(policy, memory, Secret::new([7; 32]), clock.clone()).unwrap();
        Self { limiter, clock }
    }

    fn of_files() -> Self {
        let file = EnvoyFile { name: "rl.yaml", text: RULES.as_bytes() };
        Self::new(Policy::from_envoy(&[file], false).unwrap())
    }

    fn try_ask(&self, parts: &[Descriptor<'_>]) -> Result<DescriptorVerdict, DescriptorError> {
        let call = DescriptorCall {
            domain: "rl",
            descriptors: parts,
            hits: 0,
            timeout: None,
            max_wait: Span::ZERO,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(self.limiter.check_descriptors(&call))
    }

    fn ask(&self, parts: &[Descriptor<'_>]) -> DescriptorVerdict {
        self.try_ask(parts).unwrap()
    }

    fn later(&self, seconds: u64) {
        let now = self.clock.now().steady.as_nanos() + seconds * 1_000_000_000;
        self.clock.set(Timestamp::from_nanos(now));
    }

    fn passes(&self, parts: &[Descriptor<'_>]) -> bool {
        self.ask(parts).verdict.allowed()
    }
}

fn of<'d>(entries: &[(&'d str, &'d str)]) -> Descriptor<'d> {
    let entries = entries.iter().map(|(name, value)| (*name, (*value).into()));
    Descriptor { entries: entries.collect(), ..Descriptor::default() }
}

fn one<'d>(key: &'d str, value: &'d str) -> Descriptor<'d> {
    of(&[(key, value)])
}

fn hits(descriptor: Descriptor<'_>, hits: u64) -> Descriptor<'_> {
    Descriptor { hits: Some(hits), ..descriptor }
}

/// Whether each descriptor is over its limit, and what remains.
fn statuses(answer: &DescriptorVerdict) -> Vec<(bool, u64)> {
    answer.statuses().map(|status| (status.over, status.remaining)).collect()
}

// === under rule files ===

#[test]
fn every_descriptor_has_its_status_in_order() {
    let rig = Rig::of_files();
    let call = [one("user", "a"), one("nobody", "x"), one("free", "f"), one("tenant", "t")];
    let answer = rig.ask(&call);
    assert!(answer.verdict.allowed());
    let all = u64::MAX;
    assert_eq!(statuses(&answer), [(false, 2), (false, 0), (false, all), (false, 1)]);
    let limits: Vec<_> = answer.statuses().map(|status| status.limit).collect();
    let user = limits[0].unwrap();
    assert_eq!((user.amount, user.unit, user.name), (3, Some(Unit::Minute), ""));
    assert!(limits[1].is_none() && limits[2].is_none());
    assert_eq!(limits[3].unwrap().name, "per-tenant");
    // The clock is at ten minutes after the epoch, when a window begins.
    assert_eq!(answer.statuses().next().unwrap().reset, Some(Span::from_secs(60)));
}

#[test]
fn denied_calls_count_as_in_the_reference_service() {
    let rig = Rig::of_files();
    let call = [one("user", "a"), one("tenant", "t")];
    assert!(rig.passes(&call) && rig.passes(&call));
    let refused = rig.ask(&call); // the limit of the tenant denies; the user is charged all the same
    assert_eq!(statuses(&refused), [(false, 0), (true, 0)]);
    assert!(!rig.passes(&[one("user", "a")]));
    rig.later(60);
    assert!(rig.passes(&call));
}

#[test]
fn a_limit_of_zero_denies_every_call_except_one_of_cost_zero() {
    let rig = Rig::of_files();
    assert!(!rig.passes(&[one("banned", "x")]));
    assert!(rig.passes(&[hits(one("banned", "x"), 0)]));
}

#[test]
fn replaced_rules_do_not_decide_and_do_not_count() {
    let rig = Rig::of_files();
    for _ in 0..5 {
        let answer = rig.ask(&[one("tenant", "t"), one("user", "vip")]);
        assert!(answer.verdict.allowed());
        assert!(answer.statuses().next().unwrap().limit.is_none());
    }
    assert!(!rig.passes(&[one("tenant", "t"), one("user", "vip")]));
    assert!(rig.passes(&[one("tenant", "t")]));
}

#[test]
fn rules_in_shadow_mode_count_and_never_deny() {
    let rig = Rig::of_files();
    for remaining in [0, 0, 0] {
        let answer = rig.ask(&[one("shady", "x")]);
        assert_eq!(statuses(&answer), [(false, remaining)]);
        assert!(answer.verdict.allowed());
    }
}

#[test]
fn values_share_a_counter_under_share_threshold() {
    let rig = Rig::of_files();
    assert!(rig.passes(&[one("file", "/a/1")]) && rig.passes(&[one("file", "/a/2")]));
    assert!(!rig.passes(&[one("file", "/a/3")]));
}

#[test]
fn quotas_deny_only_together_and_metadata_names_those_with_a_rest() {
    let rig = Rig::of_files();
    let call = [one("service", "one"), one("service", "two")];
    let first = rig.ask(&call);
    assert!(first.verdict.allowed());
    let metadata = serde_json::Value::Object(first.metadata.clone());
    // If two rules set the same field, the first wins; fields that only one of them sets are all there.
    assert_eq!(
        metadata,
        serde_json::json!({ "with_quota": { "name": "one", "both": 1, "also": 2 } })
    );
    let second = rig.ask(&call);
    assert!(second.verdict.allowed());
    assert_eq!(statuses(&second), [(true, 0), (false, 0)]);
    assert_eq!(second.metadata["with_quota"]["name"], "two");
    let third = rig.ask(&call);
    assert!(!third.verdict.allowed() && third.metadata.is_empty());
    assert_eq!(third.verdict.retry_after(), Some(Span::from_secs(60)));
    assert!(!rig.passes(&[one("service", "one")])); // alone, it is a limit like any other
}

/// A proxy for language models asks with cost 0 before a request, and charges the tokens after it. So one request more than
/// the limit passes, and then none.
#[test]
fn a_call_of_cost_zero_is_denied_only_above_the_limit() {
    let rig = Rig::of_files();
    let look = [hits(one("service", "two"), 0)];
    let charge = [hits(one("service", "two"), 1)];
    for passes in [true, true, true, false, false] {
        assert_eq!(rig.passes(&look), passes);
        if passes {
            rig.passes(&charge);
        }
    }
}

#[test]
fn the_cost_is_that_of_the_descriptor_or_else_that_of_the_call() {
    let rig = Rig::of_files();
    let answer = rig.ask(&[hits(one("user", "a"), 2), one("tenant", "t")]);
    assert_eq!(statuses(&answer), [(false, 1), (false, 1)]);
    for too_many in [4, u64::MAX] {
        let answer = rig.ask(&[hits(one("user", "b"), too_many)]);
        assert!(!answer.verdict.allowed());
    }
    assert_eq!(statuses(&rig.ask(&[one("user", "b")])), [(false, 2)]); // nothing was taken
}

#[test]
fn what_is_given_back_can_be_taken_again_and_not_more() {
    let rig = Rig::of_files();
    let give = |amount| Descriptor { gives_back: true, ..hits(one("user", "a"), amount) };
    (0..3).for_each(|_| assert!(rig.passes(&[one("user", "a")])));
    assert_eq!(statuses(&rig.ask(&[give(2)])), [(false, 2)]);
    assert!(rig.passes(&[one("user", "a")]) && rig.passes(&[one("user", "a")]));
    assert!(!rig.passes(&[one("user", "a")]));
    assert_eq!(statuses(&rig.ask(&[give(1_000)])), [(false, 3)]); // never more than the whole limit
}

#[test]
fn a_descriptor_may_carry_its_own_limit() {
    let rig = Rig::of_files();
    let own = |amount| Descriptor { limit: Some((amount, Unit::Hour)), ..one("user", "a") };
    assert_eq!(statuses(&rig.ask(&[own(7)])), [(false, 6)]);
    assert_eq!(statuses(&rig.ask(&[own(9)])), [(false, 7)]); // the same counter under another amount
    assert_eq!(statuses(&rig.ask(&[one("user", "a")])), [(false, 2)]); // rules have counters of their own
    assert_eq!(statuses(&rig.ask(&[own(0)])), [(true, 0)]);
}

#[test]
fn the_same_descriptor_twice_costs_twice() {
    let rig = Rig::of_files();
    let answer = rig.ask(&[one("user", "a"), one("user", "a")]);
    assert_eq!(statuses(&answer), [(false, 1), (false, 1)]);
    assert!(!rig.passes(&[one("user", "a"), one("user", "a")]));
}

#[test]
fn names_may_occur_twice_and_their_order_matters() {
    let file = "
domain: rl
descriptors:
  - key: generic_key
    descriptors:
      - { key: generic_key, rate_limit: { unit: hour, requests_per_unit: 1 } }";
    let file = EnvoyFile { name: "rl.yaml", text: file.as_bytes() };
    let rig = Rig::new(Policy::from_envoy(&[file], false).unwrap());
    let call = |a, b| of(&[("generic_key", a), ("generic_key", b)]);
    assert!(rig.passes(&[call("x", "y")]) && rig.passes(&[call("y", "x")]));
    assert!(!rig.passes(&[call("x", "y")]));
    assert!(rig.passes(&[one("generic_key", "x")])); // another depth
}

#[test]
fn editing_a_rule_keeps_what_was_counted() {
    let rig = Rig::of_files();
    (0..3).for_each(|_| assert!(rig.passes(&[one("user", "a")])));
    let edited = RULES.replacen("requests_per_unit: 3", "requests_per_unit: 4", 1)
        + "  - { key: user, value: 'a*', rate_limit: { unit: minute, requests_per_unit: 4 } }\n";
    let file = EnvoyFile { name: "rl.yaml", text: edited.as_bytes() };
    rig.limiter.reload(Policy::from_envoy(&[file], false).unwrap()).unwrap();
    assert!(rig.passes(&[one("user", "a")])); // another rule matches, with the same counter
    assert!(!rig.passes(&[one("user", "a")]));
}

#[test]
fn an_unknown_domain_has_no_rules() {
    let rig = Rig::of_files();
    let own = Descriptor { limit: Some((1, Unit::Hour)), ..one("user", "a") };
    let descriptors = [one("banned", "x"), own];
    let call = DescriptorCall {
        domain: "other",
        descriptors: &descriptors,
        hits: 9,
        timeout: None,
        max_wait: Span::ZERO,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let answer = runtime.block_on(rig.limiter.check_descriptors(&call)).unwrap();
    assert!(answer.verdict.allowed());
    assert_eq!(statuses(&answer), [(false, 0), (false, 0)]);
}

// === under a policy ===

fn by_policy(text: &str) -> Rig {
    Rig::new(Policy::parse(text).unwrap())
}

const POLICY: &str = "
version: 1
rules:
  - { name: per-user, match: { domain: rl }, key: [user], limits: [3/s, { rate: 5/30s, algorithm: sliding_log }] }
  - { name: per-client, key: [ip], limits: [{ rate: 2/min, algorithm: fixed_window }] }
  - { name: all, match: { scope: all }, key: [], limits: [{ rate: 3/h, algorithm: fixed_window }] }
  - { name: odd, match: { user: mallory }, key: [user], limits: [1/h], on_limit: { flag: challenge } }
";

#[test]
fn a_denied_call_takes_nothing() {
    let rig = by_policy(POLICY);
    let call = [one("user", "a"), one("remote_address", "10.0.0.1")];
    assert!(rig.passes(&call) && rig.passes(&call));
    let refused = rig.ask(&call);
    assert_eq!(statuses(&refused), [(false, 1), (true, 0)]);
    let status = refused.statuses().nth(1).unwrap();
    assert_eq!(
        (status.limit.unwrap().name, status.reset),
        ("per-client", Some(Span::from_secs(60)))
    );
    assert!(rig.passes(&[one("user", "a")])); // the third of three
}

#[test]
fn several_limits_give_one_status() {
    let rig = by_policy(POLICY);
    (0..3).for_each(|_| assert!(rig.passes(&[one("user", "a")])));
    rig.later(1);
    let answer = rig.ask(&[one("user", "a")]);
    assert_eq!(statuses(&answer), [(false, 1)]); // the limit with the least remaining: 1 of 5 per 30 s
    assert_eq!(answer.statuses().next().unwrap().limit.unwrap().unit, None);
    assert!(rig.passes(&[one("user", "a")]));
    let refused = rig.ask(&[one("user", "a")]);
    assert_eq!(statuses(&refused), [(true, 0)]);
    assert_eq!(refused.statuses().next().unwrap().reset, Some(Span::from_secs(29)));
}

#[test]
fn spellings_of_an_address_share_a_counter() {
    let rig = by_policy(POLICY);
    assert!(rig.passes(&[one("remote_address", "10.0.0.1")]));
    assert!(rig.passes(&[one("remote_address", "::ffff:10.0.0.1")]));
    assert!(!rig.passes(&[one("masked_remote_address", "10.0.0.1/32")]));
    let wrong = rig.try_ask(&[one("user", "a"), one("remote_address", "somewhere")]).unwrap_err();
    assert!(
        wrong.to_string().starts_with("descriptor 1: `somewhere` is not a valid address"),
        "{wrong}"
    );
}

#[test]
fn costs_of_descriptors_with_the_same_counter_are_added() {
    let rig = by_policy(POLICY);
    let all = |other| of(&[("scope", "all"), ("x", other)]);
    assert_eq!(statuses(&rig.ask(&[all("1"), all("2")])), [(false, 1), (false, 1)]);
    assert!(!rig.passes(&[all("1"), all("2")]));
    assert!(rig.passes(&[all("1")]));
}

#[test]
fn names_with_two_values_are_rejected() {
    let rig = by_policy(POLICY);
    for (entries, says) in [
        (vec![("user", "a"), ("user", "b")], "the entry `user` has two different values"),
        (vec![("remote_address", "::1"), ("ip", "::2")], "the entry `ip` has two different values"),
        (vec![("domain", "other")], "an entry is called `domain`"),
    ] {
        let error = rig.try_ask(&[one("user", "a"), of(&entries)]).unwrap_err().to_string();
        assert!(error.starts_with("descriptor 1: ") && error.contains(says), "{error}");
    }
    assert!(rig.passes(&[one("user", "a")]));
}

/// More limits than fit one plan were an error, and a proxy that fails open lets a call pass on an error.
#[test]
fn more_limits_than_fit_one_plan_are_decided() {
    let names: Vec<String> = (0..40).map(|number| format!("user{number}")).collect();
    let mut parts: Vec<Descriptor<'_>> = names.iter().map(|name| one("user", name)).collect();
    for rig in [by_policy(PER_USER), Rig::new(files(PER_USER_FILE))] {
        let left = |answer: &DescriptorVerdict| -> Vec<u64> {
            answer.statuses().map(|status| status.remaining).collect()
        };
        assert_eq!(left(&rig.ask(&parts)), [2; 40]);
        // Whichever descriptor is banned, the call is denied.
        for at in 0..40 {
            let allowed = std::mem::replace(&mut parts[at], one("banned", "x"));
            let answer = rig.ask(&parts);
            assert!(!answer.verdict.allowed(), "{at}");
            let over: Vec<bool> = answer.statuses().map(|status| status.over).collect();
            assert!(over[at] && over.len() == 40, "{at}");
            parts[at] = allowed;
            if answer.is_by_files() {
                // Under rule files denied calls count, as in the reference service.
                break;
            }
            let others = answer.statuses().filter(|status| !status.over);
            assert!(
                others.into_iter().all(|status| status.remaining == 2),
                "{at}: none is charged"
            );
        }
        let expected = if rig.ask(&[]).is_by_files() { 0 } else { 1 };
        assert_eq!(left(&rig.ask(&parts))[1..], [expected; 39]);
        assert_eq!(rig.passes(&parts), expected == 1);
        assert!(!rig.passes(&parts));
    }
}

const PER_USER: &str = "
version: 1
rules:
  - { name: per-user, key: [user], limits: [{ rate: 3/h, algorithm: fixed_window }] }
  - { name: ban, key: [banned], limits: [{ rate: 0/h, algorithm: fixed_window, block: true }] }
";
const PER_USER_FILE: &str = "
domain: rl
descriptors:
  - { key: user, rate_limit: { unit: hour, requests_per_unit: 3 } }
  - { key: banned, rate_limit: { unit: hour, requests_per_unit: 0 } }
";

fn files(text: &str) -> Policy {
    let file = EnvoyFile { name: "rl.yaml", text: text.as_bytes() };
    Policy::from_envoy(&[file], false).unwrap()
}

/// The statuses show what was given back, also if a call has more limits than fit one plan.
#[test]
fn more_limits_than_fit_one_plan_can_be_given_back() {
    let rig = Rig::new(files(PER_USER_FILE));
    let names: Vec<String> = (0..40).map(|number| format!("user{number}")).collect();
    let take: Vec<Descriptor<'_>> = names.iter().map(|name| one("user", name)).collect();
    let back = take.iter().map(|part| Descriptor { gives_back: true, ..part.clone() });
    let back: Vec<Descriptor<'_>> = back.collect();
    for left in [2, 3, 2, 3] {
        let answer = rig.ask(if left == 2 { &take } else { &back });
        assert!(answer.statuses().all(|status| status.remaining == left), "{left}");
    }
}

/// The number of limits is bounded, so that one call cannot cost as much work as thousands.
#[test]
fn the_limits_of_a_call_are_bounded() {
    let rig = by_policy(PER_USER);
    let most = DescriptorCall::MOST_LIMITS;
    let names: Vec<String> = (0..=most).map(|number| format!("user{number}")).collect();
    let parts: Vec<Descriptor<'_>> = names.iter().map(|name| one("user", name)).collect();
    assert!(rig.passes(&parts[..most]));
    assert!(matches!(rig.try_ask(&parts), Err(DescriptorError::TooManyLimits)));
}

/// Values and lists of entries of any length are decided, and rules still match entries at the end of a long list.
#[test]
fn values_of_any_length_are_decided() {
    let rig = by_policy(
        "
version: 1
rules:
  - { name: ban, match: { agent: banned }, key: [], limits: [{ rate: 0/h, algorithm: fixed_window, block: true }] }
  - { name: per-agent, key: [agent], limits: [{ rate: 1/h, algorithm: fixed_window }] }
",
    );
    let long = "a".repeat(100_000);
    let other = format!("{}b", "a".repeat(99_999));
    assert_eq!(
        [&long, &long, &other].map(|agent| rig.passes(&[one("agent", agent)])),
        [true, false, true]
    );
    let names: Vec<String> = (0..100).map(|number| format!("name{number}")).collect();
    let mut entries: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "x")).collect();
    entries.push(("a name that no rule can have", "x"));
    entries.push(("agent", "banned"));
    assert!(!rig.passes(&[of(&entries)]));
}

/// The reference service reports the rest of the window also for a key that was never used.
#[test]
fn an_unused_key_has_the_rest_of_its_window_as_reset() {
    let rig = Rig::new(files(PER_USER_FILE));
    let answer = rig.ask(&[hits(one("user", "fresh"), 0)]);
    let status = answer.statuses().next().unwrap();
    // The clock of these tests is at ten minutes after the epoch.
    assert_eq!((status.remaining, status.reset), (3, Some(Span::from_secs(3_000))));
    let answer = rig.ask(&[one("user", "fresh")]);
    assert_eq!(answer.statuses().next().unwrap().reset, Some(Span::from_secs(3_000)));
}

#[test]
fn rules_that_flag_never_deny() {
    let rig = by_policy(POLICY);
    for _ in 0..2 {
        assert!(rig.passes(&[one("user", "mallory")]));
    }
    let answer = rig.ask(&[one("user", "mallory")]);
    assert_eq!(statuses(&answer), [(false, 0)]);
    assert_eq!(answer.verdict.flags().collect::<Vec<_>>(), ["challenge"]);
}

#[test]
fn a_descriptor_without_a_rule_is_not_limited() {
    let rig = by_policy(POLICY);
    let answer = rig.ask(&[one("tenant", "x")]);
    assert!(answer.verdict.allowed());
    assert!(answer.statuses().next().unwrap().limit.is_none());
    assert!(rig.ask(&[]).verdict.allowed());
}
