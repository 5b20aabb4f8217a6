//! Arbitrary header fields: the client-side reader of rate limit fields must not panic on any of them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::http::Heard;
use tidegate_core::Timestamp;

fuzz_target!(|bytes: &[u8]| {
    let mut headers = http::HeaderMap::new();
    for line in bytes.split(|byte| *byte == b'\n').take(32) {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let (Some(name), Some(value)) = (parts.next(), parts.next()) else { continue };
        if let (Ok(name), Ok(value)) =
            (http::HeaderName::from_bytes(name), http::HeaderValue::from_bytes(value))
        {
            headers.append(name, value);
        }
    }
    for status in [http::StatusCode::OK, http::StatusCode::TOO_MANY_REQUESTS] {
        let heard = Heard::of(status, &headers, Timestamp::EPOCH);
        let _ = heard.wait();
    }
});
