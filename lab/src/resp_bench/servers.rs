//! The servers under test, and the command that each gets:
//!
//! | server | command | the first number of the reply |
//! |---|---|---|
//! | tidegate | `CL.THROTTLE key burst count period` | 0 allowed, 1 refused |
//! | throttlecrab | `THROTTLE key burst count period` | 1 allowed, 0 refused |
//! | Redis with `bucket.lua` | `EVALSHA sha 1 key burst rate cost` | 1 allowed, 0 refused |
//! | Redis | `INCR key`, which limits nothing | what it counted, never 0 |
//! | Redis | `GET key`, which does not even write | none |
//!
//! Before the measurement each server that limits gets three commands under a small limit. It must allow two
//! of them and refuse the third.

use super::load::{Pipeline, ReplyMeaning, RespConnection, once_per_key};
use super::wire::command;
use crate::rig::install::Programs;
use crate::rig::process::{self, Process, within};
use crate::rig::tally::Tally;
use crate::rig::template::Template;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The servers that are measured, and for Redis the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RespServer {
    Tidegate,
    Throttlecrab,
    RedisIncr,
    RedisGet,
    RedisLua,
}

/// The Lua script of the token bucket in Redis.
const BUCKET: &str = include_str!("bucket.lua");

impl RespServer {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tidegate => "tidegate",
            Self::Throttlecrab => "throttlecrab",
            Self::RedisIncr => "redis-incr",
            Self::RedisGet => "redis-get",
            Self::RedisLua => "redis-lua",
        }
    }

    const fn meaning(self) -> ReplyMeaning {
        match self {
            Self::Tidegate => ReplyMeaning::ZeroPasses,
            Self::Throttlecrab | Self::RedisIncr | Self::RedisGet | Self::RedisLua => {
                ReplyMeaning::ZeroRefuses
            }
        }
    }

    /// The command for a limit of 2, and then one per hour; `None` for the commands that limit nothing.
    fn strict(self, sha: &str) -> Option<String> {
        match self {
            Self::Tidegate => Some("CL.THROTTLE strict 1 1 3600".to_owned()),
            // A burst of 2, because with a burst of 1 it limits nothing.
            Self::Throttlecrab => Some("THROTTLE strict 2 1 3600".to_owned()),
            Self::RedisLua => Some(format!("EVALSHA {sha} 1 strict 2 0.0003 1")),
            Self::RedisIncr | Self::RedisGet => None,
        }
    }

    /// The command for a limit of a million per second and key.
    fn generous(self, sha: &str) -> String {
        match self {
            Self::Tidegate => "CL.THROTTLE key:######## 1000000 1000000 1".to_owned(),
            Self::Throttlecrab => "THROTTLE key:######## 1000000 1000000 1".to_owned(),
            Self::RedisLua => format!("EVALSHA {sha} 1 key:######## 1000000 1000000 1"),
            Self::RedisIncr => "INCR key:########".to_owned(),
            Self::RedisGet => "GET key:########".to_owned(),
        }
    }

    /// The command that runs the server in the foreground.
    fn command(self, programs: &Programs, at: SocketAddr, folder: &Path) -> io::Result<Command> {
        match self {
            Self::Tidegate => tidegate(&programs.tidegate, at, folder),
            Self::Throttlecrab => Ok(throttlecrab(&programs.throttlecrab, at)),
            Self::RedisIncr | Self::RedisGet | Self::RedisLua => Ok(process::redis(at, folder)),
        }
    }
}

fn tidegate(program: &Path, address: SocketAddr, folder: &Path) -> io::Result<Command> {
    let data = folder.join("data");
    fs::create_dir(&data)?;
    let mut command = Command::new(program);
    command.args(["serve", "--resp-listen", &address.to_string()]);
    command
        .args(["--http-listen", "off", "--admin-listen", "off", "--grpc-listen", "off"])
        .arg("--data-dir")
        .arg(data);
    Ok(command)
}

/// With its default settings, except that it logs only warnings.
fn throttlecrab(program: &Path, address: SocketAddr) -> Command {
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let mut command = Command::new(program);
    command.args(["--redis", "--redis-host", &host, "--redis-port", &port, "--log-level", "warn"]);
    command
}

// === running ===

/// A running server. It is killed when this is dropped.
pub(crate) struct RunningRespServer {
    pub(crate) server: RespServer,
    pub(crate) process: Process,
    /// The SHA-1 by which Redis knows the script.
    sha: String,
}

impl RunningRespServer {
    /// Starts a server, waits until it answers, fills it with the keys that it needs, proves that it limits,
    /// and stops it until its first round.
    pub(crate) async fn start(
        server: RespServer,
        programs: &Programs,
        keys: u32,
    ) -> Result<Self, String> {
        let with_name = |error: String| format!("{}: {error}", server.name());
        let process =
            Process::spawn(server.name(), |at, folder| server.command(programs, at, folder));
        let process = process.map_err(|error| with_name(format!("cannot be started: {error}")))?;
        let mut running = Self { server, process, sha: String::new() };
        running.ready(keys).await.map_err(with_name)?;
        running.process.pause();
        Ok(running)
    }

    async fn ready(&mut self, keys: u32) -> Result<(), String> {
        self.process.wait_until_answering(async |at| said(at, "PING").await).await?;
        match self.server {
            RespServer::RedisLua => self.sha = within(load_script(self.process.address)).await?,
            RespServer::RedisGet => {
                once_per_key(self.process.address, "SET key:######## 1", keys).await?;
            }
            RespServer::Tidegate | RespServer::Throttlecrab | RespServer::RedisIncr => {}
        }
        within(self.prove_it_limits()).await
    }

    /// Checks that two commands are allowed and the third is refused. For the commands that limit nothing:
    /// that the counter counts, and that the keys exist.
    async fn prove_it_limits(&self) -> Result<(), String> {
        let at = self.process.address;
        let Some(strict) = self.server.strict(&self.sha) else {
            let (asked, expected) = if self.server == RespServer::RedisGet {
                ("GET key:00000007", "$1\r\n1\r\n")
            } else {
                ("INCR count", ":1\r\n")
            };
            let answer = said(at, asked).await?;
            let right = answer == expected;
            return if right { Ok(()) } else { Err(format!("{asked}: {answer:?}")) };
        };
        let mut allowed = Vec::new();
        let mut connection = RespConnection::open(at).await?;
        for _ in 0..3 {
            let counted = connection.exchange(command(&strict).as_bytes(), 1).await?;
            allowed.push(self.server.meaning().split(counted) == (1, 0));
        }
        let right = allowed == [true, true, false];
        if right { Ok(()) } else { Err(format!("{strict}: allowed {allowed:?}")) }
    }

    /// A pipeline of this depth, with commands of which none is refused.
    pub(crate) fn pipeline(&self, depth: u32) -> Pipeline {
        let text = command(&self.server.generous(&self.sha));
        let times = usize::try_from(depth).unwrap_or(1);
        let commands = Template::new(&text).repeated(times);
        Pipeline { commands, depth: depth.into(), meaning: self.server.meaning() }
    }

    /// Fails unless every command under load passed.
    pub(crate) fn check_limits(&self, tally: &Tally) -> Result<(), String> {
        let Tally { passed, refused, .. } = tally;
        let kept = *refused == 0 && *passed > 0;
        if kept { Ok(()) } else { Err(format!("{passed} passed, {refused} were refused")) }
    }
}

/// Sends one command on a connection of its own, and returns its short reply.
async fn said(address: SocketAddr, words: &str) -> Result<String, String> {
    sent(address, &command(words)).await.map_err(|error| error.to_string())
}

async fn sent(address: SocketAddr, command: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(command.as_bytes()).await?;
    let mut reply = [0; 256];
    let read = stream.read(&mut reply).await?;
    Ok(String::from_utf8_lossy(reply.get(..read).unwrap_or_default()).into_owned())
}

/// Loads the script into Redis, and returns its SHA-1.
async fn load_script(address: SocketAddr) -> Result<String, String> {
    let load = format!("*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n${}\r\n{BUCKET}\r\n", BUCKET.len());
    let reply = sent(address, &load).await.map_err(|error| error.to_string())?;
    let sha = reply.strip_prefix("$40\r\n").map(|sha| sha.trim_end().to_owned());
    sha.ok_or_else(|| format!("SCRIPT LOAD: {reply:?}"))
}
