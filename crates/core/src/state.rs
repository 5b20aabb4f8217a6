//! What one limit remembers of one key, and the proof of a take.
//!
//! ```text
//!   fixed_window, token_bucket, leaky_bucket   Word      8 bytes
//!   sliding_weighted                           Word     8 bytes, a Pair of 16 for large limits
//!   sliding_buckets                            Buckets  16 bytes and 2 (or 4) a counter
//!   sliding_log                                Log      16 bytes and about 2 a hit
//! ```
//!
//! A state means nothing without the limit it was written under: the same word is another use under
//! another rate. [`Written`] keeps the two together. When the limit was edited in between, the verbs
//! of [`Limit`] read the state by its old shape and write it, if they write, under the new one.

use crate::algorithm::sliding_buckets::Buckets;
use crate::algorithm::sliding_log::Log;
use crate::limit::Limit;
use crate::varint;

/// The first byte of a state that is written as bytes.
const KIND_WORD: u8 = 1;
const KIND_PAIR: u8 = 2;
const KIND_BUCKETS: u8 = 3;
const KIND_LOG: u8 = 4;

/// What one limit remembers of one key.
///
/// ```
/// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, State, Timestamp, Written};
/// let limit = Limit::new(500, Span::from_secs(3600), Algorithm::TOKEN_BUCKET).unwrap();
/// let mut written = Written::empty(&limit);
/// assert_eq!(written.state, State::Empty);
/// limit.take(&mut written, &Ask::new(Timestamp::EPOCH, Cost::ONE));
/// assert!(matches!(written.state, State::Word(_)));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Nothing is remembered. Every algorithm starts here and comes back to it when all is expired.
    #[default]
    Empty,
    /// A window's number and count, or the tick at which a bucket is empty again.
    Word(u64),
    /// The running window as a word, and the count of the one before it.
    Pair([u64; 2]),
    /// Counters of sub-windows.
    Buckets(Box<Buckets>),
    /// Times and costs of single takes.
    Log(Box<Log>),
}

/// A state and the limit it was written under.
///
/// ```
/// use tidegate_core::{Algorithm, Limit, Span, State, Written};
/// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// assert_eq!(Written::empty(&limit), Written { shape: &limit, state: State::Empty });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written<'l> {
    /// The limit under which the state was written last. The verbs that write replace it.
    pub shape: &'l Limit,
    /// The state, in the units of that limit.
    pub state: State,
}

/// The proof of a take: enough to give it back, or to settle it later.
///
/// ```
/// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, Timestamp, Written};
/// let limit = Limit::new(3, Span::from_secs(60), Algorithm::FIXED_WINDOW).unwrap();
/// let mut written = Written::empty(&limit);
/// let ask = Ask::new(Timestamp::from_nanos(61_000_000_000), Cost::new(2));
/// let receipt = limit.take(&mut written, &ask).receipt.unwrap();
/// assert_eq!((receipt.mark, receipt.weight), (1, 2)); // window 1, a count of 2
/// ```
///
/// Its numbers mean something only with the limit it was taken under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakeReceipt {
    /// Where it was counted: a window's number, or the tick of a bucket.
    pub mark: u64,
    /// What was counted: a cost for windows, ticks for buckets. A charge into debt may count less
    /// than it was asked to.
    pub weight: u64,
}

// === impl State ===

impl State {
    /// How many bytes it takes to remember this, apart from the key.
    ///
    /// ```
    /// assert_eq!(tidegate_core::State::Empty.bytes(), 0);
    /// assert_eq!(tidegate_core::State::Word(7).bytes(), 8);
    /// ```
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Word(_) => 8,
            Self::Pair(_) => 16,
            Self::Buckets(buckets) => buckets.bytes(),
            Self::Log(log) => log.bytes(),
        }
    }

    /// Appends this state as bytes, for stores that keep bytes. They mean something to [`State::read`] only.
    ///
    /// ```
    /// use tidegate_core::State;
    /// let mut bytes = Vec::new();
    /// State::Pair([7, 300]).write(&mut bytes);
    /// assert_eq!(State::read(&bytes), State::Pair([7, 300]));
    /// ```
    pub fn write(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Empty => {}
            Self::Word(word) => {
                bytes.push(KIND_WORD);
                varint::encode(bytes, *word);
            }
            Self::Pair(pair) => {
                bytes.push(KIND_PAIR);
                pair.iter().for_each(|word| varint::encode(bytes, *word));
            }
            Self::Buckets(buckets) => {
                bytes.push(KIND_BUCKETS);
                buckets.write(bytes);
            }
            Self::Log(log) => {
                bytes.push(KIND_LOG);
                log.write(bytes);
            }
        }
    }

    /// The state that was written as these bytes; empty for bytes that no state was written as.
    ///
    /// ```
    /// assert_eq!(tidegate_core::State::read(&[]), tidegate_core::State::Empty);
    /// ```
    #[must_use]
    pub fn read(bytes: &[u8]) -> Self {
        let state = bytes.split_first().and_then(|(kind, bytes)| match *kind {
            KIND_WORD => Some(Self::of_word(varint::decode(bytes, 0)?.0)),
            KIND_PAIR => {
                let (first, at) = varint::decode(bytes, 0)?;
                Some(Self::Pair([first, varint::decode(bytes, at)?.0]))
            }
            KIND_BUCKETS => Some(Self::Buckets(Box::new(Buckets::read(bytes)?))),
            KIND_LOG => Some(Self::Log(Box::new(Log::read(bytes)?))),
            _ => None,
        });
        state.unwrap_or_default()
    }

    /// The word of a one-word state; 0 is empty.
    pub(crate) const fn word(&self) -> u64 {
        if let Self::Word(word) = self { *word } else { 0 }
    }

    /// A one-word state; 0 is empty.
    pub(crate) const fn of_word(word: u64) -> Self {
        if word == 0 { Self::Empty } else { Self::Word(word) }
    }
}

// === impl Written ===

impl<'l> Written<'l> {
    /// Nothing remembered yet under this limit.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, Span, State, Written};
    /// let limit = Limit::new(1, Span::from_secs(1), Algorithm::SLIDING_LOG).unwrap();
    /// assert_eq!(Written::empty(&limit).state, State::Empty);
    /// ```
    #[must_use]
    pub const fn empty(shape: &'l Limit) -> Self {
        Self { shape, state: State::Empty }
    }
}
