//! The one error a client can see: OpenAI's envelope, the HTTP status and `Retry-After`.
//!
//! Every 4xx and 5xx body is `{"error":{"message","type","param","code"}}` with all four keys, whichever layer refuses,
//! because SDKs parse exactly that. `Retry-After` goes with every 503 and with nothing else: SDKs sleep it literally.
//! No web framework is imported here; the HTTP layer turns this into a response.

use std::borrow::Cow;
use std::fmt::Display;

use serde_json::{Value, json};

use crate::logic::conformal::policy::Verdict;
use crate::logic::conformal::receipt::Refusal;

/// SDKs ignore or misread a `Retry-After` outside this range of whole seconds.
const RETRY_AFTER_S: (u64, u64) = (1, 60);

/// How many characters of a client's text an error message repeats.
const EXCERPT_CHARS: usize = 40;

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ServeError {
    #[error("{message}")]
    InvalidRequest {
        param: Option<String>,
        message: String,
        code: Option<&'static str>,
    },

    #[error(
        "the prompt has {prompt_tokens} tokens, but at most {limit} tokens of context are available to one request"
    )]
    ContextLengthExceeded { prompt_tokens: u32, limit: u32 },

    #[error("the model {} does not exist", excerpt(.model))]
    ModelNotFound { model: String },

    #[error("no such route")]
    NotFound,

    /// `allow` is the value of the `Allow` header.
    #[error("method not allowed; use {allow}")]
    MethodNotAllowed { allow: &'static str },

    #[error("the request was not received in time")]
    RequestTimeout,

    #[error("the request body is larger than the limit of {limit} bytes")]
    BodyTooLarge { limit: usize },

    #[error("Content-Type must be application/json")]
    UnsupportedMediaType,

    /// Ends a stream whose reader fell behind; the status only matters if nothing was sent yet.
    #[error("the client read too slowly and the stream was ended")]
    SlowReader,

    /// `code` is the stable word that clients and dashboards see: `queue_full`, `capacity`, `queue_timeout`.
    /// `retry_after` is in seconds, here and below; any value is fit for use, it is clamped on the way out.
    #[error("the server is overloaded ({code}); retry later")]
    Overloaded {
        retry_after: u64,
        code: &'static str,
    },

    /// No latency bound fits what the request asks for: 422 if waiting would not help, 503 if none does now.
    #[error("{}", unpromised(.0))]
    Unpromised(Box<Refusal>),

    /// A request that yields to others, or was to end with its deadline, had nothing by then.
    #[error("the deadline passed before the reply began; retry later")]
    Expired { retry_after: u64 },

    /// `admission.recheck` without a best-effort lane.
    #[error("what was promised can't be kept any more; retry later")]
    Revoked { retry_after: u64 },

    #[error("the server is shutting down; retry later")]
    Draining { retry_after: u64 },

    #[error("the model is not ready; retry later")]
    NotReady { retry_after: u64 },

    /// The detail is for the log: it may name internals, so [`ServeError::public_message`] leaves it out.
    #[error("engine error: {message}")]
    Engine { message: String },

    #[error("internal error")]
    Internal,
}

impl ServeError {
    /// A 400 about one field. `param` is the field's path, such as `messages[2].content[0]`.
    pub fn invalid(param: impl Display, code: &'static str, message: impl Into<String>) -> Self {
        Self::InvalidRequest {
            param: Some(param.to_string()),
            message: message.into(),
            code: Some(code),
        }
    }

    /// A 400 about the body as a whole.
    pub fn invalid_body(message: impl Into<String>) -> Self {
        Self::InvalidRequest {
            param: None,
            message: message.into(),
            code: Some("invalid_json"),
        }
    }

    pub fn status(&self) -> u16 {
        match self {
            Self::InvalidRequest { .. } | Self::ContextLengthExceeded { .. } => 400,
            Self::ModelNotFound { .. } | Self::NotFound => 404,
            Self::MethodNotAllowed { .. } => 405,
            Self::RequestTimeout | Self::SlowReader => 408,
            Self::BodyTooLarge { .. } => 413,
            Self::UnsupportedMediaType => 415,
            Self::Engine { .. } | Self::Internal => 500,
            Self::Unpromised(refusal) if !refusal.answer.decision.waiting_helps() => 422,
            Self::Overloaded { .. }
            | Self::Unpromised(_)
            | Self::Expired { .. }
            | Self::Revoked { .. }
            | Self::Draining { .. }
            | Self::NotReady { .. } => 503,
        }
    }

    /// OpenAI's `type`.
    pub fn kind(&self) -> &'static str {
        match self.status() {
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// A stable word for programs; never a number, as typed SDKs expect a string or null.
    pub fn code(&self) -> Option<&'static str> {
        Some(match self {
            Self::InvalidRequest { code, .. } => return *code,
            Self::ContextLengthExceeded { .. } => "context_length_exceeded",
            Self::ModelNotFound { .. } => "model_not_found",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed { .. } => "method_not_allowed",
            Self::RequestTimeout => "request_timeout",
            Self::BodyTooLarge { .. } => "body_too_large",
            Self::UnsupportedMediaType => "unsupported_media_type",
            Self::SlowReader => "slow_reader",
            Self::Overloaded { code, .. } => code,
            Self::Unpromised(refusal) => match refusal.answer.decision.verdict {
                Verdict::Infeasible => "slo_infeasible",
                Verdict::Unsupported => "slo_unsupported",
                _ => "slo_overloaded",
            },
            Self::Expired { .. } => "slo_expired",
            Self::Revoked { .. } => "slo_revoked",
            Self::Draining { .. } => "draining",
            Self::NotReady { .. } => "not_ready",
            Self::Engine { .. } => "engine_error",
            Self::Internal => "internal_error",
        })
    }

    pub fn param(&self) -> Option<&str> {
        match self {
            Self::InvalidRequest { param, .. } => param.as_deref(),
            Self::ContextLengthExceeded { .. } => Some("messages"),
            Self::ModelNotFound { .. } => Some("model"),
            Self::Unpromised(_) => Some("slo.e2e_ms"),
            _ => None,
        }
    }

    /// Whole seconds for the `Retry-After` header: some on every 503, none on anything else.
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Unpromised(refusal) => refusal
                .retry_after_s
                .map(|s| u64::from(s).clamp(RETRY_AFTER_S.0, RETRY_AFTER_S.1)),
            Self::Overloaded { retry_after, .. }
            | Self::Expired { retry_after }
            | Self::Revoked { retry_after }
            | Self::Draining { retry_after }
            | Self::NotReady { retry_after } => {
                Some((*retry_after).clamp(RETRY_AFTER_S.0, RETRY_AFTER_S.1))
            }
            _ => None,
        }
    }

    /// The `Allow` header that a 405 owes.
    pub fn allow(&self) -> Option<&'static str> {
        match self {
            Self::MethodNotAllowed { allow } => Some(allow),
            _ => None,
        }
    }

    /// What the client reads. `Display` is for the log and says more.
    pub fn public_message(&self) -> Cow<'static, str> {
        match self {
            Self::Engine { .. } => {
                Cow::Borrowed("the engine failed and the reply could not be completed")
            }
            _ => Cow::Owned(self.to_string()),
        }
    }

    pub fn to_json(&self) -> Value {
        let mut json = json!({ "error": {
            "message": self.public_message(),
            "type": self.kind(),
            "param": self.param(),
            "code": self.code(),
        }});
        if let Self::Unpromised(refusal) = self {
            json["error"]["counter_offer"] = json!({
                "max_tokens": refusal.offer.max_tokens,
                "confidence": refusal.offer.confidence,
                "e2e_ms": refusal.offered_slo_ms(),
            });
        }
        json
    }
}

fn unpromised(refusal: &Refusal) -> String {
    let decision = &refusal.answer.decision;
    let confidence = decision.confidence();
    match (refusal.answer.bound_ms(), decision.bound_ms) {
        (Some(bound), _) if !decision.waiting_helps() => format!(
            "the reply would take up to {bound} ms (with confidence {confidence}), longer than slo.e2e_ms, and \
             would on an idle server as well"
        ),
        (Some(bound), _) => format!(
            "the reply would take up to {bound} ms (with confidence {confidence}), longer than slo.e2e_ms; retry \
             later"
        ),
        (None, Err(why)) if !decision.waiting_helps() => {
            let way_out = match refusal.offer.is_empty() {
                true => {
                    "without slo.e2e_ms, or with slo.mode \"best_effort\", it runs without a promise"
                }
                false => "error.counter_offer says what can be",
            };
            format!("no latency can be promised to a request like this: its {why}; {way_out}")
        }
        (None, Err(why)) => format!("no latency can be promised at the moment: {why}; retry later"),
        (None, Ok(_)) => "no latency can be promised at the moment; retry later".to_owned(),
    }
}

/// A client's text, quoted, escaped and cut, fit for an error message or a log line.
pub fn excerpt(text: &str) -> String {
    let mut quoted = String::from("'");
    for (count, c) in text.chars().enumerate() {
        if count == EXCERPT_CHARS {
            quoted.push('…');
            break;
        }
        quoted.extend(c.escape_debug());
    }
    quoted.push('\'');
    quoted
}

#[cfg(test)]
#[path = "error_tests.rs"]
mod tests;
