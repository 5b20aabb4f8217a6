//! What servers answer about their limits, however they spell it: the client's reader takes all of it.

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
        // Nobody is made to wait for longer than anybody would.
        let _ = heard.wait();
    }
});
