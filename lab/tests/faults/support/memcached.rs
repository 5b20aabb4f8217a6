//! A memcached that can be killed, stopped, emptied and filled.

use super::process::Process;
use super::{PATIENCE, free_address, within};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) struct Memcached {
    address: SocketAddr,
    arguments: Vec<String>,
    /// `None` while it is killed.
    process: Option<Process>,
}

impl Memcached {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|&word| word.to_owned()).collect();
        let mut memcached = Self { address: free_address(), arguments, process: None };
        memcached.start_again();
        memcached
    }

    /// Starts it at the same address, and returns when it answers. It has no data.
    pub(crate) fn start_again(&mut self) {
        let mut command = Command::new("memcached");
        command
            .args(["-U", "0", "-u", "nobody"])
            .args(["-l", &self.address.ip().to_string()])
            .args(["-p", &self.address.port().to_string()])
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.process = Some(Process::spawn(&mut command));
        within(PATIENCE, "memcached answers", || self.try_command("version").is_some());
    }

    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    pub(crate) fn process(&self) -> &Process {
        self.process.as_ref().unwrap()
    }

    pub(crate) fn url(&self) -> String {
        format!("memcached://{}", self.address)
    }

    /// Sends a command; returns the first line of the reply.
    pub(crate) fn command(&self, command: &str) -> String {
        self.try_command(command).unwrap()
    }

    fn try_command(&self, command: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        stream.write_all(format!("{command}\r\n").as_bytes()).ok()?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).ok()?;
        (!line.is_empty()).then(|| line.trim_end().to_owned())
    }

    /// Fills it with values of another program until nothing more fits, or until this many were written.
    pub(crate) fn fill(&self, values: u32) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mut stream = TcpStream::connect(self.address).unwrap();
        let mut replies = BufReader::new(stream.try_clone().unwrap());
        let value = "x".repeat(1_000);
        for _ in 0..values {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let set = format!("set fill{number} 0 0 1000\r\n{value}\r\n");
            stream.write_all(set.as_bytes()).unwrap();
            let mut line = String::new();
            replies.read_line(&mut line).unwrap();
            if line.trim_end() != "STORED" {
                return;
            }
        }
    }
}
