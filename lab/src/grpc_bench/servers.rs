//! The servers under test: started on a free port, proved to limit, and ended whatever happens.
//!
//! Both limit each key by the same figures. What is asked differs, because each has an interface of its own:
//!
//! | server | call | allowed | refused |
//! |---|---|---|---|
//! | tidegate | `RateLimitService/ShouldRateLimit`, as Envoy asks it | `overall_code` `OK` | `OVER_LIMIT` |
//! | throttlecrab | `RateLimiter/Throttle`, with key and limit | `allowed` | not `allowed` |
//!
//! Before anything is measured, each is asked three times for one key, and the third answer must be the one that its limits demand.

use super::load::asked;
use super::message::{GrpcRequest, Throttle, should_rate_limit, throttle};
use crate::rig::install::Programs;
use crate::rig::process::{Process, within};
use crate::rig::tally::Tally;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

/// Who is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GrpcServer {
    Tidegate,
    Throttlecrab,
}

/// What each key may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limits {
    /// A million a second: nothing is refused.
    Generous,
    /// So little that nearly everything is refused: one an hour. throttlecrab gets a burst of 2, since by a burst of 1 it limits
    /// nobody.
    Strict,
}

/// The keys are addresses, which both take as text.
pub(crate) const KEY: &str = "10.1##.1##.1##";
/// What Envoy calls the address of whoever asks it, and in which domain.
pub(crate) const ENTRY: &str = "remote_address";
pub(crate) const DOMAIN: &str = "bench";

impl GrpcServer {
    pub(crate) const ALL: [Self; 2] = [Self::Tidegate, Self::Throttlecrab];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tidegate => "tidegate",
            Self::Throttlecrab => "throttlecrab",
        }
    }

    /// What it is asked.
    pub(crate) fn request(self, address: SocketAddr, limits: Limits) -> GrpcRequest {
        let authority = address.to_string();
        match (self, limits) {
            (Self::Tidegate, _) => should_rate_limit(authority, DOMAIN, [(ENTRY, KEY)]),
            (Self::Throttlecrab, Limits::Generous) => {
                let million = Throttle { burst: 1_000_000, count: 1_000_000, period: 1 };
                throttle(authority, KEY, million)
            }
            (Self::Throttlecrab, Limits::Strict) => {
                throttle(authority, KEY, Throttle { burst: 2, count: 1, period: 3600 })
            }
        }
    }

    /// The command that runs it in the foreground.
    fn command(self, programs: &Programs, place: &Place<'_>) -> io::Result<Command> {
        match self {
            Self::Tidegate => tidegate(&programs.tidegate, place),
            Self::Throttlecrab => Ok(throttlecrab(&programs.throttlecrab, place)),
        }
    }
}

impl Limits {
    /// Whether what was answered under load is what the limits demand.
    pub(crate) fn check_limits(self, tally: &Tally) -> Result<(), String> {
        let Tally { passed, refused, .. } = tally;
        let kept = match self {
            Self::Generous => *refused == 0 && *passed > 0,
            Self::Strict => *passed < refused / 4,
        };
        if kept { Ok(()) } else { Err(format!("{passed} passed, {refused} were refused")) }
    }
}

// === the two ===

/// Where a server is started, and to which limits.
struct Place<'p> {
    limits: Limits,
    address: SocketAddr,
    /// For its files; there is nothing in it yet.
    folder: &'p Path,
}

/// With the policy of the experiment over HTTP.
fn tidegate(program: &Path, place: &Place<'_>) -> io::Result<Command> {
    let rate = match place.limits {
        Limits::Generous => "1000000/s",
        Limits::Strict => "1/h",
    };
    let rule = format!("{{ name: per-client, key: [ip], limits: [{rate}] }}");
    let (policy, data) = (place.folder.join("policy.yaml"), place.folder.join("data"));
    fs::create_dir(&data)?;
    fs::write(&policy, format!("version: 1\nrules:\n  - {rule}\n"))?;
    let mut command = Command::new(program);
    command.arg("serve").arg("--policy").arg(policy).arg("--data-dir").arg(data);
    command.args(["--grpc-listen", &place.address.to_string(), "--http-listen", "off"]);
    command.args(["--admin-listen", "off", "--resp-listen", "off"]);
    Ok(command)
}

/// As it comes, but that it does not log what it does. Its limits are in the calls.
fn throttlecrab(program: &Path, place: &Place<'_>) -> Command {
    let (host, port) = (place.address.ip().to_string(), place.address.port().to_string());
    let mut command = Command::new(program);
    command.args(["--grpc", "--grpc-host", &host, "--grpc-port", &port, "--log-level", "warn"]);
    command
}

// === running ===

/// A server that runs, until this is dropped.
pub(crate) struct RunningGrpcServer {
    pub(crate) server: GrpcServer,
    pub(crate) process: Process,
}

impl RunningGrpcServer {
    /// Starts a server, waits until it answers, and proves that it limits.
    pub(crate) async fn start(
        server: GrpcServer,
        limits: Limits,
        programs: &Programs,
    ) -> Result<Self, String> {
        let told = |error: String| format!("{}: {error}", server.name());
        let name = format!("{}-{limits:?}", server.name());
        let process = Process::spawn(&name, |address, folder| {
            server.command(programs, &Place { limits, address, folder })
        });
        let process = process.map_err(|error| told(format!("cannot be started: {error}")))?;
        let mut running = Self { server, process };
        running.prove_it_limits(limits).await.map_err(told)?;
        running.process.pause();
        Ok(running)
    }

    /// Asks for the same key three times: under strict limits it must be refused by then, under generous ones not.
    async fn prove_it_limits(&mut self, limits: Limits) -> Result<(), String> {
        let request = self.server.request(self.process.address, limits);
        self.process.wait_until_answering(async |address| asked(address, &request).await).await?;
        within(asked(self.process.address, &request)).await?;
        let allowed = within(asked(self.process.address, &request)).await?;
        if allowed == (limits == Limits::Generous) {
            return Ok(());
        }
        Err(format!("{limits:?} limits, and the third call is allowed: {allowed}"))
    }
}
