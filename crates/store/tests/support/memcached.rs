//! A real memcached for a test, on an address of its own, killed at the end of the test.

use super::address::{own_ip, own_port};
use super::frozen;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tidegate_core::{Span, Timestamp};
use tidegate_store::testing::{Declared, Rig};
use tidegate_store::{Clock, Memcached, MemcachedSettings, Secret, StoreError};

/// A server process.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    /// The folder of the library by which its clocks stand still.
    frozen: Option<PathBuf>,
}

impl Server {
    /// Starts memcached and waits until it accepts connections.
    pub(crate) fn start(options: &[&str]) -> Self {
        let address = SocketAddr::from((own_ip(), own_port()));
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        Self { child: start(address, &options, None), address, frozen: None }
    }

    /// Starts a memcached whose clocks stand still, for tests that say what time it is: nothing expires while the machine stalls.
    pub(crate) fn start_frozen() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-memcached-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let library = frozen::library(&folder, &["-DALL_CLOCKS"]);
        let address = SocketAddr::from((own_ip(), own_port()));
        let child = start(address, &[], Some(&library));
        Self { child, address, frozen: Some(folder) }
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub(crate) fn url(&self) -> String {
        format!("memcached://{}", self.address)
    }

    /// Sends a command in one line; returns the first line of the reply.
    pub(crate) fn command(&self, command: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The keys of counters, each with the seconds for which it is kept. On a server whose clocks stand still.
    pub(crate) fn kept(&self) -> Vec<(String, u64)> {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.write_all(b"lru_crawler metadump all\r\n").unwrap();
        let lines = BufReader::new(stream).lines().map(Result::unwrap);
        let lines = lines.take_while(|line| line != "END");
        let kept = lines.filter_map(|line| {
            let word = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name));
            let key = word("key=").filter(|key| !key.contains("%3A"))?.to_owned();
            // The time that `frozen.c` says.
            let expires: u64 = word("exp=")?.parse().ok()?;
            Some((key, expires.checked_sub(1_700_000_000)?))
        });
        kept.collect()
    }

    /// A store on this server that reads this clock.
    pub(crate) async fn store_by(&self, clock: Clock) -> Memcached {
        connect(&self.url(), clock).await.unwrap()
    }

    /// A store whose clock the test sets, on an emptied server.
    pub(crate) async fn rig(&self) -> Rig<Memcached> {
        assert_eq!(self.command("flush_all"), "OK");
        self.rig_beside_others().await
    }

    pub(crate) async fn rig_beside_others(&self) -> Rig<Memcached> {
        let clock = Clock::manual(Timestamp::EPOCH);
        let store = self.store_by(clock.clone()).await;
        let declared = Declared { edits_begin_anew: true, forgets_later_times: true };
        Rig { store, set_time: Box::new(move |_, now| clock.set(now)), declared }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if let Some(folder) = &self.frozen {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// A store with the secret of the tests.
pub(crate) async fn connect(url: &str, clock: Clock) -> Result<Memcached, StoreError> {
    connect_with(url, &Secret::new([7; 32]), clock).await
}

/// The only place in which tests make settings for memcached. They are patient, since the machine may be busy.
pub(crate) async fn connect_with(
    url: &str,
    secret: &Secret,
    clock: Clock,
) -> Result<Memcached, StoreError> {
    let patience = Span::from_secs(60);
    let settings = MemcachedSettings {
        timeout: patience,
        connect_timeout: patience,
        ..MemcachedSettings::new(url)
    };
    Memcached::connect(&settings, secret, clock).await
}

fn start(address: SocketAddr, options: &[String], frozen: Option<&Path>) -> Child {
    let mut program = Command::new("memcached");
    if let Some(library) = frozen {
        program.env("LD_PRELOAD", library);
    }
    let mut child = program
        .args(["-U", "0", "-u", "nobody", "-l"])
        .arg(address.ip().to_string())
        .args(["-p", &address.port().to_string()])
        .args(options)
        .stdout(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("memcached: {error}; `make deps` installs it"));
    while TcpStream::connect(address).is_err() {
        assert!(child.try_wait().unwrap().is_none(), "memcached ended immediately");
        std::thread::yield_now();
    }
    child
}

/// A relay between stores and a memcached. On demand it lets a command about a receipt be executed, and loses the reply together with
/// the connection.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    /// How many commands about receipts are sent until a reply is lost; 0 for never.
    lose_after: Arc<AtomicU32>,
}

impl Relay {
    pub(crate) fn before(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, to) = (listener.local_addr().unwrap(), server.address);
        let lose_after = Arc::new(AtomicU32::new(0));
        let counting = Arc::clone(&lose_after);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(to).unwrap());
                relay(client, server, Arc::clone(&counting));
            }
        });
        Self { address, lose_after }
    }

    /// Loses the reply to the `number`th command about a receipt from now on.
    pub(crate) fn lose(&self, number: u32) {
        self.lose_after.store(number, Ordering::SeqCst);
    }

    /// Whether the reply was lost.
    pub(crate) fn has_lost(&self) -> bool {
        self.lose_after.load(Ordering::SeqCst) == 0
    }
}

/// Relays one connection, in both directions.
fn relay(client: TcpStream, server: TcpStream, lose_after: Arc<AtomicU32>) {
    let losing = Arc::new(AtomicBool::new(false));
    let (mut up, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let up_loses = Arc::clone(&losing);
    std::thread::spawn(move || {
        let mut bytes = [0; 16 << 10];
        while let Ok(length @ 1..) = up.read(&mut bytes) {
            let text = &bytes[..length];
            let is_last = text.windows(4).any(|word| word == b" tgr")
                && lose_after
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
                    == Ok(1);
            if is_last {
                up_loses.store(true, Ordering::SeqCst);
            }
            // The reply to `mn` says that everything before was executed.
            let end: &[u8] = if is_last { b"mn\r\n" } else { b"" };
            if to.write_all(&[text, end].concat()).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    let (mut down, mut to) = (server, client);
    std::thread::spawn(move || {
        let mut bytes = [0; 16 << 10];
        let mut lost = Vec::new();
        while let Ok(length @ 1..) = down.read(&mut bytes) {
            if losing.load(Ordering::SeqCst) {
                lost.extend_from_slice(&bytes[..length]);
                if lost.ends_with(b"MN\r\n") {
                    break;
                }
            } else if to.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = down.shutdown(Shutdown::Both);
    });
}
