//! nginx and `HAProxy`, as an upstream server that writes down each request, or in front of tidegate.

use crate::support::upstream::free_address;
use crate::support::{self, PATIENCE, pause, request};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Nginx,
    Haproxy,
}

/// A running program. It ends when this is dropped.
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    folder: PathBuf,
    child: Child,
}

impl Program {
    /// An upstream server. It reads a request with its whole body, answers with the request line, and logs it with its status.
    pub(crate) fn as_upstream(self) -> Peer {
        match self {
            Self::Nginx => self.start(|address, folder| {
                // The first server reads the body before it asks the second one.
                format!(
                    "log_format seen '$status $request_method $request_uri'; access_log {folder}/seen seen;
                    upstream inner {{ server unix:{folder}/inner; }}
                    server {{ listen {address}; location / {{ proxy_pass http://inner; }} }}
                    server {{ listen unix:{folder}/inner; access_log off; location / {{ return 200 '$request_method $request_uri'; }} }}"
                )
            }),
            Self::Haproxy => self.start(|address, _| {
                format!(
                    "  option http-buffer-request\n  log stdout format raw local0\n  log-format \"%ST %HM %HU\"\nfrontend seen\n  bind {address}\n  http-request return status 200 content-type text/plain lf-string \"%[method] %[url]\"\n"
                )
            }),
        }
    }

    /// A proxy in front of this server.
    pub(crate) fn in_front_of(self, server: SocketAddr) -> Peer {
        match self {
            Self::Nginx => self.start(|address, _| {
                format!(
                    "access_log off; upstream tidegate {{ server {server}; keepalive 16; }}
                    server {{ listen {address}; location / {{
                        proxy_pass http://tidegate; proxy_http_version 1.1; proxy_request_buffering off;
                        proxy_set_header Connection ''; proxy_set_header Host $http_host;
                    }} }}"
                )
            }),
            Self::Haproxy => self.start(|address, _| {
                format!(
                    "frontend front\n  bind {address}\n  default_backend tidegate\nbackend tidegate\n  http-reuse always\n  server tidegate {server}\n"
                )
            }),
        }
    }

    /// Starts it with the part of its configuration that differs.
    fn start(self, configuration: impl FnOnce(SocketAddr, &str) -> String) -> Peer {
        let (address, folder) = (free_address(), support::folder("peer"));
        let at = folder.display().to_string();
        let file = folder.join("conf");
        let text = self.common(&at, &configuration(address, &at));
        std::fs::write(&file, text).unwrap();
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = match self {
            Self::Nginx => Command::new("nginx"),
            Self::Haproxy => Command::new("haproxy"),
        };
        match self {
            Self::Nginx => command.arg("-c").arg(&file).arg("-e").arg(folder.join("error.log")),
            Self::Haproxy => command.args(["-db", "-f"]).arg(&file),
        };
        let child = command
            .env("PATH", format!("{path}:/usr/sbin"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{self:?} does not start ({error}): run make test-proxies")
            });
        let mut peer = Peer { address, folder, child };
        peer.listens();
        peer
    }

    fn common(self, folder: &str, rest: &str) -> String {
        match self {
            Self::Nginx => {
                let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
                let temp: String =
                    kinds.map(|kind| format!("{kind}_temp_path {folder}/{kind}; ")).concat();
                format!(
                    "daemon off; master_process off; pid {folder}/pid; events {{ }}
                    http {{ {temp} client_max_body_size 0; keepalive_requests 1000000; large_client_header_buffers 8 64k;
                    client_header_timeout 5s; client_body_timeout 5s; keepalive_timeout 5s; proxy_read_timeout 15s;
                    {rest} }}"
                )
            }
            Self::Haproxy => format!(
                "global\n  nbthread 1\n  maxconn 2000\ndefaults\n  mode http\n  timeout connect 30s\n  timeout client 5s\n  timeout server 30s\n  timeout http-request 5s\n  timeout http-keep-alive 5s\n{rest}"
            ),
        }
    }
}

impl Peer {
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn listens(&mut self) {
        let tries = PATIENCE.as_millis() / 20;
        for _ in 0..tries {
            if TcpStream::connect(self.address).is_ok() {
                return;
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("it has ended: {status}\n{}", self.log());
            }
            pause(Duration::from_millis(20));
        }
        panic!("it does not listen\n{}", self.log());
    }

    /// What it says about itself.
    pub(crate) fn log(&self) -> String {
        let read = |name: &str| std::fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        read("log") + &read("error.log")
    }

    /// All requests that it has read, each as its status, method and target. All clients must have ended.
    pub(crate) fn seen(&self) -> Vec<String> {
        // It does one thing after another, so everything else is written down when it has answered this.
        for _ in 0..2 {
            assert_eq!(request(self.address, "GET", "/sentinel", &[], "").status, 200);
        }
        let seen = self.folder.join("seen");
        let file = if seen.exists() { seen } else { self.folder.join("log") };
        let text = std::fs::read_to_string(file).unwrap();
        let requests = text.lines().filter(|line| line.as_bytes()[0].is_ascii_digit());
        requests.filter(|line| !line.contains("/sentinel")).map(str::to_owned).collect()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            println!(
                "its log ends with:\n{}",
                log.get(log.len().saturating_sub(2_000)..).unwrap_or(&log)
            );
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
