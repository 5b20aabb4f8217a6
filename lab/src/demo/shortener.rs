//! A shard of the URL shortener: a small server that keeps URLs in memory.
//!
//! | request | answer |
//! |---|---|
//! | `POST /createURL`, the code in `x-code`, the long URL as the body | 201 |
//! | `DELETE /deleteURL/{code}` | 204, or 404 |
//! | `GET /{code}` | a redirect to the long URL, or 404 |
//! | `POST /payments/{code}`, `GET /analytics/{code}` | 200 after 50 ms, when one of eight workers is free |
//! | `GET /live` | 200, for the health checks of tidegate |
//!
//! Every answer has the field `x-shard`, so that you can see which shard answered.

use super::unusable;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{delete, get, post};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// What a shard keeps.
#[derive(Clone)]
struct Shard {
    number: usize,
    urls: Arc<Mutex<HashMap<String, String>>>,
    /// The workers for payments and analytics.
    workers: Arc<Semaphore>,
}

/// URLs that a shard keeps. For more it answers 507.
const MOST_URLS: usize = 10_000;
const LONGEST_CODE: usize = 16;
const LONGEST_URL: usize = 2_048;
/// How many requests for payments and analytics a server works on at a time, and how long each takes.
const WORKERS: usize = 8;
const WORK: Duration = Duration::from_millis(50);
const SHARD: HeaderName = HeaderName::from_static("x-shard");

/// Starts a shard. It runs until the runtime ends.
pub(crate) async fn start(number: usize, address: SocketAddr) -> Result<(), String> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|error| {
        unusable(address, &error, "change the servers in docs/demo/routes.yaml")
    })?;
    let service = router(Shard::new(number));
    tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(())
}

fn router(shard: Shard) -> Router {
    Router::new()
        .route("/live", get(async || StatusCode::OK))
        .route("/createURL", post(create))
        .route("/deleteURL/{code}", delete(remove))
        .route("/payments/{code}", post(work))
        .route("/analytics/{code}", get(work))
        .route("/{code}", get(follow))
        .with_state(shard)
}

async fn create(State(shard): State<Shard>, head: HeaderMap, url: String) -> Response {
    let code = head.get("x-code").and_then(|code| code.to_str().ok()).filter(|code| is_code(code));
    let valid = url.starts_with("http") && url.len() <= LONGEST_URL;
    // The URL comes back as a header field, so it must be a valid one.
    let (Some(code), true) = (code, valid && HeaderValue::try_from(url.as_str()).is_ok()) else {
        return shard.answer((StatusCode::BAD_REQUEST, "x-code: a code; body: a URL\n"));
    };
    if shard.urls().len() >= MOST_URLS {
        return shard.answer(StatusCode::INSUFFICIENT_STORAGE);
    }
    shard.urls().insert(code.to_owned(), url);
    shard.answer((StatusCode::CREATED, format!("/{code}\n")))
}

async fn remove(State(shard): State<Shard>, Path(code): Path<String>) -> Response {
    let removed = shard.urls().remove(&code);
    shard.answer(removed.map_or(StatusCode::NOT_FOUND, |_| StatusCode::NO_CONTENT))
}

async fn follow(State(shard): State<Shard>, Path(code): Path<String>) -> Response {
    let url = shard.urls().get(&code).cloned();
    match url {
        Some(url) => shard.answer(Redirect::temporary(&url)),
        None => shard.answer(StatusCode::NOT_FOUND),
    }
}

#[expect(clippy::disallowed_methods, reason = "the work takes real time")]
async fn work(State(shard): State<Shard>) -> Response {
    let worker = shard.workers.acquire().await;
    tokio::time::sleep(WORK).await;
    drop(worker);
    shard.answer(StatusCode::OK)
}

impl Shard {
    fn new(number: usize) -> Self {
        Self { number, urls: Arc::default(), workers: Arc::new(Semaphore::new(WORKERS)) }
    }

    fn answer(&self, answer: impl IntoResponse) -> Response {
        let mut answer = answer.into_response();
        answer.headers_mut().insert(SHARD, HeaderValue::from(self.number));
        answer
    }

    fn urls(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.urls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_code(code: &str) -> bool {
    let plain = code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (1..=LONGEST_CODE).contains(&code.len()) && plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use axum::http::Request;
    use tower::ServiceExt;

    #[tokio::test]
    async fn a_url_is_created_followed_and_deleted() {
        let shard = router(Shard::new(2));
        let ask = async |method: &str, path: &str, code: &str, body: &'static str| {
            let request = Request::builder().method(method).uri(path).header("x-code", code);
            let answer = shard.clone().oneshot(request.body(Body::from(body)).unwrap());
            let answer = answer.await.unwrap();
            let place =
                answer.headers().get("location").map(|url| url.to_str().unwrap().to_owned());
            assert_eq!(answer.headers()["x-shard"], "2");
            (answer.status().as_u16(), place)
        };
        let url = "https://example.com/long";
        assert_eq!(ask("GET", "/x7", "", "").await, (404, None));
        assert_eq!(ask("POST", "/createURL", "x7", url).await, (201, None));
        assert_eq!(ask("GET", "/x7", "", "").await, (307, Some(url.to_owned())));
        assert_eq!(ask("DELETE", "/deleteURL/x7", "", "").await, (204, None));
        assert_eq!(ask("DELETE", "/deleteURL/x7", "", "").await, (404, None));
        for (code, url) in [("", url), ("a/b", url), ("x7", ""), ("x7", "http://\n")] {
            assert_eq!(ask("POST", "/createURL", code, url).await.0, 400, "{code} {url}");
        }
    }
}
