//! Arbitrary input: never a panic; a valid request is within its bounds, a refusal is an envelope.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::tests::{parse_bytes, with};
use super::*;

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        prop::sample::select(vec![
            "user",
            "tool",
            "assistant",
            "text",
            "image_url",
            "function",
            "{}",
            "c1"
        ])
        .prop_map(Value::from),
    ];
    let keys = prop::sample::select(vec![
        "role",
        "content",
        "type",
        "text",
        "tool_calls",
        "tool_call_id",
        "id",
        "function",
        "name",
        "arguments",
        "include_usage",
        "e2e_ms",
        "ttft_ms",
        "other",
    ]);
    leaf.prop_recursive(5, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(keys.clone().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// A valid request is in bounds, and an error is a 400 whose text is short.
fn check(parsed: Result<ChatRequest, ServeError>) {
    match parsed {
        Ok(request) => {
            assert!((1..=64).contains(&request.max_tokens));
            assert!((0.0..=2.0).contains(&request.sampling.temperature));
            assert!((0.0..=1.0).contains(&request.sampling.top_p));
            assert!((0.0..=1.0).contains(&request.sampling.min_p));
            assert!(request.stop.len() <= 4 && request.stop.iter().all(|stop| !stop.is_empty()));
            let messages = request.messages.as_array().unwrap();
            assert!(
                !messages.is_empty()
                    && messages
                        .iter()
                        .all(|message| message["content"].is_string())
            );
        }
        Err(error) => {
            let json: Value = serde_json::from_str(&error.to_json().to_string()).unwrap();
            assert_eq!(error.status(), 400);
            assert!(
                json["error"]["message"]
                    .as_str()
                    .is_some_and(|message| message.len() < 1000)
            );
            assert_eq!(
                json["error"].as_object().map(|fields| fields.len()),
                Some(4)
            );
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(body: Vec<u8>) {
        check(parse_bytes(&body));
    }

    #[test]
    fn arbitrary_json_never_panics(body in any_json()) {
        check(parse_bytes(body.to_string().as_bytes()));
    }

    #[test]
    fn an_arbitrary_value_in_any_field_never_panics(
        name in prop::sample::select(FIELDS.iter().copied().chain(unsupported::names()).collect::<Vec<_>>()),
        value in any_json(),
    ) {
        check(with(json!({name: value})));
    }

    #[test]
    fn arbitrary_messages_never_panic(messages in prop::collection::vec(any_json(), 0..4)) {
        check(with(json!({"messages": messages})));
    }

    /// B019: a good body with some bytes spoilt.
    #[test]
    fn spoilt_bytes_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut body = br#"{"model":"m","messages":[{"role":"user","content":"caf\u00e9 \ud83d\ude00"}],"temperature":0.5,"seed":-7,"stop":["a"],"slo":{"e2e_ms":5}}"#.to_vec();
        for (index, byte) in changes {
            let index = index.index(body.len());
            body[index] = byte;
        }
        check(parse_bytes(&body));
    }
}
