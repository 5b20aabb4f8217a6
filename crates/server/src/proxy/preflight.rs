//! Preflight requests: a browser asks whether a page of another origin may send a request, before it sends it.
//!
//! They are exempt from the rules: a browser hides the refusal of one from the page, which then cannot say that it has to wait. But any
//! client can send what looks like one. So they have limits of their own: a rate for each address, and a tenth of the seats.

use super::gate::Proxy;
use super::upstream::Pool;
use crate::backend::Backend;
use crate::net::source;
use crate::web::Answer;
use http::request::Parts;
use std::net::IpAddr;

/// Marks a request over HTTP/2 that has a body, also if its fields do not say so.
#[derive(Clone, Copy)]
pub(super) struct HasBody;

/// Whether a request is a preflight request without a body.
pub(super) fn is_preflight(head: &Parts) -> bool {
    tidegate::http::is_preflight(head) && head.extensions.get::<HasBody>().is_none()
}

impl<S: Backend> Proxy<S> {
    /// Takes from the limit of preflight requests of an address.
    pub(super) async fn take_for_preflight(
        &self,
        pool: &Pool,
        address: IpAddr,
        head: &Parts,
    ) -> Result<(), Answer> {
        let spec = &pool.group.spec;
        let key = format!("preflight {} {}", spec.name, source(address));
        self.take_from(spec.preflight_limit.as_ref(), &key, head).await
    }
}
