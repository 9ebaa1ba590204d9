//! Bodies made to crash a parser, to fill memory or to be echoed.

use super::tests::{limits, parse_bytes};
use super::*;

#[test]
fn b019_bytes_that_are_not_utf8_are_refused_and_not_echoed() {
    let body =
        b"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"caf\xe9 \xc4\xe3\"}]}";
    let error = parse_bytes(body).unwrap_err();
    assert_eq!((error.status(), error.param()), (400, None));
    assert!(error.to_json().to_string().is_ascii(), "{error}");
}

#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "the time taken is what is tested"
)]
fn b022_deep_nesting_is_a_quick_400_wherever_it_stands() {
    let depth = 1_000_000;
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        for field in ["x", "tools", "response_format", "messages", "stop", "slo"] {
            let inner = if open == "[" { "" } else { "1" };
            let body = format!(
                "{{\"model\":\"m\",\"{field}\":{}{inner}{}}}",
                open.repeat(depth),
                close.repeat(depth)
            );
            // A quarter of a worker's stack; 128 levels take under 384 KiB unoptimised, under 64 KiB optimised.
            let parse = move || {
                let start = std::time::Instant::now();
                let error = parse_bytes(body.as_bytes()).unwrap_err();
                (error, start.elapsed())
            };
            let thread = std::thread::Builder::new()
                .stack_size(512 << 10)
                .spawn(parse)
                .unwrap();
            let (error, took) = thread.join().unwrap();
            assert_eq!(error.status(), 400);
            assert!(
                error.param().is_some_and(|param| param.contains(field)),
                "{error:?}"
            );
            assert!(error.to_string().contains("nested too deeply"), "{error}");
            assert!(took.as_millis() < 500, "{took:?}");
        }
    }
}

#[test]
fn b023_a_long_prompt_passes_the_parser() {
    let text = "a ".repeat(3_000_000);
    let body = serde_json::json!({"messages": [{"role": "user", "content": text}]}).to_string();
    let request = parse_bytes(body.as_bytes()).unwrap();
    assert_eq!(
        request.messages[0]["content"].as_str().map(str::len),
        Some(text.len())
    );
}

#[test]
fn b122_a_model_name_is_data_only() {
    for model in [
        "../../etc/passwd",
        "/etc/passwd",
        "a%2f..%2fb",
        "a\0b",
        &"m".repeat(1 << 20),
    ] {
        let body =
            serde_json::json!({"model": model, "messages": [{"role": "user", "content": "x"}]})
                .to_string();
        assert_eq!(
            parse_bytes(body.as_bytes()).unwrap().model.as_deref(),
            Some(model)
        );
    }
    let error =
        parse_bytes(br#"{"model":7,"messages":[{"role":"user","content":"x"}]}"#).unwrap_err();
    assert_eq!(error.param(), Some("model"));
}

#[test]
fn no_refusal_repeats_a_clients_text_at_length() {
    let secret = "S".repeat(1000);
    for body in [
        format!(r#""{secret}""#),
        format!(r#"{{"{secret}":1e999}}"#),
        format!(r#"{{"model":{{"{secret}":1}}}}"#),
        format!(r#"{{"messages":"{secret}"}}"#),
        format!(r#"{{"messages":[{{"role":"{secret}"}}]}}"#),
        format!(r#"{{"messages":[{{"role":"user","content":[{{"type":"{secret}"}}]}}]}}"#),
        format!(r#"{{"messages":[{{"role":"tool","content":"x","tool_call_id":"{secret}"}}]}}"#),
        format!(r#"{{"messages":[{{"role":"user","content":"x"}}],"tool_choice":"{secret}"}}"#),
        format!(r#"{{"messages":[{{"role":"user","content":"x"}}],"temperature":"{secret}"}}"#),
    ] {
        let error = parse_bytes(body.as_bytes()).unwrap_err();
        assert!(error.to_json().to_string().len() < 400, "{error}");
    }
    let headers = |_: &str| Some(secret.clone());
    let body = br#"{"messages":[{"role":"user","content":"x"}]}"#;
    let error = parse_chat(body, &headers, &limits()).unwrap_err();
    assert!(error.to_json().to_string().len() < 400, "{error}");
}
