//! Compares the hand-written encoding of [`super::wire`] with prost, an independent implementation.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may fail loudly")]

use super::messages::{Descriptor, Entry, Header, Limit, OwnLimit, Request, Response, Status};
use super::value_text::text;
use super::wire::{RateLimitRequest, RateLimitResponse, seconds};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use prost::Message;
use prost_types::value::Kind;
use serde_json::{Map, Value};
use tidegate::{DescribedLimit, DescriptorStatus, Span};
use tidegate_policy::Unit;

// === requests ===

/// The longest list that is generated.
const MOST: usize = 16;

/// Valid requests.
fn request() -> impl Strategy<Value = Request> {
    let entry = ("\\PC{1,12}", ".{0,12}").prop_map(|(key, value)| Entry { key, value });
    let own = (any::<u32>(), 1..8)
        .prop_map(|(amount, unit)| OwnLimit { requests_per_unit: amount, unit });
    let descriptor =
        (vec(entry, 0..=MOST), option::of(own), option::of(any::<u64>()), any::<bool>()).prop_map(
            |(entries, limit, hits_addend, is_negative_hits)| Descriptor {
                entries,
                limit,
                hits_addend,
                is_negative_hits,
            },
        );
    (".{1,32}", vec(descriptor, 0..=MOST), any::<u32>())
        .prop_map(|(domain, descriptors, hits_addend)| Request { domain, descriptors, hits_addend })
}

/// What `wire` has read, as the types of prost.
fn as_read(asked: &RateLimitRequest<'_>) -> Request {
    let descriptor = |read: &tidegate::Descriptor<'_>| {
        let limit = |(amount, unit): (u32, Unit)| OwnLimit {
            requests_per_unit: amount,
            unit: unit.number().into(),
        };
        let entries: Vec<(&str, &str)> =
            read.entries.iter().map(|(key, value)| (*key, &**value)).collect();
        Descriptor {
            limit: read.limit.map(limit),
            hits_addend: read.hits,
            is_negative_hits: read.gives_back,
            ..Descriptor::of(&entries)
        }
    };
    let descriptors: Vec<Descriptor> = asked.descriptors.iter().map(descriptor).collect();
    Request { domain: asked.domain.to_owned(), ..Request::of(descriptors) }.hits(asked.hits)
}

/// A request with its values encoded as text.
fn with_value_text(mut request: Request) -> Request {
    for entry in request.descriptors.iter_mut().flat_map(|descriptor| &mut descriptor.entries) {
        entry.value = text(entry.value.as_bytes()).into_owned();
    }
    request
}

/// If both parsers accept the bytes, both must read the same request.
fn agree(bytes: &[u8]) {
    if let (Ok(ours), Ok(theirs)) = (RateLimitRequest::read(bytes), Request::decode(bytes)) {
        assert_eq!(as_read(&ours), with_value_text(theirs));
    }
}

proptest! {
    #[test]
    fn requests_of_prost_are_read(request in request()) {
        let bytes = request.encode_to_vec();
        prop_assert_eq!(as_read(&RateLimitRequest::read(&bytes).unwrap()), with_value_text(request));
    }

    #[test]
    fn arbitrary_bytes_are_read_alike(bytes in vec(any::<u8>(), 0..256)) {
        agree(&bytes);
    }

    /// Some bytes of a message are changed, removed and inserted.
    #[test]
    fn damaged_messages_are_read_alike(
        request in request(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_u8), 1..6),
    ) {
        let mut bytes = request.encode_to_vec();
        bytes.truncate(400);
        for (at, byte, how) in changes {
            let at = at.index(bytes.len() + 1);
            match how {
                0 => bytes.insert(at, byte),
                1 if at < bytes.len() => _ = bytes.remove(at),
                2 => bytes.truncate(at),
                _ => bytes.get_mut(at).into_iter().for_each(|known| *known = byte),
            }
            agree(&bytes);
        }
    }

    /// Fields may repeat, in any order: for numbers and texts the last one counts, messages are merged, lists are appended.
    #[test]
    fn concatenated_messages_are_merged(first in request(), second in request()) {
        let bytes = [first.encode_to_vec(), second.encode_to_vec()].concat();
        agree(&bytes);
        let descriptor = |request: &Request| request.descriptors.first().cloned().unwrap_or_default();
        let merged = [descriptor(&first).encode_to_vec(), descriptor(&second).encode_to_vec()].concat();
        let mut call = Request::of([]).encode_to_vec();
        prost::encoding::encode_key(2, prost::encoding::WireType::LengthDelimited, &mut call);
        prost::encode_length_delimiter(merged.len(), &mut call).unwrap();
        call.extend(merged);
        agree(&call);
    }
}

/// Once a second, empty `hits_addend` erased the value of the first. Merging an empty message must change nothing.
#[test]
fn an_empty_message_erases_nothing() {
    let bytes = [&[0x0a, 1, b'd', 0x12, 6][..], &[0x1a, 2, 8, 5], &[0x1a, 0]].concat();
    assert_eq!(RateLimitRequest::read(&bytes).unwrap().descriptors[0].hits, Some(5));
    agree(&bytes);
}

// === responses ===

/// Statuses and header fields of a response.
type Written = (Vec<(bool, Option<(u64, u8, String)>, u64, Option<u64>)>, Vec<(String, String)>);

fn written() -> impl Strategy<Value = Written> {
    let limit = (any::<u64>(), 0..8_u8, ".{0,200}");
    let status = (any::<bool>(), option::of(limit), any::<u64>(), option::of(any::<u64>()));
    (vec(status, 0..8), vec((".{0,20}", ".{0,300}"), 0..4))
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        ".{0,40}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            vec(("\\PC{0,8}", inner), 0..5)
                .prop_map(|list| Value::Object(list.into_iter().collect())),
        ]
    })
}

/// JSON as the message `google.protobuf.Value`, in the type of prost.
fn value(json: &Value) -> prost_types::Value {
    let kind = match json {
        Value::Null => Kind::NullValue(0),
        Value::Bool(is) => Kind::BoolValue(*is),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap()),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Array(list) => {
            Kind::ListValue(prost_types::ListValue { values: list.iter().map(value).collect() })
        }
        Value::Object(object) => Kind::StructValue(structure(object)),
    };
    prost_types::Value { kind: Some(kind) }
}

fn structure(object: &Map<String, Value>) -> prost_types::Struct {
    let fields = object.iter().map(|(name, json)| (name.clone(), value(json)));
    prost_types::Struct { fields: fields.collect() }
}

fn fits(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

proptest! {
    #[test]
    fn responses_are_read_by_prost((statuses, headers) in written(), over in any::<bool>()) {
        let mut bytes = vec![];
        let mut answer = RateLimitResponse(&mut bytes);
        let mut expected = Response { overall_code: if over { 2 } else { 1 }, ..Response::default() };
        answer.overall(over);
        for (over, limit, remaining, reset) in &statuses {
            let unit = |number: u8| Unit::numbered(number.into());
            let described = limit.as_ref().map(|(amount, number, name)| {
                DescribedLimit { amount: *amount, unit: unit(*number), name }
            });
            let reset = reset.map(Span::from_nanos);
            answer.status(&DescriptorStatus { over: *over, limit: described, remaining: *remaining, reset });
            let limit = limit.as_ref().map(|(amount, number, name)| {
                Limit { requests_per_unit: fits(*amount), unit: (*number).into(), name: name.clone() }
            });
            let duration = |span| prost_types::Duration { seconds: i64::try_from(seconds(span)).unwrap(), nanos: 0 };
            expected.statuses.push(Status {
                code: if *over { 2 } else { 1 },
                current_limit: limit,
                limit_remaining: fits(*remaining),
                duration_until_reset: reset.map(duration),
            });
        }
        for (key, value) in &headers {
            answer.response_header(key, value);
            answer.request_header(value, key);
            let header = |key: &String, value: &String| {
                Header { key: key.clone(), value: value.clone(), raw_value: vec![] }
            };
            expected.response_headers_to_add.push(header(key, value));
            expected.request_headers_to_add.push(header(value, key));
        }
        prop_assert_eq!(Response::decode(&*bytes).unwrap(), expected);
    }

    #[test]
    fn metadata_is_read_by_prost(list in vec(("\\PC{0,8}", json()), 0..6)) {
        let object: Map<String, Value> = list.into_iter().collect();
        let call = Request::of([]).encode_to_vec();
        let mut bytes = vec![];
        RateLimitResponse(&mut bytes).metadata(&RateLimitRequest::read(&call).unwrap(), &object);
        let sent = Response::decode(&*bytes).unwrap().dynamic_metadata.unwrap();
        let mut expected = Map::new();
        expected.insert("domain".to_owned(), "web".into());
        expected.insert("descriptors".to_owned(), Value::Array(vec![]));
        if !object.is_empty() {
            expected.insert("metadata".to_owned(), Value::Object(object));
        }
        prop_assert_eq!(sent, structure(&expected));
    }
}
