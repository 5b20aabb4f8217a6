//! The other services: health, and reflection, which describes all of them.

use super::bytes::{ALICE, POLICY};
use crate::support::Server;
use crate::support::grpc::{
    DEADLINE_EXCEEDED, End, Grpc, HEAD, INVALID_ARGUMENT, NOT_FOUND, OUT_OF_RANGE, message,
    prefixed,
};
use crate::support::http2::{DATA, END_STREAM, NONE, frame};
use crate::support::messages::{Descriptor, HOUR, MINUTE, Request, Response};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, ReflectMessage, Value};
use prost_types::{FileDescriptorProto, FileDescriptorSet};
use std::collections::BTreeMap;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

type Head = [(&'static str, &'static str); 6];

const fn head(path: &'static str) -> Head {
    let mut head = HEAD;
    head[2].1 = path;
    head
}

pub(crate) const CHECK: Head = head("/grpc.health.v1.Health/Check");
pub(crate) const WATCH: Head = head("/grpc.health.v1.Health/Watch");
pub(crate) const REFLECTION: Head =
    head("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo");
const OLD_REFLECTION: Head = head("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo");
const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

// === health ===

/// Starts to watch a service.
pub(crate) fn watch(grpc: &mut Grpc, service: &str) -> u32 {
    let request = HealthCheckRequest { service: service.to_owned() };
    grpc.send(&WATCH, &message(&request.encode_to_vec()))
}

#[test]
fn health_of_what_is_served() {
    let server = Server::with_policy(POLICY, &[]);
    let mut grpc = Grpc::to(server.grpc);
    let check = |grpc: &mut Grpc, service: &str| {
        let request = HealthCheckRequest { service: service.to_owned() };
        grpc.sent(&CHECK, &message(&request.encode_to_vec()))
    };
    // The last one is the name that the reference service uses.
    for service in ["", SERVICE, "ratelimit"] {
        let told: HealthCheckResponse = check(&mut grpc, service).message();
        assert_eq!(told.status, 1, "{service}"); // SERVING
        let stream = watch(&mut grpc, service);
        let told: HealthCheckResponse = grpc.next_message(stream);
        assert_eq!(told.status, 1, "{service}");
    }
    for service in
        ["nobody", "envoy.service.ratelimit.v2.RateLimitService", "grpc.health.v1.Health"]
    {
        let told = check(&mut grpc, service);
        assert_eq!((told.code, told.end), (Some(NOT_FOUND), Some(End::Whole)), "{told:?}");
        // The status is in the header, so there is nothing else. When an empty data frame followed, clients took it
        // for a malformed answer and reported UNKNOWN.
        assert!(told.is_head_alone, "{told:?}");
    }
    assert!(grpc.asked(&Request::about(&ALICE)).passed());
    server.is_sound();
}

/// An invalid health request ends its stream. The connection goes on, however often this happens.
#[test]
fn what_is_no_question_about_health() {
    let server = Server::with_policy(POLICY, &["--grpc-body-timeout", "1s"]);
    let mut grpc = Grpc::to(server.grpc);
    let long = vec![b'x'; 4 * 1024 + 1];
    for _ in 0..10 {
        for (name, body) in [
            ("nothing", vec![]),
            ("no prefix", vec![0; 3]),
            ("packed", prefixed(1, 0, b"")),
            ("too long", message(&long)),
            ("too long, it says", prefixed(0, u32::MAX, b"x")),
            ("cut short", prefixed(0, 9, b"x")),
            ("no protobuf", message(&[0xff; 11])),
            ("no UTF-8", message(b"\x0a\x01\xff")),
        ] {
            let told = grpc.sent(&CHECK, &body);
            assert!(
                matches!(told.code, Some(1..)) && told.end == Some(End::Whole),
                "{name}: {told:?}"
            );
            if name.starts_with("too long") {
                assert_eq!(told.code, Some(OUT_OF_RANGE), "{name}: {told:?}");
            }
        }
    }
    // The server does not wait for ever for a request that is never sent.
    for stream in [CHECK, WATCH].map(|head| grpc.open(&head)) {
        let told = grpc.told(stream);
        assert_eq!(told.code, Some(DEADLINE_EXCEEDED), "{told:?}");
        assert_eq!(told.end, Some(End::Whole), "{told:?}");
    }
    assert!(grpc.asked(&Request::about(&ALICE)).passed());
    assert!(grpc.goodbyes.is_empty());
    server.is_sound();
}

// === reflection ===

pub(crate) fn list_services() -> ServerReflectionRequest {
    ask(MessageRequest::ListServices(String::new()))
}

fn ask(message: MessageRequest) -> ServerReflectionRequest {
    ServerReflectionRequest { host: String::new(), message_request: Some(message) }
}

/// A stream of reflection requests.
struct Asking<'g> {
    grpc: &'g mut Grpc,
    stream: u32,
}

impl<'g> Asking<'g> {
    fn over(grpc: &'g mut Grpc, head: &Head) -> Self {
        let stream = grpc.open(head);
        Self { grpc, stream }
    }

    fn asked(&mut self, question: MessageRequest) -> MessageResponse {
        let bytes = message(&ask(question).encode_to_vec());
        self.grpc.two.send(&frame(DATA, NONE, self.stream, &bytes));
        let told: ServerReflectionResponse = self.grpc.next_message(self.stream);
        told.message_response.unwrap()
    }

    fn files(&mut self, question: &MessageRequest) -> Vec<FileDescriptorProto> {
        let MessageResponse::FileDescriptorResponse(told) = self.asked(question.clone()) else {
            panic!("no file for {question:?}");
        };
        let files = told.file_descriptor_proto.iter();
        files.map(|file| FileDescriptorProto::decode(&**file).unwrap()).collect()
    }

    /// A file and all files that it imports, imported files first.
    fn with_what_it_needs(
        &mut self,
        file: FileDescriptorProto,
        all: &mut Vec<FileDescriptorProto>,
    ) {
        for name in &file.dependency {
            if all.iter().all(|known| known.name.as_ref() != Some(name)) {
                for needed in self.files(&MessageRequest::FileByFilename(name.clone())) {
                    self.with_what_it_needs(needed, all);
                }
            }
        }
        if all.iter().all(|known| known.name != file.name) {
            all.push(file);
        }
    }

    fn end(self) {
        self.grpc.two.send(&frame(DATA, END_STREAM, self.stream, b""));
        let told = self.grpc.told(self.stream);
        assert_eq!((told.code, told.end), (Some(0), Some(End::Whole)), "{told:?}");
    }
}

/// Everything that a program can learn about the service before it calls it.
fn described(grpc: &mut Grpc, head: &Head) -> DescriptorPool {
    let mut asking = Asking::over(grpc, head);
    let MessageResponse::ListServicesResponse(list) =
        asking.asked(MessageRequest::ListServices(String::new()))
    else {
        panic!("no list");
    };
    let mut names: Vec<&str> = list.service.iter().map(|service| &*service.name).collect();
    names.sort_unstable();
    assert!(names.contains(&SERVICE) && names.contains(&"grpc.health.v1.Health"), "{names:?}");
    let mut all = vec![];
    for name in &names {
        for file in asking.files(&MessageRequest::FileContainingSymbol((*name).to_owned())) {
            asking.with_what_it_needs(file, &mut all);
        }
    }
    // Everything in the files is found by its name.
    for (symbol, file) in [
        (CALL_NAME, "envoy/service/ratelimit/v3/rls.proto"),
        (
            "envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus",
            "envoy/service/ratelimit/v3/rls.proto",
        ),
        (
            "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry",
            "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
        ),
        ("envoy.type.v3.RateLimitUnit", "envoy/type/v3/ratelimit_unit.proto"),
        ("google.protobuf.Struct", "google/protobuf/struct.proto"),
    ] {
        let found = asking.files(&MessageRequest::FileContainingSymbol(symbol.to_owned()));
        assert_eq!(found[0].name(), file, "{symbol}");
    }
    asking.end();
    DescriptorPool::from_file_descriptor_set(FileDescriptorSet { file: all }).unwrap()
}

const CALL_NAME: &str = "envoy.service.ratelimit.v3.RateLimitService.ShouldRateLimit";

#[test]
fn what_is_described_is_what_is_spoken() {
    let policy = "
version: 1
rules:
  - { name: per-user, key: [user], limits: [{ rate: 5/h, algorithm: fixed_window, align: first }] }
  - { name: odd, key: [tenant], limits: [{ rate: 1/h, algorithm: fixed_window, align: first }], on_limit: { flag: watch } }
";
    let server = Server::with_policy(policy, &["--grpc-response-headers", "reference"]);
    let mut grpc = Grpc::to(server.grpc);
    for reflection in [REFLECTION, OLD_REFLECTION] {
        let pool = described(&mut grpc, &reflection);
        let service = pool.get_service_by_name(SERVICE).unwrap();
        let method = service.methods().next().unwrap();
        assert_eq!((service.methods().len(), method.full_name()), (1, CALL_NAME));
        assert!(!method.is_client_streaming() && !method.is_server_streaming());
        let user = if reflection == REFLECTION { "alice" } else { "bob" };
        // A request with every described field, by its name.
        let own = |name: &str| {
            pool.get_message_by_name(&format!(
                "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor{name}"
            ))
            .unwrap()
        };
        let entry = |key: &str, value: &str| {
            let mut entry = DynamicMessage::new(own(".Entry"));
            entry.set_field_by_name("key", Value::String(key.to_owned()));
            entry.set_field_by_name("value", Value::String(value.to_owned()));
            entry
        };
        let descriptor = |entries: &[DynamicMessage]| {
            let mut descriptor = DynamicMessage::new(own(""));
            let entries = entries.iter().cloned().map(Value::Message).collect();
            descriptor.set_field_by_name("entries", Value::List(entries));
            descriptor
        };
        let hits = |hits: u64| {
            let mut wrapped = DynamicMessage::new(
                pool.get_message_by_name("google.protobuf.UInt64Value").unwrap(),
            );
            wrapped.set_field_by_name("value", Value::U64(hits));
            Value::Message(wrapped)
        };
        let unit = pool.get_enum_by_name("envoy.type.v3.RateLimitUnit").unwrap();
        let mut limit = DynamicMessage::new(own(".RateLimitOverride"));
        limit.set_field_by_name("requests_per_unit", Value::U32(9));
        limit.set_field_by_name(
            "unit",
            Value::EnumNumber(unit.get_value_by_name("MINUTE").unwrap().number()),
        );
        let mut first = descriptor(&[entry("user", user)]);
        first.set_field_by_name("hits_addend", hits(3));
        let mut second = descriptor(&[entry("a", user), entry("b", "c")]);
        second.set_field_by_name("limit", Value::Message(limit));
        let mut third = descriptor(&[entry("user", "nobody")]);
        third.set_field_by_name("hits_addend", hits(4));
        third.set_field_by_name("is_negative_hits", Value::Bool(true));
        let marked = descriptor(&[entry("tenant", user)]);
        let mut request = DynamicMessage::new(method.input());
        request.set_field_by_name("domain", Value::String("web".to_owned()));
        let descriptors = [first, second, third, marked].map(Value::Message).to_vec();
        request.set_field_by_name("descriptors", Value::List(descriptors));
        request.set_field_by_name("hits_addend", Value::U32(2));
        // The definitions of Envoy mean the same.
        let same = Request::of([
            Descriptor::of(&[("user", user)]).hits(3),
            Descriptor::of(&[("a", user), ("b", "c")]).limited(9, MINUTE),
            Descriptor::of(&[("user", "nobody")]).hits(4).back(),
            Descriptor::of(&[("tenant", user)]),
        ])
        .hits(2);
        assert_eq!(Request::decode(&*request.encode_to_vec()).unwrap(), same);
        // Everything in the answer is described.
        let bytes = grpc.sent(&HEAD, &message(&request.encode_to_vec()));
        let known = bytes.answer();
        let answer = DynamicMessage::decode(method.output(), &bytes.body[5..]).unwrap();
        assert_eq!(unknown(&answer), 0, "{answer:?}");
        assert_eq!(Response::decode(&*answer.encode_to_vec()).unwrap(), known);
        assert_eq!(named(&answer, "overall_code"), "OK");
        let statuses = answer.get_field_by_name("statuses").unwrap();
        let statuses: Vec<&DynamicMessage> =
            statuses.as_list().unwrap().iter().map(|status| status.as_message().unwrap()).collect();
        let told = |status: &DynamicMessage| {
            let limit = status.get_field_by_name("current_limit").unwrap();
            let limit = limit.as_message().unwrap();
            let number =
                |of: &DynamicMessage, name| of.get_field_by_name(name).unwrap().as_u32().unwrap();
            (
                named(status, "code"),
                number(limit, "requests_per_unit"),
                named(limit, "unit"),
                number(status, "limit_remaining"),
            )
        };
        let of =
            |code: &str, amount, unit: &str, left| (code.to_owned(), amount, unit.to_owned(), left);
        assert_eq!(told(statuses[0]), of("OK", 5, "HOUR", 2));
        assert_eq!(told(statuses[1]), of("OK", 9, "MINUTE", 7));
        assert_eq!(told(statuses[2]), of("OK", 5, "HOUR", 5));
        let limit = known.statuses[0].current_limit.as_ref().unwrap();
        assert_eq!((limit.unit, &*limit.name), (HOUR, "per-user"));
        assert_eq!(known.response_headers_to_add.len(), 3);
        assert_eq!(known.request_headers_to_add[0].value, "watch");
    }
    server.is_sound();
}

/// The number of fields that are not described, at any depth.
fn unknown(message: &DynamicMessage) -> usize {
    let of_value = |value: &Value| match (value.as_message(), value.as_list()) {
        (Some(message), _) => unknown(message),
        (None, list) => list.into_iter().flatten().filter_map(Value::as_message).map(unknown).sum(),
    };
    let within = message.fields().map(|(_, value)| of_value(value));
    message.unknown_fields().count() + within.sum::<usize>()
}

/// The name of an enum value.
fn named(message: &DynamicMessage, field: &str) -> String {
    let described = message.descriptor().get_field_by_name(field).unwrap();
    let number = message.get_field(&described).as_enum_number().unwrap();
    let prost_reflect::Kind::Enum(choice) = described.kind() else {
        panic!("{field} is no choice")
    };
    choice.get_value(number).unwrap().name().to_owned()
}

#[test]
fn what_there_is_not_is_said_so() {
    let server = Server::with_policy(POLICY, &[]);
    let mut grpc = Grpc::to(server.grpc);
    for question in [
        MessageRequest::FileByFilename("no/such.proto".to_owned()),
        MessageRequest::FileContainingSymbol("no.such.Symbol".to_owned()),
    ] {
        let bytes = message(&ask(question.clone()).encode_to_vec());
        let told = grpc.sent(&REFLECTION, &bytes);
        assert_eq!((told.code, told.end), (Some(NOT_FOUND), Some(End::Whole)), "{told:?}");
    }
    let told = grpc.sent(&REFLECTION, &message(b""));
    assert_eq!(told.code, Some(INVALID_ARGUMENT), "{told:?}");
    assert!(grpc.asked(&Request::about(&ALICE)).passed());
    server.is_sound();
}

/// Many reflection streams leave nothing in memory.
#[test]
fn many_who_ask_what_there_is() {
    let server = Server::with_policy(POLICY, &[]);
    let mut grpc = Grpc::to(server.grpc);
    assert!(grpc.asked(&Request::about(&ALICE)).passed());
    let before = server.resident_kib();
    let mut sizes = BTreeMap::new();
    for round in 0..3 {
        let streams: Vec<u32> = (0..300).map(|_| grpc.open(&REFLECTION)).collect();
        for stream in &streams {
            grpc.two.send(&frame(DATA, NONE, *stream, &message(&list_services().encode_to_vec())));
        }
        for stream in &streams {
            let _: ServerReflectionResponse = grpc.next_message(*stream);
        }
        sizes.insert(round, server.resident_kib().saturating_sub(before));
        for stream in streams {
            grpc.two.send(&frame(DATA, END_STREAM, stream, b""));
            assert_eq!(grpc.told(stream).code, Some(0));
        }
    }
    println!("KiB more with 300 streams of reflection open, three times: {sizes:?}");
    assert!(sizes[&2] <= sizes[&0] + 8 * 1024, "{sizes:?}");
    assert!(grpc.asked(&Request::about(&ALICE)).passed());
    server.is_sound();
}
