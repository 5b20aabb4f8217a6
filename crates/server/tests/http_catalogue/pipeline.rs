//! Many requests in one write.

use super::case::{check, get};
use crate::support::Server;
use crate::support::http1::Wire;

const POLICY: &str = "
version: 1
rules: [{ name: all, key: [], limits: [{ rate: 1000000/h, algorithm: fixed_window, align: first }] }]
";

/// Answers are identified by their order alone, so an answer out of order is the answer to another request.
#[test]
fn ten_thousand_at_once_are_answered_in_their_order_and_cost_no_memory() {
    let server = Server::with_policy(POLICY, &[]);
    let kinds: [(Vec<u8>, u16); 4] = [
        (get("/live", ""), 200),
        (get("/nowhere", ""), 404),
        (check("{\"attributes\":{}}"), 200),
        (check("{}"), 400),
    ];
    let round = |server: &Server| {
        let requests = (0..10_000).flat_map(|n| kinds[n % 4].0.iter().copied());
        let requests: Vec<u8> = requests.collect();
        let mut wire = Wire::to(server.http);
        let mut writer = wire.writer();
        let writing = std::thread::spawn(move || writer.send(&requests));
        let mut left = None;
        for n in 0..10_000 {
            let reply = wire.answer().unwrap();
            assert_eq!(reply.status, kinds[n % 4].1, "answer {n}");
            if n % 4 == 2 {
                let now = reply.json()["limits"][0]["remaining"].as_u64().unwrap();
                assert!(left.is_none_or(|left| now + 1 == left), "answer {n}");
                left = Some(now);
            }
        }
        writing.join().unwrap();
    };
    round(&server);
    let before = server.resident_kib();
    for _ in 0..3 {
        round(&server);
    }
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown <= 4 * 1024, "{grown} KiB more");
    server.is_sound();
}
