//! The form of replies, streamed and not.

use serde_json::{Value, json};

use crate::common::ask;
use crate::replies::{assert_same_reply, talks};
use crate::{Dice, ask_with, assert_error, number, paced, whole};

/// B031, B032: the role once and first; then text; then the reason; then `[DONE]` and nothing more.
#[test]
fn a_stream_is_role_text_reason_done() {
    let d = paced("0", &[]);
    let body = ask("form", 5, true);
    let reply = d.chat(&body).response();
    assert!(reply.is_done(), "{reply:?}");
    assert!(
        reply
            .header("content-type")
            .unwrap()
            .starts_with("text/event-stream")
    );
    assert_eq!(reply.header("x-accel-buffering"), Some("no"));
    assert_eq!(
        reply.header("cache-control"),
        Some("no-cache, no-transform")
    );
    assert_eq!(reply.header("transfer-encoding"), Some("chunked"));
    assert_eq!(reply.header("content-length"), None);
    let chunks = reply.chunks();
    assert_eq!(chunks.len(), 1 + 5 + 1, "{reply:?}");
    assert_eq!(reply.events().len(), chunks.len() + 1);
    for (i, chunk) in chunks.iter().enumerate() {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["model"], "fake");
        for same in ["id", "created"] {
            assert_eq!(chunk[same], chunks[0][same], "{reply:?}");
        }
        assert!(chunk.get("usage").is_none(), "nobody asked: {chunk}");
        let choice = &chunk["choices"][0];
        assert_eq!(choice["index"], 0);
        match i {
            0 => assert_eq!(
                choice["delta"],
                json!({ "role": "assistant", "content": "" })
            ),
            6 => {
                assert_eq!(choice["delta"], json!({}));
                assert_eq!(choice["finish_reason"], "length");
            }
            _ => {
                assert!(
                    choice["delta"]["content"]
                        .as_str()
                        .is_some_and(|t| !t.is_empty())
                );
                assert!(choice["delta"].get("role").is_none(), "{chunk}");
            }
        }
        if i < 6 {
            assert_eq!(choice["finish_reason"], Value::Null, "{chunk}");
        }
    }
}

/// The role comes also where no text does.
#[test]
fn an_empty_reply_has_its_role_and_its_reason() {
    // The model's first token is its end only where nothing may be said: a stop string that is the first word.
    let d = paced("0", &[]);
    let first = whole(&d, "empty", 1, true).text();
    let body = ask_with("empty", 20, true, json!({ "stop": [first.trim()] }));
    let reply = d.chat(&body).response();
    assert!(reply.is_done(), "{reply:?}");
    assert_eq!(reply.text().trim(), "");
    assert_eq!(
        reply.chunks()[0]["choices"][0]["delta"]["role"],
        "assistant"
    );
    assert_eq!(reply.finish_reason().as_deref(), Some("stop"));
}

/// B034, B035: the usage chunk comes when it is asked for, once, after the reason, with an empty `choices`.
#[test]
fn the_usage_chunk_comes_only_when_asked_for() {
    let d = paced("0", &[]);
    let usage_chunks = |options: Option<Value>| {
        let mut body = ask("usage", 7, true);
        if let Some(options) = options {
            body["stream_options"] = options;
        }
        let reply = d.chat(&body).response();
        assert!(reply.is_done(), "{reply:?}");
        let chunks = reply.chunks();
        let empty = chunks
            .iter()
            .filter(|c| c["choices"].as_array().unwrap().is_empty())
            .count();
        (empty, chunks)
    };
    for absent in [
        None,
        Some(json!({})),
        Some(json!({ "include_usage": false })),
        Some(Value::Null),
    ] {
        assert_eq!(usage_chunks(absent).0, 0);
    }
    let (empty, mut chunks) = usage_chunks(Some(json!({ "include_usage": true })));
    assert_eq!(empty, 1);
    let last = chunks.pop().unwrap();
    for key in ["id", "object", "created", "model"] {
        assert_eq!(last[key], chunks[0][key]);
    }
    assert_eq!(last["usage"]["completion_tokens"], 7);
    let sum = number(&last, "/usage/prompt_tokens") + 7;
    assert_eq!(number(&last, "/usage/total_tokens"), sum);
    assert!(
        chunks.iter().all(|c| c["usage"].is_null()),
        "only the last carries it"
    );
    assert_eq!(
        chunks.last().unwrap()["choices"][0]["finish_reason"],
        "length"
    );
    let plain = whole(&d, "usage", 7, false).json();
    assert_eq!(
        plain["usage"], last["usage"],
        "streamed or not, it costs the same"
    );
}

/// B038: two hundred streams, eight at a time, of all lengths, with and without stop strings.
#[test]
fn two_hundred_streams_all_end_with_done_and_the_end_of_the_connection() {
    let d = talks("50", &[]);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let d = &d;
            scope.spawn(move || {
                let mut dice = Dice(thread);
                for i in 0..25 {
                    let stop: Vec<String> = (0..dice.below(4))
                        .map(|_| format!("w{}", dice.below(99)))
                        .collect();
                    let max_tokens = 1 + dice.below(64) as u32;
                    let content = format!("{thread} {i}");
                    let more = json!({ "stop": stop });
                    let streamed = d
                        .chat(&ask_with(&content, max_tokens, true, more.clone()))
                        .response();
                    assert!(streamed.is_done(), "{streamed:?}");
                    if i % 5 == 0 {
                        let plain = d
                            .chat(&ask_with(&content, max_tokens, false, more))
                            .response();
                        assert_same_reply(&streamed, &plain);
                    }
                }
            });
        }
    });
    let stats = d.idle();
    assert_eq!(
        number(&stats, "/requests/length") + number(&stats, "/requests/stop"),
        200 + 40
    );
}

/// B046: all that can be checked before decoding is checked before the head of a stream goes out.
#[test]
fn an_invalid_request_for_a_stream_gets_a_status_and_json() {
    let d = paced("0", &[("kv.cells", "1024")]);
    let long = ask(&"long ".repeat(1000), 5, true);
    assert_error(&d.chat(&long).response(), 400, "context_length_exceeded");
    let hot = ask_with("hot", 5, true, json!({ "temperature": "hot" }));
    assert_error(&d.chat(&hot).response(), 400, "invalid_type");
    let other = ask_with("other", 5, true, json!({ "model": "gpt-4" }));
    assert_error(&d.chat(&other).response(), 404, "model_not_found");
    let broken = d
        .post("/v1/chat/completions", "{\"stream\": true, ")
        .response();
    assert_error(&broken, 400, "invalid_json");
    assert_eq!(number(&d.idle(), "/requests/invalid"), 4);
}

/// B044: a request that waits is told at once that it was heard, and then that the server lives.
#[test]
fn a_waiting_stream_has_its_head_at_once_and_comments_meanwhile() {
    let d = paced(
        "1000",
        &[
            ("scheduler.max_running", "1"),
            ("server.sse_keep_alive_s", "1"),
            ("limits.max_output_tokens", "16000"),
        ],
    );
    let mut runs = d.chat(&ask("runs", 15_000, true));
    runs.read_text(1);
    let mut waits = d.chat(&ask("waits", 3, true));
    assert_eq!(waits.head().status, 200);
    assert!(waits.block().is_some_and(|b| b.contains("assistant")));
    // One comes at once, then one a second.
    for _ in 0..3 {
        let comment = waits.block().unwrap();
        assert!(
            comment.starts_with(':') && comment.ends_with("\n\n"),
            "{comment:?}"
        );
    }
    drop(runs);
    assert!(waits.rest().is_done());
    d.idle();
}

/// The whole reply's form.
#[test]
fn a_reply_that_is_not_streamed_is_one_json_object() {
    let d = talks("4", &[("model.name", "the-name")]);
    let reply = d
        .chat(&ask_with("form", 50, false, json!({ "model": "the-name" })))
        .response();
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let json = reply.json();
    assert_eq!(json["object"], "chat.completion");
    assert_eq!(json["model"], "the-name");
    assert!(
        json["id"]
            .as_str()
            .is_some_and(|id| id.starts_with("chatcmpl-"))
    );
    assert_eq!(json["choices"].as_array().unwrap().len(), 1);
    assert_eq!(json["choices"][0]["message"]["role"], "assistant");
    assert_eq!(json["choices"][0]["finish_reason"], "stop");
    let models = d.get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], "the-name");
    assert_eq!(models["data"][0]["max_model_len"], 16_384);
    assert_eq!(d.get("/v1/models/the-name").json(), models["data"][0]);
    assert_error(&d.get("/v1/models/another"), 404, "model_not_found");
}

/// The way to the first text is told in parts: a request that waits for another's seat has waited for most of it.
#[test]
fn the_bill_says_where_the_time_to_the_first_text_went() {
    let d = paced("5000", &[("scheduler.max_running", "1")]);
    let mut first = d.chat(&ask("first", 400, true));
    first.read_text(10);
    let second = whole(&d, "second", 5, false).json();
    let part = |of: &Value, name: &str| of["timings"][name].as_f64().unwrap();
    // Hundreds of steps of the other's were still to come, and a step makes a token.
    assert!(part(&second, "queue_ms") >= 40.0 * 5.0, "{second}");
    assert!(part(&second, "prefill_ms") >= 5.0, "{second}");
    assert!(part(&second, "first_decode_ms") >= 0.0, "{second}");
    first.rest();
    let mut streamed = ask("third", 5, true);
    streamed["stream_options"] = json!({ "include_usage": true });
    let reply = d.chat(&streamed).response();
    let bill = reply.chunks().pop().unwrap();
    assert!(part(&bill, "prefill_ms") >= 5.0, "{bill}");
    assert!(part(&bill, "queue_ms") >= 0.0, "{bill}");
}
