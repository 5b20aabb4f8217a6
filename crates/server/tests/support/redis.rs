//! A real Redis server, and tidegate servers that count in it.

use super::{PATIENCE, Server, folder, pause};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A real Redis server on a socket in a folder of its own. It ends with the test.
pub(crate) struct Redis {
    pub(crate) folder: PathBuf,
    pub(crate) child: Option<Child>,
}

impl Redis {
    pub(crate) fn new() -> Self {
        Self { folder: folder("redis"), child: None }
    }

    pub(crate) fn started() -> Self {
        let mut redis = Self::new();
        redis.start();
        redis
    }

    pub(crate) fn start(&mut self) {
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--dir"])
            .arg(&self.folder)
            .arg("--unixsocket")
            .arg(self.folder.join("socket"))
            .stdout(Stdio::null())
            .spawn();
        self.child = Some(child.unwrap());
    }

    /// Kills it, with all its data.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        // A leftover socket would look as if the server were there.
        let _ = std::fs::remove_file(self.folder.join("socket"));
    }

    /// Stops it, and returns when the kernel says that it is stopped.
    pub(crate) fn stop(&self) {
        self.signal("STOP");
        let stat = format!("/proc/{}/stat", self.child.as_ref().unwrap().id());
        while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
            std::thread::yield_now();
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    pub(crate) fn url(&self) -> String {
        format!("redis+unix://{}", self.folder.join("socket").display())
    }

    /// Sends it a command, as soon as it is reachable.
    pub(crate) fn tell(&self, words: &[&str]) {
        let cli = || {
            let socket = self.folder.join("socket");
            Command::new("redis-cli").arg("-s").arg(socket).args(words).output().unwrap()
        };
        let tries = PATIENCE.as_millis() / 10;
        let told = (0..tries).any(|_| {
            let told = cli().stdout == b"OK\n";
            if !told {
                pause(Duration::from_millis(10));
            }
            told
        });
        assert!(told, "{words:?}");
    }

    /// What it answers to a command.
    pub(crate) fn told(&self, words: &[&str]) -> String {
        let socket = self.folder.join("socket");
        let told = Command::new("redis-cli").arg("-s").arg(socket).args(words).output().unwrap();
        String::from_utf8(told.stdout).unwrap().trim_end().to_owned()
    }

    /// A tidegate server that has ended, started again with its data and the policy of the last one that was started.
    pub(crate) fn server_again(&self, server: Server, flags: &[&str]) -> Server {
        let folder = server.folder.clone();
        // The folder must not be removed with the server.
        std::mem::forget(server);
        let [secret, policy] = ["secret", "policy.yaml"].map(|name| self.folder.join(name));
        let [secret, policy] = [secret, policy].map(|path| path.to_str().unwrap().to_owned());
        let url = self.url();
        let all = ["--store", &url, "--secret-file", &secret, "--policy", &policy];
        Server::start_in(folder, &[&all, flags].concat())
    }

    /// A tidegate server that counts in it. All of them have the same secret.
    pub(crate) fn server(&self, rules: &str, flags: &[&str]) -> Server {
        self.server_at(&self.url(), rules, flags)
    }

    pub(crate) fn server_at(&self, url: &str, rules: &str, flags: &[&str]) -> Server {
        let secret = self.folder.join("secret");
        let policy = self.folder.join("policy.yaml");
        std::fs::write(&policy, format!("version: 1\nrules: [{rules}]\n")).unwrap();
        let [secret, policy] = [secret, policy].map(|path| path.to_str().unwrap().to_owned());
        let mut all = vec!["--store", url, "--secret-file", &secret, "--policy", &policy];
        all.extend(flags);
        Server::start(&all)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
