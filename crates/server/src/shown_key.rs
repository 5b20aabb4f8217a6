//! How keys are shown to operators: as they are, as digests, or not at all. Secrets are always digests.

use crate::line_writer::shortened;
use serde::{Serialize, Serializer};
use smallvec::SmallVec;
use std::borrow::Cow;
use tidegate::Secret;

/// The attributes of a key, each with its value.
pub(crate) type KeyPairs<'k> = SmallVec<[(&'k str, Cow<'k, str>); 4]>;

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
pub(crate) struct ShownKey(pub(crate) Vec<(String, String)>);

/// Attributes of a key that are shown: as many as the key of a rule may have. Descriptors of gRPC calls may have more.
const MOST_SHOWN: usize = 8;
/// Characters of a name or value that are shown.
const LONGEST_VALUE: usize = 128;

impl KeyForm {
    /// A key in this form. `conceal` replaces secrets by digests, and leaves other values as they are.
    pub(crate) fn shown<'v>(
        self,
        key: &'v KeyPairs<'_>,
        secret: &Secret,
        conceal: impl Fn(&'v str, &'v str) -> Cow<'v, str>,
    ) -> Option<ShownKey> {
        let short = |text: &str| shortened(text.as_bytes(), LONGEST_VALUE);
        let shown = |(name, value): &'v (&str, Cow<'_, str>)| {
            let concealed = conceal(name, value);
            // A secret is a digest already. It is the same wherever keys are shown.
            let is_secret = *concealed != **value;
            let value = match self {
                Self::Hashed if !is_secret => secret.digest(value),
                Self::Clear | Self::Hashed | Self::Omitted => short(&concealed),
            };
            (short(name), value)
        };
        let pairs = || ShownKey(key.iter().take(MOST_SHOWN).map(shown).collect());
        (self != Self::Omitted).then(pairs)
    }
}

impl Serialize for ShownKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}
