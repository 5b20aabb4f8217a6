//! A bounded cache of tokens that were verified.
//!
//! Verifying a signature takes tens of microseconds, and a client sends the same token with every request. The cache has two
//! generations of half the bound each:
//!
//! ```text
//!   found in `old` ──► moved to `new`        `new` is full ──► `old` is dropped, `new` becomes `old`
//! ```
//!
//! So tokens in use stay, and each operation takes constant time. A token is known by its SHA-256 digest. The cache belongs to
//! one set of keys: when the keys are replaced it is emptied, so a key that is withdrawn verifies nothing from then on.

use super::claims::Claims;
use super::keys::KeySet;
use std::collections::HashMap;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;

/// Tokens of one generation. With tokens of 2 KiB, a worker remembers at most 4 MiB.
const GENERATION: usize = 1024;

/// The SHA-256 digest of a token.
pub(super) type TokenDigest = [u8; 32];

/// The tokens that one worker has verified lately.
#[derive(Default)]
pub(super) struct TokenCache {
    /// The keys by which they were verified.
    keys: Option<Arc<KeySet>>,
    new: HashMap<TokenDigest, Rc<Claims>>,
    old: HashMap<TokenDigest, Rc<Claims>>,
}

impl TokenCache {
    /// The claims of a token that these keys have verified.
    pub(super) fn get(&mut self, keys: &Arc<KeySet>, token: &TokenDigest) -> Option<Rc<Claims>> {
        if !self.keys.as_ref().is_some_and(|known| Arc::ptr_eq(known, keys)) {
            *self = Self { keys: Some(Arc::clone(keys)), ..Self::default() };
            return None;
        }
        if let Some(claims) = self.new.get(token) {
            return Some(Rc::clone(claims));
        }
        let claims = self.old.remove(token)?;
        self.insert(*token, Rc::clone(&claims));
        Some(claims)
    }

    /// Remembers a token that the keys of the last [`get`](Self::get) have verified.
    pub(super) fn insert(&mut self, token: TokenDigest, claims: Rc<Claims>) {
        if self.new.len() >= GENERATION {
            self.old = mem::take(&mut self.new);
        }
        self.new.insert(token, claims);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: usize) -> TokenDigest {
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&number.to_be_bytes());
        digest
    }

    #[test]
    fn it_is_bounded_and_keeps_what_is_used() {
        let (mut cache, keys) = (TokenCache::default(), Arc::new(KeySet::default()));
        let claims = serde_json::json!({ "exp": 1 }).as_object().cloned().unwrap();
        let claims = Rc::new(Claims::new(claims).unwrap());
        assert!(cache.get(&keys, &token(0)).is_none());
        cache.insert(token(0), Rc::clone(&claims));
        for number in 1..10 * GENERATION {
            cache.insert(token(number), Rc::clone(&claims));
            assert!(cache.get(&keys, &token(0)).is_some(), "{number}");
            assert!(cache.new.len() + cache.old.len() <= 2 * GENERATION);
        }
        assert!(cache.get(&keys, &token(1)).is_none());
        // Other keys verify for themselves.
        assert!(cache.get(&Arc::new(KeySet::default()), &token(0)).is_none());
        assert!(cache.new.is_empty() && cache.old.is_empty());
    }
}
