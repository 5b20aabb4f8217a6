//! The messages of Envoy's rate limit service, with the field numbers of its `.proto` files. They are read and
//! written by prost, independently of the server's own code.

#![allow(dead_code, reason = "every file of tests uses its own part of this")]

/// `envoy.service.ratelimit.v3.RateLimitRequest`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Request {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    pub(crate) hits_addend: u32,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<Entry>,
    #[prost(message, optional, tag = "2")]
    pub(crate) limit: Option<OwnLimit>,
    #[prost(message, optional, tag = "3")]
    pub(crate) hits_addend: Option<u64>,
    #[prost(bool, tag = "4")]
    pub(crate) is_negative_hits: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Entry {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

/// `RateLimitOverride`
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct OwnLimit {
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    pub(crate) unit: i32,
}

/// `envoy.service.ratelimit.v3.RateLimitResponse`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Response {
    #[prost(int32, tag = "1")]
    pub(crate) overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub(crate) statuses: Vec<Status>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) response_headers_to_add: Vec<Header>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) request_headers_to_add: Vec<Header>,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) raw_body: Vec<u8>,
    #[prost(message, optional, tag = "6")]
    pub(crate) dynamic_metadata: Option<prost_types::Struct>,
}

/// `DescriptorStatus`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Status {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) current_limit: Option<Limit>,
    #[prost(uint32, tag = "3")]
    pub(crate) limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub(crate) duration_until_reset: Option<prost_types::Duration>,
}

/// `RateLimit`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Limit {
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    pub(crate) unit: i32,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
}

/// `envoy.config.core.v3.HeaderValue`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Header {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) raw_value: Vec<u8>,
}

pub(crate) const OK: i32 = 1;
pub(crate) const OVER_LIMIT: i32 = 2;
pub(crate) const SECOND: i32 = 1;
pub(crate) const MINUTE: i32 = 2;
pub(crate) const HOUR: i32 = 3;
pub(crate) const DAY: i32 = 4;
pub(crate) const MONTH: i32 = 5;
pub(crate) const YEAR: i32 = 6;
pub(crate) const WEEK: i32 = 7;

impl Request {
    /// With one descriptor.
    pub(crate) fn about(entries: &[(&str, &str)]) -> Self {
        Self::of([Descriptor::of(entries)])
    }

    pub(crate) fn of(descriptors: impl Into<Vec<Descriptor>>) -> Self {
        Self { domain: "web".to_owned(), descriptors: descriptors.into(), hits_addend: 0 }
    }

    pub(crate) fn hits(self, hits_addend: u32) -> Self {
        Self { hits_addend, ..self }
    }
}

impl Descriptor {
    pub(crate) fn of(entries: &[(&str, &str)]) -> Self {
        let entry = |(key, value): &(&str, &str)| Entry {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
        };
        Self { entries: entries.iter().map(entry).collect(), ..Self::default() }
    }

    pub(crate) fn hits(self, hits: u64) -> Self {
        Self { hits_addend: Some(hits), ..self }
    }

    /// Gives the cost back.
    pub(crate) fn back(self) -> Self {
        Self { is_negative_hits: true, ..self }
    }

    pub(crate) fn limited(self, requests_per_unit: u32, unit: i32) -> Self {
        Self { limit: Some(OwnLimit { requests_per_unit, unit }), ..self }
    }
}

impl Response {
    pub(crate) fn passed(&self) -> bool {
        assert!(matches!(self.overall_code, OK | OVER_LIMIT), "{self:?}");
        self.overall_code == OK
    }
}
