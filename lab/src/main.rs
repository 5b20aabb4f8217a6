//! The lab: benchmarks, mutants that test the tests, and the demo. Nothing here is shipped.

mod core_bench;
mod demo;
mod durable_bench;
mod embedded;
mod flood;
mod full_cost;
mod grpc_bench;
mod http_bench;
mod instructions;
mod lease_bench;
mod memcached_bench;
mod mutants;
mod policy_bench;
mod proxy_bench;
mod redis_bench;
mod resp_bench;
mod rig;
mod rounds;
mod top_keys_bench;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Benchmarks, mutation tests and the demo of tidegate
#[derive(Parser)]
#[command(name = "lab", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Subcommand)]
enum Experiment {
    /// Apply every mutant of lab/mutants to a copy of the core, or of the store and the limiter; the tests
    /// must catch each
    Mutants(mutants::MutantOptions),
    /// Run a server that gives every request the same answer, for `lab http`
    #[command(hide = true)]
    Bare(http_bench::bare::BareOptions),
    /// Measure the time and the instructions of one decision of each algorithm; rewrites BENCHMARKS.md
    Core(core_bench::CoreOptions),
    /// Show tidegate as a reverse proxy at work, live in the terminal: a URL shortener, and users who send
    /// more than their limits allow
    Demo(demo::DemoOptions),
    /// Compare the durable store with the store in memory: processor time, bytes written, time to start
    Durable(durable_bench::DurableOptions),
    /// Compare the store in memory with `governor` and `throttlecrab`
    Embedded(embedded::EmbeddedOptions),
    /// Send 100 million unknown clients through a memory budget of 256 MiB
    Flood(flood::FloodOptions),
    /// Send 8 million unknown clients, each of which uses up its limit with one request, through a memory
    /// budget of 16 MiB
    FullCost(full_cost::FullCostOptions),
    /// Compare a check over gRPC with `throttlecrab-server`, which is installed if missing; or measure a rate
    /// limit service at another address
    Grpc(grpc_bench::GrpcOptions),
    /// Compare a check over HTTP with `throttlecrab-server` and nginx; installs what is missing
    Http(rig::LoadOptions),
    /// Count the instructions of a decision, in the store, behind tower and in the server; an error if a case grew
    Instructions(instructions::InstructionOptions),
    /// Compare two servers that lease their limits from one Redis with two that share nothing, and with two that
    /// ask Redis for each request; and play one busy key on eight nodes in virtual time
    Leases(rig::LoadOptions),
    /// Compare the store on memcached with the bare command that it uses, and with the store on Redis; installs
    /// what is missing
    Memcached(rig::LoadOptions),
    /// Compare the tower layer with `tower_governor`, and a policy of 1,000 rules with one of ten
    Policy(policy_bench::PolicyOptions),
    /// Compare the reverse proxy with nginx, Caddy and Envoy; measure how exactly it delays, what waiting requests
    /// cost, and what clients see when an upstream server fails
    Proxy(proxy_bench::ProxyOptions),
    /// Compare the store on Redis with `redis-benchmark` making the same script call; installs what is
    /// missing
    Redis(rig::LoadOptions),
    /// Compare a check over RESP with Redis, a script in Redis and `throttlecrab-server`; installs what is
    /// missing
    Resp(rig::LoadOptions),
    /// Measure what counting top keys costs over HTTP and RESP: the same server with and without it
    TopKeys(rig::LoadOptions),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().experiment {
        Experiment::Mutants(options) => mutants::run(&options),
        Experiment::Bare(options) => http_bench::bare::run(&options),
        Experiment::Core(options) => core_bench::run(&options),
        Experiment::Demo(options) => demo::run(&options),
        Experiment::Durable(options) => durable_bench::run(&options),
        Experiment::Embedded(options) => embedded::run(&options),
        Experiment::Flood(options) => flood::run(&options),
        Experiment::FullCost(options) => full_cost::run(&options),
        Experiment::Grpc(options) => grpc_bench::run(&options),
        Experiment::Http(options) => http_bench::run(&options),
        Experiment::Instructions(options) => instructions::run(&options),
        Experiment::Leases(options) => lease_bench::run(&options),
        Experiment::Memcached(options) => memcached_bench::run(&options),
        Experiment::Policy(options) => policy_bench::run(&options),
        Experiment::Proxy(options) => proxy_bench::run(&options),
        Experiment::Redis(options) => redis_bench::run(&options),
        Experiment::Resp(options) => resp_bench::run(&options),
        Experiment::TopKeys(options) => top_keys_bench::run(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("lab: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// All output of the lab goes through this function.
#[expect(clippy::print_stdout, reason = "the lab is a program for a terminal")]
fn say(line: &str) {
    println!("{line}");
}

/// The root of the workspace.
fn root() -> &'static std::path::Path {
    std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
