//! The HTTP client of the command line: sends one request to a server of tidegate, over TCP or TLS, and returns the answer.
//!
//! It opens a connection for each request. All that can take long has a bound: the time of the whole exchange, and the bytes of
//! the answer.

use crate::net::tls;
use bytes::Bytes;
use http::uri::Authority;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidegate_policy::printable;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// How long to wait for the answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The most that is read of an answer. The largest is the control document with ten thousand overrides.
const MOST_BYTES: usize = 16 * 1024 * 1024;

/// A server, and how to reach it.
#[derive(Clone)]
pub(crate) struct ApiClient {
    server: Uri,
    /// CA bundle (PEM) used to verify the certificate of an https server.
    cacert: Option<PathBuf>,
    /// The `Authorization` header of every request.
    authorization: Option<HeaderValue>,
}

/// One request.
pub(crate) struct ApiRequest {
    method: Method,
    path: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Vec<u8>,
}

/// The answer of a server.
#[derive(Debug)]
pub(crate) struct ApiResponse {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

// === impl ApiRequest ===

impl ApiRequest {
    /// A `GET` of a path, with its query.
    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self { method: Method::GET, path: path.into(), headers: vec![], body: vec![] }
    }

    /// A request with a JSON body.
    pub(crate) fn json(method: Method, path: impl Into<String>, body: &Value) -> Self {
        Self { method, ..Self::get(path) }.with_body("application/json", body.to_string())
    }

    /// A request without a body.
    pub(crate) fn of(method: Method, path: impl Into<String>) -> Self {
        Self { method, ..Self::get(path) }
    }

    pub(crate) fn with_body(mut self, kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        self.headers.push((header::CONTENT_TYPE, HeaderValue::from_static(kind)));
        Self { body: body.into(), ..self }
    }

    fn build(&self, authority: &Authority) -> io::Result<Request<Full<Bytes>>> {
        let mut request = Request::builder()
            .method(self.method.clone())
            .uri(&self.path)
            .header(header::HOST, authority.as_str());
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request.body(Full::new(Bytes::from(self.body.clone()))).map_err(io::Error::other)
    }
}

// === impl ApiResponse ===

impl ApiResponse {
    /// The body, if it is JSON.
    pub(crate) fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }
}

// === impl ApiClient ===

impl ApiClient {
    pub(crate) fn new(server: &Uri, cacert: Option<&Path>) -> Self {
        Self { server: server.clone(), cacert: cacert.map(Path::to_owned), authorization: None }
    }

    /// Shows this token with every request.
    pub(crate) fn with_token(self, token: &str) -> io::Result<Self> {
        let mut value = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|_| io::Error::other("the token has characters that no token has"))?;
        value.set_sensitive(true);
        Ok(Self { authorization: Some(value), ..self })
    }

    /// The URL of the server.
    pub(crate) const fn server(&self) -> &Uri {
        &self.server
    }

    /// Sends a request and waits for the answer.
    pub(crate) fn send(&self, request: &ApiRequest) -> io::Result<ApiResponse> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.ask(request))
    }

    /// Sends a request and awaits the answer, for a caller that has a runtime.
    pub(crate) async fn ask(&self, request: &ApiRequest) -> io::Result<ApiResponse> {
        match tokio::time::timeout(TIMEOUT, self.connect_and_ask(request)).await {
            Ok(answer) => answer,
            Err(_) => Err(self.unanswered("no answer within 10 s")),
        }
    }

    async fn connect_and_ask(&self, request: &ApiRequest) -> io::Result<ApiResponse> {
        let server = &self.server;
        let (secure, authority) = scheme_and_host(server).ok_or_else(|| {
            let text = format!(
                "`{server}` is not a valid server URL; write it like `http://127.0.0.1:8080`"
            );
            io::Error::new(io::ErrorKind::InvalidInput, text)
        })?;
        let host = authority.host().trim_matches(['[', ']']);
        let port = authority.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let stream = TcpStream::connect((host, port))
            .await
            .map_err(|error| self.unanswered(&format!("{error}; is it running?")))?;
        if !secure {
            return self.exchange(stream, authority, request).await;
        }
        let stream = self.under_tls(stream, host).await.map_err(|error| {
            let why = tls::why_untrusted(&error).unwrap_or_else(|| error.to_string());
            self.unanswered(&why)
        })?;
        self.exchange(stream, authority, request).await
    }

    /// Performs the TLS handshake and verifies that the server's certificate is valid for `host`.
    async fn under_tls(&self, stream: TcpStream, host: &str) -> io::Result<TlsStream<TcpStream>> {
        let Some(path) = &self.cacert else {
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
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        authority: &Authority,
        request: &ApiRequest,
    ) -> io::Result<ApiResponse> {
        let failed = |error: hyper::Error| self.unanswered(&error.to_string());
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        let mut request = request.build(authority)?;
        if let Some(value) = &self.authorization {
            request.headers_mut().insert(header::AUTHORIZATION, value.clone());
        }
        // Runs until the answer has arrived; how the connection ends after that does not matter.
        tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(failed)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MOST_BYTES).collect().await;
        let body = body.map_err(|error| self.unanswered(&error.to_string()))?.to_bytes();
        Ok(ApiResponse { status, body })
    }

    /// The error for an answer that says that the request failed: its status, and its `pointer` and `detail` if it has them.
    pub(crate) fn refused(&self, response: &ApiResponse) -> io::Error {
        let body = response.json().unwrap_or_default();
        let field = |name: &str| body.get(name).and_then(Value::as_str);
        let detail = printable(field("detail").unwrap_or("this is not a tidegate server"));
        let place = field("pointer").map(|place| format!("{}: ", printable(place)));
        self.unanswered(&format!("{}: {}{detail}", response.status, place.unwrap_or_default()))
    }

    fn unanswered(&self, why: &str) -> io::Error {
        io::Error::other(format!("{}: {why}", self.server))
    }
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
