//! Server reflection: describes the services of the listener to tools such as `grpcurl`.
//!
//! The files in `proto/` are those parts of Envoy's API that [`super::wire`] reads and writes by hand. `make descriptors` compiles
//! them to the bytes that are served here.

use super::tonic_service::{ReflectionVersion, TonicRequest};
use crate::bounds;
use http::{Request, Response};
use tonic::codegen::Service as _;

/// The files of the rate limit service and all that they import, as an encoded `FileDescriptorSet`.
const DESCRIPTORS: &[u8] = include_bytes!("proto/descriptors.bin");

/// Answers a reflection request. The service is built for each request, because people use it only now and then.
pub(super) async fn reflect(
    version: ReflectionVersion,
    request: Request<TonicRequest>,
) -> Response<tonic::body::Body> {
    let builder = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(DESCRIPTORS);
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

/// The bytes cannot be read; the tests of the listener exclude this.
fn broken() -> Response<tonic::body::Body> {
    tonic::Status::internal("internal error: a bug in tidegate").into_http()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;
    use prost_reflect::{DescriptorPool, EnumDescriptor, MessageDescriptor};
    use std::collections::BTreeSet;

    /// Every field of the files, such as `pkg.Message.field = 3: repeated string`, and every value of an enum.
    fn written() -> BTreeSet<String> {
        let files = [
            include_str!("proto/base.proto"),
            include_str!("proto/ratelimit.proto"),
            include_str!("proto/ratelimit_unit.proto"),
            include_str!("proto/rls.proto"),
        ];
        let mut all = BTreeSet::new();
        for file in files {
            let mut scope: Vec<&str> = vec![];
            for line in file.lines().map(|line| line.trim().trim_end_matches(';')) {
                let words: Vec<&str> = line.split(' ').collect();
                match words.as_slice() {
                    ["package", name] => scope = vec![name],
                    ["message" | "enum" | "service", name, "{"] => scope.push(name),
                    ["}"] => _ = scope.pop(),
                    ["syntax", ..] => {}
                    [kind @ .., name, "=", number] => {
                        let kind = kind.join(" ");
                        let (many, kind) = kind.split_once(' ').unwrap_or(("", &kind));
                        let kind = kind.rsplit('.').next().unwrap();
                        let line = format!("{}.{name} = {number}: {many} {kind}", scope.join("."));
                        all.insert(line);
                    }
                    _ => {}
                }
            }
        }
        all
    }

    fn of_message(message: &MessageDescriptor, all: &mut BTreeSet<String>) {
        for field in message.fields() {
            let many = if field.is_list() { "repeated" } else { "" };
            let kind = field.kind();
            let message = kind.as_message().map(|of| of.name().to_owned());
            let choice = kind.as_enum().map(|of| of.name().to_owned());
            let scalar = || format!("{kind:?}").to_lowercase();
            let kind = message.or(choice).unwrap_or_else(scalar);
            all.insert(format!("{} = {}: {many} {kind}", field.full_name(), field.number()));
        }
    }

    fn of_enum(choice: &EnumDescriptor, all: &mut BTreeSet<String>) {
        for value in choice.values() {
            let name = format!("{}.{}", choice.full_name(), value.name());
            all.insert(format!("{name} = {}:  ", value.number()));
        }
    }

    #[test]
    fn the_bytes_describe_what_the_files_say() {
        let pool = DescriptorPool::decode(DESCRIPTORS).unwrap();
        let mut described = BTreeSet::new();
        let messages = pool.all_messages().filter(|one| one.full_name().starts_with("envoy."));
        messages.for_each(|message| of_message(&message, &mut described));
        let enums = pool.all_enums().filter(|one| one.full_name().starts_with("envoy."));
        enums.for_each(|choice| of_enum(&choice, &mut described));
        assert_eq!(described, written());
        assert!(described.len() > 40, "{described:?}");
    }
}
