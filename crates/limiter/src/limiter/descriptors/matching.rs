//! What each descriptor of a call matches: rules of a policy, one rule of a rule file, or a limit that it carries.

use super::{Descriptor, DescriptorCall, DescriptorError};
use crate::live::Live;
use smallvec::SmallVec;
use std::borrow::Cow;
use tidegate_policy::{Attributes, Met, RuleLimit};

/// What a descriptor matches.
pub(super) enum DescriptorMatch<'l> {
    Nothing,
    /// An unlimited rule of a rule file.
    Unlimited,
    /// A rule of a rule file.
    FileRule(Met<'l>),
    /// The limit that the descriptor carries.
    Carried(&'l RuleLimit),
    /// Rules of a policy, which resolves these attributes.
    Rules(&'l Attributes<'l>),
}

/// The limits that descriptors carry, one for each descriptor; empty if none carries one.
pub(super) fn carried_limits(call: &DescriptorCall<'_, '_>) -> Vec<Option<RuleLimit>> {
    let limit = |descriptor: &Descriptor<'_>| {
        let (amount, unit) = descriptor.limit?;
        unit.limit(amount)
    };
    match call.descriptors.iter().any(|descriptor| descriptor.limit.is_some()) {
        true => call.descriptors.iter().map(limit).collect(),
        false => vec![],
    }
}

/// The descriptors as attributes, if a policy decides; empty under rule files.
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

/// The attribute for an entry. Envoy's names for the client address become `ip`; a masked address counts as the first address
/// of its network.
fn attribute<'d>(name: &'d str, value: &'d str) -> (&'d str, &'d str) {
    match name {
        "remote_address" => ("ip", value),
        "masked_remote_address" => ("ip", value.split('/').next().unwrap_or(value)),
        _ => (name, value),
    }
}

/// What each descriptor matches.
pub(super) fn match_descriptors<'l>(
    live: &'l Live,
    call: &DescriptorCall<'_, '_>,
    limits: &'l [Option<RuleLimit>],
    attributes: &'l [Cow<'l, Attributes<'l>>],
) -> SmallVec<[DescriptorMatch<'l>; 2]> {
    let numbered = call.descriptors.iter().enumerate();
    let Some(rules) = live.policy.descriptors() else {
        let by_policy = |(number, _): (usize, &Descriptor<'_>)| match limits.get(number) {
            Some(Some(limit)) => DescriptorMatch::Carried(limit),
            Some(None) | None => attributes
                .get(number)
                .map_or(DescriptorMatch::Nothing, |found| DescriptorMatch::Rules(found)),
        };
        return numbered.map(by_policy).collect();
    };
    let known = rules.has(call.domain);
    let by_files = |(number, descriptor): (usize, &Descriptor<'_>)| match limits.get(number) {
        Some(Some(limit)) if known => DescriptorMatch::Carried(limit),
        Some(_) | None => rules
            .find(call.domain, &descriptor.entries)
            .map_or(DescriptorMatch::Nothing, DescriptorMatch::FileRule),
    };
    let mut matches: SmallVec<[DescriptorMatch<'l>; 2]> = numbered.map(by_files).collect();
    drop_replaced(&mut matches);
    mark_unlimited(&mut matches);
    matches
}

/// Removes rules that other matched rules replace, independent of their order. An unlimited rule stays, because it never
/// denies anything.
fn drop_replaced(matches: &mut [DescriptorMatch<'_>]) {
    let replaces = |matched: &DescriptorMatch<'_>| matches!(matched, DescriptorMatch::FileRule(met) if !met.rule.replaces.is_empty());
    if !matches.iter().any(replaces) {
        return;
    }
    let replaced: SmallVec<[bool; 4]> =
        matches.iter().map(|matched| is_replaced(matched, matches)).collect();
    for (matched, replaced) in matches.iter_mut().zip(replaced) {
        let limited = matches!(matched, DescriptorMatch::FileRule(met) if met.rule.limit.is_some());
        if replaced && limited {
            *matched = DescriptorMatch::Nothing;
        }
    }
}

/// Rules without a limit are not counted.
fn mark_unlimited(matches: &mut [DescriptorMatch<'_>]) {
    for matched in matches {
        if matches!(matched, DescriptorMatch::FileRule(met) if met.rule.limit.is_none()) {
            *matched = DescriptorMatch::Unlimited;
        }
    }
}

fn is_replaced(one: &DescriptorMatch<'_>, all: &[DescriptorMatch<'_>]) -> bool {
    let DescriptorMatch::FileRule(met) = one else { return false };
    let name = &met.rule.name;
    let replaces = |other: &DescriptorMatch<'_>| matches!(other, DescriptorMatch::FileRule(met) if met.rule.replaces.contains(name));
    !name.is_empty() && all.iter().any(replaces)
}
