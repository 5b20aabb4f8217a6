//! Who is counted: which attributes of a request name the bucket it draws from.
//!
//! ```text
//!   [user]       a bucket for each user             [user, ip]   one for each user at each address
//!   [user|ip]    the user's, else the address's     [ip/48]      one for each IPv6 network of 48 bits
//!   []           one bucket for all
//! ```

use crate::address::AddressKey;
use crate::attributes::{Attributes, shown};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::fmt;

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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Key {
    parts: Vec<Part>,
}

/// The attributes of one request that a key names, each with its value.
///
/// ```
/// use tidegate_policy::{Attributes, Key};
/// let request = Attributes::new().with("user", "alice")?;
/// let values = Key::parse(["user"]).unwrap().of(&request, 64).unwrap().to_string();
/// assert_eq!(values, "user=alice");
/// # Ok::<(), tidegate_policy::AttributeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValues<'k> {
    pairs: SmallVec<[(&'k str, Cow<'k, str>); 2]>,
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
        let key = Self { parts };
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
        Self { parts: Vec::new() }
    }

    /// Whose bucket a request draws from; `None` when it lacks an attribute that the key names.
    ///
    /// ```
    /// use tidegate_policy::{Attributes, Key};
    /// assert_eq!(Key::parse(["user"]).unwrap().of(&Attributes::new(), 64), None);
    /// assert!(Key::parse([]).unwrap().of(&Attributes::new(), 64).is_some()); // one for all
    /// ```
    #[must_use]
    pub fn of<'k>(&'k self, request: &'k Attributes<'_>, ipv6_prefix: u8) -> Option<KeyValues<'k>> {
        let pairs = self.parts.iter().map(|part| {
            let value =
                |choice: &'k Choice| Some((&*choice.name, choice.of(request, ipv6_prefix)?));
            part.choices.iter().find_map(value)
        });
        Some(KeyValues { pairs: pairs.collect::<Option<_>>()? })
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
        let absent = |choice: &Choice| choice.of(request, 64).is_none();
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
    fn of<'k>(&'k self, request: &'k Attributes<'_>, ipv6_prefix: u8) -> Option<Cow<'k, str>> {
        match &*self.name {
            "ip" => {
                let prefix = self.prefix.unwrap_or(ipv6_prefix);
                let address = request.address()?;
                Some(AddressKey::new(address, prefix).text().into())
            }
            name => request.get(name),
        }
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
    pub fn pairs(&self) -> &[(&'k str, Cow<'k, str>)] {
        &self.pairs
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| &**value)
    }
}

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
