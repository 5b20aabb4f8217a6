//! Any server that implements Envoy's rate limit service, at an address: how many calls per second it
//! answers, and how long they take.
//!
//! The lab does not know the limits of this server. So nothing is demanded of its answers; refusals and
//! failures are counted and reported.

use super::load::{GrpcClient, call_once};
use super::message::{GrpcRequest, should_rate_limit};
use super::{GrpcCase, GrpcOptions, failures::Failures, schedule};
use crate::rig::{self, process::within, tally::Tally, template::Keys};
use crate::rounds::{median, range};
use crate::say;
use std::net::{SocketAddr, ToSocketAddrs};

/// Measures the server in every case that works with any limits.
pub(super) async fn measured(options: &GrpcOptions, address: &str) -> Result<(), String> {
    let request = request(options, address)?;
    let address = resolved(address)?;
    within(call_once(address, &request)).await?;
    let cases = super::CASES.iter().filter(|case| case.works_with_any_limits());
    for case in cases.filter(|case| case.name.contains(&options.rig.only)) {
        let mut rounds = ExternalRounds::default();
        let ended = rounds.run(case, options, address, &request).await;
        // Print the failures also when one of them ended the experiment.
        rounds.print(case, options.rig.json);
        ended?;
    }
    Ok(())
}

/// The rounds of a case, without the first one, which is for warming up.
#[derive(Default)]
struct ExternalRounds {
    tallies: Vec<Tally>,
    failures: Failures,
}

impl ExternalRounds {
    async fn run(
        &mut self,
        case: &GrpcCase,
        options: &GrpcOptions,
        address: SocketAddr,
        request: &GrpcRequest,
    ) -> Result<(), String> {
        load(case, options, address, request, &Failures::default()).await?;
        for _ in 0..options.rig.rounds {
            self.tallies.push(load(case, options, address, request, &self.failures).await?);
        }
        Ok(())
    }

    fn print(&self, case: &GrpcCase, json: bool) {
        let count = |of: fn(&Tally) -> u64| self.tallies.iter().map(of).sum::<u64>();
        let (passed, refused) = (count(|tally| tally.passed), count(|tally| tally.refused));
        for figure in case.figures.iter().filter(|_| !self.tallies.is_empty()) {
            let values: Vec<f64> = self.tallies.iter().map(figure.of).collect();
            let ((least, most), median) = (range(&values), median(values));
            let (name, unit) = (format!("{}{}", case.name, figure.suffix), figure.unit);
            say(&if json {
                let failed = self.failed();
                format!(
                    "{{\"bench\":\"grpc\",\"case\":\"{name}\",\"theirs\":{median:.1},\"least\":{least:.1},\"most\":{most:.1},\"unit\":\"{unit}\",\"passed\":{passed},\"refused\":{refused},\"failed\":{{{failed}}}}}"
                )
            } else {
                format!("{name:28} {median:>12.1} {unit:6}  rounds from {least:.0} to {most:.0}")
            });
        }
        if !json {
            let failed = self.failures.summary().unwrap_or_else(|| "no call failed".to_owned());
            say(&format!("{:28} {passed} passed, {refused} were refused; {failed}", case.name));
        }
    }

    /// The failures as the fields of a JSON object.
    fn failed(&self) -> String {
        let seen = self.failures.seen();
        let each = seen.iter().map(|(failure, times)| format!("\"{failure}\":{times}"));
        each.collect::<Vec<_>>().join(",")
    }
}

/// Runs one round.
async fn load(
    case: &GrpcCase,
    options: &GrpcOptions,
    address: SocketAddr,
    request: &GrpcRequest,
    failures: &Failures,
) -> Result<Tally, String> {
    let (request, failures, depth, keys) =
        (request.clone(), failures.clone(), case.depth, case.keys);
    let client =
        move |number| GrpcClient::new(&request, Keys::new(keys, number), depth, failures.clone());
    rig::load(address, schedule(case, options.rig.seconds), client).await
}

fn request(options: &GrpcOptions, address: &str) -> Result<GrpcRequest, String> {
    let split = |entry: &'_ String| {
        let (key, value) = entry
            .split_once('=')
            .ok_or_else(|| format!("`{entry}` is not a valid entry; write key=value"))?;
        Ok((key.to_owned(), value.to_owned()))
    };
    let entries: Result<Vec<(String, String)>, String> =
        options.descriptor.iter().map(split).collect();
    let entries = entries?;
    let entries = entries.iter().map(|(key, value)| (&**key, &**value));
    Ok(should_rate_limit(address.to_owned(), &options.domain, entries))
}

fn resolved(address: &str) -> Result<SocketAddr, String> {
    let found = address.to_socket_addrs().map_err(|error| format!("{address}: {error}"))?.next();
    found.ok_or_else(|| format!("{address} cannot be resolved"))
}
