//! Who is counted: which attributes of a request name the bucket it draws from.
//!
//! ```text
//!   [user]       a bucket for each user             [user, ip]   one for each user at each address
//!   [user|ip]    the user's, else the address's     [ip/48]      one for each IPv6 network of 48 bits
//!   []           one bucket for all
//! ```

use crate::address::{AddressKey, AddressText};
use crate::attributes::{Attributes, Seen, shown};
use crate::pattern::Case;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::fmt;
use std::sync::OnceLock;

/// Which attributes name the bucket.
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
    parts: Vec<Part>,
    /// How a path counts.
    case: Case,
    /// See [`KeyValues::tag`]: one for each way to choose among alternatives, if those are few.
    tags: Vec<OnceLock<u128>>,
}

/// What was derived from its parts makes no difference.
impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        (&self.parts, self.case) == (&other.parts, other.case)
    }
}

impl Eq for Key {}

/// The attributes of one request that a key names, each with its value.
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

/// The value of an attribute, as text.
///
/// ```
/// let value = tidegate_policy::KeyValue::from("alice");
/// assert_eq!(&*value, "alice");
/// ```
#[derive(Clone, Debug)]
pub struct KeyValue<'k>(Text<'k>);

/// An address is written here, and needs no memory of its own.
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
    /// A name that cannot be one.
    #[error("`{0}` is no attribute; a name has 1 to 64 of `A-Z a-z 0-9 _ - .`")]
    Name(String),
    /// An attribute that stands in a key twice.
    #[error("`{0}` stands in the key twice")]
    Twice(String),
    /// A prefix on something that is no address, or no length of one.
    #[error("`{0}`: a prefix is `ip/1` to `ip/128`")]
    Prefix(String),
    /// `cost` is no attribute.
    #[error("`cost` is how much a request takes, not who sends it")]
    Cost,
    /// More than eight parts.
    #[error("a key has at most {MOST_PARTS} attributes")]
    TooLong,
}

/// The first of these that is present.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    choices: Vec<Choice>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Choice {
    name: Box<str>,
    /// The prefix that was written, for `ip`.
    prefix: Option<u8>,
}

/// Nobody counts by more things at once; a key is a line, not a record.
const MOST_PARTS: usize = 8;
/// Ways to choose among alternatives of which each has a tag.
const MOST_TAGS: usize = 16;

// === impl Key ===

impl Key {
    /// Reads a key: a list of names, each with its alternatives.
    ///
    /// ```
    /// use tidegate_policy::Key;
    /// assert_eq!(Key::parse(["user|ip", "tenant"]).unwrap().to_string(), "[user|ip, tenant]");
    /// ```
    pub fn parse<'t>(parts: impl IntoIterator<Item = &'t str>) -> Result<Self, KeyError> {
        let part = |part: &str| {
            Ok(Part { choices: part.split('|').map(choice).collect::<Result<_, _>>()? })
        };
        let parts: Vec<Part> = parts.into_iter().map(part).collect::<Result<_, KeyError>>()?;
        if parts.len() > MOST_PARTS || parts.iter().any(|part| part.choices.len() > MOST_PARTS) {
            return Err(KeyError::TooLong);
        }
        let ways = parts.iter().map(|part| part.choices.len()).try_fold(1, usize::checked_mul);
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

    /// `[]`: one bucket for all.
    pub(crate) const fn shared() -> Self {
        Self { parts: Vec::new(), case: Case::Sensitive, tags: Vec::new() }
    }

    /// The same, with or without a difference between capitals and small letters of a path.
    pub(crate) fn with_case(self, case: Case) -> Self {
        Self { case, ..self }
    }

    pub(crate) const fn case(&self) -> Case {
        self.case
    }

    /// Whose bucket a request draws from; `None` when it lacks an attribute that the key names. A path counts in its usual
    /// reading.
    ///
    /// ```
    /// use tidegate_policy::{Attributes, Key};
    /// assert_eq!(Key::parse(["user"]).unwrap().of(&Attributes::new(), 64), None);
    /// assert!(Key::parse([]).unwrap().of(&Attributes::new(), 64).is_some()); // one for all
    /// ```
    #[must_use]
    pub fn of<'k>(&'k self, request: &'k Attributes<'_>, ipv6_prefix: u8) -> Option<KeyValues<'k>> {
        self.of_seen(request.seen(), ipv6_prefix)
    }

    /// The same for a request in one of its readings.
    pub(crate) fn of_seen<'k>(&'k self, seen: Seen<'k>, ipv6_prefix: u8) -> Option<KeyValues<'k>> {
        let mut pairs = SmallVec::new();
        let mut way = 0usize;
        for part in &self.parts {
            let value = |(at, choice): (usize, &'k Choice)| {
                Some((at, &*choice.name, choice.of(seen, self.case, ipv6_prefix)?))
            };
            let (at, name, value) = part.choices.iter().enumerate().find_map(value)?;
            way = way.saturating_mul(part.choices.len()).saturating_add(at);
            pairs.push((name, value));
        }
        Some(KeyValues { pairs, tag: self.tags.get(way) })
    }

    /// Every attribute it names.
    ///
    /// ```
    /// let key = tidegate_policy::Key::parse(["user|ip", "tenant"]).unwrap();
    /// assert_eq!(key.names().collect::<Vec<_>>(), ["user", "ip", "tenant"]);
    /// ```
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().flat_map(|part| part.choices.iter().map(|choice| &*choice.name))
    }

    /// For each part, its alternatives.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Vec<&str>> {
        self.parts.iter().map(|part| part.choices.iter().map(|choice| &*choice.name).collect())
    }

    /// The first attribute for which a request has no value: why it has no key.
    pub(crate) fn missing(&self, request: &Attributes<'_>) -> Option<String> {
        let absent = |choice: &Choice| choice.of(request.seen(), self.case, 64).is_none();
        let part = self.parts.iter().find(|part| part.choices.iter().all(absent))?;
        Some(part.to_string())
    }

    /// The prefix by which the address is counted here, if the key says so.
    pub(crate) fn ipv6_prefix(&self) -> Option<u8> {
        let mut choices = self.parts.iter().flat_map(|part| &part.choices);
        choices.find(|choice| &*choice.name == "ip").and_then(|choice| choice.prefix)
    }
}

fn choice(text: &str) -> Result<Choice, KeyError> {
    let text = text.trim();
    let (name, prefix) = match text.split_once('/') {
        None => (text, None),
        Some(("ip", bits)) => {
            let digits = crate::address::is_plain_number(bits);
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
    Ok(Choice { name: name.into(), prefix })
}

/// Whether a policy may name an attribute so.
pub(crate) fn is_attribute(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (1..=64).contains(&name.len()) && name.bytes().all(plain)
}

impl Choice {
    fn of<'k>(&'k self, seen: Seen<'k>, case: Case, ipv6_prefix: u8) -> Option<KeyValue<'k>> {
        Some(KeyValue(match &*self.name {
            "ip" => {
                let prefix = self.prefix.unwrap_or(ipv6_prefix);
                let address = seen.request().address()?;
                Text::Address(AddressKey::new(address, prefix).text())
            }
            name => Text::Given(seen.get(name, case)?),
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

    /// A number that whoever names states derives from the names alone; once, as long as a key does not have too many
    /// alternatives.
    ///
    /// ```
    /// use tidegate_policy::{Attributes, Key};
    /// let (key, nobody) = (Key::parse([]).unwrap(), Attributes::new());
    /// assert_eq!(key.of(&nobody, 64).unwrap().tag(|| 7), 7);
    /// assert_eq!(key.of(&nobody, 64).unwrap().tag(|| 8), 7);
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

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let choices: Vec<String> = self.choices.iter().map(ToString::to_string).collect();
        f.write_str(&choices.join("|"))
    }
}

impl fmt::Display for Choice {
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
            return f.write_str("(one for all)");
        }
        let pairs: Vec<String> =
            self.pairs.iter().map(|(name, value)| format!("{name}={}", printable(value))).collect();
        f.write_str(&pairs.join(" "))
    }
}

/// A value as it may stand in a terminal: one line, not too long.
fn printable(value: &str) -> String {
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
        assert_eq!(values(&[], &both).unwrap(), "(one for all)");
        assert_eq!(values(&["user|device", "ip"], &address), None);
    }

    /// Requests that chose the same names share a tag, and no others.
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
    fn keys_that_make_no_sense_are_refused() {
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
