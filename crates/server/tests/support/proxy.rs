//! A site behind a real proxy: the files of `docs/proxies`, with other ports.
//!
//! ```text
//!   client 127.0.0.2, .3, … ──► nginx, Caddy or HAProxy ──► the site, which remembers what it saw
//!                                         └──► tidegate
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::print_stdout,
    reason = "tests may fail loudly"
)]

use crate::support::upstream::{Upstream, free_address, listen};
use crate::support::{self, PATIENCE, Reply, Server};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// The proxy in front of the site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proxy {
    Nginx,
    Caddy,
    /// The short `forward_auth` configuration of `docs/proxies.md`.
    CaddyInShort,
    Haproxy,
}

/// What happens to requests while tidegate is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenDown {
    /// They are refused: the files as they are.
    Closed,
    /// They pass: the files with their lines marked `#open`.
    Open,
}

/// Whether tidegate gets the client's cookies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cookies {
    Kept,
    Told,
}

/// How long the proxy waits for tidegate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    AsTheFileSays,
    /// Caddy only.
    Minutes,
}

/// How the configuration of a proxy is changed before it is used.
#[derive(Clone, Copy)]
struct Variant {
    down: WhenDown,
    cookies: Cookies,
    wait: Wait,
}

/// A site, its proxy and a tidegate. All of them end when it is dropped.
pub(crate) struct Site {
    pub(crate) upstream: Upstream,
    pub(crate) tidegate: Server,
    places: Places,
    folder: PathBuf,
    proxy: Child,
}

/// The addresses of all listeners.
#[derive(Clone, Copy)]
struct Places {
    proxy: SocketAddr,
    site: SocketAddr,
    tidegate: SocketAddr,
}

/// A client with its own address.
pub(crate) struct Client {
    from: Ipv4Addr,
    site: SocketAddr,
}

impl Variant {
    const AS_SHIPPED: Self =
        Self { down: WhenDown::Closed, cookies: Cookies::Kept, wait: Wait::AsTheFileSays };
}

// === impl Site ===

impl Site {
    pub(crate) fn start(proxy: Proxy, down: WhenDown) -> Self {
        Self::start_through(proxy, down, |tidegate| tidegate)
    }

    /// Starts all three, with another policy than that of the page.
    pub(crate) fn start_with(proxy: Proxy, policy: &str) -> Self {
        Self::start_all(proxy, Variant::AS_SHIPPED, policy, |tidegate| tidegate)
    }

    /// Starts all three, with another policy than that of the page. The proxy passes cookies to tidegate, in the way that its file
    /// describes.
    pub(crate) fn start_with_cookies(proxy: Proxy, policy: &str) -> Self {
        let variant = Variant { cookies: Cookies::Told, ..Variant::AS_SHIPPED };
        Self::start_all(proxy, variant, policy, |tidegate| tidegate)
    }

    /// Starts all three. `through` receives tidegate's address and returns the address that the proxy uses.
    pub(crate) fn start_through(
        proxy: Proxy,
        down: WhenDown,
        through: impl FnOnce(SocketAddr) -> SocketAddr,
    ) -> Self {
        Self::start_usual(proxy, Variant { down, ..Variant::AS_SHIPPED }, through)
    }

    /// Starts all three, as [`start_through`](Self::start_through) does, with a proxy that never takes a slow machine for a tidegate that
    /// is down.
    pub(crate) fn start_patient(
        proxy: Proxy,
        down: WhenDown,
        through: impl FnOnce(SocketAddr) -> SocketAddr,
    ) -> Self {
        Self::start_usual(
            proxy,
            Variant { down, wait: Wait::Minutes, ..Variant::AS_SHIPPED },
            through,
        )
    }

    fn start_usual(
        proxy: Proxy,
        variant: Variant,
        through: impl FnOnce(SocketAddr) -> SocketAddr,
    ) -> Self {
        let policy = std::fs::read_to_string(support::project("docs/proxies/policy.yaml")).unwrap();
        Self::start_all(proxy, variant, &policy, through)
    }

    fn start_all(
        proxy: Proxy,
        variant: Variant,
        policy: &str,
        through: impl FnOnce(SocketAddr) -> SocketAddr,
    ) -> Self {
        let (upstream, tidegate) = (Upstream::start("the site"), Server::with_policy(policy, &[]));
        let places = Places {
            proxy: free_address(),
            site: upstream.address,
            tidegate: through(tidegate.http),
        };
        let folder = support::folder("proxy");
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let child = proxy
            .command(&folder, places, variant)
            .env("PATH", format!("{path}:/usr/sbin"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{proxy:?} does not start ({error}): run make deps"));
        let mut site = Self { upstream, tidegate, places, folder, proxy: child };
        site.listens();
        site
    }

    /// Waits until the proxy accepts connections.
    fn listens(&mut self) {
        let tries = PATIENCE.as_millis() / 20;
        for _ in 0..tries {
            if TcpStream::connect(self.places.proxy).is_ok() {
                return;
            }
            if let Some(status) = self.proxy.try_wait().unwrap() {
                panic!("the proxy has ended: {status}\n{}", self.log());
            }
            support::pause(Duration::from_millis(20));
        }
        panic!("the proxy does not listen\n{}", self.log());
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap()
    }

    /// A client at 127.0.0.`last`.
    pub(crate) fn client(&self, last: u8) -> Client {
        Client { from: Ipv4Addr::new(127, 0, 0, last), site: self.places.proxy }
    }

    /// Stops tidegate: the system still accepts connections for it, but it does nothing.
    pub(crate) fn stop_tidegate(&self) {
        self.tidegate.stall();
    }

    /// Kills tidegate.
    pub(crate) fn lose_tidegate(&mut self) {
        self.tidegate.signal("KILL");
        self.tidegate.wait();
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("the proxy's log:\n{}", self.log());
        }
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

// === impl Proxy ===

impl Proxy {
    /// The command that starts it, in the foreground and in one process, with all its output in this folder.
    fn command(self, folder: &Path, places: Places, variant: Variant) -> Command {
        let Variant { down, cookies, wait } = variant;
        let page = |name: &str| match cookies {
            Cookies::Kept => Page::read(name, down),
            Cookies::Told => Page::read(name, down).with_cookies(),
        };
        let at = |name: &str| folder.join(name).display().to_string();
        match self {
            Self::Nginx => {
                let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
                let temp = kinds.map(|kind| format!("{kind}_temp_path {};", at(kind))).join(" ");
                let conf = page("nginx.conf")
                    .at(places)
                    .with("listen 80;", &format!("listen {};", places.proxy))
                    .with("http {", &format!("http {{ access_log off; {temp}"))
                    .write(folder);
                let globals = format!("daemon off; master_process off; pid {};", at("pid"));
                command("nginx", &["-c", &conf, "-e", &at("error.log"), "-g", &globals])
            }
            Self::Caddy => {
                let mut file = page("Caddyfile");
                if wait == Wait::Minutes {
                    file = file
                        .with("_timeout 1s", "_timeout 5m")
                        .with("lb_try_duration 2s", "lb_try_duration 5m");
                }
                if down == WhenDown::Open {
                    let yes = free_address();
                    file = file.with("bind 127.0.0.1", &format!("bind {}", yes.ip()));
                    file = file.with("127.0.0.1:8089", &yes.to_string());
                }
                caddy(file, folder, places)
            }
            Self::CaddyInShort => caddy(Page::quoted("proxies.md", "caddyfile"), folder, places),
            Self::Haproxy => {
                let socket = format!("abns@{}", folder.file_name().unwrap().display());
                let lua = page("tidegate.lua").with("abns@tidegate", &socket).write(folder);
                let cfg = page("haproxy.cfg")
                    .at(places)
                    .with("abns@tidegate", &socket)
                    .with("bind :80", &format!("bind {}", places.proxy))
                    .with("/etc/haproxy/tidegate.lua", &lua)
                    .write(folder);
                command("haproxy", &["-db", "-f", &cfg])
            }
        }
    }
}

fn caddy(file: Page, folder: &Path, places: Places) -> Command {
    let (ip, port) = (places.proxy.ip(), places.proxy.port());
    let file =
        file.at(places).with(":80 {\n", &format!("http://:{port} {{\n\tbind {ip}\n")).write(folder);
    let mut caddy = command("caddy", &["run", "--config", &file, "--adapter", "caddyfile"]);
    for home in ["HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"] {
        caddy.env(home, folder);
    }
    caddy.env("CADDY_ADMIN", format!("unix/{}", folder.join("admin").display()));
    caddy
}

fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

// === a page of the documentation ===

pub(crate) struct Page {
    name: String,
    pub(crate) text: String,
}

impl Page {
    fn read(name: &str, down: WhenDown) -> Self {
        let path = support::project("docs/proxies").join(name);
        let mut text = std::fs::read_to_string(path).unwrap();
        if down == WhenDown::Open {
            text = text.replace("#open ", "");
        }
        Self { name: name.to_owned(), text }
    }

    /// Replaces the comment about cookies with the line that it describes.
    fn with_cookies(self) -> Self {
        let line = |line: &str| match line.split_once("name it here: ") {
            Some((_, named)) => named.to_owned(),
            None => line.to_owned(),
        };
        let text = self.text.lines().map(line).collect::<Vec<_>>().join("\n");
        Self { text: format!("{text}\n"), ..self }
    }

    /// The code block of a page of `docs` in this language.
    pub(crate) fn quoted(page: &str, language: &str) -> Self {
        let text = std::fs::read_to_string(support::project("docs").join(page)).unwrap();
        let quoted = text.split(&format!("```{language}\n")).nth(1).unwrap();
        let text = quoted.split("```").next().unwrap().to_owned();
        Self { name: language.to_owned(), text }
    }

    fn at(self, places: Places) -> Self {
        self.with("127.0.0.1:3000", &places.site.to_string())
            .with("127.0.0.1:8080", &places.tidegate.to_string())
    }

    fn with(self, from: &str, to: &str) -> Self {
        assert!(self.text.contains(from), "`{from}` is not in {}", self.name);
        Self { text: self.text.replace(from, to), ..self }
    }

    /// Writes it into this folder, and returns its path.
    fn write(self, folder: &Path) -> String {
        let path = folder.join(&self.name);
        std::fs::write(&path, self.text).unwrap();
        path.display().to_string()
    }
}

// === impl Client ===

impl Client {
    pub(crate) fn get(&self, path: &str) -> Reply {
        self.get_with(path, "")
    }

    /// Sends a request with these additional header lines, each with its line end.
    pub(crate) fn get_with(&self, path: &str, lines: &str) -> Reply {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: site.example\r\n{lines}\r\n"))
    }

    /// Sends text on a new connection, and reads one answer.
    pub(crate) fn send(&self, text: &str) -> Reply {
        let mut stream = self.connect();
        // The proxy may close the connection before it has read everything.
        let _ = stream.write_all(text.as_bytes());
        read_answer(&mut stream)
    }

    /// Sends the same on this many connections at once, and reads an answer on each.
    pub(crate) fn send_together(&self, text: &str, connections: usize) -> Vec<Reply> {
        let mut streams: Vec<TcpStream> = (0..connections).map(|_| self.connect()).collect();
        for stream in &mut streams {
            stream.write_all(text.as_bytes()).unwrap();
        }
        streams.iter_mut().map(read_answer).collect()
    }

    /// The standard library's sockets cannot choose their source address.
    fn connect(&self) -> TcpStream {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let connected = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4()?;
            socket.bind((self.from, 0).into())?;
            socket.connect(self.site).await?.into_std()
        });
        let stream = connected.unwrap();
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

fn read_answer(stream: &mut TcpStream) -> Reply {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if let Some((_, body)) = text.split_once("\r\n\r\n") {
            let reply = Reply::parse(&text);
            let length = reply.field("content-length").map(|length| length.parse().unwrap());
            if length.is_some_and(|length: usize| body.len() >= length) {
                return reply;
            }
        }
        match stream.read(&mut buffer).unwrap() {
            0 => return Reply::parse(&text),
            count => bytes.extend_from_slice(buffer.get(..count).unwrap()),
        }
    }
}

// === a relay that gathers connections ===

/// A relay in front of a server. It forwards nothing until it has this many connections, health checks included, so that
/// the server gets all of them at once, however slow the machine is. After that it forwards everything immediately.
pub(crate) fn gathered(server: SocketAddr, connections: usize) -> SocketAddr {
    let (told, address) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            told.send(listener.local_addr().unwrap()).unwrap();
            let (arrived, _) = tokio::sync::watch::channel(0);
            while let Ok((mut client, _)) = listener.accept().await {
                let arrived = arrived.clone();
                tokio::spawn(async move {
                    let mut server = tokio::net::TcpStream::connect(server).await.unwrap();
                    arrived.send_modify(|arrived| *arrived += 1);
                    let all_there = |arrived: &usize| *arrived >= connections;
                    arrived.subscribe().wait_for(all_there).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
    });
    address.recv().unwrap()
}

// === a relay that counts connections ===

/// A relay in front of a server. It counts the connections that ask for forward auth; health checks do not count.
pub(crate) fn counted(server: SocketAddr, asked: Arc<AtomicUsize>) -> SocketAddr {
    listen(move |mut client| {
        let mut buffer = [0; 4096];
        let Ok(count) = client.read(&mut buffer) else { return };
        let first = buffer.get(..count).unwrap();
        if first.starts_with(b"GET /v1/auth") {
            asked.fetch_add(1, Ordering::Relaxed);
        }
        let mut server = TcpStream::connect(server).unwrap();
        server.write_all(first).unwrap();
        let (mut answers, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        thread::spawn(move || {
            let _ = std::io::copy(&mut answers, &mut back);
            let _ = back.shutdown(Shutdown::Both);
        });
        let _ = std::io::copy(&mut client, &mut server);
        let _ = server.shutdown(Shutdown::Both);
    })
}
