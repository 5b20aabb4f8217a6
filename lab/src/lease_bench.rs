//! Leases: one hot key through two servers that share a Redis, beside two servers that share nothing; and one
//! busy key on eight nodes in virtual time.
//!
//! ```text
//!   load ──► tidegate ─┬─► Redis        `lease`, and `exact` for comparison
//!   load ──► tidegate ─┘
//!   load ──► tidegate   (memory:)       `memory`: each server counts by itself
//!   load ──► tidegate   (memory:)
//! ```

mod virtual_load;

use crate::http_bench::load::{HttpClient, HttpConnection};
use crate::http_bench::wire::post;
use crate::resp_bench;
use crate::resp_bench::load::{Pipeline, ReplyMeaning, RespClient, RespConnection};
use crate::rig::process::{self, Process};
use crate::rig::{
    self, LoadOptions, install,
    schedule::{Pace, Schedule},
    tally::{Figure, Measured, Tally},
    template::{Keys, Template},
};
use crate::rounds::write_section;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Connections to each server.
const CONNECTIONS: u32 = 25;
const SERVERS: usize = 2;

/// How two servers share their limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    Lease,
    Exact,
    /// They do not: each counts in its own memory.
    Memory,
}

/// How requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http,
    /// `TG.CHECK` over RESP, sixteen in a pipeline.
    Resp,
}

/// One kind of load.
struct LeaseCase {
    name: &'static str,
    protocol: Protocol,
    /// How many keys there are.
    keys: NonZeroU32,
}

const ONE: NonZeroU32 = NonZeroU32::MIN;
const MANY: NonZeroU32 = NonZeroU32::new(1_000_000).unwrap();
const CASES: [LeaseCase; 3] = [
    LeaseCase { name: "lease-hot-key-http", protocol: Protocol::Http, keys: ONE },
    LeaseCase { name: "lease-hot-key-resp", protocol: Protocol::Resp, keys: ONE },
    LeaseCase { name: "lease-cold-keys", protocol: Protocol::Http, keys: MANY },
];
/// Commands in a pipeline.
const DEPTH: u64 = 16;

const RATE: [Figure; 1] = [Figure { suffix: "", unit: "1/s", of: Tally::rate }];

const TITLE: &str = "Leases";
const TEXT: &str = "\
Two servers, 25 connections to each, checks in a closed loop: over HTTP/1.1, or `TG.CHECK` over RESP, 16 in a pipeline. Servers, Redis and the two load generators
share the machine. The rows compare two servers that share their limits with `consistency: lease` on one Redis with:

- `memory`: the same two servers with `--store memory:`, which share nothing;
- `exact`: the same two servers with `consistency: exact` on the same Redis.

`lease-hot-key` asks for one key all the time, and nothing is refused. `lease-cold-keys` asks for a million keys in random order, of which none is
hot, so that the store decides each request.

The table below is from virtual time: a token bucket of 20,000 a second on eight nodes, with a round trip of 1 ms to the
store. `load` is the demand of all nodes together. `exact` is what an exact limiter lets pass of the same requests.
`quiet` nodes ask for 50 a second, while seven others ask for 12,500 each.";

pub(crate) fn run(options: &LoadOptions) -> Result<(), String> {
    let tidegate = install::tidegate(options.tidegate.as_deref())?;
    let rows = rig::run(measured(options, &tidegate))?;
    let table = virtual_load::table(&options.only);
    table.iter().for_each(|row| crate::say(row));
    if !options.write {
        return Ok(());
    }
    let text = format!("{TEXT}\n\n{}", table.join("\n"));
    write_section(TITLE, &text, &rows)
}

async fn measured(options: &LoadOptions, tidegate: &Path) -> Result<Vec<String>, String> {
    let mut rows = Vec::new();
    for case in CASES.iter().filter(|case| case.name.contains(&options.only)) {
        let [ours, exact, memory] = &tallies(case, options, tidegate).await?;
        let (bench, case, figures) = ("leases", case.name, &RATE[..]);
        let peers: [(&str, &[Tally]); 2] = [("memory", memory), ("exact", exact)];
        rows.extend(Measured { bench, case, figures, ours }.rows(&peers, options.json));
    }
    Ok(rows)
}

/// The rounds of each kind of sharing, without the first one, which is for warming up.
async fn tallies(
    case: &LeaseCase,
    options: &LoadOptions,
    tidegate: &Path,
) -> Result<[Vec<Tally>; 3], String> {
    let redis = Process::spawn("redis-leases", |at, folder| Ok(process::redis(at, folder)));
    let redis = redis.map_err(|error| format!("redis-server: {error}"))?;
    let kinds = [Sharing::Lease, Sharing::Exact, Sharing::Memory];
    let mut running = Vec::new();
    for sharing in kinds {
        let launch =
            PairLaunch { sharing, protocol: case.protocol, tidegate, redis: redis.address };
        running.push(RunningPair::start(&launch).await?);
    }
    let mut tallies = [vec![], vec![], vec![]];
    for round in 0..=options.rounds {
        for (pair, tallies) in running.iter().zip(&mut tallies) {
            let tally = pair.measure(case, options.seconds).await?;
            if round > 0 {
                tallies.push(tally);
            }
        }
    }
    Ok(tallies)
}

/// Two running servers. They are killed when this is dropped.
struct RunningPair(Vec<Process>);

impl RunningPair {
    async fn start(launch: &PairLaunch<'_>) -> Result<Self, String> {
        let mut servers = Vec::new();
        for number in 0..SERVERS {
            let name = format!("{:?}-{:?}-{number}", launch.sharing, launch.protocol);
            let server = Process::spawn(&name, |at, folder| launch.command(at, folder));
            let mut server = server.map_err(|error| format!("tidegate: {error}"))?;
            server.wait_until_answering(async |at| launch.protocol.ask(at).await).await?;
            server.pause();
            servers.push(server);
        }
        Ok(Self(servers))
    }

    /// Measures both servers at the same time, for one round.
    async fn measure(&self, case: &LeaseCase, seconds: u64) -> Result<Tally, String> {
        let _resumed: Vec<_> = self.0.iter().map(Process::resume).collect();
        let length = Duration::from_secs(seconds);
        let schedule = Schedule { connections: CONNECTIONS, pace: Pace::Closed, length };
        let [first, second] = self.0.as_slice() else { return Err("no servers".to_owned()) };
        let (mut sum, other) = match case.protocol {
            Protocol::Http => tokio::try_join!(
                rig::load(first.address, schedule, http_client(case.keys, 0)),
                rig::load(second.address, schedule, http_client(case.keys, CONNECTIONS)),
            )?,
            Protocol::Resp => tokio::try_join!(
                rig::load(first.address, schedule, resp_client(case.keys, 0)),
                rig::load(second.address, schedule, resp_client(case.keys, CONNECTIONS)),
            )?,
        };
        sum.latency.add(&other.latency).map_err(|error| error.to_string())?;
        sum.passed = sum.passed.saturating_add(other.passed);
        sum.refused = sum.refused.saturating_add(other.refused);
        sum.took = sum.took.max(other.took);
        if sum.refused > 0 {
            return Err(format!("{} requests were refused", sum.refused));
        }
        Ok(sum)
    }
}

fn http_client(keys: NonZeroU32, seed: u32) -> impl FnMut(u32) -> HttpClient + Send + 'static {
    move |number| HttpClient::new(request(), Keys::new(keys, number.saturating_add(seed)))
}

fn resp_client(keys: NonZeroU32, seed: u32) -> impl FnMut(u32) -> RespClient + Send + 'static {
    move |number| RespClient::new(pipeline(DEPTH), Keys::new(keys, number.saturating_add(seed)))
}

fn request() -> Template {
    post("/v1/check", r#"{"attributes":{"ip":"10.1##.1##.1##"}}"#)
}

fn pipeline(depth: u64) -> Pipeline {
    let commands = Template::new(&resp_bench::wire::command("TG.CHECK 1 ip 10.1##.1##.1##"));
    let commands = commands.repeated(usize::try_from(depth).unwrap_or(1));
    Pipeline { commands, depth, meaning: ReplyMeaning::ZeroRefuses }
}

impl Protocol {
    /// Asks a server once.
    async fn ask(self, address: SocketAddr) -> Result<(), String> {
        match self {
            Self::Http => {
                let mut connection = HttpConnection::open(address).await?;
                let answer = connection.exchange(request().of(|| 0)).await?;
                let is_right = answer.status == 200;
                if is_right { Ok(()) } else { Err(format!("answered {}", answer.status)) }
            }
            Self::Resp => {
                let mut connection = RespConnection::open(address).await?;
                connection.exchange(pipeline(1).commands.of(|| 0), 1).await.map(drop)
            }
        }
    }
}

/// How a pair of servers is started.
struct PairLaunch<'l> {
    sharing: Sharing,
    protocol: Protocol,
    tidegate: &'l Path,
    redis: SocketAddr,
}

impl PairLaunch<'_> {
    /// The command line of a server.
    fn command(&self, at: SocketAddr, folder: &Path) -> io::Result<Command> {
        let consistency = if self.sharing == Sharing::Lease { "lease" } else { "exact" };
        let rule = format!(
            "{{ name: per-client, key: [ip], limits: [2000000/s], consistency: {consistency} }}"
        );
        let (policy, data) = (folder.join("policy.yaml"), folder.join("data"));
        fs::create_dir(&data)?;
        fs::write(&policy, format!("version: 1\nrules:\n  - {rule}\n"))?;
        let secret = folder.join("secret");
        fs::write(&secret, [7; 32])?;
        fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        let store = match self.sharing {
            Sharing::Lease | Sharing::Exact => format!("redis://{}/", self.redis),
            Sharing::Memory => "memory:".to_owned(),
        };
        let mut command = Command::new(self.tidegate);
        command.arg("serve").arg("--policy").arg(policy).arg("--data-dir").arg(data);
        command.arg("--secret-file").arg(secret).args(["--store", &store, "--redis-timeout", "1s"]);
        let at = at.to_string();
        let (http, resp) = match self.protocol {
            Protocol::Http => (at.as_str(), "off"),
            Protocol::Resp => ("off", at.as_str()),
        };
        command.args(["--http-listen", http, "--resp-listen", resp]);
        command.args(["--admin-listen", "off", "--grpc-listen", "off"]);
        Ok(command)
    }
}
