//! Clients that people use, through the proxy: Node's `ws`, curl, Python's grpcio, h2load.

use super::recorder::Recorder;
use super::{OPEN, proxy};
use crate::support::{Server, project};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;

/// A program whose output is read line by line. It is killed when it is dropped.
struct Running {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}; run make test-proxies"));
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output: BufReader::new(output) }
    }

    /// The next line that it prints.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "it ended after {line:?}");
        line.trim_end().to_owned()
    }

    fn json(&mut self) -> Value {
        let line = self.line();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    fn tell(&mut self) {
        writeln!(self.input, "go on").unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file that `make test-proxies` has installed.
fn installed(path: &str) -> String {
    let found = project(path);
    assert!(found.exists(), "no {}; run make test-proxies", found.display());
    found.canonicalize().unwrap().to_str().unwrap().to_owned()
}

fn script(name: &str) -> String {
    project("crates/server/tests/real_proxies/clients").join(name).to_str().unwrap().to_owned()
}

/// What a program prints: its output, and its errors.
fn printed(program: &str, arguments: &[&str], input: &[u8]) -> (String, String) {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}; run make test-proxies"));
    let mut stdin = child.stdin.take().unwrap();
    let bytes = input.to_vec();
    let writing = thread::spawn(move || {
        // A program that needs no input may have closed it.
        let _ = stdin.write_all(&bytes);
    });
    let output = child.wait_with_output().unwrap();
    writing.join().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let (printed, errors) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{errors}", output.status);
    (printed, errors)
}

// === WebSocket ===

#[test]
fn websockets_of_node() {
    let library = installed("target/ws/node_modules/ws/package.json").replace("/package.json", "");
    let node =
        |role: &str| Running::start(Command::new("node").args([&script("ws.mjs"), &library, role]));
    let mut echo = node("server");
    let server = proxy(OPEN, &format!("http://127.0.0.1:{}", echo.line()));
    let said = node(&server.proxy.port().to_string()).json();
    let expected = json!({
        "hello": "hello /chat?room=1 127.0.0.1",
        "compressed": "permessage-deflate",
        "text": "text",
        "large": true,
        "order": true,
        "pong": "are you there?",
        "close": [4001, "enough"],
    });
    assert_eq!(said, expected);
    server.is_sound();
}

// === server-sent events ===

/// Each event is sent after curl has printed the one before it, so nothing may be held back.
#[test]
fn server_sent_events_of_curl() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (go_on, printed) = mpsc::channel::<()>();
    let serving = thread::spawn(move || {
        for _ in 0..2 {
            let mut stream = accepted(&listener);
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-store\r\n\r\n").unwrap();
            for number in 0..10 {
                write!(stream, "data: event {number}\n\n").unwrap();
                printed.recv().unwrap();
            }
        }
    });
    let server = proxy(OPEN, &url);
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let target = format!("http://{}/events", server.proxy);
        let mut curl = Running::start(Command::new("curl").args(["-sS", "-N", version, &target]));
        for number in 0..10 {
            assert_eq!(curl.line(), format!("data: event {number}"), "{version}");
            assert_eq!(curl.line(), "");
            go_on.send(()).unwrap();
        }
        assert!(curl.child.wait().unwrap().success(), "{version}");
    }
    serving.join().unwrap();
}

/// The next connection, after the head of its request.
fn accepted(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = listener.accept().unwrap();
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    stream
}

// === Expect and trailers ===

#[test]
fn expectations_of_curl() {
    let recorder = Recorder::start();
    let policy = OPEN.replace("1000000/s", "1/day");
    let server = proxy(&policy, &recorder.url());
    let target = format!("http://{}/up", server.proxy);
    // curl waits for 100 Continue at most this long: longer than the test lasts.
    let common =
        ["-sS", "-v", "--http1.1", "-H", "Expect: 100-continue", "--expect100-timeout", "600"];
    let arguments = [&common[..], &["--data-binary", "@-", &target]].concat();
    let body = "x".repeat(100_000);
    let (printed_body, log) = printed("curl", &arguments, body.as_bytes());
    assert_eq!(printed_body, "POST /up");
    assert!(log.contains("< HTTP/1.1 100 Continue") && log.contains("< HTTP/1.1 200 OK"), "{log}");
    // A request that is refused is not told to continue, so curl does not send the body.
    let (problem, log) = printed("curl", &arguments, body.as_bytes());
    assert!(log.contains("< HTTP/1.1 429 ") && !log.contains("100 Continue"), "{log}");
    assert!(problem.contains("\"status\":429") || problem.contains("429"), "{problem}");
    drop(server);
    let seen = recorder.finish();
    assert_eq!((seen.requests.len(), seen.malformed.len(), seen.parts.len()), (1, 0, 0));
    assert!(seen.requests[0].body == body.as_bytes() && seen.requests[0].all("expect").is_empty());
}

#[test]
fn trailers_of_curl() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = thread::spawn(move || {
        for _ in 0..2 {
            accepted(&listener)
                .write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: sum, more\r\n\r\n3\r\nabc\r\n0\r\nsum: 3\r\nmore: x\r\n\r\n")
                .unwrap();
        }
    });
    let server = proxy(OPEN, &url);
    let target = format!("http://{}/", server.proxy);
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let (all, _) = printed("curl", &["-sS", "-i", "-H", "TE: trailers", version, &target], b"");
        let lower = all.to_ascii_lowercase();
        assert!(
            lower.contains("abc") && lower.contains("sum: 3") && lower.contains("more: x"),
            "{version}: {all}"
        );
    }
    serving.join().unwrap();
}

// === gRPC ===

#[test]
fn calls_of_grpcio() {
    let library = installed("target/grpcio/grpc/__init__.py").replace("/grpc/__init__.py", "");
    let python = |role: &str| {
        let mut command = Command::new("python3");
        Running::start(command.args([&script("calls.py"), role]).env("PYTHONPATH", &library))
    };
    let mut echo = python("server");
    let server = proxy(OPEN, &format!("h2c://127.0.0.1:{}", echo.line()));
    let mut client = python(&server.proxy.port().to_string());
    let expected = json!({
        "unary": "asked one",
        "metadata": ["first", "last", "00ff"],
        "large": (3 << 20) + 1,
        "error": ["FAILED_PRECONDITION", "not like this", "why"],
        "missing": "UNIMPLEMENTED",
        "collect": "1000000",
        "count": [1000, "999"],
        "talk": "MESSAGE 19",
        "together": true,
    });
    assert_eq!(client.json(), expected);
    // A call that the client cancels is cancelled at the server.
    assert_eq!(echo.line(), "called");
    client.tell();
    assert_eq!(echo.line(), "cancelled");
    client.tell();
    assert!(client.child.wait().unwrap().success());
    server.is_sound();
}

/// A call that a limit refuses ends with a status of gRPC. (The first one reaches a server that does not speak gRPC.)
#[test]
fn calls_of_grpcio_that_a_limit_refuses() {
    let library = installed("target/grpcio/grpc/__init__.py").replace("/grpc/__init__.py", "");
    let upstream = Recorder::start();
    let server = proxy(&OPEN.replace("1000000/s", "1/day"), &upstream.url());
    let calls = format!(
        "import grpc\ncall = grpc.insecure_channel('{}').unary_unary('/a.B/C')\nfor _ in range(2):\n  try: call(b'', timeout=60)\n  except grpc.RpcError as error: print(error.code().name)",
        server.proxy
    );
    let mut python = Command::new("python3");
    let mut python = Running::start(python.args(["-c", &calls]).env("PYTHONPATH", &library));
    assert_eq!([python.line(), python.line()], ["UNKNOWN", "RESOURCE_EXHAUSTED"]);
    drop(server);
    assert_eq!(upstream.finish().lines_with(""), ["POST /a.B/C"]);
}

// === load over HTTP/2 ===

/// Runs h2load, and checks that every request succeeded.
fn h2load(arguments: &[&str], requests: usize) {
    let count = requests.to_string();
    let (report, errors) = printed("h2load", &[&["-n", &count][..], arguments].concat(), b"");
    let all = format!("{requests} succeeded, 0 failed, 0 errored, 0 timeout");
    let good = format!("status codes: {requests} 2xx");
    assert!(report.contains(&all) && report.contains(&good), "{arguments:?}: {report}{errors}");
}

#[test]
fn load_of_h2load() {
    const REQUESTS: usize = 4_000;
    let recorder = Recorder::start();
    let one = proxy(OPEN, &recorder.url());
    let url = format!("http://{}/load", one.proxy);
    h2load(&["-c", "10", "-m", "20", &url], REQUESTS);
    let body = one.folder.join("body");
    std::fs::write(&body, "b".repeat(20_000)).unwrap();
    h2load(&["-c", "5", "-m", "10", "-d", body.to_str().unwrap(), &url], REQUESTS / 4);
    h2load(&["--h1", "-c", "10", &url], REQUESTS / 4);
    one.is_sound();
    drop(one);
    let seen = recorder.finish();
    assert_eq!(seen.malformed, [""; 0]);
    assert_eq!(seen.requests.len(), REQUESTS + REQUESTS / 2);
    let bodies = seen.requests.iter().filter(|request| request.body.len() == 20_000).count();
    assert_eq!(bodies, REQUESTS / 4);
    // HTTP/2 on both sides: another tidegate is the upstream server.
    let upstream = Server::with_policy(OPEN, &[]);
    let two = proxy(OPEN, &format!("h2c://{}", upstream.http));
    h2load(&["-c", "10", "-m", "20", &format!("http://{}/live", two.proxy)], REQUESTS);
    two.is_sound();
}
