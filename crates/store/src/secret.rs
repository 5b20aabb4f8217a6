//! The secret of a deployment: keyed hashes, signatures and digests.

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

/// The secret of a deployment: 256 bits that key all hashes. All nodes that share a store have the same secret.
///
/// ```
/// use tidegate_store::Secret;
/// let secret = Secret::new([7; 32]);
/// assert_eq!(format!("{secret:?}"), "Secret(…)"); // logs never show it
/// ```
#[derive(Clone)]
pub struct Secret {
    bytes: [u8; 32],
    /// The hash of values, with keys derived from the bytes.
    hash: KeyedHash,
}

impl Secret {
    /// A secret of these 32 bytes.
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

    /// A random secret, for a store that is not shared and not persistent.
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

    /// Loads the secret from a file. If there is no file, creates one with a random secret that only its owner can read.
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
        // The file is written under a temporary name and then linked to its own, unless another process was faster. So no process
        // reads half a secret, and processes that start at the same time use the same one.
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

    /// Loads a secret from an existing file that no other user can read, see `read_private`.
    ///
    /// ```
    /// assert!(tidegate_store::Secret::load("/nowhere".as_ref()).is_err());
    /// ```
    pub fn load(path: &Path) -> io::Result<Self> {
        let wrong_length = "a secret file must have exactly 32 bytes";
        let bytes = read_private(path, 32)?;
        <[u8; 32]>::try_from(bytes)
            .map(Self::new)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, wrong_length))
    }

    /// A number by which two nodes can check that they have the same secret, without revealing it.
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

    /// A pseudonym for a client's secret, such as an API key. Equal secrets have equal digests, and a digest in a log is useless
    /// to its reader.
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

    /// Signs a message that a client keeps and presents again later.
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

    /// Whether a signature was made with this secret. The comparison takes constant time.
    ///
    /// ```
    /// assert!(!tidegate_store::Secret::new([7; 32]).signed(b"message", &[0; 32]));
    /// ```
    #[must_use]
    pub fn signed(&self, message: &[u8], signature: &[u8]) -> bool {
        self.signature_of(b"tidegate receipt 1", message).verify_slice(signature).is_ok()
    }

    /// The keyed hash of a value.
    #[inline]
    pub(crate) fn hash(&self, value: &[u8]) -> u128 {
        self.hash.hash(value)
    }

    /// HMAC-SHA-256 under this secret.
    fn signature_of(&self, purpose: &[u8], message: &[u8]) -> Hmac<Sha256> {
        signature_under(&self.bytes, purpose, message)
    }

    /// The half whose hash is the verifier.
    fn first_half(&self) -> &[u8; 16] {
        let [half @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = &self.bytes;
        half
    }

    /// The half that keys the verifier.
    fn second_half(&self) -> &[u8; 16] {
        let [_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, half @ ..] = &self.bytes;
        half
    }
}

/// HMAC-SHA-256 under a secret. Every purpose has its own name, so that no result can be used for another purpose.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_file_is_private_and_has_32_bytes() {
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

    /// A secret that other users could read was accepted. And when the path was a pipe, the server waited for ever without a
    /// message.
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
    fn processes_that_start_at_the_same_time_use_one_secret() {
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
