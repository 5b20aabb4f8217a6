//! The lab: what we measure and break on purpose. Nothing here is shipped.

mod core_bench;
mod embedded;
mod flood;
mod full_cost;
mod grpc_bench;
mod http_bench;
mod mutants;
mod policy_bench;
mod redis_bench;
mod resp_bench;
mod rig;
mod rounds;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Benchmarks and mutants.
#[derive(Parser)]
#[command(name = "lab", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Subcommand)]
enum Experiment {
    /// Plants every mistake of lab/mutants in a copy of the core, or of the store and the limiter; each must be caught.
    Mutants(mutants::MutantOptions),
    /// A server that only answers, for `lab http`.
    #[command(hide = true)]
    Bare(http_bench::bare::BareOptions),
    /// Times one decision of each algorithm and counts its instructions; writes BENCHMARKS.md.
    Core(core_bench::CoreOptions),
    /// The table in this process against `governor` and `throttlecrab`.
    Embedded(embedded::EmbeddedOptions),
    /// A hundred million strangers through a budget of 256 MiB.
    Flood(flood::FloodOptions),
    /// Eight million strangers that each use up their limit at once, through a budget of 16 MiB.
    FullCost(full_cost::FullCostOptions),
    /// A check over gRPC, against `throttlecrab-server`, which it installs; or any rate limit service at an address.
    Grpc(grpc_bench::GrpcOptions),
    /// A check over HTTP, against `throttlecrab-server` and nginx; installs both.
    Http(rig::LoadOptions),
    /// A full check behind tower, against `tower_governor`; and a thousand rules against ten.
    Policy(policy_bench::PolicyOptions),
    /// The store on Redis, against `redis-benchmark` with the same script call; installs it.
    Redis(rig::LoadOptions),
    /// A check over RESP, against Redis, a script in Redis and `throttlecrab-server`; installs them.
    Resp(rig::LoadOptions),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().experiment {
        Experiment::Mutants(options) => mutants::run(&options),
        Experiment::Bare(options) => http_bench::bare::run(&options),
        Experiment::Core(options) => core_bench::run(&options),
        Experiment::Embedded(options) => embedded::run(&options),
        Experiment::Flood(options) => flood::run(&options),
        Experiment::FullCost(options) => full_cost::run(&options),
        Experiment::Grpc(options) => grpc_bench::run(&options),
        Experiment::Http(options) => http_bench::run(&options),
        Experiment::Policy(options) => policy_bench::run(&options),
        Experiment::Redis(options) => redis_bench::run(&options),
        Experiment::Resp(options) => resp_bench::run(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("lab: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// The one place that prints.
#[expect(clippy::print_stdout, reason = "the lab is a program for a terminal")]
fn say(line: &str) {
    println!("{line}");
}

/// The root of the workspace.
fn root() -> &'static std::path::Path {
    std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
