//! Names of states: everything that a state belongs to, written down injectively and hashed.
//!
//! ```text
//!   rule "create-url", limit "h", sliding_buckets(3600 s, 60)         key user             = alice
//!        │                                                                 │                  │
//!        ▼  every part with its length before it, so that no two lists of parts read the same │
//!   10:create-url 1:h 15:sliding_buckets …                            4:user                alice
//!        │                                                                 │                  │
//!        ▼  SipHash, 128 bits                                              ▼                  ▼  under the secret
//!   LimitName, kept with the policy ──────► xor ◄────── Subject ◄───── KeyName, kept ─► xor ◄─┘
//!                                            │
//!                                         StateId
//! ```
//!
//! To anybody without the secret the hash of a value is 128 random bits. So its xor with the names of a key and of a limit
//! collides with another only where two random numbers differ by a given one: as seldom as if all had been hashed
//! together. Whoever keeps both names hashes only the value for each request.
//!
//! Keys are chosen by whoever sends requests, so the hash is keyed: without the secret nobody can find
//! two keys that share a state. By accident a million states share one with odds of about 1 in 10²².
//!
//! Amounts are no part of the name: an edited limit finds the states of its former self. What makes
//! counts incomparable is: the algorithm, for windows the period, alignment and sub-windows, and for a
//! token bucket that is refilled at intervals its interval: nodes that alternated between two would be
//! refilled by both.

use crate::keyed_hash::KeyedHash;
use crate::private_file::read_private;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::fmt;
use std::fs::{self, OpenOptions};
use std::hash::Hasher;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use tidegate_core::{Algorithm, Align, Limit, Period, Refill, StateId};

/// The lower bits of an id name the state; the upper 16 are of its key alone, the same for all limits and
/// rules by which one key is counted, so that a cluster can keep its states together.
const STATE_BITS: u32 = 112;

/// The secret of a deployment: 256 bits under which keys are hashed. All nodes that share a store
/// share it.
///
/// ```
/// use tidegate_store::Secret;
/// let secret = Secret::new([7; 32]);
/// assert_eq!(format!("{secret:?}"), "Secret(…)"); // it shows in no log
/// ```
#[derive(Clone)]
pub struct Secret {
    bytes: [u8; 32],
    /// Under keys that are made of them.
    hash: KeyedHash,
}

/// What a state belongs to, besides the limit's algorithm and windows.
///
/// ```
/// use tidegate_core::{Algorithm, Limit, Span};
/// use tidegate_store::{Name, Secret};
/// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// let more = Limit::new(30, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// let name = Name { rule: "per-client", limit: "s", key: &[("ip", "203.0.113.7")] };
/// let secret = Secret::new([7; 32]);
/// assert_eq!(name.id(&limit, &secret), name.id(&more, &secret)); // amounts are no part of it
/// let other = Name { key: &[("ip", "203.0.113.8")], ..name };
/// assert_ne!(name.id(&limit, &secret), other.id(&limit, &secret));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Name<'n> {
    /// The rule.
    pub rule: &'n str,
    /// Which limit of the rule: its name, or its period as written.
    pub limit: &'n str,
    /// Who is counted: attributes and their values, in the order of the rule's key.
    pub key: &'n [(&'n str, &'n str)],
}

/// Which limit of which rule: what a state belongs to, apart from who is counted. It is the same for every
/// request, so whoever keeps limits may keep it with them.
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

/// By what somebody is counted: the names of attributes, in the order of a rule's key. It is the same for every request,
/// so whoever asks often may keep it.
///
/// ```
/// use tidegate_store::KeyName;
/// assert_eq!(KeyName::new(["user", "ip"]), KeyName::new(["user", "ip"]));
/// assert_ne!(KeyName::new(["user", "ip"]), KeyName::new(["ip", "user"]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyName(pub u128);

/// Who is counted, by a hash under the deployment's secret.
///
/// ```
/// let secret = tidegate_store::Secret::new([7; 32]);
/// assert_ne!(secret.subject(&[("user", "a")]), secret.subject(&[("user", "b")]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject(u128);

// === impl Secret ===

impl Secret {
    /// These 32 bytes.
    ///
    /// ```
    /// assert!(tidegate_store::Secret::new([1; 32]) != tidegate_store::Secret::new([2; 32]));
    /// ```
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        let mut number = 0u8;
        let hash = KeyedHash::new(|| {
            number = number.wrapping_add(1);
            let mac = signature_under(&bytes, b"tidegate keys 1", &[number]).finalize();
            mac.into_bytes().first_chunk().copied().unwrap_or_default()
        });
        Self { bytes, hash }
    }

    /// A random secret, for a store that nobody else shares and that keeps nothing.
    ///
    /// ```
    /// use tidegate_store::Secret;
    /// assert!(Secret::random().unwrap() != Secret::random().unwrap());
    /// ```
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Self::new(bytes))
    }

    /// The secret in a file; created with a random one, readable by its owner only, when there is none.
    ///
    /// ```
    /// use tidegate_store::Secret;
    /// let path = std::env::temp_dir().join(format!("tidegate-secret-{}", std::process::id()));
    /// let created = Secret::load_or_create(&path)?;
    /// assert!(created == Secret::load_or_create(&path)?);
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn load_or_create(path: &Path) -> io::Result<Self> {
        if path.exists() {
            return Self::load(path);
        }
        // Written whole under another name, then given its own unless somebody was faster: nobody ever sees
        // half a secret, and all who start at once use one.
        let secret = Self::random()?;
        let mut draft = path.as_os_str().to_owned();
        draft.push(format!(".{:032x}", Self::random()?.verifier()));
        let draft = Path::new(&draft);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(draft)?;
        file.write_all(&secret.bytes)?;
        file.sync_all()?;
        let linked = fs::hard_link(draft, path);
        fs::remove_file(draft)?;
        match linked {
            Ok(()) => Ok(secret),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Self::load(path),
            Err(error) => Err(error),
        }
    }

    /// Reads a secret from a file that is there, if no other user can read it: see [`read_private`].
    ///
    /// ```
    /// assert!(tidegate_store::Secret::load("/nowhere".as_ref()).is_err());
    /// ```
    pub fn load(path: &Path) -> io::Result<Self> {
        let no_secret =
            || io::Error::new(io::ErrorKind::InvalidData, "a secret is exactly 32 bytes");
        let bytes = read_private(path, 32)?;
        <[u8; 32]>::try_from(bytes).map(Self::new).map_err(|_| no_secret())
    }

    /// A number by which two nodes can tell whether they share the secret, without showing it.
    ///
    /// ```
    /// use tidegate_store::Secret;
    /// assert_ne!(Secret::new([1; 32]).verifier(), Secret::new([2; 32]).verifier());
    /// ```
    #[must_use]
    pub fn verifier(&self) -> u128 {
        let mut hasher = SipHasher13::new_with_key(self.second_half());
        hasher.write(b"tidegate verifier 1");
        hasher.write(self.first_half());
        hasher.finish128().as_u128()
    }

    /// A name for a secret of somebody else, such as an API key: the same for the same, and of no use to
    /// whoever reads it in a log.
    ///
    /// ```
    /// let secret = tidegate_store::Secret::new([7; 32]);
    /// let digest = secret.digest("s3cr3t");
    /// assert!(digest.starts_with('#') && digest.len() == 33);
    /// assert_ne!(digest, tidegate_store::Secret::new([8; 32]).digest("s3cr3t"));
    /// ```
    #[must_use]
    pub fn digest(&self, text: &str) -> String {
        let mac = self.signature_of(b"tidegate digest 1", text.as_bytes()).finalize().into_bytes();
        let half =
            mac.iter().take(16).fold(0u128, |digest, byte| (digest << 8) | u128::from(*byte));
        format!("#{half:032x}")
    }

    /// Signs a message that goes out of our hands and comes back.
    ///
    /// ```
    /// let secret = tidegate_store::Secret::new([7; 32]);
    /// assert!(secret.signed(b"message", &secret.sign(b"message")));
    /// assert!(!secret.signed(b"massage", &secret.sign(b"message")));
    /// ```
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> [u8; 32] {
        self.signature_of(b"tidegate receipt 1", message).finalize().into_bytes().into()
    }

    /// Whether a signature is ours; in the same time for all that are not.
    ///
    /// ```
    /// assert!(!tidegate_store::Secret::new([7; 32]).signed(b"message", &[0; 32]));
    /// ```
    #[must_use]
    pub fn signed(&self, message: &[u8], signature: &[u8]) -> bool {
        self.signature_of(b"tidegate receipt 1", message).verify_slice(signature).is_ok()
    }

    /// HMAC-SHA-256 under this secret.
    fn signature_of(&self, purpose: &[u8], message: &[u8]) -> Hmac<Sha256> {
        signature_under(&self.bytes, purpose, message)
    }

    /// Who is counted: attributes and their values, in the order of a rule's key.
    ///
    /// ```
    /// let secret = tidegate_store::Secret::new([7; 32]);
    /// assert_ne!(secret.subject(&[("a", "bc")]), secret.subject(&[("ab", "c")]));
    /// ```
    #[must_use]
    pub fn subject<V: AsRef<str>>(&self, key: &[(&str, V)]) -> Subject {
        self.subject_of(KeyName::new(key.iter().map(|(attribute, _)| *attribute)), key)
    }

    /// The same for whoever keeps the name of the key, which is that of its attributes.
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

    /// Who is counted, by one attribute. Its value is any bytes, such as those of a number.
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
        Subject(self.hash.hash(value) ^ by.0)
    }

    /// The half that is proved.
    fn first_half(&self) -> &[u8; 16] {
        let [half @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = &self.bytes;
        half
    }

    /// The half that proves the first.
    fn second_half(&self) -> &[u8; 16] {
        let [_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, half @ ..] = &self.bytes;
        half
    }
}

/// HMAC-SHA-256 under a secret; every purpose has its own name.
fn signature_under(secret: &[u8; 32], purpose: &[u8], message: &[u8]) -> Hmac<Sha256> {
    let mut key = [0; 64];
    for (to, byte) in key.iter_mut().zip(secret) {
        *to = *byte;
    }
    let mut mac = Hmac::<Sha256>::new(&key.into());
    mac.update(purpose);
    mac.update(message);
    mac
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

// === impl Subject ===

impl Subject {
    /// Its state under a limit. States of one subject begin with the same sixteen bits.
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
        let state = self.0 ^ limit.0;
        StateId(((self.0 >> STATE_BITS) << STATE_BITS) | (state & ((1 << STATE_BITS) - 1)))
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
    /// assert_ne!(name.id(&minute, &secret), name.id(&hour, &secret)); // counts of different windows
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
        // Rules are named by operators, who have nothing to gain from names that collide.
        let mut hasher = SipHasher13::new();
        write_limit(rule, id, limit, &mut |bytes| hasher.write(bytes));
        Self(hasher.finish128().as_u128())
    }
}

/// Everything about a limit that its states belong to, injectively.
fn write_limit(rule: &str, id: &str, limit: &Limit, out: &mut impl FnMut(&[u8])) {
    part(rule.as_bytes(), out);
    part(id.as_bytes(), out);
    part(limit.algorithm().name().as_bytes(), out);
    for number in windows(limit) {
        out(&number.to_le_bytes());
    }
}

/// What is hashed of a key's values: injective among keys of the same attributes. One value stands for itself.
fn hashed<V: AsRef<str>, H>(key: &[(&str, V)], hash: impl FnOnce(&[u8]) -> H) -> H {
    match key {
        [(_, value)] => hash(value.as_ref().as_bytes()),
        _ => hash(Parts::of(key.iter().map(|(_, value)| value.as_ref())).bytes()),
    }
}

/// A part with its length before it: in a byte, or in eight after a byte that no short length is.
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

/// Bytes that are put together, on the stack as long as they are few.
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
    /// Injectively.
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

/// What makes counts of windows incomparable: period, alignment, sub-windows. Nothing for buckets.
fn windows(limit: &Limit) -> [u64; 3] {
    let period = match limit.period() {
        Period::Every(span) => span.as_nanos(),
        Period::Calendar(_) => 0, // its tables are renewed; the limit's name tells calendars apart
    };
    match limit.algorithm() {
        Algorithm::FixedWindow { align: Align::Epoch } => [period, 0, 0],
        Algorithm::FixedWindow { align: Align::First } => [period, 1, 0],
        Algorithm::SlidingLog | Algorithm::SlidingWeighted => [period, 0, 0],
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

    /// The three things that are hashed: of the limit, of the key, and of its values.
    fn encoded(rule: &str, limit: &str, key: &[(&str, &str)]) -> [Vec<u8>; 3] {
        let bucket = Limit::new(1, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
        let mut name = Vec::new();
        write_limit(rule, limit, &bucket, &mut |part| name.extend_from_slice(part));
        let attributes = Parts::of(key.iter().map(|(attribute, _)| *attribute));
        let values = hashed(key, <[u8]>::to_vec);
        [name, attributes.bytes().to_vec(), values]
    }

    /// Every list of up to four values over three letters, and the ways to cut it into pairs.
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

    #[test]
    fn a_secret_file_is_private_and_of_one_length() {
        let folder = std::env::temp_dir().join(format!("tidegate-key-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("secret");
        Secret::load_or_create(&path).unwrap();
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        for length in [0, 31, 33, 100_000] {
            fs::write(&path, vec![1; length]).unwrap();
            let error = Secret::load_or_create(&path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    /// A secret that other users could read was used all the same; one that was a pipe kept the server from starting, for
    /// ever and without a word.
    #[test]
    fn a_secret_that_ssh_would_refuse_is_refused() {
        let folder = std::env::temp_dir().join(format!("tidegate-refused-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("secret");
        Secret::load_or_create(&path).unwrap();
        for (mode, usable) in [(0o644, false), (0o640, false), (0o602, false), (0o400, true)] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            fs::set_permissions(&path, mode).unwrap();
            assert_eq!(Secret::load_or_create(&path).is_ok(), usable);
        }
        let pipe = folder.join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [&pipe, &folder] {
            assert!(Secret::load_or_create(path).is_err());
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn all_who_start_at_once_use_one_secret() {
        let folder = std::env::temp_dir().join(format!("tidegate-secrets-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for round in 0..50 {
            let path = folder.join(round.to_string());
            let secrets: Vec<Secret> = std::thread::scope(|scope| {
                let starters: Vec<_> = (0..4)
                    .map(|_| scope.spawn(|| Secret::load_or_create(&path).unwrap()))
                    .collect();
                starters.into_iter().map(|starter| starter.join().unwrap()).collect()
            });
            assert!(secrets.iter().all(|secret| *secret == secrets[0]));
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 50); // no drafts are left
        fs::remove_dir_all(&folder).unwrap();
    }
}
