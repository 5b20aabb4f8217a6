//! Named tokens: users of the admin listener with tokens of their own.

use crate::support::client::Operator;
use crate::support::{Reply, Server, folder, request, write_private};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

const USERS: &str = "# name role token
alice operator alice-has-this-token
grafana reader grafana-has-this-one
";

fn start() -> Server {
    let folder = folder("users");
    let file = folder.join("users");
    write_private(&file, USERS);
    Server::start_in(folder.clone(), &["--admin-users-file", file.to_str().unwrap()])
}

fn ask(server: &Server, token: &str, (method, path): (&str, &str), body: &str) -> Reply {
    let bearer = format!("Bearer {token}");
    let fields = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    request(server.admin, method, path, &fields, body)
}

const WHOAMI: (&str, &str) = ("GET", "/admin/v1/whoami");

#[test]
fn the_audit_log_names_the_user() {
    let server = start();
    let alice = "alice-has-this-token";
    assert_eq!(
        ask(&server, alice, WHOAMI, "").json(),
        json!({ "name": "alice", "role": "operator" })
    );
    let switch = json!({ "rule": "per-client", "shadow": true }).to_string();
    let rules = ("PUT", "/admin/v1/rules");
    let made = ask(&server, alice, rules, &switch);
    assert_eq!((made.status, &made.json()["rules"][0]["by"]), (200, &json!("alice")));
    let grafana = "grafana-has-this-one";
    assert_eq!(
        ask(&server, grafana, WHOAMI, "").json(),
        json!({ "name": "grafana", "role": "reader" })
    );
    assert_eq!(ask(&server, grafana, rules, &switch).status, 403);
    assert_eq!(ask(&server, grafana, ("GET", "/metrics"), "").status, 200);
    for wrong in ["alice", "alice-has-this-toke", "alice-has-this-token1", "grafana-has-this-on"] {
        assert_eq!(ask(&server, wrong, WHOAMI, "").status, 401, "{wrong}");
    }
    // The tokens of the data directory stay valid.
    let mut operator = Operator::of(&server);
    assert_eq!(
        operator.get("/admin/v1/whoami").json(),
        json!({ "name": "operator", "role": "operator" })
    );
    let lines = operator.get("/admin/v1/audit").json();
    assert_eq!((&lines[0]["who"], lines.as_array().unwrap().len()), (&json!("alice"), 1));
    assert!(!server.log().contains("has-this"), "{}", server.log());
}

#[test]
fn the_file_is_read_again_when_it_changes() {
    let server = start();
    let file = server.folder.join("users");
    write_private(&file, "bob reader bobs-own-secret-token\n");
    let status = |server: &Server, token: &str| ask(server, token, WHOAMI, "").status;
    server.until("bob is known", |server| status(server, "bobs-own-secret-token") == 200);
    // 401; or 429, because bob's token was wrong at first, and asked for often.
    assert_ne!(status(&server, "alice-has-this-token"), 200);
    write_private(&file, "bob reader short\n");
    server.until("the error is reported", |server| {
        server.get("/ready").body.contains("line 1: a token must be one word")
    });
    assert_eq!(status(&server, "bobs-own-secret-token"), 200);
    write_private(&file, USERS);
    server.until("it is valid again", |server| server.get("/ready").json()["status"] == "ready");
    assert_eq!(status(&server, "alice-has-this-token"), 200);
}

#[test]
fn a_file_that_is_not_valid_keeps_the_server_from_starting() {
    let folder = folder("users");
    let file = folder.join("users");
    let start = |flags: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["serve", "--http-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
            .args(["--grpc-listen", "off", "--resp-listen", "off", "--data-dir"])
            .arg(folder.join("data"))
            .arg("--admin-users-file")
            .arg(&file)
            .args(flags)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    for (text, part) in [
        ("alice boss alice-has-this-token", "users: line 1: write `name reader|operator token`"),
        ("\n\nreader reader alice-has-this-token", "line 3: the name `reader` is taken"),
    ] {
        write_private(&file, text);
        for flags in [&[][..], &["--check"]] {
            let told = start(flags);
            assert!(told.contains("admin.users_file") && told.contains(part), "{told}");
            assert!(!told.contains("alice-has-this-token"), "{told}");
        }
    }
    write_private(&file, USERS);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(start(&[]).contains("chmod 600"));
}
