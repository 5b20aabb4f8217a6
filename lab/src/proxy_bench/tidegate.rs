//! tidegate as a reverse proxy with one rule, for all experiments.

use crate::http_bench::load::HttpConnection;
use crate::http_bench::wire::get;
use crate::rig::process::Process;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

/// How tidegate is started as a proxy.
pub(crate) struct TidegateProxy<'t> {
    pub(crate) program: &'t Path,
    /// The only rule of its policy.
    pub(crate) rule: &'t str,
    pub(crate) upstreams: &'t [SocketAddr],
    /// More lines of the group of upstream servers, each indented by four spaces.
    pub(crate) group: &'t str,
    /// Where the admin API listens, if it does.
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) arguments: &'t [&'t str],
}

impl TidegateProxy<'_> {
    /// The command that runs it in the foreground, with one worker and no other listener.
    pub(crate) fn command(&self, address: SocketAddr, folder: &Path) -> io::Result<Command> {
        let [policy, routes, data] =
            ["policy.yaml", "routes.yaml", "data"].map(|name| folder.join(name));
        fs::create_dir(&data)?;
        fs::write(&policy, format!("version: 1\nrules:\n  - {}\n", self.rule))?;
        fs::write(&routes, self.routes())?;
        let mut command = Command::new(self.program);
        command.args(["serve", "--workers", "1", "--log-format", "text", "--policy"]).arg(policy);
        command.arg("--data-dir").arg(data).arg("--proxy-routes").arg(routes);
        command.args(["--proxy-listen", &address.to_string(), "--http-listen", "off"]);
        let admin = self.admin.map_or_else(|| "off".to_owned(), |address| address.to_string());
        command.args(["--admin-listen", &admin, "--resp-listen", "off", "--grpc-listen", "off"]);
        // All clients have the same address here.
        command.args(["--proxy-max-connections", "15000"]);
        command.args(["--proxy-max-connections-per-source", "15000"]);
        command.args(self.arguments);
        Ok(command)
    }

    fn routes(&self) -> String {
        let servers: Vec<String> = self.upstreams.iter().map(|at| format!("http://{at}")).collect();
        format!("groups:\n  servers:\n    servers: [{}]\n{}", servers.join(", "), self.group)
    }

    /// Starts it, and waits until it passes on requests for this path. They must not be limited.
    pub(crate) async fn start(&self, name: &str, path: &str) -> Result<Process, String> {
        let with_name = |error: String| format!("tidegate: {error}");
        let process = Process::spawn(name, |address, folder| self.command(address, folder));
        let mut process = process.map_err(|error| with_name(error.to_string()))?;
        let answering = process.wait_until_answering(async |at| answered(at, path).await).await;
        answering.map_err(with_name)?;
        Ok(process)
    }
}

/// Starts an upstream server that gives every request the same answer (`lab bare`).
pub(crate) async fn upstream(name: &str) -> Result<Process, String> {
    let process = Process::spawn(name, |address, _| {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bare", "--listen", &address.to_string()]);
        Ok(command)
    });
    let mut process = process.map_err(|error| format!("{name}: {error}"))?;
    process.wait_until_answering(async |at| answered(at, "/").await).await?;
    Ok(process)
}

async fn answered(address: SocketAddr, path: &str) -> Result<(), String> {
    let mut connection = HttpConnection::open(address).await?;
    let answer = connection.exchange(get(path).of(|| 0)).await?;
    let right = answer.status == 200;
    if right { Ok(()) } else { Err(format!("answered {} to a GET of {path}", answer.status)) }
}
