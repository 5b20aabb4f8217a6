//! Overrides: allowances for single customers, in place of the rule's.
//!
//! ```text
//!   rule with key [user, ip]        { user: alice, ip: 203.0.113.7 }   looked up first: it names more attributes
//!                                   { user: alice }  { user: bob }     looked up next
//! ```
//!
//! An override names some of the attributes of the key. Overrides that name more attributes take precedence. Overrides that
//! name equally many must name the same ones, so that never two of them apply to one request.

use crate::document::shown;
use crate::model::address::{AddressKey, parse_address};
use crate::model::allowance::Allowance;
use crate::model::key::{Key, KeyValues};
use crate::model::path::NormalPath;
use std::net::IpAddr;
use tidegate_core::Timestamp;

/// The overrides of a rule.
///
/// ```
/// use tidegate_policy::{Allowance, Attributes, Key, Overrides};
/// let key = Key::parse(["user"]).unwrap();
/// let mut overrides = Overrides::default();
/// overrides.insert(&key, 64, &[("user", "alice")], Allowance::Unlimited).unwrap();
/// let alice = Attributes::new().with("user", "alice")?;
/// assert_eq!(overrides.find(&key.of(&alice, 64).unwrap()), Some(&Allowance::Unlimited));
/// # Ok::<(), tidegate_policy::AttributeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Overrides that name more attributes come first.
    levels: Vec<Level>,
}

/// Overrides that name the same attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Level {
    names: Vec<Box<str>>,
    /// Sorted by values.
    entries: Vec<(Vec<String>, Allowance)>,
}

/// Why an override was refused.
///
/// ```
/// use tidegate_policy::{Allowance, Key, OverrideError, Overrides};
/// let key = Key::parse(["user"]).unwrap();
/// let error = Overrides::default().insert(&key, 64, &[("ip", "::1")], Allowance::Unlimited);
/// assert!(matches!(error, Err(OverrideError::NotInKey(..))));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverrideError {
    /// It names an attribute that is not in the key of the rule.
    #[error("`{0}` is not part of the rule's key {1}, so this override would never apply")]
    NotInKey(String, String),
    /// It names two alternatives of one part of the key.
    #[error("`{0}` and `{1}` are alternatives in the key {2}; a request is counted by one of them")]
    Alternatives(String, String, String),
    /// Another override names equally many, but different attributes.
    #[error(
        "another override names [{0}]; both could apply to one request, so name the same attributes or more"
    )]
    Tie(String),
    /// It names no attribute.
    #[error(
        "an override needs at least one attribute in `key`; to change all limits, change the rule"
    )]
    Nobody,
    /// A value that no request can have.
    #[error("`{value}` is not a valid value of `{name}`: {reason}")]
    Value {
        /// The attribute.
        name: String,
        /// The value.
        value: String,
        /// Why it is not valid.
        reason: String,
    },
}

// === impl Overrides ===

impl Overrides {
    /// Adds an override for the requests with these values of the key. Returns the override that it replaces.
    ///
    /// ```
    /// use tidegate_policy::{Allowance, Key, Overrides};
    /// let (key, mut overrides) = (Key::parse(["user"]).unwrap(), Overrides::default());
    /// let mut insert = || overrides.insert(&key, 64, &[("user", "a")], Allowance::Unlimited);
    /// assert_eq!(insert(), Ok(None));
    /// assert_eq!(insert(), Ok(Some(Allowance::Unlimited)));
    /// ```
    pub fn insert(
        &mut self,
        key: &Key,
        ipv6_prefix: u8,
        who: &[(&str, &str)],
        allowance: Allowance,
    ) -> Result<Option<Allowance>, OverrideError> {
        let (names, values) = checked(key, ipv6_prefix, who)?;
        let level = self.level(key, &names)?;
        Ok(match level.position(&values) {
            Ok(at) => level.entries.get_mut(at).map(|(_, old)| std::mem::replace(old, allowance)),
            Err(at) => {
                level.entries.insert(at, (values, allowance));
                None
            }
        })
    }

    /// Removes an override. Returns whether it existed.
    ///
    /// ```
    /// use tidegate_policy::{Key, Overrides};
    /// let key = Key::parse(["user"]).unwrap();
    /// assert_eq!(Overrides::default().remove(&key, 64, &[("user", "alice")]), Ok(false));
    /// ```
    pub fn remove(
        &mut self,
        key: &Key,
        ipv6_prefix: u8,
        who: &[(&str, &str)],
    ) -> Result<bool, OverrideError> {
        let (names, values) = checked(key, ipv6_prefix, who)?;
        let level = self.level(key, &names)?;
        let removed = level.position(&values).map(|at| level.entries.remove(at)).is_ok();
        self.levels.retain(|level| !level.entries.is_empty());
        Ok(removed)
    }

    /// The override for these values, if there is one.
    ///
    /// ```
    /// use tidegate_policy::{Attributes, Key, Overrides};
    /// let key = Key::parse([]).unwrap();
    /// let request = Attributes::new();
    /// assert_eq!(Overrides::default().find(&key.of(&request, 64).unwrap()), None);
    /// ```
    #[must_use]
    pub fn find(&self, values: &KeyValues<'_>) -> Option<&Allowance> {
        self.levels.iter().find_map(|level| level.find(values))
    }

    /// The attributes that the override for these values names, if there is one.
    pub(crate) fn key_of(&self, values: &KeyValues<'_>) -> Option<Vec<(&str, &str)>> {
        let level = self.levels.iter().find(|level| level.find(values).is_some())?;
        let names = level.names.iter().map(|name| &**name);
        let known: Vec<&str> = names.clone().map(|name| values.get(name)).collect::<Option<_>>()?;
        let (found, _) = level.entries.iter().find(|(named, _)| *named == known)?;
        Some(names.zip(found.iter().map(String::as_str)).collect())
    }

    /// Whether there are no overrides.
    ///
    /// ```
    /// use tidegate_policy::{Allowance, Key, Overrides};
    /// let (key, mut overrides) = (Key::parse(["user"]).unwrap(), Overrides::default());
    /// assert!(overrides.is_empty());
    /// overrides.insert(&key, 64, &[("user", "alice")], Allowance::Unlimited).unwrap();
    /// assert!(!overrides.is_empty());
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.levels.is_empty()
    }

    pub(crate) fn allowances(&self) -> impl Iterator<Item = &Allowance> {
        self.levels.iter().flat_map(|level| level.entries.iter().map(|(_, allowance)| allowance))
    }

    /// Recomputes the boundaries of calendar windows.
    pub fn renew(&mut self, now: Timestamp) {
        for level in &mut self.levels {
            level.entries.iter_mut().for_each(|(_, allowance)| allowance.renew(now));
        }
    }

    /// The attributes that overrides name.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.levels.iter().flat_map(|level| &level.names).map(|name| &**name)
    }

    /// The level for these names, created if needed.
    fn level(&mut self, key: &Key, names: &[Box<str>]) -> Result<&mut Level, OverrideError> {
        let equal = |level: &&Level| level.names.len() == names.len() && level.names != names;
        let mut equal = self.levels.iter().filter(equal);
        let tie = equal.find(|level| !are_exclusive(key, &level.names, names));
        if let Some(tie) = tie {
            return Err(OverrideError::Tie(tie.names.join(", ")));
        }
        let at = self.levels.iter().position(|level| level.names == names).unwrap_or_else(|| {
            let at = self.levels.partition_point(|level| level.names.len() > names.len());
            self.levels.insert(at, Level { names: names.into(), entries: Vec::new() });
            at
        });
        self.levels.get_mut(at).ok_or(OverrideError::Nobody)
    }
}

impl Level {
    fn find(&self, values: &KeyValues<'_>) -> Option<&Allowance> {
        let wanted: Vec<&str> =
            self.names.iter().map(|name| values.get(name)).collect::<Option<_>>()?;
        let at = self.entries.binary_search_by(|(known, _)| {
            known.iter().map(String::as_str).cmp(wanted.iter().copied())
        });
        at.ok().and_then(|at| self.entries.get(at)).map(|(_, allowance)| allowance)
    }

    fn position(&self, values: &[String]) -> Result<usize, usize> {
        self.entries.binary_search_by(|(known, _)| known.as_slice().cmp(values))
    }
}

/// Whether no request can have both lists of names, because they contain different alternatives of one part of the key.
fn are_exclusive(key: &Key, mine: &[Box<str>], theirs: &[Box<str>]) -> bool {
    let in_part = |names: &[Box<str>], part: &[&str]| {
        names.iter().map(|name| &**name).find(|name| part.contains(name)).map(str::to_owned)
    };
    key.parts().any(|part| match (in_part(mine, &part), in_part(theirs, &part)) {
        (Some(mine), Some(theirs)) => mine != theirs,
        (None, _) | (_, None) => false,
    })
}

type NamesAndValues = (Vec<Box<str>>, Vec<String>);

/// Names and values, sorted by name, with the values in the form that requests have.
fn checked(
    key: &Key,
    ipv6_prefix: u8,
    who: &[(&str, &str)],
) -> Result<NamesAndValues, OverrideError> {
    if who.is_empty() {
        return Err(OverrideError::Nobody);
    }
    let mut pairs: Vec<(&str, &str)> = who.to_vec();
    pairs.sort_unstable();
    check_names(key, &pairs)?;
    let prefix = key.ipv6_prefix().unwrap_or(ipv6_prefix);
    let value = |(name, value): &(&str, &str)| {
        let value = spelled(name, value, prefix)?;
        Ok(if *name == "path" { key.case().fold(&value).into_owned() } else { value })
    };
    let values = pairs.iter().map(value).collect::<Result<_, _>>()?;
    Ok((pairs.iter().map(|(name, _)| (*name).into()).collect(), values))
}

/// Every name must be in the key, and only one alternative of each part.
fn check_names(key: &Key, pairs: &[(&str, &str)]) -> Result<(), OverrideError> {
    for (name, _) in pairs {
        if !key.names().any(|known| known == *name) {
            return Err(OverrideError::NotInKey(shown(name), key.to_string()));
        }
    }
    for part in key.parts() {
        let mut named = pairs.iter().filter(|(name, _)| part.contains(name));
        if let (Some((a, _)), Some((b, _))) = (named.next(), named.next()) {
            let [a, b] = [a, b].map(|name| (*name).to_owned());
            return Err(OverrideError::Alternatives(a, b, key.to_string()));
        }
    }
    Ok(())
}

/// A value in the form that requests have.
pub(crate) fn spelled(name: &str, value: &str, ipv6_prefix: u8) -> Result<String, OverrideError> {
    let refused = |reason: &str| OverrideError::Value {
        name: name.to_owned(),
        value: shown(value),
        reason: reason.to_owned(),
    };
    match name {
        _ if value.is_empty() => Err(refused("it is empty")),
        "ip" => spelled_address(value, ipv6_prefix).ok_or_else(|| {
            refused(&format!("write an address, or an IPv6 network of {ipv6_prefix} bits"))
        }),
        "path" => NormalPath::new(value)
            .map(|path| path.as_str().to_owned())
            .map_err(|error| refused(&error.to_string())),
        "method" => Ok(value.to_ascii_uppercase()),
        // The error appears in logs and in the admin API, so it does not repeat the value.
        "api_key" if !crate::model::identity::is_digest(value) => Err(OverrideError::Value {
            name: name.to_owned(),
            value: "…".to_owned(),
            reason: "write its digest (`#…`), as `policy explain` shows it, not the secret"
                .to_owned(),
        }),
        _ => Ok(value.to_owned()),
    }
}

/// An address, or an IPv6 network with the prefix of the key, in the form that requests have.
fn spelled_address(value: &str, ipv6_prefix: u8) -> Option<String> {
    let network = value.strip_suffix(&format!("/{ipv6_prefix}"));
    let network = network.and_then(parse_address).filter(IpAddr::is_ipv6);
    let address = network.or_else(|| parse_address(value))?;
    Some(AddressKey::new(address, ipv6_prefix).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::allowance::RuleLimit;
    use crate::model::attributes::Attributes;

    fn amount(n: u64) -> Allowance {
        Allowance::Limits(vec![RuleLimit::from_rate(&format!("{n}/s")).unwrap()])
    }

    #[test]
    fn more_attributes_take_precedence_and_ties_are_refused() {
        let key = Key::parse(["user", "ip"]).unwrap();
        let mut overrides = Overrides::default();
        overrides.insert(&key, 64, &[("user", "alice")], amount(1)).unwrap();
        let pair = [("ip", "203.0.113.7"), ("user", "alice")];
        overrides.insert(&key, 64, &pair, amount(2)).unwrap();
        let tie = overrides.insert(&key, 64, &[("ip", "203.0.113.7")], amount(3));
        assert_eq!(tie, Err(OverrideError::Tie("user".to_owned())));
        let found = |user: &str, ip: &str| {
            let request = Attributes::new().with("user", user).unwrap().with("ip", ip).unwrap();
            overrides.find(&key.of(&request, 64).unwrap()).map(|a| a.limits()[0].limit().amount())
        };
        assert_eq!(found("alice", "203.0.113.7"), Some(2));
        assert_eq!(found("alice", "203.0.113.8"), Some(1));
        assert_eq!(found("bob", "203.0.113.7"), None);
    }

    #[test]
    fn an_override_that_can_never_apply_is_refused() {
        let either = Key::parse(["user|ip"]).unwrap();
        let mut overrides = Overrides::default();
        let both = [("user", "a"), ("ip", "::1")];
        assert!(matches!(
            overrides.insert(&either, 64, &both, amount(1)),
            Err(OverrideError::Alternatives(..))
        ));
        assert_eq!(overrides.insert(&either, 64, &[], amount(1)), Err(OverrideError::Nobody));
        for value in ["", "here", "10.0.0.0/8", "10.0.0.0/64", "2001:db8::/48"] {
            let refused = overrides.insert(&either, 64, &[("ip", value)], amount(1));
            assert!(matches!(refused, Err(OverrideError::Value { .. })), "{value}");
        }
        assert!(overrides.insert(&either, 64, &[("ip", "2001:db8::/64")], amount(1)).is_ok());
        let request = Attributes::new().with("ip", "2001:db8::9").unwrap();
        assert!(overrides.find(&either.of(&request, 64).unwrap()).is_some());
        // Alternatives never both apply, so this is not a tie.
        assert!(overrides.insert(&either, 64, &[("user", "a")], amount(1)).is_ok());
    }
}
