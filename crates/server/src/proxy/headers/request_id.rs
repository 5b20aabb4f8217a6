//! Request ids: a request has the same id in the logs of all servers that it passes.
//!
//! `9f86d081884c7d65000000000000002a` is request 42 of the worker with the random prefix `9f86d081884c7d65`. Ids are unique, not
//! secret: an upstream server that sees one can guess the next one.

use data_encoding::HEXLOWER;
use http::{HeaderName, HeaderValue};
use std::cell::Cell;

/// The field with the id of a request.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Bytes of the longest id that is accepted from a trusted peer. UUIDs and trace ids are shorter.
const LONGEST_ID: usize = 128;

/// Generates request ids, for one worker.
#[derive(Debug)]
pub(crate) struct RequestIds {
    /// Random, so that the ids of different workers, nodes and runs of the server differ.
    prefix: u64,
    /// The number of the next request.
    next: Cell<u64>,
}

/// Whether an id from a trusted peer is kept: it is written to logs, so it is short and visible.
pub(super) fn is_valid_id(id: &HeaderValue) -> bool {
    (1..=LONGEST_ID).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
}

// === impl RequestIds ===

impl RequestIds {
    /// Ids that begin with this number. It must be random, and differ from worker to worker.
    pub(crate) const fn with_prefix(prefix: u64) -> Self {
        Self { prefix, next: Cell::new(0) }
    }

    /// The next id: 32 hexadecimal digits.
    pub(crate) fn next(&self) -> String {
        let number = self.next.get();
        // 2⁶⁴ requests take longer than the server runs.
        self.next.set(number.wrapping_add(1));
        let mut id = String::with_capacity(32);
        HEXLOWER.encode_append(&self.prefix.to_be_bytes(), &mut id);
        HEXLOWER.encode_append(&number.to_be_bytes(), &mut id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_the_prefix_and_a_number() {
        let ids = RequestIds { prefix: 0x9f86_d081_884c_7d65, next: Cell::new(42) };
        assert_eq!(ids.next(), "9f86d081884c7d65000000000000002a");
        assert_eq!(ids.next(), "9f86d081884c7d65000000000000002b");
        let last = RequestIds { prefix: 0, next: Cell::new(u64::MAX) };
        assert_eq!(last.next(), "0000000000000000ffffffffffffffff");
        assert_eq!(last.next(), "00000000000000000000000000000000");
    }

    #[test]
    fn an_id_is_allocated_once_and_valid() {
        let id = RequestIds::with_prefix(7).next();
        assert_eq!((id.len(), id.capacity()), (32, 32));
        assert!(is_valid_id(&HeaderValue::try_from(id).unwrap()));
    }

    #[test]
    fn workers_have_different_prefixes() {
        let [one, other] = [7, 8].map(|prefix| RequestIds::with_prefix(prefix).next());
        assert_ne!(one, other);
    }
}
