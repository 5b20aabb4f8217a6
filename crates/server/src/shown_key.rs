//! How keys are shown to operators: as they are, as digests, or not at all. Secrets are always digests.

use crate::line_writer::shortened;
use serde::{Serialize, Serializer};
use smallvec::SmallVec;
use std::borrow::Cow;
#[cfg(test)]
use std::collections::BTreeMap;
use tidegate::{Attributes, Policy, Secret};
use tidegate_policy::{Identity, KeyValues};

/// The attributes of a key, each with its value.
pub(crate) type KeyPairs<'k> = SmallVec<[(&'k str, Cow<'k, str>); 4]>;

/// The key under which a rule or a descriptor counted a request.
pub(crate) struct RequestKey<'k> {
    pub(crate) pairs: KeyPairs<'k>,
    /// Knows which attributes are secrets. `None` if a client named the key: it is not an attribute, so it is no secret.
    identity: Option<&'k Identity>,
}

/// How keys are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyForm {
    /// Keys are shown as they are, except for secrets.
    Clear,
    /// Each value as its digest under the secret of the deployment, so that equal values can be recognized.
    Hashed,
    /// Keys are not shown at all.
    Omitted,
}

/// A key as operators see it: an object with the names and values of its attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(with = "BTreeMap<String, String>", inline))]
pub(crate) struct ShownKey(pub(crate) Vec<(String, String)>);

/// Attributes of a key that are shown: as many as the key of a rule may have. Descriptors of gRPC calls may have more.
const MOST_SHOWN: usize = 8;
/// Characters of a name or value that are shown.
const LONGEST_VALUE: usize = 128;

// === impl RequestKey ===

impl<'k> RequestKey<'k> {
    /// The key of a request with these attributes under a rule.
    pub(crate) fn of_rule(policy: &'k Policy, rule: usize, attributes: &'k Attributes<'_>) -> Self {
        let identity = policy.identity();
        let rule = policy.rules().get(rule);
        let values = rule.and_then(|rule| rule.key().of(attributes, identity.ipv6_prefix()));
        let pairs = values.iter().flat_map(KeyValues::pairs);
        let pairs = pairs.map(|(name, value)| (*name, Cow::Owned(value.to_string()))).collect();
        Self { pairs, identity: Some(identity) }
    }

    /// The entries of a descriptor.
    pub(crate) fn of_entries(policy: &'k Policy, entries: &'k [(&str, Cow<'_, str>)]) -> Self {
        let pairs = entries.iter().map(|(name, value)| (*name, Cow::Borrowed(&**value)));
        Self { pairs: pairs.collect(), identity: Some(policy.identity()) }
    }

    /// A key that a client named.
    pub(crate) fn named(key: &'k [u8]) -> Self {
        let pairs = [("key", String::from_utf8_lossy(key))].into_iter().collect();
        Self { pairs, identity: None }
    }

    /// The attributes with digests in place of secrets.
    pub(crate) fn concealed(
        &self,
        secret: &Secret,
    ) -> impl Iterator<Item = (&'k str, Cow<'_, str>)> {
        let digest = |text: &str| secret.digest(text);
        self.pairs.iter().map(move |(name, value)| match self.identity {
            Some(identity) => (*name, identity.shown(name, value, &digest)),
            None => (*name, Cow::Borrowed(&**value)),
        })
    }

    /// The key as operators see it.
    pub(crate) fn shown(&self, form: KeyForm, secret: &Secret) -> Option<ShownKey> {
        if form == KeyForm::Omitted {
            return None;
        }
        let short = |text: &str| shortened(text.as_bytes(), LONGEST_VALUE);
        let pairs = self.pairs.iter().zip(self.concealed(secret)).take(MOST_SHOWN);
        let shown = pairs.map(|((_, value), (name, concealed))| {
            // A secret is a digest already. It is the same wherever keys are shown.
            let is_secret = concealed != *value;
            let value = match form {
                KeyForm::Hashed if !is_secret => secret.digest(value),
                KeyForm::Clear | KeyForm::Hashed | KeyForm::Omitted => short(&concealed),
            };
            (short(name), value)
        });
        Some(ShownKey(shown.collect()))
    }
}

// === impl ShownKey ===

impl Serialize for ShownKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}
