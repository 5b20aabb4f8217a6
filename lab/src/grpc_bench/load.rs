//! The client side of one connection: a number of calls in flight, and a new call for each that has ended.

use super::failures::Failures;
use super::message::GrpcRequest;
use super::session::{Outcome, Session};
use crate::rig::drive::LoadClient;
use crate::rig::template::Keys;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Makes calls with random keys, and keeps `depth` of them in flight.
pub(crate) struct GrpcClient {
    session: Session,
    keys: Keys,
    depth: usize,
    failures: Failures,
    /// The bytes to send next.
    request: Vec<u8>,
}

impl GrpcClient {
    pub(crate) fn new(request: &GrpcRequest, keys: Keys, depth: usize, failures: Failures) -> Self {
        Self { session: Session::new(request), keys, depth, failures, request: Vec::new() }
    }
}

impl LoadClient for GrpcClient {
    /// Writes calls until the wanted number is in flight.
    fn request(&mut self) -> &[u8] {
        self.request.clear();
        self.session.write_due(&mut self.request);
        for _ in self.session.in_flight()..self.depth {
            self.session.write_call(&mut self.request, self.keys.draw());
        }
        &self.request
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<Option<(u64, u64)>, String> {
        let (mut passed, mut refused, mut failed) = (0u64, 0u64, 0u64);
        let heard = self.session.read(bytes, |outcome| {
            let count = match outcome {
                Outcome::Allowed => &mut passed,
                Outcome::Refused => &mut refused,
                Outcome::Failed(failure) => {
                    self.failures.note(failure);
                    &mut failed
                }
            };
            *count = count.saturating_add(1);
        });
        heard?;
        let over = passed > 0 || refused > 0 || failed > 0;
        Ok(over.then_some((passed, refused)))
    }

    fn awaits_more(&self) -> bool {
        self.session.in_flight() > 0
    }
}

// === a single call ===

/// Makes one call for the first key, and returns whether it is allowed.
pub(crate) async fn call_once(address: SocketAddr, request: &GrpcRequest) -> Result<bool, String> {
    let as_text = |error: std::io::Error| error.to_string();
    let (keys, failures) = (Keys::new(NonZeroU32::MIN, 0), Failures::default());
    let mut client = GrpcClient::new(request, keys, 1, failures.clone());
    let mut stream = TcpStream::connect(address).await.map_err(as_text)?;
    stream.write_all(client.request()).await.map_err(as_text)?;
    let mut buffer = vec![0; 4096];
    loop {
        let read = stream.read(&mut buffer).await.map_err(as_text)?;
        if read == 0 {
            return Err("the server closed the connection".to_owned());
        }
        match client.receive(buffer.get(..read).unwrap_or_default())? {
            Some((1, 0)) => return Ok(true),
            Some((0, 1)) => return Ok(false),
            Some(_) => return Err(failures.summary().unwrap_or_default()),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc_bench::failures::Failure;
    use crate::grpc_bench::message::should_rate_limit;
    use crate::rig::drive::drive;
    use crate::rig::schedule::{Pace, Schedule};
    use std::collections::BTreeMap;
    use std::io::{Read, Write};
    use std::thread::{self, JoinHandle};
    use std::time::Duration;
    use tokio::net::TcpListener;
    use tokio::sync::oneshot;
    use tonic::transport::Server;
    use tonic::transport::server::TcpIncoming;
    use tonic_health::ServingStatus;

    /// A server that is not tidegate: tonic with the gRPC health service. Its messages resemble those of a
    /// rate limit service: the first field of its request is a name, like the domain, and that of its
    /// response is a number, of which 1 means healthy and 2 not.
    struct Tonic {
        address: SocketAddr,
        end: oneshot::Sender<()>,
        serving: JoinHandle<()>,
    }

    impl Tonic {
        /// `k0` to `k4` are healthy, `k5` to `k8` are not, and `k9` is unknown.
        fn start() -> Self {
            let (end, ended) = oneshot::channel();
            let (started, address) = std::sync::mpsc::channel();
            let serving = thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.unwrap().block_on(async {
                    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                    started.send(listener.local_addr().unwrap()).unwrap();
                    let (reporter, health) = tonic_health::server::health_reporter();
                    for key in 0..9 {
                        let status = if key < 5 {
                            ServingStatus::Serving
                        } else {
                            ServingStatus::NotServing
                        };
                        reporter.set_service_status(format!("k{key}"), status).await;
                    }
                    let server = Server::builder().add_service(health);
                    let ended = async { ended.await.unwrap_or_default() };
                    let incoming = TcpIncoming::from(listener);
                    server.serve_with_incoming_shutdown(incoming, ended).await.unwrap();
                });
            });
            Self { address: address.recv().unwrap(), end, serving }
        }

        fn request(&self, path: &'static str) -> GrpcRequest {
            let entry = ("remote_address", "10.0.0.1");
            GrpcRequest { path, ..should_rate_limit(self.address.to_string(), "k#", [entry]) }
        }

        fn end(self) {
            self.end.send(()).unwrap();
            self.serving.join().unwrap();
        }
    }

    const CHECK: &str = "/grpc.health.v1.Health/Check";

    #[test]
    fn a_real_server_answers_each_key_on_one_connection_and_windows_stay_open() {
        let server = Tonic::start();
        let mut session = Session::new(&server.request(CHECK));
        let mut stream = std::net::TcpStream::connect(server.address).unwrap();
        let (mut sent, mut buffer) = (Vec::new(), [0; 4096]);
        // Enough calls that both flow-control windows must be extended: the server's answers have 60 bytes,
        // ours 7.
        for key in (0..10).cycle().take(6_000) {
            sent.clear();
            session.write_due(&mut sent);
            session.write_call(&mut sent, key);
            stream.write_all(&sent).unwrap();
            let mut outcomes = Vec::new();
            while outcomes.is_empty() {
                let read = stream.read(&mut buffer).unwrap();
                assert!(read > 0, "the server closed the connection");
                session.read(&buffer[..read], |outcome| outcomes.push(outcome)).unwrap();
            }
            let expected = match key {
                0..5 => Outcome::Allowed,
                5..9 => Outcome::Refused,
                _ => Outcome::Failed(Failure::Grpc(5)),
            };
            assert_eq!(outcomes, [expected], "{key}");
        }
        drop(stream);
        server.end();
    }

    #[test]
    fn a_load_over_several_connections_adds_up() {
        let (server, failures) = (Tonic::start(), Failures::default());
        let request = server.request(CHECK);
        let schedule =
            Schedule { connections: 3, pace: Pace::Closed, length: Duration::from_millis(50) };
        let ten = NonZeroU32::new(10).unwrap();
        let client =
            |number| GrpcClient::new(&request, Keys::new(ten, number), 10, failures.clone());
        let tally = drive(server.address, &schedule, client).unwrap();
        // The first calls of the three connections already contain keys of each kind.
        assert!(tally.passed > 0 && tally.refused > 0);
        assert_eq!(tally.passed + tally.refused, tally.latency.len());
        assert_eq!(failures.seen().keys().collect::<Vec<_>>(), [&Failure::Grpc(5)]);
        server.end();
    }

    #[tokio::test]
    async fn a_single_call_is_answered_or_fails_with_a_reason() {
        let server = Tonic::start();
        assert_eq!(call_once(server.address, &server.request(CHECK)).await, Ok(true));
        let nowhere = server.request("/grpc.health.v1.Health/Heck");
        let error = Err("1 × grpc-status UNIMPLEMENTED".to_owned());
        assert_eq!(call_once(server.address, &nowhere).await, error);
        server.end();
    }

    #[test]
    fn goaway_ends_the_load_and_is_counted() {
        let request = should_rate_limit(String::new(), "bench", []);
        let keys = Keys::new(NonZeroU32::MIN, 0);
        let mut client = GrpcClient::new(&request, keys, 1, Failures::default());
        client.request();
        let error = client.receive(b"\0\0\x08\x07\0\0\0\0\0\0\0\0\x01\0\0\0\x02");
        assert_eq!(error, Err("GOAWAY INTERNAL_ERROR".to_owned()));
        assert_eq!(client.failures.seen(), BTreeMap::from([(Failure::GoAway(2), 1)]));
    }

    #[test]
    fn the_wanted_number_of_calls_stays_in_flight() {
        let request = should_rate_limit(String::new(), "bench", [("remote_address", "10.1##")]);
        let keys = Keys::new(NonZeroU32::MIN, 0);
        let mut client = GrpcClient::new(&request, keys, 10, Failures::default());
        let first = client.request().len();
        assert_eq!(client.session.in_flight(), 10);
        // Two calls were reset, so two new ones are made.
        let reset = b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x07".as_slice();
        let other = b"\0\0\x04\x03\0\0\0\0\x13\0\0\0\x02".as_slice();
        assert_eq!(client.receive(&[reset, other].concat()), Ok(Some((0, 0))));
        assert_eq!(
            client.failures.seen(),
            BTreeMap::from([(Failure::Reset(2), 1), (Failure::Reset(7), 1)])
        );
        assert!(client.awaits_more());
        assert!(client.request().len() < first);
        assert_eq!(client.session.in_flight(), 10);
    }
}
