//! What the listener speaks, for programs that ask: `grpcurl` and the like.
//!
//! The descriptions are written here as a table, because what is described is what [`super::wire`] reads and writes by hand:
//! a test holds the two together.

use super::others::RequestBody;
use crate::bounds;
use http::{Request, Response};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, FileDescriptorSet, MessageOptions, MethodDescriptorProto,
    OneofDescriptorProto, ServiceDescriptorProto,
};
use tonic::codegen::Service as _;

/// Services that are not ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestOf {
    Health,
    Reflection(Version),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    One,
    OneAlpha,
}

impl RequestOf {
    pub(super) fn path(path: &str) -> Option<Self> {
        let (service, _) = path.strip_prefix('/')?.split_once('/')?;
        match service {
            "grpc.health.v1.Health" => Some(Self::Health),
            "grpc.reflection.v1.ServerReflection" => Some(Self::Reflection(Version::One)),
            "grpc.reflection.v1alpha.ServerReflection" => Some(Self::Reflection(Version::OneAlpha)),
            _ => None,
        }
    }
}

/// It is asked by people, now and then: made anew for each.
pub(super) async fn reflect(
    version: Version,
    request: Request<RequestBody>,
) -> Response<tonic::body::Body> {
    let builder = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .register_file_descriptor_set(descriptors());
    let answered = match version {
        Version::One => match builder.build_v1() {
            Ok(service) => {
                service.max_decoding_message_size(bounds::GRPC_QUESTION).call(request).await
            }
            Err(_) => return broken(),
        },
        Version::OneAlpha => match builder.build_v1alpha() {
            Ok(service) => {
                service.max_decoding_message_size(bounds::GRPC_QUESTION).call(request).await
            }
            Err(_) => return broken(),
        },
    };
    let Ok(response) = answered;
    response
}

/// Our table contradicts itself, which the tests of the listener exclude.
fn broken() -> Response<tonic::body::Body> {
    tonic::Status::internal("a mistake of ours").into_http()
}

// === the table ===

/// A field: name, number, what it holds.
type FieldRow = (&'static str, i32, FieldKind);

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

/// All files, those first that others stand on.
fn descriptors() -> FileDescriptorSet {
    let units = ["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"];
    let wrappers = file("google/protobuf/wrappers.proto", "google.protobuf", &[])
        .with(message("UInt64Value", &[("value", 1, Number64)]));
    let duration = file("google/protobuf/duration.proto", "google.protobuf", &[])
        .with(message("Duration", &[("seconds", 1, Signed64), ("nanos", 2, Signed32)]));
    let unit = file("envoy/type/v3/ratelimit_unit.proto", "envoy.type.v3", &[])
        .with_enum(choice("RateLimitUnit", &units));
    let base = file("envoy/config/core/v3/base.proto", "envoy.config.core.v3", &[]).with(message(
        "HeaderValue",
        &[("key", 1, Text), ("value", 2, Text), ("raw_value", 3, Bytes)],
    ));
    let common = "envoy.extensions.common.ratelimit.v3";
    let descriptor = message(
        "RateLimitDescriptor",
        &[
            ("entries", 1, Many(".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry")),
            (
                "limit",
                2,
                Message(
                    ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride",
                ),
            ),
            ("hits_addend", 3, Message(".google.protobuf.UInt64Value")),
            ("is_negative_hits", 4, Bool),
        ],
    );
    let descriptor = DescriptorProto {
        nested_type: vec![
            message("Entry", &[("key", 1, Text), ("value", 2, Text)]),
            message(
                "RateLimitOverride",
                &[
                    ("requests_per_unit", 1, Number32),
                    ("unit", 2, Enum(".envoy.type.v3.RateLimitUnit")),
                ],
            ),
        ],
        ..descriptor
    };
    let uses = ["envoy/type/v3/ratelimit_unit.proto", "google/protobuf/wrappers.proto"];
    let path = "envoy/extensions/common/ratelimit/v3/ratelimit.proto";
    let ratelimit = file(path, common, &uses).with(descriptor);
    let all = [wrappers, duration, structs(), unit, base, ratelimit, service(path, &units)];
    FileDescriptorSet { file: all.into_iter().map(|File(file)| file).collect() }
}

fn service(ratelimit: &'static str, units: &[&str]) -> File {
    let status = ".envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus";
    let code = ".envoy.service.ratelimit.v3.RateLimitResponse.Code";
    let header = ".envoy.config.core.v3.HeaderValue";
    let request = message(
        "RateLimitRequest",
        &[
            ("domain", 1, Text),
            ("descriptors", 2, Many(".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor")),
            ("hits_addend", 3, Number32),
        ],
    );
    let limit = DescriptorProto {
        enum_type: vec![choice("Unit", units)],
        ..message(
            "RateLimit",
            &[
                ("requests_per_unit", 1, Number32),
                ("unit", 2, Enum(".envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit")),
                ("name", 3, Text),
            ],
        )
    };
    let of_descriptor = message(
        "DescriptorStatus",
        &[
            ("code", 1, Enum(code)),
            (
                "current_limit",
                2,
                Message(".envoy.service.ratelimit.v3.RateLimitResponse.RateLimit"),
            ),
            ("limit_remaining", 3, Number32),
            ("duration_until_reset", 4, Message(".google.protobuf.Duration")),
        ],
    );
    let response = DescriptorProto {
        nested_type: vec![limit, of_descriptor],
        enum_type: vec![choice("Code", &["UNKNOWN", "OK", "OVER_LIMIT"])],
        ..message(
            "RateLimitResponse",
            &[
                ("overall_code", 1, Enum(code)),
                ("statuses", 2, Many(status)),
                ("response_headers_to_add", 3, Many(header)),
                ("request_headers_to_add", 4, Many(header)),
                ("raw_body", 5, Bytes),
                ("dynamic_metadata", 6, Message(".google.protobuf.Struct")),
            ],
        )
    };
    let method = MethodDescriptorProto {
        name: Some("ShouldRateLimit".to_owned()),
        input_type: Some(REQUEST.to_owned()),
        output_type: Some(RESPONSE.to_owned()),
        ..MethodDescriptorProto::default()
    };
    let uses = [
        "envoy/config/core/v3/base.proto",
        ratelimit,
        "google/protobuf/duration.proto",
        "google/protobuf/struct.proto",
    ];
    let File(mut file) =
        file("envoy/service/ratelimit/v3/rls.proto", "envoy.service.ratelimit.v3", &uses)
            .with(request)
            .with(response);
    file.service.push(ServiceDescriptorProto {
        name: Some("RateLimitService".to_owned()),
        method: vec![method],
        ..ServiceDescriptorProto::default()
    });
    File(file)
}

/// `google/protobuf/struct.proto`: values of any kind.
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
    let mut kinds = message(
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
    kinds.field.iter_mut().for_each(|field| field.oneof_index = Some(0));
    kinds.oneof_decl.push(OneofDescriptorProto {
        name: Some("kind".to_owned()),
        ..OneofDescriptorProto::default()
    });
    file("google/protobuf/struct.proto", "google.protobuf", &[])
        .with(object)
        .with(kinds)
        .with(message("ListValue", &[("values", 1, Many(value))]))
        .with_enum(choice("NullValue", &["NULL_VALUE"]))
}

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

fn file(name: &str, package: &str, uses: &[&str]) -> File {
    File(FileDescriptorProto {
        name: Some(name.to_owned()),
        package: Some(package.to_owned()),
        dependency: uses.iter().map(ToString::to_string).collect(),
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
