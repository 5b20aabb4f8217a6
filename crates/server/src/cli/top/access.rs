//! Where the admin listener is, and the token for it.
//!
//! A server that runs on this machine has its tokens in its data directory. So for an address on loopback the token is found without
//! a flag: in the directories in which servers are usually started. Tokens are never sent to another machine unless their file is
//! named.

use crate::cli::client::{ApiClient, ApiRequest};
use crate::files;
use clap::Args;
use http::{StatusCode, Uri};
use serde_json::Value;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// The flags that say which server is meant.
#[derive(Args)]
pub(crate) struct AdminAccess {
    /// Admin listener of the server.
    #[arg(long = "admin", value_name = "URL", default_value = "http://127.0.0.1:8082")]
    url: Uri,
    /// CA bundle (PEM) used to verify the certificate of an https server.
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// File with the token. Without it, the token of a server on this machine is found by itself.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Data directory of the server, which has the tokens.
    #[arg(long, value_name = "DIR", conflicts_with = "token_file")]
    data_dir: Option<PathBuf>,
}

/// A server that accepts a token.
pub(crate) struct AdminSession {
    client: ApiClient,
}

/// The tokens in a data directory, the one that may do no more than needed first.
const TOKENS: [&str; 2] = ["reader-token", "operator-token"];
/// The largest token file.
const MOST_BYTES: u64 = 4 * 1024;
/// Data directories of servers that were started by hand, by `make run`, and by the Debian package.
const USUAL: [&str; 3] = ["tidegate-data", "target/run", "/var/lib/tidegate"];
const VARIABLE: &str = "TIDEGATE_DATA_DIR";

impl AdminAccess {
    /// Finds a token that the server accepts.
    pub(crate) fn connect(&self) -> io::Result<AdminSession> {
        let client = ApiClient::new(&self.url, self.cacert.as_deref());
        let mut refused = None;
        for token in self.tokens()? {
            let client = client.clone().with_token(&token)?;
            let response = client.send(&ApiRequest::get("/admin/v1/control"))?;
            match response.status {
                StatusCode::OK => return Ok(AdminSession { client }),
                StatusCode::UNAUTHORIZED => refused = Some(client.refused(&response)),
                _ => return Err(client.refused(&response)),
            }
        }
        let why = refused.unwrap_or_else(|| io::Error::other("there is no token"));
        Err(io::Error::other(format!("{why}. Give the right one with --token-file")))
    }

    /// The tokens to try, the most likely first.
    fn tokens(&self) -> io::Result<Vec<String>> {
        if let Some(path) = &self.token_file {
            let token =
                read(path).map_err(|error| crate::cli::explained(&path.display(), &error))?;
            return Ok(vec![token]);
        }
        if !self.is_near() {
            let host = self.url.host().unwrap_or_default();
            return Err(io::Error::other(format!(
                "{host} is another machine; name the file of its token with --token-file"
            )));
        }
        let (mut tokens, mut unreadable) = (Vec::new(), Vec::new());
        for path in self.folders().iter().flat_map(|folder| TOKENS.map(|name| folder.join(name))) {
            match read(&path) {
                Ok(token) => tokens.push(token),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => unreadable.push(format!("{}: {error}", path.display())),
            }
        }
        if tokens.is_empty() { Err(self.nothing_found(&unreadable)) } else { Ok(tokens) }
    }

    fn nothing_found(&self, unreadable: &[String]) -> io::Error {
        if !unreadable.is_empty() {
            let files = unreadable.join("; ");
            return io::Error::other(format!("{files}; run this as the user of the server"));
        }
        let folders = self.folders().into_iter().map(|folder| folder.display().to_string());
        let folders = folders.collect::<Vec<_>>().join(", ");
        io::Error::other(format!(
            "no token was found in {folders}; name the data directory of the server with --data-dir, or the file with --token-file"
        ))
    }

    /// Where data directories may be.
    fn folders(&self) -> Vec<PathBuf> {
        if let Some(folder) = &self.data_dir {
            return vec![folder.clone()];
        }
        let variable = std::env::var_os(VARIABLE).map(PathBuf::from);
        variable.into_iter().chain(USUAL.map(PathBuf::from)).collect()
    }

    /// Whether the server runs on this machine.
    fn is_near(&self) -> bool {
        let host = self.url.host().unwrap_or_default();
        let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }
}

fn read(path: &Path) -> io::Result<String> {
    let bytes = files::read_regular(path, MOST_BYTES)?;
    let text = String::from_utf8(bytes).map_err(|_| io::Error::other("it is not valid UTF-8"))?;
    Ok(text.trim().to_owned())
}

impl AdminSession {
    /// The body of the answer to a `GET`.
    pub(crate) fn get(&self, path: &str) -> io::Result<Value> {
        let response = self.client.send(&ApiRequest::get(path))?;
        let body = response.json().filter(|_| response.status == StatusCode::OK);
        body.ok_or_else(|| self.client.refused(&response))
    }
}
