//! The servers under test. Each is started on a free port, proved to limit, and killed at the end, also after
//! an error.
//!
//! All of them apply the same limits to each key, except `bare`, which gives every request the same answer.
//! The requests differ, because each server has its own interface:
//!
//! | server | request | allowed | refused |
//! |---|---|---|---|
//! | tidegate | `POST /v1/check`, attributes as JSON | 200 | 429 |
//! | throttlecrab | `POST /throttle`, key and limit as JSON | 200, `"allowed":true` | 200, `"allowed":false` |
//! | nginx | `GET /?key=…` | 204 | 429 |
//! | bare | as tidegate | 200 | 429 |
//!
//! Before the measurement each server gets three requests for one key. The third answer must be the one that
//! its limits demand.

use super::load::HttpConnection;
use super::wire::{get, post};
use crate::rig::install::Programs;
use crate::rig::launch::{Launch, Limits};
use crate::rig::process::{Process, within};
use crate::rig::tally::Tally;
use crate::rig::template::Template;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

/// The servers that are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HttpServer {
    Tidegate,
    Throttlecrab,
    Nginx,
    /// The lab's own server that always sends the same answer.
    Bare,
}

impl HttpServer {
    pub(crate) const ALL: [Self; 4] = [Self::Tidegate, Self::Throttlecrab, Self::Nginx, Self::Bare];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tidegate => "tidegate",
            Self::Throttlecrab => "throttlecrab",
            Self::Nginx => "nginx",
            Self::Bare => "bare",
        }
    }

    /// The request that checks a key. Keys are IP addresses, which every server accepts as text.
    pub(crate) fn request(self, limits: Limits) -> Template {
        match (self, limits) {
            (Self::Tidegate | Self::Bare, _) => {
                post("/v1/check", r#"{"attributes":{"ip":"10.1##.1##.1##"}}"#)
            }
            (Self::Throttlecrab, Limits::Generous) => post(
                "/throttle",
                r#"{"key":"10.1##.1##.1##","max_burst":1000000,"count_per_period":1000000,"period":1}"#,
            ),
            (Self::Throttlecrab, Limits::Strict) => post(
                "/throttle",
                r#"{"key":"10.1##.1##.1##","max_burst":2,"count_per_period":1,"period":3600}"#,
            ),
            (Self::Nginx, _) => get("/?key=10.1##.1##.1##"),
        }
    }

    /// Whether an answer allows its request; `None` when it is not an answer that the server gives to a
    /// check.
    fn allows(self, status: u16, body: &[u8]) -> Option<bool> {
        let says = |word: &str| body.windows(word.len()).any(|part| part == word.as_bytes());
        match (self, status) {
            (Self::Tidegate | Self::Bare, 200) | (Self::Nginx, 204) => Some(true),
            (Self::Tidegate | Self::Nginx | Self::Bare, 429) => Some(false),
            (Self::Throttlecrab, 200) if says("\"allowed\":true") => Some(true),
            (Self::Throttlecrab, 200) if says("\"allowed\":false") => Some(false),
            (Self::Tidegate | Self::Throttlecrab | Self::Nginx | Self::Bare, _) => None,
        }
    }

    /// Fails unless the answers under load are those that the limits demand. throttlecrab refuses with status
    /// 200, so its refusals cannot be counted here.
    pub(crate) fn check_limits(self, limits: Limits, tally: &Tally) -> Result<(), String> {
        let Tally { passed, refused, .. } = tally;
        let kept = match limits {
            Limits::Generous => *refused == 0,
            Limits::Strict => self == Self::Throttlecrab || *passed < refused / 4,
        };
        let name = self.name();
        if kept { Ok(()) } else { Err(format!("{name}: {passed} passed, {refused} were refused")) }
    }

    /// The command that runs the server in the foreground.
    fn command(self, programs: &Programs, launch: &Launch<'_>) -> io::Result<Command> {
        match self {
            Self::Tidegate => tidegate(&programs.tidegate, launch),
            Self::Throttlecrab => Ok(throttlecrab(&programs.throttlecrab, launch)),
            Self::Nginx => nginx(launch),
            Self::Bare => bare(launch),
        }
    }
}

// === the four command lines ===

fn tidegate(program: &Path, launch: &Launch<'_>) -> io::Result<Command> {
    let mut command = launch.tidegate(program)?;
    command.args([
        "--http-listen",
        &launch.address.to_string(),
        "--admin-listen",
        "off",
        "--resp-listen",
        "off",
        "--grpc-listen",
        "off",
    ]);
    Ok(command)
}

/// `throttlecrab-server` with its default settings, except that it logs only warnings. Its limits are in the requests.
fn throttlecrab(program: &Path, launch: &Launch<'_>) -> Command {
    let (host, port) = (launch.address.ip().to_string(), launch.address.port().to_string());
    let mut command = Command::new(program);
    command.args(["--http", "--http-host", &host, "--http-port", &port, "--log-level", "warn"]);
    command
}

fn nginx(launch: &Launch<'_>) -> io::Result<Command> {
    let file = launch.folder.join("nginx.conf");
    fs::write(&file, nginx_file(launch))?;
    let mut command = Command::new("nginx");
    command.arg("-p").arg(launch.folder).arg("-c").arg(file).args(["-e", "stderr"]);
    Ok(command)
}

/// nginx with `limit_req`, which answers 204.
///
/// The obvious configuration, `limit_req …; return 204;`, limits nothing: `return` answers in the rewrite
/// phase, which is before the phase of `limit_req`. So the answer must come later. `deny all` refuses in the
/// access phase, right after `limit_req` has passed the request, and `error_page` turns its 403 into a 204.
/// That touches no file, and is faster than the alternative, `try_files`. `reuseport` gives each worker its
/// share of the connections.
fn nginx_file(launch: &Launch<'_>) -> String {
    let Launch { limits, address, folder } = launch;
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

/// This program, as the server of `bare.rs`.
fn bare(launch: &Launch<'_>) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bare", "--listen", &launch.address.to_string()]);
    if launch.limits == Limits::Strict {
        command.arg("--refuse");
    }
    Ok(command)
}

// === running ===

/// A running server. It is killed when this is dropped.
pub(crate) struct RunningHttpServer {
    pub(crate) server: HttpServer,
    pub(crate) process: Process,
}

impl RunningHttpServer {
    /// Starts a server, waits until it answers, proves that it limits, and stops it until its first round.
    pub(crate) async fn start(
        server: HttpServer,
        limits: Limits,
        programs: &Programs,
    ) -> Result<Self, String> {
        let with_name = |error: String| format!("{}: {error}", server.name());
        let name = format!("{}-{limits:?}", server.name());
        let process = Process::spawn(&name, |address, folder| {
            server.command(programs, &Launch { limits, address, folder })
        });
        let process = process.map_err(|error| with_name(format!("cannot be started: {error}")))?;
        let mut running = Self { server, process };
        running.prove_it_limits(limits).await.map_err(with_name)?;
        running.process.pause();
        Ok(running)
    }

    /// Sends three requests for the same key. The third must be refused under strict limits, and allowed
    /// under generous ones.
    async fn prove_it_limits(&mut self, limits: Limits) -> Result<(), String> {
        let server = self.server;
        self.process
            .wait_until_answering(async |address| server.ask(address, limits).await)
            .await?;
        within(server.ask(self.process.address, limits)).await?;
        let allowed = within(server.ask(self.process.address, limits)).await?;
        if allowed == (limits == Limits::Generous) {
            return Ok(());
        }
        Err(format!("under {limits:?} limits the third request got allowed={allowed}"))
    }
}

impl HttpServer {
    /// Sends one request for the first key, and returns whether it is allowed.
    async fn ask(self, address: SocketAddr, limits: Limits) -> Result<bool, String> {
        let mut connection = HttpConnection::open(address).await?;
        let answer = connection.exchange(self.request(limits).of(|| 0)).await?;
        let (status, body) = (answer.status, connection.body(&answer));
        let allowed = self.allows(status, body);
        allowed.ok_or_else(|| format!("answered {status}: {}", String::from_utf8_lossy(body)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_in_the_format_of_its_server() {
        let (yes, no) = (br#"{"allowed":true}"#, br#"{"allowed":false}"#);
        for (server, status, body, allows) in [
            (HttpServer::Tidegate, 200, yes.as_slice(), Some(true)),
            (HttpServer::Tidegate, 429, no, Some(false)),
            (HttpServer::Tidegate, 404, b"", None),
            (HttpServer::Throttlecrab, 200, yes, Some(true)),
            (HttpServer::Throttlecrab, 200, no, Some(false)),
            (HttpServer::Throttlecrab, 200, b"OK", None),
            (HttpServer::Throttlecrab, 500, yes, None),
            (HttpServer::Nginx, 204, b"", Some(true)),
            (HttpServer::Nginx, 429, b"", Some(false)),
            (HttpServer::Nginx, 403, b"", None),
        ] {
            assert_eq!(server.allows(status, body), allows, "{server:?} {status}");
        }
    }
}
