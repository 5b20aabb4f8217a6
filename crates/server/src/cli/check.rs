//! `tidegate check`: asks a running server, or evaluates a policy file, whether a request may pass.

use super::policy::{attributes, source::PolicyFile};
use super::table::{self, Column};
use super::{duration, style};
use crate::front::http::VerdictText;
use crate::net::tls;
use bytes::Bytes;
use clap::Args;
use http::uri::Authority;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tidegate::{Check, Clock, Limiter, Memory};
use tidegate_policy::printable;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

#[derive(Args)]
pub(crate) struct CheckOptions {
    /// Attributes of the request, such as `ip=203.0.113.7 method=POST path=/urls user=alice`.
    #[arg(value_name = "ATTRIBUTE=VALUE")]
    attributes: Vec<String>,
    /// The server to ask.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    server: Uri,
    /// CA bundle (PEM) used to verify the certificate of an https server.
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// Evaluates this policy file instead, with all counters at zero.
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    policy: Option<PathBuf>,
    /// The cost of the request.
    #[arg(long, default_value_t = 1)]
    cost: u64,
    /// Asks without counting.
    #[arg(long)]
    peek: bool,
    /// Prints the verdict as JSON.
    #[arg(long)]
    json: bool,
}

/// The exit code for a request that may not pass.
const REFUSED: u8 = 1;
/// How long to wait for the server.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The most that is read of an answer. A verdict has a few hundred bytes.
const MOST_BYTES: usize = 1024 * 1024;

/// The exit code is 0 if the request may pass, 1 if it may not, and 2 on error.
pub(crate) fn run(options: &CheckOptions, out: &mut impl Write) -> io::Result<ExitCode> {
    // Invalid attributes are reported before the server is asked.
    attributes(&options.attributes)?;
    let verdict = match &options.policy {
        Some(path) => match of_policy(path, options, out)? {
            Some(verdict) => verdict,
            None => return Ok(ExitCode::from(2)),
        },
        None => of_server(options)?,
    };
    if options.json {
        writeln!(out, "{}", printable(&verdict.to_string()))?;
    } else {
        show(&verdict, out)?;
    }
    let allowed = verdict.get("allowed").and_then(Value::as_bool).unwrap_or(false);
    Ok(if allowed { ExitCode::SUCCESS } else { ExitCode::from(REFUSED) })
}

// === a policy ===

/// The verdict of a limiter whose counters are at zero; `None` if the policy has errors, which are printed.
fn of_policy(
    path: &Path,
    options: &CheckOptions,
    out: &mut impl Write,
) -> io::Result<Option<Value>> {
    let Some(policy) = PolicyFile::read(path)?.parse(out)? else { return Ok(None) };
    let clock = Clock::system();
    let store = Memory::new(clock.clone());
    let limiter = Limiter::new(policy, store, tidegate::Secret::random()?, clock)
        .map_err(io::Error::other)?;
    let attributes = attributes(&options.attributes)?;
    let check = Check::new(&attributes).cost(options.cost);
    let verdict = limiter.check_now(&check).map_err(io::Error::other)?;
    let mut text = Vec::new();
    VerdictText::new(&verdict, &limiter).write(&mut text);
    Ok(Some(serde_json::from_slice(&text)?))
}

// === a server ===

fn of_server(options: &CheckOptions) -> io::Result<Value> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let asked = async { tokio::time::timeout(TIMEOUT, ask(options)).await };
    match runtime.block_on(asked) {
        Ok(answer) => answer,
        Err(_) => Err(unanswered(&options.server, "no answer within 10 s")),
    }
}

async fn ask(options: &CheckOptions) -> io::Result<Value> {
    let server = &options.server;
    let (secure, authority) = scheme_and_host(server).ok_or_else(|| {
        let text =
            format!("`{server}` is not a valid server URL; write it like `http://127.0.0.1:8080`");
        io::Error::new(io::ErrorKind::InvalidInput, text)
    })?;
    let host = authority.host().trim_matches(['[', ']']);
    let port = authority.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let stream = TcpStream::connect((host, port))
        .await
        .map_err(|error| unanswered(server, &format!("{error}; is it running?")))?;
    if !secure {
        return exchange(stream, authority, options).await;
    }
    let stream = under_tls(stream, host, options).await;
    let stream = stream.map_err(|error| {
        let why = tls::why_untrusted(&error).unwrap_or_else(|| error.to_string());
        unanswered(server, &why)
    })?;
    exchange(stream, authority, options).await
}

/// Whether the scheme of a URL is https, and its host and port. `None` if it is not an HTTP URL.
fn scheme_and_host(server: &Uri) -> Option<(bool, &Authority)> {
    let secure = match server.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return None,
    };
    Some((secure, server.authority()?))
}

/// Performs the TLS handshake and verifies that the server's certificate is valid for `host`.
async fn under_tls(
    stream: TcpStream,
    host: &str,
    options: &CheckOptions,
) -> io::Result<TlsStream<TcpStream>> {
    let Some(path) = &options.cacert else {
        return Err(io::Error::other(
            "https needs --cacert FILE, a CA bundle that verifies the server's certificate",
        ));
    };
    let roots = tls::authorities(path)
        .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
    let config = ClientConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    authority: &Authority,
    options: &CheckOptions,
) -> io::Result<Value> {
    let server = &options.server;
    let failed = |error: hyper::Error| unanswered(server, &error.to_string());
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let path = if options.peek { "/v1/peek" } else { "/v1/check" };
    let request = Request::post(path)
        .header(header::HOST, authority.as_str())
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body(options)?)))
        .map_err(io::Error::other)?;
    // Runs until the answer has arrived; how the connection ends after that does not matter.
    tokio::spawn(connection);
    let response = sender.send_request(request).await.map_err(failed)?;
    let status = response.status();
    let bytes = Limited::new(response.into_body(), MOST_BYTES).collect().await;
    let bytes = bytes.map_err(|error| unanswered(server, &error.to_string()))?.to_bytes();
    read(server, status, &bytes)
}

fn body(options: &CheckOptions) -> io::Result<String> {
    let attributes = attributes(&options.attributes)?;
    let pairs: serde_json::Map<String, Value> =
        attributes.iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
    Ok(json!({ "attributes": pairs, "cost": options.cost }).to_string())
}

fn read(server: &Uri, status: StatusCode, bytes: &[u8]) -> io::Result<Value> {
    let body: Value = serde_json::from_slice(bytes).unwrap_or_default();
    if matches!(status, StatusCode::OK | StatusCode::TOO_MANY_REQUESTS)
        && body.get("allowed").is_some()
    {
        return Ok(body);
    }
    let detail =
        body.get("detail").and_then(Value::as_str).unwrap_or("this is not a tidegate server");
    Err(unanswered(server, &format!("{status}: {}", printable(detail))))
}

fn unanswered(server: &Uri, why: &str) -> io::Error {
    io::Error::other(format!("{server}: {why}"))
}

// === showing ===

/// One row for each limit that applies.
const LIMITS: [Column; 6] = [
    Column::Left("rule"),
    Column::Left("limit"),
    Column::Right("left"),
    Column::Left("full again in"),
    Column::Left("algorithm"),
    Column::Left("its answer"),
];

/// Prints a verdict for people: the answer, then a table of the limits that apply.
fn show(verdict: &Value, out: &mut impl Write) -> io::Result<()> {
    let (allowed, refused) = (style::good("allowed"), style::bad("refused"));
    match text(verdict, "outcome").as_str() {
        "allow" => writeln!(out, "{allowed}")?,
        "delay" => {
            let wait = number(verdict, "delay_ms").unwrap_or(0);
            writeln!(out, "{allowed}, after {}", duration::of_millis(wait))?;
        }
        _ => match number(verdict, "retry_after_ms") {
            Some(wait) => writeln!(out, "{refused}; try again in {}", duration::of_millis(wait))?,
            None => writeln!(out, "{refused}; it can never pass")?,
        },
    }
    let limits = verdict.get("limits").and_then(Value::as_array);
    let rows: Vec<_> = limits.into_iter().flatten().map(row).collect();
    if rows.is_empty() {
        return writeln!(out, "  no rule applies to it");
    }
    table::write(LIMITS, &rows, out)
}

fn row(limit: &Value) -> [String; 6] {
    let amount = number(limit, "limit").unwrap_or(0);
    let per = match number(limit, "per_ms") {
        Some(per) => period(&duration::of_millis(per)),
        None if text(limit, "algorithm") == "concurrent" => "at a time".to_owned(),
        None => format!("per {}", text(limit, "window")),
    };
    [
        text(limit, "rule"),
        format!("{amount} {per}"),
        number(limit, "remaining").unwrap_or(0).to_string(),
        number(limit, "reset_ms").map(duration::of_millis).unwrap_or_default(),
        text(limit, "algorithm"),
        answer(limit),
    ]
}

/// A period after an amount: `per s`, `per 15 min`.
fn period(duration: &str) -> String {
    let unit = duration.strip_prefix("1 ").filter(|unit| !unit.contains(' '));
    format!("per {}", unit.unwrap_or(duration))
}

/// What one limit says, unless it lets the request pass now.
fn answer(limit: &Value) -> String {
    let shadow = limit.get("shadow").and_then(Value::as_bool).unwrap_or(false);
    match (text(limit, "outcome").as_str(), shadow) {
        ("deny", false) => "refuses".to_owned(),
        ("deny", true) => "would refuse (shadow)".to_owned(),
        ("delay", _) => "delays".to_owned(),
        _ => String::new(),
    }
}

fn number(value: &Value, name: &str) -> Option<u64> {
    value.get(name).and_then(Value::as_u64)
}

fn text(value: &Value, name: &str) -> String {
    printable(value.get(name).and_then(Value::as_str).unwrap_or_default())
}
