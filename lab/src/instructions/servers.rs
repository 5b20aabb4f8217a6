//! The cases that run in a server: it is started under callgrind, gets a number of requests, and is stopped in order.

use super::callgrind::{Profile, counted};
use crate::grpc_bench::check_client;
use crate::http_bench::load::HttpClient;
use crate::http_bench::wire::post;
use crate::resp_bench::load::{Pipeline, ReplyMeaning, RespClient};
use crate::resp_bench::wire::command;
use crate::rig;
use crate::rig::drive::LoadClient;
use crate::rig::launch::{Launch, Limits};
use crate::rig::process::Process;
use crate::rig::template::{Keys, Template};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU32;
use std::path::Path;

/// What the server is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerCase {
    Throttle,
    Check,
    Http(Limits),
    Grpc(Limits),
}

/// Exchanges of the two runs; a pipeline is one exchange.
const PIPELINES: [u32; 2] = [50, 250];
const REQUESTS: [u32; 2] = [1_000, 5_000];
/// Commands of a pipeline.
const DEPTH: u32 = 64;
/// Clients. The shorter run has asked for each of them several times.
const KEYS: NonZeroU32 = NonZeroU32::new(200).unwrap();

impl ServerCase {
    pub(super) const ALL: [Self; 6] = [
        Self::Throttle,
        Self::Check,
        Self::Http(Limits::Generous),
        Self::Http(Limits::Strict),
        Self::Grpc(Limits::Generous),
        Self::Grpc(Limits::Strict),
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Throttle => "resp-throttle",
            Self::Check => "resp-check",
            Self::Http(Limits::Generous) => "http-check-allowed",
            Self::Http(Limits::Strict) => "http-check-refused",
            Self::Grpc(Limits::Generous) => "grpc-call-allowed",
            Self::Grpc(Limits::Strict) => "grpc-call-refused",
        }
    }

    /// The exchanges of the two runs, and the decisions of one exchange.
    const fn exchanges(self) -> ([u32; 2], u32) {
        match self {
            Self::Throttle | Self::Check => (PIPELINES, DEPTH),
            Self::Http(_) | Self::Grpc(_) => (REQUESTS, 1),
        }
    }

    const fn limits(self) -> Limits {
        match self {
            Self::Throttle | Self::Check => Limits::Generous,
            Self::Http(limits) | Self::Grpc(limits) => limits,
        }
    }

    /// Counts the instructions of one decision.
    pub(super) fn count(self, tidegate: &Path) -> Result<Profile, String> {
        let ([few, many], each) = self.exchanges();
        let (fewer, more) = (self.profile(tidegate, few)?, self.profile(tidegate, many)?);
        Ok(more.per_decision(&fewer, many.saturating_sub(few).saturating_mul(each).into()))
    }

    fn profile(self, tidegate: &Path, exchanges: u32) -> Result<Profile, String> {
        let process = Process::spawn(&format!("counted-{exchanges}"), |address, folder| {
            let served = Launch { limits: self.limits(), address, folder }.tidegate(tidegate)?;
            let mut command = counted(served.get_program(), &folder.join("counts"));
            command.args(served.get_args()).args(self.listeners(address));
            Ok(command)
        });
        let mut process = process.map_err(|error| format!("valgrind: {error}"))?;
        rig::run(async {
            let open = async |at| {
                TcpStream::connect(at).map_err(|error: std::io::Error| error.to_string())
            };
            process.wait_until_answering(open).await?;
            self.ask(process.address, exchanges)?;
            process.signal(Signal::TERM);
            process.wait().map_err(|error| error.to_string())
        })?;
        let counts = process.read("counts");
        Profile::parse(&counts.map_err(|error| format!("{error}\n{}", process.log()))?)
    }

    fn listeners(self, address: SocketAddr) -> Vec<String> {
        let mine = match self {
            Self::Throttle | Self::Check => "--resp-listen",
            Self::Http(_) => "--http-listen",
            Self::Grpc(_) => "--grpc-listen",
        };
        let listeners = ["--http-listen", "--resp-listen", "--grpc-listen", "--admin-listen"];
        let at = |name| if name == mine { address.to_string() } else { "off".to_owned() };
        listeners.into_iter().flat_map(|name| [name.to_owned(), at(name)]).collect()
    }

    fn ask(self, address: SocketAddr, exchanges: u32) -> Result<(), String> {
        let keys = Keys::new(KEYS, 0);
        match self {
            Self::Throttle => {
                let words = "CL.THROTTLE key:######## 1000000 1000000 1";
                exchange(address, exchanges, pipeline(words, ReplyMeaning::ZeroPasses, keys))
            }
            Self::Check => {
                let words = "TG.CHECK 1 ip 10.1##.1##.1##";
                exchange(address, exchanges, pipeline(words, ReplyMeaning::ZeroRefuses, keys))
            }
            Self::Http(_) => {
                let request = post("/v1/check", r#"{"attributes":{"ip":"10.1##.1##.1##"}}"#);
                exchange(address, exchanges, HttpClient::new(request, keys))
            }
            Self::Grpc(_) => exchange(address, exchanges, check_client(address, keys)),
        }
    }
}

fn pipeline(words: &str, meaning: ReplyMeaning, keys: Keys) -> RespClient {
    let times = usize::try_from(DEPTH).unwrap_or(1);
    let commands = Template::new(&command(words)).repeated(times);
    RespClient::new(Pipeline { commands, depth: DEPTH.into(), meaning }, keys)
}

/// Sends requests on one connection, each after the answer to the one before.
fn exchange(address: SocketAddr, times: u32, mut client: impl LoadClient) -> Result<(), String> {
    let as_text = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect(address).map_err(as_text)?;
    stream.set_nodelay(true).map_err(as_text)?;
    let mut buffer = vec![0; 64 << 10];
    for _ in 0..times {
        stream.write_all(client.request()).map_err(as_text)?;
        loop {
            let read = stream.read(&mut buffer).map_err(as_text)?;
            if read == 0 {
                return Err("the server closed the connection".to_owned());
            }
            if client.receive(buffer.get(..read).unwrap_or_default())?.is_some() {
                break;
            }
        }
    }
    Ok(())
}
