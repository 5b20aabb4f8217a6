//! Names of states: everything that identifies a state, encoded without ambiguity and hashed.
//!
//! ```text
//!   rule "create-url", limit "h", sliding_buckets(3600 s, 60)         key user             = alice
//!        │                                                                 │                  │
//!        ▼  each part after its length, so that no two lists of parts have the same encoding  │
//!   10:create-url 1:h 15:sliding_buckets …                            4:user                alice
//!        │                                                                 │                  │
//!        ▼  SipHash, 128 bits                                              ▼                  ▼  keyed with the secret
//!   LimitName, kept with the policy ──────► xor ◄────── Subject ◄───── KeyName, kept ─► xor ◄─┘
//!                                            │
//!                                         StateId
//! ```
//!
//! The names of the limit and of the key are the same for every request, so a caller computes them once. Only the value is
//! hashed for each request. Without the secret, the hash of a value is 128 random bits. So the xor with the two names collides
//! only where two random numbers differ by a given one: as seldom as if everything had been hashed together.
//!
//! Clients choose the values, so the hash is keyed: without the secret an attacker cannot find two values that share a state.
//! By accident, the odds that two of a million states share a name are about 1 in 10²².
//!
//! Amounts are not part of the name: an edited limit finds its old states. Everything that makes counts incomparable is part
//! of the name: the algorithm; for windows the period, alignment and sub-windows; and for a token bucket that is refilled at
//! intervals its interval, because nodes with two different intervals would both refill it.

pub(crate) use crate::secret::Secret;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;
use tidegate_core::{Algorithm, Align, Limit, Period, Refill, StateId};

/// The lower bits of an id name the state. The upper 16 come from the key alone, so they are the same for all rules and limits
/// of one key, and a cluster can keep these states together.
const STATE_BITS: u32 = 112;

/// What identifies a state, together with the limit's algorithm and windows.
///
/// ```
/// use tidegate_core::{Algorithm, Limit, Span};
/// use tidegate_store::{Name, Secret};
/// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// let more = Limit::new(30, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// let name = Name { rule: "per-client", limit: "s", key: &[("ip", "203.0.113.7")] };
/// let secret = Secret::new([7; 32]);
/// assert_eq!(name.id(&limit, &secret), name.id(&more, &secret)); // amounts are not part of the name
/// let other = Name { key: &[("ip", "203.0.113.8")], ..name };
/// assert_ne!(name.id(&limit, &secret), other.id(&limit, &secret));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Name<'n> {
    /// The rule.
    pub rule: &'n str,
    /// Which limit of the rule: its name, or its period as written in the policy.
    pub limit: &'n str,
    /// The key that is counted: attributes and their values, in the order of the rule's key.
    pub key: &'n [(&'n str, &'n str)],
}

/// The part of a state's name that says which limit of which rule it is. It is the same for every request, so a caller computes
/// it once and keeps it with the limit.
///
/// ```
/// use tidegate_core::{Algorithm, Limit, Span};
/// use tidegate_store::{LimitName, Name, Secret};
/// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// let (name, secret) = (Name { rule: "r", limit: "s", key: &[("user", "a")] }, Secret::new([7; 32]));
/// let state = secret.subject(&[("user", "a")]).state(LimitName::new("r", "s", &limit));
/// assert_eq!(state, name.id(&limit, &secret));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitName(pub u128);

/// The part of a state's name that says by which attributes is counted, in the order of a rule's key. It is the same for every
/// request, so a caller computes it once.
///
/// ```
/// use tidegate_store::KeyName;
/// assert_eq!(KeyName::new(["user", "ip"]), KeyName::new(["user", "ip"]));
/// assert_ne!(KeyName::new(["user", "ip"]), KeyName::new(["ip", "user"]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyName(pub u128);

/// The part of a state's name that says who is counted: a hash keyed with the deployment's secret.
///
/// ```
/// let secret = tidegate_store::Secret::new([7; 32]);
/// assert_ne!(secret.subject(&[("user", "a")]), secret.subject(&[("user", "b")]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject(u128);

// === impl Secret: from a key to a subject ===

impl Secret {
    /// The subject of a key: attributes and their values, in the order of a rule's key.
    ///
    /// ```
    /// let secret = tidegate_store::Secret::new([7; 32]);
    /// assert_ne!(secret.subject(&[("a", "bc")]), secret.subject(&[("ab", "c")]));
    /// ```
    #[must_use]
    pub fn subject<V: AsRef<str>>(&self, key: &[(&str, V)]) -> Subject {
        self.subject_of(KeyName::new(key.iter().map(|(attribute, _)| *attribute)), key)
    }

    /// Hashes a key for a caller that has kept `name`, the hash of the names of the key's attributes.
    ///
    /// ```
    /// use tidegate_store::{KeyName, Secret};
    /// let (secret, key) = (Secret::new([7; 32]), [("user", "alice"), ("ip", "::1")]);
    /// assert_eq!(secret.subject_of(KeyName::new(["user", "ip"]), &key), secret.subject(&key));
    /// ```
    #[must_use]
    pub fn subject_of<V: AsRef<str>>(&self, by: KeyName, key: &[(&str, V)]) -> Subject {
        hashed(key, |values| self.subject_by(by, values))
    }

    /// The subject of a key with one attribute. Its value may be any bytes, such as those of a number.
    ///
    /// ```
    /// use tidegate_store::{KeyName, Secret};
    /// let (secret, by_user) = (Secret::new([7; 32]), KeyName::new(["user"]));
    /// let [a, b] = [1u64, 2].map(|user| secret.subject_by(by_user, &user.to_le_bytes()));
    /// assert_ne!(a, b);
    /// assert_eq!(secret.subject_by(by_user, b"alice"), secret.subject(&[("user", "alice")]));
    /// ```
    #[must_use]
    #[inline]
    pub fn subject_by(&self, by: KeyName, value: &[u8]) -> Subject {
        Subject(self.hash(value) ^ by.0)
    }
}

// === impl Subject ===

impl Subject {
    /// The lower 64 bits, for tables in the memory of one process. The hash is keyed with the secret, so a client that does not
    /// know the secret cannot choose two keys with the same bits.
    ///
    /// ```
    /// use tidegate_store::Secret;
    /// let secret = Secret::new([7; 32]);
    /// let [alice, bob] = ["alice", "bob"].map(|name| secret.subject(&[("user", name)]).short());
    /// assert_ne!(alice, bob);
    /// ```
    #[must_use]
    pub fn short(self) -> u64 {
        u64::try_from(self.0 & u128::from(u64::MAX)).unwrap_or(0)
    }

    /// The name of the subject's state under a limit. All states of one subject begin with the same sixteen bits.
    ///
    /// ```
    /// # use tidegate_core::{Algorithm, Limit, Span};
    /// # use tidegate_store::{LimitName, Secret};
    /// # let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let secret = Secret::new([7; 32]);
    /// let alice = secret.subject(&[("user", "alice")]);
    /// let [a, b] = ["a", "b"].map(|rule| alice.state(LimitName::new(rule, "s", &limit)));
    /// assert_ne!(a, b);
    /// assert_eq!(a.0 >> 112, b.0 >> 112);
    /// ```
    #[must_use]
    pub const fn state(self, limit: LimitName) -> StateId {
        StateId(self.0 ^ (limit.0 & ((1 << STATE_BITS) - 1)))
    }
}

// === impl Name ===

impl Name<'_> {
    /// The state of this name under a limit.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, Span};
    /// use tidegate_store::{Name, Secret};
    /// let [minute, hour] = [60, 3600].map(|secs| {
    ///     Limit::new(15, Span::from_secs(secs), Algorithm::FIXED_WINDOW).unwrap()
    /// });
    /// let (name, secret) = (Name { rule: "r", limit: "l", key: &[] }, Secret::new([7; 32]));
    /// assert_ne!(name.id(&minute, &secret), name.id(&hour, &secret)); // windows of different lengths do not mix
    /// ```
    #[must_use]
    pub fn id(&self, limit: &Limit, secret: &Secret) -> StateId {
        secret.subject(self.key).state(LimitName::new(self.rule, self.limit, limit))
    }
}

// === impl KeyName ===

impl KeyName {
    /// The name of a key of these attributes.
    ///
    /// ```
    /// use tidegate_store::KeyName;
    /// assert_ne!(KeyName::new(["ab", "c"]), KeyName::new(["a", "bc"]));
    /// ```
    #[must_use]
    pub fn new<'n>(attributes: impl IntoIterator<Item = &'n str>) -> Self {
        Self(SipHasher13::new().hash(Parts::of(attributes).bytes()).as_u128())
    }
}

// === impl LimitName ===

impl LimitName {
    /// The name of a rule's limit.
    ///
    /// ```
    /// # use tidegate_core::{Algorithm, Limit, Span};
    /// # use tidegate_store::LimitName;
    /// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// assert_ne!(LimitName::new("ab", "c", &limit), LimitName::new("a", "bc", &limit));
    /// ```
    #[must_use]
    pub fn new(rule: &str, id: &str, limit: &Limit) -> Self {
        // No secret is needed: operators name the rules, and gain nothing from names that collide.
        let mut hasher = SipHasher13::new();
        write_limit(rule, id, limit, &mut |bytes| hasher.write(bytes));
        Self(hasher.finish128().as_u128())
    }
}

/// Encodes everything about a limit that is part of its states' names. Different limits have different encodings.
fn write_limit(rule: &str, id: &str, limit: &Limit, out: &mut impl FnMut(&[u8])) {
    part(rule.as_bytes(), out);
    part(id.as_bytes(), out);
    part(limit.algorithm().name().as_bytes(), out);
    for number in windows(limit) {
        out(&number.to_le_bytes());
    }
}

/// Encodes the values of a key and hashes them. Among keys of the same attributes, different values have different encodings. A
/// single value is its own encoding.
fn hashed<V: AsRef<str>, H>(key: &[(&str, V)], hash: impl FnOnce(&[u8]) -> H) -> H {
    match key {
        [(_, value)] => hash(value.as_ref().as_bytes()),
        _ => hash(Parts::of(key.iter().map(|(_, value)| value.as_ref())).bytes()),
    }
}

/// Encodes a part as its length and its bytes. A length below 255 takes one byte; others take eight bytes after a byte of 255.
fn part(bytes: &[u8], out: &mut impl FnMut(&[u8])) {
    match u8::try_from(bytes.len()) {
        Ok(length) if length < u8::MAX => out(&[length]),
        Ok(_) | Err(_) => {
            out(&[u8::MAX]);
            out(&u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_le_bytes());
        }
    }
    out(bytes);
}

/// A buffer for an encoding. Up to 128 bytes are on the stack.
struct Parts {
    few: [u8; 128],
    length: usize,
    many: Vec<u8>,
}

impl Default for Parts {
    fn default() -> Self {
        Self { few: [0; 128], length: 0, many: vec![] }
    }
}

impl Parts {
    /// The encoding of some parts.
    fn of<'p>(parts: impl IntoIterator<Item = &'p str>) -> Self {
        let mut all = Self::default();
        parts.into_iter().for_each(|bytes| part(bytes.as_bytes(), &mut |part| all.push(part)));
        all
    }

    fn push(&mut self, part: &[u8]) {
        let end = self.length.saturating_add(part.len());
        match self.few.get_mut(self.length..end).filter(|_| self.many.is_empty()) {
            Some(place) => place.copy_from_slice(part),
            None => {
                if self.many.is_empty() {
                    self.many.extend_from_slice(self.few.get(..self.length).unwrap_or_default());
                }
                self.many.extend_from_slice(part);
            }
        }
        self.length = end;
    }

    fn bytes(&self) -> &[u8] {
        if self.many.is_empty() {
            self.few.get(..self.length).unwrap_or_default()
        } else {
            &self.many
        }
    }
}

/// What makes counts under two limits incomparable: period, alignment and sub-windows. Zeros for buckets that drain continuously.
fn windows(limit: &Limit) -> [u64; 3] {
    let period = match limit.period() {
        Period::Every(span) => span.as_nanos(),
        Period::Calendar(_) => 0, // its tables change from time to time; the limit's name tells calendars apart
    };
    match limit.algorithm() {
        Algorithm::FixedWindow { align: Align::Epoch } => [period, 0, 0],
        Algorithm::FixedWindow { align: Align::First } => [period, 1, 0],
        Algorithm::SlidingLog | Algorithm::SlidingWeighted | Algorithm::Concurrent => {
            [period, 0, 0]
        }
        Algorithm::SlidingBuckets { buckets } => [period, 0, u64::from(buckets)],
        Algorithm::TokenBucket { refill: Refill::Interval, .. } => [period, 2, 0],
        Algorithm::TokenBucket { refill: Refill::Continuous, .. } => [0; 3],
        Algorithm::LeakyBucket { .. } => [0; 3],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use tidegate_core::Span;

    /// The three encodings that are hashed: of the limit, of the key's attributes, and of its values.
    fn encoded(rule: &str, limit: &str, key: &[(&str, &str)]) -> [Vec<u8>; 3] {
        let bucket = Limit::new(1, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
        let mut name = Vec::new();
        write_limit(rule, limit, &bucket, &mut |part| name.extend_from_slice(part));
        let attributes = Parts::of(key.iter().map(|(attribute, _)| *attribute));
        let values = hashed(key, <[u8]>::to_vec);
        [name, attributes.bytes().to_vec(), values]
    }

    /// Tries all names of short words over three letters, with and without a key.
    #[test]
    fn short_names_never_collide() {
        let mut words = vec![String::new()];
        for length in 0..3 {
            let longer: Vec<String> = words
                .iter()
                .filter(|w| w.len() == length)
                .flat_map(|w| ["a", ":", "1"].map(|c| format!("{w}{c}")))
                .collect();
            words.extend(longer);
        }
        let mut seen: HashMap<[Vec<u8>; 3], (String, String, String)> = HashMap::new();
        for a in &words {
            for b in &words {
                for c in &words {
                    let name = (a.clone(), b.clone(), c.clone());
                    for key in [vec![], vec![(b.as_str(), c.as_str())]] {
                        let key_name = if key.is_empty() {
                            (a.clone(), String::from("-"), String::new())
                        } else {
                            name.clone()
                        };
                        let other = seen.insert(encoded(a, "l", &key), key_name.clone());
                        assert!(other.is_none_or(|other| other == key_name));
                    }
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn names_are_equal_only_when_all_their_parts_are(
            a in prop::collection::vec("[_:|/{}\\x00\\r\\n%a]{0,4}", 2..8),
            b in prop::collection::vec("[_:|/{}\\x00\\r\\n%a]{0,4}", 2..8),
        ) {
            let name = |parts: &[String]| {
                let pairs: Vec<(String, String)> = parts[2..].chunks_exact(2).map(|p| (p[0].clone(), p[1].clone())).collect();
                let key: Vec<(&str, &str)> = pairs.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
                (encoded(&parts[0], &parts[1], &key), (parts[0].clone(), parts[1].clone(), pairs.clone()))
            };
            let ((left, left_parts), (right, right_parts)) = (name(&a), name(&b));
            prop_assert_eq!(left == right, left_parts == right_parts);
        }
    }
}
