//! What each descriptor of a call meets: rules of a policy, one rule of a rule file, or a limit that it brings itself.

use super::{Descriptor, DescriptorCall, DescriptorError};
use crate::live::Live;
use smallvec::SmallVec;
use std::borrow::Cow;
use tidegate_policy::{Attributes, Met, RuleLimit};

/// What a descriptor meets.
pub(super) enum Meets<'l> {
    Nothing,
    Unlimited,
    Rule(Met<'l>),
    Own(&'l RuleLimit),
    Rules(&'l Attributes<'l>),
}

/// The limits that descriptors bring.
pub(super) fn own_limits(call: &DescriptorCall<'_, '_>) -> Vec<Option<RuleLimit>> {
    let limit = |descriptor: &Descriptor<'_>| {
        let (amount, unit) = descriptor.limit?;
        unit.limit(amount)
    };
    match call.descriptors.iter().any(|descriptor| descriptor.limit.is_some()) {
        true => call.descriptors.iter().map(limit).collect(),
        false => vec![],
    }
}

/// Descriptors as attributes, where a policy decides.
pub(super) fn attributes<'d>(
    live: &Live,
    call: &DescriptorCall<'d, '_>,
) -> Result<Vec<Attributes<'d>>, DescriptorError> {
    if live.policy.descriptors().is_some() {
        return Ok(vec![]);
    }
    let numbered = call.descriptors.iter().enumerate();
    numbered.map(|(number, descriptor)| of_entries(number, call.domain, descriptor)).collect()
}

fn of_entries<'d>(
    number: usize,
    domain: &'d str,
    descriptor: &'d Descriptor<'_>,
) -> Result<Attributes<'d>, DescriptorError> {
    let mut attributes = Attributes::new();
    let wrong = |error| DescriptorError::Attribute(number, error);
    attributes.describe("domain", domain).map_err(wrong)?;
    for (at, (name, value)) in descriptor.entries.iter().enumerate() {
        let (name, value) = attribute(name, value);
        if name == "domain" && value != domain {
            return Err(DescriptorError::Domain(number));
        }
        let earlier = descriptor.entries.iter().take(at);
        let earlier = earlier.map(|(name, value)| attribute(name, value));
        if earlier.into_iter().any(|(known, other)| known == name && other != value) {
            return Err(DescriptorError::Twice(number, name.to_owned()));
        }
        attributes.describe(name, value).map_err(wrong)?;
    }
    Ok(attributes)
}

/// Envoy's name for an address is `ip` here. A masked address counts as the first address of its network.
fn attribute<'d>(name: &'d str, value: &'d str) -> (&'d str, &'d str) {
    match name {
        "remote_address" => ("ip", value),
        "masked_remote_address" => ("ip", value.split('/').next().unwrap_or(value)),
        _ => (name, value),
    }
}

/// What each descriptor meets.
pub(super) fn meets<'l>(
    live: &'l Live,
    call: &DescriptorCall<'_, '_>,
    limits: &'l [Option<RuleLimit>],
    attributes: &'l [Cow<'l, Attributes<'l>>],
) -> SmallVec<[Meets<'l>; 2]> {
    let numbered = call.descriptors.iter().enumerate();
    let Some(rules) = live.policy.descriptors() else {
        let meets = |(number, _): (usize, &Descriptor<'_>)| match limits.get(number) {
            Some(Some(limit)) => Meets::Own(limit),
            Some(None) | None => {
                attributes.get(number).map_or(Meets::Nothing, |found| Meets::Rules(found))
            }
        };
        return numbered.map(meets).collect();
    };
    let known = rules.has(call.domain);
    let mut meets: SmallVec<[Meets<'l>; 2]> = numbered
        .map(|(number, descriptor)| match limits.get(number) {
            Some(Some(limit)) if known => Meets::Own(limit),
            Some(_) | None => {
                rules.find(call.domain, &descriptor.entries).map_or(Meets::Nothing, Meets::Rule)
            }
        })
        .collect();
    step_back(&mut meets);
    meets
}

/// Rules that others replace have no say, whichever comes first; and what is unlimited is not counted.
fn step_back(meets: &mut [Meets<'_>]) {
    let rule =
        |meets: &Meets<'_>| matches!(meets, Meets::Rule(met) if !met.rule.replaces.is_empty());
    if meets.iter().any(rule) {
        let gone: SmallVec<[bool; 4]> = meets.iter().map(|one| is_replaced(one, meets)).collect();
        for (meets, gone) in meets.iter_mut().zip(gone) {
            // What is unlimited stays so: it never refused anything.
            let limited = matches!(meets, Meets::Rule(met) if met.rule.limit.is_some());
            if gone && limited {
                *meets = Meets::Nothing;
            }
        }
    }
    for one in meets {
        if matches!(one, Meets::Rule(met) if met.rule.limit.is_none()) {
            *one = Meets::Unlimited;
        }
    }
}

fn is_replaced(one: &Meets<'_>, all: &[Meets<'_>]) -> bool {
    let Meets::Rule(met) = one else { return false };
    let name = &met.rule.name;
    let replaces =
        |other: &Meets<'_>| matches!(other, Meets::Rule(met) if met.rule.replaces.contains(name));
    !name.is_empty() && all.iter().any(replaces)
}
