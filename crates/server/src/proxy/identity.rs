//! Verified identity: attributes that a client cannot forge, because they come from a signed token (`user: jwt:sub`) or from an
//! auth server (`user: auth:x-user`, see [`super::auth_request`]).
//!
//! ```text
//!   Authorization: Bearer eyJ… ──► cache ──► key by kid and algorithm ──► signature, iss, aud, exp, nbf ──► claims
//!                     │ absent                                                 │ wrong
//!                     └ the attribute is absent                                └ 401, after the other limits were taken
//! ```
//!
//! A token is looked at only if the policy names a claim. A request whose token is not valid is decided without the attributes
//! of that token, and then answered with 401: it takes nothing from the limits of the user whom it names, and it does not escape
//! the limits of its address.
//!
//! The time is that of the server's clock. The library that verifies would read the clock itself, so expiry is checked here.

mod claims;
mod key_file;
mod keys;
mod signatures;
mod token_cache;

pub(crate) use keys::{LiveKeys, TokenSettings};

use super::auth_request::AuthAnswer;
use super::preflight::is_preflight;
use crate::web::Answer;
use claims::{Claims, TokenError};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use sha2::{Digest, Sha256};
use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tidegate::{Clock, VerifiedSource};
use token_cache::TokenCache;

/// Verifies tokens on one worker.
pub(crate) struct TokenVerifier {
    keys: Arc<LiveKeys>,
    clock: Clock,
    /// Not shared with other workers, so it needs no lock. Never borrowed across an await.
    cache: RefCell<TokenCache>,
}

/// What the token of one request says. The token is verified when its first claim is asked for.
pub(super) struct RequestIdentity<'r> {
    verifier: Option<&'r TokenVerifier>,
    head: &'r Parts,
    token: OnceCell<Result<Option<Rc<Claims>>, TokenError>>,
    /// What the auth server said.
    auth: AuthAnswer,
    /// The answer, if a value cannot be an attribute.
    unusable: OnceCell<Answer>,
}

/// Bytes of a token. Common tokens have 1 to 2 KiB; a longer one would only cost time.
const LONGEST_TOKEN: usize = 8 * 1024;

// === impl TokenVerifier ===

impl TokenVerifier {
    pub(crate) fn new(keys: Arc<LiveKeys>, clock: Clock) -> Self {
        Self { keys, clock, cache: RefCell::default() }
    }

    /// The claims of the token of a request; `None` if it has no token.
    fn identify(&self, headers: &HeaderMap) -> Result<Option<Rc<Claims>>, TokenError> {
        bearer(headers)?.map(|token| self.verify(token)).transpose()
    }

    fn verify(&self, token: &str) -> Result<Rc<Claims>, TokenError> {
        if token.len() > LONGEST_TOKEN {
            return Err(TokenError::TooLong);
        }
        let now = Duration::from_nanos(self.clock.now().calendar.as_nanos()).as_secs();
        let (keys, digest) = (self.keys.load(), Sha256::digest(token).into());
        let mut cache = self.cache.borrow_mut();
        if let Some(claims) = cache.get(&keys, &digest) {
            claims.are_valid_at(now)?;
            return Ok(claims);
        }
        let claims = Rc::new(keys.verify(token)?);
        claims.are_valid_at(now)?;
        // Tokens that are not valid are not remembered: otherwise a client could fill the cache with them.
        cache.insert(digest, Rc::clone(&claims));
        Ok(claims)
    }
}

/// The token in `Authorization: Bearer`; `None` for other schemes.
///
/// Servers disagree on where the scheme ends: passport-jwt splits at `\s+`, Python's `split()` also at a no-break space. So whatever
/// begins with `bearer`, behind white space of any kind, must be exactly one space or more and a token. Otherwise a client could
/// show a token to the upstream server, and none to the limits.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, TokenError> {
    let mut fields = headers.get_all(header::AUTHORIZATION).iter();
    let Some(field) = fields.next() else { return Ok(None) };
    // The upstream server may read the other one.
    if fields.next().is_some() {
        return Err(TokenError::Repeated);
    }
    let field = field.as_bytes().trim_ascii();
    // White space beyond ASCII has no visible ASCII characters in any encoding.
    let scheme = field.iter().position(u8::is_ascii_graphic).and_then(|start| field.get(start..));
    let is_bearer = |scheme: &[u8]| scheme.eq_ignore_ascii_case(b"bearer");
    if !scheme.and_then(|scheme| scheme.get(..6)).is_some_and(is_bearer) {
        return Ok(None);
    }
    let rest = field.split_at_checked(6).filter(|(scheme, _)| is_bearer(scheme));
    let rest = rest.and_then(|(_, rest)| str::from_utf8(rest).ok()).unwrap_or_default();
    let token = rest.trim_start_matches(' ');
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    if token.is_empty() || token.len() == rest.len() || !token.bytes().all(is_token) {
        return Err(TokenError::Malformed);
    }
    Ok(Some(token))
}

// === impl RequestIdentity ===

impl<'r> RequestIdentity<'r> {
    pub(super) fn of(
        verifier: Option<&'r TokenVerifier>,
        head: &'r Parts,
        auth: AuthAnswer,
    ) -> Self {
        Self { verifier, head, token: OnceCell::new(), auth, unusable: OnceCell::new() }
    }

    /// The value of a source that the policy names; `None` if the request has none, or its token is not valid.
    pub(super) fn value(&self, source: VerifiedSource<'_>) -> Option<String> {
        let value = match source {
            VerifiedSource::Jwt(name) => {
                let claims = self.token.get_or_init(|| self.identify()).as_ref().ok()?.as_ref()?;
                let value = claims.get(name).map(|value| value.map(str::to_owned));
                value.map_err(|error| unauthorized(&error))
            }
            VerifiedSource::Auth(name) => self.auth.field(name),
        };
        value.unwrap_or_else(|answer| {
            let _ = self.unusable.set(answer);
            None
        })
    }

    fn identify(&self) -> Result<Option<Rc<Claims>>, TokenError> {
        // Preflights of browsers have no token, and are not limited. A token in one is not worth the time.
        if is_preflight(self.head) {
            return Ok(None);
        }
        self.verifier.ok_or(TokenError::NoKeys)?.identify(&self.head.headers)
    }

    /// Refuses the request if its token is not valid, or the auth server refuses it. Returns the fields of the auth server.
    pub(super) fn check(self) -> Result<HeaderMap, Answer> {
        let token = self.token.into_inner().unwrap_or(Ok(None));
        match (self.auth, token, self.unusable.into_inner()) {
            (AuthAnswer::Refused(answer), _, _) | (_, Ok(_), Some(answer)) => Err(answer),
            (_, Err(error), _) => Err(unauthorized(&error)),
            (AuthAnswer::Passed(said), Ok(_), None) => Ok(said),
            (AuthAnswer::Nothing, Ok(_), None) => Ok(HeaderMap::new()),
        }
    }
}

/// The answer to a request whose token is not valid, as RFC 6750 describes it.
fn unauthorized(error: &TokenError) -> Answer {
    const INVALID: HeaderValue = HeaderValue::from_static("Bearer error=\"invalid_token\"");
    let detail = format!("the bearer token is not valid: {error}");
    Answer::problem(StatusCode::UNAUTHORIZED, &detail).with(header::WWW_AUTHENTICATE, INVALID)
}

#[cfg(test)]
mod tests;
