//! A full admin listener: connections without a token make room, connections with a token keep their places.

use crate::support::client::{Client, Operator};
use crate::support::{Server, connect};
use std::io::{Read, Write};
use std::net::TcpStream;

const PLACES: usize = 8;

/// Servers whose admin listener is full with eight connections: eight in all, and eight from one source.
fn servers() -> [Server; 2] {
    [["8", "50"], ["50", "8"]].map(|[all, per_source]| {
        Server::start(&[
            "--admin-max-connections",
            all,
            "--admin-max-connections-per-source",
            per_source,
        ])
    })
}

/// Connections that never show a token: some send nothing, some stop in the middle of a request.
fn strangers(server: &Server, count: usize) -> Vec<TcpStream> {
    let wrong = format!(
        "GET /metrics HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer wrong\r\n\r\nGET",
        server.admin
    );
    let beginnings = ["", "GET /metr", "PUT /admin/v1/policy HTTP/1.1\r\ncontent-", &wrong];
    let open = |beginning: &str| {
        let mut stream = connect(server.admin);
        // It may be closed already, to make room for the next one.
        let _ = stream.write_all(beginning.as_bytes());
        stream
    };
    beginnings.into_iter().cycle().take(count).map(open).collect()
}

/// Sixty silent connections from one address, which need no token, once took all places of the admin listener, and
/// the operator was refused until they timed out. The oldest of them must make room, and never a connection that has
/// shown a token.
#[test]
fn connections_without_a_token_do_not_lock_the_operator_out() {
    for server in servers() {
        let mut kept = Operator::of(&server);
        assert_eq!(kept.get("/admin/v1/status").status, 200);
        let mut strangers = strangers(&server, 60);
        assert_eq!(Operator::of(&server).get("/admin/v1/status").status, 200);
        assert_eq!(Operator::reader(&server).get("/metrics").status, 200);
        assert_eq!(kept.get("/admin/v1/status").status, 200);
        // The first one was closed long ago, without an answer.
        let ended = strangers.first_mut().unwrap().read(&mut [0; 1]);
        assert!(!matches!(ended, Ok(1..)), "{ended:?}");
        let refused = "tidegate_refused_total{reason=\"full\"}";
        assert!(kept.metric(refused) >= u64::try_from(60 - PLACES).unwrap());
    }
}

/// If all connections have shown a token, none is closed.
#[test]
fn connections_with_a_token_keep_their_places() {
    for server in servers() {
        let mut all: Vec<Operator> = (0..PLACES).map(|_| Operator::of(&server)).collect();
        for operator in &mut all {
            assert_eq!(operator.get("/admin/v1/status").status, 200);
        }
        let mut late = Client::of(server.admin);
        let _ = late.send(b"GET /live HTTP/1.1\r\n");
        assert!(!matches!(late.receive(), Ok(Some(_))));
        for operator in &mut all {
            assert_eq!(operator.get("/admin/v1/status").status, 200);
        }
    }
}
