//! What counting top keys costs: two servers that differ only in `--top-keys-memory`, under the same load.
//!
//! Rounds of the two take turns. The figure is the processor time of the server for each request: it depends less on the load generator
//! than the rate does.

#![expect(clippy::float_arithmetic, reason = "ratios, for people")]

use crate::http_bench::load::{HttpClient, HttpConnection};
use crate::http_bench::wire::post;
use crate::resp_bench::load::{Pipeline, ReplyMeaning, RespClient, RespConnection};
use crate::resp_bench::wire::command;
use crate::rig::launch::{Launch, Limits};
use crate::rig::process::Process;
use crate::rig::schedule::{Pace, Schedule};
use crate::rig::tally::Tally;
use crate::rig::template::{Keys, Template};
use crate::rig::{self, LoadOptions, install};
use crate::rounds::{Comparison, float, median, print_range, write_section};
use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

/// A load, and what refuses or allows its requests.
struct TopCase {
    name: &'static str,
    load: TopLoad,
    limits: Limits,
    keys: NonZeroU32,
}

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TopLoad {
    /// `POST /v1/check`, one request at a time on each connection.
    Http,
    /// `CL.THROTTLE`, 64 in a pipeline.
    Throttle,
    /// `TG.CHECK`, 16 in a pipeline.
    Check,
}

const CONNECTIONS: u32 = 50;
const MILLION: NonZeroU32 = NonZeroU32::new(1_000_000).unwrap();
const THOUSAND: NonZeroU32 = NonZeroU32::new(1_000).unwrap();

const fn case(name: &'static str, load: TopLoad, limits: Limits, keys: NonZeroU32) -> TopCase {
    TopCase { name, load, limits, keys }
}

const CASES: [TopCase; 6] = [
    case("http-check", TopLoad::Http, Limits::Generous, MILLION),
    case("http-refused", TopLoad::Http, Limits::Strict, THOUSAND),
    case("resp-pipe64", TopLoad::Throttle, Limits::Generous, MILLION),
    case("resp-pipe64-few-keys", TopLoad::Throttle, Limits::Generous, THOUSAND),
    case("resp-check16", TopLoad::Check, Limits::Generous, MILLION),
    case("resp-check16-refused", TopLoad::Check, Limits::Strict, THOUSAND),
];

const TITLE: &str = "The cost of top keys";
const TEXT: &str = "\
Processor time of a server for each request, in nanoseconds, with the default `--top-keys-memory 4MiB`; the peer is the same server with
`--top-keys-memory 0`, in the same run. 50 connections in a closed loop, keys in random order: a million of them, so that keys replace each
other all the time, or a thousand. `http-check` is `POST /v1/check`, `resp-pipe64` is `CL.THROTTLE` with 64 commands in a pipeline, and
`resp-check16` is `TG.CHECK` with 16. Of the requests of `refused`, nearly all are refused, so recent refusals are noted too.

The least that counting can cost is to hash the key and to add to its bucket. Beside the work of a server, that alone takes 28 ns, which is
5 % of a pipelined `CL.THROTTLE`.";

pub(crate) fn run(options: &LoadOptions) -> Result<(), String> {
    let tidegate = install::tidegate(options.tidegate.as_deref())?;
    let rows = rig::run(async {
        let mut rows = vec![];
        for case in CASES.iter().filter(|case| case.name.contains(&options.only)) {
            rows.push(measured(case, options, &tidegate).await?);
        }
        Ok(rows)
    })?;
    if options.write { write_section(TITLE, TEXT, &rows) } else { Ok(()) }
}

/// Rounds with and without top keys take turns, after one for warming up.
async fn measured(
    case: &TopCase,
    options: &LoadOptions,
    tidegate: &Path,
) -> Result<String, String> {
    let mut servers = vec![];
    for memory in ["4MiB", "0"] {
        let process = start(case, memory, tidegate).await?;
        process.pause();
        servers.push(process);
    }
    let mut rounds = [vec![], vec![]];
    for round in 0..=options.rounds {
        for (process, rounds) in servers.iter().zip(&mut rounds) {
            let _resumed = process.resume();
            let nanos = case.round(process, options.seconds).await?;
            if round > 0 {
                rounds.push(nanos);
            }
        }
    }
    let [with, without] = &rounds;
    if !options.json {
        print_range("with top keys", with, "ns");
        print_range("without", without, "ns");
    }
    let [ours, peer] = rounds.map(median);
    let (bench, case, unit) = ("top-keys", case.name, "ns");
    Ok(Comparison { bench, case, ours, peer, peer_name: "off", unit }.print(options.json))
}

async fn start(case: &TopCase, memory: &str, tidegate: &Path) -> Result<Process, String> {
    let name = format!("top-{}", memory.to_lowercase());
    let process = Process::spawn(&name, |address, folder| {
        let mut command = Launch { limits: case.limits, address, folder }.tidegate(tidegate)?;
        let [http, resp] = match case.load {
            TopLoad::Http => [address.to_string(), "off".to_owned()],
            TopLoad::Throttle | TopLoad::Check => ["off".to_owned(), address.to_string()],
        };
        command.args(["--http-listen", &http, "--resp-listen", &resp]);
        command.args(["--admin-listen", "off", "--grpc-listen", "off"]);
        command.args(["--top-keys-memory", memory]);
        Ok(command)
    });
    let mut process = process.map_err(|error| format!("tidegate: {error}"))?;
    let load = case.load;
    process
        .wait_until_answering(async |at| match load {
            TopLoad::Http => HttpConnection::open(at).await.map(|_| ()),
            TopLoad::Throttle | TopLoad::Check => RespConnection::open(at).await.map(|_| ()),
        })
        .await?;
    Ok(process)
}

impl TopCase {
    /// The processor time of the server for each request of a round.
    async fn round(&self, process: &Process, seconds: u64) -> Result<f64, String> {
        let length = Duration::from_secs(seconds);
        let schedule = Schedule { connections: CONNECTIONS, pace: Pace::Closed, length };
        let group = process.group().map_err(|error| error.to_string())?;
        let before = group.cpu();
        let tally = self.loaded(process, schedule).await?;
        let cpu = group.cpu().saturating_sub(before);
        let right = match self.limits {
            Limits::Generous => tally.refused == 0,
            Limits::Strict => tally.passed < tally.refused,
        };
        if !right {
            let Tally { passed, refused, .. } = tally;
            return Err(format!("{}: {passed} passed, {refused} were refused", self.name));
        }
        Ok(cpu.as_secs_f64() * 1e9 / float(tally.latency.len()))
    }

    async fn loaded(&self, process: &Process, schedule: Schedule) -> Result<Tally, String> {
        let (at, keys) = (process.address, self.keys);
        let (words, depth, meaning) = match self.load {
            TopLoad::Http => {
                let request = post("/v1/check", r#"{"attributes":{"ip":"10.1##.1##.1##"}}"#);
                let client =
                    move |number| HttpClient::new(request.clone(), Keys::new(keys, number));
                return rig::load(at, schedule, client).await;
            }
            TopLoad::Throttle => {
                ("CL.THROTTLE key:######## 1000000 1000000 1", 64, ReplyMeaning::ZeroPasses)
            }
            TopLoad::Check => ("TG.CHECK 1 ip 10.1##.1##.1##", 16, ReplyMeaning::ZeroRefuses),
        };
        let times = usize::try_from(depth).unwrap_or(1);
        let commands = Template::new(&command(words)).repeated(times);
        let pipeline = Pipeline { commands, depth, meaning };
        let client = move |number| RespClient::new(pipeline.clone(), Keys::new(keys, number));
        rig::load(at, schedule, client).await
    }
}
