//! The names of users and tenants, and the states that they are counted in.

use crate::scenario::Scenario;
use tidegate::{Attributes, Secret};
use tidegate_core::StateId;
use tidegate_store::Name;

pub(crate) fn secret() -> Secret {
    Secret::new([7; 32])
}

/// The state of a user or a tenant under a version of its rule.
pub(crate) fn state(scenario: &Scenario, subject: usize, version: usize) -> StateId {
    let limit = scenario.rules_of(subject)[version].rule_limit();
    let (rule, key, name) = match subject.checked_sub(scenario.users()) {
        None => ("r", "user", user_name(subject)),
        Some(tenant) => ("t", "tenant", tenant_name(tenant)),
    };
    let name = Name { rule, limit: limit.id(), key: &[(key, &name)] };
    name.id(limit.limit(), &secret())
}

pub(crate) fn tenant_name(tenant: usize) -> String {
    format!("tenant-{tenant}")
}

pub(crate) fn user_name(user: usize) -> String {
    format!("user-{user}")
}

/// The attributes of a request.
pub(crate) fn attributes<'a>(user: &'a str, tenant: &'a str) -> Attributes<'a> {
    let attributes = Attributes::new().with("user", user);
    attributes.and_then(|attributes| attributes.with("tenant", tenant)).expect("attributes")
}
