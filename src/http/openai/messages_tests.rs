//! What reaches the chat template, and which conversations are refused.

use serde_json::{Value, json};

use super::parse_messages;
use crate::error::ServeError;

fn parse(messages: Value) -> Result<Value, ServeError> {
    parse_messages(Some(messages), 64, 10_000)
}

#[track_caller]
fn refused(messages: Value, param: &str) {
    let error = parse(messages).unwrap_err();
    assert_eq!(
        (error.status(), error.param()),
        (400, Some(param)),
        "{error}"
    );
}

#[test]
fn b001_text_parts_equal_the_plain_string_in_every_role() {
    let parts = json!([{"type": "text", "text": "Say "}, {"type": "text", "text": "hi."}]);
    let conversation = |content: Value| {
        json!([
            {"role": "system", "content": content},
            {"role": "user", "content": content},
            {"role": "assistant", "content": content,
             "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": content},
        ])
    };
    assert_eq!(
        parse(conversation(parts)),
        parse(conversation(json!("Say hi.")))
    );
}

#[test]
fn b001_b121_other_parts_are_refused_by_place() {
    for kind in ["image_url", "input_audio", "file", "video_url", "hologram"] {
        let part = json!({"type": kind, kind: {"url": "http://127.0.0.1:9999/probe"}});
        let content = json!([{"type": "text", "text": "describe"}, part]);
        let messages =
            json!([{"role": "system", "content": "s"}, {"role": "user", "content": content}]);
        refused(messages, "messages[1].content[1]");
    }
    let image = json!([{"role": "user", "content": [{"type": "image_url"}]}]);
    assert!(
        parse(image)
            .unwrap_err()
            .to_string()
            .contains("image input is not supported")
    );
    for part in [
        json!("text"),
        json!(null),
        json!({}),
        json!({"type": "text"}),
        json!({"type": "text", "text": 1}),
        json!({"type": 7}),
    ] {
        refused(
            json!([{"role": "user", "content": [part]}]),
            "messages[0].content[0]",
        );
    }
}

#[test]
fn b002_null_content_next_to_tool_calls_is_empty_text() {
    let call = json!({"id": "c1", "type": "function",
        "function": {"name": "add", "arguments": "{\"a\":2,\"b\":3}"}});
    for mut turn in [
        json!({"role": "assistant", "content": null}),
        json!({"role": "assistant"}),
    ] {
        turn["tool_calls"] = json!([call]);
        let messages = parse(json!([
            {"role": "user", "content": "2+3?"}, turn, {"role": "tool", "tool_call_id": "c1", "content": "5"}
        ]))
        .unwrap();
        assert_eq!(messages[1]["content"], "");
        assert_eq!(
            messages[2],
            json!({"role": "tool", "tool_call_id": "c1", "content": "5"})
        );
    }
    refused(
        json!([{"role": "assistant", "content": null}]),
        "messages[0].content",
    );
    refused(
        json!([{"role": "assistant", "content": null, "tool_calls": []}]),
        "messages[0].content",
    );
    refused(
        json!([{"role": "user", "content": null}]),
        "messages[0].content",
    );
    let refusal = parse(json!([{"role": "assistant", "content": null, "refusal": "No."}])).unwrap();
    assert_eq!(refusal[0]["content"], "No.");
}

#[test]
fn b010_b011_unknown_keys_vanish_and_names_stay() {
    let messages = parse(json!([
        {"role": "developer", "name": "d", "content": "hi", "id": 17, "opts": {"visible": false}},
        {"role": "user", "name": "bob", "content": "hello", "refusal": null, "tool_calls": null}
    ]))
    .unwrap();
    let expected = json!([
        {"role": "system", "name": "d", "content": "hi"},
        {"role": "user", "name": "bob", "content": "hello"}
    ]);
    assert_eq!(messages, expected);
}

#[test]
fn b026_messages_must_be_a_non_empty_list() {
    for wrong in [
        None,
        Some(json!([])),
        Some(json!("hi")),
        Some(json!({})),
        Some(json!(3)),
    ] {
        let error = parse_messages(wrong, 64, 1000).unwrap_err();
        assert_eq!((error.status(), error.param()), (400, Some("messages")));
    }
    let many = vec![json!({"role": "user", "content": "x"}); 65];
    refused(many.into(), "messages");
    refused(json!(["hi"]), "messages[0]");
    refused(json!([{"content": "hi"}]), "messages[0].role");
    refused(
        json!([{"role": "function", "content": "hi"}]),
        "messages[0].role",
    );
    refused(
        json!([{"role": "user", "content": 3}]),
        "messages[0].content",
    );
    refused(
        json!([{"role": "user", "content": "hi", "name": 3}]),
        "messages[0].name",
    );
}

#[test]
fn b029_a_tool_message_needs_an_earlier_call() {
    let call =
        json!({"id": "c9", "type": "function", "function": {"name": "q", "arguments": "{}"}});
    let turn = json!({"role": "assistant", "content": "", "tool_calls": [call]});
    let result = |id: Value| json!({"role": "tool", "tool_call_id": id, "content": [{"type": "text", "text": "VIOLET"}]});
    let good = parse(json!([turn, result(json!("c9"))])).unwrap();
    assert_eq!(good[1]["content"], "VIOLET");
    refused(
        json!([turn, result(json!("other"))]),
        "messages[1].tool_call_id",
    );
    refused(
        json!([turn, result(Value::Null)]),
        "messages[1].tool_call_id",
    );
    refused(
        json!([result(json!("c9")), turn]),
        "messages[0].tool_call_id",
    );
}

#[test]
fn b089_arguments_become_objects_or_stay_text() {
    let arguments = |wire: Value| {
        let call = json!({"id": "c1", "function": {"name": "w", "arguments": wire}});
        parse(json!([{"role": "assistant", "tool_calls": [call]}]))
            .map(|messages| messages[0]["tool_calls"][0]["function"]["arguments"].clone())
    };
    let object = json!({"city": "Par\"is"});
    assert_eq!(
        arguments(json!("{\"city\": \"Par\\\"is\"}")),
        Ok(object.clone())
    );
    assert_eq!(arguments(object.clone()), Ok(object));
    assert_eq!(arguments(Value::Null), Ok(json!({})));
    for text in ["{\"city\": ", "[1]", "12", "", "{} {}", "{\"a\":1e999}"] {
        assert_eq!(arguments(json!(text)), Ok(json!(text)));
    }
    // Deep (B022) and over the budget of values: text as well, with neither stack nor memory spent.
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(arguments(json!(deep)), Ok(json!(deep)));
    let wide = format!("{{\"a\":[{}0]}}", "0,".repeat(20_000));
    assert_eq!(arguments(json!(wide)), Ok(json!(wide)));
    assert!(arguments(json!([1])).is_err());
}

#[test]
fn malformed_tool_calls_are_refused_by_place() {
    let with = |call: Value| json!([{"role": "assistant", "content": "", "tool_calls": [call]}]);
    refused(with(json!(1)), "messages[0].tool_calls[0]");
    refused(
        with(json!({"function": {"name": "f"}})),
        "messages[0].tool_calls[0].id",
    );
    refused(
        with(json!({"id": "c"})),
        "messages[0].tool_calls[0].function",
    );
    refused(
        with(json!({"id": "c", "function": {}})),
        "messages[0].tool_calls[0].function.name",
    );
    refused(
        with(json!({"id": "c", "type": "custom"})),
        "messages[0].tool_calls[0].type",
    );
    refused(
        json!([{"role": "assistant", "tool_calls": {}}]),
        "messages[0].tool_calls",
    );
}
