//! A model of another family: SentencePiece, a sliding window, and a file without a chat template.

use cadenced::ids::TokenId;
use serde_json::{Value, json};

use crate::common::Response;
use crate::support::{GEMMA, GEMMA_TEMPLATE, Served, ask_with, gemma, repository, user};

fn served(template: &str) -> Served {
    let template = repository(template);
    let template = template.to_str().expect("a path in UTF-8");
    Served::model(
        GEMMA,
        &[("kv.cells", "1024"), ("model.chat_template", template)],
    )
}

/// Asserts a 400 as JSON whose message has this text.
#[track_caller]
fn assert_refused(response: &Response, text: &str) {
    assert_eq!(response.status, 400, "{response:?}");
    assert_eq!(
        response.header("content-type"),
        Some("application/json"),
        "{response:?}"
    );
    let error = &response.json()["error"];
    assert_eq!(error["type"], "invalid_request_error", "{error}");
    assert!(
        error["message"].as_str().expect("a message").contains(text),
        "{error}"
    );
}

/// B083: without a template there is no chat, and both the log and the client are told what to do about it.
#[test]
fn a_model_without_a_template_refuses_to_chat() {
    let d = Served::model(GEMMA, &[("kv.cells", "1024")]);
    assert!(d.log().contains("no chat template"), "{}", d.log());
    for stream in [false, true] {
        let refused = d.chat(&ask_with("Hello.", 4, stream, json!({}))).response();
        assert_refused(&refused, "no chat template; configure model.chat_template");
    }
    d.idle();
}

/// With a template of its kind it answers, and code keeps its spaces in this vocabulary too (B043). This file is
/// the base model, which knows no turns, so the template that makes it answer is not the family's own.
#[test]
fn a_configured_template_makes_it_answer() {
    let d = served("tests/fixtures/question_answer.jinja");
    let line = json!({ "stop": "\n" });
    for (question, answer) in [
        ("What is the capital of France?", " Paris"),
        ("What colour is the sky?", " Blue"),
    ] {
        for stream in [false, true] {
            let reply = d.reply(&ask_with(question, 16, stream, line.clone()));
            assert_eq!(
                (reply.text().as_str(), reply.finish_reason().as_deref()),
                (answer, Some("stop"))
            );
        }
    }
    let code = "Write a Python function with two nested ifs.";
    let [whole, stream] =
        [false, true].map(|stream| d.text(&ask_with(code, 40, stream, json!({}))));
    assert_eq!(whole, stream);
    assert!(
        whole.contains("def ") && whole.contains(":\n    "),
        "{whole:?}"
    );
    d.idle();
}

/// B085: what the template refuses is a 400 in its own words; a system message it folds into the first turn.
#[test]
fn a_template_refuses_in_its_own_words() {
    let d = served(GEMMA_TEMPLATE);
    let say = |role: &&str| json!({ "role": role, "content": "Say hi." });
    for (roles, stream) in [
        (vec!["user", "user"], false),
        (vec!["user", "user"], true),
        (vec!["assistant", "user"], false),
        (vec!["system", "assistant"], false),
    ] {
        let messages: Vec<Value> = roles.iter().map(say).collect();
        let body = json!({ "messages": messages, "max_tokens": 4, "stream": stream });
        assert_refused(
            &d.chat(&body).response(),
            "Conversation roles must alternate",
        );
    }
    for roles in [
        vec!["system", "user"],
        vec!["system"],
        vec!["user", "assistant", "user"],
    ] {
        let messages: Vec<Value> = roles.iter().map(say).collect();
        d.reply(&json!({ "messages": messages, "max_tokens": 4, "temperature": 0 }));
    }
    d.idle();
}

/// The template writes the token that begins a prompt, and the vocabulary wants one: there is one.
#[test]
fn the_prompt_begins_once() {
    let model = gemma();
    let bos = model.loaded.vocab.bos().expect("a model with one");
    assert!(model.loaded.vocab.add_bos());
    let count = |tokens: &[TokenId]| tokens.iter().filter(|t| **t == bos).count();
    for content in ["Hello.", "<bos>", "<bos><bos>Hello.<bos>"] {
        let tokens = model.encode(&user(content));
        assert_eq!((tokens[0], count(&tokens)), (bos, 1), "{content}");
    }
    let system =
        json!([{ "role": "system", "content": "<bos>" }, { "role": "user", "content": "Hello." }]);
    let tokens = model.encode(&system);
    assert_eq!((tokens[0], count(&tokens)), (bos, 1));
}
