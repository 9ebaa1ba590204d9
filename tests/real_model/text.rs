//! What the default model says, and the form in which it reaches the client.

use serde_json::{Value, json};

use crate::common::Response;
use crate::support::{SMOLLM2, Served, ask_with, model_file, smollm2};

/// The last chunk of a stream that has usage, or the usage of a whole reply.
fn usage(reply: &Response) -> Value {
    if !reply.is_stream() {
        return reply.json()["usage"].clone();
    }
    let chunks = reply.chunks();
    let with_usage: Vec<_> = chunks.iter().filter(|c| c["usage"].is_object()).collect();
    assert_eq!(with_usage.len(), 1, "{reply:?}");
    assert_eq!(with_usage[0]["choices"], json!([]), "{reply:?}");
    with_usage[0]["usage"].clone()
}

/// The file that is served by default is the one for which batching pays, and no other.
#[test]
fn the_default_model_is_the_requantised_one() {
    let file = std::fs::metadata(model_file(SMOLLM2))
        .expect("the model's file")
        .len();
    let d = Served::serve(&["serve"], &[("kv.cells", "1024")]);
    let stats = d.stats();
    assert_eq!(stats["backend"], "llama", "{stats}");
    assert_eq!(stats["model"], "smollm2-135m-instruct-q4_0", "{stats}");
    assert_eq!(stats["context"], 1024, "{stats}");
    // All of the file but its vocabulary: the Q4_1 file has more tensor bytes than this one has bytes.
    let tensors = stats["effective"]["model_bytes"]
        .as_u64()
        .expect("a number");
    assert!(
        (file * 9 / 10..file).contains(&tensors),
        "{tensors} of {file}: {stats}"
    );
    let models = d.get("/v1/models").json();
    assert_eq!(
        models["data"][0]["id"], "smollm2-135m-instruct-q4_0",
        "{models}"
    );
}

/// B049: a short answer is right, ends by itself, is the same however it is sent, and is billed as it is.
#[test]
fn a_factual_answer_is_the_same_streamed_and_not() {
    let d = Served::smollm2(&[]);
    for (question, word) in [
        ("What is the capital of France?", "Paris"),
        ("Say OK.", ""),
        ("How many days are there in a week?", "7 days"),
        ("What is the capital of Japan?", "Tokyo"),
    ] {
        let whole = d.reply(&ask_with(question, 512, false, json!({})));
        let options = json!({ "stream_options": { "include_usage": true } });
        let stream = d.reply(&ask_with(question, 512, true, options));
        let text = whole.text();
        assert!(text.contains(word) && text.len() > 1, "{text:?}");
        assert_eq!(stream.text(), text);
        for reply in [&whole, &stream] {
            assert_eq!(reply.finish_reason().as_deref(), Some("stop"), "{reply:?}");
            let usage = usage(reply);
            let prompt = smollm2().count(question);
            let completion = usage["completion_tokens"].as_u64().expect("a number") as usize;
            assert_eq!(usage["prompt_tokens"], prompt, "{usage}");
            assert_eq!(usage["total_tokens"], prompt + completion, "{usage}");
            // The end token is generated as well; pieces of text are a token or more.
            assert!((2..512).contains(&completion), "{usage}");
            assert!(
                stream.chunks().len() <= completion + 3,
                "{usage}: {stream:?}"
            );
        }
        for special in smollm2().loaded.vocab.special_texts() {
            assert!(!text.contains(special.as_str()), "{special} in {text:?}");
        }
    }
    d.idle();
}

/// B037: a reply that `max_tokens` cuts has that many tokens and says why it ended.
#[test]
fn a_reply_that_is_cut_says_so() {
    let d = Served::smollm2(&[]);
    for max_tokens in [1, 3] {
        for stream in [false, true] {
            let options = if stream {
                json!({ "stream_options": { "include_usage": true } })
            } else {
                json!({})
            };
            let reply = d.reply(&ask_with("List the planets.", max_tokens, stream, options));
            assert_eq!(
                reply.finish_reason().as_deref(),
                Some("length"),
                "{reply:?}"
            );
            assert_eq!(usage(&reply)["completion_tokens"], max_tokens, "{reply:?}");
            assert!(!reply.text().is_empty(), "{reply:?}");
        }
    }
}

/// Greedy replies are the same every time, alone and among twelve others, for each of these. The cache's types
/// are those with which rounding does not depend on the company (see `batching`).
#[test]
fn greedy_replies_are_the_same_alone_and_in_a_crowd() {
    let d = Served::smollm2(&[("kv.type_k", "q8_0"), ("kv.type_v", "q8_0")]);
    let question = "What is the capital of France, and what is it known for?";
    let others = [
        "Say hi.",
        "List five fruits.",
        "Why is the sky blue?",
        "Who wrote Hamlet?",
        "What is a prime number?",
        "Describe winter.",
        "How do I boil an egg?",
        "Name three rivers.",
        "Tell me about the sea.",
    ];
    let mut crowd: Vec<Value> = others
        .iter()
        .map(|o| ask_with(o, 32, false, json!({})))
        .collect();
    for at in [0, 3, 7, 11] {
        crowd.insert(at, ask_with(question, 32, false, json!({})));
    }
    let alone: Vec<String> = crowd.iter().map(|body| d.text(body)).collect();
    for at in [3, 7, 11] {
        assert_eq!(alone[at], alone[0]);
    }
    let together: Vec<String> = d.at_once(&crowd).iter().map(Response::text).collect();
    let same = alone.iter().zip(&together).filter(|(a, b)| a == b).count();
    println!(
        "greedy texts of 32 tokens that are the same among twelve others: {same} of {}",
        crowd.len()
    );
    assert!(same + 1 >= crowd.len(), "{alone:?} and {together:?}");
}
