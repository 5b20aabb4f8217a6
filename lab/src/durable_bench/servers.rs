//! Servers with the two stores over RESP: how fast they are, what they cost at a constant rate, and how long a caller waits while a
//! snapshot is written.

#![expect(clippy::float_arithmetic, reason = "rates, for people")]

use super::DurableOptions;
use crate::resp_bench::load::{Pipeline, ReplyMeaning, RespClient, RespConnection, once_per_key};
use crate::resp_bench::wire::command;
use crate::rig::process::Process;
use crate::rig::schedule::{Pace, Schedule};
use crate::rig::tally::Tally;
use crate::rig::template::{Keys, Template};
use crate::rig::{self, install};
use crate::rounds::{Comparison, median};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const KEYS: NonZeroU32 = NonZeroU32::new(1_000_000).unwrap();
const CONNECTIONS: u32 = 50;
/// Commands that are sent together.
const DEPTH: u32 = 64;
/// A bucket of a million tokens, of which one comes back in 48 minutes: no benchmark empties it, and none of its states is full again,
/// and so forgotten, before it is written.
const TAKE: &str = "CL.THROTTLE key:######## 1000000 30 86400";
/// A million commands a second.
const MILLION: Pace = Pace::Open { apart: Duration::from_micros(64) };
/// Less than half of the time that a snapshot takes.
const A_MOMENT: Duration = Duration::from_secs(1);
const CLOSED: &str = "resp-pipe64";
const OPEN: &str = "resp-open-1000000";
const SNAPSHOT: &str = "snapshot";

/// The rows of all cases with servers.
pub(super) fn rows(options: &DurableOptions) -> Result<Vec<String>, String> {
    let is_wanted = |name: &&str| name.contains(&options.only);
    let cases: Vec<&str> = [CLOSED, OPEN, SNAPSHOT].into_iter().filter(is_wanted).collect();
    if cases.is_empty() {
        return Ok(vec![]);
    }
    let tidegate = install::tidegate(options.tidegate.as_deref())?;
    rig::run(async {
        let mut rows = vec![];
        for case in cases {
            rows.extend(match case {
                SNAPSHOT => during_a_snapshot(options, &tidegate).await?,
                _ => against_memory(case, options, &tidegate).await?,
            });
        }
        Ok(rows)
    })
}

/// A server with a store.
struct StoreServer(Process);

/// What a round measured.
struct Round {
    tally: Tally,
    /// Processor time of the server, in milliseconds per second.
    cpu: f64,
}

impl StoreServer {
    /// Starts a server; `data` is its data directory, if it has one already.
    async fn start(tidegate: &Path, store: &str, data: Option<PathBuf>) -> Result<Self, String> {
        let kept = if data.is_some() { "-again" } else { "" };
        let name = format!("durable-{}{kept}", store.trim_end_matches(':'));
        let process = Process::spawn(&name, |at, folder| {
            let mut command = Command::new(tidegate);
            command.args(["serve", "--store", store, "--resp-listen", &at.to_string()]);
            command.args(["--http-listen", "off", "--admin-listen", "off", "--grpc-listen", "off"]);
            command.args(["--memory-budget", "512MiB", "--data-dir"]);
            command.arg(data.unwrap_or_else(|| folder.join("data")));
            Ok(command)
        });
        let mut process = process.map_err(|error| format!("tidegate: {error}"))?;
        process.wait_until_answering(async |at| RespConnection::open(at).await.map(|_| ())).await?;
        Ok(Self(process))
    }

    async fn measure(
        &self,
        keys: NonZeroU32,
        depth: u32,
        pace: Pace,
        length: Duration,
    ) -> Result<Round, String> {
        let times = usize::try_from(depth).unwrap_or(1);
        let commands = Template::new(&command(TAKE)).repeated(times);
        let pipeline =
            Pipeline { commands, depth: depth.into(), meaning: ReplyMeaning::ZeroPasses };
        let client = move |number| RespClient::new(pipeline.clone(), Keys::new(keys, number));
        let schedule = Schedule { connections: CONNECTIONS, pace, length };
        let group = self.0.group().map_err(|error| error.to_string())?;
        let before = group.cpu();
        let tally = rig::load(self.0.address, schedule, client).await?;
        let cpu = group.cpu().saturating_sub(before).as_secs_f64() * 1e3 / tally.took.as_secs_f64();
        if tally.refused > 0 {
            return Err(format!("{} were refused", tally.refused));
        }
        Ok(Round { tally, cpu })
    }
}

/// Rounds of both stores take turns.
async fn against_memory(
    case: &str,
    options: &DurableOptions,
    tidegate: &Path,
) -> Result<Vec<String>, String> {
    let pace = if case == OPEN { MILLION } else { Pace::Closed };
    let length = Duration::from_secs(options.seconds);
    let mut servers = vec![];
    for store in ["file:", "memory:"] {
        let server = StoreServer::start(tidegate, store, None).await?;
        server.0.pause();
        servers.push(server);
    }
    let mut rounds = [vec![], vec![]];
    for round in 0..=options.rounds {
        for (server, rounds) in servers.iter().zip(&mut rounds) {
            let _resumed = server.0.resume();
            let measured = server.measure(KEYS, DEPTH, pace, length).await?;
            if round > 0 {
                rounds.push(measured);
            }
        }
    }
    type Part = (&'static str, &'static str, fn(&Round) -> f64);
    const RATE: Part = ("", "1/s", |round| round.tally.rate());
    const CPU: Part = ("-cpu", "ms/s", |round| round.cpu);
    let parts: &[Part] = if case == OPEN { &[RATE, CPU] } else { &[RATE] };
    let rows = parts.iter().map(|(suffix, unit, of)| {
        let [ours, peer] = rounds.each_ref().map(|rounds| median(rounds.iter().map(of).collect()));
        let case = format!("{case}{suffix}");
        let row =
            Comparison { bench: "durable", case: &case, ours, peer, peer_name: "memory", unit };
        row.print(options.json)
    });
    Ok(rows.collect())
}

/// How long a caller waits while a snapshot is written, and afterwards. A server that was killed begins with a snapshot.
async fn during_a_snapshot(
    options: &DurableOptions,
    tidegate: &Path,
) -> Result<Vec<String>, String> {
    let keys = u32::try_from(options.keys)
        .ok()
        .and_then(NonZeroU32::new)
        .ok_or("--keys is 0 or too large")?;
    let mut first = StoreServer::start(tidegate, "file:", None).await?;
    once_per_key(first.0.address, TAKE, keys.get()).await?;
    first.0.kill().map_err(|error| error.to_string())?;
    let data = first.0.path("data");
    let twenty_thousand = Pace::Open { apart: Duration::from_micros(50) };
    let (mut during, mut after) = (vec![], vec![]);
    for _ in 0..options.rounds {
        // It is killed when it is dropped, and so are the next ones.
        let server = StoreServer::start(tidegate, "file:", Some(data.clone())).await?;
        let waited = async || -> Result<f64, String> {
            Ok(server.measure(keys, 1, twenty_thousand, A_MOMENT).await?.tally.micros(0.999))
        };
        waited().await?; // connections and pages are new
        during.push(waited().await?);
        if unfinished(&data) == 0 {
            return Err("the snapshot was complete too soon; more --keys are needed".to_owned());
        }
        while unfinished(&data) > 0 {
            waited().await?; // the same load goes on meanwhile
        }
        after.push(waited().await?);
    }
    let case = format!("snapshot-{keys}-p999");
    let (ours, peer) = (median(during), median(after));
    let row = Comparison {
        bench: "durable",
        case: &case,
        ours,
        peer,
        peer_name: "no snapshot",
        unit: "µs",
    };
    Ok(vec![row.print(options.json)])
}

/// How many snapshots in a data directory are not complete.
fn unfinished(data: &Path) -> usize {
    let names = std::fs::read_dir(data.join("states")).into_iter().flatten().flatten();
    names.filter(|entry| entry.path().extension().is_some_and(|end| end == "new")).count()
}
