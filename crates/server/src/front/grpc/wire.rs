//! The protobuf messages of `envoy.service.ratelimit.v3`, parsed without copying and written in one pass.
//!
//! ```text
//!   0a 02 "rl"   12 0e ( 0a 0c ( 0a 03 "foo" 12 05 "alice" ) )   18 01
//!   domain       a descriptor: an entry: a key, a value          hits_addend
//! ```
//!
//! Unknown fields are skipped, as protobuf requires. Bytes that are not a valid message are an error: wrong wire types, groups,
//! varints of more than ten bytes, names that are not UTF-8. Only a proxy can get these wrong. Values come from clients, so
//! they may be any bytes. A message with more descriptors or entries than the bounds allow, or with a limit in an unknown unit,
//! is *undecided*: the call is denied and not answered with an error, because a proxy may let a call pass after an error.
//!
//! Varints are read and written here and not by the code of the file formats, because protobuf has other bounds: up to ten
//! bytes, of which the tenth has one significant bit and its other bits are ignored.

use super::value_text::text;
use crate::bounds;
use serde_json::{Map, Value};
use smallvec::SmallVec;
use std::borrow::Cow;
use tidegate::{Descriptor, DescriptorStatus, Span};
use tidegate_policy::Unit;

/// `RateLimitRequest`.
#[derive(Debug)]
pub(super) struct RateLimitRequest<'b> {
    pub(super) domain: &'b str,
    pub(super) descriptors: SmallVec<[Descriptor<'b>; 2]>,
    pub(super) hits: u32,
}

/// Why bytes are not a valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MessageError {
    #[error("the message is cut short")]
    CutShort,
    #[error("a number has more than ten bytes")]
    Endless,
    #[error("a field has the number 0")]
    Zero,
    #[error("a field is a group, which is not supported")]
    Group,
    #[error("a field has the wrong wire type")]
    Kind,
    #[error("a name is not UTF-8")]
    Utf8,
    #[error("`domain` is empty")]
    NoDomain,
    #[error("more than {} descriptors", bounds::DESCRIPTORS)]
    Descriptors,
    #[error("a descriptor has more than {} entries", bounds::ENTRIES)]
    Entries,
    #[error("an entry has an empty key")]
    NoKey,
    #[error("the limit of a descriptor has the unit {0}, which does not exist")]
    Unit(u64),
}

/// The value of a field, by wire type.
enum FieldValue<'b> {
    Number(u64),
    Bytes(&'b [u8]),
    /// Four or eight bytes; no known field has this wire type.
    Fixed,
}

/// The unread bytes of a message.
struct MessageReader<'b>(&'b [u8]);

impl<'b> RateLimitRequest<'b> {
    pub(super) fn read(bytes: &'b [u8]) -> Result<Self, MessageError> {
        let mut request = Self { domain: "", descriptors: SmallVec::new(), hits: 0 };
        let mut message = MessageReader(bytes);
        while let Some((number, field)) = message.next()? {
            match number {
                1 => request.domain = field.text()?,
                2 => {
                    if request.descriptors.len() >= bounds::DESCRIPTORS {
                        return Err(MessageError::Descriptors);
                    }
                    request.descriptors.push(descriptor(field.bytes()?)?);
                }
                3 => request.hits = field.narrow()?,
                _ => {}
            }
        }
        if request.domain.is_empty() { Err(MessageError::NoDomain) } else { Ok(request) }
    }
}

impl MessageError {
    /// Whether the message is well-formed but cannot be decided.
    pub(super) const fn is_undecided(self) -> bool {
        match self {
            Self::Descriptors | Self::Entries | Self::Unit(_) => true,
            Self::CutShort
            | Self::Endless
            | Self::Zero
            | Self::Group
            | Self::Kind
            | Self::Utf8
            | Self::NoDomain
            | Self::NoKey => false,
        }
    }
}

fn descriptor(bytes: &[u8]) -> Result<Descriptor<'_>, MessageError> {
    let mut descriptor = Descriptor::default();
    let mut limit = None;
    let mut message = MessageReader(bytes);
    while let Some((number, field)) = message.next()? {
        match number {
            1 => {
                if descriptor.entries.len() >= bounds::ENTRIES {
                    return Err(MessageError::Entries);
                }
                descriptor.entries.push(entry(field.bytes()?)?);
            }
            2 => limit = Some(limit_override(field.bytes()?, limit.unwrap_or_default())?),
            3 => {
                let before = descriptor.hits.unwrap_or_default();
                descriptor.hits = Some(wrapped(field.bytes()?, before)?);
            }
            4 => descriptor.gives_back = field.number()? != 0,
            _ => {}
        }
    }
    if let Some((amount, unit)) = limit {
        let unit = Unit::numbered(unit).ok_or(MessageError::Unit(unit))?;
        descriptor.limit = Some((amount, unit));
    }
    Ok(descriptor)
}

fn entry(bytes: &[u8]) -> Result<(&str, Cow<'_, str>), MessageError> {
    let (mut key, mut value) = ("", &b""[..]);
    let mut message = MessageReader(bytes);
    while let Some((number, field)) = message.next()? {
        match number {
            1 => key = field.text()?,
            2 => value = field.bytes()?,
            _ => {}
        }
    }
    if key.is_empty() { Err(MessageError::NoKey) } else { Ok((key, text(value))) }
}

/// `RateLimitOverride`: the amount, and the number of its unit.
fn limit_override(bytes: &[u8], before: (u32, u64)) -> Result<(u32, u64), MessageError> {
    let (mut amount, mut unit) = before;
    let mut message = MessageReader(bytes);
    while let Some((number, field)) = message.next()? {
        match number {
            1 => amount = field.narrow()?,
            2 => unit = field.number()?,
            _ => {}
        }
    }
    Ok((amount, unit))
}

/// `UInt64Value`.
fn wrapped(bytes: &[u8], before: u64) -> Result<u64, MessageError> {
    let (mut value, mut message) = (before, MessageReader(bytes));
    while let Some((number, field)) = message.next()? {
        if number == 1 {
            value = field.number()?;
        }
    }
    Ok(value)
}

// === impl MessageReader ===

impl<'b> MessageReader<'b> {
    fn next(&mut self) -> Result<Option<(u64, FieldValue<'b>)>, MessageError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.number()?;
        let number = tag >> 3;
        if number == 0 {
            return Err(MessageError::Zero);
        }
        let field = match tag & 7 {
            0 => FieldValue::Number(self.number()?),
            1 => {
                self.take(8)?;
                FieldValue::Fixed
            }
            2 => {
                let length = usize::try_from(self.number()?).map_err(|_| MessageError::CutShort)?;
                FieldValue::Bytes(self.take(length)?)
            }
            5 => {
                self.take(4)?;
                FieldValue::Fixed
            }
            _ => return Err(MessageError::Group),
        };
        Ok(Some((number, field)))
    }

    /// A varint: seven bits per byte, lowest first.
    fn number(&mut self) -> Result<u64, MessageError> {
        let mut number = 0_u64;
        for shift in (0..70).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(MessageError::CutShort)?;
            self.0 = rest;
            // Of the tenth byte only the lowest bit fits; like other implementations, this one drops the others.
            number |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if *byte < 0x80 {
                return Ok(number);
            }
        }
        Err(MessageError::Endless)
    }

    fn take(&mut self, length: usize) -> Result<&'b [u8], MessageError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(MessageError::CutShort)?;
        self.0 = rest;
        Ok(taken)
    }
}

// === impl FieldValue ===

impl<'b> FieldValue<'b> {
    fn number(&self) -> Result<u64, MessageError> {
        if let Self::Number(number) = self { Ok(*number) } else { Err(MessageError::Kind) }
    }

    /// A number of 32 bits; like other implementations, this one drops the higher bits.
    fn narrow(&self) -> Result<u32, MessageError> {
        let [a, b, c, d, ..] = self.number()?.to_le_bytes();
        Ok(u32::from_le_bytes([a, b, c, d]))
    }

    fn bytes(&self) -> Result<&'b [u8], MessageError> {
        if let Self::Bytes(bytes) = self { Ok(bytes) } else { Err(MessageError::Kind) }
    }

    fn text(&self) -> Result<&'b str, MessageError> {
        str::from_utf8(self.bytes()?).map_err(|_| MessageError::Utf8)
    }
}

// === RateLimitResponse ===

/// Writes a `RateLimitResponse`.
pub(super) struct RateLimitResponse<'o>(pub(super) &'o mut Vec<u8>);

const OK: u64 = 1;
const OVER_LIMIT: u64 = 2;
const NANOS_PER_SEC: u64 = 1_000_000_000;
/// Characters of a value that metadata repeats, so that clients cannot fill the memory of their proxy.
const LONGEST_VALUE: usize = 1_024;

impl RateLimitResponse<'_> {
    pub(super) fn overall(&mut self, over: bool) {
        self.number(1, code(over));
    }

    /// `DescriptorStatus`.
    pub(super) fn status(&mut self, status: &DescriptorStatus<'_>) {
        self.message(2, |answer| {
            answer.number(1, code(status.over));
            if let Some(limit) = &status.limit {
                answer.message(2, |answer| {
                    answer.number(1, limit.amount.min(u32::MAX.into()));
                    answer.number(2, limit.unit.map_or(0, |unit| unit.number().into()));
                    answer.text(3, limit.name);
                });
            }
            answer.number(3, status.remaining.min(u32::MAX.into()));
            if let Some(reset) = status.reset {
                answer.message(4, |answer| answer.number(1, seconds(reset)));
            }
        });
    }

    /// A header field for the response that the client gets.
    pub(super) fn response_header(&mut self, name: &str, value: &str) {
        self.header(3, name, value);
    }

    /// A header field for the upstream service.
    pub(super) fn request_header(&mut self, name: &str, value: &str) {
        self.header(4, name, value);
    }

    /// Metadata for later Envoy filters, as the reference service sends it: the request, and the metadata of the rules that
    /// let it pass.
    pub(super) fn metadata(
        &mut self,
        request: &RateLimitRequest<'_>,
        of_rules: &Map<String, Value>,
    ) {
        self.message(6, |answer| {
            answer.pair("domain", |answer| answer.string(request.domain));
            answer.pair("descriptors", |answer| {
                answer
                    .list(&request.descriptors, |answer, descriptor| answer.descriptor(descriptor));
            });
            if request.hits != 0 {
                answer.pair("hitsAddend", |answer| answer.value(&request.hits.into()));
            }
            if !of_rules.is_empty() {
                answer.pair("metadata", |answer| {
                    answer.message(5, |answer| answer.object(of_rules));
                });
            }
        });
    }

    /// A descriptor as metadata.
    fn descriptor(&mut self, descriptor: &Descriptor<'_>) {
        self.message(5, |answer| {
            answer.pair("entries", |answer| {
                answer.list(&descriptor.entries, |answer, (key, value)| {
                    answer.string(&format!("{key}={}", shortened(value)));
                });
            });
            if let Some((amount, unit)) = descriptor.limit {
                let unit = unit.name().to_uppercase();
                let limit = format!("requests_per_unit:{amount} unit:{unit}");
                answer.pair("limit", |answer| answer.string(&limit));
            }
            if let Some(hits) = descriptor.hits {
                answer.pair("hitsAddend", |answer| answer.value(&hits.into()));
            }
        });
    }

    fn header(&mut self, field: u64, name: &str, value: &str) {
        self.message(field, |answer| {
            answer.text(1, name);
            answer.text(2, value);
        });
    }

    /// `google.protobuf.Struct`.
    fn object(&mut self, object: &Map<String, Value>) {
        for (name, value) in object {
            self.pair(name, |answer| answer.value(value));
        }
    }

    /// A field of a `Struct`.
    fn pair(&mut self, name: &str, value: impl FnOnce(&mut RateLimitResponse<'_>)) {
        self.message(1, |answer| {
            answer.text(1, name);
            answer.message(2, value);
        });
    }

    /// A `Value` that is a list.
    fn list<T>(&mut self, items: &[T], value: impl Fn(&mut RateLimitResponse<'_>, &T)) {
        self.message(6, |answer| {
            items.iter().for_each(|item| answer.message(1, |answer| value(answer, item)));
        });
    }

    /// A `Value` that is text.
    fn string(&mut self, text: &str) {
        self.tagged(3, 2, u64::try_from(text.len()).unwrap_or(0));
        self.0.extend_from_slice(text.as_bytes());
    }

    /// `google.protobuf.Value`, a `oneof`: 0 and empty values are written too, because they say which case it is.
    fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.tagged(1, 0, 0),
            Value::Bool(is) => self.tagged(4, 0, u64::from(*is)),
            Value::Number(number) => {
                self.varint((2 << 3) | 1);
                self.0.extend_from_slice(&number.as_f64().unwrap_or_default().to_le_bytes());
            }
            Value::String(text) => self.string(text),
            Value::Object(object) => self.message(5, |answer| answer.object(object)),
            Value::Array(list) => self.message(6, |answer| {
                list.iter().for_each(|item| answer.message(1, |answer| answer.value(item)));
            }),
        }
    }

    /// A number; 0 is the default and is left out.
    fn number(&mut self, field: u64, number: u64) {
        if number != 0 {
            self.tagged(field, 0, number);
        }
    }

    fn text(&mut self, field: u64, text: &str) {
        if !text.is_empty() {
            self.tagged(field, 2, u64::try_from(text.len()).unwrap_or(0));
            self.0.extend_from_slice(text.as_bytes());
        }
    }

    /// A nested message. Its length precedes it but is known only afterwards: one byte is reserved, and the message is moved in
    /// the rare case that the length needs more.
    fn message(&mut self, field: u64, write: impl FnOnce(&mut RateLimitResponse<'_>)) {
        self.varint((field << 3) | 2);
        let at = self.0.len();
        self.0.push(0);
        write(&mut RateLimitResponse(self.0));
        let length = self.0.len().saturating_sub(at).saturating_sub(1);
        let mut bytes = SmallVec::<[u8; 10]>::new();
        varint(u64::try_from(length).unwrap_or(0), |byte| bytes.push(byte));
        match bytes.as_slice() {
            [byte] => {
                if let Some(place) = self.0.get_mut(at) {
                    *place = *byte;
                }
            }
            _ => _ = self.0.splice(at..=at, bytes),
        }
    }

    fn tagged(&mut self, field: u64, kind: u64, number: u64) {
        self.varint((field << 3) | kind);
        self.varint(number);
    }

    fn varint(&mut self, number: u64) {
        varint(number, |byte| self.0.push(byte));
    }
}

/// A value, shortened with `…` if it is long.
fn shortened(value: &str) -> Cow<'_, str> {
    match value.char_indices().nth(LONGEST_VALUE) {
        Some((at, _)) => format!("{}…", value.get(..at).unwrap_or_default()).into(),
        None => value.into(),
    }
}

const fn code(over: bool) -> u64 {
    if over { OVER_LIMIT } else { OK }
}

/// Whole seconds, rounded up, so that a client that waits this long is not too early.
pub(super) fn seconds(span: Span) -> u64 {
    span.as_nanos().div_ceil(NANOS_PER_SEC)
}

fn varint(mut number: u64, mut push: impl FnMut(u8)) {
    loop {
        let [low, ..] = number.to_le_bytes();
        number >>= 7;
        if number == 0 {
            return push(low & 0x7f);
        }
        push(low | 0x80);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u64, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![];
        varint((number << 3) | 2, |byte| out.push(byte));
        varint(u64::try_from(bytes.len()).unwrap(), |byte| out.push(byte));
        out.extend_from_slice(bytes);
        out
    }

    fn entry(key: &str, value: &str) -> Vec<u8> {
        field(1, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat())
    }

    fn call(descriptors: &[Vec<u8>]) -> Vec<u8> {
        let descriptors = descriptors.iter().map(|bytes| field(2, bytes));
        [field(1, b"rl")].into_iter().chain(descriptors).flatten().collect()
    }

    #[test]
    fn a_request_is_read() {
        let descriptor = [
            entry("foo", "alice"),
            entry("bar", ""),
            field(2, &[8, 7, 16, 2]),
            field(3, &[8, 0]),
            vec![32, 1],
        ];
        let bytes = [call(&[descriptor.concat(), entry("a", "b")]), vec![24, 200, 1]].concat();
        let request = RateLimitRequest::read(&bytes).unwrap();
        assert_eq!((request.domain, request.hits, request.descriptors.len()), ("rl", 200, 2));
        let first = &request.descriptors[0];
        assert_eq!(first.entries.as_slice(), [("foo", "alice".into()), ("bar", "".into())]);
        assert_eq!(first.limit, Some((7, Unit::Minute)));
        assert_eq!((first.hits, first.gives_back), (Some(0), true));
        let second = &request.descriptors[1];
        assert_eq!((second.limit, second.hits, second.gives_back), (None, None, false));
    }

    #[test]
    fn unknown_fields_are_skipped() {
        let unknown = [field(99, b"x"), vec![0x88, 6, 1], vec![0x8d, 6, 1, 2, 3, 4]].concat();
        let fixed = [vec![0x89, 6], vec![0; 8]].concat();
        let bytes = [unknown.repeat(1_000), call(&[entry("a", "b")]), fixed].concat();
        assert_eq!(RateLimitRequest::read(&bytes).unwrap().descriptors.len(), 1);
    }

    #[test]
    fn invalid_requests_are_refused() {
        let whole = call(&[entry("a", "b")]);
        for (bytes, error) in [
            (vec![], MessageError::NoDomain),
            (field(1, b"\xff"), MessageError::Utf8),
            (call(&vec![entry("a", "b"); bounds::DESCRIPTORS + 1]), MessageError::Descriptors),
            (call(&[entry("a", "b").repeat(bounds::ENTRIES + 1)]), MessageError::Entries),
            (call(&[entry("", "b")]), MessageError::NoKey),
            (call(&[field(2, &[8, 7, 16, 99])]), MessageError::Unit(99)),
            (call(&[field(2, &[8, 7])]), MessageError::Unit(0)),
            (vec![0], MessageError::Zero),
            (vec![0x0b], MessageError::Group),
            (vec![0x08, 1], MessageError::Kind), // the domain as a number
            (vec![0xff; 11], MessageError::Endless),
            (vec![0x0a, 5, b'r'], MessageError::CutShort),
            (field(1, b"rl").repeat(2)[..6].to_vec(), MessageError::CutShort),
        ] {
            assert_eq!(RateLimitRequest::read(&bytes).unwrap_err(), error, "{bytes:x?}");
        }
        // A domain may have any length, and a value any bytes.
        let odd = field(2, &field(1, &[field(1, b"k"), field(2, b"bot\xff")].concat()));
        let bytes = [field(1, &[b'd'; 100_000]), odd].concat();
        let read = RateLimitRequest::read(&bytes).unwrap();
        assert_eq!(read.domain.len(), 100_000);
        assert_eq!(read.descriptors[0].entries[0], ("k", "bot\u{10ffff}".into()));
        for length in 0..whole.len() {
            let cut = RateLimitRequest::read(&whole[..length]);
            assert!(cut.is_err() || length == 4, "{length}"); // a domain alone is a valid request without descriptors
        }
    }

    #[test]
    fn a_length_may_need_several_bytes() {
        let mut out = vec![];
        RateLimitResponse(&mut out).response_header("name", &"x".repeat(300));
        let value = field(2, "x".repeat(300).as_bytes());
        assert_eq!(out, field(3, &[field(1, b"name"), value].concat()));
    }

    #[test]
    fn waits_are_rounded_up() {
        assert_eq!(seconds(Span::from_nanos(1)), 1);
        assert_eq!(seconds(Span::from_secs(60)), 60);
        assert_eq!(seconds(Span::ZERO), 0);
    }
}
