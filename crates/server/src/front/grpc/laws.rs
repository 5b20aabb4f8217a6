//! What [`super::wire`] reads and writes by hand, held against prost: the two know nothing of each other.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may fail loudly")]

use super::messages::{Descriptor, Entry, Header, Limit, OwnLimit, Request, Response, Status};
use super::text::text;
use super::wire::{RateLimitRequest, RateLimitResponse, seconds};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use prost::Message;
use prost_types::value::Kind;
use serde_json::{Map, Value};
use tidegate::{DescribedLimit, DescriptorStatus, Span};
use tidegate_policy::Unit;

// === what is asked ===

/// Enough of a list to be a list.
const MOST: usize = 16;

/// Calls as they may be.
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

/// What was read, as prost would have it.
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

/// A request with its values as we spell them.
fn spelled(mut request: Request) -> Request {
    for entry in request.descriptors.iter_mut().flat_map(|descriptor| &mut descriptor.entries) {
        entry.value = text(entry.value.as_bytes()).into_owned();
    }
    request
}

/// What both take for a message, both read the same.
fn agree(bytes: &[u8]) {
    if let (Ok(ours), Ok(theirs)) = (RateLimitRequest::read(bytes), Request::decode(bytes)) {
        assert_eq!(as_read(&ours), spelled(theirs));
    }
}

proptest! {
    #[test]
    fn what_others_write_is_read(request in request()) {
        let bytes = request.encode_to_vec();
        prop_assert_eq!(as_read(&RateLimitRequest::read(&bytes).unwrap()), spelled(request));
    }

    #[test]
    fn no_bytes_are_too_strange(bytes in vec(any::<u8>(), 0..256)) {
        agree(&bytes);
    }

    /// A message with some bytes changed, taken out, and put in.
    #[test]
    fn no_message_is_too_broken(
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

    /// Fields may come twice and in any order: of numbers and texts the last counts, messages are merged, lists go on.
    #[test]
    fn messages_in_pieces_are_one(first in request(), second in request()) {
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

/// Once a second `hits_addend` that says nothing took back what the first had said.
#[test]
fn what_says_nothing_changes_nothing() {
    let bytes = [&[0x0a, 1, b'd', 0x12, 6][..], &[0x1a, 2, 8, 5], &[0x1a, 0]].concat();
    assert_eq!(RateLimitRequest::read(&bytes).unwrap().descriptors[0].hits, Some(5));
    agree(&bytes);
}

// === what is answered ===

type Written = (Vec<(bool, Option<(u64, u8, String)>, u64, Option<u64>)>, Vec<(String, String)>);

/// Statuses and header fields.
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

/// The same as prost has it.
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
    fn what_is_written_others_read((statuses, headers) in written(), over in any::<bool>()) {
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
    fn metadata_is_read_as_it_was_written(list in vec(("\\PC{0,8}", json()), 0..6)) {
        let object: Map<String, Value> = list.into_iter().collect();
        let call = Request::of([]).encode_to_vec();
        let mut bytes = vec![];
        RateLimitResponse(&mut bytes).metadata(&RateLimitRequest::read(&call).unwrap(), &object);
        let told = Response::decode(&*bytes).unwrap().dynamic_metadata.unwrap();
        let mut expected = Map::new();
        expected.insert("domain".to_owned(), "web".into());
        expected.insert("descriptors".to_owned(), Value::Array(vec![]));
        if !object.is_empty() {
            expected.insert("metadata".to_owned(), Value::Object(object));
        }
        prop_assert_eq!(told, structure(&expected));
    }
}
