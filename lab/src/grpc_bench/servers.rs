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
use crate::rig::launch::{Launch, Limits};
use crate::rig::process::{Process, within};
use crate::rig::tally::Tally;
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
    fn command(self, programs: &Programs, launch: &Launch<'_>) -> io::Result<Command> {
        match self {
            Self::Tidegate => tidegate(&programs.tidegate, launch),
            Self::Throttlecrab => Ok(throttlecrab(&programs.throttlecrab, launch)),
        }
    }
}

/// Fails unless the outcome of a load is what the limits demand.
pub(crate) fn check_limits(limits: Limits, tally: &Tally) -> Result<(), String> {
    let Tally { passed, refused, .. } = tally;
    let kept = match limits {
        Limits::Generous => *refused == 0 && *passed > 0,
        Limits::Strict => *passed < refused / 4,
    };
    if kept { Ok(()) } else { Err(format!("{passed} passed, {refused} were refused")) }
}

// === the two ===

/// With the policy of the experiment over HTTP.
fn tidegate(program: &Path, launch: &Launch<'_>) -> io::Result<Command> {
    let mut command = launch.tidegate(program)?;
    command.args(["--grpc-listen", &launch.address.to_string(), "--http-listen", "off"]);
    command.args(["--admin-listen", "off", "--resp-listen", "off"]);
    Ok(command)
}

/// As it comes, but that it does not log what it does. Its limits are in the calls.
fn throttlecrab(program: &Path, launch: &Launch<'_>) -> Command {
    let (host, port) = (launch.address.ip().to_string(), launch.address.port().to_string());
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
            server.command(programs, &Launch { limits, address, folder })
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
