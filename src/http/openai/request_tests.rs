//! A request field by field; sampling and lengths are in `generation_tests`, arbitrary input in `property_tests`.

use serde_json::{Value, json};

use super::*;

pub(super) fn limits() -> RequestLimits {
    RequestLimits {
        max_output_tokens: 64,
        default_max_tokens: 32,
        default_sampling: SamplingConfig {
            temperature: 0.5,
            top_p: 0.8,
            top_k: 7,
            min_p: 0.25,
        },
        default_slo: Slo {
            e2e_ms: Some(9000),
            ..Slo::default()
        },
        max_stop_strings: 4,
        max_stop_bytes: 256,
        max_messages: 256,
        max_json_values: 20_000,
    }
}

pub(super) fn parse_bytes(body: &[u8]) -> Result<ChatRequest, ServeError> {
    parse_chat(body, &|_| None, &limits())
}

/// A minimal request with `extra`'s fields on top.
pub(super) fn with(extra: Value) -> Result<ChatRequest, ServeError> {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    parse_bytes(body.to_string().as_bytes())
}

#[track_caller]
pub(super) fn refused(extra: Value, param: &str) {
    let error = with(extra.clone()).expect_err(&extra.to_string());
    assert_eq!(
        (error.status(), error.param()),
        (400, Some(param)),
        "{extra}: {error}"
    );
}

#[test]
fn defaults_are_openais() {
    let request = with(json!({})).unwrap();
    assert_eq!(request.model.as_deref(), Some("m"));
    assert_eq!(request.messages, json!([{"role": "user", "content": "hi"}]));
    assert_eq!(
        (request.stream, request.include_usage, request.ignore_eos),
        (false, false, false)
    );
    assert_eq!(
        (request.tools, request.user, request.stop),
        (None, None, vec![])
    );
    assert_eq!(request.max_tokens, 32);
    let sampling = request.sampling;
    assert_eq!((sampling.temperature, sampling.top_p), (0.5, 0.8));
    assert_eq!((sampling.top_k, sampling.min_p), (7, 0.25));
    assert_eq!(request.slo, limits().default_slo);
}

#[test]
fn b034_include_usage_only_when_streaming_and_asked() {
    for (extra, wanted) in [
        (json!({"stream": true}), false),
        (
            json!({"stream": true, "stream_options": {"include_usage": false}}),
            false,
        ),
        (
            json!({"stream": true, "stream_options": {"include_usage": null}}),
            false,
        ),
        (
            json!({"stream": true, "stream_options": {"include_usage": true, "x": 1}}),
            true,
        ),
        (json!({"stream_options": {"include_usage": true}}), false),
    ] {
        assert_eq!(with(extra).unwrap().include_usage, wanted);
    }
    refused(json!({"stream": "true"}), "stream");
    refused(json!({"stream_options": []}), "stream_options");
    refused(
        json!({"stream_options": {"include_usage": 1}}),
        "stream_options.include_usage",
    );
}

#[test]
fn b028_b097_b016_what_would_change_the_reply_is_refused() {
    for (name, value) in [
        ("response_format", json!({"type": "json_object"})),
        ("response_format", json!("text")),
        ("logprobs", json!(true)),
        ("top_logprobs", json!(5)),
        ("n", json!(1_000_000)),
        ("n", json!(0)),
        ("logit_bias", json!({"50256": -100})),
        ("tool_choice", json!("required")),
        (
            "tool_choice",
            json!({"type": "function", "function": {"name": "f"}}),
        ),
        ("tool_choice", json!("sometimes")),
        ("tool_choice", json!(1)),
        ("functions", json!([{"name": "f"}])),
        ("modalities", json!(["text", "audio"])),
        ("guided_json", json!({})),
        ("grammar", json!("root ::= x")),
    ] {
        refused(json!({name: value}), name);
    }
    let neutral = json!({"response_format": {"type": "text"}, "logprobs": false, "top_logprobs": 0, "n": 1.0,
        "logit_bias": {"5": 0}, "presence_penalty": 0, "frequency_penalty": 0.0, "repeat_penalty": 1,
        "tool_choice": "auto", "modalities": ["text"], "functions": [], "echo": false});
    assert!(with(neutral).is_ok());
}

#[test]
fn tools_are_passed_on_whole_or_refused_by_place() {
    let tools =
        json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    assert_eq!(
        with(json!({"tools": tools})).unwrap().tools,
        Some(tools.clone())
    );
    assert_eq!(
        with(json!({"tools": tools, "tool_choice": "none"}))
            .unwrap()
            .tools,
        None
    );
    assert_eq!(with(json!({"tools": []})).unwrap().tools, None);
    refused(json!({"tools": {}}), "tools");
    refused(json!({"tools": [1]}), "tools[0]");
    refused(json!({"tools": [{"type": "custom"}]}), "tools[0].type");
    refused(
        json!({"tools": [{"type": "function"}]}),
        "tools[0].function",
    );
    refused(
        json!({"tools": [{"function": {"name": ""}}]}),
        "tools[0].function.name",
    );
}

#[test]
fn a_misspelt_slo_is_no_request_without_one() {
    for slo in [
        json!({"e2e": 3000}),
        json!({"e2e_ms": 3000, "Mode": "best_effort"}),
    ] {
        let body = json!({"messages": [{"role": "user", "content": "x"}], "slo": slo}).to_string();
        let error = parse_chat(body.as_bytes(), &|_| None, &limits()).unwrap_err();
        assert_eq!(
            (error.status(), error.param(), error.code()),
            (400, Some("slo"), Some("unknown_field"))
        );
        assert!(
            error.to_string().contains("is no field of 'slo'"),
            "{error}"
        );
    }
}

#[test]
fn slo_from_body_then_header_then_default() {
    let parse = |slo: Value, e2e: Option<&str>, ttft: Option<&str>| {
        let body = json!({"messages": [{"role": "user", "content": "x"}], "slo": slo}).to_string();
        let headers = |name: &str| match name {
            "x-slo-e2e-ms" => e2e.map(str::to_owned),
            "x-slo-ttft-ms" => ttft.map(str::to_owned),
            _ => None,
        };
        parse_chat(body.as_bytes(), &headers, &limits()).map(|request| request.slo)
    };
    let slo = |e2e_ms, ttft_ms| {
        Ok(Slo {
            e2e_ms,
            ttft_ms,
            ..Slo::default()
        })
    };
    assert_eq!(parse(Value::Null, None, None), slo(Some(9000), None));
    assert_eq!(
        parse(
            json!({"e2e_ms": 1500.0, "ttft_ms": 200}),
            Some("7"),
            Some("8")
        ),
        slo(Some(1500), Some(200))
    );
    assert_eq!(
        parse(json!({"e2e_ms": null}), Some(" 700 "), Some("8")),
        slo(Some(700), Some(8))
    );
    assert_eq!(
        parse(json!({"ttft_ms": 86_400_000}), None, None),
        slo(Some(9000), Some(86_400_000))
    );
    for bad in [
        json!(0),
        json!(-5),
        json!(1.5),
        json!("100"),
        json!(86_400_001),
        json!(1e300),
    ] {
        let error = parse(json!({"e2e_ms": bad}), None, None).unwrap_err();
        assert_eq!((error.status(), error.param()), (400, Some("slo.e2e_ms")));
    }
    for bad in [
        "",
        "0",
        "-1",
        "1.5",
        "soon",
        "99999999999999999999",
        "\u{fffd}",
    ] {
        let error = parse(Value::Null, None, Some(bad)).unwrap_err();
        assert_eq!(
            (error.status(), error.param()),
            (400, Some("x-slo-ttft-ms")),
            "{bad}"
        );
    }
    assert_eq!(
        parse(json!(100), None, None).unwrap_err().param(),
        Some("slo")
    );
}

#[test]
fn confidence_from_body_then_header() {
    let parse = |slo: Value, header: Option<&str>| {
        let body = json!({"messages": [{"role": "user", "content": "x"}], "slo": slo}).to_string();
        let headers = |name: &str| {
            let header = header.filter(|_| name == "x-slo-confidence");
            header.map(str::to_owned)
        };
        parse_chat(body.as_bytes(), &headers, &limits()).map(|request| request.slo.confidence)
    };
    assert_eq!(parse(Value::Null, None), Ok(None));
    assert_eq!(
        parse(json!({"confidence": 0.9}), Some("0.8")),
        Ok(Some(0.9))
    );
    assert_eq!(parse(Value::Null, Some(" 0.99 ")), Ok(Some(0.99)));
    for bad in [json!(1), json!(0.2), json!("0.9"), json!(95)] {
        let error = parse(json!({"confidence": bad}), None).unwrap_err();
        assert_eq!(
            (error.status(), error.param()),
            (400, Some("slo.confidence"))
        );
    }
    for bad in ["", "1", "NaN", "high"] {
        let error = parse(Value::Null, Some(bad)).unwrap_err();
        assert_eq!(
            (error.status(), error.param()),
            (400, Some("x-slo-confidence")),
            "{bad}"
        );
    }
}

#[test]
fn mode_from_body_then_header_and_a_stop_needs_a_deadline() {
    let parse = |slo: Value, header: Option<&str>| {
        let body = json!({"messages": [{"role": "user", "content": "x"}], "slo": slo}).to_string();
        let headers = |name: &str| {
            let header = header.filter(|_| name == "x-slo-mode");
            header.map(str::to_owned)
        };
        let limits = RequestLimits {
            default_slo: Slo::default(),
            ..limits()
        };
        let request = parse_chat(body.as_bytes(), &headers, &limits);
        request.map(|r| (r.slo.best_effort, r.slo.stop_on_miss))
    };
    assert_eq!(parse(Value::Null, None), Ok((false, false)));
    assert_eq!(parse(Value::Null, Some(" best_effort ")), Ok((true, false)));
    let promised = json!({"mode": "promised"});
    assert_eq!(parse(promised, Some("best_effort")), Ok((false, false)));
    let both = json!({"mode": "best_effort", "e2e_ms": 9, "on_miss": "stop"});
    assert_eq!(parse(both, None), Ok((true, true)));
    let goes_on = json!({"on_miss": "continue"});
    assert_eq!(parse(goes_on, None), Ok((false, false)));
    for (bad, param) in [
        (json!({"mode": "batch"}), "slo.mode"),
        (json!({"mode": true}), "slo.mode"),
        (json!({"on_miss": "retry"}), "slo.on_miss"),
        (json!({"on_miss": "stop", "ttft_ms": 9}), "slo.on_miss"),
    ] {
        let error = parse(bad, None).unwrap_err();
        assert_eq!((error.status(), error.param()), (400, Some(param)));
    }
    let error = parse(Value::Null, Some("batch")).unwrap_err();
    assert_eq!((error.status(), error.param()), (400, Some("x-slo-mode")));
}

#[test]
fn memory_is_bounded_by_the_budget_of_values() {
    let wide = format!("[{}0]", "0,".repeat(30_000));
    let body = |field: &str| {
        format!(r#"{{"{field}":{wide},"messages":[{{"role":"user","content":"x"}}]}}"#)
    };
    assert!(parse_bytes(body("x").as_bytes()).is_ok());
    let error = parse_bytes(body("tools").as_bytes()).unwrap_err();
    assert_eq!((error.status(), error.param()), (400, Some("tools")));
    assert!(error.to_string().contains("too many"));
}

#[test]
fn a_field_given_twice_counts_once() {
    let body = br#"{"max_tokens":9,"messages":[{"role":"user","content":"x"}],"max_tokens":3}"#;
    assert_eq!(parse_bytes(body).unwrap().max_tokens, 3);
}
