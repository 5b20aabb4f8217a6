//! Server reflection: describes the services of the listener to tools such as `grpcurl`.
//!
//! The descriptors are a hand-written table, because [`super::wire`] encodes the messages by hand too. A test checks that the
//! two agree.

use super::tonic_service::{ReflectionVersion, TonicRequest};
use crate::bounds;
use http::{Request, Response};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, FileDescriptorSet, MessageOptions, MethodDescriptorProto,
    OneofDescriptorProto, ServiceDescriptorProto,
};
use tonic::codegen::Service as _;

/// Answers a reflection request. The service is built for each request, because people use it only now and then.
pub(super) async fn reflect(
    version: ReflectionVersion,
    request: Request<TonicRequest>,
) -> Response<tonic::body::Body> {
    let builder = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .register_file_descriptor_set(descriptors());
    let answered = match version {
        ReflectionVersion::V1 => match builder.build_v1() {
            Ok(service) => {
                service.max_decoding_message_size(bounds::GRPC_QUESTION).call(request).await
            }
            Err(_) => return broken(),
        },
        ReflectionVersion::V1Alpha => match builder.build_v1alpha() {
            Ok(service) => {
                service.max_decoding_message_size(bounds::GRPC_QUESTION).call(request).await
            }
            Err(_) => return broken(),
        },
    };
    let Ok(response) = answered;
    response
}

/// The table contradicts itself; the tests of the listener exclude this.
fn broken() -> Response<tonic::body::Body> {
    tonic::Status::internal("internal error: a bug in tidegate").into_http()
}

// === the table ===

/// A field: name, number and type.
type FieldRow = (&'static str, i32, FieldKind);

/// The type of a field; `Many` is a repeated message.
#[derive(Clone, Copy)]
enum FieldKind {
    Text,
    Bytes,
    Bool,
    Double,
    Number32,
    Signed32,
    Number64,
    Signed64,
    Message(&'static str),
    Enum(&'static str),
    Many(&'static str),
}

use FieldKind::{
    Bool, Bytes, Double, Enum, Many, Message, Number32, Number64, Signed32, Signed64, Text,
};

const REQUEST: &str = ".envoy.service.ratelimit.v3.RateLimitRequest";
const RESPONSE: &str = ".envoy.service.ratelimit.v3.RateLimitResponse";
const CODE: &str = ".envoy.service.ratelimit.v3.RateLimitResponse.Code";
const UNITS: [&str; 8] = ["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"];
const WRAPPERS_FILE: &str = "google/protobuf/wrappers.proto";
const DURATION_FILE: &str = "google/protobuf/duration.proto";
const STRUCT_FILE: &str = "google/protobuf/struct.proto";
const UNIT_FILE: &str = "envoy/type/v3/ratelimit_unit.proto";
const BASE_FILE: &str = "envoy/config/core/v3/base.proto";
const RATELIMIT_FILE: &str = "envoy/extensions/common/ratelimit/v3/ratelimit.proto";

/// All files, each after those that it imports.
fn descriptors() -> FileDescriptorSet {
    let all = [wrappers(), duration(), structs(), unit(), base(), ratelimit(), service()];
    FileDescriptorSet { file: all.into_iter().map(|File(file)| file).collect() }
}

fn wrappers() -> File {
    file(WRAPPERS_FILE, "google.protobuf", &[])
        .with(message("UInt64Value", &[("value", 1, Number64)]))
}

fn duration() -> File {
    file(DURATION_FILE, "google.protobuf", &[])
        .with(message("Duration", &[("seconds", 1, Signed64), ("nanos", 2, Signed32)]))
}

fn unit() -> File {
    file(UNIT_FILE, "envoy.type.v3", &[]).with_enum(choice("RateLimitUnit", &UNITS))
}

fn base() -> File {
    let fields = [("key", 1, Text), ("value", 2, Text), ("raw_value", 3, Bytes)];
    file(BASE_FILE, "envoy.config.core.v3", &[]).with(message("HeaderValue", &fields))
}

/// The descriptors of a request.
fn ratelimit() -> File {
    let entry = message("Entry", &[("key", 1, Text), ("value", 2, Text)]);
    let own_limit = message(
        "RateLimitOverride",
        &[("requests_per_unit", 1, Number32), ("unit", 2, Enum(".envoy.type.v3.RateLimitUnit"))],
    );
    let fields = [
        ("entries", 1, Many(".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry")),
        (
            "limit",
            2,
            Message(".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride"),
        ),
        ("hits_addend", 3, Message(".google.protobuf.UInt64Value")),
        ("is_negative_hits", 4, Bool),
    ];
    let descriptor = DescriptorProto {
        nested_type: vec![entry, own_limit],
        ..message("RateLimitDescriptor", &fields)
    };
    let imports = [UNIT_FILE, WRAPPERS_FILE];
    file(RATELIMIT_FILE, "envoy.extensions.common.ratelimit.v3", &imports).with(descriptor)
}

/// The rate limit service itself.
fn service() -> File {
    let imports = [BASE_FILE, RATELIMIT_FILE, DURATION_FILE, STRUCT_FILE];
    let File(mut file) =
        file("envoy/service/ratelimit/v3/rls.proto", "envoy.service.ratelimit.v3", &imports)
            .with(rate_limit_request())
            .with(rate_limit_response());
    let method = MethodDescriptorProto {
        name: Some("ShouldRateLimit".to_owned()),
        input_type: Some(REQUEST.to_owned()),
        output_type: Some(RESPONSE.to_owned()),
        ..MethodDescriptorProto::default()
    };
    file.service.push(ServiceDescriptorProto {
        name: Some("RateLimitService".to_owned()),
        method: vec![method],
        ..ServiceDescriptorProto::default()
    });
    File(file)
}

fn rate_limit_request() -> DescriptorProto {
    let descriptor = ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor";
    message(
        "RateLimitRequest",
        &[("domain", 1, Text), ("descriptors", 2, Many(descriptor)), ("hits_addend", 3, Number32)],
    )
}

fn rate_limit_response() -> DescriptorProto {
    let status = ".envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus";
    let header = ".envoy.config.core.v3.HeaderValue";
    let fields = [
        ("overall_code", 1, Enum(CODE)),
        ("statuses", 2, Many(status)),
        ("response_headers_to_add", 3, Many(header)),
        ("request_headers_to_add", 4, Many(header)),
        ("raw_body", 5, Bytes),
        ("dynamic_metadata", 6, Message(".google.protobuf.Struct")),
    ];
    DescriptorProto {
        nested_type: vec![rate_limit(), descriptor_status()],
        enum_type: vec![choice("Code", &["UNKNOWN", "OK", "OVER_LIMIT"])],
        ..message("RateLimitResponse", &fields)
    }
}

fn rate_limit() -> DescriptorProto {
    let unit = ".envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit";
    let fields = [("requests_per_unit", 1, Number32), ("unit", 2, Enum(unit)), ("name", 3, Text)];
    DescriptorProto { enum_type: vec![choice("Unit", &UNITS)], ..message("RateLimit", &fields) }
}

fn descriptor_status() -> DescriptorProto {
    let limit = ".envoy.service.ratelimit.v3.RateLimitResponse.RateLimit";
    message(
        "DescriptorStatus",
        &[
            ("code", 1, Enum(CODE)),
            ("current_limit", 2, Message(limit)),
            ("limit_remaining", 3, Number32),
            ("duration_until_reset", 4, Message(".google.protobuf.Duration")),
        ],
    )
}

/// `google/protobuf/struct.proto`: JSON values.
fn structs() -> File {
    let value = ".google.protobuf.Value";
    let entry = DescriptorProto {
        options: Some(MessageOptions { map_entry: Some(true), ..MessageOptions::default() }),
        ..message("FieldsEntry", &[("key", 1, Text), ("value", 2, Message(value))])
    };
    let object = DescriptorProto {
        nested_type: vec![entry],
        ..message("Struct", &[("fields", 1, Many(".google.protobuf.Struct.FieldsEntry"))])
    };
    file(STRUCT_FILE, "google.protobuf", &[])
        .with(object)
        .with(value_message())
        .with(message("ListValue", &[("values", 1, Many(value))]))
        .with_enum(choice("NullValue", &["NULL_VALUE"]))
}

fn value_message() -> DescriptorProto {
    let mut value = message(
        "Value",
        &[
            ("null_value", 1, Enum(".google.protobuf.NullValue")),
            ("number_value", 2, Double),
            ("string_value", 3, Text),
            ("bool_value", 4, Bool),
            ("struct_value", 5, Message(".google.protobuf.Struct")),
            ("list_value", 6, Message(".google.protobuf.ListValue")),
        ],
    );
    value.field.iter_mut().for_each(|field| field.oneof_index = Some(0));
    value.oneof_decl.push(OneofDescriptorProto {
        name: Some("kind".to_owned()),
        ..OneofDescriptorProto::default()
    });
    value
}

/// A `.proto` file while it is put together.
struct File(FileDescriptorProto);

impl File {
    fn with(mut self, message: DescriptorProto) -> Self {
        self.0.message_type.push(message);
        self
    }

    fn with_enum(mut self, choice: EnumDescriptorProto) -> Self {
        self.0.enum_type.push(choice);
        self
    }
}

fn file(name: &str, package: &str, imports: &[&str]) -> File {
    File(FileDescriptorProto {
        name: Some(name.to_owned()),
        package: Some(package.to_owned()),
        dependency: imports.iter().map(ToString::to_string).collect(),
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    })
}

fn message(name: &str, fields: &[FieldRow]) -> DescriptorProto {
    let field = fields.iter().map(field).collect();
    DescriptorProto { name: Some(name.to_owned()), field, ..DescriptorProto::default() }
}

fn field((name, number, kind): &FieldRow) -> FieldDescriptorProto {
    let label = if matches!(kind, Many(_)) { Label::Repeated } else { Label::Optional };
    let (kind, of) = match *kind {
        Text => (Type::String, None),
        Bytes => (Type::Bytes, None),
        Bool => (Type::Bool, None),
        Double => (Type::Double, None),
        Number32 => (Type::Uint32, None),
        Signed32 => (Type::Int32, None),
        Number64 => (Type::Uint64, None),
        Signed64 => (Type::Int64, None),
        Message(of) | Many(of) => (Type::Message, Some(of)),
        Enum(of) => (Type::Enum, Some(of)),
    };
    FieldDescriptorProto {
        name: Some((*name).to_owned()),
        number: Some(*number),
        label: Some(label.into()),
        r#type: Some(kind.into()),
        type_name: of.map(ToOwned::to_owned),
        ..FieldDescriptorProto::default()
    }
}

fn choice(name: &str, values: &[&str]) -> EnumDescriptorProto {
    let value = values.iter().zip(0..).map(|(name, number)| EnumValueDescriptorProto {
        name: Some((*name).to_owned()),
        number: Some(number),
        ..EnumValueDescriptorProto::default()
    });
    let value = value.collect();
    EnumDescriptorProto { name: Some(name.to_owned()), value, ..EnumDescriptorProto::default() }
}
