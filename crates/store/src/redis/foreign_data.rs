//! State keys that hold data of another program.
//!
//! If another program writes to the key of a state, the store cannot count that state any more: the fallback decides about its
//! clients, while all others are counted as before. Only an operator can repair this. So the last such key is remembered for a
//! while and named in the complaint of the store.

use super::wire;
use crate::error::StoreError;
use crate::sync::{Mutex, lock};
use tidegate_core::{Span, Take, Timestamp};

/// The last keys whose data was not valid.
#[derive(Default)]
pub(super) struct ForeignData {
    /// Locked to look or to write.
    last: Mutex<Option<Sighting>>,
}

struct Sighting {
    at: Timestamp,
    text: String,
}

/// How long a key is named after the last failure: no event says that it has been repaired.
const NAMED_FOR: Span = Span::from_secs(10);
/// Maximum keys in one complaint.
const MAX_KEYS: usize = 3;

impl ForeignData {
    /// Remembers takes that failed, if the data in the store is the reason.
    pub(super) fn note(&self, takes: &[Take<'_>], error: &StoreError, now: Timestamp) {
        if !matches!(error, StoreError::Broken(_)) {
            return;
        }
        let quoted =
            |take: &Take<'_>| format!("\"{}\"", wire::key(take.state).as_slice().escape_ascii());
        let keys: Vec<String> = takes.iter().take(MAX_KEYS).map(quoted).collect();
        let text = format!("the fallback decides about the key {}: {error}", keys.join(" or "));
        *lock(&self.last) = Some(Sighting { at: now, text });
    }

    /// The keys that failed lately, and why.
    pub(super) fn complaint(&self, now: Timestamp) -> Option<String> {
        let last = lock(&self.last);
        let recent = last.as_ref().filter(|last| now.since(last.at) < NAMED_FOR);
        recent.map(|last| last.text.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{Algorithm, Cost, Limit, StateId};

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_key_is_named_for_ten_seconds_after_its_last_failure() {
        let limit = Limit::new(10, Span::from_secs(60), Algorithm::TOKEN_BUCKET).unwrap();
        let takes = [Take::new(StateId(7), &limit, Cost::ONE)];
        let foreign = ForeignData::default();
        assert_eq!(foreign.complaint(at(0)), None);
        let broken = StoreError::Broken("WRONGTYPE".to_owned());
        foreign.note(&takes, &broken, at(1));
        foreign.note(&takes, &broken, at(5));
        let text = foreign.complaint(at(14)).unwrap();
        assert!(text.contains(r#""{AA}\x00\x00"#) && text.contains("WRONGTYPE"), "{text}");
        assert_eq!(foreign.complaint(at(15)), None);
    }

    /// A timeout says nothing about the data.
    #[test]
    fn an_outage_is_not_blamed_on_a_key() {
        let foreign = ForeignData::default();
        foreign.note(&[], &StoreError::TimedOut(Span::from_secs(1)), at(1));
        assert_eq!(foreign.complaint(at(1)), None);
    }
}
