//! Chunks as typed SDKs read them, and what one costs.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn writer(include_usage: bool) -> ChunkWriter {
    ChunkWriter::new("chatcmpl-1", 1_700_000_000, "m\"odel").with_usage(include_usage)
}

fn parsed(json: &str) -> Value {
    serde_json::from_str(json).unwrap()
}

const USAGE: Usage = Usage {
    prompt_tokens: 7,
    completion_tokens: 3,
    cached_tokens: 4,
};

const TIMINGS: Timings = Timings {
    queue_ms: Some(1.5),
    prefill_ms: Some(20.0),
    first_decode_ms: None,
};

fn timings_json() -> Value {
    json!({"queue_ms": 1.5, "prefill_ms": 20.0, "first_decode_ms": null})
}

fn usage_json() -> Value {
    json!({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 4}})
}

#[test]
fn b031_b032_role_once_then_content_then_finish() {
    let writer = writer(false);
    let expected = |delta: Value, finish: Value| {
        json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000,
            "model": "m\"odel", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
    };
    let role = json!({"role": "assistant", "content": ""});
    assert_eq!(parsed(&writer.role_chunk()), expected(role, Value::Null));
    assert_eq!(
        parsed(&writer.content_chunk("hi")),
        expected(json!({"content": "hi"}), Value::Null)
    );
    // B037: what cut the reply is what the last chunk says.
    for (reason, word) in [
        (FinishReason::Stop, "stop"),
        (FinishReason::Length, "length"),
        (FinishReason::Slo, "slo"),
    ] {
        assert_eq!(
            parsed(&writer.finish_chunk(reason)),
            expected(json!({}), word.into())
        );
    }
}

#[test]
fn b034_b035_usage_chunk_has_empty_choices_and_the_others_null_usage() {
    let writer = writer(true);
    let usage = parsed(&writer.usage_chunk(USAGE, TIMINGS));
    let expected = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk",
        "created": 1_700_000_000, "model": "m\"odel", "choices": [], "usage": usage_json(), "timings": timings_json()});
    assert_eq!(usage, expected);
    for chunk in [
        writer.role_chunk(),
        writer.content_chunk("x"),
        writer.finish_chunk(FinishReason::Stop),
    ] {
        let chunk = parsed(&chunk);
        assert_eq!(chunk.get("usage"), Some(&Value::Null));
        assert_eq!(chunk["choices"].as_array().map(Vec::len), Some(1));
    }
}

#[test]
fn b047_an_error_event_is_the_envelope_and_no_finish() {
    let error = ServeError::Engine {
        message: "x".into(),
    };
    let event = parsed(&writer(true).error_event(&error));
    assert_eq!(event, error.to_json());
}

#[test]
fn b037_completion_has_every_required_key() {
    let completion = Completion {
        id: "chatcmpl-1",
        created: 5,
        model: "m",
        content: "🦀\n\"",
        finish_reason: FinishReason::Length,
        usage: USAGE,
        timings: TIMINGS,
    };
    let expected = json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 5, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "🦀\n\"", "refusal": null},
            "logprobs": null, "finish_reason": "length"}],
        "usage": usage_json(), "timings": timings_json()});
    assert_eq!(parsed(&completion_json(&completion)), expected);
}

#[test]
fn sse_frames_are_one_data_line_each() {
    let writer = writer(false);
    let mut out = Vec::new();
    writer.write_sse(&mut out, Chunk::Content("a\r\n\n\0\u{2028}b"));
    writer.write_sse(&mut out, Chunk::Finish(FinishReason::Stop));
    out.extend_from_slice(DONE.as_bytes());
    let text = String::from_utf8(out).unwrap();
    let events: Vec<_> = text.split_terminator("\n\n").collect();
    assert_eq!(events.len(), 3);
    assert!(
        events
            .iter()
            .all(|event| event.starts_with("data: ") && !event.contains(['\n', '\r']))
    );
    assert_eq!(events[2], "data: [DONE]");
}

#[test]
fn ids_are_random() {
    let (first, second) = (new_completion_id(), new_completion_id());
    assert_ne!(first, second);
    assert!(first.starts_with("chatcmpl-") && first.len() == 41);
}

#[test]
fn a_content_chunk_is_one_allocation() {
    // A chunk that outgrew its first buffer would have a capacity other than the one asked for.
    let writer = writer(true);
    for text in ["", " the", "\n\n        ", "🦀🦀", &"word ".repeat(200)] {
        let chunk = writer.content_chunk(text);
        assert_eq!(
            chunk.capacity(),
            writer.head.len() + text.len() + TEXT_ROOM_BYTES,
            "{text:?}"
        );
    }
}

proptest! {
    /// B040, B041, B043: text arrives exactly as it was, whatever is in it.
    #[test]
    fn any_text_survives(pieces in prop::collection::vec(any::<String>(), 0..8), id: String, model: String) {
        let writer = ChunkWriter::new(&id, u64::MAX, &model).with_usage(true);
        let mut whole = String::new();
        for piece in &pieces {
            let chunk = parsed(&writer.content_chunk(piece));
            prop_assert_eq!(chunk["id"].as_str(), Some(id.as_str()));
            prop_assert_eq!(chunk["model"].as_str(), Some(model.as_str()));
            whole.push_str(chunk["choices"][0]["delta"]["content"].as_str().unwrap());
        }
        prop_assert_eq!(whole, pieces.concat());
    }

    #[test]
    fn usage_never_overflows(prompt_tokens: u32, completion_tokens: u32, cached_tokens: u32) {
        let usage = Usage { prompt_tokens, completion_tokens, cached_tokens };
        let chunk = parsed(&writer(true).usage_chunk(usage, TIMINGS));
        let total = u64::from(prompt_tokens) + u64::from(completion_tokens);
        prop_assert_eq!(chunk["usage"]["total_tokens"].as_u64(), Some(total));
    }
}

#[test]
fn a_receipt_is_a_chunk_of_its_own_with_one_empty_choice() {
    let receipt = Receipt {
        verdict: "promised",
        bound_ms: Some(1500),
        promised_ms: Some(1500),
        actual_ms: 1200,
        kept: Some(true),
        confidence: 0.95,
        slo_ms: Some(2000),
        slo_met: Some(true),
        demoted: false,
    };
    for include_usage in [false, true] {
        let chunk = parsed(&writer(include_usage).receipt_chunk(&receipt));
        let choice = json!([{"index": 0, "delta": {}, "finish_reason": null}]);
        assert_eq!(chunk["choices"], choice);
        assert_eq!(chunk.get("usage").is_some(), include_usage);
        assert_eq!(chunk["cadenced"]["receipt"]["promised_ms"], 1500);
        assert_eq!(chunk["cadenced"]["receipt"]["kept"], true);
    }
}
