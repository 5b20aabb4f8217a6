//! Blocks of the book that need more than the server of `readme.rs`: the first steps of the reverse proxy, and the middleware for
//! Express.

#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "a test fails loudly"
)]

use crate::support;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use support::upstream::Upstream;
use support::{Server, project, request};

fn page(name: &str) -> String {
    std::fs::read_to_string(project("docs").join(name)).unwrap()
}

/// The first block that begins like this. The language stays in front.
fn block<'p>(page: &'p str, beginning: &str) -> &'p str {
    let found = page.split("```").skip(1).step_by(2).find(|block| block.starts_with(beginning));
    found.unwrap()
}

/// getting-started.md promises a first 429 of the reverse proxy with one command.
#[test]
fn the_first_steps_of_the_proxy_lead_to_a_429() {
    let page = page("getting-started.md");
    let (_, section) = page.split_once("## The reverse proxy").unwrap();
    let mut lines = block(section, "console\n$ curl").lines().skip(1);
    let command = lines.next().unwrap().strip_prefix("$ ").unwrap();
    let (first, _) = lines.next().unwrap().split_once(" …429…").unwrap();

    let site = Upstream::start("the site");
    let url = format!("http://{}", site.address);
    let server =
        Server::start(&["--proxy-listen", "127.0.0.1:0", "--proxy-upstream", url.as_str()]);
    let command = command.replace("127.0.0.1:8000", &server.proxy.to_string());
    let output = Command::new("bash").args(["-c", &command]).output().unwrap();
    let statuses = String::from_utf8(output.stdout).unwrap();
    assert!(statuses.starts_with(first) && statuses.contains("429"), "{statuses}");
    assert!(site.saw().len() < 100, "the site saw refused requests");
}

/// A service in Node that runs until the test ends.
struct Service {
    child: Child,
    address: SocketAddr,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Logins with the password `right` succeed, all others get 401.
const LOGINS: &str = "
import http from 'node:http';
import { limit } from './limit.mjs';
const serve = (req, res) => limit(req, res, () => {
  res.statusCode = req.url.endsWith('right') ? 200 : 401;
  res.end('answered');
});
const service = http.createServer(serve).listen(0, '127.0.0.1', () => console.log(service.address().port));
";

impl Service {
    fn start(server: &Server, middleware: &str) -> Self {
        std::fs::write(server.folder.join("limit.mjs"), middleware).unwrap();
        std::fs::write(server.folder.join("service.mjs"), LOGINS).unwrap();
        let mut node = Command::new("node");
        node.arg("service.mjs").current_dir(&server.folder).stdout(Stdio::piped());
        node.env("TIDEGATE", format!("http://{}", server.http));
        node.env("TIDEGATE_TIMEOUT_MS", "30000"); // for busy machines
        let mut child = node.spawn().unwrap(); // `make deps` installs Node
        let mut port = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
        Self { child, address: format!("127.0.0.1:{}", port.trim()).parse().unwrap() }
    }

    fn log_in(&self, password: &str) -> support::Reply {
        request(self.address, "POST", &format!("/login?{password}"), &[], "")
    }
}

/// migrating-from-express.md shows a middleware and its policy. Successes are given back, and the sixth failure is refused.
#[test]
fn the_middleware_for_express_counts_failed_logins() {
    let page = page("migrating-from-express.md");
    let policy = block(&page, "yaml\n").strip_prefix("yaml\n").unwrap();
    let middleware = block(&page, "js\nconst server").strip_prefix("js\n").unwrap();
    let server = Server::with_policy(policy, &[]);
    let service = Service::start(&server, middleware);

    let peek = r#"{"attributes":{"ip":"127.0.0.1","method":"POST","path":"/login"}}"#;
    let left =
        |server: &Server| server.post("/v1/peek", peek).json()["limits"][1]["remaining"].as_u64();
    for _ in 0..10 {
        assert_eq!(service.log_in("right").status, 200);
        server.until("the success is given back", |server| left(server) == Some(5));
    }
    for _ in 0..5 {
        assert_eq!(service.log_in("wrong").status, 401);
    }
    let refused = service.log_in("right");
    assert_eq!(refused.status, 429, "{refused:?}");
    let seconds: u64 = refused.field("retry-after").unwrap().parse().unwrap();
    assert!((1..=900).contains(&seconds), "{refused:?}");
}

/// settings.md shows a file of settings. `--print-config` reads it and opens nothing.
#[test]
fn the_file_of_settings_is_valid() {
    let page = page("settings.md");
    let text = block(&page, "yaml\n").strip_prefix("yaml\n").unwrap();
    let folder = support::folder("settings");
    let file = folder.join("tidegate.yaml");
    std::fs::write(&file, text).unwrap();
    let mut serve = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let output = serve.args(["serve", "--print-config", "--config"]).arg(&file).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for value in ["10.0.0.2:8080", "10.0.0.2:9464", "redis://redis.example:6379/", "20000"] {
        assert!(printed.contains(value), "{value} is not in\n{printed}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}
