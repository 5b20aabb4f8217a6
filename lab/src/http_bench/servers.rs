//! The servers under test: found or installed, started on a free port, proved to limit, and ended whatever happens.
//!
//! All of them limit each key by the same figures. What is asked differs, because each has an interface of its own:
//!
//! | server | request | allowed | refused |
//! |---|---|---|---|
//! | tidegate | `POST /v1/check`, attributes as JSON | 200 | 429 |
//! | throttlecrab | `POST /throttle`, key and limit as JSON | 200, `"allowed":true` | 200, `"allowed":false` |
//! | nginx | `GET /?key=…` | 204 | 429 |
//!
//! Before anything is measured, each is asked three times for one key, and the third answer must be the one that its limits demand.

use super::load::{Connection, Tally};
use super::wire::Request;
use crate::root;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Who is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    Tidegate,
    Throttlecrab,
    Nginx,
}

/// What each key may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limits {
    /// A million a second: nothing is refused.
    Generous,
    /// So little that nearly everything is refused: one an hour. nginx knows nothing less than one a minute, and
    /// throttlecrab gets a burst of 2, since by a burst of 1 it limits nobody.
    Strict,
}

/// How long a server may take until it answers, at first and ever.
const START: Duration = Duration::from_secs(10);
/// How long between two looks whether it does.
const LOOK: Duration = Duration::from_millis(20);

impl Server {
    pub(crate) const ALL: [Self; 3] = [Self::Tidegate, Self::Throttlecrab, Self::Nginx];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tidegate => "tidegate",
            Self::Throttlecrab => "throttlecrab",
            Self::Nginx => "nginx",
        }
    }

    /// What it is asked; the keys are addresses, which every one of them takes as text.
    pub(crate) fn request(self, limits: Limits) -> Request {
        match (self, limits) {
            (Self::Tidegate, _) => {
                Request::post("/v1/check", r#"{"attributes":{"ip":"10.1##.1##.1##"}}"#)
            }
            (Self::Throttlecrab, Limits::Generous) => Request::post(
                "/throttle",
                r#"{"key":"10.1##.1##.1##","max_burst":1000000,"count_per_period":1000000,"period":1}"#,
            ),
            (Self::Throttlecrab, Limits::Strict) => Request::post(
                "/throttle",
                r#"{"key":"10.1##.1##.1##","max_burst":2,"count_per_period":1,"period":3600}"#,
            ),
            (Self::Nginx, _) => Request::get("/?key=10.1##.1##.1##"),
        }
    }

    /// Whether an answer allows; `None` when it is no answer to such a request.
    fn allows(self, status: u16, body: &[u8]) -> Option<bool> {
        let says = |word: &str| body.windows(word.len()).any(|part| part == word.as_bytes());
        match (self, status) {
            (Self::Tidegate, 200) | (Self::Nginx, 204) => Some(true),
            (Self::Tidegate | Self::Nginx, 429) => Some(false),
            (Self::Throttlecrab, 200) if says("\"allowed\":true") => Some(true),
            (Self::Throttlecrab, 200) if says("\"allowed\":false") => Some(false),
            (Self::Tidegate | Self::Throttlecrab | Self::Nginx, _) => None,
        }
    }

    /// Whether what was answered under load is what the limits demand. throttlecrab's status does not tell what it refused.
    pub(crate) fn kept(self, limits: Limits, tally: &Tally) -> Result<(), String> {
        let Tally { passed, refused, .. } = tally;
        let kept = match limits {
            Limits::Generous => *refused == 0,
            Limits::Strict => self == Self::Throttlecrab || *passed < refused / 4,
        };
        let name = self.name();
        if kept { Ok(()) } else { Err(format!("{name}: {passed} passed, {refused} were refused")) }
    }

    /// The command that runs it in the foreground.
    fn command(self, programs: &Programs, place: &Place<'_>) -> io::Result<Command> {
        match self {
            Self::Tidegate => tidegate(&programs.tidegate, place),
            Self::Throttlecrab => Ok(throttlecrab(&programs.throttlecrab, place)),
            Self::Nginx => nginx(place),
        }
    }
}

// === the three ===

/// Where a server is started, and to which limits.
struct Place<'p> {
    limits: Limits,
    address: SocketAddr,
    /// For its files; there is nothing in it yet.
    folder: &'p Path,
}

fn tidegate(program: &Path, place: &Place<'_>) -> io::Result<Command> {
    let rate = match place.limits {
        Limits::Generous => "1000000/s",
        Limits::Strict => "1/h",
    };
    let rule = format!("{{ name: per-client, key: [ip], limits: [{rate}] }}");
    let (policy, data) = (place.folder.join("policy.yaml"), place.folder.join("data"));
    fs::create_dir(&data)?;
    fs::write(&policy, format!("version: 1\nrules:\n  - {rule}\n"))?;
    let mut command = Command::new(program);
    command.arg("serve").arg("--policy").arg(policy).arg("--data-dir").arg(data);
    command.args(["--http-listen", &place.address.to_string(), "--admin-listen", "off"]);
    Ok(command)
}

/// As it comes, but that it does not log what it does. Its limits are in the requests.
fn throttlecrab(program: &Path, place: &Place<'_>) -> Command {
    let (host, port) = (place.address.ip().to_string(), place.address.port().to_string());
    let mut command = Command::new(program);
    command.args(["--http", "--http-host", &host, "--http-port", &port, "--log-level", "warn"]);
    command
}

fn nginx(place: &Place<'_>) -> io::Result<Command> {
    let file = place.folder.join("nginx.conf");
    fs::write(&file, nginx_file(place))?;
    let mut command = Command::new("nginx");
    command.arg("-p").arg(place.folder).arg("-c").arg(file).args(["-e", "stderr"]);
    Ok(command)
}

/// nginx with `limit_req` and an answer 204.
///
/// The plain `limit_req …; return 204;` limits nobody: `return` answers in the phase of rewriting, which is over before
/// `limit_req` is asked. So the answer has to come later: `deny all` refuses in the phase of access, right after
/// `limit_req` let the request pass, and its 403 is turned into a 204. That touches no file, and is quicker than the
/// other way, `try_files`. `reuseport` gives each worker its share of the connections.
fn nginx_file(place: &Place<'_>) -> String {
    let Place { limits, address, folder } = place;
    let (rate, burst) = match limits {
        Limits::Generous => ("1000000r/s", "burst=1000000 nodelay"),
        Limits::Strict => ("1r/m", ""),
    };
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|module| format!("  {module}_temp_path {}/{module};\n", folder.display()))
        .concat();
    format!(
        "daemon off;
worker_processes auto;
pid {}/pid;
error_log stderr crit;
events {{ worker_connections 1024; }}
http {{
{temporary}  access_log off;
  keepalive_timeout 1h;
  keepalive_requests 1000000000;
  limit_req_zone $arg_key zone=keys:32m rate={rate};
  limit_req_status 429;
  server {{
    listen {address} reuseport;
    location / {{
      limit_req zone=keys {burst};
      deny all;
      error_page 403 = @passed;
    }}
    location @passed {{ return 204; }}
  }}
}}
",
        folder.display()
    )
}

// === running ===

/// A server that runs, until this is dropped.
pub(crate) struct Running {
    pub(crate) server: Server,
    pub(crate) address: SocketAddr,
    child: Child,
    folder: Folder,
}

impl Running {
    /// Starts a server, waits until it answers, and proves that it limits.
    pub(crate) async fn start(
        server: Server,
        limits: Limits,
        programs: &Programs,
    ) -> Result<Self, String> {
        let told = |error: String| format!("{}: {error}", server.name());
        let mut running = Self::spawn(server, limits, programs)
            .map_err(|error| told(format!("cannot be started: {error}")))?;
        let answers = running.answers(limits).await;
        answers.map_err(|error| told(format!("{error}\n{}", running.log())))?;
        running.prove(limits).await.map_err(told)?;
        Ok(running)
    }

    fn spawn(server: Server, limits: Limits, programs: &Programs) -> io::Result<Self> {
        let name = format!("tidegate-lab-{}-{}-{limits:?}", std::process::id(), server.name());
        let folder = Folder::new(&name)?;
        let address = free_address()?;
        let log = File::create(folder.0.join("log"))?;
        let child = server
            .command(programs, &Place { limits, address, folder: &folder.0 })?
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Its own group, so that its workers end with it.
            .process_group(0)
            .spawn()?;
        Ok(Self { server, address, child, folder })
    }

    /// Asks until there is an answer.
    async fn answers(&mut self, limits: Limits) -> Result<(), String> {
        let start = Instant::now();
        while let Err(error) = self.ask(limits).await {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("ended at once, {status}"));
            }
            if start.elapsed() > START {
                return Err(format!("still not ready: {error}"));
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// Asks for the same key again: under strict limits it must be refused by now, under generous ones not.
    async fn prove(&self, limits: Limits) -> Result<(), String> {
        self.ask(limits).await?;
        let allowed = self.ask(limits).await?;
        if allowed == (limits == Limits::Generous) {
            return Ok(());
        }
        Err(format!("{limits:?} limits, and the third request is allowed: {allowed}"))
    }

    /// Whether the first key is allowed.
    async fn ask(&self, limits: Limits) -> Result<bool, String> {
        let answered = timeout(START, self.exchange(limits)).await;
        let (status, body) = answered.map_err(|_late| format!("no answer for {START:?}"))??;
        let allowed = self.server.allows(status, &body);
        allowed.ok_or_else(|| format!("answered {status}: {}", String::from_utf8_lossy(&body)))
    }

    async fn exchange(&self, limits: Limits) -> Result<(u16, Vec<u8>), String> {
        let mut connection = Connection::open(self.address).await?;
        let answer = connection.exchange(self.server.request(limits).of(0)).await?;
        Ok((answer.status, connection.body(&answer).to_owned()))
    }

    /// What it said.
    fn log(&self) -> String {
        let log = fs::read_to_string(self.folder.0.join("log")).unwrap_or_default();
        log.trim_end().to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// A folder for temporary files, until this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> io::Result<Self> {
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed lies among other temporary files and harms nobody.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An address that nobody listens on. Somebody else may take it before the server does; then the server says so.
fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

// === finding and installing ===

/// Where the servers are. nginx is on the path.
pub(crate) struct Programs {
    tidegate: PathBuf,
    throttlecrab: PathBuf,
}

impl Programs {
    /// Finds all, and installs those of others that are missing.
    pub(crate) fn found(tidegate: Option<&Path>) -> Result<Self, String> {
        let tidegate = match tidegate {
            Some(path) => path.to_owned(),
            None => std::env::current_exe().map_err(|e| e.to_string())?.with_file_name("tidegate"),
        };
        if !tidegate.exists() {
            let path = tidegate.display();
            return Err(format!("{path} is missing: `cargo build --release -p tidegate-server`"));
        }
        let peers = root().join("target/peers");
        let throttlecrab = peers.join("bin/throttlecrab-server");
        if !throttlecrab.exists() {
            // Its build compiles a description of its gRPC interface.
            provide("protoc", "protobuf-compiler")?;
            let mut cargo = Command::new("cargo");
            cargo.args(["install", "--locked", "throttlecrab-server@0.4.40", "--root"]);
            done(cargo.arg(peers))?;
        }
        provide("nginx", "nginx-light")?;
        Ok(Self { tidegate, throttlecrab })
    }
}

/// Installs a package of Debian unless its program is there.
fn provide(program: &str, package: &str) -> Result<(), String> {
    if Command::new(program).arg("--help").output().is_ok() {
        return Ok(());
    }
    done(Command::new("apt-get").args(["update", "-q"]))?;
    done(Command::new("apt-get").args(["install", "-y", "-q", "--no-install-recommends", package]))
}

/// Runs a command to its end. What it says goes to standard error, for standard output may be JSON.
fn done(command: &mut Command) -> Result<(), String> {
    let status = command.stdout(io::stderr()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_allows_or_refuses_in_the_words_of_its_server() {
        let (yes, no) = (br#"{"allowed":true}"#, br#"{"allowed":false}"#);
        for (server, status, body, allows) in [
            (Server::Tidegate, 200, yes.as_slice(), Some(true)),
            (Server::Tidegate, 429, no, Some(false)),
            (Server::Tidegate, 404, b"", None),
            (Server::Throttlecrab, 200, yes, Some(true)),
            (Server::Throttlecrab, 200, no, Some(false)),
            (Server::Throttlecrab, 200, b"OK", None),
            (Server::Throttlecrab, 500, yes, None),
            (Server::Nginx, 204, b"", Some(true)),
            (Server::Nginx, 429, b"", Some(false)),
            (Server::Nginx, 403, b"", None),
        ] {
            assert_eq!(server.allows(status, body), allows, "{server:?} {status}");
        }
    }
}
