//! The servers under test. Each is started on a free port, proved to limit, and killed at the end, also after
//! an error.
//!
//! Both apply the same limits to each key. The calls differ, because each server has its own interface:
//!
//! | server | call | allowed | refused |
//! |---|---|---|---|
//! | tidegate | `RateLimitService/ShouldRateLimit`, as Envoy calls it | `overall_code` `OK` | `OVER_LIMIT` |
//! | throttlecrab | `RateLimiter/Throttle`, with key and limit | `allowed` | not `allowed` |
//!
//! Before the measurement each server gets three calls for one key. The third answer must be the one that its
//! limits demand.

use super::load::call_once;
use super::message::{GrpcRequest, Throttle, should_rate_limit, throttle};
use crate::rig::install::Programs;
use crate::rig::launch::{Launch, Limits};
use crate::rig::process::{Process, within};
use crate::rig::tally::Tally;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

/// The servers that are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GrpcServer {
    Tidegate,
    Throttlecrab,
}

/// Keys are IP addresses, which both servers accept as text.
pub(crate) const KEY: &str = "10.1##.1##.1##";
/// The descriptor entry in which Envoy sends the client's address, and the domain.
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

    /// The call that checks a key.
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

    /// The command that runs the server in the foreground.
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

// === the two command lines ===

/// tidegate with the same policy as in the HTTP experiment.
fn tidegate(program: &Path, launch: &Launch<'_>) -> io::Result<Command> {
    let mut command = launch.tidegate(program)?;
    command.args(["--grpc-listen", &launch.address.to_string(), "--http-listen", "off"]);
    command.args(["--admin-listen", "off", "--resp-listen", "off"]);
    Ok(command)
}

/// With its default settings, except that it logs only warnings. Its limits are in the calls.
fn throttlecrab(program: &Path, launch: &Launch<'_>) -> Command {
    let (host, port) = (launch.address.ip().to_string(), launch.address.port().to_string());
    let mut command = Command::new(program);
    command.args(["--grpc", "--grpc-host", &host, "--grpc-port", &port, "--log-level", "warn"]);
    command
}

// === running ===

/// A running server. It is killed when this is dropped.
pub(crate) struct RunningGrpcServer {
    pub(crate) server: GrpcServer,
    pub(crate) process: Process,
}

impl RunningGrpcServer {
    /// Starts a server, waits until it answers, proves that it limits, and stops it until its first round.
    pub(crate) async fn start(
        server: GrpcServer,
        limits: Limits,
        programs: &Programs,
    ) -> Result<Self, String> {
        let with_name = |error: String| format!("{}: {error}", server.name());
        let name = format!("{}-{limits:?}", server.name());
        let process = Process::spawn(&name, |address, folder| {
            server.command(programs, &Launch { limits, address, folder })
        });
        let process = process.map_err(|error| with_name(format!("cannot be started: {error}")))?;
        let mut running = Self { server, process };
        running.prove_it_limits(limits).await.map_err(with_name)?;
        running.process.pause();
        Ok(running)
    }

    /// Makes three calls for the same key. The third must be refused under strict limits, and allowed under
    /// generous ones.
    async fn prove_it_limits(&mut self, limits: Limits) -> Result<(), String> {
        let request = self.server.request(self.process.address, limits);
        self.process
            .wait_until_answering(async |address| call_once(address, &request).await)
            .await?;
        within(call_once(self.process.address, &request)).await?;
        let allowed = within(call_once(self.process.address, &request)).await?;
        if allowed == (limits == Limits::Generous) {
            return Ok(());
        }
        Err(format!("under {limits:?} limits the third call got allowed={allowed}"))
    }
}
