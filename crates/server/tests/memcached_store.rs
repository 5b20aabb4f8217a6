//! Several nodes that count in memcached.

#![expect(clippy::unwrap_used, reason = "tests may fail loudly")]

use crate::support;

use support::memcached::Memcached;
use support::{Server, passed_together, tidegate};

const LIMITED: &str =
    "{ name: per-client, key: [ip], limits: [{ rate: 10/9600h, algorithm: fixed_window }] }";
fn flags(memcached: &Memcached, rules: &str) -> Vec<String> {
    let (secret, policy) = (memcached.folder.join("secret"), memcached.folder.join("policy.yaml"));
    std::fs::write(&policy, format!("version: 1\nrules: [{rules}]\n")).unwrap();
    let [secret, policy] = [secret, policy].map(|path| path.to_str().unwrap().to_owned());
    let url = memcached.url();
    let flags =
        ["--store", &url, "--secret-file", &secret, "--policy", &policy, "--cluster-nodes", "2"];
    flags.map(str::to_owned).to_vec()
}

fn server(memcached: &Memcached, rules: &str) -> Server {
    let flags = flags(memcached, rules);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Server::start(&flags);
    server.until("the store is asked", |server| server.get("/ready").body.contains("\"ready\""));
    server
}

#[test]
fn two_servers_share_one_limit_through_memcached() {
    let memcached = Memcached::started();
    let servers = [(); 2].map(|()| server(&memcached, LIMITED));
    assert_eq!(passed_together(&servers, "203.0.113.7", 20), 10);
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
        let mut command = tidegate();
        let ports =
            ["--http-listen", "127.0.0.1:0", "--grpc-listen", "off", "--resp-listen", "off"];
        command.arg("serve").args(purpose).args(flags(&memcached, rules)).args(ports);
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
