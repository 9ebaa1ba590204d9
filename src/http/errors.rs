//! Errors as responses: every one is OpenAI's JSON envelope, whichever layer it comes from.

use actix_web::http::StatusCode;
use actix_web::http::header::{ALLOW, RETRY_AFTER};
use actix_web::{HttpResponse, ResponseError, web};

use super::promise;
use crate::error::ServeError;
use crate::logic::request::Outcome;

/// The response that says `error`.
#[must_use]
pub fn response(error: &ServeError) -> HttpResponse {
    let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut builder = HttpResponse::build(status);
    if let Some(seconds) = error.retry_after() {
        builder.insert_header((RETRY_AFTER, seconds.to_string()));
    }
    if let Some(allow) = error.allow() {
        builder.insert_header((ALLOW, allow));
    }
    let mut response = builder.json(error.to_json());
    if let ServeError::Unpromised(refusal) = error {
        promise::tell(response.headers_mut(), &refusal.answer);
    }
    response
}

impl ResponseError for ServeError {
    fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn error_response(&self) -> HttpResponse {
        response(self)
    }
}

/// What a request that was refused with `error` counts as.
#[must_use]
pub fn outcome(error: &ServeError) -> Outcome {
    match error.status() {
        503 => Outcome::Refused,
        500.. => Outcome::Failed,
        _ => Outcome::Invalid,
    }
}

/// For a path that nothing serves.
pub async fn not_found() -> HttpResponse {
    response(&ServeError::NotFound)
}

/// For a path that is served, by another method.
pub fn only(method: &'static str) -> actix_web::Route {
    web::route()
        .to(move || async move { response(&ServeError::MethodNotAllowed { allow: method }) })
}
