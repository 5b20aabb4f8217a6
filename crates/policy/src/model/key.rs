//! Keys: the attributes of a request that select the counter (bucket) it draws from.
//!
//! ```text
//!   [user]       a counter for each user            [user, ip]   one for each user at each address
//!   [user|ip]    the user's, else the address's     [ip/48]      one for each IPv6 network of 48 bits
//!   []           one counter for all requests
//! ```

use crate::document::shown;
use crate::model::address::{AddressKey, AddressText};
use crate::model::attributes::{Attributes, RequestReading, is_attribute};
use crate::model::path::Case;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::fmt;
use std::sync::OnceLock;

/// The attributes that select the counter.
///
/// ```
/// use tidegate_policy::{Attributes, Key};
/// let key = Key::parse(["user|ip"]).unwrap();
/// let anonymous = Attributes::new().with("ip", "2001:db8::7")?;
/// let values = key.of(&anonymous, 64).unwrap();
/// assert_eq!(values.pairs(), [("ip", "2001:db8::/64".into())]);
/// # Ok::<(), tidegate_policy::AttributeError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Key {
    parts: Vec<KeyPart>,
    /// Whether paths are counted in lower case.
    case: Case,
    /// See [`KeyValues::tag`]: one for each combination of alternatives, if there are few.
    tags: Vec<OnceLock<u128>>,
}

/// The tags are derived values, so they are not compared.
impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        (&self.parts, self.case) == (&other.parts, other.case)
    }
}

impl Eq for Key {}

/// The attributes of a request that a key names, each with its value.
///
/// ```
/// use tidegate_policy::{Attributes, Key};
/// let request = Attributes::new().with("user", "alice")?;
/// let values = Key::parse(["user"]).unwrap().of(&request, 64).unwrap().to_string();
/// assert_eq!(values, "user=alice");
/// # Ok::<(), tidegate_policy::AttributeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct KeyValues<'k> {
    pairs: SmallVec<[(&'k str, KeyValue<'k>); 2]>,
    tag: Option<&'k OnceLock<u128>>,
}

/// A key of which only some attributes are known.
pub(crate) struct PartialKey<'k> {
    /// The values that are known.
    pub(crate) known: Vec<(&'k str, KeyValue<'k>)>,
    /// The parts for which no value is known.
    pub(crate) lacking: Vec<String>,
    /// Alternatives of which no value is known, and which a request may have: then another counter is meant.
    pub(crate) preferred: Vec<&'k str>,
}

/// The value of an attribute, as text.
///
/// ```
/// let value = tidegate_policy::KeyValue::from("alice");
/// assert_eq!(&*value, "alice");
/// ```
#[derive(Clone, Debug)]
pub struct KeyValue<'k>(Text<'k>);

/// The text of an address is stored inline, without an allocation.
#[derive(Clone, Debug)]
enum Text<'k> {
    Given(Cow<'k, str>),
    Address(AddressText),
}

/// Why a key was refused.
///
/// ```
/// use tidegate_policy::{Key, KeyError};
/// assert_eq!(Key::parse(["user", "user"]), Err(KeyError::Twice("user".to_owned())));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A name that is not valid.
    #[error("`{0}` is not a valid attribute name; use 1 to 64 of `A-Z a-z 0-9 _ - .`")]
    Name(String),
    /// An attribute that is listed twice.
    #[error("`{0}` is listed twice in the key")]
    Twice(String),
    /// A prefix on another attribute than `ip`, or an invalid length.
    #[error("`{0}` is not a valid prefix; write `ip/1` to `ip/128`")]
    Prefix(String),
    /// `cost` is not an attribute.
    #[error(
        "`cost` cannot be part of a key: it is the amount that a request takes, not an attribute"
    )]
    Cost,
    /// More than eight parts.
    #[error("a key has at most {MOST_PARTS} attributes")]
    TooLong,
}

/// One part of a key: the first of these alternatives that the request has.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeyPart {
    alternatives: Vec<Alternative>,
}

/// An attribute of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Alternative {
    name: Box<str>,
    /// For `ip`: the length of the prefix, if the key gives one.
    prefix: Option<u8>,
}

/// Parts of a key, and alternatives of a part. No real policy needs more.
const MOST_PARTS: usize = 8;
/// Combinations of alternatives up to which each has a cached tag.
const MOST_TAGS: usize = 16;

// === impl Key ===

impl Key {
    /// Parses a key: a list of parts, each a name or several alternatives.
    ///
    /// ```
    /// use tidegate_policy::Key;
    /// assert_eq!(Key::parse(["user|ip", "tenant"]).unwrap().to_string(), "[user|ip, tenant]");
    /// ```
    pub fn parse<'t>(parts: impl IntoIterator<Item = &'t str>) -> Result<Self, KeyError> {
        let part = |part: &str| {
            Ok(KeyPart {
                alternatives: part.split('|').map(alternative).collect::<Result<_, _>>()?,
            })
        };
        let parts: Vec<KeyPart> = parts.into_iter().map(part).collect::<Result<_, KeyError>>()?;
        if parts.len() > MOST_PARTS || parts.iter().any(|part| part.alternatives.len() > MOST_PARTS)
        {
            return Err(KeyError::TooLong);
        }
        let ways = parts.iter().map(|part| part.alternatives.len()).try_fold(1, usize::checked_mul);
        let ways = ways.filter(|ways| *ways <= MOST_TAGS).unwrap_or(0);
        let tags = (0..ways).map(|_| OnceLock::new()).collect();
        let key = Self { parts, case: Case::Sensitive, tags };
        let mut names: Vec<&str> = key.names().collect();
        names.sort_unstable();
        let twice = names.iter().zip(names.iter().skip(1)).find(|(a, b)| a == b);
        match twice {
            Some((name, _)) => Err(KeyError::Twice((*name).to_owned())),
            None => Ok(key),
        }
    }

    /// This key with case-sensitive or case-insensitive paths.
    pub(crate) fn with_case(self, case: Case) -> Self {
        Self { case, ..self }
    }

    pub(crate) const fn case(&self) -> Case {
        self.case
    }

    /// The values of the key for a request, or `None` if the request lacks an attribute. The path is the canonical reading.
    ///
    /// ```
    /// use tidegate_policy::{Attributes, Key};
    /// assert_eq!(Key::parse(["user"]).unwrap().of(&Attributes::new(), 64), None);
    /// assert!(Key::parse([]).unwrap().of(&Attributes::new(), 64).is_some()); // one counter for all
    /// ```
    #[must_use]
    pub fn of<'k>(&'k self, request: &'k Attributes<'_>, ipv6_prefix: u8) -> Option<KeyValues<'k>> {
        self.of_reading(request.canonical(), ipv6_prefix)
    }

    /// The values of the key for one reading of a request, or `None` if the request lacks an attribute.
    pub(crate) fn of_reading<'k>(
        &'k self,
        reading: RequestReading<'k>,
        ipv6_prefix: u8,
    ) -> Option<KeyValues<'k>> {
        let mut pairs = SmallVec::new();
        let mut way = 0usize;
        for part in &self.parts {
            let value = |(at, alternative): (usize, &'k Alternative)| {
                Some((at, &*alternative.name, alternative.of(reading, self.case, ipv6_prefix)?))
            };
            let (at, name, value) = part.alternatives.iter().enumerate().find_map(value)?;
            way = way.saturating_mul(part.alternatives.len()).saturating_add(at);
            pairs.push((name, value));
        }
        Some(KeyValues { pairs, tag: self.tags.get(way) })
    }

    /// What is known of the key for a request of which only some attributes are known.
    pub(crate) fn partial<'k>(
        &'k self,
        request: &'k Attributes<'_>,
        ipv6_prefix: u8,
    ) -> PartialKey<'k> {
        let mut found = PartialKey { known: vec![], lacking: vec![], preferred: vec![] };
        for part in &self.parts {
            let mut preferred = vec![];
            let known = part.alternatives.iter().find_map(|alternative| {
                let value = alternative.of(request.canonical(), self.case, ipv6_prefix);
                if value.is_none() {
                    preferred.push(&*alternative.name);
                }
                Some((&*alternative.name, value?))
            });
            match known {
                Some(known) => {
                    found.known.push(known);
                    found.preferred.extend(preferred);
                }
                None => found.lacking.push(part.to_string()),
            }
        }
        found
    }

    /// Every attribute that the key names.
    ///
    /// ```
    /// let key = tidegate_policy::Key::parse(["user|ip", "tenant"]).unwrap();
    /// assert_eq!(key.names().collect::<Vec<_>>(), ["user", "ip", "tenant"]);
    /// ```
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts
            .iter()
            .flat_map(|part| part.alternatives.iter().map(|alternative| &*alternative.name))
    }

    /// The alternatives of each part.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Vec<&str>> {
        self.parts
            .iter()
            .map(|part| part.alternatives.iter().map(|alternative| &*alternative.name).collect())
    }

    /// The first part for which a request has no value.
    pub(crate) fn missing(&self, request: &Attributes<'_>) -> Option<String> {
        let absent = |alternative: &Alternative| {
            alternative.of(request.canonical(), self.case, 64).is_none()
        };
        let part = self.parts.iter().find(|part| part.alternatives.iter().all(absent))?;
        Some(part.to_string())
    }

    /// The length of the IPv6 prefix, if the key gives one.
    pub(crate) fn ipv6_prefix(&self) -> Option<u8> {
        let mut alternatives = self.parts.iter().flat_map(|part| &part.alternatives);
        alternatives
            .find(|alternative| &*alternative.name == "ip")
            .and_then(|alternative| alternative.prefix)
    }
}

fn alternative(text: &str) -> Result<Alternative, KeyError> {
    let text = text.trim();
    let (name, prefix) = match text.split_once('/') {
        None => (text, None),
        Some(("ip", bits)) => {
            let digits = crate::model::address::is_plain_number(bits);
            let bits = bits.parse().ok().filter(|bits| digits && (1..=128).contains(bits));
            ("ip", Some(bits.ok_or_else(|| KeyError::Prefix(shown(text)))?))
        }
        Some(_) => return Err(KeyError::Prefix(shown(text))),
    };
    if name == "cost" {
        return Err(KeyError::Cost);
    }
    if !is_attribute(name) {
        return Err(KeyError::Name(shown(name)));
    }
    Ok(Alternative { name: name.into(), prefix })
}

impl Alternative {
    fn of<'k>(
        &'k self,
        reading: RequestReading<'k>,
        case: Case,
        ipv6_prefix: u8,
    ) -> Option<KeyValue<'k>> {
        Some(KeyValue(match &*self.name {
            "ip" => {
                let prefix = self.prefix.unwrap_or(ipv6_prefix);
                let address = reading.request().address()?;
                Text::Address(AddressKey::new(address, prefix).text())
            }
            name => Text::Given(reading.get(name, case)?),
        }))
    }
}

// === impl KeyValues ===

impl<'k> KeyValues<'k> {
    /// Names and values, in the order of the key.
    ///
    /// ```
    /// use tidegate_policy::{Attributes, Key};
    /// let key = Key::parse([]).unwrap();
    /// assert_eq!(key.of(&Attributes::new(), 64).unwrap().pairs(), []);
    /// ```
    #[must_use]
    pub fn pairs(&self) -> &[(&'k str, KeyValue<'k>)] {
        &self.pairs
    }

    /// Caches a number that the caller derives from the names alone, such as a hash. It is derived once for each combination
    /// of alternatives, unless the key has too many of them.
    ///
    /// ```
    /// use tidegate_policy::{Attributes, Key};
    /// let (key, request) = (Key::parse([]).unwrap(), Attributes::new());
    /// assert_eq!(key.of(&request, 64).unwrap().tag(|| 7), 7);
    /// assert_eq!(key.of(&request, 64).unwrap().tag(|| 8), 7); // cached
    /// ```
    #[must_use]
    pub fn tag(&self, derive: impl FnOnce() -> u128) -> u128 {
        match self.tag {
            Some(tag) => *tag.get_or_init(derive),
            None => derive(),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| &**value)
    }
}

impl PartialEq for KeyValues<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.pairs == other.pairs
    }
}

impl Eq for KeyValues<'_> {}

// === impl KeyValue ===

impl std::ops::Deref for KeyValue<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match &self.0 {
            Text::Given(text) => text,
            Text::Address(text) => text,
        }
    }
}

impl AsRef<str> for KeyValue<'_> {
    fn as_ref(&self) -> &str {
        self
    }
}

impl<'k> From<&'k str> for KeyValue<'k> {
    fn from(text: &'k str) -> Self {
        Self(Text::Given(text.into()))
    }
}

impl PartialEq for KeyValue<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for KeyValue<'_> {}

// === as text ===

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.parts.iter().map(ToString::to_string).collect();
        write!(f, "[{}]", parts.join(", "))
    }
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let alternatives: Vec<String> = self.alternatives.iter().map(ToString::to_string).collect();
        f.write_str(&alternatives.join("|"))
    }
}

impl fmt::Display for Alternative {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix {
            None => f.write_str(&self.name),
            Some(prefix) => write!(f, "{}/{prefix}", self.name),
        }
    }
}

impl fmt::Display for KeyValues<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pairs.is_empty() {
            return f.write_str("(one counter for all)");
        }
        let pairs: Vec<String> =
            self.pairs.iter().map(|(name, value)| format!("{name}={}", one_line(value))).collect();
        f.write_str(&pairs.join(" "))
    }
}

/// A value for display: on one line, at most 128 characters.
fn one_line(value: &str) -> String {
    let mut text: String = value.chars().take(128).flat_map(char::escape_debug).collect();
    if value.chars().nth(128).is_some() {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(key: &[&str], request: &Attributes<'_>) -> Option<String> {
        let key = Key::parse(key.iter().copied()).unwrap();
        key.of(request, 64).map(|values| values.to_string())
    }

    #[test]
    fn pairs_alternatives_prefixes_and_nothing() {
        let both = Attributes::new().with("ip", "2001:db8::7").unwrap().with("user", "a").unwrap();
        let address = Attributes::new().with("ip", "2001:db8::7").unwrap();
        assert_eq!(values(&["user", "ip"], &both).unwrap(), "user=a ip=2001:db8::/64");
        assert_eq!(values(&["user", "ip"], &address), None);
        assert_eq!(values(&["user|ip"], &both).unwrap(), "user=a");
        assert_eq!(values(&["user|ip"], &address).unwrap(), "ip=2001:db8::/64");
        assert_eq!(values(&["ip/48"], &both).unwrap(), "ip=2001:db8::/48");
        assert_eq!(values(&[], &both).unwrap(), "(one counter for all)");
        assert_eq!(values(&["user|device", "ip"], &address), None);
    }

    /// Requests with the same alternatives share a tag, and others do not.
    #[test]
    fn a_tag_belongs_to_the_names() {
        let key = Key::parse(["user|device|ip", "tenant|shard"]).unwrap();
        let many = Key::parse(["a|b|c", "d|e|f", "g|h"]).unwrap();
        assert!(many.tags.is_empty());
        let mut tags = std::collections::HashMap::new();
        for (first, second) in [
            ("user", "tenant"),
            ("user", "shard"),
            ("device", "tenant"),
            ("device", "shard"),
            ("ip", "tenant"),
            ("ip", "shard"),
        ] {
            for value in ["1.1.1.1", "1.1.1.2"] {
                let request =
                    Attributes::new().with(first, value).unwrap().with(second, value).unwrap();
                let next = tags.len();
                let tag = key.of(&request, 64).unwrap().tag(|| u128::try_from(next).unwrap());
                tags.insert((first, second), tag);
                assert_eq!(tags.values().filter(|other| **other == tag).count(), 1);
            }
        }
        assert_eq!(tags.len(), 6);
    }

    #[test]
    fn invalid_keys_are_refused() {
        for (key, error) in [
            (vec!["user", "user"], KeyError::Twice("user".to_owned())),
            (vec!["ip", "user|ip"], KeyError::Twice("ip".to_owned())),
            (vec!["user/64"], KeyError::Prefix("user/64".to_owned())),
            (vec!["ip/0"], KeyError::Prefix("ip/0".to_owned())),
            (vec!["ip/129"], KeyError::Prefix("ip/129".to_owned())),
            (vec!["ip/+64"], KeyError::Prefix("ip/+64".to_owned())),
            (vec!["ip/x"], KeyError::Prefix("ip/x".to_owned())),
            (vec!["cost"], KeyError::Cost),
            (vec![""], KeyError::Name(String::new())),
            (vec!["user|"], KeyError::Name(String::new())),
            (vec!["us er"], KeyError::Name("us er".to_owned())),
            (vec!["a", "b", "c", "d", "e", "f", "g", "h", "i"], KeyError::TooLong),
        ] {
            assert_eq!(Key::parse(key.iter().copied()), Err(error), "{key:?}");
        }
    }
}
