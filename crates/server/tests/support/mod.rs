//! A server as a user starts it: the binary, with a folder of its own, on free ports.

#![allow(dead_code, reason = "every file of tests uses its own part of this")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::integer_division,
    clippy::indexing_slicing,
    reason = "tests may fail loudly"
)]

pub(crate) mod authority;
pub(crate) mod blocks;
pub(crate) mod client;
pub(crate) mod grpc;
pub(crate) mod http1;
pub(crate) mod http2;
pub(crate) mod memcached;
pub(crate) mod messages;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod redis;
pub(crate) mod upstream;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A running server. It is killed when it is dropped.
pub(crate) struct Server {
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) resp: SocketAddr,
    pub(crate) proxy: SocketAddr,
    pub(crate) metrics: SocketAddr,
    /// Its folder: the data directory, and any other files that a test needs.
    pub(crate) folder: PathBuf,
    /// Its standard output stays open and is not read: a server must not fail because of that.
    child: Child,
}

/// The answer of a server.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// The longest time that anything may take on a busy machine. A test that waits longer has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Timeouts of every program under test, as environment variables, so that a test whose subject is time sets its own as a flag.
/// A stalled machine must look neither like a store that is away nor like a client that is too slow.
const PATIENT: [(&str, &str); 21] = [
    ("TIDEGATE_REDIS_TIMEOUT", "60s"),
    ("TIDEGATE_REDIS_CONNECT_TIMEOUT", "60s"),
    ("TIDEGATE_MEMCACHED_TIMEOUT", "60s"),
    ("TIDEGATE_MEMCACHED_CONNECT_TIMEOUT", "60s"),
    ("TIDEGATE_TLS_HANDSHAKE_TIMEOUT", "1h"),
    ("TIDEGATE_HTTP_HEADER_TIMEOUT", "1h"),
    ("TIDEGATE_HTTP_BODY_TIMEOUT", "1h"),
    ("TIDEGATE_HTTP_IDLE_TIMEOUT", "1h"),
    ("TIDEGATE_GRPC_HEADER_TIMEOUT", "1h"),
    ("TIDEGATE_GRPC_BODY_TIMEOUT", "1h"),
    ("TIDEGATE_GRPC_IDLE_TIMEOUT", "1h"),
    ("TIDEGATE_RESP_COMMAND_TIMEOUT", "1h"),
    ("TIDEGATE_RESP_WRITE_TIMEOUT", "1h"),
    ("TIDEGATE_RESP_IDLE_TIMEOUT", "1h"),
    ("TIDEGATE_PROXY_HEADER_TIMEOUT", "1h"),
    ("TIDEGATE_PROXY_BODY_TIMEOUT", "1h"),
    ("TIDEGATE_PROXY_IDLE_TIMEOUT", "1h"),
    ("TIDEGATE_ADMIN_HEADER_TIMEOUT", "1h"),
    ("TIDEGATE_ADMIN_BODY_TIMEOUT", "1h"),
    ("TIDEGATE_ADMIN_IDLE_TIMEOUT", "1h"),
    ("TIDEGATE_DRAIN_TIMEOUT", "60s"),
];

/// The program under test, which is patient.
pub(crate) fn tidegate() -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    program.envs(PATIENT);
    program
}

/// A new folder. A later run with the same process number removes it.
pub(crate) fn folder(name: &str) -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder =
        std::env::temp_dir().join(format!("tidegate-{name}-{}-{number}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Writes a file that only its owner may read, as files with secrets must be.
pub(crate) fn write_private(path: &Path, content: impl AsRef<[u8]>) {
    std::fs::write(path, content).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

impl Server {
    /// Starts with this policy and these flags.
    pub(crate) fn with_policy(policy: &str, flags: &[&str]) -> Self {
        let folder = folder("server");
        let path = folder.join("policy.yaml");
        std::fs::write(&path, policy).unwrap();
        let mut all = vec!["--policy", path.to_str().unwrap()];
        all.extend(flags);
        Self::start_in(folder.clone(), &all)
    }

    /// Starts with these flags alone.
    pub(crate) fn start(flags: &[&str]) -> Self {
        Self::start_in(folder("server"), flags)
    }

    /// Starts with its data in this folder.
    pub(crate) fn start_in(folder: PathBuf, flags: &[&str]) -> Self {
        Self::start_by(tidegate(), folder, flags)
    }

    /// Starts with its data in this folder and with these environment variables.
    pub(crate) fn start_with(folder: PathBuf, flags: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut program = tidegate();
        program.envs(variables.iter().copied());
        Self::start_by(program, folder, flags)
    }

    /// Starts with this limit of open files.
    pub(crate) fn start_with_files(files: u32, flags: &[&str]) -> Self {
        let mut shell = Command::new("sh");
        let limited = format!("ulimit -n {files}; exec \"$0\" \"$@\"");
        shell.args(["-c", &limited, env!("CARGO_BIN_EXE_tidegate")]);
        Self::start_by(shell, folder("server"), flags)
    }

    fn start_by(mut program: Command, folder: PathBuf, flags: &[&str]) -> Self {
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let mut child = program
            .envs(PATIENT)
            .arg("serve")
            .args(["--data-dir", folder.join("data").to_str().unwrap()])
            .args(["--http-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
            // Not as flags, so that a test can set an address itself.
            .env("TIDEGATE_RESP_LISTEN", "127.0.0.1:0")
            .env("TIDEGATE_GRPC_LISTEN", "127.0.0.1:0")
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let greeting = greeting(&folder.join("log"), &mut child);
        let address = |name: &str| greeting[name].as_str().map(|text| text.parse().unwrap());
        let http = address("http").unwrap();
        let or_http = |name: &str| address(name).unwrap_or(http);
        let [admin, resp, grpc, proxy, metrics] =
            ["admin", "resp", "grpc", "proxy", "metrics"].map(or_http);
        Self { http, admin, resp, grpc, proxy, metrics, folder, child }
    }

    /// Its process number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything that it has logged so far.
    pub(crate) fn log(&self) -> String {
        whole_lines(&self.folder.join("log"))
    }

    /// Waits until it has logged this. What a line is about may be seen a moment before the line.
    pub(crate) fn until_logged(&self, text: &str) {
        self.until(text, |server| server.log().contains(text));
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent =
            Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits until the process has ended. If it does not end, the test fails.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let tries = PATIENCE.as_millis() / 5;
        for _ in 0..tries {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            pause(Duration::from_millis(5));
        }
        panic!("it never ended\n{}", self.log());
    }

    pub(crate) fn data(&self, name: &str) -> PathBuf {
        self.folder.join("data").join(name)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        connect(self.http)
    }

    /// Sends bytes on a new connection, and reads everything until the server closes it.
    pub(crate) fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        // The server may close the connection before it has read everything.
        let _ = stream.write_all(bytes);
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        String::from_utf8_lossy(&all).into_owned()
    }

    /// Sends JSON by `POST` to the HTTP listener.
    pub(crate) fn post(&self, path: &str, body: &str) -> Reply {
        request(self.http, "POST", path, &[("content-type", "application/json")], body)
    }

    /// Checks an address under the default policy.
    pub(crate) fn check_ip(&self, ip: &str) -> Reply {
        self.post("/v1/check", &format!("{{\"attributes\":{{\"ip\":\"{ip}\"}}}}"))
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        request(self.http, "GET", path, &[], "")
    }

    /// Sends a request to the admin listener with the operator token.
    pub(crate) fn admin(&self, method: &str, path: &str, kind: &str, body: &str) -> Reply {
        let token = std::fs::read_to_string(self.data("operator-token")).unwrap();
        let bearer = format!("Bearer {}", token.trim());
        let mut fields = vec![("authorization", bearer.as_str())];
        if !kind.is_empty() {
            fields.push(("content-type", kind));
        }
        request(self.admin, method, path, &fields, body)
    }

    /// Waits until a condition holds. If it does not, the test fails.
    pub(crate) fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let tries = PATIENCE.as_millis() / 20;
        for _ in 0..tries {
            if holds(self) {
                return;
            }
            pause(Duration::from_millis(20));
        }
        panic!("never so: {what}\n{}\n{}", self.sockets(), self.log());
    }
}

/// The line of the log in which a server says where it listens. If the server ends before that, the test fails.
pub(crate) fn greeting(log: &Path, child: &mut Child) -> serde_json::Value {
    loop {
        // In this order: what it has logged before it ended is there.
        let ended = child.try_wait().unwrap();
        let text = whole_lines(log);
        let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        let found = lines.into_iter().find(|line: &serde_json::Value| line["message"] == "serving");
        match found {
            Some(line) => return line,
            None => assert!(ended.is_none(), "no server: {text}"),
        }
        pause(Duration::from_millis(1));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Waits for a moment between two attempts to see a change.
pub(crate) fn pause(time: Duration) {
    let (_keep, receiver) = std::sync::mpsc::channel::<()>();
    let _ = receiver.recv_timeout(time);
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    try_connect(address).unwrap()
}

fn try_connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// One request on a new connection. If the connection is refused, closed or reset before an answer, the status is 0, so that a test
/// that waits for a state can ask again.
pub(crate) fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
    body: &str,
) -> Reply {
    match exchange(address, method, path, fields, body) {
        Ok(reply) => reply,
        Err(error) if is_end(&error) => {
            Reply { status: 0, head: String::new(), body: format!("no answer: {error}") }
        }
        Err(error) => panic!("{method} {path} at {address}: {error}"),
    }
}

/// Whether the connection was refused, closed or reset. A wait that was too long is something else.
fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset};
    [BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset].contains(&error.kind())
}

fn exchange(
    address: SocketAddr,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
    body: &str,
) -> io::Result<Reply> {
    let mut stream = try_connect(address)?;
    let fields: String =
        fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{fields}content-length: {length}\r\n\r\n{body}"
    )?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all)?;
    Ok(Reply::parse(&String::from_utf8(all).unwrap()))
}

impl Reply {
    /// Parses an answer after which the connection was closed.
    pub(crate) fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Self { status, head: head.to_owned(), body: body.to_owned() }
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines
            .into_iter()
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// The lines of a file that another process may be writing right now, without the one that is not complete yet.
pub(crate) fn whole_lines(path: &Path) -> String {
    let mut bytes = std::fs::read(path).unwrap();
    bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1));
    String::from_utf8(bytes).unwrap()
}

/// A path of the project, from its root.
pub(crate) fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// How many requests of an address pass when all servers are asked at the same time, each this often.
pub(crate) fn passed_together(servers: &[Server], ip: &str, each: usize) -> usize {
    std::thread::scope(|scope| {
        let ask = |server: &Server| (0..each).filter(|_| server.check_ip(ip).status == 200).count();
        let asking: Vec<_> =
            servers.iter().map(|server| scope.spawn(move || ask(server))).collect();
        asking.into_iter().map(|asking| asking.join().unwrap()).sum()
    })
}
