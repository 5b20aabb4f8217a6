//! What one limit remembers about one key.
//!
//! ```text
//!   fixed_window, token_bucket, leaky_bucket   Word      8 bytes
//!   sliding_weighted                           Word      8 bytes, or a Pair of 16 for large limits
//!   sliding_buckets                            Buckets  16 bytes, and 2 (or 4) per counter
//!   sliding_log                                Log      16 bytes, and about 2 per hit
//! ```
//!
//! A state has a meaning only together with the limit under which it was written: the same word stands for a different
//! use under a different rate. [`Written`](crate::Written) keeps the two together.

mod buckets;
mod log;

pub use buckets::Buckets;
pub use log::Log;

use crate::varint;

/// The first byte of an encoded state says which kind it is.
const KIND_WORD: u8 = 1;
const KIND_PAIR: u8 = 2;
const KIND_BUCKETS: u8 = 3;
const KIND_LOG: u8 = 4;

/// What one limit remembers about one key.
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
    /// Nothing is remembered. Every algorithm starts here and returns here when everything has expired.
    #[default]
    Empty,
    /// A window number with its count, or the tick at which nothing of a bucket is in use any more.
    Word(u64),
    /// The running window as a word, and the count of the window before it.
    Pair([u64; 2]),
    /// The counters of the sub-windows.
    Buckets(Box<Buckets>),
    /// The times and costs of single takes.
    Log(Box<Log>),
}

/// The content of a state as plain numbers, independent of how the core packs it.
///
/// A store that counts elsewhere (in a script or in a file) has its own format for states. It converts between that format
/// and the packed [`State`] through this type.
///
/// ```text
///   Word(0x0000_001c_2000_0003)  under 3/min fixed_window   ⇄   Window { number: 28, count: 3 }
/// ```
///
/// ```
/// use tidegate_core::{Algorithm, Ask, Cost, Limit, StateContents, Span, Timestamp, Written};
/// let limit = Limit::new(3, Span::from_secs(60), Algorithm::FIXED_WINDOW).unwrap();
/// let mut written = Written::empty(&limit);
/// let now = Timestamp::from_nanos(61_000_000_000);
/// limit.take(&mut written, &Ask::new(now, Cost::new(2)));
/// let contents = written.remembered(now);
/// assert_eq!(contents, StateContents::Window { number: 1, count: 2 });
/// assert_eq!(limit.remember(&contents), written.state);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateContents {
    /// Nothing is remembered.
    Nothing,
    /// A window and its count.
    Window {
        /// The window's number. With `align: first` it is the window's start in steps, with a calendar its start in
        /// minutes.
        number: u64,
        /// The count of this window.
        count: u64,
    },
    /// A window, its count, and the count of the window before it.
    Windows {
        /// The window's number.
        number: u64,
        /// The count of this window.
        cur: u64,
        /// The count of the window before it.
        prev: u64,
    },
    /// The sub-windows whose count is not 0, oldest first.
    Buckets {
        /// The number of the newest sub-window, whose count may be 0.
        newest: u64,
        /// Sub-window numbers and their counts.
        counts: Vec<(u64, u64)>,
    },
    /// Takes, oldest first: their times in steps, and their costs.
    Log(Vec<(u64, u64)>),
    /// The tick at which nothing of a bucket is in use any more.
    Zero(u64),
}

// === impl State ===

impl State {
    /// The number of bytes that this state takes, without its key.
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

    /// Appends this state as bytes, for stores that keep bytes. [`State::read`] reads them back.
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

    /// The state that [`State::write`] wrote as these bytes. Bytes that are not a valid state read as empty.
    ///
    /// ```
    /// use tidegate_core::State;
    /// assert_eq!(State::read(&[]), State::Empty);
    /// assert_eq!(State::read(&[0xff, 0xff]), State::Empty); // not a valid state
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

    /// The word of a one-word state; 0 if empty.
    pub(crate) const fn word(&self) -> u64 {
        if let Self::Word(word) = self { *word } else { 0 }
    }

    /// A one-word state; empty if the word is 0.
    pub(crate) const fn of_word(word: u64) -> Self {
        if word == 0 { Self::Empty } else { Self::Word(word) }
    }
}
