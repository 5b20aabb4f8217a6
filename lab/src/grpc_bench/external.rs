//! Any server that Envoy could ask, at an address: how many calls a second it answers, and how long they take.
//!
//! Whoever started it knows its limits, so nothing is demanded of its answers: how many were refused is told, and what failed.

use super::load::{GrpcClient, asked};
use super::message::{GrpcRequest, should_rate_limit};
use super::{GrpcCase, GrpcOptions, failures::Failures, schedule};
use crate::rig::{self, process::within, tally::Tally, template::Keys};
use crate::rounds::{median, range};
use crate::say;
use std::net::{SocketAddr, ToSocketAddrs};

/// Measures it in every case that is not about our own limits.
pub(super) async fn measured(options: &GrpcOptions, address: &str) -> Result<(), String> {
    let request = request(options, address)?;
    let address = resolved(address)?;
    within(asked(address, &request)).await?;
    let cases = super::CASES.iter().filter(|case| case.is_everywhere());
    for case in cases.filter(|case| case.name.contains(&options.rig.only)) {
        let mut rounds = ExternalRounds::default();
        let ended = rounds.run(case, options, address, &request).await;
        // What failed is the more worth telling when it ended the experiment.
        rounds.tell(case, options.rig.json);
        ended?;
    }
    Ok(())
}

/// The rounds of a case, of which the first, in which the server warms up, is left out.
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

    fn tell(&self, case: &GrpcCase, json: bool) {
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
            let failed = self.failures.summary().unwrap_or_else(|| "none failed".to_owned());
            say(&format!("{:28} {passed} passed, {refused} were refused; {failed}", case.name));
        }
    }

    /// What failed, as the fields of an object.
    fn failed(&self) -> String {
        let seen = self.failures.seen();
        let each = seen.iter().map(|(failure, times)| format!("\"{failure}\":{times}"));
        each.collect::<Vec<_>>().join(",")
    }
}

/// One round.
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
        let (key, value) = entry.split_once('=').ok_or_else(|| format!("{entry}: no key=value"))?;
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
    found.ok_or_else(|| format!("{address}: nobody is called that"))
}
