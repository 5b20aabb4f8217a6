//! Keys of ours that hold data which we did not write.
//!
//! A program that writes under one of our keys takes the callers who are counted there away from the store: the fallback
//! decides about them, while everybody else is counted as before. Only an operator can repair that. So the last such key is
//! remembered for a while and named in the complaint of the store.

use super::wire;
use crate::error::StoreError;
use crate::sync::{Mutex, lock};
use tidegate_core::{Span, Take, Timestamp};

/// The last keys that the store could not answer for.
#[derive(Default)]
pub(super) struct Foreign {
    /// Locked to look or to write.
    last: Mutex<Option<Sighting>>,
}

struct Sighting {
    at: Timestamp,
    text: String,
}

/// How long a key is named after it was last asked for: nothing says that it has been repaired.
const NAMED_FOR: Span = Span::from_secs(10);
/// Keys that are named in one complaint.
const MOST_KEYS: usize = 3;

impl Foreign {
    /// Remembers takes that failed, if they failed because of what the store holds.
    pub(super) fn note(&self, takes: &[Take<'_>], error: &StoreError, now: Timestamp) {
        if !matches!(error, StoreError::Broken(_)) {
            return;
        }
        let quoted =
            |take: &Take<'_>| format!("\"{}\"", wire::key(take.state).as_slice().escape_ascii());
        let keys: Vec<String> = takes.iter().take(MOST_KEYS).map(quoted).collect();
        let text = format!("the fallback decides about the key {}: {error}", keys.join(" or "));
        *lock(&self.last) = Some(Sighting { at: now, text });
    }

    /// Which key the store could not answer for lately, and why.
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
    fn a_key_is_named_for_a_while_after_it_was_last_asked_for() {
        let limit = Limit::new(10, Span::from_secs(60), Algorithm::TOKEN_BUCKET).unwrap();
        let takes = [Take::new(StateId(7), &limit, Cost::ONE)];
        let foreign = Foreign::default();
        assert_eq!(foreign.complaint(at(0)), None);
        let broken = StoreError::Broken("WRONGTYPE".to_owned());
        foreign.note(&takes, &broken, at(1));
        foreign.note(&takes, &broken, at(5));
        let text = foreign.complaint(at(14)).unwrap();
        assert!(text.contains(r#""{AA}\x00\x00"#) && text.contains("WRONGTYPE"), "{text}");
        assert_eq!(foreign.complaint(at(15)), None);
    }

    /// A store that is away says nothing about its data.
    #[test]
    fn an_outage_is_not_blamed_on_a_key() {
        let foreign = Foreign::default();
        foreign.note(&[], &StoreError::TimedOut(Span::from_secs(1)), at(1));
        assert_eq!(foreign.complaint(at(1)), None);
    }
}
