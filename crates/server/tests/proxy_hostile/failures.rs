//! Passwords are guessed, and each attempt is made to time out: the upstream server checks the password, but its answer comes
//! too late. Timeouts are not failures of the client, because an outage must lock no user out. So the client must not be able to
//! cause them.
//!
//! The story: `total: 2s`, and the last byte of each attempt came after 1.85 s. Of 25 attempts all got 504, the server checked
//! all 25 passwords, and none was counted.

use super::{next, proxy, send, status, upstream};
use crate::support::client::Client;

const THREE: &str =
    "{ version: 1, rules: [{ name: logins, key: [], limits: [3/h], count: failures }] }";

#[test]
fn a_timeout_counts_as_a_failure_if_the_client_was_slow() {
    let (url, held) = upstream();
    let server = proxy(THREE, &url, "timeouts: { total: 1s }");
    for _ in 0..3 {
        let mut slow = Client::of(server.proxy);
        slow.send(b"POST /login HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\npassword").unwrap();
        let held = next(&held);
        assert_eq!((held.path.as_str(), status(&mut slow)), ("/login", 504));
    }
    assert_eq!(status(&mut send(&server, "POST", "/login", &[])), 429);
}

#[test]
fn a_timeout_of_the_server_counts_as_nothing() {
    let (url, held) = upstream();
    let server = proxy(THREE, &url, "timeouts: { total: 1s }");
    for _ in 0..6 {
        let mut client = Client::of(server.proxy);
        let request = client.request("POST", "/login", &[], "password");
        client.send(&request).unwrap();
        let held = next(&held);
        assert_eq!(status(&mut client), 504);
        drop(held);
    }
}
