//! `CL.THROTTLE key max_burst count period [quantity]`, as redis-cell answers it.
//!
//! ```text
//!   max_burst 14, count 15, period 1  =  a token bucket of 15 that is refilled with 15 per second
//!   reply: limited 0|1 · limit (max_burst + 1) · remaining · retry after s (-1: allowed, or never) · reset after s
//! ```
//!
//! `DEL key …` forgets what was counted, as it does where redis-cell keeps its counters.
//!
//! Where redis-cell reports an error, the same text is used here. What it accepts by accident, such as a negative quantity
//! that gives tokens back, is refused.

use super::reply;
use std::collections::HashMap;
use std::rc::Rc;
use tidegate::{Algorithm, Cost, Decision, Limit, NamedLimit, Outcome, Retry, Span};
use tidegate_core::Refill;

/// The limit and the cost of a `CL.THROTTLE` command.
#[derive(Clone, Debug)]
pub(crate) struct Throttle {
    pub(crate) limit: Rc<KnownLimit>,
    pub(crate) cost: Cost,
}

/// A limit, with the part of its replies that is always the same.
#[derive(Debug)]
pub(crate) struct KnownLimit {
    pub(crate) named: NamedLimit,
    /// The first two of the five numbers of a reply, if the command passes and if it is limited.
    begins: [Vec<u8>; 2],
}

/// Caches limits by their parameters, so that each is compiled once and not for every command.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    known: HashMap<[i64; 3], Rc<KnownLimit>>,
    /// The limit of the previous command, which is nearly always that of the next one: a fast path without hashing.
    last: Option<([i64; 3], Rc<KnownLimit>)>,
}

/// The cache is emptied when it holds this many limits. Ordinary clients use a handful; a client that uses a new limit for
/// every command pays for compiling it.
const MOST_LIMITS: usize = 4_096;

impl Limits {
    /// The limit whose counters `DEL` deletes. Burst, count and period are not part of a counter's name, so this one stands for
    /// every limit that a `CL.THROTTLE` can name.
    pub(crate) fn any(&mut self) -> Result<Rc<KnownLimit>, String> {
        self.limit([0, 1, 1])
    }

    /// Reads the arguments of a command.
    pub(crate) fn read(&mut self, words: &[&[u8]]) -> Result<Throttle, String> {
        let (numbers, quantity) = match words {
            [_, burst, count, period] => ([*burst, *count, *period], None),
            [_, burst, count, period, quantity] => ([*burst, *count, *period], Some(*quantity)),
            _ => {
                return Err("Cell error: Store error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]".to_owned());
            }
        };
        let [burst, count, period] = numbers.map(number);
        let parameters = [burst?, count?, period?];
        let quantity = quantity.map_or(Ok(1), number)?;
        let cost = u64::try_from(quantity).map_err(|_| {
            "ERR the quantity is negative; use TG.REPORT to give tokens back".to_owned()
        })?;
        Ok(Throttle { limit: self.limit(parameters)?, cost: cost.into() })
    }

    fn limit(&mut self, parameters: [i64; 3]) -> Result<Rc<KnownLimit>, String> {
        if let Some((_, limit)) = self.last.as_ref().filter(|(known, _)| *known == parameters) {
            return Ok(Rc::clone(limit));
        }
        let limit = match self.known.get(&parameters) {
            Some(limit) => Rc::clone(limit),
            None => {
                let limit = Rc::new(KnownLimit::new(compiled(parameters)?));
                if self.known.len() >= MOST_LIMITS {
                    self.known.clear();
                }
                self.known.insert(parameters, Rc::clone(&limit));
                limit
            }
        };
        self.last = Some((parameters, Rc::clone(&limit)));
        Ok(limit)
    }
}

/// A number, or the error of redis-cell for a word that is not one.
fn number(word: &[u8]) -> Result<i64, String> {
    if let Some(number) = plain_digits(word) {
        return Ok(number);
    }
    let number = str::from_utf8(word).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| {
        format!("Cell error: Store error: Couldn't parse as integer: {}", reply::quoted(word))
    })
}

/// A number of so few digits that it cannot overflow: nearly every number of a command.
fn plain_digits(word: &[u8]) -> Option<i64> {
    if word.is_empty() || word.len() > 18 {
        return None;
    }
    word.iter().try_fold(0_i64, |number, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit < 10).then(|| number.wrapping_mul(10).wrapping_add(digit.into()))
    })
}

fn compiled([burst, count, period]: [i64; 3]) -> Result<Limit, String> {
    if count == 0 || period == 0 {
        return Err("Cell error: Store error: Zero rates are not supported".to_owned());
    }
    let positive = |number: i64, name: &str| {
        u64::try_from(number).map_err(|_| format!("ERR the {name} is negative"))
    };
    let (burst, count) = (positive(burst, "max_burst")?, positive(count, "count per period")?);
    let period = Span::from_secs(positive(period, "period")?);
    let algorithm =
        Algorithm::TokenBucket { burst: Some(burst.saturating_add(1)), refill: Refill::Continuous };
    Limit::new(count, period, algorithm).map_err(|error| format!("ERR {error}"))
}

impl KnownLimit {
    fn new(limit: Limit) -> Self {
        let begin = |limited: i64| {
            let mut begin = vec![];
            reply::list(&mut begin, 5);
            reply::integer(&mut begin, limited);
            reply::integer(&mut begin, whole(limit.capacity()));
            begin
        };
        let begins = [begin(0), begin(1)];
        Self { named: NamedLimit::new(limit), begins }
    }

    /// Writes the five numbers of the reply.
    pub(crate) fn write(&self, out: &mut Vec<u8>, decision: &Decision) {
        let [passes, limited] = &self.begins;
        let (begin, retry) = match decision.outcome {
            Outcome::Allow | Outcome::Delay(_) => (passes, -1),
            Outcome::Deny(Retry::After(wait)) => (limited, seconds(wait)),
            Outcome::Deny(Retry::Never) => (limited, -1),
        };
        out.extend_from_slice(begin);
        reply::integer(out, whole(decision.remaining));
        reply::integer(out, retry);
        reply::integer(out, decision.reset.map_or(0, seconds));
    }
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Whole seconds, rounded up, after fractions of a millisecond are cut off: as redis-cell rounds.
fn seconds(span: Span) -> i64 {
    let millis = span.as_nanos().checked_div(1_000_000).unwrap_or(0);
    i64::try_from(millis.div_ceil(1_000)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(words: &[&str]) -> String {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        Limits::default().read(&words).unwrap_err()
    }

    #[test]
    fn errors_have_the_texts_of_redis_cell() {
        let usage = "Cell error: Store error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";
        for (words, error) in [
            (&["k"][..], usage),
            (&["k", "1", "2"], usage),
            (&["k", "1", "2", "3", "4", "5"], usage),
            (&["k", "x", "30", "60"], "Cell error: Store error: Couldn't parse as integer: x"),
            (&["k", "15", "1e3", "60"], "Cell error: Store error: Couldn't parse as integer: 1e3"),
            (
                &["k", "15", "0x10", "60"],
                "Cell error: Store error: Couldn't parse as integer: 0x10",
            ),
            (&["k", "15", " 5", "60"], "Cell error: Store error: Couldn't parse as integer:  5"),
            (&["k", "15", "", "60"], "Cell error: Store error: Couldn't parse as integer: "),
            (
                &["k", "9223372036854775808", "30", "60"],
                "Cell error: Store error: Couldn't parse as integer: 9223372036854775808",
            ),
            (&["k", "15", "0", "60"], "Cell error: Store error: Zero rates are not supported"),
            (&["k", "15", "30", "0"], "Cell error: Store error: Zero rates are not supported"),
            (&["k", "-1", "30", "60"], "ERR the max_burst is negative"),
            (&["k", "15", "-30", "60"], "ERR the count per period is negative"),
            (&["k", "15", "30", "-60"], "ERR the period is negative"),
            (
                &["k", "15", "30", "60", "-1"],
                "ERR the quantity is negative; use TG.REPORT to give tokens back",
            ),
        ] {
            assert_eq!(refused(words), error, "{words:?}");
        }
        assert!(
            refused(&["k", "9223372036854775807", "1", "9223372036854775807"]).starts_with("ERR ")
        );
    }

    #[test]
    fn numbers_are_read_as_the_standard_library_reads_them() {
        for text in [
            "0",
            "7",
            "007",
            "1000000",
            "999999999999999999",
            "1000000000000000000",
            "9223372036854775807",
            "9223372036854775808",
            "-1",
            "+5",
            "",
            "-",
            "1 ",
            "1:",
            "1/",
            "٣",
        ] {
            assert_eq!(number(text.as_bytes()).ok(), text.parse().ok(), "{text}");
        }
    }

    #[test]
    fn a_limit_is_compiled_once() {
        let mut limits = Limits::default();
        let words: [&[u8]; 4] = [b"k", b"14", b"15", b"1"];
        let first = limits.read(&words).unwrap().limit;
        let other: [&[u8]; 4] = [b"k", b"14", b"15", b"2"];
        limits.read(&other).unwrap();
        assert!(Rc::ptr_eq(&first, &limits.read(&words).unwrap().limit));
    }
}
