//! Memory for the pieces of bodies that are on their way. It comes from the proxy's own budget; while there is none, nothing
//! more is read, and TCP slows the sender down.

use crate::net::{Account, HeldBytes, POLL_EVERY};
use crate::timers;
use bytes::Bytes;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::time::Sleep;

/// Memory for the next piece of one body.
pub(crate) struct PieceRoom {
    account: Rc<Account>,
    held: Option<HeldBytes>,
    /// Exists while the body waits for memory.
    timer: Option<Pin<Box<Sleep>>>,
}

/// A piece, and the count of its bytes.
struct CountedPiece {
    bytes: Bytes,
    _held: HeldBytes,
}

impl PieceRoom {
    pub(super) const fn new(account: Rc<Account>) -> Self {
        Self { account, held: None, timer: None }
    }

    /// Waits until there is memory for a piece of this size.
    pub(super) fn poll(&mut self, bytes: usize, context: &mut Context<'_>) -> Poll<()> {
        while self.held.is_none() {
            self.held = self.account.hold(bytes);
            if self.held.is_some() {
                self.timer = None;
                break;
            }
            // The body asks again after a moment. If freed memory woke the waiting bodies, it would wake hundreds each time.
            let timer = self.timer.get_or_insert_with(|| Box::pin(timers::sleep(POLL_EVERY)));
            ready!(timer.as_mut().poll(context));
            self.timer = None;
        }
        Poll::Ready(())
    }

    /// The memory is free again, because everything was written.
    pub(super) fn release(&mut self) {
        self.held = None;
    }

    /// Lets a piece be counted until it is dropped.
    pub(super) fn counted(&mut self, bytes: Bytes) -> Bytes {
        match self.held.take() {
            Some(held) => Bytes::from_owner(CountedPiece { bytes, _held: held }),
            None => bytes,
        }
    }
}

impl AsRef<[u8]> for CountedPiece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{Budget, SourceBytes};
    use std::future::poll_fn;
    use std::sync::Arc;

    const KIB: usize = 1024;

    #[tokio::test(start_paused = true)]
    async fn a_body_waits_until_others_have_dropped_their_pieces() {
        let budget = Budget::new(64 * KIB);
        let account = Account::new(Arc::clone(&budget), SourceBytes::default());
        let mut first = PieceRoom::new(Rc::clone(&account));
        poll_fn(|context| first.poll(12 * KIB, context)).await;
        let piece = first.counted(Bytes::from_static(b"abc"));
        assert_eq!((&*piece, budget.held()), (b"abc".as_slice(), 12 * KIB));
        let mut second = PieceRoom::new(account);
        let waiting = tokio::time::timeout(POLL_EVERY * 10, poll_fn(|c| second.poll(12 * KIB, c)));
        assert!(waiting.await.is_err());
        // A part of the piece is the piece.
        let part = piece.slice(1..2);
        drop(piece);
        assert_eq!(budget.held(), 12 * KIB);
        drop(part);
        poll_fn(|context| second.poll(12 * KIB, context)).await;
        assert_eq!(budget.held(), 12 * KIB);
        second.release();
        assert_eq!(budget.held(), 0);
    }
}
