//! Every error is a full envelope with the right status, and `Retry-After` is where it belongs (B071, B125).

use serde_json::Value;

use super::{ServeError, excerpt};

fn all() -> Vec<(ServeError, u16, Option<&'static str>)> {
    let retry_after = 3;
    vec![
        (
            ServeError::invalid("temperature", "invalid_value", "m"),
            400,
            Some("invalid_value"),
        ),
        (ServeError::invalid_body("m"), 400, Some("invalid_json")),
        (
            ServeError::InvalidRequest {
                param: None,
                message: "m".into(),
                code: None,
            },
            400,
            None,
        ),
        (
            ServeError::ContextLengthExceeded {
                prompt_tokens: 9000,
                limit: 8192,
            },
            400,
            Some("context_length_exceeded"),
        ),
        (
            ServeError::ModelNotFound { model: "x".into() },
            404,
            Some("model_not_found"),
        ),
        (ServeError::NotFound, 404, Some("not_found")),
        (
            ServeError::MethodNotAllowed { allow: "POST" },
            405,
            Some("method_not_allowed"),
        ),
        (ServeError::RequestTimeout, 408, Some("request_timeout")),
        (
            ServeError::BodyTooLarge { limit: 4_000_000 },
            413,
            Some("body_too_large"),
        ),
        (
            ServeError::UnsupportedMediaType,
            415,
            Some("unsupported_media_type"),
        ),
        (ServeError::SlowReader, 408, Some("slow_reader")),
        (
            ServeError::Overloaded {
                retry_after,
                code: "queue_full",
            },
            503,
            Some("queue_full"),
        ),
        (ServeError::Draining { retry_after }, 503, Some("draining")),
        (ServeError::NotReady { retry_after }, 503, Some("not_ready")),
        (
            ServeError::Engine {
                message: "src/x.rs:1 panicked".into(),
            },
            500,
            Some("engine_error"),
        ),
        (ServeError::Internal, 500, Some("internal_error")),
    ]
}

#[test]
fn b125_every_error_is_a_full_envelope() {
    for (error, status, code) in all() {
        assert_eq!(error.status(), status, "{error:?}");
        assert_eq!(error.code(), code, "{error:?}");
        let json = error.to_json();
        assert_eq!(json.as_object().map(|o| o.len()), Some(1));
        let body = json["error"].as_object().unwrap();
        assert_eq!(body.len(), 4, "{json}");
        assert!(
            body["message"]
                .as_str()
                .is_some_and(|message| !message.is_empty())
        );
        assert_eq!(body["type"].as_str(), Some(error.kind()));
        assert_eq!(body["param"].as_str(), error.param());
        assert_eq!(body["code"], code.map_or(Value::Null, Value::from));
        assert_eq!(error.allow().is_some(), status == 405);
    }
}

#[test]
fn b071_b101_retry_after_is_on_every_503_and_nowhere_else() {
    for (error, status, _) in all() {
        assert_eq!(error.retry_after().is_some(), status == 503, "{error:?}");
    }
    let whole_s = |retry_after| ServeError::Draining { retry_after }.retry_after();
    assert_eq!(whole_s(0), Some(1));
    assert_eq!(whole_s(7), Some(7));
    assert_eq!(whole_s(u64::MAX), Some(60));
}

#[test]
fn b050_context_error_names_both_numbers() {
    let error = ServeError::ContextLengthExceeded {
        prompt_tokens: 9001,
        limit: 8192,
    };
    let message = error.public_message();
    assert!(
        message.contains("9001") && message.contains("8192"),
        "{message}"
    );
}

#[test]
fn b023_body_error_names_the_limit() {
    let error = ServeError::BodyTooLarge { limit: 4_194_304 };
    assert!(error.public_message().contains("4194304"));
}

#[test]
fn b122_a_model_name_is_echoed_short_and_escaped() {
    let model = format!("../../etc/passwd\0\n\u{202e}\"{}", "a".repeat(1 << 20));
    let message = ServeError::ModelNotFound { model }.to_json()["error"]["message"].clone();
    let message = message.as_str().unwrap();
    assert!(message.len() < 200, "{}", message.len());
    assert!(
        !message.chars().any(|c| c.is_control() || c == '\u{202e}'),
        "{message}"
    );
}

#[test]
fn b125_engine_detail_stays_in_the_log() {
    let error = ServeError::Engine {
        message: "llama_decode returned -3 at src/llama.rs:7".into(),
    };
    assert!(error.to_string().contains("llama_decode"));
    assert!(!error.to_json().to_string().contains("llama"));
}

#[test]
fn excerpts_are_cut_by_characters() {
    assert_eq!(excerpt("a\nb"), r"'a\nb'");
    assert_eq!(excerpt(&"é".repeat(41)), format!("'{}…'", "é".repeat(40)));
}
