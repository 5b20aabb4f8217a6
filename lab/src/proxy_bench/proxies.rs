//! The proxies under test. Each runs with one worker in front of the same upstream server, and limits each client address
//! (Envoy: all requests together) to a million requests a second, so that nothing is refused.
//!
//! | proxy | limit | connections to the upstream server |
//! |---|---|---|
//! | tidegate | one rule with `key: [ip]` | kept, as always |
//! | nginx | `limit_req` | kept: `keepalive`, HTTP/1.1 and an empty `Connection`, without which each request opens one |
//! | Caddy | none: it has no limiter of its own | kept, as always |
//! | Envoy | local rate limit | kept, as always |
//! | direct | none: the upstream server itself | |
//!
//! Before the measurement each proxy gets a request, whose answer must come from the upstream server. Each proxy with a
//! limit is also started with a strict one: then the third request must be refused.

use super::tidegate::TidegateProxy;
use crate::http_bench::load::HttpConnection;
use crate::http_bench::wire::get;
use crate::rig::launch::Limits;
use crate::rig::process::{Process, Resumed, within};
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The proxies that are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProxyServer {
    Tidegate,
    Nginx,
    Caddy,
    Envoy,
    /// No proxy: the client calls the upstream server.
    Direct,
}

/// The binaries of those proxies that are not on the `PATH`.
pub(crate) struct ProxyPrograms {
    pub(crate) tidegate: PathBuf,
    pub(crate) envoy: PathBuf,
}

/// How a proxy is started.
struct ProxyLaunch<'l> {
    limits: Limits,
    upstream: SocketAddr,
    address: SocketAddr,
    /// An empty folder for its files.
    folder: &'l Path,
}

impl ProxyServer {
    pub(crate) const ALL: [Self; 5] =
        [Self::Tidegate, Self::Nginx, Self::Caddy, Self::Envoy, Self::Direct];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tidegate => "tidegate",
            Self::Nginx => "nginx",
            Self::Caddy => "caddy",
            Self::Envoy => "envoy",
            Self::Direct => "direct",
        }
    }

    const fn has_limits(self) -> bool {
        match self {
            Self::Tidegate | Self::Nginx | Self::Envoy => true,
            Self::Caddy | Self::Direct => false,
        }
    }

    /// The command that runs the proxy in the foreground; `None` if there is nothing to run.
    fn command(
        self,
        programs: &ProxyPrograms,
        launch: &ProxyLaunch<'_>,
    ) -> io::Result<Option<Command>> {
        match self {
            Self::Tidegate => tidegate(programs, launch).map(Some),
            Self::Nginx => nginx(launch).map(Some),
            Self::Caddy => caddy(launch).map(Some),
            Self::Envoy => envoy(&programs.envoy, launch).map(Some),
            Self::Direct => Ok(None),
        }
    }
}

// === the four command lines ===

fn tidegate(programs: &ProxyPrograms, launch: &ProxyLaunch<'_>) -> io::Result<Command> {
    let rate = match launch.limits {
        Limits::Generous => "1000000/s",
        Limits::Strict => "1/h",
    };
    let proxy = TidegateProxy {
        program: &programs.tidegate,
        rule: &format!("{{ name: per-client, key: [ip], limits: [{rate}] }}"),
        upstreams: &[launch.upstream],
        group: "",
        admin: None,
        arguments: &["--proxy-max-body", "4GiB"],
    };
    proxy.command(launch.address, launch.folder)
}

fn nginx(launch: &ProxyLaunch<'_>) -> io::Result<Command> {
    let file = launch.folder.join("nginx.conf");
    fs::write(&file, nginx_file(launch))?;
    let mut command = Command::new("nginx");
    command.arg("-p").arg(launch.folder).arg("-c").arg(file).args(["-e", "stderr"]);
    Ok(command)
}

/// nginx with the fields that the other proxies send by themselves. Bodies are passed on while they arrive, and never
/// written to a file.
fn nginx_file(launch: &ProxyLaunch<'_>) -> String {
    let (rate, burst) = match launch.limits {
        Limits::Generous => ("1000000r/s", "burst=1000000 nodelay"),
        Limits::Strict => ("1r/m", ""),
    };
    let (address, upstream, folder) = (launch.address, launch.upstream, launch.folder.display());
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|module| format!("  {module}_temp_path {folder}/{module};\n"))
        .concat();
    format!(
        "daemon off;
worker_processes 1;
pid {folder}/pid;
error_log stderr crit;
events {{ worker_connections 4096; }}
http {{
{temporary}  access_log off;
  keepalive_timeout 1h;
  keepalive_requests 1000000000;
  client_max_body_size 0;
  limit_req_zone $binary_remote_addr zone=clients:10m rate={rate};
  limit_req_status 429;
  upstream servers {{
    server {upstream};
    keepalive 256;
    keepalive_requests 1000000000;
  }}
  server {{
    listen {address};
    location / {{
      limit_req zone=clients {burst};
      proxy_pass http://servers;
      proxy_http_version 1.1;
      proxy_set_header Connection \"\";
      proxy_set_header Host $http_host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header X-Forwarded-Proto $scheme;
      proxy_request_buffering off;
      proxy_max_temp_file_size 0;
    }}
  }}
}}
"
    )
}

/// Caddy on one processor (`GOMAXPROCS`), without its admin interface.
fn caddy(launch: &ProxyLaunch<'_>) -> io::Result<Command> {
    let file = launch.folder.join("Caddyfile");
    let options = "admin off\n  auto_https off\n  log {\n    level ERROR\n  }";
    let site = format!(
        "http://:{} {{\n  bind {}\n  reverse_proxy {}\n}}\n",
        launch.address.port(),
        launch.address.ip(),
        launch.upstream
    );
    fs::write(&file, format!("{{\n  {options}\n}}\n{site}"))?;
    let mut command = Command::new("caddy");
    command.args(["run", "--adapter", "caddyfile", "--config"]).arg(file);
    command.env("GOMAXPROCS", "1").env("HOME", launch.folder);
    Ok(command)
}

fn envoy(program: &Path, launch: &ProxyLaunch<'_>) -> io::Result<Command> {
    let file = launch.folder.join("envoy.yaml");
    fs::write(&file, envoy_file(launch))?;
    let mut command = Command::new(program);
    command.arg("-c").arg(file);
    command.args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]);
    Ok(command)
}

fn envoy_file(launch: &ProxyLaunch<'_>) -> String {
    let (tokens, interval) = match launch.limits {
        Limits::Generous => (1_000_000, "1s"),
        Limits::Strict => (1, "3600s"),
    };
    let socket = |address: SocketAddr| {
        let (ip, port) = (address.ip(), address.port());
        format!("{{ socket_address: {{ address: {ip}, port_value: {port} }} }}")
    };
    include_str!("envoy.yaml")
        .replace("LISTEN", &socket(launch.address))
        .replace("UPSTREAM", &socket(launch.upstream))
        .replace("TOKENS", &tokens.to_string())
        .replace("INTERVAL", interval)
}

// === running ===

/// A running proxy. It is killed when this is dropped.
pub(crate) struct RunningProxy {
    pub(crate) server: ProxyServer,
    pub(crate) address: SocketAddr,
    /// `None` without a proxy.
    pub(crate) process: Option<Process>,
}

impl RunningProxy {
    /// Proves that the proxy limits, starts it, waits until it passes on a request, and stops it until its first round.
    pub(crate) async fn start(
        server: ProxyServer,
        upstream: SocketAddr,
        programs: &ProxyPrograms,
    ) -> Result<Self, String> {
        if server.has_limits() {
            let strict = Self::spawn(server, Limits::Strict, upstream, programs).await?;
            strict.prove_it_limits().await.map_err(|error| strict.named(&error))?;
        }
        let running = Self::spawn(server, Limits::Generous, upstream, programs).await?;
        if let Some(process) = &running.process {
            process.pause();
        }
        Ok(running)
    }

    async fn spawn(
        server: ProxyServer,
        limits: Limits,
        upstream: SocketAddr,
        programs: &ProxyPrograms,
    ) -> Result<Self, String> {
        let mut running = Self { server, address: upstream, process: None };
        if server != ProxyServer::Direct {
            let name = format!("{}-{limits:?}", server.name());
            let process = Process::spawn(&name, |address, folder| {
                let launch = ProxyLaunch { limits, upstream, address, folder };
                let command = server.command(programs, &launch)?;
                command.ok_or_else(|| io::Error::other("there is nothing to run"))
            });
            let process = process.map_err(|error| running.named(&error.to_string()))?;
            running.address = process.address;
            let process = running.process.insert(process);
            let answering = process.wait_until_answering(async |at| status(at).await).await;
            answering.map_err(|error| running.named(&error))?;
        }
        Ok(running)
    }

    /// One request has passed already. Of two more, the last one must be refused.
    async fn prove_it_limits(&self) -> Result<(), String> {
        within(status(self.address)).await?;
        let third = within(status(self.address)).await?;
        let right = third == 429;
        if right { Ok(()) } else { Err(format!("the third request got {third} instead of 429")) }
    }

    /// Lets the proxy run while the guard lives.
    pub(crate) fn resume(&self) -> Option<Resumed<'_>> {
        self.process.as_ref().map(Process::resume)
    }

    fn named(&self, error: &str) -> String {
        format!("{}: {error}", self.server.name())
    }
}

/// The status of one request, which must be an answer of the upstream server or a refusal.
async fn status(address: SocketAddr) -> Result<u16, String> {
    let mut connection = HttpConnection::open(address).await?;
    let answer = connection.exchange(get("/").of(|| 0)).await?;
    match answer.status {
        200 if connection.body(&answer).is_empty() => {
            Err("answered without the upstream server".to_owned())
        }
        200 | 429 => Ok(answer.status),
        status => Err(format!("answered {status}")),
    }
}
