//! Several nodes that count in memcached.

#![expect(clippy::unwrap_used, reason = "tests may fail loudly")]

mod support;

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use support::{Server, folder};

const LIMITED: &str =
    "{ name: per-client, key: [ip], limits: [{ rate: 10/9600h, algorithm: fixed_window }] }";
/// Long timeouts, because the machine may be busy.
const PATIENT: [&str; 6] =
    ["--memcached-timeout", "10s", "--memcached-connect-timeout", "30s", "--cluster-nodes", "2"];

/// A real memcached, and a folder for what its nodes share. It ends with the test.
struct Memcached {
    child: Child,
    address: SocketAddr,
    folder: PathBuf,
}

impl Memcached {
    fn started() -> Self {
        // Outgoing connections come from 127.0.0.1, so none of them takes the port of an address of our own.
        let [_, a, b, c] = std::process::id().to_be_bytes();
        let own = Ipv4Addr::new(127, a | 128, b, c);
        let address = TcpListener::bind((own, 0)).unwrap().local_addr().unwrap();
        let mut child = Command::new("memcached")
            .args(["-U", "0", "-u", "nobody", "-l", &own.to_string()])
            .args(["-p", &address.port().to_string()])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while TcpStream::connect(address).is_err() {
            assert!(child.try_wait().unwrap().is_none(), "memcached ended immediately");
            std::thread::yield_now();
        }
        Self { child, address, folder: folder("memcached") }
    }

    fn flags(&self, rules: &str) -> Vec<String> {
        let (secret, policy) = (self.folder.join("secret"), self.folder.join("policy.yaml"));
        std::fs::write(&policy, format!("version: 1\nrules: [{rules}]\n")).unwrap();
        let [secret, policy] = [secret, policy].map(|path| path.to_str().unwrap().to_owned());
        let url = format!("memcached://{}", self.address);
        let flags = ["--store", &url, "--secret-file", &secret, "--policy", &policy];
        flags.into_iter().chain(PATIENT).map(str::to_owned).collect()
    }

    fn server(&self, rules: &str) -> Server {
        let flags = self.flags(rules);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let server = Server::start(&flags);
        server
            .until("the store is asked", |server| server.get("/ready").body.contains("\"ready\""));
        server
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn two_servers_share_one_limit_through_memcached() {
    let memcached = Memcached::started();
    let servers = [(); 2].map(|()| memcached.server(LIMITED));
    let passed = std::thread::scope(|scope| {
        let asking: Vec<_> = servers
            .iter()
            .map(|server| {
                scope.spawn(|| {
                    (0..20).filter(|_| server.check_ip("203.0.113.7").status == 200).count()
                })
            })
            .collect();
        asking.into_iter().map(|each| each.join().unwrap()).sum::<usize>()
    });
    assert_eq!(passed, 10);
    let told = servers[0].check_ip("203.0.113.7");
    let verdict: serde_json::Value = serde_json::from_str(&told.body).unwrap();
    assert_eq!((told.status, &verdict["decided_by"]), (429, &"store".into()));
}

#[test]
fn a_limit_that_memcached_cannot_count_is_refused_at_the_start_and_by_the_check() {
    let memcached = Memcached::started();
    let log = "{ name: logins, key: [ip], limits: [{ rate: 5/min, algorithm: sliding_log }] }";
    let run = |purpose: Option<&str>, rules: &str| {
        let data = memcached.folder.join("data");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let ports =
            ["--http-listen", "127.0.0.1:0", "--grpc-listen", "off", "--resp-listen", "off"];
        command.arg("serve").args(purpose).args(memcached.flags(rules)).args(ports);
        command.args(["--admin-listen", "127.0.0.1:0", "--data-dir"]).arg(data).output().unwrap()
    };
    let refused = run(None, log);
    let text = String::from_utf8([refused.stdout, refused.stderr].concat()).unwrap();
    assert!(!refused.status.success());
    assert!(text.contains("rule `logins`") && text.contains("sliding_weighted"), "{text}");

    let checked = run(Some("--check"), LIMITED);
    let text = String::from_utf8([checked.stdout, checked.stderr].concat()).unwrap();
    assert!(checked.status.success(), "{text}");
    assert!(text.contains("memcached 1.") && text.contains("evicts counters"), "{text}");
}
