//! A receipt as signed text.
//!
//! ```text
//!   version │ id │ until │ node │ cost │ parts … │ HMAC-SHA-256 of everything before      in URL-safe base64
//! ```
//!
//! A part of a concurrency limit ends with what is known about its permit: rule, since, taken.
//!
//! Numbers are written as LEB128 (seven bits per byte). Of a calendar only the window of the take is written, which is all
//! that giving back needs.

use super::{PermitRecord, Receipt, ReceiptPart};
use tidegate_core::{
    Algorithm, Align, Bound, Calendar, Cost, Headroom, Limit, Period, Refill, Span, StateId,
    Timestamp, varint,
};
use tidegate_policy::Count;
use tidegate_store::{ReceiptId, Secret};

const VERSION: u64 = 1;
/// The longest text that is read: twice the length of a receipt with sixteen parts.
const LONGEST: usize = 4 * 1024;
const MOST_PARTS: u64 = 16;
const SIGNATURE: usize = 32;

/// Writes and signs a receipt.
pub(crate) fn encode(receipt: &Receipt, secret: &Secret) -> String {
    let mut bytes = Vec::new();
    put(&mut bytes, VERSION);
    varint::encode_wide(&mut bytes, receipt.id.0);
    put(&mut bytes, receipt.until.as_nanos());
    put(&mut bytes, receipt.node);
    put(&mut bytes, receipt.cost.get());
    put(&mut bytes, u64::try_from(receipt.parts.len()).unwrap_or(u64::MAX));
    receipt.parts.iter().for_each(|part| put_part(&mut bytes, part));
    let signature = secret.sign(&bytes);
    bytes.extend(signature);
    data_encoding::BASE64URL_NOPAD.encode(&bytes)
}

/// Reads a receipt; `None` if it is malformed or not signed with this secret.
pub(crate) fn decode(text: &str, secret: &Secret) -> Option<Receipt> {
    if text.len() > LONGEST {
        return None;
    }
    let bytes = data_encoding::BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
    let (message, signature) = bytes.split_at_checked(bytes.len().checked_sub(SIGNATURE)?)?;
    if secret.signed(message, signature) { take_receipt(message) } else { None }
}

fn take_receipt(mut rest: &[u8]) -> Option<Receipt> {
    if take(&mut rest)? != VERSION {
        return None;
    }
    let id = ReceiptId(take_wide(&mut rest)?);
    let until = Timestamp::from_nanos(take(&mut rest)?);
    let node = take(&mut rest)?;
    let cost = Cost::new(take(&mut rest)?);
    let count = take(&mut rest).filter(|count| *count <= MOST_PARTS)?;
    let parts = (0..count).map(|_| take_part(&mut rest)).collect::<Option<_>>()?;
    rest.is_empty().then_some(Receipt { id, until, node, cost, parts })
}

// === parts ===

/// What is added to the percentage of a [`Bound::Part`].
const PARTS: u64 = 2;
/// What is added to the number of a [`Count`] if the mark of the part is the end of a slot.
const SLOTS: u64 = 3;

fn put_part(bytes: &mut Vec<u8>, part: &ReceiptPart) {
    varint::encode_wide(bytes, part.state.0);
    put(
        bytes,
        match part.bound {
            Bound::Plain => 0,
            Bound::Headroom => 1,
            Bound::Part(percent) => u64::from(percent).saturating_add(PARTS),
        },
    );
    let count = match part.count {
        Count::All => 0,
        Count::Failures => 1,
        Count::Successes => 2,
    };
    put(bytes, if part.receipt.is_slot { SLOTS.saturating_add(count) } else { count });
    put(bytes, part.receipt.mark);
    put(bytes, part.receipt.weight);
    put_limit(bytes, &part.limit, part.receipt.mark);
    if let Some(PermitRecord { rule, since, taken }) = part.permit {
        put(bytes, u64::try_from(rule).unwrap_or(u64::MAX));
        put(bytes, since.as_nanos());
        put(bytes, taken.as_nanos());
    }
}

fn take_part(rest: &mut &[u8]) -> Option<ReceiptPart> {
    let state = StateId(take_wide(rest)?);
    let bound = match take(rest)? {
        0 => Bound::Plain,
        1 => Bound::Headroom,
        part => Bound::Part(u8::try_from(part.checked_sub(PARTS)?).ok()?),
    };
    let count = take(rest)?;
    let is_slot = count >= SLOTS;
    let count = match if is_slot { count.checked_sub(SLOTS)? } else { count } {
        0 => Count::All,
        1 => Count::Failures,
        2 => Count::Successes,
        _ => return None,
    };
    let receipt = tidegate_core::TakeReceipt { mark: take(rest)?, weight: take(rest)?, is_slot };
    let limit = take_limit(rest)?;
    let permit = match limit.lease() {
        Some(_) => Some(take_permit(rest)?),
        None => None,
    };
    Some(ReceiptPart { state, limit, bound, count, receipt, permit })
}

fn take_permit(rest: &mut &[u8]) -> Option<PermitRecord> {
    let rule = usize::try_from(take(rest)?).ok()?;
    let [since, taken] = [take(rest)?, take(rest)?].map(Timestamp::from_nanos);
    Some(PermitRecord { rule, since, taken })
}

// === limits ===

const NANOS_PER_MINUTE: u64 = 60_000_000_000;

fn put_limit(bytes: &mut Vec<u8>, limit: &Limit, mark: u64) {
    put(bytes, limit.amount());
    put_period(bytes, limit.period(), mark);
    put_algorithm(bytes, limit.algorithm());
    let (headroom, percent) = match limit.headroom() {
        Headroom::None => (0, 0),
        Headroom::Soft(percent) => (1, u64::from(percent)),
        Headroom::Elastic(percent) => (2, u64::from(percent)),
    };
    put(bytes, headroom);
    put(bytes, percent);
}

fn take_limit(rest: &mut &[u8]) -> Option<Limit> {
    let amount = take(rest)?;
    let period = take_period(rest)?;
    let algorithm = take_algorithm(rest)?;
    let headroom = match (take(rest)?, take(rest)?.try_into().ok()?) {
        (0, _) => Headroom::None,
        (1, percent) => Headroom::Soft(percent),
        (2, percent) => Headroom::Elastic(percent),
        _ => return None,
    };
    Limit::new(amount, period, algorithm).ok()?.with_headroom(headroom).ok()
}

fn put_period(bytes: &mut Vec<u8>, period: &Period, mark: u64) {
    match period {
        Period::Every(span) => {
            put(bytes, 0);
            put(bytes, span.as_nanos());
        }
        Period::Calendar(calendar) => {
            // The mark of a window is the minute in which it begins.
            let (start, end) =
                calendar.window(Timestamp::from_nanos(mark.saturating_mul(NANOS_PER_MINUTE)));
            put(bytes, 1);
            put(bytes, start.as_nanos());
            put(bytes, end.map_or(0, Timestamp::as_nanos));
        }
    }
}

fn take_period(rest: &mut &[u8]) -> Option<Period> {
    match take(rest)? {
        0 => Some(Period::Every(Span::from_nanos(take(rest)?))),
        1 => {
            let boundaries = [take(rest)?, take(rest)?].into_iter().enumerate();
            let known = boundaries.filter(|(at, nanos)| *at == 0 || *nanos > 0);
            let known = known.map(|(_, nanos)| Timestamp::from_nanos(nanos));
            Some(Period::Calendar(Calendar::new(known).ok()?))
        }
        _ => None,
    }
}

fn put_algorithm(bytes: &mut Vec<u8>, algorithm: Algorithm) {
    let (kind, option, flag) = match algorithm {
        Algorithm::FixedWindow { align: Align::Epoch } => (0, None, 0),
        Algorithm::FixedWindow { align: Align::First } => (0, None, 1),
        Algorithm::SlidingLog => (1, None, 0),
        Algorithm::SlidingBuckets { buckets } => (2, Some(u64::from(buckets)), 0),
        Algorithm::SlidingWeighted => (3, None, 0),
        Algorithm::TokenBucket { burst, refill: Refill::Continuous } => (4, burst, 0),
        Algorithm::TokenBucket { burst, refill: Refill::Interval } => (4, burst, 1),
        Algorithm::LeakyBucket { queue } => (5, queue, 0),
        Algorithm::Concurrent => (6, None, 0),
    };
    let option = option.map_or([0, 0], |option| [1, option]);
    for number in [kind, option[0], option[1], flag] {
        put(bytes, number);
    }
}

fn take_algorithm(rest: &mut &[u8]) -> Option<Algorithm> {
    let kind = take(rest)?;
    let option = match (take(rest)?, take(rest)?) {
        (0, _) => None,
        (1, option) => Some(option),
        _ => return None,
    };
    Some(match (kind, take(rest)?) {
        (0, 0) => Algorithm::FixedWindow { align: Align::Epoch },
        (0, 1) => Algorithm::FixedWindow { align: Align::First },
        (1, 0) => Algorithm::SlidingLog,
        (2, 0) => Algorithm::SlidingBuckets { buckets: option?.try_into().ok()? },
        (3, 0) => Algorithm::SlidingWeighted,
        (4, 0) => Algorithm::TokenBucket { burst: option, refill: Refill::Continuous },
        (4, 1) => Algorithm::TokenBucket { burst: option, refill: Refill::Interval },
        (5, 0) => Algorithm::LeakyBucket { queue: option },
        (6, 0) => Algorithm::Concurrent,
        _ => return None,
    })
}

// === numbers ===

fn put(bytes: &mut Vec<u8>, number: u64) {
    varint::encode(bytes, number);
}

fn take(rest: &mut &[u8]) -> Option<u64> {
    let (number, end) = varint::decode(rest, 0)?;
    *rest = rest.get(end..)?;
    Some(number)
}

fn take_wide(rest: &mut &[u8]) -> Option<u128> {
    let (number, end) = varint::decode_wide(rest, 0)?;
    *rest = rest.get(end..)?;
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt() -> Receipt {
        let minute = 60_000_000_000;
        let days =
            Calendar::new([1, 2, 3].map(|n| Timestamp::from_nanos(n * 1_440 * minute))).unwrap();
        let limits: Vec<Limit> = Algorithm::ALL
            .iter()
            .map(|algorithm| Limit::new(7, Span::from_secs(60), *algorithm).unwrap())
            .chain([
                Limit::new(7, days, Algorithm::FIXED_WINDOW).unwrap(),
                Limit::new(7, Span::from_secs(60), Algorithm::FixedWindow { align: Align::First })
                    .unwrap(),
                Limit::new(
                    7,
                    Span::from_secs(60),
                    Algorithm::TokenBucket { burst: Some(9), refill: Refill::Interval },
                )
                .unwrap(),
                Limit::new(7, Span::from_secs(60), Algorithm::LeakyBucket { queue: Some(0) })
                    .unwrap()
                    .with_headroom(Headroom::Soft(10))
                    .unwrap(),
                Limit::new(7, Span::from_secs(60), Algorithm::Concurrent).unwrap(),
            ])
            .collect();
        let permit = |limit: &Limit| {
            let [since, taken] = [11, u64::MAX].map(Timestamp::from_nanos);
            limit.lease().map(|_| PermitRecord { rule: 3, since, taken })
        };
        let parts = (0u64..).zip(limits).map(|(n, limit)| ReceiptPart {
            permit: permit(&limit),
            state: StateId(u128::MAX - u128::from(n)),
            limit,
            bound: [Bound::Plain, Bound::Headroom, Bound::Part(1), Bound::Part(99)]
                [usize::try_from(n % 4).unwrap()],
            count: [Count::All, Count::Failures, Count::Successes][usize::try_from(n % 3).unwrap()],
            receipt: tidegate_core::TakeReceipt {
                mark: 1_440 + n,
                weight: u64::MAX - n,
                is_slot: n % 2 == 1,
            },
        });
        Receipt {
            id: ReceiptId(u128::MAX / 3),
            until: Timestamp::from_nanos(u64::MAX),
            node: 5,
            cost: Cost::new(3),
            parts: parts.collect(),
        }
    }

    #[test]
    fn a_receipt_survives_writing_and_reading() {
        let (receipt, secret) = (receipt(), Secret::new([7; 32]));
        let text = encode(&receipt, &secret);
        let read = decode(&text, &secret).unwrap();
        // A calendar is read as the one window of the take.
        let day = |nanos: u64| Timestamp::from_nanos(nanos * 1_440 * 60_000_000_000);
        let window =
            Limit::new(7, Calendar::new([day(1), day(2)]).unwrap(), Algorithm::FIXED_WINDOW)
                .unwrap();
        let mut expected = receipt;
        expected.parts[6].limit = window;
        assert_eq!(read, expected);
    }

    #[test]
    fn a_modified_receipt_is_rejected() {
        let secret = Secret::new([7; 32]);
        let text = encode(&receipt(), &secret);
        for at in 0..text.len() {
            let mut forged = text.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            let forged = String::from_utf8(forged).unwrap();
            assert_eq!(decode(&forged, &secret), None, "{at}");
        }
        for length in 0..text.len() {
            assert_eq!(decode(&text[..length], &secret), None);
        }
        assert_eq!(decode(&text, &Secret::new([8; 32])), None);
        assert_eq!(decode(&"A".repeat(1_000_000), &secret), None);
        assert_eq!(decode("é", &secret), None);
    }

    /// Reading stays within bounds even if the signature is valid.
    #[test]
    fn signed_garbage_is_read_within_bounds() {
        let secret = Secret::new([7; 32]);
        for length in 0..200u8 {
            for fill in [0u8, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = vec![fill; usize::from(length)];
                if let Some(first) = bytes.first_mut() {
                    *first = 1;
                }
                let signature = secret.sign(&bytes);
                bytes.extend(signature);
                decode(&data_encoding::BASE64URL_NOPAD.encode(&bytes), &secret);
            }
        }
    }
}
