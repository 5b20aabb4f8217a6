//! Interim answers of an upstream server: `102 Processing` and `103 Early Hints`. They are passed on to HTTP/1.1 clients, and
//! counted, because a server could send them for ever.

use super::headers;
use http::{HeaderMap, Request, StatusCode, header};
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

/// The interim answers to one request.
#[derive(Clone, Default)]
pub(crate) struct InterimAnswers(Arc<Mutex<Received>>);

#[derive(Default)]
struct Received {
    count: usize,
    /// The interim answers that the client has not got yet.
    waiting: Vec<(StatusCode, HeaderMap)>,
}

/// The most interim answers to one request. A page has one or two.
const MOST: usize = 16;

impl InterimAnswers {
    /// Makes hyper report the interim answers to this request.
    pub(super) fn watch<B>(&self, request: &mut Request<B>) {
        let answers = self.clone();
        hyper::ext::on_informational(request, move |answer| {
            answers.add(answer.status(), answer.headers());
        });
    }

    fn add(&self, status: StatusCode, fields: &HeaderMap) {
        let mut received = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        received.count = received.count.saturating_add(1);
        // `100 Continue` is between us and the server: the client has got ours.
        if status != StatusCode::CONTINUE && received.count <= MOST {
            let mut fields = fields.clone();
            headers::to_client(&mut fields, None);
            // It has no body. A client that believed in one would take the answer for it.
            fields.remove(header::CONTENT_LENGTH);
            received.waiting.push((status, fields));
        }
    }

    /// Whether the server has sent more than it may.
    pub(super) fn are_too_many(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).count > MOST
    }

    /// Takes the interim answers that the client has not got yet.
    pub(super) fn take(&self) -> Vec<(StatusCode, HeaderMap)> {
        let mut received = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        mem::take(&mut received.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn hints_are_passed_on_without_what_concerns_the_connection_only() {
        let answers = InterimAnswers::default();
        let mut fields = HeaderMap::new();
        fields.insert("link", HeaderValue::from_static("</style.css>; rel=preload"));
        fields.insert("connection", HeaderValue::from_static("close"));
        fields.insert("content-length", HeaderValue::from_static("9"));
        fields.insert("tidegate-outcome", HeaderValue::from_static("failure"));
        answers.add(StatusCode::CONTINUE, &fields);
        answers.add(StatusCode::EARLY_HINTS, &fields);
        let taken = answers.take();
        let [(status, fields)] = taken.as_slice() else { panic!("{taken:?}") };
        assert_eq!((*status, fields.len()), (StatusCode::EARLY_HINTS, 1));
        assert!(fields.contains_key("link") && answers.take().is_empty());
    }

    #[test]
    fn a_server_cannot_send_them_for_ever() {
        let answers = InterimAnswers::default();
        let fields = HeaderMap::new();
        (0..MOST).for_each(|_| answers.add(StatusCode::PROCESSING, &fields));
        assert!(!answers.are_too_many());
        answers.add(StatusCode::PROCESSING, &fields);
        assert!(answers.are_too_many() && answers.take().len() == MOST);
    }
}
