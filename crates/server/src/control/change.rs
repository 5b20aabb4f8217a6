//! The changes that operators make, one at a time, and why one is refused.

use super::document::{ALL, Document, MOST, Override, RuleSwitch, Tier, Uploaded};
use super::note::ChangeNote;
use serde_json::{Map, Value, json};
use tidegate_policy::{Attributes, Changes, Identity, Policy};

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    Policy(Option<Uploaded>),
    Rule(SwitchChange),
    Override(Override),
    Tier(Tier),
    /// Removes the entries that have expired.
    Expired {
        now_ms: u64,
    },
}

/// A change of the switches of a rule: `None` leaves a switch as it is, `Some(None)` removes it, so that the policy decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SwitchChange {
    pub(crate) rule: String,
    pub(crate) enabled: Option<Option<bool>>,
    pub(crate) shadow: Option<Option<bool>>,
    pub(crate) note: ChangeNote,
}

/// Why a change was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RefusedChange {
    #[error(
        "it was made for version {expected}, but the current version is {version}; read it again and repeat the change"
    )]
    Stale { expected: u64, version: u64 },
    #[error("another change is being written; try again")]
    Busy,
    #[error("it could not be written to the data directory; nothing has changed")]
    NotWritten,
    #[error("the store, which keeps changes for all nodes, cannot be reached; nothing has changed")]
    StoreGone,
    #[error("internal error: no change was being written")]
    NothingPending,
    #[error("there are already {MOST} entries of this kind; remove some")]
    TooMany,
    #[error("{0}")]
    Wrong(String),
}

impl Change {
    /// Checks that it is valid under a policy and together with the changes in force. Old changes may wait for their rule to
    /// come back, but a new change must be valid now.
    pub(crate) fn fits(&self, document: &Document, policy: &Policy) -> Result<(), RefusedChange> {
        // Removing an override cannot contradict another change.
        let taken_back = matches!(self, Self::Override(Override { limits: None, .. }));
        let (mut changes, _) =
            if taken_back { Default::default() } else { document.changes(policy) };
        let fits = match self {
            Self::Policy(_) | Self::Expired { .. } => Ok(()),
            Self::Rule(switch) if switch.rule == ALL => Ok(()),
            Self::Rule(switch) => changes
                .set_enabled(policy, &switch.rule, switch.enabled.flatten())
                .map_err(|error| error.to_string()),
            Self::Override(one) => one.apply(&mut changes, policy),
            Self::Tier(one) => one.apply(&mut changes, policy),
        };
        fits.map_err(RefusedChange::Wrong)
    }

    /// What is valid but probably a mistake: limits that count by another algorithm than those of their rule.
    pub(crate) fn warnings(&self, policy: &Policy) -> Vec<String> {
        let mut changes = Changes::default();
        match self {
            Self::Override(one) if one.apply(&mut changes, policy).is_ok() => {
                changes.warnings(policy)
            }
            Self::Override(_)
            | Self::Policy(_)
            | Self::Rule(_)
            | Self::Tier(_)
            | Self::Expired { .. } => vec![],
        }
    }

    /// Checks that requests can have the values that it names. Secret and very long attribute values are counted by their
    /// digests: the plain value would never match, and would be written into files.
    pub(crate) fn can_match(
        &self,
        identity: &Identity,
        digest: &dyn Fn(&str) -> String,
    ) -> Result<(), RefusedChange> {
        let check = |name: &str, value: &str| can_match(name, value, identity, digest);
        match self {
            Self::Policy(_) | Self::Rule(_) | Self::Expired { .. } => Ok(()),
            Self::Override(new) => new.key.iter().try_for_each(|(name, value)| check(name, value)),
            Self::Tier(new) => check(&new.attribute, &new.value),
        }
        .map_err(RefusedChange::Wrong)
    }

    /// Spells the key or value of this change as the document already spells it. An address can be written in several ways, and a second
    /// entry for it could not be removed.
    pub(crate) fn spelled_as_in(mut self, document: &Document, policy: &Policy) -> Self {
        match &mut self {
            Self::Policy(_) | Self::Rule(_) | Self::Expired { .. } => {}
            Self::Override(new) => {
                if let Some(known) = document.overrides.iter().find(|one| one.is(new, policy)) {
                    new.key.clone_from(&known.key);
                }
            }
            Self::Tier(new) => {
                if let Some(known) = document.tiers.iter().find(|one| one.is(new)) {
                    new.value.clone_from(&known.value);
                }
            }
        }
        self
    }

    /// Its kind, for the audit log.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Policy(_) => "policy",
            Self::Rule(_) => "rule",
            Self::Override(_) => "override",
            Self::Tier(_) => "tier",
            Self::Expired { .. } => "expired",
        }
    }

    /// Notes which operator made this change.
    pub(crate) fn made_by(mut self, who: &str) -> Self {
        if let Some(note) = self.note_mut() {
            note.by = Some(who.to_owned());
        }
        self
    }

    /// Why the operator makes it.
    pub(crate) fn reason(&self) -> Option<&str> {
        let note = match self {
            Self::Rule(one) => &one.note,
            Self::Override(one) => &one.note,
            Self::Tier(one) => &one.note,
            Self::Policy(_) | Self::Expired { .. } => return None,
        };
        note.reason.as_deref()
    }

    fn note_mut(&mut self) -> Option<&mut ChangeNote> {
        match self {
            Self::Rule(one) => Some(&mut one.note),
            Self::Override(one) => Some(&mut one.note),
            Self::Tier(one) => Some(&mut one.note),
            Self::Policy(_) | Self::Expired { .. } => None,
        }
    }
}

/// Addresses, methods and paths may be written in several ways, and are checked elsewhere.
fn can_match(
    name: &str,
    value: &str,
    identity: &Identity,
    digest: &dyn Fn(&str) -> String,
) -> Result<(), String> {
    if ["ip", "method", "path"].contains(&name) {
        return Ok(());
    }
    let request = Attributes::new().with(name.to_owned(), value.to_owned());
    let request = request.map_err(|error| error.to_string())?;
    if request.get(name).is_none() {
        return Err(format!("`{name}` is empty; no request has an empty value"));
    }
    if identity.reveals(&request) {
        let digest = digest(value);
        return Err(format!(
            "requests are known by the digest of `{name}`; write `{digest}` instead"
        ));
    }
    Ok(())
}

impl SwitchChange {
    /// The entry with the switches that it sets, if it sets one.
    pub(super) fn entry(&self) -> Option<RuleSwitch> {
        let (enabled, shadow) = (self.enabled.flatten(), self.shadow.flatten());
        let entry =
            RuleSwitch { rule: self.rule.clone(), enabled, shadow, note: self.note.clone() };
        Some(entry).filter(|_| enabled.is_some() || shadow.is_some())
    }

    /// The change for the audit log.
    pub(crate) fn details(&self) -> Value {
        let mut details = Map::from_iter([("rule".to_owned(), json!(self.rule))]);
        let switches = [("enabled", self.enabled), ("shadow", self.shadow)];
        for (name, switch) in switches.into_iter().filter_map(|(name, to)| Some((name, to?))) {
            details.insert(name.to_owned(), json!(switch));
        }
        if let Some(end) = self.note.expires_at_ms {
            details.insert("expires_at_ms".to_owned(), json!(end));
        }
        details.into()
    }
}
