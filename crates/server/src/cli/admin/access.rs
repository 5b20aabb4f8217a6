//! Where the admin listener is, and the token for it.
//!
//! A server that runs on this machine has its tokens in its data directory. So for an address on loopback the token is found without
//! a flag: in the directories in which servers are usually started. Several of them may have tokens, of which the server knows one; the
//! others are tried until it accepts one. Tokens are never sent to another machine unless their file is named.

use crate::cli::client::{ApiClient, ApiRequest, ApiResponse};
use crate::files;
use crate::front::admin::AdminRole;
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
    #[arg(
        long = "admin",
        value_name = "URL",
        default_value = "http://127.0.0.1:8082",
        global = true
    )]
    url: Uri,
    /// CA bundle (PEM) used to verify the certificate of an https server.
    #[arg(long, value_name = "FILE", global = true)]
    cacert: Option<PathBuf>,
    /// File with the token. Without it, the token of a server on this machine is found by itself.
    #[arg(long, value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,
    /// Data directory of the server, which has the tokens.
    #[arg(long, value_name = "DIR", global = true, conflicts_with = "token_file")]
    data_dir: Option<PathBuf>,
}

/// A server that accepts a token.
pub(crate) struct AdminSession {
    client: ApiClient,
    pub(crate) token: String,
    /// `reader` or `operator`.
    pub(crate) role: String,
}

/// The names of the tokens in a data directory.
const OPERATOR: &str = "operator-token";
const READER: &str = "reader-token";
/// The largest token file.
const MOST_BYTES: u64 = 4 * 1024;
/// Data directories of servers that were started by hand, by `make run`, and by the Debian package.
const USUAL: [&str; 3] = ["tidegate-data", "target/run", "/var/lib/tidegate"];
const VARIABLE: &str = "TIDEGATE_DATA_DIR";

impl AdminAccess {
    /// Finds a token that the server accepts. `role`: whose token is enough.
    pub(crate) fn connect(&self, role: AdminRole) -> io::Result<AdminSession> {
        let client = ApiClient::new(&self.url, self.cacert.as_deref());
        let mut refused = None;
        for token in self.tokens(role)? {
            let client = client.clone().with_token(&token)?;
            let response = client.send(&ApiRequest::get("/admin/v1/whoami"))?;
            match (response.status, response.json()) {
                (StatusCode::OK, Some(body)) => {
                    let role = body.get("role").and_then(Value::as_str).unwrap_or_default();
                    return Ok(AdminSession { role: role.to_owned(), client, token });
                }
                (StatusCode::UNAUTHORIZED, _) => refused = Some(response),
                _ => return Err(client.refused(&response)),
            }
        }
        Err(refused.map_or_else(
            || io::Error::other("there is no token"),
            |response| {
                let error = client.refused(&response);
                io::Error::other(format!("{error}. Give the right one with --token-file"))
            },
        ))
    }

    /// The tokens to try, the most likely first.
    fn tokens(&self, role: AdminRole) -> io::Result<Vec<String>> {
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
        for folder in self.folders() {
            for name in names(role) {
                let path = folder.join(name);
                match read(&path) {
                    Ok(token) => tokens.push(token),
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => unreadable.push(format!("{}: {error}", path.display())),
                }
            }
        }
        tokens.dedup();
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
            "no token was found; looked for `{OPERATOR}` and `{READER}` in {folders}. Name the data directory of the server with --data-dir, or the file with --token-file"
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

/// The files of the tokens for a role, the one that may do no more than needed first.
const fn names(role: AdminRole) -> [&'static str; 2] {
    match role {
        AdminRole::Reader => [READER, OPERATOR],
        AdminRole::Operator => [OPERATOR, READER],
    }
}

fn read(path: &Path) -> io::Result<String> {
    let bytes = files::read_regular(path, MOST_BYTES)?;
    let text = String::from_utf8(bytes).map_err(|_| io::Error::other("it is not valid UTF-8"))?;
    Ok(text.trim().to_owned())
}

// === impl AdminSession ===

impl AdminSession {
    pub(crate) fn send(&self, request: &ApiRequest) -> io::Result<ApiResponse> {
        self.client.send(request)
    }

    /// The body of the answer to a `GET`.
    pub(crate) fn get(&self, path: &str) -> io::Result<Value> {
        super::accepted(self, &self.send(&ApiRequest::get(path))?)
    }

    pub(crate) const fn server(&self) -> &Uri {
        self.client.server()
    }

    pub(crate) fn refused(&self, response: &ApiResponse) -> io::Error {
        self.client.refused(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(url: &'static str) -> AdminAccess {
        let url = Uri::from_static(url);
        AdminAccess { url, cacert: None, token_file: None, data_dir: None }
    }

    #[test]
    fn tokens_are_looked_for_only_on_this_machine() {
        for (url, near) in [
            ("http://127.0.0.1:8082", true),
            ("https://localhost", true),
            ("http://[::1]:8082", true),
            ("http://192.0.2.1:8082", false),
            ("http://localhost.example:8082", false),
            ("http://127.0.0.1.example", false),
        ] {
            assert_eq!(access(url).is_near(), near, "{url}");
        }
        let error = access("http://192.0.2.1").connect(AdminRole::Reader).err().unwrap();
        assert!(error.to_string().contains("--token-file"), "{error}");
    }
}
