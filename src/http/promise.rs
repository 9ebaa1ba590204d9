//! Promises as headers and JSON.

use actix_web::HttpResponse;
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::logic::conformal::policy::Verdict;
use crate::logic::conformal::receipt::{Answer, Receipt};

/// Headers of any response to a request that was decided on.
pub fn tell(headers: &mut HeaderMap, answer: &Answer) {
    let decision = &answer.decision;
    if let Some(bound) = answer.bound_ms() {
        headers.insert(name("x-cadenced-bound-ms"), HeaderValue::from(bound));
    }
    headers.insert(
        name("x-cadenced-verdict"),
        HeaderValue::from_static(decision.verdict.label()),
    );
    if decision.verdict == Verdict::BestEffort {
        return;
    }
    if let Ok(confidence) = HeaderValue::try_from(decision.confidence().to_string()) {
        headers.insert(name("x-cadenced-confidence"), confidence);
    }
}

/// The receipt of a reply that was sent whole.
pub fn hand_over(response: &mut HttpResponse, receipt: &Receipt) {
    let headers = response.headers_mut();
    headers.insert(
        name("x-cadenced-actual-ms"),
        HeaderValue::from(receipt.actual_ms),
    );
    if let Some(promised) = receipt.promised_ms {
        headers.insert(name("x-cadenced-promised-ms"), HeaderValue::from(promised));
    }
    if receipt.demoted {
        headers.insert(name("x-cadenced-demoted"), HeaderValue::from_static("true"));
    }
    if let Some(kept) = receipt.kept {
        let word = if kept { "true" } else { "false" };
        headers.insert(name("x-cadenced-kept"), HeaderValue::from_static(word));
    }
}

fn name(name: &'static str) -> HeaderName {
    HeaderName::from_static(name)
}
