//! The daemon as its clients and its supervisor see it: the real binary over real sockets, with a model that
//! costs what each test says and fails when it is told to.
//!
//! Tests wait for conditions and assert the order of events; none asserts how long something took, except
//! where a bound in seconds is itself what is promised.

#[path = "../common/mod.rs"]
mod common;

mod accounts;
mod admin;
mod admission;
mod best_effort;
mod calibrate;
mod calibrate_refuses;
mod cancel;
mod capacity;
mod check_config;
mod config;
mod death;
mod decode_failure;
mod drain;
mod drain_limit;
mod early_stop;
mod framing;
mod isolation;
mod limits;
mod logs;
mod model_file;
mod prefix;
mod pressure;
mod promises;
mod replies;
mod rungs;
mod slow_reader;
mod soak;
mod streaming;
#[cfg(target_os = "linux")]
mod systemd;
mod traces;

use common::{Daemon, Dice, Response, ask};
use serde_json::{Value, json};

/// A fake whose step costs `step_us`, whatever is in it, and whose replies end only at `max_tokens`.
fn paced(step_us: &str, settings: &[(&str, &str)]) -> Daemon {
    Daemon::fake(&with(step_us, settings))
}

/// The settings of [`paced`].
fn with<'a>(step_us: &'a str, settings: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut all = vec![
        ("server.workers", "1"),
        ("fake.step_us", step_us),
        ("fake.prefill_token_us", "0"),
        ("fake.decode_seq_us", "0"),
        ("fake.cached_token_us", "0"),
        ("fake.length_min", "1000000"),
        ("fake.length_max", "1000000"),
    ];
    all.extend_from_slice(settings);
    all
}

/// The whole reply to a request.
fn whole(daemon: &Daemon, content: &str, max_tokens: u32, stream: bool) -> Response {
    let response = daemon.chat(&ask(content, max_tokens, stream)).response();
    assert_eq!(response.status, 200, "{response:?}");
    assert!(response.complete, "{response:?}");
    response
}

/// A chat request with further fields.
fn ask_with(content: &str, max_tokens: u32, stream: bool, more: Value) -> Value {
    let mut body = ask(content, max_tokens, stream);
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// A number of `/stats`.
fn number(stats: &Value, pointer: &str) -> u64 {
    stats
        .pointer(pointer)
        .and_then(Value::as_u64)
        .unwrap_or_else(|| panic!("no {pointer} in {stats}"))
}

/// Asserts that a response is an OpenAI error with this status and code.
#[track_caller]
fn assert_error(response: &Response, status: u16, code: &str) {
    assert_eq!(response.status, status, "{response:?}");
    assert!(response.complete, "{response:?}");
    assert_eq!(
        response.header("content-type"),
        Some("application/json"),
        "{response:?}"
    );
    let error = &response.json()["error"];
    assert_eq!(error["code"], code, "{response:?}");
    for key in ["message", "type"] {
        assert!(
            error[key].as_str().is_some_and(|t| !t.is_empty()),
            "{response:?}"
        );
    }
    assert!(
        error.as_object().is_some_and(|e| e.contains_key("param")),
        "{response:?}"
    );
    let retry_after = response.header("retry-after");
    if status == 503 {
        let seconds: u32 = retry_after
            .expect("a 503 with Retry-After")
            .parse()
            .unwrap();
        assert!((1..=60).contains(&seconds), "{response:?}");
    } else {
        assert_eq!(retry_after, None, "{response:?}");
    }
}

/// Asserts that a stream ended with an error event of this code: a clean end of the body, and no `[DONE]`.
#[track_caller]
fn assert_error_event(rest: &Response, code: &str) {
    assert!(rest.complete, "no clean end: {rest:?}");
    assert_eq!(rest.error_code().as_deref(), Some(code), "{rest:?}");
    assert!(!rest.events().iter().any(|e| e == "[DONE]"), "{rest:?}");
    assert_eq!(rest.finish_reason(), None, "{rest:?}");
}

/// Asserts that the daemon said nothing that only its makers can read.
#[track_caller]
fn assert_no_panic(log: &str) {
    for word in ["panic", "RUST_BACKTRACE", "stack backtrace"] {
        assert!(!log.contains(word), "{log}");
    }
}

/// An SLO for [`ask_with`].
fn e2e_ms(ms: u64) -> Value {
    json!({ "slo": { "e2e_ms": ms } })
}
